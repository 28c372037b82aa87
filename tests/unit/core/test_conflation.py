"""Conflated topics of an instance (services/core/conflation.py)."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from support.sow_given import book, delete, put

from raylay.services.core.conflation import ConflationFeature
from raylay.services.core.feature import CommitBatch
from raylay.services.core.sow import SowFeature
from raylay.services.errors import ConfigurationError
from raylay.services.plugins.views import conflated_problems, with_conflated_topics
from raylay.services.sow.definition import SowTopicDefinition
from raylay.services.sow.keys import key_of
from raylay.services.sow.topic import SowChange
from raylay.services.subscriptions.matching import topic_filter
from raylay.services.views.definition import ConflatedTopicDefinition

pytestmark = pytest.mark.covers("Views", "conflated topics: a follower gets each record")

INTERVAL_US = 1_000_000
SLOW = ConflatedTopicDefinition("slow", "json", "orders", INTERVAL_US, filter="/n > 0")
FX = SowTopicDefinition("fx", "json", keys=("/id",), pattern="fx/")
SLOWER = ConflatedTopicDefinition("slower", "json", "slow", 3 * INTERVAL_US)


class Conflated:
    """SOW topic `orders`, a conflated topic over it, and one over that."""

    def __init__(self) -> None:
        self.book, topics = with_conflated_topics(book(), (SLOW, SLOWER), ())
        self.sow = SowFeature(self.book)
        self.now_us = 0
        self.wakes: list[int] = []
        self.feature = ConflationFeature(topics, lambda: self.now_us, self.awake)
        self.txid = 0

    def awake(self, at_us: int) -> None:
        """Notes when to ask next, in place of what was said before."""
        self.wakes[:] = [at_us]

    def commit(self, run: Any) -> None:
        batch = CommitBatch([run], run.last_txid)
        self.sow.fold(batch)
        self.feature.fold(batch)
        self.txid = batch.last_txid

    def publish(self, number: int, value: int) -> None:
        body = json.dumps({"id": number, "n": value}).encode()
        self.commit(put(self.txid + 1, body))

    def delete(self, number: int) -> None:
        self.commit(delete(self.txid + 1, key_of({"id": number}, ("/id",), "orders")))

    def wait(self, until_us: int) -> list[SowChange]:
        """Gives what is due at each time for which the feature asked."""
        found: list[SowChange] = []
        while self.wakes and self.wakes[0] <= until_us:
            self.now_us = max(self.now_us, self.wakes.pop(0))
            changes = self.feature.due()
            found += changes
            self.feature.fold(CommitBatch([], self.txid, changes))
        self.now_us = until_us
        return found

    def records(self, name: bytes) -> dict[bytes, bytes | None]:
        (topic,) = (each for each in self.book.every if each.name == name)
        return {each.key: each.body for each in topic.state.records()}


def shown(changes: list[SowChange]) -> list[tuple[bytes, str, int]]:
    found = []
    for each in changes:
        record = each.change.current or each.change.previous
        assert record is not None
        found.append((each.name, each.change.reason, json.loads(record.body or b"")["n"]))
    return found


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.covers("Views and conflation, title by title", "a copy of a topic")
def test_in_the_end_a_conflated_topic_has_what_the_topic_under_it_has(seed: int) -> None:
    rng, at = random.Random(seed), Conflated()
    for _ in range(80):
        number = rng.randrange(4)
        if rng.random() < 0.3:
            at.delete(number)
        else:
            at.publish(number, rng.randrange(-1, 5))
        for each in at.wait(at.now_us + rng.randrange(0, INTERVAL_US)):
            assert each.change.current is None or each.change.previous != each.change.current
    at.wait(at.now_us + 10 * INTERVAL_US)
    expected = {
        key: body for key, body in at.records(b"orders").items() if json.loads(body or b"")["n"] > 0
    }
    assert at.records(b"slow") == at.records(b"slower") == expected
    assert not at.wakes
    fresh, topics = with_conflated_topics(at.book.__class__(at.book.topics), (SLOW,), ())
    topics[0].build()
    assert {each.key: each.body for each in fresh.computed[0].state.records()} == expected


@pytest.mark.covers("Views and conflation, title by title", "a record that")
def test_a_key_that_came_and_went_within_its_interval_is_told_to_nobody() -> None:
    at = Conflated()
    at.publish(1, 5)
    at.delete(1)
    assert at.wait(INTERVAL_US) == []
    assert at.feature.status()["json/slow"]["conflated"] == 2


def test_the_last_value_is_given_at_the_end_of_the_interval_and_not_before() -> None:
    at = Conflated()
    at.publish(1, 5)
    at.wait(INTERVAL_US - 1)
    at.publish(1, 6)
    assert at.records(b"slow") == {}
    assert shown(at.wait(INTERVAL_US)) == [(b"slow", "inserted", 6)]
    at.publish(1, -1)
    assert shown(at.wait(2 * INTERVAL_US)) == [(b"slow", "deleted", 6)], "it left the filter"
    assert shown(at.wait(9 * INTERVAL_US)) == []
    at.feature.failed(0)


def test_a_record_is_enriched_when_it_is_given() -> None:
    """The fields are computed behind the filter and change no key. A topic over it sees them."""
    at = Conflated()
    twice = ConflatedTopicDefinition(
        "slow", "json", "orders", INTERVAL_US, "/n > 0", (("/twice",),),
        ("2 * /n AS /twice", "/gone AS /none HINT OPTIONAL"),
    )  # fmt: skip
    over = ConflatedTopicDefinition("slower", "json", "slow", INTERVAL_US, "/twice > 10")
    renamed = ConflatedTopicDefinition(
        "renamed", "json", "orders", INTERVAL_US, enrichment=("'x' AS /id",)
    )
    at.book, topics = with_conflated_topics(book(), (twice, over, renamed), ())
    at.sow = SowFeature(at.book)
    at.feature = ConflationFeature(topics, lambda: at.now_us, at.awake)
    for topic in topics:
        topic.build()
    at.publish(1, 5)
    at.publish(2, 6)
    at.publish(3, -6)
    at.wait(9 * INTERVAL_US)

    def bodies(name: bytes) -> list[Any]:
        return sorted((json.loads(each or b"") for each in at.records(name).values()), key=str)

    assert bodies(b"slow") == [{"id": 1, "n": 5, "twice": 10}, {"id": 2, "n": 6, "twice": 12}]
    assert bodies(b"slower") == [{"id": 2, "n": 6, "twice": 12}]
    assert at.records(b"slow").keys() < at.records(b"orders").keys()
    indexes = topics[0].topic.indexes
    assert indexes is not None and len(indexes.candidates({("twice",): (12,)}) or ()) == 1
    assert topics[0].topic.definition.keys == ("/id",)
    assert topics[2].topic.definition.keys == (), "its keys say nothing of the field any more"
    assert {each["id"] for each in bodies(b"renamed")} == {"x"} and len(bodies(b"renamed")) == 3
    fresh, again = with_conflated_topics(at.book.__class__(at.book.topics), (twice,), ())
    again[0].build()
    assert {e.key: e.body for e in fresh.computed[0].state.records()} == at.records(b"slow")


def test_a_record_that_cannot_be_read_is_not_enriched() -> None:
    raw = SowTopicDefinition("raw", "json")
    definition = ConflatedTopicDefinition(
        "slow", "json", "raw", INTERVAL_US, enrichment=("1 AS /a",)
    )
    at = Conflated()
    at.book, topics = with_conflated_topics(book(raw), (definition,), ())
    at.sow = SowFeature(at.book)
    at.feature = ConflationFeature(topics, lambda: at.now_us, at.awake)
    at.commit(put(1, b"{", topic="raw", key=b"k"))
    at.wait(INTERVAL_US)
    assert list(at.records(b"slow").values()) == [b"{"]


def test_a_body_that_cannot_be_read_passes_no_filter() -> None:
    raw = SowTopicDefinition("raw", "json")
    definition = ConflatedTopicDefinition("slow", "json", "raw", INTERVAL_US, filter="/n > 0")
    at = Conflated()
    at.book, topics = with_conflated_topics(book(raw), (definition,), ())
    at.sow = SowFeature(at.book)
    at.feature = ConflationFeature(topics, lambda: at.now_us, at.awake)
    at.commit(put(1, b'{"n":1}', topic="raw", key=b"k"))
    at.commit(put(2, b"{", topic="raw", key=b"k"))
    assert at.wait(INTERVAL_US) == []


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"topic": "nowhere"}, "define it before"),
        ({"filter": "/a >"}, "expected"),
        ({"topic": "raw", "message_type": "binary", "filter": "/a > 1"}, "binary"),
        ({"topic": "raw", "message_type": "binary", "enrichment": ("1 AS /b",)}, "binary"),
        ({"enrichment": ("/a OF PREVIOUS AS /b",)}, "knows no PREVIOUS message"),
        ({"enrichment": ("UNIX_TIMESTAMP() AS /b",)}, "something else each time"),
        ({"enrichment": ("/a",)}, "AS"),
        ({"topic": "fx"}, "fx has a pattern: give conflated topic c a topic_format, such as c/%n"),
        ({"topic_format": "c/%n"}, "orders has no pattern: leave out the topic_format"),
    ],
)
def test_a_conflated_topic_that_cannot_be_is_refused(values: dict[str, Any], words: str) -> None:
    given = {"name": "c", "message_type": "json", "topic": "orders", **values}
    definition = ConflatedTopicDefinition(**given)
    every = [each.definition for each in book().topics]
    there = book(*every, SowTopicDefinition("raw", "binary"), FX)
    (problem,) = conflated_problems(definition, [each.definition for each in there.topics])
    assert words in problem.text
    with pytest.raises(ConfigurationError, match="conflated topic c: "):
        with_conflated_topics(there, (definition,), ())


def test_a_conflated_topic_over_a_pattern_has_a_topic_for_each_one_underneath() -> None:
    """Its names may match the pattern underneath: they are its own all the same."""
    definition = ConflatedTopicDefinition(
        "slow", "json", "fx", INTERVAL_US, "/n > 0", enrichment=("/n + 1 AS /m",),
        topic_format="slow/%n.",
    )  # fmt: skip
    over = ConflatedTopicDefinition("slower", "json", "slow", INTERVAL_US, topic_format="%n/slower")
    assert conflated_problems(definition, (FX,)) == conflated_problems(over, (definition,)) == []
    at = Conflated()
    at.book, topics = with_conflated_topics(book(FX), (definition, over), ())
    at.sow = SowFeature(at.book)
    at.feature = ConflationFeature(topics, lambda: at.now_us, at.awake)
    at.commit(put(1, b'{"id":1,"n":1}', topic="fx/eur"))
    at.commit(put(2, b'{"id":1,"n":2}', topic="fx/usd"))
    at.commit(put(3, b'{"id":2,"n":0}', topic="fx/usd"))
    given = at.wait(9 * INTERVAL_US)
    assert sorted(each.name for each in given) == [
        b"slow/fx/eur.", b"slow/fx/eur./slower", b"slow/fx/usd.", b"slow/fx/usd./slower"
    ]  # fmt: skip
    slow = topics[0].topic
    assert {each.topic: each.body for each in slow.state.records()} == {
        b"slow/fx/eur.": b'{"id":1,"n":1,"m":2}', b"slow/fx/usd.": b'{"id":1,"n":2,"m":3}'
    }  # fmt: skip
    at.commit(delete(4, key_of({"id": 1}, ("/id",), "fx/usd"), topic="fx/usd"))
    assert [(each.name, each.change.reason) for each in at.wait(12 * INTERVAL_US)][:1] == [
        (b"slow/fx/usd.", "deleted")
    ]
    assert at.book.find(b"slow/fx/eur.", b"json") is slow
    assert at.book.find_kept(b"slow/fx/eur.", b"json") is None
    assert at.book.find(b"slow/fx/eur", b"json") is at.book.find(b"fx/eur", b"json")
    for topic, kind, is_computed in (
        ("slow/fx/eur.", "", True),
        ("slow/fx/eur.", "fix", False),
        ("slow", "json", True),
        ("slow/fx/.*", "json", True),
        ("fx/eur", "", False),
        ("^fx", "fix", False),
    ):
        assert at.book.computes_any(topic_filter(topic, kind)) == is_computed, topic


@pytest.mark.parametrize("text", ["%n", "slow", "%n/%n"])
def test_a_format_that_gives_no_names_of_its_own_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="needs %n once, and other text"):
        ConflatedTopicDefinition("slow", "json", "fx", topic_format=text)


def test_an_interval_that_is_too_short_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 100 ms"):
        ConflatedTopicDefinition("c", "json", "orders", 99_999)
