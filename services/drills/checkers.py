"""The laws (design.md 1) as pure functions over one history. They raise nothing: they find.

    acknowledged     1  an acked message is on disk here and along the sync links
    nothing_lost     1  what was acked is in some log at the end, unless every disk that had it died
    once             2  a journal holds a message once, a subscriber gets it once
    order            3  publisher order, unless flagged late, and late only where paths split
    removal          4  what is removed is where it was routed to
    loops            5  nothing enters an incarnation twice, nor is it sent there again
    liveness         7  in the end all acks are given and all logs hold what is routed to them
    unavailable      -  what is missing and removed upstream is recorded, nothing else is
    settled          -  what was durable does not wait again after a restart
    store            -  a publish store forgets only what was acked or refused
    sending          -  on a connection a client sends all that is not settled, in order, each once
    safety           -  no peer that a client was told is safe lacks what the client was acked
    failover         -  a client uses only whom all that ever spoke to it call safe
    readiness        -  an instance that lost its disk admits clients when it has what one peer of
                        its group had
    transient        -  what is in no transaction log is in no journal
    subscribers      -  a subscriber has everything of the log that it ended at
    retired          -  nobody who knows that an instance was moved deals with what it was before,
                        which ends when it hears of that
    fully_durable    -  a fully durable subscriber is sent nothing that is not durable then

A publish without an ack is unknown: it may be anywhere or nowhere.

Judged is what is there at that moment, not what was there once. A disk that was lost, or was moved
away, excuses what was on it as long as the link that had brought it there has not caught up with
what came in its place (`Logs.lacks`): until then nobody could know. What is routed where is said by
rules.py, which has nothing in common with what production asks.

Two contents under one identity (two clients of one name, a publisher that lost its store) are told
apart by their digests, where a history has them: an ack stands for the content that its client
published. Contents are compared where records meet, so some cases are excused: what a logon names
durable that another client of that name published there (a client that logs on shows no records);
what comes again when retention has removed what was here; what a link asks again after an upgrade
(it names ranges of what it held when it was async); and, behind the instance where a client
published one, who got another from an instance meanwhile, or held one when the link last reached
it and nobody had asked for this one: it said that it holds it, so it is asked for it by its range.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from raylay.services.drills.history import (
    Acked,
    CaughtUp,
    ClientCrashed,
    Crashed,
    Delivered,
    Failed,
    Heard,
    HeardSafety,
    HeldBefore,
    History,
    Journaled,
    Kept,
    Knows,
    Lacked,
    Linked,
    ModeSet,
    Moved,
    Noted,
    Offered,
    Owing,
    Published,
    Reached,
    Ready,
    Recovered,
    Removed,
    Retired,
    Returned,
    Reunited,
    Sent,
    Started,
    ToldSafety,
    Took,
    Topology,
    Used,
)
from raylay.services.drills.publish_stores import store
from raylay.services.drills.rules import carries_everything, is_routed
from raylay.services.drills.verdicts import VIOLATIONS_MAX, Key, Violation, at, listed, named
from raylay.services.replication.routing import Destination

Link = tuple[str, str]
Mode = tuple[int, set[tuple[int, int, int]]]
"""Of a link: until when it was async, and what it asked again when it was upgraded."""
"""(instance, destination)."""
OWN = "acknowledged"
DEAD = "acknowledged, the waiter has lost its disk"
DOWNGRADED = "acknowledged, the waiter's own link is async"
NEVER = -1
NOW_ASYNC = 1 << 62
REMOVED_TXID = 0
"""Below every real one: of what was removed before a disk was put back."""
MESSAGE_TYPE = "json"
"""Of everything in a history."""


@dataclass(slots=True)
class Copy:
    """A message in one journal."""

    time_us: int
    txid: int
    topic: str
    path: tuple[int, ...]
    group: str
    waiters: dict[int, int]
    """Root to the sender that waits for it, 0 for a client."""
    digest: int = 0
    """Of its content; 0: there is no other one."""
    forgotten: set[int] = field(default_factory=set)
    """Roots that its instance became awaited for when retention had removed the message."""
    noted_us: dict[int, int] = field(default_factory=dict)
    """By root, where its instance became awaited for it behind its arrival."""

    def since_us(self, root: int) -> int:
        """From when on its instance owes an answer for this root."""
        return self.noted_us.get(root, self.time_us)


class Logs:
    """The journals at one moment, as a history tells them."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.copies: dict[str, dict[Key, Copy]] = {name: {} for name in topology.members}
        self.lost: dict[str, set[Key]] = {name: set() for name in topology.members}
        """What was on disks of an instance that are gone, or that it has no more since it moved."""
        self.lost_copies: defaultdict[str, list[tuple[dict[Key, Copy], dict[str, Mode]]]]
        self.lost_copies = defaultdict(list)
        """The same copies, disk by disk, with how its links were then, by destination."""
        self.removed_to: defaultdict[str, int] = defaultdict(int)
        """Up to this transaction id retention has removed what there was."""
        self.name_of: dict[int, str] = {}
        self.incarnation_of: dict[str, int] = {}
        self.cut: set[Link] = set()
        """Links whose server has lost its disk, and that were not connected anew since: what they
        still hear is of what was there before."""
        self.asked_again: dict[Link, set[tuple[int, int, int]]] = {}
        """By link: (root, publisher, sequence)."""
        self.asked_there: dict[Link, set[tuple[int, int, int]]] = {}
        """The same, of what the server that is there now was asked for when it was reached."""
        self.server: dict[Link, str] = {}
        self.served_by: dict[Link, tuple[str, int]] = {}
        """The server and its incarnation."""
        self.served_from_us: dict[Link, int] = {}
        self.reached: dict[Link, str] = {}
        """The server that a link was compared with last, and has not begun with."""
        self.reached_us: dict[Link, int] = {}
        self.caught_up_with: dict[Link, int] = {}
        """The incarnation that has had from this link what was there when it connected."""
        self.async_until_us: dict[Link, int] = {}
        self.formers: defaultdict[str, list[str]] = defaultdict(list)
        self.moved: set[int] = set()
        """Incarnations of instances that live elsewhere now, under another one."""
        self.digests: dict[tuple[str, int, int], int] = {}
        """Of what each client published: (client, publisher, sequence) to digest."""
        self._routed: dict[tuple[str, str, str, tuple[int, ...], str, int], bool] = {}
        for member in topology.members.values():
            for destination in member.destinations:
                self.async_until_us[member.name, destination.name] = (
                    NEVER if destination.sync else NOW_ASYNC
                )

    def take(self, operation: object) -> None:
        """Brings the journals up to this operation."""
        taken = _TAKE.get(type(operation))
        if taken is not None:
            taken(self, operation)

    def _journaled(self, operation: Journaled) -> None:
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
            )

    def _held_before(self, operation: HeldBefore) -> None:
        copies = self.copies[operation.instance]
        for sequence in operation.sequences:
            key = (operation.publisher, sequence)
            copies[key] = Copy(operation.time_us, REMOVED_TXID, "", (), "", {})

    def _noted(self, operation: Noted) -> None:
        copies = self.copies[operation.instance]
        for sequence in operation.sequences:
            copy = copies.get((operation.publisher, sequence))
            if copy is not None:
                copy.waiters[operation.root] = operation.sender
                copy.noted_us[operation.root] = operation.time_us
                if self.is_removed(operation.instance, (operation.publisher, sequence)):
                    copy.forgotten.add(operation.root)

    def _mode_set(self, operation: ModeSet) -> None:
        # After an upgrade the link was async until now, but not for what it asks again.
        link = (operation.instance, operation.destination)
        self.async_until_us[link] = operation.time_us if operation.sync else NOW_ASYNC
        self.asked_again[link] = set(operation.pending)

    def _reached(self, operation: Reached) -> None:
        link = operation.instance, operation.destination
        self.reached[link] = self.name_of.get(operation.incarnation, operation.server)
        self.reached_us[link] = operation.time_us

    def _linked(self, operation: Linked) -> None:
        link = operation.instance, operation.destination
        self.reached.pop(link, None)
        self.cut.discard(link)
        # One that was moved, and that nobody has told this link's instance of, says its old name.
        server = self.name_of.get(operation.incarnation, operation.server)
        by = server, operation.incarnation
        if self.served_by.get(link) != by:
            self.server[link], self.served_by[link] = server, by
            self.served_from_us[link] = operation.time_us
            self.asked_there[link] = set(operation.pending)

    def _caught_up(self, operation: CaughtUp) -> None:
        link = operation.instance, operation.destination
        if link not in self.cut:
            self.caught_up_with[link] = operation.incarnation

    def _started(self, operation: Started) -> None:
        self.name_of[operation.incarnation] = operation.instance
        self.incarnation_of[operation.instance] = operation.incarnation

    def _crashed(self, operation: Crashed) -> None:
        if not operation.lost:
            return
        name = operation.instance
        self._lose(name)
        # What is put in its place may bear the same incarnation: nobody has caught up with that.
        self.cut |= {link for link, server in self.server.items() if server == name}
        gone = self.incarnation_of.get(name)
        self.caught_up_with = {k: v for k, v in self.caught_up_with.items() if v != gone}

    def _mode(self, link: Link) -> Mode:
        return self.async_until_us[link], self.asked_again.get(link, set())

    def _lose(self, name: str) -> None:
        if self.copies[name]:
            self.lost[name].update(self.copies[name])
            destinations = self.topology.members[name].destinations
            modes = {each.name: self._mode((name, each.name)) for each in destinations}
            self.lost_copies[name].append((self.copies[name], modes))
        self.copies[name] = {}
        self.removed_to[name] = 0

    def _removed(self, operation: Removed) -> None:
        self.removed_to[operation.instance] = operation.up_to_txid

    def _published(self, operation: Published) -> None:
        if operation.digest:
            key = (operation.client, operation.publisher, operation.sequence)
            self.digests[key] = operation.digest

    def _moved(self, operation: Moved) -> None:
        """To the others the instance has lost its disk; what it was goes on by its former name."""
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
                self.caught_up_with,
                self.reached,
                self.reached_us,
            )
            for kept in tables:
                if old in kept:
                    kept[new] = kept[old]

    # -- questions ---------------------------------------------------------------------------
    def has(self, name: str, key: Key, digest: int = 0) -> bool:
        """Whether an instance has a message now, its removed segments included."""
        copy = self.copies.get(name, {}).get(key)
        return copy is not None and (not digest or copy.digest in (0, digest))

    def is_removed(self, name: str, key: Key) -> bool:
        """Whether retention has removed what an instance had of it."""
        copy = self.copies[name].get(key)
        return copy is not None and copy.txid <= self.removed_to[name]

    def _is_settled(self, link: Link, server: str | None) -> bool:
        """Whether a link has caught up with what is there now."""
        if not server:
            return False
        return self.caught_up_with.get(link) == self.incarnation_of.get(server)

    def lacks(
        self,
        link: Link,
        addresses: tuple[str, ...],
        key: Key,
        digest: int = 0,
        reached: str | None = None,
        root: int = NEVER,
    ) -> bool:
        """Whether a message that a link has to bring is at none of these servers, nor at the one
        that it is connected to, or has `reached`.

        Excused: it was on a disk of theirs that was lost since, or that they have no more since
        they were moved, and the link has not caught up with anybody since; and another content of
        it is there that was never compared with this one (see the top of this file)."""
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
        """Whether one of them sent this copy on its way and has lost it, and bears the incarnation
        that it had."""
        return any(
            self.incarnation_of.get(server) in copy.path and key in self.lost[server]
            for server in servers
        )

    def is_without(self, instance: str, server: str, key: Key) -> bool:
        """Whether this very server lacks a message, whatever others of its list have.

        Excused as in `lacks`, by a link of the instance that is connected to it and to no other."""
        if self.has(server, key):
            return False
        its = (server, *self.formers.get(server, ()))
        links = [
            (instance, each.name)
            for each in self.topology.members[instance].destinations
            if self.server.get((instance, each.name)) in its
        ]
        return not links or all(self.lacks(link, (server,), key) for link in links)

    def _never_met(self, link: Link, name: str, key: Key, root: int) -> bool:
        """Whether there is another content that nobody compared with what the link has."""
        there, here = self.copies.get(name, {}).get(key), self.copies[link[0]].get(key)
        if there is None or here is None:
            return False
        if self.is_removed(name, key) or self.async_until_us.get(link, NEVER) >= here.time_us:
            return True
        told_us = min(here.since_us(root), self.reached_us.get(link, NEVER))
        return bool(here.path) and (bool(there.path) or there.time_us <= told_us)

    def groups(self, path: tuple[int, ...]) -> tuple[str, ...]:
        """Those of the instances on a path."""
        members, names = self.topology.members, self.name_of
        return tuple(members[names[each]].group for each in path if each in names)

    def routed(self, name: str, destination: Destination, copy: Copy, downstream: int) -> bool:
        """Whether a message goes from an instance to a destination, by the rules as they are
        written."""
        entry = (name, destination.name, copy.topic, copy.path, copy.group, downstream)
        found = self._routed.get(entry)
        if found is None:
            found = self._routed[entry] = is_routed(
                destination,
                copy.topic,
                MESSAGE_TYPE,
                copy.path,
                self.groups(copy.path),
                copy.group,
                self.topology.members[name].group,
                downstream,
            )
        return found

    def sync_destinations(self, name: str, key: Key, copy: Copy, root: int) -> list[Destination]:
        """The destinations to which the copy is routed and whose links were sync ever since an
        answer is owed for this root. A link that was async meanwhile may have let one out that is
        on its way, unless nothing was answered yet for this root when it was upgraded. The answer
        counts, too, that was let out so before the disk with an earlier copy was lost: who has
        heard it does not wait for what the instance is sent again."""
        found = []
        former = [(copies[key], modes) for copies, modes in self.lost_copies[name] if key in copies]
        for destination in self.topology.members[name].destinations:
            link = (name, destination.name)
            if not self.routed(name, destination, copy, -1):
                continue
            if _let_out(copy, self._mode(link), key, root):
                continue
            if any(_let_out(old, modes[destination.name], key, root) for old, modes in former):
                continue
            found.append(destination)
        return found

    def followed(
        self, name: str, destination: Destination, key: Key, copy: Copy, root: int = NEVER
    ) -> tuple[str, ...]:
        """The servers of a destination whose own sync links count for this root: the one that the
        link is connected to.

        Not where the link came to that one, or to this incarnation of it, later than the message
        was owed an answer for the root, and did not find it waiting: then it was durable by what
        the one before had answered, or because it was not routed to that one, and it stays so, as
        after an upgrade. The more so where the link has still to come to it. `NEVER`: whatever
        root, so of one that may be another the word of the one before may always be it."""
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
        """The servers behind `server`, over links that were sync ever since, that lack what came to
        it from this sender first: its answer to that one waits for them, or for what such a link
        has found where it was compared last."""
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
        """Who waits for what this instance still owes: `own` when the waiters from here on lead to
        the client at `root` over links that are sync; else why nobody there waits."""
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


