"""services/messages/sequence_set.py at the edges of its chunks; test_ranges.py has sets of many."""

from __future__ import annotations

import itertools
import random

import pytest

from raylay.services.messages.sequence_set import CHUNK, SequenceSet

EDGES = (0, 1, 2, CHUNK - 2, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK - 1, 2 * CHUNK)


def pieces(numbers: set[int]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if found and found[-1][1] == number - 1:
            found[-1] = found[-1][0], number
        else:
            found.append((number, number))
    return found


@pytest.mark.parametrize("full", [False, True], ids=["bitmaps", "full chunks"])
def test_each_edge_of_a_chunk(full: bool) -> None:
    """Every range between two edges, put into and taken out of nothing and of full chunks."""
    plain = set(range(3 * CHUNK)) if full else set[int]()
    for first, last in itertools.combinations_with_replacement(EDGES, 2):
        span = set(range(first, last + 1))
        mine = SequenceSet(pieces(plain))
        (mine.remove if full else mine.add)(first, last)
        left = plain - span if full else span
        assert mine.ranges() == list(mine) == pieces(left)
        for low, high in itertools.combinations_with_replacement(EDGES, 2):
            asked = set(range(low, high + 1))
            assert mine.within(low, high) == pieces(left & asked)
            assert mine.touches(low, high) == bool(left & asked)
            taking = SequenceSet(mine.ranges())
            assert taking.take(low, high) == pieces(left & asked)
            assert taking.ranges() == pieces(left - asked)
        (mine.add if full else mine.remove)(first, last)
        assert mine == SequenceSet(pieces(plain))


def test_ranges_are_as_few_as_possible() -> None:
    chance = random.Random(1)
    for _ in range(300):
        numbers = {chance.randrange(2 * CHUNK) for _ in range(chance.randrange(1, 5))}
        numbers |= {number + 1 for number in numbers if chance.random() < 0.5}
        mine = SequenceSet((number, number) for number in numbers)
        assert mine.ranges() == pieces(numbers)
    assert SequenceSet().ranges() == []


def test_what_is_between_no_sequences_is_nothing() -> None:
    mine = SequenceSet([(5, 9)])
    assert mine.within(7, 6) == [] and not mine.touches(7, 6)
