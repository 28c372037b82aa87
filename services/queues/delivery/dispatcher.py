"""The dispatch of a queue: which free message that the instance may deliver goes to which consumer
next.

The order is that of priorities, and within one of transaction ids. The first message that any
consumer with room takes goes to the consumer that the fairness model chooses among these
(behaviour.md 3.2, 3.3). The cost of a decision grows only with the logarithms of the numbers of
waiting messages and of consumers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from math import inf
from typing import Any, Generic, TypeVar

from raylay.services.expressions.expression import SUBSCRIPTION, filter_of
from raylay.services.expressions.functions import BUILT_IN
from raylay.services.expressions.functions.registry import EvalContext, Functions
from raylay.services.queues.decisions import Consumer, ConsumerSubscription
from raylay.services.queues.delivery.fairness import ConsumerTurn, Fairness, Place
from raylay.services.queues.delivery.filters import FilterGroup, Filters
from raylay.services.queues.delivery.ready_list import ReadyList
from raylay.services.queues.entry import (
    ABSENT,
    FREE,
    HELD,
    INACTIVE,
    BodyReader,
    DispatchSettings,
    QueueEntry,
)

LOOKS_BESIDE = 50
"""The number of messages on which one decision evaluates filters, if another delivery is
possible."""
LOOKS_MAX = 1_000
"""The number of messages on which one decision evaluates filters, if no other delivery is
possible."""

Message = TypeVar("Message", bound=QueueEntry)


class _ConsumerPlace(ConsumerTurn, Generic[Message]):
    """A consumer, and the group of its filter."""

    __slots__ = ("group",)

    def __init__(self, consumer: Consumer, backlog: int, group: FilterGroup) -> None:
        super().__init__(consumer, backlog, group.turns)
        self.group = group


class Dispatcher(Generic[Message]):
    """See the file's docstring. The queue's machine reports every change. Only `next` and
    `lease_next` decide.

    A message is added when it is free and this instance may deliver it; a barrier is always added.
    The message leaves when it is `leased` to a consumer or taken out with `remove`. A message that
    becomes free again is added again, and gets its former place in the order.

    Args:
        rules: the definition of the queue.
        contents: the reader of message bodies, for the filters of consumers.
        functions: the functions that filters may use.
        instance: the context of the instance that filters may read.
    """

    __slots__ = (
        "_active",
        "_backlog_max",
        "_barriers",
        "_fairness",
        "_filters",
        "_free",
        "_functions",
        "_held_from",
        "_inactive",
        "_instance",
        "_members",
        "_plain",
        "_room",
        "_subscription_backlog_max",
        "_target_depth",
    )

    def __init__(
        self,
        rules: DispatchSettings,
        contents: BodyReader,
        functions: Functions = BUILT_IN,
        instance: EvalContext | None = None,
    ) -> None:
        self._backlog_max: float = rules.backlog_max or inf
        self._subscription_backlog_max = rules.subscription_backlog_max
        self._target_depth: float = rules.target_depth or inf
        self._functions = functions
        self._instance = instance or EvalContext()
        self._fairness = Fairness(rules.fairness_model)
        self._free: ReadyList[Message] = ReadyList()
        self._inactive: ReadyList[Message] = ReadyList()
        self._barriers: list[Message] = []
        self._held_from: float = inf
        self._members: dict[Consumer, _ConsumerPlace[Message]] = {}
        self._plain: FilterGroup = FilterGroup(0, None)
        self._filters: Filters[Message] = Filters(self._free, contents)
        self._active = 0
        """The number of messages that consumers hold."""
        self._room = 0
        """The number of further messages that the consumers have room for."""

    # What changes.

    def subscribed(self, each: ConsumerSubscription) -> None:
        """Adds a consumer, or changes its filter or backlog. A known consumer keeps the messages
        that it holds.

        Raises:
            RemoteProtocolError: the filter is none; nothing is changed.
        """
        group = self._plain
        if each.filter:
            client = EvalContext(
                client_name=each.client,
                instance=self._instance.instance,
                group=self._instance.group,
            )
            wanted = filter_of(each.filter, SUBSCRIPTION, self._functions, client)
            group = self._filters.joined(wanted)
        else:
            group.members += 1
        backlog = min(each.backlog_max, self._subscription_backlog_max or each.backlog_max)
        member = self._members.get(each.consumer)
        if member is None:
            member = self._members[each.consumer] = _ConsumerPlace(each.consumer, backlog, group)
            self._room += backlog
            self._fairness.entered(member)
        else:
            self._room += max(0, backlog - member.active) - max(0, member.backlog - member.active)
            member.turns.leave(member)
            self._part(member.group)
            member.backlog, member.group, member.turns = backlog, group, group.turns
            self._fairness.changed(member)
        self._settle(group)

    def left(self, consumer: Consumer) -> None:
        """Removes a consumer and all that it holds. The caller adds the messages that are free
        again."""
        member = self._members.pop(consumer, None)
        if member is None:
            return
        self._room -= max(0, member.backlog - member.active)
        self._active -= member.active
        member.turns.leave(member)
        self._part(member.group)
        self._promote()

    def add(self, message: Message, tree: dict[str, Any] | None = None) -> None:
        """Adds a free message, or a barrier.

        Args:
            tree: the parsed message, if the caller has it at hand; see `wants`.
        """
        if message.is_barrier:
            message.standing = HELD
            self._barriers.insert(self._barrier_at(message), message)
            self._held_from = self._barriers[0].order
            return
        if self._target_depth is not inf:
            first = self._inactive.first()
            if first is not None and message.order > first.order:
                message.standing = INACTIVE
                self._inactive.add(message)
                return
        self._enter(message, tree)
        if len(self._free) + self._active > self._target_depth:
            self._demote()

    def add_all(self, messages: Sequence[Message]) -> None:
        """Adds messages, none of them a barrier, as `add` would do one by one. They are in order,
        and above all that were added before."""
        if self._target_depth is not inf or len(self._filters):
            for message in messages:
                self.add(message)
            return
        for message in messages:
            message.standing = FREE
        self._free.extend(messages)

    def wants(self, message: Message) -> bool:
        """Returns whether `add` will evaluate filters on the message, so that passing its tree
        spares a read."""
        return self._filters.wants(message)

    def remove(self, message: Message) -> None:
        """Removes a message that is no longer free, or no longer this instance's. A message that is
        not here is ignored."""
        standing = message.standing
        message.standing = ABSENT
        if standing == FREE:
            self._free.remove(message)
            self._promote()
        elif standing == INACTIVE:
            self._inactive.remove(message)
        elif standing == HELD:
            del self._barriers[self._barrier_at(message)]
            self._held_from = self._barriers[0].order if self._barriers else inf

    def leased(self, consumer: Consumer, message: Message) -> None:
        """Records that the consumer holds the message, which is no longer free. Also called for
        leases from before a restart, whose messages are not here."""
        if message.standing == FREE:
            message.standing = ABSENT
            self._free.remove(message)
        self._active += 1
        member = self._members[consumer]
        if member.active < member.backlog:
            self._room -= 1
        member.active += 1
        self._fairness.served(member)

    def freed(self, consumer: Consumer, message: Message) -> None:
        """Records that the consumer no longer holds the message. The caller adds the message if it
        is free again."""
        assert message.standing != FREE, f"{message} is added before it is freed"
        self.freed_count(consumer, 1)

    def freed_count(self, consumer: Consumer, messages: int) -> None:
        """Records that the consumer no longer holds so many messages, as `freed` does for one. The
        caller adds none of them before."""
        member = self._members.get(consumer)
        if member is None:
            return
        self._active -= messages
        before, member.active = member.active, member.active - messages
        if member.active < member.backlog:
            self._room += min(before, member.backlog) - member.active
            had_room = member.place is not None
            self._fairness.freed(member)
            if not had_room:
                self._settle(member.group)
        self._promote()

    def lapsed(self, consumer: Consumer) -> None:
        """Records that the consumer let leases end, or nearly so: it comes after all others, until
        it has recovered."""
        member = self._members.get(consumer)
        if member is not None:
            self._fairness.lapsed(member)

    def recovered(self, consumer: Consumer) -> None:
        """Records that the consumer is not late any more."""
        member = self._members.get(consumer)
        if member is not None:
            self._fairness.recovered(member)

    # What is asked.

    def __len__(self) -> int:
        return len(self._free)

    @property
    def inactive_count(self) -> int:
        """The number of messages beyond the target depth."""
        return len(self._inactive)

    @property
    def active_count(self) -> int:
        return self._active

    @property
    def is_searching(self) -> bool:
        """Returns whether `next` still has messages to evaluate filters on. The caller then asks
        again soon, even if `next` has given nothing."""
        return self._filters.is_searching and self._active < self._backlog_max

    def available(self) -> Iterator[Message]:
        """Yields the free messages in order; valid as long as nothing changes. Messages behind a
        barrier, or beyond the target depth, are left out."""
        for message in self._free.after(-1):
            if message.order > self._held_from:
                return
            yield message

    def room(self) -> int:
        """Returns the number of messages that could be given to consumers now, if their filters
        passed them."""
        return max(0, int(min(self._backlog_max - self._active, self._room)))

    def next(self) -> tuple[Message, Consumer] | None:
        """Returns the message to deliver next, and its consumer. The answer stays the same until
        something changes."""
        if self._active >= self._backlog_max:
            return None
        if not len(self._filters):
            place = self._plain.turns.first()
            message = self._free.first()
            if place is None or message is None or message.order > self._held_from:
                return None
            return message, place[2].consumer
        found = self._chosen(LOOKS_BESIDE)
        if found is None and self._filters.is_searching:
            found = self._chosen(LOOKS_MAX)
        return found

    def lease_next(self, messages_max: int) -> tuple[Consumer, Sequence[Message]] | None:
        """Leases what `next` gives. If only one consumer has room, and no consumer has a filter,
        leases as many messages as that consumer takes; otherwise one.

        Args:
            messages_max: the highest number of messages; at least 1.
        """
        turns = self._plain.turns
        if turns.open != 1 or len(self._filters) or self._held_from is not inf:
            found = self.next()
            if found is None:
                return None
            self.leased(found[1], found[0])
            return found[1], (found[0],)
        place = turns.first()
        assert place is not None
        member = place[2]
        room = min(member.backlog - member.active, self._backlog_max - self._active)
        messages = self._free.take(int(min(messages_max, room)))
        if not messages:
            return None
        for message in messages:
            message.standing = ABSENT
        count = len(messages)
        self._active += count
        self._room -= count
        member.active += count
        self._fairness.served(member, count)
        return member.consumer, messages

    def taker(self, message: Message, tree: dict[str, Any] | None = None) -> Consumer | None:
        """Returns a consumer that could take the message now, or None; a late one only where no
        other could. The message need not have been added."""
        if self._active >= self._backlog_max or message.order > self._held_from:
            return None
        if message.is_barrier or message.standing == INACTIVE or not self._room:
            return None
        place = self._plain.turns.first()
        if place is None or place[2].is_late:
            for group in self._filters.passed(message, tree):
                place = _earlier(place, group.turns.first())
        return place and place[2].consumer

    def barrier(self, oldest_txid: int) -> tuple[Message, list[Consumer]] | None:
        """Returns the barrier whose turn it is, and all consumers whose filter passes it.

        Args:
            oldest_txid: the lowest transaction id of all messages of the queue, including those
                that are leased or belong to other instances.
        """
        if not self._barriers or self._barriers[0].txid > oldest_txid:
            return None
        message = self._barriers[0]
        groups = {self._plain, *self._filters.passed(message)}
        return message, [each.consumer for each in self._members.values() if each.group in groups]

    # How.

    def _enter(self, message: Message, tree: dict[str, Any] | None = None) -> None:
        message.standing = FREE
        self._free.add(message)
        self._filters.added(message, tree)

    def _demote(self) -> None:
        last = self._free.last()
        if last is not None:
            self._free.remove(last)
            last.standing = INACTIVE
            self._inactive.add(last)

    def _promote(self) -> None:
        inactive = self._inactive
        while len(inactive) and len(self._free) + self._active < self._target_depth:
            message = inactive.first()
            assert message is not None
            inactive.remove(message)
            self._enter(message)

    def _chosen(self, looks: int) -> tuple[Message, Consumer] | None:
        message: Message | None = None
        place = self._plain.turns.first()
        if place is not None:
            message = self._free.first()
        for group in self._filters.firsts(looks):
            found = self._filters.first(group)
            assert found is not None
            if message is None or found.order < message.order:
                message, place = found, group.turns.first()
            elif found is message:
                place = _earlier(place, group.turns.first())
        if message is None or place is None or message.order > self._held_from:
            return None
        return message, place[2].consumer

    def _settle(self, group: FilterGroup) -> None:
        if group.filter is not None and group.turns.open:
            self._filters.opened(group)

    def _part(self, group: FilterGroup) -> None:
        if group.filter is None:
            group.members -= 1
        else:
            self._filters.parted(group)

    def _barrier_at(self, message: Message) -> int:
        return bisect_left(self._barriers, message.order, key=lambda each: each.order)


def _earlier(one: Place | None, other: Place | None) -> Place | None:
    if one is None or other is None:
        return one or other
    return min(one, other)
