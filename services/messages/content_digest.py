"""The content key of a record: two records of one identity that differ in it are two messages."""

from __future__ import annotations

import struct

Content = tuple[int, ...]
"""The content of one record in comparable form; see `content_keys`."""
_RECORD = struct.Struct("<I9xBBxHHH2xI8xQ8xQ")
"""Fields of a record (records.py): length, command, the lengths of type, topic, key and correlation
id, expiration, sequence, digest."""


def content_keys(payload: bytes, first: int, last: int) -> dict[int, Content]:
    """Returns the content key of each record of one publisher with a sequence in first..last, by
    sequence; the records ascend.

    The digest covers the content's bytes only, not where topic, type, key and correlation id end in
    them, nor the command and expiration. So the key has these besides the digest.
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
