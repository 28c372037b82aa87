"""Frames of a carried stream, which replication.py describes."""

from __future__ import annotations

from raylay.services.errors import RemoteProtocolError
from raylay.services.protocol.frames import Header, encode_frame, encode_front

WHY_CHARACTERS_MAX = 8192


def carry_begin(stream: int) -> bytes:
    return encode_frame({"c": "carry_begin", "n": stream})


def carry_front(stream: int, size_bytes: int) -> bytes:
    """Encodes a frame with bytes of a carried stream, without the bytes: they are sent behind the
    result, without a copy."""
    return encode_front({"c": "carry", "n": stream}, size_bytes)


def carry_end(stream: int, why: str) -> bytes:
    return encode_frame({"c": "carry_end", "n": stream, "why": why[:WHY_CHARACTERS_MAX]})


def stream_of(header: Header) -> int:
    """Returns the number of the carried stream to which a frame belongs.

    Raises:
        RemoteProtocolError: with reason `bad_command`.
    """
    stream = header.get("n")
    if type(stream) is not int or stream < 1:
        raise RemoteProtocolError("a carried stream has no number", "bad_command")
    return stream
