"""services/sow/topic.py: which messages a SOW topic keeps, and by which keys."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.sow_given import ORDERS, book, record

from raylay.services.errors import MessageTypeError, SowKeyError
from raylay.services.messages.records import Record
from raylay.services.messages.types.trees import Tree
from raylay.services.plugins.sow import sow_book
from raylay.services.sow.definition import SowTopicDefinition
from raylay.services.sow.keys import key_of
from raylay.services.sow.topic import SowTopic
from raylay.storage.sow import MemorySowStore

pytestmark = pytest.mark.covers("SOW", "logical topics under a pattern")


def topic(definition: SowTopicDefinition) -> SowTopic:
    (found,) = book(definition).topics
    return found


def test_a_name_fits_itself_of_its_type() -> None:
    orders = topic(ORDERS)
    assert orders.fits(b"orders", b"json")
    assert not orders.fits(b"orders2", b"json") and not orders.fits(b"orders", b"xml")
    assert orders.logical(b"orders") == b"" and orders.stored_as == "json/orders"


def test_a_pattern_fits_topics_but_none_of_raylay() -> None:
    all_of_them = topic(replace(ORDERS, pattern="orders|.*"))
    assert all_of_them.fits(b"my orders", b"json") and all_of_them.fits(b"other", b"json")
    assert not all_of_them.fits(b"raylay/drill", b"json")
    assert topic(replace(ORDERS, pattern="^raylay/d")).fits(b"raylay/drill", b"json")
    assert all_of_them.logical(b"other") == b"other"


@pytest.mark.covers("SOW", "the key: composite")
def test_the_key_is_made_of_the_key_fields() -> None:
    orders = topic(ORDERS)
    expected = key_of({"id": 7}, ("/id",), "orders")
    assert orders.key_of(record(body=b'{"id":7}')) == expected
    assert orders.key_of(record(body=b"not read"), {"id": 7}) == expected
    with pytest.raises(SowKeyError, match="/id"):
        orders.key_of(record())
    with pytest.raises(MessageTypeError):
        orders.key_of(record(body=b"{"))


def test_logical_topics_have_key_domains_of_their_own() -> None:
    several = topic(replace(ORDERS, pattern="^o"))
    eu, us = (several.key_of(record(body=b'{"id":7}', topic=name)) for name in ("o/eu", "o/us"))
    assert eu == key_of({"id": 7}, ("/id",), "o/eu") != us


@pytest.mark.covers("SOW", "the key: composite")
def test_a_key_that_the_publisher_gives() -> None:
    given = topic(SowTopicDefinition("orders", "binary"))
    assert given.key_of(record(kind="binary", key=b"abc")) == b"abc"
    with pytest.raises(SowKeyError, match="give each message its SOW key"):
        given.key_of(record(kind="binary"))


@pytest.mark.covers("SOW", "the key: composite")
def test_a_key_generator_gets_what_there_is_and_is_not_believed() -> None:
    seen: list[Tree | None] = []

    def generate(given: Record, tree: Tree | None) -> bytes:
        seen.append(tree)
        if tree is not None and "id" not in tree:
            raise KeyError("id")
        return b"%d" % given.sequence if tree is None else b"%s" % tree["id"].encode()

    def made(kind: str) -> SowTopic:
        definition = SowTopicDefinition("orders", kind, key_generator="mine")
        (found,) = sow_book((definition,), (), MemorySowStore(), {"mine": generate}).topics
        return found

    assert made("json").key_of(record(body=b'{"id":"a"}')) == b"a"
    assert made("json").key_of(record(), {"id": "b"}) == b"b"
    assert made("binary").key_of(record(5, kind="binary")) == b"5"
    assert seen == [{"id": "a"}, {"id": "b"}, None]
    with pytest.raises(SowKeyError, match=r"key generator mine failed \(KeyError: 'id'\)"):
        made("json").key_of(record())
    with pytest.raises(SowKeyError, match="expected a SOW key"):
        made("json").key_of(record(body=b'{"id":"a b"}'))
