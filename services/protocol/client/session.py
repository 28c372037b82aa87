"""A client's session at the server: which command is allowed when, and the decoded commands.

Bytes in, commands out (commands.py); answers are encoded by answers.py. An invalid command becomes
a `CommandRefused`, which the client is told, and the session goes on. A violation of the protocol
is a RemoteProtocolError, and the session ends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from enum import Enum

from raylay.services.errors import RemoteProtocolError
from raylay.services.messages.records import SEQUENCE_HELD_MAX, SEQUENCE_MAX
from raylay.services.protocol.client.commands import (
    Command,
    CommandRefused,
    Flush,
    Heartbeat,
    Logoff,
    Logon,
    Ping,
    Publish,
    PublishBatchCommand,
)
from raylay.services.protocol.client.queue_commands import (
    read_queue_ack,
    read_queue_cancel,
    read_queue_status,
)
from raylay.services.protocol.client.reader_command import read_reader
from raylay.services.protocol.client.subscribe import (
    read_sow,
    read_sow_and_subscribe,
    read_subscribe,
    read_unsubscribe,
)
from raylay.services.protocol.frames import (
    FRAME_BYTES_MAX,
    PROTOCOL_VERSION,
    UNAUTHENTICATED_FRAME_BYTES_MAX,
    FrameReader,
    Header,
)
from raylay.services.protocol.header_values import (
    BadValue,
    read_acks,
    read_bytes,
    read_command_id,
    read_echoed,
    read_message_type,
    read_options,
    read_text,
    read_topic,
    read_whole,
)

CLIENT_NAME_BYTES_MAX = 1024
NAME_BYTES_MAX = 400
"""Longest name of an instance."""
FRAMES_AT_ONCE = 32
"""Number of frames that are read at once: small ones take some 0.2 ms of the loop."""
PUBLISHED_KINDS = (1, 2, 3, 6)
"""Commands of records (services/messages/records.py) by the `cmd` of a `p` frame."""


class SessionState(Enum):
    """The state of a session."""

    NEW = "new"
    LOGGED_ON = "logged on"
    CLOSED = "closed"


NEW, LOGGED_ON, CLOSED = SessionState.NEW, SessionState.LOGGED_ON, SessionState.CLOSED

_ONCE_LOGGED_ON = (
    "p",
    "pb",
    "subscribe",
    "sow",
    "sow_and_subscribe",
    "unsubscribe",
    "flush",
    "heartbeat",
    "ping",
    "queue_cancel",
    "queue_ack",
    "queue_status",
    "reader",
    "logoff",
)
ALLOWED: dict[SessionState, frozenset[str]] = {
    NEW: frozenset(("logon",)),
    LOGGED_ON: frozenset(_ONCE_LOGGED_ON),
    CLOSED: frozenset(),
}
"""The commands that are allowed in each state. A known command in another state is `not_logged_on`
(or, for a second logon, `bad_command`); an unknown one is `unknown_command`. Each of these ends the
session."""

COMMANDS = frozenset(command for commands in ALLOWED.values() for command in commands)


@dataclass(slots=True)
class ServerSession:
    """One client's session: feed `receive`, call `logged_on` when its logon is accepted.

    Invariant: no command but a logon comes out before `logged_on`.
    Owner: the client's connection. Lifecycle: one connection.
    """

    holds: InitVar[Callable[[int], None] | None] = None
    """Called with the number of bytes that are kept of an incomplete frame, before they are kept
    (see `FrameReader`). None: the bytes are not counted."""
    state: SessionState = field(default=NEW, kw_only=True)
    reader: FrameReader = field(init=False)

    def __post_init__(self, holds: Callable[[int], None] | None) -> None:
        self.reader = FrameReader(
            frame_bytes_max=UNAUTHENTICATED_FRAME_BYTES_MAX,
            frames_max=FRAMES_AT_ONCE,
            holds=holds,
        )

    def receive(self, data: bytes) -> list[Command]:
        """Returns the commands that `data` completes, at most `FRAMES_AT_ONCE`: after that many, it
        is called without data for the others.

        Raises:
            RemoteProtocolError: the session is over; the client is to be sent the error's reason.
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
            except BadValue as error:
                if command == "logon":
                    raise RemoteProtocolError(str(error), error.reason) from None
                commands.append(
                    CommandRefused(header, read_echoed(header), error.reason, str(error))
                )
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
        self.state = LOGGED_ON
        self.reader.frame_bytes_max = FRAME_BYTES_MAX

    def closed(self) -> None:
        self.state = CLOSED
        self.reader.clear()


