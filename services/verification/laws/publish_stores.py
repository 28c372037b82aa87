"""The law of publish stores, one of the laws that services/verification/checkers.py lists."""

from __future__ import annotations

from collections import Counter, defaultdict

from raylay.services.queues.records import NOT_LEASED
from raylay.services.verification.history import (
    AckGiven,
    ClientCrashed,
    InstanceCrashed,
    InstanceMoved,
    LinkModeSet,
    MessagesPublished,
    Operation,
    PublishesDropped,
    PublishRefused,
    RunHistory,
    RunJournaled,
)
from raylay.services.verification.violation import VIOLATIONS_MAX, Key, Violation, at, listed, named


class _Acks:
    """The acks of each content, by disk.

    An instance that acks a message because a link is downgraded forgets that ack in a crash, unless
    it had written down that the message is durable. After the crash the link is sync again, and the
    destination is asked for the message. Where the destination holds another content by then, a
    client that has not heard the ack sends the message again and is refused.
    """

    def __init__(self) -> None:
        self._by: defaultdict[tuple[Key, int], set[tuple[str, int]]] = defaultdict(set)
        self._disks: Counter[str] = Counter()
        self._downgraded: defaultdict[str, set[str]] = defaultdict(set)
        """Downgraded destinations, by instance."""
        self._forgettable: defaultdict[str, set[tuple[Key, int]]] = defaultdict(set)
        """Messages of contested identity, by instance, that it acked in this life only while a link
        was
        downgraded, and whose ack no client has heard."""

    def acked(self, instance: str, key: Key, digest: int) -> None:
        by = instance, self._disks[instance]
        acked = self._by[key, digest]
        if digest and self._downgraded[instance] and by not in acked:
            self._forgettable[instance].add((key, digest))
        acked.add(by)

    def heard(self, key: Key, digest: int) -> None:
        for unheard in self._forgettable.values():
            unheard.discard((key, digest))

    def are_refused(self, instance: str, key: Key, digest: int, *, by_lease: bool) -> bool:
        """Returns whether an ack stands that contradicts the instance's refusal of the content.

        Args:
            by_lease: whether the instance refuses a queue acknowledgment that another instance may
                have taken.
        """
        acked = self._by[key, digest]
        is_anywhere = bool(acked and not digest and not by_lease)
        return (instance, self._disks[instance]) in acked or is_anywhere

    def mode_set(self, mode: LinkModeSet) -> None:
        downgraded = self._downgraded[mode.instance]
        if mode.sync:
            downgraded.discard(mode.destination)
        else:
            downgraded.add(mode.destination)

    def crashed(self, crash: InstanceCrashed) -> None:
        name = crash.instance
        for forgotten in self._forgettable.pop(name, ()):
            self._by[forgotten].discard((name, self._disks[name]))
        self._downgraded.pop(name, None)
        self._disks[name] += crash.lost

    def moved(self, instance: str) -> None:
        """Notes that the instance of this name continues on another disk."""
        self._disks[instance] += 1


class _Acknowledgments:
    """The places of queue acknowledgments, and the clients that have heard that they are durable. A
    client that has not heard sends an acknowledgment again, and an instance that does not have it
    judges it by its own leases. No other publish is refused for want of a lease."""

    def __init__(self, history: RunHistory) -> None:
        self._queues = {queue.name for queue in history.queues}
        self._clients: defaultdict[Key, set[str]] = defaultdict(set)
        """Clients that published a message, by message."""
        self._held: defaultdict[str, set[Key]] = defaultdict(set)
        """Messages in each instance's journal."""
        self._heard: defaultdict[str, set[Key]] = defaultdict(set)
        """Messages whose ack a client has heard, by client, in this life; a later life may have
        forgotten them."""

    def take(self, operation: Operation) -> None:
        if isinstance(operation, MessagesPublished) and operation.topic in self._queues:
            self._clients[operation.publisher, operation.sequence].add(operation.client)
        elif isinstance(operation, RunJournaled) and operation.topic in self._queues:
            held = self._held[operation.instance]
            held.update((operation.publisher, sequence) for sequence in operation.sequences)
        elif isinstance(operation, PublishesDropped):
            heard = self._heard[operation.client]
            heard.update((operation.publisher, sequence) for sequence in operation.sequences)
        elif isinstance(operation, ClientCrashed):
            self._heard.pop(operation.client, None)
        elif isinstance(operation, InstanceMoved) or (
            isinstance(operation, InstanceCrashed) and operation.lost
        ):
            self._held.pop(operation.instance, None)

    def may_be_refused(self, failure: PublishRefused) -> bool:
        """Returns whether the instance may judge this publish by its own leases."""
        key = (failure.publisher, failure.sequence)
        return (
            failure.reason == NOT_LEASED
            and failure.client in self._clients[key]
            and key not in self._held[failure.instance]
            and key not in self._heard[failure.client]
        )


