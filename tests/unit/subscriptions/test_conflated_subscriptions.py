"""Conflated subscriptions (services/subscriptions/conflated_subscriptions.py): whoever applies what
comes to the rows of its query holds, at the end of each key's interval, what its filter passes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any, cast

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sow_given import P, book, delete, put

from raylay.services.core.feature import CommitBatch
from raylay.services.core.sow import SowFeature
from raylay.services.errors import RemoteProtocolError
from raylay.services.expressions.functions import BUILT_IN
from raylay.services.messages.conflation_terms import ConflationTerms
from raylay.services.messages.records import Command, Record, Run, iterate_records
from raylay.services.messages.types.registry import MessageTypes
from raylay.services.sow.definition import SowTopicDefinition
from raylay.services.sow.keys import key_of
from raylay.services.sow.state import SowRules
from raylay.services.subscriptions.conflated_subscriptions import (
    AUTO_LOOK_US,
    AUTO_NEXT_US,
    CHARGED_BYTES,
    ConflatedSources,
    ConflatedSubscriptions,
)
from raylay.services.subscriptions.follow_terms import AggregationTerms, FollowTerms
from raylay.services.subscriptions.matching import FilterOwner, LiveSubscription, topic_filter

pytestmark = pytest.mark.covers("Views", "conflated subscriptions")

TYPES = MessageTypes()
ORDERS = SowTopicDefinition("orders", "json", keys=("/id",), rules=SowRules(expires=True))
NOTES = SowTopicDefinition("notes", "binary")
SECOND_US = 1_000_000
INTERVAL_US = SECOND_US

Told = tuple[str, str, Any]


def key(number: int) -> bytes:
    return key_of({"id": number}, ("/id",), "orders")


class Instance:
    """A SOW topic, conflated subscriptions, and a clock."""

    def __init__(self, asker: Any = None) -> None:
        self.book = book(ORDERS, NOTES)
        self.sow = SowFeature(self.book)
        self.now_us = 0
        self.wakes: list[int] = []
        self.takes = True
        self.charged: Counter[int] = Counter()
        self.txid = 0
        more = {} if asker is None else {"asker": asker}
        self.table = ConflatedSubscriptions(
            TYPES,
            BUILT_IN,
            ConflatedSources(self.book.find, self.book.matching),
            "A-1",
            "A",
            lambda: self.now_us,
            self.wakes.append,
            lambda session: self.takes,
            self._charge,
            **more,
        )

    def _charge(self, session: int, difference: int) -> None:
        self.charged[session] += difference

    def follow(
        self,
        name: str,
        content: str = "",
        topic: str = "orders",
        interval_us: int = INTERVAL_US,
        key: tuple[str, ...] = (),
        session: int = 1,
        **wishes: Any,
    ) -> LiveSubscription:
        terms = FollowTerms(conflation=ConflationTerms(interval_us, key), **wishes)
        made = LiveSubscription(session, name, topic_filter(topic, ""), content, 0, terms)
        self.table.add(made)
        return made

    def publish(self, *bodies: bytes, **more: Any) -> list[Told]:
        run = put(self.txid + 1, *bodies, at_us=1_000 + self.now_us, **more)
        return self.commit(run)

    def delete(self, number: int) -> list[Told]:
        return self.commit(delete(self.txid + 1, key(number), at_us=1_000 + self.now_us))

    def commit(self, run: Run) -> list[Told]:
        self.txid = run.last_txid
        batch = CommitBatch([run], run.last_txid)
        self.sow.fold(batch)
        return self.told(self.table.deliveries([run], batch.changes))

    def expire(self, now_us: int) -> list[Told]:
        return self.told(self.table.deliveries([], self.sow.tick(now_us)))

    def told(self, given: Any) -> list[Told]:
        return [
            (subscription.id, reason, record)
            for subscription, reason, delivery in given
            for record in iterate_records(b"".join(delivery.bodies))
        ]

    def wait(self, us: int = INTERVAL_US) -> list[Told]:
        self.now_us += us
        return self.told(self.table.due())


def said(told: list[Told]) -> list[tuple[str, str, Any]]:
    found = [(name, reason, orjson.loads(record.body)) for name, reason, record in told]
    return sorted(found, key=str)


# -- the interval ------------------------------------------------------------------------------
@pytest.mark.covers("Views and conflation, title by title", "the first change")
def test_the_last_change_of_an_interval_is_given_at_its_end() -> None:
    instance = Instance()
    instance.follow("all")
    for value in range(3):
        assert instance.publish(b'{"id":1,"p":%d}' % value) == []
    assert instance.wakes == [INTERVAL_US], "one call at the end of the first interval"
    assert instance.wait(INTERVAL_US - 1) == []
    assert said(instance.wait(1)) == [("all", "", {"id": 1, "p": 2})]
    assert instance.wait() == []
    instance.publish(b'{"id":1,"p":3}')
    assert said(instance.wait()) == [("all", "", {"id": 1, "p": 3})]
    assert instance.table.status() == {
        "subscriptions": 1,
        "definitions": 1,
        "pending": 0,
        "pending_bytes": 0,
        "given": 2,
        "conflated": 2,
    }


@pytest.mark.covers("Views and conflation, title by title", "the first change")
def test_a_delivery_has_the_time_of_the_first_change() -> None:
    instance = Instance()
    instance.follow("all")
    instance.publish(b'{"id":1,"p":0}')
    instance.now_us += 400_000
    instance.publish(b'{"id":1,"p":1}', b'{"id":2,"p":1}')
    instance.now_us += INTERVAL_US
    times = [delivery.receive_time_us for _, _, delivery in instance.table.due()]
    assert times == [1_000, 401_000], "keys that are far apart do not share a delivery"


def test_a_message_is_as_it_was_published() -> None:
    instance = Instance()
    instance.follow("all")
    instance.follow("cut", select="[-/,+/p]")
    trace = bytes(range(1, 26))
    instance.publish(b'{"id": 1, "p": 2}', trace=trace, correlation=b"c")
    given = list(instance.table.due())
    assert not given
    instance.now_us += INTERVAL_US
    given = list(instance.table.due())
    assert all(delivery.traced for _, _, delivery in given)
    told = {name: record for name, _, record in instance.told(given)}
    assert told["all"].body == b'{"id": 1, "p": 2}' and told["cut"].body == b'{"p":2}'
    for record in told.values():
        assert (record.publisher, record.sequence) == (P, 1)
        assert (record.trace, record.correlation) == (trace, b"c")


# -- records that leave ------------------------------------------------------------------------
@pytest.mark.covers("Views and conflation, title by title", "out of focus")
def test_a_record_that_comes_and_goes_within_an_interval_is_not_told_of() -> None:
    instance = Instance()
    for name, oof in (("oof", True), ("plain", False)):
        instance.follow(name, oof=oof)
        instance.follow(f"{name} filtered", "/p > 0", oof=oof)
    instance.publish(b'{"id":1,"p":1}')
    instance.delete(1)
    instance.publish(b'{"id":2,"p":1}')
    instance.publish(b'{"id":2,"p":0}')
    assert said(instance.wait()) == [
        ("oof", "", {"id": 2, "p": 0}),
        ("plain", "", {"id": 2, "p": 0}),
    ]


@pytest.mark.covers("Views and conflation, title by title", "out of focus")
def test_out_of_focus_shows_what_was_given_last() -> None:
    instance = Instance()
    instance.follow("oof", "/p > 0", oof=True)
    instance.follow("plain", "/p > 0")
    for number in (1, 2, 3):
        instance.publish(
            b'{"id":%d,"p":1}' % number, **({"expiration_s": 9} if number == 3 else {})
        )
    instance.wait()
    for number in (1, 2):
        instance.publish(b'{"id":%d,"p":2}' % number)
    instance.delete(1)
    instance.publish(b'{"id":2,"p":0}')
    instance.expire(10 * SECOND_US)
    assert said(instance.wait()) == [
        ("oof", "deleted", {"id": 1, "p": 1}),
        ("oof", "expired", {"id": 3, "p": 1}),
        ("oof", "match", {"id": 2, "p": 1}),
    ]


@pytest.mark.covers("Views and conflation, title by title", "out of focus")
def test_out_and_in_within_an_interval_is_one_update() -> None:
    instance = Instance()
    instance.follow("oof", "/p > 0", oof=True)
    instance.follow("delta", "/p > 0", oof=True, delta=True)
    instance.publish(b'{"id":1,"p":1,"q":1}')
    instance.wait()
    instance.publish(b'{"id":1,"p":0,"q":1}')
    instance.publish(b'{"id":1,"p":2,"q":1}')
    assert said(instance.wait()) == [
        ("delta", "", {"id": 1, "p": 2}),
        ("oof", "", {"id": 1, "p": 2, "q": 1}),
    ]


# -- deltas ------------------------------------------------------------------------------------
@pytest.mark.covers("Views and conflation, title by title", "one delta, from")
def test_one_delta_is_made_from_what_was_given_last() -> None:
    instance = Instance()
    instance.follow("delta", delta=True)
    instance.publish(b'{"id":1,"p":1,"q":1,"r":1}')
    assert said(instance.wait()) == [("delta", "", {"id": 1, "p": 1, "q": 1, "r": 1})]
    instance.publish(b'{"id":1,"p":2,"q":1,"r":1}')
    instance.publish(b'{"id":1,"p":2,"q":2,"r":1}')
    ((_, _, record),) = instance.wait()
    assert orjson.loads(record.body) == {"id": 1, "p": 2, "q": 2}
    assert record.command == Command.DELTA_PUBLISH
    instance.publish(b'{"id":1,"p":3,"q":2,"r":1}')
    instance.publish(b'{"id":1,"p":2,"q":2,"r":1}')
    assert instance.wait() == [], "nothing has changed"


# -- sharing -----------------------------------------------------------------------------------
def test_equal_subscriptions_share_what_is_pending_and_their_deliveries() -> None:
    instance = Instance()
    made = [instance.follow(f"s{n}", "/p > 0", session=n) for n in range(3)]
    instance.follow("other", "/p > 1", session=9)
    instance.publish(b'{"id":1,"p":1}')
    assert instance.table.status()["definitions"] == 2
    assert instance.table.status()["pending"] == 1
    instance.now_us += INTERVAL_US
    given = list(instance.table.due())
    assert [subscription for subscription, _, _ in given] == made
    assert len({id(delivery) for _, _, delivery in given}) == 1
    for each in made[:2]:
        instance.table.remove(each)
        assert each not in instance.table
    instance.publish(b'{"id":1,"p":2}')
    assert said(instance.wait()) == [
        ("other", "", {"id": 1, "p": 2}),
        ("s2", "", {"id": 1, "p": 2}),
    ], "who is left goes on"
    instance.table.remove(made[2])
    assert len(instance.table) == 1 and instance.table.status()["definitions"] == 1


def test_what_differs_is_not_shared() -> None:
    instance = Instance()
    instance.follow("a")
    instance.follow("interval", interval_us=2 * INTERVAL_US)
    instance.follow("oof", oof=True)
    instance.follow("keys", keys=frozenset([key(1)]))
    instance.follow("key", key=("/p",))
    instance.follow("cut", select="[-/,+/p]")
    assert instance.table.status()["definitions"] == 5, "only the select list may differ"
    instance.publish(b'{"id":2,"p":1}')
    assert {name for name, _, _ in instance.wait()} == {"a", "oof", "key", "cut"}
    assert {name for name, _, _ in instance.wait()} == {"interval"}


def test_who_joins_later_is_told_only_of_later_changes() -> None:
    instance = Instance()
    instance.follow("first", oof=True, delta=True)
    instance.publish(b'{"id":1,"p":1}', b'{"id":2,"p":1}', b'{"id":3,"p":1}')
    instance.follow("later", oof=True, delta=True)
    instance.publish(b'{"id":1,"p":2}')
    instance.delete(2)
    assert said(instance.wait()) == [
        ("first", "", {"id": 1, "p": 2}),
        ("first", "", {"id": 3, "p": 1}),
        ("later", "", {"id": 1, "p": 2}),
        ("later", "deleted", {"id": 2, "p": 1}),
    ], "it has found record 2, which the first one was never told of"


def test_a_subscription_that_is_replaced_gets_what_is_pending() -> None:
    instance = Instance()
    first, second = instance.follow("first"), instance.follow("second")
    instance.publish(b'{"id":1,"p":1}')
    assert said(instance.told(instance.table.flush(first))) == [("first", "", {"id": 1, "p": 1})]
    instance.table.remove(first)
    assert said(instance.wait()) == [("second", "", {"id": 1, "p": 1})]
    assert second in instance.table


def test_the_share_of_what_is_pending_is_charged_to_each_client() -> None:
    instance = Instance()
    one = instance.follow("one", session=1)
    instance.follow("two", session=2)
    for number in range(4):
        instance.publish(b'{"id":%d,"p":"%b"}' % (number, b"x" * CHARGED_BYTES))
    assert instance.charged[1] == instance.charged[2] > CHARGED_BYTES
    instance.follow("three", session=3)
    assert instance.charged[3] == instance.charged[1]
    instance.table.remove(one)
    assert instance.charged[1] == 0
    instance.wait()
    assert not any(instance.charged.values())


def test_a_costly_filter_is_of_its_own_payers() -> None:
    class Budget:
        def __init__(self) -> None:
            self.spent = 0

        def compiled(self, steps: int) -> None:
            self.spent += steps

        def hold(self, found: Any, size_bytes: int) -> None:
            return None

    budgets = {1: Budget(), 2: Budget()}
    instance = Instance(lambda session: FilterOwner(budget=cast(Any, budgets[session])))
    made = [instance.follow(f"s{n}", "/p > 0", session=n) for n in (1, 2)]
    assert instance.table.status()["definitions"] == 1
    index = next(iter(instance.table._audiences._groups.values())).filters
    (found,) = index._by_text.values()
    assert found.expression.effort.payers == list(budgets.values())
    assert instance.table.with_efforts({found.expression.effort}) == set(made)
    instance.table.remove(made[0])
    assert found.expression.effort.payers == [budgets[2]]
    instance.publish(b'{"id":1,"p":1}')
    assert said(instance.wait()) == [("s2", "", {"id": 1, "p": 1})]


# -- keys --------------------------------------------------------------------------------------
def test_messages_of_a_topic_without_sow_are_conflated_by_their_fields() -> None:
    instance = Instance()
    instance.follow("quotes", "/p > 0", "quotes", key=("/s", "/of/x"), select="[-/,+/s,+/p]")
    instance.publish(b'{"s":"A","p":1}', b'{"s":"A","p":2}', b'{"s":"B","p":3}', topic="quotes")
    instance.publish(b'{"s":"A","p":0}', b'{"s":1,"p":4}', b'{"s":1.0,"p":5}', topic="quotes")
    instance.publish(b'{"s":"A","of":{"x":1},"p":6}', b'{"p":7}', topic="quotes")
    assert said(instance.wait()) == [
        ("quotes", "", each)
        for each in (
            {"p": 7},
            {"s": "A", "p": 2},
            {"s": "A", "p": 6},
            {"s": "B", "p": 3},
            {"s": 1.0, "p": 5},
        )
    ], "1 and 1.0 are one key, and so is no value"


@pytest.mark.covers("Views and conflation, title by title", "`conflation_key`")
def test_a_subscription_may_have_another_key_than_its_sow_topic() -> None:
    instance = Instance()
    instance.follow("symbol", "/p > 0", key=("/s",))
    instance.follow("same", oof=True, key=("/id",))
    instance.publish(
        b'{"id":1,"s":"A","p":1}', b'{"id":2,"s":"A","p":2}', b'{"id":3,"s":"B","p":3}'
    )
    instance.publish(b'{"id":2,"s":"A","p":0}')
    instance.delete(3)
    assert said(instance.wait()) == [
        ("same", "", {"id": 1, "s": "A", "p": 1}),
        ("same", "", {"id": 2, "s": "A", "p": 0}),
        ("symbol", "", {"id": 2, "s": "A", "p": 2}),
        ("symbol", "", {"id": 3, "s": "B", "p": 3}),
    ], "messages with a key of their own do not leave"


def test_topics_of_an_expression_have_their_own_keys() -> None:
    instance = Instance()
    instance.follow("all", topic="orders|quotes")
    instance.follow("key", topic="orders|quotes", key=("/id",))
    instance.publish(b'{"id":1}')
    at_once = instance.publish(b'{"id":1}', b'{"id":1}', topic="quotes")
    assert [(name, record.topic) for name, _, record in at_once] == [("all", "quotes")] * 2, (
        "a message without a key is not conflated"
    )
    found = sorted((name, record.topic) for name, _, record in instance.wait())
    assert found == [("all", "orders"), ("key", "orders"), ("key", "quotes")]


def test_messages_that_cannot_be_read_are_given_at_once() -> None:
    instance = Instance()
    instance.follow("key", topic="quotes|notes", key=("/s",))
    instance.follow("filtered", "/s > 0", topic="quotes|notes", key=("/s",))
    sent = instance.publish(b"{", topic="quotes")
    assert [(name, record.body) for name, _, record in sent] == [("key", b"{")]
    sent = instance.publish(b"x", topic="notes", kind="binary", key=b"k")
    assert [(name, record.body) for name, _, record in sent] == [("key", b"x")]
    sent = instance.publish(b"x", topic="quotes", kind="no_type")
    assert [(name, record.body) for name, _, record in sent] == [("key", b"x")]
    assert instance.wait() == []


def test_records_without_fields_are_conflated_by_sow_key() -> None:
    instance = Instance()
    instance.follow("notes", topic="notes", oof=True, delta=True)
    for body in (b"x", b"y"):
        instance.publish(body, topic="notes", kind="binary", key=b"k")
    ((_, _, record),) = instance.wait()
    assert record.body == b"y"


@pytest.mark.parametrize(
    ("wishes", "reason", "says"),
    [
        ({"topic": "quotes"}, "bad_command", "give conflation_key"),
        ({"key": ("/s",), "oof": True}, "bad_command", "oof needs the key of the topic"),
        ({"key": ("/s",), "delta": True}, "bad_command", "delta needs the key of the topic"),
        ({"topic": "notes", "key": ("/s",)}, "bad_command", "have no fields"),
        ({"key": ("/s//t",)}, "bad_command", "names no field"),
        ({"content": "/p >"}, "bad_filter", "is no filter"),
        ({"select": "nothing"}, "bad_select", "select"),
    ],
)
@pytest.mark.covers("Views and conflation, title by title", "`conflation_key`")
def test_what_cannot_be_conflated_is_refused(wishes: Any, reason: str, says: str) -> None:
    instance = Instance()
    with pytest.raises(RemoteProtocolError, match=says) as refused:
        instance.follow("bad", **wishes)
    assert refused.value.reason == reason
    assert len(instance.table) == 0 and instance.table.status()["definitions"] == 0


def test_an_aggregation_has_its_groups_as_keys() -> None:
    instance = Instance()
    aggregation = AggregationTerms("orders", "json", "", ("COUNT(/id) AS /n",), ())
    instance.follow("groups", topic="unnamed", aggregation=aggregation, oof=True)
    with pytest.raises(RemoteProtocolError, match="has its groups as keys") as refused:
        instance.follow("bad", topic="unnamed", aggregation=aggregation, key=("/n",))
    assert refused.value.reason == "not_supported"


def test_commands_and_other_topics_are_passed_over() -> None:
    instance = Instance()
    instance.follow("orders")
    instance.follow("quotes", topic="quotes", key=("/s",))
    assert instance.publish(b'{"s":1}', topic="others") == []
    assert instance.commit(delete(instance.txid + 1, key(1), topic="quotes")) == []
    (run,) = [put(1, b"{}", topic="quotes")]
    assert not list(instance.table.deliveries([replace(run, kind=7)]))  # type: ignore[arg-type]
    assert instance.table.unknown_us(b"new", b"json") == 0
    assert instance.table.weight(b"orders", b"json") and not instance.table.weight(b"x", b"json")
    assert instance.wait() == []


# -- auto --------------------------------------------------------------------------------------
@pytest.mark.covers("Views and conflation, title by title", "`auto`: nothing")
def test_nothing_waits_while_the_client_takes_all() -> None:
    instance = Instance()
    made = instance.follow("auto", "/p > 0", interval_us=0, oof=True, delta=True)
    instance.follow("another", "/p > 0", interval_us=0, oof=True, delta=True)
    assert instance.table.status()["definitions"] == 2, "each is given by what its client takes"
    instance.table.remove(instance.follow("gone", interval_us=0))
    assert said(instance.publish(b'{"id":1,"p":1,"q":1}'))[1] == (
        "auto", "", {"id": 1, "p": 1, "q": 1}
    )  # fmt: skip
    assert said(instance.publish(b'{"id":1,"p":2,"q":1}'))[1] == ("auto", "", {"id": 1, "p": 2})
    assert said(instance.delete(1))[1] == ("auto", "deleted", {"id": 1, "p": 2, "q": 1})
    assert instance.wakes == []
    assert made in instance.table


@pytest.mark.covers("Views and conflation, title by title", "`auto`: nothing")
def test_a_client_that_is_behind_gets_one_change_of_each_key() -> None:
    instance = Instance()
    instance.follow("auto", interval_us=0)
    instance.takes = False
    for value in range(3):
        assert instance.publish(b'{"id":1,"p":%d}' % value, b'{"id":2,"p":%d}' % value) == []
    assert instance.wakes == [AUTO_LOOK_US]
    assert instance.wait(AUTO_LOOK_US) == [], "it still does not take"
    instance.takes = True
    assert instance.publish(b'{"id":3,"p":1}') == [], "behind those that wait"
    assert said(instance.wait(AUTO_LOOK_US)) == [
        ("auto", "", {"id": 1, "p": 2}),
        ("auto", "", {"id": 2, "p": 2}),
        ("auto", "", {"id": 3, "p": 1}),
    ]
    assert said(instance.publish(b'{"id":4,"p":1}')) == [("auto", "", {"id": 4, "p": 1})]


def test_a_client_that_was_behind_is_given_a_few_hundred_at_a_time() -> None:
    instance = Instance()
    instance.follow("auto", interval_us=0)
    instance.takes = False
    instance.publish(*[b'{"id":%d}' % number for number in range(700)])
    instance.takes = True
    assert len(instance.wait(AUTO_LOOK_US)) == 500
    assert instance.wakes[-1] == instance.now_us + AUTO_NEXT_US
    assert len(instance.wait(AUTO_NEXT_US)) == 200


# -- turns -------------------------------------------------------------------------------------
def test_what_is_due_is_given_in_turns() -> None:
    instance = Instance()
    instance.follow("all")
    instance.publish(*[b'{"id":%d}' % number for number in range(700)])
    instance.now_us += INTERVAL_US
    assert len(instance.told(instance.table.due(lambda: True))) == 500
    assert instance.wakes[-1] == INTERVAL_US, "the rest is due at once"
    assert len(instance.told(instance.table.due(lambda: True))) == 200


def test_a_definition_without_subscribers_is_not_waited_for() -> None:
    instance = Instance()
    made = instance.follow("all")
    instance.publish(b'{"id":1}')
    instance.table.remove(made)
    assert instance.wait() == []
    assert len(instance.wakes) == 1


# -- beside a plain recomputation ----------------------------------------------------------------
VALUES = st.integers(0, 3)
PUT = st.tuples(st.just("put"), st.integers(1, 3), VALUES, VALUES)
STEPS = st.lists(
    st.one_of(
        PUT,
        PUT,
        PUT,
        st.tuples(st.just("delete"), st.integers(1, 3), VALUES, VALUES),
        st.tuples(st.just("wait"), st.integers(1, 5), VALUES, VALUES),
        st.tuples(st.just("join"), st.integers(0, 3), VALUES, VALUES),
        st.tuples(st.just("leave"), st.integers(0, 9), VALUES, VALUES),
    ),
    min_size=20,
    max_size=60,
)
JOINS = tuple(("join", number, 0, 0) for number in range(4))
TICK_US = 100_000
WANTS: tuple[tuple[str, int, dict[str, Any]], ...] = (
    ("", 10, {"oof": True}),
    ("/p > 1", 10, {"oof": True}),
    ("/p > 1", 10, {"oof": True, "delta": True}),
    ("/p > 1", 4, {"oof": True, "delta": True}),
)


class Follower:
    """A client that applies what it is given to the rows of its query, and the rows that it should
    have, recomputed: those of a key change at the end of an interval in which the key changed."""

    def __init__(self, number: int, least: int, ticks: int, rows: dict[int, Any]) -> None:
        self.name = f"follower {number}"
        self.least, self.ticks = least, ticks
        self.rows, self.expected = dict(rows), dict(rows)
        self.changed: set[int] = set()
        self.given_at: dict[int, int] = {}

    def apply(self, reason: str, record: Record, tick: int) -> None:
        body = orjson.loads(record.body)
        number = body["id"]
        assert tick - self.given_at.get(number, -self.ticks) >= self.ticks, "once an interval"
        self.given_at[number] = tick
        if reason:
            assert self.rows.pop(number) == body, "out of focus shows what was given last"
        elif record.command == Command.DELTA_PUBLISH:
            self.rows[number] = {**self.rows[number], **body}
        else:
            self.rows[number] = body


class Intervals:
    """The open intervals of one definition, recomputed: those of keys that changed in its focus."""

    def __init__(self, least: int, ticks: int) -> None:
        self.least, self.ticks = least, ticks
        self.since: dict[int, int] = {}

    def changed(self, number: int, before: Any, now: Any, tick: int) -> None:
        if any(each is not None and each["p"] >= self.least for each in (before, now)):
            self.since.setdefault(number, tick)


@settings(max_examples=300, deadline=None)
@given(STEPS)
def test_followers_hold_what_a_recomputation_gives(steps: list[tuple[str, int, int, int]]) -> None:
    instance = Instance()
    topic: dict[int, Any] = {}
    followers: dict[str, tuple[Follower, LiveSubscription, Intervals]] = {}
    definitions: dict[tuple[str, int], Intervals] = {}
    tick = made = 0

    def focus(least: int) -> dict[int, Any]:
        return {number: body for number, body in topic.items() if body["p"] >= least}

    def changed(number: int, before: Any, now: Any) -> None:
        for follower, _, _ in followers.values():
            follower.changed.add(number)
        for each in definitions.values():
            each.changed(number, before, now, tick)

    def take(told: list[Told]) -> None:
        for name, reason, record in told:
            followers[name][0].apply(reason, record, tick)

    def end_intervals() -> None:
        for definition in definitions.values():
            over = [n for n, since in definition.since.items() if tick - since >= definition.ticks]
            for number in over:
                del definition.since[number]
                for follower, _, of in followers.values():
                    if of is definition and number in follower.changed:
                        follower.changed.discard(number)
                        now = focus(follower.least).get(number)
                        if now is None:
                            follower.expected.pop(number, None)
                        else:
                            follower.expected[number] = now

    for what, number, p, q in (*JOINS, *steps, ("wait", 12, 0, 0)):
        if what == "put":
            before = topic.get(number)
            topic[number] = {"id": number, "p": p, "q": q}
            assert instance.publish(orjson.dumps(topic[number])) == []
            changed(number, before, topic[number])
        elif what == "delete" and number in topic:
            before = topic.pop(number)
            assert instance.delete(number) == []
            changed(number, before, None)
        elif what == "wait":
            for _ in range(number):
                tick += 1
                end_intervals()
                take(instance.wait(TICK_US))
        elif what == "join":
            content, ticks, wishes = WANTS[number]
            least = 2 if content else 0
            made += 1
            follower = Follower(made, least, ticks, focus(least))
            subscription = instance.follow(
                follower.name, content, interval_us=ticks * TICK_US, **wishes
            )
            definition = definitions.setdefault((content, ticks), Intervals(least, ticks))
            followers[follower.name] = follower, subscription, definition
        elif what == "leave" and followers:
            name = list(followers)[number % len(followers)]
            _, subscription, definition = followers.pop(name)
            instance.table.remove(subscription)
            if not any(of is definition for _, _, of in followers.values()):
                definitions = {k: each for k, each in definitions.items() if each is not definition}
        for follower, _, _ in followers.values():
            assert follower.rows == follower.expected, follower.name
    for follower, _, _ in followers.values():
        assert follower.rows == focus(follower.least), "in the end it holds the topic"
    assert not instance.table.status()["pending"]
    assert not any(instance.charged.values())
