"""The due time of each message of a replay. Pure functions."""

from __future__ import annotations

from typing import Any

import numpy as np

Times = Any
"""A numpy array of int64, microseconds."""


class Schedule:
    """Converts original times to due times, in microseconds since the first message was due.

    The order of the log stays: a message whose time is before that of one ahead of it is due
    together with that one.

    Args:
        speed: 1 is the original speed, 10 is ten times as fast; 0: everything is due at once.
        gap_max_us: a longer pause, in original time, is shortened to this; 0: no limit.
    """

    def __init__(self, speed: float, gap_max_us: int = 0) -> None:
        self._speed = speed
        self._gap_max_us = gap_max_us
        self._newest_us: int | None = None
        self._due_us = 0.0

    @property
    def paced(self) -> bool:
        """Returns whether messages are due one after the other, not all at once."""
        return self._speed > 0

    def take(self, times_us: Times) -> Times:
        """Returns the due times of the next messages, ascending."""
        if not len(times_us) or not self._speed:
            return np.zeros(len(times_us), np.int64)
        before = int(times_us[0]) if self._newest_us is None else self._newest_us
        reached = np.maximum.accumulate(np.concatenate([[before], times_us]))
        gaps = np.diff(reached)
        if self._gap_max_us:
            gaps = np.minimum(gaps, self._gap_max_us)
        due = self._due_us + np.cumsum(gaps) / self._speed
        self._newest_us, self._due_us = int(reached[-1]), float(due[-1])
        return due.astype(np.int64)


def ready(due_us: Times, sent: int, now_us: int) -> int:
    """Returns the number of further messages that are due now, where `sent` of them are sent."""
    return max(0, int(np.searchsorted(due_us, now_us, side="right")) - sent)
