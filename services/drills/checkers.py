"""The laws (design.md 1) as pure functions over one history. They raise nothing: they find.

    acknowledged     1  an acked message is on disk here and along the sync links
    nothing_lost     1  what was acked is in some log at the end, unless every disk that had it died
    once             2  a journal holds a message once, a subscriber gets it once
    order            3  publisher order, unless flagged late, and late only where paths split
    removal          4  what is removed is where it was routed to
    loops            5  nothing enters an incarnation twice
    liveness         7  in the end all acks are given and all logs hold what is routed to them
    unavailable      -  what is missing and removed upstream is recorded, nothing else is
    settled          -  what was durable does not wait again after a restart
    store            -  a publish store forgets only what was acked or refused
    sending          -  on a connection a client sends all that is not settled, in order, each once
    safety           -  no peer that a client was told is safe lacks what the client was acked
    failover         -  a client uses only whom all that ever spoke to it call safe
    readiness        -  an instance that lost its disk admits clients when it has what one peer of
                        its group had
    subscribers      -  a subscriber has everything of the log that it ended at
    retired          -  nobody who knows that an instance was moved deals with what it was before,
                        which ends when it hears of that
    fully_durable    -  a fully durable subscriber is sent nothing that is not durable then

A publish without an ack is unknown: it may be anywhere or nowhere.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from raylay.services.drills.history import (
    Acked,
    ClientCrashed,
    Crashed,
    Delivered,
    Failed,
    Heard,
    HeardSafety,
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
    Published,
    Ready,
    Recovered,
    Removed,
    Retired,
    Reunited,
    Sent,
    Started,
    ToldSafety,
    Took,
    Topology,
    Used,
)
from raylay.services.messages.records import Flag, Run
from raylay.services.replication.acknowledgment import DestinationLedger
from raylay.services.replication.routing import Destination, TopicRule
from raylay.services.replication.topic_sets import carries_all

Key = tuple[int, int]
"""(publisher, sequence)."""
OWN = "acknowledged"
DEAD = "acknowledged, the waiter has lost its disk"
DOWNGRADED = "acknowledged, the waiter's own link is async"
NEVER = -1
NOW_ASYNC = 1 << 62
VIOLATIONS_MAX = 20


@dataclass(frozen=True, slots=True)
class Violation:
    """A law that a history breaks."""

    law: str
    text: str
    separate: bool = False
    """Known and reported, and no failure: see `acknowledged`."""


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
    crossed: bool
    """By the groups of those it came through, not by what its journal says of it."""

    def run(self) -> Run:
        """What a router asks of it."""
        flags = Flag.CROSSED if self.crossed else 0
        return Run(
            0, 0, 0, 0, b"", self.topic.encode(), b"json", self.path, self.group, flags=flags
        )


class Logs:
    """The journals at one moment, as a history tells them."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.copies: dict[str, dict[Key, Copy]] = {name: {} for name in topology.members}
        self.ever: dict[str, set[Key]] = {name: set() for name in topology.members}
        self.name_of: dict[int, str] = {}
        self.incarnation_of: dict[str, int] = {}
        self.asked_again: dict[tuple[str, str], set[tuple[int, int, int]]] = {}
        """By link: (root, publisher, sequence)."""
        self.server: dict[tuple[str, str], str] = {}
        self.served_from_us: dict[tuple[str, str], int] = {}
        self.async_until_us: dict[tuple[str, str], int] = {}
        self.formers: defaultdict[str, list[str]] = defaultdict(list)
        self.moved: set[int] = set()
        """Incarnations of instances that live elsewhere now, under another one."""
        for member in topology.members.values():
            for destination in member.destinations:
                self.async_until_us[member.name, destination.name] = (
                    NEVER if destination.sync else NOW_ASYNC
                )

    def take(self, operation: object) -> None:
        """Brings the journals up to this operation."""
        if isinstance(operation, Journaled):
            copies = self.copies[operation.instance]
            ever = self.ever[operation.instance]
            sender = operation.path[-1] if operation.path else 0
            root = operation.path[0] if operation.path else operation.incarnation
            crossed = self.crossed(operation.instance, operation.path)
            for i, sequence in enumerate(operation.sequences):
                key = (operation.publisher, sequence)
                ever.add(key)
                copies[key] = Copy(
                    operation.time_us,
                    operation.txid + i,
                    operation.topic,
                    operation.path,
                    operation.group,
                    {root: sender} if operation.awaited else {},
                    crossed,
                )
        elif isinstance(operation, Noted):
            copies = self.copies[operation.instance]
            for sequence in operation.sequences:
                copy = copies.get((operation.publisher, sequence))
                if copy is not None:
                    copy.waiters[operation.root] = operation.sender
        elif isinstance(operation, ModeSet):
            # After an upgrade the link was async until now, but not for what it asks again.
            link = (operation.instance, operation.destination)
            self.async_until_us[link] = operation.time_us if operation.sync else NOW_ASYNC
            self.asked_again[link] = set(operation.pending)
        elif isinstance(operation, Linked):
            link = operation.instance, operation.destination
            if self.server.get(link) != operation.server:
                self.server[link] = operation.server
                self.served_from_us[link] = operation.time_us
        elif isinstance(operation, Started):
            self.name_of[operation.incarnation] = operation.instance
            self.incarnation_of[operation.instance] = operation.incarnation
        elif isinstance(operation, Crashed) and operation.lost:
            self.copies[operation.instance] = {}
        elif isinstance(operation, Moved):
            self._move(operation.instance, operation.former, operation.incarnation)

    def _move(self, name: str, former: str, incarnation: int) -> None:
        """To the others the instance has lost its disk; what it was goes on by its former name."""
        self.copies[former], self.copies[name] = self.copies[name], {}
        self.ever[former] = set(self.ever[name])
        self.formers[name].append(former)
        for link, server in self.server.items():
            if server == name:
                self.server[link] = former
        self.name_of[incarnation] = former
        self.incarnation_of[former] = incarnation
        self.moved.add(incarnation)
        for destination in self.topology.members[name].destinations:
            old, new = (name, destination.name), (former, destination.name)
            for kept in (self.asked_again, self.server, self.served_from_us, self.async_until_us):
                if old in kept:
                    kept[new] = kept[old]  # type: ignore[assignment]

    def had(self, name: str, key: Key) -> bool:
        """Whether an instance ever had a message, here or where it lived before."""
        return key in self.ever[name] or any(key in self.ever[was] for was in self.formers[name])

    def crossed(self, instance: str, path: tuple[int, ...]) -> bool:
        """Whether a way to an instance led from one group into another."""
        members = self.topology.members
        way = [self.name_of[incarnation] for incarnation in path if incarnation in self.name_of]
        return len({members[name].group for name in (*way, instance)}) > 1

    def sync_destinations(self, name: str, key: Key, copy: Copy, root: int) -> list[Destination]:
        """The destinations to which the copy is routed and whose links were sync ever since it is
        there. A link that was async meanwhile may have let an answer out that is on its way,
        unless nothing was answered yet for this root when it was upgraded."""
        found = []
        for destination in self.topology.members[name].destinations:
            link = (name, destination.name)
            until_us = self.async_until_us[link]
            if until_us >= copy.time_us and (
                until_us == NOW_ASYNC or (root, *key) not in self.asked_again.get(link, ())
            ):
                continue
            if self.topology.router(name, destination).routed(copy.run(), -1):
                found.append(destination)
        return found

    def followed(self, name: str, destination: Destination, copy: Copy) -> tuple[str, ...]:
        """The servers of a destination whose own sync links count. Of several the one that the
        link is connected to, unless it came there later than the copy: the answer may then have
        been another one's. So of one that was moved."""
        server, *others = self.topology.servers(destination)
        if others or self.formers.get(server):
            link = (name, destination.name)
            if self.served_from_us.get(link, NOW_ASYNC) >= copy.time_us:
                return ()
            server = self.server[link]
        # What came through it is not routed to it.
        return () if self.incarnation_of.get(server) in copy.path else (server,)

    def lacking_behind(self, server: str, key: Key, sender: int) -> list[str]:
        """The servers behind `server`, over links that were sync ever since, that never had what
        came to it from this sender first: its answer to that one waits for them."""
        copy = self.copies[server].get(key)
        if copy is None or copy.path[-1:] != (sender,):
            return []
        return [
            behind
            for destination in self.sync_destinations(server, key, copy, NEVER)
            for behind in self.followed(server, destination, copy)
            if not self.had(behind, key)
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
                name in self.followed(waiter, destination, held)
                for destination in self.sync_destinations(waiter, key, held, chain)
            ):
                return DOWNGRADED
            name = waiter
        return OWN


