"""Paginated subscriptions: who applies what comes to the rows of the query holds the slice of a
sort, whatever is published, deleted and expires, and however the order is built meanwhile."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sow_given import book, delete, put

from raylay.services.core.feature import CommitBatch
from raylay.services.core.sow import SowFeature
from raylay.services.errors import RemoteProtocolError, SowDamaged
from raylay.services.expressions.functions import BUILT_IN
from raylay.services.expressions.work import NEWS
from raylay.services.messages.records import Command, Record, Run, iterate_records
from raylay.services.messages.types.registry import MessageTypes
from raylay.services.security.connection_shares import ShareHolder
from raylay.services.sow.definition import SowTopicDefinition
from raylay.services.sow.keys import key_of
from raylay.services.sow.state import SowRules
from raylay.services.subscriptions import pages
from raylay.services.subscriptions.costly import filter_budgets
from raylay.services.subscriptions.follow_terms import FollowTerms, PageTerms
from raylay.services.subscriptions.matching import (
    FilterOwner,
    LiveSubscription,
    TopicFilter,
    topic_filter,
)
from raylay.services.subscriptions.pages import PagedSubscriptions, PageOrder, PageUse

pytestmark = pytest.mark.covers("Views", "paginated subscriptions: who applies")

TYPES = MessageTypes()
S = 1_000_000
ORDERS = SowTopicDefinition(
    "orders", "json", keys=("/id",), hash_indexes=(("/s",),), rules=SowRules(expires=True)
)
MARKETS = SowTopicDefinition("markets", "json", keys=("/id",), pattern="^market/")
Said = tuple[str, str, Record]


def key(number: Any, domain: str = "orders") -> bytes:
    return key_of({"id": number}, ("/id",), domain)


class House:
    """SOW topics, and the pages of them."""

    def __init__(self, *definitions: SowTopicDefinition, **more: Any) -> None:
        self.book = book(*(definitions or (ORDERS, MARKETS)))
        self.sow = SowFeature(self.book)
        self.owners: dict[int, FilterOwner] = {}
        self.full: list[PageOrder] = []
        self.pages = PagedSubscriptions(
            TYPES, BUILT_IN, self.book.matching, "A-1", "A",
            lambda session: self.owners.get(session, FilterOwner()), self.full.append, **more,
        )  # fmt: skip
        self.txid = 0

    def made(
        self, name: str, skip: int = 0, most: int = 3, order_by: str = "/p", content: str = "",
        topic: str = "orders", session: int = 1, message_type: str = "", **wishes: Any,
    ) -> LiveSubscription:  # fmt: skip
        wishes.setdefault("oof", True)
        terms = FollowTerms(**wishes, page=PageTerms(skip, most, order_by))
        return LiveSubscription(session, name, topic_filter(topic, message_type), content, 0, terms)

    def follow(self, name: str, *args: Any, **more: Any) -> LiveSubscription:
        found = self.made(name, *args, **more)
        self.pages.add(found)
        return found

    def hold(self, subscription: LiveSubscription) -> PageUse:
        assert subscription.following is not None
        return self.pages.hold(
            subscription.session, subscription.filter, subscription.content, subscription.following
        )

    def commit(self, *runs: Run) -> list[Said]:
        batch = CommitBatch(list(runs), runs[-1].last_txid)
        self.sow.fold(batch)
        return self.told(list(runs), batch.changes)

    def put(self, *trees: Any, **more: Any) -> list[Said]:
        bodies = [each if isinstance(each, bytes) else orjson.dumps(each) for each in trees]
        first = self.txid + 1
        self.txid += len(bodies)
        return self.commit(put(first, *bodies, at_us=S, **more))

    def delete(self, *keys: bytes, **more: Any) -> list[Said]:
        self.txid += 1
        return self.commit(delete(self.txid, *keys, **more))

    def told(self, runs: list[Run], changes: Any) -> list[Said]:
        return [
            (subscription.id, reason, record)
            for subscription, reason, delivery in self.pages.deliveries(runs, changes)
            for record in iterate_records(b"".join(delivery.bodies))
        ]

    def shown(self, subscription: LiveSubscription) -> dict[bytes, Any]:
        """The rows of a subscription's window, as its query gives them."""
        topic = self.pages.topic(subscription)
        found = {each: topic.state.get(each) for each in self.pages.keys(subscription)}
        return {each: record.body for each, record in found.items()}  # type: ignore[union-attr]


