"""The functions over arrays, one test each."""

from __future__ import annotations

import pytest
from support.expressions_given import NAN, gives

GIVEN = {
    "a": [3, 1, "2", None],
    "t": ["pear", "fig"],
    "mixed": [5, "zebra", "7"],
    "one": 4,
    "empty": [],
    "deep": [[1, [2]], 3],
    "lines": [{"q": 2}, {"q": 5}, {}],
}


@pytest.mark.covers("Filters by content", "array reduce: ARRAY_COUNT ARRAY_MAX ARRAY_MIN")
def test_array_count() -> None:
    gives("ARRAY_COUNT(/a)", 4, GIVEN)
    gives("ARRAY_COUNT(/one)", 1, GIVEN)
    gives("ARRAY_COUNT(/empty)", 0, GIVEN)
    gives("ARRAY_COUNT(/nothing)", 0, GIVEN)
    gives("ARRAY_COUNT(/deep)", 3, GIVEN)
    gives("ARRAY_COUNT(/lines/q)", 2, GIVEN)


@pytest.mark.covers("Filters by content", "array reduce: ARRAY_COUNT ARRAY_MAX ARRAY_MIN")
def test_array_max() -> None:
    gives("ARRAY_MAX(/a)", 3, GIVEN)
    gives("ARRAY_MAX(/t)", "pear", GIVEN)
    gives("ARRAY_MAX(/mixed)", "zebra", GIVEN)
    gives("ARRAY_MAX(/empty)", None, GIVEN)


@pytest.mark.covers("Filters by content", "array reduce: ARRAY_COUNT ARRAY_MAX ARRAY_MIN")
def test_array_min() -> None:
    gives("ARRAY_MIN(/a)", 1, GIVEN)
    gives("ARRAY_MIN(/t)", "fig", GIVEN)
    gives("ARRAY_MIN(/mixed)", 5, GIVEN)
    gives("ARRAY_MIN(/nothing)", None, GIVEN)


@pytest.mark.covers("Filters by content", "array reduce: ARRAY_COUNT ARRAY_MAX ARRAY_MIN")
def test_array_sum() -> None:
    gives("ARRAY_SUM(/a)", 6, GIVEN)
    gives("ARRAY_SUM(/t)", NAN, GIVEN)
    gives("ARRAY_SUM(/empty)", None, GIVEN)
    gives("ARRAY_SUM(/lines/q) > 6", True, GIVEN)


@pytest.mark.covers("Filters by content", "array reduce: ARRAY_COUNT ARRAY_MAX ARRAY_MIN")
def test_array_to_string() -> None:
    gives("ARRAY_TO_STRING(/a, ', ', '-')", "3, 1, 2, -", GIVEN)
    gives("ARRAY_TO_STRING(/a, '', '')", "312", GIVEN)
    gives("ARRAY_TO_STRING(/empty, ',', '-')", None, GIVEN)
