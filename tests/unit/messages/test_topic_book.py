from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest
from support.plain_state import PlainState

from raylay.services.errors import ConfigurationError
from raylay.services.messages import topics
from raylay.services.messages.records import Run
from raylay.services.messages.topic_book import QueueTopics, TopicBook
from raylay.services.messages.topics import TopicRule

pytestmark = pytest.mark.covers("Replication", "one look-up for all that is asked of a topic")

BOOK_OF = (TopicRule("orders", "json"), TopicRule("^fx/"))


def test_a_topic_is_journaled_by_name_and_type() -> None:
    book = TopicBook(BOOK_OF)
    assert book[b"orders", b"json"].journaled
    assert not book[b"orders", b"fix"].journaled
    assert book[b"fx/eurusd", b"fix"].journaled
    assert not book[b"trades", b"json"].journaled
    assert not any(book[b"trades", b"json"].refusal for _ in range(2))


def test_what_is_no_text_is_refused_with_its_place_and_not_kept() -> None:
    book = TopicBook((TopicRule(".*"),))
    assert "b'\\xff'" in book[b"\xff", b"json"].refusal
    assert "b'\\xfe'" in book[b"orders", b"\xfe"].refusal
    assert book[b"\xff", b"json"].journaled, "what others brought is journaled all the same"
    assert not book


def test_a_reader_that_names_no_type_takes_any_that_is_journaled() -> None:
    book = TopicBook(BOOK_OF)
    assert book.journals(b"orders", "json") and book.journals(b"orders", "")
    assert not book.journals(b"orders", "fix") and not book.journals(b"trades", "")


def test_a_topic_that_was_met_costs_no_call() -> None:
    book = TopicBook(BOOK_OF)
    called = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            called.append(frame.f_code.co_qualname)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        first = book[b"orders", b"json"]
        asked = len(called)
        again = book[b"orders", b"json"]
    finally:
        sys.setprofile(before)
    assert asked and again is first and len(called) == asked, called


def test_so_many_topics_are_kept_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raylay.services.messages.topic_book.TOPIC_CACHE_MAX", 3)
    monkeypatch.setattr(topics, "TOPIC_CACHE_MAX", 3)
    book = TopicBook(BOOK_OF)
    for number in range(10):
        assert book[b"fx/%d" % number, b"json"].journaled
        assert len(book) <= 3


def test_an_expression_that_is_none_is_told_with_its_place() -> None:
    with pytest.raises(ConfigurationError, match="East Topic"):
        TopicBook((TopicRule("^(a"),), "East Topic")


def test_what_nobody_declared_is_neither_journaled_nor_delivered() -> None:
    book = TopicBook(BOOK_OF, "East", (TopicRule("ticks"), TopicRule("^live/", "json")), "East-1")
    for topic, kind, journaled, declared in (
        (b"orders", b"json", True, True),
        (b"ticks", b"fix", False, True),
        (b"live/a", b"json", False, True),
        (b"live/a", b"fix", False, False),
        (b"ordes", b"json", False, False),
    ):
        entry = book[topic, kind]
        assert (entry.journaled, entry.declared, entry.refusal) == (journaled, declared, ""), topic
    reason, text = book.undeclared(b"ordes", b"json")
    assert reason == "not_journaled"
    for part in ("'ordes'", "'json'", "East-1", "orders (json), ^fx/:", "`journaled: false`"):
        assert part in text, text


def test_where_nothing_is_said_all_others_are_delivered() -> None:
    assert TopicBook(BOOK_OF)[b"trades", b"json"].declared


def test_a_refusal_names_a_few_topics_whatever_there_are() -> None:
    book = TopicBook(tuple(TopicRule(f"t{number}") for number in range(500)), "T", (), "A")
    _, text = book.undeclared(b"x" * 5_000, b"json")
    assert "t7 and 492 more" in text and len(text) < 1_000
    assert "has nothing:" in TopicBook((), "T", (), "A").undeclared(b"a", b"json")[1]


@pytest.mark.covers("Event topics", "nobody but the instance publishes there")
@pytest.mark.parametrize("rules", [(TopicRule(".*"),), (TopicRule("/AMPS/ClientStatus"),), ()])
@pytest.mark.parametrize("unjournaled", [None, (TopicRule(".*"),)])
def test_whatever_is_configured_event_topics_are_in_no_journal_and_take_no_publishes(
    rules: tuple[TopicRule, ...], unjournaled: tuple[TopicRule, ...] | None
) -> None:
    book = TopicBook(rules, "T", unjournaled, "A-1")
    for topic in (b"/AMPS/ClientStatus", b"/AMPS/anything"):
        entry = book[topic, b"json"]
        assert (entry.journaled, entry.declared) == (False, False)
        assert not book.journals(topic, "") and not book.journals(topic, "json")
    reason, text = book.undeclared(b"/AMPS/ClientStatus", b"json")
    assert reason == "reserved_topic" and "A-1" in text and "choose another topic" in text


def test_a_topic_has_the_first_state_that_fits_it() -> None:
    one, other = PlainState(), PlainState()
    rules = [(TopicRule("orders"), one), (TopicRule("^fx/"), other), (TopicRule("^fx/e"), one)]
    book = TopicBook((*BOOK_OF, TopicRule("^log/")), stateful=rules)
    assert book.states == (one, other)
    for topic, kind, state in (
        (b"orders", b"json", one),
        (b"orders", b"fix", one),
        (b"fx/eurusd", b"fix", other),
        (b"fx/\xff", b"fix", other),
        (b"log/1", b"fix", None),
        (b"trades", b"fix", None),
    ):
        assert all(book[topic, kind].state is state for _ in range(2)), topic
    assert book[b"orders", b"json"].journaled and not book[b"orders", b"fix"].journaled
    assert TopicBook(BOOK_OF).states == ()


class Claims:
    """A distributed queue that is asked whose messages are."""

    def claims(self, publisher: int, ranges: Any, given: str, now_us: int) -> list[Run]:
        return []


def test_each_queue_over_a_topic_claims_its_messages() -> None:
    first, second, state = Claims(), Claims(), PlainState()
    queues = [
        QueueTopics("work", "json", state, TopicRule("^fx/"), claiming=first),
        QueueTopics("local", "json", state, TopicRule("^fx/")),
        QueueTopics("more", "json", state, TopicRule("^fx/eur"), claiming=second),
    ]
    book = TopicBook((*BOOK_OF, TopicRule("work")), queues=queues)
    assert book[b"fx/eurusd", b"json"].claiming == (first, second)
    assert book[b"fx/usdjpy", b"json"].claiming == (first,)
    assert book[b"orders", b"json"].claiming == () == book[b"work", b"json"].claiming
