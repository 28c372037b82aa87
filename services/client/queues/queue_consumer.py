"""Messages of a queue as the application holds them: each is leased to this consumer until it
acknowledges it, gives it back, or disconnects."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from math import inf
from types import TracebackType
from typing import Any, Generic, Literal, Protocol

from raylay.services.client.body_decoder import BodyDecoder, Value
from raylay.services.client.messages import (
    Message,
    MessageBatch,
    SequenceRange,
    identities,
    ranges_of,
)
from raylay.services.client.subscriptions.subscription import Subscription
from raylay.services.errors import LocalProtocolError

AckMode = Literal["auto", "manual"]
"""`auto`: a message is acknowledged when the next one is asked for; `manual`: by the
application."""


class ConsumerHost(Protocol):
    """The methods of the client that a consumer calls (`QueueOperations`)."""

    async def consume(self, consumer: QueueConsumer[Value]) -> Subscription[Value]:
        """Subscribes a consumer to its queue."""

    def leave(
        self, subscription: Subscription[Any], begun: Sequence[tuple[int, int]], *, is_cancel: bool
    ) -> None:
        """Ends the subscription of a consumer, and says which of its messages were begun."""

    def consumer_left(self, consumer: QueueConsumer[Any]) -> None:
        """Notes that a consumer has ended."""

    def settle(self, consumer: QueueConsumer[Any], message: QueueMessage[Any], how: str) -> None:
        """Settles a message: `ack`, `expire`, or `cancel`."""

    def settle_batch(self, consumer: QueueConsumer[Any], batch: QueueBatch[Any], how: str) -> None:
        """Settles all messages of a batch: `ack`, `expire`, or `cancel`."""

    def give_back(self, consumer: QueueConsumer[Any], keys: Sequence[tuple[int, int]]) -> None:
        """Gives back messages that the application was not given."""

    def publish_acks(self) -> None:
        """Publishes the acknowledgments that were held back."""


class QueueMessage(Message[Value]):
    """A message of a queue.

    Attributes:
        leased_key: publisher id and sequence, as `identity` returns them.
    """

    __slots__ = ("_consumer", "_is_said", "leased_key")

    def __init__(
        self,
        batch: MessageBatch[Value],
        offset: int,
        end: int,
        consumer: QueueConsumer[Value],
        key: tuple[int, int],
    ) -> None:
        super().__init__(batch, offset, end)
        self._consumer = consumer
        self.leased_key = key
        self._is_said = False

    def identity(self) -> tuple[int, int]:
        """Publisher id and sequence."""
        return self.leased_key

    @property
    def is_settled(self) -> bool:
        """Returns whether the message was acknowledged, expired or given back, or is not leased to
        this consumer any more: its lease has ended, the connection was lost, or the consumer has
        left. An acknowledgment still counts then, except with strict leasing."""
        return self._is_said or self._consumer.has_lost(self.batch)

    @property
    def queue(self) -> str:
        """Returns the name of the queue that delivered the message; `topic` is the topic to which
        it was published."""
        return self._consumer.queue

    @property
    def queue_type(self) -> str:
        """Returns the message type of the queue and of all its messages."""
        return self._consumer.type_of(self)

    def acknowledge(self) -> None:
        """Acknowledges the message as done: no consumer gets it any more. The acknowledgment is
        sent together with others, and again until it is durable; `Client.flush` waits for that. A
        second call has no effect."""
        self._say("ack")

    def cancel(self) -> None:
        """Gives the message back: another consumer gets it, or this one again."""
        self._say("cancel")

    def expire(self) -> None:
        """Removes the message from the queue as one that no consumer can handle: reason
        `forced_expire`."""
        self._say("expire")

    def is_overdue(self, now_s: float) -> bool:
        """Returns whether the message's lease has ended, or nearly so.

        Args:
            now_s: time by the steady clock, as `MessageBatch.lease_end_s`.
        """
        return 0.0 < self.batch.lease_end_s <= now_s

    def unsettled(self) -> list[tuple[int, int]]:
        """Returns the identity of the message, if nothing was said of it."""
        return [] if self._is_said else [self.leased_key]

    def _settle(self, how: str) -> None:
        """Settles the message, on the client's loop."""
        if not self._is_said:
            self._is_said = True
            self._consumer._settled(self, how)

    def _say(self, how: str) -> None:
        on_loop = self._consumer.on_loop
        if on_loop is None:
            self._settle(how)
        else:
            on_loop(lambda: self._settle(how))


