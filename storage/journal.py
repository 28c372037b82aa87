"""The journal's interfaces (design.md 3). `lmdb_journal.py` and `memory_journal.py` implement them.

Law of the journal: what `staged` was given is durable once `committed` has named its transaction
id, never before; a reader sees only what is durable, in the order of the transaction ids.
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
    """One segment, as `segments()` and the maintenance commands show it."""

    first_txid: int
    last_txid: int
    """0 while it is empty."""
    state: str
    """`live`, `sealed`, `compressed`; `archived` in addition when `archived` is true."""
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
    """Description of what was done, or why it was not."""


@dataclass(slots=True)
class RecoveredJournal:
    """The findings of a journal when it was opened."""

    next_txid: int = 1
    held: PublisherRanges = field(default_factory=PublisherRanges)
    """Every sequence ever journaled, segments since removed included."""
    segments: int = 0
    records: int = 0
    seconds: float = 0.0
    truncated_bytes: int = 0


class DiskWaitTask(Protocol):
    """Work that uses the time in which the disk writes a commit; see `Journal.commit_here`."""

    def prepare(self, last_txid: int) -> None:
        """The disk is writing everything up to here. Nothing of what this does may leave the
        process, or be on a disk, before `durable`. Must not raise."""

    def durable(self) -> None:
        """The disk has what was prepared for, if anything was, and every reader sees it. Must not
        raise."""


class JournalReader(Protocol):
    """Reads committed runs, in any process."""

    @property
    def first_txid(self) -> int:
        """The oldest transaction id still here; next_txid when there is none."""

    @property
    def last_txid(self) -> int:
        """The newest committed transaction id this reader knows of; 0 when there is none."""

    def read(self, after_txid: int, bytes_max: int = BLOCK_BYTES_MAX) -> list[Run]:
        """Committed runs behind `after_txid`, in order, about `bytes_max` of them, at least one if
        there is any. Notes (kinds other than RECORDS) are included. A run is cut (`Run.after`)
        when `after_txid` lies inside it. The read transaction ends before this returns."""

    def read_headers(self, after_txid: int, runs_max: int = 4096) -> list[Run]:
        """Like `read`, but without the records' bytes, for scans that need headers only.

        Notes keep their payload, and so do runs with gaps in their sequences: `Run.ranges` is
        right for each.
        """

    def find_sequence(self, publisher: int, sequence: int) -> int | None:
        """The transaction id of a message, or None when it is not here."""

    def first_held(self, publisher: int, first: int, last: int) -> int | None:
        """The lowest sequence in first..last that is here; None when none of them is."""

    def highest_on_topic(self, publisher: int, topic: bytes, wanted: SequenceSet) -> int:
        """The highest of `wanted` that is on the topic, or in no segment any more: there it may
        have been on any. Above the lowest of `wanted` what is not among it counts, too. 0: none.
        Reads headers."""

    def find_time(self, time_us: int) -> int:
        """The transaction id of the first record received at or after this time (a note or run
        boundary will do: times are per run); next_txid when there is none."""

    def segment_summaries(self) -> list[tuple[int, int, PublisherRanges]]:
        """(first txid, last txid, the sequences in it) of each sealed segment, oldest first: what a
        resync needs to skip whole segments."""

    def removed(self) -> PublisherRanges:
        """Every sequence ever journaled that is in no segment any more: a copy."""

    def segments(self) -> list[SegmentInfo]:
        """Every segment, oldest first, the live one last."""

    def close(self) -> None:
        """Gives everything back."""


class Journal(JournalReader, Protocol):
    """The one writer of a data directory, and a reader as well."""

    recovered: RecoveredJournal

    def stage(self, run: Run) -> None:
        """Takes a run whose `first_txid` is the next one. Called on the event loop; never blocks.
        It is committed with whatever else is staged (group commit), by the writer thread."""

    def keep(self, run: Run) -> None:
        """Stages a run as `stage` does, but the writer thread does not get it yet: `hand_over`
        gives it what is kept back, `commit_here` commits it. One of the two follows soon."""

    def hand_over(self) -> None:
        """Gives the writer thread what is kept back. Never blocks."""

    @property
    def is_thread_idle(self) -> bool:
        """Returns whether `commit_here` may be called: the writer thread has nothing, neither to
        commit nor to drop, and the next commit is a short one, on which nobody is to wait for
        others."""

    def commit_here(self, ahead: DiskWaitTask | None = None) -> None:
        """Commits what is kept back, on the caller's thread, and calls `committed` or `failed`
        (see `start`) before it returns. Blocks for a synced write.

        Where the disk can be left to write meanwhile, `ahead.prepare` is called first, and
        `ahead.durable` as soon as every reader sees the commit; `committed` follows. Or `failed`,
        in place of both.

        Raises:
            RuntimeError: the writer thread has something: it would be overtaken.
        """

    def start(
        self,
        committed: Callable[[int, int], None],
        failed: Callable[[int, Exception], None],
    ) -> None:
        """Starts the writer thread. `committed(last_txid, commit_ns)` is called after each synced
        commit, on the thread that made it, with the nanoseconds that the commit took.
        `failed(first_txid, error)` is called when a commit failed: everything staged from that id
        on is dropped, also what is staged before the caller knows of it, until a run with that
        first id is staged again."""

    @property
    def retention_held(self) -> str:
        """The segment that retention would remove and cannot, and who keeps it; empty: the bounds
        of size and age hold."""

    @property
    def front_log_failure(self) -> str:
        """The reason why the front log cannot be used, as a sentence; empty where nothing does, or
        none is wanted. What was committed is safe whatever it says."""

    def removable(self, before_txid: int) -> None:
        """Law 4: segments whose last transaction id is below `before_txid` may be removed by
        retention or by hand. Nothing is removed before the first call in the journal's life,
        whatever an earlier one released. Called on the event loop; never blocks. A floor that moves
        back holds at once: no removal that has not begun with a segment begins with it. For tools
        in other processes it is on disk when `write_floor` has returned."""

    @property
    def floor_is_written(self) -> bool:
        """Returns whether tools in other processes know of a floor that moved back."""

    def write_floor(self) -> None:
        """Writes the floor for tools in other processes, where it moved. Blocks.

        Raises:
            StorageError: it cannot be written; the floor that they know may be too high.
        """

    def remove(self, before_txid: int, *, force: bool = False) -> list[Outcome]:
        """Removes sealed segments wholly below `before_txid`, oldest first, never leaving a gap.
        Stops at the first that is in use, or not `removable` unless forced."""

    def close(self) -> None:
        """Commits what is staged, ends the thread, frees the directory."""


def written_before(segments: Iterable[SegmentInfo], time_us: int, now_us: int) -> int:
    """The end of the segments, oldest first, into which nothing was written since: the first
    transaction id of the first one that is younger, or live. 0: there is none such."""
    found = list(segments)
    for at, segment in enumerate(found):
        following = (each.first_time_us for each in found[at + 1 :] if each.last_txid)
        last_us = believed_time_us(segment.last_time_us, following, now_us)
        if segment.state == "live" or last_us > time_us:
            return segment.first_txid
    return 0


def believed_time_us(last_time_us: int, following_us: Iterable[int], now_us: int) -> int:
    """Returns when a segment was written to last. A time of the future was taken by a clock that
    was ahead. It counts no longer than the first time of any segment behind: that one was written
    later.

    Args:
        last_time_us: the latest receive time in the segment.
        following_us: the first receive times of the segments behind it.
    """
    if last_time_us <= now_us:
        return last_time_us
    return min((last_time_us, *following_us))


class StateStore(Protocol):
    """Small values that must be on disk before they are acted upon: identity, epochs, floors."""

    def get(self, key: str) -> bytes | None:
        """The value of a key."""

    def put(self, values: dict[str, bytes | None]) -> None:
        """Writes (or, with None, removes) all of the keys in one synced transaction."""

    def items(self, prefix: str) -> Iterator[tuple[str, bytes]]:
        """All keys that begin with `prefix`, in order."""

    def close(self) -> None:
        """Gives everything back."""
