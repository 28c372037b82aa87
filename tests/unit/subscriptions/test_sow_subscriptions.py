"""Who follows records: he who applies what he is given to the rows of his query has the records
that his filter is true of, and no others, whatever is published, deleted and expires."""

from __future__ import annotations

import random
from typing import Any

import orjson
import pytest
from support.sow_given import P, Q, book, delete, put

from raylay.services.core.feature import CommitBatch
from raylay.services.core.sow import SowFeature
from raylay.services.errors import RemoteProtocolError
from raylay.services.expressions.expression import expression
from raylay.services.expressions.functions import BUILT_IN
from raylay.services.messages.records import Record, Run, iterate_records
from raylay.services.messages.types.registry import MessageTypes
from raylay.services.sow.definition import SowTopicDefinition
from raylay.services.sow.keys import key_of
from raylay.services.sow.query.planning import QUERY, around_record
from raylay.services.sow.query.query_execution import QueryExecution, QueryPart, QueryTerms
from raylay.services.sow.state import SowRules
from raylay.services.subscriptions.follow_terms import FollowTerms
from raylay.services.subscriptions.matching import LiveSubscription, topic_filter
from raylay.services.subscriptions.sow_subscriptions import SowSubscriptions

pytestmark = pytest.mark.covers("SOW", "oof, deltas and select lists")

TYPES = MessageTypes()
JSON = TYPES["json"]
ORDERS = SowTopicDefinition("orders", "json", keys=("/id",), rules=SowRules(expires=True))
S = 1_000_000


def key(number: int) -> bytes:
    return key_of({"id": number}, ("/id",), "orders")


class House:
    """A SOW topic and those who follow it."""

    def __init__(self, *definitions: SowTopicDefinition) -> None:
        self.book = book(*(definitions or (ORDERS,)))
        self.sow = SowFeature(self.book)
        self.following = SowSubscriptions(
            TYPES, BUILT_IN, lambda topic, kind: self.book.find(topic, kind) is not None, "A-1", "A"
        )

    def follow(
        self, name: str, content: str = "", topic: str = "orders", **wishes: Any
    ) -> LiveSubscription:
        made = LiveSubscription(1, name, topic_filter(topic, ""), content, 0, FollowTerms(**wishes))
        self.following.add(made)
        return made

    def commit(self, *runs: Run) -> list[tuple[str, str, Record]]:
        batch = CommitBatch(list(runs), runs[-1].last_txid)
        self.sow.fold(batch)
        return self.told(list(runs), batch.changes)

    def told(self, runs: list[Run], changes: Any) -> list[tuple[str, str, Record]]:
        return [
            (subscription.id, reason, record)
            for subscription, reason, delivery in self.following.deliveries(runs, changes)
            for record in iterate_records(b"".join(delivery.bodies))
        ]

    def expire(self, now_us: int) -> list[tuple[str, str, Record]]:
        return self.told([], self.sow.tick(now_us))


def said(told: list[tuple[str, str, Record]]) -> list[tuple[str, str, bytes]]:
    return [(name, reason, record.body) for name, reason, record in told]


@pytest.mark.covers("SOW", "out of focus: `deleted`")
def test_what_comes_changes_and_leaves() -> None:
    house = House()
    house.follow("oof", "/p > 1", oof=True)
    house.follow("delta", "/p > 1", oof=True, delta=True)
    told = house.commit(put(1, b'{"id":1,"p":5,"s":"x"}', at_us=S))
    assert said(told) == [
        ("oof", "", b'{"id":1,"p":5,"s":"x"}'),
        ("delta", "", b'{"id":1,"p":5,"s":"x"}'),
    ]
    assert {(each.key, each.command) for _, _, each in told} == {(key(1), 1)}
    told = house.commit(put(2, b'{"id":1,"p":7,"s":"x"}', at_us=S))
    assert said(told) == [("oof", "", b'{"id":1,"p":7,"s":"x"}'), ("delta", "", b'{"id":1,"p":7}')]
    assert [(each.key, each.command) for _, _, each in told] == [(key(1), 1), (key(1), 6)]
    told = house.commit(put(3, b'{"id":1,"p":7,"s":"x"}', at_us=S))
    assert said(told) == [("oof", "", b'{"id":1,"p":7,"s":"x"}')], "nothing has changed"
    told = house.commit(put(4, b'{"id":1,"p":0,"s":"y"}', at_us=S))
    left = b'{"id":1,"p":0,"s":"y"}'
    assert said(told) == [("oof", "match", left), ("delta", "match", left)]
    assert {(each.key, each.sequence) for _, _, each in told} == {(key(1), 4)}
    assert not house.commit(put(5, b'{"id":1,"p":1}', at_us=S)) and not house.commit(
        delete(6, key(1))
    )
    told = house.commit(put(7, b'{"id":1,"p":9}', at_us=S), delete(8, key(1), key(5)))
    assert [reason for name, reason, _ in told if name == "delta"] == ["", "deleted"]
    assert [reason for name, reason, _ in told if name == "oof"] == ["", "deleted"]
    assert [each.sequence for name, _, each in told if name == "oof"] == [7, 7]
    house.commit(put(9, b'{"id":2,"p":9}', at_us=S, expiration_s=5))
    told = house.expire(7 * S)
    assert said(told) == [
        ("oof", "expired", b'{"id":2,"p":9}'), ("delta", "expired", b'{"id":2,"p":9}')
    ]  # fmt: skip


