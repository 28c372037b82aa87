"""Which of the free messages pass whose filter, without asking a message twice.

The consumers of one filter are a group. A group remembers up to where it has looked (`looked`), and
what it found there that is still free (`found`); so a filter that few of a million messages pass
reads the million once, in pieces, and not at all while its consumers have no room. What is added
behind where a group has looked already (a new message, for one that is at the end; one that comes
back; one of a higher priority) is asked once for all groups, by their index.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from math import inf
from typing import Any, Generic, TypeVar

from raylay.services.expressions.expression import Expression
from raylay.services.expressions.functions.registry import NOWHERE, Surroundings
from raylay.services.expressions.index import FilterIndex
from raylay.services.queues.fairness import Turns
from raylay.services.queues.ordered import Ordered
from raylay.services.queues.waiting import FREE, Contents, Waiting

FOUND_MAX = 1_000
"""Messages that a group has found and not given away. It forgets the later half of more, and looks
for them again."""

Message = TypeVar("Message", bound=Waiting)


class Group(Generic[Message]):
    """The consumers of one filter.

    Attributes:
        filter: None: none; all pass.
        turns: its consumers with room.
        members: how many consumers have it, with room or without.
        looked: all messages up to this order have been asked.
        orders, found: of these, those that passed, with some that are free no more: a heap, and
            what it names.
        head: its entry among the heads that holds; None: it has none.
    """

    __slots__ = ("filter", "found", "head", "looked", "members", "number", "orders", "turns")

    def __init__(self, number: int, filter: Expression | None) -> None:
        self.number = number
        self.filter = filter
        self.turns = Turns()
        self.members = 0
        self.looked: float = -1
        self.orders: list[int] = []
        self.found: dict[int, Message] = {}
        self.head: Head[Message] | None = None

    def first(self) -> Message | None:
        """The first that is free of what it has found."""
        orders, found = self.orders, self.found
        while orders:
            message = found[orders[0]]
            if message.standing == FREE:
                return message
            del found[heappop(orders)]
        return None

    def note(self, message: Message) -> None:
        """The message passes, and is free."""
        order = message.order
        if order not in self.found:
            heappush(self.orders, order)
        self.found[order] = message
        if len(self.found) > FOUND_MAX:
            self._forget()

    def _forget(self) -> None:
        orders = sorted(order for order in self.orders if self.found[order].standing == FREE)
        if len(orders) > FOUND_MAX // 2:
            del orders[FOUND_MAX // 2 :]
            self.looked = orders[-1]
        # What is sorted is a heap.
        self.orders, self.found = orders, {order: self.found[order] for order in orders}


Head = tuple[int, int, Group[Message]]
"""Order of the first message that a group may have; its number; it."""


class Filters(Generic[Message]):
    """The groups that have a filter.

    Invariant: a group with room has a head, or is searching, or nothing that is free passes it.

    Args:
        free: the messages.
        contents: reads them.
    """

    __slots__ = (
        "_asks_around",
        "_by_text",
        "_contents",
        "_free",
        "_heads",
        "_index",
        "_looked_max",
        "_made",
        "_searching",
    )

    def __init__(self, free: Ordered[Message], contents: Contents) -> None:
        self._free = free
        self._contents = contents
        self._by_text: dict[str, Group[Message]] = {}
        self._index: FilterIndex[Group[Message]] = FilterIndex()
        self._asks_around = 0
        self._heads: list[Head[Message]] = []
        self._searching: dict[Group[Message], None] = {}
        self._looked_max: float = -1
        self._made = 0

    def __len__(self) -> int:
        return len(self._by_text)

    @property
    def is_searching(self) -> bool:
        """Whether a group has room and has yet to look for its first message."""
        return bool(self._searching)

    def joined(self, wanted: Expression) -> Group[Message]:
        """The group of a filter, with one member more."""
        group = self._by_text.get(wanted.text)
        if group is None:
            self._made += 1
            group = self._by_text[wanted.text] = Group(self._made, wanted)
            self._index.add(group, wanted)
            self._asks_around += wanted.asks_around
        group.members += 1
        return group

    def parted(self, group: Group[Message]) -> None:
        """A consumer of the group is no more."""
        group.members -= 1
        if group.members == 0:
            assert group.filter is not None
            del self._by_text[group.filter.text]
            self._index.discard(group)
            self._asks_around -= group.filter.asks_around
            self._searching.pop(group, None)
            group.head = None  # Its entry holds no more.
            self._look_back()

    def opened(self, group: Group[Message]) -> None:
        """It has room again."""
        if group.head is None:
            self._seek(group)

    def wants(self, message: Message) -> bool:
        """Whether `added` will have to look into the message."""
        return bool(self._by_text) and message.order <= self._looked_max

    def added(self, message: Message, tree: dict[str, Any] | None) -> None:
        """There is one more free message; a tree, if there is one at hand."""
        order = message.order
        if order > self._looked_max:
            return
        for group in self.passed(message, tree):
            if order > group.looked:
                continue
            looked = group.looked
            group.note(message)
            if group.head is None:
                if group.turns.open:
                    self._enter(group, order)
            elif order < group.head[0]:
                self._enter(group, order)
            if group.looked != looked:
                self._look_back()

    def passed(self, message: Message, tree: dict[str, Any] | None = None) -> list[Group[Message]]:
        """The groups whose filter the message passes."""
        if not self._by_text:
            return []
        if tree is None:
            tree = self._contents.tree(message.txid)
            if tree is None:
                return []
        return self._index.matching(tree, self._around(message))

    def firsts(self, looks: int) -> list[Group[Message]]:
        """The groups with room whose first message comes before those of all others.

        Args:
            looks: messages that may be looked at for it.
        """
        heads = self._heads
        while True:
            while self._searching and looks > 0:
                looks = self._search(next(iter(self._searching)), looks)
            if not heads or self._holds(heads[0]):
                break
            self._drop()
        if not heads:
            return []
        taken = [heappop(heads)]
        while heads and heads[0][0] == taken[0][0]:
            if self._holds(heads[0]):
                taken.append(heappop(heads))
            else:
                self._drop()
        for each in taken:
            heappush(heads, each)
        return [each[2] for each in taken]

    def _around(self, message: Message) -> Surroundings:
        return self._contents.around(message.txid) if self._asks_around else NOWHERE

    def _holds(self, head: Head[Message]) -> bool:
        group = head[2]
        if group.head is not head or not group.turns.open:
            return False
        first = group.first()
        return first is not None and first.order == head[0]

    def _enter(self, group: Group[Message], order: int) -> None:
        group.head = head = (order, group.number, group)
        heappush(self._heads, head)
        if len(self._heads) > FOUND_MAX and len(self._heads) > 4 * len(self._by_text):
            # In its place: who works on the heads has the list in hand.
            self._heads[:] = [each for each in self._heads if each[2].head is each]
            heapify(self._heads)

    def _drop(self) -> None:
        """Takes away the lowest head, which does not hold."""
        head = heappop(self._heads)
        group = head[2]
        if group.head is head:
            group.head = None
            if group.turns.open:
                self._seek(group)

    def _seek(self, group: Group[Message]) -> None:
        first = group.first()
        if first is not None:
            self._enter(group, first.order)
        else:
            self._searching[group] = None

    def _search(self, group: Group[Message], looks: int) -> int:
        """Looks for the first message of a group; gives the looks that are left."""
        del self._searching[group]
        if not group.turns.open or group.head is not None:
            return looks
        assert group.filter is not None
        matches = group.filter.matches
        read = self._contents.tree
        for message in self._free.after(group.looked):
            if looks == 0:
                # It goes behind the others that are looking.
                self._searching[group] = None
                break
            looks -= 1
            group.looked = message.order
            tree = read(message.txid)
            if tree is not None and matches(tree, self._around(message)):
                group.note(message)
                self._enter(group, message.order)
                break
        else:
            group.looked = inf
        self._looked_max = max(self._looked_max, group.looked)
        return looks

    def _look_back(self) -> None:
        self._looked_max = max((group.looked for group in self._by_text.values()), default=-1)
