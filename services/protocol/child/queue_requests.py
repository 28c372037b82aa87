"""Requests between instances for messages of a distributed queue: one frame of a link's connection,
from its instance to the one downstream.

    queue      from: incarnation, life: of its process, n: number of the request, name: of the
               instance that asks, q, mt, domain: of the queue, want: how many
               body: msgpack array of candidates: [publisher, sequence, generation, owner]

A request is not journaled. Who has not met it (incarnation, life and number say so) answers it if
it can, by granting, and passes it on over all its own links: an owner need not be a neighbour.
Refusal is silence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgpack

from raylay.services.errors import RemoteProtocolError
from raylay.services.messages.bounded_msgpack import unpack_values
from raylay.services.messages.records import SEQUENCE_HELD_MAX
from raylay.services.protocol.frames import Header, encode_frame
from raylay.services.protocol.link.replication import NAME_BYTES_MAX, name_of, u64_of

COMMAND = "queue"
WANTED_MAX = 256
PLACES_MAX = 1_000_000
QUEUE_NAME_BYTES_MAX = 1_024
"""Longest name of a queue, as of a topic."""


class Candidate(NamedTuple):
    """A requested message, with its ownership (generation and owner) as far as the requesting
    instance knows it."""

    publisher: int
    sequence: int
    generation: int
    owner: str


class QueueRequest(NamedTuple):
    """A request for messages of a distributed queue.

    Attributes:
        incarnation, life, number: identify the request: the requesting instance, the life of its
            process, and the number of the request.
        name: name of the requesting instance.
        queue, message_type, domain: the queue.
        places: number of the candidates that the requesting instance has room for.
    """

    incarnation: int
    life: int
    number: int
    name: str
    queue: str
    message_type: str
    domain: str
    places: int
    wanted: Sequence[Candidate]


_pack = msgpack.Packer(use_bin_type=True).pack


def queue_request(request: QueueRequest) -> bytes:
    header: Header = {
        "c": COMMAND,
        "from": request.incarnation,
        "life": request.life,
        "n": request.number,
        "name": request.name,
        "q": request.queue,
        "mt": request.message_type,
        "domain": request.domain,
        "want": request.places,
    }
    body: bytes = _pack([list(each) for each in request.wanted])
    return encode_frame(header, body)


def read_queue_request(header: Header, body: bytes) -> QueueRequest:
    """Decodes a request.

    Raises:
        RemoteProtocolError: it is none; with reason `bad_command`.
    """
    queue, message_type = header.get("q"), header.get("mt")
    for key, value in (("q", queue), ("mt", message_type)):
        if type(value) is not str or not 1 <= _length(value) <= QUEUE_NAME_BYTES_MAX:
            raise _wrong(f"`{key}` is no text of 1 to {QUEUE_NAME_BYTES_MAX} bytes")
    places = u64_of(header, "want")
    if not 1 <= places <= PLACES_MAX:
        raise _wrong(f"`want` is not from 1 to {PLACES_MAX}")
    assert isinstance(queue, str)
    assert isinstance(message_type, str)
    return QueueRequest(
        u64_of(header, "from"),
        u64_of(header, "life"),
        u64_of(header, "n"),
        name_of(header, "name", empty=False),
        queue,
        message_type,
        name_of(header, "domain"),
        places,
        _read_wanted(body),
    )


def _read_wanted(body: bytes) -> list[Candidate]:
    try:
        said = unpack_values(body, 6 * WANTED_MAX + 1)
    except Exception as error:  # a decoder may raise any error on bad bytes
        raise _wrong(f"its body is no msgpack ({type(error).__name__})") from None
    if type(said) is not list or not 1 <= len(said) <= WANTED_MAX:
        raise _wrong(f"its body is no array of 1 to {WANTED_MAX} candidates")
    return [_read_candidate(each) for each in said]


def _read_candidate(said: Any) -> Candidate:
    if type(said) is not list or len(said) != 4:
        raise _wrong("a candidate is no array of four")
    publisher, sequence, generation, owner = said
    for number in (publisher, sequence, generation):
        if type(number) is not int or not 0 <= number <= SEQUENCE_HELD_MAX:
            raise _wrong("a candidate has no publisher, sequence and generation")
    if type(owner) is not str or not 1 <= _length(owner) <= NAME_BYTES_MAX:
        raise _wrong("a candidate has no owner")
    return Candidate(publisher, sequence, generation, owner)


def _length(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def _wrong(text: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"a request for messages of a queue: {text}", "bad_command")