@pytest.mark.covers("SOW", "out of focus: `deleted`")
def test_who_asks_for_no_oof_is_told_of_none() -> None:
    house = House()
    house.follow("cut", "/p > 1", select="[-/,+/p]")
    told = house.commit(put(1, b'{"id":1,"p":5}', b'{"id":2,"p":0}', at_us=S))
    assert said(told) == [("cut", "", b'{"p":5}')]
    assert not house.commit(put(3, b'{"id":1,"p":0}', at_us=S), delete(4, key(1)))


@pytest.mark.covers("SOW", "`delta_subscribe`")
def test_deltas_say_what_was_asked_for() -> None:
    house = House()
    house.follow("all", delta=True)
    house.follow("no_empties", delta=True, no_empties=True, no_sowkey=True)
    house.follow("cut", delta=True, select="[-/s]")
    house.commit(put(1, b'{"id":1,"p":5,"s":"x"}', at_us=S))
    assert sorted(said(house.commit(put(2, b'{"id":1,"p":5}', at_us=S)))) == [
        ("all", "", b'{"id":1,"s":null}')
    ], "a field is gone: without empties, and without that field, nothing is to be said"
    told = house.commit(put(3, b'{"id":1,"p":6,"s":"y"}', at_us=S))
    assert sorted(said(told)) == [
        ("all", "", b'{"id":1,"p":6,"s":"y"}'),
        ("cut", "", b'{"id":1,"p":6}'),
        ("no_empties", "", b'{"id":1,"p":6,"s":"y"}'),
    ]
    assert {(name, record.key) for name, _, record in told} == {
        ("all", key(1)), ("cut", key(1)), ("no_empties", b"")
    }  # fmt: skip


@pytest.mark.parametrize("is_restricted_first", [False, True])
def test_who_may_not_see_a_record_now_shares_no_form_with_who_may(
    is_restricted_first: bool,
) -> None:
    """The record stays, but leaves what one of two may see: he is shown it as it was."""
    house = House()
    names = ("restricted", "open") if is_restricted_first else ("open", "restricted")
    for name in names:
        house.follow(name, "/p > 1", oof=True, keeps_back=name == "restricted")
    house.commit(put(1, b'{"id":1,"p":5,"s":"old"}', at_us=S))
    told = house.commit(put(2, b'{"id":1,"p":0,"s":"secret"}', at_us=S))
    assert sorted(said(told)) == [
        ("open", "match", b'{"id":1,"p":0,"s":"secret"}'),
        ("restricted", "match", b'{"id":1,"p":5,"s":"old"}'),
    ]


@pytest.mark.parametrize("is_reversed", [False, True])
def test_followers_with_different_wishes_share_no_delta(is_reversed: bool) -> None:
    """All who differ in one wish follow the same change, whoever comes first."""
    house = House()
    wishes = {
        "plain": {},
        "no_empties": {"no_empties": True},
        "no_sowkey": {"no_sowkey": True},
        "cut": {"select": "[-/s]"},
    }
    for name in sorted(wishes, reverse=is_reversed):
        house.follow(name, delta=True, **wishes[name])
    house.commit(put(1, b'{"id":1,"p":5,"s":"x"}', at_us=S))
    told = house.commit(put(2, b'{"id":1,"p":6}', at_us=S))
    bodies = {name: orjson.loads(record.body) for name, _, record in told}
    assert bodies == {
        "plain": {"id": 1, "p": 6, "s": None},
        "no_empties": {"id": 1, "p": 6},
        "no_sowkey": {"id": 1, "p": 6, "s": None},
        "cut": {"id": 1, "p": 6},
    }
    keys = {name: record.key for name, _, record in told}
    assert keys == {"plain": key(1), "no_empties": key(1), "no_sowkey": b"", "cut": key(1)}


