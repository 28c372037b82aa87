"""The limit on all subscriptions of one user together.

A new topic is matched against each regular expression, in one turn of the instance's loop, and each
subscription takes memory. One connection may have 10,000 subscriptions, and a user may have many
connections: without this limit the subscriptions of one user could block everybody else, or take
all memory.
"""

from __future__ import annotations

from collections.abc import Hashable

from raylay.services.errors import RemoteProtocolError
from raylay.services.messages.topic_pattern import TopicPattern

WEIGHT_MAX = 300_000
"""Limit on the weight of the subscriptions of one user. With it a new topic of 1 KiB takes at most
0.6 s, where every expression is made to be slow, and some 50 ms with ordinary expressions."""
NAME_WEIGHT = 3
"""Weight of a subscription to a topic by name."""
EXPRESSION_WEIGHT = 10
"""Weight of a subscription with an expression, besides its pattern's weight: a match takes some
microseconds in any case."""


class SubscriptionShares:
    """The weight of each user's subscriptions.

    Invariant: a user's weight is the sum of that user's subscriptions in `_of`, and above 0.
    Owner: the clients' sessions. Lifecycle: one life of the instance.

    Args:
        weight_max: limit on the weight of one user's subscriptions.
    """

    __slots__ = ("_of", "_users", "_weight_max")

    def __init__(self, weight_max: int = WEIGHT_MAX) -> None:
        self._weight_max = weight_max
        self._of: dict[Hashable, tuple[str, int]] = {}
        self._users: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._users)

    def check(self, user: str, pattern: TopicPattern | None) -> None:
        """Checks that the user may have one more subscription.

        Raises:
            RemoteProtocolError: there is not; with reason `too_many`.
        """
        if self._users.get(user, 0) + _weight(pattern) > self._weight_max:
            raise RemoteProtocolError(
                "the subscriptions of this user need too much together: unsubscribe some, name "
                "several topics by one expression, or use smaller counts in its repeats",
                "too_many",
            )

    def add(self, subscription: Hashable, user: str, pattern: TopicPattern | None) -> None:
        """Counts a subscription; a second call has no effect."""
        weight = _weight(pattern)
        self._users[user] = self._users.get(user, 0) + weight
        self._of[subscription] = user, weight

    def remove(self, subscription: Hashable) -> None:
        found = self._of.pop(subscription, None)
        if found is None:
            return
        user, weight = found
        self._users[user] -= weight
        if not self._users[user]:
            del self._users[user]


def _weight(pattern: TopicPattern | None) -> int:
    return NAME_WEIGHT if pattern is None else EXPRESSION_WEIGHT + pattern.weight
