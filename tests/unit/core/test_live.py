"""Subscriptions without a bookmark: folded while there is any."""

from __future__ import annotations

import pytest
from support.sow_given import book, delete

from raylay.services.core.feature import CommitBatch, FeatureRegistry
from raylay.services.core.fold_backlog import PART_RUNS
from raylay.services.core.live import LiveSubscriptions
from raylay.services.core.sow import SowFeature
from raylay.services.errors import RemoteProtocolError
from raylay.services.expressions.functions import BUILT_IN
from raylay.services.messages.records import Command, RecordBuilder, Run, run_of, scan
from raylay.services.messages.topic_pattern import TopicPattern
from raylay.services.messages.types.registry import MessageTypes
from raylay.services.sow.definition import SowTopicDefinition
from raylay.services.sow.keys import key_of
from raylay.services.subscriptions.delivery import DeliveryContent
from raylay.services.subscriptions.filtered import FilteredSubscriptions
from raylay.services.subscriptions.follow_terms import FollowKind, FollowTerms
from raylay.services.subscriptions.matching import LiveSubscription, topic_filter
from raylay.services.subscriptions.sow_subscriptions import SowSubscriptions

pytestmark = pytest.mark.covers("Replication", "what was committed is folded behind the acks")


def run(first: int, count: int = 1, topic: str = "orders", command: int = Command.PUBLISH) -> Run:
    builder = RecordBuilder(7, topic, "json")
    payload = b"".join(
        builder.build(first + n, b'{"n": %d}' % (first + n), 5, command=command)
        for n in range(count)
    )
    made = run_of(scan(payload)[0], payload)
    made.first_txid = first
    return made


class Bench:
    def __init__(self) -> None:
        self.folds = FeatureRegistry(("live",))
        self.got: list[tuple[list[str], int, int]] = []
        self.made = 0
        self.live = LiveSubscriptions(
            self._deliver,
            self.folds.enlist,
            self._filtered,
            {FollowKind.RECORDS: self._following},
            self._tell,
        )

    def _deliver(
        self, subscribers: tuple[LiveSubscription, ...], delivery: DeliveryContent
    ) -> None:
        names = [subscription.id for subscription in subscribers]
        self.got.append((names, delivery.first_txid, delivery.count))

    def _filtered(self) -> FilteredSubscriptions:
        self.made += 1
        return FilteredSubscriptions(MessageTypes(), BUILT_IN, "A-1", "A")

    def _following(self) -> SowSubscriptions:
        self.made += 1
        topics = (b"kept", b"json")
        return SowSubscriptions(
            MessageTypes(), BUILT_IN, lambda *topic: topic == topics, "A-1", "A"
        )

    def _tell(self, subscription: LiveSubscription, reason: str, left: DeliveryContent) -> None:
        self.got.append(([subscription.id, reason], left.first_txid, left.count))

    def subscribe(self, name: str, topic: str = "orders", content: str = "") -> LiveSubscription:
        made = LiveSubscription(1, name, topic_filter(topic, ""), content)
        self.live.add(made)
        return made

    def commit(self, *runs: Run) -> list[tuple[list[str], int, int]]:
        self.folds.fold(CommitBatch(list(runs), runs[-1].last_txid))
        got, self.got = self.got, []
        return got


def test_it_is_folded_from_the_first_subscription_to_the_last() -> None:
    bench = Bench()
    assert bench.folds.served == () and not len(bench.live)
    one, other = bench.subscribe("one"), bench.subscribe("other")
    assert bench.folds.served == (bench.live,) and len(bench.live) == 2
    bench.live.remove(one)
    assert bench.commit(run(1)) == [(["other"], 1, 1)]
    bench.live.remove(other)
    assert bench.folds.served == ()


def test_what_is_committed_is_delivered_together_to_those_who_want_it() -> None:
    bench = Bench()
    bench.subscribe("one")
    bench.subscribe("all", ".*")
    got = bench.commit(run(1, 2), run(3), run(4, topic="trades"))
    assert got == [(["one", "all"], 1, 3), (["all"], 4, 1)]


def test_what_is_not_journaled_is_delivered_at_once_and_without_a_place() -> None:
    bench = Bench()
    bench.live.transient([run(1)])
    bench.subscribe("one")
    bench.live.transient([run(1, 2), run(3, topic="trades"), run(4, command=Command.DELETE)])
    assert bench.got == [(["one"], 0, 2)]


def test_subscriptions_to_event_topics_are_told_of() -> None:
    told: list[tuple[str, bool]] = []
    live = LiveSubscriptions(
        lambda subscribers, delivery: None,
        FeatureRegistry(("live",)).enlist,
        lambda: FilteredSubscriptions(MessageTypes(), BUILT_IN, "A-1", "A"),
        watch=lambda subscription, is_added: told.append((subscription.id, is_added)),
    )
    one = LiveSubscription(1, "one", topic_filter("/AMPS/ClientStatus", ""))
    other = LiveSubscription(1, "other", topic_filter(".*", ""))
    for each in (one, other):
        live.add(each)
        live.remove(each)
    assert told == [("one", True), ("one", False)]
    with pytest.raises(RemoteProtocolError):
        live.add(LiveSubscription(1, "bad", topic_filter("/AMPS/ClientStatus", ""), "/a ="))
    assert len(told) == 2, "it was not added"


@pytest.mark.parametrize("kept", [False, True])
def test_events_that_a_sow_keeps_come_to_followers_by_its_changes(kept: bool) -> None:
    bench = Bench()
    wanted = topic_filter("orders", "")
    bench.live.add(LiveSubscription(1, "follows", wanted, following=FollowTerms(oof=True)))
    bench.subscribe("plain")
    bench.live.transient([run(1)], kept=kept)
    assert bench.got == ([] if kept else [(["follows"], 0, 1)]) + [(["plain"], 0, 1)]


