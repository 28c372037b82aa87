"""The form of event messages in each message type (services/messages/event_topics.py)."""

from __future__ import annotations

import json

import pytest

from raylay.services.errors import MessageTypeError
from raylay.services.messages.event_topics import (
    CLIENT_STATUS,
    EVENT_TOPICS,
    SOW_STATS,
    Values,
    event_body,
    event_key,
    event_time,
    is_event_topic,
)
from raylay.services.messages.types.definitions import TypeDefinition
from raylay.services.messages.types.registry import MessageTypes, message_type

COUNT: Values = {
    "topic": "orders",
    "message_type": "json",
    "record_count": 3,
    "timestamp": "20161108T225452.280650Z",
}
QUERY: Values = {
    "timestamp": "20160509T171919.976304Z",
    "event": "sow",
    "client_name": "test_client",
    "connection_name": "A-any-9",
    "correlation_id": None,
    "query_id": "1",
    "topic": "order",
    "filter": "/item/qty > 50",
    "options": "send_empties",
    "sub_id": "1",
    "auth_id": None,
    "entitlement_filter": None,
    "client_address": "127.0.0.1:4000",
}


@pytest.mark.covers("Event topics", "client status: the documented fields, in each message type")
def test_the_documented_example_in_json() -> None:
    body = json.loads(event_body(CLIENT_STATUS, QUERY, message_type("json")))
    assert body == {"ClientStatus": QUERY}
    assert list(body["ClientStatus"])[:3] == ["timestamp", "event", "client_name"]
    ended = {**QUERY, "event": "disconnect", "reason": "slow client"}
    body = json.loads(event_body(CLIENT_STATUS, ended, message_type("json")))
    assert body["ClientStatus"]["reason"] == "slow client"


@pytest.mark.covers("Event topics", "client status: the documented fields, in each message type")
def test_the_documented_tags_in_fix_and_names_in_xml() -> None:
    fix = message_type("fix").parse(event_body(CLIENT_STATUS, QUERY, message_type("fix")))
    assert fix == {
        "20065": "20160509T171919.976304Z",
        "20066": "sow",
        "20067": "test_client",
        "20068": "order",
        "20069": "/item/qty > 50",
        "20070": "1",
        "20071": "A-any-9",
        "20072": "send_empties",
        "20073": "1",
        "20080": "127.0.0.1:4000",
    }
    assert event_body(SOW_STATS, COUNT, message_type("nvfix")) == (
        b"20007=json\x0120066=orders\x0120067=3\x0120065=20161108T225452.280650Z\x01"
    )
    assert event_body(SOW_STATS, COUNT, message_type("xml")) == (
        b"<SOWStats><MessageType>json</MessageType><Topic>orders</Topic><Records>3</Records>"
        b"<Timestamp>20161108T225452.280650Z</Timestamp></SOWStats>"
    )
    for name in ("bson", "msgpack"):
        kind = message_type(name)
        assert kind.parse(event_body(SOW_STATS, COUNT, kind)) == {"SOWStats": COUNT}


def test_every_tag_of_a_topic_stands_for_one_field() -> None:
    for form in EVENT_TOPICS.values():
        for names in zip(*form.fields, strict=True):
            assert len(set(names)) == len(names)
        assert form.optional <= {each.name for each in form.fields}


def test_what_a_type_cannot_represent_is_replaced() -> None:
    values = {**QUERY, "filter": "/a = 'x\x01y' | \x02", "client_name": "a\ud800"}
    separated = TypeDefinition("bar", "fix", {"field_separator": 124})
    bar = MessageTypes([separated])["bar"]
    tree = bar.parse(event_body(CLIENT_STATUS, values, bar))
    assert tree["20069"] == "/a = 'x?y' ? ?"
    xml = message_type("xml")
    tree = xml.parse(event_body(CLIENT_STATUS, values, xml))
    assert tree["ClientStatus"]["Filter"] == "/a = 'x?y' | ?"
    assert tree["ClientStatus"]["ClientName"] == "a?"
    with pytest.raises(MessageTypeError):
        event_body(CLIENT_STATUS, values, message_type("binary"))


@pytest.mark.covers("Event topics", "SOW topics keep events: documented keys, restart")
def test_keys_are_written_as_documented_or_as_messages_have_them() -> None:
    assert event_key(CLIENT_STATUS, "/client_name") == "/ClientStatus/client_name"
    assert event_key(SOW_STATS, "/topic") == "/SOWStats/topic"
    assert event_key(SOW_STATS, "/Topic") == "/SOWStats/Topic"
    for key in ("/SOWStats/topic", "/20066", "/other"):
        assert event_key(SOW_STATS, key) == key
    assert event_key("orders", "/topic") == "/topic"


def test_event_topics_are_named_by_their_beginning() -> None:
    found = [is_event_topic(each) for each in (SOW_STATS, "^/AMPS/.*", "/AMPS", ".*", "a/AMPS/")]
    assert found == [True, True, False, False, False]


def test_times_are_in_utc_with_microseconds() -> None:
    assert event_time(1_462_814_359_976_304) == "20160509T171919.976304Z"
    assert event_time(1_462_814_359_000_007) == "20160509T171919.000007Z"
