"""Who subscribes, and how far behind each is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from raylay.services.messages.conflation_terms import ConflationTerms
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.subscriptions import status as standing_module
from raylay.services.subscriptions.bookmark import BookmarkSubscription, ReplayStart
from raylay.services.subscriptions.follow_terms import (
    AggregationTerms,
    FollowTerms,
    PageTerms,
)
from raylay.services.subscriptions.matching import LiveSubscription, topic_filter
from raylay.services.subscriptions.status import subscription_status


def client(name: str, *subscriptions: Any, unsent_bytes: int = 0) -> Any:
    return SimpleNamespace(
        client_name=name,
        subscriptions={each.id: each for each in subscriptions},
        unsent_bytes=unsent_bytes,
    )


def reading(name: str, after_txid: int, topic: str = "orders") -> BookmarkSubscription:
    """One that has looked at the log up to a transaction id."""
    return BookmarkSubscription(
        1, name, topic_filter(topic, "json"), ReplayStart(after_txid),
        first_txid=1, committed_txid=100, held=PublisherRanges(),
    )  # fmt: skip


def test_a_reader_of_the_log_is_behind_by_what_was_not_looked_at_for_it() -> None:
    slow, there = reading("slow", 40), reading("there", 100)
    slow.delivered = 7
    new = LiveSubscription(1, "new", topic_filter("^fx/", ""), delivered=3)
    found = subscription_status(
        [client("desk", slow, there, unsent_bytes=9), client("screen", new)], 100
    )
    assert [(each["client"], each["subscription"], each["behind"]) for each in found] == [
        ("desk", "slow", 60),
        ("desk", "there", 0),
        ("screen", "new", None),
    ]
    assert found[0] == {
        "client": "desk", "subscription": "slow", "topic": "orders", "message_types": ["json"],
        "bookmark": True, "delivered": 7, "behind": 60, "unsent_bytes": 9,
    }  # fmt: skip
    assert found[2]["topic"] == "^fx/" and found[2]["message_types"] == []
    assert (found[2]["bookmark"], found[2]["delivered"]) == (False, 3)


def test_one_that_has_ended_is_not_behind() -> None:
    over = reading("over", 40)
    over.ended = True
    assert subscription_status([client("desk", over)], 100)[0]["behind"] == 0


def test_a_crowd_does_not_fill_the_status(monkeypatch: Any) -> None:
    monkeypatch.setattr(standing_module, "SHOWN_MAX", 5)
    many = [client(f"c{number}", reading("a", 1), reading("b", 1)) for number in range(9)]
    assert len(subscription_status(many, 100)) == 5


def test_a_filter_is_told_of_both_kinds() -> None:
    replay = reading("replay", 1)
    replay.content = SimpleNamespace(text="/n = 1")  # type: ignore[assignment]
    live = LiveSubscription(1, "live", topic_filter("a", ""), "/n = 2")
    plain = reading("plain", 1)
    found = subscription_status([client("desk", replay, live, plain)], 100)
    assert [each.get("filter") for each in found] == ["/n = 1", "/n = 2", None]


def test_what_a_subscription_is_besides_is_told() -> None:
    terms = FollowTerms(
        conflation=ConflationTerms(1_000_000),
        page=PageTerms(0, 50),
        aggregation=AggregationTerms("a", "json", "", ("/a",)),
    )
    wanted = topic_filter("a", "")
    every = LiveSubscription(1, "every", wanted, following=terms)
    page = LiveSubscription(1, "page", wanted, following=FollowTerms(page=PageTerms(0, 50)))
    plain = LiveSubscription(1, "plain", wanted, following=FollowTerms(oof=True))
    found = subscription_status([client("desk", every, page, plain)], 100)
    assert [each.get("kind") for each in found] == [
        "aggregated, paginated, conflated",
        "paginated",
        None,
    ]