def _let_out(copy: Copy, mode: Mode, key: Key, root: int) -> bool:
    """Whether a link may have let out an answer for the copy that its destination did not give."""
    until_us, asked_again = mode
    return until_us >= copy.since_us(root) and (
        until_us == NOW_ASYNC or (root, *key) not in asked_again
    )


_TAKE: dict[type, Callable[[Logs, Any], None]] = {
    Journaled: Logs._journaled,
    HeldBefore: Logs._held_before,
    Noted: Logs._noted,
    ModeSet: Logs._mode_set,
    Reached: Logs._reached,
    Linked: Logs._linked,
    CaughtUp: Logs._caught_up,
    Started: Logs._started,
    Crashed: Logs._crashed,
    Removed: Logs._removed,
    Published: Logs._published,
    Moved: Logs._moved,
}


def acknowledged(history: History) -> list[Violation]:
    """Law 1 at the moment of each persisted ack, over the whole closure of sync links.

    Excused: disks that were lost (`Logs.lacks`); what retention has removed here when a logon names
    it durable, for whoever lost it then is not owed it any more; links that were async at some
    moment since their instance owes an answer for the message (one may have been let out then), or
    that came to another server since, where it did not wait any more (`Logs.followed`). Of the lost
    ones, an older copy that was put in place of a directory bears the incarnation that the message
    came through: nothing that did is routed there until a peer has found it out, however often a
    link has caught up with it (`Logs.went_back`). And an instance that is asked for a message only
    when retention has removed it there, as by an upgrade, does not know where it was routed: all
    its destinations have stored it, and are not asked again (docs/deviations.md).

    By the waiter rule an instance whose waiter is somebody else answers as soon as the message is
    stored; the waiter's own answer is what the root waits for. Two cases break that chain and are
    told as separate verdicts: the waiter's own link to the instance was downgraded, so that nobody
    waits any more; the waiter is an incarnation that is gone for good.
    """
    logs = Logs(history.topology)
    transient = _transient_keys(history)
    found: list[Violation] = []
    for operation in history.operations:
        logs.take(operation)
        if not isinstance(operation, Acked):
            continue
        for sequence in operation.sequences:
            key = (operation.publisher, sequence)
            if key not in transient:
                found += _closure(logs, operation, key)
            if len(found) >= VIOLATIONS_MAX:
                return found
    return found