def said(told: list[Said]) -> list[tuple[str, str, Any]]:
    return [(name, reason, orjson.loads(record.body)) for name, reason, record in told]


def of(told: list[Said]) -> dict[str, list[tuple[str, Any]]]:
    """Returns the messages of each subscription, in order."""
    found: dict[str, list[tuple[str, Any]]] = {}
    for name, reason, body in said(told):
        found.setdefault(name, []).append((reason, body))
    return found


def apply(rows: dict[bytes, Any], reason: str, record: Record) -> None:
    if reason:
        del rows[record.key]
    elif record.command == Command.DELTA_PUBLISH:
        assert record.key in rows
        found = orjson.loads(rows[record.key]) | orjson.loads(record.body)
        rows[record.key] = orjson.dumps({k: v for k, v in found.items() if v is not None})
    else:
        rows[record.key] = record.body


def expected(
    house: House, content: Callable[[Any], bool], skip: int, most: int
) -> dict[bytes, Any]:
    topic = house.book.topics[0]
    found = [
        (orjson.loads(each.body or b""), each.key, each.body) for each in topic.state.records()
    ]
    order = sorted(
        (each for each in found if content(each[0])),
        key=lambda each: ((2, each[0]["p"]) if "p" in each[0] else (0, 0), each[1]),
    )
    return {each[1]: each[2] for each in order[skip : skip + most]}


@pytest.mark.covers("Views and conflation, title by title", "a paginated subscription")
def test_what_comes_into_a_page_changes_in_it_and_leaves_it() -> None:
    house = House()
    house.put({"id": 1, "p": 1}, {"id": 2, "p": 2}, {"id": 3, "p": 3}, {"id": 4, "p": 4})
    page = house.follow("page", 1, 2)
    delta = house.follow("delta", 1, 2, delta=True)
    assert list(house.shown(page)) == [key(2), key(3)] == list(house.shown(delta))
    assert (house.pages.count(page), len(house.pages)) == (4, 2)
    assert house.put({"id": 4, "p": 5}) == [], "outside of the page"
    assert said(house.put({"id": 2, "p": 2, "s": "x"})) == [
        ("page", "", {"id": 2, "p": 2, "s": "x"}), ("delta", "", {"id": 2, "s": "x"})
    ], "it has changed, and stays"  # fmt: skip
    assert said(house.put({"id": 2, "p": 2, "s": "x"})) == [
        ("page", "", {"id": 2, "p": 2, "s": "x"})
    ]
    assert of(house.put({"id": 1, "p": 9})) == {
        name: [("match", {"id": 2, "p": 2, "s": "x"}), ("", {"id": 4, "p": 5})]
        for name in ("page", "delta")
    }, "what was behind it moves up"
    assert of(house.delete(key(3))) == {
        name: [("deleted", {"id": 3, "p": 3}), ("", {"id": 1, "p": 9})]
        for name in ("page", "delta")
    }
    told = house.put({"id": 4, "p": 99})
    assert of(told) == {name: [("", {"id": 4, "p": 99})] for name in ("page", "delta")}
    assert [each.command for _, _, each in told] == [Command.PUBLISH, Command.DELTA_PUBLISH]
    house.pages.remove(page)
    assert [name for name, _, _ in house.delete(key(4))] == ["delta"]
    house.pages.remove(delta)
    assert not len(house.pages) and house.pages.memory_bytes == 0
    assert house.put({"id": 4, "p": 2}) == []


