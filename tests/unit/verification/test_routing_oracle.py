"""services/verification/routing_oracle.py: the rules of routing, said a second time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sim import filtering

from raylay.services.messages.ranges import SequenceSet
from raylay.services.messages.records import (
    Flag,
    RecordBuilder,
    Run,
    iterate_records,
    run_of,
    scan,
)
from raylay.services.messages.topics import TopicRule
from raylay.services.replication.link.content import DestinationFilters
from raylay.services.replication.link.routing import (
    DestinationRoute,
    Router,
)
from raylay.services.verification.routing_oracle import (
    carries_everything,
    is_let_on,
    is_routed,
    passes,
    takes,
)

A, B, C = 0xA, 0xB, 0xC


def to(
    *topics: str, pass_through: str | None = ".*", own_group_only: bool = False
) -> DestinationRoute:
    rules = tuple(TopicRule(name) for name in topics or (".*",))
    return DestinationRoute(
        "d", "g", True, rules, pass_through, ("d",), own_group_only=own_group_only
    )


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
        (DestinationRoute("d", "g", True, (TopicRule(".*", "json"),), ".*"), False),
        (DestinationRoute("d", "g", True, (TopicRule(".*", filter="/a > 1"),), ".*"), False),
    ],
)
def test_what_carries_everything(destination: DestinationRoute, expected: bool) -> None:
    journaled = (TopicRule("orders"), TopicRule("trades"))
    assert carries_everything(destination, journaled) is expected


def test_a_filter_is_asked_where_its_rule_takes_the_message() -> None:
    destination = replace(to(), topics=(TopicRule("orders", filter="5"), TopicRule("trades")))

    def goes(topic: str, content: str) -> bool:
        def passes_filter(text: str) -> bool:
            return text == content

        return is_routed(destination, topic, "json", (), (), "", "g", B, passes_filter)

    assert goes("orders", "5") and not goes("orders", "6")
    assert goes("trades", "6") and not goes("other", "5")
    assert is_routed(destination, "orders", "json", (), (), "", "g", B), "none runs"


def test_a_resync_lets_on_what_its_expression_names() -> None:
    destination = replace(to("orders"), resync_pass_through="^eu")
    assert is_let_on(destination, "orders", "json", "eu1")
    assert not is_let_on(destination, "orders", "json", "us")
    assert not is_let_on(destination, "trades", "json", "eu1")
    assert not is_let_on(to("orders"), "orders", "json", "eu1")
    filtered = replace(destination, topics=(TopicRule("orders", filter="5"),))
    assert not is_let_on(filtered, "orders", "json", "eu1", lambda text: text == "6")


def test_production_says_the_same_of_contents() -> None:
    """Of records with filters, each by the language of the simulator."""
    rules = (TopicRule("orders", filter="02468"), TopicRule("^o", filter="0125"), TopicRule("all"))
    destination = replace(to(), topics=rules)
    router = Router(destination, DestinationFilters(rules, filtering.Digits()))
    for topic in ("orders", "others", "all", "none"):
        builder = RecordBuilder(1, topic, "json")
        payload = b"".join(builder.build(i + 1, b"%d" % i, 0) for i in range(30))
        run = run_of(scan(payload)[0], payload)
        sent = SequenceSet(router.part(run, B, run.ranges()))
        for record in iterate_records(payload):
            content = filtering.seen(record.body)
            said = is_routed(
                destination, topic, "json", (), (), "", "g", B,
                lambda text, content=content: filtering.passes(text, content),  # type: ignore[misc]
            )  # fmt: skip
            assert (record.sequence in sent) is said, (topic, record.body)


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
