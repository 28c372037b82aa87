"""Runs that are folded and prepared as a whole have the effect that their records have one by
one."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from support.sow_given import ORDERS, P, Q, book, delete, put, record_bytes, run

from raylay.services.core.feature import CommitBatch
from raylay.services.core.sow import SowFeature
from raylay.services.errors import SowDamaged
from raylay.services.messages.records import Run
from raylay.services.sow.keys import key_of
from raylay.services.sow.staging import SowStaging
from raylay.services.sow.state import SowRules, SowState
from raylay.storage.sow import MemorySowStore

pytestmark = pytest.mark.covers("SOW", "an instance folds its journal into its SOW topics")

INDEXED = replace(ORDERS, hash_indexes=(("/symbol",), ("/symbol", "/side"), ("/legs/id",)))


def feature_of(
    definition: Any = INDEXED, *, is_wanted: bool = False, store: MemorySowStore | None = None
) -> SowFeature:
    made = SowFeature(book(definition, store=store))
    made.wanted_by(lambda _: is_wanted)
    made.book.topics[0].index()
    return made


def fold(feature: SowFeature, *runs: Run) -> int:
    batch = CommitBatch(list(runs), runs[-1].last_txid)
    feature.fold(batch)
    return len(batch.changes)


def contents(feature: SowFeature) -> Any:
    (topic,) = feature.book.topics
    state, indexes = topic.state, topic.indexes
    assert indexes is not None
    return (
        list(state.records()),
        state.count,
        state.txid,
        state.pending_bytes,
        feature.put,
        feature.unreadable,
        feature.first_unreadable,
        [(index.keys, index.always) for index in indexes._indexes],
        indexes._odd,
    )


def body_by(chance: random.Random) -> bytes:
    number = chance.randrange(12)
    symbol = chance.choice(['"IBM"', '"07"', "7", '"é"', '""', "null", "true", "2.5", '["a","b"]'])
    more = chance.choice(["", ',"side":1', ',"side":"s"', ',"legs":[{"id":1},{"id":2}]', ',"x":{}'])
    key = chance.choice(
        [f"{number}", f'"{number}"', f'"0{number}"' if number == 11 else f"{number}"]
    )
    return f'{{"id":{key},"symbol":{symbol}{more}}}'.encode()


def run_by(chance: random.Random, txid: int) -> Run:
    kind = chance.random()
    publisher = chance.choice((P, Q))
    bodies = [body_by(chance) for _ in range(chance.randrange(1, 6))]
    # Some come late: from before what the publisher sent already.
    first = txid if chance.random() < 0.8 else max(1, txid - chance.randrange(20))
    if kind < 0.75:
        return put(txid, *bodies, first=first, publisher=publisher)
    if kind < 0.8:
        return put(txid, *bodies, first=first, publisher=publisher, command=6)
    if kind < 0.85:
        return put(txid, *bodies, first=first, publisher=publisher, expiration_s=60)
    if kind < 0.9:
        return put(txid, *bodies, b'{"none":1}', b"no json", first=first, publisher=publisher)
    if kind < 0.95:
        return put(txid, *bodies, first=first, publisher=publisher, trace=b"t" * 25)
    return delete(txid, key_of({"id": chance.randrange(12)}, ("/id",), "orders"), publisher=Q)


@pytest.mark.parametrize("seed", range(40))
def test_a_run_at_once_is_its_records_one_by_one(seed: int) -> None:
    chance = random.Random(seed)
    stores = [MemorySowStore(), MemorySowStore()]
    at_once = feature_of(store=stores[0])
    one_by_one = feature_of(store=stores[1], is_wanted=True)
    txid = 1
    taken = [0, 0]
    for _ in range(60):
        made = run_by(chance, txid)
        changed = fold(at_once, made), fold(one_by_one, made)
        taken = [taken[0] + changed[0], taken[1] + changed[1]]
        txid += made.count
        assert contents(at_once) == contents(one_by_one)
        if chance.random() < 0.2:
            is_saved = chance.random() < 0.7
            for feature, store in zip((at_once, one_by_one), stores, strict=True):
                pending = dict(feature.pending())
                if is_saved:
                    store.commit(pending)
                    feature.saved()
                else:
                    feature.not_saved()
        if chance.random() < 0.1:
            for feature in (at_once, one_by_one):
                # Tombstones are forgotten, so that runs are taken as a whole again.
                feature.delivered_txid = txid
                feature.book.topics[0].state.forget(txid, 1 << 60)
    assert taken[0] < taken[1]


def test_a_run_over_what_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemorySowStore()
    feature = SowFeature(book(ORDERS, store=store))
    fold(feature, put(1, b'{"id":1}', b'{"id":2}', first=100))
    store.commit(dict(feature.pending()))
    feature.saved()
    again = SowFeature(book(ORDERS, store=store))
    again.wanted_by(lambda _: False)
    state = again.book.topics[0].state
    # 2 comes late; 1 is replaced, and 3 is new.
    late = run(3, record_bytes(50, b'{"id":2,"late":1}'))
    fold(again, late, put(4, b'{"id":1,"n":1}', b'{"id":3}', first=102))
    assert {each.body for each in state.records()} == {b'{"id":1,"n":1}', b'{"id":2}', b'{"id":3}'}
    assert state.count == 3 and state.txid == 5 and again.put["json/orders"] == 2


@pytest.mark.parametrize(
    "rules",
    [SowRules(expires=True, lifetime_us=10), SowRules(window_us=10), SowRules(lifetime_us=9)],
)
def test_where_time_decides_records_are_taken_one_by_one(rules: SowRules) -> None:
    feature = feature_of(replace(INDEXED, rules=rules))
    assert not feature.book.topics[0].state.takes_runs
    assert fold(feature, put(1, b'{"id":1}')) == 1


def test_who_needs_the_changes_gets_them() -> None:
    feature = feature_of()
    state = feature.book.topics[0].state
    assert fold(feature, put(1, b'{"id":1}')) == 0 and state.takes_runs
    query = state.query()
    # A query that began sees what was there then.
    assert not state.takes_runs and fold(feature, put(2, b'{"id":1,"n":2}')) == 1
    assert [value[-8:] for _, value in query.take(10)] == [b'{"id":1}']
    assert state.takes_runs and fold(feature, put(3, b'{"id":1}')) == 0
    fold(feature, delete(4, key_of({"id": 1}, ("/id",), "orders")))
    assert not state.takes_runs
    assert not SowState(SowRules(), last_writer=True).takes_runs
    assert not SowState(SowRules(), kept=False).takes_runs


def test_a_run_that_is_folded_in_part_is_taken_on_from_there() -> None:
    feature = feature_of()
    state = feature.book.topics[0].state
    state.seen(2)
    fold(feature, put(1, b'{"id":1}', b'{"id":2}', b'{"id":3}'))
    assert [each.body for each in state.records()] == [b'{"id":3}'] and state.txid == 3


def test_a_value_that_is_no_record_is_damage() -> None:
    store = MemorySowStore()
    name = key_of({"id": 1}, ("/id",), "orders")
    store.commit({"json/orders": ({b"v" + name: b"short"}, 1)})
    feature = SowFeature(book(ORDERS, store=store))
    feature.wanted_by(lambda _: False)
    with pytest.raises(SowDamaged, match="has 5 bytes only"):
        fold(feature, put(2, b'{"id":1}'))


# -- preparation -----------------------------------------------------------------------------------
class _OneByOne(SowStaging):
    """Prepares each record by itself."""

    def _plain_keys(self, run: Run) -> None:
        return None


@pytest.mark.parametrize("seed", range(40))
def test_a_run_is_prepared_as_its_records_are(seed: int) -> None:
    chance = random.Random(seed)
    made = [feature_of(), feature_of()]
    topics = [feature.book.topics[0] for feature in made]
    staging = topics[0].staging
    assert isinstance(staging, SowStaging)
    topics[1].staging = _OneByOne(topics[1], staging._functions)
    txid = 1
    for _ in range(40):
        published = run_by(chance, txid)
        if published.flags & 32:
            continue
        prepared = []
        for topic in topics:
            assert topic.staging is not None
            found = topic.staging.prepare(published, 1_000, 1_000)
            prepared.append([(each.payload, each.count) for each in found.runs])
            prepared.append([(each.ranges, each.reason, each.text) for each in found.refused])
            at = txid
            for each in found.runs:
                each.first_txid, each.receive_time_us = at, 1_000
                topic.staging.staged(each)
                at += each.count
        assert prepared[:2] == prepared[2:]
        runs = [found for found in found.runs if found.count]
        if runs:
            txid = runs[-1].last_txid + 1
            for feature, topic in zip(made, topics, strict=True):
                assert topic.staging is not None
                staged = [topic.staging.keys_of(each) for each in runs]
                assert all(keys is not None and None not in keys for keys in staged)
                fold(feature, *runs)
        assert contents(made[0])[:4] == contents(made[1])[:4]
