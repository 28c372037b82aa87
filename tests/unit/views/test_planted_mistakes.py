"""Mistakes planted into the pure folds, conflators and windows: the comparison of each with its
recomputation sees them. Those of instances are in tests/sim/view_mistakes.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from unit.subscriptions import test_conflation, test_windows
from unit.views import test_group_fold, test_join_fold, test_tallies

from raylay.services.subscriptions.conflation import Conflator
from raylay.services.subscriptions.windows import OrderedRows
from raylay.services.views import tallies
from raylay.services.views.groups import GroupTable
from raylay.services.views.join_fold import JoinFold, _Index
from raylay.services.views.tallies import NumberTally, OrderTally

pytestmark = [
    pytest.mark.covers("Views", "aggregates are exact"),
    pytest.mark.covers("Views", "joins: left outer"),
    pytest.mark.covers("Views", "conflation: a key"),
    pytest.mark.covers("Views", "windows into ordered rows"),
]

Original = Callable[..., Any]


class Law(NamedTuple):
    """A comparison with a recomputation, and the streams that it is given."""

    test: Any
    streams: tuple[st.SearchStrategy[Any], ...]


GROUPS = Law(
    test_group_fold.test_a_view_equals_a_recomputation_after_each_change,
    (test_group_fold.CHANGES, st.booleans()),
)
EQUAL_RECORDS = st.fixed_dictionaries(
    {"carrier": st.just("AA"), "delay": st.sampled_from([5, 5.0])}
)
EQUAL = Law(
    GROUPS.test,
    (st.lists(st.tuples(st.integers(0, 1), EQUAL_RECORDS), max_size=12), st.booleans()),
)
TWO = Law(
    test_join_fold.test_two_topics_equal_a_recomputation_after_each_change,
    (test_join_fold.changes(2), st.booleans(), st.booleans()),
)
SUMS = Law(
    test_tallies.test_sums_are_the_exact_ones_rounded_once,
    (test_tallies.streams(test_tallies.VALUES), st.integers(0, 3), st.booleans()),
)
LARGE = Law(
    SUMS.test,
    (
        test_tallies.streams(st.sampled_from([1, -1, (1 << 64) - 1, -(1 << 63)])),
        *SUMS.streams[1:],
    ),
)
EXTREMES = Law(
    test_tallies.test_extremes_are_those_of_a_sort,
    (test_tallies.streams(test_tallies.VALUES), st.integers(0, 3)),
)
DISTINCT = Law(
    test_tallies.test_different_values_are_counted_as_filters_compare_them,
    (test_tallies.streams(test_tallies.VALUES), st.integers(0, 3)),
)
CONFLATION = Law(
    test_conflation.test_a_follower_gets_a_key_once_an_interval_and_ends_with_the_topic,
    (test_conflation.STEPS,),
)
WINDOWS = Law(
    test_windows.test_who_applies_the_changes_holds_the_slice_of_a_sort,
    (test_windows.CHANGES, test_windows.WINDOWS, st.integers(0, 20)),
)


def holds(law: Law, streams: int = 1_000) -> bool:
    """Returns whether a law holds for so many streams, the same ones each time."""
    checked = given(*law.streams)(law.test.hypothesis.inner_test)
    checked = settings(
        max_examples=streams,
        phases=[Phase.generate],
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )(checked)
    try:
        seed(37)(checked)()
    except Exception:
        return False
    return True


# -- groups --------------------------------------------------------------------------------------
def inserts(original: Original) -> Original:
    """An update inserts."""
    return lambda table, before, now: table.add(now)


def takes_nothing_back(original: Original) -> Original:
    """Keeps records that leave a group or the filter."""
    return lambda table, member: table.by_texts[member.texts]


def keeps_empty_groups(original: Original) -> Original:
    """A group without members stays."""
    return lambda table, groups: None


def loses_null_groups(original: Original) -> Original:
    """A group of NULLs goes with its first change."""

    def settle(table: Any, groups: Any) -> None:
        original(table, groups)
        for group in tuple(groups):
            if group.texts == (None,) and group.texts in table.by_texts:
                del table.by_texts[group.texts]
                table.by_key.pop(group.key)

    return settle


def counts_null(original: Original) -> Original:
    """NULL counts as a value."""

    def member(table: Any, *of: Any) -> Any:
        found = original(table, *of)
        return found._replace(arguments=[0 if each is None else each for each in found.arguments])

    return member


def takes_equal_for_the_same(original: Original) -> Original:
    """5 and 5.0 are no change."""

    def replace(table: Any, before: Any, now: Any) -> Any:
        same = [
            old if old == new else new
            for old, new in zip(before.arguments, now.arguments, strict=True)
        ]
        return original(table, before, now._replace(arguments=same))

    return replace


def clips_each_step(original: Original) -> Original:
    """A sum is cut to 64 bits with each value."""

    def change(tally: Any, value: Any, sign: int) -> None:
        original(tally, value, sign)
        tally._integers = max(-(1 << 63), min((1 << 64) - 1, tally._integers))

    return change


def ignores_doubles(original: Original) -> Original:
    """A double leaves only its part as an integer."""

    def change(tally: Any, value: Any, sign: int) -> None:
        is_half = sign < 0 and value.__class__ is float and value == value and abs(value) < 1e300
        original(tally, float(int(value)) if is_half else value, sign)

    return change


def keeps_extremes(original: Original) -> Original:
    """Extremes are not taken back."""

    def retract(tally: Any, value: Any) -> None:
        tally.count -= 1

    return retract


def shows_the_first(original: Original) -> Original:
    """An extreme has the type of the equal value that is found."""
    return lambda tally, number: number


def sorts_nan(original: Original) -> Original:
    """NaN is among the sorted numbers."""

    def add(tally: Any, value: Any) -> None:
        if value == value:
            original(tally, value)
        else:
            tally.count += 1
            tally._numbers.add(value)

    return add


def counts_once(original: Original) -> Original:
    """Equal values are counted once, and all go with the first."""

    def counted(counts: Any, value: Any, change: int) -> int:
        if change > 0:
            counts[value] = 1
        else:
            counts.pop(value, None)
        return counts.get(value, 0)

    return counted


# -- joins ---------------------------------------------------------------------------------------
def null_row_stays(original: Original) -> Original:
    """The row of a record without a match stays when there is one: or it does not return."""
    return lambda fold, number, value: (original(fold, number, value)[0], ())


def index_keeps(original: Original) -> Original:
    """An old joined value stays in the index."""
    return lambda index, value, key: None


def one_match(original: Original) -> Original:
    """A value has one match."""
    return lambda index, value: tuple(original(index, value))[:1]


def null_equals_null(original: Original) -> Original:
    """Records without a value are joined."""

    def value(fold: Any, record: Any, fields: Any) -> Any:
        found = original(fold, record, fields)
        return ("",) if found is None and fields else found

    return value


# -- conflation ------------------------------------------------------------------------------------
def restarts(original: Original) -> Original:
    """Each message begins the interval anew."""

    def change(conflator: Any, key: bytes, before: Any, now: Any, now_us: int, *of: Any) -> None:
        original(conflator, key, before, now, now_us, *of)
        conflator._pending[key].first_us = now_us
        conflator._order.remove(key)
        conflator._order.append(key)

    return change


def keeps_the_first(original: Original) -> Original:
    """The first value of an interval stays."""

    def change(conflator: Any, key: bytes, before: Any, now: Any, *of: Any) -> None:
        entry = conflator._pending.get(key)
        kept = None if entry is None else entry.now
        original(conflator, key, before, kept or now, *of)

    return change


def leaves_the_pending(original: Original) -> Original:
    """A delete leaves what is pending."""

    def change(conflator: Any, key: bytes, before: Any, now: Any, *of: Any) -> None:
        if now is not None or key not in conflator:
            original(conflator, key, before, now, *of)

    return change


def knows_the_last(original: Original) -> Original:
    """A delta is against the message before, and what was never given is told of as gone."""

    def change(conflator: Any, key: bytes, before: Any, now: Any, *of: Any) -> None:
        original(conflator, key, before, now, *of)
        conflator._pending[key].before = before

    return change


def two_in_one(original: Original) -> Original:
    """Gives changes early that are due soon."""
    return lambda conflator, now_us, *of: original(conflator, now_us + 4, *of)


# -- windows ---------------------------------------------------------------------------------------
def end_not_given(original: Original) -> Original:
    """A row at the end of a window that is not full is not given."""

    def inserted(rows: Any, window: Any, place: Any) -> Any:
        if window.last is not None and place > window.last:
            return None
        return original(rows, window, place)

    return inserted


def end_not_taken(original: Original) -> Original:
    """The row that is pushed out at the end stays."""

    def inserted(rows: Any, window: Any, place: Any) -> Any:
        found = original(rows, window, place)
        return found if found is None else (found[0], None)

    return inserted


def start_not_taken(original: Original) -> Original:
    """The row that goes at the start stays."""

    def removed(rows: Any, window: Any, place: Any) -> Any:
        before = window.first
        found = original(rows, window, place)
        if found is not None and before is not None and place < before:
            return found[0], None
        return found

    return removed


def gap_not_filled(original: Original) -> Original:
    """The row that comes in behind one that goes is not given."""

    def removed(rows: Any, window: Any, place: Any) -> Any:
        found = original(rows, window, place)
        return found if found is None else (None, found[1])

    return removed


def boundary_stays(original: Original) -> Original:
    """The first row of a window stays what it was."""

    def removed(rows: Any, window: Any, place: Any) -> Any:
        first = window.first
        found = original(rows, window, place)
        if window.count:
            window.first = first
        return found

    return removed


def gone_outside(original: Original) -> Original:
    """A window is told of each row that goes."""

    def removed(rows: Any, window: Any, place: Any) -> Any:
        return original(rows, window, place) or (None, place)

    return removed


def mover_untold(original: Original) -> Original:
    """A row that changes and keeps its place is not given."""

    def put(rows: Any, key: bytes, place: Any) -> Any:
        return [] if rows.places.get(key) == place else original(rows, key, place)

    return put


PLANTED: tuple[tuple[Law, Any, str, Callable[[Original], Original]], ...] = (
    (GROUPS, GroupTable, "replace", inserts),
    (GROUPS, GroupTable, "retract", takes_nothing_back),
    (GROUPS, GroupTable, "settle", keeps_empty_groups),
    (GROUPS, GroupTable, "settle", loses_null_groups),
    (GROUPS, GroupTable, "member", counts_null),
    (EQUAL, GroupTable, "replace", takes_equal_for_the_same),
    (LARGE, NumberTally, "_change", clips_each_step),
    (SUMS, NumberTally, "_change", ignores_doubles),
    (EXTREMES, OrderTally, "retract", keeps_extremes),
    (EXTREMES, OrderTally, "_shown", shows_the_first),
    (EXTREMES, OrderTally, "add", sorts_nan),
    (DISTINCT, tallies, "_counted", counts_once),
    (TWO, JoinFold, "_above", null_row_stays),
    (TWO, _Index, "remove", index_keeps),
    (TWO, _Index, "keys", one_match),
    (TWO, JoinFold, "_value", null_equals_null),
    (CONFLATION, Conflator, "change", restarts),
    (CONFLATION, Conflator, "change", keeps_the_first),
    (CONFLATION, Conflator, "change", leaves_the_pending),
    (CONFLATION, Conflator, "change", knows_the_last),
    (CONFLATION, Conflator, "due", two_in_one),
    (WINDOWS, OrderedRows, "_inserted", end_not_given),
    (WINDOWS, OrderedRows, "_inserted", end_not_taken),
    (WINDOWS, OrderedRows, "_removed", start_not_taken),
    (WINDOWS, OrderedRows, "_removed", gap_not_filled),
    (WINDOWS, OrderedRows, "_removed", boundary_stays),
    (WINDOWS, OrderedRows, "_removed", gone_outside),
    (WINDOWS, OrderedRows, "put", mover_untold),
)


@pytest.mark.parametrize("planted", PLANTED, ids=[each[-1].__name__ for each in PLANTED])
def test_a_planted_mistake_is_seen(
    planted: tuple[Law, Any, str, Callable[[Original], Original]], monkeypatch: pytest.MonkeyPatch
) -> None:
    law, owner, name, plant = planted
    monkeypatch.setattr(owner, name, plant(getattr(owner, name)))
    assert not holds(law)


@pytest.mark.parametrize(
    "law", [GROUPS, EQUAL, TWO, SUMS, LARGE, EXTREMES, DISTINCT, CONFLATION, WINDOWS]
)
def test_without_a_mistake_the_laws_hold(law: Law) -> None:
    assert holds(law, streams=30)
