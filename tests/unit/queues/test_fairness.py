"""Who of several consumers is served next."""

from __future__ import annotations

import pytest
from support.queues_given import Bodies, delivered, given, message, subscribed

from raylay.services.queues.delivery import fairness
from raylay.services.queues.delivery.fairness import ConsumerTurn, Fairness, Turns


def names(model: str, count: int) -> str:
    """Who of a (backlog 2), b (4) and c (4) is given what, while nothing is acknowledged."""
    picking = given(subscribed("a", 2), subscribed("b", 4), subscribed("c", 4), fairness=model)
    for txid in range(1, count + 1):
        picking.add(message(txid))
    return "".join(name for name, _ in delivered(picking))


@pytest.mark.covers("Queues", "`FairnessModel`")
def test_fast_fills_one_after_the_other() -> None:
    assert names("fast", 12) == "aabbbbcccc"


@pytest.mark.covers("Queues", "`FairnessModel`")
def test_round_robin_goes_around_those_with_room() -> None:
    assert names("round-robin", 12) == "abcabcbcbc"


@pytest.mark.covers("Queues", "`FairnessModel`")
def test_proportional_serves_who_holds_the_least_of_its_backlog() -> None:
    # a: 1/2 after one; b and c: 1/4, so they are served once more each before it.
    assert names("proportional", 12) == "abcbcabcbc"


def test_fast_serves_last_who_gets_room_last() -> None:
    picking = given(subscribed("a"), subscribed("b"), subscribed("c"), fairness="fast")
    messages = [message(txid) for txid in range(1, 6)]
    for each in messages:
        picking.add(each)
    assert delivered(picking, 2) == [("a", 1), ("b", 2)]
    picking.freed((1, "b"), messages[1])
    picking.freed((1, "a"), messages[0])
    assert delivered(picking) == [("c", 3), ("b", 4), ("a", 5)]


def test_round_robin_serves_first_who_waited_longest() -> None:
    picking = given(subscribed("a"), subscribed("b", 2), fairness="round-robin")
    messages = [message(txid) for txid in range(1, 5)]
    for each in messages:
        picking.add(each)
    assert delivered(picking) == [("a", 1), ("b", 2), ("b", 3)]
    picking.freed((1, "b"), messages[1])
    picking.freed((1, "a"), messages[0])
    assert delivered(picking, 1) == [("a", 4)]


def test_proportional_serves_those_with_equal_shares_in_turn() -> None:
    picking = given(subscribed("a", 2), subscribed("b", 2))
    served = ""
    for txid in range(1, 7):
        one = message(txid)
        picking.add(one)
        [(name, _)] = delivered(picking)
        served += name
        picking.freed((1, name), one)
    assert served == "ababab"


def test_what_is_acknowledged_lowers_the_share() -> None:
    picking = given(subscribed("a", 4), subscribed("b", 4))
    messages = [message(txid) for txid in range(1, 7)]
    for each in messages[:4]:
        picking.add(each)
    assert delivered(picking) == [("a", 1), ("b", 2), ("a", 3), ("b", 4)]
    picking.freed((1, "b"), messages[1])
    picking.add(messages[4])
    assert delivered(picking) == [("b", 5)]


@pytest.mark.covers("Queues", "a consumer that let a lease end comes after all others")
def test_a_late_consumer_comes_after_all_others_until_it_has_recovered() -> None:
    """Also after those with another filter, and though it has nothing of its backlog in use."""
    for model in fairness.FAIRNESS_MODELS:
        for wanted in ("", "/n = 1"):
            one_is_late(model, wanted)


def one_is_late(model: str, wanted: str) -> None:
    """Consumers a and b; first a lets leases end, then b."""
    bodies = Bodies({txid: {"n": 1} for txid in range(1, 9)})
    picking = given(subscribed("a", 3, wanted), subscribed("b", 3), fairness=model, bodies=bodies)
    messages = [message(txid) for txid in range(1, 9)]
    picking.add(messages[0])
    assert delivered(picking) == [("a", 1)]
    picking.freed((1, "a"), messages[0])
    picking.lapsed((1, "a"))
    for each in messages[:5]:
        picking.add(each)
    assert delivered(picking, 4) == [("b", 1), ("b", 2), ("b", 3), ("a", 4)]
    picking.freed((1, "b"), messages[0])
    picking.lapsed((1, "b"))
    picking.lapsed((1, "a"))
    picking.recovered((1, "a"))
    assert delivered(picking, 1) == [("a", 5)]


def test_of_several_late_consumers_the_last_one_comes_last() -> None:
    picking = given(subscribed("a", 9), subscribed("b", 9))
    held = [message(txid) for txid in (1, 2)]
    for each in held:
        picking.add(each)
    assert delivered(picking) == [("a", 1), ("b", 2)]
    picking.lapsed((1, "b"))
    picking.freed((1, "a"), held[0])
    picking.lapsed((1, "a"))
    picking.add(held[0])
    assert delivered(picking) == [("b", 1)]


@pytest.mark.parametrize("model", fairness.FAIRNESS_MODELS)
def test_entries_that_no_longer_hold_do_not_pile_up(model: str) -> None:
    turns, rules = Turns(), Fairness(model)
    takers = [ConsumerTurn((1, str(number)), 1_000, turns) for number in range(3)]
    for each in takers:
        rules.entered(each)
    for _ in range(5_000):
        for each in takers:
            each.active += 1
            rules.served(each)
        for each in takers:
            each.active -= 1
            rules.freed(each)
    assert len(turns._heap) <= fairness.SWEPT_FROM + 1
    assert turns.open == 3
