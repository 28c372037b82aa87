"""The messages of a queue as the records of a topic that views are over.

The queue's owner, a process of its own, tells which messages come and which leave for good. When it
is started again it tells of all messages once more. Those that are known change nothing, and those
that it does not tell of have left meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable

from raylay.services.messages.records import Record
from raylay.services.messages.types.base import MessageType
from raylay.services.queues.definition import QueueDefinition
from raylay.services.queues.records import Keys
from raylay.services.sow.definition import SowTopicDefinition
from raylay.services.sow.records import NEVER, SowRecord
from raylay.services.sow.state import SowRules, SowState
from raylay.services.sow.topic import SowChange, SowTopic


class QueueSource:
    """See the file's docstring.

    Owner: the instance's loop. Lifecycle: one life of the instance.

    Args:
        definition: the queue.
        kind: the type of its messages.

    Attributes:
        topic: the messages as records; clients neither query nor follow them.
        is_complete: whether the owner has told of all messages since the instance began.
        number: number of the request to the owner to tell of the messages; 0: it tells of them from
            its beginning on.
        is_heard: whether what the owner tells answers that request; what comes before is of an
            earlier one.
    """

    __slots__ = ("_untold", "definition", "is_complete", "is_heard", "number", "topic")

    def __init__(self, definition: QueueDefinition, kind: MessageType, number: int = 0) -> None:
        self.definition = definition
        self.number = number
        self.is_heard = not number
        own = SowTopicDefinition(definition.name, definition.message_type, transient=True)
        self.topic = SowTopic(own, kind, SowState(SowRules(), kept=False))
        self.is_complete = False
        self._untold: set[bytes] = set()
        """Keys of messages that the present owner has not told of yet."""

    def begin(self) -> None:
        """Notes that an owner begins, which tells of all messages."""
        self.is_heard = True
        self._untold = {record.key for record in self.topic.state.records()}

    def came(self, records: Iterable[Record], txid: int, now_us: int) -> list[SowChange]:
        """Takes messages that have come. Returns the changes.

        Args:
            txid: transaction id up to which the instance has folded.
            now_us: time by the wall clock.
        """
        state, found = self.topic.state, []
        for record in records:
            key = _key(record.publisher, record.sequence)
            self._untold.discard(key)
            if state.get(key) is None:
                made = SowRecord(
                    key, txid, record.publisher, record.sequence, now_us, NEVER, record.body,
                    record.origin_time_us,
                )  # fmt: skip
                found.append(SowChange(self.topic, self.topic.name, state.put_computed(made), None))
        return found

    def gone(self, keys: Keys, txid: int, now_us: int) -> list[SowChange]:
        """Takes messages that have left the queue. Returns the changes."""
        return self._deleted(
            (
                _key(publisher, sequence)
                for publisher, ranges in keys.items()
                for first, last in ranges
                for sequence in range(first, last + 1)
            ),
            txid,
            now_us,
        )

    def complete(self, txid: int, now_us: int) -> list[SowChange]:
        """Notes that the owner has told of all messages. Returns the changes: the others have
        left."""
        self.is_complete = True
        untold, self._untold = sorted(self._untold), set()
        return self._deleted(untold, txid, now_us)

    def _deleted(self, keys: Iterable[bytes], txid: int, now_us: int) -> list[SowChange]:
        found = []
        for key in keys:
            change = self.topic.state.delete(key, txid, now_us)
            if change is not None:
                found.append(SowChange(self.topic, self.topic.name, change, None))
        return found


def _key(publisher: int, sequence: int) -> bytes:
    return b"%d|%d|" % (publisher, sequence)
