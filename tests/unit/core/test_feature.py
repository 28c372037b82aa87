"""Features are folded in one order, while somebody is served by them."""

from __future__ import annotations

import pytest

from raylay.services.core.compose import FOLD_ORDER, FeatureClasses, folding
from raylay.services.core.feature import CommitBatch, FeatureRegistry

pytestmark = pytest.mark.covers("Replication", "what was committed is folded behind the acks")


class Noting:
    """A feature that notes what it is told."""

    def __init__(self, name: str, told: list[tuple[str, int]]) -> None:
        self.name = name
        self._told = told

    def fold(self, batch: CommitBatch) -> None:
        self._told.append((self.name, batch.last_txid))

    def failed(self, committed_txid: int) -> None:
        self._told.append((f"{self.name} failed", committed_txid))


def test_features_fold_in_the_order_of_compose_whoever_came_first() -> None:
    told: list[tuple[str, int]] = []
    folds = folding()
    for name in reversed(FOLD_ORDER):
        folds.enlist(Noting(name, told), True)
    folds.fold(CommitBatch([], 5))
    assert told == [(name, 5) for name in FOLD_ORDER]
    assert FOLD_ORDER.index("sow") < FOLD_ORDER.index("live"), "told of is in the state already"


def test_a_feature_is_folded_while_it_is_enlisted_and_once() -> None:
    told: list[tuple[str, int]] = []
    folds = FeatureRegistry(("a", "b"))
    a, b = Noting("a", told), Noting("b", told)
    for _ in range(2):
        folds.enlist(b, True)
        folds.enlist(a, True)
    folds.fold(CommitBatch([], 1))
    folds.failed(0)
    assert told == [("a", 1), ("b", 1), ("a failed", 0), ("b failed", 0)]
    for _ in range(2):
        folds.enlist(a, False)
    told.clear()
    folds.fold(CommitBatch([], 2))
    assert told == [("b", 2)]


def test_who_enlists_in_a_fold_is_folded_from_the_next_commit_on() -> None:
    told: list[tuple[str, int]] = []
    folds = FeatureRegistry(("a", "b"))
    late = Noting("b", told)

    class Enlists(Noting):
        def fold(self, batch: CommitBatch) -> None:
            super().fold(batch)
            folds.enlist(late, True)
            folds.enlist(self, False)

    folds.enlist(Enlists("a", told), True)
    folds.fold(CommitBatch([], 1))
    folds.fold(CommitBatch([], 2))
    assert told == [("a", 1), ("b", 2)]


def test_a_feature_without_a_place_in_the_order_is_refused() -> None:
    folds = FeatureRegistry(("a",))
    with pytest.raises(KeyError, match="nowhere"):
        folds.enlist(Noting("nowhere", []), True)
    assert folds.served == ()


def test_a_planted_class_folds_in_the_place_of_production_s() -> None:
    class Another(FeatureRegistry):
        __slots__ = ()

    assert type(folding(FeatureClasses(folds=Another))) is Another
