"""A queue as its instance's journal says that it is: which messages, whose, and where they stand.

What a record says takes effect when it is read here, at owners and others alike (rules 1, 5 and 6):
so all instances come to the same, whatever way the records took.

A message that is available stands in one of two places: with `Dispatcher`, where this instance owns
it (and each barrier); with `TransferRequests`, where another one does, or nobody knows yet who.
`_place` puts it there, `_displace` takes it out.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from raylay.services.errors import MessageTypeError, RemoteProtocolError
from raylay.services.expressions.functions.registry import EvalContext, Functions
from raylay.services.messages.ranges import Range
from raylay.services.messages.readable import readable_records
from raylay.services.messages.records import (
    Command,
    Flag,
    Kind,
    Record,
    Run,
)
from raylay.services.messages.types.base import MessageType, MessageTypeTable
from raylay.services.queues.checkpoint import Arrival, ArrivalLog, RecoveryStart
from raylay.services.queues.clock_steps import ClockSteps
from raylay.services.queues.decisions import (
    Consumer,
    Decision,
    DeliverOnce,
    Expiration,
    Key,
    LeasedDelivery,
    MessageLease,
)
from raylay.services.queues.deferred_requests import DeferredRequests
from raylay.services.queues.definition import QueueDefinition
from raylay.services.queues.disclaim import DisclaimTimer
from raylay.services.queues.dispatcher import Dispatcher
from raylay.services.queues.drafts import Drafts, PendingDraft
from raylay.services.queues.early_records import early_ranges
from raylay.services.queues.enqueue_rules import EnqueueRules
from raylay.services.queues.entry import BodyReader
from raylay.services.queues.expirations import MessageExpirations
from raylay.services.queues.leases import LeaseTable
from raylay.services.queues.message import AVAILABLE, DONE, GONE, LEASED, QueuedMessage
from raylay.services.queues.ownership import Ownership, OwnershipTable, is_better
from raylay.services.queues.reappends import Reappends
from raylay.services.queues.records import (
    Acknowledgment,
    Keys,
    Removal,
    Transfer,
    read_acknowledgment,
    read_removal,
    read_transfer,
)
from raylay.services.queues.transfer_requests import TransferRequests

LOOKED_AT_LEAST = 1_024
"""Sequences of a record's ranges that are looked up one by one, beside as many as twice the
messages that there are. With more, the messages are sorted."""
UNNAMED_MIN = 1_024
"""Messages of an incarnation without a name: with more, those that are gone are dropped."""


Watch = Callable[[Record, Acknowledgment | Transfer | Removal, Run], None]
"""Is told of each record of the queue's own when it has taken effect."""


def read_record(record: Record) -> Acknowledgment | Transfer | Removal | None:
    """Reads a record of a queue; None: it is of no command of queues.

    Raises:
        RemoteProtocolError: it cannot be read.
    """
    if record.command == Command.QUEUE_ACKNOWLEDGMENT:
        return read_acknowledgment(record.body)
    if record.command == Command.TRANSFER:
        return read_transfer(record.body)
    return read_removal(record.body) if record.command == Command.QUEUE_REMOVAL else None


class NoTypes:
    """The message types of a queue that reads no bodies."""

    def __getitem__(self, name: str) -> MessageType:
        """There is none.

        Raises:
            MessageTypeError: always.
        """
        raise MessageTypeError(f"no message types are known here, {name} neither", name)


