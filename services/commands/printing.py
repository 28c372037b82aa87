"""How the shell's commands print messages: one a line."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raylay.services.client import Message


def print_message(message: Message, as_json: bool, focused: bool = False) -> None:
    """Prints a message to the standard output.

    Args:
        as_json: as one object, with where it came from.
        focused: whether it is of a SOW topic: then its key and what it is are in the object.
    """
    if as_json:
        sys.stdout.write(f"{json.dumps(_object(message, focused))}\n")
    elif message.kind == "oof":
        # Its body is no record that is there: it must not look like one.
        front = f"out of focus, {message.reason}: {message.key.decode('utf-8', 'replace')} "
        sys.stdout.buffer.write(front.encode() + message.body + b"\n")
    else:
        sys.stdout.buffer.write(message.body + b"\n")


def _object(message: Message, focused: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"topic": message.topic, "bookmark": message.bookmark}
    if focused:
        found["kind"] = message.kind
        if message.reason:
            found["reason"] = message.reason
        found["key"] = message.key.decode("utf-8", "replace")
    if message.kind == "publish":
        found["timestamp_us"] = message.timestamp_us
    found["body"] = message.body.decode("utf-8", "replace")
    return found
