"""The triggers that begin with messages: published, out of focus, longer in a condition than they
should be, or in it at all (behaviour.md 8.1).

Each is a subscription that the process beside the instance makes as a client; the trigger says
which one, takes its messages, and makes occurrences of them. An instance tells a subscriber of
records: `sow` for each that is there, `publish` for each that comes into the focus of its filter or
changes within it, and `oof` for each that leaves it.

Messages that actions publish carry in their correlation id how many actions led to them, so that a
loop ends although it goes over topics, and over other instances.
"""

from __future__ import annotations

import heapq
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from raylay.services.actions.matching import MESSAGE_MODULES
from raylay.services.actions.model import ActionDefinition, ActionModule, Occurrence
from raylay.services.actions.option_text import interval_us
from raylay.services.actions.variables import date_text, names_in
from raylay.services.errors import ConfigurationError
from raylay.services.messages.lossless_text import text_of

TRACKED_MAX = 1_000_000
"""Number of records that a trigger watches."""
TRACKED_BYTES_MAX = 256 * 1024 * 1024
"""Approximate memory of the records that a trigger watches."""
RECORD_BYTES = 400
"""Approximate memory of a watched record besides its key and body."""
DUE_MAX = 100
"""Default of the number of occurrences that one call of `due` gives."""
_DEPTH = re.compile(rb"raylay-action:([0-9]{1,4})")
_OPTION = re.compile(r"\s*([A-Za-z_]+)\s*(?:=\s*(\[[^\]]*\]|[^,\[\]]*))?\s*(?:,|$)")
_FLAGS = frozenset(("oof", "delta", "no_empties", "no_sowkey", "non_regex_topic"))
_NEEDLESS = frozenset(("bookmark", "timestamp", "send_keys"))
"""Options without an effect: they ask for fields that every message has here."""
_REASONS = {"match": "match", "deleted": "delete", "expired": "expire"}


def correlation_of(depth: int) -> bytes:
    """Returns the correlation id of a message that an action publishes.

    Args:
        depth: number of actions that led to it, its own included.
    """
    return b"raylay-action:%d" % depth


def depth_of(correlation: bytes) -> int:
    """Returns the number of actions that led to a message; 0: no action published it."""
    found = _DEPTH.fullmatch(correlation)
    return int(found[1]) if found else 0


def depth_here(message: TriggerMessage) -> int:
    """Returns the depth of the occurrence that a message makes here.

    The depth of a message from another instance counts twice. Otherwise a message that starts an
    action at each of N instances would become N to the eighth messages before its loop ends: 1.7
    million with six instances.
    """
    depth = depth_of(message.correlation)
    return 2 * depth if message.is_local is False else depth


@dataclass(frozen=True, slots=True)
class TriggerSubscription:
    """A subscription that a trigger needs.

    Attributes:
        command: `subscribe` or `sow_and_subscribe`, methods of the client.
        options: keyword arguments of the method: `filter`, `oof`, …
    """

    command: Literal["subscribe", "sow_and_subscribe"]
    topic: str
    message_type: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TriggerMessage:
    """A message of such a subscription.

    Attributes:
        kind: `sow` for a record of the query, `publish`, or `oof`.
        reason: reason of an `oof`: `match`, `deleted`, `expired` or `entitlement`.
        key: SOW key; empty: the message has none.
        timestamp_us: time at which the instance received the message; of a record of the query the
            time at which it was published. Microseconds since 1970.
        correlation: correlation id.
        client_name: name of the publisher; empty: it is not known.
        is_local: whether a client of this instance published it; None: that is not known.
    """

    kind: str
    topic: str
    message_type: str
    body: bytes
    reason: str = ""
    key: bytes = b""
    bookmark: str = ""
    timestamp_us: int = 0
    correlation: bytes = b""
    client_name: str = ""
    is_local: bool | None = None


