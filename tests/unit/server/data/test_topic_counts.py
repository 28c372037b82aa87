"""How many messages of each topic an instance logged."""

from __future__ import annotations

import pytest

from raylay.services.messages.records import (
    Command,
    Kind,
    RecordBuilder,
    Run,
    run_of,
    scan,
)
from raylay.services.server.data import topic_counts
from raylay.services.server.data.topic_counts import TopicCounts


def run(topic: bytes, count: int, message_type: bytes = b"json") -> Run:
    return Run(7, 1, count, count, b"", topic, message_type)


def test_each_topic_and_type_is_counted_and_notes_are_not() -> None:
    counts = TopicCounts()
    counts.add([run(b"orders", 3), run(b"trades", 2), run(b"orders", 1, b"fix")])
    note = Run(7, 1, 1, 1, b"", b"orders", b"json", kind=Kind.CONFLICT)
    counts.add([run(b"trades", 5), note])
    assert counts.told() == [("trades", "json", 7), ("orders", "json", 3), ("orders", "fix", 1)]


def test_topics_without_end_take_no_memory_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_counts, "COUNTED_MAX", 4)
    monkeypatch.setattr(topic_counts, "SHOWN_MAX", 2)
    counts = TopicCounts()
    for number in range(10):
        counts.add([run(b"t%d" % number, 10 - number)])
    counts.add([run(b"t3", 100)])
    assert counts.told() == [("t3", "json", 107), ("t0", "json", 10)]
    assert counts.others == sum(10 - number for number in range(4, 10))


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
def test_a_queues_own_records_are_no_messages(command: Command, count: int) -> None:
    payload = RecordBuilder(7, "work", "json").build(1, b"{}", 0, command=command)
    counts = TopicCounts()
    counts.add([run_of(chunk, payload) for chunk in scan(payload)])
    assert counts.told() == [("work", "json", 1)] * count
