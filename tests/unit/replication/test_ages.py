"""How old the oldest is of what is outstanding."""

from __future__ import annotations

from raylay.services.replication.acknowledgment import RootedRanges
from raylay.services.replication.ages import AGAIN_TXID, AGE_BUCKET_US, AgeLog

ROOT = 9
P, Q = 1, 2


def test_the_oldest_is_the_oldest_that_is_still_outstanding() -> None:
    ages, outstanding = AgeLog(), RootedRanges()
    for time_us, publisher, first, last in (
        (0, P, 1, 5),
        (AGE_BUCKET_US - 1, Q, 1, 1),
        (AGE_BUCKET_US, P, 6, 9),
    ):
        ages.add(time_us, first, publisher, first, last)
        outstanding.of(ROOT).add(publisher, first, last)
    assert ages.oldest(outstanding.roots) == (0, 1)
    outstanding.remove_ranges(ROOT, P, [(1, 5)])
    assert ages.oldest(outstanding.roots) == (0, 1), "the other publisher's is of the same bucket"
    outstanding.remove_ranges(ROOT, Q, [(1, 1)])
    assert ages.oldest(outstanding.roots) == (AGE_BUCKET_US, 6)
    outstanding.remove_ranges(ROOT, P, [(6, 9)])
    assert ages.oldest(outstanding.roots) is None


def test_what_is_asked_again_counts_as_older_than_all_in_the_log() -> None:
    ages, outstanding = AgeLog(), RootedRanges()
    outstanding.of(1).add(7, 10, 20)
    ages.add(1_000_000, 500, 7, 10, 15)
    # In a later bucket, behind one that is still outstanding.
    ages.add(5_000_000, AGAIN_TXID, 7, 16, 20)
    assert ages.oldest(outstanding.roots) == (1_000_000, AGAIN_TXID)
    outstanding.of(1).remove_ranges(7, [(16, 20)])
    assert ages.oldest(outstanding.roots) == (1_000_000, 500)
    ages.settle(outstanding.roots)
    outstanding.of(1).add(7, 16, 20)
    outstanding.of(1).remove_ranges(7, [(10, 15)])
    # What was settled goes; looking alone changed nothing.
    assert ages.oldest(outstanding.roots) is None


def test_where_nothing_is_outstanding_all_goes_but_what_was_asked_again() -> None:
    ages, outstanding = AgeLog(), RootedRanges()
    ages.add(0, 1, P, 1, 1)
    outstanding.of(ROOT).add(P, 1, 1)
    outstanding.remove_ranges(ROOT, P, [(1, 1)])
    ages.settle(outstanding.roots)
    # It would be in the bucket of the first, were that there.
    ages.add(AGE_BUCKET_US - 1, 2, P, 2, 2)
    outstanding.of(ROOT).add(P, 1, 2)
    assert ages.oldest(outstanding.roots) == (AGE_BUCKET_US - 1, 2)
    ages.settle(outstanding.roots)
    assert ages.oldest(outstanding.roots) == (AGE_BUCKET_US - 1, 2), "it is outstanding"


def test_what_was_asked_again_holds_the_floor_as_long_as_it_is_outstanding() -> None:
    """Else what was asked again once would keep the journal for as long as anything is."""
    ages, outstanding = AgeLog(), RootedRanges()
    for txid, first in ((70, 1), (50, 11), (90, 21)):
        ages.add_again(0, txid, P, first, first + 4)
        outstanding.of(ROOT).add(P, first, first + 4)
    for first, lowest in ((11, 70), (1, 90)):
        outstanding.remove_ranges(ROOT, P, [(first, first + 4)])
        ages.settle(outstanding.roots)
        assert ages.oldest(outstanding.roots) == (0, lowest)
