"""The protocol between an instance and the process of its administrator's interface, over the
instance's Unix socket: frames.

    process to instance
      hello    admin: name of the instance, start (number of this start), pid: the first frame
      ask      n: number of the question, what: `snapshot`, `status`, `identify` or `perform`;
               body: msgpack: the arguments by name
      truncated  n: number of the truncation; body as of an answer
      listens  address: the address that the interface listens on; empty: it cannot, and `why`

    instance to process
      answer   n: number of the question; body: msgpack: {"ok": result} or {"error": kind, "text"}
      truncate n: number; before_us: older samples are removed from the statistics
      forget   user: ends the sessions of a user, or of all where it is empty
      stop     go away

Both ends are of one version: they are started from one installation, so nothing is negotiated.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgpack

from raylay.services.errors import (
    ConfigurationError,
    ControlRefused,
    FabricError,
    RaylayError,
    RemoteProtocolError,
    StorageError,
)
from raylay.services.protocol.frames import encode_frame

STOP = encode_frame({"c": "stop"})
_KINDS: Mapping[str, type[RaylayError]] = {
    each.__name__: each for each in (ConfigurationError, ControlRefused, FabricError, StorageError)
}


def hello(instance: str, start: int, pid: int) -> bytes:
    """Encodes the first frame of an administrator's interface."""
    return encode_frame({"c": "hello", "admin": instance, "start": start, "pid": pid})


def ask(number: int, what: str, arguments: Mapping[str, Any]) -> bytes:
    """Encodes a question."""
    return encode_frame({"c": "ask", "n": number, "what": what}, msgpack.packb(dict(arguments)))


def read_map(body: bytes) -> dict[str, Any]:
    """Decodes a body that is a map, as the arguments of a question are.

    Raises:
        RemoteProtocolError: the body is no map.
    """
    try:
        found = msgpack.unpackb(body, strict_map_key=False)
    except Exception as error:  # msgpack raises many kinds of errors on bad bytes
        raise unreadable(error) from None
    if not isinstance(found, dict):
        raise unreadable(TypeError())
    return found


def listens(address: str, why: str = "") -> bytes:
    return encode_frame({"c": "listens", "address": address, "why": why})


def truncate(number: int, before_us: int) -> bytes:
    return encode_frame({"c": "truncate", "n": number, "before_us": before_us})


def truncated(number: int, result: str | RaylayError) -> bytes:
    """Encodes the result of a truncation: a sentence, or its error."""
    if isinstance(result, str):
        body = msgpack.packb({"ok": result})
    else:
        body = msgpack.packb({"error": _kind(result), "text": str(result)})
    return encode_frame({"c": "truncated", "n": number}, body)


def forget(user: str) -> bytes:
    return encode_frame({"c": "forget", "user": user})


def answer(number: int, result: Any) -> bytes:
    """Encodes the result of a question. What msgpack does not know is sent as its text."""
    return encode_frame({"c": "answer", "n": number}, msgpack.packb({"ok": result}, default=str))


def refusal(number: int, error: RaylayError) -> bytes:
    """Encodes the error of a question."""
    body = msgpack.packb({"error": _kind(error), "text": str(error)})
    return encode_frame({"c": "answer", "n": number}, body)


def _kind(error: RaylayError) -> str:
    return next((name for name, each in _KINDS.items() if isinstance(error, each)), "")


def read_answer(body: bytes) -> Any:
    """Returns the result of a question.

    Raises:
        RaylayError: the error that the instance answers with.
        RemoteProtocolError: the body is no answer.
    """
    found = read_map(body)
    if "ok" in found:
        return found["ok"]
    raise _KINDS.get(str(found.get("error")), RaylayError)(str(found.get("text")))


def unreadable(error: Exception) -> RemoteProtocolError:
    """Returns the refusal of a frame whose body cannot be decoded."""
    return RemoteProtocolError(
        f"an instance and a process beside it: a frame cannot be read ({type(error).__name__})",
        "bad_frame",
    )
