"""Unacknowledged messages of each destination, and the waiters for them (design.md 4, "Two
acknowledgments").

*stored* is: on disk at the destination. *persisted* is: durable there, on disk and persisted at
every sync destination to which it was routed from there. A sync link waits for persisted.

Whose answer waits? An instance is *awaited* for a message when a client published it here or when
it came marked awaited. The instance where the client published is the *root* of that wait, and the
mark names it: a client that fails over publishes one message at two instances, and each of the two
owes its own answer. For each root, the first awaited arrival makes its sender the message's
*waiter*. Only the waiter's answer waits for durability; every other sender is answered when the
message is stored. What arrives with no mark is of root 0, and its first sender is its waiter there.

So for one root the waits form a tree that grows from the root along the sync links: a waiter was
awaited before the instance it waits for, hence no circle; and the root's wait ends when every
instance that the tree reached has the message on disk, hence nothing is acknowledged early. (One
waiter a message for all roots together answers a second root before the first one's tree is
complete: the simulator shows it, tests/sim.)

Answers name the root they are for. So an answer given before an instance became awaited, or before
a link was upgraded, can never be taken for the answer to the question asked then: it is the answer
for another root.
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
"""The sender of what a client published here. No incarnation is 0."""

UNAWAITED = 0
"""The root of what nobody is awaited for."""


class RootedRanges:
    """PublisherRanges for each root."""

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
        """Takes ranges out."""
        found = self.roots.get(root)
        if found is not None:
            found.remove_ranges(publisher, ranges)

    def take(self, root: int, publisher: int, ranges: Sequence[Range]) -> list[Range]:
        """Takes ranges out; returns those of them that were in it."""
        found = self.roots.get(root)
        return found.take(publisher, ranges) if found is not None else []

    def copy(self) -> RootedRanges:
        """Sets of its own with the same content."""
        return RootedRanges({root: ranges.copy() for root, ranges in self.roots.items()})

    def __bool__(self) -> bool:
        # Nearly always nothing at all, and asked some times a message.
        return bool(self.roots) and any(self.roots.values())

    @property
    def count(self) -> int:
        """Number of sequences, each as often as roots have it."""
        return sum(each.count for each in self.roots.values())

    def __repr__(self) -> str:
        return f"RootedRanges({self.roots!r})"

    def to_wire(self) -> dict[int, dict[int, bytes]]:
        """Returns the ranges for a msgpack header."""
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

    Invariants: owed holds only what is committed here and routed there; while persisted acks do
    not wait for it, everything it owes is of root 0.
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
        "further_on",
        "incarnation",
        "owed",
        "persisted",
        "prove_txid",
        "proved",
        "router",
        "servers",
        "skipped",
        "stored_txid",
        "stranded",
        "sync",
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
        """Names of all instances that it ever was connected to: an address may be that of several
        (wide IP)."""
        self.carries_all = carries_all
        """Whether everything that clients may publish here, and that is journaled, goes there."""
        self.stranded = PublisherRanges()
        """Messages that clients published here and the server is not known to hold: since it
        connected what it lacked then, and what a client published here again that is not routed
        there because it had come from elsewhere."""
        self.router = Router(destination, contents)
        self.sync = destination.sync
        """Whether persisted acks wait for it now."""
        self.incarnation = incarnation
        """Incarnation of the server last connected, 0 while unknown."""
        self.owed = RootedRanges()
        self.unsure = PublisherRanges()
        """Messages that it owes for nobody: held by a server that had not answered for them, so
        that the next one may need them from here; not known to be routed there."""
        self.unsure_absent = PublisherRanges()
        """Messages of `unsure` that the connected server lacked, and that its link has not
        passed."""
        self.came_late = PublisherRanges()
        """Messages that were unavailable here when the link connected, and have come since."""
        self.at_connect: PublisherRanges | None = None
        """Messages that the connected server held; kept only while this instance is not ready."""
        self.connected = False
        self.caught_up = False
        self.proved = False
        self.prove_txid = 0
        self.stored_txid = 0
        self.skipped = 0
        self.persisted = 0
        """Messages that it answered, since the process began: for metrics."""
        self.further_on = False
        self.downgrade_refused = False
        self.downgraded_at_us = 0
        self.downgraded_by_hand = False
        """Whether an operator downgraded it: until an operator upgrades it, or the instance
        restarts, no age brings it back."""
        self._ages = AgeLog()

    @property
    def has_met_several(self) -> bool:
        """Returns whether more than one server may hold what this instance sent."""
        return len(self.destination.addresses) > 1 or len(self.servers) > 1

    @property
    def has_several_servers(self) -> bool:
        """Returns whether the next server may be another one: *stored* by the connected one, which
        then dies, would be stored nowhere."""
        return self.destination.has_several_servers or self.has_met_several

    @property
    def safe(self) -> bool:
        """Returns whether a client may fail over to it: everything acked here is persisted there.
        What reaches it over another instance does not count: nobody here hears when that link is
        downgraded."""
        if not (self.sync and self.proved and self.carries_all):
            return False
        return not self.stranded.sets or not self.stranded

    @property
    def whole(self) -> bool:
        """Returns whether everything that is journaled here goes there, whoever sent it."""
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
        """The reason why no client may fail over to it; empty when one may."""
        if not self.sync:
            return "persisted acks do not wait for it"
        if not self.carries_all:
            return (
                "its topics are not all that clients may publish here, or it leaves out the check "
                "txlog of some of them"
            )
        if not self.proved:
            return "it has not caught up since its link connected"
        if self.stranded:
            return "what clients published here is not there, and is not routed there"
        return ""

    def owe(
        self,
        root: int,
        publisher: int,
        ranges: Iterable[Range],
        time_us: int,
        txid: int = AGAIN_TXID,
    ) -> None:
        """Notes that these are committed here, from `txid` on, and routed there. Without a `txid`:
        a resync found them missing there, or they are asked for again."""
        owed = self.owed.of(root if self.sync else UNAWAITED).of(publisher)
        for a, b in ranges:
            owed.add(a, b)
            self._ages.add(time_us, txid, publisher, a, b)

    def owe_unsure(self, publisher: int, wanted: SequenceSet, time_us: int) -> None:
        """A server holds these and has not answered for them, and they are committed here. A copy
        of this instance holds what is never routed there, too: that is found out by a server that
        lacks it, to which the link does not send it."""
        self.owe(UNAWAITED, publisher, list(wanted), time_us)
        self.unsure.of(publisher).update(wanted)

    def server_holds(self, held: PublisherRanges) -> None:
        """Notes that its link begins with a server that holds these."""
        self.unsure_absent = self.unsure.copy()
        self.unsure_absent.difference_update(held)

    def resent(self, publisher: int, ranges: Sequence[Range], time_us: int) -> None:
        """Notes that its link found these missing there, or asks there for what came there since:
        they are routed there, and owed."""
        self.owe(UNAWAITED, publisher, ranges, time_us)
        if self.unsure.sets:
            self.unsure.remove_ranges(publisher, ranges)
            self.unsure_absent.remove_ranges(publisher, ranges)

    def resync_ended(self) -> bool:
        """Notes that its link has passed all that the server lacked. What was not sent of that is
        not routed there, and owed no more; returns whether there was any."""
        if not self.unsure_absent.sets:
            return False
        for publisher, ranges in self.unsure_absent.sets.items():
            self.owed.remove_ranges(UNAWAITED, publisher, list(ranges))
        self.unsure.difference_update(self.unsure_absent)
        self.unsure_absent = PublisherRanges()
        return True

    def owe_again(
        self, root: int, publisher: int, ranges: Iterable[Range], time_us: int, txid: int
    ) -> None:
        """Notes that these were committed here before, none with a transaction id below `txid`, and
        are routed there: they are asked for again."""
        owed = self.owed.of(root if self.sync else UNAWAITED).of(publisher)
        for a, b in ranges:
            owed.add(a, b)
            self._ages.add_again(time_us, txid, publisher, a, b)

    def answered(self, answers: Rooted) -> Rooted:
        """Takes answers; returns what they settled. Whatever its root, an answer says as much as
        one of root 0."""
        settled: Rooted = {}
        for root, ranges_of in answers.items():
            for publisher, ranges in ranges_of.items():
                for layer in (root, UNAWAITED) if root else (UNAWAITED,):
                    found = self.owed.take(layer, publisher, ranges)
                    if found:
                        for a, b in found:
                            self.persisted += b - a + 1
                        settled.setdefault(layer, {}).setdefault(publisher, []).extend(found)
        return settled

    def brought(self, answers: Rooted) -> None:
        """Notes that these are there: not stranded any more."""
        for ranges_of in answers.values():
            for publisher, ranges in ranges_of.items():
                self.stranded.remove_ranges(publisher, ranges)

    def forget(self, conflicts: Ranges) -> None:
        """Forgets what was refused for good."""
        for publisher, ranges in conflicts.items():
            for root in self.owed.roots:
                self.owed.remove_ranges(root, publisher, ranges)

    def stop_waiting(self) -> None:
        """Persisted acks wait for it no more."""
        self.sync = False
        self.proved = False
        self.further_on = False
        unawaited = self.owed.of(UNAWAITED)
        for root, ranges in list(self.owed.roots.items()):
            if root != UNAWAITED:
                unawaited.update(ranges)
                del self.owed.roots[root]

    def oldest_owed(self) -> tuple[int, int] | None:
        """(time in microseconds, first transaction id) of the oldest message owed. Only reads."""
        return self._ages.oldest(self.owed.roots)

    def settle_ages(self) -> None:
        """Settles the ages after something was taken out of what it owes."""
        self._ages.settle(self.owed.roots)

    def must_prove(self, last_txid: int) -> None:
        """Demands a proof after an upgrade, reconnect or restart: it is safe again when everything
        up to `last_txid` is persisted there."""
        self.proved = False
        self.prove_txid = last_txid

    def update_proof(self) -> bool:
        """Returns whether it became proved by this look."""
        if self.proved or not (self.caught_up and self.connected):
            return False
        oldest = self.oldest_owed()
        if oldest is not None and oldest[1] <= self.prove_txid:
            return False
        self.proved = True
        return True


class Route(NamedTuple):
    """The destinations for which pending messages wait, and the properties of their run that a
    router needs."""

    sender: int
    """Incarnation, or CLIENT."""
    topic: bytes
    message_type: bytes
    path: tuple[int, ...]
    group: str
    flags: int
    """Flags that a router asks for."""
    passed: tuple[str, ...] = ()
    """The content filters that let them through, in order."""


def route_of(run: Run, sender: int) -> Route:
    """The route of a run's messages for which this sender waits, where no filter looks at them."""
    return Route(sender, run.topic, run.message_type, run.path, run.group, run.flags & Flag.CROSSED)


