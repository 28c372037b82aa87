"""Sequences that lie far apart are refused before they cost memory."""

from __future__ import annotations

import pytest
from unit.held_runs import HeldRuns

from raylay.services.errors import RemoteProtocolError
from raylay.services.messages.ranges import CHUNK, SequenceSet
from raylay.services.messages.records import RecordBuilder, publisher_id
from raylay.services.messages.topic_book import TopicBook
from raylay.services.messages.topics import (
    TopicRule,
)
from raylay.services.replication import gap_limit
from raylay.services.replication.effects import Append
from raylay.services.replication.gap_limit import check_gaps
from raylay.services.replication.instance import Identity, InstanceMachine
from raylay.services.replication.journal_answers import Answers

PIECES = 6
P = publisher_id("p")


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gap_limit, "PIECES_MAX", PIECES)


def far_apart(count: int) -> list[int]:
    return [1 + number * 3 * CHUNK for number in range(count)]


def machine() -> InstanceMachine:
    made = InstanceMachine(
        Identity("own", "g", 1),
        [],
        TopicBook((TopicRule("orders"),)),
        lookup=HeldRuns(),
    )
    made.client_logged_on(1, "p", 0)
    return made


def publish(made: InstanceMachine, *sequences: int, topic: str = "orders") -> int:
    builder = RecordBuilder(P, topic, "json")
    payload = b"".join(builder.build(sequence, b"x", 0) for sequence in sequences)
    runs = made.client_runs(1, payload)
    effects, transient = made.client_published(1, runs, 0, Answers())
    made.committed(made.next_txid - 1, 0)
    return sum(e.run.count for e in effects if isinstance(e, Append)) + sum(
        run.count for run in transient
    )


def test_as_many_places_as_are_allowed_and_not_one_more() -> None:
    made = machine()
    assert publish(made, *far_apart(PIECES)) == PIECES
    with pytest.raises(RemoteProtocolError, match="under another client name") as refused:
        publish(made, far_apart(PIECES + 1)[-1])
    assert refused.value.reason == "too_many_gaps"
    assert made.known.of(P).pieces == PIECES and made.next_txid == PIECES + 1
    assert publish(made, 5 + far_apart(PIECES)[-1]) == 1, "beside what is there is no new place"


def test_one_batch_is_refused_whole_and_nothing_of_it_is_kept() -> None:
    made = machine()
    with pytest.raises(RemoteProtocolError, match="4,096 or more"):
        publish(made, *far_apart(PIECES + 1))
    assert not made.known.get(P) and made.next_txid == 1


def test_sequences_that_follow_one_another_are_never_too_many() -> None:
    made = machine()
    for first in range(1, 10 * CHUNK, 1_000):
        publish(made, *range(first, first + 1_000))
    assert made.known.of(P).pieces <= 3


def test_what_is_not_journaled_has_no_gaps() -> None:
    made = machine()
    assert publish(made, *far_apart(PIECES + 1), topic="ticks") == PIECES + 1


def test_who_has_too_many_by_links_may_fill_them() -> None:
    held = SequenceSet((at, at) for at in far_apart(PIECES + 3))
    check_gaps("p", held, [(2, 9)])
    with pytest.raises(RemoteProtocolError):
        check_gaps("p", held, [(2 * CHUNK, 2 * CHUNK)])


def test_pieces_are_never_counted_too_few() -> None:
    held = SequenceSet([(1, 5 * CHUNK), (7 * CHUNK, 7 * CHUNK)])
    for ranges in (
        [(1, 9)],
        [(CHUNK, 9 * CHUNK)],
        [(6 * CHUNK, 6 * CHUNK)],
        [(8 * CHUNK, 20 * CHUNK)],
    ):
        after = held.copy()
        for first, last in ranges:
            after.add(first, last)
        assert held.pieces_with(ranges) >= after.pieces