def test_a_row_that_moves_out_of_the_page_is_shown_as_it_is_now() -> None:
    house = House()
    house.put({"id": 1, "p": 1}, {"id": 2, "p": 2})
    house.follow("free", 0, 1, content="/p > 0")
    house.follow("kept", 0, 1, content="/p > 0", keeps_back=True)
    told = house.put({"id": 1, "p": 7})
    assert [each for each in said(told) if each[1]] == [
        ("free", "match", {"id": 1, "p": 7}), ("kept", "match", {"id": 1, "p": 7})
    ], "it still passes the filter"  # fmt: skip
    told = house.put({"id": 2, "p": 0, "secret": True})
    assert [each for each in said(told) if each[1]] == [
        ("free", "match", {"id": 2, "p": 0, "secret": True}), ("kept", "match", {"id": 2, "p": 2})
    ], "who may see only what passes is shown what it was"  # fmt: skip


def test_a_row_is_read_as_it_was_at_the_change_that_brought_it_in() -> None:
    """One commit moves the rows of the page three times, and deletes the row that came in first."""
    house = House()
    house.put({"id": 1, "p": 1}, {"id": 2, "p": 2}, {"id": 3, "p": 3})
    page = house.follow("page", 0, 1)
    rows = house.shown(page)
    house.txid += 4
    runs = (
        delete(4, key(1)),
        put(5, b'{"id":2,"p":2,"s":"later"}', at_us=S),
        delete(6, key(2)),
        put(7, b'{"id":3,"p":4}', at_us=S),
    )
    told = house.commit(*runs)
    assert said(told) == [
        ("page", "deleted", {"id": 1, "p": 1}),
        ("page", "", {"id": 2, "p": 2}),
        ("page", "", {"id": 2, "p": 2, "s": "later"}),
        ("page", "deleted", {"id": 2, "p": 2, "s": "later"}),
        ("page", "", {"id": 3, "p": 3}),
        ("page", "", {"id": 3, "p": 4}),
    ]
    for _, reason, record in told:
        apply(rows, reason, record)
    assert rows == house.shown(page)


def test_who_asks_for_no_oof_is_told_what_comes() -> None:
    house = House()
    house.put({"id": 1, "p": 1}, {"id": 2, "p": 2})
    house.follow("page", 0, 1, oof=False, select="[-/,+/id]")
    assert said(house.put({"id": 3, "p": 0})) == [("page", "", {"id": 3})]
    assert said(house.delete(key(3))) == [("page", "", {"id": 1})]


def test_a_record_that_expires_leaves_the_page() -> None:
    house = House()
    house.put({"id": 1, "p": 1}, expiration_s=5)
    house.put({"id": 2, "p": 2})
    house.follow("page", 0, 1)
    told = house.told([], house.sow.tick(7 * S))
    assert said(told) == [("page", "expired", {"id": 1, "p": 1}), ("page", "", {"id": 2, "p": 2})]


@pytest.mark.covers("Views and conflation, title by title", "without an order")
def test_without_an_order_rows_are_in_the_order_of_their_keys() -> None:
    house = House()
    house.put(*({"id": number} for number in range(9)))
    page = house.follow("page", 2, 4, order_by="")
    assert house.pages.keys(page) == sorted(key(number) for number in range(9))[2:6]
    other = house.follow("part", 0, 2, order_by="", keys=frozenset((key(3), key(4), key(20))))
    assert house.pages.keys(other) == sorted((key(3), key(4)))
    assert house.pages.count(other) == 2
    found = house.put({"id": 20})
    assert {name for name, _, _ in found} <= {"page", "part"} and house.pages.count(other) == 3
    assert {name for name, _, _ in house.put({"id": 21})} <= {"page"}
    assert house.pages.count(other) == 3


def test_unreadable_records_are_ordered_like_those_without_fields() -> None:
    house = House(SowTopicDefinition("orders", "json"))
    house.put({"p": 1}, key=b"a")
    house.put(b"{", key=b"b")
    page, filtered = house.follow("page"), house.follow("filtered", content="/p IS NULL OR /p > 0")
    assert house.pages.keys(page) == [b"b", b"a"]
    assert house.pages.keys(filtered) == [b"a"]
    assert house.put(b"[", key=b"a")[0][:2] == ("page", "")


