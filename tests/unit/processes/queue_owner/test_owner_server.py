"""What a queue's owner reads: records behind transaction ids, and where the queue is begun."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from unit.queues import test_machine as of_machines

from raylay.services.config.instance import QueueOwnerConfig
from raylay.services.errors import StorageError
from raylay.services.expressions.functions import BUILT_IN
from raylay.services.messages.records import (
    Command,
    RecordBuilder,
    Run,
    iterate_records,
    run_of,
    scan,
)
from raylay.services.messages.types.registry import MessageTypes
from raylay.services.processes.queue_owner import queries
from raylay.services.processes.queue_owner.bodies import DELIVERY_BYTES, Bodies
from raylay.services.processes.queue_owner.owner_server import OwnerServer
from raylay.services.processes.queue_owner.queries import (
    RANGES_AT_ONCE,
    READ_AT_ONCE,
    QueueQueries,
    key_parts,
)
from raylay.services.processes.queue_owner.recovery import (
    durable_recovery_start,
    recovery_start,
    rules_of,
    start_of,
)
from raylay.services.protocol.child import queue_control as control
from raylay.services.protocol.child.queue_control import OwnerBegin
from raylay.services.protocol.frames import FrameReader
from raylay.services.queues.checkpoint import QueueCheckpoint, RecoveryStart
from raylay.services.queues.decisions import (
    DeliverLeased,
    DeliverOnce,
    LeasedDelivery,
    QueueRecordDraft,
    TransferRequest,
)
from raylay.services.queues.definition import QueueDefinition
from raylay.services.queues.drafts import Drafts
from raylay.services.queues.machine import QueueMachine
from raylay.services.queues.records import (
    Acknowledgment,
    OwnershipChange,
    Transfer,
    pack_acknowledgment,
    pack_transfer,
)
from raylay.services.queues.replicated_state import PART_SPANNED, ReplicatedQueueState
from raylay.services.sow.query.queue_rows import QueueRows
from raylay.storage.queue import MemoryQueueStore, StoredQueue

PUBLISHER = 7


class Journal:
    """Runs of `each` messages, as a reader gives them."""

    def __init__(self, count: int, each: int = 10, size_bytes: int = 20) -> None:
        builder = RecordBuilder(PUBLISHER, "orders", "json")
        self.runs: list[Run] = []
        for first in range(1, count + 1, each):
            payload = b"".join(
                builder.build(at, b'{"n": %d}' % at + b" " * size_bytes, 0)
                for at in range(first, first + each)
            )
            (chunk,) = scan(payload)
            run = run_of(chunk, payload)
            # Behind one transaction of somebody else's.
            run.first_txid = first + 1
            run.receive_time_us = first * 1_000
            self.runs.append(run)
        self.asked: list[int] = []

    def read(self, after_txid: int, bytes_max: int = 1) -> list[Run]:
        self.asked.append(after_txid)
        found: list[Run] = []
        for run in self.runs:
            cut = run.after(after_txid) if run.last_txid > after_txid else None
            if cut is not None and sum(len(each.payload) for each in found) < bytes_max:
                found.append(cut)
        return found

    def read_headers(self, after_txid: int, runs_max: int = 2) -> list[Run]:
        found = [run for run in self.runs if run.last_txid > after_txid]
        return [replace(run, payload=b"") for run in found[:2]]


def bodies(journal: Journal, kept_bytes_max: int = 1 << 20) -> Bodies:
    return Bodies(journal, MessageTypes()["json"], kept_bytes_max)


def test_what_was_read_is_at_hand() -> None:
    journal = Journal(30)
    found = bodies(journal)
    found.keep(journal.runs)
    for txid in (2, 31, 11, 12, 2):
        assert found.body(txid).strip() == b'{"n": %d}' % (txid - 1)
    assert not journal.asked and found.reads == 0
    tree = found.tree(5)
    assert tree is not None and tree["n"] == 4
    around = found.around(5)
    assert (around.topic, around.bookmark) == ("orders", "7|4|")


def test_records_side_by_side_are_one_piece() -> None:
    journal = Journal(30)
    found = bodies(journal)
    found.keep(journal.runs)
    alone = {txid: found.record(txid) for txid in range(2, 32)}
    for txids in ([5], [2, 3, 4], [2, 4, 5, 6, 3], list(range(2, 32)), [9, 9], []):
        pieces, count = found.records(txids, 1 << 20)
        assert count == len(txids)
        assert b"".join(pieces) == b"".join(alone[txid] for txid in txids)
        stretches = sum(a + 1 != b for a, b in pairwise(txids))
        assert len(pieces) <= stretches + len(journal.runs)
    assert len(found.records([2, 3, 4], 1 << 20)[0]) == 1 and not journal.asked


@pytest.mark.parametrize("bytes_max", [0, 1, 300, 1_000])
def test_of_many_records_there_are_as_many_as_fit(bytes_max: int) -> None:
    """A consumer with a large backlog of large messages: a frame of them is in memory, not all."""
    journal = Journal(30)
    found = bodies(journal)
    found.keep(journal.runs)
    for txids in (list(range(2, 32)), [2, 4, 5, 6, 3, 20, 21, 22, 9], [9]):
        wanted = b"".join(found.record(txid) for txid in txids)
        got = b""
        while txids:
            pieces, count = found.records(txids, bytes_max)
            size_bytes = sum(map(len, pieces))
            assert size_bytes <= bytes_max or count == 1
            if count < len(txids):
                assert size_bytes + len(found.record(txids[count])) > bytes_max
            got += b"".join(pieces)
            txids = txids[count:]
        assert got == wanted


def test_what_was_let_go_is_read_again_with_what_follows_it() -> None:
    journal = Journal(1_000)
    found = bodies(journal, kept_bytes_max=40_000)
    found.keep(journal.runs)
    assert found.kept_bytes <= 40_000
    for txid in range(2, 1_002):
        assert found.body(txid).strip() == b'{"n": %d}' % (txid - 1)
    assert 0 < found.reads <= 20 and found.kept_bytes <= 40_000
    # In the midst of a run, and the run's begin afterwards.
    fresh = bodies(journal, kept_bytes_max=1)
    for txid in (505, 502, 505, 511):
        assert fresh.body(txid).strip() == b'{"n": %d}' % (txid - 1)


@pytest.mark.parametrize("messages_a_run", [1, 100])
def test_the_memory_of_what_is_kept_is_counted_whole(messages_a_run: int) -> None:
    """Small runs cost several times their payload, the index of their records included."""
    import tracemalloc

    journal = Journal(1)
    found = bodies(journal, kept_bytes_max=1 << 30)
    builder = RecordBuilder(7, "orders", "json")
    one = b"".join(builder.build(at + 1, b"{}", 0) for at in range(messages_a_run))
    scanned = scan(one)[0]
    tracemalloc.start()
    before_bytes = tracemalloc.get_traced_memory()[0]
    for at in range(2_000):
        run = run_of(scanned, bytes(bytearray(one)))
        run.first_txid = at * messages_a_run + 1
        found.keep([run])
    del run
    for at in range(2_000):
        found.record(at * messages_a_run + 1)
    used_bytes = tracemalloc.get_traced_memory()[0] - before_bytes
    tracemalloc.stop()
    assert used_bytes <= found.kept_bytes <= 3 * used_bytes


def test_a_message_that_the_journal_lacks_is_told() -> None:
    journal = Journal(10)
    with pytest.raises(StorageError, match="transaction 99"):
        bodies(journal).record(99)


def test_a_body_that_cannot_be_read_says_nothing() -> None:
    journal = Journal(10)
    builder = RecordBuilder(PUBLISHER, "orders", "json")
    payload = builder.build(1, b"{", 0)
    run = run_of(scan(payload)[0], payload)
    run.first_txid = 1
    found = bodies(journal)
    found.keep([run])
    assert found.tree(1) is None and Bodies(journal, None).tree(1) is None


# -- where it begins -----------------------------------------------------------------------------

LAST_TXID, OWN = 31, 0xA


def begins(recovery_point: str) -> int:
    definition = QueueDefinition("work", "json", recovery_point=recovery_point)
    return recovery_start(definition, OWN, None, Journal(30), LAST_TXID)[0].after_txid


@pytest.mark.covers("Queues", "`RecoveryPoint`")
@pytest.mark.parametrize(
    ("recovery_point", "after_txid"),
    [
        ("epoch", 0),
        ("now", LAST_TXID),
        ("creation", LAST_TXID),
        ("0", 0),
        ("0|1|", LAST_TXID),
        ("7|15|", 16),
        ("8|15|", LAST_TXID),
        ("19700101T000000.015000Z", 21),
        ("20380101T000000Z", LAST_TXID),
    ],
)
def test_it_is_begun_where_the_configuration_says(recovery_point: str, after_txid: int) -> None:
    assert begins(recovery_point) == after_txid


def stored(definition: QueueDefinition, after_txid: int = 12, rules: bytes = b"") -> StoredQueue:
    snapshot = QueueCheckpoint(after_txid, after_txid + 3, names={5: "b"})
    return StoredQueue(after_txid, rules or rules_of(definition, OWN), snapshot.to_bytes())


@pytest.mark.covers("Queues", "`RecoveryPoint`")
def test_what_was_stored_counts_where_it_is_of_this_queue() -> None:
    definition = QueueDefinition("work", "json", recovery_point="now")
    journal = Journal(30)
    found, why = recovery_start(definition, OWN, stored(definition), journal, LAST_TXID)
    assert (found.after_txid, found.names, why) == (12, {5: "b"}, "")
    # What does not decide which messages it has may change.
    lenient = replace(definition, lease_us=5)
    assert recovery_start(lenient, OWN, stored(definition), journal, LAST_TXID)[0].after_txid == 12
    for other, words in (
        (stored(replace(definition, filter="/n > 1")), "configuration"),
        (stored(definition, rules=rules_of(definition, OWN + 1)), "configuration"),
        (stored(definition, after_txid=99), "ends with 31"),
        (StoredQueue(12, rules_of(definition, OWN), b"\xc1"), "snapshot"),
    ):
        found, why = recovery_start(definition, OWN, other, journal, LAST_TXID)
        assert found.after_txid == LAST_TXID and words in why


def test_from_now_on_is_said_once() -> None:
    """The owner is killed before it saves anything, or the journal's end is lost: what came since
    the queue was begun is in it."""
    definition = QueueDefinition("work", "json", recovery_point="now")
    store, journal = MemoryQueueStore(), Journal(30)
    assert durable_recovery_start(definition, OWN, store, journal, 11)[0].after_txid == 11
    found, why = durable_recovery_start(definition, OWN, store.crash(), journal, LAST_TXID)
    assert (found.after_txid, why) == (11, "")
    ahead = QueueCheckpoint(12, LAST_TXID + 1, names={5: "b"})
    was = StoredQueue(12, rules_of(definition, OWN), ahead.to_bytes())
    found, why = durable_recovery_start(definition, OWN, MemoryQueueStore(was), journal, LAST_TXID)
    assert (found.after_txid, found.folded_txid, found.names) == (12, LAST_TXID, {5: "b"})
    assert "ends with 31" in why
    # A store that takes nothing says so when it is saved next.
    store = MemoryQueueStore()
    store.fail_next(StorageError("full"))
    assert durable_recovery_start(definition, OWN, store, journal, 11)[0].after_txid == 11


def test_a_directory_that_was_put_back_uses_no_tag_twice() -> None:
    """Same incarnation, same start, same end of the journal: the life alone tells them apart, and
    what the life before wrote comes again from peers (rule 11)."""
    begin = OwnerBegin(
        fence_txid=50, committed_txid=50, serves=True, leases=[], consumers=[], names={}
    )
    numbers = set()
    for life, start_number in ((1 << 63, 1), (1 << 63, 2), ((1 << 64) - 1, 1)):
        config = QueueOwnerConfig(
            "a", "", 0xA, life, start_number, "", "", None, "", QueueDefinition("work", "json")
        )
        start = start_of(config, QueueCheckpoint(), begin)
        numbers.add(Drafts("a", 0xA, start.life, start.fence_txid).number())
    assert len(numbers) == 3


def test_messages_far_apart_are_told_in_answers_that_one_turn_takes() -> None:
    keys = [(publisher, 2 * at) for publisher in (7, 8) for at in range(1, RANGES_AT_ONCE)]
    parts = key_parts(keys)
    assert [sum(map(len, flat.values())) for flat, _ in parts] == [
        2 * RANGES_AT_ONCE,
        2 * (len(keys) - RANGES_AT_ONCE),
    ]
    assert sum(count for _, count in parts) == len(keys)
    assert key_parts([]) == [({}, 0)]


# -- what it answers -----------------------------------------------------------------------------


class Told:
    """An instance: what it was answered."""

    is_open = may_write = True

    def __init__(self) -> None:
        self._reader = FrameReader()
        self.is_rows = True
        self.rows: list[int] = []
        self.messages = 0
        self.last: dict[str, Any] = {}

    def send(self, frame: bytes) -> None:
        for found in self._reader.feed(frame):
            self.last = dict(found.header)
            self.messages += found.header["n"]
            if self.is_rows:
                self.rows += [each.sequence for each in iterate_records(bytes(found.body))]

    def flush(self) -> None:
        """Nothing is kept."""


class Owner:
    """Answers about the queue of a journal; `passes`: what each pass of its loop has read."""

    def __init__(self, count: int, **more: Any) -> None:
        self.journal = Journal(count, each=500)
        self.passes = [0]
        of: dict[str, Any] = {"underlying": "orders", "kind": "local"}
        definition = QueueDefinition("work", "json", **of | more)
        found = bodies(self.journal, 1 << 30)
        found.keep(self.journal.runs)
        read = found.record

        def record(txid: int) -> bytes:
            self.passes[-1] += 1
            return read(txid)

        found.record = record  # type: ignore[method-assign]
        types = MessageTypes()
        self.machine = QueueMachine(
            ReplicatedQueueState(definition, "a", OWN, found, RecoveryStart(), types=types)
        )
        self.machine.fold(self.journal.runs, 0)
        self.told = Told()
        told: Any = self.told
        self.answering = QueueQueries(
            self.machine, found, types["json"], BUILT_IN, told, told, lambda: 0
        )

    def ask(self, *questions: control.QueueQuestion) -> Told:
        """Asks all of them at once."""

        async def run() -> None:
            asked = []
            for number, each in enumerate(questions, 1):
                (frame,) = FrameReader().feed(control.ask(number, each))
                asked.append(asyncio.ensure_future(self.answering.answer(frame.header)))
            while not all(each.done() for each in asked):
                self.passes.append(0)
                await asyncio.sleep(0)
            await asyncio.gather(*asked)

        self.told.is_rows = questions[0].what == "sow"
        asyncio.run(run())
        return self.told


def test_a_query_of_a_queue_is_as_one_of_a_topic() -> None:
    owner = Owner(1_000)
    told = owner.ask(control.QueueQuestion("sow", "/n > 10", "-/,+/n", "/n DESC", 3, 1))
    assert told.rows == [999, 998, 997]
    assert (told.last["n"], told.last["matches"], told.last["more"]) == (3, 990, False)
    assert owner.ask(control.QueueQuestion("sow", order_by="n")).last["reason"] == "bad_order_by"
    assert owner.ask(control.QueueQuestion("keys", "/n ==")).last["reason"] == "bad_filter"


def test_however_many_messages_and_questions_there_are_a_pass_of_the_loop_is_short() -> None:
    owner = Owner(8_000)
    parts, behind_txid = [], 0
    while part := owner.machine.state.part(behind_txid):
        parts.append(len(part))
        behind_txid = part[-1].txid
    assert sum(parts) == 8_000
    assert max(parts) <= PART_SPANNED + 1_024
    questions = [control.QueueQuestion("sow", "/n = 7")] * 3
    told = owner.ask(*questions, control.QueueQuestion("sow", top=2))
    assert sorted(told.rows) == [1, 2, 7, 7, 7]
    # Three of them read each message, for its filter; one of them in each pass.
    assert sum(owner.passes) >= 24_000
    assert max(owner.passes) <= READ_AT_ONCE + 1


def test_few_questions_keep_rows_for_their_order_at_one_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[QueueRows] = []
    most = 0

    class Counted(QueueRows):
        def put(self, txid: int, raw: bytes) -> bytes | None:
            nonlocal most
            found = super().put(txid, raw)
            if self not in made:
                made.append(self)
            kept = [each for each in made if each._ordered and each._ordered.memory_bytes]
            most = max(most, len(kept))
            return found

    monkeypatch.setattr(queries, "QueueRows", Counted)
    owner = Owner(1_000)
    told = owner.ask(*[control.QueueQuestion("sow", order_by="/n DESC")] * 20)
    assert len(made) == 20 and len(told.rows) == 20 * 1_000
    assert most == queries.ORDERED_AT_ONCE


def test_what_is_looked_for_is_told_part_by_part() -> None:
    owner = Owner(10_000)
    told = owner.ask(control.QueueQuestion("keys"))
    assert told.messages == 10_000 and told.last["more"] is False
    # Without a filter nothing is read.
    assert sum(owner.passes) == 0


def test_where_leasing_is_strict_only_what_the_instance_owns_is_found_to_be_said_of() -> None:
    """Another instance's message may be a consumer's there."""
    owner = Owner(500, strict=True, kind="queue")
    assert owner.ask(control.QueueQuestion("keys")).messages == 500
    moved = Transfer("a", 0, [OwnershipChange(PUBLISHER, 3, 6, 1, "b")])
    command = Command.TRANSFER
    record = RecordBuilder(9, "work", "json").build(1, pack_transfer(moved), 0, command=command)
    run = run_of(scan(record)[0], record)
    run.first_txid = owner.journal.runs[-1].last_txid + 1
    owner.machine.fold([run], 0)
    owner.told.messages = 0
    assert owner.ask(control.QueueQuestion("keys")).messages == 496
    assert len(list(owner.machine.state.found())) == 500


def test_what_goes_while_a_query_runs_is_not_in_the_next_part() -> None:
    owner = Owner(10_000)
    first = owner.machine.state.part()
    assert len(first) < 6_000
    said = pack_acknowledgment(Acknowledgment({PUBLISHER: [(1, 6_000)]}))
    command = Command.QUEUE_ACKNOWLEDGMENT
    record = RecordBuilder(9, "work", "json").build(1, said, 0, command=command)
    run = run_of(scan(record)[0], record)
    run.first_txid = owner.journal.runs[-1].last_txid + 1
    owner.machine.fold([run], 0)
    assert owner.machine.state.part(first[-1].txid)[0].sequence == 6_001


class Shell:
    """What an owner's machine is asked, and its journal and its socket; for the order of a turn."""

    may_write = True

    def __init__(self) -> None:
        self.calls: list[str] = []

    def take(self, now_us: int, messages_max: int) -> list[Any]:
        self.calls.append("take")
        return []

    def read(self, after_txid: int, bytes_max: int) -> list[Any]:
        self.calls.append("read")
        return []

    def flush(self) -> None:
        self.calls.append("flush")

    def tick(self, now_us: int) -> None:
        pass

    def send(self, frame: bytes) -> None:
        pass

    def said(self, decisions: Any) -> None:
        pass

    def next_us(self, now_us: int) -> int:
        return 0


