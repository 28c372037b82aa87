"""The laws of journals and links: each message is there once, in order, never in a circle, and in
the end everywhere."""

from __future__ import annotations

from collections import defaultdict

from raylay.services.queues.records import NOT_LEASED
from raylay.services.verification.history import (
    BatchReturned,
    BatchTaken,
    DestinationDebt,
    FeatureFolded,
    InstanceCrashed,
    InstanceMoved,
    InstanceRecovered,
    InstanceStarted,
    LackNoted,
    LinkModeSet,
    MessagesApplied,
    MessagesDelivered,
    MessagesPublished,
    MessagesUndone,
    OldCopyHeld,
    Operation,
    PublishRefused,
    RecordsDrafted,
    RunHistory,
    RunJournaled,
    SegmentsRemoved,
    SowDiffers,
)
from raylay.services.verification.laws.logs import (
    Logs,
    whole,
)
from raylay.services.verification.violation import VIOLATIONS_MAX, Key, Violation, at, listed, named


def once(history: RunHistory) -> list[Violation]:
    """Law 2: a journal holds a message once, and a subscriber gets it once."""
    journaled: set[tuple[int, int, int]] = set()
    delivered: set[tuple[str, int, int]] = set()
    found = []
    for operation in history.operations:
        if isinstance(operation, RunJournaled):
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
        elif isinstance(operation, InstanceCrashed) and operation.lost:
            # What an old copy holds that is put back is written again.
            journaled = {entry for entry in journaled if entry[0] != operation.incarnation}
        elif isinstance(operation, MessagesDelivered):
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


class _RefusedAcknowledgments:
    """Queue acknowledgments that an instance refused for want of a lease, and that arrive late from
    the instance that took them. Records where they arrive, and where a message of another instance
    arrived before them. A refusal excuses no other late message."""

    def __init__(self, history: RunHistory) -> None:
        self._queues = {queue.name for queue in history.queues}
        self._incarnations: dict[str, int] = {}
        """Incarnation of each instance's last start."""
        self._refusers: defaultdict[Key, set[int]] = defaultdict(set)
        """Incarnations that refused an acknowledgment, by acknowledgment."""
        self._highest: dict[tuple[int, int, str], tuple[int, int]] = {}
        """Highest sequence, by incarnation, publisher and topic, and the incarnation where
        it was published."""

    def take(self, operation: Operation) -> None:
        """Takes the next operation. Call `excuse` after it."""
        if isinstance(operation, InstanceStarted):
            self._incarnations[operation.instance] = operation.incarnation
        elif isinstance(operation, PublishRefused) and operation.reason == NOT_LEASED:
            key = (operation.publisher, operation.sequence)
            self._refusers[key].add(self._incarnations.get(operation.instance, 0))
        elif isinstance(operation, RunJournaled) and operation.topic in self._queues:
            of = (operation.incarnation, operation.publisher, operation.topic)
            last = operation.sequences[-1]
            if last > self._highest.get(of, (0, 0))[0]:
                self._highest[of] = last, _origin(operation)

    def excuse(self, late: RunJournaled) -> bool:
        origin = _origin(late)
        of = (late.incarnation, late.publisher, late.topic)
        if not late.path or self._highest.get(of, (0, origin))[1] == origin:
            return False
        return all(
            self._refusers[late.publisher, sequence] - {origin} for sequence in late.sequences
        )


def _origin(record: RunJournaled) -> int:
    """Returns the incarnation to which a client published the record."""
    return record.path[0] if record.path else record.incarnation


