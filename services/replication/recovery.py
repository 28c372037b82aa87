"""The recovery point that an instance writes from time to time, so that a restart need not read all
of its journal.

Up to `committed_txid` the point is complete: it holds the messages for which the instance is
awaited, and the messages that wait for an answer, with everything that decides where they are
routed. A restart reads later entries from the journal. So one message that waits for long does not
make a restart read all entries behind it.

Each publisher's part has a key of its own, and only the parts that changed since the last point are
written, all in one transaction:

    recovery/point           msgpack: durable_txid, committed_txid, incarnation, an array of the
                             topics, types and texts of the content filters
    recovery/a/root/p        messages of publisher p awaited here: a SequenceSet
    recovery/w/root/p        msgpack, an array for each route: its seven values, a SequenceSet
    recovery/r/p             messages of p that destinations refused
    recovery/u/p             messages of p that no upstream had any more

Roots and publishers are 16 hexadecimal digits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

import msgpack

from raylay.services.errors import RemoteProtocolError
from raylay.services.messages.ranges import PublisherRanges, SequenceSet
from raylay.services.messages.shared import SharedMap
from raylay.services.replication.acknowledgment import (
    RootedRanges,
    Route,
    WaiterTable,
    WaitingMessages,
)

PREFIX = "recovery"
POINT_KEY = "recovery/point"

Value = TypeVar("Value")


@dataclass(slots=True)
class RecoveryPoint:
    """A point from which a restart may begin. Never changed once it is made.

    Attributes:
        durable_txid: transaction id up to which every record is durable.
        awaited: messages for which the instance is awaited, by root.
        refused: messages that destinations refused for good.
        unavailable: messages that no upstream had any more.
        committed_txid: transaction id up to which the point is complete.
        waiting: messages up to there that are not durable, with their waiters.
        incarnation: incarnation that wrote the point; messages of this root were published there.
            0: not known.
        filters: (topic, message type, text) of the content filters that judged the waiting
            messages.
    """

    durable_txid: int = 0
    awaited: RootedRanges = field(default_factory=RootedRanges)
    refused: PublisherRanges = field(default_factory=PublisherRanges)
    unavailable: PublisherRanges = field(default_factory=PublisherRanges)
    committed_txid: int = 0
    waiting: WaiterTable = field(default_factory=WaiterTable)
    incarnation: int = 0
    filters: tuple[tuple[str, str, str], ...] = ()

    def within(self, held: PublisherRanges, removed: PublisherRanges) -> RecoveryPoint:
        """Returns the recovery point reduced to messages that are held. Messages that were removed
        since do not wait any more: they were durable by then."""
        waiting = self.waiting.copy()
        for each in self.waiting:
            over = _not_held(each, held, removed)
            if over:
                waiting.settle(each.root, each.publisher, list(over))
        return RecoveryPoint(
            self.durable_txid,
            RootedRanges({root: _held(sets, held) for root, sets in self.awaited.roots.items()}),
            self.refused.copy(),
            self.unavailable.copy(),
            self.committed_txid,
            waiting,
            self.incarnation,
            self.filters,
        )

    def judged_by(self, filters: Iterable[tuple[str, str, str]]) -> RecoveryPoint:
        """Returns the recovery point for an instance with these content filters. Where some of the
        filters are new, they have not judged the waiting messages, so everything that is not
        durable is read from the journal again."""
        if set(filters) <= set(self.filters):
            return self
        return replace(self, committed_txid=self.durable_txid, waiting=WaiterTable())

    def read_by(self, incarnation: int) -> RecoveryPoint:
        """Returns the recovery point for another incarnation of the directory: messages that
        clients published under the old incarnation get the new one as their root. Messages that
        peers brought back since then, with an old root, keep it: it waits for the peer that brought
        them."""
        before = self.incarnation
        if before in (0, incarnation):
            return self
        awaited, waiting = self.awaited.copy(), self.waiting.copy()
        if before in awaited.roots:
            awaited.of(incarnation).update(awaited.roots.pop(before))
        if before in waiting.roots:
            del waiting.roots[before]
            for each in self.waiting:
                if each.root == before:
                    waiting.assign(incarnation, each.route, each.publisher, each.ranges)
        return replace(self, awaited=awaited, waiting=waiting, incarnation=incarnation)


class RecoveryLog:
    """Writes recovery points down, each time only the parts that changed since the last one.

    Invariant: the recovery point on disk is the one with which `written` was called last.
    Owner: the instance; it is used on the thread that writes.

    Args:
        stored: the values under `PREFIX`, as the last life left them.

    Raises:
        RemoteProtocolError: they are no recovery point.
    """

    def __init__(self, stored: Mapping[str, bytes]) -> None:
        self.point = self._written = _read(stored)

    def changes(self, point: RecoveryPoint) -> dict[str, bytes | None]:
        """Returns the values to write, in one transaction, so that this becomes the point on
        disk."""
        before = self._written
        values: dict[str, bytes | None] = {}
        for key, ranges in (
            *_changed_by_root("a", point.awaited.roots, before.awaited.roots, PublisherRanges()),
            *_changed("r", point.refused, before.refused),
            *_changed("u", point.unavailable, before.unavailable),
        ):
            values[key] = ranges.to_bytes() if ranges else None
        nothing = WaiterTable().of(0)
        waiting = point.waiting.roots, before.waiting.roots
        for key, routes in _changed_by_root("w", *waiting, nothing):
            values[key] = (
                msgpack.packb([[*route, waits.to_bytes()] for route, waits in routes.items()])
                if routes
                else None
            )
        values[POINT_KEY] = msgpack.packb(
            [point.durable_txid, point.committed_txid, point.incarnation, point.filters]
        )
        return values

    def written(self, point: RecoveryPoint) -> None:
        """Notes that the changes for this point are on disk."""
        self._written = point


def committed_txid_of(stored: Mapping[str, bytes]) -> int:
    """Returns the transaction id up to which the stored point says that the journal was on disk; 0
    where there is none."""
    point = stored.get(POINT_KEY)
    return int(msgpack.unpackb(point)[1]) if point is not None else 0


def cut_to(last_txid: int, stored: Mapping[str, bytes]) -> dict[str, bytes | None]:
    """Returns the values to write where the journal ends at this transaction id, which may be
    before the stored point."""
    if POINT_KEY not in stored:
        return {}
    durable_txid, committed_txid, *others = msgpack.unpackb(stored[POINT_KEY])
    txids = [min(txid, last_txid) for txid in (durable_txid, committed_txid)]
    return {POINT_KEY: msgpack.packb([*txids, *others])}


def _read(stored: Mapping[str, bytes]) -> RecoveryPoint:
    point = RecoveryPoint()
    try:
        for key, value in stored.items():
            _, kind, *names = key.split("/")
            if key == POINT_KEY:
                said = msgpack.unpackb(value)
                point.durable_txid, point.committed_txid, point.incarnation, filters = said
                point.filters = tuple(tuple(rule) for rule in filters)
                continue
            *roots, publisher = (int(name, 16) for name in names)
            if kind == "w":
                for *route, ranges in msgpack.unpackb(value):
                    waits = SequenceSet.from_bytes(ranges)
                    point.waiting.assign(roots[0], _route(*route), publisher, waits)
                continue
            sets = {"r": point.refused, "u": point.unavailable}.get(kind)
            if kind == "a":
                sets = point.awaited.of(roots[0])
            assert sets is not None, kind
            sets.sets[publisher] = SequenceSet.from_bytes(value)
    except (TypeError, ValueError, LookupError, AssertionError) as error:
        raise RemoteProtocolError(f"no recovery point: {error}", "bad_ranges") from None
    return point


def _route(
    sender: int,
    topic: bytes,
    message_type: bytes,
    path: list[int],
    group: str,
    flags: int,
    passed: Iterable[str],
) -> Route:
    return Route(sender, topic, message_type, tuple(path), group, flags, tuple(passed))


def _changed(
    kind: str, now: SharedMap[Value], before: SharedMap[Value]
) -> Iterator[tuple[str, Value | None]]:
    for publisher in now.changed_since(before):
        yield f"{PREFIX}/{kind}/{publisher:016x}", now.get(publisher)


def _changed_by_root(
    kind: str,
    now: Mapping[int, SharedMap[Value]],
    before: Mapping[int, SharedMap[Value]],
    nothing: SharedMap[Value],
) -> Iterator[tuple[str, Value | None]]:
    for root in {**now, **before}:
        under = f"{kind}/{root:016x}"
        yield from _changed(under, now.get(root, nothing), before.get(root, nothing))


def _held(sets: PublisherRanges, held: PublisherRanges) -> PublisherRanges:
    """Returns the part of the sets that is held; sets that are held completely stay the same
    objects."""
    found = sets.copy()
    for publisher, ranges in sets.sets.items():
        theirs = held.get(publisher)
        if ranges == theirs:
            continue
        over = ranges.copy()
        if theirs is not None:
            over.difference_update(theirs)
        if over:
            found.remove_ranges(publisher, over)
    return found


def _not_held(
    each: WaitingMessages, held: PublisherRanges, removed: PublisherRanges
) -> SequenceSet:
    theirs, gone = held.get(each.publisher), removed.get(each.publisher)
    over = each.ranges.copy()
    if theirs is not None:
        over.difference_update(theirs)
    if gone is not None:
        over.update(each.ranges.intersection(gone))
    return over
