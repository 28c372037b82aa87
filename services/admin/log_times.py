"""The times of an instance's transactions, as far as samples and journal segments show them: how
many seconds a reader that has read up to a transaction is behind."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple

MARKS_MAX = 2_000
"""Limit on the samples that are kept; of the older half of more, every second one is dropped."""
US_PER_S = 1_000_000


class SegmentSpan(NamedTuple):
    """The first and the last transaction of a journal segment, with their times in microseconds
    since 1970; a time of 0 is not known."""

    first_txid: int
    first_time_us: int
    last_txid: int
    last_time_us: int


class LogTimes:
    """Times of transactions, from samples and journal segments. A time between two known ones is
    interpolated.

    Owner: the part that takes the samples. Lifecycle: one instance.
    """

    def __init__(self) -> None:
        self._txids: list[int] = []
        self._times_us: list[int] = []
        self._segments: tuple[list[int], list[int]] = [], []

    def sampled(self, committed_txid: int, time_us: int) -> None:
        """Notes the last transaction at a time. One that was noted before keeps its first time."""
        if self._txids and committed_txid <= self._txids[-1]:
            if committed_txid < self._txids[-1]:  # another life, with another journal
                self._txids, self._times_us = [committed_txid], [time_us]
            return
        self._txids.append(committed_txid)
        self._times_us.append(time_us)
        if len(self._txids) > MARKS_MAX:
            half = MARKS_MAX // 2
            for marks in (self._txids, self._times_us):
                marks[:half] = marks[:half:2]

    def listed(self, segments: Sequence[SegmentSpan]) -> None:
        """Takes the journal's segments, oldest first."""
        txids: list[int] = []
        times_us: list[int] = []
        for each in segments:
            for txid, time_us in (
                (each.first_txid, each.first_time_us),
                (each.last_txid, each.last_time_us),
            ):
                if time_us and (not txids or txid > txids[-1]):
                    txids.append(txid)
                    times_us.append(time_us)
        self._segments = txids, times_us

    def seconds_behind(self, txid: int, committed_txid: int) -> int | None:
        """Returns the whole seconds between the times of a transaction and of the last one; less
        than one is 0, as documented. None: the time is not known."""
        if txid >= committed_txid:
            return 0
        then_us, last_us = self._time_us(txid), self._time_us(committed_txid)
        if then_us is None or last_us is None:
            return None
        return max(0, last_us - then_us) // US_PER_S

    def _time_us(self, txid: int) -> int | None:
        if self._txids and txid >= self._txids[0]:
            return _between(self._txids, self._times_us, txid)
        txids, times_us = self._segments
        before = bisect_right(txids, txid)
        if before and before == len(txids) and self._txids:
            # Between the last segment that is listed and the first sample.
            ends = [txids[-1], self._txids[0]]
            return _between(ends, [times_us[-1], self._times_us[0]], txid)
        if txids:
            return _between(txids, times_us, txid)
        return self._times_us[0] if self._times_us else None


def _between(txids: Sequence[int], times_us: Sequence[int], txid: int) -> int:
    at = bisect_left(txids, txid)
    if at == len(txids):
        return times_us[-1]
    if at == 0 or txids[at] == txid:
        return times_us[at]
    share = (txid - txids[at - 1]) / (txids[at] - txids[at - 1])
    return round(times_us[at - 1] + share * (times_us[at] - times_us[at - 1]))
