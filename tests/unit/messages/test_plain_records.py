"""services/messages/plain_records.py: the records of a run that are all plain messages."""

from __future__ import annotations

from dataclasses import replace

from support.sow_given import P, delete, put, record_bytes

from raylay.services.messages.plain_records import plain_records
from raylay.services.messages.records import EXPIRATION_S_MAX


def test_the_plain_records_of_a_run() -> None:
    made = put(1, b"{}", b'{"id":1}', first=7, at_us=70)
    found = plain_records(made)
    assert found is not None and found.bodies == [b"{}", b'{"id":1}'] and not found.has_deltas
    assert found.authors == [(P, 7, 0), (P, 8, 0)]
    assert found.bytes_max == max(len(record_bytes(8, b'{"id":1}')), 0)
    key = put(1, b"{}", key=b"given", correlation=b"c", trace=b"t" * 25)
    found = plain_records(key)
    assert found is not None and found.bodies == [b"{}"]
    found = plain_records(put(1, b"{}", command=6))
    assert found is not None and found.has_deltas
    for other in (
        put(1, b"{}", expiration_s=1),
        put(1, b"{}", expiration_s=EXPIRATION_S_MAX),
        delete(1, b"k"),
        replace(made, payload=made.payload[:-1]),
        replace(made, payload=made.payload + b"x"),
        replace(made, count=3),
        replace(made, payload=b"\xff" * 200),
    ):
        assert plain_records(other) is None
