"""What the regular expressions of one user's subscriptions may need together."""

from __future__ import annotations

import pytest

from raylay.services.errors import RemoteProtocolError
from raylay.services.messages.topic_pattern import TopicPattern
from raylay.services.subscriptions.expression_shares import EXPRESSION_WEIGHT, ExpressionShares
from raylay.services.subscriptions.matching import LiveSubscription, topic_filter

SMALL = TopicPattern("^orders/.*")
LARGE = TopicPattern("[a-z]{1,200}[0-9]{1,200}")


def made(number: int) -> LiveSubscription:
    return LiveSubscription(1, str(number), topic_filter("^orders/.*", ""))


def test_each_user_has_a_limit_of_his_own_and_what_ended_counts_no_more() -> None:
    shares = ExpressionShares(10 * (EXPRESSION_WEIGHT + SMALL.weight))
    mine = [made(number) for number in range(10)]
    for each in mine:
        shares.add(each, "mallory", SMALL)
    with pytest.raises(RemoteProtocolError, match="too large together") as caught:
        shares.add(made(10), "mallory", SMALL)
    assert caught.value.reason == "too_many"
    others = made(11)
    shares.add(others, "victim", SMALL)
    shares.remove(mine[3])
    again = made(12)
    shares.add(again, "mallory", SMALL)
    for each in (*mine, others, again, made(13)):
        shares.remove(each)
    assert not len(shares)


def test_a_large_expression_counts_as_many_small_ones() -> None:
    shares = ExpressionShares()
    count = 0
    with pytest.raises(RemoteProtocolError):
        for count in range(10_000):
            shares.add(made(count), "mallory", LARGE)
    assert 10 < count < 500
