"""What all filters of one user may work together."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest

from raylay.services.errors import RemoteProtocolError
from raylay.services.expressions.budgets import (
    BURST_STEPS,
    COMPILE_BURST_STEPS,
    COMPILE_STEPS_PER_S,
    RECOVERED_STEPS,
    STEPS_PER_S,
    TURN_STEPS,
    FilterBudget,
    FilterBudgets,
    QueryPayer,
)
from raylay.services.expressions.expression import (
    SUBSCRIPTION,
    CompiledFilters,
    Expression,
    expression,
    filter_of,
)
from raylay.services.expressions.functions import BUILT_IN
from raylay.services.expressions.functions.registry import NO_CONTEXT
from raylay.services.expressions.index import FilterIndex
from raylay.services.expressions.work import NOTED_STEPS, WORK_MAX

pytestmark = pytest.mark.covers("Configuration", "filters of one user work from one budget")

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


def long_filter(own: object, parts: int = 240) -> str:
    """A filter that takes long to compile."""
    return " OR ".join(f"/f{number} = '{own}'" for number in range(parts))


def compiled(text: str, budget: FilterBudget) -> Expression:
    return filter_of(text, SUBSCRIPTION, BUILT_IN, None, budget)


def test_long_filters_are_paid_for_in_proportion_and_short_ones_are_not() -> None:
    loop = Loop()
    amy = loop.budgets.of("amy")
    taken = []
    for parts in (1, 20, 240, 480):
        before = amy._compile_left
        compiled(long_filter(f"{parts} parts", parts), amy)
        taken.append(before - amy._compile_left)
    assert taken[:2] == [0, 0] and 0 not in taken[2:]
    assert 1.9 < taken[3] / taken[2] < 2.1
    before = amy._compile_left
    compiled(long_filter("480 parts", 480), amy)
    assert amy._compile_left == before, "what is kept takes nothing"
    with pytest.raises(RemoteProtocolError, match="is no filter"):
        compiled(long_filter("broken", 480)[:-1] + " OR", amy)
    patterns = " OR ".join(f"/f{number} LIKE 'a{number}'" for number in range(240))
    compiled(patterns, amy)
    assert before - amy._compile_left > taken[2], "an expression takes more than a text"


def test_whose_filters_took_long_waits_for_the_next_and_others_do_not() -> None:
    loop = Loop()
    amy, bob = loop.budgets.of("amy"), loop.budgets.of("bob")
    for number in range(100):
        if amy.compile_wait_s:
            break
        compiled(long_filter(f"of amy {number}", 480), amy)
    assert 5 < number < 50 and amy.compile_wait_s > 0 and not bob.compile_wait_s
    assert not amy.is_low, "what filters work is another account"
    loop.passes(amy.compile_wait_s)
    assert amy.compile_wait_s < 1e-3
    del amy
    gc.collect()
    assert len(loop.budgets) == 2, "she has not yet all that she may have"
    loop.passes(2 * COMPILE_BURST_STEPS / COMPILE_STEPS_PER_S)
    gc.collect()
    assert len(loop.budgets) == 1, "hers is full again, and forgotten"


def test_the_filters_of_a_user_have_a_limit_in_memory_until_they_end() -> None:
    budgets = FilterBudgets(lambda ends: None, 1_000_000)
    amy, bob = budgets.of("amy"), budgets.of("bob")
    held = []
    with pytest.raises(RemoteProtocolError) as found:
        for number in range(100):
            held.append(compiled(long_filter(f"held {number}"), amy))
    assert found.value.reason == "too_many" and 1 < len(held) < 20
    assert amy.held_bytes == sum(each.size_bytes for each in held) <= 1_000_000
    again = [compiled(long_filter("held 0"), amy) for _ in range(100)]
    assert amy.held_bytes == sum(each.size_bytes for each in held), "the same one counts once"
    his = compiled(long_filter("held 0"), bob)
    assert bob.held_bytes == his.size_bytes == held[0].size_bytes
    before = amy.held_bytes
    held.clear()
    gc.collect()
    assert amy.held_bytes == again[0].size_bytes < before
    again.clear()
    gc.collect()
    assert not amy.held_bytes and not amy._held and bob.held_bytes
    assert compiled(long_filter("held 9"), amy)


def test_a_subscription_of_an_index_holds_its_own_count() -> None:
    """Who writes the same as somebody else counts for himself, and nobody for who has left."""
    loop, index = Loop(), FilterIndex[str]()
    amy, bob = loop.budgets.of("amy"), loop.budgets.of("bob")
    index.add("hers", compiled(long_filter("indexed"), amy), amy)
    index.add("his", compiled(long_filter("indexed"), bob), bob)
    gc.collect()
    assert amy.held_bytes == bob.held_bytes > 0
    index.discard("hers")
    gc.collect()
    assert not amy.held_bytes and bob.held_bytes


def test_filters_that_are_kept_have_a_limit_in_memory() -> None:
    kept = CompiledFilters(1_000_000)
    for number in range(30):
        found = kept.get(long_filter(f"kept {number}"), SUBSCRIPTION)
        assert kept.get(long_filter(f"kept {number}"), SUBSCRIPTION) is found
    assert 1 < len(kept) <= 1_000_000 // found.size_bytes
    few = CompiledFilters(1)
    few.get("/a = 1", SUBSCRIPTION)
    assert len(few) == 0
    many = CompiledFilters(1_000_000)
    for number in range(200):
        many.get(f"/a = {number}", SUBSCRIPTION)
    assert len(many) == 200


def test_a_long_filter_is_stopped_and_given_up_as_a_short_one_is() -> None:
    """Its meter is made at once, not where the first one asks for it."""
    loop = Loop()
    amy = loop.budgets.of("amy")
    text = " OR ".join(f"/b{number} = 'x'" for number in range(100)) + " OR ARRAY_SUM(/a) > 1"
    found = expression(text, SUBSCRIPTION).own(amy)
    assert [asked(found) for _ in range(4)] == [True, True, False, False]
    assert loop.budgets.newly_stopped() == {found.effort}
    steps = amy.steps
    assert 2 * COST < steps < 4 * COST and not asked(found) and amy.steps == steps