def acknowledged(history: History) -> list[Violation]:
    """Law 1 at the moment of each persisted ack, over the whole closure of sync links.

    Excused: instances that had the message and lost their disk; links that were async at some
    moment since the message came to their instance (an answer may have been let out then).

    By the waiter rule an instance whose waiter is somebody else answers as soon as the message is
    stored; the waiter's own answer is what the root waits for. Two cases break that chain and are
    told as separate verdicts: the waiter's own link to the instance was downgraded, so that nobody
    waits any more; the waiter is an incarnation that is gone for good.
    """
    logs = Logs(history.topology)
    found: list[Violation] = []
    for operation in history.operations:
        logs.take(operation)
        if not isinstance(operation, Acked):
            continue
        for sequence in operation.sequences:
            found += _closure(logs, operation, (operation.publisher, sequence))
            if len(found) >= VIOLATIONS_MAX:
                return found
    return found


def _closure(logs: Logs, ack: Acked, key: Key) -> list[Violation]:
    root = ack.instance
    if key not in logs.copies[root]:
        return [_unacknowledged(logs, ack, key, root, "", OWN)]
    found = []
    # Who is not awaited for it should have been told by the one before: that one's verdict holds.
    reached = [(root, OWN)]
    met = {(root, OWN)}
    while reached:
        name, law = reached.pop()
        copy = logs.copies[name][key]
        if name != root and logs.incarnation_of[root] in copy.waiters:
            law = logs.waiting(name, key, root)
        for destination in logs.sync_destinations(name, key, copy, logs.incarnation_of[root]):
            servers = logs.topology.servers(destination)
            if not any(logs.had(server, key) for server in servers):
                found.append(_unacknowledged(logs, ack, key, servers[0], name, law))
            for server in logs.followed(name, destination, copy):
                if logs.incarnation_of.get(server) in copy.path:
                    # It came from there: it is not routed back.
                    continue
                if (server, law) not in met and key in logs.copies.get(server, ()):
                    met.add((server, law))
                    reached.append((server, law))
    return found