class QueueBatch(Generic[Value]):
    """Messages of a queue that are read and settled together, at a fraction of the cost. One of
    them can still be settled by itself (`for message in batch: message.expire()`): what is said of
    the batch then applies to the others.

    Attributes:
        part: the records of the messages.
    """

    __slots__ = ("_consumer", "_is_said", "_messages", "part")

    def __init__(self, part: MessageBatch[Value], consumer: QueueConsumer[Value]) -> None:
        self.part = part
        self._consumer = consumer
        self._messages: list[QueueMessage[Value]] | None = None
        self._is_said = False

    def __len__(self) -> int:
        return self.part.count

    @property
    def is_settled(self) -> bool:
        """Returns whether the batch was acknowledged, expired or given back, or is not leased to
        this consumer any more; see `QueueMessage.is_settled`."""
        return self._is_said or self._consumer.has_lost(self.part)

    def bodies(self) -> list[bytes]:
        """Returns every message's body, in order."""
        return self.part.bodies()

    def json(self) -> list[Value]:
        """Returns every message's value, in order, as `Message.json`.

        Raises:
            BodyTypeError: a body does not fit; names the message. To settle such messages by
                themselves, call `json` of each.
        """
        return self.part.json()

    def __iter__(self) -> Iterator[QueueMessage[Value]]:
        found = self._messages
        if found is None:
            found = self._messages = self._consumer.messages_of(self.part)
        return iter(found)

    def acknowledge(self) -> None:
        """Acknowledges the messages as done, as `QueueMessage.acknowledge`."""
        self._say("ack")

    def cancel(self) -> None:
        """Gives the messages back: other consumers get them, or this one again."""
        self._say("cancel")

    def expire(self) -> None:
        """Removes the messages from the queue: reason `forced_expire`."""
        self._say("expire")

    def ranges(self) -> list[SequenceRange]:
        """Returns the identities of the messages."""
        return ranges_of(self.part.payload, self.part.count)

    def is_overdue(self, now_s: float) -> bool:
        """Returns whether the leases of the messages have ended, or nearly so; see
        `QueueMessage.is_overdue`."""
        return 0.0 < self.part.lease_end_s <= now_s

    def unsettled(self) -> list[tuple[int, int]]:
        """Returns the identities of the messages of which nothing was said."""
        if self._messages is not None:
            return [each.leased_key for each in self._messages if not each._is_said]
        return [] if self._is_said else _keys_of(self.part)

    def _settle(self, how: str) -> None:
        """Settles the batch, on the client's loop."""
        if self._is_said:
            return
        self._is_said = True
        if self._messages is None:
            self._consumer.settled_batch(self, how)
            return
        for message in self._messages:
            message._settle(how)

    def _say(self, how: str) -> None:
        on_loop = self._consumer.on_loop
        if on_loop is None:
            self._settle(how)
        else:
            on_loop(lambda: self._settle(how))


