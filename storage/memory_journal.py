"""The journal's in-memory twin: same contract as the LMDB one, no thread, no clock, no disk.

The seeded simulator and the unit tests use this journal: they decide when a commit happens, make a
commit fail, and crash the journal. After a crash, uncommitted runs are lost, and committed runs are
found again exactly as on a disk.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path

from raylay.services.errors import StorageError, StorageFull
from raylay.services.messages.ranges import PublisherRanges, SequenceSet
from raylay.services.messages.records import Kind, Run, decode_run, sequences_of
from raylay.storage.journal import (
    BLOCK_BYTES_MAX,
    SEGMENT_BYTES_DEFAULT,
    DiskWaitTask,
    Outcome,
    RecoveredJournal,
    SegmentInfo,
)
from raylay.storage.memory_front import MemoryFront

_RUN_OVERHEAD_BYTES = 96
"""The approximate size of a run's header on disk, so that segments rotate as they would there."""


class _Segment:
    """One segment: the consecutive runs that one file would hold."""

    __slots__ = ("bytes_used", "first_txid", "firsts", "runs", "sealed", "snapshot", "summary")

    def __init__(self, first_txid: int, snapshot: PublisherRanges) -> None:
        self.first_txid = first_txid
        self.snapshot = snapshot
        """Every sequence journaled before the segment was opened."""
        self.runs: list[Run] = []
        self.firsts: list[int] = []
        """The first transaction id of each run, for the look-up."""
        self.bytes_used = 0
        self.sealed = False
        self.summary: PublisherRanges | None = None
        """The sequences in the segment, once it is sealed."""

    @property
    def last_txid(self) -> int:
        """The last transaction id in the segment; 0 while it is empty."""
        return self.runs[-1].last_txid if self.runs else 0

    def copied(self) -> _Segment:
        """Returns a copy of the segment that shares its runs, which never change."""
        other = _Segment(self.first_txid, self.snapshot)
        other.runs, other.firsts = self.runs.copy(), self.firsts.copy()
        other.bytes_used, other.sealed = self.bytes_used, self.sealed
        other.summary = self.summary
        return other

    def seal(self) -> None:
        summary = PublisherRanges()
        for run in self.runs:
            ranges = run.ranges()
            if ranges:
                summary.add_ranges(run.publisher, ranges)
        self.summary = summary
        self.sealed = True


def _copy(run: Run, payload: bytes) -> Run:
    """Returns a copy of a run for one reader, which may change its copy."""
    return Run(
        run.publisher,
        run.first_sequence,
        run.last_sequence,
        run.count,
        payload,
        run.topic,
        run.message_type,
        run.path,
        run.group,
        run.flags,
        run.kind,
        run.first_txid,
        run.receive_time_us,
        run.payload_checksum,
    )


