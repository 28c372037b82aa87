"""services/sow/query/queue_rows.py: the rows of a query of a queue."""

from __future__ import annotations

import json
from typing import Any

import pytest

from raylay.services.errors import RemoteProtocolError
from raylay.services.messages.records import RecordBuilder, decode_record
from raylay.services.messages.types.registry import MessageTypes
from raylay.services.sow.query.queue_rows import ROWS_AT_ONCE, QueueRows, RowTerms

JSON = MessageTypes()["json"]
BUILDER = RecordBuilder(7, "orders", "json")


def record(sequence: int, **fields: Any) -> bytes:
    """A message."""
    body = json.dumps({"id": sequence, **fields}).encode()
    return BUILDER.build(sequence, body, 5, expiration_s=9, key=b"k", correlation=b"c")


def rows_of(terms: RowTerms, *records: bytes, held_bytes_max: int = 1 << 20) -> list[bytes]:
    """All rows, and that the count of matches is right."""
    rows = QueueRows(terms, JSON, held_bytes_max)
    found: list[bytes] = []
    for txid, each in enumerate(records, 1):
        if rows.reads:
            row = rows.put(txid, each)
            found += [] if row is None else [row]
        else:
            rows.passed()
    while rest := rows.rest():
        found += rest
    assert rows.matches == len(records)
    return found


def ids(rows: list[bytes]) -> list[int]:
    """Which messages they are."""
    return [decode_record(each).sequence for each in rows]


MANY = [record(at, n=at * 7 % 1_000, even=at % 2 == 0) for at in range(1, 1_000)]


def test_without_terms_rows_are_the_records() -> None:
    assert rows_of(RowTerms(), *MANY) == MANY


def test_of_the_first_ones_no_more_is_read_than_is_wanted() -> None:
    terms = RowTerms(top=3, skip=2)
    assert ids(rows_of(terms, *MANY)) == [3, 4, 5]
    rows = QueueRows(terms, JSON)
    assert not rows.reads
    rows.passed()
    rows.passed()
    assert rows.reads
    for each in MANY[2:5]:
        rows.put(1, each)
    assert not rows.reads
    assert QueueRows(RowTerms(top=0), JSON).reads is False


def test_they_come_in_the_order_that_is_asked_for() -> None:
    found = ids(rows_of(RowTerms(order_by="/n DESC"), *MANY))
    assert found == sorted(range(1, 1_000), key=lambda at: -(at * 7 % 1_000))
    # Of equal ones the older one is first.
    found = ids(rows_of(RowTerms(order_by="/even", top=3, skip=1), *MANY))
    assert found == [3, 5, 7]
    skipped = 2 * ROWS_AT_ONCE + 3
    assert len(rows_of(RowTerms(order_by="/n", skip=skipped, top=100), *MANY)) == 100
    assert rows_of(RowTerms(order_by="/n", skip=5_000, top=100), *MANY) == []


def test_what_cannot_be_read_is_first_and_is_no_error() -> None:
    broken = BUILDER.build(2, b"{", 0)
    assert ids(rows_of(RowTerms(order_by="/id"), record(1), broken)) == [2, 1]


def test_a_row_that_is_cut_keeps_all_but_the_fields() -> None:
    (row,) = rows_of(RowTerms(select="-/,+/n"), record(4, n=1, text="long"))
    found, whole = decode_record(row), decode_record(record(4))
    assert json.loads(found.body) == {"n": 1}
    kept = ("publisher", "sequence", "topic", "key", "correlation", "expiration_s")
    assert [getattr(found, name) for name in kept] == [getattr(whole, name) for name in kept]


def test_what_waits_for_its_order_is_bounded() -> None:
    with pytest.raises(RemoteProtocolError, match="more than 2000 bytes") as refused:
        rows_of(RowTerms(order_by="/n"), *MANY, held_bytes_max=2_000)
    assert refused.value.reason == "too_large"
    assert len(rows_of(RowTerms(order_by="/n", top=2), *MANY, held_bytes_max=200_000)) == 2


@pytest.mark.parametrize(
    ("terms", "reason"),
    [
        (RowTerms(order_by="n"), "bad_order_by"),
        (RowTerms(select="n"), "bad_select"),
    ],
)
def test_terms_that_are_none_are_refused(terms: RowTerms, reason: str) -> None:
    with pytest.raises(RemoteProtocolError) as refused:
        QueueRows(terms, JSON)
    assert refused.value.reason == reason


def test_messages_without_fields_cannot_be_cut() -> None:
    with pytest.raises(RemoteProtocolError) as refused:
        QueueRows(RowTerms(select="-/,+/n"), MessageTypes()["binary"])
    assert refused.value.reason == "not_supported"
