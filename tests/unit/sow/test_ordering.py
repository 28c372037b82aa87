"""The order of a query's rows: what is read, where values stand, and that nothing is lost."""

from __future__ import annotations

from functools import cmp_to_key
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylay.services.errors import RemoteProtocolError
from raylay.services.expressions import values
from raylay.services.sow.query.ordering import SortedRows, SortTerm, place_of, placing, read_order

pytestmark = pytest.mark.covers("SOW", "queries: filter")


@pytest.mark.covers("SOW", "`OrderBy`, `top_n`")
@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("/a", [SortTerm(("a",), False)]),
        ("/a desc, /b/@c ASC", [SortTerm(("a",), True), SortTerm(("b", "@c"), False)]),
        ("/a,/b", [SortTerm(("a",), False), SortTerm(("b",), False)]),
        ("[/a b] DESC", [SortTerm(("a b",), True)]),
        ("/a[1]/b", [SortTerm(("a", 1, "b"), False)]),
        ("/a TEXT, /b desc text", [SortTerm(("a",), False, True), SortTerm(("b",), True, True)]),
        ("/a TEXT", [SortTerm(("a",), False, True)]),
    ],
)  # fmt: skip
@pytest.mark.covers("Views and conflation, title by title", "ordered rows")
def test_orders_are_read(text: str, terms: list[SortTerm]) -> None:
    assert read_order(text) == tuple(terms)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("", "expected a field"),
        ("price", "expected a field"),
        ("/a UP", "expected ASC, DESC, TEXT or a comma, got 'UP'"),
        ("/a DESC UP", "expected TEXT or a comma, got 'UP'"),
        ("/a TEXT DESC", "expected a comma and the next field, got 'DESC'"),
        ("/a /b", "expected a comma"),
        ("/a,", "expected a field"),
        ("/a > 1", "expected a comma"),
        (",".join(["/a"] * 33), "more than 32 fields"),
    ],
)
def test_what_is_no_order_is_refused_with_its_column(text: str, wrong: str) -> None:
    with pytest.raises(RemoteProtocolError, match=wrong) as caught:
        read_order(text)
    assert caught.value.reason == "bad_order_by" and "column" in str(caught.value)


@pytest.mark.covers("Views and conflation, title by title", "ordered rows")
def test_with_the_hint_text_numbers_are_texts() -> None:
    found = [None, 10, "9", "1.0", 5, True, "a", [8, 1]]
    for order, expected in (
        ("/a TEXT", [None, True, "1.0", 10, 5, [8, 1], "9", "a"]),
        ("/a DESC TEXT", ["a", "9", [8, 1], 5, 10, "1.0", True, None]),
    ):
        place = placing(read_order(order))
        assert sorted(found, key=lambda value: place({"a": value}, b"")) == expected


MIXED: list[Any] = [
    None, float("nan"), float("-inf"), -5, "-4.5", 0, False, "0", 0.5, 1, True, "1.0", 9, "10",
    1 << 63, "Crank", "crank", "é",
]  # fmt: skip


@pytest.mark.covers("SOW", "`OrderBy`, `top_n`")
def test_values_of_all_types_have_one_order() -> None:
    shuffled = sorted(MIXED, key=repr)
    found = sorted(shuffled, key=place_of)
    assert [place_of(each) for each in found] == [place_of(each) for each in MIXED]
    falling = sorted(shuffled, key=lambda each: place_of(each, True))
    assert [place_of(each) for each in falling] == [place_of(each) for each in MIXED[::-1]]
    for one in MIXED:
        for other in MIXED:
            if (type(one) is str and type(other) is str) or one is None or other is None:
                continue
            if values.less(one, other):
                assert place_of(one) < place_of(other), (one, other)
    assert place_of([]) == place_of(None) == place_of("") and place_of(["b", "a"]) == place_of("b")


SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-9, 9), st.floats(), st.text("ab01.", max_size=3)
)
ROWS = st.lists(st.fixed_dictionaries({}, optional={"a": SCALARS, "b": SCALARS}), max_size=60)


@given(ROWS, st.booleans(), st.booleans(), st.none() | st.integers(1, 20))
def test_rows_come_out_as_sorted_one_by_one(
    rows: list[dict[str, Any]], first: bool, second: bool, wanted: int | None
) -> None:
    def compare(one: tuple[bytes, dict[str, Any]], other: tuple[bytes, dict[str, Any]]) -> int:
        for name, falls in (("a", first), ("b", second)):
            x, y = place_of(one[1].get(name)), place_of(other[1].get(name))
            if x != y:
                return -1 if (x < y) != falls else 1
        return -1 if one[0] < other[0] else 1

    keyed = [(b"%03d" % number, row) for number, row in enumerate(rows)]
    place = placing((SortTerm(("a",), first), SortTerm(("b",), second)))
    ordered = SortedRows(wanted)
    for key, row in reversed(keyed):
        at = place(row, key)
        if ordered.takes(at):
            ordered.put(at, key)
    found: list[bytes] = []
    while some := ordered.take(7):
        found += some
    expected = [key for key, _ in sorted(keyed, key=cmp_to_key(compare))]
    assert found == expected[:wanted] and (wanted is not None or not ordered.held_bytes)


def test_texts_in_a_place_count_as_memory() -> None:
    for is_descending in (False, True):
        ordered = SortedRows()
        place = placing((SortTerm(("a",), is_descending),))
        ordered.put(place({"a": "x" * 5_000}, b"key"), b"row")
        assert ordered.memory_bytes > 5_000 and ordered.held_bytes == 3


@pytest.mark.covers("SOW", "`OrderBy`, `top_n`")
def test_few_of_many_take_little_memory_and_all_of_many_are_merged() -> None:
    numbers = [n * 7_919 % 10_007 for n in range(10_007)]
    few = SortedRows(10)
    for number in numbers:
        if few.takes((number,)):
            few.put((number,), b"%08d" % number)
    assert few.held_bytes <= 8 * (2 * 10 + 256)
    assert few.take(100) == [b"%08d" % number for number in range(10)]
    every = SortedRows()
    for number in numbers:
        every.put((number,), b"%08d" % number)
    assert every.held_bytes == 8 * len(numbers)
    whole_bytes = every.memory_bytes
    assert whole_bytes > 400 * len(numbers), "with their places"
    assert len(every.take(5_000)) == 5_000
    assert every.memory_bytes < 0.6 * whole_bytes, "what was taken out is let go"
    assert every.take(20_000) == [b"%08d" % number for number in range(5_000, 10_007)]
    assert every.memory_bytes == 0


def test_more_rows_may_be_wanted_than_there_can_be() -> None:
    ordered = SortedRows(2 * ((1 << 63) - 1))
    for number in (2, 1):
        ordered.put((number,), b"%d" % number)
    assert ordered.take(10) == [b"1", b"2"] and ordered.take(10) == []