class ReplicatedQueueState:
    """See the file's docstring.

    Invariants: `_known` has every message of the queue, by publisher and sequence, in no state but
        `GONE`. A leased one holds its lease, a frozen one the tag of its draft.
    """

    __slots__ = (
        "_again",
        "_asking",
        "_barriers",
        "_condemned",
        "_consumers",
        "_contents",
        "_counted",
        "_definition",
        "_drafts",
        "_entrance",
        "_expirations",
        "_fence_txid",
        "_history",
        "_holdings",
        "_is_proxied",
        "_is_ready",
        "_is_serving",
        "_known",
        "_lacking",
        "_lease_us",
        "_message_type",
        "_name",
        "_now_us",
        "_owners",
        "_picking",
        "_reachable",
        "_refused",
        "_said",
        "_sent",
        "_steps",
        "_tells_names",
        "_told_leases",
        "_told_txid",
        "_topic",
        "_unnamed",
        "_watch",
    )

    def __init__(
        self,
        definition: QueueDefinition,
        name: str,
        incarnation: int,
        contents: BodyReader,
        start: RecoveryStart,
        picking: type[Dispatcher[Any]],
        types: MessageTypeTable | None,
        functions: Functions,
        group: str,
        watch: Watch | None,
    ) -> None:
        snapshot = start.snapshot
        self._definition = definition
        self._topic = definition.name.encode()
        self._message_type = definition.message_type.encode()
        self._name = name
        self._lease_us = definition.lease_us
        self._entrance = EnqueueRules(definition, types or NoTypes(), functions)
        self._owners = OwnershipTable(definition, name, incarnation, snapshot.names)
        self._history = ArrivalLog(snapshot, definition.deferred_ack_us)
        surroundings = EvalContext(instance=name, group=group)
        self._contents = contents
        self._picking: Dispatcher[QueuedMessage] = picking(
            definition, contents, functions, surroundings
        )
        self._consumers: set[Consumer] = set()
        self._asking = TransferRequests()
        self._refused = DeferredRequests()
        self._lacking = DisclaimTimer()
        self._again = Reappends()
        self._holdings = LeaseTable(definition.deliveries_max, definition.cancels_max)
        self._expirations = MessageExpirations()
        told = max((lease.number for lease in start.leases), default=0)
        self._drafts = Drafts(
            name,
            incarnation,
            start.life,
            start.fence_txid,
            told,
            has_letters=bool(definition.dead_letters),
        )
        self._condemned: set[QueuedMessage] = set()
        """Messages of which somebody has said expire, where there are dead letters. Their owner
        removes them."""
        self._known: dict[int, dict[int, QueuedMessage]] = {}
        self._barriers = 0
        """Number of barriers among the messages of `_known`."""
        self._unnamed: dict[int, list[QueuedMessage]] = {}
        """Messages by the incarnation that took them in, whose name is not known."""
        self._sent: dict[Key, tuple[QueuedMessage, Consumer]] = {}
        """Messages that have left an at-most-once queue and still take a place of their
        consumer."""
        self._told_leases = {lease.key: lease for lease in start.leases}
        self._told_txid = snapshot.folded_txid
        self._fence_txid = start.fence_txid
        self._is_serving = start.is_serving
        self._is_ready = False
        self._is_proxied = False
        self._tells_names = False
        self._reachable: frozenset[str] = frozenset()
        self._said: list[Decision] = []
        self._now_us = 0
        self._steps = ClockSteps()
        self._watch = watch
        self._counted = dict.fromkeys(("came", "left", "transferred_in", "transferred_out"), 0)

    def _read(self, runs: Sequence[Run], through_txid: int) -> None:
        """Takes in what was committed, in order."""
        history = self._history
        for run in runs:
            if run.kind == Kind.RECORDS:
                if run.flags & Flag.COMMANDS:
                    if run.topic == self._topic and run.message_type == self._message_type:
                        self._obey(run)
                elif self._entrance.takes(run.topic, run.message_type):
                    self._arrive(run)
            history.folded_txid = max(history.folded_txid, run.last_txid)
        history.folded_txid = max(history.folded_txid, through_txid)
        history.advance()
        if self._tells_names:
            self._tells_names = False
            self._drafts.tell_names(self._owners.names)

    def _arrive(self, run: Run) -> None:
        history = self._history
        publisher, ranges = run.publisher, run.ranges()
        received_us = self._received_us(run)
        gone: list[Range] = []
        moved: list[tuple[int, int, Ownership]] = []
        since_txid = 0
        if history.early:
            gone, moved, since_txid = history.early.arrived(publisher, ranges, received_us)
        register = self._owners.initial(run.path)
        arrival = history.arrived(publisher, ranges, run.first_txid, run.last_txid, received_us)
        known = self._known.get(publisher)
        if known is None:
            known = self._known[publisher] = {}
        plain = None
        is_plain = not (gone or moved or self._told_leases or self._drafts.waits_for_absent)
        if is_plain and register.owner:
            plain = self._entrance.plain(run)
        if plain is None:
            if moved and not history.reaches_back(arrival, since_txid):
                for first, last, found in moved:
                    self._again.moved(publisher, first, last, found)
            self._arrive_one_by_one(run, arrival, register, known, gone, moved)
            return
        arrival.live += len(plain)
        self._counted["came"] += len(plain)
        messages = [
            QueuedMessage(arrival, txid, (publisher, sequence), register)
            for txid, sequence in enumerate(plain, run.first_txid)
        ]
        known.update(zip(plain, messages, strict=True))
        if register.owner == self._name:
            self._picking.add_all(messages)
        else:
            for message in messages:
                self._asking.add(message)

    def _received_us(self, run: Run) -> int:
        """Returns when it was received, by the steady clock."""
        return self._steps.steady_us(run.first_txid, run.receive_time_us, self._now_us)

    def _arrive_one_by_one(
        self,
        run: Run,
        arrival: Arrival,
        initial: Ownership,
        known: dict[int, QueuedMessage],
        gone: list[Range],
        moved: list[tuple[int, int, Ownership]],
    ) -> None:
        left = {sequence for first, last in gone for sequence in range(first, last + 1)}
        registers = {
            sequence: self._owners.shared(*register)
            for first, last, register in moved
            for sequence in range(first, last + 1)
        }
        for coming in self._entrance.each(run, self._received_us(run)):
            # Each instance sends a barrier by itself, whatever was said of it elsewhere.
            if coming.sequence in left and not coming.is_barrier:
                if self._definition.is_distributed:
                    self._again.removed(run.publisher, coming.sequence)
                continue
            register = registers.get(coming.sequence, initial)
            message = known[coming.sequence] = QueuedMessage(
                arrival,
                run.first_txid + coming.at,
                (run.publisher, coming.sequence),
                register,
                coming.priority,
                coming.is_barrier,
            )
            arrival.live += 1
            self._counted["came"] += 1
            if coming.expires_us:
                self._expirations.note(message, coming.expires_us)
            if not register.owner:
                self._note_unnamed(run.path[0], message)
            if message.is_barrier:
                self._barriers += 1
                self._picking.add(message)
            lease = self._told_leases.pop(message.key, None)
            if lease is not None:
                self._lease(message, lease)
            elif not self._drafts.freezes(message):
                self._place(message)

    def _note_unnamed(self, incarnation: int, message: QueuedMessage) -> None:
        there = self._unnamed.setdefault(incarnation, [])
        if len(there) >= UNNAMED_MIN and not len(there) & (len(there) - 1):
            # Its name may never come: what has left does not wait for it.
            there[:] = [each for each in there if each.state != GONE]
        there.append(message)

    def _obey(self, run: Run) -> None:
        """Does what the queue's own records say. What is no such record, which another instance
        may have let in, says nothing."""
        for at, record in readable_records(run):
            txid = run.first_txid + at
            try:
                said = read_record(record)
            except RemoteProtocolError:
                continue
            if isinstance(said, Acknowledgment):
                if said.how != "expire":
                    self._remove(said.keys, txid, run, "")
                elif self._definition.dead_letters:
                    self._condemn(said.keys)
                else:
                    self._remove(said.keys, txid, run, "forced_expire")
            elif isinstance(said, Transfer):
                self._transfer(said, txid)
            elif said is not None:
                self._obey_removal(said, txid, run)
            if said is not None and self._watch is not None:
                self._watch(record, said, run)

    def _early(self, publisher: int, first: int, last: int) -> list[Range]:
        """Returns the sequences of first..last that have not come yet."""
        return early_ranges(self._history.held, publisher, first, last)

    def _obey_removal(self, said: Removal, txid: int, run: Run) -> None:
        is_own = said.by == self._name
        if said.why == "barrier" and not is_own:
            # Each instance sends it to its own consumers.
            return
        drafted = self._drafts.take(said.tag) if is_own else None
        if drafted is not None:
            self._send(drafted, txid)
        self._remove(said.keys, txid, run, said.why)

    def _remove(self, keys: Keys, txid: int, run: Run, reason: str) -> None:
        """Removes these messages from the queue, everywhere (rule 6)."""
        history = self._history
        if self._again:
            self._again.heard_removal(keys)
        for publisher, ranges in keys.items():
            known = self._known.get(publisher)
            early: list[Range] = []
            within = RangeFinder(known) if known else None
            for first, last in ranges:
                found: Sequence[QueuedMessage] = (
                    within.find(first, last) if within is not None else ()
                )
                if self._barriers and not reason:
                    # Who was sent one may acknowledge it; other instances are still to send it.
                    found = [message for message in found if not message.is_barrier]
                if found:
                    assert known is not None
                    for message in found:
                        del known[message.sequence]
                    self._leave_all(found, txid, reason)
                if found and run.path and reason in ("", "sent"):
                    age_us = self._received_us(run) - found[0].arrival.received_us
                    self._asking.acknowledged(age_us)
                early += self._early(publisher, first, last)
                if self._sent and reason not in ("sent", "left"):
                    self._forget_sent(publisher, first, last)
            if early:
                history.early.removed(publisher, early, txid, self._received_us(run))
            if known is not None and not known:
                del self._known[publisher]

    def _condemn(self, keys: Keys) -> None:
        """Somebody has said expire of these: nobody is given them any more, and their owner removes
        them behind their dead letters. What has not come yet is not condemned: it has no letter,
        so it is delivered."""
        for publisher, ranges in keys.items():
            known = self._known.get(publisher)
            if not known:
                continue
            within = RangeFinder(known)
            for first, last in ranges:
                for message in within.find(first, last):
                    if not message.is_barrier and message not in self._condemned:
                        self._condemned.add(message)
                        self._take_back(message)

    def _take_back(self, message: QueuedMessage) -> None:
        """Whoever has it, has it no more."""
        held = message.held
        if isinstance(held, MessageLease):
            self._holdings.end(message, held)
            if message.state == LEASED:
                self._picking.freed(held.consumer, message)
            self._release(message)
        elif message.state == AVAILABLE and self._is_ours(message):
            self._displace(message)
            self._place(message)

    def _leave_all(self, messages: Sequence[QueuedMessage], txid: int, reason: str) -> None:
        done: dict[Consumer, list[QueuedMessage]] = {}
        is_plain = not (
            reason or self._barriers or self._expirations.overdue or self._asking.is_waiting
        )
        for message in messages:
            held = message.held
            if is_plain and message.state == DONE and isinstance(held, MessageLease):
                # Most are: somebody has them, and his acknowledgment was told of before.
                there = done.get(held.consumer)
                if there is None:
                    there = done[held.consumer] = []
                there.append(message)
                message.state = GONE
                message.held = None
                message.arrival.live -= 1
            else:
                self._leave(message, txid, reason)
        for consumer, there in done.items():
            self._holdings.end_all(consumer, there)
            self._counted["left"] += len(there)

    def _leave(self, message: QueuedMessage, txid: int, reason: str) -> None:
        held, state = message.held, message.state
        if state in (LEASED, DONE):
            assert isinstance(held, MessageLease)
            self._holdings.end(message, held)
            if state == LEASED:
                self._picking.freed(held.consumer, message)
        elif state == AVAILABLE:
            self._displace(message)
        if message.is_barrier:
            self._barriers -= 1
            self._picking.remove(message)
        message.state = GONE
        message.held = None
        message.arrival.live -= 1
        self._counted["left"] += 1
        self._holdings.forget(message)
        if self._expirations.overdue:
            self._expirations.overdue.discard(message)
        if self._condemned:
            self._condemned.discard(message)
        if self._asking.is_waiting:
            self._asking.got(message.key)
        is_told = reason not in ("", "sent", "barrier", "left") and txid > self._told_txid
        if is_told and self._is_ours(message):
            self._said.append(Expiration(message.txid, message.key, reason))

    def _forget_sent(self, publisher: int, first: int, last: int) -> None:
        keys = ((publisher, sequence) for sequence in range(first, last + 1))
        if last - first >= len(self._sent):
            keys = (key for key in list(self._sent) if key[0] == publisher)
        for key in keys:
            if first <= key[1] <= last and key in self._sent:
                message, consumer = self._sent.pop(key)
                self._picking.freed(consumer, message)

    def _transfer(self, said: Transfer, txid: int) -> None:
        """Takes registers in by their order, whoever wrote them (rule 1)."""
        history = self._history
        if said.names:
            self.named(said.names)
            is_herald = said.by != self._name and set(said.names.values()) == {said.by}
            is_late = self._owners.has_former or bool(history.held.sets)
            if is_herald and txid > self._told_txid and is_late:
                # Who has lost its disk, or is new, gets the messages that there are, but not the
                # records that said who took them in: they may be removed everywhere.
                self._tells_names = self._definition.is_distributed
        finders: dict[int, RangeFinder] = {}
        for move in said.moves:
            if self._definition.kind == "local":
                break
            publisher, first, last, generation, owner = move
            if self._again:
                self._again.heard_move(move)
            register = self._owners.shared(generation, owner)
            known = self._known.get(publisher)
            if known:
                within = finders.get(publisher)
                if within is None:
                    within = finders[publisher] = RangeFinder(known)
                for message in within.find(first, last):
                    self._moved(message, register)
            early = self._early(publisher, first, last)
            if early:
                history.early.moved(publisher, early, register, txid)
        if said.by == self._name:
            drafted = self._drafts.take(said.tag)
            if drafted is not None:
                self._thaw(drafted)

    def _moved(self, message: QueuedMessage, register: Ownership) -> None:
        before = message.register
        if not is_better(register, before) and (register.generation or before.generation):
            return
        is_available = message.state == AVAILABLE
        if is_available:
            self._displace(message)
        message.register = register
        if register.owner == self._name:
            self._counted["transferred_in"] += before.owner != self._name
            if self._asking.is_waiting:
                self._asking.got(message.key, self._now_us)
        else:
            self._counted["transferred_out"] += before.owner == self._name
        if is_available:
            self._place(message)

    def named(self, names: Mapping[int, str]) -> None:
        """Incarnations are known by name: messages that they took in belong to these."""
        for incarnation in self._owners.named(names):
            register = self._owners.shared(0, names[incarnation])
            for message in self._unnamed.pop(incarnation, ()):
                if message.state == GONE or message.register.owner:
                    continue
                message.register = register
                if message.state == AVAILABLE and not message.is_barrier:
                    self._place(message)

    # -- where messages stand ------------------------------------------------------------------
    def _is_ours(self, message: QueuedMessage) -> bool:
        return message.register.owner == self._name

    def _place(self, message: QueuedMessage) -> None:
        """Puts an available message where it is found again. A barrier is with `Dispatcher` for as
        long as it is in the queue."""
        if message.is_barrier:
            return
        if message.register.owner == self._name:
            # Where the append of its removal has failed, it is removed again.
            why = self._undone(message)
            if why and self._is_ready:
                self._drafts.remove(message, why)
            else:
                self._picking.add(message)
        else:
            self._asking.add(message)

    def _undone(self, message: QueuedMessage) -> str:
        """Returns why a message is to leave the queue without being done; empty: it is not."""
        if message in self._condemned:
            return "forced_expire"
        if message in self._expirations.overdue:
            return "time_limit"
        return self._holdings.spent(message)

    def _displace(self, message: QueuedMessage) -> None:
        """Takes an available message from there. Asking finds out by itself."""
        if message.register.owner == self._name and not message.is_barrier:
            self._picking.remove(message)

    def _release(self, message: QueuedMessage) -> None:
        """A message that was leased or frozen is available again."""
        message.state = AVAILABLE
        message.held = None
        self._place(message)

    def _thaw(self, drafted: PendingDraft) -> None:
        """A draft is over: what still waits for it is available."""
        for message in drafted.messages:
            if drafted.frozen(message):
                self._release(message)

    def _lease(self, message: QueuedMessage, lease: MessageLease) -> None:
        message.state = LEASED
        message.held = lease
        self._holdings.lease(message, lease)
        if lease.consumer in self._consumers:
            self._picking.leased(lease.consumer, message)

    def _send(self, drafted: PendingDraft, txid: int) -> None:
        """The removal of what is to be sent is in the journal."""
        found: dict[Consumer, list[LeasedDelivery]] = {}
        for message, receivers in zip(drafted.messages, drafted.receivers, strict=False):
            leased, consumers = receivers
            is_held = drafted.why == "sent" and consumers != []
            if not drafted.frozen(message):
                if is_held:
                    self._picking.freed(consumers[0], message)
                continue
            for consumer in consumers:
                found.setdefault(consumer, []).append(leased)
            if is_held:
                self._sent[message.key] = message, consumers[0]
        self._said += [DeliverOnce(consumer, there, txid) for consumer, there in found.items()]


class RangeFinder:
    """Finds messages by ranges that somebody else has written: what all of one record cost is
    bounded by the messages that there are, however many and wide they are.

    Args:
        known: the messages of one publisher; what is found may be taken out of it.
    """

    __slots__ = ("_known", "_left", "_sorted")

    def __init__(self, known: dict[int, QueuedMessage]) -> None:
        self._known = known
        self._left = 2 * len(known) + LOOKED_AT_LEAST
        self._sorted: list[int] | None = None

    def find(self, first: int, last: int) -> list[QueuedMessage]:
        """Returns the messages of first..last, in order."""
        width = last - first + 1
        known = self._known
        sequences: Iterable[int] = range(first, last + 1)
        if width > self._left:
            if self._sorted is None:
                self._sorted = sorted(known)
            begin = bisect_left(self._sorted, first)
            sequences = self._sorted[begin : bisect_right(self._sorted, last)]
        else:
            self._left -= width
        return [found for found in map(known.get, sequences) if found is not None]
