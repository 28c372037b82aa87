"""The event topics of an instance: their names, and the form that their messages have in each
message type (behaviour.md 10.4).

What happens in an instance is published by the instance itself on topics that begin with `/AMPS/`.
Nobody else publishes there. The messages are in no journal and go to no other instance.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from raylay.services.errors import MessageTypeError

EVENTS = "/AMPS/"
"""Beginning of the event topics. An expression matches them only when it begins like that
itself."""
CLIENT_STATUS = "/AMPS/ClientStatus"
"""Topic of what clients do: connections, logons, subscriptions, queries, deletes."""
SOW_STATS = "/AMPS/SOWStats"
"""Topic of the number of records in each SOW topic, at an interval."""
Values = Mapping[str, str | int | None]
"""Values of an event by the names that its fields have in JSON; None: the event has no such
value."""
_TAGGED = frozenset(("fix", "nvfix"))
"""Kinds of message types whose fields are named by documented tags, without an object around
them."""
_CONTROLS = dict.fromkeys((*range(0x20), 0x7F, 0xFFFE, 0xFFFF, *range(0xD800, 0xE000)), "?")


class EventField(NamedTuple):
    """The names of one field of an event.

    Attributes:
        name: name in JSON, BSON and MessagePack.
        tag: tag in FIX and NVFIX.
        element: name in XML.
    """

    name: str
    tag: str
    element: str


class EventTopic(NamedTuple):
    """The form of one event topic.

    Attributes:
        root: name of the object, or the element, that holds the fields.
        fields: all fields, in the order in which messages have them.
        optional: names of the fields that a message leaves out where the event has no value.
            Others are null in JSON, BSON and MessagePack.
    """

    root: str
    fields: tuple[EventField, ...]
    optional: frozenset[str] = frozenset()


EVENT_TOPICS: Mapping[str, EventTopic] = {
    CLIENT_STATUS: EventTopic(
        "ClientStatus",
        (
            EventField("timestamp", "20065", "Timestamp"),
            EventField("event", "20066", "Event"),
            EventField("client_name", "20067", "ClientName"),
            EventField("connection_name", "20071", "ConnName"),
            EventField("correlation_id", "20074", "CorrelationId"),
            EventField("query_id", "20073", "QId"),
            EventField("topic", "20068", "Tpc"),
            EventField("filter", "20069", "Filter"),
            EventField("options", "20072", "Options"),
            EventField("sub_id", "20070", "SubId"),
            EventField("auth_id", "20081", "AuthId"),
            EventField("entitlement_filter", "20082", "EntitlementFilter"),
            EventField("reason", "20062", "Reason"),
            EventField("client_address", "20080", "ClientAddress"),
        ),
        frozenset(("reason",)),
    ),
    SOW_STATS: EventTopic(
        "SOWStats",
        (
            EventField("message_type", "20007", "MessageType"),
            EventField("topic", "20066", "Topic"),
            EventField("record_count", "20067", "Records"),
            EventField("timestamp", "20065", "Timestamp"),
        ),
    ),
}
"""The event topics by name, with the documented names of their fields."""


class EventWriter(Protocol):
    """A message type, as far as events are written in it (`MessageType`)."""

    kind: str

    def serialize(self, tree: dict[str, Any]) -> bytes:
        """Returns the body that has these fields."""


def is_event_topic(topic: str) -> bool:
    """Returns whether a topic, or a regular expression over topics, begins like event topics."""
    return topic.lstrip("^").startswith(EVENTS)


def event_body(topic: str, values: Values, kind: EventWriter) -> bytes:
    """Returns the body of an event.

    Characters that a type cannot represent, such as the byte that ends a field of FIX, are replaced
    by question marks: clients choose names and filters.

    Args:
        kind: message type of the body, which has the ability `EVENTS`.

    Raises:
        MessageTypeError: the type has no fields, or none of this form.
    """
    try:
        return kind.serialize(_tree(topic, values, kind.kind))
    except MessageTypeError:
        separator = getattr(kind, "field_separator", 0)
        replaced = _CONTROLS | {separator: "?"}
        plain = {
            name: value.translate(replaced) if isinstance(value, str) else value
            for name, value in values.items()
        }
        return kind.serialize(_tree(topic, plain, kind.kind))


def _tree(topic: str, values: Values, kind: str) -> dict[str, Any]:
    form = EVENT_TOPICS[topic]
    if kind in _TAGGED or kind == "xml":
        place = EventField._fields.index("element" if kind == "xml" else "tag")
        found = {
            each[place]: value
            for each in form.fields
            if (value := values.get(each.name)) is not None
        }
        return {form.root: found} if kind == "xml" else found
    return {
        form.root: {
            each.name: value
            for each in form.fields
            if (value := values.get(each.name)) is not None or each.name not in form.optional
        }
    }


def event_key(topic: str, key: str) -> str:
    """Returns a key of a SOW topic for events, as messages have the field. The documents write the
    name of the field alone, `/client_name`, although it lies in `ClientStatus`."""
    form = EVENT_TOPICS.get(topic)
    name = key.removeprefix("/")
    if form is None or not any(name in (each.name, each.element) for each in form.fields):
        return key
    return f"/{form.root}/{name}"


def event_time(time_us: int) -> str:
    """Returns a time as events have it, such as `20160509T171919.976304Z`."""
    seconds, micros = divmod(time_us, 1_000_000)
    moment = dt.datetime.fromtimestamp(seconds, dt.UTC)
    return f"{moment:%Y%m%dT%H%M%S}.{micros:06d}Z"
