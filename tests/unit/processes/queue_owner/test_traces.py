"""Spans of the sampled messages of a queue, around the machine that decides."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from types import FrameType
from typing import Any, cast

import pytest
from unit.queues.test_machine import LEASE_US, NAMES, ONE, TWO, A, B, Instance, P, queue

from raylay.services.messages.records import Flag, RecordBuilder, Run
from raylay.services.messages.types.registry import MessageTypes
from raylay.services.processes.queue_owner.traces import QueueTraces
from raylay.services.queues.checkpoint import QueueCheckpoint, RecoveryStart
from raylay.services.queues.decisions import (
    ConsumerSubscription,
    DeliverLeased,
    DeliverOnce,
    MessageLease,
    TransferCandidate,
    TransferRequest,
)
from raylay.services.queues.definition import QueueDefinition
from raylay.services.queues.machine import QueueMachine
from raylay.services.queues.replicated_state import ReplicatedQueueState
from raylay.services.telemetry.tracing import Tracing, derived, new_context

pytestmark = pytest.mark.covers("Fabrics and tracing", "a sampled message of a queue shows enqueue")


class Spans:
    """Takes spans as `Tracing` does, and keeps them."""

    enabled = True

    def __init__(self) -> None:
        self.spans: list[tuple[str, bytes, bytes, int, int, dict[str, Any]]] = []

    def span(
        self, name: str, parent: bytes, start_ns: int, end_ns: int, more: Any, *, own: bytes = b""
    ) -> None:
        self.spans.append((name, parent, own, start_ns, end_ns, dict(more)))

    def take(self) -> list[str]:
        """Name, and what is said of it, of each since the last call."""
        found, self.spans = self.spans, []
        said = ("from", "to", "generation", "client", "how", "outcome")
        return [
            " ".join([name, *(str(more[each]) for each in said if each in more)])
            for name, *_, more in found
        ]


class Owner(Instance):
    """A queue's owner: machine and spans, without process and sockets."""

    def __init__(self, definition: QueueDefinition | None = None, told_txid: int = 0) -> None:
        self.spans = Spans()
        self.told_txid = told_txid
        self.context = new_context()
        self.marked = 0
        super().__init__(definition)
        self.machine.serves()

    def restart(self, **start: Any) -> QueueMachine:
        self.traces = QueueTraces(cast(Tracing, self.spans), self.definition, "A", self.told_txid)
        state = ReplicatedQueueState(
            self.definition,
            "A",
            A,
            self,
            RecoveryStart(**start),
            types=MessageTypes(),
            watch=self.traces.obeyed,
        )
        self.machine = QueueMachine(state)
        return self.machine

    def commit(self, run: Run) -> Run:
        run.first_txid = self.runs[-1].last_txid + 1 if self.runs else 1
        run.receive_time_us = self.now_us
        self.runs.append(run)
        self.fold([run])
        return run

    def fold(self, runs: list[Run]) -> None:
        mine = [run for run in runs if run.topic == b"orders"]
        self.traces.fold(self.machine, runs, mine, self.now_us, runs[-1].last_txid)

    def sampled(self, sequence: int, path: tuple[int, ...] = (), body: bytes = b"{}") -> Run:
        """A message that is sampled comes in, between two that are not."""
        builder = RecordBuilder(P, "orders", "json")
        payload = b"".join(
            builder.build(at, body, 0, self.context if at == sequence else b"")
            for at in range(sequence - 1, sequence + 2)
        )
        flags = Flag.CONTIGUOUS | Flag.TRACED
        given = Run(P, sequence - 1, sequence + 1, 3, payload, b"orders", b"json", path)
        given.flags = flags
        return self.commit(given)

    def join(self, consumer: tuple[int, str] = ONE, backlog: int = 100, wanted: str = "") -> None:
        super().join(consumer, backlog, wanted)
        name = {ONE: "ann", TWO: "bob"}[consumer]
        self.traces.subscribed(ConsumerSubscription(consumer, name, wanted, backlog))

    def say(self) -> list[int]:
        """What is decided is said; when, of each delivery, and 0 where none of it is sampled."""
        decisions = self.take()
        times = [
            self.traces.decided(e) for e in decisions if isinstance(e, DeliverLeased | DeliverOnce)
        ]
        self.traces.said(decisions)
        self.write(decisions)
        return times

    def pass_time(self, us: int) -> None:
        self.now_us += us
        self.machine.tick(self.now_us)
        self.traces.tick(self.now_us)


