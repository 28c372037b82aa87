"""Unacknowledged messages of each destination, and the waiters for them (design.md 4, "Two
acknowledgments").

A message is *stored* at an instance when it is on disk there. It is *persisted* there when it is
also on disk and persisted at every sync destination to which that instance routes it. A sync link
waits for persisted.

An instance is *awaited* for a message when a client published the message here, or when the message
arrived with the awaited mark. The instance where the client published is the *root* of the wait,
and the mark names the root: a client that fails over publishes one message at two instances, and
each of the two owes its own answer. For each root, the sender of the first awaited arrival is the
message's *waiter*. Only the waiter's answer waits for durability; every other sender is answered
when the message is stored. An arrival without a mark has root 0, and its first sender is the waiter
of that root.

For one root, the waits form a tree that grows from the root along the sync links. An instance waits
only for instances that became awaited after it, so there is no circle. The root's wait ends when
every instance that the tree reached has the message on disk, so nothing is acknowledged early. (A
single waiter for all roots of a message would answer a second root before the first one's tree is
complete: the simulator shows this, tests/sim.)

Each answer names its root. So an answer that was given before an instance became awaited, or before
a link was upgraded, is never mistaken for the answer to a later request, which has another root.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from raylay.services.errors import RemoteProtocolError
from raylay.services.messages.ranges import PublisherRanges, Range, SequenceSet
from raylay.services.messages.records import Flag, Run
from raylay.services.messages.shared import SharedMap
from raylay.services.messages.topic_sets import includes
from raylay.services.replication.ages import AGAIN_TXID, AgeLog
from raylay.services.replication.effects import Ranges, Rooted
from raylay.services.replication.link.content import DestinationFilters
from raylay.services.replication.link.routing import DestinationRoute, Router

CLIENT = 0
"""The sender of messages that a client published here. No incarnation is 0."""

UNAWAITED = 0
"""The root of messages for which no instance is awaited."""


class RootedRanges:
    """Sequence ranges by publisher, kept for each root."""

    __slots__ = ("roots",)

    def __init__(self, roots: dict[int, PublisherRanges] | None = None) -> None:
        self.roots: dict[int, PublisherRanges] = roots if roots is not None else {}

    def of(self, root: int) -> PublisherRanges:
        """The root's ranges, made when there are none."""
        found = self.roots.get(root)
        if found is None:
            found = self.roots[root] = PublisherRanges()
        return found

    def get(self, root: int, publisher: int) -> SequenceSet | None:
        """The set of one publisher for one root, if there is one."""
        found = self.roots.get(root)
        return found.get(publisher) if found is not None else None

    def remove_ranges(self, root: int, publisher: int, ranges: Iterable[Range]) -> None:
        found = self.roots.get(root)
        if found is not None:
            found.remove_ranges(publisher, ranges)

    def take(self, root: int, publisher: int, ranges: Sequence[Range]) -> list[Range]:
        """Removes ranges of one publisher from one root; returns the part of them that was
        present."""
        found = self.roots.get(root)
        return found.take(publisher, ranges) if found is not None else []

    def copy(self) -> RootedRanges:
        """Returns a deep copy, whose sets can change independently."""
        return RootedRanges({root: ranges.copy() for root, ranges in self.roots.items()})

    def __bool__(self) -> bool:
        # Nearly always empty, and called several times for each message.
        return bool(self.roots) and any(self.roots.values())

    @property
    def count(self) -> int:
        """Returns the number of sequences; a sequence of several roots counts once for each."""
        return sum(root.count for root in self.roots.values())

    def __repr__(self) -> str:
        return f"RootedRanges({self.roots!r})"

    def to_wire(self) -> dict[int, dict[int, bytes]]:
        return {root: ranges.to_wire() for root, ranges in self.roots.items() if ranges}

    @classmethod
    def from_wire(cls, data: dict[int, dict[int, bytes]]) -> RootedRanges:
        """The inverse of `to_wire`.

        Raises:
            RemoteProtocolError: the value is no mapping of roots to ranges.
        """
        if not isinstance(data, dict):
            raise RemoteProtocolError("ranges are no mapping of roots", "bad_ranges")
        return cls({int(root): PublisherRanges.from_wire(value) for root, value in data.items()})


