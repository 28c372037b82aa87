"""The content key of a record: two records of one identity that differ in it are two messages."""

from __future__ import annotations

import struct

Content = tuple[int, ...]
"""Content of one record: see `content_keys`."""
_RECORD = struct.Struct("<I9xBBxHHH2xI8xQ8xQ")
"""Fields of a record (records.py): length, command, the lengths of type, topic, key and correlation
id, expiration, sequence, digest."""


def content_keys(payload: bytes, first: int, last: int) -> dict[int, Content]:
    """Returns the content key of each of one publisher's ascending records, by sequence, of those
    in first..last.

    The digest is of the content's bytes alone: not of where in them topic, type, key and
    correlation id end, nor of what is to be done with them. So these are compared beside it, and
    records are as they always were.
    """
    found: dict[int, Content] = {}
    offset = 0
    end = len(payload)
    unpack = _RECORD.unpack_from
    while offset < end:
        length, *lengths, expiration_s, sequence, digest = unpack(payload, offset)
        if sequence > last:
            break
        if sequence >= first:
            found[sequence] = (digest, expiration_s, *lengths)
        offset += length
    return found
