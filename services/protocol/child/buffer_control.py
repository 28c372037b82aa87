"""The protocol between an instance and the buffer of a capacity pool, over the instance's Unix
socket: frames.

    buffer to instance
      hello    buffer (name of the pool), start (number of this start), pid: the first frame
      stored   body: msgpack: [client, number] each: all of its frames up to there are stored
      taken    k: client, n: the last frame of its that was seen, empty: whether none is left; body:
               bytes, as they are to be written
      lost     k: client, why: what waited for it is gone

    instance to buffer
      put      k: client, n: number of the frame, from 1 on; body
      take     k: client, max: bytes
      drop     k: client: what waits for it is not wanted any more
      stop     go away

Both ends are of one version: they are started from one installation, so nothing is negotiated.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgpack

from raylay.services.errors import RemoteProtocolError
from raylay.services.protocol.frames import Header, encode_frame, encode_front

U64_MAX = (1 << 64) - 1
STOP = encode_frame({"c": "stop"})


def whole(header: Header, name: str) -> int:
    """Returns a whole number of a header, from 0 to 2**64 - 1.

    Raises:
        RemoteProtocolError: it is none.
    """
    value = header.get(name)
    if type(value) is not int or not 0 <= value <= U64_MAX:
        raise RemoteProtocolError(
            f"a buffer and its instance: `{name}` of {header['c']} is no whole number", "bad_frame"
        )
    return value


def hello(name: str, start: int, pid: int) -> bytes:
    """Encodes the first frame of a buffer."""
    return encode_frame({"c": "hello", "buffer": name, "start": start, "pid": pid})


def put(client: int, number: int, size_bytes: int) -> bytes:
    """Encodes a frame that stores messages, without its body, which is sent behind the result."""
    return encode_front({"c": "put", "k": client, "n": number}, size_bytes)


def take(client: int, bytes_max: int) -> bytes:
    """Encodes a request for the oldest frames of a client."""
    return encode_frame({"c": "take", "k": client, "max": bytes_max})


def drop(client: int) -> bytes:
    """Encodes that the messages of a client are not wanted any more."""
    return encode_frame({"c": "drop", "k": client})


def stored(upto: Mapping[int, int]) -> bytes:
    """Encodes the last stored number of each client."""
    return encode_frame({"c": "stored"}, msgpack.packb(list(upto.items())))


def read_stored(body: bytes) -> list[tuple[int, int]]:
    """Decodes the body of a `stored` frame.

    Raises:
        RemoteProtocolError: it is none.
    """
    try:
        return [(int(client), int(number)) for client, number in msgpack.unpackb(body)]
    except Exception as error:  # msgpack raises many kinds of errors on bad bytes
        raise RemoteProtocolError(
            f"a buffer and its instance: what is stored cannot be read ({type(error).__name__})",
            "bad_frame",
        ) from None


def taken(client: int, seen: int, size_bytes: int, *, is_empty: bool) -> bytes:
    """Encodes the frame that returns messages taken from the buffer, without its body, which is
    sent behind the result."""
    return encode_front({"c": "taken", "k": client, "n": seen, "empty": is_empty}, size_bytes)


def lost(client: int, why: str) -> bytes:
    return encode_frame({"c": "lost", "k": client, "why": why})
