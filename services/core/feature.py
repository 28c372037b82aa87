"""The interface between a capability of an instance (live subscriptions, replays, SOW topics,
queues) and its core.

A feature hears of a commit *after* the acks of that commit: links are notified, publishers are
acked, and the data is written; then the features fold the commit, in the same order for all. On one
event loop, no command comes between the acks and the folds of one step, so a later query sees the
folded state. Only a commit that takes long is folded over several turns; queries meanwhile wait for
it (`FeatureRegistry.behind`).
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
    """A capability of an instance. It gets the objects that it calls as arguments, never the
    server."""

    name: str
    """Name of the feature, which determines its place in the order of the folds."""

    @property
    def may_be_ahead(self) -> bool:
        """Returns whether the feature may fold the next commit while the disk is still writing it:
        the result is a few frames, which are held until then."""

    def fold(self, batch: CommitBatch) -> None:
        """Folds a committed batch, after its acks were sent. Called while the feature is
        enlisted."""

    def failed(self, committed_txid: int) -> None:
        """Takes an append failure: nothing staged behind this transaction id comes to the disk.
        Everything up to it is folded."""


class PersistentFeature(Protocol):
    """A feature that keeps its folded state on disk. The state may be older than the journal: the
    rest is folded again when the feature begins."""

    @property
    def floor_txid(self) -> int | None:
        """Returns the transaction id up to which the feature does not need the journal any more;
        None: it never needs it."""

    @property
    def recovered_txid(self) -> int | None:
        """Returns the transaction id behind which the feature needs the runs when it begins; None:
        it needs none."""

    def recover(self, runs: Iterable[Run]) -> None:
        """Folds runs that were committed in an earlier life, without telling clients."""

    def tick(self, now_us: int) -> list[SowChange]:
        """Performs the changes that are due to time alone, such as expiry, and returns them.

        Args:
            now_us: time by the clock that measures the age of stored data (`AgingClock`).
        """

    def status(self) -> Mapping[str, Mapping[str, int]]:
        """Returns the feature's part of the instance's status."""


class StepListener(Protocol):
    """A feature that is told of each step, because its input also changes without a commit, as
    durability does."""

    def stepped(self) -> None:
        """Notes that all effects of a step were performed, and its commits are folded."""


class FeatureRegistry:
    """The features of one instance that are in use.

    Owner: the instance's loop. Lifecycle: one life of the instance.

    Args:
        order: names of all possible features, in the order of their folds.
        unfolded: takes commits that are folded over several turns; None: each is folded in its
            step, until `weigh_by`.

    Attributes:
        served: the features that fold, in that order. The others cost nothing.
        following: the features that are called after each step.
        unfolded: commits that are folded over several turns; None: each commit is folded in its
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
        """Returns whether all enlisted features may fold a commit that the disk is still
        writing."""
        return not self.unfolded and all(feature.may_be_ahead for feature in self.served)

    def enlist(self, feature: Feature, served: bool) -> None:
        """Starts or stops folding for a feature, from the next commit on. A repeated call has no
        effect.

        Raises:
            KeyError: the feature's place in the order is not declared.
        """
        if (feature in self.served) == served:
            return
        others = [each for each in self.served if each is not feature]
        found = [*others, feature] if served else others
        self.served = tuple(sorted(found, key=lambda each: self._places[each.name]))

    def weigh_by(self, weigh: Weigh, weigh_published: Weigh | None = None) -> None:
        """Lets commits be folded over several turns where their records are costly; see
        `FoldBacklog`."""
        if self.unfolded is None:
            self.unfolded = FoldBacklog()
        self.unfolded.weigh_by(weigh, weigh_published)

    def follow(self, feature: StepListener, served: bool) -> None:
        others = tuple(each for each in self.following if each is not feature)
        self.following = (*others, feature) if served else others

    def fold(self, batch: CommitBatch) -> None:
        for feature in self.served:
            feature.fold(batch)

    def fold_on(self, records_max: int) -> None:
        """Folds a slice of the waiting commits.

        Args:
            records_max: limit on the costly records in it.
        """
        if self.unfolded:
            self.fold(self.unfolded.take(records_max))

    def behind(self) -> FoldBarrier | None:
        """Returns a barrier for a command that reads folded state, or changes which features fold;
        None: everything is folded."""
        if not self.unfolded:
            return None
        return FoldBarrier(self.unfolded, self.fold_on)

    def folded_txid(self, committed_txid: int) -> int:
        """Returns the transaction id up to which everything is folded.

        Args:
            committed_txid: transaction id up to which everything is on disk.
        """
        return self.unfolded.folded_txid if self.unfolded else committed_txid

    def failed(self, committed_txid: int) -> None:
        """Tells the features of an append failure; see `Feature.failed`."""
        while self.unfolded:
            self.fold(self.unfolded.take())
        for feature in self.served:
            feature.failed(committed_txid)