def _transient_keys(history: History) -> set[Key]:
    """What was published on topics that nobody journals."""
    if not history.transient:
        return set()
    return {
        (operation.publisher, operation.sequence)
        for operation in history.operations
        if isinstance(operation, Published) and operation.topic in history.transient
    }


def _closure(logs: Logs, ack: Acked, key: Key) -> list[Violation]:
    root = ack.instance
    digest = logs.digests.get((ack.client, *key), 0)
    if not logs.has(root, key, digest):
        copy = logs.copies[root].get(key)
        if copy is not None and (
            logs.is_removed(root, key)
            or (ack.by == "logon" and copy.waiters.get(logs.incarnation_of[root]) == 0)
        ):
            # Another content, and nothing here tells that: see the top of this file.
            return []
        return [_unacknowledged(logs, ack, key, root, "", "", OWN)]
    found = []
    # Who is not awaited for it should have been told by the one before: that one's verdict holds.
    reached = [(root, OWN)]
    met = {(root, OWN)}
    while reached:
        name, law = reached.pop()
        copy = logs.copies[name][key]
        if name != root and logs.incarnation_of[root] in copy.waiters:
            law = logs.waiting(name, key, root)
        is_removed = logs.is_removed(name, key)
        of_root = logs.incarnation_of[root]
        if of_root in copy.forgotten:
            continue
        for destination in logs.sync_destinations(name, key, copy, of_root):
            servers = logs.topology.servers(destination)
            if (
                not is_removed
                and logs.lacks((name, destination.name), servers, key, digest, root=of_root)
                and not logs.went_back(servers, key, copy)
            ):
                of = (servers[0], name, destination.name, law)
                found.append(_unacknowledged(logs, ack, key, *of))
            for server in logs.followed(name, destination, key, copy, of_root):
                if logs.incarnation_of.get(server) in copy.path:
                    # It came from there: it is not routed back.
                    continue
                if (server, law) not in met and logs.has(server, key, digest):
                    met.add((server, law))
                    reached.append((server, law))
    return found


