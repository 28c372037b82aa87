"""Replies that are due: durability writes them down, publishers and upstreams take those that
concern them. So none of the three calls another one."""

from __future__ import annotations

from typing import NamedTuple

from raylay.services.messages.ranges import Range, SequenceSet


class DestinationRefusal(NamedTuple):
    """A destination refused messages of one publisher for good.

    Attributes:
        ranges: what it refused.
        undone: those of them that were not durable here: never acknowledged.
    """

    destination: str
    publisher: int
    ranges: list[Range]
    undone: SequenceSet


class PendingReplies:
    """Passive: lists to which one side appends and that the other side clears, in the same step.

    Owner: the machine. Lifecycle: as long as that; empty between steps.

    Attributes:
        durable: (publisher, ranges) of what clients published here and is durable now.
        refused: what destinations refused, for those who published it.
        persisted: (sender, root, publisher, ranges) of what senders, incarnations, waited for.
        conflicts: (sender, publisher, ranges) of what they waited for and is refused.
        contested: (connection, publisher, ranges) of what a batch on its way to the disk brings,
            and is refused.
    """

    __slots__ = ("conflicts", "contested", "durable", "persisted", "refused")

    def __init__(self) -> None:
        self.durable: list[tuple[int, list[Range]]] = []
        self.refused: list[DestinationRefusal] = []
        self.persisted: list[tuple[int, int, int, list[Range]]] = []
        self.conflicts: list[tuple[int, int, list[Range]]] = []
        self.contested: list[tuple[int, int, list[Range]]] = []

    def forget(self) -> None:
        """Nobody is to be answered."""
        for each in (self.durable, self.refused, self.persisted, self.conflicts, self.contested):
            each.clear()
