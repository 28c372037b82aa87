"""The values of a header, each decoded as its command needs it, or refused with a sentence."""

from __future__ import annotations

from typing import Any

from raylay.services.messages.records import TOPIC_BYTES_MAX, TYPE_BYTES_MAX
from raylay.services.protocol.frames import Header

COMMAND_ID_BYTES_MAX = 1024
"""Longest command id: every ack repeats it in its header, which ends at 64 KiB."""
ACK_TYPES = frozenset(("none", "received", "processed", "persisted", "completed", "stats"))
"""Acks that a command may request. It gets those that apply; `none`: none of them."""


class BadValue(Exception):
    """A value for which a command is refused, with a reason of docs/protocol.md; the session goes
    on."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


def read_echoed(header: Header) -> str:
    """Returns the command id of a refused command; empty where the id itself is invalid."""
    try:
        return read_command_id(header)
    except BadValue:
        return ""


def read_command_id(header: Header) -> str:
    """Returns the command id as text; empty: there is none."""
    value = header.get("cid")
    if value is None:
        return ""
    if type(value) is int:
        return str(value)
    if type(value) is not str or len(value.encode()) > COMMAND_ID_BYTES_MAX:
        raise BadValue(
            "bad_command",
            f"`cid` of {header['c']} is no text of up to {COMMAND_ID_BYTES_MAX} bytes and no "
            "whole number",
        )
    return value


def read_text(header: Header, key: str, default: str = "") -> str:
    value = header.get(key)
    if value is None:
        return default
    if type(value) is not str:
        raise BadValue("bad_command", f"`{key}` of {header['c']} is no text")
    return value


def read_whole(header: Header, key: str, low: int = 0, high: int = (1 << 63) - 1) -> int:
    """Returns a whole number; 0: there is none."""
    value = header.get(key)
    if value is None:
        return 0
    if type(value) is not int or not low <= value <= high:
        raise BadValue(
            "bad_command", f"`{key}` of {header['c']} is no whole number from {low} to {high}"
        )
    return value


def read_bytes(header: Header, key: str) -> bytes:
    """Returns a text or bytes, as bytes, of up to 64 KiB."""
    value = header.get(key)
    if value is None:
        return b""
    if isinstance(value, str):
        value = value.encode()
    if type(value) is not bytes or len(value) > 65_535:
        raise BadValue("bad_command", f"`{key}` of {header['c']} is no text of up to 64 KiB")
    return value


def read_acks(header: Header) -> frozenset[str]:
    value = header.get("a")
    if value is None or value == "":
        return frozenset()
    if type(value) is not str:
        raise BadValue("bad_command", f"`a` of {header['c']} is no comma list of ack types")
    acks = frozenset(value.split(","))
    if not acks <= ACK_TYPES:
        unknown = ", ".join(repr(each[:64]) for each in sorted(acks - ACK_TYPES)[:4])
        raise BadValue(
            "bad_command",
            f"`a` of {header['c']} asks for {unknown}: there are {', '.join(sorted(ACK_TYPES))}",
        )
    return acks


def read_options(header: Header) -> dict[str, Any]:
    value = header.get("o")
    if value is None:
        return {}
    if type(value) is not dict:
        raise BadValue("bad_command", f"`o` of {header['c']} is no map of options")
    return value


def read_topic(header: Header) -> str:
    topic = read_text(header, "t")
    length = len(topic.encode("utf-8", "surrogatepass"))
    if not 1 <= length <= TOPIC_BYTES_MAX:
        raise BadValue("bad_topic", f"topic of {length} bytes: give one of 1 to {TOPIC_BYTES_MAX}")
    return topic


def read_message_type(header: Header, default: str) -> str:
    message_type = read_text(header, "mt", default)
    if len(message_type.encode("utf-8", "surrogatepass")) > TYPE_BYTES_MAX:
        raise BadValue("bad_command", f"message type is longer than {TYPE_BYTES_MAX} bytes")
    return message_type