def test_a_message_has_one_tree_of_spans_from_when_it_comes_until_it_leaves() -> None:
    owner = Owner()
    owner.join()
    run = owner.sampled(5)
    (time_us,) = owner.say()
    assert time_us > 0 and owner.spans.take() == ["enqueue"]
    owner.ack(5)
    spans = owner.spans.spans
    enqueue = derived(owner.context, "enqueue", "A", "q")
    lease, ack, removal = spans
    assert [each[1] for each in spans] == [enqueue] * 3
    assert lease[3] // 1000 == time_us and lease[4] == ack[4] == removal[4]
    assert ack[3] == removal[3] == run.receive_time_us * 1000
    assert ack[5] == {
        "bookmark": "1|5|",
        "topic": "orders",
        "body_bytes": 2,
        "instance": "A",
        "queue": "q",
        "by": "900|1|",
    }
    assert owner.spans.take() == ["lease ann acked", "acknowledgment", "removal ack"]
    # The others of its run, and what is acknowledged twice, have none.
    owner.ack(4)
    owner.ack(5)
    assert owner.spans.take() == []


def test_the_span_of_an_enqueue_hangs_below_the_commit_and_that_of_a_delivery_below_its_lease() -> (
    None
):
    owner = Owner()
    owner.join()
    owner.sampled(5)
    ((_, parent, own, _, _, more),) = owner.spans.spans
    assert parent == derived(owner.context, "commit", "A")
    assert own == derived(owner.context, "enqueue", "A", "q")
    assert (more["owner"], more["txid"]) == ("A", 2)
    (delivery,) = owner.take()
    assert isinstance(delivery, DeliverLeased)
    owner.traces.decided(delivery)
    number = next(each.number for each in delivery.messages if each.key == (P, 5))
    owner.ack(5)
    assert owner.spans.spans[1][2] == derived(owner.context, "lease", "A", "q", number)


def test_each_lease_says_how_it_ended() -> None:
    owner = Owner(queue(deliveries_max=5))
    owner.join()
    owner.sampled(5)
    owner.say()
    owner.spans.take()
    owner.pass_time(LEASE_US)
    assert owner.spans.take() == ["lease ann expired"]

    def leases() -> list[tuple[tuple[int, int], int]]:
        delivery = owner.take()[0]
        assert isinstance(delivery, DeliverLeased)
        owner.traces.decided(delivery)
        return [(each.key, each.number) for each in delivery.messages]

    owner.machine.cancelled(ONE, held := leases())
    # Of the lease that is over before it says so, too, and of another consumer's.
    owner.traces.given_back(TWO, held, "cancelled")
    owner.traces.given_back(ONE, held, "cancelled")
    owner.traces.given_back(ONE, held, "cancelled")
    assert owner.spans.take() == ["lease ann cancelled"]
    owner.machine.bounced(ONE, held := leases())
    owner.traces.given_back(ONE, held, "not delivered")
    owner.say()
    owner.machine.left(ONE)
    owner.traces.left(ONE)
    owner.join(TWO)
    owner.say()
    assert owner.spans.take() == ["lease ann not delivered", "lease ann consumer left"]
    owner.ack(5, how="expire")
    assert owner.spans.take() == [
        "lease bob forced_expire",
        "acknowledgment expire",
        "removal forced_expire",
    ]
    again = Owner()
    again.join()
    again.sampled(5)
    again.say()
    again.traces.close()
    assert again.spans.take() == ["enqueue", "lease ann unknown"]


