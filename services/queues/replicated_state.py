"""The state of a queue as its instance's journal describes it: the messages, their owners, and the
state of each.

A record takes effect when it is read here, at the owner and at other instances alike (rules 1, 5
and 6). So all instances come to the same state, whatever way the records took.

An available message is in one of two places: in `Dispatcher`, if this instance owns it or it is a
barrier; in `TransferRequests`, if another instance owns it or its owner is not known yet. `_place`
puts it there, `displace` takes it out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence

from raylay.services.errors import MessageTypeError, RemoteProtocolError
from raylay.services.expressions.expression import Expression
from raylay.services.expressions.functions import BUILT_IN
from raylay.services.expressions.functions.registry import NO_CONTEXT, EvalContext, Functions
from raylay.services.messages.ranges import Range
from raylay.services.messages.readable import readable_records
from raylay.services.messages.records import (
    Flag,
    Kind,
    Record,
    Run,
)
from raylay.services.messages.types.base import MessageType, MessageTypeTable
from raylay.services.queues.checkpoint import Arrival, ArrivalLog, QueueCheckpoint, RecoveryStart
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
from raylay.services.queues.definition import QueueDefinition
from raylay.services.queues.delivery.dispatcher import Dispatcher
from raylay.services.queues.delivery.leases import LeaseTable
from raylay.services.queues.drafts import Drafts, PendingDraft
from raylay.services.queues.enqueue_rules import EnqueueRules
from raylay.services.queues.entry import BodyReader
from raylay.services.queues.expirations import MessageExpirations
from raylay.services.queues.message import (
    AVAILABLE,
    DONE,
    GONE,
    LEASED,
    QueuedMessage,
    RangeFinder,
)
from raylay.services.queues.records import (
    ACKNOWLEDGED,
    Acknowledgment,
    Keys,
    Removal,
    Transfer,
    read_record,
)
from raylay.services.queues.transfer.early_records import early_ranges
from raylay.services.queues.transfer.ownership import Ownership, OwnershipTable, is_better
from raylay.services.queues.transfer.reappends import Reappends
from raylay.services.queues.transfer.transfer_requests import TransferRequests

PART_SPANNED = 4_096
"""The number of transactions that a part of the queue spans, about. A turn looks at one part, in 1
ms."""
UNNAMED_MIN = 1_024
"""The number of messages of an unnamed incarnation above which those that have left the queue are
dropped, and the number of unnamed incarnations above which those without messages are dropped."""


Watch = Callable[[Record, Acknowledgment | Transfer | Removal, Run], None]
"""A callback for each record of the queue's own, called when the record has taken effect."""


class NoTypes:
    """The message types of a queue that reads no bodies."""

    def __getitem__(self, name: str) -> MessageType:
        """Raises an error, since there are no message types.

        Raises:
            MessageTypeError: always.
        """
        raise MessageTypeError(f"no message types are known here, {name} neither", name)


