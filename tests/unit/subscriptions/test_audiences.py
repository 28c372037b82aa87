"""Whom a topic reaches: who comes and goes touches his own group, and topics share what is kept."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from raylay.services.expressions.budgets import FilterBudgets
from raylay.services.expressions.expression import SUBSCRIPTION, expression
from raylay.services.expressions.functions import BUILT_IN
from raylay.services.expressions.index import OTHERS_IN_WEIGHT, FilterIndex, _Filter
from raylay.services.expressions.work import EvaluationAccount
from raylay.services.messages.records import RecordBuilder, Run, run_of, scan
from raylay.services.messages.types.registry import MessageTypes
from raylay.services.subscriptions import audiences, matching
from raylay.services.subscriptions.audiences import AudienceTable
from raylay.services.subscriptions.filtered import FilteredSubscriptions
from raylay.services.subscriptions.follow_terms import FollowTerms
from raylay.services.subscriptions.matching import (
    FilterOwner,
    LiveSubscription,
    SubscriptionTable,
    TopicFilter,
    topic_filter,
)
from raylay.services.subscriptions.sow_subscriptions import SowSubscriptions

pytestmark = pytest.mark.covers("Configuration", "subscriptions of one user are bounded together")

TOPICS, MANY = 50, 40
KEPT = (_Filter, EvaluationAccount)


def run(topic: str, body: bytes = b'{"a": 1}') -> Run:
    payload = RecordBuilder(7, topic, "json").build(1, body, 0)
    return run_of(scan(payload)[0], payload)


BUDGETS = FilterBudgets(lambda ends: None)
AMY = BUDGETS.of("amy")


def asker(_: int) -> FilterOwner:
    return FilterOwner(budget=AMY)


def filtered() -> FilteredSubscriptions:
    return FilteredSubscriptions(MessageTypes(), BUILT_IN, "A-1", "A", asker)


def following() -> SowSubscriptions:
    return SowSubscriptions(MessageTypes(), BUILT_IN, lambda *_: False, "A-1", "A", asker)


def one(name: str, topic: str, text: str, *, follows: bool = False) -> LiveSubscription:
    terms = FollowTerms(oof=True) if follows else None
    return LiveSubscription(1, name, topic_filter(topic, ""), text, 0, terms)


def publish(to: FilteredSubscriptions | SowSubscriptions, topics: int = TOPICS) -> list[str]:
    """A message to each topic; who gets them."""
    found = to.deliveries([run(f"pat/{number}") for number in range(topics)])
    return [each[0].id for each in found]


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, int]]:
    """Counts how often an index was changed and a topic was compared."""
    counts = {"add": 0, "discard": 0, "judges": 0}

    def counted(owner: type, name: str) -> None:
        plain: Callable[..., Any] = getattr(owner, name)

        def call(*given: Any) -> Any:
            counts[name] += 1
            return plain(*given)

        monkeypatch.setattr(owner, name, call)

    counted(FilterIndex, "add")
    counted(FilterIndex, "discard")
    counted(TopicFilter, "judges")
    yield counts


@pytest.mark.parametrize("made", [filtered, following])
def test_who_comes_or_goes_costs_the_same_however_many_topics_there_are(
    made: Callable[[], FilteredSubscriptions | SowSubscriptions], work: dict[str, int]
) -> None:
    to, follows = made(), made is following
    to.add(one("first", "^pat/", "/a = 0", follows=follows))
    to.add(one("other", "pat/3", "/a = 0", follows=follows))
    publish(to)
    work.update(add=0, discard=0, judges=0)
    more = [one(f"s{n}", "^pat/", f"/a = {n}", follows=follows) for n in range(MANY)]
    more += [one(f"l{n}", "pat/none", f"/a = {n}", follows=follows) for n in range(MANY)]
    for each in more:
        to.add(each)
    assert work["add"] == len(more) and not work["judges"]
    assert publish(to) == ["s1"]
    work.update(add=0, discard=0, judges=0)
    for each in more:
        to.remove(each)
    assert work["discard"] == len(more) and not work["judges"]
    assert publish(to) == []


@pytest.mark.parametrize("made", [filtered, following])
@pytest.mark.parametrize("topic", ["^pat/", "^(pat/|{})"])
def test_filters_are_kept_once_for_all_topics(
    made: Callable[[], FilteredSubscriptions | SowSubscriptions], topic: str
) -> None:
    # Other tests of this process may have kept some.
    gc.collect()
    before = {id(each): each for each in gc.get_objects() if isinstance(each, KEPT)}
    to, follows = made(), made is following
    for number in range(MANY):
        to.add(one(f"s{number}", topic.format(number), f"/a = {number}", follows=follows))
    for _ in range(MANY):
        assert publish(to) == ["s1"]
    gc.collect()
    found = [each for each in gc.get_objects() if isinstance(each, KEPT)]
    kept = [each for each in found if id(each) not in before]
    accounts = [each for each in kept if isinstance(each, EvaluationAccount) and each.payers]
    assert len(kept) < 10 * MANY
    assert len(accounts) <= 2 * MANY, "a filter works for one account, over all of its topics"


@pytest.mark.parametrize("seed", range(12))
def test_the_table_finds_whom_each_subscription_by_itself_finds(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(audiences, "GROUPS_KEPT_MAX", chance.choice((20, 1_000_000)))
    monkeypatch.setattr(audiences, "JOINED_FILTERS_MAX", chance.choice((10, 1_000_000)))
    monkeypatch.setattr(audiences, "TOPIC_CACHE_MAX", chance.choice((3, 100)))
    table, held = AudienceTable(), dict[LiveSubscription, str]()
    wanted = ("a", "b", "ab", "^a", "^b", "b$", ".*")
    joined = 0
    for _ in range(150):
        if held and chance.random() < 0.45:
            gone = chance.choice(list(held))
            table.remove(gone, held.pop(gone) == "/x = 2")
        else:
            topic, kind = chance.choice(wanted), chance.choice(("", "json", "fix"))
            text = chance.choice(("", "/x = 1", "/x = 2", "/x > 1", "/y = 1"))
            readable = (lambda name: b"b" not in name) if chance.random() < 0.3 else None
            session = chance.randrange(3) if readable is None else 7
            made = LiveSubscription(session, "s", topic_filter(topic, kind, readable=readable))
            held[made] = text
            parsed = expression(text, SUBSCRIPTION) if text else None
            table.add(made, parsed, text == "/x = 2")
        for _ in range(8):
            name, type_ = chance.choice((b"a", b"b", b"ab", b"c")), chance.choice((b"json", b"fix"))
            message = {"x": chance.randrange(4), "y": chance.randrange(2)}
            want = {each for each in held if each.filter.matches(name, type_)}
            found = table.audience(name, type_)
            assert bool(found) == bool(want)
            assert set(found.every()) == {each for each in want if not held[each]}
            assert found.looks_back == any(held[each] == "/x = 2" for each in want)
            assert found.has_filters == any(held[each] for each in want)
            filters = table.filters_of(found)
            joined += len(found.groups) > 1 and filters is found.joined
            passing = filters.matching(message)
            assert len(passing) == len(set(passing))
            assert set(passing) == {
                each
                for each in want
                if held[each] and expression(held[each], SUBSCRIPTION).matches(message, None)
            }
        kept = table._audiences
        assert table._places == sum(map(len, kept))
        assert table._joined_count == sum(each.joined_count for each in kept.values())
        assert all(each.topics for each in kept.values())
        assert table._topic_count == sum(map(len, table._topics.values()))
    assert joined and len(table) == len(held)
    for each, text in held.items():
        table.remove(each, text == "/x = 2")
    assert not len(table) and not table._groups and not table._literals and not table._patterns
    table._forget()
    assert not (table._places or table._joined_count or table._audiences or table._topics)


def test_what_is_kept_of_topics_and_expressions_has_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(audiences, "GROUPS_KEPT_MAX", 500)
    table = AudienceTable()
    for number in range(MANY):
        made = one(f"s{number}", f"^(pat/.*[{number % 10}{number // 10}])", "/a = 1")
        table.add(made, expression(made.content, SUBSCRIPTION))
    for number in range(1000):
        table.audience(f"pat/{number}".encode(), b"json")
        assert table._places <= 500 + MANY


def test_what_is_known_of_topics_of_ordinary_subscriptions_has_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(matching, "PLACES_MAX", 500)
    table = SubscriptionTable()
    held = [one(f"s{number}", "^pat/", "") for number in range(MANY)]
    for each in held:
        table.add(each)
    for number in range(TOPICS):
        table.matching(f"pat/{number}".encode(), b"json")
        places = sum(len(each.found) for each in table._answers.values())
        assert table._places == places <= 500 + MANY
    for each in held[: MANY // 2]:
        table.remove(each)
    for number in range(TOPICS):
        table.matching(f"pat/{number}".encode(), b"json")
        assert table._places == sum(len(each.found) for each in table._answers.values())


@pytest.mark.parametrize("made", [filtered, following])
def test_what_a_topic_costs_is_told(
    made: Callable[[], FilteredSubscriptions | SowSubscriptions],
) -> None:
    to, follows = made(), made is following
    for number in range(MANY):
        to.add(one(f"s{number}", f"^(pat/|{number})", "/a = 1", follows=follows))
        to.add(one(f"t{number}", f"^(pat/|{number})", "/a = 2", follows=follows))
    assert to.unknown_us(b"pat/1", b"json") >= MANY * matching.PATTERN_US
    assert to.weight(b"pat/1", b"json") > 2 * MANY // OTHERS_IN_WEIGHT
    publish(to)
    assert to.weight(b"pat/1", b"json") == 1 + follows, "they are joined"
    assert not to.unknown_us(b"pat/1", b"json")
    to.add(one("more", "^p", "/a = 1", follows=follows))
    assert to.unknown_us(b"pat/1", b"json") == matching.PATTERN_US
