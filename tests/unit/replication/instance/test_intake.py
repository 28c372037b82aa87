"""What is known, late, contested and undone, decided apart from the rest of the machine."""

from __future__ import annotations

import pytest

from raylay.services.messages.ranges import PublisherRanges, SequenceSet
from raylay.services.messages.records import Flag, Kind, RecordBuilder, Run, run_of, scan
from raylay.services.replication.acknowledgment import CLIENT, UNAWAITED
from raylay.services.replication.effects import Append, EventReport
from raylay.services.replication.instance.durability import Durability
from raylay.services.replication.instance.effect_list import EffectList
from raylay.services.replication.instance.intake import Intake
from raylay.services.replication.instance.pending_replies import PendingReplies
from raylay.services.replication.journal_lookup import LookupResult
from raylay.services.replication.staged import BatchStaged, NoteStaged, RunStaged
from raylay.services.replication.unavailable import UnavailableMessages
from raylay.services.replication.values import Counters

OWN, UPSTREAM, P = 0xA, 0xC, 7


class Bench:
    """An intake, with nothing on disk or with `known`."""

    def __init__(self, known: PublisherRanges | None = None) -> None:
        known = known if known is not None else PublisherRanges()
        self.out, self.counters = EffectList(), Counters()
        self.durability = Durability(OWN, {}, PendingReplies())
        self.intake = Intake(
            self.durability,
            self.out,
            self.counters,
            known=known,
            missing=UnavailableMessages(PublisherRanges(), known),
        )

    def append(self, *sequences: int, topic: str = "t", body: bytes = b"x") -> Run:
        run = records(*sequences, topic=topic, body=body)
        run.flags |= Flag.AWAITED
        self.intake.append(run, OWN, CLIENT, 5, None)
        return run


def records(*sequences: int, topic: str = "t", body: bytes = b"x") -> Run:
    builder = RecordBuilder(P, topic, "json")
    payload = b"".join(builder.build(sequence, body, 0) for sequence in sequences)
    (chunk,) = scan(payload)
    return run_of(chunk, payload)


def test_what_comes_in_is_numbered_known_and_awaited() -> None:
    bench = Bench()
    bench.intake.wall_offset_us = 1_000
    first, second = bench.append(1, 2), bench.append(3)
    assert (first.first_txid, second.first_txid, bench.intake.next_txid) == (1, 3, 4)
    assert second.receive_time_us == 1_005
    assert bench.out.take() == [Append(first), Append(second)]
    assert bench.intake.known.of(P).covers(1, 3) and bench.intake.highest == {P: 3}
    assert list(bench.durability.pending.of(OWN).of(P)) == [(1, 3)]
    assert not bench.intake.held(), "nothing of it is on disk"


def test_messages_on_disk_are_neither_notes_nor_what_is_on_its_way() -> None:
    bench = Bench()
    bench.append(1, 2)
    bench.intake.staged.committed(2)
    bench.durability.committed_txid = 2
    answers = LookupResult()
    answers.was_routed(P, SequenceSet([(1, 2)]))
    bench.intake.begin(answers)
    bench.intake.note(0xB, UPSTREAM, P, [(1, 2)], 0)
    bench.append(3)
    assert bench.intake.messages_on_disk == 2
    assert bench.intake.staged.committed(2) is None
    bench.intake.staged.committed(4)
    bench.intake.staged.committed(4)
    assert (bench.intake.messages_on_disk, bench.intake.next_txid) == (3, 5)


def test_late_is_behind_a_higher_sequence_on_its_topic() -> None:
    bench = Bench()
    bench.append(5, topic="t")
    other, late = bench.append(2, topic="u"), bench.append(3, topic="t")
    assert not other.flags & Flag.LATE and late.flags & Flag.LATE and bench.counters.late == 1


def test_what_was_not_read_ends_the_step() -> None:
    bench = Bench(PublisherRanges({P: SequenceSet([(1, 1), (5, 5)])}))
    run = records(3)
    assert bench.intake.asks([run], LookupResult(), None), "it may be late"
    with pytest.raises(RuntimeError, match="the highest on"):
        bench.intake.append(run, OWN, CLIENT, 0, None)
    with pytest.raises(RuntimeError, match="the contents"):
        bench.intake.conflicts(records(5), [(5, 5)])


def test_another_content_is_a_conflict_and_the_same_is_none() -> None:
    bench = Bench()
    bench.append(1, 2)
    assert bench.intake.conflicts(records(1, 2), [(1, 2)]) == []
    differing = bench.intake.conflicts(records(1, 2, body=b"y"), [(1, 2)])
    assert differing == [(1, 2)]
    bench.durability.refuse(P, [(2, 2)])
    assert bench.intake.conflicts(records(1, 2), [(1, 2)]) == [(2, 2)], "refused elsewhere"
    bench.out.take()
    bench.intake.report_conflict("up", P, differing)
    (told,) = bench.out.take()
    assert isinstance(told, EventReport) and bench.counters.conflicts == 2
    bench.intake.keep_conflict(records(1, body=b"y"), [(1, 1)], UPSTREAM, "g", 9)
    (kept,) = bench.out.take()
    assert isinstance(kept, Append) and kept.run.kind == Kind.CONFLICT
    assert kept.run.path[-1] == UPSTREAM


def test_a_note_stands_for_what_was_not_awaited_before() -> None:
    bench = Bench()
    bench.append(1, 2)
    bench.out.take()
    bench.intake.note(OWN, UPSTREAM, P, [(1, 2)], 0)
    assert bench.out.take() == [], "it is awaited for this root"
    bench.intake.note(0xB, UPSTREAM, P, [(1, 2)], 0)
    (noted,) = bench.out.take()
    assert isinstance(noted, Append) and noted.run.kind == Kind.WAITER
    assert bench.durability.not_awaited(0xB, P, [(1, 2)]) == []


def test_what_failed_is_as_if_it_had_never_come() -> None:
    bench = Bench()
    bench.append(1)
    bench.intake.staged.committed(bench.intake.next_txid)
    bench.durability.committed_txid = 1
    bench.append(2, 3)
    answers = LookupResult()
    answers.was_routed(P, SequenceSet([(1, 1)]))
    bench.intake.begin(answers)
    bench.intake.note(0xB, UPSTREAM, P, [(1, 1)], 0)
    bench.intake.batch(4, 1, {UNAWAITED: {P: [(2, 3)]}}, False, {})
    undone = bench.intake.undo()
    assert [type(entry) for entry in undone] == [RunStaged, NoteStaged, BatchStaged]
    assert (bench.intake.next_txid, bench.intake.highest) == (2, {P: 1})
    assert list(bench.intake.known.of(P)) == [(1, 1)] and list(bench.intake.held().of(P)) == [
        (1, 1)
    ]
    assert bench.durability.not_awaited(0xB, P, [(1, 1)]) == [(1, 1)]
    assert list(bench.durability.pending.of(OWN).of(P)) == [(1, 1)]
    assert not len(bench.intake.staged) and bench.intake.asks([records(1)], LookupResult(), None)
    assert bench.intake.lacked({P: [(1, 2)]}).of(P).covers(2, 2)
