"""A message as it stands in a queue.

A queue may hold a million messages, so each is a single object of few fields. What messages that
came together have in common is in their `Arrival`, and messages of equal ownership share one
`Ownership`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from raylay.services.queues.checkpoint import Arrival
from raylay.services.queues.decisions import Key, MessageLease
from raylay.services.queues.entry import ABSENT, QueueEntry, order_of
from raylay.services.queues.transfer.ownership import Ownership

AVAILABLE, LEASED, FROZEN, GONE, DONE = range(5)
"""The states of a message here. `AVAILABLE`: its owner may have it delivered. `LEASED`: a consumer
holds it. `FROZEN`: a draft about it is on its way to the disk. `GONE`: it has left the queue.
`DONE`: a consumer holds it and has acknowledged it, so it no longer counts in the backlog; the
acknowledgment is on its way to the disk."""
LOOKED_AT_LEAST = 1_024
"""The number of sequences of a record's ranges that are looked up one by one, beside twice the
number of messages. For wider ranges the messages are sorted."""


class QueuedMessage(QueueEntry):
    """A message in a queue.

    Attributes:
        state: the state of the message: `AVAILABLE`, `LEASED`, `FROZEN`, `GONE` or `DONE`.
        held: the lease of a leased or done message, or the tag of a frozen message's draft.
    """

    __slots__ = ("arrival", "held", "register", "state")

    held: MessageLease | int | None

    def __init__(
        self,
        arrival: Arrival,
        txid: int,
        key: Key,
        register: Ownership,
        priority: int | None = None,
        is_barrier: bool = False,
    ) -> None:
        # Repeats `QueueEntry.__init__`, which saves a call for each message that comes.
        self.txid = txid
        self.publisher, self.sequence = key
        self.order = txid if priority is None else order_of(txid, priority)
        self.is_barrier = is_barrier
        self.standing = ABSENT
        self.arrival = arrival
        self.register = register
        self.state = AVAILABLE
        self.held = None


class RangeFinder:
    """Finds messages by ranges that other programs have chosen. The cost of all ranges of one
    record is bounded by the number of messages, however many and wide the ranges are.

    Args:
        known: the messages of one publisher by sequence. Messages that were found may be removed
            meanwhile.
    """

    __slots__ = ("_known", "_left", "_sorted")

    def __init__(self, known: dict[int, QueuedMessage]) -> None:
        self._known = known
        self._left = 2 * len(known) + LOOKED_AT_LEAST
        self._sorted: list[int] | None = None

    def find(self, first: int, last: int) -> list[QueuedMessage]:
        """Returns the messages of first..last, in order."""
        width = last - first + 1
        known = self._known
        sequences: Iterable[int] = range(first, last + 1)
        if width > self._left:
            if self._sorted is None:
                self._sorted = sorted(known)
            begin = bisect_left(self._sorted, first)
            sequences = self._sorted[begin : bisect_right(self._sorted, last)]
        else:
            self._left -= width
        return [found for found in map(known.get, sequences) if found is not None]
