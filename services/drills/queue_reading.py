"""The drills' queue as a journal records it: its messages, their removals and their owners."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from raylay.services.drills.judgement import read_runs
from raylay.services.messages.records import Command, Kind, Run, iterate_records
from raylay.services.queues.records import (
    Keys,
    read_acknowledgment,
    read_removal,
    read_transfer,
)
from raylay.services.verification.laws.queue_delivery import ArrivalSpan, QueueJournal

Read = tuple[QueueJournal, dict[int, str]]
"""The content of a journal, in which the owner of a message may be an incarnation (`#7`); and the
names of the incarnations that the journal tells."""
BEARER = "#"
"""Prefix of an incarnation that stands for an instance's name."""


def read_queue(
    directory: Path,
    after_txid: int,
    topic: str,
    queue: str,
    publishers: Iterable[int],
    archive: Path | None = None,
) -> tuple[Read, str]:
    """Returns the records of a queue in a journal behind a transaction id; and the reason why the
    journal cannot be read any further, empty where it was read to its end. Runs on the journal's
    host.

    Args:
        directory: the instance's data directory.
        topic: the topic that the queue holds.
        publishers: the publishers whose messages are read.
    """
    journal, names = QueueJournal(), dict[int, str]()
    wanted = frozenset(publishers)

    def take(run: Run) -> None:
        if run.kind != Kind.RECORDS:
            return
        if run.topic == topic.encode() and run.publisher in wanted:
            owner = f"{BEARER}{run.path[0]}" if run.path else BEARER
            for first, last in run.ranges():
                span = ArrivalSpan(run.receive_time_us, run.publisher, first, last, owner=owner)
                journal.messages.append(span)
        elif run.topic == queue.encode():
            _said(run, journal, names)

    why = read_runs(directory, after_txid, archive, take)
    return (journal, names), why


def _said(run: Run, journal: QueueJournal, names: dict[int, str]) -> None:
    time_us = run.receive_time_us
    for record in iterate_records(run.payload):
        body = bytes(record.body)
        if record.command == Command.QUEUE_ACKNOWLEDGMENT:
            acknowledged = read_acknowledgment(body)
            journal.gone += _spans(time_us, acknowledged.keys, acknowledged.how)
        elif record.command == Command.QUEUE_REMOVAL:
            removed = read_removal(body)
            journal.gone += _spans(time_us, removed.keys, removed.why)
        elif record.command == Command.TRANSFER:
            moved = read_transfer(body)
            names.update(moved.names)
            journal.moves += [
                ArrivalSpan(time_us, move.publisher, move.first, move.last, owner=move.owner)
                for move in moved.moves
            ]


def _spans(time_us: int, keys: Keys, why: str) -> list[ArrivalSpan]:
    return [
        ArrivalSpan(time_us, publisher, first, last, why)
        for publisher, ranges in keys.items()
        for first, last in ranges
    ]


def with_names(
    read: Mapping[str, Read], incarnations: Mapping[str, Iterable[int]]
) -> dict[str, QueueJournal]:
    """Returns the content of each instance's journal, with the names of the messages' owners; an
    owner whose incarnation no journal names has an empty name.

    Args:
        incarnations: the incarnations that each instance reported of itself.
    """
    names = {each: name for name, told in incarnations.items() for each in told}
    for _, found in read.values():
        names |= found
    return {
        name: QueueJournal(
            [span._replace(owner=_named(span.owner, name, names)) for span in journal.messages],
            journal.gone,
            journal.moves,
        )
        for name, (journal, _) in read.items()
    }


def _named(owner: str, here: str, names: Mapping[int, str]) -> str:
    return here if owner == BEARER else names.get(int(owner.removeprefix(BEARER)), "")
