"""Deliveries to a session that wait until the rows of a running query are sent."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from math import inf

from raylay.services.subscriptions.delivery import DeliveryContent, DeliverySink


class DeferredDeliveries:
    """A sink that keeps deliveries in order until the query is over and all of them were handed on.
    That may take several turns of the loop, and deliveries that arrive meanwhile are added at the
    end.

    Owner: the session. Lifecycle: one query.

    Args:
        grown: called each time when more is kept.

    Attributes:
        held_bytes: bytes of the deliveries that are kept. The session counts them as not taken by
            its client.
        query_bytes: bytes that the query itself keeps for the client; counted in the same way.
    """

    __slots__ = ("_grown", "_held", "_left", "held_bytes", "query_bytes")

    def __init__(self, grown: Callable[[], None] = lambda: None) -> None:
        self._grown = grown
        self._held: deque[tuple[str, str, DeliveryContent]] = deque()
        self._left: float = inf
        """Number of deliveries that the last release left; infinite before the first release."""
        self.held_bytes = 0
        self.query_bytes = 0

    def deliver(self, subscription: str, delivery: DeliveryContent) -> None:
        self._held.append((subscription, "", delivery))
        self.held_bytes += delivery.size_bytes
        self._grown()

    def out_of_focus(self, subscription: str, reason: str, left: DeliveryContent) -> None:
        """Keeps a notice of records that left the focus of a subscription."""
        self._held.append((subscription, reason, left))
        self.held_bytes += left.size_bytes
        self._grown()

    def forget(self, subscriptions: Collection[str]) -> None:
        self._held = kept = deque(each for each in self._held if each[0] not in subscriptions)
        self.held_bytes = sum(each[2].size_bytes for each in kept)

    def forget_all(self) -> None:
        self._held.clear()
        self.held_bytes = 0

    def release(self, sink: DeliverySink, is_over: Callable[[], bool] = lambda: False) -> bool:
        """Hands deliveries on. Returns whether all of them were handed on.

        Args:
            is_over: returns whether to stop for this turn. Each call hands on at least one delivery
                more than arrived since the last one, so that it comes to an end in any case.
        """
        held = self._held
        least = len(held) - self._left + 1
        while held:
            if least <= 0 and is_over():
                self._left = len(held)
                return False
            least -= 1
            subscription, reason, delivery = held.popleft()
            self.held_bytes -= delivery.size_bytes
            if reason:
                sink.out_of_focus(subscription, reason, delivery)
            else:
                sink.deliver(subscription, delivery)
        return True