class ReplicatedQueueState:
    """See the file's docstring.

    Owner: a `QueueMachine`, which works with the parts that have no underscore.
    Invariants: `known` has every message of the queue, by publisher and sequence, in no state but
        `GONE`. A leased one holds its lease, a frozen one the tag of its draft.

    Args:
        name, incarnation: the name and incarnation of the instance.
        contents: the reader of bodies that are not at hand in the fold, for the filters of
            subscriptions.
        types: the message types by which bodies are read.
        functions: the functions that expressions may use.
        group: the group of the instance.
        watch: the callback for each record of the queue's own that has taken effect.

    Raises:
        ConfigurationError: an expression of the definition is none.
    """

    __slots__ = (
        "_contents",
        "_message_type",
        "_rules",
        "_tells_names",
        "_told_txid",
        "_topic",
        "_watch",
        "barriers",
        "clock_steps",
        "condemned",
        "consumers",
        "counts",
        "decisions",
        "definition",
        "dispatcher",
        "drafts",
        "expirations",
        "fence_txid",
        "followed",
        "history",
        "is_ready",
        "is_serving",
        "known",
        "leases",
        "name",
        "now_us",
        "owners",
        "reappends",
        "requests",
        "sent",
        "tells_acknowledged",
        "told_leases",
        "unnamed",
    )

    def __init__(
        self,
        definition: QueueDefinition,
        name: str,
        incarnation: int,
        contents: BodyReader,
        start: RecoveryStart,
        *,
        types: MessageTypeTable | None = None,
        functions: Functions = BUILT_IN,
        group: str = "",
        watch: Watch | None = None,
    ) -> None:
        snapshot = start.snapshot
        self.definition = definition
        self._topic = definition.name.encode()
        self._message_type = definition.message_type.encode()
        self.name = name
        self._rules = EnqueueRules(definition, types or NoTypes(), functions)
        self.owners = OwnershipTable(definition, name, incarnation, snapshot.names)
        self.history = ArrivalLog(snapshot, definition.deferred_ack_us)
        surroundings = EvalContext(instance=name, group=group)
        self._contents = contents
        self.dispatcher: Dispatcher[QueuedMessage] = Dispatcher(
            definition, contents, functions, surroundings
        )
        self.consumers: set[Consumer] = set()
        self.requests = TransferRequests()
        self.reappends = Reappends()
        self.leases = LeaseTable(definition.deliveries_max, definition.cancels_max)
        self.expirations = MessageExpirations()
        told = max((lease.number for lease in start.leases), default=0)
        self.drafts = Drafts(
            name,
            incarnation,
            start.life,
            start.fence_txid,
            told,
            has_letters=bool(definition.dead_letters),
        )
        self.condemned: set[QueuedMessage] = set()
        """Messages that a record has expired, in a queue with dead letters. Nobody is given them
        any more; their owner removes them behind the letters."""
        self.known: dict[int, dict[int, QueuedMessage]] = {}
        self.barriers = 0
        """The number of barriers in `known`."""
        self.unnamed: dict[int, list[QueuedMessage]] = {}
        """The messages whose owner is not known yet, by the unnamed incarnation that took them
        in."""
        self.sent: dict[Key, tuple[QueuedMessage, Consumer]] = {}
        """Messages that have left an at-most-once queue and still count in the backlog of their
        consumer."""
        self.told_leases = {lease.key: lease for lease in start.leases}
        self._told_txid = snapshot.folded_txid
        self.tells_acknowledged = False
        """Whether messages of this instance that are acknowledged are reported."""
        self.fence_txid = start.fence_txid
        self.is_serving = start.is_serving
        self.is_ready = False
        self._tells_names = False
        self.decisions: list[Decision] = []
        self.followed: deque[QueuedMessage] | None = None
        """Messages that have come to the queue or have left it for good (`GONE`), for views, in
        order; None: nobody follows them."""
        self.now_us = 0
        self.clock_steps = ClockSteps()
        self._watch = watch
        self.counts = dict.fromkeys(("came", "left", "transferred_in", "transferred_out"), 0)

    def fold(self, runs: Sequence[Run], through_txid: int) -> None:
        """Takes in committed runs, in order."""
        history = self.history
        for run in runs:
            if run.kind == Kind.RECORDS:
                if run.flags & Flag.COMMANDS:
                    if run.topic == self._topic and run.message_type == self._message_type:
                        self._obey(run)
                elif self._rules.takes(run.topic, run.message_type):
                    self._arrive(run)
            history.folded_txid = max(history.folded_txid, run.last_txid)
        history.folded_txid = max(history.folded_txid, through_txid)
        history.advance()
        if self._tells_names:
            self._tells_names = False
            self.drafts.tell_names(self.owners.names)

    def _arrive(self, run: Run) -> None:
        history = self.history
        publisher, ranges = run.publisher, run.ranges()
        received_us = self._received_us(run)
        gone: list[Range] = []
        moved: list[tuple[int, int, Ownership]] = []
        since_txid = 0
        if history.early:
            gone, moved, since_txid = history.early.arrived(publisher, ranges, received_us)
        register = self.owners.initial(run.path)
        arrival = history.arrived(publisher, ranges, run.first_txid, run.last_txid, received_us)
        known = self.known.get(publisher)
        if known is None:
            known = self.known[publisher] = {}
        plain = None
        is_plain = not (gone or moved or self.told_leases or self.drafts.waits_for_absent)
        if is_plain and register.owner:
            plain = self._rules.plain(run)
        if plain is None:
            if moved and not history.reaches_back(arrival, since_txid):
                for first, last, found in moved:
                    self.reappends.moved(publisher, first, last, found)
            self._arrive_one_by_one(run, arrival, register, known, gone, moved)
            return
        arrival.live += len(plain)
        self.counts["came"] += len(plain)
        messages = [
            QueuedMessage(arrival, txid, (publisher, sequence), register)
            for txid, sequence in enumerate(plain, run.first_txid)
        ]
        known.update(zip(plain, messages, strict=True))
        if self.followed is not None:
            self.followed += messages
        if register.owner == self.name:
            self.dispatcher.add_all(messages)
        else:
            for message in messages:
                self.requests.add(message)

    def _received_us(self, run: Run) -> int:
        return self.clock_steps.steady_us(run.first_txid, run.receive_time_us, self.now_us)

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
            sequence: self.owners.shared(*register)
            for first, last, register in moved
            for sequence in range(first, last + 1)
        }
        for coming in self._rules.each(run, self._received_us(run)):
            # Each instance sends a barrier itself, so a removal from elsewhere does not count.
            if coming.sequence in left and not coming.is_barrier:
                if self.definition.is_distributed:
                    self.reappends.removed(run.publisher, coming.sequence)
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
            self.counts["came"] += 1
            if self.followed is not None:
                self.followed.append(message)
            if coming.expires_us:
                self.expirations.note(message, coming.expires_us)
            if not register.owner:
                self._note_unnamed(run.path[0], message)
            if message.is_barrier:
                self.barriers += 1
                self.dispatcher.add(message)
            lease = self.told_leases.pop(message.key, None)
            if lease is not None:
                self._lease(message, lease)
            elif not self.drafts.freezes(message):
                self._place(message)

    def _note_unnamed(self, incarnation: int, message: QueuedMessage) -> None:
        there = self.unnamed.get(incarnation)
        if there is None:
            waiting = len(self.unnamed)
            if waiting >= UNNAMED_MIN and not waiting & (waiting - 1):
                self._forget_gone()
            there = self.unnamed[incarnation] = []
        if len(there) >= UNNAMED_MIN and not len(there) & (len(there) - 1):
            # The incarnation may never be named: messages that have left the queue do not wait for
            # it.
            there[:] = [each for each in there if each.state != GONE]
        there.append(message)

    def _forget_gone(self) -> None:
        """Forgets unnamed incarnations that have no message left in the queue. A link may bring one
        message each of very many incarnations."""
        for incarnation, messages in list(self.unnamed.items()):
            if all(each.state == GONE for each in messages):
                del self.unnamed[incarnation]

    def _obey(self, run: Run) -> None:
        """Applies the queue's own records. Invalid ones, which another instance may have accepted,
        have no effect."""
        for at, record in readable_records(run):
            txid = run.first_txid + at
            try:
                said = read_record(record)
            except RemoteProtocolError:
                continue
            if isinstance(said, Acknowledgment):
                if said.how != "expire":
                    self._remove(said.keys, txid, run, "")
                elif self.definition.dead_letters:
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
        """Returns those sequences of first..last whose messages have not come yet."""
        return early_ranges(self.history.held, publisher, first, last)

    def _obey_removal(self, said: Removal, txid: int, run: Run) -> None:
        is_own = said.by == self.name
        if said.why == "barrier" and not is_own:
            # Each instance sends a barrier to its own consumers.
            return
        drafted = self.drafts.take(said.tag) if is_own else None
        if drafted is not None:
            self._send(drafted, txid)
        self._remove(said.keys, txid, run, said.why)

    def _remove(self, keys: Keys, txid: int, run: Run, reason: str) -> None:
        """Removes these messages from the queue (rule 6)."""
        history = self.history
        if self.reappends:
            self.reappends.heard_removal(keys)
        for publisher, ranges in keys.items():
            known = self.known.get(publisher)
            early: list[Range] = []
            within = RangeFinder(known) if known else None
            for first, last in ranges:
                found: Sequence[QueuedMessage] = (
                    within.find(first, last) if within is not None else ()
                )
                if self.barriers and not reason:
                    # A consumer that was sent a barrier may acknowledge it before other instances
                    # have sent it.
                    found = [message for message in found if not message.is_barrier]
                if found:
                    assert known is not None
                    if self.tells_acknowledged and not reason and txid > self._told_txid:
                        self.decisions += [
                            Expiration(message.txid, message.key, ACKNOWLEDGED)
                            for message in found
                            if self.is_ours(message)
                        ]
                    for message in found:
                        del known[message.sequence]
                    self._leave_all(found, txid, reason)
                if found and run.path and reason in ("", "sent"):
                    age_us = self._received_us(run) - found[0].arrival.received_us
                    self.requests.acknowledged(age_us)
                early += self._early(publisher, first, last)
                if self.sent and reason not in ("sent", "left"):
                    self.forget_sent(publisher, first, last)
            if early:
                history.early.removed(publisher, early, txid, self._received_us(run))
            if known is not None and not known:
                del self.known[publisher]

    def _condemn(self, keys: Keys) -> None:
        """Condemns messages that a record has expired: no consumer gets them any more, and their
        owner removes them behind their dead letters. A message that has not come yet is not
        condemned. It can have no letter, so it is delivered."""
        for publisher, ranges in keys.items():
            known = self.known.get(publisher)
            if not known:
                continue
            within = RangeFinder(known)
            for first, last in ranges:
                for message in within.find(first, last):
                    if not message.is_barrier and message not in self.condemned:
                        self.condemned.add(message)
                        self._take_back(message)

    def _take_back(self, message: QueuedMessage) -> None:
        """Ends the lease of a message, or takes the message out of the available ones."""
        held = message.held
        if isinstance(held, MessageLease):
            self.leases.end(message, held)
            if message.state == LEASED:
                self.dispatcher.freed(held.consumer, message)
            self.release(message)
        elif message.state == AVAILABLE and self.is_ours(message):
            self.displace(message)
            self._place(message)

    def _leave_all(self, messages: Sequence[QueuedMessage], txid: int, reason: str) -> None:
        done: dict[Consumer, list[QueuedMessage]] = {}
        is_plain = not (
            reason or self.barriers or self.expirations.overdue or self.requests.is_waiting
        )
        for message in messages:
            held = message.held
            if is_plain and message.state == DONE and isinstance(held, MessageLease):
                # The usual case: the message is leased, and its acknowledgment was announced
                # before.
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
            self.leases.end_all(consumer, there)
            self.counts["left"] += len(there)
        if self.followed is not None:
            self.followed += messages

    def _leave(self, message: QueuedMessage, txid: int, reason: str) -> None:
        held, state = message.held, message.state
        if state in (LEASED, DONE):
            assert isinstance(held, MessageLease)
            self.leases.end(message, held)
            if state == LEASED:
                self.dispatcher.freed(held.consumer, message)
        elif state == AVAILABLE:
            self.displace(message)
        if message.is_barrier:
            self.barriers -= 1
            self.dispatcher.remove(message)
        message.state = GONE
        message.held = None
        message.arrival.live -= 1
        self.counts["left"] += 1
        self.leases.forget(message)
        if self.expirations.overdue:
            self.expirations.overdue.discard(message)
        if self.condemned:
            self.condemned.discard(message)
        if self.requests.is_waiting:
            self.requests.got(message.key)
        is_told = reason not in ("", "sent", "barrier", "left") and txid > self._told_txid
        if is_told and self.is_ours(message):
            self.decisions.append(Expiration(message.txid, message.key, reason))

    def forget_sent(self, publisher: int, first: int, last: int) -> None:
        keys = ((publisher, sequence) for sequence in range(first, last + 1))
        if last - first >= len(self.sent):
            keys = (key for key in list(self.sent) if key[0] == publisher)
        for key in keys:
            if first <= key[1] <= last and key in self.sent:
                message, consumer = self.sent.pop(key)
                self.dispatcher.freed(consumer, message)

    def _transfer(self, said: Transfer, txid: int) -> None:
        """Applies ownership changes in the order of ownerships, whichever instance wrote them (rule
        1)."""
        history = self.history
        if said.names:
            self.named(said.names)
            is_announcement = said.by != self.name and set(said.names.values()) == {said.by}
            is_late = self.owners.has_former or bool(history.held.sets)
            if is_announcement and txid > self._told_txid and is_late:
                # An instance that is new, or has lost its disk, gets the messages that are left,
                # but not the records that named the incarnations: these may have been removed
                # everywhere.
                self._tells_names = self.definition.is_distributed
        finders: dict[int, RangeFinder] = {}
        for move in said.moves:
            if self.definition.kind == "local":
                break
            publisher, first, last, generation, owner = move
            if self.reappends:
                self.reappends.heard_move(move)
            register = self.owners.shared(generation, owner)
            known = self.known.get(publisher)
            if known:
                within = finders.get(publisher)
                if within is None:
                    within = finders[publisher] = RangeFinder(known)
                for message in within.find(first, last):
                    self._moved(message, register)
            early = self._early(publisher, first, last)
            if early:
                history.early.moved(publisher, early, register, txid)
        if said.by == self.name:
            drafted = self.drafts.take(said.tag)
            if drafted is not None:
                self.thaw(drafted)

    def _moved(self, message: QueuedMessage, register: Ownership) -> None:
        before = message.register
        if not is_better(register, before) and (register.generation or before.generation):
            return
        is_available = message.state == AVAILABLE
        if is_available:
            self.displace(message)
        message.register = register
        if register.owner == self.name:
            self.counts["transferred_in"] += before.owner != self.name
            if self.requests.is_waiting:
                self.requests.got(message.key, self.now_us)
        else:
            self.counts["transferred_out"] += before.owner == self.name
        if is_available:
            self._place(message)

    def clock_set(self, after_txid: int, offset_us: int) -> None:
        """Takes a step of the instance's wall clock; see `ClockSteps`."""
        self.clock_steps.add(after_txid, offset_us)

    def named(self, names: Mapping[int, str]) -> None:
        """Takes names of incarnations. Messages of unknown owner that those took in now belong to
        the named instances."""
        for incarnation in self.owners.named(names):
            register = self.owners.shared(0, names[incarnation])
            for message in self.unnamed.pop(incarnation, ()):
                if message.state == GONE or message.register.owner:
                    continue
                message.register = register
                if message.state == AVAILABLE and not message.is_barrier:
                    self._place(message)

    def present(self) -> list[QueuedMessage]:
        """Returns the messages that are in the queue, in order."""
        every = (each for known in self.known.values() for each in known.values())
        return sorted((each for each in every if each.state != GONE), key=lambda each: each.txid)

    # -- where messages stand ------------------------------------------------------------------
    def is_ours(self, message: QueuedMessage) -> bool:
        return message.register.owner == self.name

    def _place(self, message: QueuedMessage) -> None:
        """Puts an available message where deliveries or requests find it. A barrier stays with
        `Dispatcher` for as long as it is in the queue."""
        if message.is_barrier:
            return
        if message.register.owner == self.name:
            # If the append of an earlier removal has failed, the message is removed again.
            why = self._undone(message)
            if why and self.is_ready:
                self.drafts.remove(message, why)
            else:
                self.dispatcher.add(message)
        else:
            self.requests.add(message)

    def _undone(self, message: QueuedMessage) -> str:
        """Returns the reason for which a message is to leave the queue undone; empty: there is
        none."""
        if message in self.condemned:
            return "forced_expire"
        if message in self.expirations.overdue:
            return "time_limit"
        return self.leases.spent(message)

    def displace(self, message: QueuedMessage) -> None:
        """Takes an available message of this instance out of `Dispatcher`. `TransferRequests` finds
        out by itself."""
        if message.register.owner == self.name and not message.is_barrier:
            self.dispatcher.remove(message)

    def release(self, message: QueuedMessage) -> None:
        """Makes a leased or frozen message available again."""
        message.state = AVAILABLE
        message.held = None
        self._place(message)

    def thaw(self, drafted: PendingDraft) -> None:
        """Makes the messages available that a finished draft still freezes."""
        for message in drafted.messages:
            if drafted.frozen(message):
                self.release(message)

    def _lease(self, message: QueuedMessage, lease: MessageLease) -> None:
        message.state = LEASED
        message.held = lease
        self.leases.lease(message, lease)
        if lease.consumer in self.consumers:
            self.dispatcher.leased(lease.consumer, message)

    def _send(self, drafted: PendingDraft, txid: int) -> None:
        """Sends the messages of a draft whose removals are in the journal now."""
        found: dict[Consumer, list[LeasedDelivery]] = {}
        for message, receivers in zip(drafted.messages, drafted.receivers, strict=False):
            leased, consumers = receivers
            is_held = drafted.why == "sent" and consumers != []
            if not drafted.frozen(message):
                if is_held:
                    self.dispatcher.freed(consumers[0], message)
                continue
            for consumer in consumers:
                found.setdefault(consumer, []).append(leased)
            if is_held:
                self.sent[message.key] = message, consumers[0]
        self.decisions += [DeliverOnce(consumer, there, txid) for consumer, there in found.items()]

    # -- what is asked -------------------------------------------------------------------------
    @property
    def depth(self) -> int:
        return self.counts["came"] - self.counts["left"]

    @property
    def folded_txid(self) -> int:
        """The transaction up to which the journal has been read."""
        return self.history.folded_txid

    @property
    def floor_txid(self) -> int:
        """The transaction id behind which the journal suffices to rebuild the queue."""
        return self.history.floor_txid

    @property
    def early_size(self) -> int:
        """The size of early removals and transfers in memory, in ranges."""
        return self.history.early.size

    def look_up(self, key: Key) -> tuple[QueuedMessage | None, Ownership | None]:
        """Returns a message that is in the queue, and its ownership. Of a message that has not come
        yet, returns only the ownership that records have given it. Returns two Nones if the message
        has left the queue."""
        publisher, sequence = key
        message = self.known.get(publisher, {}).get(sequence)
        if message is not None:
            return message, message.register
        if not self._early(publisher, sequence, sequence):
            return None, None
        return None, self.history.early.known_of(publisher, sequence)

    def oldest_txid(self) -> int:
        """Returns the transaction id of the oldest message; 0 if the queue is empty."""
        arrival = self.history.oldest
        if arrival is None:
            return 0
        found = (
            known[sequence].txid
            for publisher, ranges in arrival.parts()
            if (known := self.known.get(publisher))
            for first, last in ranges
            for sequence in range(first, last + 1)
            if sequence in known
        )
        return next(found)

    def message(self, key: Key) -> QueuedMessage | None:
        return self.known.get(key[0], {}).get(key[1])

    def part(self, behind_txid: int = 0) -> list[QueuedMessage]:
        """Returns the next messages of the queue, in order, of about `PART_SPANNED` transactions;
        an empty list at the end. Messages that come or go between two calls may be missed or not.

        Args:
            behind_txid: the transaction id of the last message of the previous part.
        """
        found: list[QueuedMessage] = []
        while not found:
            arrivals = self.history.behind(behind_txid, PART_SPANNED)
            if not arrivals:
                break
            for arrival in arrivals:
                for publisher, ranges in arrival.parts():
                    known = self.known.get(publisher)
                    if known is None:
                        continue
                    for first, last in ranges:
                        found += filter(None, map(known.get, range(first, last + 1)))
            behind_txid = arrivals[-1].first_txid
        return found

    def found(
        self, wanted: Expression | None = None, *, available: bool = False
    ) -> Iterator[QueuedMessage]:
        """Yields the messages of the queue, in order, part by part.

        Args:
            wanted: the filter that the messages must pass.
            available: whether to leave out messages that are leased or that a draft is about.
        """
        through_txid = self.folded_txid
        part = self.part()
        while part:
            for message in part:
                if message.txid > through_txid:
                    return
                if message.state == GONE or (available and message.state != AVAILABLE):
                    continue
                if wanted is None or self.fits(message, wanted):
                    yield message
            part = self.part(part[-1].txid)

    def may_be_said(self, message: QueuedMessage) -> bool:
        """Returns whether a caller from outside may decide about a message. Where leasing is
        strict, it may if this instance owns the message and no draft is about it: who holds
        messages of other owners is not known here."""
        if not self.definition.strict:
            return True
        return self.is_ours(message) and message.state in (AVAILABLE, LEASED)

    def fits(self, message: QueuedMessage, wanted: Expression) -> bool:
        tree = self._contents.tree(message.txid)
        if tree is None:
            return False
        around = self._contents.around(message.txid) if wanted.asks_around else NO_CONTEXT
        return wanted.matches(tree, around)

    def registers(self) -> dict[Key, Ownership]:
        return {message.key: message.register for message in self.found()}

    def snapshot(self) -> QueueCheckpoint:
        """Returns the state from which the queue can be rebuilt, behind `floor_txid`."""
        return self.history.snapshot(self.owners.names)

    def stored(self) -> bytes:
        return self.snapshot().to_bytes()
