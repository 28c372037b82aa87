"""The limit of what the subscriptions of one user may need, all together.

A topic that comes for the first time is asked of each regular expression, in one turn of the
instance's loop, and each subscription takes memory. One connection may have 10,000 subscriptions,
and a user has many connections: without this limit those of one user could keep everybody waiting,
or take all memory.
"""

from __future__ import annotations

from collections.abc import Hashable

from raylay.services.errors import RemoteProtocolError
from raylay.services.messages.topic_pattern import TopicPattern

WEIGHT_MAX = 300_000
"""Weight of the subscriptions of one user: then a topic of 1 KiB that is new takes 0.6 s at the
very most, where every expression is made for that, and some 50 ms with ordinary ones."""
NAME_WEIGHT = 3
"""Weight of a subscription by the name of a topic."""
EXPRESSION_WEIGHT = 10
"""Weight of a subscription by an expression, beside that of its pattern: to ask it at all takes
some microseconds."""


class SubscriptionShares:
    """See the file's docstring.

    Invariant: what is counted of a user is the sum of his subscriptions in `_of`, and above 0.
    Owner: the clients' sessions. Lifecycle: one life of the instance.

    Args:
        weight_max: of the subscriptions of one user.
    """

    __slots__ = ("_of", "_users", "_weight_max")

    def __init__(self, weight_max: int = WEIGHT_MAX) -> None:
        self._weight_max = weight_max
        self._of: dict[Hashable, tuple[str, int]] = {}
        self._users: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._users)

    def check(self, user: str, pattern: TopicPattern | None) -> None:
        """Sees that there is room for one more.

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
        """Counts one, once."""
        weight = _weight(pattern)
        self._users[user] = self._users.get(user, 0) + weight
        self._of[subscription] = user, weight

    def remove(self, subscription: Hashable) -> None:
        """Removes a subscription that ended, if it was counted."""
        found = self._of.pop(subscription, None)
        if found is None:
            return
        user, weight = found
        self._users[user] -= weight
        if not self._users[user]:
            del self._users[user]


def _weight(pattern: TopicPattern | None) -> int:
    return NAME_WEIGHT if pattern is None else EXPRESSION_WEIGHT + pattern.weight
