"""One topic is tried of each kind that the rules of a fabric tell apart."""

from __future__ import annotations

import pytest

from raylay.services.messages.topic_pattern import TopicPattern
from raylay.services.messages.topics import TopicRule
from raylay.services.replication.link.routing import DestinationRoute
from raylay.services.topology.members import TopologyMember, examples, topic_classes

pytestmark = pytest.mark.covers("Topology check", "topics that rules tell apart")


@pytest.mark.parametrize(
    ("pattern", "count"),
    [
        (".*", 1),
        ("^/orders/", 1),
        ("flights/.*", 1),
        ("^(orders|trades)$", 2),
        ("a|b|c", 3),
        ("[0-9]{3}x?", 1),
        ("[^a-z/]+", 1),
        ("eu$", 1),
        (r"\d\w\s", 1),
        ("(?i:ab)c*", 1),
        ("(?:eu|us)/(fx|eq)$", 4),
        ("^([ab]|c{2,}|)x", 4),
        (r"[^[:alpha:]\d]\x41", 1),
        (r"\Qa.b|c\E+$", 1),
        ("^(?P<region>é|\\pL)", 2),
        ("^x^", 0),
        ("^((?!HKG).)*$", 1),
        ("^(?!fx/)(?=f|g)[fg]x?", 2),
        ("^(?!a)a", 0),
        (r"^\p{Greek}", 0),
    ],
)
def test_examples_match_their_expression(pattern: str, count: int) -> None:
    found = examples(pattern)
    assert len(found) == count
    assert all(TopicPattern(pattern).search(topic) for topic in found)


def fabric(*topics: tuple[str, ...], journaled: tuple[str, ...] = (".*",)) -> list[TopologyMember]:
    destinations = tuple(
        DestinationRoute(f"d{i}", "g", False, tuple(TopicRule(name) for name in names))
        for i, names in enumerate(topics)
    )
    return [TopologyMember("a", "g", destinations, tuple(TopicRule(name) for name in journaled))]


def test_topics_that_no_rule_tells_apart_are_looked_at_once() -> None:
    assert [c.names for c in topic_classes(fabric((".*",)))] == [(".*",)]
    assert [c.names for c in topic_classes(fabric(("^x", "y"), ("^x", "y")))] == [
        ("y", "^x"),
        (".*",),
    ]


def test_rules_that_overlap_and_alternatives_are_told_apart() -> None:
    found = topic_classes(fabric(("^fx/",), ("/eu$",), journaled=("/.*",)))
    assert {c.names for c in found} == {("^fx/",), ("/eu$",), ("^fx/ and /eu$",), ("/.*",)}
    found = topic_classes(fabric(("orders",), journaled=("^(orders|trades)$",)))
    assert {c.topic for c in found} == {"orders", "trades"}


def test_what_is_not_journaled_is_not_looked_at() -> None:
    assert [c.topic for c in topic_classes(fabric((".*",), journaled=("orders",)))] == ["orders"]


def test_message_types_are_told_apart() -> None:
    typed = DestinationRoute("d", "g", False, (TopicRule("t", "fix"),))
    found = topic_classes([TopologyMember("a", "g", (typed,))])
    assert [c.names for c in found] == [("t (fix)",), (".* (fix)", ".* (other)")]
