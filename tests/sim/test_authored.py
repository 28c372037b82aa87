"""What instances write themselves: it takes effect when it is on disk, or is undone."""

from __future__ import annotations

import pytest

from raylay.services.errors import StorageFull
from raylay.services.verification import checkers
from raylay.services.verification.history import (
    MessagesApplied,
    MessagesUndone,
    RecordsDrafted,
    RunJournaled,
)
from sim import plans
from sim.mistakes import MISTAKES
from sim.test_scenarios import Play

pytestmark = pytest.mark.covers(
    "Replication", "what an instance writes itself is journaled in batches"
)


def wrote(
    play: Play, kind: type[RecordsDrafted | MessagesApplied | MessagesUndone]
) -> list[tuple[int, ...]]:
    return [op.sequences for op in play.world.history.operations if isinstance(op, kind)]


def laws(play: Play) -> set[str]:
    return {violation.law for violation in checkers.check_all(play.end(check=False))}


@pytest.mark.parametrize("planted", ["", "acts before the commit"])
def test_what_an_instance_writes_takes_effect_by_the_commit_and_goes_to_its_peers(
    planted: str,
) -> None:
    play = Play(plans.mesh(2), machines=MISTAKES[planted] if planted else None)
    client = play.client("p", "m1")
    play.until(50)
    client.publish(["orders"])
    play.world.run_until(51_505)
    instance = play.world.instances["m1"]
    assert instance.journal.last_txid == 0 and instance.staging, "it hears of that commit at 51.52"
    instance.write(["orders", "trades"])
    play.until(52)
    instance.write(["orders"])
    play.until(100)
    if not planted:
        assert [n for each in wrote(play, MessagesApplied) for n in each] == [1, 2, 3]
    assert laws(play) == ({"authored"} if planted else set())
    publisher = instance.author.publisher
    for name in ("m1", "m2"):
        held = {sequence for by, sequence in play.world.disks[name].index if by == publisher}
        assert held == {1, 2, 3}


@pytest.mark.parametrize("planted", ["", "forgets what failed"])
def test_what_cannot_be_journaled_is_undone_and_written_again_under_new_numbers(
    planted: str,
) -> None:
    play = Play(plans.mesh(2), machines=MISTAKES[planted] if planted else None)
    play.until(50)
    instance = play.world.instances["m1"]
    instance.journal.fail_next(StorageFull("no space", "m1"))
    instance.write(["orders", "orders"])
    play.until(200)
    assert wrote(play, MessagesUndone) == ([] if planted else [(1, 2)])
    assert wrote(play, MessagesApplied) == ([] if planted else [(3, 4)])
    assert laws(play) == ({"authored"} if planted else set())


def test_a_later_life_writes_under_another_id() -> None:
    """An old copy that was put in place of the directory would not know what its lost tail had, and
    its peers hold."""
    play = Play(plans.mesh(2))
    play.until(50)
    play.world.instances["m1"].write(["orders"])
    play.until(100)
    play.world.crash("m1")
    play.world.restart("m1")
    play.until(150)
    play.world.instances["m1"].write(["orders"])
    play.until(200)
    play.end()
    ids = {op.publisher for op in play.world.history.operations if isinstance(op, RunJournaled)}
    assert len(ids) == 2


def test_what_was_not_handed_over_when_its_instance_died_never_was() -> None:
    play = Play(plans.mesh(2))
    play.until(50)
    play.world.instances["m1"].write(["orders"])
    play.world.crash("m1")
    play.world.restart("m1")
    play.end()
    assert wrote(play, RecordsDrafted) == [(1,)] and not wrote(play, MessagesApplied)
    assert not play.world.disks["m1"].index
