"""A client consumes queues (docs/queues.md)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any

import msgpack

from raylay.services.client.base import ends_client
from raylay.services.client.events import CommandAnswered, CommandWanted, Disconnected, Notify
from raylay.services.client.keywords import checks_keywords
from raylay.services.client.pending_acks import (
    AckRecord,
    PendingAcks,
    SampledAck,
    SampledAcks,
    records_of,
)
from raylay.services.client.publish import PublishOperations
from raylay.services.client.queue_consumer import QueueConsumer, QueueMessage
from raylay.services.client.sow import SowOperations
from raylay.services.client.subscription import Subscription
from raylay.services.errors import LocalProtocolError, PublishStoreFull, RaylayError
from raylay.services.messages.bookmarks import parse_point
from raylay.services.messages.records import Command
from raylay.services.protocol.frames import Header
from raylay.services.queues.records import (
    Acknowledgment,
    Keys,
    keys_of,
    read_acknowledgment,
)

ACK_INTERVAL_S = 0.01
"""What is done with is said after as long, where nothing else has it said before."""
ACK_BATCH = 100
RETRY_S = 0.5
TURN_S = 0.05
"""While there are consumers the loop notes so often that it turns."""
LEASE_MARGIN = 0.1
"""The part of a lease before whose end messages that nobody was given yet are given back."""


class QueueOperations(PublishOperations, SowOperations):
    """The queue operations of a client."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._acks = PendingAcks()
        self._sampled_acks = SampledAcks()
        self._acks_timer: asyncio.TimerHandle | None = None
        self._consumers: set[QueueConsumer] = set()
        self._turned_s = 0.0
        """When the loop was last known to turn, by `time.monotonic`: a frame that has come since
        may have waited in the socket from then on."""
        self._turn_timer: asyncio.TimerHandle | None = None
        self._commanding: dict[int, asyncio.Future[tuple[Header, bytes]]] = {}

    # -- what a user calls -------------------------------------------------------------------
    @checks_keywords
    def queue(
        self,
        name: str,
        *,
        message_type: str = "",
        filter: str = "",
        backlog: int = 1,
        ack: str = "auto",
        batch: int = ACK_BATCH,
        timeout_s: float = 30.0,
    ) -> QueueConsumer:
        """A consumer of a queue: `async with client.queue("work", backlog=100) as work:` (see
        `QueueConsumer`).

        Args:
            name: of the queue.
            message_type: where there are queues of this name for several; empty: the first.
            filter: only messages that pass it (docs/filters.md).
            backlog: messages that it has at one time and has not acknowledged, at most; the queue
                may allow fewer.
            ack: `auto`: a message is acknowledged when the next one is asked for; `manual`.
            batch: acknowledgments that are sent together, at most; no longer than 10 ms are they
                kept, nor while there is nothing else to do.
            timeout_s: for the server's answer.

        Raises:
            LocalProtocolError: a value is out of its range. When it is entered: CommandFailed where
                the server refused (`no_queue`, `bad_filter`, …).
        """
        return QueueConsumer(
            self,
            name,
            message_type=message_type,
            filter=filter,
            backlog=backlog,
            ack=ack,
            batch=batch,
            timeout_s=timeout_s,
        )

    @checks_keywords
    def acknowledge(
        self, queue: str, bookmarks: Iterable[str], *, message_type: str = "json", how: str = "ack"
    ) -> int:
        """Acknowledges messages of a queue by their bookmarks, whoever holds them; where leasing is
        strict, only what this client holds at its instance (`not_leased`). It is published:
        `flush` waits until it is durable, and says what was refused. Returns its sequence, the last
        one where it takes several records.

        Args:
            bookmarks: `Message.bookmark` of each.
            how: `ack`, or `expire`: as ones that nobody can do.

        Raises:
            LocalProtocolError: one is no bookmark of a message, or there is none.
            PublishStoreFull: there is no room; nothing was said.
        """
        points = [parse_point(each) for each in bookmarks]
        if not points or any(point.kind != "message" for point in points):
            raise LocalProtocolError(
                f"to acknowledge messages of {queue} give bookmarks of the form publisher|sequence|"
            )
        keys = keys_of((point.publisher, point.sequence) for point in points)
        for record in records_of(queue, message_type, Acknowledgment(keys, how)):
            sequence = self._publish_ack(record)
        return sequence

    @checks_keywords
    async def acknowledge_matching(
        self, queue: str, filter: str, *, message_type: str = "json", how: str = "ack"
    ) -> int:
        """Acknowledges, expires or gives back all messages of a queue that pass a filter, here and
        now; where leasing is strict, those that the instance owns and no other client holds.
        Returns how many.

        Args:
            how: `ack`, `expire` or `cancel`.

        Raises:
            CommandFailed: the server refused: `no_queue`, `bad_filter`, `bad_command`.
            ConnectionLost: nobody answered; it may have been done.
        """
        header: Header = {"c": "queue_ack", "t": queue, "mt": message_type, "filter": filter}
        found, _ = await self._command(header | {"how": how})
        return int(found.get("n") or 0)

    async def flush(self, timeout_s: float | None = None) -> None:
        """As of publishes; acknowledgments of queues' messages that wait for others are said
        before."""
        self._say_acks()
        await super().flush(timeout_s)

    @checks_keywords
    async def queue_status(self, queue: str, *, message_type: str = "json") -> dict[str, Any]:
        """Returns the status of a queue at the instance that the client is connected to
        (docs/queues.md).

        Raises:
            CommandFailed: there is no such queue: `no_queue`.
            ConnectionLost: nobody answered.
        """
        _, body = await self._command({"c": "queue_status", "t": queue, "mt": message_type})
        found: dict[str, Any] = msgpack.unpackb(body)
        return found

    # -- consumers ---------------------------------------------------------------------------
    def _lease_end_s(self, lease_s: float) -> float:
        return self._turned_s + lease_s * (1 - LEASE_MARGIN)

    def _turn(self) -> None:
        """Notes that the loop turns, for as long as there are consumers."""
        self._turn_timer = None
        if self._consumers and self._loop is not None:
            if self._connection is None or self._connection.is_reading:
                self._turned_s = time.monotonic()
            self._turn_timer = self._loop.call_later(TURN_S, self._turn)

    async def _consume(self, consumer: QueueConsumer) -> Subscription:
        self._turned_s = time.monotonic()
        subscription = await self.subscribe(
            consumer.queue,
            message_type=consumer.message_type,
            filter=consumer.filter,
            timeout_s=consumer.timeout_s,
            max_backlog=consumer.backlog,
        )
        self._consumers.add(consumer)
        if self._turn_timer is None:
            self._turn()
        return subscription

    def _consumed(self, consumer: QueueConsumer) -> None:
        self._consumers.discard(consumer)

    def _done(self, consumer: QueueConsumer, message: QueueMessage, how: str) -> None:
        publisher, sequence = message.identity()
        message_type = consumer.message_type or message.queue_type
        if how == "cancel":
            self._cancel(consumer, message_type, publisher, sequence)
            return
        self._acks.add(consumer.queue, message_type, publisher, sequence, how)
        if self._tracer is not None and message.is_sampled:
            of = consumer.queue, message.queue_type, how, publisher, sequence
            self._sampled_acks.add(SampledAck(*of, message.topic, message.trace, time.time_ns()))
        if self._acks.messages >= consumer.said_together:
            self._say_acks()
        elif self._acks_timer is None and self._loop is not None:
            self._acks_timer = self._loop.call_later(ACK_INTERVAL_S, self._acks_due)

    def _cancel(
        self, consumer: QueueConsumer, message_type: str, publisher: int, sequence: int
    ) -> None:
        keys = {publisher: [(sequence, sequence)]}
        self._send_cancel(consumer.queue, message_type, keys)

    def _give_back(self, consumer: QueueConsumer, keys: Sequence[tuple[int, int]]) -> None:
        if keys:
            self._send_cancel(consumer.queue, consumer.message_type, keys_of(keys), unseen=True)

    def _send_cancel(
        self, queue: str, message_type: str, keys: Keys, *, unseen: bool = False
    ) -> None:
        # Where there is no connection the leases are over already.
        if self._connection is None or not self._machine.instance:
            return
        flat = {publisher: [*chain.from_iterable(ranges)] for publisher, ranges in keys.items()}
        body: bytes = msgpack.packb(flat)
        header: Header = {"c": "queue_cancel", "t": queue, "mt": message_type}
        if unseen:
            header["unseen"] = True
        self._connection.send(header, body)

    @ends_client
    def _acks_due(self) -> None:
        self._say_acks()

    def _say_acks(self) -> None:
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
                if self._acks_timer is None and self._loop is not None:
                    self._acks_timer = self._loop.call_later(RETRY_S, self._acks_due)
            except RaylayError:
                # The client has ended: its leases end with it, and the messages come again.
                return
        # Sent here and now: the loop has no turn until the consumer has handled what it has, and
        # each answer that is waited for keeps room from it.
        self._machine.hurry()
        self._pump()

    def _trace_acks(self, record: AckRecord, sequence: int) -> None:
        """Tells the tracer which sampled messages a record acknowledges."""
        assert self._tracer is not None
        said = read_acknowledgment(record.body)
        for each in self._sampled_acks.take(record.queue, record.message_type, said):
            attributes: dict[str, Any] = {
                "bookmark": f"{each.publisher}|{each.sequence}|",
                "topic": each.topic,
                "queue": each.queue,
            }
            if each.how != "ack":
                attributes["how"] = each.how
            self._tracer.acknowledged(sequence, each.trace, attributes, each.since_ns)

    def _publish_ack(self, record: AckRecord) -> int:
        command = Command.QUEUE_ACKNOWLEDGMENT
        return self._publish_now(
            record.queue, record.body, record.message_type, 0, b"", b"", command
        )

    def _tell(self, effect: Notify) -> None:
        if isinstance(effect.event, Disconnected):
            for consumer in self._consumers:
                consumer._disconnected()
        super()._tell(effect)

    async def _shut_down(self) -> None:
        self._say_acks()
        if self._acks_timer is not None:
            self._acks_timer.cancel()
        if self._turn_timer is not None:
            self._turn_timer.cancel()
        await super()._shut_down()

    # -- commands that are answered once -----------------------------------------------------
    def _make_performers(self) -> dict[type[Any], Callable[[Any], None]]:
        return super()._make_performers() | {CommandAnswered: self._command_answered}

    async def _command(self, header: Header, body: bytes = b"") -> tuple[Header, bytes]:
        self._raise_if_ended()
        assert self._loop is not None, "connect first"
        self._asked_number = number = self._asked_number + 1
        answered = self._commanding[number] = self._loop.create_future()
        try:
            self._step(CommandWanted(number, header, body))
            self._waiting_for_server += 1
            self._update_reading()
            try:
                found: tuple[Header, bytes] = await answered
                return found
            finally:
                self._waiting_for_server -= 1
                self._update_reading()
        finally:
            self._commanding.pop(number, None)

    def _command_answered(self, effect: CommandAnswered) -> None:
        answered = self._commanding.get(effect.number)
        if answered is None or answered.done():
            return
        if effect.error is not None:
            answered.set_exception(effect.error)
        else:
            answered.set_result((effect.header, effect.body))

    def _fail_waiters(self, error: RaylayError) -> None:
        for waiter in self._commanding.values():
            if not waiter.done():
                waiter.set_exception(error)
                waiter.exception()
        super()._fail_waiters(error)
