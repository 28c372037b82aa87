"""Removals and transfers that come before their message (rule 7).

Links carry the topics of a queue by ways of their own, so an acknowledgment may be here before its
message. It is kept until the message comes. A removal may be forgotten after a time, as documented;
a transfer never is. Times are those of the journal's runs, so that whoever reads it again forgets
the same.

A queue that is made again begins at its oldest message (`floor`), and has to begin with what was
early *there*: an entry that came before the floor and was used behind it is used once more then.
So everything is kept twice: as of now, and as of the floor; between them stands what came since.
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
"""First and last sequence, and what is known of them."""
Covers = Callable[[int, int, int], bool]
"""Whether a publisher's messages, first to last, are all there."""
STEPS = 16
"""Parts into which the time is cut for which removals are kept: those of one part are forgotten
together."""
COUNTED_MAX = (1 << 63) - 1
"""Highest number that is told in a frame."""


class RangeMap(Generic[Value]):
    """Disjoint ranges of one publisher's sequences with a value each, in order."""

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
        """The number of sequences, which may be more than `len` can return, for somebody else
        chooses them."""
        return sum(self._lasts) - sum(self._firsts) + len(self._firsts)

    def take(self, first: int, last: int) -> list[Piece[Value]]:
        """Takes first..last out; what was there of it."""
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
        """Returns the sequences of first..last of which nothing is known."""
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
        """Says this of first..last, but where something is said that `counts(it, value)`."""
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
        # What touches it on the left and says the same becomes one with it.
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
    """Stretches by publisher."""

    __slots__ = ("_counts", "publishers", "size")

    def __init__(self, counts: Callable[[Value, Value], bool]) -> None:
        self._counts = counts
        self.publishers: dict[int, RangeMap[Value]] = {}
        self.size = 0
        """Memory that it takes, in ranges of sequences; a publisher counts as one more."""

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
        """Takes these out; what was there of them."""
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
        """All of them: publisher, first, last, value."""
        return [
            (publisher, *piece)
            for publisher, stretches in self.publishers.items()
            for piece in stretches
        ]


class _Arrivals(NamedTuple):
    """A range of early records that arrived after the floor, which is the oldest message that a
    rebuilt queue begins with. In the order of the journal."""

    txid: int
    publisher: int
    first: int
    last: int
    value: int | Ownership


class EarlyRecords:
    """See the file's docstring.

    Invariant: what `_then` holds, and `_came` up to any transaction id, less the messages that came
        up to there, is what was early there.

    Args:
        kept_us: for how long removals are kept; 0: until their messages come.
    """

    __slots__ = (
        *("_came", "_looked_at", "_moves", "_removals"),
        *("_since", "_step_us", "_swept_us", "_then"),
    )

    def __init__(self, kept_us: int = 0) -> None:
        self._step_us = -(-kept_us // STEPS)
        self._swept_us = 0
        self._removals: PublisherRangeMap[int] = PublisherRangeMap(int.__ge__)
        """Removals with the time at which they came, as the beginning of a step, in microseconds
        since 1970."""
        self._moves: PublisherRangeMap[Ownership] = PublisherRangeMap(is_better)
        self._since: dict[int, int] = {}
        """Transaction id, by publisher, of the first record of those in `_moves`; of those that
        came before the floor, nobody knows it."""
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
        """Messages whose removal is known and that have not come, up to `COUNTED_MAX`."""
        return min(self._removals.count, COUNTED_MAX)

    def known_of(self, publisher: int, sequence: int) -> Ownership | None:
        """Returns the ownership recorded for a message that has not come: nothing, which is below
        all other registers; None: it has been removed."""
        if not self._removals.missing(publisher, sequence, sequence):
            return None
        return self._moves.find(publisher, sequence) or UNKNOWN

    @property
    def size(self) -> int:
        """The size of removals and transfers in memory, in ranges of sequences."""
        now = self._removals.size + self._moves.size
        return now + self._then[0].size + self._then[1].size + len(self._came)

    def removed(self, publisher: int, ranges: list[Range], txid: int, at_us: int) -> None:
        """Notes that these messages have not come, and were removed by the record with this
        transaction id, which came to this instance at this time (microseconds since 1970)."""
        step_us = at_us - at_us % self._step_us if self._step_us else at_us
        self._forget(at_us)
        for first, last in ranges:
            self._removals.add(publisher, first, last, step_us)
            self._came.append(_Arrivals(txid, publisher, first, last, step_us))

    def moved(self, publisher: int, ranges: list[Range], register: Ownership, txid: int) -> None:
        """Notes that these messages have not come, and were transferred by the record with this
        transaction id."""
        if publisher not in self._moves.publishers:
            self._since[publisher] = txid
        for first, last in ranges:
            self._moves.add(publisher, first, last, register)
            self._came.append(_Arrivals(txid, publisher, first, last, register))

    def arrived(
        self, publisher: int, ranges: list[Range], at_us: int
    ) -> tuple[list[Range], list[Piece[Ownership]], int]:
        """Takes out messages that come at this time: which of them have been removed, and the
        registers of others. It is known no longer then.

        Returns:
            And the transaction id from which on records said these registers; 0: before the floor.
        """
        self._forget(at_us)
        gone = [(first, last) for first, last, _ in self._removals.take(publisher, ranges)]
        moved = self._moves.take(publisher, ranges)
        since_txid = self._since.get(publisher, 0)
        if publisher not in self._moves.publishers:
            self._since.pop(publisher, None)
        return gone, moved, since_txid

    def _forget(self, now_us: int) -> None:
        """Forgets removals whose time is over. Those that were used before stay as of the floor:
        else their messages would come back when the queue is made again."""
        if not self._step_us or now_us < self._swept_us + self._step_us:
            return
        self._swept_us = now_us - now_us % self._step_us
        oldest_us = self._swept_us - STEPS * self._step_us
        old: PublisherRangeMap[int] = PublisherRangeMap(int.__ge__)
        kept: PublisherRangeMap[int] = PublisherRangeMap(int.__ge__)
        # Somebody else says how many and how wide they are: nothing here looks at all for each.
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
        """The queue is made again from here on.

        Args:
            passed: publisher and sequences of messages that the floor has passed just now.
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
        """Returns whether there is more behind the floor than so much and twice what `forget_used`
        left."""
        self._looked_at = min(self._looked_at, len(self._came))
        return len(self._came) > 2 * self._looked_at + free

    def forget_used(self, left: Sequence[tuple[int, Covers]]) -> None:
        """Forgets what no floor can ask for: else one message that stays for ever would keep all
        that came early behind it.

        Args:
            left: in order, what says which messages came and have left the queue since, side by
                side in the journal; each with the transaction id from which on no floor is before
                the last of them. Who begins at an earlier floor reads behind it what was said of
                them.
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
        """The inverse of `to_wire`: the floor is now."""
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
    """Returns the sequences of first..last that have never been in the queue; what has left it
    needs no memory."""
    there = held.get(publisher)
    return [(first, last)] if there is None else there.missing(first, last)
