"""services/security/row_filters.py, and the pure parts that ask it: what of a topic a client may
read that it finds by a regular expression."""

from __future__ import annotations

from typing import Any

import pytest
from unit.subscriptions.test_filtered import run

from raylay.services.errors import RemoteProtocolError
from raylay.services.expressions.expression import SUBSCRIPTION
from raylay.services.expressions.functions import BUILT_IN
from raylay.services.expressions.functions.registry import EvalContext, Functions
from raylay.services.messages.types.registry import MessageTypes
from raylay.services.security.permissions import Permissions, read_permissions
from raylay.services.security.reading import readable
from raylay.services.security.row_filters import RowFilters
from raylay.services.sow.query.planning import FOLLOWING, QUERY
from raylay.services.subscriptions.filtered import FilteredSubscriptions
from raylay.services.subscriptions.matching import (
    ANSWERS_KEPT_MAX,
    FilterOwner,
    LiveSubscription,
    TopicFilter,
    topic_filter,
)
from raylay.services.subscriptions.replay_filters import ReplayFilters

pytestmark = pytest.mark.covers("Configuration", "a row filter hides what it does not pass")

GIVEN = read_permissions(
    {
        "topic": [
            {"topic": "(orders|notes)", "read": "/desk = 'fx'"},
            {"topic": "mine", "read": "/user = USER()"},
            {"topic": "late", "read": "UNIX_TIMESTAMP() > 5"},
            {"topic": "keyed", "read": "SOW_KEY() = 'k'"},
            {"topic": "staff", "read": "/desk = 'fx'", "select": "-/pay"},
            {"topic": "free", "read": True},
        ]
    },
    "here",
)


def rows(given: Permissions = GIVEN, user: str = "amy") -> RowFilters:
    return RowFilters(given, lambda: BUILT_IN, EvalContext(user=user))


def wanted(topic: str = ".*", message_type: str = "", user: str = "amy") -> TopicFilter:
    def may_read(name: bytes) -> bool:
        return readable(GIVEN, name)

    return topic_filter(topic, message_type, readable=may_read, rows=rows(user=user))


def test_only_topics_with_a_row_filter_and_all_fields_are_restricted_by_it() -> None:
    assert GIVEN.restricts_rows
    assert not read_permissions({"topic": [{"topic": "a", "read": True}]}, "here").restricts_rows
    select = {"topic": "a", "read": "/b = 1", "select": "-/c"}
    assert not read_permissions({"topic": [select]}, "here").restricts_rows
    found = rows()
    assert [each for each in (b"orders", b"staff", b"free", b"none") if found.restricts(each)] == [
        b"orders"
    ]
    orders = found.of(b"orders", SUBSCRIPTION)
    assert orders is not None and orders is found.of(b"notes", SUBSCRIPTION), "compiled once"
    assert orders.matches({"desk": "fx"}, EvalContext())
    assert found.of(b"staff", SUBSCRIPTION) is found.of(b"free", SUBSCRIPTION) is None
    mine = found.of(b"mine", QUERY)
    assert mine is not None and mine.matches({"user": "amy"}, EvalContext(user="eve"))


def test_a_filter_that_cannot_be_used_in_a_place_lets_nothing_pass_there() -> None:
    found = rows()
    assert found.of(b"late", SUBSCRIPTION) is not None and found.of(b"late", FOLLOWING) is None
    assert found.of(b"keyed", QUERY) is not None and found.of(b"keyed", SUBSCRIPTION) is None

    def broken() -> Functions:
        raise RemoteProtocolError("an installed function is broken", "bad_filter")

    assert RowFilters(GIVEN, broken, EvalContext()).of(b"orders", QUERY) is None


def test_a_topic_is_matched_whole_or_limited_or_not_at_all() -> None:
    every, named = wanted(), wanted("orders")
    json = b"json"
    for topic, matches, wants, limited in (
        (b"free", True, True, False),
        (b"orders", False, True, True),
        (b"staff", False, False, False),
        (b"none", False, False, False),
        (b"raylay/drill", False, False, False),
    ):
        assert every.matches(topic, json) == matches and every.wants(topic, json) == wants
        for _ in range(2):
            assert (every.limits(topic, json, SUBSCRIPTION) is not None) == limited
    assert every.is_limited and not named.is_limited
    assert named.matches(b"orders", json) and named.limits(b"orders", json, QUERY) is None
    of_type, plain = wanted(message_type="fix"), topic_filter(".*", "")
    assert not of_type.wants(b"orders", json) and of_type.limits(b"orders", json, QUERY) is None
    assert plain.limits(b"orders", json, QUERY) is None and not plain.is_limited
    assert not wanted("x.*").wants(b"orders", json)
    for number in range(ANSWERS_KEPT_MAX):
        every.limits(b"%d" % number, json, QUERY)
    assert len(every._limits) <= ANSWERS_KEPT_MAX


