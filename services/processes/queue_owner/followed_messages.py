"""Messages that come to the queue and leave it for good, on their way from its owner to its
instance, which has views over the queue. Leases and transfers change nothing.

What the owner reads from the journal when it begins comes first; then the instance is told that it
knows all messages. A message that has come and left meanwhile may be told only as gone.
"""

from __future__ import annotations

from collections import deque
from itertools import islice

from raylay.services.processes.child_program import InstanceSocket
from raylay.services.processes.queue_owner.bodies import DELIVERY_BYTES, Bodies
from raylay.services.protocol.child import queue_control as control
from raylay.services.queues.message import GONE, QueuedMessage
from raylay.services.queues.records import keys_of

TURN_MESSAGES = 1_000
"""The number of messages that one turn tells of."""
FRAME_MESSAGES = 200
"""The number of messages in one frame. The instance changes its views by each frame at once."""


class FollowedMessages:
    """See the file's docstring.

    Owner: the queue's owner. Lifecycle: as long as its machine.

    Args:
        begun_txid: transaction id up to which the queue's messages were journaled when the owner
            began.
    """

    __slots__ = ("_begun_txid", "_bodies", "_has_told_all", "_instance", "waiting")

    def __init__(self, bodies: Bodies, instance: InstanceSocket, begun_txid: int) -> None:
        self._bodies = bodies
        self._instance = instance
        self._begun_txid = begun_txid
        self._has_told_all = False
        self.waiting: deque[QueuedMessage] = deque()

    def __len__(self) -> int:
        """The number of changes that are still to be told."""
        return len(self.waiting)

    def send(self, folded_txid: int) -> None:
        """Tells of some of the messages, as they are now.

        Args:
            folded_txid: transaction id up to which the owner has read the journal.

        Raises:
            StorageError: the journal cannot be read.
        """
        waiting, left = self.waiting, TURN_MESSAGES
        while waiting and left > 0 and self._instance.may_write:
            part = list(islice(waiting, FRAME_MESSAGES))
            for _ in part:
                waiting.popleft()
            left -= len(part)
            gone = {each.key for each in part if each.state == GONE}
            if gone:
                self._instance.send(control.gone(keys_of(sorted(gone))))
            self._send_came([each.txid for each in part if each.state != GONE])
        if not (waiting or self._has_told_all) and folded_txid >= self._begun_txid:
            self._has_told_all = True
            self._instance.send(control.all_came())

    def _send_came(self, txids: list[int]) -> None:
        while txids:
            records, count = self._bodies.records(txids, DELIVERY_BYTES)
            self._instance.send_parts(*control.came(records))
            txids = txids[count:]
