"""Whom a queue's keeper gives messages to, for its clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    # Most instances have no queues.
    from raylay.services.queues.decisions import Consumer, LeasedDelivery


class QueueDeliverer(Protocol):
    """Sends messages to clients (`QueueClients`)."""

    def deliver(
        self,
        consumer: Consumer,
        messages: Sequence[LeasedDelivery],
        records: Sequence[bytes],
        since_us: int,
    ) -> None:
        """Sends messages, their records as they lie in the journal; `since_us`: see `Delivery`."""