def _unacknowledged(
    logs: Logs, ack: Acked, key: Key, lacks: str, through: str, law: str
) -> Violation:
    waiters = []
    name = through
    while name and name not in waiters and key in logs.copies.get(name, {}):
        waiters.append(name)
        sender = logs.copies[name][key].waiters.get(logs.incarnation_of[ack.instance], 0)
        name = logs.name_of.get(sender, "") if sender else ""
    text = (
        f"at {ack.time_us / 1000:.3f} ms {ack.instance} acked {ack.client} {key[1]} (by {ack.by}), "
        f"but {lacks} never had it"
        + (f": sync from {through}, whose waiters are {' <- '.join(waiters)}" if through else "")
    )
    return Violation(law, text, separate=law != OWN)


def nothing_lost(history: History) -> list[Violation]:
    """What was acked is in some log at the end, unless every disk that had it then was lost. What
    retention had removed from a disk before its instance was moved, no reunion brings back."""
    topology = history.topology
    logs = Logs(topology)
    holders: dict[Key, dict[str, int]] = {}
    incarnation_of: dict[str, int] = {}
    lost: set[int] = set()
    removed_to: dict[int, int] = {}
    for operation in history.operations:
        logs.take(operation)
        if isinstance(operation, Started):
            incarnation_of[operation.instance] = operation.incarnation
        elif isinstance(operation, Moved) or (isinstance(operation, Crashed) and operation.lost):
            lost.add(operation.incarnation)
            if isinstance(operation, Moved):
                incarnation_of[operation.former] = operation.incarnation
        elif isinstance(operation, Reunited):
            lost.discard(operation.incarnation)
        elif isinstance(operation, Removed):
            removed_to[operation.incarnation] = operation.up_to_txid
        elif isinstance(operation, Acked):
            for sequence in operation.sequences:
                key = (operation.publisher, sequence)
                holders.setdefault(
                    key,
                    {n: incarnation_of[n] for n, copies in logs.copies.items() if key in copies},
                )
    held = {key for final in history.final.values() for key in final.ever}
    for former in {name for names in logs.formers.values() for name in names}:
        incarnation = incarnation_of[former]
        for key, copy in logs.copies[former].items():
            if copy.txid <= removed_to.get(incarnation, 0) and key in holders:
                held.add(key)
    return [
        Violation("nothing lost", f"{key[1]} of {key[0]} was acked, {sorted(had)} had it, none has")
        for key, had in holders.items()
        if key not in held and not all(incarnation in lost for incarnation in had.values())
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
                        Violation("once", f"{operation.instance} journaled {sequence} again")
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
                        Violation("once", f"{operation.subscriber} was given {sequence} again")
                    )
                delivered.add(got)
    return found[:VIOLATIONS_MAX]


