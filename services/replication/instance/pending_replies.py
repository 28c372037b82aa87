"""Replies that are due: the durability part adds them, and the publishers and upstreams parts take
those that concern them. So none of the three parts calls another one."""

from __future__ import annotations

from typing import NamedTuple

from raylay.services.messages.ranges import Range, SequenceSet


class DestinationRefusal(NamedTuple):
    """A destination's refusal of messages of one publisher, for good.

    Attributes:
        ranges: the refused messages.
        undone: the refused messages that were not durable here: they are never acknowledged.
    """

    destination: str
    publisher: int
    ranges: list[Range]
    undone: SequenceSet


class PendingReplies:
    """Lists to which one side appends and that the other side clears, in the same step.

    Owner: the machine. Lifecycle: as long as that; empty between steps.

    Attributes:
        durable: (publisher, ranges) of messages that clients published here and that became
            durable.
        refused: the refusals of destinations, for the clients that published the messages.
        persisted: (sender, root, publisher, ranges) of messages that became persisted, for the
            sender (an incarnation) that waited for them.
        conflicts: (sender, publisher, ranges) of messages that a sender waited for and that are
            refused.
        contested: (connection, publisher, ranges) of refused messages that are also in a batch on
            its way to the disk.
    """

    __slots__ = ("conflicts", "contested", "durable", "persisted", "refused")

    def __init__(self) -> None:
        self.durable: list[tuple[int, list[Range]]] = []
        self.refused: list[DestinationRefusal] = []
        self.persisted: list[tuple[int, int, int, list[Range]]] = []
        self.conflicts: list[tuple[int, int, list[Range]]] = []
        self.contested: list[tuple[int, int, list[Range]]] = []

    def forget(self) -> None:
        for each in (self.durable, self.refused, self.persisted, self.conflicts, self.contested):
            each.clear()
