"""The free messages that an instance may deliver, and its consumers: who gets what next.

The first message in order (transaction id, or priority and then transaction id) that any consumer
with room takes goes to the one of those that fairness names (behaviour.md 3.2, 3.3). What it costs
does not grow with the messages that wait, nor with the consumers, but by logarithms.
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
"""Messages that one decision looks at for filters, where there is another that can be made."""
LOOKS_MAX = 1_000
"""Messages that one decision looks at for filters, where there is no other that can be made."""

Message = TypeVar("Message", bound=QueueEntry)


class _ConsumerPlace(ConsumerTurn, Generic[Message]):
    """A consumer, and the group of its filter."""

    __slots__ = ("group",)

    def __init__(self, consumer: Consumer, backlog: int, group: FilterGroup) -> None:
        super().__init__(consumer, backlog, group.turns)
        self.group = group


class Dispatcher(Generic[Message]):
    """See the file's docstring. The machine tells every change; nothing is decided but by `next`.

    A message is added when it is free and this instance may deliver it, a barrier always. It is
    `leased` to whom it is given, or taken out with `remove`; a message that is free again is added
    again, and is in its place.

    Args:
        rules: the definition of the queue.
        contents: reads messages for the filters of consumers.
        functions: those that filters may use.
        instance: what filters are told of it.
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
        """Messages that consumers hold."""
        self._room = 0
        """Messages that they could hold beside."""

    # What changes.

    def subscribed(self, each: ConsumerSubscription) -> None:
        """There is a consumer, or it has another filter or backlog: it keeps what it holds.

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
        """The consumer is no more, and holds nothing: what it held is to be added, where it is
        free again."""
        member = self._members.pop(consumer, None)
        if member is None:
            return
        self._room -= max(0, member.backlog - member.active)
        self._active -= member.active
        member.turns.leave(member)
        self._part(member.group)
        self._promote()

    def add(self, message: Message, tree: dict[str, Any] | None = None) -> None:
        """The message is free, or is a barrier.

        Args:
            tree: the message, parsed, if that is at hand: see `wants`.
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
        """Adds messages as `add` of each does: in their order, none of them a barrier, above all
        that were added."""
        if self._target_depth is not inf or len(self._filters):
            for message in messages:
                self.add(message)
            return
        for message in messages:
            message.standing = FREE
        self._free.extend(messages)

    def wants(self, message: Message) -> bool:
        """Returns whether `add` will look into the message: a tree spares it to read that."""
        return self._filters.wants(message)

    def remove(self, message: Message) -> None:
        """The message is free no more, or no longer ours; one that is not here is passed over."""
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
        """The consumer holds the message, which is free no more. Also told of leases that were
        given before a restart, whose messages are not here."""
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
        """The consumer does not hold the message any more. If it is free again, it is to be
        added."""
        assert message.standing != FREE, f"{message} is added before it is freed"
        self.freed_count(consumer, 1)

    def freed_count(self, consumer: Consumer, messages: int) -> None:
        """Notes that so many messages, which are not added before, were freed, as `freed` does."""
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

    # What is asked.

    def __len__(self) -> int:
        return len(self._free)

    @property
    def inactive_count(self) -> int:
        """Messages behind the target depth."""
        return len(self._inactive)

    @property
    def active_count(self) -> int:
        return self._active

    @property
    def is_searching(self) -> bool:
        """Returns whether `next` has yet to look at messages for a filter: to be asked again soon,
        even where it gave none."""
        return self._filters.is_searching and self._active < self._backlog_max

    def available(self) -> Iterator[Message]:
        """The free messages in order, as long as nothing changes. What is behind a barrier, or
        behind the target depth, is not available."""
        for message in self._free.after(-1):
            if message.order > self._held_from:
                return
            yield message

    def room(self) -> int:
        """Messages that could be given to consumers now, if they wanted them."""
        return max(0, int(min(self._backlog_max - self._active, self._room)))

    def next(self) -> tuple[Message, Consumer] | None:
        """The message to deliver next, and to whom. It is the same until a change is told."""
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
        """Leases what `next` gives: where only one consumer has room, and asks for no filter, as
        many as it takes in one go; else one.

        Args:
            messages_max: at least 1.
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
        """A consumer that could take the message now, which need not be here; None: none can."""
        if self._active >= self._backlog_max or message.order > self._held_from:
            return None
        if message.is_barrier or message.standing == INACTIVE or not self._room:
            return None
        place = self._plain.turns.first()
        if place is None:
            groups = self._filters.passed(message, tree)
            place = next((each.turns.first() for each in groups if each.turns.open), None)
        return place and place[2].consumer

    def barrier(self, oldest_txid: int) -> tuple[Message, list[Consumer]] | None:
        """The barrier whose turn it is, and all whose filter it passes.

        Args:
            oldest_txid: of all messages of the queue, of those that are leased or belong to other
                instances, too.
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
