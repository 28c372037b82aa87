"""What has left a queue since its owner last told what it has folded."""

from __future__ import annotations

import pytest

from raylay.services.queues import recent_removals as module
from raylay.services.queues.decisions import LeasedDelivery
from raylay.services.queues.recent_removals import RecentRemovals


def leased(*keys: tuple[int, int]) -> list[LeasedDelivery]:
    return [LeasedDelivery(1, key, 1, 0) for key in keys]


def test_what_has_left_is_known_until_the_owner_has_folded_that() -> None:
    made = RecentRemovals()
    assert not made and (1, 5) not in made
    made.add({1: [(5, 6)]}, 10)
    made.forget(9)
    made.add({2: [(1, 1)]}, 20)
    for key in ((1, 5), (1, 6), (2, 1)):
        assert key in made
    assert made.touches(leased((1, 4), (1, 7))) and not made.touches(leased((1, 1), (1, 4)))
    # In two parts by age: what is older than the last one is forgotten when it is folded.
    made.forget(20)
    made.forget(20)
    assert not made and (2, 1) not in made and not made.touches(leased((2, 1)))


def test_with_too_much_only_the_transaction_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REMOVED_MAX", 4)
    made = RecentRemovals()
    made.add({1: [(at, at) for at in range(0, 10, 2)]}, 10)
    assert (1, 0) not in made and made.is_behind(9) and not made.is_behind(10)
    made.forget(9)
    assert made.is_behind(9)
    made.forget(10)
    assert not made.is_behind(9)


def test_what_is_forgotten_leaves_its_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner is always a little behind, and never far: each removal is known by itself."""
    monkeypatch.setattr(module, "REMOVED_MAX", 4)
    made = RecentRemovals()
    for txid in range(1, 40):
        made.add({1: [(txid, txid)]}, txid)
        made.forget(txid - 1)
        assert (1, txid) in made and not made.is_behind(max(txid - 2, 0))
