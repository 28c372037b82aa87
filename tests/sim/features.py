"""What simulated instances fold of their commits (services/core/feature.py), beside their topics'
state: a subscription to everything, what they write themselves, and replays."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from raylay.services.core.feature import CommitBatch
from raylay.services.core.live import LiveSubscriptions
from raylay.services.messages.records import iterate_records
from raylay.services.subscriptions.delivery import DeliveryContent
from raylay.services.subscriptions.matching import LiveSubscription, topic_filter
from raylay.services.verification.history import FeatureFolded

if TYPE_CHECKING:
    from sim.instance import Instance


def _no_filters() -> NoReturn:
    raise AssertionError("nobody filters by content here")


def follow_everything(instance: Instance) -> None:
    """Subscribes to all topics, and tells the history what comes, as the server delivers it."""

    def deliver(_: tuple[LiveSubscription, ...], delivery: DeliveryContent) -> None:
        if instance.alive:
            records = iterate_records(b"".join(delivery.bodies))
            keys = tuple((record.publisher, record.sequence) for record in records)
            folded(instance, "live", delivery.first_txid + delivery.count - 1, keys)

    live = LiveSubscriptions(deliver, instance.folds.enlist, _no_filters)
    live.add(LiveSubscription(0, "everything", topic_filter("^.*$", "")))


def folded(
    instance: Instance, feature: str, last_txid: int, keys: tuple[tuple[int, int], ...] = ()
) -> None:
    """Tells the history of a fold, and of whom the machine has acked and nobody has told."""
    sessions = instance.machine._publishers._sessions
    kept_back = []
    for session in instance.sessions.values():
        known = sessions.get(session.number)
        if known is not None and session.unacked and session.unacked[0] <= known.acked:
            kept_back.append(session.client)
    world = instance.world
    world.log(
        FeatureFolded(
            world.now_us, instance.name, feature, last_txid, keys, tuple(sorted(kept_back))
        )
    )


class State:
    """The state of all topics that have one."""

    name = "sow"
    may_be_ahead = False

    def __init__(self, instance: Instance) -> None:
        self._instance = instance

    def fold(self, batch: CommitBatch) -> None:
        """Values are committed. What a conflated topic gives has none."""
        if self._instance.alive and batch.runs:
            self._instance.state.fold(batch)
            folded(self._instance, self.name, batch.last_txid)

    def failed(self, committed_txid: int) -> None:
        """The machine has told the state, when it undid what was staged."""


class Writes:
    """What the instance writes itself. Folded while something of it is under way."""

    name = "queues"
    may_be_ahead = False

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        if instance.world.queues is not None:
            self.name = "conflation"  # A place that nobody has here.

    def fold(self, batch: CommitBatch) -> None:
        """Some of it may be committed: it takes effect."""
        self._instance.take_up(batch.runs)

    def failed(self, committed_txid: int) -> None:
        """Some of it may not come to the disk."""
        self._instance.undo(committed_txid)


class Replays:
    """Bookmark subscriptions. Folded while there is any."""

    name = "replays"
    may_be_ahead = False

    def __init__(self, instance: Instance) -> None:
        self._instance = instance

    def fold(self, batch: CommitBatch) -> None:
        """There is more to read."""
        self._instance.wake_replays(fully_durable=False)

    def failed(self, committed_txid: int) -> None:
        """They read what is on disk."""

    def stepped(self) -> None:
        """More may be durable."""
        self._instance.wake_replays(fully_durable=True)
