"""What topic rules have in common, and that nothing is claimed that some topic disproves."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylay.services.messages.topic_sets import (
    SHAPES_MAX,
    TopicShape,
    carries_all,
    exact_names,
    includes,
    may_overlap,
    shapes,
)
from raylay.services.messages.topics import (
    TopicRule,
    is_regex,
)

pytestmark = pytest.mark.covers("Replication", "validation: each of the nine checks passes")


@pytest.mark.parametrize(
    ("rule", "found"),
    [
        ("orders.eu", [TopicShape(True, "orders.eu", True)]),
        ("^fx/", [TopicShape(True, "fx/", False)]),
        ("fx/.*", [TopicShape(False, "fx/", False)]),
        (".*eu$", [TopicShape(False, "eu", True)]),
        (r"^a\.b$", [TopicShape(True, "a.b", True)]),
        (".*", [TopicShape(False, "", False)]),
        (".+", [TopicShape(False, "", False)]),
        ("^(orders|trades)$", [TopicShape(True, "orders", True), TopicShape(True, "trades", True)]),
        ("^a|b$", [TopicShape(True, "a", False), TopicShape(False, "b", True)]),
        ("x(?:1|2).*", [TopicShape(False, "x1", False), TopicShape(False, "x2", False)]),
    ],
)
def test_shapes(rule: str, found: list[TopicShape]) -> None:
    assert shapes(rule) == tuple(found)


@pytest.mark.parametrize(
    "rule", ["^a.b", "a[bc]", "(a|b)+", "a{2}", r"\d+", "a((b))", "(?=a)b", r"a\|b(c|d)e?", "a.*b"]
)
def test_other_expressions_are_known_by_their_text_only(rule: str) -> None:
    assert shapes(rule) is None
    assert includes([rule], rule) and includes(["x", ".*"], rule)
    assert not includes(["^a"], rule) and not includes([rule], "^a")
    assert may_overlap(rule, "^zzz")


def test_very_many_alternatives_are_not_looked_into() -> None:
    assert shapes("|".join(f"t{n}" for n in range(SHAPES_MAX))) is not None
    assert shapes("|".join(f"t{n}" for n in range(SHAPES_MAX + 1))) is None


@pytest.mark.parametrize(
    ("outer", "inner", "included"),
    [
        (["^fx"], "^fx/eur", True),
        (["^fx/eur"], "^fx", False),
        (["fx.*"], "^a/fx$", True),
        (["eu$"], "fx.*eu$", False),
        (["eu$"], "fx/eu$", True),
        (["orders", "trades"], "^(orders|trades)$", True),
        (["orders"], "^(orders|trades)$", False),
        (["^orders"], ".*", False),
        ([], "^a", False),
    ],
)
def test_includes(outer: list[str], inner: str, included: bool) -> None:
    assert includes(outer, inner) == included


@pytest.mark.parametrize(
    ("one", "other", "overlapping"),
    [
        ("^fx", "^fx/eur", True),
        ("^fx", "^orders", False),
        ("eu$", "us$", False),
        ("eu$", "^orders", True),
        ("orders", "^orders$", True),
        ("trades", "^(orders|quotes)$", False),
    ],
)
def test_may_overlap(one: str, other: str, overlapping: bool) -> None:
    assert may_overlap(one, other) == may_overlap(other, one) == overlapping


def test_exact_names() -> None:
    assert exact_names("orders") == ("orders",)
    assert exact_names("^(a|b)$") == ("a", "b")
    assert exact_names("^a") is None and exact_names("[ab]") is None


_RULES = st.text(alphabet="ab^$.*|()\\", max_size=7)


def _takes(rule: str, topic: str) -> bool:
    return re.search(rule, topic) is not None if is_regex(rule) else rule == topic


@given(_RULES, _RULES, st.lists(st.text(alphabet="ab.^", min_size=1, max_size=5), max_size=20))
def test_no_topic_disproves_it(one: str, other: str, topics: list[str]) -> None:
    try:
        re.compile(one), re.compile(other)
    except re.error:
        return
    for topic in topics:
        if _takes(one, topic) and _takes(other, topic):
            assert may_overlap(one, other)
        if _takes(other, topic) and not _takes(one, topic):
            assert not includes([one], other)
    names = exact_names(one)
    for name in names or ():
        assert _takes(one, name) or not name


@pytest.mark.covers("Clients and protocol", "a peer is safe only where one sync link carries")
@pytest.mark.parametrize(
    ("carried", "journaled", "expected"),
    [
        ([TopicRule(".*")], [TopicRule(".*")], True),
        ([TopicRule("trades")], [TopicRule(".*")], False),
        ([TopicRule("trades"), TopicRule("^orders")], [TopicRule("eu/orders")], False),
        ([TopicRule("trades"), TopicRule("^orders")], [TopicRule("^orders/eu")], True),
        ([TopicRule(".*", "json")], [TopicRule("orders", "json")], True),
        ([TopicRule(".*", "json")], [TopicRule("orders", "fix")], False),
        ([TopicRule(".*", "json")], [TopicRule("orders")], False),
        ([TopicRule(".*", filter="/a = 1")], [TopicRule("orders")], False),
        ([], [], True),
    ],
)
def test_what_is_journaled_is_carried(
    carried: list[TopicRule], journaled: list[TopicRule], expected: bool
) -> None:
    assert carries_all(carried, journaled) == expected
