"""What is not durable, as fully durable subscriptions ask for it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylay.services.messages.ranges import SequenceSet
from raylay.services.replication.acknowledgment import UNAWAITED, RootedRanges
from raylay.services.subscriptions.durability import PendingMessages, first_pending_in

pytestmark = pytest.mark.covers("Clients and protocol", "`fully_durable`")


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


@given(st.sets(st.integers(1, 60), min_size=1), st.sets(st.integers(1, 60)))
def test_the_first_pending_one_of_ranges_with_gaps(held: set[int], waiting: set[int]) -> None:
    pending = RootedRanges()
    for sequence in waiting:
        pending.of(sequence % 3).add(7, sequence, sequence)
    ranges = list(SequenceSet((sequence, sequence) for sequence in held))
    found = first_pending_in(PendingMessages(pending), 7, ranges)
    lowest = min(held & waiting, default=None)
    assert (found[0] if found is not None else None) == lowest
    if found is not None:
        first, last = ranges[found[1]]
        assert first <= found[0] <= last