class MessageTrigger(ABC):
    """The source of the occurrences of one `on` module.

    Owner: the process that performs the actions. Lifecycle: as its subscription.

    Attributes:
        on: the module.
    """

    def __init__(self, on: ActionModule) -> None:
        self.on = on
        self._untracked = 0

    @abstractmethod
    def subscription(self) -> TriggerSubscription:
        """Returns the subscription that the trigger needs."""

    @abstractmethod
    def message(self, message: TriggerMessage, now_us: int, wall_us: int) -> list[Occurrence]:
        """Takes a message of the subscription, and returns the occurrences that it makes.

        Args:
            now_us: time by the steady clock.
            wall_us: time by the wall clock, microseconds since 1970.
        """

    def due(self, now_us: int, count_max: int = DUE_MAX) -> list[Occurrence]:
        """Returns occurrences of records whose time is up, each once.

        Args:
            count_max: largest number of occurrences to return; the others come with the next call.
                A caller that has no room yet asks for fewer, so that none is lost.
        """
        return []

    def next_due_us(self) -> int | None:
        """Returns the time by the steady clock at which `due` has something; None: no time."""
        return None

    def restart(self) -> None:
        """Forgets all records, because a new subscription begins, which gives them all again."""
        self._untracked = 0

    def take_untracked(self) -> int:
        """Returns the number of records that could not be watched since the last call, because
        there are too many."""
        found, self._untracked = self._untracked, 0
        return found


class PublishTrigger(MessageTrigger):
    """Trigger of `publish-message`: each message that its subscription gives.

    Raises:
        ConfigurationError: `Options` or `MessageSource` cannot be used.
    """

    def __init__(self, on: ActionModule) -> None:
        super().__init__(on)
        self._options = subscription_options(on.option("Options"))
        self._source = on.option("MessageSource") or "all"
        if self._source not in ("all", "local", "replicated"):
            raise ConfigurationError(
                f"MessageSource is {self._source!r}: expected all, local or replicated"
            )

    def subscription(self) -> TriggerSubscription:
        """See `MessageTrigger.subscription`."""
        return TriggerSubscription(
            "subscribe",
            self.on.option("Topic"),
            self.on.option("MessageType"),
            {"filter": self.on.option("Filter"), **self._options},
        )

    def message(self, message: TriggerMessage, now_us: int, wall_us: int) -> list[Occurrence]:
        """See `MessageTrigger.message`."""
        source = "all"
        if message.is_local is not None:
            source = "local" if message.is_local else "replicated"
        is_meant = "all" in (source, self._source) or source == self._source
        return [_occurrence(self.on, message)] if is_meant and message.kind == "publish" else []


class OofTrigger(MessageTrigger):
    """Trigger of `oof-message`: each record that leaves the focus of its subscription.

    Args:
        keeps_previous: whether an action needs the previous record of one that no longer passes the
            filter. Its notice has only the present record, so the trigger then keeps all records.

    Raises:
        ConfigurationError: `Type` has an unknown word.
    """

    def __init__(self, on: ActionModule, *, keeps_previous: bool) -> None:
        super().__init__(on)
        types = {each.strip() for each in (on.option("Type") or "all").split(",")}
        unknown = sorted(types - {"match", "delete", "expire", "all"})
        if unknown:
            raise ConfigurationError(
                f"Type is {unknown[0]!r}: expected match, delete, expire or all"
            )
        self._types = {"match", "delete", "expire"} if "all" in types else types
        self._keeps_previous = keeps_previous and "match" in self._types
        self._bodies: dict[tuple[str, bytes], bytes] = {}
        self._bytes = 0

    def subscription(self) -> TriggerSubscription:
        """See `MessageTrigger.subscription`."""
        return TriggerSubscription(
            "sow_and_subscribe" if self._keeps_previous else "subscribe",
            self.on.option("Topic"),
            self.on.option("MessageType"),
            {"filter": self.on.option("Filter"), "oof": True},
        )

    def message(self, message: TriggerMessage, now_us: int, wall_us: int) -> list[Occurrence]:
        """See `MessageTrigger.message`."""
        key = message.topic, message.key
        previous = self._bodies.pop(key, None)
        if previous is not None:
            self._bytes -= _record_bytes(key[1], previous)
        if message.kind != "oof":
            if self._keeps_previous:
                self._keep(key, message.body)
            return []
        kind = _REASONS.get(message.reason, "")
        if kind not in self._types:
            return []
        # A record that is gone comes as it was last.
        data = (previous or b"") if kind == "match" else message.body
        before = {
            "AMPS_PREVIOUS_DATA": text_of(data),
            "AMPS_PREVIOUS_DATA_LENGTH": str(len(data)),
            "AMPS_REASON": kind,
        }
        return [_occurrence(self.on, message, before)]

    def restart(self) -> None:
        """See `MessageTrigger.restart`."""
        super().restart()
        self._bodies.clear()
        self._bytes = 0

    def _keep(self, key: tuple[str, bytes], body: bytes) -> None:
        size_bytes = _record_bytes(key[1], body)
        if len(self._bodies) >= TRACKED_MAX or self._bytes + size_bytes > TRACKED_BYTES_MAX:
            self._untracked += 1
            return
        self._bodies[key] = body
        self._bytes += size_bytes


