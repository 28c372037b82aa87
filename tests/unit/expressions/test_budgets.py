"""What all filters of one user may work together."""

from __future__ import annotations

import gc
from collections.abc import Callable

from raylay.services.expressions.budgets import (
    BURST_STEPS,
    RECOVERED_STEPS,
    STEPS_PER_S,
    TURN_STEPS,
    FilterBudgets,
    QueryPayer,
)
from raylay.services.expressions.expression import SUBSCRIPTION, Expression, expression
from raylay.services.expressions.functions.registry import NO_CONTEXT
from raylay.services.expressions.work import NOTED_STEPS, WORK_MAX

ARRAY = list(range(30_000))
COST = 18_000_000
"""The steps of whoever adds it up, about: two of them fit into a turn."""


class Loop:
    """Turns of a loop, and a steady clock."""

    def __init__(self) -> None:
        self._calls: list[Callable[[], None]] = []
        self._now_us = 0
        self.budgets = FilterBudgets(self._calls.append)
        self.budgets.recover(0)

    def next_turn(self) -> None:
        calls, self._calls[:] = list(self._calls), []
        assert len(calls) <= 1, "one call for all budgets of a turn"
        for each in calls:
            each()

    def passes(self, seconds: float) -> None:
        self._now_us += int(seconds * 1e6)
        self.budgets.recover(self._now_us)


def filter_(number: int) -> Expression:
    """One of many costly filters, which is true."""
    return expression(f"ARRAY_SUM(/a) > {number}", SUBSCRIPTION)


def asked(found: Expression) -> bool:
    return found.matches({"a": ARRAY}, NO_CONTEXT)


def test_all_filters_of_a_user_share_what_a_turn_has() -> None:
    loop = Loop()
    amy = loop.budgets.of("amy")
    filters = [filter_(number).own(amy) for number in range(20)]
    passed = [asked(each) for each in filters]
    assert passed.count(True) == 2 and passed[:2] == [True, True]
    # What is not noted may come on top, of each filter once.
    assert amy.steps <= TURN_STEPS + WORK_MAX
    assert loop.budgets.newly_stopped() == {each.effort for each in filters[2:]}
    assert not loop.budgets.newly_stopped(), "once"
    before = amy.steps
    assert not any(asked(each) for each in filters[2:]) and amy.steps == before, "nothing is tried"


def test_the_spent_budget_of_one_user_leaves_those_of_others() -> None:
    loop = Loop()
    amy, bob = loop.budgets.of("amy"), loop.budgets.of("bob")
    for number in range(20):
        asked(filter_(number).own(amy))
    loop.passes(0)
    assert amy.is_spent and not bob.is_spent
    assert asked(filter_(0).own(bob)) and asked(filter_(1).own(bob))
    loop.next_turn()
    for _ in range(BURST_STEPS // WORK_MAX * 3):
        asked(filter_(2).own(amy))
        loop.next_turn()
    assert amy.is_spent and not bob.is_spent and not bob.is_low, "for long, too"
    assert asked(filter_(2).own(bob))


def test_the_next_turn_has_its_own_steps() -> None:
    loop = Loop()
    amy, bob = loop.budgets.of("amy"), loop.budgets.of("bob")
    for _ in range(3):
        for budget in (amy, bob):
            found = filter_(0).own(budget)
            assert asked(found) and asked(found) and not asked(found)
        loop.next_turn()


def test_a_new_filter_text_has_no_new_steps() -> None:
    """A filter that was never asked begins with what its user has left, not with a burst."""
    loop = Loop()
    amy = loop.budgets.of("amy")
    passed = 0
    for number in range(100):
        passed += asked(filter_(number).own(amy))
        loop.next_turn()
    assert passed <= BURST_STEPS // COST + 1
    # Each one finds out with its first noted steps.
    assert amy.steps < BURST_STEPS + 100 * 2 * NOTED_STEPS


def test_a_budget_that_was_exhausted_pays_again_when_it_has_recovered_half() -> None:
    loop = Loop()
    amy = loop.budgets.of("amy")
    amy.spend_slowly(BURST_STEPS)
    assert not amy.is_spent and amy.is_low
    amy.spend_slowly(1)
    assert amy.is_spent
    half_s = RECOVERED_STEPS / STEPS_PER_S
    loop.passes(half_s * 0.9)
    assert amy.is_spent
    loop.passes(half_s * 0.2)
    assert not amy.is_spent and not amy.is_low


def test_a_steady_clock_that_begins_anew_gives_nothing() -> None:
    loop = Loop()
    amy = loop.budgets.of("amy")
    loop.budgets.recover(10**12)
    amy.spend_slowly(BURST_STEPS + 1)
    loop.budgets.recover(5)
    assert amy.is_spent


def test_a_budget_that_is_full_and_pays_for_nothing_is_forgotten() -> None:
    loop = Loop()
    for number in range(1_000):
        loop.budgets.of(f"user {number}").spend(NOTED_STEPS + 1)
    loop.next_turn()
    assert len(loop.budgets) == 1_000, "what they have spent is remembered, though they are gone"
    loop.passes(BURST_STEPS / STEPS_PER_S)
    gc.collect()
    assert len(loop.budgets) == 0
    kept = loop.budgets.of("amy")
    assert loop.budgets.of("amy") is kept and len(loop.budgets) == 1


def test_one_evaluation_that_is_too_much_alone_is_false_and_its_filter_goes_on() -> None:
    """The same message gives the same, whatever else its user asks: nothing is stopped for it."""
    loop = Loop()
    text = " OR ".join(f"ARRAY_SUM(/a) = -{number}" for number in range(9))
    found = expression(text, SUBSCRIPTION).own(loop.budgets.of("amy"))
    for number in range(1, 4):
        assert not asked(found)
        assert found.effort.given_up == number and found.effort.steps == number * WORK_MAX
        assert not found.effort.is_stopped and not loop.budgets.newly_stopped()
        loop.next_turn()


def test_queries_are_paid_for_and_wait_instead_of_being_stopped() -> None:
    loop = Loop()
    amy = loop.budgets.of("amy")
    asking = filter_(0).own(QueryPayer(amy))
    for _ in range(RECOVERED_STEPS // COST + 1):
        assert not amy.is_low and asked(asking)
    assert amy.is_low and not amy.is_spent, "subscriptions, which cannot wait, have the other half"
    assert asked(filter_(1).own(amy)), "and what queries took is not of this turn"
    for _ in range(20):
        assert asked(asking)
    assert amy.is_spent


def test_an_operator_s_filter_may_work_for_long() -> None:
    found = expression("ARRAY_SUM(/a) > 1 OR 'replication' = 'x'").own()
    for _ in range(3 * BURST_STEPS // WORK_MAX):
        assert asked(found)
