"""The number of messages that each named reader lacks: of its own topic, and neither of the other
topics of the instance nor of notes and records of queues.

The headers of the journal's runs say the topic of each message. They are read once for all readers,
from the oldest one on, a part at a time. As long as they are not all read, a number is an upper
bound, and so is that of a reader with a filter, because only a message itself says whether it
passes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from raylay.services.errors import RemoteProtocolError
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.messages.records import Flag, Kind, Run
from raylay.services.subscriptions.matching import TopicFilter, topic_filter

COUNTED_BYTES_MAX = 64 * 1024 * 1024
"""Memory, in bytes, of the messages that are counted for all readers; above it no more are read."""
RUNS_AT_ONCE = 512
"""Number of runs whose headers are read while others wait for the journal."""
_RECORDS = int(Kind.RECORDS)


class CountedLog(Protocol):
    """The parts of the journal that the counts need."""

    @property
    def first_txid(self) -> int:
        """Returns the oldest transaction id in the log."""

    @property
    def last_txid(self) -> int:
        """Returns the newest transaction id in the log."""

    def read_headers(self, after_txid: int, runs_max: int) -> list[Run]:
        """Returns committed runs without the bytes of records."""

    def removed(self) -> PublisherRanges:
        """Returns the messages that were in the log and are removed."""


class LackedMessages(NamedTuple):
    """The number of messages that a reader lacks.

    Attributes:
        messages: that number, or an upper bound.
        at_most: whether it is an upper bound.
    """

    messages: int
    at_most: bool


class CountedReader(Protocol):
    """The parts of a named reader that the counts need."""

    have: PublisherRanges
    filter: str

    @property
    def terms(self) -> tuple[str, str, str]:
        """Returns the topic, message type and filter."""


class TopicMessages:
    """The messages of one topic, or of a regular expression, as far as the log was read.

    Attributes:
        ranges: the messages.
        after_txid: transaction id up to which the log was read.
    """

    __slots__ = ("_filter", "after_txid", "ranges")

    def __init__(self, topic: str, message_type: str) -> None:
        self._filter: TopicFilter | None = None
        try:
            self._filter = topic_filter(topic, message_type)
        except RemoteProtocolError:
            pass  # Nobody can subscribe to it, so nothing is its message.
        self.ranges = PublisherRanges()
        self.after_txid = 0

    def take(self, runs: Iterable[Run]) -> None:
        """Takes the next runs of the log."""
        wanted = self._filter
        for run in runs:
            if run.last_txid <= self.after_txid:
                continue
            self.after_txid = run.last_txid
            if wanted is None or run.kind != _RECORDS or run.flags & Flag.COMMANDS:
                continue
            if wanted.matches(run.topic, run.message_type):
                self.ranges.add_ranges(run.publisher, run.ranges())


class ReaderCounts:
    """See the file's docstring. Not thread-safe: one call at a time."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, str], TopicMessages] = {}
        self._first_txid = 0
        self._last_txid = 0
        """The end of the log when it was read last."""

    def read(self, log: CountedLog, readers: Iterable[CountedReader], runs_max: int) -> None:
        """Reads the next headers of the log, for the topics of these readers alone.

        Args:
            runs_max: largest number of runs that are read.

        Raises:
            StorageError: the log cannot be read.
        """
        wanted = {each.terms[:2] for each in readers}
        self._of = {key: self._of.get(key) or TopicMessages(*key) for key in wanted}
        first_txid, self._last_txid = log.first_txid, log.last_txid
        if first_txid != self._first_txid:
            removed = log.removed()
            for each in self._of.values():
                each.ranges.difference_update(removed)
            self._first_txid = first_txid
        for each in self._of.values():
            each.after_txid = max(each.after_txid, first_txid - 1)
        while runs_max > 0 and self._of and self.memory_bytes <= COUNTED_BYTES_MAX:
            after_txid = min(each.after_txid for each in self._of.values())
            if after_txid >= self._last_txid:
                break
            runs = log.read_headers(after_txid, min(runs_max, RUNS_AT_ONCE))
            if not runs:
                break
            runs_max -= len(runs)
            for each in self._of.values():
                each.take(runs)

    @property
    def memory_bytes(self) -> int:
        """Returns an estimate of the memory that the messages take."""
        return sum(each.ranges.memory_bytes for each in self._of.values())

    def lacked(self, reader: CountedReader, held: PublisherRanges) -> LackedMessages:
        """Returns how many messages of its topic a reader lacks, of the log as it was read last.

        Args:
            held: all messages that the instance holds: an upper bound of what any reader lacks.
        """
        counted = self._of.get(reader.terms[:2])
        if counted is not None and counted.after_txid >= self._last_txid:
            messages = _without(counted.ranges, reader.have)
            return LackedMessages(messages, bool(reader.filter) and messages > 0)
        messages = _without(held, reader.have)
        if counted is not None:
            unread = self._last_txid - counted.after_txid
            messages = min(messages, _without(counted.ranges, reader.have) + unread)
        return LackedMessages(messages, messages > 0)


def _without(messages: PublisherRanges, have: PublisherRanges) -> int:
    """Returns how many of the messages are not in `have`."""
    left = messages.copy()
    left.difference_update(have)
    return left.count
