"""The front log: commits that are durable in its files and not yet in LMDB.

front.py has the files, lmdb_journal.py moves what is here into the store.
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
"""The size up to which small commits are merged into one block of the store. A run is found in a
block by a walk over it."""
TREE_PAGES = 8
"""The number of pages that one commit of the store changes besides the blocks."""
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
    """A journal's front.

    Invariants: what is `pending` follows the store's end without a gap and is durable; a commit is
    in front or in the store, never in neither.
    Owner: a journal. `take` by whoever commits, one at a time; `moved` by whoever moved, one at a
    time; reading by any thread. Lifecycle: `recover`, `open` (nothing is taken before), `close`.

    Args:
        directory: the journal's.
        wanted: False: what an earlier life left is recovered, then the files go.
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
        """Takes over what an earlier life left in front of a store that ends with this transaction
        id. It is pending from now on. `damaged`: what is sound is taken, whatever is lost.

        Raises:
            StorageError: a file cannot be read.
            CorruptRecord: something that was there is missing before something that is.
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
        """Makes the files where they are missing; from now on commits are taken. Not wanted: the
        files go. Nothing may be pending. Takes its time."""
        try:
            if not self._wanted:
                if front_files(self._directory):
                    remove_front(self._directory)
                self._must_go = False
                return
            if self._end is not None:
                # Every file failed. What is written from now on is of another generation.
                self._put_aside()
            make_files(self._directory)
            end = FrontEnd(self._directory)
            try:
                front = Front(self._directory, self._generation)
                self._opened.append(front)
                with self._lock:
                    # Readers follow without a gap: who stores more from now on tells them.
                    end.moved(self._last_txid)
                    self._end = end
            except BaseException:
                end.close()
                raise
        except OSError as error:
            # Without it each commit goes to the store: slower, and as safe.
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
        """Returns whether commits are taken; where the front is not wanted, that is all there is to
        it."""
        front = self._front
        if front is None:
            return not self._wanted and not self._must_go
        return front.space.is_usable

    @property
    def failure(self) -> str:
        """The reason why it, or a file of it, cannot be used, and what that means, as a sentence;
        empty where all of it is."""
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
        """Makes a commit durable. False: it is not, the store must take it, behind what is pending.
        `ahead` is told as `Journal.commit_here` says.

        After a failed write nothing more is taken before all that is pending was moved.
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
                # Durable, but nobody else would see it: nothing is fronted from here on, and the
                # store takes it too.
                self.error = error
                self._front = None
                return False
            self._add(FrontedCommit(number, runs, lengths, block), last_txid)
        if ahead is not None:
            # Not before readers in other processes see it: a link that is woken reads at once.
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
        """The bytes by which the store's file may grow when all that is pending is moved: whole
        pages for each block of `merged`, of which any two neighbours hold more than MERGED_BYTES,
        and its tree."""
        pending_bytes = self.bytes_pending
        if not pending_bytes:
            return 0
        pages = 2 * pending_bytes // MERGED_BYTES + 1 + TREE_PAGES
        return pending_bytes + pages * PAGE_BYTES

    def wait(self, pause_s: float) -> None:
        """Waits until something is pending; then until it is much, for so many seconds at most."""
        self._work.wait()
        self._much.wait(pause_s)

    def wake(self) -> None:
        """Ends what `wait` waits for, once."""
        self._work.set()
        self._much.set()

    def pending(self) -> list[FrontedCommit]:
        """The commits to be moved, in order."""
        with self._lock:
            return list(self._pending)

    def moved(self, commits: Sequence[FrontedCommit], stored_txid: int) -> None:
        """Notes that these, the first of what is pending, are in the store, synced, which ends with
        this transaction id now."""
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
            # From the end: readers follow it.
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
        """The last transaction id that is durable."""
        with self._lock:
            return max(stored_txid, self._last_txid)

    def close(self) -> None:
        """Gives the files back; what is pending stays in them."""
        self._put_aside()


class InProcessFront:
    """A reader's view of the front of its own process's journal."""

    def __init__(self, front: FrontLog) -> None:
        self.blocks = front.blocks
        self.last_txid = front.last_txid

    def close(self) -> None:
        """Nothing: the journal closes it."""


def merged(commits: Sequence[FrontedCommit]) -> list[tuple[bytes, bytes]]:
    """(key, block) as the store takes them: small commits together."""
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