@pytest.mark.parametrize(
    ("begun", "is_cancel", "how"),
    [
        ({P: [(5, 5)]}, True, "cancelled"),
        ({P: [(5, 5)]}, False, "consumer left"),
        ({P: [(6, 9)]}, True, "returned unseen"),
        (None, False, "consumer left"),
    ],
)
def test_a_lease_of_a_consumer_that_leaves_says_whether_a_handler_was_given_the_message(
    begun: Any, is_cancel: bool, how: str
) -> None:
    owner = Owner(queue())
    owner.join()
    owner.sampled(5)
    owner.say()
    owner.spans.take()
    owner.machine.left(ONE, begun=begun, is_cancel=is_cancel)
    owner.traces.left(ONE, begun, is_cancel=is_cancel)
    assert owner.spans.take() == [f"lease ann {how}"]


def test_what_leaves_without_an_acknowledgment_says_why() -> None:
    owner = Owner(queue(expiration_us=LEASE_US))
    owner.sampled(5)
    owner.pass_time(LEASE_US)
    owner.say()
    assert owner.spans.take() == ["enqueue", "removal time_limit"]
    owner = Owner()
    owner.sampled(5)
    owner.removal(5, "max_deliveries")
    owner.removal(5, "max_deliveries")
    assert owner.spans.take() == ["enqueue", "removal max_deliveries"]


def test_at_most_once_it_is_sent_behind_its_removal() -> None:
    owner = Owner(queue(at_most_once=True))
    owner.join()
    owner.sampled(5)
    owner.say()
    assert [time_us > 0 for time_us in owner.say()] == [True]
    assert owner.spans.take() == ["enqueue", "removal sent", "lease ann sent"]
    assert not owner.traces._sent


def test_a_barrier_is_sent_to_each_consumer_behind_its_removal() -> None:
    owner = Owner(queue(barrier="/stop = 1"))
    owner.join()
    owner.join(TWO)
    payload = RecordBuilder(P, "orders", "json").build(1, b'{"stop": 1}', 0, owner.context)
    run = Run(P, 1, 1, 1, payload, b"orders", b"json", ())
    run.flags = Flag.CONTIGUOUS | Flag.TRACED
    owner.commit(run)
    owner.say()
    assert owner.spans.take() == ["enqueue", "removal barrier"]
    assert [time_us > 0 for time_us in owner.say()] == [True, True]
    assert owner.spans.take() == ["lease ann sent", "lease bob sent"]
    assert not owner.traces._sent
    # Another instance sends it to consumers of its own.
    other = Owner(queue(barrier="/stop = 1"))
    other.commit(replace(run))
    other.removal(1, "barrier", by="B")
    assert other.spans.take() == ["enqueue"]


def test_a_transfer_counts_from_when_it_was_granted_here_or_asked_for_there() -> None:
    owner = Owner()
    owner.sampled(5)
    owner.machine.requested("B", 1, [TransferCandidate((P, 5), 0, "A")])
    decisions = owner.take()
    owner.traces.said(decisions)
    (mark,) = owner.traces._marks.among(P, [(5, 5)])
    granted_ns = mark.granted_ns
    assert granted_ns > 0
    owner.write(decisions)
    assert owner.spans.spans[-1][3] == granted_ns
    assert owner.spans.take() == ["enqueue", "transfer A B 1"]
    # It comes back, and what is of no higher generation says nothing.
    owner.traces.said([TransferRequest(1, [TransferCandidate((P, 5), 1, "B")])])
    asked_ns = mark.asked_ns
    owner.move(5, 1, "C")
    owner.move(5, 2, "A")
    assert owner.spans.spans[0][3] == asked_ns > granted_ns
    assert owner.spans.take() == ["transfer B A 2"]
    owner.move(5, 3, "C", by="A")
    assert owner.spans.spans[0][3] == owner.now_us * 1000, "received: nobody here asked for it"


def test_what_its_filter_keeps_out_and_what_ended_before_it_came_have_no_spans() -> None:
    owner = Owner(queue(filter="/n > 1"))
    owner.sampled(5, body=b'{"n": 1}')
    assert owner.spans.take() == [] and not owner.traces._marks
    owner.sampled(8, body=b'{"n": 2}')
    assert owner.spans.take() == ["enqueue"]
    early = Owner()
    early.ack(5, path=(B,))
    early.sampled(5, path=(B,))
    assert early.spans.take() == []


