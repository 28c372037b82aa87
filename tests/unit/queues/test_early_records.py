"""services/queues/transfer/early_records.py: what comes before its message."""

from __future__ import annotations

import itertools
import random

import pytest

from raylay.services.messages.ranges import PublisherRanges, SequenceSet
from raylay.services.queues.transfer.early_records import (
    STEPS,
    EarlyRecords,
    RangeMap,
    early_ranges,
)
from raylay.services.queues.transfer.ownership import Ownership, is_better

P = 7
"""A publisher."""
STEP_US = 1_000
KEPT_US = STEPS * STEP_US
FIRST, SECOND = Ownership(1, "B"), Ownership(2, "C")


def test_stretches_are_a_dict_of_sequences_kept_as_ranges() -> None:
    rng = random.Random(1)
    for _ in range(60):
        stretches: RangeMap[int] = RangeMap()
        model: dict[int, int] = {}
        for _ in range(60):
            first = rng.randint(1, 40)
            last = first + rng.randint(0, 9)
            if rng.random() < 0.6:
                value = rng.randint(0, 3)
                stretches.add(first, last, value, int.__ge__)
                for each in range(first, last + 1):
                    model[each] = max(value, model.get(each, -1))
            else:
                taken = stretches.take(first, last)
                found = {n: v for a, b, v in taken for n in range(a, b + 1)}
                assert found == {n: model.pop(n) for n in range(first, last + 1) if n in model}
            pieces = list(stretches)
            assert {n: v for a, b, v in pieces for n in range(a, b + 1)} == model
            assert all(one[1] < two[0] for one, two in itertools.pairwise(pieces))
            assert stretches.count == len(model)
            assert [stretches.find(n) for n in range(52)] == [model.get(n) for n in range(52)]
            missing = [n for a, b in stretches.missing(first, last) for n in range(a, b + 1)]
            assert missing == [n for n in range(first, last + 1) if n not in model]


def test_a_hundred_thousand_acknowledgments_in_order_are_one_piece() -> None:
    early = EarlyRecords(0)
    for at in range(1, 2_001):
        early.removed(P, [(at, at)], at, STEP_US)
    assert early.removals_waiting == 2_000
    early.floor_reached(2_000, [])
    assert early.to_wire()["removals"] == [(P, 1, 2_000, STEP_US)]


def test_removals_that_are_wide_and_many_are_forgotten_as_fast_as_others() -> None:
    early = EarlyRecords(KEPT_US)
    wide = [(at << 40, (at << 40) + (1 << 35)) for at in range(1, 4_097)]
    early.removed(P, wide, 10, STEP_US)
    early.floor_reached(10, [])
    early.removed(P, [(1, 5)], 11, 10 * STEP_US)
    early.moved(P, [(7, 7)], FIRST, 12)
    early.arrived(8, [(1, 1)], KEPT_US + 4 * STEP_US)
    assert early.removals_waiting == 5 and not early.to_wire()["removals"]
    early.floor_reached(12, [])
    assert early.to_wire() == {"removals": [(P, 1, 5, 10 * STEP_US)], "moves": [(P, 7, 7, *FIRST)]}


def test_a_message_meets_what_came_before_it_once() -> None:
    early = EarlyRecords(0)
    early.removed(P, [(3, 5)], 10, 0)
    early.moved(P, [(5, 9)], FIRST, 11)
    early.moved(P, [(8, 8)], SECOND, 12)
    assert early.arrived(P, [(1, 4)], 0)[:2] == ([(3, 4)], [])
    assert early.arrived(P, [(5, 8)], 0)[:2] == ([(5, 5)], [(5, 7, FIRST), (8, 8, SECOND)])
    assert early.arrived(P, [(1, 8)], 0)[:2] == ([], [])
    assert early.arrived(8, [(1, 8)], 0)[:2] == ([], [])
    assert early
    assert early.arrived(P, [(9, 9)], 0)[:2] == ([], [(9, 9, FIRST)])
    assert not early


def test_the_better_of_two_early_transfers_counts_whichever_was_read_last() -> None:
    for order in ((FIRST, SECOND), (SECOND, FIRST)):
        early = EarlyRecords(0)
        for txid, register in enumerate(order, 1):
            early.moved(P, [(1, 1)], register, txid)
        assert early.arrived(P, [(1, 1)], 0)[1] == [(1, 1, SECOND)]
    assert is_better(SECOND, FIRST)


@pytest.mark.covers("Queues", "`DeferredAckExpiration`")
def test_removals_are_forgotten_after_their_time_and_transfers_never() -> None:
    early = EarlyRecords(KEPT_US)
    early.removed(P, [(1, 4)], 1, STEP_US)
    early.moved(P, [(1, 4)], FIRST, 2)
    assert early.arrived(P, [(1, 1)], STEP_US + KEPT_US)[0] == [(1, 1)]
    later_us = 3 * STEP_US + KEPT_US
    assert early.arrived(P, [(2, 2)], later_us)[:2] == ([], [(2, 2, FIRST)])
    # Nor are they kept as of the floor, but for the one that was used in time.
    early.floor_reached(2, [])
    made = EarlyRecords.from_wire(early.to_wire(), KEPT_US)
    assert made.removals_waiting == 1
    assert made.arrived(P, [(3, 3)], later_us)[:2] == ([], [(3, 3, FIRST)])