class WaitingMessages(NamedTuple):
    """Pending messages of one publisher for one root, on disk here."""

    root: int
    publisher: int
    route: Route
    ranges: SequenceSet


class _Waits(SharedMap[dict[Route, SequenceSet]]):
    """The messages that wait for one root: publisher to route to sequences."""

    __slots__ = ()

    def _made(self) -> dict[Route, SequenceSet]:
        return {}

    def _copied(self, value: dict[Route, SequenceSet]) -> dict[Route, SequenceSet]:
        return {route: ranges.copy() for route, ranges in value.items()}


class WaiterTable:
    """The waiters for pending messages, root by root, with the routes of those messages: a link
    that is upgraded, or reaches another server, is asked for them without a look into the journal.

    Invariant: holds exactly what is on disk and not durable. A waiter is never replaced."""

    __slots__ = ("roots",)

    def __init__(self) -> None:
        self.roots: dict[int, _Waits] = {}

    def __bool__(self) -> bool:
        return any([waits.sets for waits in self.roots.values()])

    def of(self, root: int) -> _Waits:
        """Returns the messages that wait for a root, made when nothing does."""
        found = self.roots.get(root)
        if found is None:
            found = self.roots[root] = _Waits()
        return found

    def copy(self) -> WaiterTable:
        """A table of its own with the same content."""
        other = WaiterTable()
        other.roots = {root: waits.copy() for root, waits in self.roots.items()}
        return other

    def assign(self, root: int, route: Route, publisher: int, ranges: Iterable[Range]) -> None:
        """Makes the route's sender the waiter of these."""
        routes = self.of(root).of(publisher)
        waits = routes.get(route)
        if waits is None:
            waits = routes[route] = SequenceSet()
        for first, last in ranges:
            waits.add(first, last)

    def settle(
        self, root: int, publisher: int, ranges: list[Range]
    ) -> list[tuple[int, list[Range]]]:
        """Takes the waiters of durable messages off the table, and returns (sender, what it waited
        for) of each."""
        answers: dict[int, list[Range]] = {}
        publishers = self.roots.get(root)
        if publishers is None or publisher not in publishers.sets:
            return []
        routes = publishers.of(publisher)
        for route in list(routes):
            waits = routes[route]
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
        """Returns the messages of `ranges` that this sender does not wait for: it is answered for
        them now."""
        left = ranges
        publishers = self.roots.get(root)
        routes = publishers.get(publisher) if publishers is not None else None
        for route, waits in routes.items() if routes else ():
            if route.sender == sender:
                left = [piece for a, b in left for piece in waits.missing(a, b)]
        return left

    def __iter__(self) -> Iterator[WaitingMessages]:
        """All of it, with the sets of the table itself."""
        for root, publishers in self.roots.items():
            for publisher, routes in publishers.sets.items():
                for route, waits in routes.items():
                    yield WaitingMessages(root, publisher, route, waits)
