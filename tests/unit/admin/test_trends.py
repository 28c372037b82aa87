"""services/admin/trends.py: growing, shrinking, steady, and too little to tell."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylay.services.admin import trends
from raylay.services.admin.trends import (
    KEYS_MAX,
    UNKNOWN_SLOPE,
    WINDOW_US,
    TrendBook,
    slope_of,
)

SECOND = 1_000_000


def line(per_s: float, begin: float = 100.0, seconds: int = 30) -> list[tuple[int, float]]:
    return [(at * SECOND, begin + per_s * at) for at in range(seconds)]


@pytest.mark.covers("Administration", "the whole fabric by each instance: states, sums, tre")
@pytest.mark.parametrize(
    ("per_s", "trend"),
    [(1.0, "growing"), (-1.0, "shrinking"), (0.0, "steady"), (0.3, "steady"), (-0.3, "steady")],
)
def test_a_change_of_less_than_a_tenth_of_the_mean_is_steady(per_s: float, trend: str) -> None:
    found = slope_of(line(per_s))
    assert found.trend == trend
    assert found.per_s == pytest.approx(per_s)


def test_a_change_below_the_floor_is_steady() -> None:
    samples = [(at * SECOND, float(at % 2) * 20) for at in range(30)]
    assert slope_of(samples, floor=200.0).trend == "steady"
    assert slope_of(line(1.0, 0.0), floor=20.0).trend == "growing"


@pytest.mark.parametrize("samples", [[], line(1.0, seconds=1), line(1.0, seconds=2), line(9, 9, 5)])
def test_too_few_samples_tell_nothing(samples: list[tuple[int, float]]) -> None:
    assert slope_of(samples) == UNKNOWN_SLOPE


def test_only_the_last_half_minute_counts() -> None:
    book = TrendBook()
    for time_us, value in line(5.0, seconds=40):
        book.note("lag", time_us, value)
    for at in range(40, 80):
        book.note("lag", at * SECOND, 300.0)
    assert book.of("lag").trend == "steady"
    assert book.of("another") == UNKNOWN_SLOPE


def test_samples_that_come_too_fast_are_not_kept() -> None:
    book = TrendBook()
    for at in range(10_000):
        book.note("lag", at * 10_000, float(at))
    assert len(book._samples["lag"]) <= 1 + WINDOW_US // trends.SPACING_US


def test_a_clock_that_was_set_back_begins_anew() -> None:
    book = TrendBook()
    for time_us, value in line(5.0):
        book.note("lag", 10**12 + time_us, value)
    book.note("lag", 0, 1.0)
    assert book.of("lag") == UNKNOWN_SLOPE


def test_what_is_unknown_leaves_a_gap_and_what_is_old_is_forgotten() -> None:
    book = TrendBook()
    book.note("lag", 0, None)
    assert len(book) == 0
    book.note("lag", 0, 1.0)
    book.note("lag", SECOND, None)
    book.note("age", WINDOW_US, 1.0)
    book.note("empty", 0, 1.0)
    book.note("empty", WINDOW_US + SECOND, None)
    book.forget_old(WINDOW_US + 1)
    assert len(book) == 1
    book.forget_old(2 * WINDOW_US + 1)
    assert len(book) == 0


def test_the_book_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trends, "KEYS_MAX", 2)
    book = TrendBook()
    for key in range(5):
        book.note(key, 0, 1.0)
    assert len(book) == 2 <= KEYS_MAX


values = st.lists(st.floats(0, 1e12, allow_nan=False), min_size=3, max_size=31)


@given(values)
def test_the_trend_is_that_of_the_values_turned_round(found: list[float]) -> None:
    """What grows forward in time shrinks backward."""
    ahead = slope_of([(at * 3 * SECOND, value) for at, value in enumerate(found)])
    back = slope_of([(at * 3 * SECOND, value) for at, value in enumerate(reversed(found))])
    assert {ahead.trend, back.trend} in ({"growing", "shrinking"}, {"steady"})


@given(values)
def test_values_that_only_rise_never_shrink(found: list[float]) -> None:
    rising = slope_of([(at * 3 * SECOND, value) for at, value in enumerate(sorted(found))])
    assert rising.trend != "shrinking"
