"""Acknowledgments of a queue consumer that are not sent yet."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from raylay.services.client.messages import SequenceRange
from raylay.services.messages.ranges import Range
from raylay.services.queues.records import U64_MAX, Acknowledgment, pack_acknowledgment, parts_of

SAMPLED_MAX = 10_000
"""Number of sampled messages that wait for their acknowledgment to be sent: further ones get no
spans."""


class AckRecord(NamedTuple):
    """One record to be published that acknowledges messages of a queue.

    Attributes:
        messages: number of messages that the record acknowledges.
    """

    queue: str
    message_type: str
    body: bytes
    messages: int


def records_of(queue: str, message_type: str, said: Acknowledgment) -> list[AckRecord]:
    """Splits an acknowledgment into as many records as it needs."""
    return [
        AckRecord(
            queue,
            message_type,
            pack_acknowledgment(part),
            sum(last - first + 1 for ranges in part.keys.values() for first, last in ranges),
        )
        for part in parts_of(said)
    ]


class PendingAcks:
    """The unsent acknowledgments: messages of a queue that were settled together share one record,
    as ranges of sequences, so that it stays small.

    Owner: the client. Lifecycle: as long as the client.
    """

    __slots__ = ("_last", "_last_ranges", "_ranges", "messages")

    def __init__(self) -> None:
        self._ranges: dict[tuple[str, str, str], dict[int, list[Range]]] = {}
        self._last: tuple[str, str, str, int] | None = None
        self._last_ranges: list[Range] = []
        """Ranges to which the last message was added."""
        self.messages = 0
        """Number of messages whose acknowledgments are not sent."""

    def add(
        self, queue: str, message_type: str, publisher: int, sequence: int, how: str = "ack"
    ) -> None:
        """Adds the acknowledgment of a message.

        Args:
            how: kind of the acknowledgment, as in the record (services/queues/records.py).
        """
        self.messages += 1
        of = (queue, message_type, how, publisher)
        if of == self._last:
            ranges = self._last_ranges
        else:
            of_publisher = self._ranges.setdefault((queue, message_type, how), {})
            ranges = self._last_ranges = of_publisher.setdefault(publisher, [])
            self._last = of
        if ranges and sequence == ranges[-1][1] + 1:
            ranges[-1] = ranges[-1][0], sequence
        else:
            ranges.append((sequence, sequence))

    def add_ranges(
        self, queue: str, message_type: str, ranges: Iterable[SequenceRange], how: str
    ) -> None:
        """Adds the acknowledgments of messages that were settled together, as `add` for each."""
        self._last = None
        of = self._ranges.setdefault((queue, message_type, how), {})
        for publisher, first, last in ranges:
            self.messages += last - first + 1
            there = of.setdefault(publisher, [])
            if there and first == there[-1][1] + 1:
                there[-1] = there[-1][0], last
            else:
                there.append((first, last))

    def take(self) -> list[AckRecord]:
        """Returns the acknowledgments to publish, and removes them."""
        made = []
        for (queue, message_type, how), of_publisher in self._ranges.items():
            keys = {publisher: _ascending(each) for publisher, each in of_publisher.items()}
            made += records_of(queue, message_type, Acknowledgment(keys, how))
        self._ranges.clear()
        self._last = None
        self.messages = 0
        return made

    def put_back(self, record: AckRecord, said: Acknowledgment) -> None:
        """Takes back an acknowledgment that could not be published: it is sent with the next
        ones."""
        of = self._ranges.setdefault((record.queue, record.message_type, said.how), {})
        self._last = None
        for publisher, ranges in said.keys.items():
            of[publisher] = _ascending([*ranges, *of.get(publisher, ())])
        self.messages += record.messages


class SampledAck(NamedTuple):
    """A sampled message whose acknowledgment is not sent yet.

    Attributes:
        trace: the 25 bytes of the trace context.
        since_ns: time at which the application acknowledged it, in nanoseconds.
    """

    queue: str
    message_type: str
    how: str
    publisher: int
    sequence: int
    topic: str
    trace: bytes
    since_ns: int


class SampledAcks:
    """The sampled messages whose acknowledgments are not sent yet. False when empty, so that an
    acknowledgment without sampling costs nothing.

    Owner: the client. Lifecycle: as long as the client.
    """

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[SampledAck] = []

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, each: SampledAck) -> None:
        """Adds a sampled message that was acknowledged."""
        if len(self._waiting) < SAMPLED_MAX:
            self._waiting.append(each)

    def take(self, queue: str, message_type: str, said: Acknowledgment) -> list[SampledAck]:
        """Removes and returns the sampled messages that an acknowledgment includes."""
        found: list[SampledAck] = []
        left: list[SampledAck] = []
        for each in self._waiting:
            is_of = (each.queue, each.message_type, each.how) == (queue, message_type, said.how)
            is_said = is_of and _has(said.keys.get(each.publisher, ()), each.sequence)
            (found if is_said else left).append(each)
        self._waiting = left
        return found


def _has(ranges: Sequence[Range], sequence: int) -> bool:
    """Returns whether ascending ranges include a sequence."""
    at = bisect_right(ranges, (sequence, U64_MAX)) - 1
    return at >= 0 and sequence <= ranges[at][1]


def _ascending(ranges: list[Range]) -> list[Range]:
    """Returns the sequences in ascending order, each once: consumers acknowledge in any order."""
    found: list[Range] = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(last, found[-1][1])
        else:
            found.append((first, last))
    return found
