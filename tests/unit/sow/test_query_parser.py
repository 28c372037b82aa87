"""From the words of a query to the query. With a whole instance: test_queries.py."""

from __future__ import annotations

from typing import Any

import pytest
from support.sow_given import ORDERS, book, put

from raylay.services.core.sow import SowFeature
from raylay.services.errors import RemoteProtocolError
from raylay.services.expressions.expression import Expression, ExpressionUse, expression
from raylay.services.expressions.functions import BUILT_IN
from raylay.services.messages.records import decode_record
from raylay.services.sow.book import SowBook
from raylay.services.sow.definition import SowTopicDefinition
from raylay.services.sow.query.query_execution import QueryExecution
from raylay.services.sow.query.query_parser import QueryParser, QueryRequest, ReplacedQuery
from raylay.services.sow.query.record_scan import KeyScan, RecordScan
from raylay.services.sow.state import SowRules
from raylay.services.subscriptions.matching import topic_filter

pytestmark = pytest.mark.covers("SOW", "queries: filter")

BINARY = SowTopicDefinition("b", "binary")
FX = SowTopicDefinition("fx", "json", pattern="^fx/", keys=("/id",))
SHORT = SowTopicDefinition("short", "json", keys=("/id",), rules=SowRules(expires=True))


def filled() -> SowBook:
    there = book(ORDERS, BINARY, FX, SHORT)
    feature = SowFeature(there)
    for txid, topic in enumerate(("orders", "fx/eur", "fx/usd", "short"), 1):
        feature.recover([put(txid, b'{"id":%d}' % txid, topic=topic, expiration_s=5)])
    for each in there.topics:
        each.index()
    return there


def questions(there: SowBook) -> QueryParser:
    return QueryParser(there, BUILT_IN, "A-1", "A")


def asked(topic: str, **words: Any) -> QueryRequest:
    return QueryRequest(topic_filter(topic, ""), **words)


def rows(query: QueryExecution) -> list[tuple[str, bytes]]:
    found = []
    while not query.done:
        for frame in query.turn(lambda: True):
            found += [(each.topic, each.body) for each in map(decode_record, frame)]
    return found


@pytest.mark.covers("SOW", "Pattern: one group for all its topics")
def test_topics_come_as_configured_and_a_pattern_gives_what_is_asked_for() -> None:
    there = filled()
    ask = questions(there)

    def found(topic: str, **words: Any) -> list[str]:
        question = asked(topic, **words)
        return [name for name, _ in rows(ask.begin(ask.accept(question), 1_000))]

    first, *middle, last = found(".*")
    assert (first, sorted(middle), last) == ("orders", ["fx/eur", "fx/usd"], "short")
    assert found("fx/usd") == ["fx/usd"] and sorted(found("fx")) == ["fx/eur", "fx/usd"]
    assert found("^(fx/eur|orders)$") == ["orders", "fx/eur"]
    assert found("orders", filter="/id = 1") == ["orders"] and not found("orders", filter="/id = 2")
    assert not any(each.state._queries for each in there.topics)


@pytest.mark.covers("Configuration", "who may read some of a queue acknowledges what he holds")
def test_a_physical_topic_gives_no_records_of_topics_that_may_not_be_read() -> None:
    ask = questions(filled())

    def found(topic: str, *readable: bytes) -> list[str]:
        wanted = topic_filter(topic, "", readable=lambda name: name in readable)
        query = ask.begin(ask.accept(QueryRequest(wanted)), 1_000)
        names = [name for name, _ in rows(query)]
        assert query.matches == len(names), "nor is told how many there are"
        return names

    assert found("fx", b"fx/usd") == ["fx/usd"] and found("fx") == []
    assert sorted(found("fx", b"fx/usd", b"fx/eur")) == ["fx/eur", "fx/usd"]
    assert found(".*", b"fx/eur", b"orders") == ["orders", "fx/eur"]
    # By its own name it was asked for before.
    assert found("fx/usd") == ["fx/usd"]


