"""Many topics in one: declared in a file, kept by the book, asked for by each of their names."""

from __future__ import annotations

import pytest
from support.sow_given import delete, put

from raylay.services.configuration.yaml_file import parse
from raylay.services.core.effect_loop import CommitBatch
from raylay.services.core.sow import SowFeature
from raylay.services.messages.records import decode_record
from raylay.services.plugins.sow import sow_book
from raylay.services.sow.book import SowBook
from raylay.services.sow.query.query_execution import QueryExecution, QueryPart, QueryTerms
from raylay.services.subscriptions.matching import topic_filter
from raylay.storage.sow import MemorySowStore

pytestmark = pytest.mark.covers("SOW", "many topics in one")

FILE = """fabric: f
topics: [{name: "^ticks", message_type: json}]
regions: {A: 1}
sow_topics:
"""
MANY = '  - {name: ticks, message_type: json, pattern: "^ticks/", keys: [/symbol]}\n'
OWN = "  - {name: ticks/own, message_type: json, keys: [/id]}\n"


def declared(*entries: str) -> SowBook:
    settings = parse(FILE + "".join(entries))
    return sow_book(settings.sow_of(settings.instances[0]), (), MemorySowStore())


def fold(there: SowBook, *published: tuple[str, bytes]) -> SowFeature:
    feature = SowFeature(there)
    runs = [put(txid, body, topic=topic) for txid, (topic, body) in enumerate(published, 1)]
    feature.fold(CommitBatch(runs, len(runs)))
    return feature


def rows(there: SowBook, asked: str) -> list[tuple[str, bytes]]:
    """(topic, body) of what a query of this name or expression gives."""
    wanted = topic_filter(asked, "json")
    parts = [
        QueryPart(
            each.name,
            each.type,
            each.state.query(),
            wants=(lambda name: wanted.matches(name, b"json")) if each.definition.pattern else None,
        )
        for each in there.matching(wanted)
    ]
    # The physical name asks for the records of all.
    for part in parts:
        if part.name == asked.encode():
            part.wants = None
    querying = QueryExecution(parts, QueryTerms(batch=100))
    found = []
    while not querying.done:
        for frame in querying.turn(lambda: False):
            found += [(each.topic, bytes(each.body)) for each in map(decode_record, frame)]
    return sorted(found)


NYSE, XETRA = ("ticks/nyse", b'{"symbol":"A","n":1}'), ("ticks/xetra", b'{"symbol":"A","n":2}')


@pytest.mark.covers("SOW", "Pattern: one group for all its topics")
def test_each_topic_has_its_keys_and_its_records() -> None:
    there = declared(MANY)
    feature = fold(there, NYSE, XETRA, ("ticks/nyse", b'{"symbol":"B"}'), ("ticks", b"{}"))
    (topic,) = there.topics
    assert topic.state.count == 3
    assert rows(there, "ticks/nyse") == [NYSE, ("ticks/nyse", b'{"symbol":"B"}')]
    assert rows(there, "^ticks/(nyse|xetra)$") == [NYSE, ("ticks/nyse", b'{"symbol":"B"}'), XETRA]
    assert rows(there, "etra$") == [XETRA]
    assert rows(there, "ticks") == rows(there, "^ticks/")
    assert rows(there, "ticks/london") == []
    gone = next(each for each in topic.state.records() if each.topic == b"ticks/xetra")
    feature.fold(CommitBatch([delete(9, gone.key, topic="ticks/xetra")], 9))
    assert rows(there, "xetra") == [] and len(rows(there, "ticks")) == 2


@pytest.mark.covers("SOW", "Pattern: one group for all its topics")
@pytest.mark.parametrize("own_first", [True, False])
def test_a_topic_of_its_own_counts_where_it_stands_earlier(own_first: bool) -> None:
    there = declared(*((OWN, MANY) if own_first else (MANY, OWN)))
    fold(there, ("ticks/own", b'{"id":1,"symbol":"A"}'), NYSE)
    kept = {each.definition.name: each.state.count for each in there.topics}
    assert kept == ({"ticks/own": 1, "ticks": 1} if own_first else {"ticks": 2, "ticks/own": 0})
    assert rows(there, "ticks/own") == [("ticks/own", b'{"id":1,"symbol":"A"}')]
