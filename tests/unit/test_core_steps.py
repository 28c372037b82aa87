"""In a step links are told, acks go out and are written, and only then is folded."""

from __future__ import annotations

from typing import Any

from raylay.services.core.feature import Batch, Folds
from raylay.services.core.steps import Steps
from raylay.services.replication.effects import AckClient, Committed, Effect


class Live:
    """Notes in whose order it is called."""

    name = "live"

    def __init__(self, told: list[Any]) -> None:
        self._told = told

    def fold(self, batch: Batch) -> None:
        self._told.append(("fold", batch.last_txid))

    def failed(self, committed_txid: int) -> None: ...

    def stepped(self) -> None:
        self._told.append("stepped")


class Bench:
    def __init__(self) -> None:
        self.told: list[Any] = []
        self.folds = Folds(("live",))
        self.live = Live(self.told)
        performers = {
            Committed: lambda effect: self.told.append(("links", effect.last_txid)),
            AckClient: lambda effect: self.told.append(("ack", effect.sequence)),
        }
        self.steps = Steps(performers, self.folds, lambda: self.told.append("flush"))

    def perform(self, *effects: Effect) -> list[Any]:
        self.steps.perform(list(effects))
        told, self.told[:] = self.told.copy(), []
        return told


def test_a_commit_is_folded_behind_its_acks_and_when_they_are_written() -> None:
    bench = Bench()
    bench.folds.enlist(bench.live, True)
    told = bench.perform(Committed([], 3), AckClient(1, 7), AckClient(2, 8))
    assert told == [("links", 3), ("ack", 7), ("ack", 8), "flush", ("fold", 3)]
    assert bench.perform(AckClient(1, 9)) == [("ack", 9)], "it is folded once"


def test_commits_are_folded_in_their_order() -> None:
    bench = Bench()
    bench.folds.enlist(bench.live, True)
    told = bench.perform(Committed([], 3), AckClient(1, 7), Committed([], 5))
    assert told == [("links", 3), ("ack", 7), ("links", 5), "flush", ("fold", 3), ("fold", 5)]


def test_nothing_is_done_for_features_that_nobody_is_served_by() -> None:
    bench = Bench()
    assert bench.perform(Committed([], 3), AckClient(1, 7)) == [("links", 3), ("ack", 7)]
    bench.folds.enlist(bench.live, True)
    assert bench.perform(Committed([], 4))[-1] == ("fold", 4), "what was before is not its affair"


def test_who_follows_hears_of_every_step_behind_its_folds() -> None:
    bench = Bench()
    bench.folds.enlist(bench.live, True)
    for _ in range(2):
        bench.folds.follow(bench.live, True)
    assert bench.perform(AckClient(1, 7)) == [("ack", 7), "stepped"]
    assert bench.perform(Committed([], 4))[-2:] == [("fold", 4), "stepped"]
    bench.folds.follow(bench.live, False)
    assert bench.perform(AckClient(1, 7)) == [("ack", 7)]