class QueueConsumer(Generic[Value]):
    """A consumer of a queue:

        async with client.queue("work", backlog=100) as work:
            async for message in work:
                handle(message.body)

    Or, at less cost, `async for batch in work.batches()` (`QueueBatch`).

    With `ack="auto"` a message is acknowledged when the next one is asked for, and when the block
    is left without an exception; with one it is given back. With `ack="manual"` the application
    says of each message what became of it. Messages of which it has not said so when the block is
    left go back to the queue.

    After a failover the consumer goes on at the next instance. Messages that it holds from before
    may then come to another consumer. Their acknowledgments still count, except with strict
    leasing, where they are refused (`not_leased`).

    Owner: the client's event loop. One task iterates.
    """

    def __init__(
        self,
        host: ConsumerHost,
        queue: str,
        *,
        message_type: str,
        filter: str,
        backlog: int,
        ack: AckMode,
        batch: int,
        timeout_s: float,
        on_loop: Callable[[Callable[[], None]], None] | None = None,
        decoder: BodyDecoder | None = None,
    ) -> None:
        if ack not in ("auto", "manual"):
            raise LocalProtocolError(f"ack {ack!r} of queue {queue}: give auto or manual")
        if backlog < 1 or batch < 1:
            raise LocalProtocolError(f"backlog and batch of queue {queue} are at least 1")
        self.queue = queue
        self.message_type = message_type
        self.filter = filter
        self.backlog = backlog
        self.timeout_s = timeout_s
        self.batch = batch
        self.said_together = min(batch, max(1, backlog // 2))
        """Number of acknowledgments that are sent at once, while other messages are still to be
        handled."""
        self.is_auto = ack == "auto"
        self.on_loop = on_loop
        """Calls a function on the client's loop, where another thread iterates; None: the loop's
        own thread does."""
        self.decoder = decoder
        """Parses the bodies; None: the consumer was given no type."""
        self._host = host
        self._subscription: Subscription[Value] | None = None
        self._current: QueueMessage[Value] | QueueBatch[Value] | None = None
        self._held: deque[QueueMessage[Value]] = deque()
        self._parts: deque[MessageBatch[Value]] = deque()
        """Parts of a delivery that were not handed out, for a caller that reads batches."""
        self._is_last_try = False
        """Whether a message leaves the queue if its present delivery is in vain, too. Then the
        acknowledgments of finished messages leave the process before the next message is handled:
        if that one ends the process, the queue's owner takes the oldest message without an
        acknowledgment for the culprit."""
        self._given: list[QueueMessage[Value] | QueueBatch[Value]] = []
        """Messages that the application has been given, or is given next, and may not have settled.
        Empty with `ack="auto"`, where `_current` is the only such message."""
        self.returned_messages = 0
        """Number of messages that were given back because their leases had nearly ended."""
        self._arrived_through = 0
        """Number of the last delivery that was taken."""
        self._lost_through = 0
        """Number of the last delivery of which this consumer has no lease any more, nor of those
        before it."""

    def called_by(self, on_loop: Callable[[Callable[[], None]], None]) -> QueueConsumer[Value]:
        """Returns the same consumer, not entered yet, for an application that iterates in another
        thread. Its messages are settled through `on_loop`, on the client's loop."""
        return QueueConsumer(
            self._host,
            self.queue,
            message_type=self.message_type,
            filter=self.filter,
            backlog=self.backlog,
            ack="auto" if self.is_auto else "manual",
            batch=self.batch,
            timeout_s=self.timeout_s,
            on_loop=on_loop,
            decoder=self.decoder,
        )

    # -- the application's side --------------------------------------------------------------
    async def __aenter__(self) -> QueueConsumer[Value]:
        if self._subscription is not None:
            raise LocalProtocolError(f"this consumer of {self.queue} was entered before")
        self._subscription = await self._host.consume(self)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        current, self._current = self._current, None
        is_failure = self.is_auto and error is not None
        begun: list[tuple[int, int]] = []
        if current is not None and is_failure:
            begun = current.unsettled()
            current._is_said = True
        elif current is not None and self.is_auto:
            current._settle("ack")
        self._host.publish_acks()
        if self._subscription is not None:
            waiting = {each.leased_key for each in self._held}
            for given in self._given:
                begun += [key for key in given.unsettled() if key not in waiting]
            self._held.clear()
            self._parts.clear()
            self._given.clear()
            self._host.leave(self._subscription, begun, is_cancel=is_failure)
        self._lost_through = self._arrived_through
        self._host.consumer_left(self)

    def __aiter__(self) -> AsyncIterator[QueueMessage[Value]]:
        return self

    async def __anext__(self) -> QueueMessage[Value]:
        current = self._current
        if type(current) is QueueMessage and self.is_auto:
            # This does what `_settle_current` does, with fewer calls.
            self._current = None
            if not current._is_said:
                current._is_said = True
                self._host.settle(self, current, "ack")
        else:
            self._settle_current()
        if self._is_last_try:
            self._host.publish_acks()
        while True:
            held = self._held
            while held:
                message = held.popleft()
                if message._is_said:
                    continue
                end_s = message.batch.lease_end_s
                if 0.0 < end_s <= time.monotonic():
                    held.appendleft(message)
                    self.give_back_overdue()
                    held = self._held
                    continue
                self._current = message
                return message
            if self._parts:
                batch: MessageBatch[Value] | None = self._parts.popleft()
            else:
                batch = await self._next_delivery()
            if batch is None:
                raise StopAsyncIteration
            self._tries(batch)
            self._held = deque(self.messages_of(batch))
            if not self.is_auto:
                self._give(self._held)

    async def next_batch(self) -> QueueBatch[Value] | None:
        """Returns the next messages together, at most half the backlog, so that acknowledgments of
        one half are under way while the other half is handled; None when the client has ended.

        Raises:
            CommandFailed: the server ended the subscription.
            LocalProtocolError: messages of the last delivery were read one by one, and not all.
        """
        self._settle_current()
        if self._is_last_try:
            self._host.publish_acks()
        if self._held:
            raise LocalProtocolError(
                f"consumer of {self.queue}: {len(self._held)} messages of a delivery are to be "
                "read one by one: read single messages or batches, not both"
            )
        while True:
            while self._parts:
                part = self._parts.popleft()
                if 0.0 < part.lease_end_s <= time.monotonic():
                    self._parts.appendleft(part)
                    self.give_back_overdue()
                    continue
                self._tries(part)
                batch = QueueBatch(part, self)
                self._current = batch
                if not self.is_auto:
                    self._give((batch,))
                return batch
            delivery = await self._next_delivery()
            if delivery is None:
                return None
            self._parts.extend(_parts_of(delivery, self.said_together))

    async def batches(self) -> AsyncIterator[QueueBatch[Value]]:
        """Yields messages together, until the client ends: see `next_batch`. With `ack="auto"` a
        batch is acknowledged when the next one is asked for."""
        while (batch := await self.next_batch()) is not None:
            yield batch

    def _tries(self, batch: MessageBatch[Value]) -> None:
        """Notes which delivery, or which part of one, the application is given next."""
        self._is_last_try = batch.is_last_try
        if batch.is_last_try:
            self._host.publish_acks()

    def _give(self, given: Iterable[QueueMessage[Value] | QueueBatch[Value]]) -> None:
        """Remembers what the application is given with `ack="manual"`, until it has settled it or
        the leases have ended."""
        self._given += given
        if len(self._given) > 2 * self.backlog:
            now_s = time.monotonic()
            self._given = [
                each for each in self._given if each.unsettled() and not each.is_overdue(now_s)
            ]

    def _settle_current(self) -> None:
        """Notes that the application asks for more, and so is done with what it has."""
        current, self._current = self._current, None
        if current is not None and self.is_auto:
            current._settle("ack")

    @property
    def queued_messages(self) -> int:
        """Returns the number of messages that arrived and were not asked for yet."""
        here = len(self._held) + sum(part.count for part in self._parts)
        return here + (self._subscription.queued_messages if self._subscription else 0)

    # -- the client's side -------------------------------------------------------------------
    def give_back_overdue(self) -> float:
        """Gives back unhandled messages whose lease has ended, or nearly so: another consumer may
        have them already, and a message that no handler was given does not count as a failed
        delivery.

        Returns the time by the steady clock, as `MessageBatch.lease_end_s`, at which others have to
        be given back; infinity: none has to be. The client calls it by a timer, because a handler
        may hold up the iteration for longer than a lease.
        """
        now_s = time.monotonic()
        next_s = self._first_end_s()
        if next_s > now_s:
            return next_s
        overdue = []
        held, self._held = self._held, deque()
        for each in held:
            if not each.is_overdue(now_s):
                self._held.append(each)
            elif not each._is_said:
                each._is_said = True
                overdue.append(each.leased_key)
        parts, self._parts = self._parts, deque()
        for part in parts:
            if 0.0 < part.lease_end_s <= now_s:
                overdue += _keys_of(part)
            else:
                self._parts.append(part)
        if self._subscription is not None:
            for batch in self._subscription.take_overdue(now_s):
                overdue += _keys_of(batch)
        self.returned_messages += len(overdue)
        # Held-back acknowledgments go first, because their leases end, too.
        self._host.publish_acks()
        self._host.give_back(self, overdue)
        return self._first_end_s()

    def _first_end_s(self) -> float:
        """Returns the time at which the first unhandled messages have to be given back. What waits
        in one place arrived in the order of its leases."""
        ends = [self._held[0].batch.lease_end_s] if self._held else []
        if self._parts:
            ends.append(self._parts[0].lease_end_s)
        if self._subscription is not None:
            ends.append(self._subscription.first_lease_end_s)
        return min((end_s for end_s in ends if end_s), default=inf)

    def has_lost(self, batch: MessageBatch[Value]) -> bool:
        """Returns whether the messages of a delivery are not leased to this consumer any more."""
        return batch.arrival <= self._lost_through or batch.is_lease_over(time.monotonic())

    async def _next_delivery(self) -> MessageBatch[Value] | None:
        subscription = self._subscription
        if subscription is None:
            raise LocalProtocolError(
                f"enter the consumer of {self.queue} first: async with client.queue(…) as work"
            )
        if not subscription.queued_messages:
            # The consumer waits for more: the queue may give it more once these are acknowledged.
            self._host.publish_acks()
        batch = await subscription.next_batch()
        if batch is not None:
            batch.decoder = self.decoder
            self._arrived_through = batch.arrival
        return batch

    def messages_of(self, batch: MessageBatch[Value]) -> list[QueueMessage[Value]]:
        """Returns the messages of a delivery, or of a part of one."""
        return [
            QueueMessage(batch, offset, end, self, (publisher, sequence))
            for offset, end, publisher, sequence in identities(batch.payload, batch.count)
        ]

    def type_of(self, message: Message[Value]) -> str:
        """Returns the message type of the queue, which every message of it has."""
        if not self.message_type:
            self.message_type = message.message_type
        return self.message_type

    def _settled(self, message: QueueMessage[Value], how: str) -> None:
        if message is self._current:
            self._current = None
        self._host.settle(self, message, how)

    def settled_batch(self, batch: QueueBatch[Value], how: str) -> None:
        """Settles a batch of which no single message was settled, on the client's loop."""
        if batch is self._current:
            self._current = None
        self._host.settle_batch(self, batch, how)

    def disconnected(self) -> None:
        """Drops messages that were not handed out yet: they are delivered again, here or
        elsewhere."""
        self._held.clear()
        self._parts.clear()
        self._given.clear()
        self._lost_through = self._arrived_through
        if self._subscription is not None:
            self._subscription._drop_queued()


def _keys_of(batch: MessageBatch[Any]) -> list[tuple[int, int]]:
    return [
        (publisher, sequence)
        for _, _, publisher, sequence in identities(batch.payload, batch.count)
    ]


def _parts_of(batch: MessageBatch[Value], messages_max: int) -> list[MessageBatch[Value]]:
    """Returns a delivery in parts of at most so many messages."""
    if batch.count <= messages_max:
        return [batch]
    ends = [end for _, end, _, _ in identities(batch.payload, batch.count)]
    parts: list[MessageBatch[Value]] = []
    first = begin = 0
    while first < batch.count:
        last = min(first + messages_max, batch.count)
        part: MessageBatch[Value] = MessageBatch(
            batch.subscription_id,
            last - first,
            batch.payload[begin : ends[last - 1]],
            batch.timestamp_us,
            batch.first_txid,
            traced=batch.traced,
            queue=batch.queue,
            lease_s=batch.lease_s,
            is_last_try=batch.is_last_try,
        )
        part.arrival, part.lease_end_s = batch.arrival, batch.lease_end_s
        part.decoder, part.types = batch.decoder, batch.types
        parts.append(part)
        first, begin = last, ends[last - 1]
    return parts