@pytest.mark.covers("SOW", "`delta_subscribe`")
def test_a_topic_without_state_gives_messages() -> None:
    house = House()
    house.follow("all", "/p > 1", topic=".*", oof=True, delta=True, select="[-/p]")
    told = house.commit(
        put(1, b'{"id":1,"p":2}', at_us=S),
        put(2, b'{"id":1,"p":3}', b'{"id":1,"p":0}', b"{", topic="trades"),
        put(5, b'{"id":1,"p":1}', at_us=S),
        put(6, b'{"id":7,"p":4}', topic="trades"),
    )
    assert [(reason, each.topic, each.body) for _, reason, each in told] == [
        ("", "orders", b'{"id":1}'),
        ("", "trades", b'{"id":1}'),
        ("match", "orders", b'{"id":1}'),
        ("", "trades", b'{"id":7}'),
    ], "in the order of the log"
    assert not [*house.following.deliveries([delete(7, key(1), topic="trades")])]
    unjournaled = [*house.following.deliveries([put(8, b'{"id":1,"p":3}')], journaled=False)]
    assert [(reason, each.first_txid) for _, reason, each in unjournaled] == [("", 0)]


@pytest.mark.covers("SOW", "`SowKeys`")
def test_only_some_keys() -> None:
    house = House()
    house.follow("one", oof=True, keys=frozenset((key(1),)))
    told = house.commit(put(1, b'{"id":1}', b'{"id":2}', at_us=S), delete(3, key(1), key(2)))
    assert [(reason, each.key) for _, reason, each in told] == [("", key(1)), ("deleted", key(1))]


def test_types_without_fields_are_given_whole_messages() -> None:
    house = House(SowTopicDefinition("b", "binary"))
    house.follow("all", topic="b", oof=True, delta=True, select="[-/a]")
    for txid, body in ((1, b"\x00one"), (2, b"\x01two")):
        told = house.commit(put(txid, body, topic="b", kind="binary", key=b"k"))
        assert said(told) == [("all", "", body)]


@pytest.mark.covers("SOW", "`delta_subscribe`")
def test_what_cannot_be_followed_is_refused() -> None:
    house = House()
    for content, wishes, reason in (
        ("/a >", {}, "bad_filter"),
        ("UNIX_TIMESTAMP() > 5", {"oof": True}, "bad_filter"),
        ("", {"select": "a"}, "bad_select"),
    ):
        with pytest.raises(RemoteProtocolError) as caught:
            house.follow("x", content, **wishes)
        assert caught.value.reason == reason
    assert not len(house.following)


def test_consecutive_messages_share_a_delivery_and_who_left_gets_nothing() -> None:
    house = House()
    one = house.follow("one", oof=True)
    house.follow("two", "/id < 3", oof=True)
    runs = [put(1, *(b'{"id":%d}' % number for number in range(5)), at_us=S)]
    batch = CommitBatch(runs, 5)
    house.sow.fold(batch)
    found = list(house.following.deliveries(runs, batch.changes))
    assert [(each.id, made.first_txid, made.count) for each, _, made in found] == [
        ("one", 1, 5), ("two", 1, 3)
    ]  # fmt: skip
    house.following.remove(one)
    assert one not in house.following and len(house.following) == 1
    told = house.commit(put(6, b'{"id":1}', at_us=S))
    assert [name for name, _, _ in told] == ["two"]


FILTERS = [
    "",
    "/p > 1",
    "/s = 'x'",
    "/p > 1 AND /s = 'x'",
    "/id < 3",
    "SOW_KEY() > 'm'",
    "/p IS NULL",
]


