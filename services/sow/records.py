"""The entry of a key in a SOW topic, in memory and in the store: a record, or the tombstone of
one."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from raylay.services.errors import SowDamaged

NEVER = 0
"""An expiration that never comes."""
_RECORD = struct.Struct("<QQQQQQBH")
_TOMBSTONE = struct.Struct("<QQQQQQQ")


class RecordAuthor(NamedTuple):
    """The author of a record or of its deletion. Authors are ordered: the later one of two wins.

    Attributes:
        stamp_us: when it was published, as it says itself, in microseconds since 1970.
        publisher: who published it.
        sequence: of the publisher.
    """

    stamp_us: int
    publisher: int
    sequence: int


class SowRecord(NamedTuple):
    """One record of a SOW topic.

    Attributes:
        key: SOW key.
        txid: local transaction that brought the value.
        publisher: who published it.
        sequence: of the publisher.
        updated_us: when this instance received it, in microseconds since 1970.
        expires_us: when it expires; NEVER: it does not.
        body: the message, merged and enriched; None: the record was deleted (in the history).
        stamp_us: when it was published, as it says itself, in microseconds since 1970.
        topic: its logical topic, where the SOW topic has a pattern; empty: the SOW topic's name.
    """

    key: bytes
    txid: int
    publisher: int
    sequence: int
    updated_us: int
    expires_us: int
    body: bytes | None
    stamp_us: int = 0
    topic: bytes = b""

    @property
    def author(self) -> RecordAuthor:
        """The author of the record."""
        return RecordAuthor(self.stamp_us, self.publisher, self.sequence)


class Tombstone(NamedTuple):
    """The rest of a deleted record.

    Attributes:
        txid: local transaction that took it away.
        updated_us: when this instance received that, in microseconds since 1970.
        author: of the deletion.
        publisher, sequence: what brought the record that was deleted; 0: there was none.
    """

    txid: int
    updated_us: int
    author: RecordAuthor
    publisher: int = 0
    sequence: int = 0


def encoded(record: SowRecord) -> bytes:
    """A record as the store has it."""
    body, topic = record.body, record.topic
    head = _RECORD.pack(
        record.txid,
        record.publisher,
        record.sequence,
        record.updated_us,
        record.expires_us,
        record.stamp_us,
        body is not None,
        len(topic),
    )
    return b"".join((head, topic, body or b"")) if topic else head + (body or b"")


def body_of(value: bytes) -> bytes:
    """The message of a record that there is, as the store has it."""
    topic_bytes = value[_RECORD.size - 2] | value[_RECORD.size - 1] << 8
    return value[_RECORD.size + topic_bytes :]


def bodies_of(values: Iterable[bytes]) -> list[bytes]:
    """`body_of` each, for less."""
    # Most have no logical topic.
    head = _RECORD.size
    low, high = head - 2, head - 1
    return [body_of(value) if value[low] or value[high] else value[head:] for value in values]


def decoded(key: bytes, value: bytes) -> SowRecord:
    """Decodes what `encoded` gave.

    Raises:
        SowDamaged: it is none.
    """
    if len(value) < _RECORD.size:
        raise SowDamaged(f"SOW record {key[:60]!r} has {len(value)} bytes only")
    (txid, publisher, sequence, updated_us, expires_us, stamp_us, has_body, topic_bytes) = (
        _RECORD.unpack_from(value)
    )
    at = _RECORD.size + topic_bytes
    if len(value) < at or has_body > 1:
        raise SowDamaged(f"SOW record {key[:60]!r} has lengths that do not fit")
    return SowRecord(
        key,
        txid,
        publisher,
        sequence,
        updated_us,
        expires_us,
        value[at:] if has_body else None,
        stamp_us,
        value[_RECORD.size : at],
    )


def encoded_tombstone(tombstone: Tombstone) -> bytes:
    """A tombstone as the store has it."""
    txid, updated_us, author, publisher, sequence = tombstone
    return _TOMBSTONE.pack(txid, updated_us, *author, publisher, sequence)


def decoded_tombstone(key: bytes, value: bytes) -> Tombstone:
    """Decodes what `encoded_tombstone` gave.

    Raises:
        SowDamaged: it is none.
    """
    if len(value) != _TOMBSTONE.size:
        raise SowDamaged(f"SOW tombstone {key[:60]!r} has {len(value)} bytes")
    txid, updated_us, stamp_us, by, at, publisher, sequence = _TOMBSTONE.unpack(value)
    return Tombstone(txid, updated_us, RecordAuthor(stamp_us, by, at), publisher, sequence)