def test_who_has_room_is_given_what_there_is_before_the_journal_is_read() -> None:
    config = QueueOwnerConfig("a", "", 0xA, 1, 1, "", "", None, "", QueueDefinition("work", "json"))

    async def turns() -> None:
        loop = asyncio.get_running_loop()
        owner: Any = OwnerServer(config)
        told = Shell()
        owner._machine = owner._traces = owner._reader = owner._instance = owner._outbox = told
        owner._loop, owner._program.gone = loop, loop.create_future()
        owner._folded_txid = owner._told_txid = 5
        owner.turn()
        assert told.calls == ["take", "flush"]
        owner._told_txid = 6
        told.calls.clear()
        owner.turn()
        assert told.calls == ["take", "flush", "read", "take", "flush"]
        owner._program.gone.set_result("the test ends")

    asyncio.run(turns())


@pytest.mark.parametrize("what", ["request", "cancel"])
def test_what_the_instance_says_counts_from_its_moment_and_not_from_the_last_turn(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing happens for a while; then another instance asks, or a consumer gives back."""
    here = of_machines.Instance()
    monkeypatch.setattr(OwnerServer, "_now_us", lambda owner: here.now_us)
    config = QueueOwnerConfig("a", "", 0xA, 1, 1, "", "", None, "", here.definition)
    owner: Any = OwnerServer(config)
    owner._machine, owner._traces = here.machine, Mock()
    here.join()
    here.publish(1)
    lease = of_machines.the_lease(here.take())
    here.now_us += of_machines.LEASE_US - 1
    asked = control.request(TransferRequest(1, of_machines.wanted(1)), "B")
    given = control.cancel(of_machines.ONE, [lease], unseen=True)
    (frame,) = FrameReader().feed(asked if what == "request" else given)
    owner.instance_said(*frame)
    if what == "request":
        here.machine.left(of_machines.ONE)
        said = here.tick(400_000)
        assert isinstance(said[0], QueueRecordDraft), "it is remembered for half a second"
    else:
        here.join(of_machines.TWO, backlog=1)
        assert of_machines.delivered(here.tick(0)) == {of_machines.TWO: [1]}
        here.ack(1)
        here.publish(2)
        said = here.tick(of_machines.LEASE_US - 1)
        assert of_machines.delivered(said) == {of_machines.TWO: [2]}, "late for a whole lease"


def test_what_could_not_be_saved_is_saved_at_the_next_time() -> None:
    """Until then its floor is not told: the journal is kept, from which it is made again."""
    config = QueueOwnerConfig("a", "", 0xA, 1, 1, "", "", None, "", QueueDefinition("work", "json"))
    said: list[dict[str, Any]] = []
    reader = FrameReader()

    class Instance:
        def send(self, frame: bytes) -> None:
            said.extend(each.header for each in reader.feed(frame))

    class State:
        floor_txid = 7

        def stored(self) -> bytes:
            return b"a snapshot"

    async def saves() -> None:
        owner: Any = OwnerServer(config)
        store = MemoryQueueStore()
        owner._loop = asyncio.get_running_loop()
        owner._instance, owner._store = Instance(), store
        owner._machine = SimpleNamespace(state=State())
        for _ in range(2):
            store.fail_next(StorageError("full"))
            await owner._save()
            assert owner._saved_txid != owner._machine.state.floor_txid
        assert [each["c"] for each in said] == ["event"], "said once"
        assert (said.pop()["event"], store.load()) == ("queue_store_failed", None)
        await owner._save()
        assert owner._saved_txid == 7
        assert [each["c"] for each in said] == ["event", "floor"]
        assert said[0]["event"] == "queue_store_recovered"
        await owner._save()
        assert [each["c"] for each in said] == ["event", "floor", "floor"]

    asyncio.run(saves())


@pytest.mark.parametrize("kind", [DeliverLeased, DeliverOnce])
@pytest.mark.parametrize("size_bytes", [100_000, 300_000, DELIVERY_BYTES + 1])
def test_a_long_delivery_is_cut_into_frames_with_each_message_once(
    kind: type[DeliverLeased] | type[DeliverOnce], size_bytes: int
) -> None:
    journal = Journal(17, each=1, size_bytes=size_bytes)
    found = bodies(journal)
    found.keep(journal.runs)
    frames = bytearray()

    class Outbox:
        def send_parts(self, parts: Any, length: int) -> None:
            frame = b"".join(parts)
            assert len(frame) == length
            frames.extend(frame)

    class Traces:
        def decided(self, decision: Any) -> int:
            return 77

    config = QueueOwnerConfig("a", "", 0xA, 1, 1, "", "", None, "", QueueDefinition("work", "json"))
    owner: Any = OwnerServer(config)
    owner._bodies, owner._instance, owner._traces = found, Outbox(), Traces()
    txids = range(2, 19)
    leased = [
        LeasedDelivery(txid, (PUBLISHER, txid - 1), txid + 100, txid + 1_000) for txid in txids
    ]
    owner._deliver(kind((3, "s4"), leased, 99))

    told: list[LeasedDelivery] = []
    sizes: list[tuple[int, int]] = []
    for header, body in FrameReader().feed(bytes(frames)):
        part = control.read_deliver(header, body)
        decision = part.decision
        assert type(decision) is kind
        assert (decision.consumer, decision.folded_txid, part.decided_us) == ((3, "s4"), 99, 77)
        told += decision.messages
        records = b"".join(found.record(each.txid) for each in decision.messages)
        assert bytes(part.records) == records
        sizes.append((len(decision.messages), len(records)))
    assert told == leased
    # No frame is too long but for one message, and none ends while the next message fits.
    one_bytes = len(found.record(2))
    assert all(count == 1 or length <= DELIVERY_BYTES for count, length in sizes)
    assert all(length + one_bytes + 9 > DELIVERY_BYTES for _, length in sizes[:-1])
    assert len(sizes) > 1