class Model:
    """A subscriber that applies what he is given."""

    def __init__(self, house: House, name: str, content: str, delta: bool, oof: bool) -> None:
        self.content, self.oof = content, oof
        (topic,) = house.book.topics
        asked = expression(content, QUERY) if content else None
        query = QueryExecution([QueryPart(b"orders", JSON, topic.state.query())], QueryTerms(asked))
        self.subscription = house.follow(name, content, delta=delta, oof=oof)
        self.records: dict[bytes, bytes] = {}
        while not query.done:
            for frame in query.turn(lambda: True):
                for record in iterate_records(b"".join(frame)):
                    self.records[record.key] = record.body

    def take(self, reason: str, record: Record) -> None:
        if reason:
            assert self.oof
            assert record.key in self.records, "it had it"
            del self.records[record.key]
        elif record.command == 6:
            self.records[record.key] = JSON.merge(self.records[record.key], record.body)
        else:
            self.records[record.key] = record.body

    def check(self, house: House) -> None:
        (topic,) = house.book.topics
        matches = expression(self.content or "1 = 1", QUERY).matches
        expected = {
            each.key: filled(each.body or b"")
            for each in topic.state.records()
            if matches(JSON.parse(each.body or b""), around_record(each, b"orders", "", ""))
        }
        held = {name: filled(body) for name, body in self.records.items()}
        if self.oof:
            assert held == expected
        else:
            assert {name: held.get(name) for name in expected} == expected


def filled(body: bytes) -> dict[str, Any]:
    """The fields that have a value: no delta takes one away."""
    return {name: value for name, value in orjson.loads(body).items() if value is not None}


@pytest.mark.parametrize("seed", range(30))
def test_a_subscriber_has_what_its_filter_is_true_of(seed: int) -> None:
    chance = random.Random(seed)
    house = House(ORDERS if seed % 3 else SowTopicDefinition("orders", "json", keys=("/id",)))
    models: list[Model] = []
    txid = now_us = 0
    for step in range(120):
        now_us += S
        what = chance.randrange(12)
        if what == 0 or not models:
            content = chance.choice(FILTERS)
            made = Model(house, f"m{step}", content, chance.random() < 0.5, chance.random() < 0.8)
            models.append(made)
            told = []
        elif what == 1 and len(models) > 3:
            house.following.remove(models.pop(chance.randrange(len(models))).subscription)
            told = []
        elif what == 2:
            told = house.expire(now_us)
        else:
            runs = []
            for _ in range(chance.randint(1, 3)):
                publisher = chance.choice((P, Q))
                if chance.random() < 0.25:
                    keys = [key(chance.randrange(6)) for _ in range(chance.randint(0, 2))]
                    runs.append(delete(txid + 1, *sorted(keys), publisher=publisher))
                else:
                    trees = [
                        {"id": chance.randrange(6), "p": chance.choice((0, 1, 2, 3, None)),
                         "s": chance.choice("xy"), "l": chance.choice(([1], [2, 1], {"a": 1}))}
                        for _ in range(chance.randint(1, 3))
                    ]  # fmt: skip
                    trees = [
                        {name: value for name, value in each.items() if value is not None}
                        for each in trees
                    ]
                    lifetime_s = chance.choice((0, 0, 1, 5))
                    runs.append(
                        put(txid + 1, *map(orjson.dumps, trees), at_us=now_us,
                            publisher=publisher, expiration_s=lifetime_s)
                    )  # fmt: skip
                txid = runs[-1].last_txid
            told = house.commit(*runs)
        for name, reason, record in told:
            next(each for each in models if each.subscription.id == name).take(reason, record)
        for model in models:
            model.check(house)


@pytest.mark.covers("SOW", "out of focus: `deleted`")
def test_what_leaves_for_another_reason_is_told_apart() -> None:
    house = House()
    house.follow("one", "/p > 1", oof=True)
    house.commit(put(1, b'{"id":1,"p":2}', b'{"id":2,"p":2}', b'{"id":3,"p":2}', at_us=S))
    told = house.commit(delete(4, key(1)), put(5, b'{"id":2,"p":0}', b'{"id":3,"p":0}', at_us=S))
    assert [(reason, each.key) for _, reason, each in told] == [
        ("deleted", key(1)), ("match", key(2)), ("match", key(3))
    ]  # fmt: skip


def test_a_message_that_names_its_own_key_is_cut_as_every_other_one() -> None:
    """It lies in the journal as it is shown, but for who wants a part of it."""
    house = House()
    house.follow("cut", select="[-/,+/p]")
    house.follow("whole")
    told = house.commit(put(1, b'{"id": 1, "p": 2}', key=key(1)))
    assert {name: record.body for name, _, record in told} == {
        "cut": b'{"p":2}',
        "whole": b'{"id": 1, "p": 2}',
    }


def test_a_delta_is_of_the_trace_of_its_message() -> None:
    house = House()
    house.follow("delta", delta=True)
    house.commit(put(1, b'{"id":1,"p":5}', at_us=S))
    trace = bytes(range(1, 26))
    ((_, _, told),) = house.commit(put(2, b'{"id":1,"p":6}', at_us=S, trace=trace))
    assert told.command == 6 and told.trace == trace