def order(history: RunHistory) -> list[Violation]:
    """Law 3: messages are in publisher order. A message is late if it comes after a higher sequence
    of its publisher on its topic.

    Where no paths split, a message may be late in four cases. (1) It comes from the salvage of a
    retired disk. (2) Two things coincide: an instance begins anew (its disk was lost, it was moved)
    or a link goes on to another server of its list; and segments were removed, so that this link
    brings less than another one, or a link was async, so that the new instance may admit clients
    after it caught up with a peer that lacks what they published before. (3) An older copy was
    restored in place of a data directory: until a peer notices, its instance admits clients, and
    the messages that it lost come after those that they publish. (4) A client sends a queue
    acknowledgment again, to an instance that refuses it for want of a lease before it has heard of
    the first one: that one is in the journal of the instance that leased the message, and comes
    from there after what the client sent next to another instance (`_RefusedAcknowledgments`).

    An instance that has removed segments may flag more messages as late, because it cannot know any
    more what was in them. So may an instance that began as a copy of such a one. Two clients of one
    name have no order between them, and each instance has some messages of each.
    """
    highest: dict[tuple[int, int, str], int] = {}
    clients: defaultdict[int, set[str]] = defaultdict(set)
    lists = any(
        len(history.topology.servers(destination)) > 1
        for member in history.topology.members.values()
        for destination in member.destinations
    )
    began_anew = any_removed = salvaged = put_back = False
    any_async = not all(
        destination.sync
        for member in history.topology.members.values()
        for destination in member.destinations
    )
    removed: set[int] = set()
    started: set[int] = set()
    lost: set[int] = set()
    refused = _RefusedAcknowledgments(history)
    found = []
    for operation in history.operations:
        refused.take(operation)
        if isinstance(operation, MessagesPublished):
            clients[operation.publisher].add(operation.client)
        elif isinstance(operation, SegmentsRemoved):
            removed.add(operation.incarnation)
            any_removed = True
        elif isinstance(operation, LinkModeSet) and not operation.sync:
            any_async = True
        elif isinstance(operation, InstanceStarted):
            started.add(operation.incarnation)
            put_back = put_back or operation.incarnation in lost
        elif isinstance(operation, InstanceMoved):
            began_anew = True
        elif isinstance(operation, InstanceCrashed) and operation.lost:
            began_anew = True
            lost.add(operation.incarnation)
            started.discard(operation.incarnation)
            highest = {
                key: value for key, value in highest.items() if key[0] != operation.incarnation
            }
        elif isinstance(operation, BatchTaken) and operation.salvages:
            salvaged = True
        elif isinstance(operation, RunJournaled) and operation.incarnation not in started:
            removed.add(operation.incarnation)
        if not isinstance(operation, RunJournaled):
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
        split = salvaged or (any_removed and lists) or (began_anew and (any_removed or any_async))
        split = split or put_back or not history.topology.uniform
        split = split or (operation.late and refused.excuse(operation))
        if operation.late and not split and len(clients[operation.publisher]) < 2:
            found.append(Violation("order", f"{text} late though no paths split"))
        highest[entry] = max(before, last)
    return found[:VIOLATIONS_MAX]


def removal(history: RunHistory) -> list[Violation]:
    """Law 4: a message that retention removes is on disk at the server of each destination to which
    it is routed. That is the connected server, or the last one that the link reached: the acks of a
    server stay with a link that is cut, and so does what the server was seen to hold when the link
    never began. A disk that the server has lost is excused until the link has caught up with it
    again. Where another server may be the next one, the message is persisted there: also at the
    sync destinations of that server, if its answer waited for them."""
    logs = Logs(history.topology)
    found = []
    for operation in history.operations:
        before = (
            logs.removed_to[operation.instance] if isinstance(operation, SegmentsRemoved) else 0
        )
        logs.take(operation)
        if not isinstance(operation, SegmentsRemoved):
            continue
        name = operation.instance
        servers = dict(operation.servers)
        for key, copy in logs.copies[name].items():
            if not before < copy.txid <= operation.up_to_txid:
                continue
            for destination in logs.topology.members[name].destinations:
                if not logs.routed(name, destination, copy, -1):
                    continue
                link = (name, destination.name)
                several = history.topology.servers(destination)
                reached = logs.reached.get(link)
                server = servers[destination.name] or logs.server.get(link, several[0])
                server = reached or server
                if any(logs.passes_over(each, copy) for each in (server, *several)):
                    continue
                lacking = [server] if logs.lacks(link, (server,), key, reached=reached) else []
                if len(several) > 1 and not lacking:
                    lacking = logs.lacking_behind(server, key, operation.incarnation)
                for lacks in lacking:
                    at_server = f" (at {server} now)" if lacks != server else ""
                    found.append(
                        Violation(
                            "removal",
                            f"{at(operation.time_us)} {name} removed {named(key)}, routed to its "
                            f"destination {destination.name}{at_server}: {lacks} does not have it",
                        )
                    )
    return found[:VIOLATIONS_MAX]


def loops(history: RunHistory) -> list[Violation]:
    """Law 5: nothing goes round in a circle. A message is not even sent to an incarnation in its
    path, because the sender would wait for an answer that means nothing."""
    found = []
    for operation in history.operations:
        if isinstance(operation, RunJournaled):
            path = operation.path
            if operation.incarnation in path or len(set(path)) < len(path):
                found.append(
                    Violation(
                        "loops",
                        f"{at(operation.time_us)} {operation.instance} journaled "
                        f"{named((operation.publisher, operation.sequences[0]))}, which came "
                        f"round in a circle: its path is {path}",
                    )
                )
        elif isinstance(operation, BatchReturned):
            found.append(
                Violation(
                    "loops",
                    f"{at(operation.time_us)} {operation.instance} was sent "
                    f"{named((operation.publisher, operation.sequences[0]))} by "
                    f"{operation.sender}, though it came from it: its path is {operation.path}",
                )
            )
    return found[:VIOLATIONS_MAX]


