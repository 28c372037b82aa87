"""services/core/sow.py: the state of the world is the fold of the journal."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from support.sow_given import ORDERS, P, Q, book, delete, put, record_bytes, run

from raylay.services.core.feature import CommitBatch
from raylay.services.core.sow import SowFeature
from raylay.services.messages.records import EXPIRATION_S_MAX, Kind, Run
from raylay.services.sow.book import SowBook
from raylay.services.sow.definition import SowTopicDefinition
from raylay.services.sow.keys import key_of
from raylay.services.sow.state import NEVER, RecordChange, SowRules
from raylay.services.sow.topic import SowChange
from raylay.storage.memory_journal import MemoryJournal
from raylay.storage.sow import MemorySowStore

pytestmark = pytest.mark.covers("SOW", "an instance folds its journal into its SOW topics")

S = 1_000_000
BINARY = SowTopicDefinition("b", "binary")


def key(number: int, domain: str = "orders") -> bytes:
    return key_of({"id": number}, ("/id",), domain)


def folded(feature: SowFeature, *runs: Run) -> list[SowChange]:
    batch = CommitBatch(list(runs), runs[-1].last_txid)
    feature.fold(batch)
    return batch.changes


def bodies(there: SowBook) -> dict[bytes, bytes | None]:
    return {each.key: each.body for topic in there.topics for each in topic.state.records()}


def given(txid: int, name: bytes, body: bytes = b"", at_us: int = 1_000, **more: int) -> Run:
    """Of a topic whose keys are given."""
    return put(txid, body, topic="b", kind="binary", key=name, at_us=at_us, **more)


@pytest.mark.covers("SOW", "it is journaled")
def test_publishes_and_deletions_are_folded_and_said() -> None:
    there = book()
    feature, (orders,) = SowFeature(there), there.topics
    first = put(5, b'{"id":1}', b'{"id":2}', at_us=70)
    changes = folded(feature, first)
    assert [(each.change.key, each.change.reason) for each in changes] == [
        (key(1), "inserted"),
        (key(2), "inserted"),
    ]
    stored = orders.state.get(key(2))
    assert stored is not None and stored == changes[1].change.current
    assert (stored.txid, stored.publisher, stored.sequence, stored.updated_us) == (6, P, 6, 70)
    assert changes[1].topic is orders and changes[1].name == b"orders"
    assert changes[1].record is not None and changes[1].record.sequence == 6
    (change,) = folded(feature, delete(7, key(1), key(9)))
    assert (change.change.key, change.change.reason, change.name) == (key(1), "deleted", b"orders")
    assert change.record is not None and change.record.command == 2
    assert feature.status()["json/orders"] == {
        "records": 1,
        "txid": 7,
        "saved_txid": 0,
        "pending_bytes": orders.state.pending_bytes,
        "tombstones": 2,
        "deleted": 1,
        "expired": 0,
        "inserted": 2,
        "updated": 0,
    }


def test_changes_are_counted_from_when_the_instance_serves() -> None:
    feature = SowFeature(book())
    folded(feature, put(5, b'{"id":1}', b'{"id":2}'))
    feature.begin_counting()
    told = feature.status()["json/orders"]
    assert (told["records"], told["inserted"], told["updated"], told["deleted"]) == (2, 0, 0, 0)
    folded(feature, put(7, b'{"id":3}', b'{"id":1}', b'{"id":1}'))
    folded(feature, delete(10, key(2)))
    told = feature.status()["json/orders"]
    assert (told["records"], told["inserted"], told["updated"], told["deleted"]) == (2, 1, 2, 1)


def test_what_is_no_message_of_the_topic_is_counted_and_left() -> None:
    feature = SowFeature(book())
    assert not folded(feature, put(1, b'{"id":1'), put(2, b"{}"))
    assert not folded(feature, run(3, record_bytes(3, b"\xc1", command=2)))
    assert feature.unreadable == 3
    note = put(4, b'{"id":1}')
    note.kind = Kind.WAITER
    assert not folded(feature, note, put(5, b'{"id":1}', topic="other"))
    assert feature.unreadable == 3 and feature.book.topics[0].state.txid == 5
    assert not folded(feature, run(6, record_bytes(6, b"{}", command=5)))


def test_a_damaged_run_is_left_and_said_and_what_follows_is_folded() -> None:
    feature = SowFeature(book())
    damaged = replace(put(1, b'{"id":1}'), payload=b"\xff" * 200)
    half = put(2, b'{"id":2}', b'{"id":3}')
    half = replace(half, payload=half.payload[:-1])
    feature.recover([damaged, half])
    changes = folded(feature, put(4, b'{"id":4}'))
    assert [each.change.key for each in changes] == [key(4)]
    assert set(bodies(feature.book)) == {key(2), key(4)}
    assert feature.unreadable == 2 and "journal verify" in feature.first_unreadable
    assert feature.book.topics[0].state.txid == 4


def test_a_merged_message_is_one_like_any() -> None:
    feature = SowFeature(book())
    (change,) = folded(feature, run(1, record_bytes(1, b'{"id":1}', command=6)))
    assert change.change.key == key(1)


def test_logical_topics_are_said() -> None:
    there = book(replace(ORDERS, name="many", pattern="^o/"))
    feature = SowFeature(there)
    folded(feature, put(1, b'{"id":1}', topic="o/eu"), put(2, b'{"id":1}', topic="o/us"))
    found = {each.key: each.topic for each in there.topics[0].state.records()}
    assert found == {key(1, "o/eu"): b"o/eu", key(1, "o/us"): b"o/us"}
    (change,) = folded(feature, delete(3, key(1, "o/us"), topic="o/eu"))
    assert change.name == b"o/us"


@pytest.mark.covers("SOW", "expiration of message and topic")
def test_expirations_are_those_of_when_it_was_published() -> None:
    there = book(replace(BINARY, rules=SowRules(expires=True, lifetime_us=60 * S)))
    feature, (topic,) = SowFeature(there), there.topics

    def expires_us(txid: int, **more: int) -> int:
        folded(feature, run(txid, record(txid, **more), at_us=100 * S))
        found = topic.state.get(b"k")
        assert found is not None
        return found.expires_us

    def record(txid: int, **more: int) -> bytes:
        return record_bytes(txid, topic="b", kind="binary", key=b"k", **more)

    assert expires_us(1, at_us=90 * S) == 150 * S
    assert expires_us(2, at_us=90 * S, expiration_s=5) == 95 * S
    assert expires_us(3, at_us=900 * S) == 160 * S, "a clock ahead prolongs nothing"
    assert expires_us(4, at_us=90 * S, expiration_s=EXPIRATION_S_MAX) == NEVER
    folded(feature, given(5, b"other", at_us=100 * S, expiration_s=1))
    (change,) = feature.tick(101 * S)
    assert change == SowChange(
        topic, b"b", RecordChange(b"other", change.change.previous, None, "expired"), None
    )
    assert feature.expired == {"binary/b": 1}


class Indexes:
    """What they were told."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def changed(self, change: RecordChange) -> None:
        self.reasons.append(change.reason)


