"""The moment of the rows that come before a replay of the log.

What comes behind the rows begins with the very next transaction. So the rows are the state that one
transaction left behind, told by its id: several may have been received at one instant.

A history with a granularity keeps the last version of each interval: of what there was in the midst
of one, some is gone. There the moment is where that interval begins, and the rest is replayed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from raylay.services.messages.records import Run
from raylay.services.sow.records import SowRecord


class AsOf(NamedTuple):
    """A state that histories have.

    Attributes:
        txid: of the last transaction in it; None: all of the instant is in it.
        time_us: the instant, in microseconds since 1970; with a transaction: just before the next
            one was received.
    """

    txid: int | None
    time_us: int

    def has(self, version: SowRecord) -> bool:
        """Returns whether a version had come by then."""
        if self.txid is None:
            return version.updated_us <= self.time_us
        return version.txid <= self.txid


def latest(versions: Iterable[SowRecord], past: AsOf) -> Iterator[SowRecord]:
    """The records that there were, of their versions by key and time."""
    last: SowRecord | None = None
    for record in versions:
        if last is not None and last.key != record.key:
            if last.body is not None:
                yield last
            last = None
        if past.has(record):
            last = record
    if last is not None and last.body is not None:
        yield last


class TimeLookup(Protocol):
    """The look-ups that this needs; storage's readers have them."""

    @property
    def first_txid(self) -> int:
        """The oldest transaction id that is here."""

    def find_time(self, time_us: int) -> int:
        """The first transaction id received at or after this time."""

    def read_headers(self, after_txid: int, runs_max: int = ...) -> list[Run]:
        """Runs behind a transaction, without their records."""


def past_of(after_txid: int, granularities_us: Sequence[int], log: TimeLookup, now_us: int) -> AsOf:
    """The last state, not behind this transaction, that histories have in full.

    Args:
        granularities_us: of the histories; 0: one keeps every version.
        now_us: when a transaction would be received that is not there yet.
    """
    before_log = log.first_txid - 1
    while True:
        following = log.read_headers(after_txid, 1)
        next_us = following[0].receive_time_us if following else now_us
        found_txid = after_txid
        for each_us in granularities_us:
            if each_us:
                begin_us = next_us - next_us % each_us
                found_txid = min(found_txid, log.find_time(begin_us) - 1)
        found_txid = max(found_txid, before_log)
        if found_txid >= after_txid:
            return AsOf(after_txid, next_us - 1)
        # What is kept of one topic may lie in the midst of another one's interval.
        after_txid = found_txid
