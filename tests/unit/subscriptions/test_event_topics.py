"""Listeners of events, and messages that wait to be published
(services/subscriptions/event_topics.py)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest

from raylay.services.errors import MessageTypeError, RemoteProtocolError
from raylay.services.messages.event_topics import CLIENT_STATUS, SOW_STATS
from raylay.services.messages.records import Record, Run, iterate_records
from raylay.services.messages.types.base import MessageType
from raylay.services.messages.types.registry import MessageTypes
from raylay.services.messages.types.trees import Tree
from raylay.services.replication.values import Identity
from raylay.services.subscriptions.event_topics import (
    AT_ONCE,
    CLIENT_EVENTS,
    TEXT_CHARACTERS_MAX,
    WAITING_CHARACTERS_MAX,
    WAITING_MAX,
    EventTopics,
    SowCount,
)
from raylay.services.subscriptions.matching import LiveSubscription, topic_filter

AT_US = 1_462_814_359_976_304
CONNECTED = {"AMPS_CLIENT_NAME": "a", "AMPS_CONNECTION_NAME": "c-1", "client_address": "h:1"}


class Refusing(MessageType):
    """An installed type that represents nothing."""

    kind = "refusing"

    def parse(self, body: bytes | memoryview) -> Tree:
        return {}

    def serialize(self, tree: Tree) -> bytes:
        raise MessageTypeError("no", self.name)


class Loader:
    """Counts how often the message types are loaded."""

    def __init__(self) -> None:
        self.loads = 0

    def __call__(self) -> Any:
        self.loads += 1
        types, refusing = MessageTypes(), Refusing()

        class Types:
            def __getitem__(self, name: str) -> MessageType:
                return refusing if name == "refusing" else types[name]

        return Types()


def made(kept: Iterable[tuple[str, str]] = ()) -> EventTopics:
    return EventTopics(Identity("A-1", "A", 7, 1), Loader(), kept)


def subscription(topic: str, message_type: str = "", **options: Any) -> LiveSubscription:
    return LiveSubscription(1, "s", topic_filter(topic, message_type, **options))


def records(runs: Iterable[Run]) -> list[tuple[str, str, bytes]]:
    return [
        (each.topic, each.message_type, each.body)
        for run in runs
        for each in iterate_records(run.payload)
    ]


def fields(record: Record | bytes) -> dict[str, Any]:
    body = record if isinstance(record, bytes) else record.body
    (found,) = json.loads(body).values()
    return dict(found)


@pytest.mark.covers("Event topics", "nothing is computed where nobody listens")
def test_a_topic_is_wanted_from_the_first_subscription_to_the_last() -> None:
    loader = Loader()
    events = EventTopics(Identity("A-1", "A", 7, 1), loader)
    one, other = subscription(CLIENT_STATUS), subscription("^/AMPS/.*")
    assert not events.is_wanted(CLIENT_STATUS)
    events.changed(one, True)
    assert events.is_wanted(CLIENT_STATUS) and not events.is_wanted(SOW_STATS)
    events.changed(other, True)
    events.changed(one, False)
    assert events.is_wanted(CLIENT_STATUS) and events.is_wanted(SOW_STATS)
    assert events.status()["subscriptions"] == 1
    events.changed(other, False)
    events.changed(other, False)
    assert not events.is_wanted(CLIENT_STATUS) and not events.is_wanted(SOW_STATS)
    assert loader.loads == 0


@pytest.mark.covers("Event topics", "nothing is computed where nobody listens")
def test_a_topic_that_a_sow_keeps_is_always_wanted() -> None:
    events = made([(SOW_STATS, "json")])
    assert events.is_wanted(SOW_STATS)
    one = subscription(SOW_STATS)
    events.changed(one, True)
    events.changed(one, False)
    assert events.is_wanted(SOW_STATS)
    events.counted([SowCount("orders", "json", 3)], AT_US)
    (run,) = events.take()
    assert events.is_kept(run) and not made().is_kept(run)


@pytest.mark.covers("Event topics", "client status: each event, with its variables")
def test_occurrences_become_messages_in_the_types_that_are_wanted() -> None:
    events = made()
    for each in (subscription(CLIENT_STATUS), subscription(CLIENT_STATUS, "fix")):
        events.changed(each, True)
    events.occurred("connect-client", CONNECTED, AT_US)
    events.occurred("disconnect-client", {**CONNECTED, "reason": "name in use"}, AT_US + 1)
    assert len(events) == 2
    as_json, as_fix = events.take()
    assert (as_json.count, as_fix.count, len(events)) == (2, 2, 0)
    assert as_json.receive_time_us == AT_US + 1
    connected, ended = (fields(body) for _, _, body in records([as_json]))
    assert connected == {
        "timestamp": "20160509T171919.976304Z",
        "event": "connect",
        "client_name": "a",
        "connection_name": "c-1",
        "client_address": "h:1",
        **dict.fromkeys(
            (
                *("correlation_id", "query_id", "topic", "filter", "options", "sub_id", "auth_id"),
                "entitlement_filter",
            )
        ),
    }
    assert (ended["event"], ended["reason"]) == ("disconnect", "name in use")
    (_, kind, body), _ = records([as_fix])
    assert kind == "fix" and b"20066=connect\x01" in body and b"20062" not in body
    sequences = [
        each.sequence for run in (as_json, as_fix) for each in iterate_records(run.payload)
    ]
    assert len(set(sequences)) == 4, "no message has the identity of another one"


def test_every_kind_of_occurrence_has_a_name() -> None:
    events = made()
    events.changed(subscription(CLIENT_STATUS), True)
    for kind in CLIENT_EVENTS:
        events.occurred(kind, {}, AT_US)
    found = [fields(body)["event"] for _, _, body in records(events.take())]
    assert found == list(CLIENT_EVENTS.values())


@pytest.mark.covers("Event topics", "SOW statistics: records of each SOW topic at an interval")
def test_counts_become_messages() -> None:
    events = made()
    events.changed(subscription(SOW_STATS), True)
    events.counted([SowCount("orders", "json", 3), SowCount("blobs", "binary", 0)], AT_US)
    found = [fields(body) for _, _, body in records(events.take())]
    at = "20160509T171919.976304Z"
    assert found == [
        {"message_type": "json", "topic": "orders", "record_count": 3, "timestamp": at},
        {"message_type": "binary", "topic": "blobs", "record_count": 0, "timestamp": at},
    ]


def test_what_nobody_wants_any_more_is_not_published() -> None:
    events = made()
    one = subscription(CLIENT_STATUS)
    events.changed(one, True)
    events.occurred("connect-client", CONNECTED, AT_US)
    events.changed(one, False)
    assert events.take() == [] and not len(events)


@pytest.mark.covers("Event topics", "what waits is bounded, and what is left out is counted")
def test_what_waits_is_bounded_and_published_in_slices() -> None:
    events = made()
    events.changed(subscription(CLIENT_STATUS), True)
    for _ in range(WAITING_MAX + 3):
        events.occurred("connect-client", {}, AT_US)
    assert len(events) == WAITING_MAX
    assert sum(run.count for run in events.take()) == AT_ONCE
    assert events.status() == {"subscriptions": 1, "published": AT_ONCE, "left_out": 3}
    for _ in range(99):
        events.changed(subscription(CLIENT_STATUS), True)
    assert sum(run.count for run in events.take()) == 19, "so many subscribers take their time"
    for _ in range(9_900):
        events.changed(subscription(CLIENT_STATUS), True)
    assert sum(run.count for run in events.take()) == 1
    assert len(events) == WAITING_MAX - AT_ONCE - 20


@pytest.mark.covers("Event topics", "what waits is bounded, and what is left out is counted")
def test_the_texts_that_wait_are_bounded_too() -> None:
    events = made()
    events.changed(subscription(CLIENT_STATUS), True)
    texts = {"AMPS_FILTER": "x" * TEXT_CHARACTERS_MAX, "AMPS_TOPIC": "t" * TEXT_CHARACTERS_MAX}
    while not events.left_out:
        events.occurred("subscribe", texts, AT_US)
    waiting = len(events)
    assert 2 * TEXT_CHARACTERS_MAX * waiting <= WAITING_CHARACTERS_MAX and waiting > 400
    while len(events):
        events.take()
    events.occurred("subscribe", texts, AT_US)
    assert (len(events), events.left_out) == (1, 1), "there is room again"


def test_a_text_of_any_length_is_cut() -> None:
    events = made()
    events.changed(subscription(CLIENT_STATUS), True)
    events.occurred("subscribe", {"AMPS_FILTER": "x" * 100_000}, AT_US)
    ((_, _, body),) = records(events.take())
    assert fields(body)["filter"] == "x" * TEXT_CHARACTERS_MAX


def test_a_type_that_represents_nothing_harms_no_other() -> None:
    events = made()
    for each in (subscription(CLIENT_STATUS, "refusing"), subscription(CLIENT_STATUS)):
        events.changed(each, True)
    events.occurred("connect-client", CONNECTED, AT_US)
    assert [kind for _, kind, _ in records(events.take())] == ["json"]
    assert events.left_out == 1


@pytest.mark.covers("Event topics", "message types without views have no event topics")
@pytest.mark.parametrize("name", ["binary", "none-such"])
def test_types_without_events_are_refused(name: str) -> None:
    events = made()
    events.check(topic_filter(CLIENT_STATUS, "fix"))
    with pytest.raises(RemoteProtocolError, match=name) as caught:
        events.check(topic_filter(CLIENT_STATUS, name))
    assert caught.value.reason == "bad_message_type"


def test_a_subscription_without_a_type_is_given_one() -> None:
    """The events exist in several types: without this it would get each several times."""
    for allowed, types in (
        ((), {b"json"}),
        ((b"fix",), {b"fix"}),
        ((b"json", b"fix"), {b"json"}),
        ((b"xml", b"fix"), {b"fix"}),
    ):
        found = topic_filter(CLIENT_STATUS, "", allowed=frozenset(allowed))
        assert found.message_types == types and found.events
    assert topic_filter("orders", "").message_types == frozenset()