class _Tracked:
    """A record that is in the condition."""

    __slots__ = ("due_us", "message")

    def __init__(self, message: TriggerMessage, due_us: int) -> None:
        self.message = message
        self.due_us = due_us


class ConditionTrigger(MessageTrigger):
    """Trigger of `message-condition-timeout` and `alert`: each record that stays in the focus of
    its filter for a time, once; for an alert, each that leaves it before, instead.

    The time begins when the record comes into the focus; changes within it do not matter. Of a
    record that is there when the subscription begins, nobody knows how long it has been in the
    focus: its time begins when it was published last.

    Raises:
        ValueError: `Duration` is no interval.
    """

    def __init__(self, on: ActionModule) -> None:
        super().__init__(on)
        self._is_alert = on.module == "alert"
        duration = on.option("Duration")
        self._duration_us: int | None = None
        if duration or not self._is_alert:
            self._duration_us = interval_us(duration)
        self._bytes = 0
        self._tracked: dict[bytes, _Tracked | None] = {}
        """The records in the focus by their keys; None: the record's occurrence was given."""
        self._fresh: dict[bytes, None] = {}
        """The keys of the records that came since the subscription began, in the order of their
        time."""
        self._rows: list[tuple[int, int, bytes, _Tracked]] = []
        """Heap of the other records. A record that has left the focus stays until its time."""
        self._count = 0

    def subscription(self) -> TriggerSubscription:
        """See `MessageTrigger.subscription`."""
        return TriggerSubscription(
            "sow_and_subscribe",
            self.on.option("Topic"),
            self.on.option("MessageType"),
            {"filter": self.on.option("Filter"), "oof": True, "non_regex_topic": True},
        )

    def message(self, message: TriggerMessage, now_us: int, wall_us: int) -> list[Occurrence]:
        """See `MessageTrigger.message`."""
        key = message.key
        if message.kind == "oof":
            tracked = self._forget(key)
            if tracked is None or not self._is_alert:
                return []
            reason = {"AMPS_REASON": _REASONS.get(message.reason, message.reason)}
            return [_occurrence(self.on, message, {**reason, **self._event("OOFEvent")})]
        if key in self._tracked:
            known = self._tracked[key]
            if known is not None:
                self._bytes += len(message.body) - len(known.message.body)
                known.message = message
            return []
        size_bytes = _record_bytes(key, message.body)
        if len(self._tracked) >= TRACKED_MAX or self._bytes + size_bytes > TRACKED_BYTES_MAX:
            self._untracked += 1
            return []
        self._bytes += size_bytes
        self._track(message, now_us, wall_us)
        return []

    def due(self, now_us: int, count_max: int = DUE_MAX) -> list[Occurrence]:
        """See `MessageTrigger.due`."""
        found: list[Occurrence] = []
        while len(found) < count_max:
            key = self._first(now_us)
            if key is None:
                break
            tracked = self._forget(key)
            assert tracked is not None
            # The key stays known: the record is told once, however long it stays.
            self._tracked[key] = None
            self._bytes += _record_bytes(key, b"")
            event = self._event("TimeoutEvent") if self._is_alert else {}
            found.append(_occurrence(self.on, tracked.message, event))
        return found

    def next_due_us(self) -> int | None:
        """See `MessageTrigger.next_due_us`."""
        self._drop_gone()
        times = [self._rows[0][0]] if self._rows else []
        for key in self._fresh:
            tracked = self._tracked[key]
            assert tracked is not None
            times.append(tracked.due_us)
            break
        return min(times, default=None)

    def restart(self) -> None:
        """See `MessageTrigger.restart`."""
        super().restart()
        self._tracked.clear()
        self._fresh.clear()
        self._rows.clear()
        self._bytes = 0

    def _track(self, message: TriggerMessage, now_us: int, wall_us: int) -> None:
        key = message.key
        if self._duration_us is None:
            self._tracked[key] = _Tracked(message, 0)
            return
        due_us = now_us + self._duration_us
        if message.kind == "sow":
            # The publisher's clock may be ahead.
            due_us -= max(0, wall_us - message.timestamp_us)
            tracked = _Tracked(message, due_us)
            self._count += 1
            heapq.heappush(self._rows, (due_us, self._count, key, tracked))
        else:
            tracked = _Tracked(message, due_us)
            self._fresh[key] = None
        self._tracked[key] = tracked

    def _forget(self, key: bytes) -> _Tracked | None:
        """Takes a record out; returns it unless its occurrence was given, or it is not known."""
        if key not in self._tracked:
            return None
        tracked = self._tracked.pop(key)
        self._fresh.pop(key, None)
        self._bytes -= _record_bytes(key, b"" if tracked is None else tracked.message.body)
        return tracked

    def _first(self, now_us: int) -> bytes | None:
        """Returns the key of the record that has been due for the longest time; None: no record
        is due."""
        due_us = self.next_due_us()
        if due_us is None or due_us > now_us:
            return None
        if self._rows and self._rows[0][0] == due_us:
            return heapq.heappop(self._rows)[2]
        return next(iter(self._fresh))

    def _drop_gone(self) -> None:
        while self._rows and self._tracked.get(self._rows[0][2]) is not self._rows[0][3]:
            heapq.heappop(self._rows)

    def _event(self, option: str) -> dict[str, str]:
        return {self.on.option("EventVariable") or "AMPS_EVENT": self.on.option(option)}


