"""Commits that take long to fold, and batches that take long to publish: both are processed in
slices, so that a turn of the loop stays short.

A slice is an ordinary batch: some runs, the last of them possibly in part. So each feature folds a
commit in the journal's order, once, wherever it is cut.
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
"""Approximate microseconds to fold a record of weight 1."""
SLICE_RECORDS = 150
"""Number of records in a slice: some 2 ms of the loop."""
SLICE_BYTES = 128 * 1024
"""Bytes of the records in a slice: fewer large records are folded at once, but at least one."""
SLICE_RUNS = 1_000
"""Number of runs in a slice, whatever their records cost: a run by itself takes some
microseconds."""
PART_RECORDS = 400
"""Number of records in a part that is prepared at once: some 2 ms of the loop."""
PART_BYTES = 128 * 1024
PART_RUNS = 200
"""Number of runs that are published in one turn: 3 ms, with their commit."""
COMMAND_WEIGHT = 4
"""Cost of a record that is no message, relative to a message: its body is parsed."""
_LIGHT = Flag.CONTIGUOUS | Flag.COMMANDS
_LENGTH = struct.Struct("<I")
_SEQUENCE = struct.Struct("<Q")
_SEQUENCE_AT = 36
"""Offset of the sequence in a record (services/messages/records.py)."""

DELETE_BYTES, KEY_BYTES = 120, 34
"""Approximate sizes in the record of a delete: the record without its keys, and each key."""
Weigh = Callable[[Run], int]
"""Weight of each record of a run: its cost relative to a usual record; 0: so little that it is not
counted, and the run is never cut."""


def weight(run: Run) -> int:
    """Returns the weight of each record of a run on a SOW topic, relative to a message: for a
    delete, the number of keys that it names."""
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
            # A single record is never cut.
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
    """A run that is taken in parts. Each part is made when it is asked for, at a cost that depends
    only on its own length.

    Args:
        run: the run, with its records.
    """

    __slots__ = ("_left", "_offset", "_run", "_txid")

    def __init__(self, run: Run) -> None:
        self._run = run
        self._offset = 0
        self._left = run.count
        self._txid = run.first_txid

    @property
    def left(self) -> int:
        """Returns the number of records that were not taken."""
        return self._left

    @property
    def left_bytes(self) -> int:
        """Returns the bytes of the records that were not taken."""
        return len(self._run.payload) - self._offset

    def take(self, records_max: int, bytes_max: int = SLICE_BYTES) -> Run:
        """Returns the next part, of at least one record. To be called only while records are
        left."""
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
        """Returns the remaining records in one part, because they cannot be told apart. The fold of
        the part reports the damage."""
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
    """Runs that are taken in order, a slice at a time.

    Args:
        runs: the runs, with their records.
        weigh: returns the weight of a run's records.
    """

    __slots__ = ("_parts", "_runs", "_weigh")

    def __init__(self, runs: Iterable[Run], weigh: Weigh) -> None:
        self._runs = deque(runs)
        self._weigh = weigh
        self._parts: RunParts | None = None
        """Parts of the first run, if some of its records were taken."""

    def __len__(self) -> int:
        return len(self._runs)

    def take(self, most: int, bytes_max: int, runs_max: int) -> list[Run]:
        """Returns the next slice, with the last of its runs possibly in part.

        Args:
            most: limit on the sum of the records' weights.
        """
        runs, left, left_bytes = self._runs, most, bytes_max
        taken: list[Run] = []
        while runs and left > 0 and left_bytes > 0 and len(taken) < runs_max:
            run = runs[0]
            weight = self._weigh(run) if run.kind == Kind.RECORDS else 0
            if not weight and self._parts is None:
                taken.append(runs.popleft())
                continue
            # A run that was cut is cut to the end, even if whatever made it costly is gone.
            weight = max(1, weight)
            parts = self._parts or RunParts(run)
            if taken and not self._parts and run.count * weight > left:
                # Most runs are short, and stay whole.
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
    """The commits that are not folded yet, in order.

    Invariant: all up to `folded_txid` was taken out, once, in the journal's order.
    Owner: the instance's loop. Lifecycle: one life of the instance.

    Args:
        weigh: weight of records in a fold; `weigh_by` adds to it.
        slice_records: limit on the sum of the weights in a slice.
        weigh_published: weight of a client's records when they are prepared; None: as `weigh`.

    Attributes:
        waiting_bytes: bytes of the waiting records.
        folded_txid: last transaction that was taken out, while commits wait.
        last_txid: last transaction that waits, or waited.
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
        """Adds a weight that records have from now on.

        Args:
            weigh_published: weight where they are prepared; None: none.
        """
        self._weigh = _sum_of(self._weigh, weigh)
        if weigh_published is not None:
            self._weigh_published = _sum_of(self._weigh_published, weigh_published)

    def is_long(self, batch: CommitBatch) -> bool:
        if len(batch.runs) > SLICE_RUNS:
            return True
        weigh = self._weigh
        return weigh is not _nothing and _exceed(
            batch.runs, weigh, self._slice_records, SLICE_BYTES
        )

    def in_parts(self, runs: Sequence[Run], judged: Weigh | None = None) -> PublishInParts | None:
        """Returns one frame of publishes in parts, where taking it takes long; otherwise None.

        Args:
            judged: weight of judging whether the client may publish the records; None: it may
                publish all.
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
            # In a run with gaps, each sequence is visited.
            return found or int(not run.flags & Flag.CONTIGUOUS)

        if len(runs) <= PART_RUNS and not _exceed(runs, weigh, PART_RECORDS, PART_BYTES):
            return None
        return PublishInParts(runs, weigh)

    def add(self, batch: CommitBatch) -> None:
        if not self._batches and batch.runs:
            self.folded_txid = batch.runs[0].first_txid - 1
        self._batches.append((_RunSlices(batch.runs, self._weigh), batch.last_txid))
        self.waiting_bytes += sum(len(run.payload) for run in batch.runs)
        self.last_txid = batch.last_txid

    def take(self, records_max: int = 0) -> CommitBatch:
        """Returns the next slice. To be called only while commits wait.

        Args:
            records_max: limit on the sum of the weights; 0: the usual one.
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
    """One frame of publishes that takes long to prepare: one part of it is taken in each turn, as
    if the parts had come one after the other.

    Args:
        runs: the runs of the frame, in order.
        weigh: returns the weight of preparing a run's records.

    Attributes:
        part: the part to be taken now; then `go_on` is called. None: all parts were taken.
        resent: whether the records were sent before: see `Publishers.published`.
    """

    __slots__ = ("_runs", "part", "resent")

    def __init__(self, runs: Iterable[Run], weigh: Weigh) -> None:
        self._runs = _RunSlices(runs, weigh)
        self.part: list[Run] | None = None
        self.resent: str | None = None
        self.go_on()

    def go_on(self) -> None:
        """Moves to the next part, after the current one was taken."""
        self.part = self._runs.take(PART_RECORDS, PART_BYTES, PART_RUNS) or None


class NextTurn:
    """A look-up that only waits for another turn of the loop."""

    done = True

    def take(self, most: int) -> None:
        """Does nothing: there is nothing to look up."""

    def close(self) -> None:
        """Does nothing: there is nothing to end."""


def another_turn() -> LookupRequest:
    """Returns the look-up request of an arrival that is taken over several turns of the loop."""
    questions = LookupRequest()
    questions.looking.append(NextTurn())
    return questions


class FoldBarrier:
    """Waits until the commits that existed when it was made are folded, and folds them itself: a
    query or subscription after an ack must see the acknowledged messages, and get nothing from
    before them.

    Args:
        unfolded: the waiting commits; not empty.
        fold: folds a number of records of them.
    """

    __slots__ = ("_fold", "_txid", "_unfolded")

    def __init__(self, unfolded: FoldBacklog, fold: Callable[[int], None]) -> None:
        self._unfolded = unfolded
        self._txid = unfolded.last_txid
        self._fold = fold

    @property
    def done(self) -> bool:
        return not self._unfolded or self._unfolded.folded_txid >= self._txid

    def take(self, most: int) -> None:
        if most and not self.done:
            self._fold(most)

    def close(self) -> None:
        """Does nothing: the fold goes on without a waiting command."""
