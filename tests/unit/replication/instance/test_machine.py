"""The instance's machine: when it answers whom. Interleavings of several are in tests/sim."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from support.held_runs import HeldRuns

from raylay.services.errors import DowngradeRefused, RemoteProtocolError
from raylay.services.messages.ranges import (
    PublisherRanges,
    SequenceSet,
)
from raylay.services.messages.records import (
    Command,
    Flag,
    Kind,
    RecordBuilder,
    Run,
    iterate_records,
    publisher_id,
    run_of,
    scan,
    unnumbered_publisher_id,
)
from raylay.services.messages.stateful import (
    PreparedRun,
    RefusedRecords,
    Stateful,
    WritePermission,
    left_of,
)
from raylay.services.messages.topic_book import TopicBook
from raylay.services.messages.topics import (
    TopicRule,
)
from raylay.services.replication.acknowledgment import UNAWAITED, RootedRanges, Route, WaiterTable
from raylay.services.replication.downgrade import DowngradePolicy
from raylay.services.replication.effects import (
    AckClient,
    AckUpstream,
    Append,
    CloseSession,
    CloseUpstream,
    EventReport,
    NotifyLink,
    RefuseClient,
    RemovalBound,
    Rooted,
    SafetyChanged,
    StaleCopyDetected,
)
from raylay.services.replication.instance import Identity, InstanceMachine, encode_note
from raylay.services.replication.instance.self_publisher import SelfPublisher
from raylay.services.replication.journal_lookup import LookupResult, read_all
from raylay.services.replication.link.resync_plan import ResyncPlan
from raylay.services.replication.link.routing import DestinationRoute
from raylay.services.replication.recovery import RecoveryLog, RecoveryPoint

pytestmark = [
    pytest.mark.covers("Replication", "schedule of downgrade and upgrade"),
    pytest.mark.covers("Replication", "one identity, two contents"),
]

CLIENT_NAME = "p"
P = publisher_id(CLIENT_NAME)
OWN, PEER, UPSTREAM, OTHER = 0xA, 0xB, 0xC, 0xD
SECOND_US = 1_000_000


def destination(*, sync: bool = True) -> DestinationRoute:
    return DestinationRoute("peer", "g", sync, pass_through=".*", addresses=("peer",))


class Bench:
    """A machine with a journal that commits when it is told to."""

    def __init__(
        self,
        *destinations: DestinationRoute,
        policy: DowngradePolicy | None = None,
        generation: int = 0,
        unjournaled: tuple[TopicRule, ...] | None = None,
        stateful: Sequence[tuple[TopicRule, Stateful]] = (),
        **named: Any,
    ) -> None:
        self.journal = HeldRuns()
        self.staged: list[Run] = []
        self.machine = InstanceMachine(
            Identity("own", "g", OWN, generation),
            destinations,
            TopicBook(
                (TopicRule("^(orders|trades)$"),), unjournaled=unjournaled, stateful=stateful
            ),
            lookup=self.journal,
            policy=policy,
            **named,
        )

    @property
    def committed(self) -> list[Run]:
        return self.journal.runs

    def answers(self, runs: list[Run], noted: Rooted | None = None) -> LookupResult:
        """What the shell reads before it gives these to the machine."""
        questions = self.machine.asks(runs, LookupResult(), noted)
        answers = read_all(questions, self.journal)
        assert not self.machine.asks(runs, answers, noted)
        return answers

    def restarted(self, point: RecoveryPoint) -> Bench:
        """Another life, from this recovery point and what is committed behind it."""
        stored = RecoveryLog({}).changes(point)
        point = RecoveryLog({key: value for key, value in stored.items() if value}).point
        machine = self.machine
        bench = Bench(
            *(ledger.destination for ledger in machine.destinations.values()),
            next_txid=machine.committed_txid + 1,
            held=machine.held(),
            awaited=point.awaited,
            refused=point.refused,
        )
        bench.journal.runs += self.committed
        bench.machine.restore(point.waiting, point.durable_txid, 0)
        behind = [run for run in self.committed if run.last_txid > point.committed_txid]
        bench.machine.recover(behind, 0)
        bench.machine.check_invariants()
        return bench

    def take(self, effects: list[Any]) -> list[Any]:
        self.staged += [effect.run for effect in effects if isinstance(effect, Append)]
        self.machine.check_invariants()
        return [effect for effect in effects if not isinstance(effect, Append)]

    def log_on(self, session: int = 1, low: int = 0) -> Any:
        return self.machine.client_logged_on(session, CLIENT_NAME, low)

    def publish(
        self,
        *sequences: int,
        topic: str = "orders",
        body: bytes = b"x",
        command: int = Command.PUBLISH,
    ) -> list[Any]:
        builder = RecordBuilder(P, topic, "json")
        payload = b"".join(
            builder.build(sequence, body, 0, command=command) for sequence in sequences
        )
        runs = self.machine.client_runs(1, payload)
        return self.take(self.machine.client_published(1, runs, 0, self.answers(runs))[0])

    def commit(self) -> list[Any]:
        self.journal.runs += self.staged
        last = self.staged[-1].last_txid
        self.staged.clear()
        return self.take(self.machine.committed(last, 0))

    def log_on_upstream(self, connection: int = 9) -> Any:
        return self.machine.upstream_logged_on(connection, "up", "g", UPSTREAM, "own", 1)[1]

    def batch(
        self,
        number: int,
        *sequences: int,
        body: bytes = b"x",
        marked: bool = True,
        awaited: Rooted | None = None,
        is_part: bool = False,
    ) -> Any:
        payload = b"".join(
            RecordBuilder(P, "orders", "json").build(sequence, body, 0) for sequence in sequences
        )
        runs = []
        if sequences:
            (chunk,) = scan(payload)
            run = run_of(chunk, payload)
            run.flags |= Flag.AWAITED
            runs = [run]
        answers = self.answers(runs, awaited)
        effects = self.machine.upstream_batch(
            9, number, runs, marked, awaited or {}, False, 0, answers, is_part
        )
        return self.take(effects)

    def connect(self, *held: tuple[int, int]) -> Any:
        there = PublisherRanges()
        there.add_ranges(P, held)
        found = self.machine.link_connected("peer", PEER, ResyncPlan(there, RootedRanges()), 0)
        self.take(found[0])
        return found[1]


def acks(effects: list[Any]) -> list[tuple[int, str]]:
    return [(e.sequence, e.reason) for e in effects if isinstance(e, AckClient)]


def answers(effects: list[Any]) -> list[tuple[int, Any]]:
    return [(e.number, e.persisted) for e in effects if isinstance(e, AckUpstream)]


def test_nothing_is_acked_before_its_commit() -> None:
    bench = Bench()
    bench.log_on()
    assert acks(bench.publish(1, 2)) == []
    assert acks(bench.commit()) == [(2, "")]


@pytest.mark.covers("The replication chapters", "sync and async decide about persisted acks")
@pytest.mark.covers("The replication chapters", "async: as soon as it is in the local log")
def test_an_ack_waits_for_every_sync_destination_and_for_no_async_one() -> None:
    bench = Bench(destination())
    bench.log_on()
    bench.publish(1, 2)
    assert acks(bench.commit()) == []
    found = bench.take(bench.machine.link_answered("peer", {OWN: {P: [(1, 1)]}}, {}))
    assert acks(found) == [(1, "")]
    bench = Bench(destination(sync=False))
    bench.log_on()
    bench.publish(1)
    assert acks(bench.commit()) == [(1, "")]


@pytest.mark.covers("The replication chapters", "sync and async decide about persisted acks")
def test_sync_and_async_decide_about_persisted_acks_and_about_nothing_else() -> None:
    """Step by step, all that is not a persisted ack is the same: what is journaled, what is told to
    links, subscribers and upstreams, what may be removed."""
    benches = [Bench(destination(sync=sync)) for sync in (True, False)]
    answered: list[list[Any]] = [[], []]

    def both(step: Any) -> None:
        found = [step(bench) for bench in benches]
        for effects, acked in zip(found, answered, strict=True):
            acked += [effect for effect in effects if isinstance(effect, AckClient | AckUpstream)]
        rest = [
            [effect for effect in effects if not isinstance(effect, AckClient | AckUpstream)]
            for effects in found
        ]
        assert rest[0] == rest[1]
        told = [
            (
                bench.machine.next_txid,
                bench.machine.committed_txid,
                bench.machine.removable_before(),
                bench.machine.held(),
                [(run.first_txid, run.payload, run.flags) for run in bench.committed],
            )
            for bench in benches
        ]
        assert told[0] == told[1]

    def logged_on(bench: Bench) -> list[Any]:
        bench.log_on()
        bench.log_on_upstream()
        return []

    both(logged_on)
    both(lambda bench: bench.publish(1, 2))
    both(lambda bench: bench.commit())
    both(lambda bench: bench.connect() and [])
    both(lambda bench: bench.publish(3, topic="trades"))
    both(lambda bench: bench.commit())
    both(lambda bench: bench.publish(3, 3, topic="trades"))
    both(lambda bench: bench.batch(1, 4, 5))
    both(lambda bench: bench.commit())
    both(lambda bench: bench.take(bench.machine.link_answered("peer", {OWN: {P: [(1, 2)]}}, {})))
    both(lambda bench: bench.take(bench.machine.link_answered("peer", {OWN: {P: [(1, 5)]}}, {})))
    # And about these it does decide.
    sync, other = answered
    assert sync != other and sync and other


@pytest.mark.covers("The replication chapters", "64 that are sync")
def test_an_ack_waits_for_each_of_64_sync_destinations() -> None:
    names = [f"peer-{number}" for number in range(64)]
    many = [
        DestinationRoute(name, "g", True, pass_through=".*", addresses=(name,)) for name in names
    ]
    bench = Bench(*many, *(replace(many[0], name=f"async-{n}", sync=False) for n in range(64)))
    bench.log_on()
    bench.publish(1)
    assert acks(bench.commit()) == []
    told = [
        acks(bench.take(bench.machine.link_answered(name, {OWN: {P: [(1, 1)]}}, {})))
        for name in names
    ]
    assert told == [[]] * 63 + [[(1, "")]]


def test_acks_of_a_client_never_pass_one_that_is_owed() -> None:
    bench = Bench(destination())
    bench.log_on()
    bench.publish(1, 2, 3)
    bench.commit()
    assert acks(bench.take(bench.machine.link_answered("peer", {OWN: {P: [(2, 3)]}}, {}))) == []
    assert acks(bench.take(bench.machine.link_answered("peer", {OWN: {P: [(1, 1)]}}, {}))) == [
        (3, "")
    ]


def test_a_logon_tells_the_highest_and_apart_from_it_what_is_durable() -> None:
    bench = Bench(destination())
    bench.log_on()
    bench.publish(1, 2, 3)
    bench.commit()
    bench.take(bench.machine.link_answered("peer", {OWN: {P: [(1, 1)]}}, {}))
    found = bench.log_on(2, low=1)
    assert (found.publisher, found.durable, found.highest) == (P, [(1, 1)], 3)


@pytest.mark.covers("The replication chapters", "names and sequences")
def test_a_resend_is_journaled_once_and_acked_when_it_is_durable() -> None:
    bench = Bench(destination())
    bench.log_on()
    bench.publish(1)
    bench.commit()
    bench.machine.client_left(1)
    bench.log_on()
    assert acks(bench.publish(1)) == []
    assert bench.staged == []
    assert acks(bench.take(bench.machine.link_answered("peer", {OWN: {P: [(1, 1)]}}, {}))) == [
        (1, "")
    ]


def test_another_content_under_a_held_identity_is_refused() -> None:
    bench = Bench()
    bench.log_on()
    bench.publish(1)
    bench.commit()
    assert acks(bench.publish(1, body=b"y")) == [(1, "sequence_conflict")]


def test_a_publish_that_the_server_numbered_is_refused_where_a_destination_refuses_it() -> None:
    bench = Bench(destination())
    bench.log_on()
    publisher, sequence = bench.machine.number_for(CLIENT_NAME)
    payload = RecordBuilder(publisher, "orders", "json").build(sequence, b"x", 0)
    run = run_of(scan(payload)[0], payload)
    bench.take(bench.machine.client_published_unnumbered(1, run, "cid", 0)[0])
    bench.commit()
    refused = {publisher: [(sequence, sequence)]}
    found = bench.take(bench.machine.link_answered("peer", {}, refused))
    (told,) = [each for each in found if isinstance(each, AckClient)]
    assert (told.command_id, told.reason) == ("cid", "sequence_conflict")


def test_what_a_destination_refused_is_not_forgotten_by_a_restart() -> None:
    before = Bench(destination())
    before.log_on()
    before.publish(1, 2)
    before.commit()
    found = before.take(before.machine.link_answered("peer", {OWN: {P: [(2, 2)]}}, {P: [(1, 1)]}))
    assert acks(found) == [(1, "sequence_conflict"), (2, "")]
    refused = before.machine.durability.refused
    for point in (RecoveryPoint(refused=refused.copy()), before.machine.recovery_point()):
        bench = before.restarted(point)
        bench.take(bench.machine.link_answered("peer", {OWN: {P: [(1, 2)]}}, {}))
        assert bench.log_on(low=1).durable == [(2, 2)]
        assert acks(bench.publish(1, 2)) == [(1, "sequence_conflict"), (2, "")]


def test_what_came_late_is_waited_for_whatever_its_link_believes_to_be_unavailable() -> None:
    """The link says what it was told when it connected: it has not read what came since."""
    lacked = PublisherRanges()
    lacked.add_ranges(P, [(1, 2)])
    bench = Bench(destination(), unavailable=lacked)
    assert list(bench.connect().unavailable.of(P)) == [(1, 2)]
    bench.log_on_upstream()
    bench.batch(1, 1, marked=False)
    bench.commit()
    assert list(bench.machine.missing.ranges.of(P)) == [(2, 2)], "it came late"
    bench.take(bench.machine.link_lacks("peer", {P: [(1, 2)]}))
    bench.take(bench.machine.link_answered("peer", {UNAWAITED: {P: [(1, 1)]}}, {}))
    assert not bench.machine.pending.roots.get(UNAWAITED, PublisherRanges())


def test_who_is_asked_for_its_own_root_waits_for_nobody() -> None:
    """Its clients wait themselves. An older copy of a directory, put in place, does not know that
    they did: it would wait for who waits for it, in a circle (seed 870005649)."""
    bench = Bench(destination())
    bench.log_on_upstream()
    bench.batch(1, 1, marked=False)
    bench.commit()
    told = bench.batch(2, awaited={OWN: {P: [(1, 1)]}})
    found = [*told, *(bench.commit() if bench.staged else [])]
    assert not [each for each in found if isinstance(each, NotifyLink)]
    told = [each.persisted for each in found if isinstance(each, AckUpstream)]
    assert {OWN: {P: [(1, 1)]}} in told


def test_who_asks_for_what_was_refused_is_told_so() -> None:
    bench = Bench(destination(), refused=PublisherRanges())
    bench.log_on()
    bench.publish(1, 2)
    bench.commit()
    bench.take(bench.machine.link_answered("peer", {}, {P: [(1, 1)]}))
    bench.log_on_upstream()
    noted = {UPSTREAM: {P: [(1, 2)]}}
    answers = bench.answers([], noted)
    asked = bench.machine.upstream_batch(9, 1, [], True, noted, False, 0, answers)
    assert [each for each in bench.take(asked) if isinstance(each, NotifyLink)] == []
    found = bench.commit()
    (notice,) = [each for each in found if isinstance(each, NotifyLink)]
    assert notice.awaited == {UPSTREAM: {P: [(2, 2)]}}, "nobody is asked for what was refused"
    told = [each for each in (*asked, *found) if isinstance(each, AckUpstream) and each.conflicts]
    assert [each.conflicts for each in told] == [{P: [(1, 1)]}]


def test_what_is_refused_while_a_note_of_it_is_written_is_waited_for_by_nobody() -> None:
    """It came unmarked, then marked, and is refused downstream before that is on disk."""
    bench = Bench(destination())
    bench.log_on_upstream()
    bench.batch(1, 1, 2, marked=False)
    bench.commit()
    bench.batch(2, 1, 2)
    told = bench.take(bench.machine.link_answered("peer", {}, {P: [(1, 1)]}))
    found = bench.commit()
    (notice,) = [each for each in found if isinstance(each, NotifyLink)]
    assert notice.awaited == {UPSTREAM: {P: [(2, 2)]}}
    found += bench.take(bench.machine.link_answered("peer", {UPSTREAM: {P: [(2, 2)]}}, {}))
    every = [each for each in (*told, *found) if isinstance(each, AckUpstream)]
    assert [each.conflicts for each in every if each.conflicts] == [{P: [(1, 1)]}]
    answered = [each.persisted.get(UPSTREAM) for each in every]
    assert [each for each in answered if each] == [{P: [(2, 2)]}]


def test_a_conflict_with_what_is_only_staged_is_not_told_before_its_commit() -> None:
    """It may never come to be: then what the upstream brings again is taken."""
    bench = Bench()
    bench.log_on()
    bench.publish(1)
    bench.log_on_upstream()
    found = bench.batch(1, 1, body=b"y")
    assert not [each for each in found if isinstance(each, AckUpstream)]
    told = [each for each in bench.commit() if isinstance(each, AckUpstream)]
    assert [(each.number, each.conflicts) for each in told] == [(1, {P: [(1, 1)]})]


def test_what_conflicted_with_a_commit_that_failed_is_taken_when_it_comes_again() -> None:
    bench = Bench()
    bench.log_on()
    bench.publish(1)
    bench.log_on_upstream()
    bench.batch(1, 1, body=b"y")
    failed = bench.take(bench.machine.append_failed(1, "storage_full", "no space", 0))
    bench.staged.clear()
    assert not [each for each in failed if isinstance(each, AckUpstream)]
    bench.log_on_upstream()
    bench.batch(1, 1, body=b"y")
    (ack,) = [each for each in bench.commit() if isinstance(each, AckUpstream)]
    assert not ack.conflicts and ack.persisted == {UPSTREAM: {P: [(1, 1)]}}


def test_who_brings_another_content_waits_for_it_for_no_root() -> None:
    """Beside the root that the run's own flag names, a batch may name others."""
    bench = Bench(destination())
    bench.log_on()
    bench.publish(1, 2)
    bench.commit()
    bench.log_on_upstream()
    bench.batch(1, 1, 2, body=b"y", awaited={0xD: {P: [(1, 2)]}})
    assert not bench.staged or {run.kind for run in bench.staged} == {Kind.CONFLICT}
    assert 0xD not in bench.machine.pending.roots


