"""The fold of joined topics (services/views/join_fold.py), compared with a recomputation."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raylay.services.errors import ExpressionError
from raylay.services.expressions.functions import BUILT_IN
from raylay.services.messages.types.json import Json
from raylay.services.messages.types.trees import Tree
from raylay.services.views import join_fold
from raylay.services.views.group_fold import SourceChange
from raylay.services.views.join_fold import JoinFold
from raylay.services.views.projection import ViewProjection
from raylay.services.views.sources import JOINS_MAX, ViewSources, joined_sources, one_source

pytestmark = pytest.mark.covers("Views", "joins: left outer")

TYPES = {"orders": ["json"], "customers": ["json"], "items": ["json"], "twice": ["json", "fix"]}
TWO = ("[orders]./customer = [customers]./id",)
THREE = (*TWO, "[json].[orders].[/id] = [items]./order")
FIELDS = (
    "[orders]./id AS /id",
    "COUNT([orders]./price) AS /orders",
    "SUM([orders]./price) AS /price",
    "COUNT([customers]./name) AS /named",
    "GROUP_CONCAT([customers]./name) AS /names",
)


def made(joins: tuple[str, ...], fields: tuple[str, ...], null_equals: bool = False) -> JoinFold:
    sources = joined_sources(joins, TYPES, "json")
    projection = ViewProjection(fields, Json(), BUILT_IN, sources)
    return JoinFold(projection, (("0", "id"),), "view", sources, null_equals=null_equals)


def shown(fold: JoinFold) -> list[Tree]:
    return sorted(map(fold.groups.fields_of, fold.groups.by_key.values()), key=repr)


VALUES = st.sampled_from([1, "1", 2, None, ""])
ORDERS = st.fixed_dictionaries(
    {"id": st.sampled_from([1, 2]), "customer": VALUES, "price": st.integers(0, 3)}
)
CUSTOMERS = st.fixed_dictionaries({"id": VALUES, "name": st.sampled_from(["ann", "bob"])})
ITEMS = st.fixed_dictionaries({"order": st.sampled_from([1, 2, 3]), "count": st.integers(1, 3)})
RECORDS = {0: ORDERS, 1: CUSTOMERS, 2: ITEMS}


def changes(topics: int) -> st.SearchStrategy[list[tuple[int, int, Tree | None]]]:
    return st.lists(
        st.integers(0, topics - 1).flatmap(
            lambda topic: st.tuples(
                st.just(topic),
                st.integers(0, 2),
                st.one_of(RECORDS[topic], RECORDS[topic], st.none()),
            )
        ),
        max_size=20,
    )


def text(value: Any) -> str | None:
    return None if value in (None, "") else str(value)


def matching(rows: list[Tree], field: str, value: str | None, null_equals: bool) -> list[Tree]:
    if value is None and not null_equals:
        return []
    return [each for each in rows if text(each[field]) == value]


def recomputed(held: list[dict[int, Tree]], null_equals: bool) -> list[Tree]:
    """The view as a fresh computation gives it, from nested loops."""
    rows = []
    for order in held[0].values():
        customers = matching(list(held[1].values()), "id", text(order["customer"]), null_equals)
        items: list[Tree] = [{}]
        if len(held) > 2:
            items = matching(list(held[2].values()), "order", text(order["id"]), False) or [{}]
        rows += [(order, each, item) for each in customers or [{}] for item in items]
    groups: dict[int, list[Any]] = {}
    for row in rows:
        groups.setdefault(row[0]["id"], []).append(row)
    found = []
    for number, members in groups.items():
        names = [each["name"] for _, each, _ in members if each]
        counts = [each["count"] for _, _, each in members if each]
        made: Tree = {
            "id": number,
            "orders": len(members),
            "price": sum(each["price"] for each, _, _ in members),
            "named": len(names),
            "names": ",".join(sorted(set(names))) or None,
        }
        if len(held) > 2:
            made["items"] = sum(counts) if counts else None
        found.append(made)
    return sorted(found, key=repr)


@settings(max_examples=300)
@given(changes(2), st.booleans(), st.booleans())
@pytest.mark.covers("Views and conflation, title by title", "joins are left")
def test_two_topics_equal_a_recomputation_after_each_change(
    stream: list[tuple[int, int, Tree | None]], null_equals: bool, twice: bool
) -> None:
    check(made(TWO, FIELDS, null_equals), 2, stream, null_equals, twice)


@settings(max_examples=300)
@given(changes(3), st.booleans())
@pytest.mark.covers("Views and conflation, title by title", "joins are left")
def test_three_topics_equal_a_recomputation_after_each_change(
    stream: list[tuple[int, int, Tree | None]], twice: bool
) -> None:
    fields = (*FIELDS, "SUM([items]./count) AS /items")
    check(made(THREE, fields), 3, stream, False, twice)


def check(
    fold: JoinFold,
    topics: int,
    stream: list[tuple[int, int, Tree | None]],
    null_equals: bool,
    twice: bool,
) -> None:
    held: list[dict[int, Tree]] = [{} for _ in range(topics)]
    for txid, (topic, key, tree) in enumerate(stream, 1):
        if tree is None:
            held[topic].pop(key, None)
        else:
            held[topic][key] = tree
        for _ in range(1 + twice):
            fold.change(topic, SourceChange(b"%d" % key, tree, txid))
        assert repr(shown(fold)) == repr(recomputed(held, null_equals))
    assert fold.memory_bytes >= sum(map(len, held))


@pytest.mark.covers("Views and conflation, title by title", "joins are left")
def test_a_chain_of_joins_goes_both_ways() -> None:
    joins = ("[orders]./customer = [customers]./id", "[customers]./name = [items]./order")
    fields = ("[orders]./id AS /id", "SUM([items]./count) AS /items")
    fold = made(joins, fields)
    fold.change(2, SourceChange(b"i", {"order": "ann", "count": 5}, 1))
    fold.change(0, SourceChange(b"o", {"id": 1, "customer": 7}, 2))
    assert shown(fold) == [{"id": 1, "items": None}]
    fold.change(1, SourceChange(b"c", {"id": 7, "name": "ann"}, 3))
    assert shown(fold) == [{"id": 1, "items": 5}]
    fold.change(2, SourceChange(b"j", {"order": "ann", "count": 2}, 4))
    assert shown(fold) == [{"id": 1, "items": 7}]
    fold.change(1, SourceChange(b"c", {"id": 8, "name": "ann"}, 5))
    assert shown(fold) == [{"id": 1, "items": None}]
    fold.change(0, SourceChange(b"o", None, 6))
    assert shown(fold) == []


def test_integers_of_more_than_64_bits_are_doubles() -> None:
    fold = made(TWO, FIELDS)
    fold.change(0, SourceChange(b"o", {"id": 1, "customer": 7, "price": [1 << 70]}, 1))
    fold.change(1, SourceChange(b"c", {"id": 7, "name": {"#text": "ann"}}, 2))
    assert shown(fold) == [
        {"id": 1, "orders": 1, "price": float(1 << 70), "named": 1, "names": "ann"}
    ]


@pytest.mark.covers("Views and conflation, title by title", "joins are left")
def test_several_equalities_of_two_topics_hold_together() -> None:
    sources = joined_sources(
        ("[orders]./customer = [customers]./id", "[customers]./name = [orders]./name"),
        TYPES,
        "json",
    )
    assert sources.joined[1].parent == 0
    assert sources.joined[1].parent_fields == (("customer",), ("name",))
    assert sources.joined[1].fields == (("id",), ("name",))


@pytest.mark.parametrize(
    ("joins", "words"),
    [
        ((), "equality of two fields"),
        (TWO * (JOINS_MAX + 1), "at most 8"),
        (("[orders]./a > [customers]./b",), "expected a field of one topic"),
        (("[orders]./a = 1",), "expected a field of one topic"),
        (("[orders]./a = [orders]./b",), "a join is of two"),
        (("[orders]./a = /b",), "with its topic"),
        (("[orders]./a = [nowhere]./b",), "no topic with a state"),
        (("[orders]./a = [fix].[customers]./b",), "no topic with a state"),
        (("[orders] = [customers]./b",), "a dot and a field"),
        (("[a].[b].[orders]./a = [customers]./b",), "a dot and a field"),
        (("[orders].5 = [customers]./b",), "a dot and a field"),
        (("[orders]./a = [customers]./b", "[items]./a = [twice]./b"), "write first"),
        (
            (*TWO, "[orders]./a = [items]./b", "[customers]./a = [items]./b"),
            "is joined to one other",
        ),
        (("(" * 2_000,), "nested too deeply"),
        (("/a" * 20_000,), "characters"),
    ],
)
def test_joins_that_cannot_be_are_refused(joins: tuple[str, ...], words: str) -> None:
    with pytest.raises(ExpressionError, match=words):
        joined_sources(joins, TYPES, "json")


@pytest.mark.parametrize(
    ("sources", "field", "words"),
    [
        (joined_sources(TWO, TYPES, "json"), "/price AS /a", "joins several topics"),
        (joined_sources(TWO, TYPES, "json"), "[items]./price AS /a", "no topic under the view"),
        (one_source("json", "orders"), "[items]./price AS /a", "no topic under the view"),
        (
            joined_sources(("[json].[twice]./a = [fix].[twice]./b",), TYPES, "json"),
            "[twice]./a AS /a",
            "give the type",
        ),
    ],
)
def test_fields_of_other_topics_are_refused(sources: ViewSources, field: str, words: str) -> None:
    with pytest.raises(ExpressionError, match=words):
        ViewProjection((field,), Json(), BUILT_IN, sources)


def test_a_topic_alone_may_be_named() -> None:
    sources = one_source("json", "orders")
    found = ViewProjection(
        ("[orders]./a AS /a", "[json].[orders].[/b c] AS /b"), Json(), BUILT_IN, sources
    )
    assert found.reads == {("a",), ("b c",)}


@pytest.mark.parametrize("at_once", [1, 2, 3])
def test_a_change_folded_in_parts_equals_a_recomputation(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(join_fold, "ROWS_AT_ONCE", at_once)
    test_three_topics_equal_a_recomputation_after_each_change()


def test_a_long_change_is_folded_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join_fold, "ROWS_AT_ONCE", 3)
    fold = made(TWO, FIELDS)
    for number in range(8):
        fold.change(0, SourceChange(b"%d" % number, {"id": number, "customer": 7}, number))
    parts = [len(list(fold.folding(1, SourceChange(b"c", each, 9)))) for each in (
        {"id": 7, "name": "ann"}, {"id": 7, "name": "bob"}, None,
    )]  # fmt: skip
    # The rows without a customer are taken back, then those with one added; one step; and back.
    assert parts == [4, 2, 4]
    assert len(fold.touched) >= 1
