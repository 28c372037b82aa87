"""Which message goes to whom: each rule, and random histories beside the simple way to say it."""

from __future__ import annotations

import random
from typing import Any

import pytest
from support import queues_given
from support.queues_given import Bodies, Rules, Simple, delivered, given, message, subscribed

from raylay.services.errors import RemoteProtocolError
from raylay.services.queues.decisions import Consumer
from raylay.services.queues.delivery import filters, ready_list
from raylay.services.queues.delivery.dispatcher import Dispatcher
from raylay.services.queues.entry import QueueEntry


def filled(picking: Dispatcher[Any], count: int) -> list[QueueEntry]:
    """Adds messages 1 to count."""
    found = [message(txid) for txid in range(1, count + 1)]
    for each in found:
        picking.add(each)
    return found


@pytest.mark.covers("Queues", "the oldest message that a consumer with room takes")
def test_the_oldest_message_goes_first() -> None:
    picking = given(subscribed("a", 10))
    for txid in (3, 1, 2):
        picking.add(message(txid))
    assert delivered(picking) == [("a", 1), ("a", 2), ("a", 3)]


@pytest.mark.covers("Queues", "the oldest message that a consumer with room takes")
def test_what_comes_back_is_in_its_place() -> None:
    picking = given(subscribed("a", 2))
    messages = filled(picking, 4)
    assert delivered(picking) == [("a", 1), ("a", 2)]
    picking.freed((1, "a"), messages[0])
    picking.add(messages[0])
    assert delivered(picking) == [("a", 1)]


@pytest.mark.covers("Queues", "`Priority`: unsigned 64 bits")
def test_a_higher_priority_goes_first_and_among_equals_the_older() -> None:
    picking = given(subscribed("a", 10))
    for txid, priority in ((1, 0), (2, 5), (3, 2**64 - 1), (4, 5), (5, 0)):
        picking.add(message(txid, priority))
    assert [txid for _, txid in delivered(picking)] == [3, 2, 4, 1, 5]


@pytest.mark.covers("Queues", "`MaxBacklog`, `MaxPerSubscriptionBacklog`")
def test_a_consumer_holds_no_more_than_its_backlog() -> None:
    picking = given(subscribed("a"), subscribed("b", 3))
    messages = filled(picking, 6)
    assert picking.room() == 4
    assert sorted(delivered(picking)) == [("a", 1), ("b", 2), ("b", 3), ("b", 4)]
    assert picking.room() == 0 and picking.taker(messages[5]) is None
    picking.freed((1, "a"), messages[0])
    assert picking.taker(messages[5]) == (1, "a")
    assert delivered(picking) == [("a", 5)]


def test_leases_of_before_a_restart_beyond_a_smaller_backlog_take_no_room_of_others() -> None:
    """Two consumers; one of them came back with a smaller backlog than it holds."""
    picking = given(subscribed("a"), subscribed("b", 2))
    old = [message(txid) for txid in (1, 2, 3)]
    for each in old:
        picking.leased((1, "a"), each)
    assert picking.room() == 2 and picking.active_count == 3
    new = [message(txid) for txid in (4, 5, 6)]
    for each in new:
        picking.add(each)
    assert delivered(picking) == [("b", 4), ("b", 5)]
    for each in old[:2]:
        picking.freed((1, "a"), each)
        assert picking.room() == 0 and picking.taker(new[2]) is None
    picking.freed((1, "a"), old[2])
    assert picking.room() == 1
    assert delivered(picking) == [("a", 6)]


@pytest.mark.covers("Clients and protocol", "a consumer of a queue that goes offline keeps")
def test_who_may_hold_nothing_keeps_what_it_has_and_is_given_nothing_when_that_is_over() -> None:
    picking = given(subscribed("a", 2))
    messages = filled(picking, 4)
    assert delivered(picking) == [("a", 1), ("a", 2)]
    picking.subscribed(subscribed("a", 0))
    for each in messages[:2]:
        picking.freed((1, "a"), each)
        picking.add(each)
    assert picking.room() == 0 and delivered(picking) == []
    picking.subscribed(subscribed("b", 2))
    assert delivered(picking) == [("b", 1), ("b", 2)]
    picking.subscribed(subscribed("a", 2))
    assert delivered(picking) == [("a", 3), ("a", 4)]