def test_indexes_hear_of_each_change_in_recoveries_too() -> None:
    there = book(replace(BINARY, rules=SowRules(expires=True, lifetime_us=1)))
    indexes = there.topics[0].indexes = Indexes()
    feature = SowFeature(there)
    feature.recover([given(1, b"a")])
    folded(feature, given(2, b"a"), delete(3, b"a", topic="b", kind="binary"), given(4, b"a"))
    feature.tick(10**15)
    assert indexes.reasons == ["inserted", "updated", "deleted", "inserted", "expired"]


def test_tombstones_go_when_they_are_old_and_every_destination_has_them() -> None:
    there = book()
    feature, state = SowFeature(there), there.topics[0].state
    folded(feature, delete(1, key(1), at_us=0))
    feature.tick(100 * S)
    assert state.tombstones == 1
    feature.delivered_txid = 1
    feature.tick(60 * S)
    assert state.tombstones == 1
    feature.tick(60 * S + 1)
    assert state.tombstones == 0


def test_where_the_last_writer_counts_tombstones_stay_for_a_week() -> None:
    """A late message of before the deletion must not come back: a link may be down for days."""
    there = book(replace(BINARY, last_writer=True))
    feature, state = SowFeature(there), there.topics[0].state
    folded(feature, delete(1, b"k", topic="b", kind="binary", at_us=0))
    feature.delivered_txid = 1
    week_us = 7 * 24 * 3600 * 1_000_000
    for at_us, count in ((60 * S + 1, 1), (week_us, 1), (week_us + 1, 0)):
        feature.tick(at_us)
        assert state.tombstones == count


def test_the_last_writer_counts_where_that_is_asked_for() -> None:
    for last_writer, expected in ((False, b"older"), (True, b"newer")):
        there = book(replace(BINARY, last_writer=last_writer))
        feature = SowFeature(there)
        folded(
            feature,
            run(
                1,
                record_bytes(
                    1, b"newer", topic="b", kind="binary", key=b"k", publisher=P, at_us=20
                ),
            ),
        )
        folded(
            feature,
            run(
                2,
                record_bytes(
                    1, b"older", topic="b", kind="binary", key=b"k", publisher=Q, at_us=10
                ),
            ),
        )
        assert bodies(there) == {b"k": expected}


