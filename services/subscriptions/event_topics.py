"""The instance's own messages on event topics: who wants them, and what waits to be published.

Nothing is computed for a topic that nobody wants: neither a subscription nor a SOW topic. What
happens in one turn of the instance's loop is published together at its end; an instance in which
too much happens leaves events out, and counts them.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from raylay.services.errors import MessageTypeError, RemoteProtocolError
from raylay.services.messages.event_topics import (
    CLIENT_STATUS,
    EVENT_TOPICS,
    SOW_STATS,
    Values,
    event_body,
    event_time,
)
from raylay.services.messages.records import (
    RecordBuilder,
    Run,
    author_publisher_id,
    run_of,
    scan,
)
from raylay.services.messages.types.abilities import Ability
from raylay.services.replication.values import Identity
from raylay.services.subscriptions.matching import LiveSubscription, TopicFilter

if TYPE_CHECKING:
    # Most instances publish no events, and need not load the parsers of message types.
    from raylay.services.messages.types.base import MessageType, MessageTypeTable

WAITING_MAX = 10_000
"""Number of events that wait to be published. Further ones are left out."""
WAITING_CHARACTERS_MAX = 16_000_000
"""Characters of all texts in them. Clients choose names, filters and options."""
AT_ONCE = 200
"""Number of events that are published in one turn of the loop: each takes some 6 µs for each
message type."""
DELIVERED_AT_ONCE = 2_000
"""Number of events, times the number of subscriptions to events, that are published in one turn: a
filter is applied to each of them."""
TEXT_CHARACTERS_MAX = 16_384
"""Characters of one text in an event; the rest is left out."""
CLIENT_EVENTS: Mapping[str, str] = {
    "connect-client": "connect",
    "logon-client": "logon",
    "disconnect-client": "disconnect",
    "subscribe": "subscribe",
    "unsubscribe": "unsubscribe",
    "sow": "sow",
    "sow-delete": "sow_delete",
    "authentication-failure": "authentication_failure",
    "entitlement-failure": "entitlement_failure",
}
"""Kinds of occurrences (services/server/occurrences.py) on `/AMPS/ClientStatus`, with the name of
the event in its messages."""
_VARIABLES: Mapping[str, str] = {
    "client_name": "AMPS_CLIENT_NAME",
    "connection_name": "AMPS_CONNECTION_NAME",
    "auth_id": "AMPS_AUTHENTICATION_ID",
    "topic": "AMPS_TOPIC",
    "filter": "AMPS_FILTER",
    "options": "AMPS_OPTIONS",
    "correlation_id": "correlation_id",
    "query_id": "query_id",
    "sub_id": "sub_id",
    "entitlement_filter": "entitlement_filter",
    "reason": "reason",
    "client_address": "client_address",
}
"""Variables of occurrences from which the fields of an event are filled."""
EventType = tuple[str, str]
"""An event topic and a message type."""


class SowCount(NamedTuple):
    """The number of records in a SOW topic."""

    topic: str
    message_type: str
    records: int


class _Event(NamedTuple):
    topic: str
    values: Values
    time_us: int
    characters: int


class EventTopics:
    """See the file's docstring.

    Invariant: `_wanted` has each topic and type that a subscription of `_subscriptions` wants, as
    often as they do.
    Owner: the instance's loop. Lifecycle: one life of the instance.

    Args:
        types: returns the message types, which are loaded when somebody wants events.
        kept: topics and types of which a SOW topic keeps the messages.

    Attributes:
        published: number of events that were published, in all message types together.
        left_out: number of events that were left out, because too many waited, because a type
            could not represent them, or because their SOW topic's store is too far behind.
    """

    __slots__ = (
        "_builders",
        "_kept",
        "_loaded",
        "_publisher",
        "_sequence",
        "_subscriptions",
        "_types",
        "_waiting",
        "_waiting_characters",
        "_wanted",
        "left_out",
        "published",
    )

    def __init__(
        self,
        identity: Identity,
        types: Callable[[], MessageTypeTable],
        kept: Iterable[EventType] = (),
    ) -> None:
        self._publisher = author_publisher_id("event topics", identity.incarnation, identity.life)
        self._sequence = 0
        self._types = types
        self._loaded: MessageTypeTable | None = None
        self._kept = frozenset(kept)
        self._wanted: Counter[EventType] = Counter(self._kept)
        self._subscriptions: dict[LiveSubscription, list[EventType]] = {}
        self._builders: dict[EventType, RecordBuilder] = {}
        self._waiting: deque[_Event] = deque()
        self._waiting_characters = 0
        self.published = 0
        self.left_out = 0

    def __len__(self) -> int:
        """Returns the number of events that wait to be published."""
        return len(self._waiting)

    # -- who wants them ------------------------------------------------------------------------
    def check(self, wanted: TopicFilter) -> None:
        """Refuses message types in which no events can be written.

        Raises:
            RemoteProtocolError: with reason `bad_message_type`, and what to do.
        """
        for message_type in wanted.message_types:
            name = message_type.decode("utf-8", "replace")
            try:
                self._type(name).require(Ability.EVENTS)
            except MessageTypeError as error:
                raise RemoteProtocolError(str(error), "bad_message_type") from None

    def _type(self, name: str) -> MessageType:
        if self._loaded is None:
            self._loaded = self._types()
        return self._loaded[name]

    def changed(self, subscription: LiveSubscription, is_added: bool) -> None:
        """Takes a subscription that begins or ends, of which `TopicFilter.events` is set."""
        if is_added:
            wanted = subscription.filter
            found = [
                (topic, kind.decode("utf-8", "replace"))
                for topic in EVENT_TOPICS
                for kind in wanted.message_types
                if wanted.wants(topic.encode(), kind)
            ]
            self._subscriptions[subscription] = found
            self._wanted.update(found)
        else:
            for each in self._subscriptions.pop(subscription, ()):
                self._wanted[each] -= 1
                if not self._wanted[each]:
                    del self._wanted[each]

    def is_wanted(self, topic: str) -> bool:
        """Returns whether anybody wants the messages of an event topic."""
        return any(each == topic for each, _ in self._wanted)

    def is_kept(self, run: Run) -> bool:
        """Returns whether a SOW topic keeps a run of events."""
        return (run.topic.decode(), run.message_type.decode()) in self._kept

    # -- what is published -----------------------------------------------------------------------
    def occurred(self, kind: str, variables: Mapping[str, str], now_us: int) -> None:
        """Takes an occurrence of one of `CLIENT_EVENTS`.

        Args:
            now_us: time by the wall clock.
        """
        values: dict[str, str | int | None] = {
            name: variables.get(variable, "")[:TEXT_CHARACTERS_MAX] or None
            for name, variable in _VARIABLES.items()
        }
        values["event"] = CLIENT_EVENTS[kind]
        self._add(CLIENT_STATUS, values, now_us)

    def counted(self, counts: Iterable[SowCount], now_us: int) -> None:
        """Takes the numbers of records in the instance's SOW topics.

        Args:
            now_us: time by the wall clock.
        """
        for each in counts:
            values: Values = {
                "topic": each.topic,
                "message_type": each.message_type,
                "record_count": each.records,
            }
            self._add(SOW_STATS, values, now_us)

    def _add(self, topic: str, values: Values, now_us: int) -> None:
        characters = sum(len(value) for value in values.values() if isinstance(value, str))
        if (
            len(self._waiting) >= WAITING_MAX
            or self._waiting_characters + characters > WAITING_CHARACTERS_MAX
        ):
            self.left_out += 1
            return
        self._waiting_characters += characters
        values = {**values, "timestamp": event_time(now_us)}
        self._waiting.append(_Event(topic, values, now_us, characters))

    def take(self) -> list[Run]:
        """Returns the messages of the events that wait longest, as many as are published in one
        turn, in every message type that is wanted: one run for each topic and type."""
        records: dict[EventType, list[bytes]] = {}
        last_us = 0
        most = min(AT_ONCE, DELIVERED_AT_ONCE // (len(self._subscriptions) + 1) or 1)
        for _ in range(min(most, len(self._waiting))):
            event = self._waiting.popleft()
            self._waiting_characters -= event.characters
            last_us = event.time_us
            for each in [found for found in self._wanted if found[0] == event.topic]:
                record = self._record(each, event)
                if record:
                    records.setdefault(each, []).append(record)
        runs = []
        for made in records.values():
            payload = b"".join(made)
            for chunk in scan(payload, verify=False):
                run = run_of(chunk, payload)
                run.receive_time_us = last_us
                runs.append(run)
        return runs

    def _record(self, each: EventType, event: _Event) -> bytes:
        """Returns the record of an event; empty: the message type cannot represent it."""
        topic, message_type = each
        try:
            body = event_body(topic, event.values, self._type(message_type))
        except MessageTypeError:
            # An installed type may refuse anything; the event's other types are not affected.
            self.left_out += 1
            return b""
        builder = self._builders.get(each)
        if builder is None:
            builder = self._builders[each] = RecordBuilder(self._publisher, topic, message_type)
        self._sequence += 1
        self.published += 1
        return builder.build(self._sequence, body, event.time_us)

    def status(self) -> dict[str, int]:
        """Returns the counters of the instance's status."""
        return {
            "subscriptions": len(self._subscriptions),
            "published": self.published,
            "left_out": self.left_out,
        }