@pytest.mark.covers("Queues", "`MaxBacklog`, `MaxPerSubscriptionBacklog`")
def test_the_definition_limits_what_a_subscription_may_hold() -> None:
    picking = given(subscribed("a", 10), subscription_backlog_max=2)
    filled(picking, 6)
    assert delivered(picking) == [("a", 1), ("a", 2)]


@pytest.mark.covers("Queues", "`MaxBacklog`, `MaxPerSubscriptionBacklog`")
def test_all_consumers_together_hold_no_more_than_the_backlog_of_the_queue() -> None:
    picking = given(subscribed("a", 10), subscribed("b", 10), backlog_max=3)
    messages = filled(picking, 6)
    assert picking.room() == 3
    assert len(delivered(picking)) == 3
    assert picking.room() == 0 and picking.taker(messages[5]) is None
    picking.freed((1, "b"), messages[1])
    assert len(delivered(picking)) == 1


def test_who_left_holds_nothing_and_gets_nothing() -> None:
    picking = given(subscribed("a", 2), subscribed("b"), backlog_max=2, fairness="fast")
    messages = filled(picking, 4)
    assert delivered(picking) == [("a", 1), ("a", 2)]
    picking.left((1, "a"))
    picking.freed((1, "a"), messages[0])
    picking.add(messages[0])
    assert picking.active_count == 0 and picking.room() == 1
    assert delivered(picking) == [("b", 1)]
    picking.left((1, "b"))
    picking.left((1, "b"))
    assert picking.next() is None and picking.room() == 0


@pytest.mark.covers("Queues", "`MaxBacklog`, `MaxPerSubscriptionBacklog`")
def test_who_replaces_its_subscription_goes_on_holding_what_it_has() -> None:
    bodies = Bodies({txid: {"n": txid % 2} for txid in range(1, 9)})
    picking = given(subscribed("a", 3), bodies=bodies)
    messages = filled(picking, 8)
    assert len(delivered(picking)) == 3
    picking.subscribed(subscribed("a", 2))
    assert picking.next() is None and picking.room() == 0
    picking.freed((1, "a"), messages[0])
    assert picking.next() is None
    picking.freed((1, "a"), messages[1])
    assert delivered(picking) == [("a", 4)]
    picking.subscribed(subscribed("a", 4, "/n = 0"))
    assert picking.room() == 2
    assert delivered(picking) == [("a", 6), ("a", 8)]


def test_a_filter_that_is_none_changes_nothing() -> None:
    picking = given(subscribed("a", 2))
    filled(picking, 2)
    with pytest.raises(RemoteProtocolError, match="is no filter"):
        picking.subscribed(subscribed("a", 1, "/n = "))
    assert delivered(picking) == [("a", 1), ("a", 2)]


@pytest.mark.covers("Queues", "filters of subscriptions")
def test_of_messages_that_pass_a_filter_the_oldest_goes_first() -> None:
    bodies = Bodies({txid: {"n": txid} for txid in range(1, 9)})
    picking = given(subscribed("a", 2, "/n > 4"), subscribed("b", 1, "/n = 2"), bodies=bodies)
    messages = filled(picking, 8)
    assert delivered(picking) == [("b", 2), ("a", 5), ("a", 6)]
    picking.freed((1, "a"), messages[4])
    picking.add(messages[4])
    assert delivered(picking) == [("a", 5)]
    assert picking.taker(messages[7]) is None
    picking.freed((1, "a"), messages[4])
    assert picking.taker(messages[7]) == (1, "a")
    assert picking.taker(messages[0]) is None


@pytest.mark.covers("Queues", "`BarrierExpression`")
def test_a_barrier_holds_up_what_is_behind_it_and_goes_to_all_whose_filter_it_passes() -> None:
    bodies = Bodies({txid: {"n": txid} for txid in range(1, 9)})
    everyone = (subscribed("a"), subscribed("b", 5, "/n = 2"), subscribed("c", 5, "/n = 9"))
    picking = given(*everyone, bodies=bodies)
    barrier = message(2, is_barrier=True)
    first, last = message(1), message(3)
    for each in (first, barrier, last):
        picking.add(each)
    assert list(picking.available()) == [first]
    assert delivered(picking) == [("a", 1)]
    assert picking.barrier(oldest_txid=1) is None
    picking.freed((1, "a"), first)
    assert picking.next() is None and picking.taker(last) is None
    # Nobody's backlog counts.
    picking.leased((1, "a"), message(0))
    assert picking.room() == 10
    assert picking.barrier(oldest_txid=2) == (barrier, [(1, "a"), (1, "b")])
    picking.freed((1, "a"), message(0))
    picking.remove(barrier)
    assert picking.barrier(oldest_txid=3) is None
    assert delivered(picking) == [("a", 3)]


