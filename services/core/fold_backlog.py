"""Commits that take long to be folded, and batches that take long to be published: a slice at a
time, so that a turn of the loop stays short.

A slice is a batch like any other: some runs, the last of them perhaps in part. So each feature
folds a commit in the journal's order, once, whatever is cut where.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from raylay.services.core.batch import CommitBatch
from raylay.services.messages.records import Flag, Kind, Run
from raylay.services.replication.journal_lookup import LookupRequest

RECORD_US = 13
"""Approximate time that a record of weight 1 takes."""
SLICE_RECORDS = 150
"""Records in a slice: some 2 ms of the loop."""
SLICE_BYTES = 128 * 1024
"""Bytes of the records in a slice: of large records fewer are folded at once, but at least one."""
SLICE_RUNS = 1_000
"""Runs in a slice, whatever their records take: a run takes some microseconds by itself."""
PART_RECORDS = 400
"""Records in a part that is prepared at once: some 2 ms of the loop."""
PART_BYTES = 128 * 1024
PART_RUNS = 200
"""Runs that a publish may have in one turn: 3 ms, with their commit."""
COMMAND_WEIGHT = 4
"""Time that a record which is no message takes, relative to a message: its body is read."""
_LIGHT = Flag.CONTIGUOUS | Flag.COMMANDS
_LENGTH = struct.Struct("<I")
_SEQUENCE = struct.Struct("<Q")
_SEQUENCE_AT = 36
"""Offset of the sequence in a record (services/messages/records.py)."""

DELETE_BYTES, KEY_BYTES = 120, 34
"""Approximate sizes in the record of a delete: of the record without its keys, and of each key."""
Weigh = Callable[[Run], int]
"""Weight of each record of a run: the time that it takes, relative to most records; 0: so little
that it is not counted, and never cut."""


def weight(run: Run) -> int:
    """Returns how many times as long as a message each record of a run on a SOW topic takes: a
    delete as often as it names keys."""
    if not run.flags & Flag.COMMANDS:
        return 1
    return max(1, (len(run.payload) // run.count - DELETE_BYTES) // KEY_BYTES)


def _exceed(runs: Iterable[Run], weigh: Weigh, most: int, size_bytes: int) -> bool:
    count = weight = found_bytes = 0
    for run in runs:
        each = weigh(run) if run.kind == Kind.RECORDS else 0
        if each:
            count += run.count
            weight += run.count * each
            found_bytes += len(run.payload)
            # One record is never cut.
            if count > 1 and (weight > most or found_bytes > size_bytes):
                return True
    return False


def _sum_of(one: Weigh, other: Weigh) -> Weigh:
    if one is _nothing:
        return other
    return lambda run: one(run) + other(run)


def _nothing(_: Run) -> int:
    return 0


class RunParts:
    """A run in parts, each made when it is asked for, at a cost of its own length.

    Args:
        run: with its records.
    """

    __slots__ = ("_left", "_offset", "_run", "_txid")

    def __init__(self, run: Run) -> None:
        self._run = run
        self._offset = 0
        self._left = run.count
        self._txid = run.first_txid

    @property
    def left(self) -> int:
        """Records that were not taken."""
        return self._left

    @property
    def left_bytes(self) -> int:
        """Bytes of the records that were not taken."""
        return len(self._run.payload) - self._offset

    def take(self, records_max: int, bytes_max: int = SLICE_BYTES) -> Run:
        """The next part: one record at least. To be called while there is something left."""
        run, payload, start = self._run, self._run.payload, self._offset
        end, count, last_at = start, 0, start
        try:
            while count < self._left and (not count or count < records_max):
                length = _LENGTH.unpack_from(payload, end)[0]
                if count and end + length - start > bytes_max:
                    break
                last_at = end
                end += length
                count += 1
            if count == run.count:
                self._offset, self._left = end, 0
                return run
            first = _SEQUENCE.unpack_from(payload, start + _SEQUENCE_AT)[0]
            last = _SEQUENCE.unpack_from(payload, last_at + _SEQUENCE_AT)[0]
        except struct.error:
            return self._unreadable()
        flags = run.flags & ~Flag.CONTIGUOUS
        if last - first + 1 == count:
            flags |= Flag.CONTIGUOUS
        part = replace(
            run,
            first_sequence=first,
            last_sequence=last,
            count=count,
            payload=payload[start:end],
            flags=flags,
            first_txid=self._txid,
            payload_checksum=0,
            raw=None,
        )
        self._offset = end
        self._left -= count
        if self._txid:
            self._txid += count
        return part

    def _unreadable(self) -> Run:
        """All that is left, in one part: its records cannot be told apart. Who folds it says so."""
        run = self._run
        part = replace(
            run,
            count=self._left,
            payload=run.payload[self._offset :],
            flags=run.flags & ~Flag.CONTIGUOUS,
            first_txid=self._txid,
            payload_checksum=0,
            raw=None,
        )
        self._offset, self._left = len(run.payload), 0
        return part


class _RunSlices:
    """Runs in order, taken out a slice at a time.

    Args:
        runs: with their records.
        weigh: its records.
    """

    __slots__ = ("_parts", "_runs", "_weigh")

    def __init__(self, runs: Iterable[Run], weigh: Weigh) -> None:
        self._runs = deque(runs)
        self._weigh = weigh
        self._parts: RunParts | None = None
        """The first run's parts, where some of it was taken."""

    def __len__(self) -> int:
        return len(self._runs)

    def take(self, most: int, bytes_max: int, runs_max: int) -> list[Run]:
        """The next slice: the last of its runs perhaps in part.

        Args:
            most: records, each as often as it weighs.
        """
        runs, left, left_bytes = self._runs, most, bytes_max
        taken: list[Run] = []
        while runs and left > 0 and left_bytes > 0 and len(taken) < runs_max:
            run = runs[0]
            weight = self._weigh(run) if run.kind == Kind.RECORDS else 0
            if not weight and self._parts is None:
                taken.append(runs.popleft())
                continue
            # Once cut, it stays cut: who it took long for may be gone since.
            weight = max(1, weight)
            parts = self._parts or RunParts(run)
            if taken and not self._parts and run.count * weight > left:
                # Most runs are short: they stay whole.
                break
            part = parts.take(left // weight, left_bytes)
            taken.append(part)
            left -= part.count * weight
            left_bytes -= len(part.payload)
            self._parts = parts if parts.left else None
            if parts.left:
                break
            runs.popleft()
        return taken


class FoldBacklog:
    """Commits that are not folded yet, in order.

    Invariant: all up to `folded_txid` was taken out, once, in the journal's order.
    Owner: the instance's loop. Lifecycle: one life of the instance.

    Args:
        weigh: records by how long they take to be folded; `weigh_by` adds to it.
        slice_records: in a slice, each as often as it weighs.
        weigh_published: what a client published, by how long it takes to be prepared; None: as
            `weigh`.

    Attributes:
        waiting_bytes: of the records in it.
        folded_txid: while it is not empty: the last transaction that was taken out.
        last_txid: the last one that is in it, or was.
    """

    __slots__ = (
        "_batches",
        "_slice_records",
        "_weigh",
        "_weigh_published",
        "folded_txid",
        "last_txid",
        "waiting_bytes",
    )

    def __init__(
        self,
        weigh: Weigh = _nothing,
        slice_records: int = SLICE_RECORDS,
        weigh_published: Weigh | None = None,
    ) -> None:
        self._weigh = weigh
        self._weigh_published = weigh_published or weigh
        self._slice_records = slice_records
        self._batches: deque[tuple[_RunSlices, int]] = deque()
        self.waiting_bytes = 0
        self.folded_txid = 0
        self.last_txid = 0

    def __len__(self) -> int:
        return len(self._batches)

    def weigh_by(self, weigh: Weigh, weigh_published: Weigh | None = None) -> None:
        """Adds what else a record weighs from now on.

        Args:
            weigh_published: where it is prepared; None: nothing.
        """
        self._weigh = _sum_of(self._weigh, weigh)
        if weigh_published is not None:
            self._weigh_published = _sum_of(self._weigh_published, weigh_published)

    def is_long(self, batch: CommitBatch) -> bool:
        """Returns whether it takes more than one slice."""
        if len(batch.runs) > SLICE_RUNS:
            return True
        weigh = self._weigh
        return weigh is not _nothing and _exceed(
            batch.runs, weigh, self._slice_records, SLICE_BYTES
        )

    def in_parts(self, runs: Sequence[Run], judged: Weigh | None = None) -> PublishInParts | None:
        """Returns one frame of publishes in parts, where to take it takes long; else None.

        Args:
            judged: by how long it takes to judge whether the client may publish them; None: it may.
        """
        features = self._weigh_published
        is_plain = judged is None and features is _nothing and len(runs) == 1
        if is_plain and runs[0].flags & _LIGHT == Flag.CONTIGUOUS:
            # Most batches are one run of messages without a gap.
            return None

        def weigh(run: Run) -> int:
            found = features(run) if judged is None else features(run) + judged(run)
            if run.flags & Flag.COMMANDS:
                return max(found, COMMAND_WEIGHT)
            # Of what has gaps each sequence is looked at.
            return found or int(not run.flags & Flag.CONTIGUOUS)

        if len(runs) <= PART_RUNS and not _exceed(runs, weigh, PART_RECORDS, PART_BYTES):
            return None
        return PublishInParts(runs, weigh)

    def add(self, batch: CommitBatch) -> None:
        """Something was committed."""
        if not self._batches and batch.runs:
            self.folded_txid = batch.runs[0].first_txid - 1
        self._batches.append((_RunSlices(batch.runs, self._weigh), batch.last_txid))
        self.waiting_bytes += sum(len(run.payload) for run in batch.runs)
        self.last_txid = batch.last_txid

    def take(self, records_max: int = 0) -> CommitBatch:
        """The next slice. To be called while there is any.

        Args:
            records_max: of those that take long; 0: as in any slice.
        """
        runs, last_txid = self._batches[0]
        taken = runs.take(records_max or self._slice_records, SLICE_BYTES, SLICE_RUNS)
        self.waiting_bytes -= sum(len(run.payload) for run in taken)
        if not runs:
            self._batches.popleft()
            self.folded_txid = last_txid
        else:
            self.folded_txid = taken[-1].last_txid
        return CommitBatch(taken, self.folded_txid)


class PublishInParts:
    """One frame of publishes that takes long to prepare: it is taken in parts, one in each turn, as
    if they had come one after the other.

    Args:
        runs: of the frame, in order.
        weigh: its records, by how long they take to be prepared.

    Attributes:
        part: to be taken now, in full; then `go_on`. None: all was taken.
        resent: whether they were sent before: see `Publishers.published`.
    """

    __slots__ = ("_runs", "part", "resent")

    def __init__(self, runs: Iterable[Run], weigh: Weigh) -> None:
        self._runs = _RunSlices(runs, weigh)
        self.part: list[Run] | None = None
        self.resent: str | None = None
        self.go_on()

    def go_on(self) -> None:
        """The part was taken."""
        self.part = self._runs.take(PART_RECORDS, PART_BYTES, PART_RUNS) or None


class NextTurn:
    """Waits for another turn of the loop, and for nothing in it."""

    done = True

    def take(self, most: int) -> None:
        """There is nothing to be done."""

    def close(self) -> None:
        """Nor to be ended."""


def another_turn() -> LookupRequest:
    """Returns the request of what is taken in several turns of the loop."""
    questions = LookupRequest()
    questions.looking.append(NextTurn())
    return questions


class FoldBarrier:
    """Waits until what was committed when it was made is folded, and helps: what is asked, or
    subscribed to, behind an ack is to find what was acked, and to be given nothing from before it.

    Args:
        unfolded: not empty.
        fold: folds so many records of it.
    """

    __slots__ = ("_fold", "_txid", "_unfolded")

    def __init__(self, unfolded: FoldBacklog, fold: Callable[[int], None]) -> None:
        self._unfolded = unfolded
        self._txid = unfolded.last_txid
        self._fold = fold

    @property
    def done(self) -> bool:
        """Returns whether it is."""
        return not self._unfolded or self._unfolded.folded_txid >= self._txid

    def take(self, most: int) -> None:
        """Folds on."""
        if most and not self.done:
            self._fold(most)

    def close(self) -> None:
        """Nobody waits any more."""
