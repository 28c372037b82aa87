"""Exact sets of sequences per publisher: what an instance holds, what its destinations have not
acknowledged, and what waits (design.md 4).

A high-water mark would lose messages when two paths bring different parts of one publisher's
stream, so the sets are exact (sequence_set.py).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence

from raylay.services.errors import RemoteProtocolError
from raylay.services.messages.digests import HELD, summand, summed
from raylay.services.messages.sequence_set import CHUNK as CHUNK
from raylay.services.messages.sequence_set import Range as Range
from raylay.services.messages.sequence_set import SequenceSet as SequenceSet
from raylay.services.messages.shared import SharedMap

PUBLISHERS = 1 << 64
"""Upper bound of publisher ids: each id is below it."""


def digest_of(publisher: int, ranges: SequenceSet | None) -> int:
    """Returns the part of one publisher's set in the digest of several sets; 0 for an empty set."""
    return summand(struct.pack("<Q", publisher) + ranges.to_bytes(), HELD) if ranges else 0


class PublisherRanges(SharedMap[SequenceSet]):
    """A SequenceSet for each publisher."""

    __slots__ = ()

    def _made(self) -> SequenceSet:
        return SequenceSet()

    def _copied(self, value: SequenceSet) -> SequenceSet:
        return value.copy()

    def add(self, publisher: int, first: int, last: int) -> None:
        """Adds first..last of the publisher."""
        self.of(publisher).add(first, last)

    def add_ranges(self, publisher: int, ranges: Iterable[Range]) -> None:
        """Adds inclusive ranges of a publisher's sequences."""
        found = self.of(publisher)
        for first, last in ranges:
            found.add(first, last)

    def remove_ranges(self, publisher: int, ranges: Iterable[Range]) -> None:
        """Removes ranges of the publisher, and the publisher itself with its last sequence."""
        if publisher not in self.sets:
            return
        found = self.of(publisher)
        for first, last in ranges:
            found.remove(first, last)
        if not found:
            del self.sets[publisher]

    def take(self, publisher: int, ranges: Sequence[Range]) -> list[Range]:
        """Removes ranges of the publisher; returns those that were present."""
        found = self.sets.get(publisher)
        if found is None:
            return []
        own = self._own
        if own is not None and publisher not in own:
            taken = [piece for a, b in ranges for piece in found.within(a, b)]
            if taken:
                self.remove_ranges(publisher, taken)
            return taken
        if len(ranges) == 1:
            taken = found.take(*ranges[0])
        else:
            taken = [piece for a, b in ranges for piece in found.take(a, b)]
        if not found:
            del self.sets[publisher]
        return taken

    def update(self, other: PublisherRanges) -> None:
        """Adds everything of `other`."""
        for publisher, ranges in other.sets.items():
            self.of(publisher).update(ranges)

    def difference_update(self, other: PublisherRanges) -> None:
        """Removes everything of `other`."""
        for publisher, ranges in other.sets.items():
            mine = self.sets.get(publisher)
            if mine is None:
                continue
            if mine is not ranges:
                mine = self.of(publisher)
                mine.difference_update(ranges)
                if mine:
                    continue
            del self.sets[publisher]

    def adopt(self, other: PublisherRanges) -> None:
        """Adds everything of `other`, whose sets are reused: the caller must not use it any
        more."""
        for publisher, ranges in other.sets.items():
            if publisher in self.sets:
                self.of(publisher).update(ranges)
            else:
                self.sets[publisher] = ranges
                if self._own is not None:
                    self._own.add(publisher)

    def covers(self, publisher: int, ranges: Iterable[Range]) -> bool:
        """Returns whether every sequence of these inclusive ranges of a publisher is in the set."""
        found = self.sets.get(publisher)
        return found is not None and all(found.covers(first, last) for first, last in ranges)

    def __bool__(self) -> bool:
        return any(self.sets.values())

    @property
    def memory_bytes(self) -> int:
        """Returns an estimate of the memory that the sets take."""
        return sum([each.memory_bytes for each in self.sets.values()])

    @property
    def count(self) -> int:
        """Returns the number of messages in the set."""
        return sum(each.count for each in self.sets.values())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PublisherRanges):
            return NotImplemented
        return {k: v for k, v in self.sets.items() if v} == {
            k: v for k, v in other.sets.items() if v
        }

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"PublisherRanges({self.sets!r})"

    def items(self) -> Iterator[tuple[int, Range]]:
        """Yields each publisher with each of its inclusive ranges of sequences."""
        for publisher, ranges in self.sets.items():
            for pair in ranges:
                yield publisher, pair

    def to_wire(self) -> dict[int, bytes]:
        """Returns the sets for a msgpack header: bytes by publisher."""
        return {key: value.to_bytes() for key, value in self.sets.items() if value}

    @classmethod
    def from_wire(cls, data: dict[int, bytes], chunks_max: int | None = None) -> PublisherRanges:
        """Reads sets from the form that `to_wire` returns.

        Args:
            chunks_max: limit on the stretches and chunks of all sets together; None: no limit.

        Raises:
            RemoteProtocolError: the value is no mapping of publishers to sequence sets.
        """
        if not isinstance(data, dict) or not all(
            type(key) is int and 0 <= key < PUBLISHERS and type(value) is bytes
            for key, value in data.items()
        ):
            raise RemoteProtocolError("ranges are no mapping of publishers", "bad_ranges")
        if chunks_max is not None:
            counts = (struct.unpack_from("<II", each) for each in data.values() if len(each) >= 8)
            if (chunks := sum(map(sum, counts))) > chunks_max:
                raise RemoteProtocolError(
                    f"{chunks} stretches of {CHUNK} sequences, at most {chunks_max} are taken",
                    "bad_ranges",
                )
        return cls({key: SequenceSet.from_bytes(value) for key, value in data.items()})

    def digest(self) -> bytes:
        """Returns a digest that is equal exactly for equal sets, even when publishers choose their
        sequences. It is a sum (digests.py), so that it can be updated
        (services/replication/running_digest.py)."""
        return summed(sum(digest_of(key, value) for key, value in self.sets.items()))
