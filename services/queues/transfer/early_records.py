"""Removals and transfers that come before their message (rule 7).

Links carry each topic of a queue by its own way, so an acknowledgment may be here before its
message. It is kept until the message comes. A removal may be forgotten after a time, as documented;
a transfer never is. Times are those of the journal's runs, so that a machine that reads the journal
again forgets the same records.

A queue is rebuilt from its oldest message (`floor`), with the records that were early *there*: an
entry that came before the floor and was used behind it is used once more then. So the records are
kept twice, as of now and as of the floor, together with all that came in between.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from raylay.services.messages.ranges import PublisherRanges, Range
from raylay.services.queues.transfer.ownership import UNKNOWN, Ownership, is_better

Value = TypeVar("Value")
Piece = tuple[int, int, Value]
"""The first and last sequence of a range, and its value."""
Covers = Callable[[int, int, int], bool]
"""A function that tells whether all of a publisher's messages, first to last, are among certain
messages."""
STEPS = 16
"""The number of steps into which the time is divided for which removals are kept. The removals of
one step are forgotten together."""
COUNTED_MAX = (1 << 63) - 1
"""The highest number that a frame can carry."""


class RangeMap(Generic[Value]):
    """Disjoint ranges of one publisher's sequences in order, each with a value."""

    __slots__ = ("_firsts", "_lasts", "_values")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        self._values: list[Value] = []

    def __iter__(self) -> Iterator[Piece[Value]]:
        return zip(self._firsts, self._lasts, self._values, strict=True)

    def __len__(self) -> int:
        return len(self._firsts)

    @property
    def count(self) -> int:
        """The number of sequences. It may exceed what `len` can return, because other programs
        choose the ranges."""
        return sum(self._lasts) - sum(self._firsts) + len(self._firsts)

    def take(self, first: int, last: int) -> list[Piece[Value]]:
        """Removes first..last. Returns the pieces that were there."""
        begin, end = bisect_left(self._lasts, first), bisect_right(self._firsts, last)
        if begin >= end:
            return []
        found = list(
            zip(
                self._firsts[begin:end],
                self._lasts[begin:end],
                self._values[begin:end],
                strict=True,
            )
        )
        left = []
        if found[0][0] < first:
            left.append((found[0][0], first - 1, found[0][2]))
        if found[-1][1] > last:
            left.append((last + 1, found[-1][1], found[-1][2]))
        self._replace(begin, end, left)
        return [(max(a, first), min(b, last), value) for a, b, value in found]

    def find(self, sequence: int) -> Value | None:
        at = bisect_left(self._lasts, sequence)
        is_there = at < len(self._firsts) and self._firsts[at] <= sequence
        return self._values[at] if is_there else None

    def missing(self, first: int, last: int) -> list[Range]:
        """Returns those sequences of first..last that have no value."""
        found: list[Range] = []
        begin, end = bisect_left(self._lasts, first), bisect_right(self._firsts, last)
        for a, b in zip(self._firsts[begin:end], self._lasts[begin:end], strict=True):
            if first < a:
                found.append((first, a - 1))
            first = b + 1
        if first <= last:
            found.append((first, last))
        return found

    def add(
        self, first: int, last: int, value: Value, counts: Callable[[Value, Value], bool]
    ) -> None:
        """Gives first..last this value, except where the present value counts more:
        `counts(present, value)`."""
        made: list[Piece[Value]] = []

        def put(a: int, b: int, what: Value) -> None:
            if made and made[-1][1] + 1 == a and made[-1][2] == what:
                made[-1] = made[-1][0], b, what
            else:
                made.append((a, b, what))

        at = first
        for a, b, there in self.take(first, last):
            if at < a:
                put(at, a - 1, value)
            put(a, b, there if counts(there, value) else value)
            at = b + 1
        if at <= last:
            put(at, last, value)
        begin = bisect_left(self._firsts, first)
        # A piece that adjoins on the left and has the same value is merged with the new one.
        if begin and self._lasts[begin - 1] + 1 == first and self._values[begin - 1] == made[0][2]:
            begin -= 1
            made[0] = self._firsts[begin], made[0][1], made[0][2]
            self._replace(begin, begin + 1, made)
        else:
            self._replace(begin, begin, made)

    def _replace(self, begin: int, end: int, pieces: list[Piece[Value]]) -> None:
        self._firsts[begin:end] = [piece[0] for piece in pieces]
        self._lasts[begin:end] = [piece[1] for piece in pieces]
        self._values[begin:end] = [piece[2] for piece in pieces]


