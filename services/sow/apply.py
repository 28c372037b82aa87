"""The effect of a journal record on a SOW topic: applied to the topic when the commit is folded
(core/sow.py), and to the topic as staged before it (staging.py). Both must give the same result."""

from __future__ import annotations

from collections.abc import Iterator

import msgpack

from raylay.services.messages.bounded_msgpack import unpack_values
from raylay.services.messages.records import EXPIRATION_S_MAX, Record
from raylay.services.sow.keys import SOW_KEY_BYTES_MAX
from raylay.services.sow.records import RecordAuthor, SowRecord
from raylay.services.sow.state import RecordChange, SowState

DELETED_MAX = 50_000
"""Number of keys of one delete. They are folded in one turn of the loop, and each takes 13 µs
there."""
DELETE_VALUES_MAX = 2 * DELETED_MAX
"""Number of values in a delete's body that is decoded. The body has 16 MiB at most, which could
hold 16 million empty arrays."""


def apply_put(
    state: SowState, record: Record, key: bytes, txid: int, received_us: int, logical: bytes
) -> RecordChange | None:
    """Applies a message. Returns the change; None: the message is a late one, which changes
    nothing.

    Args:
        received_us: time at which this instance received the message, in microseconds since 1970.
        logical: the message's topic, where the SOW topic has a pattern; otherwise empty.
    """
    stamp_us = record.origin_time_us
    return state.put(
        SowRecord(
            key,
            txid,
            record.publisher,
            record.sequence,
            received_us,
            _expires_us(state, record.expiration_s, min(stamp_us, received_us)),
            record.body,
            stamp_us,
            logical,
        )
    )


def apply_delete(
    state: SowState, record: Record, keys: list[bytes], txid: int, received_us: int
) -> Iterator[RecordChange]:
    """Deletes these records; yields the change of each one that existed."""
    by = RecordAuthor(record.origin_time_us, record.publisher, record.sequence)
    for key in keys:
        change = state.delete(key, txid, received_us, "deleted", by)
        if change is not None:
            yield change


def deleted_keys(body: bytes) -> list[bytes] | None:
    """Returns the keys that a journaled delete removes; None: the record is no valid delete, which
    another instance may have sent."""
    try:
        keys = unpack_values(body, DELETE_VALUES_MAX, strict_map_key=True)["keys"]
    except (ValueError, TypeError, KeyError, msgpack.UnpackException):
        return None
    if not isinstance(keys, list):
        return None
    for key in keys:
        # The store could never write a longer key.
        if not isinstance(key, bytes) or not 0 < len(key) <= SOW_KEY_BYTES_MAX:
            return None
    return keys


def _expires_us(state: SowState, expiration_s: int, from_us: int) -> int:
    """Returns when a record expires; 0 in the record means that it says nothing, and the highest
    number that it never expires."""
    if expiration_s == EXPIRATION_S_MAX:
        return state.expiration_us(0, from_us)
    return state.expiration_us(expiration_s or None, from_us)