def _unacknowledged(
    logs: Logs, ack: Acked, key: Key, lacks: str, through: str, destination: str, law: str
) -> Violation:
    waiters = []
    name = through
    while name and name not in waiters and key in logs.copies.get(name, {}):
        waiters.append(name)
        sender = logs.copies[name][key].waiters.get(logs.incarnation_of[ack.instance], 0)
        name = logs.name_of.get(sender, "") if sender else ""
    other = " with this content" if logs.has(lacks, key) else ""
    text = (
        f"{at(ack.time_us)} {ack.instance} acked {ack.client} {named(key)} (by {ack.by}), "
        f"but {lacks} has it not{other}"
        + (
            f": it is destination {destination} of {through}, sync, whose waiters are "
            + " <- ".join(waiters)
            if through
            else ""
        )
    )
    return Violation(law, text, separate=law != OWN)


def nothing_lost(history: History) -> list[Violation]:
    """What was acked is in some log at the end, unless every disk that had it then was lost. What
    retention had removed from a disk before its instance was moved, no reunion brings back."""
    topology = history.topology
    logs = Logs(topology)
    transient = _transient_keys(history)
    holders: dict[tuple[Key, int], dict[str, tuple[int, int]]] = {}
    losses: Counter[int] = Counter()
    """Of its disk, by incarnation: an older copy that is put in place of it bears the same."""
    away: set[int] = set()
    for operation in history.operations:
        logs.take(operation)
        if isinstance(operation, Crashed) and operation.lost:
            losses[operation.incarnation] += 1
        elif isinstance(operation, Moved):
            away.add(operation.incarnation)
        elif isinstance(operation, Reunited):
            away.discard(operation.incarnation)
        elif isinstance(operation, Acked):
            for sequence in operation.sequences:
                key = (operation.publisher, sequence)
                digest = logs.digests.get((operation.client, *key), 0)
                if key not in transient and (key, digest) not in holders:
                    holders[key, digest] = {
                        name: (incarnation, losses[incarnation])
                        for name, incarnation in logs.incarnation_of.items()
                        if logs.has(name, key, digest)
                    }
    formers = {name for names in logs.formers.values() for name in names}

    ever = {key for final in history.final.values() for key in final.ever}

    def is_held(key: Key, digest: int) -> bool:
        if key in ever and (
            not digest or any(logs.has(name, key, digest) for name in history.final)
        ):
            return True
        return any(logs.is_removed(name, key) for name in formers)

    return [
        Violation(
            "nothing lost", f"{named(key)} was acked, {sorted(had)} had it, none has it in the end"
        )
        for (key, digest), had in holders.items()
        if any(losses[each] == then and each not in away for each, then in had.values())
        and not is_held(key, digest)
    ][:VIOLATIONS_MAX]


def once(history: History) -> list[Violation]:
    """Law 2, and no subscriber gets a message twice."""
    journaled: set[tuple[int, int, int]] = set()
    delivered: set[tuple[str, int, int]] = set()
    found = []
    for operation in history.operations:
        if isinstance(operation, Journaled):
            for sequence in operation.sequences:
                entry = (operation.incarnation, operation.publisher, sequence)
                if entry in journaled:
                    found.append(
                        Violation(
                            "once",
                            f"{at(operation.time_us)} {operation.instance} journaled "
                            f"{named(entry[1:])} again",
                        )
                    )
                journaled.add(entry)
        elif isinstance(operation, Crashed) and operation.lost:
            # What an old copy holds that is put back is written again.
            journaled = {entry for entry in journaled if entry[0] != operation.incarnation}
        elif isinstance(operation, Delivered):
            for sequence in operation.sequences:
                got = (operation.subscriber, operation.publisher, sequence)
                if got in delivered:
                    found.append(
                        Violation(
                            "once",
                            f"{at(operation.time_us)} {operation.subscriber} was given "
                            f"{named(got[1:])} again, by {operation.instance}",
                        )
                    )
                delivered.add(got)
    return found[:VIOLATIONS_MAX]