class PublisherRangeMap(Generic[Value]):
    """Range maps by publisher."""

    __slots__ = ("_counts", "publishers", "size")

    def __init__(self, counts: Callable[[Value, Value], bool]) -> None:
        self._counts = counts
        self.publishers: dict[int, RangeMap[Value]] = {}
        self.size = 0
        """The size in memory, in ranges of sequences. Each publisher counts as one more range."""

    def __bool__(self) -> bool:
        return bool(self.publishers)

    @property
    def count(self) -> int:
        return sum(each.count for each in self.publishers.values())

    def add(self, publisher: int, first: int, last: int, value: Value) -> None:
        found = self.publishers.get(publisher)
        if found is None:
            found = self.publishers[publisher] = RangeMap()
            self.size += 1
        self.size -= len(found)
        found.add(first, last, value, self._counts)
        self.size += len(found)

    def take(self, publisher: int, ranges: Iterable[Range]) -> list[Piece[Value]]:
        """Removes these ranges. Returns the pieces that were there."""
        stretches = self.publishers.get(publisher)
        if stretches is None:
            return []
        self.size -= len(stretches)
        found = [piece for first, last in ranges for piece in stretches.take(first, last)]
        self.size += len(stretches)
        if not stretches:
            del self.publishers[publisher]
            self.size -= 1
        return found

    def missing(self, publisher: int, first: int, last: int) -> list[Range]:
        stretches = self.publishers.get(publisher)
        return [(first, last)] if stretches is None else stretches.missing(first, last)

    def find(self, publisher: int, sequence: int) -> Value | None:
        stretches = self.publishers.get(publisher)
        return None if stretches is None else stretches.find(sequence)

    def pieces(self) -> list[tuple[int, int, int, Value]]:
        """Returns all pieces as publisher, first, last and value."""
        return [
            (publisher, *piece)
            for publisher, stretches in self.publishers.items()
            for piece in stretches
        ]


class _Arrivals(NamedTuple):
    """A range of early records that came after the floor. These are kept in the order of the
    journal."""

    txid: int
    publisher: int
    first: int
    last: int
    value: int | Ownership


