"""What a capability of an instance is to the rest of it: live subscriptions, replays, later the
state of the world, queues, views.

A feature hears of what was committed *behind* the acks of that commit: links are told, publishers
are acked, and what was said is written; then the features fold it, in one order for all. On one
loop nobody's command comes between the acks and the folds of one step, so who asks later is asked
of what is folded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from raylay.services.messages.records import Run


@dataclass(slots=True)
class Batch:
    """One commit on its way through the folds. A feature adds to it what those behind it read.

    Attributes:
        runs: what was committed, in the journal's order, notes among them.
        last_txid: all up to here is on disk.
    """

    runs: list[Run]
    last_txid: int


class Feature(Protocol):
    """See the file's docstring. It is handed the collaborators that it calls, never the server."""

    name: str
    """Its place in the order of the folds."""

    def fold(self, batch: Batch) -> None:
        """These were committed, and the acks for that are out. Called while it is enlisted."""

    def failed(self, committed_txid: int) -> None:
        """Nothing staged behind this transaction id comes to the disk. What is below is folded."""


class Following(Protocol):
    """A feature that asks of each step what has changed, as durability does without a commit."""

    def stepped(self) -> None:
        """All effects of a step were performed, and what was committed in it is folded."""


class Folds:
    """The features of one instance that somebody is served by.

    Owner: the instance's loop. Lifecycle: one life of the instance.

    Args:
        order: the names of all features there can be, in the order of their folds.

    Attributes:
        served: those that fold, in that order. Nothing is done for any other one.
        following: those that hear of each step.
    """

    __slots__ = ("_places", "following", "served")

    def __init__(self, order: Sequence[str]) -> None:
        self._places = {name: place for place, name in enumerate(order)}
        self.served: tuple[Feature, ...] = ()
        self.following: tuple[Following, ...] = ()

    def enlist(self, feature: Feature, served: bool) -> None:
        """Folds a feature from the next commit on, or no more. Told twice is told once.

        Raises:
            KeyError: nobody said where its place is.
        """
        if (feature in self.served) == served:
            return
        others = [each for each in self.served if each is not feature]
        found = [*others, feature] if served else others
        self.served = tuple(sorted(found, key=lambda each: self._places[each.name]))

    def follow(self, feature: Following, served: bool) -> None:
        """Tells a feature of each step, or no more."""
        others = tuple(each for each in self.following if each is not feature)
        self.following = (*others, feature) if served else others

    def fold(self, batch: Batch) -> None:
        """Folds one commit."""
        for feature in self.served:
            feature.fold(batch)

    def failed(self, committed_txid: int) -> None:
        """An append failed: see `Feature.failed`."""
        for feature in self.served:
            feature.failed(committed_txid)
