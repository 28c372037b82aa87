"""services/drills/rules.py: the rules of routing, said a second time."""

from __future__ import annotations

import pytest

from raylay.services.drills.rules import carries_everything, is_routed, passes, takes
from raylay.services.messages.records import Flag, Run
from raylay.services.messages.topics import TopicRule
from raylay.services.replication.routing import (
    Destination,
    Router,
)

A, B, C = 0xA, 0xB, 0xC


def to(*topics: str, pass_through: str | None = ".*", own_group_only: bool = False) -> Destination:
    rules = tuple(TopicRule(name) for name in topics or (".*",))
    return Destination("d", "g", True, rules, pass_through, ("d",), own_group_only=own_group_only)


@pytest.mark.parametrize(
    ("rule", "topic", "expected"),
    [
        ("orders", "orders", True),
        ("orders", "orders.eu", False),
        ("orders.eu", "ordersxeu", False),  # a dot alone makes no expression
        ("^orders", "orders.eu", True),
        ("eu$", "orders.eu", True),
        ("^eu", "orders.eu", False),
        ("orders|trades", "my trades", True),
        (".*", "anything", True),
    ],
)
def test_a_topic_rule_is_a_name_or_an_expression(rule: str, topic: str, expected: bool) -> None:
    assert takes(TopicRule(rule), topic, "json") is expected


def test_a_rule_takes_one_message_type_or_any() -> None:
    assert takes(TopicRule("orders", "json"), "orders", "json")
    assert not takes(TopicRule("orders", "fix"), "orders", "json")
    assert takes(TopicRule("orders", "*"), "orders", "fix")


def test_what_was_published_here_needs_no_pass_through() -> None:
    destination = to(pass_through=None)
    assert is_routed(destination, "orders", "json", (), (), "", "g", B)
    assert not is_routed(destination, "orders", "json", (A,), ("g",), "g", "g", B)


def test_pass_through_asks_for_the_group_of_the_direct_sender() -> None:
    destination = to(pass_through="^eu")
    assert passes(destination, ("us", "eu1"), "eu1", "g")
    assert not passes(destination, ("eu1", "us"), "us", "g")


def test_own_group_only_asks_for_the_whole_way() -> None:
    destination = to(own_group_only=True)
    assert passes(destination, ("g", "g"), "g", "g")
    assert not passes(destination, ("other", "g"), "g", "g")
    assert not passes(destination, ("other", "other"), "other", "g")


def test_a_message_does_not_go_where_it_was() -> None:
    for came_by in ((B,), (B, A), (A, B, C)):
        assert not is_routed(to(), "orders", "json", came_by, (), "g", "g", B)
    assert is_routed(to(), "orders", "json", (A, C), ("g", "g"), "g", "g", B)


@pytest.mark.parametrize(
    ("destination", "expected"),
    [
        (to(), True),
        (to("orders", "trades"), True),
        (to("orders"), False),
        (to(pass_through=None), False),
        (to(pass_through="^g$"), False),
        (to(own_group_only=True), False),
        (Destination("d", "g", True, (TopicRule(".*", "json"),), ".*"), False),
        (Destination("d", "g", True, (TopicRule(".*", filter="/a > 1"),), ".*"), False),
    ],
)
def test_what_carries_everything(destination: Destination, expected: bool) -> None:
    journaled = (TopicRule("orders"), TopicRule("trades"))
    assert carries_everything(destination, journaled) is expected


def test_production_says_the_same() -> None:
    """Both statements, over all that a message and a destination can be in the simulator."""
    ways: list[tuple[tuple[int, ...], tuple[str, ...]]] = [
        ((), ()),
        ((A,), ("g",)),
        ((A,), ("h",)),
        ((A, C), ("g", "h")),
        ((A, C), ("h", "g")),
        ((B, A), ("g", "g")),
    ]
    for destination in (
        to(*topics, own_group_only=own, pass_through=passing)
        for own in (False, True)
        for passing in (None, ".*", "^g$")
        for topics in ((), ("orders",), ("^ord",))
    ):
        router = Router(destination)
        for path, groups in ways:
            for topic in ("orders", "trades"):
                sender = groups[-1] if groups else ""
                flags = int(Flag.CROSSED) if set(groups) - {"g"} else 0
                run = Run(1, 1, 1, 1, b"", topic.encode(), b"json", path, sender, flags=flags)
                said = is_routed(destination, topic, "json", path, groups, sender, "g", B)
                assert router.routed(run, B) is said, (destination, path, groups, topic)
