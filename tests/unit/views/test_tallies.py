"""Tallies of groups (services/views/tallies.py), compared with a recomputation from all values."""

from __future__ import annotations

import math
import random
import struct
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylay.services.expressions.values import parsed
from raylay.services.sow.query.ordering import place_of
from raylay.services.views import tallies
from raylay.services.views.tallies import (
    DistinctTally,
    NumberTally,
    OrderTally,
)

pytestmark = pytest.mark.covers("Views", "aggregates are exact")

NUMBERS = st.one_of(
    st.integers(-(1 << 63), (1 << 64) - 1),
    st.integers(-5, 5),
    st.floats(),
    st.sampled_from([5.0, -0.0, 0.1, 1e300, 5e-324, math.inf, -math.inf, math.nan, True]),
)
VALUES = st.one_of(NUMBERS, st.sampled_from(["5", "5.0", "x", "y", "2.0", "2.000", "1e3"]))


@st.composite
def streams(draw: st.DrawFn, values: st.SearchStrategy[Any]) -> tuple[list[Any], list[Any]]:
    """The values that came, and those of them that left again."""
    came = draw(st.lists(values, max_size=12))
    left = [each for each in came if draw(st.booleans())]
    return came, left


def applied(tally: Any, came: list[Any], left: list[Any], seed: int) -> list[Any]:
    """Gives a tally all that came and left, each before it leaves, in an order of the seed's.
    Returns what is left, in no order."""
    rng = random.Random(seed)
    coming, leaving, held = list(came), list(left), []
    rng.shuffle(coming)
    while coming or leaving:
        at = next((n for n, each in enumerate(held) if any(each is x for x in leaving)), None)
        if at is not None and (not coming or rng.random() < 0.5):
            gone = held.pop(at)
            del leaving[next(n for n, each in enumerate(leaving) if each is gone)]
            tally.retract(gone)
        else:
            held.append(coming.pop())
            tally.add(held[-1])
    return held


def bits(value: Any) -> Any:
    """A value with its type: doubles by their bits, but all NaN alike."""
    if value.__class__ is float:
        return "nan" if value != value else struct.pack(">d", value)
    return value.__class__, value


def numbers_of(values: list[Any]) -> list[int | float]:
    return [parsed(each) if isinstance(each, str) else each for each in values]


def nearest(exact: Fraction) -> float:
    try:
        return exact.numerator / exact.denominator
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


def special(numbers: list[int | float]) -> float | None:
    """The sum where it is not finite."""
    doubles = [each for each in numbers if isinstance(each, float) and not math.isfinite(each)]
    return math.fsum(doubles) if doubles and not _both(doubles) else math.nan if doubles else None


def _both(doubles: list[float]) -> bool:
    return math.inf in doubles and -math.inf in doubles


@given(streams(VALUES), st.integers(0, 3), st.booleans())
@pytest.mark.covers("Views and conflation, title by title", "`AVG`, `COUNT`")
def test_sums_are_the_exact_ones_rounded_once(
    stream: tuple[list[Any], list[Any]], seed: int, has_squares: bool
) -> None:
    tally = NumberTally(has_squares)
    held = numbers_of(applied(tally, *stream, seed))
    assert tally.count == len(held)
    if not held:
        assert (tally.sum(), tally.average()) == (None, None)
        assert tally.deviation(False) is None and tally.deviation(True) is None
        return
    wrong = special(held)
    if wrong is not None:
        assert bits(tally.sum()) == bits(tally.average()) == bits(wrong)
        if has_squares:
            assert bits(tally.deviation(False)) == "nan"
        return
    exact = sum(map(Fraction, held), Fraction(0))
    if not any(isinstance(each, float) for each in held) and -(1 << 63) <= exact < 1 << 64:
        assert bits(tally.sum()) == bits(int(exact))
    else:
        assert tally.sum() == nearest(exact)
    assert tally.average() == nearest(exact / len(held))
    if not has_squares:
        return
    mean = exact / len(held)
    squares = sum(((Fraction(each) - mean) ** 2 for each in held), Fraction(0))
    assert tally.deviation(False) == math.sqrt(nearest(squares / len(held)))
    if len(held) > 1:
        assert tally.deviation(True) == math.sqrt(nearest(squares / (len(held) - 1)))
    else:
        assert tally.deviation(True) is None


