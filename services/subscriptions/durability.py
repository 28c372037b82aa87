"""The messages that are not durable yet, as subscriptions with `fully_durable` see them (design.md
6)."""

from __future__ import annotations

from bisect import bisect_left
from typing import Protocol

from raylay.services.messages.ranges import Range
from raylay.services.replication.acknowledgment import RootedRanges


class DurabilityView(Protocol):
    """A view of the messages that are not durable yet."""

    def first_pending(self, publisher: int, first: int, last: int) -> int | None:
        """Returns the lowest sequence in first..last that is held here and not durable; None: there
        is none."""


class PendingMessages:
    """The view of the messages that the instance's machine keeps as pending; never a copy."""

    __slots__ = ("_pending",)

    def __init__(self, pending: RootedRanges) -> None:
        self._pending = pending

    def first_pending(self, publisher: int, first: int, last: int) -> int | None:
        """Returns the lowest sequence in first..last that is pending for any root; None: there is
        none."""
        lowest: int | None = None
        for ranges in self._pending.roots.values():
            held = ranges.get(publisher)
            found = held.first_within(first, last) if held is not None else None
            if found is not None:
                lowest = last = found
        return lowest


def first_pending_in(
    durability: DurabilityView, publisher: int, ranges: list[Range]
) -> tuple[int, int] | None:
    """Returns the lowest sequence of ascending ranges that is not durable, and the index of its
    range; None: all are durable.

    Looks the whole span up at once: pending messages between the ranges cost more, and are rare.
    """
    last = ranges[-1][1]
    first = durability.first_pending(publisher, ranges[0][0], last)
    while first is not None:
        at = bisect_left(ranges, first, key=_last_of)
        if ranges[at][0] <= first:
            return first, at
        first = durability.first_pending(publisher, ranges[at][0], last)
    return None


def _last_of(pair: Range) -> int:
    return pair[1]