class EarlyRecords:
    """See the file's docstring.

    Invariant: the records that were early at a transaction id are those of `_then`, and those of
        `_came` up to there, less those of messages that had come by then.

    Args:
        kept_us: the time for which removals are kept, in microseconds; 0: until their messages
            come.
    """

    __slots__ = (
        *("_came", "_looked_at", "_moves", "_removals"),
        *("_since", "_step_us", "_swept_us", "_then"),
    )

    def __init__(self, kept_us: int = 0) -> None:
        self._step_us = -(-kept_us // STEPS)
        self._swept_us = 0
        self._removals: PublisherRangeMap[int] = PublisherRangeMap(int.__ge__)
        """Early removals, each with the beginning of the step in which it came, in microseconds
        since 1970."""
        self._moves: PublisherRangeMap[Ownership] = PublisherRangeMap(is_better)
        self._since: dict[int, int] = {}
        """The transaction id of the first record in `_moves`, by publisher. A publisher whose
        records came with the checkpoint has none."""
        self._then: tuple[PublisherRangeMap[int], PublisherRangeMap[Ownership]] = (
            PublisherRangeMap(int.__ge__),
            PublisherRangeMap(is_better),
        )
        self._came: deque[_Arrivals] = deque()
        self._looked_at = 0

    def __bool__(self) -> bool:
        return bool(self._removals.publishers or self._moves.publishers)

    @property
    def removals_waiting(self) -> int:
        """The number of messages that have not come and whose removal is known, up to
        `COUNTED_MAX`."""
        return min(self._removals.count, COUNTED_MAX)

    def known_of(self, publisher: int, sequence: int) -> Ownership | None:
        """Returns the ownership that records have given a message that has not come; None: the
        message has been removed. Without such a record it is `UNKNOWN`, which counts less than any
        other."""
        if not self._removals.missing(publisher, sequence, sequence):
            return None
        return self._moves.find(publisher, sequence) or UNKNOWN

    @property
    def size(self) -> int:
        """The size of early removals and transfers in memory, in ranges of sequences."""
        now = self._removals.size + self._moves.size
        return now + self._then[0].size + self._then[1].size + len(self._came)

    def removed(self, publisher: int, ranges: list[Range], txid: int, at_us: int) -> None:
        """Notes the removal of messages that have not come, by the record with this transaction id,
        which came to this instance at `at_us` (microseconds since 1970)."""
        step_us = at_us - at_us % self._step_us if self._step_us else at_us
        self._forget(at_us)
        for first, last in ranges:
            self._removals.add(publisher, first, last, step_us)
            self._came.append(_Arrivals(txid, publisher, first, last, step_us))

    def moved(self, publisher: int, ranges: list[Range], register: Ownership, txid: int) -> None:
        """Notes a change of ownership of messages that have not come, by the record with this
        transaction id."""
        if publisher not in self._moves.publishers:
            self._since[publisher] = txid
        for first, last in ranges:
            self._moves.add(publisher, first, last, register)
            self._came.append(_Arrivals(txid, publisher, first, last, register))

    def arrived(
        self, publisher: int, ranges: list[Range], at_us: int
    ) -> tuple[list[Range], list[Piece[Ownership]], int]:
        """Takes out what is known of messages that come at this time.

        Returns:
            The messages that have been removed; the ownerships of others; and the transaction id
            of the first record that gave such an ownership, or 0 if that came before the floor.
        """
        self._forget(at_us)
        gone = [(first, last) for first, last, _ in self._removals.take(publisher, ranges)]
        moved = self._moves.take(publisher, ranges)
        since_txid = self._since.get(publisher, 0)
        if publisher not in self._moves.publishers:
            self._since.pop(publisher, None)
        return gone, moved, since_txid

    def _forget(self, now_us: int) -> None:
        """Forgets removals whose time is over. The state as of the floor keeps those that were used
        before: otherwise their messages would come back when the queue is rebuilt."""
        if not self._step_us or now_us < self._swept_us + self._step_us:
            return
        self._swept_us = now_us - now_us % self._step_us
        oldest_us = self._swept_us - STEPS * self._step_us
        old: PublisherRangeMap[int] = PublisherRangeMap(int.__ge__)
        kept: PublisherRangeMap[int] = PublisherRangeMap(int.__ge__)
        # Other programs choose the number and width of the ranges, so each step costs little
        # however wide they are.
        for publisher, first, last, step_us in self._removals.pieces():
            (old if step_us < oldest_us else kept).add(publisher, first, last, step_us)
        if not old:
            return
        then: PublisherRangeMap[int] = PublisherRangeMap(int.__ge__)
        for publisher, first, last, step_us in self._then[0].pieces():
            for a, b in old.missing(publisher, first, last):
                then.add(publisher, a, b, step_us)
        self._removals, self._then = kept, (then, self._then[1])
        self._came = deque(
            each._replace(first=first, last=last)
            for each in self._came
            for first, last in (
                [(each.first, each.last)]
                if isinstance(each.value, Ownership)
                else old.missing(each.publisher, each.first, each.last)
            )
        )

    def floor_reached(self, floor_txid: int, passed: Iterable[tuple[int, list[Range]]]) -> None:
        """Moves the floor, the position from which the queue can be rebuilt.

        Args:
            passed: the publishers and sequences of the messages between the former floor and this
                one.
        """
        removals, moves = self._then
        while self._came and self._came[0].txid <= floor_txid:
            _, publisher, first, last, value = self._came.popleft()
            if isinstance(value, Ownership):
                moves.add(publisher, first, last, value)
            else:
                removals.add(publisher, first, last, value)
        if removals or moves:
            for publisher, ranges in passed:
                removals.take(publisher, ranges)
                moves.take(publisher, ranges)

    def is_long(self, free: int) -> bool:
        """Returns whether more entries came after the floor than `free`, plus twice what
        `forget_used` left."""
        self._looked_at = min(self._looked_at, len(self._came))
        return len(self._came) > 2 * self._looked_at + free

    def forget_used(self, left: Sequence[tuple[int, Covers]]) -> None:
        """Forgets entries that no floor can need. Otherwise one message that stays for ever would
        keep all early records that followed it.

        Args:
            left: the series of neighbouring arrivals, in order, whose messages have all left the
                queue. For each series there is a test of what belongs to it, and the transaction id
                before which no record is forgotten because of it: a rebuild from an earlier floor
                reads the record in the journal.
        """
        begins = [since_txid for since_txid, _ in left]
        kept: deque[_Arrivals] = deque()
        for each in self._came:
            at = bisect_right(begins, each.txid) - 1
            if at < 0 or not left[at][1](each.publisher, each.first, each.last):
                kept.append(each)
        self._came = kept
        self._looked_at = len(kept)

    def to_wire(self) -> dict[str, Any]:
        removals, moves = self._then
        return {
            "removals": removals.pieces(),
            "moves": [(*piece[:3], *piece[3]) for piece in moves.pieces()],
        }

    @classmethod
    def from_wire(cls, said: dict[str, Any], kept_us: int) -> EarlyRecords:
        """The inverse of `to_wire`. The floor is at the present."""
        made = cls(kept_us)
        for publisher, first, last, at_us in said["removals"]:
            made._removals.add(publisher, first, last, at_us)
            made._then[0].add(publisher, first, last, at_us)
        for publisher, first, last, generation, owner in said["moves"]:
            register = Ownership(generation, owner)
            made._moves.add(publisher, first, last, register)
            made._then[1].add(publisher, first, last, register)
        return made


def early_ranges(held: PublisherRanges, publisher: int, first: int, last: int) -> list[Range]:
    """Returns those sequences of first..last that have never been in the queue. Records about
    messages that have left it need not be kept."""
    there = held.get(publisher)
    return [(first, last)] if there is None else there.missing(first, last)
