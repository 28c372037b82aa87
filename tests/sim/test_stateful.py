"""Topics with state: what is added to a message is made of the value as staged."""

from __future__ import annotations

import random

import pytest

from raylay.services.errors import StorageFull
from raylay.services.messages.topics import TopicRule
from raylay.services.verification import checkers
from raylay.services.verification.history import PublishRefused, RunJournaled
from sim import plans
from sim.mistakes import MISTAKES
from sim.stateful import Overlay
from sim.test_scenarios import Play

pytestmark = pytest.mark.covers("Replication", "what a topic's state adds to a message is made")

ORDERS = (TopicRule("orders"),)


def play_with(planted: str) -> Play:
    return Play(plans.mesh(2), machines=MISTAKES[planted] if planted else None, stateful=ORDERS)


def laws(play: Play) -> set[str]:
    return {violation.law for violation in checkers.check_all(play.end(check=False))}


def behind(play: Play, instance: str) -> list[str]:
    """What the messages of a log say to come before them, as sequences alone."""
    found: list[str] = []
    for each in play.world.history.operations:
        if isinstance(each, RunJournaled) and each.instance == instance and each.behind is not None:
            found += [said.split("|")[1] if "|" in said else said for said in each.behind]
    return found


@pytest.mark.parametrize("planted", ["", "from what is committed"])
def test_a_message_is_made_of_what_is_staged_before_it(planted: str) -> None:
    play = play_with(planted)
    client = play.client("p", "m1")
    play.until(50)
    client.publish(["orders", "orders"])
    # These come when the first two are staged, and not on disk yet.
    play.world.run_until(50_200)
    client.publish(["orders", "trades"])
    play.until(100)
    last = "nothing" if planted else "2"
    assert behind(play, "m1") == behind(play, "m2") == ["nothing", "1", last]
    assert laws(play) == ({"state"} if planted else set())


@pytest.mark.parametrize("planted", ["", "prepared at the replica"])
def test_what_others_bring_is_journaled_as_they_made_it(planted: str) -> None:
    play = play_with(planted)
    client = play.client("p", "m1")
    play.until(50)
    client.publish(["orders"])
    play.until(100)
    client.publish(["orders"])
    play.until(150)
    assert behind(play, "m1") == ["nothing", "1"]
    assert laws(play) == ({"state"} if planted else set())


@pytest.mark.parametrize("planted", ["", "only its own staged"])
def test_what_others_bring_is_a_value_here(planted: str) -> None:
    play = play_with(planted)
    there = play.client("p", "m1")
    here = [play.client(f"q{number}", "m2") for number in range(10)]
    play.until(50)
    there.publish(["orders", "orders"])
    for number, client in enumerate(here):
        # One of these comes when the others' is staged there, and not on disk yet.
        play.world.run_until(51_000 + 200 * number)
        client.publish(["orders"])
    assert laws(play) == ({"state"} if planted else set())


@pytest.mark.parametrize("planted", ["", "staged kept at failure"])
def test_what_cannot_be_journaled_was_never_a_value(planted: str) -> None:
    play = play_with(planted)
    client, other = play.client("p", "m1"), play.client("q", "m1")
    play.until(50)
    client.publish(["orders"])
    play.until(100)
    play.world.instances["m1"].journal.fail_next(StorageFull("no space", "m1"))
    client.publish(["orders", "orders"])
    play.until(102)
    other.publish(["orders"])
    play.until(104)
    assert behind(play, "m1") == ["nothing", "3" if planted else "1"]
    assert laws(play) == ({"state"} if planted else set())


