"""SOW topics of simulated instances: each holds what follows from its own journal, a last writer's
the same everywhere."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from raylay.services.core.fold_backlog import FoldBacklog
from raylay.services.core.sow import SowFeature
from raylay.services.errors import StorageFull
from raylay.services.messages.records import Command, RecordBuilder, run_of, scan
from raylay.services.sow.state import SowState
from raylay.services.verification import checkers
from raylay.services.verification.history import PublishRefused
from raylay.storage.sow import MemorySowStore
from sim import instance, plans, queries, sow
from sim.mistakes import MISTAKES
from sim.test_scenarios import Play

pytestmark = pytest.mark.covers("SOW", "in a simulated fabric every SOW topic holds what follows")


def play_with(planted: str = "", *, keyed: bool = False) -> Play:
    machines = MISTAKES[planted] if planted else None
    return Play(plans.mesh(2), machines=machines, sow=True, keyed=keyed)


def laws(play: Play) -> set[str]:
    return {violation.law for violation in checkers.check_all(play.end(check=False))}


def held(play: Play, topic: str) -> list[dict[bytes, tuple[int, int]]]:
    """What each instance has, by key."""
    return [
        {key: of for (name, key), of in sow.held(each.sow).items() if name == topic}
        for each in play.world.instances.values()
    ]


@pytest.mark.parametrize("planted", ["", "SOW last writer by arrival"])
def test_after_a_partition_the_last_writer_is_one_everywhere(planted: str) -> None:
    play = play_with(planted)
    here, there = play.client("p", "m1"), play.client("q", "m2")
    play.until(50)
    play.world.partition({("m1", "m2")})
    for client in (here, there):
        client.publish([sow.ARRIVAL] * 6)
        client.publish([sow.LAST_WRITER] * 6)
        play.until(play.world.now_us // 1000 + 20)
    play.until(400)
    play.world.heal()
    found = laws(play)
    first, second = held(play, sow.LAST_WRITER)
    assert len(first) == 6
    if planted:
        assert found == {"sow"} and first != second
        return
    assert not found and first == second
    assert {publisher for publisher, _ in first.values()} == {there.machine.outbox.publisher}
    first, second = held(play, sow.ARRIVAL)
    assert first != second, "elsewhere each has its own journal's"


@pytest.mark.parametrize("planted", ["", "SOW unwritten is written"])
def test_what_the_store_could_not_take_is_folded_again(planted: str) -> None:
    play = play_with(planted)
    client = play.client("p", "m1")
    play.until(50)

    class Fails(random.Random):
        def random(self) -> float:
            return 0.0

    play.world.sow_rng = Fails(1)
    client.publish([sow.ARRIVAL] * 10)
    play.until(500)
    assert play.world.probes["SOW not written"]
    play.world.crash("m1")
    play.world.restart("m1")
    assert laws(play) == ({"sow"} if planted else set())


def test_what_was_not_journaled_is_in_no_topic() -> None:
    play = play_with()
    client = play.client("p", "m1")
    play.until(50)
    client.publish([sow.ARRIVAL])
    play.until(100)
    play.world.instances["m1"].journal.fail_next(StorageFull("no space", "m1"))
    client.publish([sow.ARRIVAL] * 3)
    play.until(103)
    assert play.world.probes["commit failure"]
    before, _ = held(play, sow.ARRIVAL)
    assert list(before) == [sow.key_of(1)]
    assert all(each.state.txid == 1 for each in play.world.instances["m1"].sow.book.topics)
    play.world.crash("m1")
    play.world.restart("m1")
    assert laws(play) == set()


@pytest.mark.parametrize("planted", ["", "SOW forgets deletions"])
def test_what_comes_late_of_one_who_deleted_stays_deleted(planted: str) -> None:
    """The checker's own rules, without a world around them: the late one comes by another path."""
    ledger = sow.Ledger()
    kind = MISTAKES[planted].sow_state if planted else SowState
    feature = SowFeature(sow.book(MemorySowStore(), kind, prepares=False))
    gone = sow.deletion(sow.DELETES * 7)
    assert gone is not None
    builder = RecordBuilder(1, sow.ARRIVAL, "json")
    for txid, record in enumerate(
        (
            builder.build(7, b"", 7),
            builder.build(10, gone, 10, command=Command.DELETE),
            builder.build(1, b"", 1),
        ),
        1,
    ):
        (chunk,) = scan(record)
        run = replace(run_of(chunk, record), first_txid=txid)
        ledger.journaled(run)
        feature.recover([run])
    assert ledger.holds() == {} and ledger.late == 1
    assert (sow.held(feature) == {}) == (not planted)


def changing(planted: str) -> Play:
    """Whose clients publish deltas and deletions."""
    play = play_with(planted)
    play.world.deletes = True
    return play


@pytest.mark.parametrize("planted", ["", "SOW merges into what is folded"])
def test_a_delta_is_merged_into_what_is_staged_before_it(planted: str) -> None:
    play = changing(planted)
    client = play.client("p", "m1")
    play.until(50)
    # 13 has the key of 7, and 16 that of 4: all deltas, in one batch.
    client.publish([sow.ARRIVAL] * 16)
    assert laws(play) == ({"sow"} if planted else set())
    assert play.world.instances["m1"].disk.sow_ledger.merged == 2