def test_a_sum_of_replacements_of_mixed_magnitudes_is_not_off() -> None:
    """A plain sum is off by 2,048 here."""
    tally = NumberTally()
    plain = 0.0
    tally.add(0.25)
    plain += 0.25
    for _ in range(1_000):
        tally.add(1e16)
        plain += 1e16
        tally.add(3.14159)
        plain += 3.14159
        tally.retract(1e16)
        plain -= 1e16
        tally.retract(3.14159)
        plain -= 3.14159
    assert tally.sum() == 0.25 != plain


@given(streams(VALUES), st.integers(0, 3))
@pytest.mark.covers("Views and conflation, title by title", "`MIN`, `MAX`, `ANY`")
def test_extremes_are_those_of_a_sort(stream: tuple[list[Any], list[Any]], seed: int) -> None:
    tally = OrderTally()
    held = applied(tally, *stream, seed)
    assert tally.count == len(held)
    if not held:
        assert tally.least() is None and tally.greatest() is None
        return
    if any(each != each for each in held):
        assert bits(tally.least()) == bits(tally.greatest()) == "nan"
        return
    places = sorted(map(place_of, held))
    assert place_of(tally.least())[:2] == places[0][:2]
    assert place_of(tally.greatest())[:2] == places[-1][:2]
    for found in (tally.least(), tally.greatest()):
        if not isinstance(found, str):
            doubles = any(isinstance(each, float) for each in held)
            exact = abs(found) <= 2**53
            assert not exact or isinstance(found, float) == doubles


@pytest.mark.covers("Views and conflation, title by title", "`MIN`, `MAX`, `ANY`")
def test_which_of_two_equal_numbers_is_left_does_not_show() -> None:
    tally = OrderTally()
    for value in (0, 0.0, True):
        tally.add(value)
    tally.retract(0.0)
    assert [bits(tally.least()), bits(tally.greatest())] == [bits(0), bits(1)]


def distinct_by_filters(values: list[Any]) -> set[Any]:
    """The different values: a number counts unless a text says it."""
    texts = {each for each in values if isinstance(each, str)}
    said = {parsed(each) for each in texts}
    numbers = {each for each in values if not isinstance(each, str) and each == each}
    nan = {"NaN itself"} if any(each != each for each in values) else set()
    return texts | {each for each in numbers if each not in said} | nan


@given(streams(VALUES), st.integers(0, 3))
@pytest.mark.covers("Views and conflation, title by title", "`COUNT_DISTINCT`")
def test_different_values_are_counted_as_filters_compare_them(
    stream: tuple[list[Any], list[Any]], seed: int
) -> None:
    tally = DistinctTally()
    held = applied(tally, *stream, seed)
    expected = distinct_by_filters(held)
    assert tally.count == len(held)
    assert tally.distinct() == len(expected)
    if len(expected) != 1:
        assert tally.unique() is None
    elif not any(each != each for each in held):
        found = tally.unique()
        assert any(place_of(found)[:2] == place_of(each)[:2] for each in held)
    again = DistinctTally()
    for each in sorted(held, key=str):
        again.add(each)
    assert tally.joined(",") == again.joined(",")
    assert (tally.joined(",") is None) == (not held)


def test_what_several_equal_values_are_shown_as_is_the_same_in_every_order() -> None:
    for order in ([5, 5.0, 2], [5.0, 5, 2], [2, 5, 5.0]):
        tally = DistinctTally()
        for each in order:
            tally.add(each)
        assert tally.joined(";") == "2;5.0"
        tally.retract(2)
        assert bits(tally.unique()) == bits(5.0)
        tally.retract(5.0)
        assert bits(tally.unique()) == bits(5)


@pytest.mark.covers("Views and conflation, title by title", "`COUNT_DISTINCT`")
def test_values_of_one_kind_are_unique() -> None:
    text, nan, truth = DistinctTally(), DistinctTally(), DistinctTally()
    text.add("a")
    nan.add(math.nan)
    nan.add(math.nan)
    truth.add(True)
    assert text.unique() == "a"
    assert bits(nan.unique()) == "nan" and nan.joined(",") == "nan"
    assert bits(truth.unique()) == bits(1) and truth.joined(",") == "1"