@pytest.mark.parametrize("planted", ["", "refused is a value", "takes what is refused"])
def test_what_a_state_refuses_is_told_and_is_no_value(planted: str) -> None:
    play = play_with(planted)
    client = play.client("p", "m1")
    play.until(50)
    client.publish(["orders"] * 6)
    play.until(100)
    client.publish(["orders"] * 3)  # 7 is refused, between others.
    play.until(150)
    failed = [
        each.sequence for each in play.world.history.operations if isinstance(each, PublishRefused)
    ]
    assert failed == [7] and not client.store.messages
    before = [str(number) for number in range(1, 7)]
    last = {"": ["6", "8"], "refused is a value": ["7", "8"], "takes what is refused": ["", "", ""]}
    assert behind(play, "m1") == behind(play, "m2") == ["nothing", *before[:5], *last[planted]]
    assert laws(play) == ({"state"} if planted else set())


def test_all_that_is_refused_at_once_is_answered_at_once() -> None:
    play = play_with("")
    client = play.client("p", "m1")
    play.until(50)
    client.publish(["trades"] * 6)
    play.until(100)
    client.publish(["orders"])
    play.until(110)
    assert not client.store.messages, "nothing is on its way to the disk"
    assert behind(play, "m1") == [] and laws(play) == set()


def test_a_later_life_goes_on_from_the_journal() -> None:
    play = play_with("")
    client = play.client("p", "m1")
    play.until(50)
    client.publish(["orders", "orders"])
    play.until(100)
    play.world.crash("m1")
    play.world.restart("m1")
    play.until(400)
    client.publish(["orders"])
    play.until(600)
    play.end()
    assert behind(play, "m1") == ["nothing", "1", "2"]


def test_the_value_staged_last_counts_until_it_is_committed() -> None:
    overlay: Overlay[str, int | None] = Overlay()
    assert overlay.get("k", 1) == 1
    overlay.put(5, "k", 2)
    overlay.put(6, "k", None)
    overlay.put(6, "l", 3)
    assert (overlay.get("k", 1), overlay.get("l", 0), overlay.get("m", 9)) == (None, 3, 9)
    assert overlay.committed(5) == [("k", 2)]
    assert overlay.get("k", 2) is None
    assert overlay.committed(6) == [("k", None), ("l", 3)]
    assert overlay.get("k", 7) == 7 and not len(overlay)


def test_a_failure_brings_back_what_was_staged_before() -> None:
    overlay: Overlay[str, int] = Overlay()
    for txid, key, value in ((5, "k", 2), (6, "l", 3), (7, "k", 4)):
        overlay.put(txid, key, value)
    overlay.failed(6)
    assert (overlay.get("k", 1), overlay.get("l", 1)) == (2, 3)
    overlay.failed(4)
    assert (overlay.get("k", 1), overlay.get("l", 1)) == (1, 1) and not len(overlay)
    overlay.put(5, "l", 8)
    assert overlay.committed(9) == [("l", 8)]


@pytest.mark.parametrize("seed", range(20))
def test_staged_is_a_fold_of_what_is_committed_and_what_is_under_way(seed: int) -> None:
    """After every put, commit and failure, beside a plain list."""
    rng = random.Random(seed)
    overlay: Overlay[str, int] = Overlay()
    committed: dict[str, int] = {}
    staged: list[tuple[int, str, int]] = []
    committed_txid = last_txid = 0
    for value in range(300):
        step = rng.random()
        if step < 0.7:
            last_txid += 1
            for key in rng.sample("abc", rng.randint(1, 3)):
                overlay.put(last_txid, key, value)
                staged.append((last_txid, key, value))
        elif step < 0.85:
            committed_txid = rng.randint(committed_txid, last_txid)
            done = [(key, each) for txid, key, each in staged if txid <= committed_txid]
            assert overlay.committed(committed_txid) == done
            committed.update(done)
            staged = [each for each in staged if each[0] > committed_txid]
        else:
            last_txid = rng.randint(committed_txid, last_txid)
            overlay.failed(last_txid)
            staged = [each for each in staged if each[0] <= last_txid]
        now = committed | {key: each for _, key, each in staged}
        assert {key: overlay.get(key, committed.get(key, -1)) for key in now} == now
        assert len(overlay) == len(staged)
