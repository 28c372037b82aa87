"""services/net/tls_records.py: where records end, however their bytes arrive."""

from __future__ import annotations

import random

import pytest

from raylay.services.net.tls_records import RECORDS_AT_ONCE, TlsRecordCounter


def record(size: int) -> bytes:
    return b"\x17\x03\x03" + size.to_bytes(2, "big") + b"x" * size


def test_records_of_one_piece_are_counted_in_slices_of_bounded_number() -> None:
    data = record(22) * (RECORDS_AT_ONCE * 2 + 1)
    full = RECORDS_AT_ONCE * 27
    assert TlsRecordCounter().slices(data) == [
        (full, RECORDS_AT_ONCE), (2 * full, RECORDS_AT_ONCE), (len(data), 1)
    ]  # fmt: skip
    assert TlsRecordCounter().slices(b"") == [(0, 0)]
    assert TlsRecordCounter().slices(record(0) * 2) == [(10, 2)]


@pytest.mark.parametrize("seed", range(20))
def test_pieces_of_any_size_hold_the_same_records(seed: int) -> None:
    chance = random.Random(seed)
    sizes = [chance.choice((0, 1, 22, 300, 16_401)) for _ in range(200)]
    data = b"".join(map(record, sizes))
    counter, count, at = TlsRecordCounter(), 0, 0
    while at < len(data):
        piece = data[at : at + chance.choice((1, 2, 3, 4, 5, 6, 27, 1_000, 100_000))]
        slices = counter.slices(piece)
        ends = [end for end, _ in slices]
        assert ends == sorted(ends) and ends[-1] == len(piece)
        assert all(found <= RECORDS_AT_ONCE + 1 for _, found in slices)
        count += sum(found for _, found in slices)
        at += len(piece)
    assert count == len(sizes)
