"""Subscriptions without a bookmark: what is committed while they are there."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from raylay.services.core.feature import Batch, Feature
from raylay.services.messages.records import Run
from raylay.services.subscriptions.delivery import Delivery, deliveries_of, live_deliveries
from raylay.services.subscriptions.matching import Subscription, SubscriptionTable

Deliver = Callable[[tuple[Subscription, ...], Delivery], None]


class LiveSubscriptions:
    """See the file's docstring. Folded while there is any.

    Owner: the instance's loop. Lifecycle: one life of the instance.

    Args:
        deliver: gives a delivery to all of these subscriptions, each once.
        enlist: of the instance's folds.
    """

    name = "live"

    __slots__ = ("_deliver", "_enlist", "_table")

    def __init__(self, deliver: Deliver, enlist: Callable[[Feature, bool], None]) -> None:
        self._deliver = deliver
        self._enlist = enlist
        self._table = SubscriptionTable()

    def __len__(self) -> int:
        return len(self._table)

    def add(self, subscription: Subscription) -> None:
        """From the next commit on it gets what it wants."""
        self._table.add(subscription)
        self._enlist(self, True)

    def remove(self, subscription: Subscription) -> None:
        """It ended."""
        self._table.remove(subscription)
        if not len(self._table):
            self._enlist(self, False)

    def fold(self, batch: Batch) -> None:
        """Delivers what was committed."""
        deliver = self._deliver
        for subscribers, delivery in live_deliveries(batch.runs, self._table):
            deliver(subscribers, delivery)

    def failed(self, committed_txid: int) -> None:
        """Nobody was given what is only staged."""

    def transient(self, runs: Iterable[Run]) -> None:
        """Delivers messages of topics that are not journaled."""
        for run in runs:
            subscribers = self._table.matching(run.topic, run.message_type)
            if subscribers:
                for delivery in deliveries_of(run, journaled=False):
                    self._deliver(subscribers, delivery)