def test_pages_of_one_logical_topic_and_of_the_physical_one() -> None:
    house = House()
    for number, name in enumerate(("market/a", "market/b", "market/a")):
        house.put({"id": number, "p": number}, topic=name)
    one = house.follow("one", topic="market/a", content="TOPIC_NAME() = 'market/a'")
    every = house.follow("every", topic="markets")
    assert [len(house.pages.keys(each)) for each in (one, every)] == [2, 3]
    assert {name for name, _, _ in house.put({"id": 7, "p": 1}, topic="market/b")} == {"every"}
    told = house.put({"id": 7, "p": 0}, topic="market/a")
    assert {name for name, _, _ in told} == {"one", "every"}
    assert {each.topic for _, reason, each in told if not reason} == {"market/a"}


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"topic": "nothing"}, "no_sow"),
        ({"topic": "^ord.*"}, "not_supported"),
        ({"topic": "twice"}, "bad_message_type"),
        ({"content": "/p >"}, "bad_filter"),
        ({"content": "UNIX_TIMESTAMP() > 5"}, "bad_filter"),
        ({"order_by": "price"}, "bad_order_by"),
        ({"select": "id"}, "bad_select"),
    ],
)
def test_what_can_be_no_page_is_refused_with_the_reason(more: Any, reason: str) -> None:
    house = House(ORDERS, SowTopicDefinition("twice", "json"), SowTopicDefinition("twice", "fix"))
    with pytest.raises(RemoteProtocolError) as refused:
        house.follow("page", **more)
    assert refused.value.reason == reason
    assert not len(house.pages)


def test_a_page_tells_nothing_of_topics_that_may_not_be_read() -> None:
    """The physical topic has records of topics that are closed to the client."""
    house = House()
    house.put({"id": 1, "p": 1}, topic="market/secret")
    made = house.made("page", topic="markets")
    made.filter = topic_filter("markets", "", readable=lambda topic: topic != b"market/secret")
    with pytest.raises(RemoteProtocolError, match="name one of its topics") as refused:
        house.pages.add(made)
    assert refused.value.reason == "not_supported"
    made.filter = topic_filter("market/a", "", readable=lambda topic: topic != b"market/secret")
    house.pages.add(made)
    assert house.pages.count(made) == 0


def test_one_user_cannot_make_each_change_costly_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "ORDERS_MAX", 4)
    monkeypatch.setattr(pages, "PAGES_OF_USER_MAX", 5)
    house = House()
    every = filter_budgets(lambda ends: None)
    budgets = [every.of(ShareHolder(name, "")) for name in ("ann", "bob", "eve")]
    # Ann has two connections.
    owners = {1: budgets[0], 2: budgets[0], 3: budgets[1], 4: budgets[2]}
    house.owners = {each: FilterOwner(budget=budget) for each, budget in owners.items()}
    found = [house.follow(f"{each}", order_by=f"/f{each}", session=each) for each in (1, 2)]
    found += [house.follow(f"{skip}", skip, order_by="/f1", session=1) for skip in (1, 2, 3)]
    for more in ({"order_by": "/f9", "session": 2}, {"order_by": "/f2", "session": 1}):
        with pytest.raises(RemoteProtocolError) as refused:
            house.follow("more", **more)
        assert refused.value.reason == "too_many"
    house.pages.remove(found.pop())
    with pytest.raises(RemoteProtocolError, match="2 different orders"):
        house.follow("more", order_by="/f9", session=2)
    found += [house.follow(f"{each}", order_by=f"/f{each}", session=3) for each in (3, 4)]
    with pytest.raises(RemoteProtocolError, match="4 different orders"):
        house.follow("more", order_by="/f9", session=4)
    found.append(house.follow("shared", order_by="/f3", session=4))
    for each in found:
        house.pages.remove(each)
    assert not len(house.pages)
    house.follow("more", order_by="/f9", session=2)


