"""The rows of the message browser: what is asked of `/raylay/messages`, and a message as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from raylay.services.admin.requests import format_time, read_time
from raylay.services.errors import ConfigurationError, ProtocolError
from raylay.services.messages.bookmarks import EPOCH, NOW, parse_point

Source = Literal["sow", "live", "replay"]
SOURCES: tuple[Source, ...] = get_args(Source)
ROWS_MAX = 10_000
"""Rows of one answer: as many as the console keeps."""
ROWS_DEFAULT = 200
TEXT_CHARACTERS_MAX = 1_024
"""Limit on the length of a topic in a request."""
FILTER_CHARACTERS_MAX = 8_192
ROW_BYTES = 2_048
"""Bytes of a body in a row; the whole body is asked for when its row is opened."""
PANEL_BYTES = 256 * 1_024
"""Length of a body up to which one answer has all of it."""
CUT_BYTES = 16 * 1_024
"""Bytes of a longer body that one answer has."""


@dataclass(frozen=True, slots=True)
class MessagesRequest:
    """A request to `/raylay/messages`.

    Attributes:
        topic: a name, or a regular expression over names.
        start: bookmark at which a replay begins.
        limit: number of rows after which the answer ends; of messages without effect where `follow`
            is true.
        follow: whether new messages are followed, or the query of a SOW topic is asked again and
            again.
        order_by: order of the records of a SOW topic, such as `/price DESC`; empty: any.
    """

    source: Source
    topic: str
    filter: str
    start: str
    limit: int
    follow: bool
    order_by: str = ""


def read_messages_request(query: Mapping[str, str]) -> MessagesRequest:
    """Reads the parameters of a request.

    Raises:
        ConfigurationError: a parameter is missing or not valid.
    """
    source = query.get("source", "replay")
    if source not in SOURCES:
        raise ConfigurationError(f"source={source[:40]!r}: give {', '.join(SOURCES)}")
    topic, filter_ = query.get("topic", "").strip(), query.get("filter", "").strip()
    if not topic:
        raise ConfigurationError(
            "no topic is given: name one, or write a regular expression such as `orders/.*`"
        )
    order_by = query.get("order", "").strip()
    if order_by and source != "sow":
        raise ConfigurationError("order goes with source=sow: messages come in the log's order")
    for name, text, most in (
        ("order", order_by, TEXT_CHARACTERS_MAX),
        ("topic", topic, TEXT_CHARACTERS_MAX),
        ("filter", filter_, FILTER_CHARACTERS_MAX),
    ):
        if len(text) > most:
            raise ConfigurationError(f"{name} has {len(text)} characters: at most {most} are read")
    start = NOW if source == "live" else read_start(query.get("start", ""))
    follow = source == "live" or query.get("follow") == "1"
    limit = _limit(query.get("limit", ""))
    return MessagesRequest(source, topic, filter_, start, limit, follow, order_by)


def _limit(text: str) -> int:
    if not text:
        return ROWS_DEFAULT
    if not (text.isascii() and text.isdecimal()) or len(text) > 9 or not 1 <= int(text) <= ROWS_MAX:
        raise ConfigurationError(f"limit={text[:20]!r}: give a number from 1 to {ROWS_MAX}")
    return int(text)


def read_start(text: str) -> str:
    """Returns the bookmark of a start: `now`, `epoch`, a bookmark or a time in ISO 8601.

    Raises:
        ConfigurationError: the text is none of these.
    """
    text = text.strip()
    if text in ("", "epoch"):
        return EPOCH
    if text == "now":
        return NOW
    try:
        parse_point(text)
    except ProtocolError:
        pass
    else:
        return text
    try:
        time_us = read_time(text, "start")
    except ConfigurationError:
        raise ConfigurationError(
            f"start={text[:80]!r} is no start: give `now`, `epoch`, a bookmark such as "
            "`4203389265765212344|1|`, or a time in ISO 8601 such as 2026-11-27T04:12:07Z"
        ) from None
    return EPOCH if time_us < 0 else format_time(time_us)


def read_bookmark(text: str) -> str:
    """Returns the bookmark of one message.

    Raises:
        ConfigurationError: the text is no bookmark of a message.
    """
    try:
        point = parse_point(text)
    except ProtocolError:
        point = None
    if point is None or point.kind != "message" or not point.sequence:
        raise ConfigurationError(
            f"{text[:80]!r} is no bookmark of a message: give publisher|sequence|"
        )
    return f"{point.publisher}|{point.sequence}|"


def body_text(body: bytes, most: int) -> tuple[str, bool, bool]:
    """Returns a body, or its beginning, for a page.

    Args:
        most: limit on the bytes of the body that are shown.

    Returns:
        The text, or hexadecimal digits of a body that is no text; whether it is text; whether it is
        cut.
    """
    front, is_cut = body[:most], len(body) > most
    try:
        text = front.decode("utf-8")
    except UnicodeDecodeError as error:
        # The cut may lie within a character.
        if not is_cut or error.start < len(front) - 3:
            return front.hex(), False, is_cut
        text = front[: error.start].decode("utf-8")
    if _is_binary(text):
        return front.hex(), False, is_cut
    return text, True, is_cut


def _is_binary(text: str) -> bool:
    """Returns whether a text has control characters that no text has: SOH and its like separate
    the fields of FIX."""
    return any(each in text for each in _NEVER_IN_TEXT)


_NEVER_IN_TEXT = tuple(chr(code) for code in (0, 2, 4, 5, 6, 7, 8, 14, 15, 16, 17, 18, 19, 20))


def header_text(value: bytes) -> str:
    """Returns a SOW key or a correlation id; `0x…` where it is no text."""
    text, is_text, _ = body_text(value, len(value))
    return text if is_text else f"0x{text}"


def values_text(values: Mapping[str, Any]) -> str:
    """Returns the fields of a body in a binary format as JSON, every number with all its digits."""
    return json.dumps(values, ensure_ascii=False, default=_as_text)


def _as_text(value: object) -> str:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    return str(value)