@pytest.mark.covers("Configuration", "a row filter hides what it does not pass")
def test_records_that_may_not_be_read_are_in_no_row_and_no_count() -> None:
    ask = questions(filled())
    limits = {b"orders": "/id = 1", b"fx/usd": "TOPIC_NAME() = 'fx/usd'", b"fx/eur": "/id = 99"}

    class Limits:
        def restricts(self, topic: bytes) -> bool:
            return topic in limits

        def of(self, topic: bytes, use: ExpressionUse) -> Expression | None:
            text = limits.get(topic)
            return None if text is None else expression(text, use)

    def found(topic: str, **more: Any) -> tuple[list[str], int]:
        wanted = topic_filter(topic, "", readable=lambda name: name == b"short", rows=Limits())
        query = ask.begin(ask.accept(QueryRequest(wanted, **more)), 1_000)
        names = [name for name, _ in rows(query)]
        assert query.matches == len(names)
        return names, query.looked_at

    assert found(".*") == (["orders", "fx/usd", "short"], 3)
    assert found("fx") == (["fx/usd"], 1), "by the name of the physical topic"
    assert found("^(orders|none)$") == (["orders"], 1)
    assert found(".*", filter="/id > 1")[1] == 3


def test_what_has_expired_is_no_row_but_of_a_subscription_until_it_is_told() -> None:
    ask = questions(filled())
    accepted = ask.accept(asked("short"))
    assert rows(ask.begin(accepted, 4_000_000)) and not rows(ask.begin(accepted, 6_000_000))
    assert rows(ask.begin(ask.accept(asked("short", follows=True)), 6_000_000))


@pytest.mark.covers("SOW", "hash indexes: exact text")
def test_an_index_is_asked_where_the_filter_says_what_it_must_find() -> None:
    there = filled()
    ask = questions(there)
    for text, source in (("/id = 1", KeyScan), ("/id > 1", RecordScan), ("", RecordScan)):
        query = ask.begin(ask.accept(asked("orders", filter=text)), 0)
        assert isinstance(query._parts[0][0].source, source), text
        query.close()
    again = ask.begin(
        ask.accept(asked("orders", filter="/id = 1", follows=True)),
        0,
        ReplacedQuery("/id = 2", None, True),
    )
    assert isinstance(again._parts[0][0].source, RecordScan), "what was in focus is asked for, too"
    assert rows(again) == [("orders", b'{"id":1}')] and not again.left


@pytest.mark.covers("SOW", "`replace`: what comes into focus is sent")
def test_another_filter_tells_what_it_leaves() -> None:
    ask = questions(filled())
    query = ask.begin(
        ask.accept(asked("orders", filter="/id > 1", follows=True)),
        0,
        ReplacedQuery("", None, True),
    )
    assert rows(query) == [] and [decode_record(each).body for each in query.left] == [b'{"id":1}']


@pytest.mark.parametrize(
    ("topic", "words", "reason"),
    [
        ("none", {}, "no_sow"),
        ("orders", {"filter": "/id >"}, "bad_filter"),
        ("orders", {"filter": "UNIX_TIMESTAMP() > 1", "follows": True}, "bad_filter"),
        ("orders", {"order_by": "id"}, "bad_order_by"),
        ("none", {"select": "id", "follows": True}, "bad_select"),
        (".*", {"select": "[-/]"}, "not_supported"),
    ],
)
def test_refusals(topic: str, words: dict[str, Any], reason: str) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        questions(filled()).accept(asked(topic, **words))
    assert caught.value.reason == reason


@pytest.mark.covers("SOW", "`sow_and_subscribe`: of one moment")
def test_a_subscription_to_a_topic_without_state_has_no_rows() -> None:
    ask = questions(filled())
    query = ask.begin(ask.accept(asked("none", follows=True)), 0)
    assert rows(query) == [] and (query.sent, query.matches) == (0, 0)