@pytest.mark.covers("Views and conflation, title by title", "without an order")
def test_equal_pages_share_an_order_and_its_memory() -> None:
    house = House()
    house.put(*({"id": number, "p": number, "s": "x" * number} for number in range(50)))
    pages = [
        house.follow("a", 0, 5, session=1),
        house.follow("b", 0, 5, session=2),
        house.follow("c", 9, 5, session=2),
        house.follow("d", 0, 5, "/p DESC", session=2),
    ]
    size_bytes = house.pages.memory_bytes // 2
    assert size_bytes > 50 * 260
    kept_bytes = house.pages.kept_bytes()
    assert set(kept_bytes) == {1, 2}
    assert abs(kept_bytes[1] - size_bytes // 3) < 200
    assert abs(kept_bytes[2] - (size_bytes * 2 // 3 + size_bytes)) < 200
    assert house.pages.weight(b"orders", b"json") == 3
    assert house.pages.weight(b"market/a", b"json") == 0
    assert house.pages.unknown_us(b"orders", b"json") == 0
    text = house.follow("e", order_by="/s")
    assert house.pages.memory_bytes > 3 * size_bytes, "texts take more"
    house.pages.remove(text)
    descending = house.follow("f", order_by="/s DESC")
    assert house.pages.memory_bytes > 3 * size_bytes
    for each in (*pages, descending):
        assert each in house.pages
        house.pages.remove(each)
        assert each not in house.pages
    assert (len(house.pages), house.pages.memory_bytes) == (0, 0)


def test_filters_that_name_the_client_are_not_shared() -> None:
    house = House()
    house.owners = {1: FilterOwner("ann"), 2: FilterOwner("bob")}
    house.put({"id": 1, "s": "ann"}, {"id": 2, "s": "bob"})
    found = [house.follow(str(each), content="/s = CLIENT_NAME()", session=each) for each in (1, 2)]
    assert [house.pages.keys(each) for each in found] == [[key(1)], [key(2)]]


def test_each_user_of_a_shared_filter_pays_for_it() -> None:
    house = House()
    every = filter_budgets(lambda ends: None)
    budgets = [every.of(ShareHolder(name, "")) for name in ("ann", "bob")]
    house.owners = {1: FilterOwner(budget=budgets[0]), 2: FilterOwner(budget=budgets[1])}
    one = house.follow("one", content="/p > 0", session=1)
    two = house.follow("two", content="/p > 0", session=2)
    again = house.follow("again", 3, 3, content="/p > 0", session=2)
    bare = house.follow("bare", session=2)
    use = house.hold(house.made("three", content="/p > 0", session=1))
    assert use.order.filter is not None
    effort = use.order.filter.effort
    assert effort.payers == budgets
    assert house.pages.with_efforts({effort}) == {one, two, again}
    house.pages.remove(two)
    assert effort.payers == budgets
    house.pages.remove(again)
    house.pages.remove(one)
    assert effort.payers == budgets[:1]
    assert budgets[0].held_bytes > 0 and budgets[1].held_bytes == 0
    use.release()
    use.release()
    assert effort.payers == [] and len(house.pages) == 1
    assert budgets[0].held_bytes == 0
    house.pages.remove(bare)


def test_an_order_that_takes_too_much_memory_fails() -> None:
    house = House(order_bytes_max=5_000)
    house.put(*({"id": number, "p": number} for number in range(10)))
    page = house.follow("page")
    house.put(*({"id": number, "p": number} for number in range(10, 30)))
    (order,) = house.full
    assert order.failure is not None and order.failure.reason == "too_large"
    assert house.pages.members(order) == [page]
    assert house.delete(key(0)) == [], "it is told nothing any more"
    with pytest.raises(RemoteProtocolError) as refused:
        house.follow("other")
    assert refused.value.reason == "too_large"
    house.pages.remove(page)
    with pytest.raises(RemoteProtocolError):
        house.follow("other")
    assert not len(house.pages)


GROWING = "/id"
for _ in range(20):
    GROWING = f"REGEXP_REPLACE({GROWING}, '7', '77')"
GROWING += " = 'page'"
"""More than an evaluation may do where the id is 7, little elsewhere."""


def test_a_build_ends_early_behind_a_costly_record_and_is_refused_behind_too_costly_a_one() -> None:
    house = House()
    house.put(*({"id": number, "p": number} for number in range(4)))
    use = house.hold(house.made("page", content="REGEXP_REPLACE(/p, '9', 'x') != 'y'"))
    assert use.order.filter is not None
    matches, effort = use.order.filter.matches, use.order.filter.effort

    def costly(tree: Any, around: Any) -> bool:
        effort.steps += 1
        return matches(tree, around)

    use.order.filter = replace(use.order.filter, matches=costly)
    placed = []
    while not use.order.is_built:
        use.order.build(3)
        placed.append(len(use.order.rows.places))
    assert placed == [1, 2, 3, 4], "one at a time"
    use.release()
    house.put({"id": 7, "p": 7})
    with pytest.raises(RemoteProtocolError) as refused:
        house.follow("page", content=GROWING)
    assert refused.value.reason == "filter_too_costly"
    assert not len(house.pages)
    NEWS.take()


def test_an_order_waits_for_its_users_and_is_refused_when_its_filter_is_stopped() -> None:
    house = House()
    every = filter_budgets(lambda ends: None)
    budgets = [every.of(ShareHolder(name, "")) for name in ("ann", "bob")]
    house.owners = {1: FilterOwner(budget=budgets[0]), 2: FilterOwner(budget=budgets[1])}
    page = house.made("page", content="/p > 0", session=1)
    plain = house.hold(house.made("plain", session=1))
    use = house.hold(page)
    assert not use.order.must_wait
    budgets[0].spend(1 << 50)
    assert use.order.must_wait, "nobody can pay"
    assert not plain.order.must_wait, "there is nothing to pay for"
    other = house.hold(house.made("other", content="/p > 0", session=2))
    assert not other.order.must_wait, "it is the same order, and another user can pay"
    assert use.order.filter is not None
    use.order.filter.effort.stop()
    with pytest.raises(RemoteProtocolError) as refused:
        house.pages.add(page)
    assert refused.value.reason == "filter_too_costly"


def test_an_order_of_what_is_out_of_service_is_refused() -> None:
    house = House()
    house.book.topics[0].refusal = "view orders is too large"
    with pytest.raises(RemoteProtocolError, match="too large") as refused:
        house.follow("page")
    assert refused.value.reason == "view_full"
    house.book.topics[0].refusal = ""
    use = house.hold(house.made("page"))
    use.order.build(1)
    assert use.order.is_built and use.order.refusal is None
    house.book.topics[0].refusal = "view orders is too large"
    with pytest.raises(RemoteProtocolError, match="too large"):
        house.follow("page")


def test_a_page_of_records_that_are_found_by_no_name() -> None:
    """The records of an aggregation: the query before the subscription brings the topic."""
    house = House()
    house.put({"id": 1, "p": 1})
    page = house.made("page")
    page.filter = TopicFilter(b"orders", frozenset((b"json",)), shown_as=b"elsewhere")
    assert page.following is not None
    topic = house.book.topics[0]
    topic.shown_as = b"elsewhere"
    use = house.pages.hold(1, page.filter, "", page.following, topic)
    house.pages.add(page)
    use.release()
    assert house.pages.keys(page) == [key(1)]
    told = house.put({"id": 2, "p": 0})
    assert {each.topic for _, _, each in told} == {"elsewhere"}
    (status,) = house.pages.status()
    assert (status["topic"], house.pages.number(page)) == ("elsewhere", status["number"])
    assert house.pages.number(house.made("none")) is None


def test_a_damaged_record_ends_the_pages_that_need_it_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    house = House()
    house.put({"id": 1, "p": 1}, {"id": 2, "p": 2}, {"id": 3, "p": 3})
    house.follow("page", 0, 1)
    other = house.follow("other", 0, 3, "/p DESC")
    state = house.book.topics[0].state
    get = state.get

    def damaged(wanted: bytes) -> Any:
        if wanted == key(2):
            raise SowDamaged("SOW record 2 is damaged")
        return get(wanted)

    monkeypatch.setattr(state, "get", damaged)
    told = house.put({"id": 1, "p": 10})
    assert ("other", "", {"id": 1, "p": 10}) in said(told)
    (order,) = house.full
    assert order.failure is not None and order.failure.reason == "storage_error"
    assert house.pages.members(order) != [other]


def test_large_rows_come_in_several_deliveries() -> None:
    house = House()
    house.follow("page", 0, 9)
    bodies = [orjson.dumps({"id": number, "s": "x" * 600_000}) for number in range(3)]
    run = put(1, *bodies, at_us=S)
    batch = CommitBatch([run], run.last_txid)
    house.sow.fold(batch)
    found = list(house.pages.deliveries([run], batch.changes))
    assert [delivery.count for _, _, delivery in found] == [1, 1, 1]
    assert [delivery.first_txid for _, _, delivery in found] == [1, 2, 3]
    assert {delivery.receive_time_us for _, _, delivery in found} == {S}


ROWS = st.one_of(
    st.tuples(st.integers(0, 7), st.none() | st.integers(0, 4), st.integers(0, 2)),
    st.integers(0, 7),
    st.just("expire"),
)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.lists(ROWS, min_size=1, max_size=4), max_size=14),
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 4)), min_size=1, max_size=3),
    st.integers(0, 8),
    st.integers(1, 4),
)
@pytest.mark.covers("Views and conflation, title by title", "a paginated subscription")
def test_who_applies_what_comes_holds_the_slice_of_a_sort(
    commits: list[list[Any]], windows: list[tuple[int, int]], opened_after: int, built_at_once: int
) -> None:
    """The orders are held from the first commit on, and built in turns between the commits."""
    house = House()
    filters: dict[str, Callable[[Any], bool]] = {
        "": lambda tree: True,
        "/s > 0": lambda tree: tree["s"] > 0,
        "/s = 1": lambda tree: tree["s"] == 1,
    }
    pages = {
        house.made(f"{number} {content} {delta}", *window, content=content, delta=delta): content
        for number, window in enumerate(windows)
        for content in filters
        for delta in (False, True)
    }
    held: dict[LiveSubscription, dict[bytes, Any]] = {}
    holds = []
    now_us = S
    for number, commit in enumerate(commits):
        if number == opened_after // 2:
            holds = [house.hold(each) for each in pages]
        for use in holds:
            if not use.order.is_built:
                use.order.build(built_at_once)
        if number == opened_after:
            for page in pages:
                house.pages.add(page)
                held[page] = house.shown(page)
        told = []
        runs: list[Run] = []
        for each in commit:
            house.txid += 1
            if each == "expire":
                house.txid -= 1
                if runs:
                    told += house.commit(*runs)
                    runs = []
                now_us += 2 * S
                told += house.told([], house.sow.tick(now_us))
            elif isinstance(each, int):
                runs.append(delete(house.txid, key(each), at_us=now_us))
            else:
                row, place, other = each
                tree = {"id": row, "s": other} | ({} if place is None else {"p": place})
                expiration_s = 3 if other == 2 else 0
                runs.append(
                    put(house.txid, orjson.dumps(tree), at_us=now_us, expiration_s=expiration_s)
                )
        if runs:
            told += house.commit(*runs)
        names = {page.id: rows for page, rows in held.items()}
        for name, reason, record in told:
            apply(names[name], reason, record)
        for page, rows in held.items():
            assert page.following is not None and page.following.page is not None
            window = page.following.page
            wanted = expected(house, filters[pages[page]], window.skip, window.most)
            assert house.pages.keys(page) == list(wanted)
            parsed = [
                {each: orjson.loads(body) for each, body in found.items()}
                for found in (rows, wanted)
            ]
            assert parsed[0] == parsed[1]


def test_many_records_with_windows_all_over() -> None:
    rng, house = random.Random(7), House()
    house.put(*({"id": number, "p": rng.randrange(500)} for number in range(400)))
    held = {}
    for skip in range(0, 400, 40):
        page = house.follow(f"{skip}", skip, 20)
        held[page] = house.shown(page)
    names = {page.id: rows for page, rows in held.items()}
    for _ in range(60):
        told = house.put(*({"id": rng.randrange(400), "p": rng.randrange(500)} for _ in range(5)))
        told += house.delete(key(rng.randrange(400)))
        for name, reason, record in told:
            apply(names[name], reason, record)
    for page, rows in held.items():
        assert page.following is not None and page.following.page is not None
        assert rows == expected(house, lambda tree: True, page.following.page.skip, 20)
