"""Mistakes planted in picking: the test that is named beside each one fails by it, and so do the
random histories, where they look at the rule."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

import pytest
from support import queues_given
from unit.queues import test_dispatcher, test_fairness, test_filters

from raylay.services.queues.decisions import Consumer, ConsumerSubscription
from raylay.services.queues.delivery import dispatcher, filters
from raylay.services.queues.delivery.dispatcher import Dispatcher
from raylay.services.queues.delivery.fairness import ConsumerTurn, Fairness
from raylay.services.queues.delivery.filters import Cohort, FilterGroup, Filters
from raylay.services.queues.entry import INACTIVE, QueueEntry

pytestmark = pytest.mark.covers("Queues", "each of these with mistakes planted")

of_picking, of_fairness, of_filters = test_dispatcher, test_fairness, test_filters
Test = Callable[..., None]
MISTAKES: list[tuple[type[Any], Test, bool]] = []


def caught_by(test: Test, by_histories: bool) -> Callable[[type[Any]], type[Any]]:
    """Notes a mistake, the test that fails by it, and whether random histories do, too."""

    def noted(mistake: type[Any]) -> type[Any]:
        MISTAKES.append((mistake, test, by_histories))
        return mistake

    return noted


Any_ = Dispatcher[Any]


@caught_by(of_picking.test_the_oldest_message_goes_first, True)
class NewestFirst(Any_):
    def next(self) -> tuple[Any, Consumer] | None:
        found, last = super().next(), self._free.last()
        return (last, found[1]) if found and last else None


@caught_by(of_picking.test_what_comes_back_is_in_its_place, True)
class BackAtTheEnd(Any_):
    seen = 0

    def add(self, message: QueueEntry, tree: dict[str, Any] | None = None) -> None:
        if message.txid <= self.seen:
            message.order += 1 << 40
        self.seen = max(self.seen, message.txid)
        super().add(message, tree)


@caught_by(of_picking.test_a_higher_priority_goes_first_and_among_equals_the_older, True)
class LowPrioritiesFirst(Any_):
    def add(self, message: QueueEntry, tree: dict[str, Any] | None = None) -> None:
        if message.order != message.txid:
            message.order = message.priority << 64 | message.txid
        super().add(message, tree)


@caught_by(of_picking.test_a_higher_priority_goes_first_and_among_equals_the_older, True)
class NoOrderWithinAPriority(Any_):
    def add(self, message: QueueEntry, tree: dict[str, Any] | None = None) -> None:
        if message.order != message.txid:
            message.order = (message.order >> 64) << 64 | (1 << 63) - message.txid
        super().add(message, tree)


@caught_by(of_picking.test_a_consumer_holds_no_more_than_its_backlog, True)
class OneTooMany(Any_):
    def subscribed(self, each: ConsumerSubscription) -> None:
        super().subscribed(each._replace(backlog_max=each.backlog_max + 1))


@caught_by(of_picking.test_the_definition_limits_what_a_subscription_may_hold, True)
class DefinitionUnheeded(Any_):
    def subscribed(self, each: ConsumerSubscription) -> None:
        self._subscription_backlog_max = 1_000
        super().subscribed(each)


@caught_by(of_picking.test_all_consumers_together_hold_no_more_than_the_backlog_of_the_queue, True)
class QueueWithoutALimit(Any_):
    def next(self) -> tuple[Any, Consumer] | None:
        self._backlog_max = inf
        return super().next()


@caught_by(of_picking.test_who_left_holds_nothing_and_gets_nothing, True)
class PlacesOfWhoLeft(Any_):
    def left(self, consumer: Consumer) -> None:
        before = self._active
        super().left(consumer)
        self._active = before


@caught_by(of_picking.test_who_left_holds_nothing_and_gets_nothing, False)
class FreedTwice(Any_):
    def freed(self, consumer: Consumer, message: QueueEntry) -> None:
        if consumer not in self._members:
            self._active -= 1
        super().freed(consumer, message)


@caught_by(of_picking.test_who_replaces_its_subscription_goes_on_holding_what_it_has, True)
class ReplacedIsNew(Any_):
    def subscribed(self, each: ConsumerSubscription) -> None:
        self.left(each.consumer)
        super().subscribed(each)


@caught_by(of_picking.test_who_replaces_its_subscription_goes_on_holding_what_it_has, True)
class ReplacedKeepsItsFilter(Any_):
    def subscribed(self, each: ConsumerSubscription) -> None:
        known = self._members.get(each.consumer)
        if known is not None:
            wanted = known.group.filter
            each = each._replace(filter=wanted.text if wanted else "")
        super().subscribed(each)


@caught_by(of_picking.test_of_messages_that_pass_a_filter_the_oldest_goes_first, True)
class FilterUnheeded(Any_):
    def subscribed(self, each: ConsumerSubscription) -> None:
        super().subscribed(each._replace(filter=""))


@caught_by(
    of_picking.test_a_barrier_holds_up_what_is_behind_it_and_goes_to_all_whose_filter_it_passes,
    True,
)
class BarrierPassed(Any_):
    def next(self) -> tuple[Any, Consumer] | None:
        self._held_from = inf
        return super().next()


@caught_by(
    of_picking.test_a_barrier_holds_up_what_is_behind_it_and_goes_to_all_whose_filter_it_passes,
    True,
)
class BarrierTooSoon(Any_):
    def barrier(self, oldest_txid: int) -> tuple[Any, list[Consumer]] | None:
        return super().barrier(1 << 63)


@caught_by(
    of_picking.test_a_barrier_holds_up_what_is_behind_it_and_goes_to_all_whose_filter_it_passes,
    False,
)
class BarrierForThoseWithRoom(Any_):
    def barrier(self, oldest_txid: int) -> tuple[Any, list[Consumer]] | None:
        found = super().barrier(oldest_txid)
        return found and (found[0], [each for each in found[1] if self._members[each].place])


@caught_by(
    of_picking.test_a_barrier_holds_up_what_is_behind_it_and_goes_to_all_whose_filter_it_passes,
    True,
)
class BarrierForAll(Any_):
    def barrier(self, oldest_txid: int) -> tuple[Any, list[Consumer]] | None:
        found = super().barrier(oldest_txid)
        return found and (found[0], list(self._members))


@caught_by(
    of_picking.test_a_barrier_holds_up_what_is_behind_it_and_goes_to_all_whose_filter_it_passes,
    True,
)
class BarrierForOne(Any_):
    def barrier(self, oldest_txid: int) -> tuple[Any, list[Consumer]] | None:
        found = super().barrier(oldest_txid)
        return found and (found[0], found[1][:1])


@caught_by(of_picking.test_no_more_than_the_target_depth_are_active, True)
class AnyDepth(Any_):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._target_depth = inf


@caught_by(of_picking.test_no_more_than_the_target_depth_are_active, True)
class NobodyMovesUp(Any_):
    def _promote(self) -> None: ...


@caught_by(of_picking.test_no_more_than_the_target_depth_are_active, True)
class BackBehindTheDepth(Any_):
    def add(self, message: QueueEntry, tree: dict[str, Any] | None = None) -> None:
        if len(self._inactive):
            message.standing = INACTIVE
            self._inactive.add(message)
        else:
            super().add(message, tree)


@caught_by(of_picking.test_a_consumer_holds_no_more_than_its_backlog, True)
class TakenWhereNobodyHasRoom(Any_):
    def taker(self, message: QueueEntry, tree: dict[str, Any] | None = None) -> Consumer | None:
        return next(iter(self._members), None)


@caught_by(of_fairness.test_fast_fills_one_after_the_other, True)
@caught_by(of_fairness.test_round_robin_goes_around_those_with_room, True)
@caught_by(of_fairness.test_proportional_serves_who_holds_the_least_of_its_backlog, True)
class Other(Fairness):
    """A model for another."""

    def __init__(self, model: str) -> None:
        others = {"fast": "proportional", "round-robin": "fast", "proportional": "round-robin"}
        super().__init__(others[model])


@caught_by(of_fairness.test_proportional_serves_those_with_equal_shares_in_turn, True)
class WithoutTurns(Fairness):
    def served(self, taker: ConsumerTurn) -> None:
        turn = taker.turn
        super().served(taker)
        taker.turn = turn
        if taker.place is not None:
            self.changed(taker)


@caught_by(of_fairness.test_proportional_serves_who_holds_the_least_of_its_backlog, True)
class Counts(Fairness):
    """What they hold, not which share of their backlog."""

    def _enter(self, taker: ConsumerTurn) -> None:
        taker.turns.enter(taker, taker.active if self._is_proportional else 0)


@caught_by(of_fairness.test_what_is_acknowledged_lowers_the_share, True)
class SharesOnlyGrow(Fairness):
    def freed(self, taker: ConsumerTurn) -> None:
        if taker.place is None:
            super().freed(taker)


@caught_by(of_fairness.test_fast_serves_last_who_gets_room_last, True)
class FirstComeStaysFirst(Fairness):
    def freed(self, taker: ConsumerTurn) -> None:
        turn = taker.turn
        super().freed(taker)
        if self._is_fast:
            taker.turn = turn
            self.changed(taker)


@caught_by(of_fairness.test_round_robin_serves_first_who_waited_longest, True)
class FreedIsServed(Fairness):
    def freed(self, taker: ConsumerTurn) -> None:
        self._turn += 1
        taker.turn = self._turn
        taker.turns.leave(taker)
        super().freed(taker)


@caught_by(of_fairness.test_a_late_consumer_comes_after_all_others_until_it_has_recovered, True)
class LateAsTheOthers(Fairness):
    def lapsed(self, taker: ConsumerTurn) -> None:
        pass


@caught_by(of_fairness.test_a_late_consumer_comes_after_all_others_until_it_has_recovered, True)
class LateForever(Fairness):
    def recovered(self, taker: ConsumerTurn) -> None:
        pass


@caught_by(of_fairness.test_of_several_late_consumers_the_last_one_comes_last, True)
class LateBySharesToo(Fairness):
    def lapsed(self, taker: ConsumerTurn) -> None:
        turn = taker.turn
        super().lapsed(taker)
        taker.turn = turn
        self.changed(taker)


@caught_by(of_filters.test_a_filter_that_few_pass_looks_at_each_message_once, False)
class FromTheStart(Filters[Any]):
    def _seek(self, group: FilterGroup) -> None:
        group.found.clear()
        self._displace(group)
        self._place(group, -1)
        super()._seek(group)


@caught_by(of_filters.test_a_search_is_done_in_pieces_and_holds_up_nobody, False)
class AllAtOnce(Filters[Any]):
    def firsts(self, looks: int) -> list[FilterGroup]:
        return super().firsts(1_000_000)


@caught_by(of_picking.test_of_messages_that_pass_a_filter_the_oldest_goes_first, True)
class LateOnesUntold(Filters[Any]):
    def added(self, message: Any, tree: dict[str, Any] | None) -> None: ...


@caught_by(of_filters.test_who_has_no_room_misses_nothing_that_others_look_at, True)
class WhoDoesNotSearchMisses(Filters[Any]):
    def _look(self, cohort: Cohort, message: Any) -> int:
        groups = cohort.groups
        cohort.groups = {each: None for each in groups if each.wants}
        looks = super()._look(cohort, message)
        cohort.groups = groups
        return looks


@caught_by(of_filters.test_who_has_no_room_looks_at_nothing, False)
class LooksForNobody(Cohort):
    def is_searching(self) -> bool:
        return bool(self.groups)


@caught_by(of_filters.test_what_is_found_beyond_measure_is_forgotten_and_found_again, True)
class ForgotForGood(Filters[Any]):
    def _forget(self) -> None:
        looked = {group: group.cohort.looked for group in self._full}
        super()._forget()
        for group in looked:
            self._displace(group)
            self._place(group, looked[group])


@caught_by(of_filters.test_new_messages_are_asked_once_for_all_filters, False)
class ReadForEach(Filters[Any]):
    def added(self, message: Any, tree: dict[str, Any] | None) -> None:
        super().added(message, None)


def plant(mistake: type[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts a mistake where what it is made from stands."""
    for base, where, name in (
        (Dispatcher, queues_given, "Dispatcher"),
        (Fairness, dispatcher, "Fairness"),
        (Filters, dispatcher, "Filters"),
        (Cohort, filters, "Cohort"),
    ):
        if issubclass(mistake, base):
            monkeypatch.setattr(where, name, mistake)


@pytest.mark.parametrize(
    ("mistake", "test"),
    [pytest.param(a, b, id=f"{a.__name__}-{b.__name__}") for a, b, _ in MISTAKES],
)
def test_each_rule_has_a_test_that_sees_it_broken(
    mistake: type[Any], test: Test, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(mistake, monkeypatch)
    takes_patches = "monkeypatch" in test.__code__.co_varnames[: test.__code__.co_argcount]
    with pytest.raises((AssertionError, KeyError)):
        test(monkeypatch) if takes_patches else test()


@pytest.mark.parametrize(
    "mistake", dict.fromkeys(mistake for mistake, _, by_histories in MISTAKES if by_histories)
)
def test_random_histories_see_a_broken_rule(
    mistake: type[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(mistake, monkeypatch)
    monkeypatch.setattr(filters, "FOUND_MAX", 4)
    with pytest.raises((AssertionError, KeyError)):
        of_picking.compare(range(60))