class DestinationLedger:
    """The messages that one destination has not acknowledged to this instance.

    Invariants: the unacknowledged messages are committed here and routed to the destination; while
    persisted acks do not wait for the destination, all of them have root 0.
    """

    __slots__ = (
        "_ages",
        "at_connect",
        "came_late",
        "carries_all",
        "caught_up",
        "connected",
        "destination",
        "downgrade_refused",
        "downgraded_at_us",
        "downgraded_by_hand",
        "first_connected_us",
        "further_on",
        "incarnation",
        "persisted",
        "prove_txid",
        "proved",
        "router",
        "servers",
        "skipped",
        "stored_txid",
        "stranded",
        "sync",
        "unacked",
        "unsure",
        "unsure_absent",
    )

    def __init__(
        self,
        destination: DestinationRoute,
        incarnation: int = 0,
        *,
        carries_all: bool = True,
        servers: Iterable[str] = (),
        contents: DestinationFilters | None = None,
    ) -> None:
        self.destination = destination
        self.servers = set(servers)
        """Names of all instances that this destination's link ever connected to: with wide IP, one
        address may belong to several instances."""
        self.carries_all = carries_all
        """Whether the destination gets every journaled message that clients may publish here."""
        self.stranded = PublisherRanges()
        """Messages that clients published here and that the connected server is not known to hold:
        those that it lacked at the connect, and those that a client published here again and that
        are not routed there because they first came from elsewhere."""
        self.router = Router(destination, contents)
        self.sync = destination.sync and not destination.starts_downgraded
        """Whether persisted acks wait for this destination now."""
        self.incarnation = incarnation
        """Incarnation of the server to which the link connected last; 0 while unknown."""
        self.unacked = RootedRanges()
        self.unsure = PublisherRanges()
        """Unacknowledged messages that may not be routed to the destination: an earlier server held
        them without having acknowledged them, so the next server may need them from here."""
        self.unsure_absent = PublisherRanges()
        """Messages of `unsure` that the connected server lacked at the connect, and that the link's
        resync has not yet reached."""
        self.came_late = PublisherRanges()
        """Messages that were unavailable here when the link connected, and that have arrived
        since."""
        self.at_connect: PublisherRanges | None = None
        """Messages that the server held when the link connected; kept only until this instance
        admits clients."""
        self.connected = False
        self.first_connected_us: int | None = None
        """Time of the link's first connection in this life; None: there was none yet."""
        self.caught_up = False
        self.proved = False
        self.prove_txid = 0
        self.stored_txid = 0
        self.skipped = 0
        self.persisted = 0
        """Number of messages that the destination acknowledged since the process began (a
        metric)."""
        self.further_on = False
        self.downgrade_refused = False
        self.downgraded_at_us = 0
        self.downgraded_by_hand = destination.sync and destination.starts_downgraded
        """Whether an operator downgraded the destination. Its age then never upgrades it; only an
        operator or a restart of the instance does."""
        self._ages = AgeLog()

    @property
    def has_met_several(self) -> bool:
        """Returns whether more than one server of this destination may hold messages that this
        instance sent."""
        return len(self.destination.addresses) > 1 or len(self.servers) > 1

    @property
    def has_several_servers(self) -> bool:
        """Returns whether the link may reach another server next time. A message that is *stored*
        only at the connected server is lost to the destination when that server dies."""
        return self.destination.has_several_servers or self.has_met_several

    @property
    def safe(self) -> bool:
        """Returns whether a client may fail over to this destination: everything acknowledged here
        is persisted there. Messages that reach the destination through another instance do not
        count, because this instance is not told when that instance's link is downgraded."""
        if not (self.sync and self.proved and self.carries_all):
            return False
        return not self.stranded.sets or not self.stranded

    @property
    def whole(self) -> bool:
        """Returns whether every message journaled here goes to this destination, whichever client
        or link it came from."""
        destination = self.destination
        passing = destination.pass_through
        return (
            self.carries_all
            and passing is not None
            and includes((passing,), ".*")
            and not destination.own_group_only
        )

    @property
    def why_unsafe(self) -> str:
        """Returns the reason why no client may fail over to this destination; empty when clients
        may."""
        if not self.sync:
            return "persisted acks do not wait for it"
        if not self.carries_all:
            return (
                "its topics are not all that clients may publish here, or it leaves out the "
                "check txlog for some"
            )
        if not self.proved:
            return "it has not caught up since its link connected"
        if self.stranded:
            return "it lacks messages that clients published here and that are not routed to it"
        return ""

    def add_unacked(
        self,
        root: int,
        publisher: int,
        ranges: Iterable[Range],
        time_us: int,
        txid: int = AGAIN_TXID,
    ) -> None:
        """Records messages as unacknowledged: they are committed here, from `txid` on, and routed
        to this destination. Without a `txid`, a resync found the messages missing there, or the
        destination is asked for them again."""
        unacked = self.unacked.of(root if self.sync else UNAWAITED).of(publisher)
        for a, b in ranges:
            unacked.add(a, b)
            self._ages.add(time_us, txid, publisher, a, b)

    def add_unsure(self, publisher: int, wanted: SequenceSet, time_us: int) -> None:
        """Records messages that a server holds without having acknowledged them. They are committed
        here, but may not be routed to this destination, for instance where the server began as a
        copy of this instance. The next server that lacks them shows this: the link does not send
        them."""
        self.add_unacked(UNAWAITED, publisher, list(wanted), time_us)
        self.unsure.of(publisher).update(wanted)

    def server_holds(self, held: PublisherRanges) -> None:
        """Notes the messages that the server holds with which the link begins a connection."""
        self.unsure_absent = self.unsure.copy()
        self.unsure_absent.difference_update(held)

    def resent(self, publisher: int, ranges: Sequence[Range], time_us: int) -> None:
        """Records messages that the link sends again, or asks for, as unacknowledged: this proves
        that they are routed to this destination."""
        self.add_unacked(UNAWAITED, publisher, ranges, time_us)
        if self.unsure.sets:
            self.unsure.remove_ranges(publisher, ranges)
            self.unsure_absent.remove_ranges(publisher, ranges)

    def resync_ended(self) -> bool:
        """Notes that the link has passed every message that the server lacked. Those of
        `unsure_absent` that were not sent are not routed there, and no longer count as
        unacknowledged. Returns whether there were any."""
        if not self.unsure_absent.sets:
            return False
        for publisher, ranges in self.unsure_absent.sets.items():
            self.unacked.remove_ranges(UNAWAITED, publisher, list(ranges))
        self.unsure.difference_update(self.unsure_absent)
        self.unsure_absent = PublisherRanges()
        return True

    def add_again(
        self, root: int, publisher: int, ranges: Iterable[Range], time_us: int, txid: int
    ) -> None:
        """Records messages as unacknowledged again: they were committed here before, with
        transaction ids of at least `txid`, are routed to this destination, and the destination is
        asked for them again."""
        unacked = self.unacked.of(root if self.sync else UNAWAITED).of(publisher)
        for a, b in ranges:
            unacked.add(a, b)
            self._ages.add_again(time_us, txid, publisher, a, b)

    def answered(self, answers: Rooted) -> Rooted:
        """Removes acknowledged messages; returns the part of them that was unacknowledged. An
        answer for any root also settles root 0."""
        settled: Rooted = {}
        for root, ranges_of in answers.items():
            for publisher, ranges in ranges_of.items():
                for layer in (root, UNAWAITED) if root else (UNAWAITED,):
                    found = self.unacked.take(layer, publisher, ranges)
                    if found:
                        for a, b in found:
                            self.persisted += b - a + 1
                        settled.setdefault(layer, {}).setdefault(publisher, []).extend(found)
        return settled

    def brought(self, answers: Rooted) -> None:
        """Notes that the destination holds these messages, so that they are not stranded any
        more."""
        for ranges_of in answers.values():
            for publisher, ranges in ranges_of.items():
                self.stranded.remove_ranges(publisher, ranges)

    def forget(self, conflicts: Ranges) -> None:
        for publisher, ranges in conflicts.items():
            for root in self.unacked.roots:
                self.unacked.remove_ranges(root, publisher, ranges)

    def stop_waiting(self) -> None:
        """Stops persisted acks from waiting for this destination: all unacknowledged messages move
        to root 0."""
        self.sync = False
        self.proved = False
        self.further_on = False
        unawaited = self.unacked.of(UNAWAITED)
        for root, ranges in list(self.unacked.roots.items()):
            if root != UNAWAITED:
                unawaited.update(ranges)
                del self.unacked.roots[root]

    def oldest_unacked(self) -> tuple[int, int] | None:
        """Returns (time in microseconds, first transaction id) of the oldest unacknowledged
        message. Changes nothing."""
        return self._ages.oldest(self.unacked.roots)

    def settle_ages(self) -> None:
        """Drops the ages of acknowledged messages. To be called after messages were removed from
        the unacknowledged ones."""
        self._ages.settle(self.unacked.roots)

    def must_prove(self, last_txid: int) -> None:
        """Demands a proof after an upgrade, reconnect or restart: the destination is safe again
        when everything up to `last_txid` is persisted there."""
        self.proved = False
        self.prove_txid = last_txid

    def update_proof(self) -> bool:
        """Returns whether this call found the proof that the destination persisted all that
        `must_prove` demanded."""
        if self.proved or not (self.caught_up and self.connected):
            return False
        oldest = self.oldest_unacked()
        if oldest is not None and oldest[1] <= self.prove_txid:
            return False
        self.proved = True
        return True


