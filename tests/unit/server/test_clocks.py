"""The difference of two clocks of an instance, on a machine that takes the processor away between
two readings."""

from __future__ import annotations

import pytest

from raylay.services.server.runtime import READINGS_MAX, clock_difference_us

pytestmark = pytest.mark.covers("Journal", "receive times follow the wall clock")
LEAD_US = 7_000_000


class Clocks:
    """Two clocks, `LEAD_US` apart. Each reading takes the next of `pauses_us`, and then 1 µs."""

    def __init__(self, *pauses_us: int) -> None:
        self._us = 1_000
        self._pauses_us = list(pauses_us)
        self.readings = 0

    def _passes(self) -> int:
        self._us += self._pauses_us.pop(0) if self._pauses_us else 1
        return self._us

    def wall_us(self) -> int:
        return self._passes() + LEAD_US

    def steady_us(self) -> int:
        self.readings += 1
        return self._passes()


@pytest.mark.parametrize(
    ("pauses_us", "readings"),
    [
        ((), 2),
        # The process loses the processor before the first reading, between two, and at each.
        ((400_000,), 2),
        ((1, 400_000), 4),
        ((1, 1, 400_000), 4),
        ((1, 400_000, 400_000, 1, 90_000, 90_000), 6),
    ],
)
def test_a_pause_between_two_readings_does_not_count(
    pauses_us: tuple[int, ...], readings: int
) -> None:
    clocks = Clocks(*pauses_us)
    assert abs(clock_difference_us(clocks.wall_us, clocks.steady_us) - LEAD_US) <= 1
    assert clocks.readings == readings


def test_the_closest_readings_count_where_none_is_close() -> None:
    pauses_us = [(5_000, 5_000, 1_000)] * READINGS_MAX
    pauses_us[7] = 5_000, 80, 80
    clocks = Clocks(*(each for reading in pauses_us for each in reading))
    assert abs(clock_difference_us(clocks.wall_us, clocks.steady_us) - LEAD_US) <= 1
    assert clocks.readings == 2 * READINGS_MAX
