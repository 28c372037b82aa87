"""What the subscriptions of one user may need together."""

from __future__ import annotations

import pytest

from raylay.services.errors import RemoteProtocolError
from raylay.services.messages.topic_pattern import TopicPattern
from raylay.services.subscriptions.shares import EXPRESSION_WEIGHT, SubscriptionShares

pytestmark = pytest.mark.covers("Configuration", "subscriptions of one user are bounded together")

SMALL = TopicPattern("^orders/.*")
LARGE = TopicPattern("[a-z]{1,200}[0-9]{1,200}")


def filled(shares: SubscriptionShares, user: str, pattern: TopicPattern | None) -> int:
    """Adds as many as there is room for: how many."""
    count = 0
    while True:
        try:
            shares.check(user, pattern)
        except RemoteProtocolError as error:
            assert error.reason == "too_many"
            return count
        shares.add((user, pattern, count), user, pattern)
        count += 1


def test_each_user_has_a_limit_of_his_own_and_what_ended_counts_no_more() -> None:
    shares = SubscriptionShares(10 * (EXPRESSION_WEIGHT + SMALL.weight))
    assert filled(shares, "mallory", SMALL) == 10 == filled(shares, "victim", SMALL)
    shares.remove(("mallory", SMALL, 3))
    shares.remove(("mallory", SMALL, 3))
    shares.check("mallory", SMALL)
    for number in range(10):
        shares.remove(("mallory", SMALL, number))
        shares.remove(("victim", SMALL, number))
    assert not len(shares)


def test_a_large_expression_counts_as_many_small_ones_and_these_as_many_names() -> None:
    large, small, names = (filled(SubscriptionShares(), "a", each) for each in (LARGE, SMALL, None))
    assert 10 < large < 100
    assert 20_000 < small < names == 100_000, "a connection may have 10,000 of each"
