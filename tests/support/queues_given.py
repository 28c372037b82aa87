"""What tests of queues are given: rules, contents, and picking written in the simplest way."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from raylay.services.expressions.expression import SUBSCRIPTION, expression
from raylay.services.expressions.functions.registry import NO_CONTEXT, EvalContext
from raylay.services.queues.decisions import Consumer, ConsumerSubscription
from raylay.services.queues.delivery.dispatcher import Dispatcher
from raylay.services.queues.entry import QueueEntry


@dataclass
class Rules:
    """The rules of a queue."""

    fairness_model: str = "proportional"
    backlog_max: int = 0
    subscription_backlog_max: int = 0
    target_depth: int = 0


@dataclass
class Bodies:
    """Parsed messages by transaction id, and how often they were read."""

    trees: dict[int, dict[str, Any]] = field(default_factory=dict)
    reads: int = 0

    def tree(self, txid: int) -> dict[str, Any] | None:
        """Counts."""
        self.reads += 1
        return self.trees.get(txid)

    def around(self, txid: int) -> EvalContext:
        """Tells the bookmark."""
        return EvalContext(bookmark=str(txid))


def message(txid: int, priority: int | None = None, is_barrier: bool = False) -> QueueEntry:
    """A message of publisher 7."""
    return QueueEntry(txid, (7, txid), priority, is_barrier)


def subscribed(
    name: str, backlog: int = 1, filter: str = "", session: int = 1
) -> ConsumerSubscription:
    """A subscription."""
    return ConsumerSubscription((session, name), f"client of {name}", filter, backlog)


def given(
    *subscriptions: ConsumerSubscription,
    bodies: Bodies | None = None,
    fairness: str = "proportional",
    **rules: int,
) -> Dispatcher[Any]:
    """Picking with consumers."""
    picking: Dispatcher[Any] = Dispatcher(Rules(fairness, **rules), bodies or Bodies())
    for each in subscriptions:
        picking.subscribed(each)
    return picking


def delivered(picking: Dispatcher[Any], at_most: int = 1_000_000) -> list[tuple[str, int]]:
    """Gives away what can be: subscription and transaction id, in order."""
    found: list[tuple[str, int]] = []
    while len(found) < at_most and (pick := picking.next()) is not None:
        picking.leased(pick[1], pick[0])
        found.append((pick[1][1], pick[0].txid))
    return found


@dataclass
class SimpleConsumer:
    """A consumer of `Simple`."""

    identity: Consumer
    filter: str
    backlog: int
    turn: int
    active: int = 0
    is_late: bool = False


class Simple:
    """The rules of picking, written so that they can be read: every decision looks at everything.

    It has what `Dispatcher` has, but holds its messages in one list.
    """

    def __init__(self, rules: Rules, bodies: Bodies) -> None:
        self.rules = rules
        self.bodies = bodies
        self.free: list[QueueEntry] = []
        self.orders: dict[int, int] = {}
        """As the messages had them when they came: what is looked at may change them."""
        self.consumers: dict[Consumer, SimpleConsumer] = {}
        self.turn = 0

    def now(self) -> int:
        """The next turn."""
        self.turn += 1
        return self.turn

    def subscribed(self, each: ConsumerSubscription) -> None:
        """A new one, or another filter and backlog."""
        backlog = min(each.backlog_max, self.rules.subscription_backlog_max or each.backlog_max)
        known = self.consumers.get(each.consumer)
        if known is None:
            turn = self.now()
            known = SimpleConsumer(each.consumer, each.filter, backlog, turn)
            self.consumers[each.consumer] = known
        known.filter, known.backlog = each.filter, backlog

    def left(self, consumer: Consumer) -> None:
        """It is gone."""
        self.consumers.pop(consumer, None)

    def add(self, each: QueueEntry) -> None:
        """It is free."""
        self.orders.setdefault(each.txid, each.order)
        self.free.append(each)
        self.free.sort(key=lambda each: self.orders[each.txid])

    def remove(self, each: QueueEntry) -> None:
        """It is free no more."""
        if each in self.free:
            self.free.remove(each)

    def leased(self, consumer: Consumer, each: QueueEntry) -> None:
        """It is held."""
        self.remove(each)
        self.consumers[consumer].active += 1
        if self.rules.fairness_model != "fast":
            self.consumers[consumer].turn = self.now()

    def freed(self, consumer: Consumer, each: QueueEntry) -> None:
        """It is held no more."""
        found = self.consumers.get(consumer)
        if found is not None:
            found.active -= 1
            if self.rules.fairness_model == "fast" and found.active == found.backlog - 1:
                found.turn = self.now()

    def lapsed(self, consumer: Consumer) -> None:
        """Notes that the consumer let a lease end."""
        found = self.consumers.get(consumer)
        if found is not None:
            found.is_late, found.turn = True, self.now()

    def recovered(self, consumer: Consumer) -> None:
        """Notes that the consumer is not late any more."""
        found = self.consumers.get(consumer)
        if found is not None:
            found.is_late = False

    @property
    def active(self) -> int:
        """Messages that are held."""
        return sum(each.active for each in self.consumers.values())

    def available(self) -> list[QueueEntry]:
        """Those before the first barrier and within the target depth."""
        count = len(self.free)
        if self.rules.target_depth:
            count = max(0, self.rules.target_depth - self.active)
        barriers = [each.txid for each in self.free if each.is_barrier]
        return [
            each
            for each in self.free[:count]
            if not each.is_barrier and not (barriers and each.txid > barriers[0])
        ]

    def passes(self, consumer: SimpleConsumer, each: QueueEntry) -> bool:
        """Whether the consumer wants the message."""
        if not consumer.filter:
            return True
        tree = self.bodies.trees.get(each.txid)
        wanted = expression(consumer.filter, SUBSCRIPTION)
        return tree is not None and wanted.matches(tree, NO_CONTEXT)

    def room(self) -> int:
        """Free places."""
        own = sum(max(0, each.backlog - each.active) for each in self.consumers.values())
        whole = max(0, self.rules.backlog_max - self.active)
        return min(own, whole) if self.rules.backlog_max else own

    def chosen(self, each: QueueEntry) -> Consumer | None:
        """Who gets this one."""
        if self.rules.backlog_max and self.active >= self.rules.backlog_max:
            return None
        can = [
            consumer
            for consumer in self.consumers.values()
            if consumer.active < consumer.backlog and self.passes(consumer, each)
        ]
        in_time = [consumer for consumer in can if not consumer.is_late]
        can = in_time or can
        if self.rules.fairness_model == "proportional" and in_time:
            can.sort(key=lambda one: (Fraction(one.active, one.backlog), one.turn))
        else:
            can.sort(key=lambda one: one.turn)
        return can[0].identity if can else None

    def next(self) -> tuple[QueueEntry, Consumer] | None:
        """The first message that anybody can have."""
        for each in self.available():
            consumer = self.chosen(each)
            if consumer is not None:
                return each, consumer
        return None

    def barrier(self, oldest_txid: int) -> tuple[QueueEntry, list[Consumer]] | None:
        """The first barrier, if it is the oldest."""
        for each in self.free:
            if each.is_barrier:
                wanted = [one.identity for one in self.consumers.values() if self.passes(one, each)]
                return (each, wanted) if each.txid <= oldest_txid else None
        return None
