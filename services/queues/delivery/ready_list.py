"""The free messages of a queue in their order: 16 bytes each, in blocks.

Most messages are added at the end and taken from the front. The place of any other message is found
by bisection, and no step touches more than one block.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

from raylay.services.queues.entry import QueueEntry

BLOCK = 512
"""The number of messages up to which a block is appended to. By insertion a block grows to twice as
many."""

Message = TypeVar("Message", bound=QueueEntry)


class ReadyList(Generic[Message]):
    """Messages by `order`, lowest first. No two have the same order.

    Invariant: no block is empty. The orders in block i are above `_lasts[i - 1]`, and not above
    `_lasts[i]`.
    """

    __slots__ = ("_count", "_lasts", "_messages", "_orders")

    def __init__(self) -> None:
        self._orders: list[list[int]] = []
        self._messages: list[list[Message]] = []
        self._lasts: list[int] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def first(self) -> Message | None:
        """Returns the message with the lowest `order`; None: the list is empty."""
        return self._messages[0][0] if self._messages else None

    def last(self) -> Message | None:
        """Returns the message with the highest `order`; None: the list is empty."""
        return self._messages[-1][-1] if self._messages else None

    def get(self, order: int) -> Message | None:
        """Returns the message of an order; None: it is not in the list."""
        if not self._orders:
            return None
        orders = self._orders[0]
        if orders[0] == order:
            return self._messages[0][0]
        i = bisect_left(self._lasts, order)
        if i == len(self._lasts):
            return None
        orders = self._orders[i]
        j = bisect_left(orders, order)
        return self._messages[i][j] if j < len(orders) and orders[j] == order else None

    def after(self, order: float) -> Iterator[Message]:
        """Yields the messages above an order, lowest first. Valid as long as the list does not
        change."""
        i = bisect_right(self._lasts, order)
        if i == len(self._lasts):
            return
        yield from self._messages[i][bisect_right(self._orders[i], order) :]
        for later in range(i + 1, len(self._messages)):
            yield from self._messages[later]

    def add(self, message: Message) -> None:
        """Adds a message, which is not in the list."""
        order = message.order
        lasts = self._lasts
        self._count += 1
        if not lasts or order > lasts[-1]:
            if lasts and len(self._orders[-1]) < BLOCK:
                self._orders[-1].append(order)
                self._messages[-1].append(message)
                lasts[-1] = order
            else:
                self._orders.append([order])
                self._messages.append([message])
                lasts.append(order)
            return
        i = bisect_left(lasts, order)
        orders = self._orders[i]
        j = bisect_left(orders, order)
        orders.insert(j, order)
        self._messages[i].insert(j, message)
        if len(orders) > 2 * BLOCK:
            self._split(i)

    def extend(self, messages: Sequence[Message]) -> None:
        """Adds messages that are not in the list, in order and all above the last one."""
        at, end = 0, len(messages)
        self._count += end
        while at < end:
            if not self._lasts or len(self._orders[-1]) >= BLOCK:
                self._orders.append([])
                self._messages.append([])
                self._lasts.append(0)
            part = messages[at : at + BLOCK - len(self._orders[-1])]
            self._orders[-1] += [message.order for message in part]
            self._messages[-1] += part
            self._lasts[-1] = part[-1].order
            at += len(part)

    def take(self, most: int) -> list[Message]:
        """Removes and returns up to `most` messages, lowest first."""
        found: list[Message] = []
        while self._messages and len(found) < most:
            orders, messages = self._orders[0], self._messages[0]
            count = most - len(found)
            if count < len(messages):
                found += messages[:count]
                del orders[:count], messages[:count]
            else:
                found += messages
                del self._orders[0], self._messages[0], self._lasts[0]
        self._count -= len(found)
        return found

    def remove(self, message: Message) -> None:
        order = message.order
        orders = self._orders[0]
        i = j = 0
        if orders[0] != order:
            i = bisect_left(self._lasts, order)
            orders = self._orders[i]
            j = bisect_left(orders, order)
        assert self._messages[i][j] is message, f"{message} is not where its order says"
        self._count -= 1
        if len(orders) == 1:
            del self._orders[i], self._messages[i], self._lasts[i]
        else:
            del orders[j], self._messages[i][j]

    def _split(self, i: int) -> None:
        orders, messages = self._orders[i], self._messages[i]
        half = len(orders) // 2
        self._orders.insert(i + 1, orders[half:])
        self._messages.insert(i + 1, messages[half:])
        self._lasts.insert(i, orders[half - 1])
        del orders[half:], messages[half:]