@pytest.mark.parametrize("planted", ["", "SOW deletes what passed"])
def test_a_filter_deletes_what_passes_as_staged(planted: str) -> None:
    play = changing(planted)
    client = play.client("p", "m1")
    play.until(50)
    # What comes before the deletion is on its way to the disk when that has been looked for.
    play.world.timing = replace(play.world.timing, commit_us=(20_000, 30_000))
    client.publish([sow.ARRIVAL] * 10)
    assert laws(play) == ({"sow"} if planted else set())
    assert play.world.instances["m1"].disk.sow_ledger.filtered == 1


def test_a_filter_is_asked_in_turns() -> None:
    play = changing("")
    client = play.client("p", "m1")
    play.until(50)
    client.publish([sow.ARRIVAL] * 9)
    play.until(100)
    client.publish([sow.ARRIVAL])
    assert laws(play) == set()
    assert play.world.probes["looked for in several turns"]


def test_a_delta_is_merged_into_nothing_that_failed() -> None:
    play = changing("")
    client, other = play.client("p", "m1"), play.client("q", "m1")
    play.until(50)
    play.world.instances["m1"].journal.fail_next(StorageFull("no space", "m1"))
    client.publish([sow.ARRIVAL] * 7)
    play.until(103)
    other.publish([sow.ARRIVAL])
    play.until(106)
    assert laws(play) == set() and play.world.probes["commit failure"]


def test_a_delta_is_refused_where_the_last_writer_counts() -> None:
    play = changing("")
    client = play.client("p", "m1")
    play.until(50)
    client.publish([sow.LAST_WRITER] * 3)
    assert laws(play) == set() and not client.store.messages
    failed = [each for each in play.world.history.operations if isinstance(each, PublishRefused)]
    assert [(each.sequence, each.reason) for each in failed] == [(1, "not_supported")]


@pytest.mark.covers("SOW", "a query behind a persisted ack sees what was acknowledged")
@pytest.mark.parametrize("planted", ["", "SOW asked too soon"])
def test_a_query_behind_an_ack_sees_what_was_acknowledged(
    planted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The answer comes and the query goes while the commit is folded, a record a turn.
    monkeypatch.setattr(queries, "CHANCE", 1.0)
    monkeypatch.setattr(queries, "DELAY_US", (100, 200))
    monkeypatch.setattr(instance, "FOLD_LATER_US", 40_000)
    play = play_with(planted)
    for each in play.world.instances.values():
        each.folds.unfolded = FoldBacklog(each._weigh, 1)
    client = play.client("p", "m1")
    play.until(50)
    for _ in range(4):
        client.publish([sow.ARRIVAL] * 4)
        play.until(play.world.now_us // 1000 + 200)
    assert laws(play) == ({"sow"} if planted else set())
    assert play.world.probes["asked behind an ack"]
    assert bool(play.world.probes["asked before all was folded"]) == (not planted)


@pytest.mark.parametrize("planted", ["", "SOW keeps the first of a run"])
def test_of_a_run_that_is_folded_at_once_the_last_value_of_a_key_counts(planted: str) -> None:
    play = play_with(planted, keyed=True)
    client = play.client("p", "m1")
    play.until(50)
    client.publish([sow.ARRIVAL] * (2 * sow.FIELD_KEYS))
    assert laws(play) == ({"sow"} if planted else set())
    last = {sow.made_key_of(each): each for each in range(1, 2 * sow.FIELD_KEYS + 1)}
    for each in held(play, sow.ARRIVAL):
        assert ({key: sequence for key, (_, sequence) in each.items()} == last) == (not planted)


@pytest.mark.parametrize("planted", ["", "SOW forgets kills"])
def test_what_was_deleted_does_not_come_back_from_its_block(planted: str) -> None:
    play = play_with(planted, keyed=True)
    play.world.deletes = True
    client = play.client("p", "m1")
    play.until(50)
    client.publish([sow.ARRIVAL] * 3)
    play.until(400)
    # The fifth message deletes the records of the first and the third.
    client.publish([sow.LAST_WRITER, sow.ARRIVAL])
    play.until(1000)
    here = play.world.instances["m1"]
    assert all(topic.txid == 5 for topic in here.disk.sow_store._topics.values())
    play.world.crash("m1")
    play.world.restart("m1")
    assert laws(play) == ({"sow"} if planted else set())


def test_what_the_store_of_blocks_lacks_is_folded_by_run_from_the_journal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    play = play_with(keyed=True)
    client = play.client("p", "m1")
    play.until(50)
    client.publish([sow.ARRIVAL] * 4)
    play.until(400)
    client.publish([sow.ARRIVAL] * 8)
    play.until(440)
    here = play.world.instances["m1"]
    stored = [topic.txid for topic in here.disk.sow_store._topics.values()]
    assert stored == [4, 4] and here.machine.committed_txid == 12
    play.world.crash("m1")
    folded: list[int] = []
    put_run = SowState.put_run

    def counted(self: SowState, keys: list[bytes], *arguments: Any) -> Any:
        folded.append(len(keys))
        return put_run(self, keys, *arguments)

    monkeypatch.setattr(SowState, "put_run", counted)
    play.world.restart("m1")
    assert sum(folded) == 8 and max(folded) > sow.FIELD_KEYS
    assert laws(play) == set() and play.world.probes["SOW folded on from its store"]
