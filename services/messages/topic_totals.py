"""Totals of the topics of a stretch of the log: messages, bytes, and the times of the oldest and
the newest message.

A segment's seal holds them (storage/segment_index.py), and a journal adds those of its segments
(storage/journal_topics.py). Bytes are those of all records of the topic with the headers of their
runs, before compression. A queue's own records, such as acknowledgments, take bytes and are no
messages.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from raylay.services.messages.records import COMMAND_AT, Command, Flag, Kind, Run
from raylay.services.messages.topics import TopicKey

COUNTED_MAX = 10_000
"""Limit on the topics that are counted separately: publishers choose their number."""
MESSAGES, BYTES, OLDEST, NEWEST = range(4)
"""Places in the totals of a topic. The times are receive times in microseconds; 0: no message."""

_RECORDS = int(Kind.RECORDS)
_COMMANDS = int(Flag.COMMANDS)
_OF_QUEUES = frozenset(
    map(int, (Command.QUEUE_ACKNOWLEDGMENT, Command.TRANSFER, Command.QUEUE_REMOVAL))
)
_NAMES = struct.Struct("<HB")
_TOTALS = struct.Struct("<QQQQ")


class TopicTotal(NamedTuple):
    """Totals of one topic and message type, as an instance reports them.

    Attributes:
        messages: number of messages in the journal.
        bytes: their bytes there, and those of the queue's own records.
        oldest_us: receive time of the oldest message, in microseconds; 0: there is none.
        newest_us: receive time of the newest message, in microseconds; 0: there is none.
        logged: a counter of the messages that only rises while the instance runs, for rates.
    """

    topic: str
    message_type: str
    messages: int = 0
    bytes: int = 0
    oldest_us: int = 0
    newest_us: int = 0
    logged: int = 0


def has_messages(kind: int, flags: int, first_command: int) -> bool:
    """Returns whether a run's records are messages, neither notes nor records of a queue's own. All
    records of a run are of the class of its first one.

    Args:
        first_command: the command of the first record; it matters for a run of commands only.
    """
    return kind == _RECORDS and not (flags & _COMMANDS and first_command in _OF_QUEUES)


def run_has_messages(run: Run) -> bool:
    """Returns `has_messages` of a run that has its payload; False where that is cut short."""
    if run.kind != _RECORDS:
        return False
    if not run.flags & _COMMANDS:
        return True
    return len(run.payload) > COMMAND_AT and run.payload[COMMAND_AT] not in _OF_QUEUES


class TopicTotals:
    """See the file's docstring. Costs one look-up a run, as a run has one topic.

    Owner: the segment's index, or the journal, which lock it. The first `COUNTED_MAX` topics are
    counted separately, in the order in which they came; `others` has all the rest, and the runs
    that do not name their topic.
    """

    __slots__ = ("by_topic", "others")

    def __init__(self) -> None:
        self.by_topic: dict[TopicKey, list[int]] = {}
        self.others = [0, 0, 0, 0]

    def entry(self, key: TopicKey) -> list[int]:
        """Returns the totals to which those of a topic are added."""
        found = self.by_topic.get(key)
        if found is not None:
            return found
        if len(self.by_topic) >= COUNTED_MAX or not key[0]:
            return self.others
        made = self.by_topic[key] = [0, 0, 0, 0]
        return made

    def add(self, run: Run, length_bytes: int, is_message: bool) -> None:
        """Adds a run of records, with its length in the journal, in bytes."""
        key = run.topic, run.message_type
        entry = self.by_topic.get(key)
        if entry is None:
            entry = self.entry(key)
        entry[BYTES] += length_bytes
        if is_message:
            time_us = run.receive_time_us
            if time_us > entry[NEWEST]:
                entry[NEWEST] = time_us
            if not entry[MESSAGES] or time_us < entry[OLDEST]:
                entry[OLDEST] = time_us
            entry[MESSAGES] += run.count

    def items(self) -> Iterable[tuple[TopicKey | None, list[int]]]:
        """Yields (topic and type, totals) of each topic, and the rest under None where there is
        any."""
        yield from self.by_topic.items()
        if self.others[BYTES]:
            yield None, self.others

    def update(self, other: TopicTotals) -> None:
        """Adds the totals of another stretch of the log."""
        for key, more in other.items():
            add_totals(self.others if key is None else self.entry(key), more)

    @property
    def messages(self) -> int:
        """Returns the number of messages of all topics."""
        return sum(entry[MESSAGES] for _, entry in self.items())

    def copy(self) -> TopicTotals:
        made = TopicTotals()
        made.by_topic = {key: [*entry] for key, entry in self.by_topic.items()}
        made.others = [*self.others]
        return made

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TopicTotals) and dict(self.items()) == dict(other.items())

    __hash__ = None  # type: ignore[assignment]

    def to_bytes(self) -> bytes:
        """Returns the encoded totals: those of the rest, and then for each topic the lengths of its
        name and type, the name, the type, and its totals; ascending."""
        parts = [_TOTALS.pack(*self.others)]
        for (topic, kind), entry in sorted(self.by_topic.items()):
            parts += (_NAMES.pack(len(topic), len(kind)), topic, kind, _TOTALS.pack(*entry))
        return b"".join(parts)

    @classmethod
    def from_bytes(cls, value: bytes) -> TopicTotals:
        """Decodes `to_bytes`.

        Raises:
            struct.error: the bytes are cut short.
        """
        made = cls()
        made.others = [*_TOTALS.unpack_from(value)]
        at = _TOTALS.size
        while at < len(value):
            topic_length, type_length = _NAMES.unpack_from(value, at)
            type_at = at + _NAMES.size + topic_length
            end = type_at + type_length
            key = value[at + _NAMES.size : type_at], value[type_at:end]
            made.by_topic[key] = [*_TOTALS.unpack_from(value, end)]
            at = end + _TOTALS.size
        return made


def add_totals(entry: list[int], more: list[int]) -> None:
    """Adds totals to those of an entry, in place."""
    entry[BYTES] += more[BYTES]
    if more[MESSAGES]:
        if not entry[MESSAGES] or more[OLDEST] < entry[OLDEST]:
            entry[OLDEST] = more[OLDEST]
        entry[MESSAGES] += more[MESSAGES]
        entry[NEWEST] = max(entry[NEWEST], more[NEWEST])
