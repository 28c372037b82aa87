"""A link's long batch is decoded in slices and cut into parts: all of it, in order."""

from __future__ import annotations

import random

import pytest

from raylay.services.errors import CorruptRecord
from raylay.services.messages.records import RecordBuilder, Run, decode_runs, run_of, scan
from raylay.services.replication import link_batch_parts
from raylay.services.replication.effects import Rooted
from raylay.services.replication.link_batch_parts import LinkBatchParts, is_long

P = 7


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_batch_parts, "SLICE_BYTES", 1_000)
    monkeypatch.setattr(link_batch_parts, "PART_RUNS", 10)
    monkeypatch.setattr(link_batch_parts, "PART_RANGES", 10)


def run_at(sequence: int, topic: str = "orders") -> Run:
    payload = RecordBuilder(P, topic, "json").build(sequence, b"{}", 1)
    return run_of(scan(payload)[0], payload)


def taken_of(parts: LinkBatchParts) -> list[tuple[list[Run], Rooted]]:
    found = []
    while not parts.is_decoded:
        before = len(parts.runs)
        parts.decode()
        assert len(parts.runs) - before <= 10
    while True:
        found.append(parts.part)
        if parts.is_last:
            return found
        parts.go_on()


@pytest.mark.parametrize("count", [0, 1, 10, 11, 95])
def test_its_runs_are_taken_in_order(count: int) -> None:
    block = b"".join(run_at(each).encode() for each in range(1, count + 1))
    found = taken_of(LinkBatchParts(block, {}, True))
    assert [run for runs, _ in found for run in runs] == decode_runs(block)
    assert all(len(runs) <= 10 and not awaited for runs, awaited in found)
    assert len(found) == max(1, -(-count // 10))


@pytest.mark.parametrize("seed", range(10))
def test_what_it_asks_for_is_asked_behind_its_runs(seed: int) -> None:
    draw = random.Random(seed)
    awaited: Rooted = {
        root: {
            publisher: [(n, n) for n in range(1, draw.choice((2, 5, 40)))]
            for publisher in range(draw.randrange(1, 5))
        }
        for root in range(1, 6)
    }
    block = b"".join(run_at(each).encode() for each in range(1, 16))
    found = taken_of(LinkBatchParts(block, awaited, False))
    assert [len(runs) for runs, _ in found[:3]] == [10, 5, 0]
    asked: Rooted = {}
    for _, part in found:
        ranges = [each for of in part.values() for ranges in of.values() for each in ranges]
        assert len(ranges) <= 10
        for root, of in part.items():
            for publisher, ranges in of.items():
                asked.setdefault(root, {}).setdefault(publisher, []).extend(ranges)
    assert asked == awaited


@pytest.mark.parametrize("checks", [True, False])
def test_what_is_wrong_in_its_last_run_refuses_all_of_it(checks: bool) -> None:
    block = b"".join(run_at(each).encode() for each in range(1, 40))
    for wrong in (block[:-1] + b"!", block[:-1], block + b"more"):
        parts = LinkBatchParts(wrong, {}, checks)
        with pytest.raises(CorruptRecord):
            while True:
                parts.decode()
        assert not parts.is_decoded
    other = run_at(99)
    other.first_sequence = other.last_sequence = 98
    parts = LinkBatchParts(block + other.encode(), {}, checks)
    if checks:
        with pytest.raises(CorruptRecord):
            taken_of(parts)
    else:
        assert len(taken_of(parts)) == 4


def test_only_what_is_long_is_taken_in_parts() -> None:
    assert is_long(bytes(1_001), {}) and not is_long(bytes(1_000), {})
    assert is_long(b"", {1: {P: [(n, n) for n in range(11)]}})
    assert not is_long(b"", {1: {P: [(n, n) for n in range(5)]}, 2: {P: [(1, 1)] * 5}})
