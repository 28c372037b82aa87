"""The journal's interfaces. `lmdb_journal.py` and `memory_journal.py` implement them.

Law of the journal: a run that was given to `stage` or `keep` is durable once `committed` was called
with its last transaction id or a higher one, and counts as durable no earlier; a reader sees only
durable runs, in the order of their transaction ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from raylay.services.messages.ranges import PublisherRanges, SequenceSet
from raylay.services.messages.records import Run

SEGMENT_BYTES_DEFAULT = 64 * 1024 * 1024
BLOCK_BYTES_MAX = 1024 * 1024


@dataclass(slots=True)
class SegmentInfo:
    """The description of one segment that `segments()` and the maintenance commands show."""

    first_txid: int
    last_txid: int
    """0 while the segment is empty."""
    state: str
    """`live`, `sealed` or `compressed`; an archived segment is shown as `archived` in addition."""
    archived: bool
    path: Path
    bytes_on_disk: int
    records: int
    first_time_us: int
    last_time_us: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of compressing, archiving or removing one segment."""

    first_txid: int
    last_txid: int
    path: Path
    done: bool
    note: str
    """The description of what was done, or the reason why nothing was."""


@dataclass(slots=True)
class RecoveredJournal:
    """The state of a journal when it was opened."""

    next_txid: int = 1
    held: PublisherRanges = field(default_factory=PublisherRanges)
    """Every sequence ever journaled, including those in removed segments."""
    segments: int = 0
    records: int = 0
    seconds: float = 0.0
    truncated_bytes: int = 0


class DiskWaitTask(Protocol):
    """Work that uses the time in which the disk writes a commit; see `Journal.commit_here`."""

    def prepare(self, last_txid: int) -> None:
        """Does the work while the disk writes everything up to `last_txid`. No effect of the work
        may leave the process, or be written to a disk, before `durable` is called. Must not
        raise."""

    def durable(self) -> None:
        """Called when the commit is durable and every reader sees it, also when `prepare` was not
        called. Must not raise."""


class JournalReader(Protocol):
    """Reads committed runs, in any process."""

    @property
    def first_txid(self) -> int:
        """The oldest transaction id in the journal; the next one when the journal is empty."""

    @property
    def last_txid(self) -> int:
        """The newest committed transaction id that this reader knows of; 0 when there is none."""

    def read(self, after_txid: int, bytes_max: int = BLOCK_BYTES_MAX) -> list[Run]:
        """Returns committed runs behind `after_txid`, in order, about `bytes_max` bytes, and at
        least one run if there is any. Notes (kinds other than RECORDS) are included. A run in which
        `after_txid` lies is cut (`Run.after`). The read transaction ends before this method
        returns."""

    def read_headers(self, after_txid: int, runs_max: int = 4096) -> list[Run]:
        """Returns runs as `read` does, without the bytes of records, for scans that need only
        headers.

        Notes keep their payload, and so do runs with gaps in their sequences, so that `Run.ranges`
        is right for every run.
        """

    def find_sequence(self, publisher: int, sequence: int) -> int | None:
        """Returns the transaction id of a message; None when the journal does not have the
        message."""

    def first_held(self, publisher: int, first: int, last: int) -> int | None:
        """Returns the publisher's lowest sequence in first..last that the journal has; None when it
        has none of them."""

    def highest_on_topic(self, publisher: int, topic: bytes, wanted: SequenceSet) -> int:
        """Returns the highest of the publisher's `wanted` sequences that is on the topic or in no
        segment any more: a removed message may have been on any topic. A sequence on the topic
        above the lowest of `wanted` counts, too, even if it is not in `wanted`. 0: there is none.
        Reads headers."""

    def find_time(self, time_us: int) -> int:
        """Returns the first transaction id of the first run that was received at or after this time
        (each run has one receive time); the next transaction id when there is none."""

    def segment_summaries(self) -> list[tuple[int, int, PublisherRanges]]:
        """Returns (first transaction id, last transaction id, sequences) of each sealed segment,
        oldest first. A resync skips whole segments by them."""

    def removed(self) -> PublisherRanges:
        """Returns a copy of the set of sequences that were journaled and are in no segment any
        more."""

    def segments(self) -> list[SegmentInfo]:
        """Returns every segment, oldest first, the live one last."""

    def close(self) -> None:
        """Gives everything back."""


