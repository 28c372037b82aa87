"""Counts of the messages of each topic that an instance logged since it started. A queue's own
records, such as acknowledgments, are no messages."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from raylay.services.errors import RaylayError
from raylay.services.messages.records import Command, Flag, Kind, Run, iterate_records
from raylay.services.messages.topics import TopicKey

COUNTED_MAX = 10_000
"""Limit on the topics that are counted separately: publishers choose their number."""
SHOWN_MAX = 1_000

_RECORDS = Kind.RECORDS
_COMMANDS = int(Flag.COMMANDS)
_OF_QUEUES = frozenset((Command.QUEUE_ACKNOWLEDGMENT, Command.TRANSFER, Command.QUEUE_REMOVAL))


def is_of_queue(run: Run) -> bool:
    """Returns whether a run has records of a queue's own, which are no messages. All records of a
    run that has commands are looked at as the first one is."""
    try:
        first = next(iterate_records(run.payload), None)
    except RaylayError:  # Readers of the run tell that it cannot be read.
        return False
    return first is not None and first.command in _OF_QUEUES


class TopicCounts:
    """See the file's docstring. Costs one addition a run, as a run has one topic.

    Owner: the instance's event loop. Lifecycle: one life of the instance.
    """

    __slots__ = ("_counts", "others")

    def __init__(self) -> None:
        self._counts: dict[TopicKey, int] = {}
        self.others = 0
        """Number of messages of topics beyond the limit."""

    def add(self, runs: Iterable[Run]) -> None:
        counts = self._counts
        for run in runs:
            if run.kind != _RECORDS or (run.flags & _COMMANDS and is_of_queue(run)):
                continue
            key = run.topic, run.message_type
            if key in counts:
                counts[key] += run.count
            elif len(counts) < COUNTED_MAX:
                counts[key] = run.count
            else:
                self.others += run.count

    def page(self, first: int, count_max: int) -> list[tuple[str, str, int]]:
        """Returns (topic, message type, messages) of some topics, in the order in which they were
        first published.

        Args:
            first: number of topics before the page.
        """
        return [
            (topic.decode("utf-8", "replace"), kind.decode("utf-8", "replace"), count)
            for (topic, kind), count in islice(self._counts.items(), first, first + count_max)
        ]

    def told(self) -> list[tuple[str, str, int]]:
        """Returns (topic, message type, messages), those with most messages first, `SHOWN_MAX` at
        most."""
        most = sorted(self._counts.items(), key=lambda each: (-each[1], each[0]))[:SHOWN_MAX]
        return [
            (topic.decode("utf-8", "replace"), kind.decode("utf-8", "replace"), count)
            for (topic, kind), count in most
        ]
