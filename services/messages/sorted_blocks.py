"""Values in order, in blocks of bounded length: for the extremes of a group, and for the rows of a
query that change while somebody looks at a part of them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from typing import Any

BLOCK_VALUES_MAX = 512


class SortedBlocks:
    """Values in order, each as often as it was added, in blocks of bounded length: one value more
    or less moves few others, however many there are."""

    __slots__ = ("blocks",)

    def __init__(self) -> None:
        self.blocks: list[list[Any]] = []

    def __bool__(self) -> bool:
        return bool(self.blocks)

    def add(self, value: Any) -> None:
        blocks = self.blocks
        if len(blocks) <= 1:
            if not blocks:
                blocks.append([value])
                return
            block, at = blocks[0], 0
        else:
            at = self._block_of(value)
            block = blocks[at]
        insort(block, value)
        if len(block) > BLOCK_VALUES_MAX:
            half = len(block) // 2
            blocks[at : at + 1] = [block[:half], block[half:]]

    def remove(self, value: Any) -> None:
        """Takes out one value that equals another.

        Raises:
            KeyError: there is none.
        """
        blocks = self.blocks
        at = self._block_of(value) if len(blocks) > 1 else 0
        block = blocks[at] if blocks else []
        place = bisect_left(block, value)
        if place == len(block) or block[place] != value:
            raise KeyError(value)
        del block[place]
        if not block:
            del blocks[at]

    def replace(self, old: Any, new: Any) -> None:
        """Takes out one value that equals another, and adds one.

        Raises:
            KeyError: there is none.
        """
        blocks = self.blocks
        if len(blocks) == 1:
            # Most groups have few values, and as many as before.
            block = blocks[0]
            place = bisect_left(block, old)
            if place < len(block) and block[place] == old:
                del block[place]
                insort(block, new)
                return
        self.remove(old)
        self.add(new)

    def _block_of(self, value: Any) -> int:
        """Returns the number of the first block that ends at the value or behind it."""
        blocks = self.blocks
        low, high = 0, len(blocks) - 1
        while low < high:
            middle = (low + high) // 2
            if blocks[middle][-1] < value:
                low = middle + 1
            else:
                high = middle
        return low

    def first(self) -> Any:
        """Returns the first value; there must be one."""
        return self.blocks[0][0]

    def last(self) -> Any:
        """Returns the last value; there must be one."""
        return self.blocks[-1][-1]

    def before(self, value: Any) -> Any:
        """Returns the last value that is less than another; None: there is none."""
        blocks = self.blocks
        if not blocks:
            return None
        at = self._block_of(value)
        place = bisect_left(blocks[at], value)
        if place:
            return blocks[at][place - 1]
        return blocks[at - 1][-1] if at else None

    def behind(self, value: Any) -> Any:
        """Returns the first value that is greater than another; None: there is none. No value may
        be there twice."""
        blocks = self.blocks
        if not blocks:
            return None
        at = self._block_of(value)
        place = bisect_right(blocks[at], value)
        if place < len(blocks[at]):
            return blocks[at][place]
        return blocks[at + 1][0] if at + 1 < len(blocks) else None

    def slice(self, skipped: int, most: int) -> list[Any]:
        """Returns at most a number of values behind the first ones that are skipped."""
        found: list[Any] = []
        for block in self.blocks:
            if skipped < len(block):
                found += block[skipped : skipped + most - len(found)]
                if len(found) == most:
                    break
            skipped = max(0, skipped - len(block))
        return found
