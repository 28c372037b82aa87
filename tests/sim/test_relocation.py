"""Scenarios of moved instances; seeds draw many more (plans.py)."""

from __future__ import annotations

import pytest

from sim import nemesis
from sim.salvage import SalvagedDisk
from sim.test_scenarios import Play, fabric, to

pytestmark = [
    pytest.mark.covers("Moved instances", "a host that is down"),
    pytest.mark.covers("Moved instances", "what only a retired directory held comes back"),
]


def pair() -> Play:
    play = Play(fabric(a=(to("b"),), b=(to("a"),)))
    play.world.resolves = True
    return play


def test_what_only_a_lost_host_acknowledged_comes_back_by_a_salvage_and_only_once() -> None:
    """a is cut off, downgraded by hand, and acknowledges alone; it is moved meanwhile."""
    play = pair()
    world = play.world
    client = play.client("p", "a", "b")
    play.until(50)
    client.publish(["orders"] * 3)
    play.until(100)
    assert not client.store.messages and play.had("b", client, 3)
    nemesis.perform(world, "relocate", ("a", "cut", frozenset(("b",)), "b", 0, False))
    world.former["a#0"].salvages = False
    world.hosts["a"].downgrade("to-b")  # type: ignore[union-attr]
    client.publish(["orders"] * 2)
    play.until(200)
    assert not client.store.messages, "acknowledged by one that does not know that it is over"
    play.until(2_000)
    assert not play.had("a", client, 4) and not play.had("b", client, 4)

    world.heal()
    play.until(4_000)
    assert world.former["a#0"].retired
    client.publish(["orders"])
    play.until(4_500)
    assert play.had("a", client, 6) and not play.had("a", client, 4), "its successor goes on"
    first = SalvagedDisk(world.former["a#0"])
    world.salvages.append(first)
    play.until(6_000)
    assert first.machine.is_done and play.had("a", client, 4) and play.had("b", client, 5)
    again = SalvagedDisk(world.former["a#0"])
    world.salvages.append(again)
    play.end()
    assert again.machine.is_done
    assert [progress.sent for progress in again.machine.progress.values()] == [0, 0]
    assert world.probes["late record"] >= 2, "it came behind the sixth"


def test_a_salvage_waits_for_those_who_are_away() -> None:
    play = pair()
    world = play.world
    client = play.client("p", "a", "b")
    play.until(50)
    client.publish(["orders"])
    play.until(100)
    nemesis.perform(world, "relocate", ("a", "down", frozenset(), "b", 0, False))
    world.run_until(2_000_000)
    world.crash("b")
    salvage = SalvagedDisk(world.former["a#0"])
    world.salvages.append(salvage)
    play.until(3_000)
    assert not salvage.machine.is_done and salvage.machine.progress["successor"].done
    play.end()
    assert salvage.machine.is_done


def test_an_instance_that_never_comes_back_is_no_hindrance() -> None:
    """Its successor is moved as well, before it was filled."""
    play = pair()
    client = play.client("p", "b", "a")
    play.until(50)
    client.publish(["orders"] * 4)
    play.until(100)
    for _ in range(2):
        moves = ("a", "down", frozenset(("b",)), "b", 0, False)
        nemesis.perform(play.world, "relocate", moves)
    play.end()
    assert play.world.disks["a"].generation == 2 and play.had("a", client, 4)
