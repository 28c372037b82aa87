"""The moment of the rows that precede a replay of the log.

A replay after rows begins with the very next transaction. So the rows are the state that one
transaction left, identified by its id: several may have been received at one instant.

A history with a granularity keeps only the last version of each interval, so a state in the midst
of an interval is partly lost. There the moment is the begin of that interval, and the rest is
replayed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from raylay.services.messages.records import Run
from raylay.services.sow.records import SowRecord


class AsOf(NamedTuple):
    """A past state that histories have.

    Attributes:
        txid: last transaction of the state; None: the state includes everything received up to
            `time_us`.
        time_us: the instant of the state, in microseconds since 1970; with a transaction: just
            before the next one was received.
    """

    txid: int | None
    time_us: int

    def has(self, version: SowRecord) -> bool:
        if self.txid is None:
            return version.updated_us <= self.time_us
        return version.txid <= self.txid


def latest(versions: Iterable[SowRecord], past: AsOf) -> Iterator[SowRecord]:
    """Yields the records of a past state, from their versions by key and time."""
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
    """The look-ups in the log that `past_of` needs; storage's readers implement them."""

    @property
    def first_txid(self) -> int:
        """Returns the oldest transaction id in the log."""

    def find_time(self, time_us: int) -> int:
        """Returns the first transaction id that was received at or after this time."""

    def read_headers(self, after_txid: int, runs_max: int = ...) -> list[Run]:
        """Returns runs behind a transaction, without their records."""


def past_of(after_txid: int, granularities_us: Sequence[int], log: TimeLookup, now_us: int) -> AsOf:
    """Returns the last state, not after this transaction, that the histories have in full.

    Args:
        granularities_us: granularities of the histories; 0: a history that keeps every version.
        now_us: receive time for a transaction that does not exist yet.
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
        # A moment at the edge of one topic's interval may be in the midst of another topic's.
        after_txid = found_txid