def order(history: History) -> list[Violation]:
    """Law 3. Late is what comes behind a higher sequence of its publisher on its topic. An
    instance that has removed segments may flag more: it cannot know any more what was in them.
    So may one that began as the copy of such a one."""
    highest: dict[tuple[int, int, str], int] = {}
    # What one server of a list has, and the server itself sends on, may be removed: to another
    # server of the list this link then brings less than the others do.
    lists = any(
        len(history.topology.servers(destination)) > 1
        for member in history.topology.members.values()
        for destination in member.destinations
    )
    split = not history.topology.uniform or any(
        isinstance(operation, Moved)
        or (isinstance(operation, Crashed) and operation.lost)
        or (lists and isinstance(operation, Removed))
        for operation in history.operations
    )
    removed: set[int] = set()
    started: set[int] = set()
    found = []
    for operation in history.operations:
        if isinstance(operation, Removed):
            removed.add(operation.incarnation)
        elif isinstance(operation, Started):
            started.add(operation.incarnation)
        elif isinstance(operation, Crashed) and operation.lost:
            started.discard(operation.incarnation)
            highest = {
                key: value for key, value in highest.items() if key[0] != operation.incarnation
            }
        elif isinstance(operation, Journaled) and operation.incarnation not in started:
            removed.add(operation.incarnation)
        if not isinstance(operation, Journaled):
            continue
        entry = (operation.incarnation, operation.publisher, operation.topic)
        before = highest.get(entry, 0)
        first, last = operation.sequences[0], operation.sequences[-1]
        if list(operation.sequences) != sorted(operation.sequences):
            found.append(Violation("order", f"{operation} is not ascending"))
        behind = first < before
        if behind != operation.late and (behind or operation.incarnation not in removed):
            word = "not flagged late" if behind else "flagged late"
            found.append(Violation("order", f"{operation} is {word}, {before} came before"))
        if operation.late and not split:
            found.append(Violation("order", f"{operation} is late though no paths split"))
        highest[entry] = max(before, last)
    return found[:VIOLATIONS_MAX]


