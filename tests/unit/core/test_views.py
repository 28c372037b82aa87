"""Views of an instance (services/core/views.py): behind each commit a view equals a fresh
computation, and its changes are appended to the commit's."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import pytest
from support.sow_given import book, delete, put
from support.view_definitions import JOINED, SUMS

from raylay.services.core.feature import CommitBatch
from raylay.services.core.sow import SowFeature
from raylay.services.core.views import ViewFeature
from raylay.services.errors import ConfigurationError
from raylay.services.messages.records import Command
from raylay.services.plugins.views import view_problems, with_views
from raylay.services.sow.book import SowBook
from raylay.services.sow.definition import SowTopicDefinition
from raylay.services.sow.keys import key_of
from raylay.services.sow.records import body_of
from raylay.services.sow.topic import SowChange
from raylay.services.subscriptions.matching import topic_filter
from raylay.services.views import join_fold, view
from raylay.services.views.definition import ViewDefinition

pytestmark = pytest.mark.covers("Views", "a view equals a fresh computation")

TOTAL = ViewDefinition(
    "total", "json", topic="sums", projection=("SUM(/sum) AS /sum",), grouping=("/x",), inline=True
)
EVERY = (SUMS, TOTAL, JOINED)


class Views:
    """SOW topic `orders` and views over it."""

    def __init__(self, *definitions: ViewDefinition) -> None:
        self.definitions = definitions
        self.book, self.views, _ = with_views(book(), definitions, ())
        self.sow = SowFeature(self.book)
        self.txid = 0

    def commit(self, *runs: Any) -> list[SowChange]:
        """Folds a commit and returns the changes of the views."""
        batch = CommitBatch(list(runs), runs[-1].last_txid)
        self.sow.fold(batch)
        self.views.fold(batch)
        self.txid = batch.last_txid
        names = {each.topic.name for each in self.views.views}
        return [each for each in batch.changes if each.topic.name in names]

    def publish(self, *orders: dict[str, Any]) -> list[SowChange]:
        return self.commit(put(self.txid + 1, *(json.dumps(each).encode() for each in orders)))

    def delete(self, number: int) -> list[SowChange]:
        return self.commit(delete(self.txid + 1, key_of({"id": number}, ("/id",), "orders")))

    def records(self, views: ViewFeature | None = None) -> dict[str, dict[bytes, bytes | None]]:
        return {
            view.definition.name: {each.key: each.body for each in view.topic.state.records()}
            for view in (views or self.views).views
        }

    def rebuilt(self) -> dict[str, dict[bytes, bytes | None]]:
        """The views as an instance computes them when it begins."""
        _, again, _ = with_views(SowBook(self.book.topics), self.definitions, ())
        again.build()
        return self.records(again)


def shown(changes: list[SowChange], name: str) -> list[tuple[str, Any]]:
    """Reason and body of each change of a view: of one that is gone, as it was."""
    found = []
    for each in changes:
        record = each.change.current or each.change.previous
        if each.name == name.encode() and record is not None:
            found.append((each.change.reason, json.loads(record.body or b"")))
    return found


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.covers("Views and conflation, title by title", "each update under")
def test_behind_each_commit_views_equal_a_fresh_computation(seed: int) -> None:
    rng, at = random.Random(seed), Views(*EVERY)
    held: dict[bytes, bytes] = {}
    for _ in range(60):
        orders = [
            {
                "id": rng.randrange(6),
                "customer": rng.choice([1, 2, "1", None]),
                "price": rng.choice([1, 2.5, -1, None, "x"]),
            }
            for _ in range(rng.randrange(1, 4))
        ]
        changes = at.delete(rng.randrange(6)) if rng.random() < 0.3 else at.publish(*orders)
        assert at.records() == at.rebuilt()
        for each in changes:
            if each.name == b"sums":
                # Who applies what comes holds the view.
                before = each.change.previous
                assert held.get(each.change.key) == (None if before is None else before.body)
                held.pop(each.change.key, None)
                if each.change.current is not None:
                    held[each.change.key] = each.change.current.body or b""
        assert held == at.records()["sums"]


def test_a_record_that_moves_changes_the_group_that_it_leaves_first() -> None:
    at = Views(SUMS)
    assert shown(at.publish({"id": 1, "customer": 1, "price": 5}), "sums") == [
        ("inserted", {"customer": 1, "sum": 5, "count": 1})
    ]
    at.publish({"id": 2, "customer": 2, "price": 7})
    assert shown(at.publish({"id": 1, "customer": 2, "price": 5}), "sums") == [
        ("deleted", {"customer": 1, "sum": 5, "count": 1}),
        ("updated", {"customer": 2, "sum": 12, "count": 2}),
    ]
    assert at.views.status()["json/sums"]["updates"] == 4


@pytest.mark.covers("Views and conflation, title by title", "each update under")
@pytest.mark.covers("Views and conflation, title by title", "`inline` sends")
def test_each_update_is_given_unless_the_view_is_inline() -> None:
    at = Views(SUMS, TOTAL)
    changes = at.publish(
        {"id": 1, "customer": 1, "price": 5},
        {"id": 1, "customer": 1, "price": 5},
        {"id": 2, "customer": 1, "price": 1},
    )
    assert [sums["sum"] for _, sums in shown(changes, "sums")] == [5, 5, 6]
    assert shown(changes, "total") == [("inserted", {"sum": 6})]


def test_a_record_that_cannot_be_read_counts_as_gone() -> None:
    given = SowTopicDefinition("raw", "json")
    definition = ViewDefinition(
        "count", "json", topic="raw", projection=("COUNT(/a) AS /n",), grouping=("/none",)
    )
    at = Views()
    at.book, at.views, _ = with_views(book(given), (definition,), ())
    at.sow = SowFeature(at.book)
    changes = at.commit(put(1, b'{"a":1}', topic="raw", key=b"k"))
    assert shown(changes, "count") == [("inserted", {"n": 1})]
    changes = at.commit(put(2, b"{", topic="raw", key=b"k"))
    assert shown(changes, "count") == [("deleted", {"n": 1})]


@pytest.mark.covers("Views and conflation, title by title", "expressions, `HINT")
def test_a_value_that_the_views_type_cannot_have_is_null() -> None:
    """Bytes that are no UTF-8 come in messages of FIX, and cannot be in JSON."""
    raw = SowTopicDefinition("raw", "nvfix", keys=("/id",))
    definition = ViewDefinition(
        "json",
        "json",
        topic="raw",
        projection=("/a AS /in/a", "/id AS /id", "COUNT(/a) AS /n"),
        grouping=("/a",),
    )
    at = Views()
    at.book, at.views, _ = with_views(book(raw), (definition,), ())
    at.sow = SowFeature(at.book)
    at.commit(put(1, b"id=1\x01a=\xff\x01", b"id=2\x01a=b\x01", topic="raw", kind="nvfix"))
    bodies = [json.loads(each or b"") for each in at.records()["json"].values()]
    assert sorted(bodies, key=str) == [
        {"in": {"a": "b"}, "id": "2", "n": 1},
        {"in": {"a": None}, "id": "1", "n": 1},
    ]


@pytest.mark.covers("Views", "views: what they refuse")
@pytest.mark.covers("Views and conflation, title by title", "views over views")
def test_a_view_beyond_its_limit_is_out_of_service_and_those_over_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(view, "WEIGHED_EVERY", 1)
    small = replace(SUMS, memory_bytes_max=6_000)
    other = replace(SUMS, name="other")
    at = Views(small, TOTAL, other)
    for number in range(3):
        at.publish({"id": number, "customer": number, "price": 1})
    assert not any(each.topic.refusal for each in at.views.views)
    for number in range(3, 9):
        at.publish({"id": number, "customer": number, "price": 1})
    sums, total, _ = at.views.views
    assert "would take more than 6,000 bytes" in sums.topic.refusal
    assert sums.topic.refusal in total.topic.refusal
    assert sums.memory_bytes == total.memory_bytes == 0
    found = at.records()
    assert found["sums"] == found["total"] == {} and len(found["other"]) == 9
    assert at.rebuilt()["other"] == found["other"]
    named = topic_filter("sums", "json", literal=True)
    assert at.book.refusal_of(named) == sums.topic.refusal
    assert at.book.refusal_of(topic_filter("other", "json", literal=True)) == ""


@pytest.mark.covers("Views and conflation, title by title", "no client publishes")
def test_views_have_no_part_in_what_the_journal_keeps() -> None:
    at = Views(SUMS)
    at.publish({"id": 1, "customer": 1, "price": 5})
    assert list(at.sow.status()) == ["json/orders"]
    at.views.failed(0)
    assert at.records() == at.rebuilt()
    (topic,) = at.book.computed
    assert topic.state.pending_bytes == 0 and topic.staging is None


@pytest.mark.parametrize(
    ("definition", "words"),
    [
        ({"message_type": "binary"}, "cannot have messages of type binary"),
        ({"message_type": "nothing"}, "no message type is called"),
        ({"topic": "nowhere"}, "define it before the view"),
        ({"topic_type": "fix"}, "there is no SOW topic, view or queue fix/orders"),
        ({"filter": "/a >"}, "expected"),
        ({"filter": "UNIX_TIMESTAMP() > 1"}, "something else each time"),
        ({"grouping": ("1 + 2",)}, "a grouping is a field"),
        ({"grouping": ("/a b",)}, "expected"),
        ({"projection": ("SUM(/a)",)}, "expected"),
    ],
)
def test_a_view_that_cannot_be_is_refused(definition: dict[str, Any], words: str) -> None:
    values: dict[str, Any] = {"name": "v", "message_type": "json", "topic": "orders"}
    made = ViewDefinition(**{**values, "projection": ("/a AS /a",), **definition})
    topics = [each.definition for each in book().topics]
    (problem,) = view_problems(made, topics, ())
    with pytest.raises(ConfigurationError, match="view v: "):
        with_views(book(), (made,), ())
    assert words in problem.text


@pytest.mark.covers("Views and conflation, title by title", "views over views")
def test_a_view_is_over_topics_and_views_before_it() -> None:
    topics = [each.definition for each in book().topics]
    assert view_problems(TOTAL, topics, (SUMS,)) == []
    assert "define it before" in view_problems(TOTAL, topics, ())[0].text


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, "the topic under it, or the joins"),
        ({"topic": "a", "joins": ("x",)}, "the topic under it, or the joins"),
        ({"joins": ("x",), "filter": "/a = 1"}, "cannot have a filter"),
        ({"joins": ("x",), "topic_type": "json"}, "write their types in the joins"),
        ({"topic": "a", "projection": ()}, "has no projection"),
    ],
)
def test_a_definition_that_contradicts_itself_is_refused(
    values: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        ViewDefinition(
            **{"name": "v", "message_type": "json", "projection": ("/a AS /a",), **values}
        )


@pytest.mark.parametrize("definition", [SUMS, replace(SUMS, inline=True)])
def test_records_are_made_only_where_somebody_needs_them(definition: ViewDefinition) -> None:
    at, wanted = Views(definition), [True]
    at.views.follow_by(lambda topic: wanted[0])
    at.publish({"id": 1, "customer": 1, "price": 5}, {"id": 2, "customer": 2, "price": 5})
    (view,) = at.views.views
    table = view._groups
    assert all(each.record is not None for each in table.by_key.values())
    wanted[0] = False
    assert at.publish({"id": 1, "customer": 2, "price": 6}, {"id": 3, "customer": 3}) == []
    assert [each.record for each in table.by_key.values()] == [None, None]
    assert table.records_bytes == 0
    status = view.status()
    assert (status["records"], status["inserted"], status["deleted"]) == (2, 3, 1)
    assert at.records() == at.rebuilt()
    wanted[0] = True
    # What a group was is made before the change, if it was not made yet.
    assert shown(at.publish({"id": 3, "customer": 3, "price": 1}), "sums") == [
        ("updated", {"customer": 3, "sum": 1, "count": 1})
    ]
    assert [each.record is not None for each in table.by_key.values()] == [True, True]


@pytest.mark.parametrize("is_followed", [True, False])
def test_a_query_has_the_records_as_they_were_when_it_began(is_followed: bool) -> None:
    at = Views(SUMS)
    at.views.follow_by(lambda topic: is_followed)
    orders = [{"id": number, "customer": number, "price": number} for number in range(40)]
    at.publish(*orders)
    before = at.records()["sums"]
    (view,) = at.views.views
    scan, keys = view.topic.state.query(), view.topic.state.query_keys(sorted(before)[:3])
    found = [(key[1:], body_of(value)) for key, value in scan.take(7)]
    at.publish(*({**each, "price": 100} for each in orders), {"id": 50, "customer": 50})
    at.delete(39)
    at.publish({"id": 0, "customer": 1, "price": 1})
    while not scan.done:
        found += [(key[1:], body_of(value)) for key, value in scan.take(7)]
    assert dict(found) == before and len(found) == 40
    few = {key[1:]: body_of(value) for key, value in keys.take(9)}
    assert few == {key: before[key] for key in sorted(before)[:3]}
    assert at.records() == at.rebuilt() and view.topic.state.get(b"nothing") is None


def test_indexes_of_a_view_get_the_changes_that_nobody_follows() -> None:
    at = Views(replace(SUMS, hash_indexes=(("/sum",),)), replace(SUMS, name="keyed"))
    at.views.follow_by(lambda topic: False)
    at.publish({"id": 1, "customer": "05", "price": 5}, {"id": 2, "customer": 2, "price": 7})
    at.publish({"id": 2, "customer": 2, "price": 8})
    hashed, keyed = (each.topic.indexes for each in at.views.views)
    assert hashed is not None and keyed is not None
    (key,) = hashed.candidates({("sum",): (8,)}) or ()
    assert json.loads(at.records()["sums"][key] or b"") == {"customer": 2, "sum": 8, "count": 1}
    assert hashed.candidates({("sum",): (7,)}) == set()
    # 05 is no usual spelling of a number: from now on numbers are not looked up by key.
    assert keyed.candidates({("customer",): (5,)}) is None
    assert key_of({"customer": "05"}, ("/customer",), "keyed") in (
        keyed.candidates({("customer",): ("05",)}) or ()
    )


def test_messages_with_the_name_of_a_view_are_none_of_its_records() -> None:
    """Such messages may be in the journal from before the view was declared, or come over a link
    from an instance that has no such view."""
    at = Views(*EVERY)
    at.publish({"id": 1, "customer": "a", "price": 2})
    before = at.records()
    for command in (Command.PUBLISH, Command.DELTA_PUBLISH, Command.DELETE):
        for key in (b"", *before["sums"]):
            stray = put(at.txid + 1, b'{"customer": "b"}', topic="sums", command=command, key=key)
            assert at.commit(stray) == []
            at.sow.recover([put(at.txid + 1, b"{}", topic="sums", command=command, key=key)])
            assert at.records() == before == at.rebuilt()


@pytest.mark.covers("Views", "views: what they refuse")
@pytest.mark.parametrize("is_built", [True, False])
def test_a_join_of_too_many_rows_is_out_of_service(
    is_built: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(join_fold, "ROWS_MAX", 5)
    pairs = ViewDefinition(
        "pairs",
        "json",
        joins=("[sums]./customer = [orders]./customer",),
        projection=("[orders]./id AS /id", "[sums]./sum AS /sum"),
    )
    at = Views(SUMS, pairs)
    if not is_built:
        for number in range(6):
            at.sow.fold(CommitBatch([put(number + 1, b'{"id":%d,"customer":1}' % number)], 0))
        at.views.build()
        at.txid = 6
    for number in range(6):
        at.publish({"id": number, "customer": 1, "price": 1})
    sums, joined = at.views.views
    assert "changes more than 5 joined rows" in joined.topic.refusal
    assert not sums.topic.refusal and at.records()["pairs"] == {}
    assert at.rebuilt()["sums"] == at.records()["sums"]
    # Later changes harm nothing.
    at.publish({"id": 1, "customer": 1, "price": 2})
    assert joined.memory_bytes == 0


def paired(monkeypatch: pytest.MonkeyPatch, **options: Any) -> tuple[Views, list[int]]:
    """A join of which each change of sums touches all orders of a customer, in turns; and the
    number of times that turns were asked for."""
    monkeypatch.setattr(join_fold, "ROWS_AT_ONCE", 3)
    at, woken = Views(SUMS, replace(JOINED, **options)), [0]

    def wake() -> None:
        woken[0] += 1

    at.publish(*({"id": number, "customer": 1, "price": 1} for number in range(10)))
    at.views.wait_by(wake)
    return at, woken


@pytest.mark.parametrize("inline", [True, False])
def test_a_change_of_many_rows_is_folded_in_turns(
    inline: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    at, woken = paired(monkeypatch, inline=inline)
    sums, joined = at.views.views
    scan = joined.topic.state.query()
    before = at.records()["joined"]
    changes = at.publish({"id": 0, "customer": 1, "price": 5}, {"id": 20, "customer": 2})
    assert woken == [1]
    assert at.views.behind == [joined] and not joined.topic.is_built
    assert joined.status()["backlog"] > 1 and sums.topic.is_built
    # The orders themselves have one row each, and were folded before.
    turns, found = 0, [each for each in changes if each.name == b"joined"]
    assert len(found) == (0 if inline else 2)
    while joined.is_behind:
        found += joined.go_on(lambda: True)
        turns += 1
    assert turns > 2 and joined.topic.is_built and joined.status()["backlog"] == 0
    assert at.records() == at.rebuilt()
    held = dict(before)
    for each in found:
        if each.change.current is None:
            del held[each.change.key]
        else:
            held[each.change.key] = each.change.current.body
    assert held == at.records()["joined"]
    # A query that had begun has the records as they were.
    assert {key[1:]: body_of(value) for key, value in scan.take(99)} == before


def test_the_changes_of_many_rows_are_given_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower takes some microseconds for each: 30,000 at once held up all clients."""
    monkeypatch.setattr(view, "GIVEN_AT_ONCE", 4)
    at, _ = paired(monkeypatch)
    (_, joined) = at.views.views
    held = dict(at.records()["joined"])
    found = at.publish({"id": 0, "customer": 1, "price": 5})
    turns: list[int] = []
    while joined.is_behind:
        given = joined.go_on(lambda: False)
        found += given
        turns.append(len(given))
        if len(turns) == 2:
            # What is published meanwhile waits behind them.
            assert not joined.topic.is_built
            found += at.publish({"id": 1, "customer": 1, "price": 7})
    assert max(turns) <= 4 and sum(turns) >= 20 and joined.topic.is_built
    for each in found:
        if each.name == b"joined":
            before, now = each.change.previous, each.change.current
            assert held.pop(each.change.key, None) == (None if before is None else before.body)
            if now is not None:
                held[each.change.key] = now.body
    assert held == at.records()["joined"] == at.rebuilt()["joined"]