@pytest.mark.covers("Filters by content", "a subscription with a filter gets what passes")
def test_who_filters_by_content_gets_what_passes_and_nobody_else_pays() -> None:
    bench = Bench()
    plain = bench.subscribe("plain")
    bench.commit(run(1, 3))
    assert not bench.made
    some = bench.subscribe("some", content="/n > 2")
    assert len(bench.live) == 2
    assert bench.commit(run(1, 4)) == [(["plain"], 1, 4), (["some"], 3, 2)]
    bench.live.remove(plain)
    assert bench.commit(run(5)) == [(["some"], 5, 1)]
    bench.live.transient([run(6)])
    assert bench.got == [(["some"], 0, 1)]
    bench.live.remove(some)
    assert bench.folds.served == () and bench.made == 1


def test_who_follows_records_gets_changes_and_nobody_else_pays() -> None:
    bench = Bench()
    bench.subscribe("plain", ".*")
    bench.commit(run(1, 3, "kept"))
    assert not bench.made
    follower = LiveSubscription(1, "f", topic_filter(".*", ""), "/n > 1", 0, FollowTerms(oof=True))
    bench.live.add(follower)
    definition = SowTopicDefinition("kept", "json", keys=("/n",))
    feature = SowFeature(book(definition))

    def commit(*runs: Run) -> list[tuple[list[str], int, int]]:
        batch = CommitBatch(list(runs), runs[-1].last_txid)
        feature.fold(batch)
        bench.folds.fold(batch)
        got, bench.got = bench.got, []
        return got

    deletion = delete(7, key_of({"n": 4}, ("/n",), "kept"), topic="kept")
    assert commit(run(4, 2, "kept"), run(6), deletion) == [
        (["plain"], 4, 2), (["plain"], 6, 1), (["f"], 4, 3), (["f", "deleted"], 0, 1)
    ]  # fmt: skip
    bench.live.transient([run(8)])
    assert bench.got == [(["f"], 0, 1), (["plain"], 0, 1)]
    bench.live.remove(follower)
    assert len(bench.live) == 1


def test_a_filter_that_is_none_is_refused_and_nothing_is_added() -> None:
    bench = Bench()
    with pytest.raises(RemoteProtocolError, match="is no filter: column 5"):
        bench.subscribe("some", content="/n >")
    assert not len(bench.live) and bench.folds.served == ()


def test_a_commit_of_many_new_topics_is_folded_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each new topic is asked of each expression: 300 of one commit of 1,000."""
    bench = Bench()
    live = LiveSubscriptions(
        bench._deliver, bench.folds.enlist, bench._filtered, weighed=bench.folds.weigh_by
    )
    asked = 0
    search = TopicPattern.search

    def counted(pattern: TopicPattern, topic: str) -> bool:
        nonlocal asked
        asked += 1
        return search(pattern, topic)

    for number in range(1_000):
        live.add(LiveSubscription(1, str(number), topic_filter(f"/{number}$", "")))
    unfolded = bench.folds.unfolded
    assert unfolded is not None
    monkeypatch.setattr(TopicPattern, "search", counted)
    runs = [run(number, topic=f"new/{number}") for number in range(1, 301)]
    batch = CommitBatch(runs, 300)
    assert unfolded.is_long(batch) and unfolded.in_parts(runs) is not None
    unfolded.add(batch)
    most = slices = 0
    while unfolded:
        asked = 0
        bench.folds.fold_on(0)
        most, slices = max(most, asked), slices + 1
    assert most <= 1_000 and slices >= 300
    assert [names for names, _, _ in bench.got] == [[str(number)] for number in range(1, 301)]
    assert not unfolded.is_long(batch), "the topics are known"
    assert unfolded.in_parts(runs[:PART_RUNS]) is None


def test_few_subscriptions_weigh_nothing() -> None:
    bench = Bench()
    live = LiveSubscriptions(
        bench._deliver, bench.folds.enlist, bench._filtered, weighed=bench.folds.weigh_by
    )
    for number in range(100):
        live.add(LiveSubscription(1, str(number), topic_filter(f"/{number}$", "")))
    assert bench.folds.unfolded is None


def test_filters_weigh_what_they_look_at() -> None:
    bench = Bench()
    live = LiveSubscriptions(
        bench._deliver, bench.folds.enlist, bench._filtered, weighed=bench.folds.weigh_by
    )
    live.add(LiveSubscription(1, "all", topic_filter("orders", "")))
    assert bench.folds.unfolded is None, "nobody looks at each record"
    others = [
        LiveSubscription(1, f"s{n}", topic_filter("orders", ""), f"/n > {n}") for n in range(40)
    ]
    for each in others:
        live.add(each)
    assert bench.folds.unfolded is not None
    live.fold(CommitBatch([run(1), run(2, topic="quotes")], 2))
    assert live.weigh(run(3)) == 6 and live.weigh(run(3, topic="quotes")) == 0
    assert live.weigh(run(3, topic="new")) == 0, "who names a topic is found by its name"
    more = [
        LiveSubscription(1, f"e{n}", topic_filter(f"^(n|{n})", ""), f"/n > {n}") for n in range(40)
    ]
    for each in more:
        live.add(each)
    assert live.weigh(run(3, topic="new")) > 11, "who wants it is found out, too"
    for each in more:
        live.remove(each)
    for each in others:
        live.remove(each)
    assert live.weigh(run(3)) == 0
