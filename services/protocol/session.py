"""A client's session as the server sees it: which command is allowed when, and what it says.

Bytes in, commands out. The answers are built here too, so that this file and docs/protocol.md say
the same. A command that is wrong in itself becomes a `Refused`, which the client is told, and the
session goes on; what breaks the protocol is a RemoteProtocolError, and the session ends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import msgpack

from raylay.services.errors import RemoteProtocolError
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.messages.rates import (
    Rate,
    parse_rate,
)
from raylay.services.messages.records import (
    SEQUENCE_HELD_MAX,
    TOPIC_BYTES_MAX,
    TYPE_BYTES_MAX,
)
from raylay.services.protocol.frames import (
    FRAME_BYTES_MAX,
    PROTOCOL_VERSION,
    UNAUTHENTICATED_FRAME_BYTES_MAX,
    FrameReader,
    Header,
)

CLIENT_NAME_BYTES_MAX = 1024
SUBSCRIPTION_ID_BYTES_MAX = 1024
COMMAND_ID_BYTES_MAX = 1024
"""It comes back in every ack, whose header ends at 64 KiB."""
HAVE_CHUNKS_MAX = 128 * 1024
"""Of the sets that a subscriber says it has: a chunk of 14 bytes takes up to 0.6 KiB of memory."""


ACK_TYPES = frozenset(("none", "received", "processed", "persisted", "completed", "stats"))
"""What a command may ask for. Of these it is given what it has; `none`: nothing."""


class State(Enum):
    """Where a session is."""

    NEW = "new"
    LOGGED_ON = "logged on"
    CLOSED = "closed"


NEW, LOGGED_ON, CLOSED = State.NEW, State.LOGGED_ON, State.CLOSED

_ONCE_LOGGED_ON = (
    "p",
    "pb",
    "subscribe",
    "unsubscribe",
    "flush",
    "heartbeat",
    "ping",
)
ALLOWED: dict[State, frozenset[str]] = {
    NEW: frozenset(("logon",)),
    LOGGED_ON: frozenset(_ONCE_LOGGED_ON),
    CLOSED: frozenset(),
}
"""The commands of each state. A known command elsewhere is `not_logged_on` (or, for a second
logon, `bad_command`); an unknown one is `unknown_command`. All of these end the session."""

COMMANDS = frozenset(command for commands in ALLOWED.values() for command in commands)


@dataclass(slots=True)
class Logon:
    """`logon`."""

    client_name: str
    low: int
    command_id: str
    user_id: str
    password: str
    ack_conflation_ms: int


@dataclass(slots=True)
class Publish:
    """`p`: one message."""

    topic: str
    message_type: str
    body: bytes
    sequence: int
    command_id: str
    acks: frozenset[str]
    expiration_s: int
    key: bytes
    correlation: bytes


@dataclass(slots=True)
class PublishBatch:
    """`pb`: records as the client built them. `count`: how many it says they are."""

    payload: bytes
    count: int


@dataclass(slots=True)
class Subscribe:
    """`subscribe`. `have`: what a durable subscriber already has. `filter`: by content."""

    subscription: str
    topic: str
    message_type: str
    bookmark: str
    command_id: str
    acks: frozenset[str]
    bookmark_not_found: str
    have: PublisherRanges | None
    persisted_ms: int
    fully_durable: bool
    non_regex_topic: bool
    live: bool = False
    paused: bool = False
    rate: Rate | None = None
    filter: str = ""


@dataclass(slots=True)
class Pause:
    """`subscribe` with `pause` and no topic: of subscriptions that there are."""

    subscriptions: tuple[str, ...]
    command_id: str
    acks: frozenset[str]


@dataclass(slots=True)
class Resume:
    """`subscribe` with `resume`: all of them together."""

    subscriptions: tuple[str, ...]
    command_id: str
    acks: frozenset[str]


@dataclass(slots=True)
class Unsubscribe:
    """`unsubscribe`. `subscriptions` is None for all."""

    subscriptions: tuple[str, ...] | None
    command_id: str
    acks: frozenset[str]


@dataclass(slots=True)
class Flush:
    """`flush`."""

    command_id: str
    acks: frozenset[str]


@dataclass(slots=True)
class Heartbeat:
    """`heartbeat`. `start_s` is None for a mere beat."""

    start_s: float | None
    command_id: str


@dataclass(slots=True)
class Ping:
    """`ping`."""

    command_id: str


@dataclass(slots=True)
class Refused:
    """A command that cannot be done; the session goes on."""

    header: Header
    command_id: str
    reason: str
    text: str


Command = (
    Logon
    | Publish
    | PublishBatch
    | Subscribe
    | Pause
    | Resume
    | Unsubscribe
    | Flush
    | Heartbeat
    | Ping
    | Refused
)


class _BadValue(Exception):
    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


@dataclass(slots=True)
class ServerSession:
    """One client's session: feed `receive`, call `logged_on` when its logon is accepted.

    Invariant: no command but a logon comes out before `logged_on`.
    Owner: the client's connection. Lifecycle: one connection.
    """

    state: State = NEW
    reader: FrameReader = field(
        default_factory=lambda: FrameReader(frame_bytes_max=UNAUTHENTICATED_FRAME_BYTES_MAX)
    )

    def receive(self, data: bytes) -> list[Command]:
        """The commands that `data` completes.

        Raises:
            RemoteProtocolError: the session is over; its reason is to be told.
        """
        commands: list[Command] = []
        for header, body in self.reader.feed(data):
            command = header["c"]
            if command == "pb" and self.state is LOGGED_ON:
                commands.append(_read_batch(header, body))
                continue
            if command not in ALLOWED[self.state]:
                raise self._unexpected(command)
            try:
                commands.append(_READERS[command](header, body))
            except _BadValue as error:
                if command == "logon":
                    raise RemoteProtocolError(str(error), error.reason) from None
                commands.append(Refused(header, _echoed(header), error.reason, str(error)))
        return commands

    def _unexpected(self, command: str) -> RemoteProtocolError:
        if command not in COMMANDS:
            return RemoteProtocolError(
                f"command {command[:64]!r} is unknown: docs/protocol.md lists what there is",
                "unknown_command",
            )
        if self.state is NEW:
            return RemoteProtocolError(
                f"{command} came before the logon: log on first", "not_logged_on"
            )
        return RemoteProtocolError(
            f"{command} came when the session was {self.state.value}", "bad_command"
        )

    def logged_on(self) -> None:
        """The logon was accepted."""
        self.state = LOGGED_ON
        self.reader.frame_bytes_max = FRAME_BYTES_MAX

    def closed(self) -> None:
        """The connection ended."""
        self.state = CLOSED


# -- reading -------------------------------------------------------------------------------------


def _echoed(header: Header) -> str:
    """The command id of a command that is refused; empty where that is none itself."""
    try:
        return _command_id(header)
    except _BadValue:
        return ""


def _command_id(header: Header) -> str:
    value = header.get("cid")
    if value is None:
        return ""
    if type(value) is int:
        return str(value)
    if type(value) is not str or len(value.encode()) > COMMAND_ID_BYTES_MAX:
        raise _BadValue(
            "bad_command",
            f"`cid` of {header['c']} is no text of up to {COMMAND_ID_BYTES_MAX} bytes and no "
            "whole number",
        )
    return value


def _text(header: Header, key: str, default: str = "") -> str:
    value = header.get(key)
    if value is None:
        return default
    if type(value) is not str:
        raise _BadValue("bad_command", f"`{key}` of {header['c']} is no text")
    return value


def _whole(header: Header, key: str, low: int = 0, high: int = (1 << 63) - 1) -> int:
    value = header.get(key)
    if value is None:
        return 0
    if type(value) is not int or not low <= value <= high:
        raise _BadValue(
            "bad_command", f"`{key}` of {header['c']} is no whole number from {low} to {high}"
        )
    return value


def _bytes(header: Header, key: str) -> bytes:
    value = header.get(key)
    if value is None:
        return b""
    if isinstance(value, str):
        value = value.encode()
    if type(value) is not bytes or len(value) > 65_535:
        raise _BadValue("bad_command", f"`{key}` of {header['c']} is no text of up to 64 KiB")
    return value


def _acks(header: Header) -> frozenset[str]:
    value = header.get("a")
    if value is None or value == "":
        return frozenset()
    if type(value) is not str:
        raise _BadValue("bad_command", f"`a` of {header['c']} is no comma list of ack types")
    acks = frozenset(value.split(","))
    if not acks <= ACK_TYPES:
        unknown = ", ".join(repr(each[:64]) for each in sorted(acks - ACK_TYPES)[:4])
        raise _BadValue(
            "bad_command",
            f"`a` of {header['c']} asks for {unknown}: there are {', '.join(sorted(ACK_TYPES))}",
        )
    return acks


def _options(header: Header) -> dict[str, Any]:
    value = header.get("o")
    if value is None:
        return {}
    if type(value) is not dict:
        raise _BadValue("bad_command", f"`o` of {header['c']} is no map of options")
    return value


def _topic(header: Header) -> str:
    topic = _text(header, "t")
    length = len(topic.encode("utf-8", "surrogatepass"))
    if not 1 <= length <= TOPIC_BYTES_MAX:
        raise _BadValue("bad_topic", f"topic of {length} bytes: give one of 1 to {TOPIC_BYTES_MAX}")
    return topic


def _message_type(header: Header, default: str) -> str:
    message_type = _text(header, "mt", default)
    if len(message_type.encode("utf-8", "surrogatepass")) > TYPE_BYTES_MAX:
        raise _BadValue("bad_command", f"message type is longer than {TYPE_BYTES_MAX} bytes")
    return message_type


def _read_logon(header: Header, _: bytes) -> Logon:
    version = header.get("v")
    if version != PROTOCOL_VERSION:
        raise RemoteProtocolError(
            f"protocol version {str(version)[:20]} is not spoken here: use {PROTOCOL_VERSION}",
            "bad_version",
        )
    name = header.get("client_name")
    if (
        type(name) is not str
        or not 1 <= len(name.encode("utf-8", "surrogatepass")) <= CLIENT_NAME_BYTES_MAX
    ):
        raise RemoteProtocolError(
            f"client_name is no text of 1 to {CLIENT_NAME_BYTES_MAX} bytes", "bad_client_name"
        )
    conflation_ms = _options(header).get("ack_conflation_ms") or 0
    if type(conflation_ms) not in (int, float) or not 0 <= conflation_ms <= 60_000:
        raise _BadValue("bad_command", "ack_conflation_ms is no number from 0 to 60000")
    return Logon(
        name,
        _whole(header, "low", 0, SEQUENCE_HELD_MAX),
        _command_id(header),
        _text(header, "user_id"),
        _text(header, "pw"),
        int(conflation_ms),
    )


def _read_publish(header: Header, body: bytes) -> Publish:
    return Publish(
        _topic(header),
        _message_type(header, "json") or "json",
        body,
        _whole(header, "s"),
        _command_id(header),
        _acks(header),
        _whole(header, "e", 0, 0xFFFFFFFF),
        _bytes(header, "k"),
        _bytes(header, "x"),
    )


def _read_batch(header: Header, body: bytes) -> PublishBatch:
    count = header.get("n")
    if type(count) is not int or count < 1:
        raise RemoteProtocolError(
            "`n` of pb is no whole number from 1: give the number of its records", "bad_command"
        )
    return PublishBatch(body, count)


def _read_subscribe(header: Header, body: bytes) -> Subscribe | Pause | Resume:
    options = _options(header)
    if options.get("resume") or (options.get("pause") and header.get("t") is None):
        return _read_pause_or_resume(header, options)
    subscription = _text(header, "sub")
    if not 1 <= len(subscription.encode("utf-8", "surrogatepass")) <= SUBSCRIPTION_ID_BYTES_MAX:
        raise _BadValue("bad_command", "subscribe needs a subscription id `sub`")
    not_found = options.get("bookmark_not_found", "now")
    if not_found not in ("now", "epoch", "fail"):
        raise _BadValue("bad_command", "bookmark_not_found is none of now, epoch, fail")
    persisted_ms = options.get("persisted_ms") or 0
    if type(persisted_ms) is not int or not 0 <= persisted_ms <= 3_600_000:
        raise _BadValue("bad_command", "persisted_ms is no whole number from 0 to 3600000")
    if options.get("window"):
        raise _BadValue("bad_command", "window: credits are not spoken yet, leave it out or 0")
    bookmark = _text(header, "bm")
    _check_delivery(options, bookmark)
    return Subscribe(
        subscription,
        _topic(header),
        _message_type(header, ""),
        bookmark,
        _command_id(header),
        _acks(header),
        not_found,
        _read_have(options, body),
        persisted_ms,
        bool(options.get("fully_durable")),
        bool(options.get("non_regex_topic")),
        bool(options.get("live")),
        bool(options.get("pause")),
        _read_rate(options),
        _text({**options, "c": "subscribe"}, "filter"),
    )


def _read_have(options: dict[str, Any], body: bytes) -> PublisherRanges | None:
    have = options.get("have")
    if have is None and body:
        try:
            # A map of numbers to bytes and nothing else: no limit of what else it could hold.
            have = msgpack.unpackb(
                body,
                strict_map_key=False,
                max_array_len=0,
                max_ext_len=0,
                max_map_len=HAVE_CHUNKS_MAX,
            )
        except Exception:  # msgpack raises many kinds on bad bytes
            raise _BadValue(
                "bad_command",
                "the body of subscribe is no msgpack map of publisher to ranges, of up to "
                f"{HAVE_CHUNKS_MAX} publishers",
            ) from None
    try:
        return None if have is None else PublisherRanges.from_wire(have, HAVE_CHUNKS_MAX)
    except RemoteProtocolError as error:
        raise _BadValue("bad_command", f"`have` is no ranges: {error}") from None


def _check_delivery(options: dict[str, Any], bookmark: str) -> None:
    """Of the options that say how a replay is delivered: which go together."""
    given = [
        name
        for name in ("fully_durable", "live", "pause", "rate", "rate_max_gap")
        if options.get(name)
    ]
    if given and not bookmark:
        raise _BadValue(
            "bad_command",
            f"{given[0]} is an option of bookmark subscriptions: give a bookmark `bm`, "
            "such as 0 for the whole log",
        )
    if "live" in given and len(given) > 1:
        other = next(name for name in given if name != "live")
        raise _BadValue(
            "bad_command",
            f"live delivers messages as they come, and {other} holds them back: give one of them",
        )


def _read_rate(options: dict[str, Any]) -> Rate | None:
    rate, gap = options.get("rate"), options.get("rate_max_gap") or ""
    if isinstance(rate, int | float) and not isinstance(rate, bool):
        rate = f"{rate:.6f}".rstrip("0") if rate >= 0 else str(rate)
    if rate is None and gap:
        raise _BadValue("bad_command", "rate_max_gap goes with a rate like 2X, and there is none")
    if rate is None:
        return None
    if type(rate) is not str or type(gap) is not str:
        raise _BadValue(
            "bad_command", "rate is a text like 500, 500KB or 2X, rate_max_gap one like 10s"
        )
    try:
        return parse_rate(rate, gap)
    except RemoteProtocolError as error:
        raise _BadValue(error.reason, str(error)) from None


def _read_pause_or_resume(header: Header, options: dict[str, Any]) -> Pause | Resume:
    value = header.get("sub")
    if isinstance(value, str):
        value = [name for name in value.split(",") if name]
    if not isinstance(value, list) or not value or not all(isinstance(one, str) for one in value):
        raise _BadValue(
            "bad_command", "pause and resume need `sub`: one id, a comma list or a list of ids"
        )
    given = [name for name in options if options[name]]
    if len(given) != 1:
        raise _BadValue(
            "bad_command",
            f"{given[0]} comes with {given[1]}: pause or resume of a subscription that there is "
            "takes no other option",
        )
    kind = Resume if given == ["resume"] else Pause
    names = tuple(dict.fromkeys(value))
    return kind(names, _command_id(header), _acks(header))


def _read_unsubscribe(header: Header, _: bytes) -> Unsubscribe:
    value = header.get("sub")
    subscriptions: tuple[str, ...] | None
    if value == "all":
        subscriptions = None
    elif isinstance(value, str) and value:
        subscriptions = (value,)
    elif isinstance(value, list) and all(isinstance(item, str) for item in value):
        subscriptions = tuple(value)
    else:
        raise _BadValue("bad_command", "unsubscribe needs `sub`: one id, a list, or all")
    return Unsubscribe(subscriptions, _command_id(header), _acks(header))


def _read_flush(header: Header, _: bytes) -> Flush:
    return Flush(_command_id(header), _acks(header))


def _read_heartbeat(header: Header, _: bytes) -> Heartbeat:
    start_s = _options(header).get("start_s")
    if start_s is not None and (type(start_s) not in (int, float) or not 0.01 <= start_s <= 86_400):
        raise _BadValue("bad_command", "start_s is no number of seconds from 0.01 to 86400")
    return Heartbeat(start_s, _command_id(header))


def _read_ping(header: Header, _: bytes) -> Ping:
    return Ping(_command_id(header))


_READERS: dict[str, Callable[[Header, bytes], Command]] = {
    "logon": _read_logon,
    "p": _read_publish,
    "pb": _read_batch,
    "subscribe": _read_subscribe,
    "unsubscribe": _read_unsubscribe,
    "flush": _read_flush,
    "heartbeat": _read_heartbeat,
    "ping": _read_ping,
}
