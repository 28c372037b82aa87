"""services/messages/records.py: a run whose header is not what its records say, or cannot be."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from raylay.services.errors import CorruptRecord
from raylay.services.messages.readable import readable_records
from raylay.services.messages.records import (
    Command,
    Kind,
    RecordBuilder,
    Run,
    check_records,
    decode_run,
    run_of,
    scan,
)
from raylay.storage.segment_index import read_header
from raylay.storage.segments import OpenSegment, SegmentFile

pytestmark = pytest.mark.covers("Configuration", "a run whose header is not what its records say")

P = 7


def record(sequence: int, topic: str = "orders", publisher: int = P, command: int = 1) -> bytes:
    return RecordBuilder(publisher, topic, "json").build(sequence, b"{}", 1, command=command)


def run(*records: bytes) -> Run:
    """An honest one."""
    payload = b"".join(records)
    return run_of(scan(payload)[0], payload)


HONEST = run(record(1), record(2))
WIDE = run(record(1), record(9))
CANNOT_BE = {
    "no records": replace(HONEST, count=0),
    "empty": replace(HONEST, payload=b""),
    "backwards": replace(HONEST, first_sequence=10, last_sequence=5),
    "from nought": replace(HONEST, first_sequence=0, last_sequence=1),
    "more records than sequences": replace(HONEST, count=3),
    "more records than bytes": replace(HONEST, count=1_000, last_sequence=1_000),
    "2^31 records": replace(HONEST, count=1 << 31, last_sequence=1 << 31),
    "contiguous with gaps": replace(HONEST, last_sequence=1 << 50),
    "a note of two": replace(HONEST, kind=Kind.WAITER),
}
LIES = {
    "no record": replace(HONEST, payload=b"\xff" * 200),
    "cut short": replace(HONEST, payload=HONEST.payload[:-1]),
    "another topic": replace(run(record(1, "secret")), topic=b"orders"),
    "another type": replace(HONEST, message_type=b"text"),
    "another publisher": replace(run(record(1, publisher=8)), publisher=P),
    "a second publisher": replace(HONEST, payload=record(1) + record(2, publisher=8)),
    "a second topic": replace(HONEST, payload=record(1) + record(2, "secret")),
    "another sequence": replace(run(record(9)), first_sequence=1, last_sequence=1),
    "a wider range": replace(WIDE, first_sequence=1, last_sequence=1 << 40),
    "a second command": replace(HONEST, payload=record(1) + record(2, command=Command.DELETE)),
    "fewer": replace(run(record(1)), last_sequence=2, count=1, flags=0),
    "no UTF-8": replace(HONEST, topic=b"\xff\xff"),
    "a note": Run(P, 1, 1, 1, b"x", kind=int(Kind.WAITER), flags=0),
}


def test_an_honest_run_is_read_and_taken() -> None:
    for honest in (HONEST, WIDE):
        check_records(decode_run(honest.encode()))


@pytest.mark.parametrize("lie", CANNOT_BE)
def test_a_header_that_cannot_be_is_refused(lie: str) -> None:
    block = replace(CANNOT_BE[lie], payload_checksum=0).encode()
    with pytest.raises(CorruptRecord):
        decode_run(block)
    with pytest.raises(CorruptRecord):
        read_header(block, 0)


@pytest.mark.parametrize("lie", LIES)
def test_records_that_are_not_what_the_header_says_are_refused(lie: str) -> None:
    with pytest.raises(CorruptRecord):
        check_records(LIES[lie])


def test_what_is_readable_of_a_damaged_run_is_read_and_the_rest_said() -> None:
    said: list[str] = []
    damaged = replace(HONEST, payload=record(1) + b"\xff" * 70)
    assert [(at, each.sequence) for at, each in readable_records(damaged, said.append)] == [(0, 1)]
    short = replace(HONEST, payload=record(1))
    assert len(list(readable_records(short, said.append))) == 1
    assert len(said) == 2 and "1 of 2 records" in said[0] and "ends before" in said[1]
    longer = replace(run(record(1)), payload=record(1) + record(2))
    assert len(list(readable_records(longer, said.append))) == 1, "it has no transaction for more"
    assert len(list(readable_records(HONEST, said.append))) == 2 and len(said) == 2


class OneBlock(OpenSegment):
    """A segment whose only block holds nothing from its last transaction on."""

    def __init__(self, block: bytes, file: SegmentFile) -> None:
        self.block, self.file = block, file

    def blocks(self, txid: int, bytes_max: int = 0) -> list[tuple[int, bytes]]:
        return [(1, self.block)]

    def entries(self) -> dict[bytes, bytes]:
        return {}


@pytest.mark.timeout(30)
def test_a_scan_of_a_segment_comes_to_an_end() -> None:
    file = SegmentFile(1, ".live", False, Path("journal-1.live"))
    empty = replace(HONEST, count=0, first_txid=1)
    with pytest.raises(CorruptRecord, match=r"journal-1\.live"):
        OneBlock(empty.encode(), file).index()
