"""The leases of messages: the consumer and end of each, and how often each message was delivered in
vain."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from raylay.services.queues.decisions import Consumer, MessageLease
from raylay.services.queues.message import DONE, QueuedMessage

STALE_MAX = 1_000
"""The number of stale entries, of leases that ended otherwise than by time, that are kept in any
case. As many again as there are leases may be kept as well."""


_End = tuple[int, int, int, QueuedMessage]
"""The end of a lease: its time, the number of the lease, the message's transaction id, and the
message."""


class _Tries:
    """The number of deliveries of a message that came to nothing here since the last start, and of
    those that a consumer gave back."""

    __slots__ = ("cancels", "deliveries")

    def __init__(self) -> None:
        self.cancels = 0
        self.deliveries = 0


class LeaseTable:
    """See the file's docstring.

    Invariant: a message is in `_of` at the consumer that its lease, `held`, names.
    Owner: the queue's machine.

    Args:
        deliveries_max, cancels_max: the limits of the queue's definition; 0: no limit.
    """

    __slots__ = (
        "_blamed",
        "_cancels_max",
        "_count",
        "_deliveries_max",
        "_ends",
        "_of",
        "_tries",
        "ended_count",
    )

    def __init__(self, deliveries_max: int = 0, cancels_max: int = 0) -> None:
        self._deliveries_max = deliveries_max
        self._cancels_max = cancels_max
        self._of: dict[Consumer, dict[QueuedMessage, None]] = {}
        self._blamed: dict[Consumer, int] = {}
        """The highest lease number that a consumer held when one of its leases ended by time. Of
        its leases up to that number, no other one counts as delivered in vain."""
        self._ends: list[_End] = []
        self._tries: dict[QueuedMessage, _Tries] = {}
        self._count = 0
        self.ended_count = 0
        """The number of leases that ended by time."""

    def __len__(self) -> int:
        return self._count

    @property
    def first_us(self) -> int:
        """The time at which the next lease may end, in microseconds since 1970; 0: no lease ends by
        time."""
        return self._ends[0][0] if self._ends else 0

    def consumers(self) -> list[Consumer]:
        return list(self._of)

    def of(self, consumer: Consumer) -> list[QueuedMessage]:
        return list(self._of.get(consumer, ()))

    def lease(self, message: QueuedMessage, lease: MessageLease) -> None:
        there = self._of.get(lease.consumer)
        if there is None:
            there = self._of[lease.consumer] = {}
        there[message] = None
        self._count += 1
        if lease.until_us:
            ends = self._ends
            heapq.heappush(ends, (lease.until_us, lease.number, message.txid, message))
            if len(ends) > 2 * self._count + STALE_MAX:
                self._ends = [each for each in ends if _is(each)]
                heapq.heapify(self._ends)

    def lease_all(
        self, consumer: Consumer, messages: Sequence[QueuedMessage], until_us: int
    ) -> None:
        """Records leases of one consumer, which the messages already hold in `held`. They all end
        at `until_us`, or never if that is 0."""
        if until_us:
            for message in messages:
                assert isinstance(message.held, MessageLease)
                self.lease(message, message.held)
            return
        there = self._of.get(consumer)
        if there is None:
            there = self._of[consumer] = {}
        there.update(dict.fromkeys(messages))
        self._count += len(messages)

    def end_all(self, consumer: Consumer, messages: Sequence[QueuedMessage]) -> None:
        """Ends leases of one consumer. Has the effect of `end` and `forget` for each message."""
        there = self._of[consumer]
        for message in messages:
            del there[message]
        if not there:
            del self._of[consumer]
        self._count -= len(messages)
        if self._tries:
            for message in messages:
                self._tries.pop(message, None)

    def end(self, message: QueuedMessage, lease: MessageLease) -> None:
        """Removes a lease. The caller clears `held` of the message."""
        there = self._of[lease.consumer]
        del there[message]
        if not there:
            del self._of[lease.consumer]
        self._count -= 1

    def ended(self, now_us: int) -> list[QueuedMessage]:
        """Returns the messages whose leases have ended by now. The caller ends each lease."""
        found: list[QueuedMessage] = []
        while self._ends and self._ends[0][0] <= now_us:
            each = heapq.heappop(self._ends)
            if _is(each):
                found.append(each[3])
        self.ended_count += len(found)
        return found

    def suspects(self, ended: Sequence[QueuedMessage]) -> list[QueuedMessage]:
        """Returns the messages that count as delivered in vain when these leases end without an
        acknowledgment. Of what a consumer held at one time and has not acknowledged, only the
        oldest message counts."""
        if not self._deliveries_max:
            return []
        found: list[QueuedMessage] = []
        for message in ended:
            lease = message.held
            assert isinstance(lease, MessageLease)
            consumer = lease.consumer
            if message.state == DONE or lease.number <= self._blamed.get(consumer, 0):
                continue
            there = [each for each in self._of[consumer] if each.state != DONE]
            self._blamed[consumer] = max(map(_lease_number, there))
            oldest = min(there, key=_lease_number)
            if _lease_number(oldest) == lease.number or oldest in ended:
                found.append(oldest)
        return found

    def gone(self, consumer: Consumer) -> None:
        """Forgets a consumer that is gone."""
        self._blamed.pop(consumer, None)

    def tried(self, message: QueuedMessage, *, is_cancel: bool) -> str:
        """Records that a message was delivered in vain, or given back on purpose. Returns the
        reason for which the message is now to be removed; empty: there is none."""
        if not (self._deliveries_max or self._cancels_max):
            return ""
        tries = self._tries.get(message)
        if tries is None:
            tries = self._tries[message] = _Tries()
        tries.deliveries += 1
        tries.cancels += is_cancel
        return self.spent(message)

    def spent(self, message: QueuedMessage) -> str:
        """Returns the reason for which a message is to be removed, given its deliveries in vain;
        empty: there is none."""
        tries = self._tries.get(message)
        if tries is None:
            return ""
        if self._cancels_max and tries.cancels >= self._cancels_max:
            return "max_cancels"
        if self._deliveries_max and tries.deliveries >= self._deliveries_max:
            return "max_deliveries"
        return ""

    def is_last_try(self, messages: Sequence[QueuedMessage]) -> bool:
        """Returns whether one of these messages has one delivery in vain left."""
        before_last = self._deliveries_max - 1
        if before_last <= 0 or not self._tries:
            return before_last == 0
        tries = map(self._tries.get, messages)
        return any(each is not None and each.deliveries >= before_last for each in tries)

    def deliveries(self, message: QueuedMessage) -> int:
        """Returns how often a message was delivered in vain here, as far as that is counted: since
        the last start, in a queue with a limit of deliveries or of cancels."""
        tries = self._tries.get(message)
        return 0 if tries is None else tries.deliveries

    def forget(self, message: QueuedMessage) -> None:
        if self._tries:
            self._tries.pop(message, None)

    def first_end_us(self) -> int:
        """Returns the earliest end of the leases that end, in microseconds; 0: none of them
        ends."""
        held = (message.held for there in self._of.values() for message in there)
        ends = (each.until_us for each in held if isinstance(each, MessageLease) and each.until_us)
        return min(ends, default=0)


def _lease_number(message: QueuedMessage) -> int:
    held = message.held
    return held.number if isinstance(held, MessageLease) else 0


def _is(end: _End) -> bool:
    held = end[3].held
    return isinstance(held, MessageLease) and held.number == end[1]
