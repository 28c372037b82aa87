"""services/drills/queue_reading.py: what a journal says of the drills' queue."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.journal_cases import StepJournal

from raylay.services.drills.queue_reading import read_queue, with_names
from raylay.services.messages.records import Command, Flag, RecordBuilder, Run
from raylay.services.queues.records import (
    Acknowledgment,
    OwnershipChange,
    Removal,
    Transfer,
    pack_acknowledgment,
    pack_removal,
    pack_transfer,
)
from raylay.services.verification.laws.queue_delivery import ArrivalSpan, QueueJournal

pytestmark = pytest.mark.covers("Drills", "messages of a queue against publishers")

EAST, WEST, CONSUMER = 7, 9, 11
HERE, THERE, NOBODY = 21, 22, 23


def said(command: int, body: bytes, sequence: int) -> Run:
    builder = RecordBuilder(CONSUMER, "q", "json")
    payload = builder.build(sequence, body, 1, command=command)
    return Run(
        CONSUMER, sequence, sequence, 1, payload, b"q", b"json",
        flags=Flag.CONTIGUOUS | Flag.COMMANDS,
    )  # fmt: skip


def messages(publisher: int, first: int, last: int, *path: int, topic: str = "w") -> Run:
    builder = RecordBuilder(publisher, topic, "json")
    payload = b"".join(builder.build(n, b"{}", 1) for n in range(first, last + 1))
    return Run(
        publisher, first, last, last - first + 1, payload, topic.encode(), b"json", path=path
    )


MOVED = Transfer("e", 1, [OwnershipChange(EAST, 2, 3, 1, "w")], {THERE: "w"})
DONE = Acknowledgment({EAST: [(1, 1), (3, 3)]})
REMOVED = Removal("e", 2, {EAST: [(2, 2)]}, "time_limit")
RUNS = [
    messages(EAST, 1, 3),
    messages(WEST, 5, 5, THERE, NOBODY),
    messages(WEST, 6, 6, NOBODY),
    # Of others, and on other topics.
    messages(3, 1, 1),
    messages(EAST, 4, 4, topic="x"),
    said(Command.TRANSFER, pack_transfer(MOVED), 1),
    said(Command.QUEUE_ACKNOWLEDGMENT, pack_acknowledgment(DONE), 2),
    said(Command.QUEUE_REMOVAL, pack_removal(REMOVED), 3),
]


def test_a_journal_tells_what_came_what_left_and_whose_it_became(tmp_path: Path) -> None:
    journal = StepJournal(tmp_path / "journal")
    txid = 1
    for number, run in enumerate(RUNS, 1):
        run.first_txid, run.receive_time_us = txid, number
        txid += run.count
        journal.stage(run)
        journal.commit()
    journal.close()
    read, why = read_queue(tmp_path, 0, "w", "q", [EAST, WEST])
    assert not why
    assert read[1] == {THERE: "w"}
    # A name from a journal, one that an instance said of itself, and one that nobody knows.
    found = with_names({"e": read}, {"e": [HERE]})["e"]
    assert found == QueueJournal(
        [
            ArrivalSpan(1, EAST, 1, 3, owner="e"),
            ArrivalSpan(2, WEST, 5, 5, owner="w"),
            ArrivalSpan(3, WEST, 6, 6),
        ],
        [
            ArrivalSpan(7, EAST, 1, 1, "ack"),
            ArrivalSpan(7, EAST, 3, 3, "ack"),
            ArrivalSpan(8, EAST, 2, 2, "time_limit"),
        ],
        [ArrivalSpan(6, EAST, 2, 3, owner="w")],
    )
    named = with_names({"e": read}, {"x": [NOBODY]})["e"]
    assert [span.owner for span in named.messages] == ["e", "w", "x"]
    # From where it began.
    (behind, _), _ = read_queue(tmp_path, 3, "w", "q", [EAST, WEST])
    assert [span.publisher for span in behind.messages] == [WEST, WEST]
    (nothing, _), why = read_queue(tmp_path / "nowhere", 0, "w", "q", [EAST])
    assert nothing == QueueJournal() and "nowhere" in why
