"""Messages of a queue as the application holds them: each is leased to this consumer until it
acknowledges it, gives it back, or disconnects."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from types import TracebackType
from typing import Protocol

from raylay.services.client.messages import Message, MessageBatch, identities
from raylay.services.client.subscriptions.subscription import Subscription
from raylay.services.errors import LocalProtocolError


class ConsumerHost(Protocol):
    """The methods of the client that a consumer calls (`QueueOperations`)."""

    async def consume(self, consumer: QueueConsumer) -> Subscription:
        """Subscribes a consumer to its queue."""

    def consumer_left(self, consumer: QueueConsumer) -> None:
        """Notes that a consumer has ended."""

    def settle(self, consumer: QueueConsumer, message: QueueMessage, how: str) -> None:
        """Settles a message: `ack`, `expire`, or `cancel`."""

    def give_back(self, consumer: QueueConsumer, keys: Sequence[tuple[int, int]]) -> None:
        """Gives back messages that the application was not given."""

    def publish_acks(self) -> None:
        """Publishes the acknowledgments that were held back."""


class QueueMessage(Message):
    """A message of a queue.

    Attributes:
        is_settled: whether the message was acknowledged, expired or given back, or is not leased to
            this consumer any more.
    """

    __slots__ = ("_consumer", "_key", "is_settled")

    def __init__(
        self,
        batch: MessageBatch,
        offset: int,
        end: int,
        consumer: QueueConsumer,
        key: tuple[int, int],
    ) -> None:
        super().__init__(batch, offset, end)
        self._consumer = consumer
        self._key = key
        self.is_settled = False

    def identity(self) -> tuple[int, int]:
        """Publisher id and sequence."""
        return self._key

    @property
    def queue(self) -> str:
        """Returns the name of the queue that delivered the message; `topic` is the topic to which
        it was published."""
        return self._consumer.queue

    @property
    def queue_type(self) -> str:
        """Returns the message type of the queue and of all its messages."""
        consumer = self._consumer
        if not consumer.message_type:
            consumer.message_type = self.message_type
        return consumer.message_type

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

    def _settle(self, how: str) -> None:
        """Settles the message, on the client's loop."""
        if not self.is_settled:
            self.is_settled = True
            self._consumer._settled(self, how)

    def _say(self, how: str) -> None:
        on_loop = self._consumer.on_loop
        if on_loop is None:
            self._settle(how)
        else:
            on_loop(lambda: self._settle(how))


class QueueConsumer:
    """A consumer of a queue:

        async with client.queue("work", backlog=100) as work:
            async for message in work:
                handle(message.body)

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
        ack: str,
        batch: int,
        timeout_s: float,
        on_loop: Callable[[Callable[[], None]], None] | None = None,
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
        self._host = host
        self._subscription: Subscription | None = None
        self._current: QueueMessage | None = None
        self._held: deque[QueueMessage] = deque()
        self.returned_messages = 0
        """Number of messages that were given back because their leases had nearly ended."""

    def called_by(self, on_loop: Callable[[Callable[[], None]], None]) -> QueueConsumer:
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
        )

    # -- the application's side --------------------------------------------------------------
    async def __aenter__(self) -> QueueConsumer:
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
        if current is not None and self.is_auto:
            current._settle("cancel" if error is not None else "ack")
        self._host.publish_acks()
        if self._subscription is not None:
            self._give_back_unseen(self._subscription)
            self._subscription.unsubscribe()
        self._host.consumer_left(self)

    def __aiter__(self) -> AsyncIterator[QueueMessage]:
        return self

    async def __anext__(self) -> QueueMessage:
        current, self._current = self._current, None
        if current is not None and self.is_auto:
            current._settle("ack")
        while True:
            held = self._held
            while held:
                message = held.popleft()
                if message.is_settled:
                    continue
                if message.is_overdue(time.monotonic()):
                    held.appendleft(message)
                    self._give_back_overdue()
                    held = self._held
                    continue
                self._current = message
                return message
            await self._next_batch()

    @property
    def queued_messages(self) -> int:
        """Returns the number of messages that arrived and were not asked for yet."""
        return len(self._held) + (self._subscription.queued_messages if self._subscription else 0)

    # -- the client's side -------------------------------------------------------------------
    def _give_back_overdue(self) -> None:
        """Gives back unhandled messages whose lease has ended, or nearly so: another consumer may
        have them already, and a message that no handler was given does not count as a failed
        delivery."""
        now_s = time.monotonic()
        overdue = [each for each in self._held if each.is_overdue(now_s)]
        self._held = deque(each for each in self._held if not each.is_overdue(now_s))
        self.returned_messages += len(overdue)
        # Held-back acknowledgments go first, because their leases end, too.
        self._host.publish_acks()
        self._host.give_back(self, [each.identity() for each in overdue])

    def _give_back_unseen(self, subscription: Subscription) -> None:
        keys = [each.identity() for each in self._held if not each.is_settled]
        for batch in subscription.queued_batches():
            keys += [
                (publisher, sequence)
                for _, _, publisher, sequence in identities(batch.payload, batch.count)
            ]
        self._held.clear()
        self._host.give_back(self, keys)

    async def _next_batch(self) -> None:
        subscription = self._subscription
        if subscription is None:
            raise LocalProtocolError(
                f"enter the consumer of {self.queue} first: async with client.queue(…) as work"
            )
        if not subscription.queued_messages:
            # The consumer waits for more: the queue may give it more once these are acknowledged.
            self._host.publish_acks()
        batch = await subscription.next_batch()
        if batch is None:
            raise StopAsyncIteration
        self._held = deque(
            [
                QueueMessage(batch, offset, end, self, (publisher, sequence))
                for offset, end, publisher, sequence in identities(batch.payload, batch.count)
            ]
        )

    def _settled(self, message: QueueMessage, how: str) -> None:
        if message is self._current:
            self._current = None
        self._host.settle(self, message, how)

    def disconnected(self) -> None:
        """Drops messages that were not handed out yet: they are delivered again, here or
        elsewhere."""
        self._held.clear()
        if self._subscription is not None:
            self._subscription._drop_queued()
