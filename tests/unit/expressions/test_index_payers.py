"""Filters that several users write alike: asked once, and paid for by one who has steps left."""

from __future__ import annotations

import random

import pytest
from unit.expressions.test_budgets import ARRAY, Loop, filter_

from raylay.services.expressions.budgets import FilterBudget
from raylay.services.expressions.index import FilterIndex
from raylay.services.expressions.work import NOTED_STEPS

pytestmark = pytest.mark.covers("Configuration", "filters of one user work from one budget")


def asked(index: FilterIndex[str]) -> list[str]:
    return sorted(index.matching({"a": ARRAY}))


def test_a_filter_of_two_users_goes_on_until_both_budgets_are_spent() -> None:
    loop, index = Loop(), FilterIndex[str]()
    amy, bob = loop.budgets.of("amy"), loop.budgets.of("bob")
    index.add("hers", filter_(0), amy)
    index.add("his", filter_(0), bob)
    both = ["hers", "his"]
    assert [asked(index) for _ in range(2)] == [both, both] and not bob.steps, "one of them pays"
    assert asked(index) == both and amy.is_spent and not bob.is_spent, "and then the other"
    assert not loop.budgets.stopped
    for _ in range(3):
        asked(index)
    assert amy.is_spent and bob.is_spent
    assert index.with_efforts(loop.budgets.newly_stopped()) == both


def test_who_writes_a_filter_that_was_stopped_gets_one_of_his_own() -> None:
    """That of the others ends with their subscriptions, and his does not."""
    loop, index = Loop(), FilterIndex[str]()
    amy, bob = loop.budgets.of("amy"), loop.budgets.of("bob")
    index.add("hers", filter_(0), amy)
    for _ in range(3):
        asked(index)
    index.add("his", filter_(0), bob)
    assert asked(index) == ["his"]
    assert index.with_efforts(loop.budgets.newly_stopped()) == ["hers"]
    index.discard("hers")
    index.add("later", filter_(0), amy)
    assert asked(index) == ["his", "later"], "it is his that is shared"
    for key in ("his", "later"):
        index.discard(key)
    assert not len(index) and not index.matching({"a": ARRAY}) and index._by_text == {}


def test_the_same_text_of_another_topic_is_not_paid_for() -> None:
    """What somebody writes for his own topic costs nobody who writes the same for another one."""
    loop, hostile, calm = Loop(), FilterIndex[str](), FilterIndex[str]()
    amy, bob = loop.budgets.of("amy"), loop.budgets.of("bob")
    hostile.add("hers", filter_(0), amy)
    calm.add("his", filter_(0), bob)
    for _ in range(3):
        asked(hostile)
    assert not bob.steps and asked(calm) == ["his"]


def test_who_leaves_pays_no_more() -> None:
    loop, index = Loop(), FilterIndex[str]()
    amy, bob = loop.budgets.of("amy"), loop.budgets.of("bob")
    for key, payer in (("hers", amy), ("his", bob), ("again", amy)):
        index.add(key, filter_(0), payer)
    index.discard("hers")
    assert asked(index) and amy.steps and not bob.steps, "she has it still"
    before = amy.steps
    index.discard("again")
    assert asked(index) == ["his"] and amy.steps == before and bob.steps > NOTED_STEPS


def test_payers_are_those_who_have_the_filter() -> None:
    rng, loop, index = random.Random(33), Loop(), FilterIndex[int]()
    budgets: list[FilterBudget | None] = [None, *(loop.budgets.of(name) for name in "abc")]
    held: dict[int, tuple[int, FilterBudget | None]] = {}
    for key in range(1_000):
        if held and rng.random() < 0.5:
            gone = rng.choice(list(held))
            del held[gone]
            index.discard(gone)
        else:
            held[key] = rng.randrange(3), rng.choice(budgets)
            index.add(key, filter_(held[key][0]), held[key][1])
        for one, (number, budget) in held.items():
            payers = index._by_key[one].expression.effort.payers
            having = {of for what, of in held.values() if what == number and of is not None}
            assert len(payers) == len(set(payers))
            assert set(payers) == (set() if budget is None else having)
