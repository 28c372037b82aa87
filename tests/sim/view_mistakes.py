"""Mistakes about views and conflated topics, planted for good. Those of the pure tables beneath are
in tests/unit/views/test_planted_mistakes.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from raylay.services.core.feature import CommitBatch
from raylay.services.core.views import ViewFeature
from raylay.services.sow.records import SowRecord
from raylay.services.sow.topic import SowChange
from raylay.services.subscriptions.conflation import ConflatedChange, Conflator
from raylay.services.views.conflated_topic import ConflatedTopic
from raylay.services.views.view import View


# -- views ---------------------------------------------------------------------------------------
class NotBuilt(ViewFeature):
    """A restart begins with empty views."""

    def build(self) -> None:
        pass


class UpperFirst(ViewFeature):
    """A view is built before the one that it is over."""

    def __init__(self, views: Sequence[View]) -> None:
        super().__init__(views)
        self.views = self.views[::-1]


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
    """Of all changes of a slice the last one is folded, whichever record it is of."""

    def fold(self, batch: CommitBatch) -> None:
        before, batch.changes = batch.changes[:-1], batch.changes[-1:]
        super().fold(batch)
        batch.changes = before + batch.changes


class GoneUntold(View):
    """Nobody is told that a group is gone."""

    def flush(self) -> list[SowChange]:
        return [each for each in super().flush() if each.change.current is not None]


class RecordsOfTheSlice(View):
    """The side that changed last sees the others as they were before the slice: what came to them
    meanwhile is joined to nothing."""

    def take(self, number: int, record: SowRecord | None, *of: Any) -> None:
        if self._joined is None or number == 0 or record is None or not self._changed:
            super().take(number, record, *of)


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
        self._pending[key].first_us = now_us
        self._order.remove(key)
        self._order.append(key)


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
    """What is due within half an interval is given with what is due."""

    conflator = _TwoInOne


class GivesAtOnce(ConflatedTopic):
    """A query has the present values before their interval has ended."""

    def take(self, change: Any, now_us: int) -> None:
        super().take(change, now_us)
        pending = self._conflator.pending(change.key)
        if pending is not None and pending.now is not None:
            self.topic.state.put_computed(pending.now)


class LeavesTheFilter(ConflatedTopic):
    """What leaves the filter stays."""

    def take(self, change: Any, now_us: int) -> None:
        if change.current is None or self._passing(change.current) is not None:
            super().take(change, now_us)


VIEWS: dict[str, type[ViewFeature]] = {
    "views: not built": NotBuilt,
    "views: upper first": UpperFirst,
    "views: one level": OneLevel,
    "views: deaf to deletes": DeafToDeletes,
    "views: fold the last": FoldsTheLast,
}
VIEW: dict[str, type[View]] = {
    "view: gone untold": GoneUntold,
    "view: joins the slice": RecordsOfTheSlice,
}
CONFLATED: dict[str, type[ConflatedTopic]] = {
    "conflated: restarts": Restarts,
    "conflated: keeps the first": KeepsTheFirst,
    "conflated: deaf to deletes": DeleteLeavesPending,
    "conflated: two in one": TwoInOne,
    "conflated: gives at once": GivesAtOnce,
    "conflated: leaves the filter": LeavesTheFilter,
}
MISTAKES = (*VIEWS, *VIEW, *CONFLATED)