def test_what_was_used_survives_what_is_forgotten_until_the_floor_and_a_rebuild() -> None:
    """Removals are forgotten while others of the same time were used: those messages stay removed
    when the queue is made again, from the floor of then or a later one."""
    early = EarlyRecords(KEPT_US)
    early.removed(P, [(1, 6)], 1, STEP_US)
    early.moved(P, [(8, 8)], FIRST, 2)
    early.floor_reached(3, [])
    early.removed(P, [(11, 14)], 4, STEP_US)  # behind the floor
    assert early.arrived(P, [(2, 3)], STEP_US)[0] == [(2, 3)]
    assert early.arrived(P, [(12, 12)], STEP_US)[0] == [(12, 12)]
    later_us = 3 * STEP_US + KEPT_US
    assert early.arrived(P, [(5, 5), (13, 13)], later_us)[0] == []
    made = EarlyRecords.from_wire(early.to_wire(), KEPT_US)
    assert made.removals_waiting == 2
    assert made.arrived(P, [(1, 6), (8, 8)], STEP_US)[:2] == ([(2, 3)], [(8, 8, FIRST)])
    early.floor_reached(5, [])
    made = EarlyRecords.from_wire(early.to_wire(), KEPT_US)
    gone, moved, _ = made.arrived(P, [(1, 14)], STEP_US)
    assert (gone, moved) == ([(2, 3), (12, 12)], [(8, 8, FIRST)])


def test_without_a_time_removals_are_kept() -> None:
    early = EarlyRecords(0)
    early.removed(P, [(1, 1)], 1, 0)
    assert early.arrived(P, [(1, 1)], 10**18)[0] == [(1, 1)]


def test_a_used_entry_is_remembered_until_the_floor_has_passed_its_message() -> None:
    early = EarlyRecords(KEPT_US)
    early.removed(P, [(1, 2)], 10, STEP_US)
    early.moved(P, [(3, 3)], FIRST, 11)
    early.floor_reached(12, [])
    early.arrived(P, [(1, 3)], STEP_US)  # with transaction ids 13 to 15
    assert not early
    made = EarlyRecords.from_wire(early.to_wire(), KEPT_US)
    assert made.arrived(P, [(1, 3)], STEP_US)[:2] == ([(1, 2)], [(3, 3, FIRST)])
    # It has no time by then: without it the message would come back.
    early.removed(P, [(9, 9)], 16, 4 * KEPT_US)
    assert EarlyRecords.from_wire(early.to_wire(), KEPT_US).removals_waiting == 2
    early.floor_reached(14, [(P, [(1, 2)])])
    made = EarlyRecords.from_wire(early.to_wire(), KEPT_US)
    assert made.arrived(P, [(1, 3)], STEP_US)[:2] == ([], [(3, 3, FIRST)])


def test_what_came_behind_the_floor_is_not_kept_as_of_it() -> None:
    early = EarlyRecords(0)
    early.removed(P, [(1, 1)], 10, 0)
    early.moved(P, [(2, 2)], FIRST, 20)
    early.floor_reached(15, [])
    assert early.to_wire() == {"removals": [(P, 1, 1, 0)], "moves": []}
    early.floor_reached(20, [])
    assert early.to_wire()["moves"] == [(P, 2, 2, 1, "B")]


def test_only_what_never_came_is_early() -> None:
    held = PublisherRanges({P: SequenceSet([(1, 5), (8, 9)])})
    assert early_ranges(held, P, 4, 10) == [(6, 7), (10, 10)]
    assert early_ranges(held, P, 2, 4) == []
    assert early_ranges(held, 8, 2, 4) == [(2, 4)]


def test_it_is_known_from_where_on_the_journal_says_what_a_message_meets() -> None:
    early = EarlyRecords(0)
    early.moved(P, [(5, 9)], FIRST, 11)
    early.moved(P, [(3, 4)], FIRST, 14)
    assert early.arrived(P, [(3, 3)], 0)[2] == 11
    assert early.arrived(P, [(4, 9)], 0)[2] == 11
    early.moved(P, [(10, 10)], FIRST, 20)
    early.floor_reached(20, [])
    made = EarlyRecords.from_wire(early.to_wire(), 0)
    assert early.arrived(P, [(10, 10)], 0)[2] == 20
    assert made.arrived(P, [(10, 10)], 0)[2] == 0, "before the floor nobody knows"


def test_its_size_is_known_at_any_time() -> None:
    early = EarlyRecords(0)
    assert early.size == 0
    early.removed(P, [(1, 1), (3, 3), (5, 9)], 10, 0)
    early.removed(P + 1, [(1, 5)], 11, 0)
    # Ranges and publishers as of now, and what came behind the floor.
    assert early.size == 4 + 2 + 4
    early.floor_reached(11, [])
    assert early.size == 2 * (4 + 2)
    early.removed(P, [(2, 2)], 12, 0)
    # It became one with the range before it.
    assert early.size == 2 * (4 + 2) + 1
    early.arrived(P, [(1, 9)], 0)
    early.arrived(P + 1, [(1, 5)], 0)
    early.floor_reached(20, [(P, [(1, 9)]), (P + 1, [(1, 5)])])
    assert early.size == 0


def test_transfers_count_in_its_size_as_removals_do() -> None:
    early = EarlyRecords(0)
    early.moved(P, [(1, 1), (3, 3)], FIRST, 10)
    # A publisher and its ranges as of now, and what came behind the floor.
    assert early.size == 3 + 2
    early.floor_reached(10, [])
    assert early.size == 2 * 3
    early.arrived(P, [(1, 9)], 0)
    early.floor_reached(20, [(P, [(1, 9)])])
    assert early.size == 0


def test_of_publishers_whose_transfers_have_met_their_messages_nothing_stays() -> None:
    """Each life of a client may be a publisher of its own."""
    early = EarlyRecords(0)
    for publisher in range(1, 6):
        early.moved(publisher, [(1, 2)], FIRST, publisher)
        early.arrived(publisher, [(1, 1)], 0)
    assert set(early._since) == {1, 2, 3, 4, 5}
    for publisher in range(1, 5):
        early.arrived(publisher, [(2, 2)], 0)
    assert early._since == {5: 5}
