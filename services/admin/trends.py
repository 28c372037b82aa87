"""Trends of values over the last half minute: growing, shrinking or steady.

The slope is that of the straight line through the samples (least squares). A change of less than a
tenth of the mean is noise, so that a lag that flickers is called steady.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from typing import Literal, NamedTuple, TypeAlias

Trend: TypeAlias = Literal["growing", "shrinking", "steady"]
WINDOW_US = 30_000_000
"""Age up to which a sample counts."""
SPACING_US = 900_000
"""Least time between two samples that are kept."""
SPAN_US_MIN = 5_000_000
"""Least time between the first and the last sample of a trend."""
SAMPLES_MIN = 3
DEAD_BAND = 0.1
KEYS_MAX = 20_000


class Slope(NamedTuple):
    """The change of a value.

    Attributes:
        trend: None: too few samples.
        per_s: change in a second; None: too few samples.
    """

    trend: Trend | None
    per_s: float | None


UNKNOWN_SLOPE = Slope(None, None)


def slope_of(samples: Sequence[tuple[int, float]], floor: float = 0.0) -> Slope:
    """Returns the slope of samples.

    Args:
        samples: (time in microseconds, value), ascending by time.
        floor: a change over all samples up to this one is steady, however small the mean is.
    """
    count = len(samples)
    if count < SAMPLES_MIN or samples[-1][0] - samples[0][0] < SPAN_US_MIN:
        return UNKNOWN_SLOPE
    begin_us = samples[0][0]
    times = [(time_us - begin_us) / 1e6 for time_us, _ in samples]
    mean_time = sum(times) / count
    mean = sum(value for _, value in samples) / count
    spread = sum((time - mean_time) ** 2 for time in times)
    rise = sum(
        (time - mean_time) * (value - mean) for time, (_, value) in zip(times, samples, strict=True)
    )
    per_s = rise / spread
    change = per_s * times[-1]
    if abs(change) <= max(floor, DEAD_BAND * abs(mean)):
        return Slope("steady", per_s)
    return Slope("growing" if change > 0 else "shrinking", per_s)


class TrendBook:
    """The latest samples of many values.

    Owner: the part that takes the samples. `forget_old` forgets values that have not been noted for
    `WINDOW_US`; above `KEYS_MAX` values, no further one is noted.
    """

    def __init__(self) -> None:
        self._samples: dict[Hashable, deque[tuple[int, float]]] = {}

    def __len__(self) -> int:
        return len(self._samples)

    def note(self, key: Hashable, time_us: int, value: float | None) -> None:
        """Notes a value; None: it is not known, and leaves a gap. A time before the last one begins
        anew: the clock was set, or the value belongs to something else of the same name."""
        samples = self._samples.get(key)
        if samples is None:
            if value is None or len(self._samples) >= KEYS_MAX:
                return
            samples = self._samples[key] = deque()
        if samples and time_us < samples[-1][0]:
            samples.clear()
        while samples and samples[0][0] < time_us - WINDOW_US:
            samples.popleft()
        if value is not None and not (samples and time_us - samples[-1][0] < SPACING_US):
            samples.append((time_us, value))

    def of(self, key: Hashable, floor: float = 0.0) -> Slope:
        """Returns the slope of a value; arguments as of `slope_of`."""
        samples = self._samples.get(key)
        return UNKNOWN_SLOPE if samples is None else slope_of(tuple(samples), floor)

    def forget_old(self, now_us: int) -> None:
        """Forgets the values without a sample in the last `WINDOW_US`."""
        old = [
            key
            for key, samples in self._samples.items()
            if not samples or samples[-1][0] < now_us - WINDOW_US
        ]
        for key in old:
            del self._samples[key]
