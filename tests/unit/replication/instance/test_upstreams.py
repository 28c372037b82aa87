"""What upstreams bring and are told, decided apart from the rest of the machine."""

from __future__ import annotations

import pytest

from raylay.services.messages.ranges import PublisherRanges
from raylay.services.messages.records import (
    MESSAGES,
    SEQUENCE_MAX,
    Command,
    Flag,
    RecordBuilder,
    Run,
    run_of,
    scan,
)
from raylay.services.messages.topic_book import TopicBook
from raylay.services.messages.topics import TopicRule
from raylay.services.replication.acknowledgment import UNAWAITED, Route
from raylay.services.replication.effects import (
    AckUpstream,
    Append,
    CloseUpstream,
    Effect,
    EventReport,
    Rooted,
)
from raylay.services.replication.instance.admission import InstanceAdmission
from raylay.services.replication.instance.durability import Durability
from raylay.services.replication.instance.effect_list import EffectList
from raylay.services.replication.instance.intake import Intake
from raylay.services.replication.instance.pending_replies import PendingReplies
from raylay.services.replication.instance.upstreams import UpstreamTable
from raylay.services.replication.membership.placement import InstancePlacement, Placements
from raylay.services.replication.staged import BatchStaged, RunStaged
from raylay.services.replication.unavailable import UnavailableMessages
from raylay.services.replication.values import Counters, Identity

OWN, ONE, TWO, P = 0xA, 0xB, 0xC, 7


class Bench:
    """Two upstreams of another group, on connections 1 and 2."""

    def __init__(self, *, in_fabric: bool = False, ready: bool = True) -> None:
        known, identity = PublisherRanges(), Identity("own", "g", OWN, in_fabric=in_fabric)
        self.book, self.out = PendingReplies(), EffectList()
        self.durability = Durability(OWN, {}, self.book)
        missing = UnavailableMessages(PublisherRanges(), known)
        self.counters = counters = Counters()
        self.intake = Intake(
            self.durability,
            self.out,
            counters,
            known=known,
            missing=missing,
            recent_bytes_max=1_000_000,
        )
        self.admission = InstanceAdmission(identity, Placements(), {}, self.out, ready=ready)
        self.upstreams = UpstreamTable(
            identity,
            TopicBook((TopicRule("^orders$"),)),
            self.intake,
            self.durability,
            self.book,
            self.out,
            counters,
            self.admission,
        )
        self.upstreams.logged_on(1, "one", "f", ONE, "to-own", 1)
        self.upstreams.logged_on(2, "two", "g", TWO, "to-own", 1)
        self.out.take()

    def bring(
        self, connection: int, number: int, *runs: Run, caught_up: bool = False
    ) -> tuple[bool, list[Effect]]:
        taken = self.upstreams.batch(connection, number, [*runs], True, {}, caught_up, 0)
        return taken, self.out.take()

    def store(self) -> list[Effect]:
        while self.intake.staged:
            entry = self.intake.staged.committed(self.intake.next_txid)
            if isinstance(entry, RunStaged):
                self.durability.committed_txid = entry.txid
                run, ranges = entry.run, entry.run.ranges()
                route = Route(entry.sender, run.topic, run.message_type, run.path, run.group, 0)
                self.durability.wait(entry.root, route, P, ranges, 0, run.first_txid)
                self.upstreams.came_elsewhere(entry.sender, P, ranges)
            elif isinstance(entry, BatchStaged):
                self.upstreams.stored(entry)
        self.upstreams.flush()
        return self.out.take()


def records(
    *sequences: int, topic: str = "orders", awaited: bool = True, command: int = Command.PUBLISH
) -> Run:
    builder = RecordBuilder(P, topic, "json")
    payload = b"".join(builder.build(sequence, b"x", 0, command=command) for sequence in sequences)
    (chunk,) = scan(payload)
    run = run_of(chunk, payload)
    run.flags |= Flag.AWAITED if awaited else 0
    return run


def persisted(root: int, first: int, last: int) -> Rooted:
    return {root: {P: [(first, last)]}}


