"""In a step links are told, acks go out and are written, and only then is folded."""

from __future__ import annotations

from typing import Any

import pytest
from unit.core.test_fold_backlog import run_at

from raylay.services.core import effect_loop
from raylay.services.core.effect_loop import TURN_S, EffectLoop, EffectTable
from raylay.services.core.feature import CommitBatch, FeatureRegistry
from raylay.services.core.fold_backlog import SLICE_RECORDS, FoldBacklog
from raylay.services.replication.effects import AckClient, Effect, RunsCommitted

pytestmark = [
    pytest.mark.covers("Replication", "what was committed is folded behind the acks"),
    pytest.mark.covers("Journal", "what is prepared while the disk writes a commit leaves"),
]


class Live:
    """Notes in whose order it is called."""

    name = "live"
    may_be_ahead = True

    def __init__(self, told: list[Any]) -> None:
        self._told = told

    def fold(self, batch: CommitBatch) -> None:
        self._told.append(("fold", batch.last_txid))

    def failed(self, committed_txid: int) -> None: ...

    def stepped(self) -> None:
        self._told.append("stepped")


class Bench:
    def __init__(self) -> None:
        self.told: list[Any] = []
        self.folds = FeatureRegistry(("live",))
        self.live = Live(self.told)
        performers = {
            RunsCommitted: lambda effect: self.told.append(("links", effect.last_txid)),
            AckClient: lambda effect: self.told.append(("ack", effect.sequence)),
        }
        self.table = EffectTable()
        self.table.bind(performers)
        self.steps = EffectLoop(self.table, self.folds, lambda: self.told.append("flush"))

    def perform(self, *effects: Effect) -> list[Any]:
        self.steps.perform(list(effects))
        told, self.told[:] = self.told.copy(), []
        return told


def test_a_commit_is_folded_behind_its_acks_and_when_they_are_written() -> None:
    bench = Bench()
    bench.folds.enlist(bench.live, True)
    told = bench.perform(RunsCommitted([], 3), AckClient(1, 7), AckClient(2, 8))
    assert told == [("links", 3), ("ack", 7), ("ack", 8), "flush", ("fold", 3)]
    assert bench.perform(AckClient(1, 9)) == [("ack", 9)], "it is folded once"


def test_commits_are_folded_in_their_order() -> None:
    bench = Bench()
    bench.folds.enlist(bench.live, True)
    told = bench.perform(RunsCommitted([], 3), AckClient(1, 7), RunsCommitted([], 5))
    assert told == [("links", 3), ("ack", 7), ("links", 5), "flush", ("fold", 3), ("fold", 5)]


def test_nothing_is_done_for_features_that_nobody_is_served_by() -> None:
    bench = Bench()
    assert bench.perform(RunsCommitted([], 3), AckClient(1, 7)) == [("links", 3), ("ack", 7)]
    bench.folds.enlist(bench.live, True)
    assert bench.perform(RunsCommitted([], 4))[-1] == ("fold", 4), (
        "what was before is not its affair"
    )


def test_ahead_of_the_disk_is_told_and_folded_what_may_be_and_the_rest_behind_it() -> None:
    bench = Bench()
    bench.folds.enlist(bench.live, True)
    bench.folds.follow(bench.live, True)
    effects: list[Effect] = [RunsCommitted([], 3), AckClient(1, 7)]
    bench.steps.perform_ahead(effects)
    assert bench.told == [("links", 3), ("ack", 7), "flush", ("fold", 3)]
    bench.steps.catch_up()
    assert bench.told[4:] == ["stepped"], "it is folded once"
    bench.told.clear()
    bench.live.may_be_ahead = False
    bench.steps.perform_ahead(effects)
    assert bench.told == [("links", 3), ("ack", 7)], "what it keeps would be ahead of the journal"
    bench.steps.catch_up()
    assert bench.told[2:] == ["flush", ("fold", 3), "stepped"]


def test_who_follows_hears_of_every_step_behind_its_folds() -> None:
    bench = Bench()
    bench.folds.enlist(bench.live, True)
    for _ in range(2):
        bench.folds.follow(bench.live, True)
    assert bench.perform(AckClient(1, 7)) == [("ack", 7), "stepped"]
    assert bench.perform(RunsCommitted([], 4))[-2:] == [("fold", 4), "stepped"]
    bench.folds.follow(bench.live, False)
    assert bench.perform(AckClient(1, 7)) == [("ack", 7)]


