"""The laws of acks: every acknowledged message is held where the ack says."""

from __future__ import annotations

from collections import Counter

from raylay.services.verification.history import (
    AckGiven,
    DiskSalvaged,
    InstanceCrashed,
    InstanceMoved,
    RunHistory,
)
from raylay.services.verification.laws.logs import (
    OWN,
    Logs,
    transient_keys,
)
from raylay.services.verification.violation import VIOLATIONS_MAX, Key, Violation, at, named


def acknowledged(history: RunHistory) -> list[Violation]:
    """Law 1 at the moment of each persisted ack: the message is held here and over the whole
    closure of sync links.

    Excused are: disks that were lost (`Logs.lacks`); messages that a logon names durable and that
    retention has removed here, because a server that lost such a message is not sent it again;
    links that were async at some moment since their instance owes an answer for the message (they
    may have let an answer out then), or that came to another server since, at which the message did
    not wait any more (`Logs.followed`).

    Two cases of lost disks go further. An older copy that was restored in place of a data directory
    has the incarnation that the message came through; such messages are not routed there until a
    peer has noticed, however often a link has caught up with it (`Logs.went_back`). And an instance
    that is asked for a message only after retention has removed it there, as by an upgrade, does
    not know where it was routed: all its destinations have stored it and are not asked again
    (docs/deviations.md).

    By the waiter rule, an instance whose waiter is another instance answers as soon as the message
    is stored, and the root waits for the waiter's own answer. Two cases break that chain and are
    reported as separate violations: the waiter's own link to the instance was downgraded, so that
    no publisher waits any more; the waiter is an incarnation that is gone for good.
    """
    logs = Logs(history.topology)
    transient = transient_keys(history)
    found: list[Violation] = []
    for operation in history.operations:
        logs.take(operation)
        if not isinstance(operation, AckGiven):
            continue
        for sequence in operation.sequences:
            key = (operation.publisher, sequence)
            if key not in transient:
                found += closure(logs, operation, key)
            if len(found) >= VIOLATIONS_MAX:
                return found
    return found


def closure(logs: Logs, ack: AckGiven, key: Key) -> list[Violation]:
    """Returns a violation for each place, here and along the links that were sync, that lacks an
    acked message."""
    root = ack.instance
    digest = logs.digests.get((ack.client, *key), 0)
    if not logs.has(root, key, digest):
        copy = logs.copies[root].get(key)
        if copy is not None and (
            logs.is_removed(root, key)
            or (ack.by == "logon" and copy.waiters.get(logs.incarnation_of[root]) == 0)
        ):
            # Another content, and nothing here tells that: see the top of checkers.py.
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
    logs: Logs, ack: AckGiven, key: Key, lacks: str, through: str, destination: str, law: str
) -> Violation:
    waiters = []
    name = through
    while name and name not in waiters and key in logs.copies.get(name, {}):
        waiters.append(name)
        sender = logs.copies[name][key].waiters.get(logs.incarnation_of[ack.instance], 0)
        name = logs.name_of.get(sender, "") if sender else ""
    other = " with this content" if logs.has(lacks, key) else ""
    text = (
        f"{at(ack.time_us)} {ack.instance} acked {ack.client} {named(key)} (by {ack.by}), but "
        f"{lacks} does not have it{other}"
        + (
            f": it is destination {destination} of {through}, sync, whose waiters are "
            + " <- ".join(waiters)
            if through
            else ""
        )
    )
    return Violation(law, text, separate=law != OWN)


def nothing_lost(history: RunHistory) -> list[Violation]:
    """An acked message is in some journal in the end, unless every disk that had it at the ack was
    lost. A salvage does not bring back messages that retention had removed from a disk before its
    instance was moved."""
    topology = history.topology
    logs = Logs(topology)
    transient = transient_keys(history)
    holders: dict[tuple[Key, int], dict[str, tuple[int, int]]] = {}
    losses: Counter[int] = Counter()
    """Number of disk losses of each incarnation. An older copy that is restored in place of a disk
    keeps the incarnation."""
    away: set[int] = set()
    for operation in history.operations:
        logs.take(operation)
        if isinstance(operation, InstanceCrashed) and operation.lost:
            losses[operation.incarnation] += 1
        elif isinstance(operation, InstanceMoved):
            away.add(operation.incarnation)
        elif isinstance(operation, DiskSalvaged):
            away.discard(operation.incarnation)
        elif isinstance(operation, AckGiven):
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
            "nothing lost",
            (f"{named(key)} was acked, {sorted(had)} had it, and no instance has it in the end"),
        )
        for (key, digest), had in holders.items()
        if any(losses[each] == then and each not in away for each, then in had.values())
        and not is_held(key, digest)
    ][:VIOLATIONS_MAX]
