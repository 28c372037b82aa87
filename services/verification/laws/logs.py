"""The state of every journal and link at each moment of a history."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from raylay.services.replication.link.routing import DestinationRoute
from raylay.services.verification.history import (
    CatchUpEnded,
    FiltersChanged,
    InstanceCrashed,
    InstanceMoved,
    InstanceStarted,
    LinkConnected,
    LinkModeSet,
    LinkReached,
    MessagesPublished,
    OldCopyHeld,
    RunHistory,
    RunJournaled,
    SegmentsRemoved,
    Topology,
    WaiterNoted,
)
from raylay.services.verification.routing_oracle import carries_everything, is_let_on, is_routed
from raylay.services.verification.violation import Key

Link = tuple[str, str]
"""(instance, destination)."""
Mode = tuple[int, set[tuple[int, int, int]]]
"""Past mode of a link: the time until which it was async, and the messages that it asked for again
when it was upgraded."""
OWN = "acknowledged"
DEAD = "acknowledged, the waiter has lost its disk"
DOWNGRADED = "acknowledged, the waiter's own link is async"
NEVER = -1
NOW_ASYNC = 1 << 62
REMOVED_TXID = 0
"""Transaction id of messages that were removed before a disk was restored; lower than every real
one."""
MESSAGE_TYPE = "json"
"""Message type of all messages in a history."""


@dataclass(slots=True)
class Copy:
    """A message in one journal."""

    time_us: int
    txid: int
    topic: str
    path: tuple[int, ...]
    group: str
    waiters: dict[int, int]
    """Sender that waits for the message, by root; 0: a client."""
    digest: int = 0
    """Digest of the content; 0: there is only one content."""
    content: str = ""
    """Content as filters see it."""
    forgotten: set[int] = field(default_factory=set)
    """Roots for which the instance became awaited after retention had removed the message."""
    noted_us: dict[int, int] = field(default_factory=dict)
    """Time at which the instance became awaited for a root, where that was after the message
    arrived."""

    def since_us(self, root: int) -> int:
        """Returns the time from which the instance owes an answer for this root."""
        return self.noted_us.get(root, self.time_us)


class Logs:
    """The journals and links at one moment of a history."""

    def __init__(self, topology: Topology) -> None:
        self.topology = replace(topology, members=dict(topology.members))
        """Topology at this moment. It changes when filters do (`FiltersChanged`)."""
        self.refiltered_us: dict[str, int] = {}
        self.carried_before: defaultdict[str, list[DestinationRoute]] = defaultdict(list)
        """Destinations of an instance before its filters changed."""
        self.newly_carried: defaultdict[Link, set[Key]] = defaultdict(set)
        """Messages that a link carries only since the filters changed, and that were durable under
        the filters before: an answer for them may have been let out."""
        self.copies: dict[str, dict[Key, Copy]] = {name: {} for name in topology.members}
        self.lost: dict[str, set[Key]] = {name: set() for name in topology.members}
        """Messages on disks that an instance has lost, or does not have any more because it was
        moved."""
        self.lost_copies: defaultdict[str, list[tuple[dict[Key, Copy], dict[str, Mode]]]]
        self.lost_copies = defaultdict(list)
        """Copies of the lost messages, one disk after the other, with the modes of the instance's
        links then, by destination."""
        self.removed_to: defaultdict[str, int] = defaultdict(int)
        """Transaction id up to which retention has removed messages."""
        self.name_of: dict[int, str] = {}
        self.incarnation_of: dict[str, int] = {}
        self.cut: set[Link] = set()
        """Links whose server has lost its disk, and that have not been connected again: what they
        still hear is about the lost disk."""
        self.asked_again: dict[Link, set[tuple[int, int, int]]] = {}
        """Messages that were asked for again, by link: (root, publisher, sequence)."""
        self.asked_there: dict[Link, set[tuple[int, int, int]]] = {}
        """Messages that the current server was asked for when it was reached, by link."""
        self.server: dict[Link, str] = {}
        self.served_by: dict[Link, tuple[str, int]] = {}
        """Connected server of each link and its incarnation."""
        self.served_from_us: dict[Link, int] = {}
        self.reached: dict[Link, str] = {}
        """Server that each link was compared with last, where it has not begun with
        that server."""
        self.reached_us: dict[Link, int] = {}
        self.caught_up_with: dict[Link, int] = {}
        """Incarnation with which each link has caught up."""
        self.async_until_us: dict[Link, int] = {}
        self.earlier_modes: defaultdict[Link, list[Mode]] = defaultdict(list)
        """Modes of a link before each crash of its instance after which the instance kept its
        disk."""
        self.formers: defaultdict[str, list[str]] = defaultdict(list)
        self.moved: set[int] = set()
        """Incarnations of instances that were moved and live on under another incarnation."""
        self.digests: dict[tuple[str, int, int], int] = {}
        """Digest of each publish: (client, publisher, sequence) to digest."""
        self._routed: dict[tuple[str, str, str, tuple[int, ...], str, str, int], bool] = {}
        for member in topology.members.values():
            for destination in member.destinations:
                self.async_until_us[member.name, destination.name] = (
                    NEVER if destination.sync else NOW_ASYNC
                )

    def take(self, operation: object) -> None:
        """Applies the next operation."""
        taken = _TAKE.get(type(operation))
        if taken is not None:
            taken(self, operation)

    def _journaled(self, operation: RunJournaled) -> None:
        copies = self.copies[operation.instance]
        sender = operation.path[-1] if operation.path else 0
        root = operation.path[0] if operation.path else operation.incarnation
        digests = operation.digests
        for i, sequence in enumerate(operation.sequences):
            copies[operation.publisher, sequence] = Copy(
                operation.time_us,
                operation.txid + i,
                operation.topic,
                operation.path,
                operation.group,
                {root: sender} if operation.awaited else {},
                digests[i] if digests else 0,
                operation.contents[i] if operation.contents else "",
            )

    def _held_before(self, operation: OldCopyHeld) -> None:
        copies = self.copies[operation.instance]
        for sequence in operation.sequences:
            key = (operation.publisher, sequence)
            copies[key] = Copy(operation.time_us, REMOVED_TXID, "", (), "", {})

    def _noted(self, operation: WaiterNoted) -> None:
        copies = self.copies[operation.instance]
        for sequence in operation.sequences:
            copy = copies.get((operation.publisher, sequence))
            if copy is not None:
                copy.waiters[operation.root] = operation.sender
                copy.noted_us[operation.root] = operation.time_us
                if self.is_removed(operation.instance, (operation.publisher, sequence)):
                    copy.forgotten.add(operation.root)

    def _mode_set(self, operation: LinkModeSet) -> None:
        # After an upgrade the link was async until now, but not for what it asks again.
        link = (operation.instance, operation.destination)
        self.async_until_us[link] = operation.time_us if operation.sync else NOW_ASYNC
        self.asked_again[link] = set(operation.pending)

    def _reached(self, operation: LinkReached) -> None:
        link = operation.instance, operation.destination
        self.reached[link] = self.name_of.get(operation.incarnation, operation.server)
        self.reached_us[link] = operation.time_us

    def _linked(self, operation: LinkConnected) -> None:
        link = operation.instance, operation.destination
        self.reached.pop(link, None)
        self.cut.discard(link)
        # A moved instance has its old name where this link's instance has not heard of the move.
        server = self.name_of.get(operation.incarnation, operation.server)
        by = server, operation.incarnation
        if self.served_by.get(link) != by:
            self.server[link], self.served_by[link] = server, by
            self.served_from_us[link] = operation.time_us
            self.asked_there[link] = set(operation.pending)

    def _caught_up(self, operation: CatchUpEnded) -> None:
        link = operation.instance, operation.destination
        if link not in self.cut:
            self.caught_up_with[link] = operation.incarnation

    def _started(self, operation: InstanceStarted) -> None:
        self.name_of[operation.incarnation] = operation.instance
        self.incarnation_of[operation.instance] = operation.incarnation

    def _crashed(self, operation: InstanceCrashed) -> None:
        name = operation.instance
        if not operation.lost:
            for destination in self.topology.members[name].destinations:
                until_us, asked_again = self._mode((name, destination.name))
                if until_us == NOW_ASYNC:
                    until_us, asked_again = operation.time_us, set()
                self.earlier_modes[name, destination.name].append((until_us, asked_again))
            return
        self._lose(name)
        # A restored copy may have the same incarnation: no link has caught up with it.
        self.cut |= {link for link, server in self.server.items() if server == name}
        gone = self.incarnation_of.get(name)
        self.caught_up_with = {k: v for k, v in self.caught_up_with.items() if v != gone}

    def _mode(self, link: Link) -> Mode:
        return self.async_until_us[link], self.asked_again.get(link, set())

    def _lose(self, name: str) -> None:
        if self.copies[name]:
            self.lost[name].update(self.copies[name])
            destinations = self.topology.members[name].destinations
            modes = {
                destination.name: self._mode((name, destination.name))
                for destination in destinations
            }
            self.lost_copies[name].append((self.copies[name], modes))
        self.copies[name] = {}
        self.removed_to[name] = 0

    def _removed(self, operation: SegmentsRemoved) -> None:
        self.removed_to[operation.instance] = operation.up_to_txid

    def _published(self, operation: MessagesPublished) -> None:
        if operation.digest:
            key = (operation.client, operation.publisher, operation.sequence)
            self.digests[key] = operation.digest

    def _moved(self, operation: InstanceMoved) -> None:
        """Notes that an instance was moved: for the others it has lost its disk, and the old
        directory goes on by its former name."""
        name, former = operation.instance, operation.former
        self.copies[former] = self.copies[name]
        self.lost[former] = set(self.lost[name])
        self.lost_copies[former] = list(self.lost_copies[name])
        self.removed_to[former] = self.removed_to[name]
        self._lose(name)
        self.formers[name].append(former)
        for link, server in self.server.items():
            if server == name:
                self.server[link] = former
                self.served_by[link] = former, self.served_by[link][1]
        for link, server in self.reached.items():
            if server == name:
                self.reached[link] = former
        self.name_of[operation.incarnation] = former
        self.incarnation_of[former] = operation.incarnation
        self.moved.add(operation.incarnation)
        for destination in self.topology.members[name].destinations:
            old, new = (name, destination.name), (former, destination.name)
            tables: tuple[dict[Link, Any], ...] = (
                self.asked_again,
                self.asked_there,
                self.server,
                self.served_by,
                self.served_from_us,
                self.async_until_us,
                self.earlier_modes,
                self.caught_up_with,
                self.reached,
                self.reached_us,
                self.newly_carried,
            )
            for kept in tables:
                if old in kept:
                    kept[new] = kept[old]

    def _refiltered(self, operation: FiltersChanged) -> None:
        name = operation.instance
        member = self.topology.members[name]
        changed = replace(member, destinations=operation.destinations)
        before = dict(self.copies[name])
        durable = {key for key, copy in before.items() if self._is_durable(name, key, copy)}
        carried = {
            destination.name: {
                key for key in durable if self.routed(name, destination, before[key], -1)
            }
            for destination in member.destinations
        }
        self.refiltered_us[name] = operation.time_us
        self.carried_before[name] += member.destinations
        self.topology.members[name] = changed
        self._routed.clear()
        for destination in changed.destinations:
            self.newly_carried[name, destination.name] |= {
                key
                for key in durable - carried[destination.name]
                if self.routed(name, destination, before[key], -1)
            }

    def _is_durable(self, name: str, key: Key, copy: Copy) -> bool:
        """Returns whether no answer for the copy is outstanding at the instance."""
        roots = copy.waiters or {NEVER: 0}
        return not any(
            self.lacks(
                (name, sync_destination.name),
                self.topology.servers(sync_destination),
                key,
                root=root,
            )
            for root in roots
            for sync_destination in self.sync_destinations(name, key, copy, root)
        )

    # -- questions ---------------------------------------------------------------------------
    def has(self, name: str, key: Key, digest: int = 0) -> bool:
        """Returns whether an instance has a message now, its removed segments included."""
        copy = self.copies.get(name, {}).get(key)
        return copy is not None and (not digest or copy.digest in (0, digest))

    def is_removed(self, name: str, key: Key) -> bool:
        """Returns whether retention has removed the instance's copy of a message."""
        copy = self.copies[name].get(key)
        return copy is not None and copy.txid <= self.removed_to[name]

    def _is_settled(self, link: Link, server: str | None) -> bool:
        """Returns whether a link has caught up with the server's current disk; never where the
        server was moved since."""
        if not server:
            return False
        incarnation = self.incarnation_of.get(server)
        return incarnation not in self.moved and self.caught_up_with.get(link) == incarnation

    def lacks(
        self,
        link: Link,
        addresses: tuple[str, ...],
        key: Key,
        digest: int = 0,
        reached: str | None = None,
        root: int = NEVER,
    ) -> bool:
        """Returns whether a message that a link has to bring is at none of these servers, nor at
        the connected server, nor at the one in `reached`.

        Excused are: a copy on a disk that a server lost since, or does not have any more because it
        was moved, while the link has not caught up with any server since; and another content of
        the message at the server that was never compared with this one (see the top of
        services/verification/checkers.py).
        """
        server = reached or self.server.get(link)
        names = (*addresses, server) if server is not None else addresses
        if any(self.has(name, key, digest) for name in names):
            return False
        if digest and any(self._never_met(link, name, key, root) for name in names):
            return False
        if self._is_settled(link, server):
            return True
        return not any(
            key in self.lost[place] or (place != address and key in self.copies[place])
            for address in addresses
            for place in (address, *self.formers.get(address, ()))
        )

    def went_back(self, servers: tuple[str, ...], key: Key, copy: Copy) -> bool:
        """Returns whether one of the servers sent this copy on, has lost it, and still has the
        incarnation that it had then."""
        return any(
            self.incarnation_of.get(server) in copy.path and key in self.lost[server]
            for server in servers
        )

    def is_without(self, instance: str, server: str, key: Key) -> bool:
        """Returns whether this very server lacks a message, whatever other servers of its list
        have.

        Excused as in `lacks`, by a link of the instance that is connected to this server and to no
        other.
        """
        if self.has(server, key):
            return False
        its = (server, *self.formers.get(server, ()))
        links = [
            (instance, destination.name)
            for destination in self.topology.members[instance].destinations
            if self.server.get((instance, destination.name)) in its
        ]
        return not links or all(self.lacks(link, (server,), key) for link in links)

    def _never_met(self, link: Link, name: str, key: Key, root: int) -> bool:
        """Returns whether there is another content of the message that was never compared with the
        link's."""
        there, here = self.copies.get(name, {}).get(key), self.copies[link[0]].get(key)
        if there is None or here is None:
            return False
        if self.is_removed(name, key) or self.async_until_us.get(link, NEVER) >= here.time_us:
            return True
        if self._was_replaced(link, name, key, here, there):
            return True
        told_us = min(here.since_us(root), self.reached_us.get(link, NEVER))
        return bool(here.path) and (bool(there.path) or there.time_us <= told_us)

    def _was_replaced(self, link: Link, name: str, key: Key, here: Copy, there: Copy) -> bool:
        """Returns whether a server had this content on a disk that is lost, and another client of
        the publisher's name published the other content there before the link reached it again. The
        server reports that it holds the message, and the link does not ask again for what the
        server has answered."""
        reached_us = self.reached_us.get(link)
        return (
            reached_us is not None
            and not there.path
            and there.time_us <= reached_us
            and any(
                key in copies and copies[key].digest == here.digest
                for copies, _ in self.lost_copies[name]
            )
        )

    def groups(self, path: tuple[int, ...]) -> tuple[str, ...]:
        """Returns the groups of the instances on a path."""
        members, names = self.topology.members, self.name_of
        return tuple(members[names[each]].group for each in path if each in names)

    def routed(self, name: str, destination: DestinationRoute, copy: Copy, downstream: int) -> bool:
        """Returns whether a message goes from an instance to a destination, by the rules as they
        are written."""
        entry = (
            name,
            destination.name,
            copy.topic,
            copy.path,
            copy.group,
            copy.content,
            downstream,
        )
        found = self._routed.get(entry)
        if found is None:
            found = self._routed[entry] = self._by_rules(name, destination, copy, downstream)
        return found

    def _by_rules(
        self, name: str, destination: DestinationRoute, copy: Copy, downstream: int
    ) -> bool:
        return is_routed(
            destination,
            copy.topic,
            MESSAGE_TYPE,
            copy.path,
            self.groups(copy.path),
            copy.group,
            self.topology.members[name].group,
            downstream,
            self._filter(copy),
        )

    def _filter(self, copy: Copy) -> Callable[[str], bool] | None:
        """Returns the function that decides whether the copy passes a filter; None where there are
        no filters."""
        passes, content = self.topology.passes, copy.content
        return None if passes is None else lambda text: passes(text, content)

    def passes_over(self, server: str, copy: Copy) -> bool:
        """Returns whether a server answers for a message without storing it, because its topic is
        not in the server's transaction log."""
        member = self.topology.members.get(server)
        return member is not None and copy.topic in member.without

    def may_be_sent(self, name: str, server: str, copy: Copy) -> bool:
        """Returns whether a message may go from an instance to another one over any of its
        destinations, or in a resync. An instance that was moved has left everything to the one in
        its place."""
        if name.partition("#")[0] == server:
            return True
        # It may have been on its way when its instance died.
        was_there = copy.time_us < self.refiltered_us.get(name, 0)
        return any(
            rules(name, destination, copy, -1)
            or is_let_on(destination, copy.topic, MESSAGE_TYPE, copy.group, self._filter(copy))
            for destinations, rules in (
                (self.topology.members[name].destinations, self.routed),
                (self.carried_before[name] if was_there else (), self._by_rules),
            )
            for destination in destinations
            if server in self.topology.servers(destination)
        )

    def sync_destinations(
        self, name: str, key: Key, copy: Copy, root: int
    ) -> list[DestinationRoute]:
        """Returns the destinations to which the copy is routed and whose links were sync ever since
        an answer is owed for this root.

        A link that was async meanwhile may have let an answer out that is on its way, unless
        nothing was answered yet for this root when it was upgraded. An answer that was let out
        before a crash, or before the disk with an earlier copy was lost, counts too: a sender that
        heard it does not wait for what the instance is sent again, nor for what it finds pending at
        its next upgrade.
        """
        found = []
        former = [(copies[key], modes) for copies, modes in self.lost_copies[name] if key in copies]
        for destination in self.topology.members[name].destinations:
            link = (name, destination.name)
            if not self.routed(name, destination, copy, -1):
                continue
            if any(self.passes_over(server, copy) for server in self.topology.servers(destination)):
                continue
            if key in self.newly_carried[link] or let_out(copy, self._mode(link), key, root):
                continue
            if any(let_out(copy, mode, key, root) for mode in self.earlier_modes.get(link, ())):
                continue
            if any(let_out(old, modes[destination.name], key, root) for old, modes in former):
                continue
            found.append(destination)
        return found

    def followed(
        self, name: str, destination: DestinationRoute, key: Key, copy: Copy, root: int = NEVER
    ) -> tuple[str, ...]:
        """Returns the servers of a destination whose own sync links count for this root: the server
        to which the link is connected.

        None where the link came to that server, or to this incarnation of it, after an answer was
        owed for the root, and did not find the message waiting: then the message was durable by the
        answer of the server before, or because it was not routed to that one, and it stays durable,
        as after an upgrade. None either where the link has still to come to the server. With
        `NEVER` as the root the root is unknown, and the answer of the server before may always
        count.
        """
        link = (name, destination.name)
        server, *others = self.topology.servers(destination)
        several = bool(others or self.formers.get(server))
        if several or root != NEVER:
            from_us = self.served_from_us.get(link, NOW_ASYNC if several else NEVER)
            asked = self.asked_there.get(link, ())
            if from_us >= copy.since_us(root) and (root, *key) not in asked:
                return ()
        if several:
            server = self.server[link]
        if root != NEVER and link in self.cut:
            return ()
        # What came through it is not routed to it.
        return () if self.incarnation_of.get(server) in copy.path else (server,)

    def lacking_behind(self, server: str, key: Key, sender: int) -> list[str]:
        """Returns the servers behind `server`, over links that were sync ever since, that lack the
        message which came to it from this sender first. Its answer to the sender waits for those
        servers, or for what such a link found when it was compared last."""
        copy = self.copies[server].get(key)
        if copy is None or copy.path[-1:] != (sender,) or self.is_removed(server, key):
            # What it has removed in turn was there.
            return []
        return [
            behind
            for destination in self.sync_destinations(server, key, copy, NEVER)
            for behind in self.followed(server, destination, key, copy)
            if self.lacks(
                link := (server, destination.name), (behind,), key, 0, self.reached.get(link)
            )
        ]

    def waiting(self, name: str, key: Key, root: str) -> str:
        """Returns `own` where the waiters from here on lead to the client at `root` over links that
        are sync; else the reason why no publisher waits there."""
        met: set[str] = set()
        chain = self.incarnation_of[root]
        while name not in met:
            met.add(name)
            copy = self.copies[name].get(key)
            if copy is None or chain not in copy.waiters:
                return OWN
            sender = copy.waiters[chain]
            if not sender:
                return OWN
            waiter = self.name_of.get(sender, "")
            if self.incarnation_of.get(waiter) != sender:
                return DEAD
            if sender in self.moved and waiter != root:
                return DEAD
            held = self.copies.get(waiter, {}).get(key)
            if held is None:
                return DEAD
            if not any(
                name in self.followed(waiter, destination, key, held, chain)
                for destination in self.sync_destinations(waiter, key, held, chain)
            ):
                return DOWNGRADED
            name = waiter
        return OWN


