"""Rates of counters between two samples: the documented values that end in `_per_sec`."""

from __future__ import annotations

from collections.abc import Hashable

US_PER_S = 1_000_000


class CounterRates:
    """Turns counters that only rise into averages over the time between two samples.

    A counter that fell has begun anew with its owner, as after a reconnect: all of it is counted.
    Owner: the part that takes the samples. Lifecycle: for each sample `begin`, then `of` for each
    counter.
    """

    def __init__(self) -> None:
        self._before: dict[Hashable, float] = {}
        self._now: dict[Hashable, float] = {}
        self._before_us = self._now_us = 0

    def begin(self, now_us: int) -> None:
        """Begins a sample at this time, by a clock that never goes back. Counters that the last
        sample did not ask for are forgotten."""
        self._before, self._now = self._now, {}
        self._before_us, self._now_us = self._now_us, now_us

    def of(self, key: Hashable, count: float) -> float | None:
        """Returns the rate of a counter in 1/s since the last sample; None: it was not in it.

        Args:
            key: names the counter among all of them.
            count: its value now.
        """
        self._now[key] = count
        before = self._before.get(key)
        passed_us = self._now_us - self._before_us
        if before is None or passed_us <= 0:
            return None
        risen = count - before if count >= before else count
        return round(risen * US_PER_S / passed_us, 3)