# -- what goes to disk, and comes from it ----------------------------------------------------
def test_the_floor_is_what_the_store_has_of_every_topic_that_it_keeps() -> None:
    store = MemorySowStore()
    there = book(ORDERS, replace(ORDERS, name="memory", transient=True), store=store)
    feature = SowFeature(there)
    assert (
        feature.floor_txid == 0
        and SowFeature(book(replace(ORDERS, transient=True))).floor_txid is None
    )
    folded(feature, put(1, b'{"id":1}'), put(2, b'{"id":2}', topic="memory"))
    assert feature.pending_bytes > 0
    pending = feature.pending()
    assert list(pending) == ["json/orders"] and feature.floor_txid == 0
    folded(feature, put(3, b'{"id":3}'))
    store.commit(pending)
    feature.saved()
    assert feature.floor_txid == 2
    feature.pending()
    feature.not_saved()
    assert feature.floor_txid == 2
    assert [feature.removable(before_txid) for before_txid in (2, 3, 9)] == [2, 3, 3]
    assert feature.delivered_txid == 8
    store.commit(feature.pending())
    feature.saved()
    assert feature.floor_txid == 3
    again = book(ORDERS, store=store.crash())
    assert bodies(again) == {key(1): b'{"id":1}', key(3): b'{"id":3}'}


def journal_of(*runs: Run) -> MemoryJournal:
    journal = MemoryJournal()
    journal.start(lambda last_txid, _: None, lambda first_txid, error: None)
    for each in runs:
        journal.stage(each)
    journal.sync()
    return journal


@pytest.mark.covers("SOW", "recovery: the store behind the log")
@pytest.mark.parametrize("seed", range(20))
def test_a_recovery_from_any_point_has_what_was_folded(seed: int) -> None:
    chance = random.Random(seed)
    store = MemorySowStore()
    rules = SowRules(window_us=50)
    definitions = (replace(BINARY, rules=rules), replace(ORDERS, transient=True))
    there = book(*definitions, store=store)
    feature = SowFeature(there)
    runs: list[Run] = []
    for txid in range(1, 60):
        name = b"%d" % chance.randrange(5)
        sequence = chance.randrange(1, 40)
        match chance.randrange(4):
            case 0:
                runs.append(
                    delete(txid, name, topic="b", kind="binary", sequence=sequence, at_us=txid)
                )
            case 1:
                runs.append(put(txid, b'{"id":%s}' % name, at_us=txid))
            case _:
                runs.append(given(txid, name, b"%d" % txid, at_us=txid, first=sequence))
        folded(feature, runs[-1])
        if chance.random() < 0.1:
            store.commit(feature.pending())
            feature.saved()
    again = book(*definitions, store=store.crash())
    recovered = SowFeature(again)
    assert not recovered.begin(1, runs[-1].last_txid)
    recovered.recover_from(Reading(runs), runs[-1].last_txid)
    for before, after in zip(there.topics, again.topics, strict=True):
        assert list(after.state.records()) == list(before.state.records())
        assert after.state.count == before.state.count and after.state.txid == before.state.txid
        for at_us in range(20, 60):
            assert list(after.state.as_of(at_us, 60)) == list(before.state.as_of(at_us, 60))


class Reading:
    """A journal of runs, three at a time."""

    def __init__(self, runs: list[Run]) -> None:
        self.runs = runs

    def read(self, after_txid: int, bytes_max: int) -> list[Run]:
        found = (part for each in self.runs if (part := each.after(after_txid)) is not None)
        return [each for _, each in zip(range(3), found, strict=False)]


def test_what_was_folded_is_told_on_the_way() -> None:
    feature = SowFeature(book())
    told: list[int] = []
    runs = [put(txid, b'{"id":%d}' % txid) for txid in range(1, 8)]
    feature.begin(1, 9)
    feature.recover_from(Reading(runs), 9, lambda: told.append(feature.recovered_txid or 0))
    assert told == [3, 6, 7] and feature.recovered_txid == 9


