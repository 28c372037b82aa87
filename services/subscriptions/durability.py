"""What is not durable yet, as subscriptions ask for it (design.md 6, `fully_durable`)."""

from __future__ import annotations

from typing import Protocol

from raylay.services.replication.acknowledgment import RootedRanges


class Durability(Protocol):
    """What is not durable yet."""

    def first_pending(self, publisher: int, first: int, last: int) -> int | None:
        """The lowest sequence in first..last that is held here and not durable; None: none."""


class PendingMessages:
    """Durability as the instance's machine keeps it: a view of its `pending`, never a copy."""

    __slots__ = ("_pending",)

    def __init__(self, pending: RootedRanges) -> None:
        self._pending = pending

    def first_pending(self, publisher: int, first: int, last: int) -> int | None:
        """The lowest sequence in first..last that is pending for any root; None: none."""
        lowest: int | None = None
        for ranges in self._pending.roots.values():
            held = ranges.get(publisher)
            found = held.first_within(first, last) if held is not None else None
            if found is not None:
                lowest = last = found
        return lowest