def let_out(copy: Copy, mode: Mode, key: Key, root: int) -> bool:
    """Returns whether a link may have let out an answer for the copy that its destination did not
    give."""
    until_us, asked_again = mode
    return until_us >= copy.since_us(root) and (
        until_us == NOW_ASYNC or (root, *key) not in asked_again
    )


def transient_keys(history: RunHistory) -> set[Key]:
    """Returns the messages that were published on topics that no instance journals."""
    if not history.transient:
        return set()
    return {
        (operation.publisher, operation.sequence)
        for operation in history.operations
        if isinstance(operation, MessagesPublished) and operation.topic in history.transient
    }


def is_contested(logs: Logs, key: Key, digest: int) -> bool:
    """Returns whether some instance holds another content of a message."""
    if not digest:
        return False
    held = (copies.get(key) for copies in logs.copies.values())
    return any(copy is not None and copy.digest != digest for copy in held)


def whole(history: RunHistory, destination: DestinationRoute) -> bool:
    """Returns whether a destination takes every published message, whatever its topic and type."""
    return carries_everything(destination, history.journaled)


_TAKE: dict[type, Callable[[Logs, Any], None]] = {
    RunJournaled: Logs._journaled,
    OldCopyHeld: Logs._held_before,
    WaiterNoted: Logs._noted,
    LinkModeSet: Logs._mode_set,
    LinkReached: Logs._reached,
    LinkConnected: Logs._linked,
    CatchUpEnded: Logs._caught_up,
    InstanceStarted: Logs._started,
    InstanceCrashed: Logs._crashed,
    SegmentsRemoved: Logs._removed,
    MessagesPublished: Logs._published,
    InstanceMoved: Logs._moved,
    FiltersChanged: Logs._refiltered,
}