def order(history: History) -> list[Violation]:
    """Law 3. Late is what comes behind a higher sequence of its publisher on its topic.

    Where no paths split nothing comes late, but what a retired disk brings that is reunited, and
    what two things bring about together. One: somebody begins anew (a disk was lost, an instance
    moved) or goes on to another server of a list. The other: somebody has removed segments, so that
    this link brings less than another one does; or a link was async, so that who begins anew may
    admit clients by a peer that has not got what they published before. Alone it is enough that an
    older copy was put in place of a data directory: until a peer finds that out, its instance
    admits clients, and what it lost comes behind what they publish.

    An instance that has removed segments may flag more: it cannot know any more what was in them.
    So may one that began as the copy of such a one. Two clients of one name have no order between
    them, and each instance has some messages of each."""
    highest: dict[tuple[int, int, str], int] = {}
    clients: defaultdict[int, set[str]] = defaultdict(set)
    lists = any(
        len(history.topology.servers(destination)) > 1
        for member in history.topology.members.values()
        for destination in member.destinations
    )
    began_anew = any_removed = reunited = put_back = False
    any_async = not all(
        destination.sync
        for member in history.topology.members.values()
        for destination in member.destinations
    )
    removed: set[int] = set()
    started: set[int] = set()
    lost: set[int] = set()
    found = []
    for operation in history.operations:
        if isinstance(operation, Published):
            clients[operation.publisher].add(operation.client)
        elif isinstance(operation, Removed):
            removed.add(operation.incarnation)
            any_removed = True
        elif isinstance(operation, ModeSet) and not operation.sync:
            any_async = True
        elif isinstance(operation, Started):
            started.add(operation.incarnation)
            put_back = put_back or operation.incarnation in lost
        elif isinstance(operation, Moved):
            began_anew = True
        elif isinstance(operation, Crashed) and operation.lost:
            began_anew = True
            lost.add(operation.incarnation)
            started.discard(operation.incarnation)
            highest = {
                key: value for key, value in highest.items() if key[0] != operation.incarnation
            }
        elif isinstance(operation, Took) and operation.reunites:
            reunited = True
        elif isinstance(operation, Journaled) and operation.incarnation not in started:
            removed.add(operation.incarnation)
        if not isinstance(operation, Journaled):
            continue
        entry = (operation.incarnation, operation.publisher, operation.topic)
        before = highest.get(entry, 0)
        first, last = operation.sequences[0], operation.sequences[-1]
        text = (
            f"{at(operation.time_us)} {operation.instance} journaled sequences {first} to {last} "
            f"of publisher {operation.publisher} on {operation.topic}"
        )
        if list(operation.sequences) != sorted(operation.sequences):
            found.append(Violation("order", f"{text}, which are not ascending"))
        behind = first < before
        if behind != operation.late and (behind or operation.incarnation not in removed):
            word = "not flagged late" if behind else "flagged late"
            found.append(Violation("order", f"{text} {word}, {before} came before"))
        split = reunited or (any_removed and lists) or (began_anew and (any_removed or any_async))
        split = split or put_back or not history.topology.uniform
        if operation.late and not split and len(clients[operation.publisher]) < 2:
            found.append(Violation("order", f"{text} late though no paths split"))
        highest[entry] = max(before, last)
    return found[:VIOLATIONS_MAX]


def removal(history: History) -> list[Violation]:
    """Law 4: a removed record is on disk at the server of each destination it is routed to: the
    connected one, or the last one that was reached, for its acks stay with a link that is cut, and
    what it was seen to hold with one that never began. A disk that
    it has lost excuses as long as the link has not caught up with it since. Where another server
    may be the next one, it is persisted there: at the sync destinations of that server, too, if
    that one's answer waited for them."""
    logs = Logs(history.topology)
    found = []
    for operation in history.operations:
        before = logs.removed_to[operation.instance] if isinstance(operation, Removed) else 0
        logs.take(operation)
        if not isinstance(operation, Removed):
            continue
        name = operation.instance
        servers = dict(operation.servers)
        for key, copy in logs.copies[name].items():
            if not before < copy.txid <= operation.up_to_txid:
                continue
            for destination in history.topology.members[name].destinations:
                if not logs.routed(name, destination, copy, -1):
                    continue
                link = (name, destination.name)
                several = history.topology.servers(destination)
                reached = logs.reached.get(link)
                server = servers[destination.name] or logs.server.get(link, several[0])
                server = reached or server
                lacking = [server] if logs.lacks(link, (server,), key, reached=reached) else []
                if len(several) > 1 and not lacking:
                    lacking = logs.lacking_behind(server, key, operation.incarnation)
                for lacks in lacking:
                    at_server = f" (at {server} now)" if lacks != server else ""
                    found.append(
                        Violation(
                            "removal",
                            f"{at(operation.time_us)} {name} removed {named(key)}, routed to its "
                            f"destination {destination.name}{at_server}: {lacks} has it not",
                        )
                    )
    return found[:VIOLATIONS_MAX]


def loops(history: History) -> list[Violation]:
    """Law 5. What an incarnation has in its path is not even sent there: whoever sends it waits for
    an answer that stands for nothing."""
    found = []
    for operation in history.operations:
        if isinstance(operation, Journaled):
            path = operation.path
            if operation.incarnation in path or len(set(path)) < len(path):
                found.append(
                    Violation(
                        "loops",
                        f"{at(operation.time_us)} {operation.instance} journaled "
                        f"{named((operation.publisher, operation.sequences[0]))} that came round "
                        f"in a circle: its path is {path}",
                    )
                )
        elif isinstance(operation, Returned):
            found.append(
                Violation(
                    "loops",
                    f"{at(operation.time_us)} {operation.instance} was sent "
                    f"{named((operation.publisher, operation.sequences[0]))} by "
                    f"{operation.sender}, though it came from it: its path is {operation.path}",
                )
            )
    return found[:VIOLATIONS_MAX]


