"""The queues of an instance: what their owners draft, what clients may write on their topics."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest

from raylay.services.core import queues as core_queues
from raylay.services.core.batch import CommitBatch
from raylay.services.core.fold_backlog import RunParts
from raylay.services.core.queues import Queues
from raylay.services.errors import LocalProtocolError
from raylay.services.expressions.functions.registry import NO_CONTEXT, EvalContext
from raylay.services.messages.records import (
    RECORD_BYTES_MAX,
    Command,
    Flag,
    RecordBuilder,
    Run,
    iterate_records,
    publisher_id,
    run_of,
    scan,
)
from raylay.services.messages.stateful import PreparedRun, Stateful
from raylay.services.messages.topic_book import TopicBook
from raylay.services.messages.topics import TopicRule
from raylay.services.queues import frontend as door_module
from raylay.services.queues import records
from raylay.services.queues.checkpoint import RecoveryStart
from raylay.services.queues.decisions import (
    ConsumerSubscription,
    DeliverLeased,
    LeasedDelivery,
    QueueRecordDraft,
)
from raylay.services.queues.definition import QueueDefinition
from raylay.services.queues.machine import QueueMachine
from raylay.services.queues.records import Acknowledgment, OwnershipChange, Removal, Transfer
from raylay.services.queues.replicated_state import ReplicatedQueueState
from raylay.services.replication.values import Identity

OWN = Identity("a", "g", 0xA, life=7)


def queues(*definitions: QueueDefinition) -> Queues:
    return Queues(definitions or (QueueDefinition("work", "json"),), OWN)


class Nothing:
    """No message can be read."""

    def tree(self, txid: int) -> None:
        """None."""

    def around(self, txid: int) -> EvalContext:
        """Nowhere."""
        return NO_CONTEXT


def removal(tag: int) -> QueueRecordDraft:
    body = records.pack_removal(Removal("a", tag, {1: [(tag, tag)]}, "time_limit"))
    return QueueRecordDraft(tag, Command.QUEUE_REMOVAL, body)


def journaled(runs: Sequence[Run], first_txid: int = 1) -> list[Run]:
    for run in runs:
        run.first_txid = first_txid
        first_txid += run.count
    return list(runs)


def published(*said: tuple[int, bytes], client: str = "ann", topic: str = "work") -> Run:
    """Of commands and bodies."""
    builder = RecordBuilder(publisher_id(client), topic, "json")
    payload = b"".join(
        builder.build(at, body, 0, command=command) for at, (command, body) in enumerate(said, 1)
    )
    (chunk,) = scan(payload)
    return run_of(chunk, payload)


def ack(*keys: tuple[int, int]) -> tuple[int, bytes]:
    said = Acknowledgment(records.keys_of(keys))
    return Command.QUEUE_ACKNOWLEDGMENT, records.pack_acknowledgment(said)


# -- drafts --------------------------------------------------------------------------------------


def test_drafts_are_written_on_the_queues_topics_as_commands() -> None:
    here = queues(QueueDefinition("work", "json"), QueueDefinition("more", "json"))
    here.draft(here.frontends["json/work"], removal(5), 0)
    here.draft(here.frontends["json/more"], removal(6), 0)
    runs = here.runs()
    assert [run.topic for run in runs] == [b"work", b"more"]
    assert all(run.flags & Flag.COMMANDS for run in runs) and not here.runs()
    (record,) = iterate_records(runs[0].payload)
    assert records.read_removal(record.body).tag == 5


def test_where_an_append_fails_the_tags_of_what_is_not_on_disk_come_back() -> None:
    here = queues(QueueDefinition("work", "json"), QueueDefinition("more", "json"))
    for tag, name in ((1, "work"), (2, "more"), (3, "work")):
        here.draft(here.frontends[f"json/{name}"], removal(tag), 0)
        journaled(here.runs(), tag)
    here.draft(here.frontends["json/work"], removal(4), 0)
    assert here.failed(1) == {"json/more": [2], "json/work": [3, 4]}
    assert here.failed(0) == {"json/work": [1]} and here.failed(0) == {}


def test_what_was_committed_does_not_fail_any_more() -> None:
    here = queues()
    here.draft(here.frontends["json/work"], removal(1), 0)
    runs = journaled(here.runs())
    here.fold(CommitBatch(runs, 1))
    assert here.failed(0) == {}


def test_a_run_that_is_folded_in_turns_is_committed_with_its_last_part() -> None:
    here = queues()
    for tag in (1, 2):
        here.draft(here.frontends["json/work"], removal(tag), 0)
    (run,) = journaled(here.runs())
    parts = RunParts(run)
    here.fold(CommitBatch([parts.take(1)], 1))
    here.fold(CommitBatch([parts.take(1)], 2))
    assert here.failed(0) == {}


def test_owners_draft_what_owners_write_and_nothing_too_long() -> None:
    here = queues()
    frontend = here.frontends["json/work"]
    with pytest.raises(LocalProtocolError, match="command 1"):
        here.draft(frontend, QueueRecordDraft(1, Command.PUBLISH, b"{}"), 0)
    with pytest.raises(LocalProtocolError, match="limit"):
        here.draft(frontend, QueueRecordDraft(1, Command.TRANSFER, bytes(RECORD_BYTES_MAX)), 0)
    assert not here.runs()


def test_an_acknowledgment_by_filter_is_one_record_of_the_instance() -> None:
    here = queues()
    frontend = here.frontends["json/work"]
    assert here.acknowledge(frontend, Acknowledgment({1: [(1, 3)], 2: [(9, 9)]}, "expire"), 0) == 4
    assert here.acknowledge(frontend, Acknowledgment({}), 0) == 0
    (run,) = here.runs()
    (record,) = iterate_records(run.payload)
    assert record.command == Command.QUEUE_ACKNOWLEDGMENT
    assert records.read_acknowledgment(record.body).how == "expire"


def test_it_heralds_each_distributed_queue_once() -> None:
    here = queues(QueueDefinition("work", "json"), QueueDefinition("own", "json", kind="local"))
    assert here.announcement(0) == 1
    runs = journaled(here.runs())
    (record,) = iterate_records(runs[0].payload)
    assert records.read_transfer(record.body) == Transfer("a", 0, [], {0xA: "a"})
    here.fold(CommitBatch(runs, 1))
    assert here.announcement(0) == 0


def test_doors_hear_of_their_own_queues_only() -> None:
    here = queues(QueueDefinition("work", "json"), QueueDefinition("more", "json"))
    for frontend in here.frontends.values():
        frontend.subscribed(ConsumerSubscription((1, "s"), "ann", "", 5))
        frontend.decide(DeliverLeased((1, "s"), [LeasedDelivery(1, (1, 1), 1, 0)], 0), 0)
    here.fold(CommitBatch(journaled([published(ack((1, 1)), topic="work")]), 1))
    assert [each.lease_count for each in here.frontends.values()] == [0, 1]


# -- what is published on a queue's topic --------------------------------------------------------


def state(here: Queues) -> Stateful:
    (topics,) = here.topics()
    return topics.state


def test_acknowledgments_go_as_they_came() -> None:
    run = published(ack((1, 1)), ack((2, 2)))
    assert state(queues()).prepare(run, 0, 0) == PreparedRun((run,))


def test_what_is_no_acknowledgment_is_refused_and_the_others_go() -> None:
    run = published(ack((1, 1)), (Command.QUEUE_ACKNOWLEDGMENT, b"\xc1"), ack((1, 2)))
    runs, refused, _ = state(queues()).prepare(run, 0, 0)
    assert [each.ranges() for each in runs] == [[(1, 1), (3, 3)]]
    assert [(each.ranges, each.reason) for each in refused] == [([(2, 2)], "bad_message")]


def strict() -> Queues:
    """Ann holds (1, 2) and (1, 4), Bob (1, 3)."""
    here = queues(QueueDefinition("work", "json", strict=True))
    frontend = here.frontends["json/work"]
    for session, (name, keys) in enumerate((("ann", [2, 4]), ("bob", [3])), 1):
        frontend.subscribed(ConsumerSubscription((session, "s"), name, "", 5))
        messages = [LeasedDelivery(at, (1, at), at, 0) for at in keys]
        frontend.decide(DeliverLeased((session, "s"), messages, 0), 0)
    return here


def said_in(runs: Iterable[Run]) -> list[Acknowledgment]:
    return [
        records.read_acknowledgment(record.body)
        for run in runs
        for record in iterate_records(run.payload)
    ]


def test_where_leasing_is_strict_what_counts_as_a_whole_goes_as_it_came() -> None:
    run = published(ack((1, 2), (1, 4)))
    assert state(strict()).prepare(run, 0, 0) == PreparedRun((run,))


def test_a_lease_counts_until_its_end_by_the_clock_of_the_queues() -> None:
    """The instance's begins anew with the clock on the wall: leases would be over at once where
    that was set forward before a restart, and no acknowledgment would be taken."""
    here = queues(QueueDefinition("work", "json", strict=True))
    (frontend,) = here.frontends.values()
    frontend.behind_us = 3_600_000_000
    frontend.subscribed(ConsumerSubscription((1, "s"), "ann", "", 5))
    frontend.decide(DeliverLeased((1, "s"), [LeasedDelivery(2, (1, 2), 2, 1_000)], 0), 0)
    run = published(ack((1, 2)))
    assert state(here).prepare(run, 0, frontend.behind_us + 999) == PreparedRun((run,))
    assert not state(here).prepare(run, 0, frontend.behind_us + 1_000).runs


@pytest.mark.covers("Queues", "`Leasing` strict")
def test_what_counts_in_part_is_refused_and_the_instance_says_what_counts_of_it() -> None:
    """Cut, it would say one thing here and another thing where its client sends it again."""
    run = published(ack((1, 2)), ack((1, 1), (1, 3), (1, 4)), ack((1, 3)))
    here = strict()
    left, refused, authored = state(here).prepare(run, 0, 0)
    assert [each.ranges() for each in left] == [[(1, 1)]]
    assert said_in(left) == [Acknowledgment({1: [(2, 2)]})]
    assert said_in(authored) == [Acknowledgment({1: [(4, 4)]})] and not here.runs()
    assert [each.publisher for each in authored] != [run.publisher]
    assert [(each.ranges, each.reason) for each in refused] == [
        ([(2, 2)], "not_leased"),
        ([(3, 3)], "not_leased"),
    ]
    assert refused[0].text.startswith("2 of 3 messages are not leased to this client here")


@pytest.mark.covers("Queues", "`Leasing` strict")
def test_two_instances_never_journal_two_contents_of_one_acknowledgment() -> None:
    """A client that fails over sends the same bytes: whoever takes them journals these."""
    run = published(ack((1, 2), (1, 3)))
    elsewhere = queues(QueueDefinition("work", "json", strict=True))
    frontend = elsewhere.frontends["json/work"]
    frontend.subscribed(ConsumerSubscription((1, "s"), "ann", "", 5))
    frontend.decide(
        DeliverLeased((1, "s"), [LeasedDelivery(at, (1, at), at, 0) for at in (2, 3)], 0), 0
    )
    found = [state(here).prepare(run, 0, 0).runs for here in (strict(), queues(), elsewhere)]
    assert [list(runs) for runs in found] == [[], [run], [run]]


@pytest.mark.covers("Configuration", "who may read some of a queue acknowledges what he holds")
def test_who_may_not_read_all_acknowledges_what_he_holds_alone() -> None:
    here = queues()
    frontend = here.frontends["json/work"]
    frontend.subscribed(ConsumerSubscription((1, "s"), "ann", "", 5))
    frontend.decide(DeliverLeased((1, "s"), [LeasedDelivery(1, (1, 2), 1, 0)], 0), 0)
    run = published(
        ack((1, 2)),
        ack((1, 1), (1, 2), (1, 3)),
        (Command.QUEUE_ACKNOWLEDGMENT, b"\xc1"),
        ack((1, 3)),
    )
    (made,), refused, authored = core_queues.held_only(here, frontend, run, 0)
    assert made.ranges() == [(1, 1), (3, 3)] and said_in(authored) == [
        Acknowledgment({1: [(2, 2)]})
    ]
    assert [(each.ranges, each.reason) for each in refused] == [
        ([(2, 2)], "not_leased"),
        ([(4, 4)], "not_leased"),
    ]
    # What is none is refused by what takes it.
    (left,), (wrong,), _ = state(here).prepare(made, 0, 0)
    assert (wrong.ranges, wrong.reason) == ([(3, 3)], "bad_message")
    left.first_txid = 9
    frontend.fold(left)
    assert not frontend.lease_count


def test_what_counts_in_very_many_ranges_is_several_records() -> None:
    here = strict()
    held = range(2, 2 * records.RANGES_MAX + 4, 2)
    messages = [LeasedDelivery(at, (1, at), at, 0) for at in held]
    here.frontends["json/work"].decide(DeliverLeased((1, "s"), messages, 0), 0)
    run = published(ack(*((1, at) for at in range(1, held[-1] + 1))))
    left, refused, authored = state(here).prepare(run, 0, 0)
    first, second = said_in(authored)
    assert [len(each.keys[1]) for each in (first, second)] == [records.RANGES_MAX, 1]
    assert not left and [each.reason for each in refused] == ["not_leased"]


def test_an_owner_is_told_of_acknowledgments_before_they_are_on_disk() -> None:
    told: list[object] = []
    here = Queues(
        (QueueDefinition("work", "json"),), OWN, lambda name, keys: told.append((name, keys))
    )
    (frontend,) = here.frontends.values()
    (topics,) = here.topics()
    run = published(ack((1, 1), (1, 2)), (Command.QUEUE_ACKNOWLEDGMENT, b"none"), ack((2, 7)))
    topics.state.staged(run)
    # Without an owner there is nobody to tell.
    assert told == []
    frontend.owner_came(0, 0)
    topics.state.staged(run)
    assert told == [("json/work", {1: [(1, 2)]}), ("json/work", {2: [(7, 7)]})]


def every_second(at: int, ranges: int = 100) -> tuple[int, bytes]:
    """Of a publisher whose messages never come."""
    first = 2 * at * ranges
    return ack(*((666, first + 2 * each + 1) for each in range(ranges)))


def test_acknowledgments_of_what_never_comes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client acknowledges every second message of a publisher that never comes: each is a range
    of its own, that owners have to remember."""
    monkeypatch.setattr(door_module, "EARLY_MAX", 1_000)
    here = queues()
    (frontend,) = here.frontends.values()
    (topics,) = here.topics()
    machine = QueueMachine(
        ReplicatedQueueState(frontend.definition, "a", OWN.incarnation, Nothing(), RecoveryStart())
    )
    sizes, refusals, txid = [], 0, 1
    for at in range(200):
        prepared = topics.state.prepare(published(every_second(at)), 0, 0)
        refusals += len(prepared.refused)
        for run in journaled(prepared.runs, txid):
            txid = run.last_txid + 1
            run.flags |= Flag.COMMANDS
            topics.state.staged(run)
            # Its owner reads late.
            machine.fold([run], 0)
            if not at % 7:
                frontend.early_size = machine.state.early_size
                frontend.folded(run.last_txid)
        sizes.append(machine.state.early_size)
    assert refusals > 150
    # What is refused says why, and nothing of it is journaled.
    (refused,) = topics.state.prepare(published(every_second(999)), 0, 0).refused
    assert refused.reason == "bad_message" and "have not come" in refused.text
    # Each range is there twice: as of now, and as of the floor.
    assert max(sizes) <= 2 * (1_000 + 100) + 10
    # Who acknowledges what is delivered here goes on.
    frontend.subscribed(ConsumerSubscription((1, "s"), "ann", "", 5))
    frontend.owner_came(0, 0)
    frontend.decide(DeliverLeased((1, "s"), [LeasedDelivery(3, (7, 5), 9, 0)], 0), 0)
    assert topics.state.prepare(published(ack((7, 5))), 0, 0).refused == ()
    assert topics.state.prepare(published(ack((7, 5), (7, 6))), 0, 0).refused
    # And others when what waited has come.
    frontend.early_size = 0
    frontend.folded(txid)
    assert topics.state.prepare(published(ack((7, 6))), 0, 0).refused == ()


