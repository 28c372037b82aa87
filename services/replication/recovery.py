"""What an instance writes down from time to time, so that a restart need not read all its journal.

Up to `committed_txid` the point says all of it: what this instance is awaited for, and of that, and
of the rest, what waits for an answer, with all that decides where it goes. What is behind it, a
restart reads from the journal. So one message that waits makes nothing else wait again.

Software that knows the first four values only recovers from `durable_txid` on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from raylay.services.errors import RemoteProtocolError
from raylay.services.replication.acknowledgment import RootedRanges, Route, Waiting
from raylay.services.replication.ranges import PublisherRanges, SequenceSet


@dataclass(slots=True)
class RecoveryPoint:
    """Where a restart may begin.

    Attributes:
        durable_txid: every record up to this transaction id is durable.
        awaited: what of the journal the instance is awaited for.
        refused: what destinations refused for good.
        unavailable: what no upstream had any more.
        committed_txid: the point is complete up to this transaction id.
        waiting: what of that is not durable, and who waits for it.
        incarnation: who wrote it; what is of this root was published there. 0: it does not say.
    """

    durable_txid: int = 0
    awaited: RootedRanges = field(default_factory=RootedRanges)
    refused: PublisherRanges = field(default_factory=PublisherRanges)
    unavailable: PublisherRanges = field(default_factory=PublisherRanges)
    committed_txid: int = 0
    waiting: list[Waiting] = field(default_factory=list)
    incarnation: int = 0

    def to_wire(self) -> list[Any]:
        """For a msgpack value."""
        return [
            self.durable_txid,
            self.awaited.to_wire(),
            self.refused.to_wire(),
            self.unavailable.to_wire(),
            self.committed_txid,
            [
                [each.root, each.publisher, *each.route, each.ranges.to_bytes()]
                for each in self.waiting
            ],
            self.incarnation,
        ]

    @classmethod
    def from_wire(cls, data: list[Any]) -> RecoveryPoint:
        """The inverse of `to_wire`; of what an older release wrote, too.

        Raises:
            RemoteProtocolError: the value is no recovery point.
        """
        try:
            values: list[Any] = [*data[:7], *[None] * (7 - len(data))]
            durable_txid, awaited, refused, unavailable, committed_txid, waiting, wrote = values
            return cls(
                durable_txid,
                RootedRanges.from_wire(awaited),
                PublisherRanges.from_wire(refused or {}),
                PublisherRanges.from_wire(unavailable or {}),
                durable_txid if committed_txid is None else committed_txid,
                [_waiting(*each) for each in waiting or ()],
                int(wrote or 0),
            )
        except (TypeError, ValueError) as error:
            raise RemoteProtocolError(f"no recovery point: {error}", "bad_ranges") from None

    def within(self, held: PublisherRanges, removed: PublisherRanges) -> RecoveryPoint:
        """The same of no more than what is held. What was removed since waits no more: it was
        durable by then."""
        awaited = RootedRanges()
        for root, sets in self.awaited.roots.items():
            for publisher, ranges in sets.sets.items():
                theirs = held.get(publisher)
                if theirs is not None and (both := ranges.intersection(theirs)):
                    awaited.of(root).sets[publisher] = both
        return RecoveryPoint(
            self.durable_txid,
            awaited,
            self.refused,
            self.unavailable,
            self.committed_txid,
            list(_held(self.waiting, held, removed)),
            self.incarnation,
        )

    def read_by(self, incarnation: int) -> RecoveryPoint:
        """The same for another incarnation of its directory: what clients published there, whatever
        it was called, they published here. What came back since then from peers under a name that
        the directory had has its root there still: it waits for the peer that brought it."""
        before = self.incarnation
        if before in (0, incarnation):
            return self
        awaited = self.awaited.copy()
        if before in awaited.roots:
            awaited.of(incarnation).update(awaited.roots.pop(before))
        waiting = [
            each._replace(root=incarnation) if each.root == before else each
            for each in self.waiting
        ]
        return replace(self, awaited=awaited, waiting=waiting, incarnation=incarnation)


def _held(
    waiting: Iterable[Waiting], held: PublisherRanges, removed: PublisherRanges
) -> Iterator[Waiting]:
    for each in waiting:
        theirs = held.get(each.publisher)
        left = each.ranges.intersection(theirs) if theirs is not None else SequenceSet()
        gone = removed.get(each.publisher)
        if gone is not None:
            left.difference_update(gone)
        if left:
            yield each._replace(ranges=left)


def _waiting(
    root: int,
    publisher: int,
    sender: int,
    topic: bytes,
    message_type: bytes,
    path: list[int],
    group: str,
    flags: int,
    ranges: bytes,
) -> Waiting:
    route = Route(sender, topic, message_type, tuple(path), group, flags)
    return Waiting(root, publisher, route, SequenceSet.from_bytes(ranges))