def liveness(history: History) -> list[Violation]:
    """Law 7, after healing: every ack is given, and what a log holds is at every destination to
    which it is routed. Whoever got it there passes it on by the same rule: that is the fixpoint.
    """
    found = []
    for client, left in history.unacked.items():
        if left:
            where = history.waiting.get(client, "")
            text = f"{client} waits for {left} acks" + (f": {where}" if where else "")
            found.append(Violation("liveness", text))
    logs = Logs(history.topology)
    for operation in history.operations:
        logs.take(operation)
    for name, final in history.final.items():
        if final.owed or final.pending:
            which = "; ".join(map(_owing, final.owing))
            text = f"{name} is owed {final.owed} messages, pending are {final.pending}"
            found.append(Violation("liveness", text + (f": {which}" if which else "")))
        for destination in history.topology.members[name].destinations:
            to = f"destination {destination.name} of {name}"
            server = final.servers.get(destination.name, "")
            if not server:
                wanted = " or ".join(history.topology.servers(destination))
                found.append(Violation("liveness", f"{to} is not connected to {wanted}"))
                continue
            if server not in history.final:
                text = f"{to} is connected to {server}, which is over"
                found.append(Violation("liveness", text))
                continue
            there = history.final[server]
            for key in sorted(final.present - there.ever):
                copy = logs.copies[name][key]
                # It never had it: then its own path on it is none of this journal, but of a later
                # state of what it was given back an old copy of.
                if logs.routed(name, destination, copy, -1):
                    way = " <- ".join(
                        logs.name_of.get(each, str(each)) for each in reversed(copy.path)
                    )
                    came = f"came from {way}" if way else "was published there"
                    text = f"{server} never got {named(key)} on {copy.topic} over {to}, where it"
                    found.append(Violation("liveness", f"{text} {came} {at(copy.time_us)}"))
    return found[:VIOLATIONS_MAX]


def _owing(owing: Owing) -> str:
    by = f"by destination {owing.destination}" if owing.destination else "pending"
    return (
        f"{by} {owing.messages} of publisher {owing.publisher}, sequences {owing.first} to "
        f"{owing.last}"
    )


def unavailable(history: History) -> list[Violation]:
    """What an instance lacks in the end, and an upstream had whose link carries everything, it has
    recorded. It records nothing that it has, and takes back what comes after all."""
    logs = Logs(history.topology)
    found = []
    lacked: defaultdict[int, set[Key]] = defaultdict(set)
    for operation in history.operations:
        logs.take(operation)
        if isinstance(operation, Crashed) and operation.lost:
            lacked.pop(operation.incarnation, None)
        elif isinstance(operation, Lacked):
            for sequence in operation.sequences:
                key = (operation.publisher, sequence)
                lacked[operation.incarnation].add(key)
                copy = logs.copies[operation.instance].get(key)
                if copy is not None:
                    text = f"{at(operation.time_us)} {operation.instance} says that nobody has "
                    text += f"{named(key)}, but it has it itself"
                    found.append(Violation("unavailable", text))
    for name, final in history.final.items():
        if final.unavailable != lacked[final.incarnation] - final.ever:
            wrong = final.unavailable ^ (lacked[final.incarnation] - final.ever)
            text = f"{name} is wrong of what it says that nobody has: {listed(wrong)}"
            found.append(Violation("unavailable", text))
        for destination in history.topology.members[name].destinations:
            server = final.servers.get(destination.name, "")
            if server not in history.final or not _carries_everything(history, destination):
                continue
            there = history.final[server]
            gone = (final.ever - final.present) | final.unavailable
            missing = gone - there.ever - there.unavailable
            if missing:
                text = f"{server} does not say that it lacks {listed(missing)}, which {name} had"
                text += f" and would have sent over destination {destination.name}"
                found.append(Violation("unavailable", text))
    return found[:VIOLATIONS_MAX]


def settled(history: History) -> list[Violation]:
    """What was durable when a recovery point was written does not wait again after a restart."""
    return [
        Violation(
            "settled",
            f"at {operation.time_us / 1000:.3f} ms {operation.instance} came up and waits again "
            f"for {len(operation.again)} messages that were durable: {operation.again[:5]}",
        )
        for operation in history.operations
        if isinstance(operation, Recovered) and operation.again
    ][:VIOLATIONS_MAX]


def _carries_everything(history: History, destination: Destination) -> bool:
    return carries_everything(destination, history.journaled)


def sending(history: History) -> list[Violation]:
    """On a connection a client sends in ascending order, each once, and leaves nothing out that is
    not settled: what it sent on an earlier one counts for nothing. What it sends is on its disk."""
    # Of each client its own: two may publish parts of one publisher's sequences. And of each
    # publisher: what an instance numbers for a client is another one's.
    unsettled: defaultdict[tuple[str, int], set[int]] = defaultdict(set)
    sent: defaultdict[int, set[int]] = defaultdict(set)
    upto: dict[int, int] = {}
    ever: set[tuple[str, int, int]] = set()
    found = []
    for operation in history.operations:
        if isinstance(operation, Published):
            unsettled[operation.client, operation.publisher].add(operation.sequence)
        elif isinstance(operation, Heard):
            unsettled[operation.client, operation.publisher].difference_update(operation.sequences)
        elif isinstance(operation, ClientCrashed):
            unsettled[operation.client, operation.publisher].difference_update(operation.lost)
            for sequence in operation.lost:
                if (operation.client, operation.publisher, sequence) in ever:
                    text = f"{operation.client} had sent {sequence}, and lost it in a crash"
                    found.append(Violation("sending", text))
        elif isinstance(operation, Sent):
            connection = operation.connection
            waiting = unsettled[operation.client, operation.publisher]
            for sequence in operation.sequences:
                text = f"{operation.client} sent {sequence} on connection {connection} "
                before = upto.get(connection, 0)
                if sequence <= before:
                    found.append(Violation("sending", f"{text}behind {before}"))
                left = [s for s in waiting - sent[connection] if s < sequence]
                if left:
                    found.append(Violation("sending", f"{text}and not {sorted(left)[:5]}"))
                upto[connection] = max(before, sequence)
                sent[connection].add(sequence)
                ever.add((operation.client, operation.publisher, sequence))
    return found[:VIOLATIONS_MAX]


@dataclass(slots=True)
class _Told:
    """What binds a client: whom it used last, and by instance whom it called safe last."""

    used: str = ""
    words: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def copy(self) -> _Told:
        return _Told(self.used, dict(self.words))