def test_who_waits_is_answered_when_it_is_durable_and_others_when_it_is_stored() -> None:
    bench = Bench()
    taken, (append,) = bench.bring(1, 1, records(1, 2))
    assert taken and isinstance(append, Append) and append.run.path == (ONE,)
    assert append.run.flags & Flag.CROSSED, "it is of another group"
    assert bench.store() == [AckUpstream(1, 1)]
    bench.durability.durable(ONE, P, [(1, 2)])
    bench.upstreams.flush()
    assert bench.out.take() == [AckUpstream(1, 1, persisted=persisted(ONE, 1, 2))]
    assert bench.bring(1, 2, records(1, 2)) == (True, [])
    assert bench.store() == [AckUpstream(1, 2, persisted=persisted(ONE, 1, 2))]


def test_answers_of_one_step_are_told_as_few_ranges() -> None:
    bench = Bench()
    one = bench.upstreams.get(1)
    assert one is not None
    theirs = [(4, 6)]
    for root, ranges in ((ONE, theirs), (ONE, [(9, 9)]), (TWO, [(1, 1)]), (ONE, [(1, 5), (7, 8)])):
        bench.book.persisted.append((ONE, root, P, ranges))
    bench.upstreams.flush()
    (ack,) = bench.out.take()
    assert isinstance(ack, AckUpstream)
    assert ack.persisted == {ONE: {P: [(1, 9)]}, TWO: {P: [(1, 1)]}}
    assert theirs == [(4, 6)], "whoever wrote it down keeps it"
    bench.upstreams.flush()
    assert bench.out.take() == [], "it was told"


def test_one_that_sends_what_is_here_is_told_what_came_by_others() -> None:
    bench = Bench()
    bench.bring(1, 1, records(1, awaited=False))
    bench.store()
    bench.bring(2, 1, records(1, awaited=False))
    bench.store()
    bench.bring(1, 2, records(2, awaited=False))
    told = {ack.connection: ack for ack in bench.store() if isinstance(ack, AckUpstream)}
    assert told[2].held == {P: [(2, 2)]} and not told[1].held
    assert UNAWAITED in bench.durability.pending.roots


@pytest.mark.parametrize("command", Command)
def test_what_is_no_message_is_marked_here_whatever_the_sender_says(command: Command) -> None:
    bench = Bench()
    run = records(1, 2, command=command)
    run.flags ^= Flag.COMMANDS
    _, (append,) = bench.bring(1, 1, run)
    assert isinstance(append, Append)
    assert bool(append.run.flags & Flag.COMMANDS) is (command not in MESSAGES)


def test_a_gap_ends_a_connection() -> None:
    bench = Bench()
    taken, effects = bench.bring(1, 2, records(1))
    assert not taken and isinstance(effects[0], CloseUpstream)
    assert effects[0].reason == "gap" and bench.upstreams.get(1) is None
    assert not len(bench.intake.staged) and bench.bring(1, 1, records(1)) == (False, [])


@pytest.mark.parametrize("awaited", [False, True])
def test_a_topic_that_is_not_journaled_is_passed_over_and_the_rest_is_taken(awaited: bool) -> None:
    """It is told once, and answered: who waits for it would hold up all that its sender keeps."""
    bench = Bench()
    other = records(1, 2, topic="quotes", awaited=awaited)
    taken, effects = bench.bring(1, 1, other, records(3, awaited=False))
    assert taken and [each.run.topic for each in effects if isinstance(each, Append)] == [b"orders"]
    assert [each.event for each in effects if isinstance(each, EventReport)] == [
        "topic_passed_over"
    ]
    root = ONE if awaited else UNAWAITED
    (ack,) = bench.store()
    assert isinstance(ack, AckUpstream) and ack.number == 1 and not ack.conflicts
    assert ack.persisted[root][P][0] == (1, 2)
    assert list(bench.intake.known.of(P)) == [(3, 3)], "it holds none of it"
    _, effects = bench.bring(1, 2, records(4, topic="quotes"))
    assert effects == [], "it was told"
    assert bench.counters.passed_over == 3
    bench.bring(2, 1, records(1, topic="quotes"))
    assert bench.counters.passed_over == 4


