"""The laws of what clients see: the instances that they use, the messages that they send, and the
messages that they get."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from raylay.services.verification.history import (
    AckGiven,
    BatchTaken,
    ClientCrashed,
    InstanceCrashed,
    InstanceMoved,
    InstanceReady,
    InstanceStarted,
    MessagesDelivered,
    MessagesOffered,
    MessagesPublished,
    MessagesSent,
    MissingHeard,
    MoveKnown,
    PublishesDropped,
    PublishRefused,
    ResumeRead,
    RetirementLearnt,
    RunHistory,
    RunJournaled,
    SafetyHeard,
    SafetySent,
    SegmentsRemoved,
    ServerUsed,
    StoreState,
    SubscriptionResumed,
)
from raylay.services.verification.laws.acks import closure
from raylay.services.verification.laws.logs import (
    Logs,
    is_contested,
    transient_keys,
)
from raylay.services.verification.violation import VIOLATIONS_MAX, Key, Violation, at, listed, named


def sending(history: RunHistory) -> list[Violation]:
    """A client sends on one connection in ascending order, each message once, and leaves out no
    message that is not settled. What it sent on an earlier connection does not count. Every message
    that it sends is on its disk."""
    # Of each client its own: two may publish parts of one publisher's sequences. And of each
    # publisher: what an instance numbers for a client is another one's.
    unsettled: defaultdict[tuple[str, int], set[int]] = defaultdict(set)
    sent: defaultdict[int, set[int]] = defaultdict(set)
    upto: dict[int, int] = {}
    ever: set[tuple[str, int, int]] = set()
    found = []
    for operation in history.operations:
        if isinstance(operation, MessagesPublished):
            unsettled[operation.client, operation.publisher].add(operation.sequence)
        elif isinstance(operation, PublishesDropped):
            unsettled[operation.client, operation.publisher].difference_update(operation.sequences)
        elif isinstance(operation, ClientCrashed):
            unsettled[operation.client, operation.publisher].difference_update(operation.lost)
            for sequence in operation.lost:
                if (operation.client, operation.publisher, sequence) in ever:
                    text = f"{operation.client} had sent {sequence}, and lost it in a crash"
                    found.append(Violation("sending", text))
        elif isinstance(operation, MessagesSent):
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
class _ClientKnowledge:
    """The knowledge that binds a client: the instance that it used last, and for each instance the
    peers that it last called safe."""

    used: str = ""
    words: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def copy(self) -> _ClientKnowledge:
        return _ClientKnowledge(self.used, dict(self.words))


def failover(history: RunHistory) -> list[Violation]:
    """A client goes on at the instance that it used last, or at one that every other instance that
    ever spoke to it calls safe by its last word. A crash of the client takes the words that were
    not on its disk, and the acks that it heard since; it still holds those messages."""
    told: defaultdict[str, _ClientKnowledge] = defaultdict(_ClientKnowledge)
    kept: defaultdict[str, _ClientKnowledge] = defaultdict(_ClientKnowledge)
    found = []
    for operation in history.operations:
        if isinstance(operation, SafetyHeard):
            told[operation.client].words[operation.instance] = operation.safe
        elif isinstance(operation, StoreState):
            kept[operation.client] = told[operation.client].copy()
        elif isinstance(operation, ClientCrashed):
            told[operation.client] = kept[operation.client].copy()
        elif isinstance(operation, ServerUsed):
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


def readiness(history: RunHistory) -> list[Violation]:
    """An instance that had to catch up (its disk was lost, or it was moved) admits clients only
    when it has every message that one peer of its group held when it started, still holds, and
    routes to it. Messages that its own retention had removed count as had, also in a restored
    directory."""
    logs = Logs(history.topology)
    had: defaultdict[str, set[Key]] = defaultdict(set)
    removed_to: defaultdict[str, int] = defaultdict(int)
    held: dict[str, dict[str, set[Key]]] = {}
    members = logs.topology.members
    found = []
    for operation in history.operations:
        if isinstance(operation, SegmentsRemoved):
            copies, upto_txid = logs.copies[operation.instance], operation.up_to_txid
            removed_to[operation.instance] = upto_txid
            had[operation.instance] |= {key for key, c in copies.items() if c.txid <= upto_txid}
        elif isinstance(operation, InstanceMoved) or (
            isinstance(operation, InstanceCrashed) and operation.lost
        ):
            removed_to[operation.instance] = 0
            for of in held.values():
                of.pop(operation.instance, None)
        logs.take(operation)
        if isinstance(operation, InstanceStarted) and not operation.ready:
            name = operation.instance
            group = members[name].group
            held[name] = {
                peer: set(logs.copies[peer])
                for peer, member in members.items()
                if peer != name and member.group == group and name != peer.partition("#")[0]
            }
        elif isinstance(operation, InstanceReady) and not operation.by_hand:
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
                        and not logs.passes_over(name, copies[key])
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


def safety(history: RunHistory) -> list[Violation]:
    """A peer that an instance calls safe has every message that this instance ever acked to that
    client and still holds, and every message that it acks meanwhile: the notice of a downgrade
    comes before the acks that the downgrade releases.

    Excused are: messages that retention has removed; a disk that the peer has lost, until the
    instance's link has caught up with it again; another content of the same identity, of which an
    alarm was raised, because one client's duplicate name must not keep all others from failing
    over; and messages that the instance itself lost with its disk and journals anew under the same
    incarnation, after an older copy was restored: those it has not acked.
    """
    logs = Logs(history.topology)
    lost: set[str] = set()
    safe: dict[int, tuple[str, ...]] = {}
    acked: defaultdict[tuple[int, str], set[Key]] = defaultdict(set)
    transient = transient_keys(history)
    found: list[Violation] = []

    def lacks(ack: SafetySent | AckGiven, servers: tuple[str, ...], keys: set[Key]) -> None:
        name = ack.instance
        for server in servers:
            # Whatever its topic, and whoever brought it there.
            missing = {key for key in keys if logs.is_without(name, server, key)}
            if missing:
                text = f"{at(ack.time_us)} {name} acked {ack.client} {listed(missing)}, and calls "
                text += f"{server} safe, which does not have them"
                found.append(Violation("safety", text))

    def still_there(name: str, keys: set[Key]) -> set[Key]:
        copies, before_txid = logs.copies[name], logs.removed_to[name]
        return {key for key in keys if key in copies and copies[key].txid > before_txid}

    for operation in history.operations:
        logs.take(operation)
        if isinstance(operation, InstanceCrashed) and operation.lost:
            lost.add(operation.instance)
        elif isinstance(operation, InstanceStarted) and operation.instance in lost:
            lost.discard(operation.instance)
            for (incarnation, _), before in acked.items():
                if incarnation == operation.incarnation:
                    before.intersection_update(logs.copies[operation.instance])
        elif isinstance(operation, SafetySent | AckGiven):
            name, client = operation.instance, operation.client
            before = acked[logs.incarnation_of[name], client]
            if isinstance(operation, SafetySent):
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


def transient(history: RunHistory) -> list[Violation]:
    """A message on a topic that is in no transaction log is in no journal."""
    return [
        Violation(
            "transient",
            f"{at(operation.time_us)} {operation.instance} journaled "
            f"{named((operation.publisher, operation.sequences[0]))} on {operation.topic}, which "
            "is not to be in a transaction log",
        )
        for operation in history.operations
        if isinstance(operation, RunJournaled) and operation.topic in history.transient
    ][:VIOLATIONS_MAX]


def subscribers(history: RunHistory) -> list[Violation]:
    """A subscriber has in the end every matching message of the journal of its last instance, and
    no message that its content filter excludes.

    A delta that was sent again may have become another message at the next instance. It may be
    there as either, so a filter judges it only where all versions pass, or none.
    """
    got: defaultdict[str, set[Key]] = defaultdict(set)
    topic_of: dict[Key, str] = {}
    contents_of: defaultdict[Key, set[str]] = defaultdict(set)
    for operation in history.operations:
        if isinstance(operation, RunJournaled) and history.passes:
            for sequence, content in zip(operation.sequences, operation.contents, strict=True):
                contents_of[operation.publisher, sequence].add(content)
        elif isinstance(operation, MessagesDelivered):
            for sequence in operation.sequences:
                got[operation.subscriber].add((operation.publisher, sequence))
        elif isinstance(operation, MessagesPublished):
            topic_of[operation.publisher, operation.sequence] = operation.topic
    found = []
    for subscriber, (instance, topic) in history.subscribed.items():
        if not instance:
            found.append(Violation("subscribers", f"{subscriber} is connected to no instance"))
            continue
        present = history.final[instance].present
        wanted = {key for key in present if topic in (".*", topic_of[key])} - history.deletions
        passes = history.passes.get(subscriber)
        if passes is not None:
            wanted = {key for key in wanted if all(map(passes, contents_of[key]))}
            beside = [
                key for key in got[subscriber] if not any(map(passes, contents_of.get(key, ("",))))
            ]
            if beside:
                text = f"{subscriber} got {listed(beside)}, which its filter excludes"
                found.append(Violation("subscribers", text))
        missing = wanted - got[subscriber]
        if missing:
            text = f"{subscriber} at {instance} never got {listed(missing)}"
            found.append(Violation("subscribers", text))
        foreign = [key for key in got[subscriber] if topic_of.get(key) is None]
        if foreign:
            text = f"{subscriber} got {listed(foreign)}, which is in no journal"
            found.append(Violation("subscribers", text))
    return found[:VIOLATIONS_MAX]


def told_missing(history: RunHistory) -> list[Violation]:
    """A subscriber that resumes at an instance is told which messages retention removed there,
    after the first message that it has of a publisher, and that it never got. It is not told of
    messages that are still there or that it has. With a content filter nobody knows which removed
    messages would pass, so such a subscriber may be told of fewer.

    Messages that are removed while it is connected, and never arrive, are reported to it in the
    same way when it resumes there once more. Messages that were removed there before are no gap in
    what it reads, even where it receives a message of that publisher for the first time, or an
    earlier one, since.
    """
    logs = Logs(history.topology)
    got: defaultdict[str, set[Key]] = defaultdict(set)
    reads: dict[str, tuple[str, set[Key], set[Key]]] = {}
    """Instance at which each subscriber resumes, the removed messages that it must be told of, and
    those that it may be told of."""
    owed: defaultdict[str, dict[Key, str]] = defaultdict(dict)
    told: defaultdict[str, set[Key]] = defaultdict(set)
    connected: dict[str, str] = {}
    """Instance that accepted each subscriber last."""
    overtaken: defaultdict[str, dict[Key, str]] = defaultdict(dict)
    """Messages that were removed there since, and have not arrived."""
    topic_of: dict[Key, str] = {}
    found: list[Violation] = []

    def removed_behind(subscriber: str, name: str) -> tuple[set[Key], set[Key]]:
        """Returns the messages whose removal the subscriber must be told of, and all messages that
        were removed there and that it has not got."""
        had = got[subscriber]
        firsts: dict[int, int] = {}
        for publisher, sequence in had:
            firsts[publisher] = min(sequence, firsts.get(publisher, sequence))
        gone = {key for key in logs.copies[name] if logs.is_removed(name, key)} - had
        wanted = {key for key in gone if key[1] > firsts.get(key[0], key[1])}
        _, topic = history.subscribed.get(subscriber, ("", ".*"))
        wanted = {key for key in wanted if topic in (".*", topic_of.get(key))}
        if subscriber in history.passes:
            wanted = set()
        return wanted - history.deletions, gone

    for operation in history.operations:
        before: set[Key] = set()
        if isinstance(operation, SegmentsRemoved) and operation.instance in connected.values():
            name = operation.instance
            before = {key for key in logs.copies[name] if logs.is_removed(name, key)}
        logs.take(operation)
        if isinstance(operation, MessagesPublished):
            topic_of[operation.publisher, operation.sequence] = operation.topic
        elif isinstance(operation, MessagesDelivered):
            keys = [(operation.publisher, sequence) for sequence in operation.sequences]
            got[operation.subscriber].update(keys)
        elif isinstance(operation, ResumeRead):
            name = operation.instance
            reads[operation.subscriber] = name, *removed_behind(operation.subscriber, name)
            connected.pop(operation.subscriber, None)
            overtaken.pop(operation.subscriber, None)
        elif isinstance(operation, SubscriptionResumed):
            connected[operation.subscriber] = operation.instance
            name, wanted, _ = reads.get(operation.subscriber, ("", set(), set()))
            if name == operation.instance:
                owed[operation.subscriber].update(dict.fromkeys(wanted, name))
        elif isinstance(operation, SegmentsRemoved):
            for subscriber, name in connected.items():
                if name == operation.instance:
                    wanted, _ = removed_behind(subscriber, name)
                    overtaken[subscriber].update(dict.fromkeys(wanted - before, name))
        elif isinstance(operation, MissingHeard):
            _, _, gone = reads[operation.subscriber]
            count = sum(of for _, (of, _, _) in operation.publishers)
            within = {
                key
                for publisher, (_, first, last) in operation.publishers
                for key in gone
                if key[0] == publisher and first <= key[1] <= last
            }
            if operation.messages != count or count > len(within):
                text = f"{at(operation.time_us)} {operation.subscriber} is told by "
                text += f"{operation.instance} that {operation.messages} messages are removed, "
                text += f"where {len(within)} are"
                found.append(Violation("told missing", text))
            told[operation.subscriber] |= within
    for subscriber, removed_since in overtaken.items():
        owed[subscriber].update(removed_since)
    for subscriber, removed_at in owed.items():
        untold = removed_at.keys() - got[subscriber] - told[subscriber]
        if untold:
            where = ", ".join(sorted({removed_at[key] for key in untold}))
            text = f"{subscriber} was never told that {listed(untold)} are removed at {where}"
            found.append(Violation("told missing", text))
    return found[:VIOLATIONS_MAX]


def fully_durable(history: RunHistory) -> list[Violation]:
    """A message that an instance sends to a fully durable subscriber is at that moment in its
    journal and at every sync destination to which it is routed from there. A message of the
    instance's own client is durable over the whole closure of sync links, as for an ack (see
    `acknowledged`, also for the excuses). A message that a destination refused, because it holds
    another content, is durable nowhere and delays no subscriber."""
    logs = Logs(history.topology)
    refused: set[Key] = set()
    found: list[Violation] = []
    for operation in history.operations:
        logs.take(operation)
        if isinstance(operation, PublishRefused):
            refused.add((operation.publisher, operation.sequence))
        if not isinstance(operation, MessagesOffered):
            continue
        name = operation.instance
        for sequence in operation.sequences:
            key = (operation.publisher, sequence)
            copy = logs.copies[name].get(key)
            text = f"{at(operation.time_us)} {name} sent {named(key)} to {operation.subscriber}, "
            if copy is None:
                found.append(
                    Violation("fully durable", text + ("but does not have it on disk itself"))
                )
                continue
            if key in refused or is_contested(logs, key, copy.digest):
                continue
            own = logs.incarnation_of[name]
            for destination in logs.sync_destinations(name, key, copy, own):
                link, servers = (name, destination.name), history.topology.servers(destination)
                if (
                    not logs.is_removed(name, key)
                    and logs.lacks(link, servers, key)
                    and not logs.went_back(servers, key, copy)
                ):
                    lacks = f"{servers[0]}, sync destination {destination.name},"
                    found.append(Violation("fully durable", text + f"but {lacks} does not have it"))
            if not copy.path and own in copy.waiters:
                by = "a delivery"
                ack = AckGiven(operation.time_us, name, operation.subscriber, key[0], 0, (), by)
                found += [
                    Violation("fully durable", text + broken.text)
                    for broken in closure(logs, ack, key)
                    if not broken.separate
                ]
            if len(found) >= VIOLATIONS_MAX:
                return found
    return found


def retired(history: RunHistory) -> list[Violation]:
    """An instance that has on disk that another one was moved takes nothing from the former one and
    sends it nothing, for good, except in a salvage. A moved instance serves no client once it has
    heard of its move, and every moved instance has heard of it in the end."""
    generation_of: dict[int, tuple[str, int]] = {}
    generations: Counter[str] = Counter()
    knows: dict[tuple[str, str], int] = {}
    over: set[str] = set()
    found = []
    for operation in history.operations:
        if isinstance(operation, InstanceStarted):
            home = operation.instance.partition("#")[0]
            generation_of.setdefault(operation.incarnation, (home, generations[home]))
        elif isinstance(operation, RunJournaled):
            if operation.incarnation not in generation_of:
                # An old copy was put back where a former instance lived, and begins anew there:
                # it is salvaged before anything starts on it.
                home, _, former = operation.instance.partition("#")
                generation_of[operation.incarnation] = home, int(former or generations[home])
        elif isinstance(operation, InstanceMoved):
            home = operation.instance
            # A disk that was lost and not used since: nothing has started there.
            generation_of.setdefault(operation.incarnation, (home, generations[home]))
            generations[home] += 1
            for key in [key for key in knows if key[0] == operation.instance]:
                knows[operation.former, key[1]] = knows.pop(key)
        elif isinstance(operation, MoveKnown):
            knows[operation.instance, operation.peer] = operation.generation
        elif isinstance(operation, InstanceCrashed) and operation.lost:
            for key in [key for key in knows if key[0] == operation.instance]:
                del knows[key]
        elif isinstance(operation, BatchTaken):
            name, generation = generation_of[operation.incarnation]
            is_retired = generation < knows.get((operation.instance, name), 0)
            if is_retired and not operation.salvages:
                text = f"{at(operation.time_us)} {operation.instance} let in incarnation "
                text += f"{operation.incarnation} of retired {name}"
                found.append(Violation("retired", text))
        elif isinstance(operation, RetirementLearnt):
            over.add(operation.instance)
        elif isinstance(operation, AckGiven | SafetySent) and operation.instance in over:
            text = f"{at(operation.time_us)} {operation.instance} served {operation.client}"
            found.append(Violation("retired", f"{text}, and knows that it is over"))
    found += [Violation("retired", f"{name} lives still") for name in history.unretired]
    return found[:VIOLATIONS_MAX]