class MemoryJournal:
    """One instance's log, held in memory (interface: `journal.Journal`).

    Invariants: segments are consecutive in their transaction ids and never empty but the last;
    next_txid - 1 == last_txid + staged records.
    Owner: one instance (or the simulator's disk). Lifecycle: `start`, then `stage` and `commit`
    until `crash` or `close`; a crashed journal is dead, the one that `crash` returned goes on.

    Args:
        segment_bytes: a segment that holds as much is sealed, and the next one opened.
        encode: runs are kept as bytes and decoded at each read, as on disk. Costs time.
        retention_bytes: sealed segments beyond this many bytes in all are removed, oldest first,
            as far as `removable` allows. None: nothing is removed by itself.
        front: the front log, in which commits become durable; the work given to `move_later` moves
            them into the store.

    Before `start` three callables may be set: `later` schedules maintenance, which on disk has a
    thread of its own; `removed_by_retention` is called with the last transaction id of each removed
    segment; `move_later` schedules a move from the front into the store.
    """

    retention_held = ""
    """See `Journal.retention_held`."""
    front_log_failure = ""
    """See `Journal.front_log_failure`."""

    def __init__(
        self,
        segment_bytes: int = SEGMENT_BYTES_DEFAULT,
        *,
        encode: bool = False,
        retention_bytes: int | None = None,
        front: MemoryFront | None = None,
    ) -> None:
        self.recovered = RecoveredJournal()
        self._segment_bytes = segment_bytes
        self._encode = encode
        self._retention_bytes = retention_bytes
        self._segments = [_Segment(1, PublisherRanges())]
        self._kept: list[Run] = []
        self._staged: list[Run] = []
        self._next_txid = 1
        self._last_txid = 0
        self._removable_before = 0
        self.later: Callable[[Callable[[], None]], None] = lambda work: work()
        self.removed_by_retention: Callable[[int], None] = lambda last_txid: None
        self._refused_from: int | None = None
        self._fail_next: Exception | None = None
        self._committed: Callable[[int, int], None] | None = None
        self._failed: Callable[[int, Exception], None] | None = None
        self._dead = False
        self._front = front
        self._stored_txid = 0
        """The transaction id up to which the store has every commit; later commits are in front."""
        self._move_due = False
        self.move_later: Callable[[Callable[[], None]], None] = lambda work: work()

    # -- writing -----------------------------------------------------------------------------
    def start(
        self,
        committed: Callable[[int, int], None],
        failed: Callable[[int, Exception], None],
    ) -> None:
        """Names the two callbacks; `commit` calls them."""
        self._committed = committed
        self._failed = failed
        self.later(self._apply_retention)

    def stage(self, run: Run) -> None:
        """Takes the next run. After a failed commit only its first transaction id is taken."""
        self.keep(run)
        self.hand_over()

    def keep(self, run: Run) -> None:
        """`stage`, but for what stands for the hand-over to a writer thread; see `Journal.keep`."""
        self._check_alive()
        if run.first_txid != self._next_txid:
            if self._refused_from is not None:
                return  # staged behind a failed commit by a caller who does not know of it yet
            raise ValueError(
                f"run begins at transaction id {run.first_txid}, the next one is {self._next_txid}"
            )
        self._refused_from = None
        self._kept.append(run)
        self._next_txid += run.count

    def hand_over(self) -> None:
        """Gives the kept runs to the next `commit`."""
        self._staged += self._kept
        self._kept.clear()

    @property
    def is_thread_idle(self) -> bool:
        """Returns whether `commit` has nothing to do."""
        return not self._staged

    @property
    def staged(self) -> int:
        return len(self._staged) + len(self._kept)

    def fail_next(self, error: Exception) -> None:
        """Makes the next commit that has anything to do fail with this error."""
        self._fail_next = error

    def commit(self, runs_max: int | None = None) -> int:
        """Does what a writer thread does: commits what it was handed and calls `committed`; returns
        the last committed id.

        Args:
            runs_max: number of runs to commit, and those that go with the last of them; the others
                stay handed over. None: all.
        """
        self._check_alive()
        count = len(self._staged) if runs_max is None else min(runs_max, len(self._staged))
        while 0 < count < len(self._staged) and self._staged[count - 1].with_next:
            count += 1
        runs, self._staged = self._staged[:count], self._staged[count:]
        return self._commit(runs)

    def commit_here(self, ahead: DiskWaitTask | None = None) -> None:
        """Commits the kept runs; see `Journal.commit_here`. `ahead` is called only for a commit
        that goes to the front: a full disk fails before `ahead.prepare`, any other failure comes
        after it."""
        self._check_alive()
        if self._staged:
            raise RuntimeError("a commit here would overtake what was handed over")
        runs, self._kept = self._kept, []
        self._commit(runs, ahead)

    def _commit(self, runs: list[Run], ahead: DiskWaitTask | None = None) -> int:
        if not runs:
            return self._last_txid
        newest = self._segments[-1]
        if (
            self._front is None
            or not newest.runs
            or newest.bytes_used >= self._segment_bytes
            or isinstance(self._fail_next, StorageFull)
        ):
            ahead = None
        if ahead is not None:
            ahead.prepare(runs[-1].last_txid)
        if self._fail_next is not None:
            error, self._fail_next = self._fail_next, None
            self._next_txid = self._refused_from = runs[0].first_txid
            if self._front is not None:
                self._front.failed(runs)
            # The runs staged behind the failed commit are dropped with it.
            self._staged, self._kept = [], []
            if self._failed is not None:
                self._failed(self._next_txid, error)
            return self._last_txid
        segment = self._segments[-1]
        if segment.bytes_used >= self._segment_bytes:
            self._move()
            segment = self._rotate()
        in_front = bool(segment.runs) and self._front is not None and self._front.take(runs)
        self._append(segment, runs)
        if not in_front:
            self._move()
        elif not self._move_due:
            self._move_due = True
            self.move_later(self._move)
        if ahead is not None:
            ahead.durable()
        if self._committed is not None:
            self._committed(self._last_txid, 0)
        return self._last_txid

    def _append(self, segment: _Segment, runs: list[Run]) -> None:
        for run in runs:
            if self._encode:
                run = decode_run(run.encode())
            segment.runs.append(run)
            segment.firsts.append(run.first_txid)
            segment.bytes_used += _RUN_OVERHEAD_BYTES + len(run.payload)
        self._last_txid = segment.last_txid

    def _move(self) -> None:
        self._move_due = False
        if not self._dead:
            self._stored_txid = self._last_txid
            if self._front is not None:
                self._front.moved()

    def _rotate(self) -> _Segment:
        old = self._segments[-1]
        old.seal()
        assert old.summary is not None
        held = old.snapshot.copy()
        held.update(old.summary)
        fresh = _Segment(self._last_txid + 1, held)
        self._segments.append(fresh)
        self.later(self._apply_retention)
        return fresh

    def crash(self) -> MemoryJournal:
        """Crashes the journal, and returns the journal that a restart finds, without the runs that
        are not durable. If there is a front, staged runs are a torn write into it."""
        self._dead = True
        other = type(self)(
            self._segment_bytes,
            encode=self._encode,
            retention_bytes=self._retention_bytes,
            front=self._front,
        )
        other._segments = self._segments
        other._last_txid = self._last_txid
        if self._front is not None:
            staged = self._staged or self._kept
            if staged and self._segments[-1].runs:
                self._front.tear(staged)
            other._find_front(self._stored_txid, self._front)
        other._stored_txid = other._last_txid
        other._next_txid = other._last_txid + 1
        newest = other._segments[-1]
        held = newest.snapshot.copy()
        for run in newest.runs:
            ranges = run.ranges()
            if ranges:
                held.add_ranges(run.publisher, ranges)
        other.recovered = RecoveredJournal(
            next_txid=other._next_txid,
            held=held,
            segments=len(other._segments),
            records=other.last_txid - other.first_txid + 1,
        )
        return other

    def _find_front(self, stored_txid: int, front: MemoryFront) -> None:
        """Cuts the store behind `stored_txid`, and takes the commits that the front recovers from
        there on."""
        newest = self._segments[-1]
        while newest.runs and newest.runs[-1].first_txid > stored_txid:
            run = newest.runs.pop()
            newest.firsts.pop()
            newest.bytes_used -= _RUN_OVERHEAD_BYTES + len(run.payload)
        self._last_txid = stored_txid
        found = front.recover(stored_txid)
        if found:
            self._append(newest, found)

    def copied(self) -> MemoryJournal:
        """Returns the journal that a restart finds on a copy of the directory taken now."""
        other = type(self)(
            self._segment_bytes,
            encode=self._encode,
            retention_bytes=self._retention_bytes,
            front=self._front.copied() if self._front is not None else None,
        )
        other._stored_txid = self._stored_txid
        other._segments = [segment.copied() for segment in self._segments]
        other._last_txid = self._last_txid
        return other.crash()

    def close(self) -> None:
        """Commits what is staged; the journal is unusable afterwards, `crash` reopens it."""
        if not self._dead:
            self.hand_over()
            self.commit()
            self._dead = True

    def _check_alive(self) -> None:
        if self._dead:
            raise StorageError("the in-memory journal was closed or crashed; use the reopened one")

    # -- removal -----------------------------------------------------------------------------
    def removable(self, before_txid: int) -> None:
        """Retention may remove segments whose last transaction id is below `before_txid`."""
        raised = before_txid > self._removable_before
        self._removable_before = before_txid
        if raised:
            self.later(self._apply_retention)

    @property
    def floor_is_written(self) -> bool:
        """Always true: no tool in another process sees this journal."""
        return True

    def write_floor(self) -> None:
        """Nothing to do."""

    def _apply_retention(self) -> None:
        if self._retention_bytes is None or self._dead:
            return
        while (
            len(self._segments) > 1
            and self._segments[0].last_txid < self._removable_before
            and sum(segment.bytes_used for segment in self._segments) > self._retention_bytes
        ):
            last_txid = self._segments[0].last_txid
            del self._segments[0]
            self.removed_by_retention(last_txid)

    def remove(self, before_txid: int, *, force: bool = False) -> list[Outcome]:
        """Removes sealed segments wholly below `before_txid`, oldest first; see `Journal`."""
        outcomes: list[Outcome] = []
        while len(self._segments) > 1 and self._segments[0].last_txid < before_txid:
            oldest = self._info(self._segments[0])
            allowed = force or oldest.last_txid < self._removable_before
            note = "removed" if allowed else f"still needed from {self._removable_before} on"
            outcomes.append(
                Outcome(oldest.first_txid, oldest.last_txid, oldest.path, allowed, note)
            )
            if not allowed:
                break
            del self._segments[0]
        return outcomes

    # -- reading -----------------------------------------------------------------------------
    @property
    def first_txid(self) -> int:
        """The oldest transaction id still here; the next one when there is none."""
        return self._segments[0].first_txid

    @property
    def last_txid(self) -> int:
        """The newest committed transaction id; 0 when there is none."""
        return self._last_txid

    def _find(self, txid: int) -> tuple[int, int]:
        """(segment, run) of the first run that ends at or behind `txid`."""
        segments = self._segments
        at = len(segments) - 1
        while at and segments[at].first_txid > txid:
            at -= 1
        segment = segments[at]
        run = max(0, bisect_right(segment.firsts, txid) - 1)
        while run < len(segment.runs) and segment.runs[run].last_txid < txid:
            run += 1
        return at, run

    def read(self, after_txid: int, bytes_max: int = BLOCK_BYTES_MAX) -> list[Run]:
        """Committed runs behind `after_txid`; see `JournalReader.read`."""
        found: list[Run] = []
        if after_txid >= self._last_txid:
            return found
        taken_bytes = 0
        at, index = self._find(after_txid + 1)
        while at < len(self._segments):
            runs = self._segments[at].runs
            while index < len(runs):
                run = runs[index]
                if run.first_txid <= after_txid:
                    cut = run.after(after_txid)
                    assert cut is not None  # _find passed the runs that end before
                    found.append(cut)
                elif self._encode:
                    found.append(decode_run(run.encode()))
                else:
                    found.append(_copy(run, run.payload))
                taken_bytes += _RUN_OVERHEAD_BYTES + len(run.payload)
                if taken_bytes >= bytes_max:
                    return found
                index += 1
            at, index = at + 1, 0
        return found

    def read_headers(self, after_txid: int, runs_max: int = 4096) -> list[Run]:
        """Like `read`, without the payloads of records; see `JournalReader.read_headers`."""
        found: list[Run] = []
        if after_txid >= self._last_txid:
            return found
        at, index = self._find(after_txid + 1)
        while at < len(self._segments):
            runs = self._segments[at].runs
            while index < len(runs) and len(found) < runs_max:
                run = runs[index]
                if run.first_txid <= after_txid:
                    cut = run.after(after_txid)
                    assert cut is not None
                    run = cut
                needless = run.kind == Kind.RECORDS and run.contiguous
                found.append(_copy(run, b"" if needless else run.payload))
                index += 1
            at, index = at + 1, 0
        return found

    def find_sequence(self, publisher: int, sequence: int) -> int | None:
        """The transaction id of a message, or None when it is not here."""
        for segment in reversed(self._segments):
            if segment.summary is not None:
                held = segment.summary.get(publisher)
                if held is None or sequence not in held:
                    continue
            for run in segment.runs:
                if (
                    run.publisher != publisher
                    or run.kind != Kind.RECORDS
                    or not run.first_sequence <= sequence <= run.last_sequence
                ):
                    continue
                if run.contiguous:
                    return run.first_txid + sequence - run.first_sequence
                sequences = sequences_of(run.payload)
                if sequence in sequences:
                    return run.first_txid + sequences.index(sequence)
        return None

    def first_held(self, publisher: int, first: int, last: int) -> int | None:
        """The lowest sequence in first..last that is here; None when none of them is."""
        found: list[int] = []
        for segment in self._segments:
            held = segment.summary.get(publisher) if segment.summary is not None else None
            if segment.summary is None:
                held = SequenceSet()
                for run in segment.runs:
                    if run.publisher == publisher:
                        held.update(SequenceSet(run.ranges()))
            lowest = held.first_within(first, last) if held is not None else None
            if lowest is not None:
                found.append(lowest)
        return min(found, default=None)

    def highest_on_topic(self, publisher: int, topic: bytes, wanted: SequenceSet) -> int:
        """The highest of `wanted` on the topic, or in no segment; see `JournalReader`."""
        gone = wanted.copy()
        highest, lowest = 0, wanted.first() or 0
        for segment in self._segments:
            for run in segment.runs:
                if run.publisher == publisher and run.kind == Kind.RECORDS:
                    for first, last in run.ranges():
                        gone.remove(first, last)
                    if run.topic == topic and run.last_sequence >= lowest:
                        highest = max(highest, run.last_sequence)
        return max(highest, gone.last() or 0)

    def find_time(self, time_us: int) -> int:
        """The first transaction id received at or after this time; see `JournalReader`."""
        for segment in self._segments:
            for run in segment.runs:
                if run.receive_time_us >= time_us:
                    return run.first_txid
        return self._last_txid + 1

    def segment_summaries(self) -> list[tuple[int, int, PublisherRanges]]:
        """(first, last transaction id, sequences in it) of each sealed segment, oldest first."""
        return [
            (segment.first_txid, segment.last_txid, segment.summary)
            for segment in self._segments
            if segment.summary is not None
        ]

    def removed(self) -> PublisherRanges:
        """Every sequence ever journaled that is in no segment any more: a copy."""
        return self._segments[0].snapshot.copy()

    def segments(self) -> list[SegmentInfo]:
        """Every segment, oldest first, the live one last."""
        return [self._info(segment) for segment in self._segments]

    def _info(self, segment: _Segment) -> SegmentInfo:
        times = [run.receive_time_us for run in segment.runs]
        return SegmentInfo(
            first_txid=segment.first_txid,
            last_txid=segment.last_txid,
            state="sealed" if segment.sealed else "live",
            archived=False,
            path=Path(f"memory-{segment.first_txid:016x}"),
            bytes_on_disk=segment.bytes_used,
            records=sum(run.count for run in segment.runs),
            first_time_us=times[0] if times else 0,
            last_time_us=times[-1] if times else 0,
        )
