"""What a source's log becomes in an instance that begins as a copy of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raylay.services.errors import RemoteProtocolError
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.messages.records import Command, Flag, Kind, RecordBuilder, Run
from raylay.services.messages.topic_book import TopicBook
from raylay.services.messages.topics import (
    TopicRule,
)
from raylay.services.replication.instance import Identity
from raylay.services.replication.membership.bootstrap import BootstrapChoice, BootstrapCopy
from raylay.services.replication.unavailable import decode_unavailable

pytestmark = pytest.mark.covers("Resync and bootstrap", "bootstrap: the log of one source")

ME = Identity("B", "g", 0xB)
SOURCE = Identity("A", "g", 0xA)
P = 7


def run(first: int, last: int, *, topic: str = "orders", path: tuple[int, ...] = ()) -> Run:
    builder = RecordBuilder(P, topic, "json")
    payload = b"".join(builder.build(n, b"m", 1) for n in range(first, last + 1))
    flags = Flag.CONTIGUOUS | Flag.AWAITED
    return Run(
        P, first, last, last - first + 1, payload, topic.encode(), b"json", path, "h", flags,
        receive_time_us=99,
    )  # fmt: skip


def copy(identity: Identity = ME, topics: str = ".*") -> BootstrapCopy:
    return BootstrapCopy(identity, TopicBook((TopicRule(topics),)), SOURCE)


def test_a_copied_message_took_one_hop_more_and_is_awaited_by_nobody() -> None:
    made = copy()
    own_old = 0xB0
    first, second = made.take([run(1, 3), run(4, 5, path=(own_old,))], 9)
    assert (first.first_txid, second.first_txid, made.next_txid) == (1, 4, 6)
    assert first.path == (0xA,) and second.path == (own_old, 0xA)
    assert first.group == second.group == "g"
    assert first.flags == Flag.CONTIGUOUS
    assert first.receive_time_us == 99, "a replay by time finds it where the source has it"
    assert (made.messages, made.source_txid) == (5, 9)
    assert made.bytes == len(run(1, 5).payload)
    assert made.take([run(6, 6)], 12)[0].first_txid == 6


def test_a_source_of_another_group_was_crossed_into() -> None:
    made = copy(replace(ME, group="other"))
    (copied,) = made.take([run(1, 1)], 1)
    assert copied.flags & Flag.CROSSED and copied.group == "g"


def test_what_is_no_message_is_marked_here_whatever_the_source_says() -> None:
    made = copy()
    said = run(1, 1)
    said.flags |= Flag.COMMANDS
    payload = RecordBuilder(P, "orders", "json").build(2, b"", 1, command=Command.DELETE)
    silent = replace(run(2, 2), payload=payload)
    flags = [each.flags & Flag.COMMANDS for each in made.take([said, silent], 2)]
    assert flags == [0, Flag.COMMANDS]


def test_what_is_late_at_the_source_is_late_here() -> None:
    late = run(1, 1)
    late.flags |= Flag.LATE
    made = copy()
    made.take([run(2, 3)], 2)
    assert made.take([late], 3)[0].flags & Flag.LATE


def test_what_the_source_cannot_give_is_recorded_unless_it_came() -> None:
    made = copy()
    lacks = PublisherRanges()
    lacks.add(P, 1, 5)
    lacks.add(9, 1, 1)
    made.lacks(lacks)
    made.take([run(4, 6)], 3)
    notes = made.end(55)
    assert [note.kind for note in notes] == [Kind.UNAVAILABLE] * 2
    assert [note.first_txid for note in notes] == [4, 5] and made.next_txid == 6
    found = PublisherRanges()
    for note in notes:
        found.update(decode_unavailable(note))
    assert list(found.items()) == [(P, (1, 3)), (9, (1, 1))]
    assert copy().end(0) == []


@pytest.mark.parametrize("what", ["twice", "topic", "note", "own"])
def test_what_makes_no_sense_is_refused(what: str) -> None:
    made = copy(topics="orders" if what == "topic" else ".*")
    made.take([run(1, 3)], 3)
    wrong = {
        "twice": run(3, 4),
        "topic": run(4, 5, topic="trades"),
        "note": replace(run(4, 5), kind=Kind.CONFLICT),
        "own": run(4, 5, path=(0xB,)),
    }[what]
    with pytest.raises(RemoteProtocolError) as caught:
        made.take([wrong], 5)
    assert caught.value.reason == "bad_record"


def test_what_is_asked_for() -> None:
    everything = (TopicRule(".*"),)
    choice = BootstrapChoice((TopicRule("^o"),), (TopicRule("orders"), TopicRule("trades")))
    runs = [run(1, 1), run(2, 2, topic="trades"), run(3, 3, topic="odd")]
    note = replace(run(4, 4), kind=Kind.WAITER)
    assert [found.first_sequence for found in choice.of([*runs, note])] == [1]
    assert choice.is_whole((TopicRule("orders"),)) and not choice.is_whole(everything)
    assert BootstrapChoice(everything, everything).is_whole(everything)
