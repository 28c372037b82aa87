"""Frames: the outermost layer of the native protocol (docs/protocol.md).

u32  length         little-endian; bytes behind this field
u16  header length  little-endian
     header         msgpack map
     body

A header that does not fit, as one that lists a thousand instances does not, has the header length
65,535, and its own length as u32 before it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import msgpack

from raylay.services.errors import LocalProtocolError, RemoteProtocolError
from raylay.services.messages.bounded_msgpack import unpack_values

PROTOCOL_VERSION = 1
FRAME_BYTES_MAX = 16 * 1024 * 1024
HEADER_BYTES_MAX = 64 * 1024 - 2
LONG_HEADER = 64 * 1024 - 1
"""Header length of a frame whose real header is longer; the real length follows."""
LONG_HEADER_BYTES_MAX = 4 * 1024 * 1024
LONG_HEADER_VALUES_MAX = 512 * 1024
"""Number of values in a long header, keys of maps included. Four million empty arrays would take
seconds to read."""
UNAUTHENTICATED_FRAME_BYTES_MAX = 64 * 1024
LOGON_TIMEOUT_S = 5.0

Header = dict[str, Any]

_FRONT = struct.Struct("<IH")
_LONG = struct.Struct("<I")
_pack = msgpack.Packer(use_bin_type=True, autoreset=True).pack
FRAME_FRONT, pack_header = _FRONT, _pack
"""Parts of `encode_front`, for callers where one call less matters."""
_new = tuple.__new__
"""Makes a named tuple at half the cost of calling its class."""


class Frame(NamedTuple):
    """One frame: its decoded header, and its body."""

    header: Header
    body: bytes


def encode_frame(header: Header, body: bytes = b"") -> bytes:
    packed: bytes = _pack(header)
    if len(packed) > HEADER_BYTES_MAX:
        return _long_front(packed, len(body)) + body
    return _FRONT.pack(2 + len(packed) + len(body), len(packed)) + packed + body


def encode_front(header: Header, body_bytes: int) -> bytes:
    """Encodes a frame without its body, which is sent behind the result, without a copy."""
    packed: bytes = _pack(header)
    if len(packed) > HEADER_BYTES_MAX:
        return _long_front(packed, body_bytes)
    return _FRONT.pack(2 + len(packed) + body_bytes, len(packed)) + packed


def _long_front(packed: bytes, body_bytes: int) -> bytes:
    if len(packed) > LONG_HEADER_BYTES_MAX:
        raise LocalProtocolError(
            f"a header of {len(packed):,} bytes is over the limit of {LONG_HEADER_BYTES_MAX:,}"
        )
    length = 2 + _LONG.size + len(packed) + body_bytes
    return _FRONT.pack(length, LONG_HEADER) + _LONG.pack(len(packed)) + packed


class FrameReader:
    """Cuts a byte stream into frames. Limits are checked before memory is used.

    `frame_bytes_max` may be raised after the logon by assigning it.

    Args:
        frames_max: number of frames that one call returns. After that many there may be more: then
            it is called without data. 0: all complete ones.
        holds: called with the number of bytes of an incomplete frame before they are kept, and with
            0 when none are kept any more; may raise RemoteProtocolError. None: the bytes are not
            counted.
    """

    __slots__ = (
        "_buffer",
        "_frames_max",
        "_holds",
        "_wanted",
        "frame_bytes_max",
        "header_bytes_max",
    )

    def __init__(
        self,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        header_bytes_max: int = HEADER_BYTES_MAX,
        frames_max: int = 0,
        holds: Callable[[int], None] | None = None,
    ) -> None:
        self._frames_max = frames_max
        self.frame_bytes_max = frame_bytes_max
        self.header_bytes_max = header_bytes_max
        self._holds = holds
        self._buffer = bytearray()
        # Number of bytes that must be there before it is worth checking again.
        self._wanted = 6

    @property
    def buffered(self) -> int:
        """Returns the number of bytes of an incomplete frame."""
        return len(self._buffer)

    def clear(self) -> None:
        """Drops the bytes that are kept: the stream has ended."""
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """Returns the frames that `data` completes.

        Raises:
            RemoteProtocolError: with reason `bad_frame` or `frame_too_large`, or what `holds`
                raises; the stream is then of no further use. Frames before the bad one are lost
                with it.
        """
        buffer = self._buffer
        source: bytes | bytearray
        if buffer:
            held_bytes = len(buffer) + len(data)
            if held_bytes < self._wanted:
                if self._holds is not None:
                    self._holds(held_bytes)
                buffer += data
                return []
            buffer += data
            source = buffer
        else:
            if len(data) >= 6:
                length, header_length = _FRONT.unpack_from(data)
                if (
                    length + 4 == len(data)
                    and length <= self.frame_bytes_max
                    and header_length + 2 <= length
                    and header_length <= self.header_bytes_max
                ):
                    # One frame and nothing else: the usual case for an answer about a single
                    # message.
                    body_at = 6 + header_length
                    return [_new(Frame, (decode_header(data[6:body_at]), data[body_at:]))]
            source = data
        frames: list[Frame] = []
        at, end = 0, len(source)
        view = memoryview(source)
        try:
            while end - at >= 6:
                length, header_length = _FRONT.unpack_from(source, at)
                if length > self.frame_bytes_max:
                    raise RemoteProtocolError(
                        f"frame of {length} bytes is over the limit of {self.frame_bytes_max}",
                        "frame_too_large",
                    )
                header_at = at + 6
                if header_length == LONG_HEADER == self.header_bytes_max + 1:
                    header_at += _LONG.size
                    if end < header_at:
                        self._wanted = header_at - at
                        break
                    (header_length,) = _LONG.unpack_from(source, at + 6)
                    header_bytes_max = LONG_HEADER_BYTES_MAX
                else:
                    header_bytes_max = self.header_bytes_max
                if header_at + header_length > at + 4 + length or header_length > header_bytes_max:
                    raise RemoteProtocolError(
                        f"header of {header_length} bytes in a frame of {length} bytes",
                        "bad_frame",
                    )
                following = at + 4 + length
                if following > end:
                    self._wanted = following - at
                    break
                body_at = header_at + header_length
                header = decode_header(view[header_at:body_at])
                frames.append(_new(Frame, (header, bytes(view[body_at:following]))))
                at = following
                if len(frames) == self._frames_max:
                    self._wanted = 6
                    break
            else:
                self._wanted = 6
        finally:
            view.release()
        if source is buffer:
            del buffer[:at]
            if self._holds is not None:
                self._holds(len(buffer))
        elif at < end:
            if self._holds is not None:
                self._holds(end - at)
            buffer += data[at:] if at else data
        return frames


def first_frame(data: bytes, frame_bytes_max: int = FRAME_BYTES_MAX) -> tuple[Frame, bytes] | None:
    """Returns the first frame of a stream and the bytes behind it; None: it is incomplete. For
    streams that do not continue as frames of the same reader.

    Raises:
        RemoteProtocolError: with reason `bad_frame` or `frame_too_large`.
    """
    if len(data) < 6:
        return None
    end = 4 + int.from_bytes(data[:4], "little")
    # The reader checks the lengths, whether or not the rest is there.
    frames = FrameReader(frame_bytes_max).feed(data[:end])
    return (frames[0], data[end:]) if frames else None


def decode_header(data: bytes | memoryview) -> Header:
    """Decodes a frame's header.

    Raises:
        RemoteProtocolError: with reason `bad_frame`.
    """
    try:
        if len(data) <= HEADER_BYTES_MAX:
            header = msgpack.unpackb(data, raw=False, strict_map_key=False)
        else:
            header = unpack_values(data, LONG_HEADER_VALUES_MAX)
    except Exception as error:  # msgpack raises many kinds of errors on bad bytes
        raise RemoteProtocolError(
            f"header is no msgpack: {type(error).__name__}", "bad_frame"
        ) from None
    if type(header) is not dict or type(header.get("c")) is not str:
        raise RemoteProtocolError("header is no map with a command `c`", "bad_frame")
    return header
