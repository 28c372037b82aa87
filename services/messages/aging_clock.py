"""The clock by which old data is removed for good, although the wall clock may be set.

What is stored bears the wall clock's times, because it outlives the process. If its age were
counted by the wall clock, setting that clock forward by a day would end everything with a lifetime
of a day at once, and by mistake it would be gone for good.
"""

from __future__ import annotations

SPEED_MAX = 2
"""So many times as fast as time passes, data ages at most."""


class AgingClock:
    """The wall clock, but never ahead of it and never faster than `SPEED_MAX`.

    Where the wall clock is set back, this clock goes back with it, so that what is stored from then
    on is as young as it is. Where it is set forward, this clock follows slowly.

    Args:
        wall_us: the wall clock now, in microseconds since 1970: it is trusted at the start, but for
            what `resume` says.
        steady_us: a clock in microseconds that nobody sets.
    """

    __slots__ = ("_now_us", "_steady_us")

    def __init__(self, wall_us: int, steady_us: int) -> None:
        self._now_us = wall_us
        self._steady_us = steady_us

    def resume(self, behind_us: int) -> None:
        """Goes on as far behind the wall clock as it was at the end of the process before."""
        self._now_us -= behind_us

    def now_us(self, wall_us: int, steady_us: int) -> int:
        """The time to count ages by, in microseconds since 1970."""
        passed_us = max(steady_us - self._steady_us, 0)
        self._steady_us = steady_us
        self._now_us = min(wall_us, self._now_us + SPEED_MAX * passed_us)
        return self._now_us