def authored(history: RunHistory) -> list[Violation]:
    """A record that an instance writes itself takes effect once, in order, and when it is on disk
    there; or it is undone. In one life of the instance no draft is left over. A crash may leave
    one, because no other process has heard of it."""
    left: defaultdict[str, dict[Key, None]] = defaultdict(dict)
    on_disk: set[Key] = set()
    found = []

    def wrong(operation: MessagesApplied | MessagesUndone, key: Key, what: str) -> None:
        text = f"{at(operation.time_us)} {operation.instance} wrote {named(key)} itself, and {what}"
        found.append(Violation("authored", text))

    for operation in history.operations:
        if isinstance(operation, RecordsDrafted):
            left[operation.instance].update(
                ((operation.publisher, sequence), None) for sequence in operation.sequences
            )
        elif isinstance(operation, RunJournaled) and not operation.path:
            on_disk.update((operation.publisher, sequence) for sequence in operation.sequences)
        elif isinstance(operation, InstanceCrashed | InstanceStarted):
            left.pop(operation.instance, None)
        elif isinstance(operation, InstanceMoved):
            left[operation.former] = left.pop(operation.instance, {})
        elif isinstance(operation, MessagesApplied | MessagesUndone):
            drafts = left[operation.instance]
            for sequence in operation.sequences:
                key = (operation.publisher, sequence)
                if isinstance(operation, MessagesApplied) and key not in on_disk:
                    wrong(operation, key, "acts on it although it is not on disk")
                elif key != next(iter(drafts), None):
                    wrong(operation, key, "does not apply it once and in order")
                drafts.pop(key, None)
    for name, drafts in left.items():
        if drafts:
            text = f"{name} has neither applied nor undone {listed(drafts)}, which it drafted"
            found.append(Violation("authored", text))
    return found[:VIOLATIONS_MAX]


def state(history: RunHistory) -> list[Violation]:
    """A publish on a topic with state is built on the value as staged: it names its predecessor on
    the topic, and that message does precede it in the journal. This happens once: an instance that
    gets the record from another one journals it unchanged. An instance whose directory was replaced
    by an older copy, and which keeps its incarnation, may show the value built before or since. A
    record that an instance writes itself names no predecessor. A publish that a state refused is in
    no journal."""
    refused = {
        (operation.publisher, operation.sequence)
        for operation in history.operations
        if isinstance(operation, PublishRefused) and operation.reason == "bad_message"
    }
    last: dict[tuple[str, str], str] = {}
    unsure: set[str] = set()
    made: defaultdict[tuple[int, Key], list[str]] = defaultdict(list)
    authors: set[int] = set()
    found = []

    def look(operation: RunJournaled, sequence: int, said: str) -> None:
        key = (operation.publisher, sequence)
        of = operation.instance, operation.topic
        expected = [""]
        if key in refused:
            text = (
                f"{at(operation.time_us)} {operation.instance} journaled {named(key)} on "
                f"{operation.topic}, which the topic's state refused"
            )
            found.append(Violation("state", text))
        if operation.path:
            expected = made.get((operation.path[-1], key), [])
        elif operation.publisher not in authors:
            expected = [last[of]] if of in last else []
            if not expected and operation.instance not in unsure:
                expected = ["nothing"]
        if expected and said not in expected:
            text = (
                f"{at(operation.time_us)} {operation.instance} journaled {named(key)} on "
                f"{operation.topic}, which says {said!r} where {expected[-1]!r} is true"
            )
            found.append(Violation("state", text))
        made[operation.incarnation, key].append(said)
        last[of] = f"{operation.publisher}|{sequence}|"

    def forget(name: str) -> None:
        unsure.discard(name)
        for of in [each for each in last if each[0] == name]:
            del last[of]

    for operation in history.operations:
        if isinstance(operation, RecordsDrafted):
            authors.add(operation.publisher)
        elif isinstance(operation, RunJournaled) and operation.behind is not None:
            for sequence, said in zip(operation.sequences, operation.behind, strict=True):
                look(operation, sequence, said)
        elif isinstance(operation, OldCopyHeld):
            # The history does not show on which topic a removed message came last.
            unsure.add(operation.instance)
        elif isinstance(operation, InstanceCrashed) and operation.lost:
            forget(operation.instance)
        elif isinstance(operation, InstanceMoved):
            for name, topic in [each for each in last if each[0] == operation.instance]:
                last[operation.former, topic] = last.pop((name, topic))
            if operation.instance in unsure:
                unsure.add(operation.former)
            forget(operation.instance)
    return found[:VIOLATIONS_MAX]