def table(*named: tuple[str, str, int, str]) -> FilteredSubscriptions:
    """A table of subscriptions: the name, topic, session and filter of each."""
    made = FilteredSubscriptions(MessageTypes(), BUILT_IN, "A-1", "A", lambda _: FilterOwner())
    for name, topic, session, text in named:
        made.add(LiveSubscription(session, name, wanted(topic), text))
    return made


def given(to: FilteredSubscriptions, topic: str, *bodies: str) -> dict[str, int]:
    found: dict[str, int] = {}
    each = run(*bodies)
    each.topic = topic.encode()
    for subscription, delivery in to.deliveries([each]):
        found[subscription.id] = found.get(subscription.id, 0) + delivery.count
    return found


FX, RATES = '{"desk": "fx", "n": 1}', '{"desk": "rates", "n": 1}'


def test_limited_groups_are_asked_once_and_before_their_filters() -> None:
    named = [(f"all{n}", ".*", n, "") for n in range(3)] + [("one", ".*", 1, "/n = 1")]
    made = table(*named, ("named", "orders", 9, "/n = 1"))
    assert given(made, "orders", FX, RATES, "{") == {
        "all0": 1, "all1": 1, "all2": 1, "one": 1, "named": 2
    }  # fmt: skip
    assert given(made, "notes", RATES) == {}
    assert given(made, "free", RATES, "{") == {"all0": 2, "all1": 2, "all2": 2, "one": 1}
    assert given(made, "staff", FX) == given(made, "none", FX) == {}
    for subscription in list(made._audiences._group_of):
        if subscription.id != "all2":
            made.remove(subscription)
    assert given(made, "orders", FX) == {"all2": 1} and given(made, "free", FX) == {"all2": 1}
    for _ in range(100):
        assert given(made, "orders", RATES, RATES) == {}, "its filters are never joined"


def test_messages_of_an_unknown_type_reach_no_limited_group() -> None:
    made = table(("all", ".*", 1, ""))
    each = run(FX)
    each.message_type = b"unknown"
    assert not list(made.deliveries([each]))
    each.topic = b"free"
    assert [delivery.count for _, delivery in made.deliveries([each])] == [1]


class Watched(dict[str, Any]):
    """A message that tells whether the field `secret` was looked at."""

    asked = False

    def get(self, key: str, default: Any = None) -> Any:
        self.asked = self.asked or key == "secret"
        return super().get(key, default)


def test_the_clients_filter_never_sees_a_hidden_message() -> None:
    """Otherwise its work, and its end when it is too costly, would tell of it."""
    made = table(("all", ".*", 1, "LENGTH(/secret) > 0"))
    audience = made._audiences.audience(b"orders", b"json")
    for desk, is_asked in (("rates", False), ("fx", True)):
        message = Watched(desk=desk, secret="x")
        found = made._audiences.filters_of(audience).matching(message)
        assert bool(found) is is_asked is message.asked


def test_a_replay_passes_what_the_row_filter_and_the_clients_filter_pass() -> None:
    filters = ReplayFilters(MessageTypes(), BUILT_IN, "A-1", "A")
    own = filters.made("/n = 1", FilterOwner())
    for text, orders, free in ((None, [1], [1, 2, 3]), (own, [1], [1, 2])):
        limited = filters.limited(wanted(), text)
        assert limited.text == ("" if text is None else "/n = 1") and not limited.has_given_up
        each = run(FX, RATES, "{")
        assert limited.admits(each)
        assert [place[3] for place in limited.passing(each)] == orders
        each.topic = b"free"
        assert not limited.admits(each)
        assert [place[3] for place in limited.passing(each)] == free
        each.topic = b"staff"
        assert not limited.admits(each) and limited.passing(each) == []
    assert not own.admits(run(FX))
    damaged = run(FX, RATES)
    damaged.topic, damaged.count = b"free", 3
    assert len(filters.limited(wanted(), None).passing(damaged)) == 2