@pytest.mark.covers("Queues", "`BarrierExpression`")
def test_barriers_go_one_after_the_other() -> None:
    picking = given(subscribed("a", 9))
    second, first = message(5, is_barrier=True), message(3, is_barrier=True)
    picking.add(second)
    picking.add(first)
    picking.add(message(4))
    assert picking.next() is None
    assert picking.barrier(oldest_txid=3) == (first, [(1, "a")])
    picking.remove(first)
    assert delivered(picking) == [("a", 4)]
    assert picking.barrier(oldest_txid=4) is None
    assert picking.barrier(oldest_txid=5) == (second, [(1, "a")])


@pytest.mark.covers("Queues", "`TargetQueueDepth`")
def test_no_more_than_the_target_depth_are_active() -> None:
    picking = given(subscribed("a", 9), target_depth=3)
    messages = filled(picking, 6)
    assert len(picking) == 3 and picking.inactive_count == 3
    assert picking.taker(messages[4]) is None
    assert delivered(picking) == [("a", 1), ("a", 2), ("a", 3)]
    # One is acknowledged, one comes back, one was acknowledged elsewhere.
    picking.freed((1, "a"), messages[0])
    assert [each.txid for each in picking.available()] == [4]
    picking.freed((1, "a"), messages[1])
    picking.add(messages[1])
    assert [each.txid for each in picking.available()] == [2, 4]
    picking.remove(messages[4])
    assert len(picking) == 2 and picking.inactive_count == 1
    picking.remove(messages[3])
    assert delivered(picking) == [("a", 2), ("a", 6)]


def test_what_waits_behind_the_target_depth_comes_up_when_a_consumer_leaves() -> None:
    """What it held is not free again: it was given back too often, and is on its way out."""
    picking = given(subscribed("a"), subscribed("b"), target_depth=1)
    filled(picking, 2)
    assert delivered(picking) == [("a", 1)]
    assert picking.inactive_count == 1
    picking.left((1, "a"))
    assert picking.inactive_count == 0
    assert delivered(picking) == [("b", 2)]


def test_the_same_is_said_until_something_changes() -> None:
    picking = given(subscribed("a"), subscribed("b"))
    filled(picking, 2)
    assert picking.next() == picking.next()


