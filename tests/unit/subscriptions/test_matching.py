"""Which subscriptions a topic reaches."""

from __future__ import annotations

import random

import pytest

from raylay.services.errors import RemoteProtocolError
from raylay.services.messages.topic_pattern import TopicPattern
from raylay.services.subscriptions.matching import LiveSubscription, SubscriptionTable, topic_filter


@pytest.mark.parametrize(
    ("topic", "message_type", "against", "kind", "matches"),
    [
        ("orders", "", b"orders", b"json", True),
        ("orders", "", b"orders.eu", b"json", False),
        ("orders.eu", "", b"ordersxeu", b"json", False),  # a dot alone makes no expression
        ("^orders", "", b"orders.eu", b"json", True),
        ("eu$", "json", b"orders.eu", b"json", True),
        ("eu$", "fix", b"orders.eu", b"json", False),
        (".*", "", "größe".encode(), b"json", True),
        ("r", "", b"orders", b"json", False),
        ("r+", "", b"orders", b"json", True),
        # Raylay's own topics: only who names them gets them.
        (".*", "", b"raylay/drill", b"json", False),
        ("drill$", "", b"raylay/drill", b"json", False),
        ("raylay/drill", "", b"raylay/drill", b"json", True),
        ("^raylay/.*", "", b"raylay/drill", b"json", True),
        (".*", "", b"raylays", b"json", True),
        # Events of the instance: the same.
        (".*", "", b"/AMPS/ClientStatus", b"json", False),
        ("Status$", "", b"/AMPS/ClientStatus", b"json", False),
        ("/AMPS/ClientStatus", "", b"/AMPS/ClientStatus", b"json", True),
        ("/AMPS/ClientStatus", "", b"/AMPS/ClientStatus", b"fix", False),
        ("^/AMPS/.*", "fix", b"/AMPS/ClientStatus", b"fix", True),
        ("^raylay/|Status", "", b"/AMPS/ClientStatus", b"json", False),
    ],
)
def test_topics(topic: str, message_type: str, against: bytes, kind: bytes, matches: bool) -> None:
    assert topic_filter(topic, message_type).matches(against, kind) is matches


def test_a_literal_topic_may_have_expression_characters() -> None:
    wanted = topic_filter("a[b", "", literal=True)
    assert wanted.matches(b"a[b", b"json") and not wanted.matches(b"ab", b"json")


def test_a_bad_expression_is_named() -> None:
    with pytest.raises(RemoteProtocolError, match=r"a\[b") as caught:
        topic_filter("a[b", "")
    assert caught.value.reason == "bad_regex"


@pytest.mark.parametrize("expression", ["(a+)+$", ".*a.*a.*[bc]"])
def test_an_expression_of_many_ways_keeps_nobody_waiting(expression: str) -> None:
    wanted = topic_filter(expression, "")
    topic = b"a" * 1023 + b"-"
    assert not wanted.matches(topic, b"json")
    assert not wanted.matches(topic, b"json")  # kept


def test_the_table_gives_the_same_answer_until_it_changes() -> None:
    table = SubscriptionTable()
    one = LiveSubscription(1, "one", topic_filter("orders", ""))
    two = LiveSubscription(2, "two", topic_filter("^ord", ""))
    table.add(one)
    table.add(two)
    assert len(table) == 2
    first = table.matching(b"orders", b"json")
    assert set(first) == {one, two}
    assert table.matching(b"orders", b"json") is first
    assert table.matching(b"ordinary", b"json") == (two,)
    table.remove(one)
    assert table.matching(b"orders", b"json") == (two,)
    table.remove(two)
    assert table.matching(b"orders", b"json") == () and len(table) == 0


TOPICS = [b"orders", b"orders/eu", b"trades", b"raylay/drill", b"x"]
EXPRESSIONS = ["orders", "^orders", "eu$", "trades", ".*", "^raylay/.*", "x"]


def test_changes_give_what_a_table_gives_that_is_made_anew() -> None:
    draw = random.Random(7)
    table = SubscriptionTable()
    kept: list[LiveSubscription] = []
    for step in range(4_000):
        if kept and draw.random() < 0.45:
            table.remove(kept.pop(draw.randrange(len(kept))))
        else:
            wanted = topic_filter(draw.choice(EXPRESSIONS), draw.choice(["", "json"]))
            kept.append(LiveSubscription(1, str(step), wanted))
            table.add(kept[-1])
        while draw.random() < 0.4:
            topic, kind = draw.choice(TOPICS), draw.choice([b"json", b"fix"])
            found = table.matching(topic, kind)
            assert len(found) == len(set(found))
            assert set(found) == {each for each in kept if each.filter.matches(topic, kind)}
            assert table.matching(topic, kind) is found
            assert not table.unknown_us(topic, kind)
        assert len(table) == len(kept)


def test_a_change_asks_no_other_expression_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    search = TopicPattern.search

    def counted(pattern: TopicPattern, topic: str) -> bool:
        asked.append(pattern.pattern)
        return search(pattern, topic)

    monkeypatch.setattr(TopicPattern, "search", counted)
    table = SubscriptionTable()
    for number in range(100):
        table.add(LiveSubscription(1, str(number), topic_filter(f"^orders/{number}", "")))
    table.matching(b"orders/7", b"json")
    assert len(asked) == 100
    asked.clear()
    for _ in range(50):
        made = LiveSubscription(2, "again", topic_filter("^orders/.*", ""))
        table.add(made)
        assert made in table.matching(b"orders/7", b"json")
        table.remove(made)
        assert made not in table.matching(b"orders/7", b"json")
    assert asked == ["^orders/.*"] * 50
