"""services/sow/history_rules.py: what former rules took away is not told of."""

from __future__ import annotations

import pytest

from raylay.services.errors import SowDamaged
from raylay.services.sow.history_rules import went_on
from raylay.services.sow.state import SowRules

pytestmark = pytest.mark.covers("SOW", "rules of a history that are changed")

NOW_US = 10_000


@pytest.mark.parametrize(
    ("before", "after", "whole_from_us"),
    [
        ((100, 0), (100, 0), 0),
        ((100, 0), (50, 0), 0),
        ((100, 0), (300, 0), NOW_US - 100),
        ((100, 0), (100, 7), 0),
        ((100, 7), (100, 7), 0),
        ((100, 7), (100, 14), 0),
        ((100, 7), (100, 0), NOW_US),
        ((100, 7), (100, 1), NOW_US),
        ((100, 7), (100, 10), NOW_US),
        ((100, 7), (300, 3), NOW_US),
        ((100, 1), (100, 0), NOW_US),
    ],
)
def test_more_than_was_kept_is_whole_from_when_it_is_kept_on(
    before: tuple[int, int], after: tuple[int, int], whole_from_us: int
) -> None:
    first, second = (SowRules(window_us=w, granularity_us=g) for w, g in (before, after))
    entry, found_us = went_on(None, first, 1)
    assert found_us == 0
    entry, found_us = went_on(entry, second, NOW_US)
    assert found_us == whole_from_us
    # The next life knows it, too, whatever it keeps.
    assert went_on(entry, second, NOW_US + 5)[1] == whole_from_us


@pytest.mark.parametrize(
    ("lives", "whole_from_us"),
    [
        # (window, granularity, when it begins) of each life after one of (100, 0).
        ([(300, 0, NOW_US), (1_000, 0, NOW_US + 50)], NOW_US - 100),
        ([(50, 0, NOW_US), (300, 0, NOW_US + 500)], NOW_US + 450),
        ([(300, 0, NOW_US), (100, 0, NOW_US + 50), (300, 0, NOW_US + 900)], NOW_US + 800),
        ([(100, 7, NOW_US), (100, 1, NOW_US + 50), (900, 1, NOW_US + 60)], NOW_US + 50),
        ([(100, 7, NOW_US), (100, 1, NOW_US + 50), (100, 0, NOW_US + 60)], NOW_US + 60),
    ],
)
def test_a_second_change_goes_by_what_the_first_left(
    lives: list[tuple[int, int, int]], whole_from_us: int
) -> None:
    entry, found_us = went_on(None, SowRules(window_us=100, granularity_us=0), 1)
    for window_us, granularity_us, now_us in lives:
        rules = SowRules(window_us=window_us, granularity_us=granularity_us)
        entry, found_us = went_on(entry, rules, now_us)
    assert found_us == whole_from_us


def test_what_is_no_entry_is_damage() -> None:
    with pytest.raises(SowDamaged, match="rules of a history"):
        went_on(b"short", SowRules(window_us=1), NOW_US)
