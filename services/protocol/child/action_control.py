"""The protocol between an instance and the process that runs its actions, over the instance's Unix
socket: frames.

    process to instance
      hello    actions: name of the instance, start (number of this start), pid: the first frame
      taken    n: number of occurrences that were taken since the last such frame
      call     n: number of the call; body: msgpack: {"call", "arguments", "action"}
      report   event: its name; body: msgpack: its details
      status   body: msgpack: the status of the actions
      ready    it has subscribed to the messages that start actions
      settled  all runs have ended that began before `settle`

    instance to process
      occurred body: msgpack: the occurrences, each [kind, variables, topic, message type]
      answer   n: number of the call; body: as in admin_control.py
      settle   tells `settled` when no run is going on
      stop     go away

Both ends are of one version: they are started from one installation, so nothing is negotiated. The
process is also a client of the instance: its second connection to the socket begins with a client's
`logon`, whose password is the secret of the start.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgpack

from raylay.services.actions.model import Occurrence
from raylay.services.protocol.child.admin_control import read_map, unreadable
from raylay.services.protocol.frames import encode_frame

STOP = encode_frame({"c": "stop"})
SETTLE = encode_frame({"c": "settle"})
SETTLED = encode_frame({"c": "settled"})
READY = encode_frame({"c": "ready"})


class ActionCall(NamedTuple):
    """A control call that a step of an action makes.

    Attributes:
        call: name of the call.
        arguments: arguments of the call, by name.
        action: name of the action.
    """

    call: str
    arguments: dict[str, Any]
    action: str


def hello(instance: str, start: int, pid: int) -> bytes:
    """Encodes the first frame of the process."""
    return encode_frame({"c": "hello", "actions": instance, "start": start, "pid": pid})


def taken(count: int) -> bytes:
    return encode_frame({"c": "taken", "n": count})


def call(number: int, asked: ActionCall) -> bytes:
    """Encodes a control call."""
    return encode_frame({"c": "call", "n": number}, msgpack.packb(asked._asdict(), default=str))


def read_call(body: bytes) -> ActionCall:
    """Decodes a control call.

    Raises:
        RemoteProtocolError: the body cannot be decoded.
    """
    found = read_map(body)
    try:
        return ActionCall(str(found["call"]), dict(found["arguments"]), str(found["action"]))
    except (KeyError, TypeError, ValueError) as error:
        raise unreadable(error) from None


def report(event: str, details: Mapping[str, Any]) -> bytes:
    """Encodes an event of the actions for the instance's event log."""
    return encode_frame({"c": "report", "event": event}, msgpack.packb(dict(details), default=str))


def status(found: Mapping[str, Any]) -> bytes:
    return encode_frame({"c": "status"}, msgpack.packb(dict(found), default=str))


def occurred(occurrences: Iterable[Occurrence]) -> bytes:
    """Encodes a batch of occurrences."""
    rows = [
        (each.kind, dict(each.variables), each.topic, each.message_type) for each in occurrences
    ]
    return encode_frame({"c": "occurred"}, _packed(rows))


def read_occurred(body: bytes) -> list[Occurrence]:
    """Decodes a batch of occurrences.

    Raises:
        RemoteProtocolError: the body cannot be decoded.
    """
    try:
        rows = msgpack.unpackb(body, unicode_errors="surrogateescape")
        return [
            Occurrence(kind, variables, topic, message_type)
            for kind, variables, topic, message_type in rows
        ]
    except Exception as error:  # msgpack raises many kinds of errors on bad bytes
        raise unreadable(error) from None


def _packed(value: Any) -> bytes:
    packed: bytes = msgpack.packb(value, unicode_errors="surrogateescape", default=str)
    return packed
