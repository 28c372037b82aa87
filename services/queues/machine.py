"""The machine of a queue owner. It takes in what the journal says, and returns decisions
(queues.md).

Every instance that has the queue runs one machine, which reads the instance's own journal
(replicated_state.py). A decision of the machine is either carried out at once (a delivery, a
request) or drafted as a record. The message is frozen until that record is read back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from raylay.services.messages.records import Run
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
from raylay.services.queues.drafts import AGAIN, NAMES, TOLD
from raylay.services.queues.message import (
    AVAILABLE,
    DONE,
    FROZEN,
    LEASED,
    QueuedMessage,
    RangeFinder,
)
from raylay.services.queues.records import Keys, keys_of
from raylay.services.queues.replicated_state import ReplicatedQueueState
from raylay.services.queues.transfer.deferred_requests import DeferredRequest, DeferredRequests
from raylay.services.queues.transfer.disclaim import DisclaimTimer, answer
from raylay.services.queues.transfer.transfer_requests import REPEAT_US


class QueueMachine:
    """See the file's docstring.

    Owner: the queue owner's process; in the simulator, its instance.

    Args:
        state: the queue as the journal describes it. The machine's own decisions change it, too.
            Questions about messages are asked of the state.
    """

    __slots__ = (
        "_definition",
        "_dispatcher",
        "_drafts",
        "_is_proxied",
        "_known",
        "_lacking",
        "_late",
        "_lease_us",
        "_leases",
        "_name",
        "_reachable",
        "_refused",
        "_requests",
        "state",
    )

    def __init__(self, state: ReplicatedQueueState) -> None:
        self.state = state
        self._definition = state.definition
        self._name = state.name
        self._known = state.known
        self._dispatcher = state.dispatcher
        self._requests = state.requests
        self._leases = state.leases
        self._drafts = state.drafts
        self._lease_us = state.definition.lease_us
        self._refused = DeferredRequests()
        self._lacking = DisclaimTimer()
        self._late: dict[Consumer, int] = {}
        """The consumers that let leases end, and the time until which they come after the
        others."""
        self._is_proxied = False
        self._reachable: frozenset[str] = frozenset()
        self._look_ready()

    def fold(self, runs: Sequence[Run], now_us: int, through_txid: int = 0) -> None:
        """Takes in committed runs, in order.

        Args:
            through_txid: the transaction id up to which the journal was read, if that is behind the
                last of these runs.
        """
        self.state.now_us = now_us
        self.state.fold(runs, through_txid)
        self._look_ready()

    def at(self, now_us: int) -> None:
        """Sets the time at which the instance says what is said next."""
        self.state.now_us = now_us

    # -- consumers ---------------------------------------------------------------------------
    def subscribed(self, each: ConsumerSubscription) -> None:
        """Adds a consumer, or changes its filter or backlog. A known consumer keeps its messages.

        Raises:
            RemoteProtocolError: its filter is none.
        """
        self._dispatcher.subscribed(each)
        self._requests.consumers_changed()
        if each.consumer not in self.state.consumers:
            self.state.consumers.add(each.consumer)
            # These leases were told at the start, before the machine knew their consumer.
            for message in self._leases.of(each.consumer):
                if message.state == LEASED:
                    self._dispatcher.leased(each.consumer, message)

    def left(
        self, consumer: Consumer, *, begun: Keys | None = None, is_cancel: bool = False
    ) -> None:
        """Removes a consumer. Its messages are available again, but for those that it has
        acknowledged. An acknowledgment is on its way to the disk, and its message stays leased
        until the lease ends, if it has an end: the append may fail, and then no client sends the
        acknowledgment again.

        Args:
            begun: the messages that a handler was given, as the consumer said when it unsubscribed.
                Of all that it holds, these count as delivered in vain. None: the consumer said
                nothing. Then only its oldest message counts: those behind it may have waited for
                their turn.
            is_cancel: whether those messages count as given back, too.
        """
        self.state.consumers.discard(consumer)
        self._dispatcher.left(consumer)
        self._drafts.left(consumer)
        for key in [
            key for key, told in self.state.told_leases.items() if told.consumer == consumer
        ]:
            del self.state.told_leases[key]
        held = self._leases.of(consumer)
        suspects = self._leases.suspects(held) if begun is None else self._held(consumer, begun)
        ended = [
            each
            for each in held
            if each.state != DONE or not each.held.until_us  # type: ignore[union-attr]
        ]
        self._end_in_vain(ended, suspects, is_cancel=is_cancel)
        self._leases.gone(consumer)
        self._late.pop(consumer, None)
        for key in [key for key, (_, of) in self.state.sent.items() if of == consumer]:
            del self.state.sent[key]

    def _held(self, consumer: Consumer, keys: Keys) -> list[QueuedMessage]:
        """Returns those of these messages that the consumer holds and has not acknowledged."""
        found: list[QueuedMessage] = []
        for publisher, ranges in keys.items():
            known = self._known.get(publisher)
            within = RangeFinder(known) if known else None
            for first, last in ranges:
                for message in within.find(first, last) if within is not None else ():
                    held = message.held
                    is_held = message.state == LEASED and isinstance(held, MessageLease)
                    if is_held and held.consumer == consumer:  # type: ignore[union-attr]
                        found.append(message)
        return found

    def cancelled(
        self, consumer: Consumer, leases: Sequence[tuple[Key, int]], *, unseen: bool = False
    ) -> None:
        """Takes back messages that a consumer gives back, each with the number of its lease.

        Args:
            unseen: whether no handler was given the messages before their leases were nearly over.
                Then they count neither as delivered nor as given back.
        """
        is_late = False
        for message in self._leased(consumer, leases):
            is_late |= unseen and message.state == LEASED
            self._end_lease(message, in_vain=not unseen, is_cancel=not unseen)
        if is_late:
            self._lapsed((consumer,))

    def bounced(self, consumer: Consumer, leases: Sequence[tuple[Key, int]]) -> None:
        """Takes back messages that the instance did not deliver: their lease was over, their
        consumer was gone, or they were removed meanwhile (rule 10)."""
        for message in self._leased(consumer, leases):
            self._end_lease(message)

    def done(self, keys: Keys) -> None:
        """Notes that an acknowledgment of these messages is on its way to the disk, so that their
        consumer has room for others at once. The messages stay the consumer's meanwhile: if the
        append fails, the client sends the acknowledgment again, and no other consumer has been
        given them."""
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
                if self.state.sent:
                    self.state.forget_sent(publisher, first, last)
        for consumer, count in freed.items():
            if self._late:
                self._recovered(consumer)
            self._dispatcher.freed_count(consumer, count)

    def _leased(
        self, consumer: Consumer, leases: Sequence[tuple[Key, int]]
    ) -> Iterator[QueuedMessage]:
        for key, number in leases:
            publisher, sequence = key
            message = self._known.get(publisher, {}).get(sequence)
            held = message.held if message is not None else None
            told = self.state.told_leases.get(key)
            if told is not None and (told.consumer, told.number) == (consumer, number):
                # The message of this lease has not been read yet.
                del self.state.told_leases[key]
            if message is None or not isinstance(held, MessageLease):
                continue
            if held.consumer == consumer and held.number == number:
                yield message

    def _end_lease(
        self, message: QueuedMessage, *, in_vain: bool = False, is_cancel: bool = False
    ) -> None:
        lease = message.held
        assert isinstance(lease, MessageLease)
        self._leases.end(message, lease)
        if message.state == LEASED:
            self._dispatcher.freed(lease.consumer, message)
        reason = self._leases.tried(message, is_cancel=is_cancel) if in_vain else ""
        if reason and self.state.is_ready and self.state.is_ours(message):
            self._drafts.remove(message, reason, deliveries=self._leases.deliveries(message))
        else:
            self.state.release(message)
            if self._refused:
                self._refused.freed()

    # -- what the instance says ----------------------------------------------------------------
    def failed(self, tags: Collection[int], committed_txid: int) -> None:
        """Notes that the append of these drafts has failed, so their messages are available again.
        Nothing that was staged with them comes to the disk either.

        Args:
            committed_txid: the transaction id at which the journal ends.
        """
        self.state.fence_txid = min(self.state.fence_txid, committed_txid)
        self.state.clock_steps.failed(committed_txid)
        self._look_ready()
        for drafted in self._drafts.failed(tags):
            for message, receivers in zip(drafted.messages, drafted.receivers, strict=False):
                if drafted.why == "sent" and receivers[1]:
                    self._dispatcher.freed(receivers[1][0], message)
            self.state.thaw(drafted)
            if drafted.why == NAMES:
                self._drafts.tell_names(self.state.owners.names)
            elif drafted.why == AGAIN:
                self.state.reappends.again(drafted.gone, drafted.moves)

    def requested(self, requester: str, count: int, wanted: Sequence[TransferCandidate]) -> None:
        """Grants another instance up to `count` of the wanted messages. A refusal is not answered.
        Refused messages may still be granted later, unasked, until the instance requests again."""
        if self.state.is_ready:
            refusal = self._grant(DeferredRequest(requester, count, wanted))
            self._refused.note(refusal, self.state.now_us + REPEAT_US)
            if lacked := [each for each in wanted if self._lacks(each)]:
                self._answer(requester, refusal.places, lacked)

    def _lacks(self, wanted: TransferCandidate) -> bool:
        """Returns whether a message is requested of this instance, or of an owner that it stands in
        for by proxied transfer, and the message is not here or not this instance's."""
        owner, (publisher, sequence) = wanted.owner, wanted.key
        if owner != self._name and not (self._is_proxied and owner not in self._reachable):
            return False
        message = self._known.get(publisher, {}).get(sequence)
        return message is None or not self.state.is_ours(message)

    def _grant(self, asked: DeferredRequest) -> DeferredRequest:
        """Grants the requested messages that can be granted. Returns the rest as a deferred
        request."""
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
            if self.state.is_ours(message):
                taker = self._dispatcher.taker(message)
                if taker is not None and taker not in self._late:
                    refused.append(each)
                    continue
            elif not self._may_claim(message):
                continue
            granted.append((message, requester))
            self.state.displace(message)
            # The state keeps the same request from granting the message twice.
            message.state = FROZEN
        self._drafts.transfer(granted)
        return DeferredRequest(requester, count - len(granted), refused)

    def _grant_deferred(self) -> None:
        """Grants the messages that were refused before and can be granted now."""
        for until_us, refusal in self._refused.take(self.state.now_us):
            self._refused.note(self._grant(refusal), until_us)

    def _answer(self, requester: str, count: int, wanted: Sequence[TransferCandidate]) -> None:
        """Gives up messages that other instances take for this instance's and that it does not
        have, and tells the requester what it does not know of the others (rule 15)."""
        said = answer(self._name, requester, count, wanted, self.state.look_up)
        # Where the queue has a filter, a message that is not here may never have been in the queue.
        gone = [] if self._definition.filter else said.gone
        if not (said.grants or said.told or gone):
            return
        if not self._lacking.asked(requester, self.state.now_us):
            return
        if said.grants:
            self._drafts.let_go(said.grants, said.messages, said.absent)
        if (said.told or gone) and self._lacking.tells(requester, self.state.now_us):
            if said.told:
                self._drafts.say_moves(said.told, TOLD)
            if gone:
                self._drafts.say_gone(keys_of(gone), TOLD)

    def serves(self) -> None:
        """Notes that the instance serves, because it has what its peers have (rule 12)."""
        self.state.is_serving = True
        self._look_ready()

    def proxied(self, on: bool, reachable: frozenset[str]) -> None:
        """Sets whether messages whose owner is not known to be reachable may be claimed (rule
        13)."""
        self._is_proxied = on
        self._reachable = reachable

    def _may_claim(self, message: QueuedMessage) -> bool:
        return self._is_proxied and message.register.owner not in self._reachable

    def tick(self, now_us: int) -> None:
        self.state.now_us = now_us
        for consumer in [each for each, until_us in self._late.items() if until_us <= now_us]:
            self._recovered(consumer)
        self._end_by_time(now_us)
        if len(self.state.expirations):
            for message in self.state.expirations.due(now_us):
                self._expire(message)
            self.state.expirations.clean(self.state.depth)

    def _end_by_time(self, now_us: int) -> None:
        """Ends leases whose time is over. Of the messages that a consumer held at one time, only
        the oldest counts as delivered in vain: the others may have waited for their turn behind
        it."""
        ended = self._leases.ended(now_us)
        if ended:
            # In their order, each once.
            late: dict[Consumer, None] = {}
            for message in ended:
                if message.state == LEASED and isinstance(message.held, MessageLease):
                    late[message.held.consumer] = None
            self._end_in_vain(ended, self._leases.suspects(ended))
            self._lapsed(late)

    def _lapsed(self, consumers: Iterable[Consumer]) -> None:
        """Puts consumers that let leases end behind the others, until they acknowledge a message in
        time, or for as long as a lease."""
        if not self._lease_us:
            return
        until_us = self.state.now_us + self._lease_us
        for consumer in consumers:
            self._late[consumer] = until_us
            self._dispatcher.lapsed(consumer)

    def _recovered(self, consumer: Consumer) -> None:
        if self._late.pop(consumer, None) is not None:
            self._dispatcher.recovered(consumer)

    def _end_in_vain(
        self,
        ended: Sequence[QueuedMessage],
        suspects: Sequence[QueuedMessage],
        *,
        is_cancel: bool = False,
    ) -> None:
        """Ends the leases of these messages. The messages in `suspects` count as delivered in
        vain, and with `is_cancel` as given back."""
        counted = set(suspects)
        for message in ended:
            self._end_lease(message, in_vain=message in counted, is_cancel=is_cancel)

    def _expire(self, message: QueuedMessage, why: str = "time_limit") -> None:
        """Drafts the removal of a message that leaves the queue undone, if this instance owns
        it."""
        if self.state.is_ready and message.state == AVAILABLE and self.state.is_ours(message):
            self.state.displace(message)
            self._drafts.remove(message, why, deliveries=self._leases.deliveries(message))

    def _look_ready(self) -> None:
        """Makes the machine ready once the instance serves and all drafts of the previous owner
        have been read (rule 9)."""
        if self.state.is_ready or not self.state.is_serving:
            return
        if self.state.history.folded_txid < self.state.fence_txid:
            return
        self.state.is_ready = True
        self.state.told_leases.clear()
        for consumer in self._leases.consumers():
            if consumer not in self.state.consumers:
                self.left(consumer)
        for message in list(self.state.condemned):
            self._expire(message, "forced_expire")
        for message in list(self.state.expirations.overdue):
            self._expire(message)

    # -- decisions ---------------------------------------------------------------------------
    def take(self, now_us: int, messages_max: int) -> list[Decision]:
        """Returns the decisions that are due: deliveries, drafts and requests.

        Args:
            messages_max: the highest number of messages delivered.
        """
        self.state.now_us = now_us
        if self.state.is_ready:
            if self.state.reappends:
                self._say_again()
            if self.state.barriers:
                self._send_barrier()
            if self._late and self._refused.has_freed:
                # Consumers of other instances come before late ones here.
                self._grant_deferred()
            if self._definition.at_most_once:
                self._draft_sends(messages_max)
            else:
                self._deliver(messages_max)
            if self._definition.kind != "local":
                if self._refused.has_freed:
                    # Consumers here come first, and have been given what they can take.
                    self._grant_deferred()
                self._ask()
        return self.said()

    def said(self) -> list[Decision]:
        said, self.state.decisions = self.state.decisions, []
        said += self._drafts.flush()
        return said

    def _say_again(self) -> None:
        removals, transfers = self.state.reappends.take()
        for keys in removals:
            self._drafts.say_gone(keys, AGAIN)
        for moves in transfers:
            self._drafts.say_moves(moves, AGAIN)

    def _ask(self) -> None:
        room = self._dispatcher.room()
        if not room:
            return
        if self._is_proxied:
            self._claim(room)
        self.state.decisions += self._requests.requests(self.state.now_us, room, self._wants)

    def _deliver(self, messages_max: int) -> None:
        dispatcher, known_txid = self._dispatcher, self.state.history.folded_txid
        until_us = self.state.now_us + self._lease_us if self._lease_us else 0
        found: dict[Consumer, list[LeasedDelivery]] = {}
        last_tries: set[Consumer] = set()
        left = messages_max
        while left > 0:
            chosen = dispatcher.lease_next(left)
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
            self._leases.lease_all(consumer, messages, until_us)
            if self._leases.is_last_try(messages):
                last_tries.add(consumer)
        self.state.decisions += [
            DeliverLeased(consumer, there, known_txid, consumer in last_tries)
            for consumer, there in found.items()
        ]

    def _draft_sends(self, messages_max: int) -> None:
        """Drafts the removals of an at-most-once queue. Each is in the journal before its message
        is sent (rule 8)."""
        dispatcher = self._dispatcher
        for _ in range(messages_max):
            chosen = dispatcher.next()
            if chosen is None:
                break
            message, consumer = chosen
            dispatcher.leased(consumer, message)
            leased = LeasedDelivery(message.txid, message.key, self._drafts.number(), 0)
            self._drafts.remove(message, "sent", (leased, [consumer]))

    def _send_barrier(self) -> None:
        """Drafts the removal of the barrier whose turn it is. Each instance does so, whichever owns
        the message. In a local queue no other instance has consumers, so the barrier waits for a
        consumer here."""
        if self._definition.kind == "local" and not self.state.consumers:
            return
        turn = self._dispatcher.barrier(self.state.oldest_txid())
        if turn is not None and turn[0].state == AVAILABLE:
            message, consumers = turn
            leased = LeasedDelivery(message.txid, message.key, self._drafts.number(), 0)
            self._drafts.remove(message, "barrier", (leased, consumers))

    def _claim(self, room: int) -> None:
        """Takes over messages of owners that cannot be reached, for consumers here (rule 13)."""
        claimed: list[tuple[QueuedMessage, str]] = []
        for owner in self._requests.owners():
            if owner in self._reachable or len(claimed) >= room:
                continue
            most = room - len(claimed)
            for message in self._requests.candidates(owner, self.state.now_us, most, self._wants):
                claimed.append((message, self._name))
        self._drafts.transfer(claimed)

    def _wants(self, message: QueuedMessage) -> bool:
        return self._dispatcher.taker(message) is not None

    # -- what is asked -------------------------------------------------------------------------
    def next_us(self, now_us: int) -> int:
        """Returns the latest time for the next call of `tick` and `take`, in microseconds since
        1970; 0: only when something new comes."""
        if self.state.is_ready and self._dispatcher.is_searching:
            return now_us
        times = [self._leases.first_us, self.state.expirations.first_us]
        if self.state.consumers and self._dispatcher.room():
            times.append(self._requests.next_us(now_us))
        return min(filter(None, times), default=0)

    def status(self) -> dict[str, Any]:
        """Returns the status for people and metrics (`with_lease_age`). Times are in microseconds;
        the oldest lease has no beginning where nothing is leased, or leases do not end."""
        first_end_us = self._leases.first_end_us()
        return {
            "queue_depth": self.state.depth,
            "available_here": len(self._dispatcher),
            "inactive_message_count": self._dispatcher.inactive_count,
            "backlog": len(self._leases) + len(self.state.sent),
            "expired_leases": self._leases.ended_count,
            "oldest_lease_began_us": first_end_us - self._lease_us if first_end_us else None,
            "drafts": len(self._drafts),
            "deferred_ack_count": self.state.history.early.removals_waiting,
            "deferred_ack_ranges": self.state.early_size,
            "unnamed_owners": len(self.state.unnamed),
            "overdue": len(self.state.expirations.overdue),
            "consumers": len(self.state.consumers),
            "proxied_transfer": self._is_proxied,
            "is_ready": self.state.is_ready,
            "usual_us": self._requests.usual_us,
            "folded_txid": self.state.folded_txid,
            "floor_txid": self.state.floor_txid,
            **self.state.counts,
        }
