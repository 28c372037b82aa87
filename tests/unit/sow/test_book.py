"""services/sow/book.py: which of an instance's SOW topics keeps a message, or is asked for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.plain_state import PlainState
from support.sow_given import ORDERS, book

from raylay.services.messages.stateful import Stateful
from raylay.services.messages.topic_book import TopicBook
from raylay.services.messages.topics import TopicRule
from raylay.services.sow.definition import SowTopicDefinition
from raylay.services.subscriptions.matching import topic_filter

pytestmark = pytest.mark.covers("SOW", "logical topics under a pattern")

MANY = replace(ORDERS, name="many", pattern="orders")
OTHER = replace(ORDERS, name="others")
XML = SowTopicDefinition("orders", "xml", keys=("/order/@id",))


def test_the_first_that_fits_keeps_it() -> None:
    first, second = book(ORDERS, MANY), book(MANY, ORDERS)
    assert first.find(b"orders", b"json") is first.topics[0]
    assert second.find(b"orders", b"json") is second.topics[0]
    for _ in range(2):
        assert first.find(b"my orders", b"json") is first.topics[1]
        assert first.find(b"elsewhere", b"json") is None
        assert first.find(b"orders", b"xml") is None
    assert len(first) == 2 and not book(ORDERS).find(b"x", b"y")


def names(*given: str, types: tuple[str, ...] = ("",)) -> list[list[str]]:
    there = book(OTHER, ORDERS, MANY, XML)
    return [
        [each.stored_as for each in there.matching(topic_filter(topic, kind))]
        for topic in given
        for kind in types
    ]


def test_a_query_by_name_asks_for_the_topic_that_keeps_it() -> None:
    assert names("orders", types=("json", "xml")) == [["json/orders"], ["xml/orders"]]
    assert names("orders") == [["json/orders", "xml/orders"]]
    assert names("my orders") == [["json/many"]], "the topic with a pattern keeps it"
    assert names("many") == [["json/many"]], "its physical name"
    assert names("elsewhere") == [[]]


def test_a_query_by_expression_asks_in_the_order_of_the_configuration() -> None:
    assert names("^o.*") == [["json/others", "json/orders", "json/many", "xml/orders"]]
    assert names("^orders$", types=("xml", "json")) == [
        ["xml/orders"],
        ["json/orders", "json/many"],
    ]


def test_what_is_done_before_the_append_is_found_as_the_topic_is() -> None:
    there = book(
        replace(ORDERS, name="a+b"), replace(ORDERS, name="none"), MANY, replace(ORDERS, name="x")
    )
    stagings: list[Stateful] = []
    for each in there.topics:
        each.staging = None
        if each.definition.name != "none":
            each.staging = PlainState()
            stagings.append(each.staging)
    topics = TopicBook((TopicRule(".*"),), stateful=there.stateful())
    assert topics.states == tuple(stagings)
    for name in (b"a+b", b"aab", b"none", b"orders", b"my orders", b"x", b"many"):
        found = there.find(name, b"json")
        assert topics[name, b"json"].state is (found.staging if found is not None else None), name
    assert topics[b"orders", b"xml"].state is None
