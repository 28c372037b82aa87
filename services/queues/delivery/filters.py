"""The consumers' filters over the free messages: no message is evaluated twice.

The consumers of one filter are a group. Groups that have looked at the same messages are a cohort:
it remembers up to where they have looked, and looks on for all of them together. So a filter that
few of a million messages pass reads the million once, in pieces, and not at all while its consumers
have no room; and the filters of 10,000 consumers read it once, not 10,000 times. The cohort that
has looked at the least goes first, until it has caught up with the next one; then they are one.

What is added behind where a group has looked already (a new message, for one that is at the end;
one that comes back; one of a higher priority) is asked once for all groups, by their index.
"""

from __future__ import annotations

from bisect import bisect_left
from heapq import heapify, heappop, heappush
from math import inf
from typing import Any, Generic, TypeVar

from raylay.services.expressions.expression import Expression
from raylay.services.expressions.functions.registry import NO_CONTEXT, EvalContext
from raylay.services.expressions.index import FilterIndex
from raylay.services.expressions.work import NEWS
from raylay.services.queues.delivery.fairness import Turns
from raylay.services.queues.delivery.ready_list import ReadyList
from raylay.services.queues.entry import BodyReader, QueueEntry

FOUND_MAX = 1_000
"""The number of messages that a group has found and not given away. Of more, it forgets the later
half, and looks for them again later."""
LOOK_STEPS = 100_000
"""The number of steps of evaluation above which one look counts as several
(services/expressions/work.py)."""
APART_MAX = 4
"""The number of groups in a cohort up to which their filters are evaluated one by one. For more
groups the index is used."""

Message = TypeVar("Message", bound=QueueEntry)


class FilterGroup:
    """The consumers of one filter.

    Attributes:
        filter: the content filter; None: all messages pass.
        turns: the consumers with room for more messages.
        members: number of consumers of the filter, with and without room.
        found: heap of the orders of messages that passed; some of these are not free any more.
        head: the group's valid entry among the heads of all groups; None: it has none.
        cohort: the groups that have looked at the same messages as this one.
    """

    __slots__ = ("cohort", "filter", "found", "head", "members", "number", "turns")

    def __init__(self, number: int, filter: Expression | None) -> None:
        self.number = number
        self.filter = filter
        self.turns = Turns()
        self.members = 0
        self.found: list[int] = []
        self.head: Head | None = None
        self.cohort = Cohort(-1)

    @property
    def wants(self) -> bool:
        """Returns whether a consumer of the group has room, and no message for it is known."""
        return self.head is None and self.turns.open > 0


class Cohort:
    """Groups that have looked at the same messages.

    Attributes:
        looked: order up to which the groups have looked at all messages.
        groups: the groups.
        searching: the groups that wait for further messages. Some of them may have stopped waiting.
        is_queued: whether the cohort is in the queue of those that look on.
    """

    __slots__ = ("groups", "is_queued", "looked", "searching")

    def __init__(self, looked: float) -> None:
        self.looked = looked
        self.groups: dict[FilterGroup, None] = {}
        self.searching: dict[FilterGroup, None] = {}
        self.is_queued = False

    def is_searching(self) -> bool:
        while self.searching:
            group, _ = self.searching.popitem()
            if group.wants:
                self.searching[group] = None
                return True
        return False


Head = tuple[int, int, FilterGroup]
"""The order of the first message that a group may have, the group's number, and the group."""