def sow(history: RunHistory) -> list[Violation]:
    """A SOW topic holds what follows from its instance's journal, at the start of each life and in
    the end, whatever of it was on disk. The simulator compares them, because it knows both
    (tests/sim/sow.py)."""
    found = [
        Violation("sow", f"{at(operation.time_us)} {operation.instance}: {operation.text}")
        for operation in history.operations
        if isinstance(operation, SowDiffers)
    ]
    return found[:VIOLATIONS_MAX]


def folds(history: RunHistory) -> list[Violation]:
    """Commits are folded in the journal's order, each message once, when it is on disk and the
    publisher that waits for its ack was told. A delivered message is already in the state. In the
    end nothing is left over: a running instance has folded everything of this life."""
    due: defaultdict[str, dict[Key, None]] = defaultdict(dict)
    upto: defaultdict[tuple[str, str], int] = defaultdict(int)
    found: list[Violation] = []
    any_folded = False
    # Nobody is delivered what a record says that is no message; deletions say what topics hold.
    commands = history.deletions if history.queues else frozenset()

    def wrong(operation: FeatureFolded, what: str) -> None:
        text = f"{at(operation.time_us)} {operation.feature} of {operation.instance} {what}"
        found.append(Violation("folds", text))

    def look(operation: FeatureFolded) -> None:
        name, last_txid = operation.instance, operation.last_txid
        if operation.kept_back:
            wrong(operation, f"folds before {', '.join(operation.kept_back)} heard its ack")
        if last_txid <= upto[name, operation.feature]:
            wrong(operation, f"folds {last_txid} behind {upto[name, operation.feature]}")
        upto[name, operation.feature] = last_txid
        if operation.messages and upto[name, "sow"] < last_txid:
            wrong(operation, f"delivers {last_txid}, the state is at {upto[name, 'sow']}")
        for key in operation.messages:
            if key not in due[name]:
                wrong(operation, f"delivers {named(key)}, which is not on disk, or again")
            due[name].pop(key, None)

    for operation in history.operations:
        if isinstance(operation, FeatureFolded):
            any_folded = True
            look(operation)
        elif isinstance(operation, RunJournaled):
            due[operation.instance].update(
                ((operation.publisher, sequence), None)
                for sequence in operation.sequences
                if (operation.publisher, sequence) not in commands
            )
        elif isinstance(operation, InstanceCrashed | InstanceStarted):
            due.pop(operation.instance, None)
            for of in [each for each in upto if each[0] == operation.instance]:
                del upto[of]
        elif isinstance(operation, InstanceMoved):
            due[operation.former] = due.pop(operation.instance, {})
            for name, feature in [each for each in upto if each[0] == operation.instance]:
                upto[operation.former, feature] = upto.pop((name, feature))
    for name, left in due.items() if any_folded else ():
        if left and name in history.final:
            found.append(Violation("folds", f"{name} has never delivered {listed(left)}"))
    return found[:VIOLATIONS_MAX]


def routing(history: RunHistory) -> list[Violation]:
    """A link brings only what is routed there by its destination's topics, types, PassThrough and
    content filters, or what ResyncPassThrough allows. The law judges messages that came to a
    running instance from a copy that is still at its sender."""
    logs = Logs(history.topology)
    up: set[str] = set()
    found = []
    for operation in history.operations:
        if isinstance(operation, InstanceStarted):
            up.add(operation.instance)
        elif isinstance(operation, InstanceCrashed):
            up.discard(operation.instance)
        elif isinstance(operation, InstanceMoved) and operation.instance in up:
            # What begins in its place is filled from a peer first.
            up.remove(operation.instance)
            up.add(operation.former)
        elif isinstance(operation, RunJournaled) and operation.path and operation.instance in up:
            sender = logs.name_of.get(operation.path[-1], "")
            server = operation.instance.partition("#")[0]
            for sequence in operation.sequences:
                key = (operation.publisher, sequence)
                copy = logs.copies.get(sender, {}).get(key)
                if copy is None or not copy.topic or copy.path != operation.path[:-1]:
                    continue
                if not logs.may_be_sent(sender, server, copy):
                    text = f"{at(operation.time_us)} {operation.instance} was sent {named(key)} on "
                    text += f"{copy.topic} by {sender}, where it is not routed there"
                    found.append(Violation("routing", text))
        logs.take(operation)
    return found[:VIOLATIONS_MAX]