class Journal(JournalReader, Protocol):
    """The one writer of a data directory, and a reader as well."""

    recovered: RecoveredJournal

    def stage(self, run: Run) -> None:
        """Takes a run whose `first_txid` is the next transaction id. Called on the event loop;
        never blocks. The writer thread commits the run together with all other staged runs (group
        commit)."""

    def keep(self, run: Run) -> None:
        """Stages a run as `stage` does, but keeps it back from the writer thread. The caller soon
        calls `hand_over`, which gives kept runs to the writer thread, or `commit_here`, which
        commits them."""

    def hand_over(self) -> None:
        """Gives the kept runs to the writer thread. Never blocks."""

    @property
    def is_thread_idle(self) -> bool:
        """Returns whether `commit_here` may be called: the writer thread has no run to commit or to
        drop, and the next commit is neither delayed to collect more runs nor one that opens a
        segment."""

    def commit_here(self, ahead: DiskWaitTask | None = None) -> None:
        """Commits the kept runs on the caller's thread, and calls `committed` or `failed` (see
        `start`) before it returns. Blocks for a synced write.

        Where the kernel can write in the background, `ahead.prepare` is called during the write.
        `ahead.durable` is called as soon as every reader sees the commit, and `committed` after
        that; or `failed` in place of both.

        Raises:
            RuntimeError: the writer thread has runs that this commit would overtake.
        """

    def start(
        self,
        committed: Callable[[int, int], None],
        failed: Callable[[int, Exception], None],
    ) -> None:
        """Starts the writer thread. `committed(last_txid, commit_ns)` is called after each synced
        commit, on the thread that made it, with the duration of the commit in nanoseconds.
        `failed(first_txid, error)` is called when a commit failed: every run staged from that
        transaction id on is dropped, including runs staged before the caller knows of the failure,
        until a run with that first id is staged again."""

    @property
    def retention_held(self) -> str:
        """The segment that retention would remove and cannot, and what keeps it, as a sentence;
        empty when the limits of size and age hold."""

    @property
    def front_log_failure(self) -> str:
        """The reason why the front log cannot be used, as a sentence; empty when it can be, or is
        not wanted. Committed messages are safe in either case."""

    def removable(self, before_txid: int) -> None:
        """Sets the floor for removal (law 4): segments whose last transaction id is below
        `before_txid` may be removed by retention or by an operator. Before the first call on a
        newly opened journal nothing is removed, whatever the floor was earlier. Called on the event
        loop; never blocks. A floor that moves back takes effect at once: no further segment above
        it is removed. Tools in other processes know the floor when `write_floor` has returned."""

    @property
    def floor_is_written(self) -> bool:
        """Returns whether the floor that tools in other processes know is no higher than the
        present one."""

    def write_floor(self) -> None:
        """Writes a changed floor to disk, for tools in other processes. Blocks.

        Raises:
            StorageError: the floor cannot be written; the one that tools know may be too high.
        """

    def remove(self, before_txid: int, *, force: bool = False) -> list[Outcome]:
        """Removes sealed segments that end below `before_txid`, oldest first, so that no gap
        appears. Stops at the first segment that is in use or, unless `force` is set, above the
        floor of `removable`."""

    def close(self) -> None:
        """Commits all staged runs, ends the thread and releases the directory."""


def written_before(segments: Iterable[SegmentInfo], time_us: int, now_us: int) -> int:
    """Returns the first transaction id of the first segment, oldest first, that is live or was
    written to after `time_us`: all segments before it are older. 0: there is no such segment."""
    found = list(segments)
    for at, segment in enumerate(found):
        following = (each.first_time_us for each in found[at + 1 :] if each.last_txid)
        last_us = believed_time_us(segment.last_time_us, following, now_us)
        if segment.state == "live" or last_us > time_us:
            return segment.first_txid
    return 0


def believed_time_us(last_time_us: int, following_us: Iterable[int], now_us: int) -> int:
    """Returns the time at which a segment was last written to. A time in the future comes from a
    clock that was ahead; it is limited by the first time of every later segment, since those were
    written afterwards.

    Args:
        last_time_us: the latest receive time in the segment.
        following_us: the first receive times of the later segments.
    """
    if last_time_us <= now_us:
        return last_time_us
    return min((last_time_us, *following_us))


class StateStore(Protocol):
    """Small values that must be on disk before they are acted upon: identity, epochs, floors."""

    def get(self, key: str) -> bytes | None:
        """Returns the value of a key; None when there is none."""

    def put(self, values: dict[str, bytes | None]) -> None:
        """Writes (or, with None, removes) all of the keys in one synced transaction."""

    def items(self, prefix: str) -> Iterator[tuple[str, bytes]]:
        """Yields (key, value) for all keys that begin with `prefix`, in order."""

    def close(self) -> None:
        """Gives everything back."""
