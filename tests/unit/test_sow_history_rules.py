"""services/sow/history_rules.py: what former rules took away is not told of."""

from __future__ import annotations

import pytest

from raylay.services.errors import SowDamaged
from raylay.services.sow.history_rules import went_on
from raylay.services.sow.state import SowRules

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


def test_what_is_no_entry_is_damage() -> None:
    with pytest.raises(SowDamaged, match="rules of a history"):
        went_on(b"short", SowRules(window_us=1), NOW_US)