def test_a_record_of_another_publisher_is_refused_whole() -> None:
    bench = Bench()
    bench.machine.client_logged_on(1, "someone else", 0)
    with pytest.raises(RemoteProtocolError, match="another publisher"):
        bench.publish(1)
    assert bench.staged == []


@pytest.mark.covers("The replication chapters", "it relies on the transaction log")
def test_topics_that_are_not_journaled_are_handed_back_and_count_as_durable() -> None:
    bench = Bench()
    bench.log_on()
    payload = RecordBuilder(P, "chatter", "json").build(1, b"x", 0)
    runs = bench.machine.client_runs(1, payload)
    effects, transient = bench.machine.client_published(1, runs, 0, LookupResult())
    assert [run.topic for run in transient] == [b"chatter"]
    assert acks(bench.take(effects)) == [(1, "")]


@pytest.mark.parametrize("asks", [True, False])
def test_who_asked_in_vain_hears_when_others_bring_it(asks: bool) -> None:
    """It sent nothing twice before: nobody else is told what comes by others."""
    bench = Bench()
    bench.log_on_upstream()
    bench.batch(1, 1)
    bench.commit()
    other = bench.machine.upstream_logged_on(8, "other", "g", OTHER, "own", 1)
    assert other
    if asks:
        bench.batch(2, awaited={UPSTREAM: {P: [(2, 3)]}})
    payload = b"".join(RecordBuilder(P, "orders", "json").build(n, b"x", 0) for n in (2, 3))
    runs = [run_of(chunk, payload) for chunk in scan(payload)]
    answers = bench.answers(runs)
    bench.take(bench.machine.upstream_batch(8, 1, runs, False, {}, False, 0, answers))
    told = [each for each in bench.commit() if isinstance(each, AckUpstream)]
    held = [each.held for each in told if each.connection == 9 and each.held]
    assert held == ([{P: [(2, 3)]}] if asks else [])


