"""The fold of a grouped view (services/views/group_fold.py), compared with a recomputation."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raylay.services.errors import ExpressionError
from raylay.services.expressions.expression import expression
from raylay.services.expressions.functions import BUILT_IN
from raylay.services.messages.types.json import Json
from raylay.services.messages.types.trees import Tree
from raylay.services.sow.keys import KeyRule
from raylay.services.sow.query.ordering import place_of
from raylay.services.views.group_fold import GroupFold, SourceChange
from raylay.services.views.projection import FIELDS_MAX, ViewProjection
from raylay.services.views.sources import one_source

pytestmark = pytest.mark.covers("Views", "aggregates are exact")

FIELDS = (
    "/carrier AS /carrier",
    "COUNT(/delay) AS /count",
    "SUM(/delay) AS /sum",
    "MAX(/delay) AS /worst",
    "COUNT_DISTINCT(/delay) AS /different",
    "IF(COUNT(/delay) > 1, AVG(/delay), 0) AS /average",
    "/airport AS /latest/airport",
)


def projection(*fields: str) -> ViewProjection:
    return ViewProjection(fields, Json(), BUILT_IN, one_source("json", "flights"))


def fold(*fields: str, passes: str = "") -> GroupFold:
    return GroupFold(
        projection(*(fields or FIELDS)),
        (("carrier",),),
        "delays",
        expression(passes).matches if passes else None,
    )


def shown(fold: GroupFold) -> list[Tree]:
    return sorted((fold.groups.fields_of(each) for each in fold.groups.by_key.values()), key=repr)


DELAYS = st.one_of(
    st.none(), st.integers(-3, 3), st.sampled_from([0.5, 5.0, 5, "5", "late", "", 1 << 63])
)
RECORDS = st.fixed_dictionaries(
    {"carrier": st.sampled_from(["AA", "UA", 7, "7", None, ""]), "delay": DELAYS},
    optional={"airport": st.sampled_from(["JFK", "LHR"])},
)
CHANGES = st.lists(
    st.tuples(st.integers(0, 4), st.one_of(RECORDS, RECORDS, st.none())), max_size=25
)


def recomputed(records: dict[bytes, tuple[Tree, int]], latest: dict[Any, Any]) -> list[Tree]:
    """The view as a fresh computation gives it."""
    groups: dict[Any, list[Tree]] = {}
    for tree, _ in records.values():
        carrier = tree["carrier"]
        groups.setdefault(None if carrier in ("", None) else str(carrier), []).append(tree)
    found = []
    for text, members in groups.items():
        delays = [each["delay"] for each in members if each["delay"] not in (None, "")]
        numbers = [float("nan") if x == "late" else 5 if x == "5" else x for x in delays]
        has_double = any(isinstance(each, float) for each in numbers)
        is_nan = any(each != each for each in numbers)
        total: Any = None
        if numbers:
            total = math.nan if is_nan else sum(map(Fraction, numbers))
            if not is_nan:
                total = float(total) if has_double or total >= 1 << 64 else int(total)
        average = 0
        if len(numbers) > 1:
            average = math.nan if is_nan else float(sum(map(Fraction, numbers)) / len(numbers))
        worst = max(delays, key=place_of, default=None)
        if not isinstance(worst, str | None) and any(isinstance(x, float) for x in delays):
            worst = float(worst)
        texts = {each for each in delays if isinstance(each, str)}
        said = {5} if "5" in texts else set()
        plain = {x for x in delays if not isinstance(x, str)} - said
        number = any(each["carrier"] == 7 for each in members)
        carrier = None if text is None else 7 if number else text
        found.append(
            {
                "carrier": carrier,
                "count": len(delays),
                "sum": total,
                "worst": worst,
                "different": len(texts) + len(plain),
                "average": average,
                "latest": {"airport": latest[text]},
            }
        )
    return sorted(found, key=repr)


@settings(max_examples=300)
@given(CHANGES, st.booleans())
@pytest.mark.covers("Views and conflation, title by title", "`AVG`, `COUNT`")
def test_a_view_equals_a_recomputation_after_each_change(
    changes: list[tuple[int, Tree | None]], twice: bool
) -> None:
    view = fold()
    records: dict[bytes, tuple[Tree, int]] = {}
    latest: dict[Any, Any] = {}
    for txid, (number, tree) in enumerate(changes, 1):
        key = b"%d" % number
        before = records.pop(key, None)
        if tree is not None:
            records[key] = tree, txid
        touched = view.change(SourceChange(key, tree, txid))
        assert bool(touched) == (before is not None or tree is not None)
        if twice:
            view.change(SourceChange(key, tree, txid))
        if tree is not None:
            text = None if tree["carrier"] in ("", None) else str(tree["carrier"])
            latest[text] = tree.get("airport")
        assert repr(shown(view)) == repr(recomputed(records, latest))
    assert view.rows == len(records)
    assert view.memory_bytes >= len(records)


def test_a_record_that_moves_touches_the_group_that_it_leaves_first() -> None:
    view = fold()
    view.change(SourceChange(b"1", {"carrier": "AA", "delay": 5}, 1))
    left, joined = view.change(SourceChange(b"1", {"carrier": "UA", "delay": 5}, 2))
    assert (left.texts, left.members) == (("AA",), 0)
    assert (joined.texts, joined.members) == (("UA",), 1)
    assert list(view.groups.by_key) == [joined.key]


@pytest.mark.covers("Views and conflation, title by title", "one topic with")
def test_what_leaves_the_filter_leaves_its_group() -> None:
    view = fold(passes="/delay > 10")
    assert view.change(SourceChange(b"1", {"carrier": "AA", "delay": 5}, 1)) == ()
    view.change(SourceChange(b"1", {"carrier": "AA", "delay": 50}, 2))
    assert shown(view)[0]["sum"] == 50
    (left,) = view.change(SourceChange(b"1", {"carrier": "AA", "delay": 5}, 3))
    assert not left.members and not view.groups.by_key


@pytest.mark.covers("Views and conflation, title by title", "grouping: the")
def test_a_late_scan_does_not_replace_the_latest_plain_field() -> None:
    view = fold()
    view.change(SourceChange(b"1", {"carrier": "AA", "delay": 1, "airport": "JFK"}, 9))
    view.change(SourceChange(b"2", {"carrier": "AA", "delay": 1, "airport": "LHR"}, 4))
    assert shown(view)[0]["latest"] == {"airport": "JFK"}


@pytest.mark.covers("Views and conflation, title by title", "grouping: the")
def test_a_group_has_the_key_of_a_topic_with_these_key_fields() -> None:
    view = fold()
    (group,) = view.change(SourceChange(b"1", {"carrier": "AA", "delay": 1}, 1))
    assert group.key == KeyRule("delays", ["/carrier"]).key_of({"carrier": "AA"})


@pytest.mark.covers("Views and conflation, title by title", "grouping: the")
def test_without_grouping_each_record_is_one_of_the_view() -> None:
    view = GroupFold(projection("/delay * 2 AS /twice", "COUNT(/delay) AS /count"), (), "view")
    for number, delay in enumerate((1, 1, None)):
        view.change(SourceChange(b"%d" % number, {"delay": delay}, number))
    view.change(SourceChange(b"1", {"delay": 5}, 9))
    view.change(SourceChange(b"0", None, 10))
    assert shown(view) == [{"twice": 10, "count": 1}, {"twice": None, "count": 0}]


@pytest.mark.covers("Views and conflation, title by title", "expressions, `HINT")
def test_an_optional_field_without_value_is_left_out() -> None:
    view = fold("MAX(/delay) AS /worst HINT OPTIONAL", "SUM(/delay + 1) AS /more")
    view.change(SourceChange(b"1", {"carrier": "AA"}, 1))
    assert shown(view) == [{"more": None}]


@pytest.mark.covers("Views and conflation, title by title", "expressions, `HINT")
def test_a_field_alone_keeps_its_name() -> None:
    view = fold("/carrier", "[flights]./from/airport HINT OPTIONAL", "SUM(/delay) AS /sum")
    flight = {"carrier": "AA", "from": {"airport": "JFK"}, "delay": 1}
    view.change(SourceChange(b"1", flight, 1))
    assert shown(view) == [{"carrier": "AA", "from": {"airport": "JFK"}, "sum": 1}]


def test_equal_arguments_share_a_tally() -> None:
    found = projection(
        "SUM(/price * /count) AS /a",
        "AVG( /price*/count ) AS /b",
        "SUM(/price * 1) AS /c",
        "SUM(/price * 1.0) AS /d",
        "STDDEV_POP(/price * 1) AS /e",
        "STDDEV_SAMP(/price * 1) AS /f",
    )
    assert len(found.arguments) == 3
    assert len(found.tallies) == 4
    assert found.reads == {("price",), ("count",)}


@pytest.mark.covers("Views and conflation, title by title", "`AVG`, `COUNT`")
@pytest.mark.covers("Views and conflation, title by title", "`MIN`, `MAX`, `ANY`")
@pytest.mark.covers("Views and conflation, title by title", "`COUNT_DISTINCT`")
def test_all_aggregates_of_one_group() -> None:
    view = fold(
        "COUNT(/delay) AS /count",
        "SUM(/delay) AS /sum",
        "AVG(/delay) AS /avg",
        "MIN(/delay) AS /min",
        "MAX(/delay) AS /max",
        "ANY(/delay) AS /any",
        "COUNT_DISTINCT(/delay) AS /distinct",
        "GROUP_CONCAT(/delay) AS /all",
        "GROUP_CONCAT(/delay, ' | ') AS /bars",
        "STDDEV_POP(/delay) AS /pop",
        "STDDEV_SAMP(/delay) AS /samp",
        "UNIQUE(/delay) AS /unique",
        "UNIQUE(/carrier) AS /carrier",
    )
    for number, delay in enumerate([2, 4, 4, 4, 5, 5, 7, 9]):
        view.change(SourceChange(b"%d" % number, {"carrier": "AA", "delay": delay}, number + 1))
    assert shown(view) == [
        {
            "count": 8,
            "sum": 40,
            "avg": 5.0,
            "min": 2,
            "max": 9,
            "any": 2,
            "distinct": 5,
            "all": "2,4,5,7,9",
            "bars": "2 | 4 | 5 | 7 | 9",
            "pop": 2.0,
            "samp": math.sqrt(32 / 7),
            "unique": None,
            "carrier": "AA",
        }
    ]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ((), "at least one field"),
        (("/a AS /b",) * (FIELDS_MAX + 1), "at most 256"),
        (("/a AS /b", "/c AS /b"), "another field"),
        (("SUM(MAX(/a)) AS /b",), "a view of a view"),
        (("SUM(UNIX_TIMESTAMP()) AS /b",), "something else each time"),
        (("BOOKMARK() AS /b",), "is not known"),
        (("/a AS /b HINT SET_CURRENT",), "no meaning in a view"),
        (("GROUP_CONCAT(/a, /b) AS /b",), "a text in quotes"),
        (("SUM(/a) AS",), "the field that gets the value"),
        (("SUM(/a)",), "expected AS and the field"),
        (("/a", "SUM(/b) AS /a"), "another field"),
        (("/a[0]",), "an element of an array cannot be set: name a field without"),
        (("(" * 2_000 + "/a AS /b",), "nested too deeply"),
    ],
)
@pytest.mark.covers("Views and conflation, title by title", "what an aggregate")
def test_a_projection_that_cannot_be_is_refused(fields: tuple[str, ...], words: str) -> None:
    with pytest.raises(ExpressionError, match=words):
        projection(*fields)
