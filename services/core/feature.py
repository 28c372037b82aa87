"""The interface of a capability of an instance (live subscriptions, replays, SOW topics, queues) to
the rest of it.

A feature hears of what was committed *behind* the acks of that commit: links are told, publishers
are acked, and what was said is written; then the features fold it, in one order for all. On one
loop nobody's command comes between the acks and the folds of one step, so who asks later is asked
of what is folded. Only a commit that takes long to be folded is folded in several turns; who asks
meanwhile waits for it (`FeatureRegistry.behind`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from raylay.services.core.batch import CommitBatch as CommitBatch
from raylay.services.core.fold_backlog import FoldBacklog, FoldBarrier, Weigh
from raylay.services.messages.records import Run

if TYPE_CHECKING:
    # Most instances have no SOW topics, and need not load the parsers of message types.
    from raylay.services.sow.topic import SowChange


class Feature(Protocol):
    """See the file's docstring. It is handed the collaborators that it calls, never the server."""

    name: str
    """Name of the feature, which stands in the order of the folds."""

    @property
    def may_be_ahead(self) -> bool:
        """Returns whether it may fold the next commit while the disk is still writing it: all that
        comes of it are a few frames, which are held until then."""

    def fold(self, batch: CommitBatch) -> None:
        """Folds a batch that was committed, and the acks for that are out. Called while it is
        enlisted."""

    def failed(self, committed_txid: int) -> None:
        """Nothing staged behind this transaction id comes to the disk. What is below is folded."""


class PersistentFeature(Protocol):
    """A feature that has what it folded on disk, some way behind, and folds the rest again when it
    begins."""

    @property
    def floor_txid(self) -> int | None:
        """Up to here it does not need the journal any more; None: it never does."""

    @property
    def recovered_txid(self) -> int | None:
        """Transaction id behind which it needs the runs when it begins; None: it needs none."""

    def recover(self, runs: Iterable[Run]) -> None:
        """Folds what was committed in a life before; nobody is told of it."""

    def tick(self, now_us: int) -> list[SowChange]:
        """Performs what the time alone has changed.

        Args:
            now_us: by the clock that stored data ages by (`AgingClock`).
        """

    def status(self) -> Mapping[str, Mapping[str, int]]:
        """Returns its part of the instance's status."""


class StepListener(Protocol):
    """A feature that asks of each step what has changed, as durability does without a commit."""

    def stepped(self) -> None:
        """All effects of a step were performed, and what was committed in it is folded."""


class FeatureRegistry:
    """The features of one instance that somebody is served by.

    Owner: the instance's loop. Lifecycle: one life of the instance.

    Args:
        order: the names of all features there can be, in the order of their folds.
        unfolded: takes what is folded in turns; None: nothing takes long, until `weigh_by`.

    Attributes:
        served: those that fold, in that order. Nothing is done for any other one.
        following: those that hear of each step.
        unfolded: what is folded in turns; None: nothing takes long, each commit is folded in its
            step.
    """

    __slots__ = ("_places", "following", "served", "unfolded")

    def __init__(self, order: Sequence[str], unfolded: FoldBacklog | None = None) -> None:
        self._places = {name: place for place, name in enumerate(order)}
        self.served: tuple[Feature, ...] = ()
        self.following: tuple[StepListener, ...] = ()
        self.unfolded = unfolded

    @property
    def may_be_ahead(self) -> bool:
        """Returns whether all of them may fold what the disk is still writing."""
        return not self.unfolded and all(feature.may_be_ahead for feature in self.served)

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

    def weigh_by(self, weigh: Weigh, weigh_published: Weigh | None = None) -> None:
        """Has commits folded in turns where their records weigh much; see `FoldBacklog`."""
        if self.unfolded is None:
            self.unfolded = FoldBacklog()
        self.unfolded.weigh_by(weigh, weigh_published)

    def follow(self, feature: StepListener, served: bool) -> None:
        """Tells a feature of each step, or no more."""
        others = tuple(each for each in self.following if each is not feature)
        self.following = (*others, feature) if served else others

    def fold(self, batch: CommitBatch) -> None:
        """Folds one commit."""
        for feature in self.served:
            feature.fold(batch)

    def fold_on(self, records_max: int) -> None:
        """Folds a slice of what waits.

        Args:
            records_max: of those that take long.
        """
        if self.unfolded:
            self.fold(self.unfolded.take(records_max))

    def behind(self) -> FoldBarrier | None:
        """Returns what a command has to wait for that reads what is folded, or changes who folds;
        None: all is folded."""
        if not self.unfolded:
            return None
        return FoldBarrier(self.unfolded, self.fold_on)

    def folded_txid(self, committed_txid: int) -> int:
        """All up to here is folded.

        Args:
            committed_txid: all up to there is on disk.
        """
        return self.unfolded.folded_txid if self.unfolded else committed_txid

    def failed(self, committed_txid: int) -> None:
        """An append failed: see `Feature.failed`."""
        while self.unfolded:
            self.fold(self.unfolded.take())
        for feature in self.served:
            feature.failed(committed_txid)