def batch_of(*topics: str) -> bytes:
    return b"".join(
        RecordBuilder(P, topic, "json").build(sequence, b"x", 0)
        for sequence, topic in enumerate(topics, 1)
    )


@pytest.mark.covers("The replication chapters", "what no transaction log takes")
def test_a_topic_that_nobody_declared_is_refused_before_the_ack_that_covers_it() -> None:
    bench = Bench(destination(), unjournaled=(TopicRule("ticks"),))
    bench.log_on()
    payload = batch_of("orders", "ordes", "ordes", "ticks", "orders", "ticks")
    runs = bench.machine.client_runs(1, payload)
    effects, transient = bench.machine.client_published(1, runs, 0, bench.answers(runs))
    assert [(run.topic, run.count) for run in transient] == [(b"ticks", 1), (b"ticks", 1)]
    (refused,) = (each for each in bench.take(effects) if isinstance(each, RefuseClient))
    assert (refused.session, refused.ranges, refused.reason) == (1, [(2, 3)], "not_journaled")
    assert "'ordes'" in refused.text and "^(orders|trades)$" in refused.text
    bench.commit()
    found = bench.take(bench.machine.link_answered("peer", {OWN: {P: [(1, 1)]}}, {}))
    # Only those that it covers, though the last one was delivered, too.
    assert [(e.sequence, e.unjournaled) for e in found if isinstance(e, AckClient)] == [(4, 1)]
    assert bench.machine.counters.persisted == 1
    found = bench.take(bench.machine.link_answered("peer", {OWN: {P: [(5, 5)]}}, {}))
    assert [(e.sequence, e.unjournaled) for e in found if isinstance(e, AckClient)] == [(6, 1)]
    assert bench.machine.counters.persisted == bench.machine.counters.published == 2