def removal(history: History) -> list[Violation]:
    """Law 4: a removed record is on disk at the server of each destination it is routed to (or was,
    before that server lost its disk): the connected one, or the last one that was, for its acks
    stay with a link that is cut. Where another server may be the next one, it is persisted there:
    at the sync destinations of that server, too, if that one's answer waited for them."""
    logs = Logs(history.topology)
    removed_to: dict[int, int] = {}
    found = []
    for operation in history.operations:
        logs.take(operation)
        if isinstance(operation, Crashed) and operation.lost:
            removed_to.pop(operation.incarnation, None)
        if not isinstance(operation, Removed):
            continue
        servers = dict(operation.servers)
        before = removed_to.get(operation.incarnation, 0)
        removed_to[operation.incarnation] = operation.up_to_txid
        for key, copy in logs.copies[operation.instance].items():
            if not before < copy.txid <= operation.up_to_txid:
                continue
            for destination in history.topology.members[operation.instance].destinations:
                router = history.topology.router(operation.instance, destination)
                if not router.routed(copy.run(), -1):
                    continue
                several = history.topology.servers(destination)
                server = servers[destination.name] or logs.server.get(
                    (operation.instance, destination.name), several[0]
                )
                lacking = [server] if not logs.had(server, key) else []
                if len(several) > 1 and not lacking:
                    lacking = logs.lacking_behind(server, key, operation.incarnation)
                for lacks in lacking:
                    found.append(
                        Violation(
                            "removal",
                            f"{operation.instance} removed {key[1]} of {key[0]} for "
                            f"{destination.name} at {server}, {lacks} never had it",
                        )
                    )
    return found[:VIOLATIONS_MAX]


def loops(history: History) -> list[Violation]:
    """Law 5."""
    found = []
    for operation in history.operations:
        if isinstance(operation, Journaled):
            path = operation.path
            if operation.incarnation in path or len(set(path)) < len(path):
                found.append(Violation("loops", f"{operation} came round in a circle"))
    return found[:VIOLATIONS_MAX]


def liveness(history: History) -> list[Violation]:
    """Law 7, after healing: every ack is given, and what a log holds is at every destination to
    which it is routed. Whoever got it there passes it on by the same rule: that is the fixpoint.
    """
    found = []
    for client, left in history.unacked.items():
        if left:
            found.append(Violation("liveness", f"{client} waits for {left} acks"))
    logs = Logs(history.topology)
    for operation in history.operations:
        logs.take(operation)
    for name, final in history.final.items():
        if final.owed or final.pending:
            found.append(
                Violation("liveness", f"{name} is owed {final.owed}, pending are {final.pending}")
            )
        for destination in history.topology.members[name].destinations:
            server = final.servers.get(destination.name, "")
            if not server:
                found.append(Violation("liveness", f"{name} is not connected: {destination.name}"))
                continue
            if server not in history.final:
                found.append(
                    Violation("liveness", f"{name} is connected to {server}, which is over")
                )
                continue
            router = history.topology.router(name, destination)
            there = history.final[server]
            for key in sorted(final.present - there.ever):
                copy = logs.copies[name][key]
                # It never had it: then its own path on it is none of this journal, but of a later
                # state of what it was given back an old copy of.
                if router.routed(copy.run(), -1):
                    found.append(
                        Violation("liveness", f"{server} never got {key} from {name}: {copy}")
                    )
    return found[:VIOLATIONS_MAX]


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
                    found.append(Violation("unavailable", f"{operation}, but it has {sequence}"))
    for name, final in history.final.items():
        if final.unavailable != lacked[final.incarnation] - final.ever:
            wrong = sorted(final.unavailable ^ (lacked[final.incarnation] - final.ever))
            found.append(Violation("unavailable", f"{name} is wrong of {wrong[:5]}"))
        for destination in history.topology.members[name].destinations:
            server = final.servers.get(destination.name, "")
            if server not in history.final or not DestinationLedger(destination).whole:
                continue
            if not carries_all(destination.topics, (TopicRule(".*"),)):
                continue
            there = history.final[server]
            gone = (final.ever - final.present) | final.unavailable
            missing = gone - there.ever - there.unavailable
            if missing:
                text = f"{server} does not say that it lacks {sorted(missing)[:5]} of {name}"
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