def failover(history: History) -> list[Violation]:
    """A client goes on at the instance that it used last, or at one that every other instance that
    ever spoke to it calls safe by its last word. A crash of the client takes the words that were
    not on its disk; with them goes what it was acked since, which it has still."""
    told: defaultdict[str, _Told] = defaultdict(_Told)
    kept: defaultdict[str, _Told] = defaultdict(_Told)
    found = []
    for operation in history.operations:
        if isinstance(operation, HeardSafety):
            told[operation.client].words[operation.instance] = operation.safe
        elif isinstance(operation, Kept):
            kept[operation.client] = told[operation.client].copy()
        elif isinstance(operation, ClientCrashed):
            told[operation.client] = kept[operation.client].copy()
        elif isinstance(operation, Used):
            mine = told[operation.client]
            if operation.instance != mine.used:
                found += [
                    Violation(
                        "failover",
                        f"at {operation.time_us / 1000:.3f} ms {operation.client} went on at "
                        f"{operation.instance}, which {speaker} does not call safe: only {safe}",
                    )
                    for speaker, safe in mine.words.items()
                    if speaker != operation.instance and operation.instance not in safe
                ]
            mine.used = operation.instance
    return found[:VIOLATIONS_MAX]


def readiness(history: History) -> list[Violation]:
    """An instance that had to catch up (its disk was lost, or it was moved) admits clients only
    when it has everything that one peer of its group held when it started, and holds still, and
    that is routed to it from there. What its own retention had removed, in a directory that was put
    back too, it has had."""
    logs = Logs(history.topology)
    had: defaultdict[str, set[Key]] = defaultdict(set)
    removed_to: defaultdict[str, int] = defaultdict(int)
    held: dict[str, dict[str, set[Key]]] = {}
    members = history.topology.members
    found = []
    for operation in history.operations:
        if isinstance(operation, Removed):
            copies, upto_txid = logs.copies[operation.instance], operation.up_to_txid
            removed_to[operation.instance] = upto_txid
            had[operation.instance] |= {key for key, c in copies.items() if c.txid <= upto_txid}
        elif isinstance(operation, Moved) or (isinstance(operation, Crashed) and operation.lost):
            removed_to[operation.instance] = 0
            for of in held.values():
                of.pop(operation.instance, None)
        logs.take(operation)
        if isinstance(operation, Started) and not operation.ready:
            name = operation.instance
            group = members[name].group
            held[name] = {
                peer: set(logs.copies[peer])
                for peer, member in members.items()
                if peer != name and member.group == group and name != peer.partition("#")[0]
            }
        elif isinstance(operation, Ready) and not operation.by_hand:
            name = operation.instance
            lacks = {}
            for peer, keys in held.pop(name, {}).items():
                copies, before_txid = logs.copies[peer], removed_to[peer]
                leading_there = [
                    destination
                    for destination in members[peer].destinations
                    if name in history.topology.servers(destination)
                ]
                if leading_there:
                    lacks[peer] = sorted(
                        key
                        for key in keys - logs.copies[name].keys() - had[name]
                        if key in copies
                        and copies[key].txid > before_txid
                        and any(
                            logs.routed(peer, destination, copies[key], operation.incarnation)
                            for destination in leading_there
                        )
                    )
            if lacks and all(lacks.values()):
                peer, missing = min(lacks.items(), key=lambda item: len(item[1]))
                text = f"{name} admits clients, and lacks {len(missing)} of {peer} "
                text += f"{at(operation.time_us)}: {listed(missing)}"
                found.append(Violation("readiness", text))
    return found[:VIOLATIONS_MAX]


def safety(history: History) -> list[Violation]:
    """A peer that an instance calls safe has everything that this instance ever acked to that
    client and still holds, and what it acks to it while it does so: the notice of a downgrade comes
    before the acks that the downgrade releases. What retention has removed is to be missed by
    nobody. A disk that the peer has lost excuses as long as the instance's link has not caught up
    with it since; so does another content of the same identity, of which an alarm was raised: one
    client's bad name must not keep all others from failing over. What the instance itself lost with
    its disk it does not hold still when it journals it anew under the same incarnation, an older
    copy having been put in place: that it has not acked."""
    logs = Logs(history.topology)
    lost: set[str] = set()
    safe: dict[int, tuple[str, ...]] = {}
    acked: defaultdict[tuple[int, str], set[Key]] = defaultdict(set)
    transient = _transient_keys(history)
    found: list[Violation] = []

    def lacks(ack: ToldSafety | Acked, servers: tuple[str, ...], keys: set[Key]) -> None:
        name = ack.instance
        for server in servers:
            # Whatever its topic, and whoever brought it there.
            missing = {key for key in keys if logs.is_without(name, server, key)}
            if missing:
                text = f"{at(ack.time_us)} {name} acked {ack.client} {listed(missing)}, and calls "
                text += f"{server} safe, which has not got them"
                found.append(Violation("safety", text))

    def still_there(name: str, keys: set[Key]) -> set[Key]:
        copies, before_txid = logs.copies[name], logs.removed_to[name]
        return {key for key in keys if key in copies and copies[key].txid > before_txid}

    for operation in history.operations:
        logs.take(operation)
        if isinstance(operation, Crashed) and operation.lost:
            lost.add(operation.instance)
        elif isinstance(operation, Started) and operation.instance in lost:
            lost.discard(operation.instance)
            for (incarnation, _), before in acked.items():
                if incarnation == operation.incarnation:
                    before.intersection_update(logs.copies[operation.instance])
        elif isinstance(operation, ToldSafety | Acked):
            name, client = operation.instance, operation.client
            before = acked[logs.incarnation_of[name], client]
            if isinstance(operation, ToldSafety):
                safe[operation.session] = operation.safe
                if operation.safe:
                    lacks(operation, operation.safe, still_there(name, before))
            else:
                keys = {(operation.publisher, sequence) for sequence in operation.sequences}
                keys -= transient
                before |= keys
                # A logon may name durable what is removed everywhere.
                lacks(operation, safe.get(operation.session, ()), still_there(name, keys))
    return found[:VIOLATIONS_MAX]


def transient(history: History) -> list[Violation]:
    """A message on a topic that is in no transaction log is in no journal."""
    return [
        Violation(
            "transient",
            f"{at(operation.time_us)} {operation.instance} journaled "
            f"{named((operation.publisher, operation.sequences[0]))} on {operation.topic}, which "
            "is in no transaction log",
        )
        for operation in history.operations
        if isinstance(operation, Journaled) and operation.topic in history.transient
    ][:VIOLATIONS_MAX]


