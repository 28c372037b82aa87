"""The journal on LMDB: segments, group commit in one writer thread, rotation, recovery.

The modules segments.py, segment_index.py, compressed.py and front.py describe the files. A small
commit becomes durable in the front log, and is moved into the active segment some milliseconds
later, together with others; any other commit to that segment also moves the commits in front.
Besides segments a directory holds `lock` (one owner), `maintenance.lock` (one process changes files
at a time), `removable` (the floor for removal, for tools) and `spare-N.live` (the next segment,
made ahead).
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Literal

import lmdb

from raylay.services.errors import StorageError, StorageFull
from raylay.services.messages.aging_clock import AgingClock
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.messages.records import Run
from raylay.storage.active_segment import ActiveSegment, explained, pack_blocks
from raylay.storage.files import (
    FileLock,
    fault_point,
    faults,
    make_directory,
    sync_directory,
)
from raylay.storage.front_log import FrontedCommit, FrontLog, merged
from raylay.storage.journal import (
    BLOCK_BYTES_MAX,
    SEGMENT_BYTES_DEFAULT,
    DiskWaitTask,
    Outcome,
    RecoveredJournal,
    believed_time_us,
)
from raylay.storage.journal_reader import LmdbJournalReader
from raylay.storage.journal_topics import JournalTopics
from raylay.storage.maintenance import (
    IN_USE,
    SegmentMaintenance,
    read_floor,
    write_floor,
)
from raylay.storage.segment_index import (
    HELD_PREFIX,
    OpeningEntries,
    SegmentIndex,
    check_header,
    ranges_from_entries,
)
from raylay.storage.segments import (
    META_PREFIX,
    EnvironmentSegment,
    OpenedSegment,
    SegmentFile,
    block_last_txid,
    index_of,
    list_segments,
    open_environment,
    read_meta,
    segment_path,
)
from raylay.storage.spare import SpareSegment
from raylay.storage.writer_reader import WriterReads

COMMIT_BYTES_MAX = 8 * 1024 * 1024
"""The approximate limit of one commit, in bytes. A run (at most a frame, 16 MiB) is never
divided."""
MAP_HEADROOM_BYTES = 64 * 1024 * 1024
"""The address space beyond the size at which a segment is sealed, in bytes: room for the largest
commit and the seal. Address space costs neither memory nor disk."""
READER_CHECK_COMMITS = 256
"""The number of commits between two searches for dead readers, whose slots in LMDB's lock table are
then freed."""
MOVE_S = 0.5
"""The longest time for which a commit stays in front. All commits of that time are moved by one
commit of the store."""
MOVE_AGAIN_S = 1.0
"""The pause between a failed move and the next one."""
NEVER_TXID = 1 << 64
"""A number above every transaction id."""


class _Stop:
    """The marker behind the last staged run, which ends the writer thread."""


class LmdbJournal:
    """One instance's log on disk (interface: `journal.Journal`).

    Invariants: runs are committed in the order of their ids, each id once; `committed` is called
    only for what LMDB or the front has synced; what is in front belongs to the active segment and
    follows what LMDB has; LMDB is written under `_store_lock`; the directory is locked by this
    process.
    Owner: the Instance. Threads: `stage` and `keep` on the owner's; a writer thread commits, or the
    owner's does (`commit_here`) while that one is idle; whichever it is calls the callbacks, which
    must not raise; another thread moves what is in front; a maintenance thread seals, makes spares
    and applies retention.
    Reading is allowed from any thread. Lifecycle: recovered by the constructor, `start`, `close`.

    Args:
        directory: the journal's directory, which is made if it is missing.
        segment_bytes: the content at which a segment is sealed.
        durability: `fsync` commits at once, `interval` fills a commit for up to
            `flush_interval_ms`; both sync.
        retention_bytes, retention_age_s: sealed segments beyond are removed as far as `removable`
            allows. None: nothing is removed by itself.
        archive_directory: the directory of archived segments.
        storage_bytes_max: commits that would make the directory (without the archive) larger fail
            with StorageFull. None: the disk is the limit. Segments count, the front does not.
        front_log: whether small commits go to the front log.
        take_damaged_front: whether the sound commits of a damaged front log are recovered;
            otherwise damage is an error.

    Raises:
        StorageLocked: another process owns the directory.
        StorageError: a segment is torn, damaged, missing or of another version; names the file.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        segment_bytes: int = SEGMENT_BYTES_DEFAULT,
        durability: Literal["fsync", "interval"] = "fsync",
        flush_interval_ms: float = 100.0,
        retention_bytes: int | None = None,
        retention_age_s: float | None = None,
        archive_directory: str | Path | None = None,
        storage_bytes_max: int | None = None,
        front_log: bool = False,
        take_damaged_front: bool = False,
    ) -> None:
        if durability not in ("fsync", "interval"):
            raise ValueError(f"durability is {durability!r}: give fsync or interval")
        self._directory = Path(directory)
        self._archive = Path(archive_directory) if archive_directory is not None else None
        self._segment_bytes = segment_bytes
        self._rotate_file_bytes = 2 * segment_bytes + 16 * 1024 * 1024
        self._map_bytes = self._rotate_file_bytes + MAP_HEADROOM_BYTES
        self._interval_s = flush_interval_ms / 1000 if durability == "interval" else 0.0
        self._retention_bytes = retention_bytes
        self._retention_age_s = retention_age_s
        self._aging = AgingClock(time.time_ns() // 1000, time.monotonic_ns() // 1000)
        self._retention_held = ""
        self._retention_waits = False
        """Whether retention stopped at a segment that a reader has open, so that `tidy` tries
        again."""
        self._has_removed = False
        """Whether segments were removed since the last call of `tidy`, so that the oldest
        transaction id may have changed."""
        self._storage_bytes_max = storage_bytes_max
        self._closed_bytes = 0
        try:
            make_directory(self._directory)
        except OSError as error:
            raise StorageError(
                f"{self._directory} cannot be made: {error}", str(self._directory)
            ) from error

        # Runs kept back for `commit_here`, or until `hand_over`: only the owner's thread touches
        # them.
        self._kept: list[Run] = []
        self._staged: SimpleQueue[Run | _Stop] = SimpleQueue()
        # The number of runs handed to the writer thread, and how many of them it has finished.
        # While both are equal, the owner's thread may commit.
        self._handed = self._done = 0
        self._failure_lock = threading.Lock()
        self._failed_at: int | None = None
        self._writer: threading.Thread | None = None
        self._writer_error: BaseException | None = None
        self._committed: Callable[[int, int], None] = lambda last_txid, commit_ns: None
        self._failed: Callable[[int, Exception], None] = lambda first_txid, error: None
        self._commits = 0
        self._closed = False

        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._maintainer: threading.Thread | None = None
        self._maintenance = SegmentMaintenance(self._directory, self._archive)
        self._spare = SpareSegment(self._directory, self._map_bytes)
        self._unsealed: deque[ActiveSegment] = deque()
        self._maintenance_error: Exception | None = None
        # The floor must pass this id before there is more to remove.
        self._next_boundary_txid = 0

        # The floor for removal: as set by the owner since the journal was opened, and as written
        # for tools.
        self._floor = self._floor_written = 0
        self._floor_lock = threading.Lock()

        self._store_lock = threading.Lock()
        self._front = FrontLog(self._directory, wanted=front_log)
        self._take_damaged_front = take_damaged_front
        self._move_error: Exception | None = None
        self._mover: threading.Thread | None = None
        self._moving_ends = threading.Event()

        self.topics = JournalTopics(self._directory, self._archive)
        self._opening = OpeningEntries(META_PREFIX)
        self._lock = FileLock(self._directory / "lock")
        self._active: ActiveSegment | None = None
        reads = self._reads = WriterReads(
            self._directory, self._archive, self._front, self._active_index
        )
        # Readers call the methods of `WriterReads` directly, without a forwarding call.
        self.read, self.read_headers = reads.read, reads.read_headers
        self.find_sequence, self.first_held = reads.find_sequence, reads.first_held
        self.highest_on_topic, self.find_time = reads.highest_on_topic, reads.find_time
        self.segments, self.segment_summaries = reads.segments, reads.segment_summaries
        self.removed, self.reader = reads.removed, reads.reader
        try:
            self.recovered = self._recover()
            reads.open()
        except BaseException:
            self._close_files()
            raise

    # -- recovery ----------------------------------------------------------------------------
    def _recover(self) -> RecoveredJournal:
        started = time.perf_counter()
        self._maintenance.tidy()
        files = list_segments(self._directory, self._archive)
        if not files or files[-1].suffix != ".live":
            self._active = self._create_active(self._end_of_sealed(files) + 1)
        else:
            self._active = self._reopen(files[-1])
        for file in files[:-1]:
            if file.suffix == ".live":
                # A crash came between the rotation and the sealing of the older segment.
                older = self._reopen(file)
                self._seal(older)
        active = self._active
        self._held = self._held_at_opening(active, files)
        self._reads.last_txid = active.index.last_txid or active.first_txid - 1
        self._recover_front(active)
        self.topics.opened({active.first_txid: active.index})
        held = self._held.copy()
        held.update(active.index.summary)
        first_txid = files[0].first_txid if files else active.first_txid
        self._next_txid = self._expected_txid = self._reads.last_txid + 1
        if read_floor(self._directory):
            # The floor of an earlier process: since then a peer may have lost messages that it had.
            write_floor(self._directory, 0)
        self._closed_bytes = self._measure_closed()
        return RecoveredJournal(
            next_txid=self._next_txid,
            held=held,
            segments=max(1, len(files)),
            records=self._reads.last_txid - first_txid + 1,
            seconds=time.perf_counter() - started,
        )

    def _recover_front(self, active: ActiveSegment) -> None:
        """Moves the commits that an earlier process left in front into the store. If there is no
        space they stay in front, and publishers are refused."""
        left = self._front.recover(self._reads.last_txid, damaged=self._take_damaged_front)
        for commit in left:
            active.take(commit.runs, commit.lengths)
            self._reads.last_txid = commit.last_txid
        if left:
            fault_point("front.recovered")
            try:
                self._move()
            except (lmdb.Error, OSError, StorageError) as error:
                self._move_error = self._explained(error)

    def _end_of_sealed(self, files: list[SegmentFile]) -> int:
        """Returns the last transaction id of the newest segment, which is not live; 0 without
        segments."""
        if not files:
            return 0
        with OpenedSegment(files[-1]) as segment:
            return segment.last_txid()

    def _held_at_opening(self, active: ActiveSegment, files: list[SegmentFile]) -> PublisherRanges:
        """Returns every sequence that was journaled before the active segment."""
        if active.opened:
            with active.shared.begin(buffers=True) as transaction:
                entries = read_meta(transaction)
            return ranges_from_entries(entries, HELD_PREFIX, str(active.path))
        older = [file for file in files if file.first_txid < active.first_txid]
        if not older:
            return PublisherRanges()
        # The active segment has no commit: take the snapshot of the segment before it, and that
        # segment's own sequences.
        with OpenedSegment(
            list_segments(self._directory, self._archive)[len(older) - 1]
        ) as segment:
            held = ranges_from_entries(segment.entries(), HELD_PREFIX, str(segment.file.path))
            held.update(segment.index().summary)
        return held

    def _reopen(self, file: SegmentFile) -> ActiveSegment:
        """Reopens a live segment that a crash left, and verifies every run header in it."""
        shared = open_environment(file.path, writable=True, map_bytes=self._map_bytes)
        active = ActiveSegment(shared, file.path, file.first_txid)
        segment = None
        try:
            shared.clear_dead_readers()
            segment = EnvironmentSegment(file)
            entries = segment.entries()
            active.opened = bool(entries)
            if active.opened:
                check_header(entries, file.first_txid, str(file.path))
            active.index = segment.index()
        except BaseException:
            shared.close()
            raise
        finally:
            if segment is not None:
                segment.close()
        active.measure()
        return active

    def _create_active(self, first_txid: int) -> ActiveSegment:
        shared = self._spare.take()
        path = segment_path(self._directory, first_txid, ".live")
        # The lock table is renamed first, so that a process that finds the segment finds its lock
        # table.
        os.rename(f"{shared.path}-lock", f"{path}-lock")
        fault_point("rotate.lock_renamed")
        os.rename(shared.path, path)
        fault_point("rotate.renamed")
        sync_directory(self._directory)
        shared.path = path
        return ActiveSegment(shared, path, first_txid)

    def _active_index(self, first_txid: int) -> SegmentIndex | None:
        active = self._active
        return active.index if active is not None and active.first_txid == first_txid else None

    # -- reading -----------------------------------------------------------------------------
    @property
    def front_log_failure(self) -> str:
        return self._front.failure

    @property
    def first_txid(self) -> int:
        """The oldest transaction id still here; the next one when there is none."""
        return self._reads.first_txid

    @property
    def last_txid(self) -> int:
        """The newest committed transaction id; 0 when there is none."""
        return self._reads.last_txid

    def tidy(self) -> None:
        """Closes sealed segments that no reader used since the last call, and repeats retention if
        it stopped at an open segment."""
        self._has_removed = False
        self._reads.tidy()
        if self._retention_waits:
            self._retry_retention()

    @property
    def is_untidy(self) -> bool:
        """Returns whether `tidy` has work to do, or segments were removed since its last call. May
        be called on any thread."""
        return self._has_removed or self._retention_waits or self._reads.is_untidy

    # -- staging -----------------------------------------------------------------------------
    def stage(self, run: Run) -> None:
        """Takes the next run; never blocks. After a failed commit, see `start`.

        The run must not be changed until it is committed.

        Raises:
            ValueError: the run's first transaction id is not the next one.
            StorageError: the journal is closed, or its writer thread died.
        """
        self.keep(run)
        self.hand_over()

    def keep(self, run: Run) -> None:
        """`stage`, but for the hand-over to the writer thread; see `Journal.keep`.

        Raises:
            ValueError, StorageError: as `stage` does.
        """
        first_txid = run.first_txid
        if first_txid != self._next_txid:
            with self._failure_lock:
                if first_txid != self._failed_at:
                    raise ValueError(
                        f"run begins at transaction id {first_txid}, "
                        f"the next one is {self._next_txid}"
                    )
                self._failed_at = None
            # These runs were staged by a caller that did not know of the failure yet.
            self._kept.clear()
        if self._closed or self._writer_error is not None:
            raise StorageError(
                f"{self._directory}: the journal is closed"
                + (f" ({self._writer_error!r})" if self._writer_error else ""),
                str(self._directory),
            )
        self._next_txid = first_txid + run.count
        self._kept.append(run)

    def hand_over(self) -> None:
        """Gives the writer thread what is kept back."""
        kept = self._kept
        if kept:
            self._kept = []
            self._handed += len(kept)
            for run in kept:
                self._staged.put(run)

    @property
    def is_thread_idle(self) -> bool:
        return (
            self._done == self._handed
            and self._writer is not None
            and not self._interval_s
            and not self._closed
            and not self._must_rotate()
        )

    def commit_here(self, ahead: DiskWaitTask | None = None) -> None:
        """Commits what is kept back on this thread; see `Journal.commit_here`.

        Raises:
            RuntimeError: the writer thread has something: it would be overtaken.
        """
        if self._done != self._handed or self._closed:
            raise RuntimeError(
                f"{self._directory}: a commit on the owner's thread would overtake what the writer "
                "thread has: ask is_thread_idle first"
            )
        kept, self._kept = self._kept, []
        runs = []
        for run in kept:
            if run.first_txid == self._expected_txid:
                runs.append(run)
                self._expected_txid += run.count
            # else: staged behind a failed commit by a caller who did not know of it yet
        if runs:
            self._commit(runs, ahead)

    def start(
        self,
        committed: Callable[[int, int], None],
        failed: Callable[[int, Exception], None],
    ) -> None:
        """Starts the writer thread; see `Journal.start`.

        After `failed(first_txid, error)` everything staged from that id on is dropped, whatever is
        staged before the caller knows of it included, until a run with that id is staged again.
        """
        if self._writer is not None:
            raise RuntimeError("the journal was started before")
        self._committed = committed
        self._failed = failed
        self._maintainer = threading.Thread(target=self._maintain, name="journal-maintenance")
        self._maintainer.daemon = True
        self._maintainer.start()
        self._tasks.put(self._spare.make)
        self._prepare_opening()
        self._tasks.put(self._open_front)
        self._tasks.put(self._release)
        self._mover = threading.Thread(target=self._move_often, name="journal-mover")
        self._mover.daemon = True
        self._mover.start()
        self._writer = threading.Thread(target=self._write, name="journal-writer")
        self._writer.daemon = True
        self._writer.start()

    # -- the writer thread -------------------------------------------------------------------
    def _write(self) -> None:
        try:
            while self._write_once():
                pass
        except BaseException as error:
            self._writer_error = error
            raise

    def _write_once(self) -> bool:
        """Makes one group commit. Returns False when the journal was closed."""
        staged = self._staged
        item = staged.get()
        deadline_s = time.monotonic() + self._interval_s if self._interval_s else 0.0
        runs: list[Run] = []
        taken = taken_bytes = 0
        stopped = False
        while True:
            if isinstance(item, _Stop):
                stopped = True
                break
            taken += 1
            if item.first_txid == self._expected_txid:
                runs.append(item)
                self._expected_txid += item.count
                taken_bytes += len(item.payload)
                if item.with_next:
                    # Both runs were handed over together, so the next one is there, or comes soon.
                    item = staged.get()
                    continue
                if taken_bytes >= COMMIT_BYTES_MAX:
                    break
            # else: staged behind a failed commit by a caller who did not know of it yet
            try:
                item = staged.get_nowait()
            except Empty:
                if not deadline_s or taken_bytes >= BLOCK_BYTES_MAX:
                    break
                try:
                    item = staged.get(timeout=max(0.0, deadline_s - time.monotonic()))
                except Empty:
                    break
        if runs:
            self._commit(runs)
        # The last step: from here on the owner's thread may commit.
        self._done += taken
        return not stopped

    def _commit(self, runs: list[Run], ahead: DiskWaitTask | None = None) -> None:
        blocks, lengths, bytes_in_all = pack_blocks(runs)
        started_ns = time.perf_counter_ns()
        first_txid = runs[0].first_txid
        try:
            if self._storage_bytes_max is not None:
                self._check_room(self._storage_bytes_max, bytes_in_all + self._front.room_bytes)
            in_front = self._may_be_in_front(blocks)
            if not (in_front and self._front.take(runs, lengths, blocks[0][1], ahead)):
                fault_point("commit.begin")
                with self._store_lock:
                    self._store(first_txid, blocks)
                self._move_error = None
            if faults:
                fault_point("commit.synced")
        except Exception as error:
            with self._failure_lock:
                self._failed_at = self._expected_txid = first_txid
            self._failed(first_txid, self._explained(error))
            return
        active = self._active
        assert active is not None
        active.take(runs, lengths)
        self._reads.last_txid = runs[-1].last_txid
        self._commits += 1
        if self._commits % READER_CHECK_COMMITS == 0:
            active.shared.clear_dead_readers()
            if not self._front.is_usable:
                self._tasks.put(self._open_front)
        self._committed(self._reads.last_txid, time.perf_counter_ns() - started_ns)

    def _must_rotate(self) -> bool:
        active = self._active
        return active is not None and active.is_full(self._segment_bytes, self._rotate_file_bytes)

    def _may_be_in_front(self, blocks: list[tuple[bytes, bytes]]) -> bool:
        """Returns whether the commit may become durable in the front log: it is small, and the
        active segment can take it later."""
        active = self._active
        return (
            len(blocks) == 1
            and active is not None
            and active.opened
            and self._move_error is None
            and not active.is_full(self._segment_bytes, self._rotate_file_bytes)
        )

    def _store(self, first_txid: int, blocks: list[tuple[bytes, bytes]]) -> None:
        """Writes the commits in front, and `blocks` behind them, in one synced transaction; opens
        the next segment when the active one is full. Called under the store's lock, on the thread
        that commits."""
        fronted = self._front.pending()
        full = (lmdb.MapFullError, lmdb.ReadersFullError, lmdb.TxnFullError)
        active = self._active
        assert active is not None
        if self._must_rotate():
            try:
                self._move()
            except full:
                pass  # the next segment takes what is in front
            else:
                fronted = []
            active = self._rotate(first_txid, fronted)
        moved = merged(fronted) + blocks
        try:
            self._put(active, moved)
        except full:
            if not active.opened:
                raise
            active = self._rotate(first_txid, fronted)
            self._put(active, moved)
        self._front.moved(fronted, block_last_txid(blocks[-1][1], active.path))

    def _move(self) -> None:
        """Moves the commits in front into the active segment, in one synced transaction. Called
        under the store's lock."""
        fronted = self._front.pending()
        active = self._active
        if not fronted or active is None:
            return
        fault_point("move.begin")
        self._put(active, merged(fronted))
        fault_point("move.synced")
        self._front.moved(fronted, fronted[-1].last_txid)
        fault_point("move.told")

    def _move_often(self) -> None:
        """Moves the commits in front from time to time, on the mover's thread."""
        while not self._moving_ends.is_set():
            self._front.wait(MOVE_S)
            if self._moving_ends.is_set():
                return
            try:
                with self._store_lock:
                    self._move()
            except Exception as error:
                # The commits stay in front, durable; the next commit tries to store them, or is
                # refused.
                self._move_error = self._explained(error)
                self._moving_ends.wait(MOVE_AGAIN_S)
            else:
                self._move_error = None

    def _open_front(self) -> None:
        """Opens the front log, as maintenance: small commits go there from then on."""
        if not self._front.pending() and not self._front.is_usable:
            self._front.open()

    def _put(self, active: ActiveSegment, blocks: list[tuple[bytes, bytes]]) -> None:
        size_bytes = 0
        with active.shared.begin(write=True) as transaction:
            if not active.opened:
                with transaction.cursor() as cursor:
                    cursor.putmulti(self._opening.of(active.first_txid, self._held.copy()))
            for key, block in blocks:
                if not transaction.put(key, block, append=True):
                    # Without this error a commit would be reported as durable and be in no segment.
                    raise StorageError(
                        f"{active.path}: transaction id {int.from_bytes(key, 'big')} is not behind "
                        "the last one there: the segment is damaged, or two processes write it",
                        str(active.path),
                    )
                size_bytes += len(block)
        exactly = not active.opened or self._storage_bytes_max is not None
        active.opened = True
        active.grew(size_bytes, exactly=exactly)

    def _check_room(self, limit_bytes: int, bytes_wanted: int) -> None:
        active = self._active
        assert active is not None
        if self._closed_bytes + active.file_bytes + bytes_wanted <= limit_bytes:
            return
        # Segments may have been removed or compressed meanwhile.
        self._closed_bytes = self._measure_closed()
        if self._closed_bytes + active.file_bytes + bytes_wanted > limit_bytes:
            raise StorageFull(
                f"{active.path}: {bytes_wanted} bytes more would exceed the limit of "
                f"{limit_bytes} bytes for {self._directory}: raise it, or remove segments",
                str(active.path),
            )

    def _measure_closed(self) -> int:
        """Returns the bytes on disk of all segments of the directory except the active one."""
        active = self._active
        total = 0
        for file in list_segments(self._directory, None):
            if active is None or file.first_txid != active.first_txid:
                try:
                    total += os.stat(file.path).st_size
                except FileNotFoundError:
                    pass
        return total

    def _explained(self, error: Exception) -> Exception:
        active = self._active
        assert active is not None
        return explained(error, active.path)

    def _rotate(self, first_txid: int, along: Sequence[FrontedCommit] = ()) -> ActiveSegment:
        """Opens the next segment; the maintenance thread seals the old one. `along` are the commits
        in front that the old segment could not take any more."""
        old = self._active
        assert old is not None
        if along:
            with OpenedSegment(SegmentFile(old.first_txid, ".live", False, old.path)) as segment:
                old.index = segment.index()
        fresh = self._create_active(along[0].first_txid if along else first_txid)
        for commit in along:
            fresh.take(commit.runs, commit.lengths)
        self.topics.opened({old.first_txid: old.index, fresh.first_txid: fresh.index})
        self._held.update(old.index.summary)
        self._closed_bytes += old.file_bytes
        self._active = fresh
        self._unsealed.append(old)
        self._prepare_opening()
        self._tasks.put(self._seal_pending)
        self._tasks.put(self._spare.make)
        self._tasks.put(self._release)
        return fresh

    # -- the maintenance thread --------------------------------------------------------------
    def _maintain(self) -> None:
        while (task := self._tasks.get()) is not None:
            try:
                task()
            except Exception as error:
                # No message is lost by the failure: the next rotation, or a restart, tries again.
                self._maintenance_error = error
            else:
                self._maintenance_error = None

    @property
    def maintenance_error(self) -> Exception | None:
        """The error with which the last maintenance task failed; None when it succeeded."""
        return self._maintenance_error

    def settle(self) -> None:
        """Waits until the maintenance tasks queued so far (sealing, spares, retention) are done."""
        if self._maintainer is not None and self._maintainer.is_alive():
            done = threading.Event()
            self._tasks.put(done.set)
            done.wait()

    def _prepare_opening(self) -> None:
        """Encodes in advance the sequences held before the next segment, with which that segment
        opens: most of them are known by now."""
        held = self._held.copy()
        self._tasks.put(lambda: self._opening.prepare(held))

    def _seal_pending(self) -> None:
        while self._unsealed:
            self._seal(self._unsealed[0])
            self._unsealed.popleft()

    def _seal(self, active: ActiveSegment) -> None:
        """Writes summary and index into a segment, in its last transaction, and renames it."""
        entries = active.index.seal_entries()
        fault_point("seal.begin")
        with active.shared.begin(write=True) as transaction:
            for key, value in entries.items():
                transaction.put(META_PREFIX + key, value)
        fault_point("seal.synced")
        sealed = active.path.with_suffix(".sealed")
        os.rename(active.path, sealed)
        fault_point("seal.renamed")
        Path(f"{active.path}-lock").unlink(missing_ok=True)
        sync_directory(self._directory)
        active.shared.close()

    def _apply_retention(self) -> None:
        limit_bytes, age_s = self._retention_bytes, self._retention_age_s
        if limit_bytes is None and age_s is None:
            return
        surplus_bytes = -1
        if limit_bytes is not None:
            total_bytes = 0
            for file in list_segments(self._directory, self._archive):
                total_bytes += os.stat(file.path).st_size
            surplus_bytes = total_bytes - limit_bytes
        now_us = self._aging.now_us(time.time_ns() // 1000, time.monotonic_ns() // 1000)

        def keep(file: SegmentFile, last_txid: int) -> bool:
            nonlocal surplus_bytes
            if surplus_bytes > 0:
                surplus_bytes -= os.stat(file.path).st_size
                return False
            if age_s is None or file.suffix == ".live":
                return True
            last_us = index_of(file).last_time_us
            if last_us > now_us:
                behind = [
                    index_of(each).first_time_us
                    for each in list_segments(self._directory, self._archive)
                    if each.first_txid > file.first_txid and each.suffix != ".live"
                ]
                last_us = believed_time_us(last_us, behind, now_us)
            return last_us > now_us - int(age_s * 1e6)

        outcomes = self.remove(self._reads.last_txid + 1, keep=keep)
        held = outcomes[-1] if outcomes and not outcomes[-1].done else None
        self._retention_waits = held is not None and held.note.startswith(IN_USE)
        self._retention_held = f"{held.path}: {held.note}" if held is not None else ""

    def _retry_retention(self) -> None:
        self._tasks.put(self._apply_retention)

    @property
    def retention_held(self) -> str:
        return self._retention_held

    def age_behind(self, behind_us: int) -> None:
        """Ages segments by a clock that is so far behind the wall clock (`AgingClock`). To be
        called before `start`."""
        self._aging.resume(behind_us)

    def removable(self, before_txid: int) -> None:
        floor = self._floor
        if before_txid == floor:
            return
        self._floor = before_txid
        # A higher floor matters only when it passes the end of a segment.
        if before_txid < floor or before_txid > self._next_boundary_txid:
            self._tasks.put(self._release)

    @property
    def floor_is_written(self) -> bool:
        return self._floor_written <= self._floor

    def write_floor(self) -> None:
        with self._floor_lock:
            floor = self._floor
            if floor != self._floor_written:
                write_floor(self._directory, floor)
                self._floor_written = floor

    def _release(self) -> None:
        self.write_floor()
        floor = self._floor
        closed = self._maintenance.closed_segments()
        pending = [last_txid for _, last_txid in closed if last_txid >= floor]
        # With no segment above the floor, only a rotation brings more to remove, and it calls
        # `_release` again.
        self._next_boundary_txid = pending[0] if pending else NEVER_TXID
        self._seal_pending()
        self.topics.refresh()
        self._apply_retention()

    def compress(self, before_txid: int | None = None) -> list[Outcome]:
        """Compresses sealed segments wholly below `before_txid` (None: all). Takes its time."""
        self._reads.release()
        return self._maintenance.compress(before_txid)

    def archive(self, before_txid: int | None = None) -> list[Outcome]:
        """Moves sealed segments wholly below `before_txid` (None: all) to the archive directory."""
        self._reads.release()
        return self._maintenance.archive(before_txid)

    def remove(
        self,
        before_txid: int,
        *,
        force: bool = False,
        keep: Callable[[SegmentFile, int], bool] | None = None,
    ) -> list[Outcome]:
        """Removes sealed segments wholly below `before_txid`, oldest first, as `removable` allows;
        `keep(file, last txid)` may stop it at a segment."""
        self._reads.release()
        try:
            return self._maintenance.remove(
                before_txid, lambda: self._floor, force=force, keep=keep
            )
        finally:
            self._has_removed = True
            self._tasks.put(self.topics.refresh)

    # -- end ---------------------------------------------------------------------------------
    def close(self) -> None:
        """Commits what is staged, ends the threads, frees the directory."""
        if self._closed:
            return
        self._closed = True
        self.hand_over()
        if self._writer is not None:
            self._staged.put(_Stop())
            self._writer.join()
        if self._mover is not None:
            self._moving_ends.set()
            self._front.wake()
            self._mover.join()
        if self._maintainer is not None:
            self._tasks.put(self._seal_pending)
            self._tasks.put(None)
            self._maintainer.join()
        try:
            with self._store_lock:
                self._move()
        except (lmdb.Error, OSError):
            pass  # it is in front, where the next life finds it
        try:
            self.write_floor()
        finally:
            self._close_files()

    def _close_files(self) -> None:
        self._front.close()
        self._reads.close()
        if self._active is not None:
            self._active.shared.close()
            self._active = None
        while self._unsealed:
            self._unsealed.popleft().shared.close()
        self._spare.close()
        self._lock.release()


__all__ = ["COMMIT_BYTES_MAX", "LmdbJournal", "LmdbJournalReader"]