def store(history: History) -> list[Violation]:
    """A publish store forgets only what some instance acked or refused, and nothing acked is
    refused later by anyone."""
    settled: set[Key] = set()
    acked: set[Key] = set()
    published: set[Key] = set()
    found = []
    for operation in history.operations:
        if isinstance(operation, Published):
            key = (operation.publisher, operation.sequence)
            if key in published:
                found.append(Violation("store", f"{operation} has a number that was used before"))
            published.add(key)
        elif isinstance(operation, ClientCrashed):
            published -= {(operation.publisher, sequence) for sequence in operation.lost}
        elif isinstance(operation, Acked):
            keys = {(operation.publisher, sequence) for sequence in operation.sequences}
            acked |= keys
            settled |= keys
            if not keys <= published:
                found.append(Violation("store", f"{operation} acks what was never published"))
        elif isinstance(operation, Failed):
            key = (operation.publisher, operation.sequence)
            settled.add(key)
            if key in acked:
                found.append(Violation("store", f"{operation} was acked before"))
        elif isinstance(operation, Heard):
            for sequence in operation.sequences:
                if (operation.publisher, sequence) not in settled:
                    found.append(
                        Violation("store", f"{operation.client} forgot {sequence}, never acked")
                    )
    return found[:VIOLATIONS_MAX]


def sending(history: History) -> list[Violation]:
    """On a connection a client sends in ascending order, each once, and leaves nothing out that is
    not settled: what it sent on an earlier one counts for nothing. What it sends is on its disk."""
    # Of each client its own: two may publish parts of one publisher's sequences.
    unsettled: defaultdict[str, set[int]] = defaultdict(set)
    sent: defaultdict[int, set[int]] = defaultdict(set)
    upto: dict[int, int] = {}
    ever: set[Key] = set()
    found = []
    for operation in history.operations:
        if isinstance(operation, Published):
            unsettled[operation.client].add(operation.sequence)
        elif isinstance(operation, Heard):
            unsettled[operation.client].difference_update(operation.sequences)
        elif isinstance(operation, ClientCrashed):
            unsettled[operation.client].difference_update(operation.lost)
            for sequence in operation.lost:
                if (operation.publisher, sequence) in ever:
                    text = f"{operation.client} had sent {sequence}, and lost it in a crash"
                    found.append(Violation("sending", text))
        elif isinstance(operation, Sent):
            connection, waiting = operation.connection, unsettled[operation.client]
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
                ever.add((operation.publisher, sequence))
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
                routers = [
                    history.topology.router(peer, destination)
                    for destination in members[peer].destinations
                    if name in history.topology.servers(destination)
                ]
                if routers:
                    lacks[peer] = sorted(
                        key
                        for key in keys - logs.copies[name].keys() - had[name]
                        if key in copies
                        and copies[key].txid > before_txid
                        and any(
                            router.routed(copies[key].run(), operation.incarnation)
                            for router in routers
                        )
                    )
            if lacks and all(lacks.values()):
                peer, missing = min(lacks.items(), key=lambda item: len(item[1]))
                text = f"{name} admits clients, and lacks {len(missing)} of {peer}: {missing[:5]}"
                found.append(Violation("readiness", text))
    return found[:VIOLATIONS_MAX]


