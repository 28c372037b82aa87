"""Views and conflated topics built in turns (services/views/building.py), while changes are
folded."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import pytest
from support.sow_given import book, delete, put
from support.view_definitions import JOINED, SUMS

from raylay.services.core.feature import CommitBatch
from raylay.services.core.sow import SowFeature
from raylay.services.core.views import ViewFeature
from raylay.services.plugins.views import with_conflated_topics, with_views
from raylay.services.sow.book import SowBook
from raylay.services.sow.keys import key_of
from raylay.services.views import building
from raylay.services.views.building import TopicBuild
from raylay.services.views.conflated_topic import ConflatedTopic
from raylay.services.views.definition import ConflatedTopicDefinition, ViewDefinition

pytestmark = pytest.mark.covers("Views", "a view equals a fresh computation")

TOTAL = ViewDefinition(
    "total",
    "json",
    topic="sums",
    projection=("SUM(/sum) AS /sum", "MAX(/sum) AS /most"),
    grouping=("/none",),
)
SLOW = ConflatedTopicDefinition("slow", "json", "sums", filter="/sum != 7")


class Begun:
    """Views that are built while orders change.

    Args:
        found: number of orders that are there when the building begins.
    """

    def __init__(self, *definitions: ViewDefinition, found: int = 0) -> None:
        self.definitions = definitions
        self.book, self.views, _ = with_views(book(), definitions, ())
        self.slow: tuple[ConflatedTopic, ...] = ()
        if SUMS in definitions:
            self.book, self.slow = with_conflated_topics(self.book, (SLOW,), ())
        self.sow = SowFeature(self.book)
        self.txid = 0
        orders = [{"id": number, "customer": number % 7, "price": 1} for number in range(found)]
        for order in orders:
            self._fold(put(self.txid + 1, json.dumps(order).encode()), is_begun=False)
        self.build = TopicBuild((*self.views.views, *self.slow))

    def _fold(self, run: Any, *, is_begun: bool = True) -> CommitBatch:
        batch = CommitBatch([run], run.last_txid)
        self.txid = run.last_txid
        self.sow.fold(batch)
        if is_begun:
            self.views.fold(batch)
        return batch

    def publish(self, order: dict[str, Any]) -> CommitBatch:
        return self._fold(put(self.txid + 1, json.dumps(order).encode()))

    def delete(self, number: int) -> CommitBatch:
        return self._fold(delete(self.txid + 1, key_of({"id": number}, ("/id",), "orders")))

    def take(self) -> list[Any]:
        """Takes one part, and gives what is built."""
        built = self.build.take(lambda: True)
        for each in built:
            if each in self.views.views:
                batch = CommitBatch([], self.txid, self.views.began(each))  # type: ignore[arg-type]
                self.views.fold(batch)
        return built

    def records(self, views: ViewFeature) -> dict[str, dict[bytes, bytes | None]]:
        return {
            view.definition.name: {each.key: each.body for each in view.topic.state.records()}
            for view in views.views
        }

    def rebuilt(self) -> dict[str, dict[bytes, bytes | None]]:
        _, again, _ = with_views(SowBook(self.book.topics), self.definitions, ())
        again.build()
        return self.records(again)


@pytest.mark.parametrize("seed", range(20))
def test_views_that_are_built_amid_changes_equal_a_fresh_computation(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(building, "TAKEN_AT_ONCE", 3)
    rng, at = random.Random(seed), Begun(SUMS, TOTAL, JOINED, found=20)
    built: list[str] = []
    while not at.build.is_done:
        if rng.random() < 0.6:
            customer, price = rng.randrange(7), rng.choice([1, 2.5, None, "x"])
            at.publish({"id": rng.randrange(25), "customer": customer, "price": price})
        elif rng.random() < 0.3:
            at.delete(rng.randrange(25))
        else:
            built += [each.topic.name.decode() for each in at.take()]
            for each in at.views.views:
                if each.topic.is_built:
                    name = each.definition.name
                    assert at.records(at.views)[name] == at.rebuilt()[name]
    assert built == ["sums", "total", "joined", "slow"]
    assert at.records(at.views) == at.rebuilt()


def test_a_topic_is_read_once_for_all_that_is_over_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "TAKEN_AT_ONCE", 5)
    at = Begun(SUMS, replace(SUMS, name="same"), found=10)
    reads: list[int] = []
    for each in at.views.views:
        load = each.load
        monkeypatch.setattr(
            each,
            "load",
            lambda number, entries, load=load: reads.append(len(entries)) or load(number, entries),
        )
    assert at.take() == [] and at.build.percent == 50
    assert at.take() == [] and at.build.percent == 99
    assert at.take() == list(at.views.views)
    assert reads == [5, 5, 5, 5, 0, 0] and not at.build.is_done
    at.take()
    assert at.build.take(lambda: False) == list(at.slow) or at.build.is_done
    assert at.build.percent == 0 and at.build.take(lambda: False) == []


def test_who_follows_a_view_that_is_built_gets_what_changed_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(building, "TAKEN_AT_ONCE", 5)
    at = Begun(SUMS, found=10)
    at.take()
    assert len(at.publish({"id": 0, "customer": 0, "price": 9}).changes) == 1
    at.publish({"id": 77, "customer": 77, "price": 1})
    at.delete(77)
    (view,) = at.views.views
    assert not view.topic.is_built and view.status()["taken"] > 0
    while not view.topic.is_built:
        (built,) = at.build.take(lambda: False)
    assert built is view
    (change,) = at.views.began(view)
    assert change.change.reason == "inserted" and change.change.previous is None
    assert change.change.current is not None
    assert json.loads(change.change.current.body or b"")["sum"] == 10
    assert view.status()["updates"] == view.status()["taken"] == 0
    assert at.views.began(view) == []
    # From now on it gets each change.
    assert len(at.publish({"id": 0, "customer": 0, "price": 8}).changes) == 2


def test_a_view_without_followers_keeps_nothing_for_them() -> None:
    at = Begun(SUMS, found=10)
    at.views.follow_by(lambda topic: False)
    at.publish({"id": 0, "customer": 0, "price": 9})
    while not at.build.is_done:
        for each in at.build.take(lambda: False):
            if each in at.views.views:
                assert at.views.began(each) == []  # type: ignore[arg-type]
    assert at.records(at.views) == at.rebuilt()


def test_a_view_over_its_limit_ends_amid_its_building(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raylay.services.views.view.WEIGHED_EVERY", 2)
    at = Begun(replace(SUMS, memory_bytes_max=1_500), TOTAL, found=10)
    while not at.build.is_done:
        at.take()
    sums, total = at.views.views
    assert "would take more than 1,500" in sums.topic.refusal
    assert sums.topic.refusal in total.topic.refusal
    assert at.records(at.views) == {"sums": {}, "total": {}}


def test_a_record_that_comes_and_goes_while_a_conflated_topic_is_built_is_not_in_it() -> None:
    """A key that comes and goes within its interval is told to nobody: so a scan that meets it
    meanwhile must not take it."""
    orders, (slow,) = with_conflated_topics(
        book(), (ConflatedTopicDefinition("slow", "json", "orders"),), ()
    )
    sow = SowFeature(orders)

    def commit(run: Any) -> None:
        batch = CommitBatch([run], run.last_txid)
        sow.fold(batch)
        for change in batch.changes:
            slow.take(change.change, 0)

    build = TopicBuild((slow,))
    kept, gone = ({"id": number, "customer": 1, "price": 1} for number in (1, 2))
    commit(put(1, json.dumps(kept).encode()))
    commit(put(2, json.dumps(gone).encode()))
    assert build.take(lambda: False) == [slow]
    assert list(slow.topic.state.records()) == [], "their intervals have not ended"
    commit(delete(3, key_of(gone, ("/id",), "orders")))
    slow.due(slow.definition.interval_us, 10)
    assert [json.loads(each.body or b"") for each in slow.topic.state.records()] == [kept]
