"""A publisher id belongs to the client name that first had it, at every instance of a fabric."""

from __future__ import annotations

import pytest

from raylay.services.messages import records
from raylay.services.replication.instance import publishers as publishers_module
from raylay.services.replication.publisher_names import name_digest
from raylay.services.verification import checkers
from sim.client import SimClient
from sim.mistakes import MISTAKES
from sim.test_scenarios import Play, fabric, to

pytestmark = pytest.mark.covers("Configuration", "a publisher id belongs to one client name")

PAIR = {"a": (to("b"),), "b": (to("a"),)}
NOT_TOLD, TOLD_ONCE = "names: not told", "names: told once"
VICTIM = records.publisher_id("victim")


@pytest.fixture(autouse=True)
def forged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody has found `forger`, which has the publisher id of `victim`."""
    of = records.publisher_id
    monkeypatch.setattr(
        publishers_module, "publisher_id", lambda name: of("victim" if name == "forger" else name)
    )


def publishes(play: Play, *, at: str) -> SimClient:
    """The victim publishes a message there, which all get."""
    victim = play.client("victim", at)
    play.until(50)
    victim.publish("t")
    play.until(play.world.now_us // 1000 + 300)
    return victim


def is_let_in(play: Play, *, at: str) -> bool:
    forger = play.client("forger", at)
    play.until(play.world.now_us // 1000 + 100)
    if forger.machine.instance != at:
        assert play.world.probes["logon refused, id of another name"]
    return forger.machine.instance == at


@pytest.mark.parametrize("planted", ["", NOT_TOLD])
def test_an_instance_where_it_never_logged_on_knows_it(planted: str) -> None:
    play = Play(fabric(**PAIR), machines=MISTAKES.get(planted))
    victim = publishes(play, at="a")
    assert play.had("b", victim, 1)
    assert is_let_in(play, at="b") == bool(planted)


@pytest.mark.parametrize("loses_disk", [False, True])
def test_a_restart_knows_it(loses_disk: bool) -> None:
    """From its disk, or, where that is lost, from its peer."""
    play = Play(fabric(**PAIR))
    publishes(play, at="a")
    stopped = ("a",) if loses_disk else ("a", "b")
    for name in stopped:
        play.world.crash(name, lose_disk=loses_disk)
    for name in stopped:
        play.world.restart(name)
    play.until(play.world.now_us // 1000 + 300)
    for name in ("a", "b"):
        names = play.world.instances[name].machine.publisher_names
        assert names.get(VICTIM) == name_digest("victim"), name
    assert not is_let_in(play, at="a")


@pytest.mark.parametrize("planted", ["", TOLD_ONCE])
def test_what_was_lost_with_a_connection_is_told_again(planted: str) -> None:
    """The other one starts anew with a lost disk."""
    play = Play(fabric(**PAIR), machines=MISTAKES.get(planted))
    publishes(play, at="a")
    play.world.crash("b", lose_disk=True)
    play.world.restart("b")
    play.until(play.world.now_us // 1000 + 500)
    names = play.world.instances["b"].machine.publisher_names
    assert (names.get(VICTIM) is None) == bool(planted)
    history = play.end(check=not planted)
    assert bool(play.world.queue_faults) == bool(planted)
    assert planted or not checkers.check_all(history)


def test_who_is_logged_on_already_by_that_id_is_ended() -> None:
    play = Play(fabric(**PAIR))
    play.until(50)
    assert is_let_in(play, at="b")
    publishes(play, at="a")
    assert not play.world.instances["b"].sessions
    assert not is_let_in(play, at="b")