@pytest.mark.covers("SOW", "`persistent` and `transient`")
def test_recovery_points() -> None:
    runs = [given(txid, b"%d" % txid, at_us=txid * S) for txid in range(1, 6)]
    found = {}
    for point in ("epoch", "now", "1970-01-01T00:00:03Z", "1970-01-01T01:00:03+01:00"):
        there = book(replace(BINARY, recovery_point=point))
        feature = SowFeature(there)
        feature.begin(1, 5)
        feature.recover_from(Reading(runs), 5)
        found[point] = len(bodies(there))
        assert there.topics[0].state.txid == 5
    assert list(found.values()) == [5, 0, 3, 3]


@pytest.mark.covers("SOW", "`persistent` and `transient`")
def test_a_recovery_point_is_for_what_begins_anew() -> None:
    store = MemorySowStore()
    store.commit({"binary/b": ({}, 2)})
    there = book(replace(BINARY, recovery_point="now"), store=store)
    feature = SowFeature(there)
    feature.begin(1, 5)
    feature.recover_from(Reading([given(txid, b"%d" % txid) for txid in range(1, 6)]), 5)
    assert sorted(bodies(there)) == [b"3", b"4", b"5"]


def test_a_store_that_does_not_go_with_the_journal_is_said_and_kept() -> None:
    store = MemorySowStore()
    before = SowFeature(book(BINARY, store=store))
    folded(before, given(9, b"a"))
    store.commit(before.pending())
    ahead = SowFeature(book(BINARY, store=store))
    (problem,) = ahead.begin(1, 2)
    assert (problem.event, problem.topic) == ("sow_ahead", "binary/b")
    assert ahead.recovered_txid == 2
    ahead.recover_from(Reading([given(3, b"b")]), 3)
    assert sorted(bodies(ahead.book)) == [b"a", b"b"]
    (gap,) = SowFeature(book(BINARY, store=store)).begin(11, 20)
    assert gap.event == "sow_gap"
    assert not SowFeature(book(BINARY, store=store)).begin(10, 20)


def test_a_topic_that_begins_in_the_middle_has_all_from_there() -> None:
    """A crash before anything was saved takes nothing of it."""
    now = replace(ORDERS, recovery_point="now")
    store = MemorySowStore()
    for begins_at in (0, 5):
        store.drop("json/orders")
        feature = SowFeature(book(now, store=store))
        assert not feature.begin(1, begins_at) and feature.is_urgent
        store.commit(feature.pending())
        feature.saved()
        runs = [put(begins_at + 1, b'{"id":1}'), put(begins_at + 2, b'{"id":2}')]
        feature.fold(CommitBatch(runs, begins_at + 2))
        again = SowFeature(book(now, store=store.crash()))
        assert not again.begin(1, begins_at + 2) and not again.is_urgent
        assert again.recovered_txid == begins_at
        again.recover(runs)
        assert set(bodies(again.book)) == {key(1), key(2)}


def test_an_instant_holds_for_each_recovery() -> None:
    since = replace(ORDERS, recovery_point="1970-01-01T00:00:05Z")
    store = MemorySowStore()
    runs = [put(n, b'{"id":%d}' % n, at_us=n * S) for n in range(1, 9)]
    feature = SowFeature(book(since, store=store))
    feature.begin(1, 8)
    feature.recover(runs[:2])
    store.commit(feature.pending())
    again = SowFeature(book(since, store=store.crash()))
    again.begin(1, 8)
    again.recover(runs[2:])
    assert set(bodies(again.book)) == {key(n) for n in (5, 6, 7, 8)}


@pytest.mark.covers("SOW", "recovery: the store behind the log")
def test_a_store_that_was_ahead_is_so_once_only() -> None:
    """However far the journal has come until anything else is saved."""
    store = MemorySowStore()
    store.commit({"json/orders": ({}, 100)})
    feature = SowFeature(book(store=store))
    (problem,) = feature.begin(1, 50)
    assert problem.event == "sow_ahead" and feature.is_urgent
    store.commit(feature.pending())
    again = SowFeature(book(store=store.crash()))
    assert not again.begin(1, 200) and again.recovered_txid == 50 and not again.is_urgent


def test_the_first_that_is_unreadable_is_told() -> None:
    feature = SowFeature(book())
    folded(feature, put(1, b'{"id":1'), put(2, b"{}"))
    assert "message 1|1| on orders is in the log and not in SOW topic" in feature.first_unreadable
    feature = SowFeature(book())
    folded(feature, delete(1, b"k" * 300))
    assert feature.first_unreadable.endswith("it is a delete that does not say which keys")
    assert feature.book.topics[0].state.tombstones == 0, "what no store can write is not folded"


