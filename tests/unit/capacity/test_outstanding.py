"""services/capacity/outstanding.py: how many publishes wait for their acks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylay.services.capacity.outstanding import OutstandingPublishes

pytestmark = pytest.mark.covers("Clients and protocol", "outstanding publishes are limited")


@given(
    st.lists(st.tuples(st.booleans(), st.integers(1, 40))),
    st.integers(1, 50),
)
def test_it_counts_what_was_taken_and_is_not_answered(
    steps: list[tuple[bool, int]], most: int
) -> None:
    counted = OutstandingPublishes(most)
    assert counted.counts_numbered
    batches: list[tuple[int, int]] = []
    upto = 0
    for takes, number in steps:
        if takes:
            upto += number
            counted.took(upto, count := (number + 1) // 2)
            batches.append((upto, count))
        else:
            answered = max(0, upto - number)
            counted.answered(answered)
            batches = [each for each in batches if each[0] > answered]
        left = sum(count for _, count in batches)
        assert len(counted) == left
        assert (counted.is_over, counted.has_room) == (left > most, left <= most // 2)


def test_those_without_a_sequence_count_as_well() -> None:
    counted = OutstandingPublishes(2)
    counted.took(7, 1)
    counted.took_unnumbered()
    assert not counted.is_over
    counted.took_unnumbered()
    assert counted.is_over and len(counted) == 3
    counted.answered(7)
    counted.answered_unnumbered()
    assert counted.has_room and len(counted) == 1


def test_without_a_limit_numbered_ones_are_not_counted() -> None:
    assert not OutstandingPublishes().counts_numbered