def test_a_batch_of_nothing_but_refused_publishes_is_answered_at_once() -> None:
    bench = Bench(unjournaled=())
    bench.log_on()
    effects = bench.publish(1, 2, 3, topic="ordes")
    assert [type(each) for each in effects] == [RefuseClient, AckClient]
    assert effects[0].ranges == [(1, 3)] and acks(effects) == [(3, "")]
    assert not bench.machine.counters.persisted


def test_the_waiter_is_answered_when_durable_and_others_when_stored() -> None:
    bench = Bench(destination())
    bench.log_on_upstream()
    assert answers(bench.batch(1, 1)) == []
    stored = answers(bench.commit())
    assert stored == [(1, {})], "stored gives back the window, nothing is answered"
    found = bench.take(bench.machine.link_answered("peer", {UPSTREAM: {P: [(1, 1)]}}, {}))
    assert answers(found) == [(1, {UPSTREAM: {P: [(1, 1)]}})]


def test_a_gap_in_the_batches_is_refused() -> None:
    bench = Bench()
    bench.log_on_upstream()
    (closed,) = [e for e in bench.batch(2, 1) if isinstance(e, CloseUpstream)]
    assert closed.reason == "gap"
    assert bench.batch(1, 1) == [], "the connection is gone"


def test_who_may_not_connect_is_told_why() -> None:
    refuse = Bench().machine.refuse_upstream
    assert refuse("up", "g", UPSTREAM, "d", 2, 1) is None
    for arguments, reason in (
        (("up", "other", UPSTREAM, "d", 2, 1), "group"),
        (("up", "g", OWN, "d", 2, 1), "self"),
        (("up", "g", UPSTREAM, "d", 1, 1), "stale_epoch"),
    ):
        refused = refuse(*arguments)
        assert refused is not None and refused[0] == reason and "up" in refused[1]


def test_a_failed_commit_forgets_what_was_staged_and_closes_who_sent_it() -> None:
    bench = Bench()
    bench.log_on()
    bench.log_on_upstream()
    bench.publish(1)
    bench.batch(1, 2)
    bench.staged.clear()
    found = bench.take(bench.machine.append_failed(1, "storage_full", "no space", 0))
    assert {type(e) for e in found} >= {CloseSession, CloseUpstream}
    assert bench.machine.next_txid == 1
    answer = bench.log_on(2, low=1)
    assert (answer.durable, answer.highest) == ([], 0)


@pytest.mark.covers("Journal", "a commit that failed takes nothing with it that was committed")
def test_what_was_committed_ahead_of_a_failure_is_not_forgotten_with_it() -> None:
    """The writer thread committed, then failed, and the loop hears of both at once."""
    bench = Bench()
    bench.log_on()
    bench.publish(1, 2)
    bench.journal.runs += bench.staged
    bench.staged.clear()
    bench.publish(3)
    bench.staged.clear()
    found = bench.take(bench.machine.append_failed(3, "storage_full", "no space", 0))
    assert acks(found) == [(2, "")] or bench.log_on(2, low=1).durable == [(1, 2)]
    assert (bench.machine.committed_txid, bench.machine.next_txid) == (2, 3)
    assert bench.log_on(2, low=1).highest == 2


def test_a_recovery_point_holds_nothing_that_is_only_staged() -> None:
    bench = Bench(destination())
    bench.log_on()
    bench.publish(1)
    bench.commit()
    bench.publish(2)
    point = bench.machine.recovery_point()
    assert (point.durable_txid, point.committed_txid) == (0, 1), "1 is owed"
    assert list(point.awaited.of(OWN).of(P)) == [(1, 1)]
    (waiting,) = point.waiting
    assert (waiting.root, waiting.publisher, list(waiting.ranges)) == (OWN, P, [(1, 1)])


@pytest.mark.covers("Replication", "a restart goes on from what was written down")
def test_what_is_settled_does_not_wait_again_because_of_one_message() -> None:
    """20,000 messages are durable; one of the first, which had come unmarked, is published here
    again and waits for its peer when the instance dies."""
    bench = Bench(destination())
    bench.connect()
    bench.log_on_upstream()
    bench.batch(1, 1, marked=False)
    bench.batch(2, 2, marked=False)
    bench.commit()
    bench.take(bench.machine.link_answered("peer", {UNAWAITED: {P: [(1, 2)]}}, {}))
    bench.log_on()
    bench.publish(*range(3, 20_003))
    bench.commit()
    bench.take(bench.machine.link_answered("peer", {OWN: {P: [(3, 20_002)]}}, {}))
    bench.take(bench.machine.link_progressed("peer", 20_002, {}, True, 0, 0))
    assert bench.machine.removable_before() == 20_003
    bench.publish(2)
    bench.commit()
    assert [list(ranges) for ranges in bench.machine.pending.of(OWN).sets.values()] == [[(2, 2)]]
    assert bench.machine.removable_before() == 2, "not before the record of what waits"
    bench.publish(20_003)
    bench.commit()

    after = bench.restarted(bench.machine.recovery_point())
    assert after.machine.pending.count == after.machine.destinations["peer"].unacked.count == 2
    assert after.machine.durable_floor() == 1
    after.connect((1, 20_003))
    assert after.log_on(low=1).durable == [(3, 20_002)]
    found = after.take(after.machine.link_answered("peer", {OWN: {P: [(2, 2)]}}, {}))
    assert not acks(found), "nothing was published on this connection"
    after.publish(20_003)
    found = after.take(after.machine.link_answered("peer", {OWN: {P: [(20_003, 20_003)]}}, {}))
    assert acks(found) == [(20_003, "")]
    assert after.machine.durable_floor() == after.machine.committed_txid


