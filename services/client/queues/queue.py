"""The queue side of a client (docs/queues.md): consumers and their acknowledgments."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, Literal

import msgpack

from raylay.services.client.body_decoder import Value
from raylay.services.client.publishing.publisher import Publisher
from raylay.services.client.queues.pending_acks import (
    AckRecord,
    PendingAcks,
    SampledAck,
    SampledAcks,
    records_of,
)
from raylay.services.client.queues.queue_consumer import (
    QueueBatch,
    QueueConsumer,
    QueueMessage,
)
from raylay.services.client.runtime import QUEUE_BYTES_MAX_DEFAULT, ClientRuntime
from raylay.services.client.subscriptions.subscriber import Subscriber
from raylay.services.client.subscriptions.subscription import Subscription
from raylay.services.client.subscriptions.subscription_state import SubscriptionState
from raylay.services.errors import (
    LocalProtocolError,
    PublishStoreFull,
    RaylayError,
    RemoteProtocolError,
)
from raylay.services.messages.bookmarks import Point, parse_point
from raylay.services.messages.ranges import Range
from raylay.services.messages.records import Command
from raylay.services.protocol.frames import Header
from raylay.services.queues.records import (
    RANGES_MAX,
    Acknowledgment,
    Keys,
    keys_of,
    read_acknowledgment,
)

Acknowledging = Literal["ack", "expire"]
"""Treatments of messages of a queue by their bookmarks: they are acknowledged, or expired because
no consumer can handle them."""
Settling = Literal["ack", "expire", "cancel"]
"""Treatments of messages of a queue that pass a filter; `cancel`: they are given back."""
ACK_INTERVAL_S = 0.01
"""Seconds after which settled messages are acknowledged, if nothing triggers that earlier."""
ACK_BATCH = 100
RETRY_S = 0.5
TURN_S = 0.05
"""Seconds between two notes that the loop turns, while there are consumers."""


class ConsumedQueue(SubscriptionState):
    """The subscription of a consumer, which acknowledges the messages."""

    has_consumer = True
    __slots__ = ()


class QueueOperations:
    """The queue operations of a client: its consumers and their acknowledgments.

    Owner: the client's event loop.
    """

    def __init__(
        self, runtime: ClientRuntime, publisher: Publisher, subscriber: Subscriber
    ) -> None:
        self._runtime = runtime
        self._publisher = publisher
        self._subscriber = subscriber
        self._acks = PendingAcks()
        self._sampled_acks = SampledAcks()
        self._acks_timer: asyncio.TimerHandle | None = None
        self._turn_timer: asyncio.TimerHandle | None = None

    def acknowledge(
        self, queue: str, bookmarks: Iterable[str], message_type: str, how: Acknowledging
    ) -> int:
        """Acknowledges messages by bookmarks, with the arguments and errors of
        `Client.acknowledge`. Returns the last sequence."""
        _check_how(queue, how, ("ack", "expire"))
        points = [] if isinstance(bookmarks, str) else [*map(_message, bookmarks)]
        if not points or None in points:
            raise LocalProtocolError(
                f"to acknowledge messages of {queue} give a list of bookmarks of the form "
                "publisher|sequence|"
            )
        self._runtime.acknowledges = True
        keys = keys_of((point.publisher, point.sequence) for point in points if point is not None)
        for record in records_of(queue, message_type, Acknowledgment(keys, how)):
            sequence = self._publish_ack(record)
        return sequence

    async def acknowledge_matching(
        self, queue: str, filter: str, message_type: str, how: Settling
    ) -> int:
        """Acknowledges messages by a filter, with the arguments and errors of
        `Client.acknowledge_matching`. Returns how many."""
        _check_how(queue, how, ("ack", "expire", "cancel"))
        self._runtime.acknowledges = True
        header: Header = {"c": "queue_ack", "t": queue, "mt": message_type, "filter": filter}
        found, _ = await self._runtime.command(header | {"how": how})
        return int(found.get("n") or 0)

    async def status(self, queue: str, message_type: str) -> dict[str, Any]:
        """Returns the status of a queue; raises as `Client.queue_status`."""
        header: Header = {"c": "queue_status", "t": queue, "mt": message_type}
        _, body = await self._runtime.command(header)
        found: dict[str, Any] = msgpack.unpackb(body)
        return found

    # -- consumers ---------------------------------------------------------------------------
    def _turn(self) -> None:
        """Notes that the loop turns, for as long as there are consumers, and has them give back
        unhandled messages in time."""
        self._turn_timer = None
        if not self._runtime.consumers or self._runtime.loop is None:
            return
        now_s = time.monotonic()
        if self._runtime.connection is None or self._runtime.connection.is_reading:
            self._runtime.turned_s = now_s
        try:
            next_s = min(consumer.give_back_overdue() for consumer in self._runtime.consumers)
        except Exception as error:  # no caller waits for this task
            self._runtime.end_by(error)
            return
        wait_s = min(TURN_S, max(0.0, next_s - now_s))
        self._turn_timer = self._runtime.loop.call_later(wait_s, self._turn)

    async def consume(self, consumer: QueueConsumer[Value]) -> Subscription[Value]:
        """Subscribes a consumer to its queue."""
        self._runtime.turned_s = time.monotonic()
        options = self._subscriber.given(filter=consumer.filter, max_backlog=consumer.backlog)
        number = self._runtime.next_subscription_number()
        state = ConsumedQueue(f"sub-{number}", consumer.queue, consumer.message_type, "", options)
        subscription = await self._subscriber.subscribe(
            state, QUEUE_BYTES_MAX_DEFAULT, consumer.timeout_s
        )
        self._runtime.consumers.add(consumer)
        if self._turn_timer is None:
            self._turn()
        return subscription

    def leave(
        self, subscription: Subscription[Any], begun: Sequence[tuple[int, int]], *, is_cancel: bool
    ) -> None:
        """Ends the subscription of a consumer. One frame says that it leaves and which of its
        messages were begun, so that the queue serves it nothing that it gives back, and so that
        what is still under way to it does not count.

        Args:
            begun: the messages that a handler was given and did not settle.
            is_cancel: whether these are given back because the handler failed.
        """
        # More ranges are refused; those beyond that many do not count.
        keys = keys_of(begun[:RANGES_MAX])
        subscription.parting = {"cancel": True} if is_cancel else {}, _packed(keys)
        subscription.unsubscribe()

    def consumer_left(self, consumer: QueueConsumer[Any]) -> None:
        """Forgets a consumer."""
        self._runtime.consumers.discard(consumer)

    def settle(self, consumer: QueueConsumer[Any], message: QueueMessage[Any], how: str) -> None:
        """Acknowledges, expires or gives back a message: `ack`, `expire` or `cancel`."""
        publisher, sequence = message.leased_key
        message_type = consumer.message_type or message.queue_type
        if how == "cancel":
            self._cancel(consumer, message_type, publisher, sequence)
            return
        self._acks.add(consumer.queue, message_type, publisher, sequence, how)
        if self._runtime.tracer is not None and message.is_sampled:
            of = consumer.queue, message.queue_type, how, publisher, sequence
            self._sampled_acks.add(SampledAck(*of, message.topic, message.trace, time.time_ns()))
        if self._acks_timer is None or self._acks.messages >= consumer.said_together:
            self._settled(consumer)

    def settle_batch(self, consumer: QueueConsumer[Any], batch: QueueBatch[Any], how: str) -> None:
        """Acknowledges, expires or gives back the messages of a batch, as `settle` does for one."""
        part = batch.part
        message_type = consumer.message_type or consumer.type_of(next(part.messages()))
        ranges = batch.ranges()
        if how == "cancel":
            keys: dict[int, list[Range]] = {}
            for publisher, first, last in ranges:
                keys.setdefault(publisher, []).append((first, last))
            self._send_cancel(
                consumer.queue, message_type, {of: sorted(each) for of, each in keys.items()}
            )
            return
        self._acks.add_ranges(consumer.queue, message_type, ranges, how)
        if self._runtime.tracer is not None and part.traced:
            for message in part.traced_messages():
                key = message.identity()
                of = consumer.queue, message_type, how, *key
                self._sampled_acks.add(
                    SampledAck(*of, message.topic, message.trace, time.time_ns())
                )
        self._settled(consumer)

    def _settled(self, consumer: QueueConsumer[Any]) -> None:
        """Sends the acknowledgments now, or soon."""
        if self._acks.messages >= consumer.said_together:
            self.publish_acks()
        elif self._acks_timer is None and self._runtime.loop is not None:
            self._acks_timer = self._runtime.loop.call_later(ACK_INTERVAL_S, self._acks_due)

    def _cancel(
        self, consumer: QueueConsumer[Any], message_type: str, publisher: int, sequence: int
    ) -> None:
        keys = {publisher: [(sequence, sequence)]}
        self._send_cancel(consumer.queue, message_type, keys)

    def give_back(self, consumer: QueueConsumer[Any], keys: Sequence[tuple[int, int]]) -> None:
        """Gives back messages that the application was not given."""
        if keys:
            self._send_cancel(consumer.queue, consumer.message_type, keys_of(keys), unseen=True)

    def _send_cancel(
        self, queue: str, message_type: str, keys: Keys, *, unseen: bool = False
    ) -> None:
        # Without a connection, the leases have ended already.
        if self._runtime.connection is None or not self._runtime.machine.instance:
            return
        header: Header = {"c": "queue_cancel", "t": queue, "mt": message_type}
        if unseen:
            header["unseen"] = True
        self._runtime.connection.send(header, _packed(keys))

    def _acks_due(self) -> None:
        try:
            self.publish_acks()
        except Exception as error:  # no caller waits for this task
            self._runtime.end_by(error)

    def publish_acks(self) -> None:
        """Publishes the acknowledgments that were held back."""
        if self._acks_timer is not None:
            self._acks_timer.cancel()
            self._acks_timer = None
        if not self._acks.messages:
            return
        for record in self._acks.take():
            try:
                sequence = self._publish_ack(record)
                if self._sampled_acks:
                    self._trace_acks(record, sequence)
            except PublishStoreFull:
                self._acks.put_back(record, read_acknowledgment(record.body))
                if self._acks_timer is None and self._runtime.loop is not None:
                    self._acks_timer = self._runtime.loop.call_later(RETRY_S, self._acks_due)
            except RaylayError:
                # The client has ended: its leases end with it, and the messages are delivered
                # again.
                return
        # Sent at once: the loop has no turn until the consumer has handled its messages, and each
        # unanswered acknowledgment takes room from it.
        self._runtime.machine.outbox.hurry()
        self._runtime.pump()

    def _trace_acks(self, record: AckRecord, sequence: int) -> None:
        """Tells the tracer which sampled messages a record acknowledges."""
        assert self._runtime.tracer is not None
        said = read_acknowledgment(record.body)
        for each in self._sampled_acks.take(record.queue, record.message_type, said):
            attributes: dict[str, Any] = {
                "bookmark": f"{each.publisher}|{each.sequence}|",
                "topic": each.topic,
                "queue": each.queue,
                **self._runtime.server_attributes(),
            }
            if each.how != "ack":
                attributes["how"] = each.how
            self._runtime.tracer.acknowledged(sequence, each.trace, attributes, each.since_ns)

    def _publish_ack(self, record: AckRecord) -> int:
        command = Command.QUEUE_ACKNOWLEDGMENT
        return self._publisher.publish_now(
            record.queue, record.body, record.message_type, 0, b"", b"", command
        )

    def shut_down(self) -> None:
        """Publishes all acknowledgments, and stops the timers."""
        self.publish_acks()
        for timer in (self._acks_timer, self._turn_timer):
            if timer is not None:
                timer.cancel()


def _message(bookmark: object) -> Point | None:
    """Returns the place of the one message that a bookmark names; None: it names no message."""
    try:
        point = parse_point(bookmark) if isinstance(bookmark, str) else None
    except RemoteProtocolError:
        return None
    return point if point is not None and point.kind == "message" else None


def _check_how(queue: str, how: str, known: Sequence[str]) -> None:
    """Refuses an unknown way to acknowledge messages.

    Raises:
        LocalProtocolError: the way is unknown; the text names those that are known.
    """
    if how not in known:
        raise LocalProtocolError(
            f"to acknowledge messages of {queue}: how is {how!r}: give {' or '.join(known)}"
        )


def _packed(keys: Keys) -> bytes:
    """Returns messages in the form that `read_keys` reads."""
    flat = {publisher: [*chain.from_iterable(ranges)] for publisher, ranges in keys.items()}
    packed: bytes = msgpack.packb(flat)
    return packed
