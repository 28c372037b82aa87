"""The records of a run that are all plain messages, read together.

Most runs have nothing else: no delete, no lifetime, no key that a publisher gives. What such a run
means is then worked out for all of its records at once, without an object for each."""

from __future__ import annotations

import struct
from typing import NamedTuple

from raylay.services.messages.records import (
    MESSAGES,
    RECORD_HEADER_BYTES,
    RECORD_VERSION,
    Command,
    Run,
)

_RECORD = struct.Struct("<I8xBBBBHHHHIQQQ")
"""Length, version and command, lengths of type, trace, topic, key and correlation, lifetime,
publisher, sequence and time of a record (records.py)."""


class PlainRecords(NamedTuple):
    """The records of a run, each a message without a lifetime.

    Attributes:
        bodies: body of each record.
        authors: publisher id, sequence and publish time of each record.
        bytes_max: length of the longest record.
        has_deltas: whether one of them was published as a delta.
    """

    bodies: list[bytes]
    authors: list[tuple[int, int, int]]
    bytes_max: int
    has_deltas: bool


def plain_records(run: Run) -> PlainRecords | None:
    """Returns the records of a run; None: some are no plain messages, or cannot be read, so the run
    is to be read record by record."""
    payload, count = run.payload, run.count
    end = len(payload)
    unpack, header_bytes = _RECORD.unpack_from, RECORD_HEADER_BYTES
    bodies: list[bytes] = []
    authors: list[tuple[int, int, int]] = []
    offset = bytes_max = 0
    has_deltas = False
    while offset + header_bytes <= end:
        (
            length,
            version,
            command,
            type_bytes,
            trace_bytes,
            topic_bytes,
            key_bytes,
            correlation_bytes,
            _,
            expiration_s,
            publisher,
            sequence,
            stamp_us,
        ) = unpack(payload, offset)
        begin = offset + header_bytes + topic_bytes + type_bytes + key_bytes + correlation_bytes
        following = offset + length
        stop = following - trace_bytes
        if command != Command.PUBLISH:
            if command not in MESSAGES:
                return None
            has_deltas = True
        if version != RECORD_VERSION or expiration_s or begin > stop or following > end:
            return None
        bodies.append(payload[begin:stop])
        authors.append((publisher, sequence, stamp_us))
        if length > bytes_max:
            bytes_max = length
        offset = following
    if offset != end or len(bodies) != count:
        return None
    return PlainRecords(bodies, authors, bytes_max, has_deltas)
