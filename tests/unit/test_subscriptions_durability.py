"""What is not durable, as fully durable subscriptions ask for it."""

from __future__ import annotations

from raylay.services.replication.acknowledgment import UNAWAITED, RootedRanges
from raylay.services.subscriptions.durability import PendingMessages


def test_the_lowest_pending_of_all_roots_counts() -> None:
    pending = RootedRanges()
    seen = PendingMessages(pending)
    assert seen.first_pending(7, 1, 100) is None
    pending.of(5).add(7, 40, 50)
    pending.of(UNAWAITED).add(7, 30, 31)
    pending.of(6).add(8, 1, 1)
    assert seen.first_pending(7, 1, 100) == 30
    assert seen.first_pending(7, 32, 100) == 40
    assert seen.first_pending(7, 45, 46) == 45
    assert seen.first_pending(7, 51, 100) is None
    assert seen.first_pending(9, 1, 100) is None
    pending.remove_ranges(5, 7, [(40, 50)])
    assert seen.first_pending(7, 32, 100) is None, "it is a view, not a copy"
