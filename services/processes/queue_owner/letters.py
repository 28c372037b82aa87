"""Dead letters on their way from a queue's owner to its instance, which journals each one before
the removal of its message. Only as many letters are under way as keep the instance busy: many
messages may expire at one time, and each letter is a whole message in the instance's memory until
it is on the disk."""

from __future__ import annotations

from collections import deque

from raylay.services.processes.child_program import InstanceSocket
from raylay.services.processes.queue_owner.bodies import DELIVERY_BYTES, Bodies
from raylay.services.protocol.child import queue_control as control
from raylay.services.queues.decisions import QueueRecordDraft
from raylay.services.queues.drafts import Drafts

UNDER_WAY_BYTES = 4 * 1024 * 1024
"""The size of the letters under way, in bytes, from which nothing more is sent."""


class Letters:
    """See the file's docstring.

    Owner: the queue's owner. Lifecycle: as long as its machine.
    """

    def __init__(self, drafts: Drafts, bodies: Bodies, instance: InstanceSocket) -> None:
        self._drafts = drafts
        self._bodies = bodies
        self._instance = instance
        self._waiting: deque[QueueRecordDraft] = deque()
        self._under_way: dict[int, int] = {}
        """The size of the letters of each removal that is not in the journal yet, in bytes, by the
        removal's tag."""

    def put(self, removal: QueueRecordDraft) -> None:
        """Queues a removal, which is sent behind the letters of its messages."""
        self._waiting.append(removal)

    def send(self) -> None:
        """Sends queued removals with their letters, as far as there is room.

        Raises:
            StorageError: the journal cannot be read.
        """
        is_out = self._drafts.is_out
        self._under_way = {tag: size for tag, size in self._under_way.items() if is_out(tag)}
        size_bytes = sum(self._under_way.values())
        while self._waiting and size_bytes < UNDER_WAY_BYTES:
            removal = self._waiting.popleft()
            found = self._under_way[removal.tag] = self._send_letters(removal)
            size_bytes += found
            self._instance.send(control.draft(removal))

    def _send_letters(self, removal: QueueRecordDraft) -> int:
        """Sends the letters of a removal. Returns their size in bytes."""
        reason, left = self._drafts.letters(removal.tag)
        size_bytes = 0
        while left:
            records, count = self._bodies.records([txid for txid, _ in left], DELIVERY_BYTES)
            deliveries = [times for _, times in left[:count]]
            self._instance.send_parts(*control.letters(reason, records, deliveries))
            size_bytes += sum(map(len, records))
            left = left[count:]
        return size_bytes