def message_triggers(actions: tuple[ActionDefinition, ...]) -> list[MessageTrigger]:
    """Returns the triggers of all actions: one for each `on` module, even if several actions have
    it.

    Raises:
        ConfigurationError, ValueError: an option cannot be used.
    """
    uses: dict[ActionModule, list[ActionDefinition]] = {}
    for action in actions:
        for on in action.on:
            if on.module in MESSAGE_MODULES:
                uses.setdefault(on, []).append(action)
    return [_trigger(on, of) for on, of in uses.items()]


def subscription_options(text: str) -> dict[str, Any]:
    """Returns the options of a `publish-message` as keyword arguments of the client's `subscribe`.

    Raises:
        ConfigurationError: one is unknown here.
    """
    found: dict[str, Any] = {}
    at = 0
    while at < len(text.rstrip()):
        part = _OPTION.match(text, at)
        if part is None:
            raise ConfigurationError(
                f"Options is {text!r}: expected names such as oof, or select=[-/,+/id], with "
                "commas between them"
            )
        name, value = part[1], part[2]
        if name == "select" and value:
            found[name] = value
        elif name in _FLAGS and value is None:
            found[name] = True
        elif name not in _NEEDLESS or value is not None:
            raise ConfigurationError(
                f"Options has {name!r}: expected {', '.join(sorted(_FLAGS))} or select=[…]"
            )
        at = part.end()
    return found


def _trigger(on: ActionModule, actions: list[ActionDefinition]) -> MessageTrigger:
    if on.module == "publish-message":
        return PublishTrigger(on)
    if on.module == "oof-message":
        return OofTrigger(on, keeps_previous=any(map(_asks_before, actions)))
    return ConditionTrigger(on)


def _asks_before(action: ActionDefinition) -> bool:
    """Returns whether a step of an action may read the record as it was before."""
    names = ("AMPS_PREVIOUS_DATA", "AMPS_PREVIOUS_DATA_LENGTH")
    return any(
        step.module in ("execute-event", "call-function")
        or any(name in names_in(text) for _, text in step.options for name in names)
        for step in action.steps
    )


def _occurrence(
    on: ActionModule, message: TriggerMessage, further: Mapping[str, str] | None = None
) -> Occurrence:
    variables = {
        "AMPS_TOPIC": message.topic,
        "AMPS_MESSAGE_TYPE": message.message_type,
        "AMPS_DATA": text_of(message.body),
        "AMPS_DATA_LENGTH": str(len(message.body)),
        "AMPS_BOOKMARK": message.bookmark,
        "AMPS_TIMESTAMP": date_text(message.timestamp_us) if message.timestamp_us else "",
        "AMPS_CLIENT_NAME": message.client_name,
        "AMPS_CORRELATION_ID": text_of(message.correlation),
    }
    if message.key:
        variables["AMPS_SOW_KEY"] = text_of(message.key)
    return Occurrence(
        kind=on.module,
        variables={**variables, **(further or {})},
        topic=message.topic,
        message_type=message.message_type,
        depth=depth_here(message),
        on=on,
    )


def _record_bytes(key: bytes, body: bytes) -> int:
    return RECORD_BYTES + len(key) + len(body)
