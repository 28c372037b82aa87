"""The fate of every acknowledged message: pure functions over the contents of all places.

A *place* is a journal or a subscriber's received list: stretches of sequences in the order in
which the place has them. It is compared with the publishers' own record: what was published, and
what was acknowledged. A publish whose ack never came is *unknown*: it may be in a place or not.

    lost           acknowledged, and not in the place
    duplicated     in the place more than once
    out of order   behind a higher sequence of its publisher on its topic
    unexpected     in the place, and never published
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from raylay.services.messages.ranges import PublisherRanges, SequenceSet
from raylay.services.messages.records import (
    SEQUENCE_HELD_MAX,
    Kind,
    Run,
    scan,
    sequences_of,
)


class SequenceStretch(NamedTuple):
    """Consecutive sequences of one publisher on one topic: no sequence between them is missing."""

    publisher: int
    first: int
    last: int
    topic: bytes = b""


@dataclass(slots=True)
class PublishRecord:
    """The publishers' own record of what they published and what was acknowledged."""

    published: PublisherRanges = field(default_factory=PublisherRanges)
    persisted: PublisherRanges = field(default_factory=PublisherRanges)

    def add(self, publisher: int, first: int, last: int, persisted_upto: int) -> None:
        """Adds that a publisher published first..last and was acknowledged up to
        `persisted_upto`."""
        if first <= last:
            self.published.add(publisher, first, last)
        if first <= min(last, persisted_upto):
            self.persisted.add(publisher, first, min(last, persisted_upto))

    @property
    def published_messages(self) -> int:
        return _size(self.published)

    @property
    def persisted_messages(self) -> int:
        return _size(self.persisted)


@dataclass(slots=True)
class PlaceVerdict:
    """The faults of one place, as numbers of messages."""

    place: str
    messages: int = 0
    lost: int = 0
    duplicated: int = 0
    out_of_order: int = 0
    unexpected: int = 0
    examples: list[str] = field(default_factory=list)
    """A few examples of each fault."""

    @property
    def valid(self) -> bool:
        """Returns whether the place has no fault."""
        return not (self.lost or self.duplicated or self.out_of_order or self.unexpected)


@dataclass(slots=True)
class Verdict:
    """The verdict over all places."""

    places: list[PlaceVerdict]
    published: int
    persisted: int

    def _sum(self, name: str) -> int:
        return sum(int(getattr(place, name)) for place in self.places)

    @property
    def lost(self) -> int:
        """Number of acknowledged messages that are missing, over all places."""
        return self._sum("lost")

    @property
    def duplicated(self) -> int:
        return self._sum("duplicated")

    @property
    def out_of_order(self) -> int:
        """Number of messages behind a higher sequence, over all places."""
        return self._sum("out_of_order")

    @property
    def unexpected(self) -> int:
        return self._sum("unexpected")

    @property
    def valid(self) -> bool:
        """Returns whether no place has a fault. A verdict over no place is not valid, because it
        says nothing."""
        return bool(self.places) and all(place.valid for place in self.places)


EXAMPLES_MAX = 3


def check_place(
    place: str, stretches: Iterable[SequenceStretch], record: PublishRecord
) -> PlaceVerdict:
    verdict = PlaceVerdict(place)
    seen = PublisherRanges()
    highest: dict[tuple[int, bytes], int] = {}
    for publisher, first, last, topic in stretches:
        verdict.messages += last - first + 1
        held = seen.of(publisher)
        again = held.within(first, last)
        if again:
            _note(verdict, "duplicated", publisher, again)
        key = (publisher, topic)
        top = highest.get(key, 0)
        if first <= top:
            # Copies are counted as such; what is new and low is out of order.
            late = held.missing(first, min(last, top))
            if late:
                _note(verdict, "out_of_order", publisher, late)
        if last > top:
            highest[key] = last
        held.add(first, last)
    for publisher, ranges in record.persisted.sets.items():
        missing = _minus(ranges, seen.get(publisher))
        if missing:
            _note(verdict, "lost", publisher, missing)
    for publisher, ranges in seen.sets.items():
        surplus = _minus(ranges, record.published.get(publisher))
        if surplus:
            _note(verdict, "unexpected", publisher, surplus)
    return verdict


def judge(places: Mapping[str, Iterable[SequenceStretch]], record: PublishRecord) -> Verdict:
    return Verdict(
        [check_place(name, stretches, record) for name, stretches in places.items()],
        record.published_messages,
        record.persisted_messages,
    )


def stretches_of_run(run: Run) -> Iterator[SequenceStretch]:
    """Yields the sequences that a journal's run holds; notes hold no messages."""
    if run.kind != Kind.RECORDS:
        return
    if run.contiguous and run.topic:
        # All of one topic and without gaps: the header says everything.
        yield SequenceStretch(run.publisher, run.first_sequence, run.last_sequence, run.topic)
        return
    for chunk in scan(bytes(run.payload), verify=False, sequence_max=SEQUENCE_HELD_MAX):
        if chunk.last_sequence - chunk.first_sequence + 1 == chunk.records:
            yield SequenceStretch(
                chunk.publisher, chunk.first_sequence, chunk.last_sequence, chunk.topic
            )
            continue
        yield from _cut(bytes(run.payload[chunk.start : chunk.end]), chunk.publisher, chunk.topic)


def _cut(payload: bytes, publisher: int, topic: bytes) -> Iterator[SequenceStretch]:
    first = last = 0
    for sequence in sequences_of(payload):
        if sequence != last + 1 or not first:
            if first:
                yield SequenceStretch(publisher, first, last, topic)
            first = sequence
        last = sequence
    if first:
        yield SequenceStretch(publisher, first, last, topic)


def _note(
    verdict: PlaceVerdict, fault: str, publisher: int, ranges: Iterable[tuple[int, int]]
) -> None:
    listed = list(ranges)
    count = sum(last - first + 1 for first, last in listed)
    setattr(verdict, fault, getattr(verdict, fault) + count)
    same = sum(1 for example in verdict.examples if example.startswith(fault))
    if same < EXAMPLES_MAX:
        first, last = listed[0]
        shown = f"{publisher}|{first}|" + (f" … {publisher}|{last}|" if last > first else "")
        verdict.examples.append(f"{fault}: {shown}")


def _minus(ranges: SequenceSet, other: SequenceSet | None) -> list[tuple[int, int]]:
    left = ranges.copy()
    if other is not None:
        left.difference_update(other)
    return list(left)


def _size(ranges: PublisherRanges) -> int:
    return sum(last - first + 1 for _, (first, last) in ranges.items())
