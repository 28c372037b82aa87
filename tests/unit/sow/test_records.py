"""services/sow/records.py: how the store has what a SOW topic holds."""

from __future__ import annotations

import pytest

from raylay.services.errors import CorruptRecord
from raylay.services.sow.records import (
    NEVER,
    RecordAuthor,
    SowRecord,
    Tombstone,
    bodies_of,
    body_of,
    decoded,
    decoded_tombstone,
    encoded,
    encoded_tombstone,
)

NUMBERS = (1, 2, 3, 4, 5, 6)


@pytest.mark.parametrize(
    "given",
    [
        SowRecord(b"a", 2**64 - 1, 1, 2**64 - 1, 0, NEVER, b"", 2**64 - 1),
        SowRecord(b"a", 1, 2, 3, 4, 5, b"body", 6, b"orders/eu"),
        SowRecord(b"", 0, 1, 2, 3, NEVER, None, 0, b"t" * 1024),
    ],
)
def test_a_record_comes_back(given: SowRecord) -> None:
    assert decoded(given.key, encoded(given)) == given
    assert body_of(encoded(given)) == (given.body or b"")
    assert bodies_of([encoded(given)] * 2) == [given.body or b""] * 2


def test_layout() -> None:
    numbers = b"".join(each.to_bytes(8, "little") for each in NUMBERS)
    golden = encoded(SowRecord(b"k", 1, 2, 3, 4, 5, b"body", 6, b"top"))
    assert golden == numbers + b"\x01\x03\x00topbody"
    left = Tombstone(1, 2, RecordAuthor(3, 4, 5), 6, 7)
    numbers += (7).to_bytes(8, "little")
    assert encoded_tombstone(left) == numbers and decoded_tombstone(b"k", numbers) == left


def test_what_is_none_is_said() -> None:
    with pytest.raises(CorruptRecord, match="has 3 bytes only"):
        decoded(b"k", b"123")
    sound = encoded(SowRecord(b"k", 1, 2, 3, 4, 5, b"", 6, b"top"))
    with pytest.raises(CorruptRecord, match="lengths"):
        decoded(b"k", sound[:-1])
    with pytest.raises(CorruptRecord, match="tombstone"):
        decoded_tombstone(b"k", b"123")


def test_authors_are_in_order_of_time_then_publisher_then_sequence() -> None:
    assert (
        RecordAuthor(1, 9, 9)
        < RecordAuthor(2, 1, 1)
        < RecordAuthor(2, 2, 0)
        < RecordAuthor(2, 2, 1)
    )
    assert SowRecord(b"a", 1, 2, 3, 4, NEVER, b"", 5).author == RecordAuthor(5, 2, 3)
