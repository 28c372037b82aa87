"""A message as it stands in a queue.

A queue may hold a million messages, so one is a single object of few fields: what it has in common
with those that came with it is in their `Arrival`, and its register is shared with all that have
the same one.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from raylay.services.queues.checkpoint import Arrival
from raylay.services.queues.decisions import Key, MessageLease
from raylay.services.queues.entry import ABSENT, QueueEntry, order_of
from raylay.services.queues.transfer.ownership import Ownership

AVAILABLE, LEASED, FROZEN, GONE, DONE = range(5)
"""States of a message here: whoever owns it may have it delivered; a consumer has it; a draft about
it is on its way to the disk; it has left the queue; a consumer has it and takes no place for it any
more, for its acknowledgment is on its way to the disk."""
LOOKED_AT_LEAST = 1_024
"""Sequences of a record's ranges that are looked up one by one, beside as many as twice the
messages that there are. With more, the messages are sorted."""


class QueuedMessage(QueueEntry):
    """A message in a queue.

    Attributes:
        state: `AVAILABLE`, `LEASED`, `FROZEN`, `GONE` or `DONE`.
        held: of a leased one its lease, done with or not, of a frozen one the tag of its draft.
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
        # As `QueueEntry` does, without a call: there is one for each message that comes.
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
    """Finds messages by ranges that somebody else has written: what all of one record cost is
    bounded by the messages that there are, however many and wide they are.

    Args:
        known: the messages of one publisher; what is found may be taken out of it.
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
