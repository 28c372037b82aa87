"""The clock by which old data is removed."""

from __future__ import annotations

import pytest

from raylay.services.messages.aging_clock import AgingClock

pytestmark = pytest.mark.covers("Replication", "a wall clock that is set both ways")

S_US = 1_000_000
DAY_US = 86_400 * S_US
START_US = 20_000 * DAY_US


def test_it_is_the_wall_clock_that_nobody_sets() -> None:
    clock = AgingClock(START_US, 5)
    for passed_us in (0, 1, S_US, DAY_US, 400 * DAY_US):
        assert clock.now_us(START_US + passed_us, 5 + passed_us) == START_US + passed_us


@pytest.mark.parametrize(
    "jumps_us", [(DAY_US,), (-DAY_US, 0), (DAY_US, -DAY_US, DAY_US), (-DAY_US,)]
)
def test_nothing_that_is_stored_ages_more_than_twice_as_fast_as_time_passes(
    jumps_us: tuple[int, ...],
) -> None:
    clock, stored = AgingClock(START_US, 0), [(0, START_US)]
    for number in range(1, 100):
        steady_us = number * S_US
        wall_us = START_US + steady_us + (jumps_us[min(number // 20, len(jumps_us) - 1)])
        now_us = clock.now_us(wall_us, steady_us)
        for since_us, stamp_us in stored:
            assert now_us - stamp_us <= 2 * (steady_us - since_us)
        stored.append((steady_us, wall_us))


def test_it_catches_up_with_a_clock_that_was_set_forward() -> None:
    clock = AgingClock(START_US, 0)
    assert clock.now_us(START_US + 61 * S_US, S_US) == START_US + 2 * S_US
    assert clock.now_us(START_US + 120 * S_US, 60 * S_US) == START_US + 120 * S_US


def test_it_goes_on_as_far_behind_as_it_was_before_a_restart() -> None:
    clock = AgingClock(START_US, 0)
    behind_us = START_US + DAY_US - clock.now_us(START_US + DAY_US, 0)
    again = AgingClock(START_US + DAY_US + S_US, 7)
    again.resume(behind_us)
    assert again.now_us(START_US + DAY_US + S_US, 7) == START_US + S_US
    assert again.now_us(START_US + DAY_US + 3 * S_US, 7 + 2 * S_US) == START_US + 5 * S_US


def test_a_steady_clock_that_a_host_resumes_behind_changes_nothing() -> None:
    clock = AgingClock(START_US, 9 * S_US)
    assert clock.now_us(START_US + S_US, 8 * S_US) == START_US