def test_in_one_reading_it_comes_and_goes() -> None:
    """A part that a sampled message ends is folded before what is behind it."""
    owner = Owner()
    runs = [owner.publish(20), owner.sampled(5), owner.move(5, 1, "B"), owner.ack(5)]
    expected = owner.spans.take()
    assert expected == ["enqueue", "transfer A B 1", "acknowledgment", "removal ack"]
    depth = owner.machine.state.depth
    owner.restart(snapshot=QueueCheckpoint(names=NAMES))
    owner.fold(runs)
    assert owner.spans.take() == expected
    assert (owner.machine.state.depth, owner.machine.state.folded_txid) == (
        depth,
        runs[-1].last_txid,
    )


def test_who_reads_the_journal_again_repeats_no_span() -> None:
    owner = Owner()
    owner.join()
    runs = [owner.sampled(5), owner.sampled(9), owner.ack(9)]
    (delivery,) = owner.take()
    assert isinstance(delivery, DeliverLeased)
    owner.spans.take()
    owner.told_txid = runs[-1].last_txid
    leases = [
        MessageLease(each.key, delivery.consumer, each.number, each.until_us)
        for each in delivery.messages
    ]
    told = {"fence_txid": owner.told_txid, "leases": leases}
    owner.restart(snapshot=QueueCheckpoint(names=NAMES), **told)
    owner.join()
    owner.now_us += 500_000
    earliest_ns = time.time_ns()
    owner.fold(runs)
    latest_ns = time.time_ns()
    assert owner.spans.take() == []
    # What its consumer holds from before ends here, and began when it was given.
    owner.ack(5)
    ((*_, began_ns, _, _), *_) = owner.spans.spans
    assert earliest_ns <= began_ns + 500_000_000 <= latest_ns, "half a second ago, on the wall"
    assert owner.spans.take() == ["lease ann acked", "acknowledgment", "removal ack"]


# -- what it costs -------------------------------------------------------------------------------


def calls_of(work: Callable[[], None]) -> Counter[str]:
    """Calls of functions of the spans' files."""
    counted: Counter[str] = Counter()

    def profile(frame: FrameType, event: str, _: Any) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.endswith(("queue_owner/traces.py", "queue_owner/sampled.py")):
            counted[frame.f_code.co_qualname] += 1

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(before)
    return counted


def test_a_message_that_is_not_sampled_costs_no_call() -> None:
    def load(owner: Owner, count: int) -> None:
        owner.publish(101, 100 + count)
        owner.say()
        owner.ack(101, 100 + count)
        owner.pass_time(1)

    for is_one_sampled in (False, True):
        found = []
        for count in (10, 1_000):
            owner = Owner()
            owner.join(backlog=2_000)
            if is_one_sampled:
                # In the queue all the while, and nobody's.
                owner.sampled(5, path=(B,))
            owner.spans.take()
            found.append(calls_of(lambda owner=owner, count=count: load(owner, count)))
            assert owner.machine.state.depth == (3 if is_one_sampled else 0)
            assert owner.spans.take() == []
        assert found[0] == found[1]
        if not is_one_sampled:
            looking = {"QueueTraces._acknowledged", "Marks.among", "Marks.of"}
            assert not looking & set(found[1]), found[1]


def test_without_tracing_nothing_is_looked_at() -> None:
    owner = Owner()
    owner.spans.enabled = False
    owner.join()
    owner.sampled(5)
    owner.say()
    owner.ack(5)
    assert owner.spans.take() == [] and not owner.traces._marks


def test_of_a_consumer_that_left_nothing_is_kept() -> None:
    owner = Owner()
    owner.join(ONE)
    owner.join(TWO)
    owner.machine.left(ONE)
    owner.traces.left(ONE)
    assert owner.traces._clients == {TWO: "bob"}