def test_who_begins_to_follow_amid_a_change_of_many_rows_gets_it_at_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at, _ = paired(monkeypatch)
    follows = [False]
    at.views.follow_by(lambda topic: follows[0])
    at.publish({"id": 0, "customer": 1, "price": 5})
    follows[0] = True
    at.publish({"id": 1, "customer": 1, "price": 6})
    (_, joined) = at.views.views
    found = joined.go_on(lambda: False)
    assert {each.change.reason for each in found} == {"inserted"} and len(found) == 10
    given = [each.change.current for each in found]
    assert (
        {each.key: each.body for each in given if each is not None}
        == at.records()["joined"]
        == at.rebuilt()["joined"]
    )


def test_what_waits_behind_a_change_of_many_rows_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(view, "WAITING_MAX", 4)
    at, _ = paired(monkeypatch)
    (_, joined) = at.views.views
    for number in range(20):
        at.publish({"id": number % 10, "customer": 1, "price": number})
        assert joined.status()["backlog"] <= 5
    joined.go_on(lambda: False)
    assert at.records() == at.rebuilt()


def test_a_change_of_too_many_rows_ends_a_view_amid_its_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at, _ = paired(monkeypatch)
    monkeypatch.setattr(join_fold, "ROWS_MAX", 7)
    at.publish({"id": 0, "customer": 1, "price": 5})
    (_, joined) = at.views.views
    assert joined.is_behind
    while joined.is_behind:
        assert joined.go_on(lambda: True) == []
    assert "changes more than 7 joined rows" in joined.topic.refusal and joined.topic.is_built