def safety(history: History) -> list[Violation]:
    """A peer that an instance calls safe has everything that this instance ever acked to that
    client and still holds, and what it acks to it while it does so: the notice of a downgrade comes
    before the acks that the downgrade releases. What retention has removed is to be missed by
    nobody."""
    logs = Logs(history.topology)
    removed_to: defaultdict[str, int] = defaultdict(int)
    safe: dict[int, tuple[str, ...]] = {}
    acked: defaultdict[tuple[int, str], set[Key]] = defaultdict(set)
    found: list[Violation] = []

    def lacks(name: str, client: str, servers: tuple[str, ...], keys: set[Key]) -> None:
        for server in servers:
            # Whatever its topic, and whoever brought it there.
            missing = sorted(key for key in keys if not logs.had(server, key))
            if missing:
                text = f"{name} acked {missing[:5]} to {client}, which believes that {server} has "
                found.append(Violation("safety", text + f"them: it lacks {len(missing)}"))

    def still_there(name: str, keys: set[Key]) -> set[Key]:
        copies, before_txid = logs.copies[name], removed_to[name]
        return {key for key in keys if key in copies and copies[key].txid > before_txid}

    for operation in history.operations:
        logs.take(operation)
        if isinstance(operation, Removed):
            removed_to[operation.instance] = operation.up_to_txid
        elif isinstance(operation, Moved):
            removed_to[operation.former] = removed_to[operation.instance]
            removed_to[operation.instance] = 0
        elif isinstance(operation, Crashed) and operation.lost:
            removed_to[operation.instance] = 0
        if isinstance(operation, ToldSafety | Acked):
            name, client = operation.instance, operation.client
            before = acked[logs.incarnation_of[name], client]
            if isinstance(operation, ToldSafety):
                safe[operation.session] = operation.safe
                if operation.safe:
                    lacks(name, client, operation.safe, still_there(name, before))
            else:
                keys = {(operation.publisher, sequence) for sequence in operation.sequences}
                before |= keys
                lacks(name, client, safe.get(operation.session, ()), keys)
    return found[:VIOLATIONS_MAX]


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
        missing = sorted(wanted - got[subscriber])
        if missing:
            found.append(
                Violation(
                    "subscribers",
                    f"{subscriber} at {instance} never got {missing[:5]} of {len(missing)}",
                )
            )
        foreign = sorted(key for key in got[subscriber] if topic_of.get(key) is None)
        if foreign:
            found.append(Violation("subscribers", f"{subscriber} got {foreign[:5]} from nowhere"))
    return found[:VIOLATIONS_MAX]


def fully_durable(history: History) -> list[Violation]:
    """What an instance sends to a fully durable subscriber is at that moment in its journal and at
    every sync destination that it is routed to from there; what its own client published, over the
    whole closure of sync links, as an ack has it (see `acknowledged`, also for who is excused)."""
    logs = Logs(history.topology)
    found: list[Violation] = []
    for operation in history.operations:
        logs.take(operation)
        if not isinstance(operation, Offered):
            continue
        name = operation.instance
        for sequence in operation.sequences:
            key = (operation.publisher, sequence)
            copy = logs.copies[name].get(key)
            text = (
                f"at {operation.time_us / 1000:.3f} ms {name} sent {sequence} to "
                f"{operation.subscriber}, "
            )
            if copy is None:
                found.append(Violation("fully durable", text + "but has it not on disk itself"))
                continue
            own = logs.incarnation_of[name]
            for destination in logs.sync_destinations(name, key, copy, own):
                servers = history.topology.servers(destination)
                if not any(logs.had(server, key) for server in servers):
                    lacks = servers[0]
                    found.append(Violation("fully durable", text + f"but {lacks} never had it"))
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
                found.append(Violation("retired", f"{operation} is of retired {name}"))
        elif isinstance(operation, Retired):
            over.add(operation.instance)
        elif isinstance(operation, Acked | ToldSafety) and operation.instance in over:
            found.append(Violation("retired", f"{operation}, and knows that it is over"))
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
    subscribers,
    retired,
    fully_durable,
)


def check_all(history: History) -> list[Violation]:
    """Everything that is wrong with a history."""
    return [violation for law in LAWS for violation in law(history)]


__all__ = ["LAWS", "Used", "Violation", "check_all"]