def subscribers(history: History) -> list[Violation]:
    """In the end a subscriber has every matching message of the log that it ended at."""
    got: defaultdict[str, set[Key]] = defaultdict(set)
    topic_of: dict[Key, str] = {}
    for operation in history.operations:
        if isinstance(operation, Delivered):
            for sequence in operation.sequences:
                got[operation.subscriber].add((operation.publisher, sequence))
        elif isinstance(operation, Published):
            topic_of[operation.publisher, operation.sequence] = operation.topic
    found = []
    for subscriber, (instance, topic) in history.subscribed.items():
        if not instance:
            found.append(Violation("subscribers", f"{subscriber} is connected to nobody"))
            continue
        present = history.final[instance].present
        wanted = {key for key in present if topic in (".*", topic_of[key])}
        missing = wanted - got[subscriber]
        if missing:
            text = f"{subscriber} at {instance} never got {listed(missing)}"
            found.append(Violation("subscribers", text))
        foreign = [key for key in got[subscriber] if topic_of.get(key) is None]
        if foreign:
            text = f"{subscriber} got {listed(foreign)} from nowhere"
            found.append(Violation("subscribers", text))
    return found[:VIOLATIONS_MAX]


def fully_durable(history: History) -> list[Violation]:
    """What an instance sends to a fully durable subscriber is at that moment in its journal and at
    every sync destination that it is routed to from there; what its own client published, over the
    whole closure of sync links, as an ack has it (see `acknowledged`, also for who is excused).
    What a destination refused, because it holds another content, is durable nowhere and holds up
    nobody."""
    logs = Logs(history.topology)
    refused: set[Key] = set()
    found: list[Violation] = []
    for operation in history.operations:
        logs.take(operation)
        if isinstance(operation, Failed):
            refused.add((operation.publisher, operation.sequence))
        if not isinstance(operation, Offered):
            continue
        name = operation.instance
        for sequence in operation.sequences:
            key = (operation.publisher, sequence)
            copy = logs.copies[name].get(key)
            text = f"{at(operation.time_us)} {name} sent {named(key)} to {operation.subscriber}, "
            if copy is None:
                found.append(Violation("fully durable", text + "but has it not on disk itself"))
                continue
            if key in refused or _is_contested(logs, key, copy.digest):
                continue
            own = logs.incarnation_of[name]
            for destination in logs.sync_destinations(name, key, copy, own):
                link, servers = (name, destination.name), history.topology.servers(destination)
                if not logs.is_removed(name, key) and logs.lacks(link, servers, key):
                    lacks = f"{servers[0]}, sync destination {destination.name},"
                    found.append(Violation("fully durable", text + f"but {lacks} has it not"))
            if not copy.path and own in copy.waiters:
                by = "a delivery"
                ack = Acked(operation.time_us, name, operation.subscriber, key[0], 0, (), by)
                found += [
                    Violation("fully durable", text + broken.text)
                    for broken in _closure(logs, ack, key)
                    if not broken.separate
                ]
            if len(found) >= VIOLATIONS_MAX:
                return found
    return found


def _is_contested(logs: Logs, key: Key, digest: int) -> bool:
    """Whether somebody holds another content of a message."""
    if not digest:
        return False
    held = (copies.get(key) for copies in logs.copies.values())
    return any(copy is not None and copy.digest != digest for copy in held)


def retired(history: History) -> list[Violation]:
    """Who knows (on its disk) that an instance was moved takes nothing from what it was before, and
    sends it nothing, for good; but for what a command reunites, and only that. What was moved
    serves no client once it has heard of it, and all have heard of it in the end."""
    generation_of: dict[int, tuple[str, int]] = {}
    generations: Counter[str] = Counter()
    knows: dict[tuple[str, str], int] = {}
    over: set[str] = set()
    found = []
    for operation in history.operations:
        if isinstance(operation, Started):
            home = operation.instance.partition("#")[0]
            generation_of.setdefault(operation.incarnation, (home, generations[home]))
        elif isinstance(operation, Moved):
            home = operation.instance
            # A disk that was lost and not used since: nothing has started there.
            generation_of.setdefault(operation.incarnation, (home, generations[home]))
            generations[home] += 1
            for key in [key for key in knows if key[0] == operation.instance]:
                knows[operation.former, key[1]] = knows.pop(key)
        elif isinstance(operation, Knows):
            knows[operation.instance, operation.peer] = operation.generation
        elif isinstance(operation, Crashed) and operation.lost:
            for key in [key for key in knows if key[0] == operation.instance]:
                del knows[key]
        elif isinstance(operation, Took):
            name, generation = generation_of[operation.incarnation]
            is_retired = generation < knows.get((operation.instance, name), 0)
            if is_retired and not operation.reunites:
                text = f"{at(operation.time_us)} {operation.instance} let in incarnation "
                text += f"{operation.incarnation} of retired {name}"
                found.append(Violation("retired", text))
        elif isinstance(operation, Retired):
            over.add(operation.instance)
        elif isinstance(operation, Acked | ToldSafety) and operation.instance in over:
            text = f"{at(operation.time_us)} {operation.instance} served {operation.client}"
            found.append(Violation("retired", f"{text}, and knows that it is over"))
    found += [Violation("retired", f"{name} lives still") for name in history.unretired]
    return found[:VIOLATIONS_MAX]


LAWS: tuple[Callable[[History], list[Violation]], ...] = (
    acknowledged,
    nothing_lost,
    once,
    order,
    removal,
    loops,
    liveness,
    unavailable,
    settled,
    store,
    sending,
    safety,
    failover,
    readiness,
    transient,
    subscribers,
    retired,
    fully_durable,
)


def check_all(history: History) -> list[Violation]:
    """Everything that is wrong with a history."""
    return [violation for law in LAWS for violation in law(history)]


__all__ = ["LAWS", "Used", "Violation", "check_all"]