# -- reading -------------------------------------------------------------------------------------


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
    takes_unused = header.get("takes_unused", False)
    if type(takes_unused) is not bool:
        raise BadValue("bad_command", "`takes_unused` of logon is neither true nor false")
    conflation_ms = read_options(header).get("ack_conflation_ms") or 0
    if type(conflation_ms) not in (int, float) or not 0 <= conflation_ms <= 60_000:
        raise BadValue("bad_command", "ack_conflation_ms is no number from 0 to 60000")
    return Logon(
        name,
        read_whole(header, "low", 0, SEQUENCE_HELD_MAX),
        read_command_id(header),
        read_text(header, "user_id"),
        read_text(header, "pw"),
        int(conflation_ms),
        takes_unused,
    )


def _read_logoff(header: Header, _: bytes) -> Logoff:
    unused = header.get("unused")
    if (
        type(unused) is not list
        or len(unused) != 2
        or any(type(each) is not int for each in unused)
        or not 0 < unused[0] <= unused[1] <= SEQUENCE_MAX
    ):
        raise BadValue(
            "bad_command", f"`unused` of logoff is no range of sequences from 1 to {SEQUENCE_MAX}"
        )
    return Logoff((unused[0], unused[1]), read_command_id(header))


def _read_publish(header: Header, body: bytes) -> Publish:
    return Publish(
        read_topic(header),
        read_message_type(header, "json") or "json",
        body,
        read_whole(header, "s"),
        read_command_id(header),
        read_acks(header),
        read_whole(header, "e", 0, 0xFFFFFFFF),
        read_bytes(header, "k"),
        read_bytes(header, "x"),
        _read_kind(header),
    )


def _read_kind(header: Header) -> int:
    kind = header.get("cmd", 1)
    if type(kind) is not int or kind not in PUBLISHED_KINDS:
        raise BadValue(
            "bad_command",
            "`cmd` of p is none of 1 (publish), 2 (delete), 3 (acknowledgment), 6 (delta publish)",
        )
    return kind


def _read_batch(header: Header, body: bytes) -> PublishBatchCommand:
    count = header.get("n")
    if type(count) is not int or count < 1:
        raise RemoteProtocolError(
            "`n` of pb is no whole number from 1: give the number of its records", "bad_command"
        )
    resent = header.get("r")
    if resent is not None and (
        type(resent) is not str or len(resent.encode("utf-8", "surrogatepass")) > NAME_BYTES_MAX
    ):
        raise RemoteProtocolError(
            f"`r` of pb is no text of at most {NAME_BYTES_MAX} bytes: give the instance that the "
            "records were sent to first",
            "bad_command",
        )
    return PublishBatchCommand(body, count, resent)


def _read_flush(header: Header, _: bytes) -> Flush:
    return Flush(read_command_id(header), read_acks(header))


def _read_heartbeat(header: Header, _: bytes) -> Heartbeat:
    start_s = read_options(header).get("start_s")
    if start_s is not None and (type(start_s) not in (int, float) or not 0.01 <= start_s <= 86_400):
        raise BadValue("bad_command", "start_s is no number of seconds from 0.01 to 86400")
    return Heartbeat(start_s, read_command_id(header))


def _read_ping(header: Header, _: bytes) -> Ping:
    return Ping(read_command_id(header))


_READERS: dict[str, Callable[[Header, bytes], Command]] = {
    "logon": _read_logon,
    "p": _read_publish,
    "pb": _read_batch,
    "subscribe": read_subscribe,
    "sow": read_sow,
    "sow_and_subscribe": read_sow_and_subscribe,
    "unsubscribe": read_unsubscribe,
    "flush": _read_flush,
    "heartbeat": _read_heartbeat,
    "ping": _read_ping,
    "queue_cancel": read_queue_cancel,
    "queue_ack": read_queue_ack,
    "queue_status": read_queue_status,
    "reader": read_reader,
    "logoff": _read_logoff,
}
