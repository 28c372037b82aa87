"""Mistakes about views and conflated topics, planted for good. Those of the pure tables beneath are
in tests/unit/views/test_planted_mistakes.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from raylay.services.core.feature import CommitBatch
from raylay.services.core.views import ViewFeature
from raylay.services.sow.query.record_scan import PresentScan
from raylay.services.sow.records import SowRecord
from raylay.services.sow.topic import SowChange
from raylay.services.subscriptions.conflated_subscriptions import ConflatedSubscriptions
from raylay.services.subscriptions.conflation import ConflatedChange, Conflator
from raylay.services.subscriptions.matching import LiveSubscription
from raylay.services.subscriptions.pages import PagedSubscriptions
from raylay.services.subscriptions.windows import WindowChange
from raylay.services.views.aggregated import AggregatedUse, AggregatedView, AggregatedViews
from raylay.services.views.building import ComputedTopic, TopicBuild
from raylay.services.views.conflated_topic import ConflatedTopic
from raylay.services.views.view import View
from sim.view_followers import SimAggregated, SimBuild


# -- views ---------------------------------------------------------------------------------------
class OneLevel(ViewFeature):
    """Views over views are not told what changed in these."""

    def fold(self, batch: CommitBatch) -> None:
        of_topics = CommitBatch(batch.runs, batch.last_txid, list(batch.changes))
        super().fold(of_topics)
        once = CommitBatch(batch.runs, batch.last_txid, [])
        for view in self.views:
            once.changes += [each for each in of_topics.changes if each.topic is view.topic]
            if any(over is view.topic for each in self.views for over in each.under):
                break
        batch.changes += once.changes


class DeafToDeletes(ViewFeature):
    """A deleted record stays in its group."""

    def fold(self, batch: CommitBatch) -> None:
        everything = batch.changes
        batch.changes = [each for each in everything if each.change.current is not None]
        kept = len(batch.changes)
        super().fold(batch)
        batch.changes = everything + batch.changes[kept:]


class FoldsTheLast(ViewFeature):
    """Folds the last change of a slice alone, whichever record it is of."""

    def fold(self, batch: CommitBatch) -> None:
        before, batch.changes = batch.changes[:-1], batch.changes[-1:]
        super().fold(batch)
        batch.changes = before + batch.changes


class GoneUntold(View):
    """Tells nobody that a group is gone."""

    def flush(self) -> list[SowChange]:
        return [each for each in super().flush() if each.change.current is not None]


class KeepsWhatWasJoined(View):
    """A record that is gone stays joined to those of the first topic."""

    def take(self, number: int, record: SowRecord | None, *of: Any) -> None:
        if number == 0 or record is not None:
            super().take(number, record, *of)


class LeavesToTheBuild(View):
    """Leaves changes while a view is built to the scan, which does not come there any
    more."""

    def take(self, number: int, *of: Any) -> None:
        if self.topic.is_built:
            super().take(number, *of)


class _Older:
    """The records as they were when the scan began."""

    def __init__(self, scan: PresentScan) -> None:
        self._entries = list(scan.take(1_000))

    @property
    def done(self) -> bool:
        return not self._entries

    def take(self, most: int) -> Any:
        taken, self._entries = self._entries[:1], self._entries[1:]
        return taken


class BuiltOfOlder(TopicBuild):
    """A view is built of the records as they were when the build began."""

    def take(self, is_over: Any) -> list[ComputedTopic]:
        if self._topics and self._scan is None:
            scan: Any = _Older(self._topics[0].state.present())
            self._scan = scan
        return super().take(is_over)


class BuiltUpperFirst(SimBuild):
    """A view that others are over is read before it is built."""

    def __init__(self, computed: Sequence[ComputedTopic]) -> None:
        super().__init__(computed)
        self._topics.rotate(1)


# -- conflated topics ------------------------------------------------------------------------------
class _Conflated(ConflatedTopic):
    conflator: type[Conflator[SowRecord]]

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        before = self._conflator
        self._conflator = self.conflator(before.interval_us, before._size_of)


class _Restarting(Conflator[SowRecord]):
    def change(self, key: bytes, before: Any, now: Any, now_us: int, reason: str = "") -> None:
        super().change(key, before, now, now_us, reason)
        entry = self._pending[key]
        entry.first_us = now_us
        self._order.remove((key, entry))
        self._order.append((key, entry))


class Restarts(_Conflated):
    """Each change begins the interval of its key anew."""

    conflator = _Restarting


class _KeepingFirst(Conflator[SowRecord]):
    def change(self, key: bytes, before: Any, now: Any, now_us: int, reason: str = "") -> None:
        pending = self.pending(key)
        super().change(key, before, now, now_us, reason)
        if pending is not None and pending.now is not None and now is not None:
            self._pending[key].now = pending.now


class KeepsTheFirst(_Conflated):
    """The first value of an interval is given, not the last one."""

    conflator = _KeepingFirst


class _DeafToDeletes(Conflator[SowRecord]):
    def change(self, key: bytes, before: Any, now: Any, now_us: int, reason: str = "") -> None:
        if now is not None or self.pending(key) is None:
            super().change(key, before, now, now_us, reason)


class DeleteLeavesPending(_Conflated):
    """A record that goes within its interval is given all the same."""

    conflator = _DeafToDeletes


class _TwoInOne(Conflator[SowRecord]):
    def due(self, now_us: int, most: int = 500) -> list[ConflatedChange[SowRecord]]:
        early_us = self.interval_us // 2
        return super().due(now_us + early_us, most)


class TwoInOne(_Conflated):
    """Gives changes early that are due within half an interval."""

    conflator = _TwoInOne


class GivesAtOnce(ConflatedTopic):
    """A query has the present values before their interval has ended."""

    def take(self, change: Any, now_us: int) -> None:
        super().take(change, now_us)
        pending = self._conflator.pending(change.key)
        if pending is not None and pending.now is not None:
            self.topic.state.put_computed(pending.now)


class LeavesTheFilter(ConflatedTopic):
    """Keeps records that leave the filter."""

    def take(self, change: Any, now_us: int) -> None:
        if change.current is None or self._passing(change.current) is not None:
            super().take(change, now_us)


# -- subscriptions ---------------------------------------------------------------------------------
class DeltaOfTheLast(ConflatedSubscriptions):
    """A delta is made from the message before, which was not given."""

    def _change(self, shared: Any, key: bytes, before: Any, now: Any, *of: Any) -> None:
        super()._change(shared, key, before, now, *of)
        if key in shared.conflator:
            shared.conflator._pending[key].before = before


class TellsOfWhatNobodyKnew(ConflatedSubscriptions):
    """A record that comes and goes within an interval is told of as gone."""

    def _change(self, shared: Any, key: bytes, before: Any, now: Any, *of: Any) -> None:
        super()._change(shared, key, before, now, *of)
        if now is None and key in shared.conflator:
            entry = shared.conflator._pending[key]
            entry.before = entry.before or before


class RestartsSubscriptions(ConflatedSubscriptions):
    """Each change begins the interval of its key anew."""

    def _change(self, shared: Any, key: bytes, before: Any, now: Any, *of: Any) -> None:
        super()._change(shared, key, before, now, *of)
        conflator = shared.conflator
        if key in conflator:
            entry = conflator._pending[key]
            entry.first_us = of[0]
            conflator._order.remove((key, entry))
            conflator._order.append((key, entry))


class FreedWithTheFirst(ConflatedSubscriptions):
    """Ends a shared aggregation with the first user who leaves."""

    def remove(self, subscription: LiveSubscription) -> None:
        shared, _ = self._members[subscription]
        super().remove(subscription)
        shared.members.clear()
        shared.classes.clear()


class GapNotFilled(PagedSubscriptions):
    """A row that is pushed into a window is not given."""

    def _given(self, order: Any, window: WindowChange, rows: Any, received_us: int) -> Any:
        if window.came != rows._change.change.key:
            window = window._replace(came=None)
        return super()._given(order, window, rows, received_us)


class PushedOutUntold(PagedSubscriptions):
    """Tells nobody of a row that is pushed out of a window."""

    def _given(self, order: Any, window: WindowChange, rows: Any, received_us: int) -> Any:
        if window.left != rows._change.change.key:
            window = window._replace(left=None)
        return super()._given(order, window, rows, received_us)


class MoverUntold(PagedSubscriptions):
    """A row that moves and stays in its window is not given."""

    def _given(self, order: Any, window: WindowChange, rows: Any, received_us: int) -> Any:
        if window.came is None and window.left is None:
            return iter(())
        return super()._given(order, window, rows, received_us)


class LeavesToTheScan(SimAggregated):
    """Leaves changes while an aggregation is built to the scan, which does not come there
    any more."""

    def _take(self, shared: AggregatedView, change: SowChange, batch: Any) -> None:
        if shared.scan is None:
            super()._take(shared, change, batch)


class EndsWithTheFirst(SimAggregated):
    """An aggregation ends with the first of its users."""

    def released(self, shared: AggregatedView, use: AggregatedUse) -> None:
        super().released(shared, use)
        if shared.users:
            shared.takes = -1_000_000

    def _take(self, shared: AggregatedView, change: SowChange, batch: Any) -> None:
        if shared.takes >= 0:
            super()._take(shared, change, batch)


CONFLATED_SUBSCRIPTIONS: dict[str, type[ConflatedSubscriptions]] = {
    "conflated: delta of the last": DeltaOfTheLast,
    "conflated: tells of what nobody knew": TellsOfWhatNobodyKnew,
    "conflated: restarts for subscribers": RestartsSubscriptions,
    "conflated: freed with the first": FreedWithTheFirst,
}
PAGES: dict[str, type[PagedSubscriptions]] = {
    "page: gap not filled": GapNotFilled,
    "page: pushed out untold": PushedOutUntold,
    "page: mover untold": MoverUntold,
}
AGGREGATED: dict[str, type[AggregatedViews]] = {
    "aggregated: leaves to the scan": LeavesToTheScan,
    "aggregated: ends with the first": EndsWithTheFirst,
}
VIEWS: dict[str, type[ViewFeature]] = {
    "views: one level": OneLevel,
    "views: deaf to deletes": DeafToDeletes,
    "views: fold the last": FoldsTheLast,
}
BUILD: dict[str, type[TopicBuild]] = {
    "views: built of older records": BuiltOfOlder,
    "views: built upper first": BuiltUpperFirst,
}
VIEW: dict[str, type[View]] = {
    "view: gone untold": GoneUntold,
    "view: leaves to the build": LeavesToTheBuild,
    "view: keeps what was joined": KeepsWhatWasJoined,
}
CONFLATED: dict[str, type[ConflatedTopic]] = {
    "conflated: restarts": Restarts,
    "conflated: keeps the first": KeepsTheFirst,
    "conflated: deaf to deletes": DeleteLeavesPending,
    "conflated: two in one": TwoInOne,
    "conflated: gives at once": GivesAtOnce,
    "conflated: leaves the filter": LeavesTheFilter,
}
MISTAKES = (*VIEWS, *BUILD, *VIEW, *CONFLATED, *CONFLATED_SUBSCRIPTIONS, *PAGES, *AGGREGATED)
