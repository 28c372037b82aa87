"""What is delivered to a session while a query of it runs: it comes behind the query's rows."""

from __future__ import annotations

from collections.abc import Callable

from raylay.services.subscriptions.delivery import Delivery, Sink


class BehindQuery:
    """A sink that keeps what it is given, in order, until the query is over.

    Owner: the session. Lifecycle: one query.

    Args:
        grown: called each time when it keeps more.

    Attributes:
        held_bytes: of what it keeps. The session counts it as what its client has not taken.
        query_bytes: that the query itself keeps for the client, and counts likewise.
    """

    __slots__ = ("_grown", "_held", "held_bytes", "query_bytes")

    def __init__(self, grown: Callable[[], None] = lambda: None) -> None:
        self._grown = grown
        self._held: list[tuple[str, str, Delivery]] = []
        self.held_bytes = 0
        self.query_bytes = 0

    def deliver(self, subscription: str, delivery: Delivery) -> None:
        """Keeps messages."""
        self._held.append((subscription, "", delivery))
        self.held_bytes += delivery.size_bytes
        self._grown()

    def out_of_focus(self, subscription: str, reason: str, left: Delivery) -> None:
        """Keeps what has left the focus of a subscription."""
        self._held.append((subscription, reason, left))
        self.held_bytes += left.size_bytes
        self._grown()

    def forget(self, subscription: str) -> None:
        """That subscription has ended: nothing more of it is delivered."""
        kept = [each for each in self._held if each[0] != subscription]
        self._held = kept
        self.held_bytes = sum(each[2].size_bytes for each in kept)

    def release(self, sink: Sink) -> None:
        """Hands on all that it keeps."""
        held, self._held, self.held_bytes = self._held, [], 0
        for subscription, reason, delivery in held:
            if reason:
                sink.out_of_focus(subscription, reason, delivery)
            else:
                sink.deliver(subscription, delivery)
