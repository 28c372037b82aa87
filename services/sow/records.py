"""The entry of a key in a SOW topic, in memory and in the store: a record, or the tombstone of a
deleted record."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from raylay.services.errors import SowDamaged

NEVER = 0
"""Expiration time of a record that never expires."""
RECORD = struct.Struct("<QQQQQQBH")
"""Head of a record's value: transaction, publisher, sequence, receive time, expiration, publish
time, whether there is a body, and the length of the logical topic."""
AUTHOR, AUTHOR_AT = struct.Struct("<QQ"), 8
"""Publisher and sequence in it, and their offset."""
_TXID, _UPDATED = struct.Struct("<Q"), struct.Struct("<24xQ")
_TOMBSTONE = struct.Struct("<QQQQQQQ")


class RecordAuthor(NamedTuple):
    """The author of a record or of its deletion. Authors are ordered: of two, the later one wins.

    Attributes:
        stamp_us: publish time by the publisher's clock, in microseconds since 1970.
        publisher: publisher id of the author.
        sequence: sequence of the author's message.
    """

    stamp_us: int
    publisher: int
    sequence: int


class SowRecord(NamedTuple):
    """One record of a SOW topic.

    Attributes:
        key: SOW key.
        txid: local transaction that brought the value.
        publisher: publisher id of the message.
        sequence: sequence of the message.
        updated_us: time at which this instance received the message, in microseconds since 1970.
        expires_us: expiration time; NEVER: the record does not expire.
        body: the message, merged and enriched; None: the record was deleted (in the history).
        stamp_us: publish time by the publisher's clock, in microseconds since 1970.
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
        return RecordAuthor(self.stamp_us, self.publisher, self.sequence)


class Tombstone(NamedTuple):
    """The entry that a deleted record leaves.

    Attributes:
        txid: local transaction that deleted the record.
        updated_us: time at which this instance received the deletion, in microseconds since 1970.
        author: author of the deletion.
        publisher, sequence: identity of the message that had brought the deleted record; 0: there
            was none.
    """

    txid: int
    updated_us: int
    author: RecordAuthor
    publisher: int = 0
    sequence: int = 0


def encoded(record: SowRecord) -> bytes:
    body, topic = record.body, record.topic
    head = RECORD.pack(
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
    topic_bytes = value[RECORD.size - 2] | value[RECORD.size - 1] << 8
    return value[RECORD.size + topic_bytes :]


def bodies_of(values: Iterable[bytes]) -> list[bytes]:
    """Returns `body_of` of each value, faster."""
    # Most records have no logical topic.
    head = RECORD.size
    low, high = head - 2, head - 1
    return [body_of(value) if value[low] or value[high] else value[head:] for value in values]


def arrival_of(value: bytes) -> tuple[int, int]:
    """Returns the transaction and the receive time of a record."""
    return _TXID.unpack_from(value)[0], _UPDATED.unpack_from(value)[0]


def decoded(key: bytes, value: bytes) -> SowRecord:
    """Reads a record from the bytes that `encoded` returned.

    Raises:
        SowDamaged: the bytes are not such a record.
    """
    if len(value) < RECORD.size:
        raise SowDamaged(f"SOW record {key[:60]!r} has {len(value)} bytes only")
    (txid, publisher, sequence, updated_us, expires_us, stamp_us, has_body, topic_bytes) = (
        RECORD.unpack_from(value)
    )
    at = RECORD.size + topic_bytes
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
        value[RECORD.size : at],
    )


def encoded_tombstone(tombstone: Tombstone) -> bytes:
    txid, updated_us, author, publisher, sequence = tombstone
    return _TOMBSTONE.pack(txid, updated_us, *author, publisher, sequence)


def decoded_tombstone(key: bytes, value: bytes) -> Tombstone:
    """Reads a tombstone from the bytes that `encoded_tombstone` returned.

    Raises:
        SowDamaged: the bytes are not such a record.
    """
    if len(value) != _TOMBSTONE.size:
        raise SowDamaged(f"SOW tombstone {key[:60]!r} has {len(value)} bytes")
    txid, updated_us, stamp_us, by, at, publisher, sequence = _TOMBSTONE.unpack(value)
    return Tombstone(txid, updated_us, RecordAuthor(stamp_us, by, at), publisher, sequence)