@pytest.mark.covers("Resync and bootstrap", "where `txlog` is left out")
@pytest.mark.parametrize("later", [False, True])
def test_who_waits_for_what_was_passed_over_is_answered_whenever_it_asks(later: bool) -> None:
    """With the message, or when somebody has begun to wait for it: it never comes to the log."""
    bench = Bench()
    other = records(1, 2, topic="quotes", awaited=False)
    asked = {TWO: {P: [(1, 3)]}}
    if later:
        bench.bring(1, 1, other)
        (ack,) = bench.store()
        assert isinstance(ack, AckUpstream) and TWO not in ack.persisted
        bench.upstreams.batch(1, 2, [], True, asked, False, 0)
    else:
        bench.upstreams.batch(1, 1, [other], True, asked, False, 0)
    bench.out.take()
    (ack,) = bench.store()
    assert isinstance(ack, AckUpstream)
    assert ack.persisted[TWO] == {P: [(1, 2)]}, "3 may come"
    bench.upstreams.batch(2, 1, [], True, asked, False, 0)
    assert all(not each.persisted for each in bench.store() if isinstance(each, AckUpstream))


def test_clients_are_let_in_when_a_peer_of_the_group_has_caught_up() -> None:
    bench = Bench(ready=False)
    bench.bring(1, 1, records(1), caught_up=True)
    bench.store()
    assert not bench.admission.ready and not bench.upstreams.all_caught_up
    bench.bring(2, 1, records(2), caught_up=True)
    bench.store()
    assert bench.admission.ready and bench.upstreams.all_caught_up


def test_a_later_connection_of_an_incarnation_ends_the_earlier_one() -> None:
    bench = Bench()
    bench.upstreams.logged_on(3, "one", "f", ONE, "to-own", 2)
    closed = bench.out.take()[0]
    assert isinstance(closed, CloseUpstream) and closed.connection == 1
    assert bench.upstreams.get(1) is None
    assert bench.upstreams.connected_as(ONE, proven=False) == "to-own"
    bench.upstreams.left(1)
    assert bench.upstreams.connected_as(ONE, proven=False) == "to-own", (
        "its end is not that of the later one"
    )
    bench.admission.learn({"two": InstancePlacement(1, "there:1", "there:2")})
    bench.upstreams.close_retired()
    assert [each.connection for each in bench.upstreams.values()] == [3]
    bench.upstreams.close_sender(ONE, "storage_error", "full")
    assert not bench.upstreams.values()


def test_what_an_upstream_shows_counts_when_it_lacks_here_and_it_is_of_the_fabric() -> None:
    bench = Bench()
    assert "through this data directory" in bench.upstreams.shows(1, {P: [(1, 2)]})
    bench.bring(1, 1, records(1, 2))
    assert bench.upstreams.shows(1, {P: [(1, 2)]}) == "", "it has come meanwhile"
    fabric = Bench(in_fabric=True)
    assert fabric.upstreams.shows(1, {P: [(1, 2)]}) == "", "anybody could say so"
    assert len(fabric.out) == 1, "which is told"


def test_who_does_not_prove_to_be_of_the_fabric_uses_up_nobodys_numbers() -> None:
    bench = Bench(in_fabric=True)
    assert bench.bring(1, 1, records(1, 1 << 52))[0]
    taken, (closed, told) = bench.bring(1, 2, records(5), records(SEQUENCE_MAX))
    assert not taken and isinstance(closed, CloseUpstream) and isinstance(told, EventReport)
    assert (closed.reason, told.event) == ("implausible_sequence", "upstream_refused")
    assert bench.intake.highest[P] == 1 << 52 and bench.intake.next_txid == 3, "nothing is taken"
    assert bench.upstreams.values() and 1 not in {u.connection for u in bench.upstreams.values()}


@pytest.mark.parametrize("in_fabric", [False, True])
def test_who_is_believed_brings_what_it_holds(in_fabric: bool) -> None:
    bench = Bench(in_fabric=in_fabric)
    bench.upstreams.logged_on(3, "three", "g", 0xD, "to-own", 1, proven=in_fabric)
    bench.out.take()
    assert bench.bring(3, 1, records(SEQUENCE_MAX))[0]
