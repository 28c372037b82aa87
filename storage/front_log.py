"""The front log: commits that are durable in its files and not yet in LMDB.

front.py has the files; lmdb_journal.py moves the commits into the store.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from raylay.services.errors import CorruptRecord
from raylay.services.messages.records import Run, decode_run
from raylay.storage.front import (
    BLOCK_BYTES_MAX,
    FRONT_NAMES,
    Blocks,
    Front,
    FrontEnd,
    front_files,
    make_files,
    recovered,
    remove_front,
)
from raylay.storage.front_entries import PAGE_BYTES
from raylay.storage.journal import DiskWaitTask

_KEY = struct.Struct(">Q")

MERGED_BYTES = 64 * 1024
"""The size up to which small commits are merged into one block of the store. Larger blocks would be
slower to read: a run is found in a block by a walk over all runs before it."""
TREE_PAGES = 8
"""The number of pages that one commit of the store writes besides the blocks."""
MUCH_BYTES = 1024 * 1024
MUCH_COMMITS = 512
"""The number of commits in front at which they are moved at once. A publisher must not have to wait
for a longer move, and each commit has a page of its own in files of 2,048."""


class FrontedCommit(NamedTuple):
    """One commit in front of the store."""

    number: int
    runs: Sequence[Run]
    lengths: Sequence[int]
    """The length of each encoded run, in bytes."""
    block: bytes

    @property
    def first_txid(self) -> int:
        """First transaction id of the commit."""
        return self.runs[0].first_txid

    @property
    def last_txid(self) -> int:
        """Last transaction id of the commit."""
        return self.runs[-1].last_txid


class FrontLog:
    """The front log of a journal.

    Invariants: the `pending` commits follow the store's end without a gap and are durable; a
    durable commit is in front, in the store, or in both.
    Owner: a journal. The thread that commits calls `take`, the thread that moves commits calls
    `moved`, one at a time each; any thread may read. Lifecycle: `recover`, `open` (before it, no
    commit is taken), `close`.

    Args:
        directory: the journal's directory.
        wanted: whether commits go to the front log. If not, commits that an earlier process left in
            it are recovered, and the files are removed.
    """

    def __init__(self, directory: Path, *, wanted: bool) -> None:
        self._directory = directory
        self._wanted = wanted
        self._generation = 1
        self._front: Front | None = None
        self._end: FrontEnd | None = None
        self._opened: list[Front] = []
        """The fronts whose descriptors are open, because a thread may still be writing."""
        self._must_go = not wanted
        self._pending: list[FrontedCommit] = []
        self._last_txid = 0
        self._lock = threading.Lock()
        self.bytes_pending = 0
        """The size of the blocks that are not in the store yet, in bytes."""
        self.error: Exception | None = None
        """The error because of which the front, or one of its files, is not used; None: all of it
        is used."""
        self._work = threading.Event()
        """Set while a commit is pending."""
        self._much = threading.Event()
        """Set while MUCH_BYTES, or MUCH_COMMITS, or more are pending."""

    def recover(self, stored_txid: int, *, damaged: bool = False) -> list[FrontedCommit]:
        """Takes over the commits that an earlier process left in front of a store whose last
        transaction id is `stored_txid`. They are pending from now on. With `damaged`, sound commits
        are taken even where others are lost.

        Raises:
            StorageError: a file cannot be read.
            CorruptRecord: a commit is missing although a later one is there.
        """
        found = recovered(self._directory, stored_txid)
        if found.lost_after_txid and not damaged:
            path = str(front_files(self._directory)[0])
            raise CorruptRecord(
                f"{path}, or its neighbour, is damaged: what followed transaction id "
                f"{found.lost_after_txid} was there and is not. `raylay journal repair` takes what "
                "is sound and puts these files aside; peers hold what this instance acknowledged",
                path,
            )
        self._generation = found.generation
        self._last_txid = stored_txid
        for entry in found.entries:
            runs: list[Run] = []
            lengths: list[int] = []
            offset = 0
            while offset < len(entry.block):
                run = decode_run(entry.block, offset)
                assert run.raw is not None
                runs.append(run)
                lengths.append(len(run.raw))
                offset += lengths[-1]
            self._add(FrontedCommit(0, runs, lengths, entry.block), entry.last_txid)
        return list(self._pending)

    def open(self) -> None:
        """Makes missing files; from now on commits are taken. Where the front log is not wanted,
        removes the files. No commit may be pending. Writes up to 20 MiB."""
        try:
            if not self._wanted:
                if front_files(self._directory):
                    remove_front(self._directory)
                self._must_go = False
                return
            if self._end is not None:
                # Every file failed. Entries written from now on have another generation.
                self._put_aside()
            make_files(self._directory)
            end = FrontEnd(self._directory)
            try:
                front = Front(self._directory, self._generation)
                self._opened.append(front)
                with self._lock:
                    # Under the lock, so that readers see no gap: `moved` tells them of every later
                    # commit of the store.
                    end.moved(self._last_txid)
                    self._end = end
            except BaseException:
                end.close()
                raise
        except OSError as error:
            # Without the front log each commit goes to the store, which is slower and as safe.
            self.error = error
            return
        self._front = front
        self.error = None

    def _put_aside(self) -> None:
        with self._lock:
            self._front = None
            if self._end is not None:
                self._end.close()
                self._end = None
            while self._opened:
                front = self._opened.pop()
                self._generation = max(self._generation, front.space.generation + 1)
                front.close()

    @property
    def is_usable(self) -> bool:
        """Returns whether commits are taken; where the front log is not wanted, whether its files
        are removed."""
        front = self._front
        if front is None:
            return not self._wanted and not self._must_go
        return front.space.is_usable

    @property
    def failure(self) -> str:
        """The reason why the front log, or one of its files, cannot be used, and the consequence,
        as a sentence; empty where every file is used."""
        error = self.error
        if error is None:
            return ""
        files = f"{self._directory}: the front log ({', '.join(FRONT_NAMES)})"
        if self.is_usable:
            return (
                f"{files} could not be written: {error}. One file is given up until the instance "
                "is started again, the other takes its commits: look at the disk"
            )
        return (
            f"{files} cannot be used: {error}. Each commit goes to LMDB at once, as safe and "
            "slower, and the front log is tried again now and then: look at the disk"
        )

    def take(
        self,
        runs: Sequence[Run],
        lengths: Sequence[int],
        block: bytes,
        ahead: DiskWaitTask | None = None,
    ) -> bool:
        """Makes a commit durable. Returns False when it did not: the store must take the commit,
        after the pending ones. `ahead` is called as `Journal.commit_here` describes.

        After a failed write no commit is taken until every pending one was moved.
        """
        front, end = self._front, self._end
        if front is None or end is None:
            return False
        if len(block) > BLOCK_BYTES_MAX or not end.has_room(len(block)):
            return False
        first_txid, last_txid = runs[0].first_txid, runs[-1].last_txid
        try:
            number = front.append(first_txid, last_txid, block, ahead)
        except OSError as error:
            self.error = error
            return False
        if not number:
            return False
        with self._lock:
            try:
                end.append(first_txid, last_txid, block)
            except OSError as error:
                # The commit is durable, but other processes would not see it: the front takes no
                # more commits, and the store takes this one too.
                self.error = error
                self._front = None
                return False
            self._add(FrontedCommit(number, runs, lengths, block), last_txid)
        if ahead is not None:
            # A link that is woken reads at once, so it is woken when other processes see the
            # commit.
            ahead.durable()
        return True

    def _add(self, commit: FrontedCommit, last_txid: int) -> None:
        self._pending.append(commit)
        self._last_txid = last_txid
        self.bytes_pending += len(commit.block)
        if not self._work.is_set():
            self._work.set()
        if self.bytes_pending >= MUCH_BYTES or len(self._pending) >= MUCH_COMMITS:
            self._much.set()

    @property
    def room_bytes(self) -> int:
        """The bytes by which the store's file may grow when every pending commit is moved: whole
        pages for each block of `merged` (any two neighbouring blocks hold more than MERGED_BYTES),
        and the pages of LMDB's tree."""
        pending_bytes = self.bytes_pending
        if not pending_bytes:
            return 0
        pages = 2 * pending_bytes // MERGED_BYTES + 1 + TREE_PAGES
        return pending_bytes + pages * PAGE_BYTES

    def wait(self, pause_s: float) -> None:
        """Waits until a commit is pending; then, for at most `pause_s`, until MUCH_BYTES or
        MUCH_COMMITS are."""
        self._work.wait()
        self._much.wait(pause_s)

    def wake(self) -> None:
        """Makes a thread that is in `wait` return."""
        self._work.set()
        self._much.set()

    def pending(self) -> list[FrontedCommit]:
        """The commits to be moved, in order."""
        with self._lock:
            return list(self._pending)

    def moved(self, commits: Sequence[FrontedCommit], stored_txid: int) -> None:
        """Notes that the store has `commits`, the first of the pending ones, synced, and now ends
        with `stored_txid`."""
        with self._lock:
            del self._pending[: len(commits)]
            self.bytes_pending -= sum(len(commit.block) for commit in commits)
            self._last_txid = max(self._last_txid, stored_txid)
            if self.bytes_pending < MUCH_BYTES and len(self._pending) < MUCH_COMMITS:
                self._much.clear()
            if not self._pending:
                self._work.clear()
            if commits and self._front is not None:
                self._front.space.moved(commits[-1].number)
            if self._end is not None:
                try:
                    self._end.moved(stored_txid)
                except OSError as error:
                    self.error = error
                    self._front = None

    # -- reading in the writer's process -----------------------------------------------------
    def blocks(self, txid: int, bytes_max: int, stored: Callable[[], int]) -> Blocks | None:
        found: Blocks = []
        taken_bytes = 0
        with self._lock:
            pending = self._pending
            if not pending or pending[0].first_txid > txid:
                return None if txid <= self._last_txid else []
            # The search begins at the end, because most readers read the newest commits.
            at = len(pending)
            while at and pending[at - 1].last_txid >= txid:
                at -= 1
            for commit in pending[at:]:
                taken_bytes += len(commit.block)
                if found and taken_bytes > bytes_max:
                    break
                found.append((commit.first_txid, commit.block))
        return found

    def last_txid(self, stored_txid: int) -> int:
        """Returns the last durable transaction id."""
        with self._lock:
            return max(stored_txid, self._last_txid)

    def close(self) -> None:
        """Closes the files; pending commits stay in them."""
        self._put_aside()


class InProcessFront:
    """The front log as readers in the writer's own process see it, without reading files."""

    def __init__(self, front: FrontLog) -> None:
        self.blocks = front.blocks
        self.last_txid = front.last_txid

    def close(self) -> None:
        """Does nothing: the journal closes its front log."""


def merged(commits: Sequence[FrontedCommit]) -> list[tuple[bytes, bytes]]:
    """Returns (key, block) for the store, with small commits merged into one block."""
    found: list[tuple[bytes, bytes]] = []
    parts: list[bytes] = []
    first_txid = part_bytes = 0
    for commit in commits:
        if parts and part_bytes + len(commit.block) > MERGED_BYTES:
            found.append((_KEY.pack(first_txid), b"".join(parts)))
            parts.clear()
            part_bytes = 0
        if not parts:
            first_txid = commit.first_txid
        parts.append(commit.block)
        part_bytes += len(commit.block)
    if parts:
        found.append((_KEY.pack(first_txid), b"".join(parts)))
    return found
