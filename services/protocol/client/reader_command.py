"""The `reader` command of a client, decoded."""

from __future__ import annotations

from raylay.services.messages.ranges import PublisherRanges
from raylay.services.protocol.client.commands import ReaderCommand
from raylay.services.protocol.client.subscribe import read_have
from raylay.services.protocol.frames import Header
from raylay.services.protocol.header_values import (
    BadValue,
    read_command_id,
    read_message_type,
    read_text,
    read_topic,
    read_whole,
)

READER_NAME_BYTES_MAX = 200
EXPIRES_S_DEFAULT = 7 * 86_400
EXPIRES_S_MAX = 366 * 86_400


def read_reader(header: Header, body: bytes) -> ReaderCommand:
    """Decodes the `reader` command."""
    name = read_text(header, "name")
    if header.get("name") is None and not body:
        return ReaderCommand("", "", read_command_id(header), PublisherRanges(), 0)
    if not name.isprintable() or not 1 <= len(name.encode()) <= READER_NAME_BYTES_MAX:
        raise BadValue(
            "bad_command",
            f"`name` of reader is no printable text of 1 to {READER_NAME_BYTES_MAX} bytes",
        )
    release, asks, adds = (_flag(header, each) for each in ("release", "ask", "add"))
    have = read_have({}, body)
    if have is None and not (release or asks):
        raise BadValue(
            "bad_command",
            "reader says nothing of what it holds: give a msgpack map of publisher to ranges as "
            "the body, `ask`, or `release`",
        )
    return ReaderCommand(
        name,
        "" if release or asks else read_topic(header),
        read_command_id(header),
        PublisherRanges() if have is None else have,
        read_whole(header, "expires_s", 1, EXPIRES_S_MAX) or EXPIRES_S_DEFAULT,
        release,
        asks,
        adds,
        read_message_type(header, ""),
        read_text(header, "filter"),
    )


def _flag(header: Header, name: str) -> bool:
    value = header.get(name, False)
    if type(value) is not bool:
        raise BadValue("bad_command", f"`{name}` of reader is neither true nor false")
    return value
