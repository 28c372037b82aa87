"""Routing: each of the four conditions alone decides."""

from __future__ import annotations

import pytest

from raylay.services.errors import ConfigurationError
from raylay.services.replication.routing import (
    Destination,
    Router,
    TopicMatcher,
    TopicRule,
    is_regex,
)


def router(*topics: TopicRule, pass_through: str | None = None) -> Router:
    rules = topics or (TopicRule(".*"),)
    return Router(Destination("d", "g", True, rules, pass_through))


def test_what_was_published_here_needs_no_pass_through() -> None:
    assert router().routed(b"t", b"json", (), "", 7)


def test_what_was_received_needs_a_pass_through_that_matches_the_senders_group() -> None:
    for pattern, group, expected in (
        (None, "eu", False),
        (".*", "eu", True),
        ("^eu$", "eu", True),
        ("^eu$", "us", False),
        ("eu|us", "us", True),
    ):
        routed = router(pass_through=pattern).routed(b"t", b"json", (1,), group, 7)
        assert routed is expected, (pattern, group)


def test_nothing_goes_back_to_an_incarnation_in_its_path() -> None:
    found = router(pass_through=".*")
    assert not found.routed(b"t", b"json", (7,), "eu", 7)
    assert not found.routed(b"t", b"json", (7, 8), "eu", 7)
    assert found.routed(b"t", b"json", (8,), "eu", 7)
    assert found.routed(b"t", b"json", (7,), "eu", 0), "unknown yet: it may be routed"


@pytest.mark.parametrize(
    ("rule", "topic", "kind", "expected"),
    [
        (TopicRule("orders"), b"orders", b"json", True),
        (TopicRule("orders"), b"orders2", b"json", False),
        (TopicRule("orders", "json"), b"orders", b"fix", False),
        (TopicRule("^ord"), b"orders", b"json", True),
        (TopicRule("^ord", "fix"), b"orders", b"json", False),
        (TopicRule("orders.eu"), b"ordersXeu", b"json", False),
    ],
)
def test_topics_and_types(rule: TopicRule, topic: bytes, kind: bytes, expected: bool) -> None:
    matcher = TopicMatcher((rule,))
    assert matcher.matches(topic, kind) is expected
    assert matcher.matches(topic, kind) is expected, "the kept answer is the same"


def test_several_topics_are_a_union() -> None:
    matcher = TopicMatcher((TopicRule("a"), TopicRule("^b", "json")))
    assert matcher.matches(b"a", b"fix") and matcher.matches(b"bc", b"json")
    assert not matcher.matches(b"bc", b"fix")


def test_a_bad_expression_names_itself_and_its_place() -> None:
    with pytest.raises(ConfigurationError, match=r"Destination d PassThrough: '\('"):
        router(pass_through="(")


def test_a_dot_does_not_make_an_expression() -> None:
    assert not is_regex("orders.eu") and is_regex("orders.*")
