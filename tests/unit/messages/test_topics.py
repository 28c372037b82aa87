"""Topics and types, by name and by expression."""

from __future__ import annotations

import pytest

from raylay.services.messages.topics import TopicMatcher, TopicRule, is_regex

pytestmark = pytest.mark.covers("Replication", "four conditions of routing")


@pytest.mark.covers("The replication chapters", "by topic and message type")
@pytest.mark.covers("The replication chapters", "the four conditions")
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


@pytest.mark.covers("The replication chapters", "by topic and message type")
def test_several_topics_are_a_union() -> None:
    matcher = TopicMatcher((TopicRule("a"), TopicRule("^b", "json")))
    assert matcher.matches(b"a", b"fix") and matcher.matches(b"bc", b"json")
    assert not matcher.matches(b"bc", b"fix")


def test_a_dot_does_not_make_an_expression() -> None:
    assert not is_regex("orders.eu") and is_regex("orders.*")