def test_only_those_that_are_due_have_another_turn() -> None:
    brief = replace(BINARY, rules=SowRules(expires=True))
    feature = SowFeature(book(brief, ORDERS))
    for number in range(1, 301):
        folded(feature, given(number, b"k%d" % number, at_us=S, expiration_s=1))
    orders = feature.book.topics[1].state
    seen: list[int] = []

    def pruned(now_us: int, most: int) -> int:
        seen.append(now_us)
        return 0

    orders.prune = pruned  # type: ignore[method-assign]
    assert len(feature.tick(9 * S)) == 200 and feature.is_due(9 * S) and len(seen) == 1
    assert len(feature.tick(9 * S, only_due=True)) == 100 and not feature.is_due(9 * S)
    assert len(seen) == 1


@pytest.mark.covers("Event topics", "SOW topics keep events: documented keys, restart")
def test_events_are_kept_without_a_transaction_and_survive_in_the_store() -> None:
    stats = SowTopicDefinition("/AMPS/SOWStats", "json", keys=("/SOWStats/topic",))
    store = MemorySowStore()
    there = book(stats, ORDERS, store=store)
    feature, kept = SowFeature(there), there.topics[0]
    folded(feature, put(5, b'{"id":1}'))
    of = {"topic": "/AMPS/SOWStats", "publisher": Q}
    one = put(1, b'{"SOWStats":{"topic":"a","record_count":1}}', first=1, **of)
    two = put(1, b'{"SOWStats":{"topic":"a","record_count":2}}', b'{"x":1}', first=2, **of)
    changes = feature.keep([one, two, put(1, b"{}", topic="/AMPS/other")])
    assert [each.change.reason for each in changes] == ["inserted", "updated"]
    assert feature.unreadable == 1, "a message without the key"
    (record,) = kept.state.records()
    assert (record.txid, record.body) == (0, b'{"SOWStats":{"topic":"a","record_count":2}}')
    assert kept.state.txid == 5, "the journal may be released all the same"
    store.commit(feature.pending())
    feature.saved()
    again = book(stats, ORDERS, store=store)
    SowFeature(again).recover([])
    assert [each.body for each in again.topics[0].state.records()] == [record.body]


def test_no_pattern_takes_events() -> None:
    there = book(SowTopicDefinition("all", "json", pattern=".*", keys=("/id",)))
    assert there.find(b"orders", b"json") is not None
    assert there.find(b"/AMPS/SOWStats", b"json") is None


@pytest.mark.covers("Event topics", "SOW topics keep events: documented keys, restart")
@pytest.mark.parametrize("seed", range(20))
def test_events_and_the_journal_are_kept_beside_each_other(seed: int) -> None:
    """After a crash the journal's topics have everything, and events are as they were stored."""
    rng = random.Random(seed)
    stats = SowTopicDefinition("/AMPS/SOWStats", "json", keys=("/SOWStats/topic",))
    store, journal = MemorySowStore(), list[Run]()
    there = book(stats, ORDERS, store=store)
    feature = SowFeature(there)
    orders: dict[bytes, bytes] = {}
    events: dict[bytes, bytes] = {}
    stored: dict[bytes, bytes] = {}
    sequence = 0

    def held(topic: int) -> dict[bytes, bytes]:
        records = there.topics[topic].state.records()
        return {each.key: each.body for each in records if each.body is not None}

    for _ in range(120):
        match rng.choice(("journal", "event", "event", "save", "fail", "crash")):
            case "journal":
                number = rng.randrange(4)
                body = b'{"id":%d,"n":%d}' % (number, len(journal))
                journal.append(put(len(journal) + 1, body))
                folded(feature, journal[-1])
                orders[key(number)] = body
            case "event":
                sequence += 1
                name = rng.choice("abc")
                body = b'{"SOWStats":{"topic":"%s","record_count":%d}}' % (name.encode(), sequence)
                of = {"topic": "/AMPS/SOWStats", "publisher": Q}
                (change,) = feature.keep([put(1, body, first=sequence, **of)])
                events[change.change.key] = body
            case "save" | "fail" as what:
                pending = feature.pending()
                taken = dict(events)
                if what == "save":
                    store.commit(pending)
                    feature.saved()
                    stored = taken
                else:
                    feature.not_saved()
            case "crash":
                there = book(stats, ORDERS, store=store)
                feature = SowFeature(there)
                assert feature.begin(1, len(journal)) == [], "no store is ahead of the journal"
                after = feature.recovered_txid or 0
                feature.recover(run for run in journal if run.last_txid > after)
                for topic in there.topics:
                    topic.state.seen(len(journal))
                events = dict(stored)
        assert (held(0), held(1)) == (events, orders)