class Route(NamedTuple):
    """The destinations for which pending messages wait, and the properties of those messages' run
    that a router reads."""

    sender: int
    """Incarnation of the sender, or CLIENT."""
    topic: bytes
    message_type: bytes
    path: tuple[int, ...]
    group: str
    flags: int
    """Flags of the run (`Flag`) that a router reads."""
    passed: tuple[str, ...] = ()
    """The content filters that the messages pass, in order."""


def route_of(run: Run, sender: int) -> Route:
    """Returns the route of a run's messages from this sender, for topics that no content filter
    reads."""
    return Route(sender, run.topic, run.message_type, run.path, run.group, run.flags & Flag.CROSSED)


class WaitingMessages(NamedTuple):
    """Messages of one publisher that are on disk here and pending for one root."""

    root: int
    publisher: int
    route: Route
    ranges: SequenceSet


class _Waits(SharedMap[dict[Route, SequenceSet]]):
    """The messages that wait for one root: sequences by publisher and route."""

    __slots__ = ()

    def _made(self) -> dict[Route, SequenceSet]:
        return {}

    def _copied(self, value: dict[Route, SequenceSet]) -> dict[Route, SequenceSet]:
        return {route: ranges.copy() for route, ranges in value.items()}


class WaiterTable:
    """The waiters for pending messages by root, with the routes of those messages. From the routes,
    a link that is upgraded or reaches another server is asked for its messages without a read of
    the journal.

    Invariant: holds exactly the messages that are on disk and not durable. A waiter is never
    replaced.
    """

    __slots__ = ("roots",)

    def __init__(self) -> None:
        self.roots: dict[int, _Waits] = {}

    def __bool__(self) -> bool:
        # A loop, because this is asked for each commit, and a comprehension would be a call.
        for waits in self.roots.values():  # noqa: SIM110
            if waits.sets:
                return True
        return False

    def of(self, root: int) -> _Waits:
        """Returns the table of one root; creates an empty table where there is none."""
        found = self.roots.get(root)
        if found is None:
            found = self.roots[root] = _Waits()
        return found

    def copy(self) -> WaiterTable:
        """Returns a deep copy, which can change independently."""
        other = WaiterTable()
        other.roots = {root: waits.copy() for root, waits in self.roots.items()}
        return other

    def assign(self, root: int, route: Route, publisher: int, ranges: Iterable[Range]) -> None:
        routes = self.of(root).of(publisher)
        waits = routes.get(route)
        if waits is None:
            waits = routes[route] = SequenceSet()
        for first, last in ranges:
            waits.add(first, last)

    def settle(
        self, root: int, publisher: int, ranges: list[Range]
    ) -> list[tuple[int, list[Range]]]:
        """Removes durable messages from the table; returns (sender, ranges that the sender waited
        for) of each waiter."""
        answers: dict[int, list[Range]] = {}
        publishers = self.roots.get(root)
        if publishers is None or publisher not in publishers.sets:
            return []
        routes = publishers.of(publisher)
        for route in list(routes):
            waits = routes[route]
            if len(ranges) == 1:
                theirs = waits.take(*ranges[0])
            else:
                theirs = [piece for a, b in ranges for piece in waits.take(a, b)]
            if theirs:
                if not waits:
                    del routes[route]
                answers.setdefault(route.sender, []).extend(theirs)
        if not routes:
            del publishers.sets[publisher]
        return list(answers.items())

    def waited_by(self, sender: int) -> RootedRanges:
        """Returns the messages for which this sender waits: a copy."""
        found = RootedRanges()
        for each in self:
            if each.route.sender == sender:
                found.of(each.root).of(each.publisher).update(each.ranges)
        return found

    def not_waited(
        self, root: int, sender: int, publisher: int, ranges: list[Range]
    ) -> list[Range]:
        """Returns the part of `ranges` for which this sender is not the waiter: the sender is
        answered for that part now."""
        left = ranges
        publishers = self.roots.get(root)
        routes = publishers.get(publisher) if publishers is not None else None
        for route, waits in routes.items() if routes else ():
            if route.sender == sender:
                left = [piece for a, b in left for piece in waits.missing(a, b)]
        return left

    def __iter__(self) -> Iterator[WaitingMessages]:
        """Iterates over all waiting messages. The sets are the table's own, not copies."""
        for root, publishers in self.roots.items():
            for publisher, routes in publishers.sets.items():
                for route, waits in routes.items():
                    yield WaitingMessages(root, publisher, route, waits)