def test_what_waits_at_a_recovery_point_waits_for_the_destinations_of_now() -> None:
    """Of a configuration that was changed meanwhile; and what is not routed to one is durable."""
    bench = Bench(destination())
    bench.log_on()
    bench.publish(1)
    bench.commit()
    point = bench.machine.recovery_point()
    alone = bench.restarted(point)
    assert list(alone.machine.destinations["peer"].unacked.of(OWN).items()) == [(P, (1, 1))]
    after = Bench(next_txid=2, held=bench.machine.held(), awaited=point.awaited)
    after.machine.restore(point.waiting, point.durable_txid, 0)
    assert not after.machine.pending and after.log_on(low=1).durable == [(1, 1)]


def test_late_is_seen_behind_a_restart() -> None:
    before = Bench()
    before.log_on_upstream()
    before.batch(1, 5, 6)
    before.commit()
    held = before.machine.held()
    after = Bench(next_txid=3, held=held)
    after.journal.runs += before.committed
    after.log_on_upstream()
    after.batch(1, 2)
    assert [bool(run.flags & Flag.LATE) for run in after.staged] == [True]
    after.batch(2, 7)
    assert [bool(run.flags & Flag.LATE) for run in after.staged] == [True, False]


def test_a_clock_that_is_set_changes_what_records_bear_and_nobodys_age() -> None:
    bench = Bench(destination(), policy=DowngradePolicy(age_ms=1_000))
    bench.log_on()
    bench.connect()
    bench.machine.wall_offset_us = 3_600 * SECOND_US
    bench.publish(1)
    assert bench.staged[0].receive_time_us == 3_600 * SECOND_US
    bench.commit()
    assert acks(bench.take(bench.machine.tick(SECOND_US // 2))) == []
    assert acks(bench.take(bench.machine.tick(2 * SECOND_US))) == [(1, "")]


def test_what_came_from_a_server_is_not_owed_by_it_once_it_is_known() -> None:
    """Committed before the link to it connected for the first time."""
    bench = Bench(destination())
    bench.log_on_upstream()
    bench.batch(1, 1)
    bench.commit()
    assert bench.machine.destinations["peer"].unacked.count == 1
    found = bench.machine.link_connected(
        "peer", UPSTREAM, ResyncPlan(PublisherRanges(), RootedRanges()), 0
    )
    start = found[1]
    bench.take(found[0])
    asked = start.notice or start.mark
    settled = not bench.machine.destinations["peer"].unacked
    assert settled or asked, "settled at once, or asked by the link"


def test_a_downgrade_tells_clients_before_it_acks_them() -> None:
    bench = Bench(destination(), policy=DowngradePolicy(100))
    bench.log_on()
    bench.connect()
    bench.publish(1)
    bench.commit()
    assert acks(bench.take(bench.machine.tick(50_000))) == []
    found = bench.take(bench.machine.tick(SECOND_US))
    kinds = [type(effect) for effect in found]
    assert kinds.index(SafetyChanged) < kinds.index(AckClient)
    assert acks(found) == [(1, "")]


@pytest.mark.covers("The replication chapters", "MinSyncDestinations refuses a downgrade")
def test_no_downgrade_below_the_minimum() -> None:
    bench = Bench(destination(), policy=DowngradePolicy(100, None, 1))
    bench.log_on()
    bench.publish(1)
    bench.commit()
    assert acks(bench.take(bench.machine.tick(SECOND_US))) == []


@pytest.mark.covers("The replication chapters", "MinSyncDestinations refuses a downgrade")
def test_the_minimum_refuses_a_downgrade_by_hand_unless_it_is_forced() -> None:
    bench = Bench(destination(), policy=DowngradePolicy(100, None, 1))
    bench.log_on()
    bench.publish(1)
    bench.commit()
    with pytest.raises(DowngradeRefused, match="MinSyncDestinations is 1"):
        bench.machine.downgrade("peer", 0)
    assert bench.machine.destinations["peer"].sync
    assert acks(bench.take(bench.machine.downgrade("peer", 0, force=True))) == [(1, "")]


@pytest.mark.covers("The replication chapters", "MinSyncDestinations refuses a downgrade")
def test_fewer_than_the_minimum_are_no_reason_for_an_upgrade() -> None:
    """Of two the one that was not downgraded is lost: the other one, connected and behind, stays
    as it is."""
    other = DestinationRoute("other", "g", True, pass_through=".*", addresses=("other",))
    bench = Bench(destination(), other, policy=DowngradePolicy(60_000, 100, 1))
    bench.log_on()
    bench.publish(1)
    bench.commit()
    bench.take(bench.machine.downgrade("peer", 0))
    bench.connect()
    bench.take(bench.machine.link_disconnected("other", "lost"))
    for at_us in range(SECOND_US, 60 * SECOND_US, SECOND_US):
        bench.take(bench.machine.tick(at_us))
        assert not bench.machine.destinations["peer"].sync
    # Nor does a force that leaves none.
    bench.take(bench.machine.downgrade("other", 0, force=True))
    bench.take(bench.machine.tick(60 * SECOND_US))
    assert not any(ledger.sync for ledger in bench.machine.destinations.values())


@pytest.mark.parametrize("by_age_before", [False, True])
def test_a_downgrade_by_hand_lasts_until_an_upgrade_by_hand(by_age_before: bool) -> None:
    """An operator takes a destination out for maintenance: it answers at once, and is upgraded by
    no age. So where an age had downgraded it before."""
    bench = Bench(destination(), policy=DowngradePolicy(100, 50))
    bench.log_on()
    bench.connect()
    peer = bench.machine.destinations["peer"]
    if by_age_before:
        bench.publish(1)
        bench.commit()
        bench.take(bench.machine.tick(SECOND_US))
        bench.take(bench.machine.tick(2 * SECOND_US))
        assert not peer.sync
    bench.take(bench.machine.downgrade("peer", 2 * SECOND_US))
    bench.take(bench.machine.link_answered("peer", {OWN: {P: [(1, 1)]}}, {}))
    for at_us in range(3 * SECOND_US, 20 * SECOND_US, SECOND_US):
        bench.take(bench.machine.tick(at_us))
        assert not peer.sync and peer.downgraded_by_hand
    bench.take(bench.machine.upgrade("peer", 20 * SECOND_US))
    assert peer.sync and not peer.downgraded_by_hand
    bench.publish(2)
    bench.commit()
    bench.take(bench.machine.tick(21 * SECOND_US))
    bench.take(bench.machine.tick(22 * SECOND_US))
    assert not peer.sync and not peer.downgraded_by_hand, "by age, as before"


def test_a_refused_downgrade_by_age_is_told_once() -> None:
    bench = Bench(destination(), policy=DowngradePolicy(100, None, 1))
    bench.log_on()
    bench.publish(1)
    bench.commit()
    told = [
        effect
        for at_us in (SECOND_US, 2 * SECOND_US, 3 * SECOND_US)
        for effect in bench.take(bench.machine.tick(at_us))
        if isinstance(effect, EventReport) and effect.event == "downgrade_refused"
    ]
    assert len(told) == 1


@pytest.mark.covers("Replication", "downgraded at once on evidence")
def test_a_refused_downgrade_by_evidence_is_told_once_for_each_connection() -> None:
    """Evidence comes again at each attempt to connect, with ticks between, that find nothing owed
    or nothing old."""
    bench = Bench(destination(), policy=DowngradePolicy(3_600_000, None, 1))
    machine = bench.machine
    bench.log_on()
    told = []
    for times in range(2):
        bench.connect()
        bench.take(machine.tick(0))
        bench.take(machine.link_disconnected("peer", "lost"))
        for at_us in (SECOND_US, 2 * SECOND_US, 3 * SECOND_US):
            found = [
                *bench.take(machine.process_ended("peer", at_us, "its process has ended")),
                *bench.take(machine.tick(at_us)),
            ]
            told += [e for e in found if isinstance(e, EventReport) and "downgrade" in e.event]
        assert [report.event for report in told] == ["downgrade_refused"] * (times + 1)
    assert machine.destinations["peer"].sync


def test_in_the_grace_period_a_destination_stays_sync() -> None:
    bench = Bench(destination(), policy=DowngradePolicy(100, grace_period_ms=5_000))
    bench.log_on()
    bench.publish(1)
    bench.commit()
    assert acks(bench.take(bench.machine.tick(0))) == []
    assert acks(bench.take(bench.machine.tick(4 * SECOND_US))) == []
    assert acks(bench.take(bench.machine.tick(5 * SECOND_US))) == [(1, "")]


def test_an_upgrade_asks_again_for_what_is_pending() -> None:
    other = DestinationRoute("other", "g", True, pass_through=".*", addresses=("other",))
    bench = Bench(destination(), other)
    bench.log_on()
    bench.publish(1)
    bench.commit()
    bench.take(bench.machine.downgrade("peer", 0))
    found = bench.take(bench.machine.upgrade("peer", 0))
    (notice,) = [e for e in found if isinstance(e, NotifyLink)]
    assert (notice.destination, notice.awaited) == ("peer", {OWN: {P: [(1, 1)]}})
    assert acks(bench.take(bench.machine.link_answered("other", {OWN: {P: [(1, 1)]}}, {}))) == []


def test_what_a_link_sent_before_it_heard_of_an_upgrade_is_asked_for() -> None:
    """The writer thread wakes a link ahead of the machine. What the link still sends unmarked, and
    the machine takes as committed after the upgrade, is answered as stored only: without a notice
    it would be owed for ever."""
    bench = Bench(destination())
    bench.log_on()
    bench.take(bench.machine.downgrade("peer", 0))
    bench.publish(1, 2, 3)
    bench.take(bench.machine.upgrade("peer", 0))
    bench.commit()
    found = bench.take(bench.machine.link_answered("peer", {UNAWAITED: {P: [(1, 2)]}}, {}))
    assert acks(found) == []
    (notice,) = [effect for effect in found if isinstance(effect, NotifyLink)]
    assert (notice.destination, notice.awaited) == ("peer", {OWN: {P: [(1, 2)]}})
    found = bench.take(bench.machine.link_answered("peer", {OWN: {P: [(1, 3)]}}, {}))
    assert acks(found) == [(3, "")]
    assert not bench.machine.destinations["peer"].unacked
    # Where nobody waits for an answer nothing is asked.
    bench.take(bench.machine.downgrade("peer", 0))
    bench.publish(4)
    bench.commit()
    found = bench.take(bench.machine.link_answered("peer", {UNAWAITED: {P: [(4, 4)]}}, {}))
    assert not [effect for effect in found if isinstance(effect, NotifyLink)]


@pytest.mark.covers("The replication chapters", "delivery is guaranteed")
def test_nothing_is_removable_before_every_destination_has_caught_up() -> None:
    bench = Bench(destination(sync=False))
    bench.log_on()
    bench.publish(1, 2)
    bench.commit()
    assert bench.machine.removable_before() == 0
    bench.connect()
    bench.take(bench.machine.link_progressed("peer", 1, {}, True, 0, 0))
    assert bench.machine.removable_before() == 2


def floors(effects: list[Any]) -> list[int]:
    return [effect.before_txid for effect in effects if isinstance(effect, RemovalBound)]


def test_what_waits_again_is_kept_from_then_on() -> None:
    """The server that is asked may be gone before it answers: the next one of a list is to be sent
    it. The next look may come when retention has removed it."""
    bench = Bench(destination(), policy=DowngradePolicy())
    bench.log_on_upstream()
    bench.batch(1, 1, 2, marked=False)
    bench.commit()
    bench.connect((1, 2))
    bench.take(bench.machine.link_progressed("peer", 2, {}, True, 0, 0))
    bench.take(bench.machine.link_answered("peer", {UNAWAITED: {P: [(1, 2)]}}, {}))
    assert floors(bench.take(bench.machine.tick(SECOND_US))) == [3]
    bench.batch(2, awaited={UPSTREAM: {P: [(2, 2)]}})
    assert floors(bench.commit()) == [1], "the run that it is in"
    bench.take(bench.machine.link_answered("peer", {UPSTREAM: {P: [(2, 2)]}}, {}))
    bench.take(bench.machine.link_progressed("peer", 3, {}, True, 0, 0))
    assert floors(bench.take(bench.machine.tick(2 * SECOND_US))) == [4]


def test_a_link_that_is_lost_or_made_anew_takes_the_floor_for_removal_back_at_once() -> None:
    """The next look may come when retention has removed what the other side has lost."""
    bench = Bench(destination(sync=False), policy=DowngradePolicy())
    assert floors(bench.take(bench.machine.tick(0))) == [], "nothing is released at a start"
    bench.log_on()
    bench.publish(1, 2)
    bench.commit()
    bench.connect()
    bench.take(bench.machine.link_progressed("peer", 2, {}, True, 0, 0))
    assert floors(bench.take(bench.machine.tick(SECOND_US))) == [3]
    assert floors(bench.take(bench.machine.tick(2 * SECOND_US))) == [], "told once"
    assert floors(bench.take(bench.machine.link_disconnected("peer", "gone"))) == [0]
    # Also where nobody saw the other connection end.
    bench.connect()
    bench.take(bench.machine.link_progressed("peer", 2, {}, True, 0, 0))
    assert floors(bench.take(bench.machine.tick(3 * SECOND_US))) == [3]
    there = PublisherRanges()
    effects, _ = bench.machine.link_connected("peer", 0xBB, ResyncPlan(there, RootedRanges()), 0)
    assert floors(bench.take(effects)) == [0]


def test_publishers_that_the_server_numbers_are_of_its_incarnation() -> None:
    bench = Bench()
    publisher, sequence = bench.machine.number_for("p")
    assert sequence == 1 and publisher == unnumbered_publisher_id("p", OWN, 0)


def test_an_address_of_two_servers_is_found_out_and_told_once() -> None:
    bench = Bench(destination(sync=False))
    machine = bench.machine
    ledger = machine.destinations["peer"]
    told = []
    for incarnation, server in ((1, "b1"), (2, "b1"), (3, "b2"), (4, "b1"), (5, "b3")):
        effects, _ = machine.link_connected(
            "peer", incarnation, ResyncPlan(PublisherRanges(), RootedRanges()), 0, server
        )
        told += [e for e in effects if isinstance(e, EventReport) and e.event == "several_servers"]
        assert ledger.has_several_servers == (incarnation > 2), "a lost disk is no other server"
    assert [report.details["servers"] for report in told] == [["b1", "b2"], ["b1", "b2", "b3"]]
    again = Bench(destination(sync=False), servers={"peer": ["b1", "b2"]})
    assert again.machine.destinations["peer"].has_several_servers


def test_what_a_server_of_several_has_not_answered_keeps_the_journal() -> None:
    """It is on disk there. Of one server that is enough."""
    for several in (False, True):
        bench = Bench(replace(destination(sync=False), wide_ip=several))
        bench.log_on()
        bench.publish(1, 2, 3)
        bench.commit()
        bench.connect()
        bench.take(bench.machine.link_progressed("peer", 3, {}, True, 0, 0))
        assert bench.machine.removable_before() == (1 if several else 4)
        bench.take(bench.machine.link_answered("peer", {UNAWAITED: {P: [(1, 3)]}}, {}))
        assert bench.machine.removable_before() == 4
        # A restart: what the server holds and has not answered, it says itself.
        waited = RootedRanges()
        waited.of(UNAWAITED).add(P, 2, 3)
        held = PublisherRanges()
        held.add(P, 1, 3)
        bench.take(bench.machine.link_connected("peer", PEER, ResyncPlan(held, waited), 0)[0])
        bench.take(bench.machine.link_progressed("peer", 3, {}, True, 0, 0))
        assert bench.machine.removable_before() == (0 if several else 4)
        bench.take(bench.machine.link_answered("peer", {UNAWAITED: {P: [(2, 3)]}}, {}))
        assert bench.machine.removable_before() == 4


def went_back(effects: list[Any]) -> list[str]:
    return [effect.text for effect in effects if isinstance(effect, StaleCopyDetected)]


def test_who_lacks_what_went_through_it_begins_anew() -> None:
    bench = Bench()
    bench.log_on()
    bench.publish(1, 2, 3)
    bench.commit()
    bench.log_on_upstream()
    # Committed since it said what it holds: that is no news.
    assert not went_back(bench.take(bench.machine.upstream_shows(9, {P: [(2, 3)]})))
    effects = bench.take(bench.machine.upstream_shows(9, {P: [(2, 5)], 7: [(1, 1)]}))
    (text,) = went_back(effects)
    assert f"{P}|4| to {P}|5|" in text and "up has messages" in text
    assert [e.reason for e in effects if isinstance(e, CloseSession)] == ["not_ready"]
    assert [e.reason for e in effects if isinstance(e, CloseUpstream)] == ["not_ready"]
    assert bench.machine.refuse_upstream("up", "g", UPSTREAM, "own", 9, 0) == ("not_ready", text)
    assert not went_back(bench.take(bench.machine.epoch_refused("peer"))), "once"


def test_who_gives_out_epochs_again_begins_anew() -> None:
    bench = Bench(destination())
    (text,) = went_back(bench.take(bench.machine.epoch_refused("peer")))
    assert "peer has seen later connections" in text


def test_what_clients_published_under_a_former_incarnation_was_published_here() -> None:
    bench = Bench(destination())
    bench.log_on()
    bench.publish(1, 2, 3)
    bench.commit()
    noted = encode_note(OWN, 0, P, [(1, 1)])
    noted.first_txid = 4
    awaited = RootedRanges()
    awaited.of(OWN).add(P, 1, 1)
    machine = begun_anew(bench, RecoveryPoint(awaited=awaited, incarnation=OWN))
    machine.recover([bench.committed[0], noted], 0)
    assert set(machine.awaited.roots) == {0xA2}
    assert list(machine.awaited.of(0xA2).of(P)) == [(1, 3)]
    assert list(machine.pending.of(0xA2).of(P)) == [(1, 3)]


def test_what_peers_brought_back_under_a_former_incarnation_waits_for_them() -> None:
    """It began where that one is over: whoever brought it waits here, and for its own root this
    instance owes nobody anything."""
    bench = Bench(destination())
    bench.log_on()
    bench.publish(1, 2, 3)
    bench.commit()
    route = Route(UPSTREAM, b"orders", b"json", (OWN, UPSTREAM), "g", 0)
    awaited = RootedRanges()
    awaited.of(OWN).add(P, 1, 1)
    waiting = WaiterTable()
    waiting.assign(OWN, route, P, [(1, 1)])
    point = RecoveryPoint(awaited=awaited, waiting=waiting, incarnation=0xA2)
    noted = encode_note(OWN, UPSTREAM, P, [(2, 2)])
    noted.first_txid = 4
    for behind in ([noted], []):
        machine = begun_anew(bench, point)
        machine.restore(point.waiting, 0, 0)
        machine.recover(behind, 0)
        assert 0xA2 not in machine.awaited.roots and 0xA2 not in machine.pending.roots
        assert list(machine.pending.of(OWN).of(P)) == [(1, 2)]
        assert machine.client_logged_on(1, CLIENT_NAME, 1).durable == []
        point = machine.recovery_point()


def begun_anew(bench: Bench, point: RecoveryPoint) -> InstanceMachine:
    """What becomes of a bench that begins anew as 0xA2 from this point."""
    held = PublisherRanges()
    held.add(P, 1, 3)
    return InstanceMachine(
        Identity("own", "g", 0xA2),
        [destination()],
        TopicBook((TopicRule("orders"),)),
        next_txid=5,
        held=held,
        awaited=point.read_by(0xA2).awaited,
        lookup=bench.journal,
        former=[OWN],
    )


class Louder:
    """A state that notes what it is told, and adds to what it is to prepare."""

    def __init__(self, *bad: int) -> None:
        self.told: list[tuple[str, int, int]] = []
        self.bad = bad

    def looks_for(self, run: Run, permission: object = None) -> tuple[()]:
        return ()

    def prepare(
        self,
        run: Run,
        now_us: int,
        steady_us: int,
        permission: WritePermission | None = None,
    ) -> PreparedRun:
        self.told.append(("prepare", run.first_sequence, now_us))
        records = list(iterate_records(run.payload))
        left = [(each, each.body + b"!") for each in records if each.sequence not in self.bad]
        found = [each.sequence for each in records if each.sequence in self.bad]
        refused = [RefusedRecords([(each, each)], "bad_message", f"no {each}") for each in found]
        return left_of(run, left, refused)

    def staged(self, run: Run) -> None:
        assert run.first_txid and all(each.body for each in iterate_records(run.payload))
        self.told.append(("staged", run.first_sequence, run.last_txid))

    def failed(self, committed_txid: int) -> None:
        self.told.append(("failed", 0, committed_txid))

    def take(self) -> list[tuple[str, int, int]]:
        told, self.told = self.told, []
        return told


def test_what_comes_new_to_a_topic_with_state_is_prepared_once_and_staged() -> None:
    state = Louder()
    bench = Bench(stateful=[(TopicRule("orders"), state)])
    bench.machine.wall_offset_us = 70
    bench.log_on()
    bench.publish(1, 2)
    bench.publish(3, topic="trades")
    assert state.take() == [("prepare", 1, 70), ("staged", 1, 2)]
    bench.commit()
    assert [run.payload.count(b"x!") for run in bench.committed] == [2, 0]
    bench.publish(2, 4, 5)
    assert state.take() == [("prepare", 4, 70), ("staged", 4, 5)], "what is held is not made anew"
    bench.log_on_upstream()
    bench.batch(1, 5, 6)
    assert state.take() == [("staged", 6, 6)], "it was prepared where it was published"
    assert bench.machine.counters.conflicts == 0, "what came is the same, whatever was made of it"
    payload = RecordBuilder(8, "orders", "json").build(1, b"x", 0)
    run = run_of(scan(payload)[0], payload)
    bench.take(bench.machine.client_published_unnumbered(1, run, "", 0)[0])
    assert state.take() == [("prepare", 1, 70), ("staged", 1, 8)], "a note lies between"
    author = SelfPublisher("sim", bench.machine.identity)
    author.draft("orders", "json", b"own", 0)
    bench.take(bench.machine.authored(author.runs(), 0))
    assert state.take() == [("staged", 1, 9)], "it is as it is to be"


def refusals(effects: list[Any]) -> list[tuple[list[tuple[int, int]], str, str]]:
    return [
        (each.ranges, each.reason, each.text) for each in effects if isinstance(each, RefuseClient)
    ]


@pytest.mark.covers("SOW", "what clients publish to a SOW topic")
def test_what_a_state_refuses_is_told_and_changes_nothing() -> None:
    bench = Bench(stateful=[(TopicRule("orders"), Louder(2, 4, 6))])
    bench.log_on()
    # New, then partly known.
    for sequences, bad in (((1, 2, 3), 2), ((3, 4, 5), 4)):
        told = bench.publish(*sequences)
        assert refusals(told) == [([(bad, bad)], "bad_message", f"no {bad}")]
        assert acks(told) == [], "before the ack that covers it"
        assert acks(bench.commit()) == [(sequences[-1], "")]
    assert [run.ranges() for run in bench.committed] == [[(1, 1), (3, 3)], [(5, 5)]]
    assert bench.machine.held().of(P) == SequenceSet([(1, 1), (3, 3), (5, 5)])
    counters = bench.machine.counters
    assert (counters.published, counters.persisted, counters.duplicates) == (4, 3, 1)
    # With nothing on its way to the disk the ack comes at once, behind the refusal.
    first, second = bench.publish(6)
    assert isinstance(first, RefuseClient) and isinstance(second, AckClient)
    assert (first.ranges, second.sequence, counters.persisted) == ([(6, 6)], 6, 3)


def test_what_a_state_refuses_of_the_server_s_numbers_is_returned() -> None:
    bench = Bench(stateful=[(TopicRule("orders"), Louder(1))])
    bench.log_on()
    publisher, sequence = bench.machine.number_for(CLIENT_NAME)
    payload = RecordBuilder(publisher, "orders", "json").build(sequence, b"x", 0)
    run = run_of(scan(payload)[0], payload)
    effects, refused = bench.machine.client_published_unnumbered(1, run, "cid", 0)
    assert effects == [] and refused is not None and refused.reason == "bad_message"
    assert bench.machine.number_for(CLIENT_NAME) == (publisher, sequence), "it is free"
    assert bench.machine.counters.published == 0


@pytest.mark.parametrize("topic", ["orders", "trades", "quotes", "nowhere"])
def test_nothing_is_deleted_where_nothing_is_kept(topic: str) -> None:
    unjournaled = (TopicRule("quotes"),)
    bench = Bench(stateful=[(TopicRule("orders"), Louder())], unjournaled=unjournaled)
    bench.log_on()
    told = bench.publish(1, topic=topic, command=Command.DELETE)
    reasons = [reason for _, reason, _ in refusals(told)]
    assert reasons == {"orders": [], "nowhere": ["not_journaled"]}.get(topic, ["no_sow"])
    payload = RecordBuilder(8, topic, "json").build(1, b"x", 0, command=Command.DELETE)
    run = run_of(scan(payload)[0], payload)
    _, refused = bench.machine.client_published_unnumbered(1, run, "", 0)
    assert [refused.reason] == reasons if refused else topic == "orders"


def test_a_state_hears_of_what_never_came_to_the_disk() -> None:
    state = Louder()
    bench = Bench(stateful=[(TopicRule("orders"), state), (TopicRule("trades"), state)])
    bench.log_on()
    bench.publish(1, 2)
    bench.commit()
    bench.publish(3, 4, 5)
    state.take()
    bench.machine.append_failed(4, "storage_full", "no space", 0)
    assert state.take() == [("failed", 0, 3)], "once, and what is below was committed"


def test_a_batch_in_parts_is_acked_behind_its_last_one() -> None:
    """Its parts are on disk long before, and what waits for nobody else is answered with it."""
    bench = Bench()
    bench.log_on_upstream()
    whole = Bench()
    whole.log_on_upstream()
    found = [bench.batch(1, 1, 2, is_part=True), bench.commit(), bench.batch(1, 3, is_part=True)]
    assert not any(each.number for effects in found for each in effects if _is_ack(each))
    bench.commit()
    bench.batch(1, 4, 5, is_part=False)
    (last,) = [each for each in bench.commit() if _is_ack(each)]
    whole.batch(1, 1, 2, 3, 4, 5)
    (at_once,) = [each for each in whole.commit() if _is_ack(each)]
    assert last.number == at_once.number == 1
    said = PublisherRanges()
    for effects in (*found, [last]):
        for each in effects:
            for ranges in each.persisted.values() if _is_ack(each) else ():
                said.add_ranges(P, ranges[P])
    assert list(said.items()) == [(P, (1, 5))]
    assert bench.machine.held() == whole.machine.held()


def test_a_batch_that_ends_between_its_parts_is_not_acked_and_comes_again() -> None:
    bench = Bench()
    bench.log_on_upstream()
    bench.batch(1, 1, 2, is_part=True)
    bench.machine.upstream_left(9)
    assert not any(_is_ack(each) for each in bench.commit())
    bench.log_on_upstream()
    bench.batch(1, 1, 2, 3)
    (ack,) = [each for each in bench.commit() if _is_ack(each)]
    assert ack.number == 1 and [run.ranges() for run in bench.committed] == [[(1, 2)], [(3, 3)]]


def test_a_part_of_a_batch_that_is_not_due_ends_the_connection() -> None:
    bench = Bench()
    bench.log_on_upstream()
    bench.batch(1, 1, is_part=True)
    (closed,) = [each for each in bench.batch(2, 2) if isinstance(each, CloseUpstream)]
    assert closed.reason == "gap"


def _is_ack(effect: Any) -> bool:
    return isinstance(effect, AckUpstream)
