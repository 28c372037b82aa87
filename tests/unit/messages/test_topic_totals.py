"""Totals of topics: what counts as a message, sums, the limit, and the encoding in a seal."""

from __future__ import annotations

import struct

import pytest

from raylay.services.messages import topic_totals
from raylay.services.messages.records import (
    Command,
    Kind,
    RecordBuilder,
    Run,
    run_of,
    scan,
)
from raylay.services.messages.topic_totals import TopicTotals, has_messages, run_has_messages


def a_run(topic: bytes, count: int, time_us: int = 10, message_type: bytes = b"json") -> Run:
    run = Run(7, 1, count, count, b"", topic, message_type)
    run.receive_time_us = time_us
    return run


def totals(*runs: Run) -> TopicTotals:
    made = TopicTotals()
    for run in runs:
        made.add(run, 100, run_has_messages(run))
    return made


def test_each_topic_and_type_has_its_messages_bytes_and_times() -> None:
    found = totals(
        a_run(b"orders", 3, 20), a_run(b"orders", 2, 10), a_run(b"orders", 1, 30, b"fix")
    )
    assert found.by_topic == {
        (b"orders", b"json"): [5, 200, 10, 20],
        (b"orders", b"fix"): [1, 100, 30, 30],
    }
    assert found.messages == 6


@pytest.mark.parametrize(
    ("command", "count"),
    [
        (Command.PUBLISH, 1),
        (Command.DELETE, 1),
        (Command.QUEUE_ACKNOWLEDGMENT, 0),
        (Command.TRANSFER, 0),
        (Command.QUEUE_REMOVAL, 0),
    ],
)
def test_a_queues_own_records_take_bytes_and_are_no_messages(command: Command, count: int) -> None:
    payload = RecordBuilder(7, "work", "json").build(1, b"{}", 0, command=command)
    (run,) = [run_of(chunk, payload) for chunk in scan(payload)]
    run.receive_time_us = 7
    assert totals(run).by_topic == {(b"work", b"json"): [count, 100, 7 * count, 7 * count]}
    assert has_messages(run.kind, run.flags, int(command)) == bool(count)


def test_a_note_and_a_run_that_is_cut_short_are_no_messages() -> None:
    assert not run_has_messages(Run(7, 1, 1, 1, b"", b"t", b"json", kind=Kind.CONFLICT))
    payload = RecordBuilder(7, "work", "json").build(1, b"", 0, command=Command.TRANSFER)
    (run,) = [run_of(chunk, payload) for chunk in scan(payload)]
    run.payload = payload[:5]
    assert not run_has_messages(run)


def test_topics_without_end_take_no_memory_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_totals, "COUNTED_MAX", 2)
    found = totals(*(a_run(b"t%d" % at, at + 1) for at in range(4)), a_run(b"t0", 5))
    assert {key[0]: each[0] for key, each in found.by_topic.items()} == {b"t0": 6, b"t1": 2}
    assert found.others == [3 + 4, 200, 10, 10]
    assert totals(a_run(b"", 1)).others[0] == 1, "a run that does not name its topic"


def test_sums_of_stretches_are_the_totals_of_both() -> None:
    one = [a_run(b"a", 1, 50), a_run(b"b", 2, 60)]
    other = [a_run(b"a", 4, 40), a_run(b"", 1, 5)]
    summed = totals(*one)
    copied = summed.copy()
    summed.update(totals(*other))
    assert summed == totals(*one, *other)
    assert copied == totals(*one) != summed


def test_encoded_totals_are_read_as_they_were() -> None:
    found = totals(a_run(b"a", 1, 50), a_run("ü/x".encode(), 2, 60), a_run(b"", 1, 5))
    assert TopicTotals.from_bytes(found.to_bytes()) == found
    for length in (0, 31, len(found.to_bytes()) - 1):
        with pytest.raises(struct.error):
            TopicTotals.from_bytes(found.to_bytes()[:length])
