"""Delivery rates of bookmark subscriptions: how many records may be sent now (behaviour.md 2.5).

A rate (messages/rates.py) is an upper bound. With a multiple of the original speed, `rate_max_gap`
is the longest pause of the replay: longer pauses of the original are cut to it.

Pure: the time is an argument, in microseconds of a clock that never goes back.
"""

from __future__ import annotations

import struct

from raylay.services.messages.rates import Rate
from raylay.services.messages.records import Run

SLICE_US = 10_000
"""Time whose allowance is collected before records are sent, in microseconds, so that a high rate
is sent in batches."""
BURST_US = 100_000
"""Time whose allowance is kept for a subscriber that does not take it, in microseconds; older
allowance lapses."""
_LENGTH = struct.Struct("<I")


class Pacer:
    """Limits one replay to its rate.

    Invariants: between any two instants no more is sent than the rate allows for the time between
    them, plus `BURST_US`, plus a slice, plus one message; with a multiple of the original speed, no
    run is sent before its time. `due_us` is set when something was held back.

    Owner: one replay. Lifecycle: as long as the replay; a pause ends both.
    """

    __slots__ = ("_allowance", "_previous_us", "_rate", "_sent_us", "_updated_us", "due_us")

    def __init__(self, rate: Rate, now_us: int) -> None:
        self._rate = rate
        self.due_us: int | None = None
        """Time at which more may be sent; None: nothing is held back."""
        self._updated_us = now_us
        # Allowance in the rate's unit; a large message takes it below zero.
        self._allowance = self._slice
        self._sent_us: int | None = None
        self._previous_us = 0

    @property
    def _slice(self) -> float:
        """Returns the smallest allowance that is worth sending: one message, or the rate's amount
        for `SLICE_US`."""
        return max(1.0, self._rate.per_s * SLICE_US / 1e6)

    def allowed(self, run: Run, now_us: int) -> int:
        """Returns how many records of this run may be sent now, from its first one on; 0: see
        `due_us`."""
        self.due_us = None
        rate = self._rate
        if rate.unit == "speed":
            if self._sent_us is not None and self._sent_us + self._gap_us(run) > now_us:
                self.due_us = self._sent_us + self._gap_us(run)
                return 0
            return run.count
        gained = (now_us - self._updated_us) * rate.per_s / 1e6
        most = max(self._slice, rate.per_s * BURST_US / 1e6)
        self._allowance = min(most, self._allowance + gained)
        self._updated_us = now_us
        if self._allowance < 1 if rate.unit == "messages" else self._allowance <= 0:
            self.due_us = now_us + int((self._slice - self._allowance) * 1e6 / rate.per_s) + 1
            return 0
        if rate.unit == "messages":
            return min(run.count, int(self._allowance))
        return _records_within(run.payload, self._allowance)

    def sent(self, run: Run, messages: int, size_bytes: int, now_us: int) -> None:
        unit = self._rate.unit
        if unit == "messages":
            self._allowance -= messages
        elif unit == "bytes":
            self._allowance -= size_bytes
        else:
            # Measured from when the run was due, so that late wake-ups do not add up; but not from
            # long ago, so that a subscriber that stalled does not get the rest at once.
            due_us = now_us if self._sent_us is None else self._sent_us + self._gap_us(run)
            self._sent_us = max(due_us, now_us - BURST_US)
            self._previous_us = max(self._previous_us, run.receive_time_us)

    def _gap_us(self, run: Run) -> int:
        """Returns the pause between the previous run and this one, in microseconds."""
        gap_us = int(max(0, run.receive_time_us - self._previous_us) / self._rate.per_s)
        most_us = self._rate.max_gap_us
        return gap_us if most_us is None else min(gap_us, most_us)


def _records_within(payload: bytes, size_bytes: float) -> int:
    """Returns how many records begin within the first `size_bytes`, at least one."""
    offset = count = 0
    end = len(payload)
    while offset < end and offset < size_bytes:
        offset += _LENGTH.unpack_from(payload, offset)[0]
        count += 1
    return max(1, count)
