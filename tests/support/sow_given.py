"""SOW topics, and runs of what is published to them, for tests."""

from __future__ import annotations

from typing import Any

import msgpack

from raylay.services.messages.records import Record, RecordBuilder, Run, decode_record, run_of, scan
from raylay.services.plugins.sow import sow_book
from raylay.services.sow.book import SowBook
from raylay.services.sow.definition import SowTopicDefinition
from raylay.storage.sow import MemorySowStore

ORDERS = SowTopicDefinition("orders", "json", keys=("/id",))
P, Q = 1, 2


def book(*definitions: SowTopicDefinition, store: MemorySowStore | None = None) -> SowBook:
    """Makes a book of topics, with what the store has."""
    return sow_book(definitions or (ORDERS,), (), store or MemorySowStore())


def record_bytes(
    sequence: int,
    body: bytes = b"{}",
    *,
    publisher: int = P,
    topic: str = "orders",
    kind: str = "json",
    at_us: int = 0,
    **more: Any,
) -> bytes:
    """A record."""
    return RecordBuilder(publisher, topic, kind).build(sequence, body, at_us, **more)


def record(sequence: int = 1, body: bytes = b"{}", **more: Any) -> Record:
    """The same, decoded."""
    return decode_record(record_bytes(sequence, body, **more))


def run(first_txid: int, *records: bytes, at_us: int = 1_000) -> Run:
    """Records of one publisher on one topic, as they are journaled."""
    payload = b"".join(records)
    (chunk,) = scan(payload)
    made = run_of(chunk, payload)
    made.first_txid = first_txid
    made.receive_time_us = at_us
    return made


def put(first_txid: int, *bodies: bytes, first: int = 0, at_us: int = 1_000, **more: Any) -> Run:
    """A run of publishes, of sequences from `first` on; 0: those of the transactions."""
    begin = first or first_txid
    records = (record_bytes(begin + n, body, **more) for n, body in enumerate(bodies))
    return run(first_txid, *records, at_us=at_us)


def delete(txid: int, *keys: bytes, sequence: int = 0, at_us: int = 1_000, **more: Any) -> Run:
    """A run of one deletion, as it is journaled."""
    body = msgpack.packb({"keys": sorted(keys)})
    return run(txid, record_bytes(sequence or txid, body, command=2, **more), at_us=at_us)
