"""Messages that have left the queue, on their way from its owner to its instance, whose actions
want to know of them with their bodies. Only as much is sent at once as the instance's socket takes
well: many messages may expire at one time.

A message that has left the queue keeps nothing in the journal. Where its body is gone, the instance
is told of the message without it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice

from raylay.services.errors import StorageError
from raylay.services.processes.child_program import InstanceSocket
from raylay.services.processes.queue_owner.bodies import DELIVERY_BYTES, Bodies
from raylay.services.protocol.child import queue_control as control
from raylay.services.queues.decisions import Expiration

TURN_BYTES = 4 * 1024 * 1024
"""The size of the messages that one turn sends, in bytes, from which nothing more is sent in it."""
NEIGHBOURS_MAX = 256
"""The number of messages in one frame, at most."""
UNREAD_BYTES = 32 * 1024
"""The size that a message counts for where a neighbour cannot be read: it costs a read of its
own."""


class EndedMessages:
    """See the file's docstring.

    Owner: the queue's owner. Lifecycle: as long as its machine.
    """

    __slots__ = ("_bodies", "_instance", "_waiting")

    def __init__(self, bodies: Bodies, instance: InstanceSocket) -> None:
        self._bodies = bodies
        self._instance = instance
        self._waiting: deque[Expiration] = deque()

    def __len__(self) -> int:
        """The number of messages that are still to be sent."""
        return len(self._waiting)

    def put(self, ended: Sequence[Expiration]) -> None:
        self._waiting += ended

    def send(self) -> None:
        """Sends some of the messages; neighbours with one reason in one frame."""
        left_bytes = TURN_BYTES
        waiting = self._waiting
        while waiting and left_bytes > 0 and self._instance.may_write:
            reason = waiting[0].reason
            txids: list[int] = []
            for each in islice(waiting, NEIGHBOURS_MAX):
                if each.reason != reason:
                    break
                txids.append(each.txid)
            try:
                records, count = self._bodies.records(txids, DELIVERY_BYTES)
            except StorageError:
                left_bytes -= self._send_first()
                continue
            for _ in range(count):
                waiting.popleft()
            left_bytes -= sum(map(len, records))
            self._instance.send_parts(*control.ended(reason, records))

    def _send_first(self) -> int:
        """Sends the first message alone, as one of its neighbours cannot be read. Returns the bytes
        that this counts for."""
        ended = self._waiting.popleft()
        try:
            records, _ = self._bodies.records([ended.txid], DELIVERY_BYTES)
        except StorageError:
            self._instance.send(control.ended_unread(ended.reason, *ended.key))
            return UNREAD_BYTES
        self._instance.send_parts(*control.ended(ended.reason, records))
        return max(UNREAD_BYTES, sum(map(len, records)))
