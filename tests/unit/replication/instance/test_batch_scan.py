"""A long batch that is checked in slices is what it is when it is checked at once."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, cast

import pytest

from raylay.services.errors import CorruptRecord, RemoteProtocolError
from raylay.services.messages.records import Command, RecordBuilder, Run, publisher_id
from raylay.services.messages.topic_book import TopicBook
from raylay.services.messages.topics import TopicRule
from raylay.services.replication.instance import Identity, InstanceMachine, batch_scan

pytestmark = pytest.mark.covers("Configuration", "a long publish batch is checked in slices")

PUBLISHER = publisher_id("p")
Batch = tuple[bytes, int]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> InstanceMachine:
    monkeypatch.setattr(batch_scan, "SLICE_BYTES", 500)
    topics = TopicBook((TopicRule("orders.*"),), unjournaled=(TopicRule("quotes"),))
    machine = InstanceMachine(Identity("A-1", "A", 1), (), topics, lookup=cast(Any, None))
    machine.client_logged_on(1, "p", 0)
    return machine


def record(sequence: int, topic: str = "orders", command: int = Command.PUBLISH) -> bytes:
    builder = RecordBuilder(PUBLISHER, topic, "json")
    return builder.build(sequence, b'{"id":%d}' % sequence, sequence, command=command)


def at_once(machine: InstanceMachine, batch: Batch) -> list[Run]:
    return machine.client_runs(1, *batch)


def in_slices(machine: InstanceMachine, batch: Batch) -> list[Run]:
    scan = machine.batch_scan(1, *batch, frozenset())
    slices = 1
    while not scan.take():
        slices += 1
    assert slices >= len(batch[0]) // 700, "each has some 500 bytes and a record"
    return scan.end()


@pytest.mark.parametrize("seed", range(20))
def test_its_runs_are_the_same(machine: InstanceMachine, seed: int) -> None:
    draw = random.Random(seed)
    records, sequence = [], 0
    while len(records) < 300:
        topic = draw.choice(("orders", "orders2", "quotes"))
        command = draw.choice((Command.PUBLISH, Command.DELTA_PUBLISH, Command.DELETE))
        for _ in range(draw.choice((1, 2, 40))):
            sequence += draw.choice((1, 1, 1, 1, 1, 7, 5_000))
            records.append(record(sequence, topic, command))
    batch = b"".join(records), len(records)
    assert in_slices(machine, batch) == at_once(machine, batch)


def test_of_one_topic_it_is_one_run_and_no_copy(machine: InstanceMachine) -> None:
    payload = b"".join(record(each) for each in range(1, 101))
    (run,) = in_slices(machine, (payload, 100))
    assert run.payload is payload and run.contiguous and run.count == 100


def wrong_at_the_end(payload: bytes) -> Batch:
    return payload[:-1] + b"!", 40


def cut_short(payload: bytes) -> Batch:
    return payload[:-5], 40


def of_another(payload: bytes) -> Batch:
    return payload + RecordBuilder(7, "orders", "json").build(99, b"{}", 1), 41


def too_few(payload: bytes) -> Batch:
    return payload, 41


def without_a_length(payload: bytes) -> Batch:
    return payload + bytes(100), 41


@pytest.mark.parametrize(
    "spoil", [wrong_at_the_end, cut_short, of_another, too_few, without_a_length]
)
def test_what_is_wrong_at_its_end_refuses_all_of_it(
    machine: InstanceMachine, spoil: Callable[[bytes], Batch]
) -> None:
    batch = spoil(b"".join(record(each) for each in range(1, 41)))
    said = []
    for read in (at_once, in_slices):
        with pytest.raises((CorruptRecord, RemoteProtocolError)) as raised:
            read(machine, batch)
        said.append(str(raised.value))
    assert said[0] == said[1]


def test_its_gaps_are_counted(machine: InstanceMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    from raylay.services.replication import gap_limit

    monkeypatch.setattr(gap_limit, "PIECES_MAX", 20)
    machine.client_logged_on(1, "p", 0)
    batch = b"".join(record(each * 10_000) for each in range(1, 31)), 30
    said = []
    for read in (at_once, in_slices):
        with pytest.raises(RemoteProtocolError) as raised:
            read(machine, batch)
        said.append(str(raised.value))
    assert said[0] == said[1] and raised.value.reason == "too_many_gaps"
