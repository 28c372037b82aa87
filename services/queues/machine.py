"""The machine of a queue owner: what the journal says comes in, decisions come out (queues.md).

Every instance that has the queue runs one, and reads its own journal (replicated_state.py). What
the machine decides itself, it either says at once (a delivery, a request) or drafts as a record;
the message is frozen until that comes back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from raylay.services.expressions.expression import Expression
from raylay.services.expressions.functions import BUILT_IN
from raylay.services.expressions.functions.registry import NO_CONTEXT, Functions
from raylay.services.messages.records import Run
from raylay.services.messages.types.base import MessageTypeTable
from raylay.services.queues.checkpoint import QueueCheckpoint, RecoveryStart
from raylay.services.queues.decisions import (
    Consumer,
    ConsumerSubscription,
    Decision,
    DeliverLeased,
    Key,
    LeasedDelivery,
    MessageLease,
    TransferCandidate,
)
from raylay.services.queues.deferred_requests import DeferredRequest
from raylay.services.queues.definition import QueueDefinition
from raylay.services.queues.disclaim import answer
from raylay.services.queues.dispatcher import Dispatcher
from raylay.services.queues.drafts import AGAIN, NAMES, TOLD
from raylay.services.queues.entry import BodyReader
from raylay.services.queues.message import AVAILABLE, DONE, FROZEN, GONE, LEASED, QueuedMessage
from raylay.services.queues.ownership import Ownership
from raylay.services.queues.records import Keys, keys_of
from raylay.services.queues.replicated_state import RangeFinder, ReplicatedQueueState, Watch
from raylay.services.queues.transfer_requests import REPEAT_US

PART_SPANNED = 4_096
"""Transactions that a part of the queue spans, about: looked at in a turn, in 1 ms."""


class QueueMachine(ReplicatedQueueState):
    """See the file's docstring.

    Owner: the queue owner's process; in the simulator, its instance.

    Args:
        name, incarnation: of the instance.
        contents: reads what was not at hand in the fold, for filters of subscriptions.
        types: what bodies are read by.
        functions: those that expressions may use.
        group: of the instance.
        watch: is told of each record of the queue's own when it has taken effect.

    Raises:
        ConfigurationError: an expression of the definition is none.
    """

    __slots__ = ()

    def __init__(
        self,
        definition: QueueDefinition,
        name: str,
        incarnation: int,
        contents: BodyReader,
        start: RecoveryStart,
        picking: type[Dispatcher[Any]] = Dispatcher,
        *,
        types: MessageTypeTable | None = None,
        functions: Functions = BUILT_IN,
        group: str = "",
        watch: Watch | None = None,
    ) -> None:
        super().__init__(
            definition, name, incarnation, contents, start, picking, types, functions, group, watch
        )
        self._look_ready()

    def fold(self, runs: Sequence[Run], now_us: int, through_txid: int = 0) -> None:
        """Takes in what was committed, in order.

        Args:
            through_txid: the journal was read up to here, where it holds more than these runs.
        """
        self._now_us = now_us
        self._read(runs, through_txid)
        self._look_ready()

    def clock_set(self, after_txid: int, offset_us: int) -> None:
        """The wall clock of the instance was set: see `ClockSteps`."""
        self._steps.add(after_txid, offset_us)

    # -- consumers ---------------------------------------------------------------------------
    def subscribed(self, each: ConsumerSubscription) -> None:
        """There is a consumer, or it has another filter or backlog; what it has, it keeps.

        Raises:
            RemoteProtocolError: its filter is none.
        """
        self._picking.subscribed(each)
        self._asking.consumers_changed()
        if each.consumer not in self._consumers:
            self._consumers.add(each.consumer)
            # Leases that were told at the start, before their consumer was.
            for message in self._holdings.of(each.consumer):
                if message.state == LEASED:
                    self._picking.leased(each.consumer, message)

    def left(self, consumer: Consumer, *, has_said: bool = False) -> None:
        """The consumer is no more: what it had is available, but for what it has acknowledged. That
        is on its way to the disk, and nobody else's until its lease would have ended: an append may
        fail, and then nobody sends the acknowledgment again.

        Args:
            has_said: it gave back before what no handler was given, so all that it still holds
                counts as delivered in vain. Of a consumer that just went, the oldest message
                counts and no other: those behind it may have waited for their turn.
        """
        self._consumers.discard(consumer)
        self._picking.left(consumer)
        self._drafts.left(consumer)
        for key in [key for key, told in self._told_leases.items() if told.consumer == consumer]:
            del self._told_leases[key]
        held = self._holdings.of(consumer)
        suspects = held if has_said else self._holdings.suspects(held)
        ended = [
            each
            for each in held
            if each.state != DONE or not each.held.until_us  # type: ignore[union-attr]
        ]
        self._end_in_vain(ended, suspects)
        self._holdings.gone(consumer)
        for key in [key for key, (_, of) in self._sent.items() if of == consumer]:
            del self._sent[key]

    def cancelled(
        self, consumer: Consumer, leases: Sequence[tuple[Key, int]], *, unseen: bool = False
    ) -> None:
        """The consumer gives messages back: each with the number of its lease.

        Args:
            unseen: no handler was given them: they count neither as delivered nor as given back.
        """
        for message in self._leased(consumer, leases):
            self._end_lease(message, in_vain=not unseen, is_cancel=not unseen)

    def bounced(self, consumer: Consumer, leases: Sequence[tuple[Key, int]]) -> None:
        """The instance did not deliver these: their lease was over, or their consumer gone, or
        they were removed meanwhile (rule 10)."""
        for message in self._leased(consumer, leases):
            self._end_lease(message)

    def done(self, keys: Keys) -> None:
        """An acknowledgment of these is on its way to the disk: who holds them has room for others
        before it is there. They stay what they are until then: where the append fails, its client
        sends it again, and they are nobody else's meanwhile."""
        freed: dict[Consumer, int] = {}
        for publisher, ranges in keys.items():
            known = self._known.get(publisher)
            within = RangeFinder(known) if known else None
            for first, last in ranges:
                for message in within.find(first, last) if within is not None else ():
                    if message.state == LEASED:
                        message.state = DONE
                        consumer = message.held.consumer  # type: ignore[union-attr]
                        freed[consumer] = freed.get(consumer, 0) + 1
                if self._sent:
                    self._forget_sent(publisher, first, last)
        for consumer, count in freed.items():
            self._picking.freed_count(consumer, count)

    def _leased(
        self, consumer: Consumer, leases: Sequence[tuple[Key, int]]
    ) -> Iterator[QueuedMessage]:
        for key, number in leases:
            publisher, sequence = key
            message = self._known.get(publisher, {}).get(sequence)
            held = message.held if message is not None else None
            told = self._told_leases.get(key)
            if told is not None and (told.consumer, told.number) == (consumer, number):
                # Its message has not been read yet.
                del self._told_leases[key]
            if message is None or not isinstance(held, MessageLease):
                continue
            if held.consumer == consumer and held.number == number:
                yield message

    def _end_lease(
        self, message: QueuedMessage, *, in_vain: bool = False, is_cancel: bool = False
    ) -> None:
        lease = message.held
        assert isinstance(lease, MessageLease)
        self._holdings.end(message, lease)
        if message.state == LEASED:
            self._picking.freed(lease.consumer, message)
        reason = self._holdings.tried(message, is_cancel=is_cancel) if in_vain else ""
        if reason and self._is_ready and self._is_ours(message):
            self._drafts.remove(message, reason)
        else:
            self._release(message)
            if self._refused:
                self._refused.freed()

    # -- what the instance says ----------------------------------------------------------------
    def failed(self, tags: Collection[int], committed_txid: int) -> None:
        """The append of these drafts has failed: their messages are available again. What was
        staged with them is not to come either.

        Args:
            committed_txid: the journal's end.
        """
        self._fence_txid = min(self._fence_txid, committed_txid)
        self._steps.failed(committed_txid)
        self._look_ready()
        for drafted in self._drafts.failed(tags):
            for message, receivers in zip(drafted.messages, drafted.receivers, strict=False):
                if drafted.why == "sent" and receivers[1]:
                    self._picking.freed(receivers[1][0], message)
            self._thaw(drafted)
            if drafted.why == NAMES:
                self._drafts.tell_names(self._owners.names)
            elif drafted.why == AGAIN:
                self._again.again(drafted.gone, drafted.moves)

    def requested(self, requester: str, count: int, wanted: Sequence[TransferCandidate]) -> None:
        """Another instance asks for `count` of these. Refusal is silence, and what was refused may
        be granted later: until it asks again, without being asked for."""
        if self._is_ready:
            refusal = self._grant(DeferredRequest(requester, count, wanted))
            self._refused.note(refusal, self._now_us + REPEAT_US)
            if lacked := [each for each in wanted if self._lacks(each)]:
                self._answer(requester, refusal.places, lacked)

    def _lacks(self, wanted: TransferCandidate) -> bool:
        """Returns whether this instance is asked for what it cannot give, as far as it knows."""
        owner, (publisher, sequence) = wanted.owner, wanted.key
        if owner != self._name and not (self._is_proxied and owner not in self._reachable):
            return False
        message = self._known.get(publisher, {}).get(sequence)
        return message is None or not self._is_ours(message)

    def _grant(self, asked: DeferredRequest) -> DeferredRequest:
        """Grants what can be; gives what was not."""
        requester, count, wanted = asked
        granted: list[tuple[QueuedMessage, str]] = []
        refused: list[TransferCandidate] = []
        for each in wanted:
            if len(granted) >= count:
                break
            (publisher, sequence), _, _ = each
            message = self._known.get(publisher, {}).get(sequence)
            if message is None or message.is_barrier:
                continue
            if message.state != AVAILABLE:
                refused.append(each)
                continue
            if self._is_ours(message):
                if self._picking.taker(message) is not None:
                    refused.append(each)
                    continue
            elif not self._may_claim(message):
                continue
            granted.append((message, requester))
            self._displace(message)
            # It cannot be granted once more by this request.
            message.state = FROZEN
        self._drafts.transfer(granted)
        return DeferredRequest(requester, count - len(granted), refused)

    def _answer(self, requester: str, count: int, wanted: Sequence[TransferCandidate]) -> None:
        """Lets go what others take for this instance's, and it does not have (rule 15)."""
        said = answer(self._name, requester, count, wanted, self._look_for)
        # Where there is a filter, what is not here may never have been in the queue.
        gone = [] if self._definition.filter else said.gone
        if not (said.grants or said.told or gone):
            return
        if not self._lacking.asked(requester, self._now_us):
            return
        if said.grants:
            self._drafts.let_go(said.grants, said.messages, said.absent)
        if (said.told or gone) and self._lacking.tells(requester, self._now_us):
            if said.told:
                self._drafts.say_moves(said.told, TOLD)
            if gone:
                self._drafts.say_gone(keys_of(gone), TOLD)

    def _look_for(self, key: Key) -> tuple[QueuedMessage | None, Ownership | None]:
        publisher, sequence = key
        message = self._known.get(publisher, {}).get(sequence)
        if message is not None:
            return message, message.register
        if not self._early(publisher, sequence, sequence):
            return None, None
        return None, self._history.early.known_of(publisher, sequence)

    def serves(self) -> None:
        """The instance serves: it has what its peers have (rule 12)."""
        self._is_serving = True
        self._look_ready()

    def proxied(self, on: bool, reachable: frozenset[str]) -> None:
        """Sets whether messages whose owner is not known to be reachable may be claimed (rule
        13)."""
        self._is_proxied = on
        self._reachable = reachable

    def _may_claim(self, message: QueuedMessage) -> bool:
        return self._is_proxied and message.register.owner not in self._reachable

    def tick(self, now_us: int) -> None:
        """Ends leases and expires messages whose time is over."""
        self._now_us = now_us
        self._end_by_time(now_us)
        if len(self._expirations):
            for message in self._expirations.due(now_us):
                self._expire(message)
            self._expirations.clean(self.depth)

    def _end_by_time(self, now_us: int) -> None:
        """Ends leases whose time is over. Of those that a consumer held at one time the oldest one
        counts as delivered in vain: the others may have waited for their turn behind it."""
        ended = self._holdings.ended(now_us)
        if ended:
            self._end_in_vain(ended, self._holdings.suspects(ended))

    def _end_in_vain(
        self, ended: Sequence[QueuedMessage], suspects: Sequence[QueuedMessage]
    ) -> None:
        """Ends these leases; those of `suspects` count as delivered in vain."""
        counted = set(suspects)
        for message in ended:
            self._end_lease(message, in_vain=message in counted)

    def _expire(self, message: QueuedMessage, why: str = "time_limit") -> None:
        """Drafts the removal of a message that leaves undone, if it is this instance's to do so."""
        if self._is_ready and message.state == AVAILABLE and self._is_ours(message):
            self._displace(message)
            self._drafts.remove(message, why)

    def _look_ready(self) -> None:
        """Ready is who serves and has read all that its predecessor drafted (rule 9)."""
        if self._is_ready or not self._is_serving:
            return
        if self._history.folded_txid < self._fence_txid:
            return
        self._is_ready = True
        self._told_leases.clear()
        for consumer in self._holdings.consumers():
            if consumer not in self._consumers:
                self.left(consumer)
        for message in list(self._condemned):
            self._expire(message, "forced_expire")
        for message in list(self._expirations.overdue):
            self._expire(message)

    # -- decisions ---------------------------------------------------------------------------
    def take(self, now_us: int, messages_max: int) -> list[Decision]:
        """Returns the decisions that are due: who gets what, and what to ask for.

        Args:
            messages_max: that are delivered at most.
        """
        self._now_us = now_us
        if self._is_ready:
            if self._again:
                self._say_again()
            if self._barriers:
                self._send_barrier()
            if self._definition.at_most_once:
                self._draft_sends(messages_max)
            else:
                self._deliver(messages_max)
            if self._definition.kind != "local":
                if self._refused.has_freed:
                    # Consumers here come first: they have what they can take.
                    for until_us, refusal in self._refused.take(now_us):
                        self._refused.note(self._grant(refusal), until_us)
                self._ask()
        return self.said()

    def said(self) -> list[Decision]:
        """Returns the decisions that follow from what came in."""
        said, self._said = self._said, []
        said += self._drafts.flush()
        return said

    def _say_again(self) -> None:
        removals, transfers = self._again.take()
        for keys in removals:
            self._drafts.say_gone(keys, AGAIN)
        for moves in transfers:
            self._drafts.say_moves(moves, AGAIN)

    def _ask(self) -> None:
        room = self._picking.room()
        if not room:
            return
        if self._is_proxied:
            self._claim(room)
        self._said += self._asking.requests(self._now_us, room, self._wants)

    def _deliver(self, messages_max: int) -> None:
        picking, known_txid = self._picking, self._history.folded_txid
        until_us = self._now_us + self._lease_us if self._lease_us else 0
        found: dict[Consumer, list[LeasedDelivery]] = {}
        left = messages_max
        while left > 0:
            chosen = picking.lease_next(left)
            if chosen is None:
                break
            consumer, messages = chosen
            left -= len(messages)
            there = found.get(consumer)
            if there is None:
                there = found[consumer] = []
            number = self._drafts.numbers(len(messages))
            for message in messages:
                key = message.publisher, message.sequence
                message.state = LEASED
                message.held = MessageLease(key, consumer, number, until_us)
                there.append(LeasedDelivery(message.txid, key, number, until_us))
                number += 1
            self._holdings.lease_all(consumer, messages, until_us)
        self._said += [
            DeliverLeased(consumer, there, known_txid) for consumer, there in found.items()
        ]

    def _draft_sends(self, messages_max: int) -> None:
        """Drafts the removals of an at-most-once queue: each is journaled before the send (rule
        8)."""
        picking = self._picking
        for _ in range(messages_max):
            chosen = picking.next()
            if chosen is None:
                break
            message, consumer = chosen
            picking.leased(consumer, message)
            leased = LeasedDelivery(message.txid, message.key, self._drafts.number(), 0)
            self._drafts.remove(message, "sent", (leased, [consumer]))

    def _send_barrier(self) -> None:
        """Drafts the removal of the barrier whose turn it is: each instance does, whoever owns it.
        Where a queue is local nobody else has consumers: it waits for one here."""
        if self._definition.kind == "local" and not self._consumers:
            return
        turn = self._picking.barrier(self._oldest_txid())
        if turn is not None and turn[0].state == AVAILABLE:
            message, consumers = turn
            leased = LeasedDelivery(message.txid, message.key, self._drafts.number(), 0)
            self._drafts.remove(message, "barrier", (leased, consumers))

    def _oldest_txid(self) -> int:
        arrival = self._history.oldest
        if arrival is None:
            return 0
        found = (
            known[sequence].txid
            for publisher, ranges in arrival.parts()
            if (known := self._known.get(publisher))
            for first, last in ranges
            for sequence in range(first, last + 1)
            if sequence in known
        )
        return next(found)

    def _claim(self, room: int) -> None:
        """Takes messages of owners that are not reachable, for consumers here (rule 13)."""
        claimed: list[tuple[QueuedMessage, str]] = []
        for owner in self._asking.owners():
            if owner in self._reachable or len(claimed) >= room:
                continue
            most = room - len(claimed)
            for message in self._asking.candidates(owner, self._now_us, most, self._wants):
                claimed.append((message, self._name))
        self._drafts.transfer(claimed)

    def _wants(self, message: QueuedMessage) -> bool:
        return self._picking.taker(message) is not None

    # -- what is asked -------------------------------------------------------------------------
    def letters(self, tag: int) -> tuple[str, list[int]]:
        """The dead letters that are to be in the journal before a draft: see `Drafts.letters`."""
        return self._drafts.letters(tag)

    def is_out(self, tag: int) -> bool:
        """Returns whether a draft was neither read back nor has failed."""
        return self._drafts.is_out(tag)

    @property
    def depth(self) -> int:
        """Messages in the queue."""
        return self._counted["came"] - self._counted["left"]

    @property
    def folded_txid(self) -> int:
        """The transaction up to which the journal has been read."""
        return self._history.folded_txid

    @property
    def floor_txid(self) -> int:
        """The queue can be made again from the journal behind this transaction id."""
        return self._history.floor_txid

    @property
    def early_size(self) -> int:
        """The size in memory of acknowledgments whose messages have not come, in ranges."""
        return self._history.early.size

    @property
    def is_ready(self) -> bool:
        """Returns whether it decides anything."""
        return self._is_ready

    def next_us(self, now_us: int) -> int:
        """The latest time for the next call of `tick` and `take`, in microseconds since 1970; 0:
        when something comes."""
        if self._is_ready and self._picking.is_searching:
            return now_us
        times = [self._holdings.first_us, self._expirations.first_us]
        if self._consumers and self._picking.room():
            times.append(self._asking.next_us(now_us))
        return min(filter(None, times), default=0)

    def message(self, key: Key) -> QueuedMessage | None:
        """A message, if it is in the queue."""
        return self._known.get(key[0], {}).get(key[1])

    def part(self, behind_txid: int = 0) -> list[QueuedMessage]:
        """The next messages of the queue, in order, of about `PART_SPANNED` transactions: none:
        there are no more. What comes or goes between two calls is there or not.

        Args:
            behind_txid: that of the last message of the part before.
        """
        found: list[QueuedMessage] = []
        while not found:
            arrivals = self._history.behind(behind_txid, PART_SPANNED)
            if not arrivals:
                break
            for arrival in arrivals:
                for publisher, ranges in arrival.parts():
                    known = self._known.get(publisher)
                    if known is None:
                        continue
                    for first, last in ranges:
                        found += filter(None, map(known.get, range(first, last + 1)))
            behind_txid = arrivals[-1].first_txid
        return found

    def found(
        self, wanted: Expression | None = None, *, available: bool = False
    ) -> Iterator[QueuedMessage]:
        """The messages of the queue, in order: as `part`.

        Args:
            wanted: those that it fits.
            available: those that nobody has and that no draft is about.
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
        """Returns whether it may be said from outside what becomes of a message. Where leasing is
        strict that is so of what this instance owns and keeps: who has others is not known here."""
        if not self._definition.strict:
            return True
        return self._is_ours(message) and message.state in (AVAILABLE, LEASED)

    def fits(self, message: QueuedMessage, wanted: Expression) -> bool:
        """Returns whether a filter is true of a message."""
        tree = self._contents.tree(message.txid)
        if tree is None:
            return False
        around = self._contents.around(message.txid) if wanted.asks_around else NO_CONTEXT
        return wanted.matches(tree, around)

    def registers(self) -> dict[Key, Ownership]:
        """Returns the owner of each message of the queue."""
        return {message.key: message.register for message in self.found()}

    def snapshot(self) -> QueueCheckpoint:
        """Returns the state from which the queue can be rebuilt, behind `floor_txid`."""
        return self._history.snapshot(self._owners.names)

    def stored(self) -> bytes:
        """The snapshot, for the queue's store."""
        return self.snapshot().to_bytes()

    def status(self) -> dict[str, Any]:
        """Returns the status for people and metrics; times in microseconds."""
        oldest = self._holdings.oldest()
        lease = oldest.held if oldest is not None else None
        since_us = lease.until_us - self._lease_us if isinstance(lease, MessageLease) else 0
        return {
            "queue_depth": self.depth,
            "available_here": len(self._picking),
            "inactive_message_count": self._picking.inactive_count,
            "backlog": len(self._holdings) + len(self._sent),
            "expired_leases": self._holdings.ended_count,
            "age_of_oldest_lease_us": self._now_us - since_us if since_us > 0 else 0,
            "drafts": len(self._drafts),
            "deferred_ack_count": self._history.early.removals_waiting,
            "deferred_ack_ranges": self.early_size,
            "unnamed_owners": len(self._unnamed),
            "overdue": len(self._expirations.overdue),
            "consumers": len(self._consumers),
            "proxied_transfer": self._is_proxied,
            "is_ready": self._is_ready,
            "usual_us": self._asking.usual_us,
            "folded_txid": self.folded_txid,
            "floor_txid": self.floor_txid,
            **self._counted,
        }