class History:
    """A random history, told to picking and to the simple one."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        draw = self.random.choice
        self.rules = Rules(
            draw(["fast", "round-robin", "proportional"]), draw([0, 0, 7]), draw([0, 0, 2])
        )
        self.has_priorities = draw([False, False, True])
        self.has_barriers = not self.has_priorities and draw([False, True])
        if not (self.has_priorities or self.has_barriers):
            self.rules.target_depth = draw([0, 4])
        self.filters = draw([[""], ["", "/n = 1", "/n > 1"], ["/n = 1", "/n = 2", "/n < 3", ""]])
        self.bodies = Bodies()
        self.picking: Dispatcher[QueueEntry] = queues_given.Dispatcher(self.rules, self.bodies)
        self.simple = Simple(self.rules, self.bodies)
        self.held: list[tuple[Consumer, QueueEntry]] = []
        self.live: dict[int, QueueEntry] = {}
        self.txid = 0

    def tell(self, name: str, *args: Any) -> None:
        """To both."""
        getattr(self.simple, name)(*args)
        getattr(self.picking, name)(*args)

    def step(self) -> None:
        """Something happens."""
        roll = self.random.random()
        if roll < 0.25:
            self.publish()
        elif roll < 0.3 and not (self.has_priorities or self.has_barriers):
            self.publish_several()
        elif roll < 0.55:
            self.deliver()
        elif roll < 0.8 and self.held:
            consumer, each = self.held.pop(self.random.randrange(len(self.held)))
            self.tell("freed", consumer, each)
            if self.random.random() < 0.3:
                self.free_others(consumer)
            if self.random.random() < 0.4:
                self.tell(self.random.choice(["lapsed", "recovered"]), consumer)
            if self.random.random() < 0.4:
                self.tell("add", each)
            else:
                del self.live[each.txid]
        elif roll < 0.86:
            free = [each for each in self.simple.free if not each.is_barrier]
            if free:
                each = self.random.choice(free)
                self.tell("remove", each)
                del self.live[each.txid]
        elif roll < 0.96:
            name, session = self.random.choice("abcd"), self.random.randint(1, 2)
            backlog, wanted = self.random.randint(0, 4), self.random.choice(self.filters)
            self.tell("subscribed", subscribed(name, backlog, wanted, session))
        elif self.simple.consumers:
            self.leave(self.random.choice(list(self.simple.consumers)))

    def publish(self) -> None:
        """A message comes."""
        self.txid += self.random.randint(1, 3)
        txid = self.txid
        if self.random.random() < 0.9:  # The others cannot be read.
            self.bodies.trees[txid] = {"n": self.random.randint(0, 3)}
        priority = self.random.randint(0, 2) if self.has_priorities else None
        is_barrier = self.has_barriers and self.random.random() < 0.1
        self.live[txid] = each = message(txid, priority, is_barrier)
        self.tell("add", each)

    def publish_several(self) -> None:
        """Messages come together."""
        several = []
        for _ in range(self.random.randint(1, 9)):
            self.txid += self.random.randint(1, 3)
            self.bodies.trees[self.txid] = {"n": self.random.randint(0, 3)}
            self.live[self.txid] = each = message(self.txid)
            several.append(each)
            self.simple.add(each)
        self.picking.add_all(several)

    def free_others(self, consumer: Consumer) -> None:
        """A consumer is done with all that it has."""
        others = [one for one in self.held if one[0] == consumer]
        for one in others:
            self.held.remove(one)
            self.simple.freed(*one)
            del self.live[one[1].txid]
        self.picking.freed_count(consumer, len(others))

    def deliver(self) -> None:
        """What is next is given away; a barrier goes."""
        pick = self.simple.next()
        if pick is not None and self.random.random() < 0.5:
            self.tell("leased", pick[1], pick[0])
            self.held.append((pick[1], pick[0]))
        elif pick is not None:
            most = self.random.randint(1, 4)
            found = self.picking.lease_next(most)
            assert found is not None and 1 <= len(found[1]) <= most
            for each in found[1]:
                assert self.simple.next() == (each, found[0])
                self.simple.leased(found[0], each)
                self.held.append((found[0], each))
        else:
            assert self.picking.lease_next(4) is None
            due = self.simple.barrier(min(self.live, default=0))
            if due is not None:
                self.tell("remove", due[0])
                del self.live[due[0].txid]

    def leave(self, consumer: Consumer) -> None:
        """A consumer goes, and what it held comes back."""
        self.tell("left", consumer)
        for each in [one for one in self.held if one[0] == consumer]:
            self.held.remove(each)
            self.tell("add", each[1])

    def check(self) -> None:
        """Both say the same."""
        picking, simple = self.picking, self.simple
        assert picking.next() == simple.next()
        assert picking.room() == simple.room()
        assert picking.active_count == simple.active
        available = simple.available()
        assert list(picking.available()) == available
        for each in available[:3]:
            assert (picking.taker(each) is None) == (simple.chosen(each) is None)
        oldest = min(self.live, default=0)
        due, wanted = picking.barrier(oldest), simple.barrier(oldest)
        assert (due is None) == (wanted is None)
        if due and wanted:
            assert due[0] is wanted[0] and set(due[1]) == set(wanted[1])


def compare(seeds: range) -> None:
    """Runs histories."""
    for seed in seeds:
        history = History(seed)
        for step in range(120):
            history.step()
            try:
                history.check()
            except AssertionError as error:
                error.add_note(f"seed {seed}, step {step}, {history.rules}")
                raise


@pytest.mark.covers("Queues", "the oldest message that a consumer with room takes")
def test_random_histories_go_as_the_simple_one_says(monkeypatch: pytest.MonkeyPatch) -> None:
    # So that blocks split, cohorts ask the index, and what was found is forgotten.
    monkeypatch.setattr(ready_list, "BLOCK", 4)
    monkeypatch.setattr(filters, "APART_MAX", 1)
    monkeypatch.setattr(filters, "FOUND_MAX", 4)
    compare(range(60))
    monkeypatch.undo()
    compare(range(60, 100))