def test_an_effect_is_bound_once_and_before_it_is_performed() -> None:
    bench, table = Bench(), EffectTable()
    for kind in (RunsCommitted, AckClient):
        with pytest.raises(ValueError, match=f"effect {kind.__name__} has two handlers"):
            bench.table.bind({kind: lambda effect: None})
    with pytest.raises(LookupError, match="nobody handles RunsCommitted"):
        EffectLoop(table, bench.folds, lambda: None).perform([RunsCommitted([], 3)])
    table.bind({}, lambda: None)
    with pytest.raises(ValueError, match="told to two parts"):
        table.bind({}, lambda: None)


class InTurns(Bench):
    """All records take long; a turn is as short as it can be."""

    def __init__(self) -> None:
        super().__init__()
        self.later: list[Any] = []
        self.now_s = 0.0
        self.folds.unfolded = FoldBacklog(lambda run: True)
        self.folds.enlist(self.live, True)
        self.table.bind({}, lambda: self.told.append("folded"))
        self.steps = EffectLoop(
            self.table,
            self.folds,
            lambda: self.told.append("flush"),
            self.later.append,
            self.clock,
        )

    def clock(self) -> float:
        self.now_s += TURN_S
        return self.now_s

    def turn(self) -> list[Any]:
        (work,) = self.later
        self.later.clear()
        work()
        told, self.told[:] = self.told.copy(), []
        return told


@pytest.mark.covers("Journal", "… and nothing of it is in other files")
def test_behind_its_end_nothing_is_performed_or_folded() -> None:
    """What was taken ahead of a disk that then failed, above all."""
    bench = InTurns()
    bench.folds.follow(bench.live, True)
    bench.live.may_be_ahead = False
    assert bench.perform(RunsCommitted([], 1))
    bench.steps.perform_ahead([RunsCommitted([], 3)])
    bench.told.clear()
    bench.steps.end()
    bench.steps.catch_up()
    assert bench.perform(RunsCommitted([], 4), AckClient(1, 7)) == []
    for work in bench.later:
        work()
    assert bench.told == []


def committed(first: int, count: int) -> RunsCommitted:
    return RunsCommitted([run_at(first, list(range(first, first + count)))], first + count - 1)


def test_a_long_commit_is_folded_in_turns_and_what_comes_meanwhile_behind_it() -> None:
    bench = InTurns()
    told = bench.perform(committed(1, 3 * SLICE_RECORDS), AckClient(1, 7))
    last = 3 * SLICE_RECORDS
    assert told == [("links", last), ("ack", 7), "flush", ("fold", SLICE_RECORDS)]
    # A short one, which would be folded at once: it waits, and makes no turn of its own.
    told = bench.perform(committed(last + 1, 1), AckClient(1, 8))
    assert told == [("links", last + 1), ("ack", 8), "flush"]
    assert bench.folds.folded_txid(last + 1) == SLICE_RECORDS
    assert bench.turn() == [("fold", 2 * SLICE_RECORDS), "folded"]
    assert bench.turn() == [("fold", last), "folded"]
    assert bench.turn() == [("fold", last + 1), "folded"]
    assert not bench.later and bench.folds.folded_txid(last + 1) == last + 1
    assert bench.perform(committed(last + 2, 1))[-1] == ("fold", last + 2), "in its step again"


def test_what_waits_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effect_loop, "WAITING_BYTES_MAX", 0)
    bench = InTurns()
    told = bench.perform(committed(1, 3 * SLICE_RECORDS))
    assert told[-1] == ("fold", 3 * SLICE_RECORDS) and not bench.later


def test_who_helps_folds_and_the_turn_that_is_due_goes_on() -> None:
    bench = InTurns()
    bench.perform(committed(1, 3 * SLICE_RECORDS))
    behind = bench.folds.behind()
    assert behind is not None
    while not behind.done:
        behind.take(64)
    assert bench.folds.behind() is None
    assert bench.turn()[-1] == "folded" and not bench.later
    bench.folds.fold_on(64)
    assert not bench.told, "there is nothing"


def test_what_was_committed_is_folded_before_a_failure_is_told() -> None:
    bench = InTurns()
    bench.perform(committed(1, 3 * SLICE_RECORDS))
    failed = []
    tell = lambda txid: failed.append((txid, bench.told[-1]))  # noqa: E731
    bench.live.failed = tell  # type: ignore[method-assign]
    bench.folds.failed(3 * SLICE_RECORDS)
    assert failed == [(3 * SLICE_RECORDS, ("fold", 3 * SLICE_RECORDS))]