@pytest.mark.covers("Views and conflation, title by title", "`COUNT_DISTINCT`")
def test_a_text_beyond_its_limit_is_null(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tallies, "CONCAT_BYTES_MAX", 5)
    tally = DistinctTally()
    tally.add("ab")
    tally.add("cd")
    assert tally.joined(",") == "ab,cd"
    assert tally.joined(", ") is None


def test_a_text_that_is_too_long_is_not_put_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group with 100,000 different values took 0.1 s of the loop at each change of a member."""
    monkeypatch.setattr(tallies, "CONCAT_BYTES_MAX", 20)
    monkeypatch.setattr(tallies, "place_of", lambda value: pytest.fail(f"{value} was placed"))
    texts, numbers = DistinctTally(), DistinctTally()
    for at in range(11):
        texts.add(f"text {at}")
        numbers.add(at)
    assert texts.joined("") is None
    assert numbers.joined(",") is None


@pytest.mark.parametrize("changes_max", [3, 1_000])
def test_a_kept_order_is_that_of_all_values(
    monkeypatch: pytest.MonkeyPatch, changes_max: int
) -> None:
    monkeypatch.setattr(tallies, "ORDER_KEPT_FROM", 3)
    monkeypatch.setattr(tallies, "CHANGES_MAX", changes_max)
    monkeypatch.setattr(tallies, "CONCAT_BYTES_MAX", 60)
    random_ = random.Random(changes_max)
    some = [*range(6), *map(float, range(6)), *map(str, range(6)), "5.0", "x", math.nan, -0.0, True]
    tally = DistinctTally()
    held: list[Any] = []
    lengths = set()
    for _ in range(3_000):
        for _ in range(random_.choice((1, 1, 2, 5))):
            if held and random_.random() < 0.5:
                tally.retract(held.pop(random_.randrange(len(held))))
            else:
                held.append(random_.choice(some))
                tally.add(held[-1])
        fresh = DistinctTally()
        for value in held:
            fresh.add(value)
        found = tally.joined(", ")
        assert found == fresh.joined(", ")
        lengths.add(None if found is None else len(found))
    assert len(lengths) > 20 and None in lengths


def test_one_more_value_places_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group with 10,000 short values took 5 ms of the loop at each change of a member."""
    placed: list[Any] = []
    tally = DistinctTally()
    for at in range(1_000):
        tally.add(at)
    assert tally.joined(",") is not None
    monkeypatch.setattr(tallies, "place_of", lambda value: placed.append(value) or place_of(value))
    tally.retract(500)
    tally.add("5000")
    assert str(tally.joined(",")).endswith(",999,5000")
    assert len(placed) <= 3


def test_different_values_are_counted_without_a_look_at_each() -> None:
    looks = 0

    class Watched(int):
        def __hash__(self) -> int:
            nonlocal looks
            looks += 1
            return super().__hash__()

    tally = DistinctTally()
    for at in range(100):
        tally.add(Watched(at))
    tally.add("5")
    tally.add("5.0")
    looks = 0
    assert tally.distinct() == 101 and tally.unique() is None
    assert not looks
    tally.retract("5")
    tally.retract("5.0")
    assert tally.distinct() == 100


def test_an_integer_beyond_the_range_of_doubles_stays_one() -> None:
    order, distinct = OrderTally(), DistinctTally()
    for tally in (order, distinct):
        tally.add(10**400)
        tally.add(0.5)
    assert order.greatest() == 10**400
    distinct.retract(0.5)
    assert distinct.unique() == 10**400


@pytest.mark.parametrize("make", [NumberTally, lambda: NumberTally(has_squares=True), OrderTally])
def test_a_replacement_is_one_value_out_and_another_in(make: Any) -> None:
    values = [5, 7, 5.0, 0.0, -0.0, -2.5, 1e-300, 1e300, math.nan, math.inf, "8", "x", True, None]

    def shown(tally: Any) -> str:
        if isinstance(tally, OrderTally):
            return repr((tally.count, tally.least(), tally.greatest()))
        deviation = tally.deviation(is_sample=False) if tally._has_squares else None
        return repr((tally.count, tally.sum(), tally.average(), deviation))

    for old in values:
        for new in values:
            replaced, plain = make(), make()
            for each in (3, old):
                if each is not None:
                    replaced.add(each)
            replaced.replace(old, new)
            for each in (3, new):
                if each is not None:
                    plain.add(each)
            assert shown(replaced) == shown(plain), (old, new)