class Filters(Generic[Message]):
    """The groups that have a filter, and the messages found for each.

    Invariants: a group with room has a head, or its cohort is searching, or nothing that is free
    passes it. Cohorts are in the order of `looked`, and no two have looked as far.

    Args:
        free: the free messages.
        contents: the reader of message bodies.
    """

    __slots__ = (
        "_asks_around",
        "_by_text",
        "_cohorts",
        "_contents",
        "_free",
        "_full",
        "_heads",
        "_index",
        "_made",
        "_queue",
    )

    def __init__(self, free: ReadyList[Message], contents: BodyReader) -> None:
        self._free = free
        self._contents = contents
        self._by_text: dict[str, FilterGroup] = {}
        self._index: FilterIndex[FilterGroup] = FilterIndex()
        self._asks_around = 0
        self._heads: list[Head] = []
        self._full: list[FilterGroup] = []
        """The groups that have found more than `FOUND_MAX` messages."""
        self._cohorts: list[Cohort] = []
        self._queue: list[tuple[float, int, Cohort]] = []
        """The cohorts that are searching, each with the order up to which it had looked when it was
        queued."""
        self._made = 0

    def __len__(self) -> int:
        return len(self._by_text)

    @property
    def is_searching(self) -> bool:
        """Returns whether a group with room has yet to look for its first message."""
        return bool(self._queue)

    def joined(self, wanted: Expression) -> FilterGroup:
        group = self._by_text.get(wanted.text)
        if group is None:
            self._made += 1
            group = self._by_text[wanted.text] = FilterGroup(self._made, wanted)
            self._index.add(group, wanted)
            self._asks_around += wanted.asks_around
            self._place(group, -1)
        group.members += 1
        return group

    def parted(self, group: FilterGroup) -> None:
        """Notes that a consumer of the group is gone."""
        group.members -= 1
        if group.members == 0:
            assert group.filter is not None
            del self._by_text[group.filter.text]
            self._index.discard(group)
            self._asks_around -= group.filter.asks_around
            self._displace(group)
            group.head = None  # Its entry holds no more.

    def opened(self, group: FilterGroup) -> None:
        if group.head is None:
            self._seek(group)

    def first(self, group: FilterGroup) -> Message | None:
        """Returns the first message that the group has found and that is still free."""
        found, get = group.found, self._free.get
        while found:
            message = get(found[0])
            if message is not None:
                return message
            heappop(found)
        return None

    def wants(self, message: Message) -> bool:
        """Returns whether `added` will evaluate filters on the message."""
        return bool(self._cohorts) and message.order <= self._cohorts[-1].looked

    def added(self, message: Message, tree: dict[str, Any] | None) -> None:
        """Takes a new free message, with its parsed tree if the caller has it."""
        if not self.wants(message):
            return
        order = message.order
        for group in self.passed(message, tree):
            if order <= group.cohort.looked:
                self._note(group, order)
        if self._full:
            self._forget()

    def passed(self, message: Message, tree: dict[str, Any] | None = None) -> list[FilterGroup]:
        if not self._by_text:
            return []
        if tree is None:
            tree = self._contents.tree(message.txid)
            if tree is None:
                return []
        return self._index.matching(tree, self._around(message))

    def firsts(self, looks: int) -> list[FilterGroup]:
        """Returns the groups with room whose first message comes before those of all other groups.

        Args:
            looks: the number of messages on which filters may be evaluated for this.
        """
        heads = self._heads
        while True:
            while self._queue and looks > 0:
                looks = self._search(looks)
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

    def _around(self, message: Message) -> EvalContext:
        return self._contents.around(message.txid) if self._asks_around else NO_CONTEXT

    # Heads.

    def _holds(self, head: Head) -> bool:
        group = head[2]
        if group.head is not head or not group.turns.open:
            return False
        first = self.first(group)
        return first is not None and first.order == head[0]

    def _enter(self, group: FilterGroup, order: int) -> None:
        group.head = head = (order, group.number, group)
        heappush(self._heads, head)
        if len(self._heads) > FOUND_MAX and len(self._heads) > 4 * len(self._by_text):
            # The list stays the same object, because a caller works on it.
            self._heads[:] = [each for each in self._heads if each[2].head is each]
            heapify(self._heads)

    def _drop(self) -> None:
        """Removes the lowest head, which is no longer valid."""
        head = heappop(self._heads)
        group = head[2]
        if group.head is head:
            group.head = None
            if group.turns.open:
                self._seek(group)

    def _seek(self, group: FilterGroup) -> None:
        first = self.first(group)
        if first is not None:
            self._enter(group, first.order)
        elif group.cohort.looked < inf:
            group.cohort.searching[group] = None
            self._enqueue(group.cohort)

    def _note(self, group: FilterGroup, order: int) -> None:
        heappush(group.found, order)
        if group.head is None:
            if group.turns.open:
                self._enter(group, order)
        elif order < group.head[0]:
            self._enter(group, order)
        if len(group.found) > FOUND_MAX:
            self._full.append(group)

    def _forget(self) -> None:
        """Cuts the groups that have found too many messages back to half of `FOUND_MAX`."""
        for group in self._full:
            found = sorted(order for order in set(group.found) if self._free.get(order) is not None)
            if len(found) > FOUND_MAX // 2:
                del found[FOUND_MAX // 2 :]
                self._displace(group)
                self._place(group, found[-1])
            # What is sorted is a heap.
            group.found = found
        self._full.clear()

    # Cohorts.

    def _at(self, looked: float) -> int:
        return bisect_left(self._cohorts, looked, key=_looked)

    def _place(self, group: FilterGroup, looked: float) -> None:
        i = self._at(looked)
        if i == len(self._cohorts) or self._cohorts[i].looked != looked:
            self._cohorts.insert(i, Cohort(looked))
        group.cohort = self._cohorts[i]
        group.cohort.groups[group] = None

    def _displace(self, group: FilterGroup) -> None:
        cohort = group.cohort
        del cohort.groups[group]
        cohort.searching.pop(group, None)
        if not cohort.groups:
            del self._cohorts[self._at(cohort.looked)]

    def _enqueue(self, cohort: Cohort) -> None:
        if not cohort.is_queued:
            cohort.is_queued = True
            self._made += 1
            heappush(self._queue, (cohort.looked, self._made, cohort))

    def _search(self, looks: int) -> int:
        """Lets the cohort that has looked at the least look on. Returns the number of looks that
        are left."""
        looked, _, cohort = heappop(self._queue)
        cohort.is_queued = False
        if not cohort.groups or not cohort.is_searching():
            return looks
        if looked != cohort.looked:
            self._enqueue(cohort)
            return looks
        i = self._at(looked)
        for message in self._free.after(looked):
            # There is nothing to look at between it and those above, before this message.
            self._catch_up(i, message.order - 1)
            if looks == 0 or not self._cohorts[i].is_searching():
                break
            # What takes long to judge counts as many looks, so that a turn stays short.
            looks = max(0, looks - 1 - self._look(self._cohorts[i], message))
            self._catch_up(i, message.order)
        else:
            self._catch_up(i, inf)
            self._cohorts[i].looked = inf
        cohort = self._cohorts[i]
        if cohort.looked < inf and cohort.is_searching():
            self._enqueue(cohort)
        if self._full:
            self._forget()
        return looks

    def _look(self, cohort: Cohort, message: Message) -> int:
        """Evaluates the filters of a cohort on one message. Returns how many looks beyond one that
        cost."""
        cohort.looked = order = message.order
        before = NEWS.steps
        if len(cohort.groups) > APART_MAX:
            for group in self.passed(message):
                if group.cohort is cohort:
                    self._note(group, order)
            return (NEWS.steps - before) // LOOK_STEPS
        tree = self._contents.tree(message.txid)
        if tree is None:
            return 0
        around = self._around(message)
        for group in cohort.groups:
            assert group.filter is not None
            if group.filter.matches(tree, around):
                self._note(group, order)
        return (NEWS.steps - before) // LOOK_STEPS

    def _catch_up(self, i: int, looked: float) -> None:
        """Merges cohort `i` with the following ones, as far as these have looked no further than
        `looked`."""
        cohorts = self._cohorts
        while i + 1 < len(cohorts) and cohorts[i + 1].looked <= looked:
            less, more = cohorts[i], cohorts[i + 1]
            kept, left = (more, less) if len(more.groups) > len(less.groups) else (less, more)
            for group in left.groups:
                group.cohort = kept
            kept.groups.update(left.groups)
            kept.searching.update(left.searching)
            kept.looked = more.looked
            # A cohort without groups is passed over where it is queued.
            left.groups, left.searching = {}, {}
            cohorts[i : i + 2] = [kept]


def _looked(cohort: Cohort) -> float:
    return cohort.looked
