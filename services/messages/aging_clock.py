"""The clock by which old data is removed for good, although the wall clock may be set.

Stored data bears the wall clock's times, because it outlives the process. If its age were measured
by the wall clock, a clock set forward by a day, by mistake, would at once remove everything with a
lifetime of a day.
"""

from __future__ import annotations

SPEED_MAX = 2
"""Factor by which data ages faster than time passes, at most."""


class AgingClock:
    """A clock that follows the wall clock, but is never ahead of it and never faster than
    `SPEED_MAX`.

    Where the wall clock is set back, this clock goes back with it, so that data stored from then on
    is not taken for older than it is. Where the wall clock is set forward, this clock follows
    slowly.

    Args:
        wall_us: the wall clock now, in microseconds since 1970. At the start it is trusted, unless
            `resume` corrects it.
        steady_us: returns the time of a clock that is never set, in microseconds.
    """

    __slots__ = ("_now_us", "_steady_us")

    def __init__(self, wall_us: int, steady_us: int) -> None:
        self._now_us = wall_us
        self._steady_us = steady_us

    def resume(self, behind_us: int) -> None:
        """Sets this clock behind the wall clock by as much as at the end of the previous
        process."""
        self._now_us -= behind_us

    def now_us(self, wall_us: int, steady_us: int) -> int:
        """Returns the time by which ages are measured, in microseconds since 1970."""
        passed_us = max(steady_us - self._steady_us, 0)
        self._steady_us = steady_us
        self._now_us = min(wall_us, self._now_us + SPEED_MAX * passed_us)
        return self._now_us
