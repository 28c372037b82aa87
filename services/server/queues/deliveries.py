"""Queue messages on their way to the sockets of clients, and the consumers with a full socket:
those keep their leases, and are given no more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from raylay.services.protocol.client.codec import Codec
from raylay.services.server.clients.deliver_occurrences import DELIVER, DeliverOccurrences
from raylay.services.server.recovered_instance import RecoveredInstance
from raylay.services.server.runtime import InstanceRuntime
from raylay.services.telemetry.tracing import traced

if TYPE_CHECKING:
    # Most instances have no queues.
    from raylay.services.queues.decisions import Consumer, ConsumerSubscription, LeasedDelivery
    from raylay.services.queues.frontend import QueueFrontend

BACKLOG_WHILE_FULL = 0
"""Backlog of a consumer whose socket is full: it keeps its leases, and is given no more."""


class QueueReceiver(Protocol):
    """The connection of a client that consumes from queues (`ClientConnection`)."""

    number: int
    client_name: str
    codec: Codec
    may_write: bool
    messages_out: int
    """Number of messages delivered to the client."""

    def send_parts(self, parts: Sequence[bytes], size_bytes: int) -> None:
        """Sends a frame that lies in several pieces."""


class QueueDeliveries:
    """See the file's docstring. Made before the queues, whose owners decide what is delivered, and
    before the part that takes clients' commands on queues.

    Owner: the instance's event loop. Lifecycle: one life of the instance.

    Args:
        sessions: the clients that have logged on, by number.

    Attributes:
        subscribed: the queue and the consumer of each subscription, by session and id.
        delivered: the number of messages sent in this life of the instance.
    """

    def __init__(
        self,
        runtime: InstanceRuntime,
        instance: RecoveredInstance,
        sessions: Mapping[int, QueueReceiver],
    ) -> None:
        self._runtime = runtime
        self._instance = instance
        self._sessions = sessions
        self.subscribed: dict[int, dict[str, tuple[QueueFrontend, Consumer]]] = {}
        self.delivered = 0
        self.occurrences = DeliverOccurrences(runtime)
        """Teller of delivered messages, of queues and of other topics."""
        self._full: dict[int, dict[str, ConsumerSubscription]] = {}
        """Subscriptions whose socket is full, by session and id: the terms that the owner is told
        when the socket has room again."""

    def deliver(
        self,
        consumer: Consumer,
        messages: Sequence[LeasedDelivery],
        records: Sequence[bytes],
        since_us: int,
        steady_us: int,
        *,
        is_last_try: bool = False,
    ) -> ConsumerSubscription | None:
        """Sends messages, with their records as the journal has them. Returns the terms that the
        owner is to be told if the socket is full now; None: nothing changes.

        Args:
            since_us: the time of the owner's decision, where one of the messages is traced; else 0.
            steady_us: the present time of the clock by which leases end.
            is_last_try: see `DeliverLeased`.
        """
        client = self._sessions.get(consumer[0])
        if client is None:
            return None
        now_us = self._runtime.now_us()
        until_us = min(each.until_us for each in messages)
        left_us = max(until_us - steady_us, 0)
        lease_ms = left_us // 1000 if until_us else None
        name = name_of(consumer)
        is_traced = since_us > 0
        count = len(messages)
        client.send_parts(
            *client.codec.queue_delivery(
                name, count, now_us, lease_ms, records, is_traced, is_last_try
            )
        )
        if is_traced:
            self._trace(client, consumer, messages, records, since_us, now_us)
        self.delivered += count
        if DELIVER in self._runtime.occurrences.listened:
            queue = self.subscribed[consumer[0]][name][0].definition.name
            self.occurrences.delivered(client.client_name, records, queue=queue)
        client.messages_out += len(messages)
        if client.may_write:
            return None
        found = self.filled(client, name)
        return None if found is None else found[1]

    def _trace(
        self,
        client: QueueReceiver,
        consumer: Consumer,
        messages: Sequence[LeasedDelivery],
        records: Sequence[bytes],
        since_us: int,
        now_us: int,
    ) -> None:
        """Reports spans of the traced messages, each below its lease. The client can derive the ids
        of these spans, and reports its own below them."""
        queue = self.subscribed[consumer[0]][name_of(consumer)][0].definition.name
        self._instance.tracing.queue_delivery(
            [each for part in records for each in traced(part)],
            {each.key: each.number for each in messages},
            since_us,
            now_us,
            instance=self._instance.identity.name,
            queue=queue,
            client=client.client_name,
            subscription=name_of(consumer),
        )

    # -- full sockets --------------------------------------------------------------------------
    def terms(self, client: QueueReceiver, each: ConsumerSubscription) -> ConsumerSubscription:
        """Returns the terms of a subscription for the queue's owner: the terms that the client
        asked for, or, while its socket is full, a backlog of 0."""
        if client.may_write:
            return each
        self._full.setdefault(client.number, {})[name_of(each.consumer)] = each
        return each._replace(backlog_max=BACKLOG_WHILE_FULL)

    def filled(
        self, client: QueueReceiver, name: str
    ) -> tuple[QueueFrontend, ConsumerSubscription] | None:
        """Stops deliveries to a subscription until its socket has taken what was sent. Returns the
        new terms for its queue; None: the queue has them already."""
        found = self.subscribed.get(client.number, {}).get(name)
        if found is None or name in self._full.get(client.number, ()):
            return None
        frontend, consumer = found
        return frontend, self.terms(client, frontend.consumers[consumer])

    def emptied(self, client: QueueReceiver) -> list[tuple[QueueFrontend, ConsumerSubscription]]:
        """Resumes deliveries to the subscriptions of a client, as its socket has room. Returns the
        new terms for their queues."""
        full = self._full.pop(client.number, {})
        of_session = self.subscribed.get(client.number, {})
        return [(of_session[name][0], self.terms(client, each)) for name, each in full.items()]

    def ended(self, number: int, name: str) -> None:
        """Forgets the full socket of a subscription that has ended."""
        self._full.get(number, {}).pop(name, None)

    def left(self, number: int) -> None:
        """Forgets the full sockets of a connection that has ended."""
        self._full.pop(number, None)


def name_of(consumer: Consumer) -> str:
    return consumer[1].partition(":")[2]