def liveness(history: RunHistory) -> list[Violation]:
    """Law 7, after healing: every ack is given, and every message in a journal is at every
    destination to which it is routed. An instance that got it there passes it on by the same rule,
    so this is the fixpoint."""
    found = []
    for client, left in history.unacked.items():
        if left:
            where = history.waiting.get(client, "")
            text = f"{client} waits for {left} acks" + (f": {where}" if where else "")
            found.append(Violation("liveness", text))
    for name, source in history.unstarted.items():
        text = f"{name} never began: it waits to be copied from {source}"
        found.append(Violation("liveness", text))
    logs = Logs(history.topology)
    for operation in history.operations:
        logs.take(operation)
    for name, final in history.final.items():
        if final.owed or final.pending:
            which = "; ".join(map(_owing, final.owing))
            text = f"{name} is owed {final.owed} messages, pending are {final.pending}"
            found.append(Violation("liveness", text + (f": {which}" if which else "")))
        for destination in logs.topology.members[name].destinations:
            to = f"destination {destination.name} of {name}"
            server = final.servers.get(destination.name, "")
            if not server:
                wanted = " or ".join(history.topology.servers(destination))
                found.append(Violation("liveness", f"{to} is not connected to {wanted}"))
                continue
            if server not in history.final:
                text = f"{to} is connected to {server}, which has ended"
                found.append(Violation("liveness", text))
                continue
            there = history.final[server]
            for key in sorted(final.present - there.ever):
                copy = logs.copies[name][key]
                # It never had it: then its own path on it is none of this journal, but of a later
                # state of what it was given back an old copy of.
                if logs.routed(name, destination, copy, -1) and not logs.passes_over(server, copy):
                    way = " <- ".join(
                        logs.name_of.get(each, str(each)) for each in reversed(copy.path)
                    )
                    came = f"came from {way}" if way else "was published there"
                    text = f"{server} never got {named(key)} on {copy.topic} over {to}, where it"
                    found.append(Violation("liveness", f"{text} {came} {at(copy.time_us)}"))
    return found[:VIOLATIONS_MAX]


def _owing(owing: DestinationDebt) -> str:
    by = f"by destination {owing.destination}" if owing.destination else "pending"
    return (
        f"{by} {owing.messages} of publisher {owing.publisher}, sequences {owing.first} to "
        f"{owing.last}"
    )


def unavailable(history: RunHistory) -> list[Violation]:
    """An instance has recorded every message that it lacks in the end and that was at an upstream
    whose link carries everything. It records no message that it has, and withdraws the record of a
    message that arrives after all."""
    logs = Logs(history.topology)
    found = []
    lacked: defaultdict[int, set[Key]] = defaultdict(set)
    for operation in history.operations:
        logs.take(operation)
        if isinstance(operation, InstanceCrashed) and operation.lost:
            lacked.pop(operation.incarnation, None)
        elif isinstance(operation, LackNoted):
            for sequence in operation.sequences:
                key = (operation.publisher, sequence)
                lacked[operation.incarnation].add(key)
                copy = logs.copies[operation.instance].get(key)
                if copy is not None:
                    text = (
                        f"{at(operation.time_us)} {operation.instance} reports {named(key)} as "
                        "lost everywhere, but has it itself"
                    )
                    found.append(Violation("unavailable", text))
    for name, final in history.final.items():
        if final.unavailable != lacked[final.incarnation] - final.ever:
            wrong = final.unavailable ^ (lacked[final.incarnation] - final.ever)
            text = f"{name} wrongly reports as lost everywhere: {listed(wrong)}"
            found.append(Violation("unavailable", text))
        for destination in logs.topology.members[name].destinations:
            server = final.servers.get(destination.name, "")
            if server not in history.final or not whole(history, destination):
                continue
            there = history.final[server]
            gone = (final.ever - final.present) | final.unavailable
            missing = gone - there.ever - there.unavailable
            if missing:
                text = f"{server} does not report that it lacks {listed(missing)}, which {name} had"
                text += f" and would have sent over destination {destination.name}"
                found.append(Violation("unavailable", text))
    return found[:VIOLATIONS_MAX]


def settled(history: RunHistory) -> list[Violation]:
    """Messages that were durable when a recovery point was written do not wait for answers again
    after a restart."""
    return [
        Violation(
            "settled",
            f"at {operation.time_us / 1000:.3f} ms {operation.instance} came up and waits again "
            f"for {len(operation.again)} messages that were durable: {operation.again[:5]}",
        )
        for operation in history.operations
        if isinstance(operation, InstanceRecovered) and operation.again
    ][:VIOLATIONS_MAX]