def test_who_brings_what_an_instance_says_of_messages_that_have_not_come_is_slowed() -> None:
    here = queues()
    (frontend,) = here.frontends.values()
    (topics,) = here.topics()
    frontend.owner_came(0, 0)
    frontend.early_size = 2 * door_module.EARLY_LINKS_MAX
    moved = records.pack_transfer(Transfer("b", 0, [OwnershipChange(7, 1, 1, 1, "b")]))
    gone = records.pack_removal(Removal("b", 0, {7: [(1, 1)]}, "left"))
    for command, body in ((Command.TRANSFER, moved), (Command.QUEUE_REMOVAL, gone)):
        (run,) = journaled([published((command, body))])
        topics.state.staged(run)
        assert not here.slowed_s(is_link=True), "an instance's own"
        run.path = (0xB,)
        topics.state.staged(run)
        assert here.slowed_s(is_link=True) == door_module.SLOWED_MAX_US / 1e6


def test_what_an_owner_far_behind_has_not_read_slows_clients_and_refuses_nothing_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is acknowledged may well be of messages that are here. Instances are slowed much later:
    nothing that they bring is ever refused."""
    monkeypatch.setattr(door_module, "EARLY_MAX", 1_000)
    monkeypatch.setattr(door_module, "EARLY_LINKS_MAX", 1_800)
    monkeypatch.setattr(door_module, "SLOWED_RANGES", 100)
    here = queues()
    (frontend,) = here.frontends.values()
    (topics,) = here.topics()
    frontend.owner_came(0, 0)
    slowed: list[tuple[float, float]] = []
    for at in range(20):
        prepared = topics.state.prepare(published(every_second(at)), 0, 0)
        assert not prepared.refused
        (run,) = journaled(prepared.runs, 1 + at)
        times = []
        for is_link in (False, True):
            here.brought.add(frontend)
            times.append(here.slowed_s(is_link=is_link))
        slowed.append((times[0], times[1]))
        topics.state.staged(run)
        assert here.brought == {frontend}
    assert slowed[10] == (0.0, 0.0) and slowed[11] == (0.02, 0.0)
    # For each part more that time doubles, up to a bound.
    assert slowed[19] == (door_module.SLOWED_MAX_US / 1e6, 0.02)
    assert topics.state.prepare(published(every_second(20)), 0, 0).refused
    # Who has brought nothing of the kind is not slowed, nor is anybody without an owner.
    here.brought.clear()
    assert here.slowed_s(is_link=False) == 0.0
    frontend.owner_left()
    assert frontend.slowed_us(is_link=False) == 0
    frontend.owner_came(0, 0)
    frontend.folded(20)
    assert frontend.slowed_us(is_link=False) == 0
    assert not topics.state.prepare(published(every_second(20)), 0, 0).refused


def test_what_fails_to_be_written_does_not_wait_for_its_messages() -> None:
    here = queues()
    (frontend,) = here.frontends.values()
    (topics,) = here.topics()
    for at in range(3):
        (run,) = journaled(topics.state.prepare(published(every_second(at)), 0, 0).runs, 10 + at)
        topics.state.staged(run)
    assert frontend._unread == 300
    frontend.folded(10)
    topics.state.failed(11)
    assert frontend._unread == 100


def test_it_has_nothing_to_do_behind_the_door() -> None:
    found = state(queues())
    run = published(ack((1, 1)))
    assert not found.looks_for(run)
    found.staged(run)
    found.failed(0)


def test_a_book_knows_what_each_queue_is_to_its_topics() -> None:
    here = queues(
        QueueDefinition("work", "json", underlying="orders-.*", publish_target="orders-eu"),
        QueueDefinition("own", "json", kind="local"),
    )
    book = TopicBook((TopicRule(".*"),), queues=here.topics())
    run = published((Command.PUBLISH, b"{}"))
    assert [each.topic for each in book.routed(run)] == [b"orders-eu"]
    assert book[b"own", b"json"].queue and not book[b"own", b"json"].claiming
    assert len(book[b"orders-us", b"json"].claiming) == 1
    assert not book[b"orders-us", b"json"].queue


# -- what clients send again ---------------------------------------------------------------------


def claimed(definition: QueueDefinition, given: str = "") -> list[OwnershipChange]:
    here = queues(definition)
    claiming = here.topics()[0].claiming
    if claiming is None:
        return []
    moves: list[OwnershipChange] = []
    for run in claiming.claims(5, [(1, 2), (9, 9)], given, 0):
        for record in iterate_records(run.payload):
            assert record.command == Command.TRANSFER
            moves += records.read_transfer(record.body).moves
    return moves


@pytest.mark.covers("Queues", "a resend claims")
def test_an_instance_claims_what_is_sent_again_and_new_to_it() -> None:
    mine = [OwnershipChange(5, 1, 2, 1, "a"), OwnershipChange(5, 9, 9, 1, "a")]
    assert claimed(QueueDefinition("work", "json")) == mine
    assert claimed(QueueDefinition("work", "json"), "b") == mine


def test_at_most_once_it_stays_with_whom_it_was_given_to() -> None:
    definition = QueueDefinition("work", "json", at_most_once=True)
    assert claimed(definition, "b") == [
        OwnershipChange(5, 1, 2, 0, "b"),
        OwnershipChange(5, 9, 9, 0, "b"),
    ]
    # A client that was started again does not know: one of those who hold it is to have it.
    assert claimed(definition) == [
        OwnershipChange(5, 1, 2, 1, "a"),
        OwnershipChange(5, 9, 9, 1, "a"),
    ]


def test_where_the_owner_is_named_or_there_is_one_alone_nobody_claims() -> None:
    group = QueueDefinition("work", "json", kind="group_local", initial_owner="b")
    assert claimed(group) == [] and claimed(QueueDefinition("w", "json", kind="local")) == []
    assert queues(group).claims(queues(group).frontends["json/work"], 5, [(1, 1)], "", 0) == []


def test_very_many_gaps_are_several_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_queues, "RANGES_MAX", 1)
    assert len(claimed(QueueDefinition("work", "json"))) == 2


def test_acknowledgments_alone_and_other_topics_are_awaited_by_no_owner() -> None:
    acknowledgment = records.pack_acknowledgment(Acknowledgment({1: [(1, 1)]}))
    cases: list[tuple[bool, str, list[tuple[int, bytes]]]] = [
        (False, "work", [(Command.QUEUE_ACKNOWLEDGMENT, acknowledgment)]),
        (True, "orders", [(Command.PUBLISH, b"{}")]),
        (False, "trades", [(Command.PUBLISH, b"{}")]),
        (False, "trades", [(Command.DELETE, b"")]),
        (True, "work", [(Command.QUEUE_REMOVAL, removal(1).body)]),
    ]
    here = queues(QueueDefinition("work", "json", underlying="orders"))
    for is_awaited, topic, said in cases:
        (run,) = journaled([published(*said, topic=topic)])
        here.fold(CommitBatch([run], run.last_txid))
        assert here.is_awaited is is_awaited, (topic, said)


def test_a_barrier_awaits_the_acknowledgments_of_all_before_it() -> None:
    acknowledgment = records.pack_acknowledgment(Acknowledgment({1: [(1, 1)]}))
    here = queues(QueueDefinition("work", "json", barrier="/last = 1"))
    (run,) = journaled([published((Command.QUEUE_ACKNOWLEDGMENT, acknowledgment))])
    here.fold(CommitBatch([run], run.last_txid))
    assert here.is_awaited
