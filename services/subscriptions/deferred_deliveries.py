"""Deliveries to a session that wait behind the rows of a running query."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from math import inf

from raylay.services.subscriptions.delivery import DeliveryContent, DeliverySink


class DeferredDeliveries:
    """A sink that keeps what it is given, in order, until the query is over, and until all of it
    was handed on: that may take several turns, and what comes meanwhile goes behind it.

    Owner: the session. Lifecycle: one query.

    Args:
        grown: called each time when it keeps more.

    Attributes:
        held_bytes: of what it keeps. The session counts it as what its client has not taken.
        query_bytes: that the query itself keeps for the client, and counts likewise.
    """

    __slots__ = ("_grown", "_held", "_left", "held_bytes", "query_bytes")

    def __init__(self, grown: Callable[[], None] = lambda: None) -> None:
        self._grown = grown
        self._held: deque[tuple[str, str, DeliveryContent]] = deque()
        self._left: float = inf
        """Deliveries that the last release has left; before the first: whatever there is."""
        self.held_bytes = 0
        self.query_bytes = 0

    def deliver(self, subscription: str, delivery: DeliveryContent) -> None:
        """Keeps messages."""
        self._held.append((subscription, "", delivery))
        self.held_bytes += delivery.size_bytes
        self._grown()

    def out_of_focus(self, subscription: str, reason: str, left: DeliveryContent) -> None:
        """Keeps what has left the focus of a subscription."""
        self._held.append((subscription, reason, left))
        self.held_bytes += left.size_bytes
        self._grown()

    def forget(self, subscriptions: Collection[str]) -> None:
        """Forgets subscriptions that have ended: nothing more of them is delivered."""
        self._held = kept = deque(each for each in self._held if each[0] not in subscriptions)
        self.held_bytes = sum(each[2].size_bytes for each in kept)

    def forget_all(self) -> None:
        """All subscriptions have ended."""
        self._held.clear()
        self.held_bytes = 0

    def release(self, sink: DeliverySink, is_over: Callable[[], bool] = lambda: False) -> bool:
        """Hands on what it keeps. Whether that was all.

        Args:
            is_over: whether it is to go on another time. One delivery more than came since the
                last time is handed on all the same: so there is an end, whatever comes.
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
