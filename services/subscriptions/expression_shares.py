"""Limits on the regular expressions of all subscriptions of one user.

A topic that comes for the first time is asked of each of them, in one turn of the instance's loop.
One connection may have 10,000 subscriptions, and a user has many connections: without this limit
the expressions of one user could keep everybody waiting.
"""

from __future__ import annotations

from raylay.services.errors import RemoteProtocolError
from raylay.services.messages.topic_pattern import TopicPattern
from raylay.services.messages.topics import EXPRESSIONS_WEIGHT_MAX
from raylay.services.subscriptions.matching import LiveSubscription

EXPRESSION_WEIGHT = 100
"""Of any expression, beside its own: to ask it at all takes a microsecond or more."""


class ExpressionShares:
    """See the file's docstring.

    Invariant: what is counted of a user is the sum of his subscriptions in `_of`, and above 0.
    Owner: the instance's live subscriptions. Lifecycle: one life of the instance.

    Args:
        weight_max: of the expressions of one user.
    """

    __slots__ = ("_of", "_users", "_weight_max")

    def __init__(self, weight_max: int = EXPRESSIONS_WEIGHT_MAX) -> None:
        self._weight_max = weight_max
        self._of: dict[LiveSubscription, tuple[str, int]] = {}
        self._users: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._users)

    def add(self, subscription: LiveSubscription, user: str, pattern: TopicPattern) -> None:
        """Counts one.

        Raises:
            RemoteProtocolError: it would be too much; with reason `too_many`. Nothing is counted.
        """
        weight = EXPRESSION_WEIGHT + pattern.weight
        whole = self._users.get(user, 0) + weight
        if whole > self._weight_max:
            raise RemoteProtocolError(
                "the regular expressions of this user's subscriptions are too large together: "
                "unsubscribe some, use smaller counts in repeats, or name several topics by one "
                "expression",
                "too_many",
            )
        self._users[user] = whole
        self._of[subscription] = user, weight

    def remove(self, subscription: LiveSubscription) -> None:
        """It ended, if it was counted."""
        found = self._of.pop(subscription, None)
        if found is None:
            return
        user, weight = found
        self._users[user] -= weight
        if not self._users[user]:
            del self._users[user]
