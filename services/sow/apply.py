"""The effect of a journal record on a SOW topic: folded behind its commit (core/sow.py), and on the
topic as staged before it (staging.py). Both must come to the same."""

from __future__ import annotations

from collections.abc import Iterator

import msgpack

from raylay.services.messages.bounded_msgpack import unpack_values
from raylay.services.messages.records import EXPIRATION_S_MAX, Record
from raylay.services.sow.keys import SOW_KEY_BYTES_MAX
from raylay.services.sow.records import RecordAuthor, SowRecord
from raylay.services.sow.state import RecordChange, SowState

DELETED_MAX = 50_000
"""Keys of one delete. They are folded in one turn of the loop, and each costs 13 µs there."""
DELETE_VALUES_MAX = 2 * DELETED_MAX
"""The values of a delete's body that is decoded at all. It has 16 MiB at most, in which 16 million
empty arrays fit."""


def apply_put(
    state: SowState, record: Record, key: bytes, txid: int, received_us: int, logical: bytes
) -> RecordChange | None:
    """Takes a message in. None: a late one, which changes nothing.

    Args:
        received_us: when this instance received it, in microseconds since 1970.
        logical: its topic, where the SOW topic has a pattern; else nothing.
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
    """Takes these records away; what was there and is gone then."""
    by = RecordAuthor(record.origin_time_us, record.publisher, record.sequence)
    for key in keys:
        change = state.delete(key, txid, received_us, "deleted", by)
        if change is not None:
            yield change


def deleted_keys(body: bytes) -> list[bytes] | None:
    """Returns the keys that a deletion removes, as it is journaled; None: it is none, which another
    instance may have brought."""
    try:
        keys = unpack_values(body, DELETE_VALUES_MAX, strict_map_key=True)["keys"]
    except (ValueError, TypeError, KeyError, msgpack.UnpackException):
        return None
    if not isinstance(keys, list):
        return None
    for key in keys:
        # A longer one the store could never write.
        if not isinstance(key, bytes) or not 0 < len(key) <= SOW_KEY_BYTES_MAX:
            return None
    return keys


def _expires_us(state: SowState, expiration_s: int, from_us: int) -> int:
    """A record says nothing with 0, and with the highest number that it never expires."""
    if expiration_s == EXPIRATION_S_MAX:
        return state.expiration_us(0, from_us)
    return state.expiration_us(expiration_s or None, from_us)
