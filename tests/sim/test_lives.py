"""Clients without a publish store, whose lives follow one another: no number is given twice, each
life is numbered above the last, and what is durable everywhere is one range."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from raylay.services.messages.ranges import Range
from raylay.services.replication.instance import MachineParts
from raylay.services.replication.instance.publishers import Publishers
from raylay.services.replication.unused_sequences import UnusedSequences
from raylay.services.verification import checkers
from sim import plans
from sim.client import SimClient
from sim.mistakes import MISTAKES, SHOWN_BY_A_SCENARIO
from sim.test_scenarios import Play, fabric, to
from sim.world import Machines

pytestmark = pytest.mark.covers("Clients and protocol", "lives without a publish store")

LIVES = 100
PAIR = {"a": (to("b"),), "b": (to("a"),)}
WAIT_MS = 300
"""Within which an instance knows that a link is gone, or connected again and caught up."""


class Lives:
    """A client of one name, one life at a time."""

    def __init__(self, play: Play) -> None:
        self.play = play
        self.count = 0
        self.numbers: list[list[int]] = []
        """Of each life."""

    def begin(self, *servers: str) -> SimClient:
        play = self.play
        self.count += 1
        client = SimClient(
            play.world, f"p{self.count}", list(servers), "g", client_name="p", owns_store=True
        )
        self.wait()
        return client

    def wait(self, ms: int = 5) -> None:
        self.play.until(self.play.world.now_us // 1000 + ms)

    def publish(self, client: SimClient, messages: int = 1) -> None:
        first = client.machine.outbox.next_sequence
        client.publish(["orders"] * messages)
        sent = [each for each, _ in client.store.replay(first)]
        assert len(sent) == messages
        self.numbers.append(sent)
        self.settle(client)

    def settle(self, client: SimClient) -> None:
        for _ in range(WAIT_MS):
            if client.quiet():
                return
            self.wait(1)

    def end(self, client: SimClient, *, in_good_order: bool = True) -> None:
        client.next_life(1 << 40, in_good_order=in_good_order)
        assert not client.alive, "all that it published is acknowledged"
        # No other one of its own follows.
        client.failed = "over"
        self.wait()

    def live(self, *servers: str, messages: int = 1, in_good_order: bool = True) -> list[int]:
        client = self.begin(*servers)
        self.publish(client, messages)
        self.end(client, in_good_order=in_good_order)
        return self.numbers[-1]

    def are_ascending(self) -> bool:
        """Whether each life is numbered above all before it, and no number was given twice."""
        given = [number for life in self.numbers for number in life]
        return all(a < b for a, b in pairwise(given))

    def ranges(self, instance: str) -> list[tuple[int, int]]:
        machine = self.play.world.instances[instance].machine
        (known,) = machine.known.sets.values()
        return known.ranges()


def test_lives_that_end_in_good_order_are_one_range_at_both_instances() -> None:
    play = Play(fabric(**PAIR))
    lives = Lives(play)
    lives.wait(50)
    for _ in range(LIVES):
        lives.live("a", "b", messages=3)
    assert lives.are_ascending()
    for name in ("a", "b"):
        assert lives.ranges(name) == [(lives.numbers[0][0], lives.numbers[-1][-1])]
    assert len(play.world.instances["a"].machine._publishers._unused) == 1
    play.end()


class _TenLeft(UnusedSequences):
    """Of what a life that began at the clock has left, ten are taken."""

    def hand_over(self, publisher: int, unused: Range, highest: int, now_us: int) -> None:
        first, last = unused
        super().hand_over(publisher, (first, min(first + 9, last)), highest, now_us)


class _PublishersWithTenLeft(Publishers):
    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._unused = _TenLeft()


def test_what_a_life_has_left_may_be_used_up() -> None:
    """A life goes on at the clock of its own beginning then, in the midst of what it publishes, and
    what lies before and behind the leap is sent apart."""
    play = Play(
        fabric(**PAIR), machines=Machines(parts=MachineParts(publishers=_PublishersWithTenLeft))
    )
    lives = Lives(play)
    lives.wait(50)
    for _ in range(21):
        lives.live("a", "b", messages=3)
    assert lives.are_ascending()
    leaps = [life[-1] - life[0] > 2 for life in lives.numbers]
    # Three lives use nine, the fourth has one left.
    assert sum(leaps) == 5 and len(lives.ranges("a")) == len(lives.ranges("b")) == 6
    play.end()


@pytest.mark.parametrize("planted", ["", "unused: of who is gone"])
def test_who_ends_without_a_word_leaves_nothing(planted: str) -> None:
    """It may have gone on elsewhere, and its connection here was only late to end."""
    play = Play(fabric(**PAIR), machines=MISTAKES.get(planted))
    lives = Lives(play)
    lives.wait(50)
    client = lives.begin("a", "b")
    lives.publish(client, 2)
    play.world.partition({("client p1", "a")})
    client.move()
    lives.wait(WAIT_MS)
    assert client.machine.instance == "b"
    other = lives.begin("a")
    for each in (client, other):
        lives.publish(each)
    given = [number for life in lives.numbers for number in life]
    assert (len(given) == len(set(given))) == (not planted)
    found = {each.law for each in checkers.check_all(play.end(check=False))}
    assert ("store" in found) == bool(planted)


@pytest.mark.covers("Clients and protocol", "lives without a publish store")
@pytest.mark.parametrize("planted", ["", "unused: below what is known"])
def test_a_life_elsewhere_voids_what_the_one_before_it_left(planted: str) -> None:
    """At `a`, at `b`, and at `a` again: the last is the latest for every SOW topic."""
    play = Play(fabric(**PAIR), machines=SHOWN_BY_A_SCENARIO.get(planted))
    lives = Lives(play)
    lives.wait(50)
    for name in ("a", "b", "a"):
        lives.live(name)
    assert lives.are_ascending() == (not planted)
    play.end(check=not planted)


@pytest.mark.covers("Clients and protocol", "lives without a publish store")
@pytest.mark.parametrize("planted", ["", "unused: given while parted"])
def test_while_a_link_is_down_a_life_begins_at_the_clock(planted: str) -> None:
    """`a` cannot hear that there was a life at `b` behind the one that left it something. Its last
    life has not reached the other instance, which is asked for the next."""
    play = Play(
        fabric(a=(to("b", sync=False),), b=(to("a", sync=False),)),
        machines=SHOWN_BY_A_SCENARIO.get(planted),
    )
    lives = Lives(play)
    lives.wait(50)
    lives.live("a")
    play.world.partition({("a", "b"), ("b", "a")})
    lives.wait(WAIT_MS)
    for name in ("b", "a"):
        lives.live(name)
    assert lives.are_ascending() == (not planted)
    play.end(check=not planted)


@pytest.mark.covers("Clients and protocol", "lives without a publish store")
@pytest.mark.parametrize("planted", ["", "unused: given twice"])
def test_what_is_left_is_given_once(planted: str) -> None:
    """The one who took it ended without a word, and none of what it did reached the disk here."""
    play = Play(fabric(**PAIR), machines=SHOWN_BY_A_SCENARIO.get(planted))
    lives = Lives(play)
    lives.wait(50)
    lives.live("a")
    first = lives.begin("a", "b")
    assert first.machine.outbox.took_over
    play.world.instances["a"].client_gone(first.connection.number)
    first.move()
    second = lives.begin("a")
    assert second.machine.outbox.took_over == bool(planted)
    for client in (first, second):
        lives.publish(client)
    given = [number for life in lives.numbers for number in life]
    assert (len(given) == len(set(given))) == (not planted)
    found = {each.law for each in checkers.check_all(play.end(check=False))}
    assert ("store" in found) == bool(planted)


def test_a_restart_forgets_what_was_left() -> None:
    play = Play(fabric(**PAIR))
    lives = Lives(play)
    lives.wait(50)
    lives.live("a")
    play.world.crash("a")
    play.world.restart("a")
    lives.wait(WAIT_MS)
    client = lives.begin("a")
    assert client.machine.instance == "a" and not client.machine.outbox.took_over
    lives.publish(client)
    assert lives.are_ascending() and len(lives.ranges("b")) == 2
    play.end()


def test_seeds_have_such_lives() -> None:
    assert any(plans.draw(seed).lives for seed in range(20))
