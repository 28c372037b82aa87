"""The laws of queues: the owner of each message, its consumer, and the moment at which it leaves
its queue.

The rights of an instance follow from its own journal alone, so the journals are read here once
more: which messages arrived, which owners they got, and which of them left. Nothing of the code
that a queue's owner uses is used here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from raylay.services.verification.history import (
    AckGiven,
    InstanceCrashed,
    InstanceMoved,
    InstanceReady,
    InstanceStarted,
    MessagesPublished,
    RunHistory,
    RunJournaled,
)
from raylay.services.verification.queue_history import (
    QueueDelivered,
    QueueHolds,
    QueueRecorded,
    QueueReturned,
    SharedQueue,
)
from raylay.services.verification.violation import VIOLATIONS_MAX, Key, Violation, at, named

Register = tuple[int, str]
"""Generation and owner."""
EXPIRED = frozenset(("expire", "time_limit", "max_cancels", "max_deliveries"))
Taken = tuple[int, str, int]
"""Session, client and end of a lease."""


@dataclass(slots=True)
class _Journal:
    """A queue in the journal of one instance."""

    messages: dict[Key, Register] = field(default_factory=dict)
    moves: dict[Key, Register] = field(default_factory=dict)
    gone: set[Key] = field(default_factory=set)
    leases: dict[Key, Taken] = field(default_factory=dict)
    serves: bool = False

    def register(self, key: Key) -> Register:
        """Returns the ownership of a message: that of its best transfer, or of the instance that
        took it in."""
        return self.moves.get(key) or self.messages[key]

    def left(self) -> dict[Key, Register]:
        """Returns the messages that have not left the queue."""
        return {key: self.register(key) for key in self.messages if key not in self.gone}


def _better(one: Register, other: Register | None) -> Register:
    """Returns the register of the higher generation; of two equal ones, that of the lower name."""
    if other is None or (-one[0], one[1]) <= (-other[0], other[1]):
        return one
    return other


class _QueueReplay:
    """The replay of a history for one queue.

    Args:
        of: the queue, as the laws see it.
    """

    def __init__(self, of: SharedQueue) -> None:
        self._queue = of
        self._journals: dict[str, _Journal] = {name: _Journal() for name in of.instances}
        self._risked: set[Key] = set()
        """At-risk messages of an at-most-once queue: an instance that got one back may not know its
        last ownership until it asks for it."""
        self._expired: set[Key] = set()
        """Messages that expired. No consumer needs to have received them."""
        self._bearers: dict[int, str] = {}
        self._former: dict[str, str] = {}
        """Names of moved instances, by former name. The former instance may go on elsewhere."""
        self._unsure: set[Key] = set()
        """Messages that several instances may deliver: a second instance was given them, or a lost
        disk may have known more about them."""
        self._delivered: set[Key] = set()
        self._acked: set[Key] = set()
        self._published: dict[Key, None] = {}
        self._rest: dict[str, dict[Key, Register]] = {}
        self.found: list[Violation] = []

    def read(self, history: RunHistory) -> None:
        takes = {
            InstanceStarted: self._started,
            InstanceReady: self._ready,
            InstanceCrashed: self._crashed,
            InstanceMoved: self._moved,
            MessagesPublished: self._publishes,
            AckGiven: self._acks,
            RunJournaled: self._journaled,
            QueueRecorded: self._recorded,
            QueueDelivered: self._delivers,
            QueueReturned: self._returned,
            QueueHolds: self._holds,
        }
        for operation in history.operations:
            take = takes.get(type(operation))
            if take is not None:
                take(operation)  # type: ignore[operator]
        self._agree()
        self._acknowledged()

    def _find(self, law: str, time_us: int, text: str) -> None:
        self.found.append(Violation(law, f"{at(time_us)} {text}"))

    # -- instances -----------------------------------------------------------------------------
    def _name(self, instance: str) -> str:
        return self._former.get(instance, instance)

    def _started(self, operation: InstanceStarted) -> None:
        self._bearers[operation.incarnation] = self._name(operation.instance)
        journal = self._journals.get(operation.instance)
        if journal is not None:
            journal.serves = operation.ready

    def _ready(self, operation: InstanceReady) -> None:
        if operation.instance in self._journals:
            self._journals[operation.instance].serves = True

    def _crashed(self, operation: InstanceCrashed) -> None:
        journal = self._journals.get(operation.instance)
        if journal is None:
            return
        journal.serves = False
        journal.leases.clear()
        if operation.lost:
            self._more_was_known()
            self._journals[operation.instance] = _Journal()

    def _moved(self, operation: InstanceMoved) -> None:
        """Lets an instance begin anew elsewhere. The former one may not know that for a while, so
        that two instances deliver the messages of one name."""
        if operation.instance in self._journals:
            self._more_was_known()
            self._former[operation.former] = operation.instance
            self._journals[operation.former] = self._journals[operation.instance]
            self._journals[operation.instance] = _Journal()

    def _more_was_known(self) -> None:
        """Marks every message of every journal as uncertain: an instance that is gone may
        have known more about it."""
        for each in self._journals.values():
            self._risk(each.messages)

    def _risk(self, keys: Iterable[Key]) -> None:
        self._unsure.update(keys)
        self._risked.update(keys)

    # -- journals ------------------------------------------------------------------------------
    def _publishes(self, operation: MessagesPublished) -> None:
        if operation.topic == self._queue.topic:
            self._published[operation.publisher, operation.sequence] = None

    def _acks(self, operation: AckGiven) -> None:
        keys = ((operation.publisher, sequence) for sequence in operation.sequences)
        self._acked.update(key for key in keys if key in self._published)

    def _journaled(self, operation: RunJournaled) -> None:
        journal = self._journals.get(operation.instance)
        if journal is None or operation.topic != self._queue.topic:
            return
        owner = self._name(operation.instance)
        if len(self._queue.instances) > 1:
            # Of one that was told of before its beginning was on disk: other laws see that.
            took = self._bearers.get(operation.path[0], "") if operation.path else owner
            owner = self._queue.first_owner or took
        keys = [(operation.publisher, sequence) for sequence in operation.sequences]
        journal.messages.update(dict.fromkeys(keys, (0, owner)))
        if operation.instance in self._former:
            self._risk(keys)

    def _recorded(self, operation: QueueRecorded) -> None:
        journal = self._journals.get(operation.instance)
        if journal is None or operation.queue != self._queue.name:
            return
        keys = operation.keys
        if operation.why == "ack" and self._queue.barriers:
            # Each instance has its own turn to send one.
            keys = tuple(key for key in keys if key not in self._queue.barriers)
        if operation.why == "barrier":
            # What a former life sent, and this one has only heard of, it sends in its turn.
            keys = tuple(key for key in keys if key in journal.messages)
        journal.gone.update(keys)
        if operation.why in EXPIRED:
            self._expired.update(keys)
        for key in keys:
            journal.leases.pop(key, None)
        for publisher, sequence, generation, owner in operation.moves:
            key = publisher, sequence
            journal.moves[key] = _better((generation, owner), journal.moves.get(key))
            if operation.is_claim:
                self._unsure.add(key)
        if operation.instance in self._former:
            self._risk((*keys, *((move[0], move[1]) for move in operation.moves)))

    # -- deliveries ----------------------------------------------------------------------------
    def _delivers(self, operation: QueueDelivered) -> None:
        if operation.queue != self._queue.name:
            return
        here, now_us = operation.instance, operation.time_us
        journal = self._journals[here]
        for key in operation.keys:
            what = f"{here} delivers {named(key)} to {operation.client}"
            if key not in journal.messages:
                self._find("queue ownership", now_us, f"{what}, which is not in its queue")
                continue
            self._in_turn(journal, key, now_us, what)
            if key in self._queue.barriers:
                continue
            if operation.is_sent:
                if key not in journal.gone:
                    self._find("queue at most once", now_us, f"{what}: it is still in the queue")
                if key in self._delivered and key not in self._unsure:
                    self._find("queue at most once", now_us, f"{what} once more")
            elif key in journal.gone:
                self._find("queue removal", now_us, f"{what}: it had left the queue")
            self._delivered.add(key)
            if key not in self._unsure:
                self._owned(journal, key, operation, what)
            if not operation.is_sent:
                self._leased(journal, key, operation, what)

    def _in_turn(self, journal: _Journal, key: Key, now_us: int, what: str) -> None:
        """Checks that nothing overtakes a barrier, and that a barrier overtakes nothing."""
        barriers = self._queue.barriers
        if not barriers:
            return
        is_barrier = key in barriers
        for before in journal.messages:
            if before == key:
                break
            if (is_barrier or before in barriers) and before not in journal.gone:
                self._find("queue barrier", now_us, f"{what}: {named(before)} is before it")
                break
        if is_barrier and key not in journal.gone:
            self._find("queue barrier", now_us, f"{what}: it is still in the queue")

    def _owned(self, journal: _Journal, key: Key, operation: QueueDelivered, what: str) -> None:
        register = journal.register(key)
        if register[1] != self._name(operation.instance):
            text = f"{what}: {register[1]} owns it"
            self._find("queue ownership", operation.time_us, text)
            return
        for name, other in self._journals.items():
            is_there = other.serves and key in other.messages and key not in other.gone
            if name != operation.instance and is_there and other.register(key)[1] == name:
                text = f"{what}: {name} may deliver it too"
                self._find("queue ownership", operation.time_us, text)

    def _leased(self, journal: _Journal, key: Key, operation: QueueDelivered, what: str) -> None:
        held = journal.leases.get(key)
        if held is not None and (not held[2] or operation.time_us < held[2]):
            self._find("queue lease", operation.time_us, f"{what}: {held[1]} has it")
        journal.leases[key] = operation.session, operation.client, operation.until_us

    def _returned(self, operation: QueueReturned) -> None:
        if operation.queue != self._queue.name:
            return
        leases = self._journals[operation.instance].leases
        for key in operation.keys or list(leases):
            if key in leases and leases[key][0] == operation.session:
                del leases[key]

    # -- in the end ----------------------------------------------------------------------------
    def _holds(self, operation: QueueHolds) -> None:
        if operation.queue != self._queue.name:
            return
        name, now_us = operation.instance, operation.time_us
        found = {
            (register[0], register[1]): (register[2], register[3])
            for register in operation.registers
        }
        expected = self._journals[name].left()
        for key in sorted(found.keys() | expected.keys()):
            if found.get(key) != expected.get(key):
                held, wanted = found.get(key, "nothing"), expected.get(key, "nothing")
                text = f"{name} holds {named(key)} as {held}, its journal says {wanted}"
                self._find("queue journal", now_us, text)
        if operation.is_last:
            for key in found:
                self._find("queue consumed", now_us, f"{name} still has {named(key)}")
            return
        for key in operation.stuck:
            self._find("queue stuck", now_us, f"{name} can give {named(key)} to no consumer")
        self._rest[name] = found

    def _agree(self) -> None:
        """Checks that all instances hold the same messages."""
        every: defaultdict[Key, dict[str, Register | None]] = defaultdict(dict)
        for name, found in self._rest.items():
            has = self._journals[name].messages
            for key in {key for each in self._rest.values() for key in each}:
                # What was on a lost disk its owner may not get back: others have it then.
                if key in has:
                    every[key][name] = found.get(key)
        for key, views in every.items():
            if key in self._queue.barriers or key in self._risked:
                continue  # Some have sent a barrier, and in others it waits for its turn.
            if len(set(views.values())) > 1:
                views_text = ", ".join(f"{name} {view}" for name, view in sorted(views.items()))
                self.found.append(Violation("queue agreement", f"{named(key)}: {views_text}"))

    def _acknowledged(self) -> None:
        """Law 1: a message that was acknowledged to its publisher was delivered, or is in the
        queue. Other laws check that it is in a journal. An at-most-once queue promises less: a
        message that is lost on its way stays lost."""
        if self._queue.is_at_most_once:
            return
        for name, journal in self._journals.items():
            excused = self._delivered | self._expired | set(self._queue.barriers)
            for key in self._acked & journal.gone & journal.messages.keys():
                if key not in excused:
                    text = (
                        f"{named(key)} has left the queue of {name}, and no consumer was given it"
                    )
                    self.found.append(Violation("queue acknowledged", text))


def queues(history: RunHistory) -> list[Violation]:
    """Law 6, law 1 for the messages of a queue, and the promises to its consumers.

    ownership      a message is delivered by the instance that its journal names as its owner, and
                   no other serving instance takes it for its own; excused are messages that a
                   second instance was given (a claim), messages that are known when a disk is lost
                   or an instance moves, and messages that a moved instance takes in before it
                   knows of its move
    lease          no consumer is given a message that another consumer has
    removal        nothing is delivered after its acknowledgment in the journal
    at most once   a message that is sent has left the queue, and is sent once
    journal        a queue holds what follows from its instance's journal
    agreement      at rest all instances hold the same messages, each with the same owner
    barrier        nothing behind a barrier is delivered while the barrier is there, and it waits
                   for all messages before it
    stuck          no message is kept from every consumer
    consumed       in the end every message has left its queue
    acknowledged   no message leaves its queue before a consumer was given it
    """
    found: list[Violation] = []
    for queue in history.queues:
        replay = _QueueReplay(queue)
        replay.read(history)
        found += replay.found
    return found[:VIOLATIONS_MAX]