def store(history: RunHistory) -> list[Violation]:
    """A publish store forgets only what some instance acked or refused, and no acked message is
    refused later by any instance.

    Excused are other contents of the same identity: a logon may name durable a message of another
    client of the same name (see the top of services/verification/checkers.py), and an instance
    other than the one that acked, or another disk, may hold another content and refuse this one.
    Excused are also a refusal where the ack was forgotten (`_Acks`), and the refusal of a queue
    acknowledgment whose client does not know of the ack (`_Acknowledgments`).

    A sequence is used once; so is one that an instance gave and lost when an older copy was
    restored in place of its directory.
    """
    settled: set[Key] = set()
    acks = _Acks()
    acknowledgments = _Acknowledgments(history)
    published: set[tuple[Key, int]] = set()
    anybody: set[Key] = set()
    digests: dict[tuple[str, Key], int] = {}
    found = []
    for operation in history.operations:
        acknowledgments.take(operation)
        if isinstance(operation, MessagesPublished):
            key = (operation.publisher, operation.sequence)
            if (key, operation.digest) in published:
                text = f"{at(operation.time_us)} {operation.client} published {named(key)}, "
                found.append(Violation("store", text + "a sequence that was used before"))
            published.add((key, operation.digest))
            anybody.add(key)
            if operation.digest:
                digests[operation.client, key] = operation.digest
        elif isinstance(operation, ClientCrashed):
            for sequence in operation.lost:
                key = (operation.publisher, sequence)
                published.discard((key, digests.get((operation.client, key), 0)))
        elif isinstance(operation, AckGiven):
            every = {(operation.publisher, sequence) for sequence in operation.sequences}
            for key in every:
                digest = digests.get((operation.client, key), 0)
                settled.add(key)
                if operation.by != "logon" or not digest:
                    acks.acked(operation.instance, key, digest)
            if not every <= anybody:
                text = f"{at(operation.time_us)} {operation.instance} acked {operation.client} "
                text += listed(every - anybody)
                found.append(Violation("store", f"{text}, never published"))
        elif isinstance(operation, PublishRefused):
            key = (operation.publisher, operation.sequence)
            digest = digests.get((operation.client, key), 0)
            settled.add(key)
            by_lease = acknowledgments.may_be_refused(operation)
            if acks.are_refused(operation.instance, key, digest, by_lease=by_lease):
                text = f"{at(operation.time_us)} {operation.instance} refused {operation.client} "
                text += f"{named(key)} ({operation.reason}), which was acked before"
                found.append(Violation("store", text))
        elif isinstance(operation, LinkModeSet):
            acks.mode_set(operation)
        elif isinstance(operation, InstanceCrashed):
            acks.crashed(operation)
        elif isinstance(operation, InstanceMoved):
            acks.moved(operation.instance)
        elif isinstance(operation, PublishesDropped):
            for sequence in operation.sequences:
                key = (operation.publisher, sequence)
                acks.heard(key, digests.get((operation.client, key), 0))
                # By a logon also what is the other client's (see the top of
                # services/verification/checkers.py).
                if key not in settled:
                    text = f"{at(operation.time_us)} {operation.client} forgot {named(key)}, "
                    found.append(Violation("store", text + "never acked"))
    return found[:VIOLATIONS_MAX]
