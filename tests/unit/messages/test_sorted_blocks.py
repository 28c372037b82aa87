"""Values in order, in blocks (services/messages/sorted_blocks.py)."""

from __future__ import annotations

import random

import pytest

from raylay.services.messages.sorted_blocks import BLOCK_VALUES_MAX, SortedBlocks


@pytest.mark.parametrize("order", ["up", "down", "mixed"])
def test_blocks_stay_short_and_in_order(order: str) -> None:
    blocks, rng = SortedBlocks(), random.Random(7)
    values = [each // 3 for each in range(5_000)]
    if order == "down":
        values.reverse()
    if order == "mixed":
        rng.shuffle(values)
    for each in values:
        blocks.add(each)
    assert [each for block in blocks.blocks for each in block] == sorted(values)
    assert max(map(len, blocks.blocks)) <= BLOCK_VALUES_MAX
    rng.shuffle(values)
    for number, each in enumerate(values):
        blocks.remove(each)
        left = values[number + 1 :]
        if number % 500 == 0 and left:
            assert blocks.first() == min(left) and blocks.last() == max(left)
    assert not blocks
    with pytest.raises(KeyError):
        blocks.remove(1)


def test_a_value_that_is_not_there_is_not_taken_out() -> None:
    blocks = SortedBlocks()
    blocks.add(1)
    with pytest.raises(KeyError):
        blocks.remove(2)
    assert blocks.blocks == [[1]]


def test_neighbours_and_slices_are_those_of_a_sorted_list() -> None:
    blocks, rng = SortedBlocks(), random.Random(11)
    assert blocks.before(1) is None and blocks.behind(1) is None and blocks.slice(0, 3) == []
    values = rng.sample(range(0, 100_000, 2), 4_000)
    for each in values:
        blocks.add(each)
    values.sort()
    for _ in range(500):
        at = rng.randrange(4_000)
        value = values[at]
        assert blocks.before(value) == (values[at - 1] if at else None)
        assert blocks.before(value + 1) == value
        assert blocks.behind(value) == (values[at + 1] if at + 1 < 4_000 else None)
        assert blocks.behind(value - 1) == value
        most = rng.randrange(1_500)
        assert blocks.slice(at, most) == values[at : at + most]
    assert blocks.before(-1) is None and blocks.behind(100_000) is None


@pytest.mark.parametrize("count", [1, 3, 3 * BLOCK_VALUES_MAX])
def test_a_value_takes_the_place_of_another(count: int) -> None:
    values = SortedBlocks()
    for value in range(count):
        values.add(value)
    values.replace(0, count + 5)
    values.replace(count + 5, -1)
    assert [each for block in values.blocks for each in block] == [-1, *range(1, count)]
    with pytest.raises(KeyError):
        values.replace(0.5, 1)
    with pytest.raises(KeyError):
        values.replace(count, 1)
