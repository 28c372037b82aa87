"""services/queues/machine.py: what a queue owner does, rule by rule."""

from __future__ import annotations

import json
import random
import sys
from collections import deque
from collections.abc import Iterable, Sequence
from types import FrameType
from typing import Any

import pytest

from raylay.services.errors import ConfigurationError
from raylay.services.expressions.expression import expression
from raylay.services.expressions.functions.registry import NO_CONTEXT, EvalContext
from raylay.services.messages.records import Command, Flag, RecordBuilder, Run
from raylay.services.messages.types.registry import MessageTypes
from raylay.services.protocol.child import queue_control as control
from raylay.services.queues.checkpoint import QueueCheckpoint, RecoveryStart
from raylay.services.queues.decisions import (
    ConsumerSubscription,
    Decision,
    DeliverLeased,
    DeliverOnce,
    Expiration,
    MessageLease,
    QueueRecordDraft,
    TransferCandidate,
    TransferRequest,
)
from raylay.services.queues.definition import QueueDefinition
from raylay.services.queues.machine import QueueMachine
from raylay.services.queues.message import GONE, RangeFinder
from raylay.services.queues.records import (
    Acknowledgment,
    OwnershipChange,
    Removal,
    Transfer,
    pack_acknowledgment,
    pack_removal,
    pack_transfer,
    read_removal,
    read_transfer,
)
from raylay.services.queues.replicated_state import UNNAMED_MIN, ReplicatedQueueState

A, B, C = 11, 21, 31
"""Incarnations of the instances of these names; the machine is A's."""
NAMES = {B: "B", C: "C"}
P, ACKER, AUTHOR = 1, 900, 901
"""Publisher ids: of messages, of a client's acknowledgments, of an instance's own records."""
ONE, TWO = (1, "s"), (2, "s")
S_US = 1_000_000
LEASE_US = 30 * S_US


def queue(**changes: Any) -> QueueDefinition:
    """A distributed queue."""
    given = {"underlying": "orders", "lease_us": LEASE_US, "subscription_backlog_max": 1_000}
    return QueueDefinition("q", "json", **{**given, **changes})


class Instance:
    """A journal, and the machine that reads it."""

    def __init__(self, definition: QueueDefinition | None = None, **start: Any) -> None:
        self.definition = definition or queue()
        self.runs: list[Run] = []
        self.now_us = 1_000 * S_US
        self.clock_us = 0
        self.sequences = {ACKER: 0, AUTHOR: 0}
        self.restart(**{"snapshot": QueueCheckpoint(names=NAMES), **start})

    def restart(self, **start: Any) -> QueueMachine:
        """Another machine on the same journal; it reads nothing yet."""
        state = ReplicatedQueueState(
            self.definition, "A", A, self, RecoveryStart(**start), types=MessageTypes()
        )
        self.machine = QueueMachine(state)
        return self.machine

    # What the machine asks.
    def tree(self, txid: int) -> dict[str, Any]:
        run = next(run for run in self.runs if run.first_txid <= txid <= run.last_txid)
        offset = 0
        for _ in range(txid - run.first_txid):
            offset += int.from_bytes(run.payload[offset : offset + 4], "little")
        length = int.from_bytes(run.payload[offset : offset + 4], "little")
        found: dict[str, Any] = json.loads(run.payload[offset + 60 : offset + length][10:])
        return found

    def around(self, txid: int) -> EvalContext:
        return NO_CONTEXT

    def set_clock(self, ahead_us: int) -> None:
        """The wall clock of the instance is set."""
        self.clock_us = ahead_us
        self.machine.state.clock_set(self.runs[-1].last_txid if self.runs else 0, ahead_us)

    # What is committed.
    def commit(self, run: Run) -> Run:
        """Journals a run and has it folded."""
        run.first_txid = self.runs[-1].last_txid + 1 if self.runs else 1
        run.receive_time_us = self.now_us + self.clock_us
        self.runs.append(run)
        self.machine.fold([run], self.now_us)
        return run

    def publish(
        self,
        first: int,
        last: int = 0,
        path: tuple[int, ...] = (),
        publisher: int = P,
        bodies: Iterable[Any] = (),
        expiration_s: int = 0,
    ) -> Run:
        """Messages first..last come in."""
        builder = RecordBuilder(publisher, "orders", "json")
        sequences = range(first, (last or first) + 1)
        given = [json.dumps(body).encode() for body in bodies] or [b"{}"] * len(sequences)
        payload = b"".join(
            builder.build(sequence, body, 0, expiration_s=expiration_s)
            for sequence, body in zip(sequences, given, strict=True)
        )
        return self.commit(
            Run(
                publisher,
                first,
                sequences[-1],
                len(sequences),
                payload,
                b"orders",
                b"json",
                path,
            )
        )

    def command(self, number: int, body: bytes, path: tuple[int, ...] = ()) -> Run:
        """A record on the queue's topic."""
        author = ACKER if number == Command.QUEUE_ACKNOWLEDGMENT else AUTHOR
        self.sequences[author] += 1
        at = self.sequences[author]
        payload = RecordBuilder(author, "q", "json").build(at, body, 0, command=number)
        flags = Flag.CONTIGUOUS | Flag.COMMANDS
        return self.commit(Run(author, at, at, 1, payload, b"q", b"json", path, flags=flags))

    def ack(self, first: int, last: int = 0, how: str = "ack", path: tuple[int, ...] = ()) -> Run:
        """A client has done messages first..last."""
        said = Acknowledgment({P: [(first, last or first)]}, how)
        return self.command(Command.QUEUE_ACKNOWLEDGMENT, pack_acknowledgment(said), path)

    def move(self, sequence: int, generation: int, owner: str, by: str = "B") -> Run:
        """Somebody says whose a message is."""
        said = Transfer(by, 0, [OwnershipChange(P, sequence, sequence, generation, owner)])
        return self.command(Command.TRANSFER, pack_transfer(said))

    def removal(self, sequence: int, why: str, by: str = "B") -> Run:
        """An instance has removed a message."""
        said = Removal(by, 0, {P: [(sequence, sequence)]}, why)
        return self.command(Command.QUEUE_REMOVAL, pack_removal(said))

    # What is decided.
    def take(self, messages_max: int = 1_000) -> list[Decision]:
        """What is decided now."""
        return self.machine.take(self.now_us, messages_max)

    def write(self, decisions: Sequence[Decision]) -> None:
        """The drafts among these are committed."""
        for draft in decisions:
            if isinstance(draft, QueueRecordDraft):
                self.command(draft.command, draft.body)

    def tick(self, after_us: int) -> list[Decision]:
        """Time passes, and it is looked at."""
        self.now_us += after_us
        self.machine.tick(self.now_us)
        return self.take()

    def join(self, consumer: tuple[int, str] = ONE, backlog: int = 100, wanted: str = "") -> None:
        """A consumer subscribes."""
        self.machine.subscribed(ConsumerSubscription(consumer, "client", wanted, backlog))

    @property
    def register(self) -> tuple[int, str]:
        """Of the only message."""
        (found,) = self.machine.state.registers().values()
        return found


def delivered(decisions: Iterable[Decision]) -> dict[tuple[int, str], list[int]]:
    """Sequences by consumer."""
    return {
        each.consumer: [leased.key[1] for leased in each.messages]
        for each in decisions
        if isinstance(each, DeliverLeased | DeliverOnce)
    }


def the_lease(decisions: Sequence[Decision]) -> tuple[tuple[int, int], int]:
    """Key and number of the only message that is delivered."""
    (deliver,) = decisions
    assert isinstance(deliver, DeliverLeased)
    (leased,) = deliver.messages
    return leased.key, leased.number


def the_draft(decisions: Sequence[Decision]) -> QueueRecordDraft:
    """The only draft among these."""
    (found,) = (each for each in decisions if isinstance(each, QueueRecordDraft))
    return found


# -- local delivery ----------------------------------------------------------------------------
def test_messages_go_in_order_to_who_has_room_and_end_with_their_acknowledgment() -> None:
    here = Instance()
    here.join(backlog=2)
    here.publish(1, 3)
    (deliver,) = here.take()
    assert isinstance(deliver, DeliverLeased)
    assert [each.txid for each in deliver.messages] == [1, 2]
    assert {each.until_us for each in deliver.messages} == {here.now_us + LEASE_US}
    assert deliver.folded_txid == 3
    assert here.take() == []
    here.ack(1, 2)
    assert delivered(here.take()) == {ONE: [3]}
    here.ack(3)
    assert (here.machine.state.depth, here.machine.state.floor_txid) == (0, 5)


@pytest.mark.covers("Queues", "`UnderlyingTopic`")
def test_a_queue_takes_what_its_topic_type_and_filter_let_in() -> None:
    here = Instance(queue(underlying="^ord", filter="/a > 1", publish_target="orders"))
    here.join()
    here.publish(1, 3, bodies=[{"a": 1}, {"a": 2}, "no tree"])
    other = here.publish(4)
    for topic, message_type in ((b"other", b"json"), (b"orders", b"fix")):
        other.topic, other.message_type, other.first_txid = topic, message_type, 5
        here.machine.fold([other], here.now_us, through_txid=5)
    assert delivered(here.take()) == {ONE: [2]}
    assert here.machine.state.folded_txid == 5
    # What it did not let in has left it: an acknowledgment of that is not remembered.
    here.ack(1)
    assert here.machine.status()["deferred_ack_count"] == 0


def test_higher_priorities_go_first() -> None:
    here = Instance(queue(priority="/p"))
    here.join()
    here.publish(1, 5, bodies=[{"p": 1}, {"p": 7}, {}, {"p": "x"}, {"p": 7}])
    assert delivered(here.take()) == {ONE: [2, 5, 1, 3, 4]}


def test_an_expression_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="queue q: filter"):
        Instance(queue(filter="/a >"))


@pytest.mark.covers("Queues", "leases end by time")
def test_leases_end_by_time_and_by_their_consumers_end() -> None:
    here = Instance()
    here.join()
    here.publish(1)
    here.take()
    assert here.machine.next_us(here.now_us) == here.now_us + LEASE_US
    assert here.tick(LEASE_US - 1) == []
    assert delivered(here.tick(1)) == {ONE: [1]}
    here.join(TWO)
    here.machine.left(ONE)
    assert delivered(here.take()) == {TWO: [1]}
    assert here.machine.status()["expired_leases"] == 1


@pytest.mark.covers("Queues", "a consumer that let a lease end comes after all others")
@pytest.mark.parametrize("fairness", ["", "round-robin", "fast"])
@pytest.mark.parametrize("is_there_before", [True, False])
@pytest.mark.parametrize("how", ["time", "unseen"])
def test_what_a_consumer_held_too_long_goes_to_another_one(
    how: str, is_there_before: bool, fairness: str
) -> None:
    """Though the one has nothing of its backlog in use, and the other one has."""
    here = Instance(queue(fairness=fairness))
    here.join(backlog=9)
    if is_there_before:
        here.join(TWO, backlog=9)
    here.publish(1)
    lease = the_lease(here.take())
    if not is_there_before:
        here.join(TWO, backlog=9)
    here.now_us += LEASE_US - 1
    here.publish(2)
    here.take()
    if how == "time":
        assert delivered(here.tick(1)) == {TWO: [1]}
    else:
        here.machine.cancelled(ONE, [lease], unseen=True)
        assert delivered(here.take()) == {TWO: [1]}
    here.publish(3, 4)
    assert delivered(here.take()) == {TWO: [3, 4]}


@pytest.mark.covers("Queues", "a consumer that let a lease end comes after all others")
@pytest.mark.parametrize("by", ["acknowledgment", "time"])
def test_a_late_consumer_is_served_again_after_an_acknowledgment_or_a_lease(by: str) -> None:
    here = Instance()
    here.join(backlog=2)
    here.publish(1)
    here.take()
    here.join(TWO, backlog=2)
    assert delivered(here.tick(LEASE_US)) == {TWO: [1]}
    here.publish(2)
    assert delivered(here.take()) == {TWO: [2]}
    # The late one alone has room, and is served.
    here.publish(3)
    assert delivered(here.take()) == {ONE: [3]}
    here.ack(1)
    if by == "acknowledgment":
        here.machine.done({P: [(3, 3)]})
    here.ack(3)
    if by == "time":
        here.publish(4)
        assert delivered(here.tick(LEASE_US - 1)) == {TWO: [4]}
        here.ack(2)
        here.tick(1)
    here.publish(5)
    assert delivered(here.take()) == {ONE: [5]}


def test_a_consumer_that_acknowledged_in_time_is_not_late() -> None:
    """The acknowledgment is on its way to the disk when the lease ends."""
    here = Instance(queue(fairness="round-robin"))
    here.join()
    here.publish(1)
    here.take()
    here.join(TWO)
    here.machine.done({P: [(1, 1)]})
    here.machine.tick(here.now_us + LEASE_US)
    here.ack(1)
    here.publish(2)
    assert delivered(here.take()) == {ONE: [2]}


@pytest.mark.covers("Queues", "leases end by time")
def test_messages_that_are_given_back_too_often_expire() -> None:
    here = Instance(queue(cancels_max=2, deliveries_max=9))
    here.join()
    here.publish(1)
    for _ in range(2):
        here.machine.cancelled(ONE, [the_lease(here.take())])
    draft = the_draft(here.take())
    assert read_removal(draft.body).why == "max_cancels"
    here.write([draft])
    assert here.take() == [Expiration(1, (P, 1), "max_cancels")]
    assert here.machine.state.depth == 0


@pytest.mark.covers("Queues", "leases end by time")
def test_messages_that_are_delivered_too_often_in_vain_expire_and_bounced_ones_do_not() -> None:
    here = Instance(queue(deliveries_max=2))
    here.join()
    here.publish(1)
    for _ in range(4):
        here.machine.bounced(ONE, [the_lease(here.take())])
    here.take()
    here.tick(LEASE_US)
    draft = the_draft(here.tick(LEASE_US))
    assert read_removal(draft.body).why == "max_deliveries"


@pytest.mark.covers("Queues", "leases end by time")
@pytest.mark.parametrize("how", ["dies", "stands still"])
def test_a_message_that_ends_its_consumers_is_the_only_one_that_expires(how: str) -> None:
    """The others lay behind it in the backlog of a consumer that handles one after the other."""
    here = Instance(queue(deliveries_max=3))
    here.publish(1, 10)
    for number in range(1, 4):
        consumer = (number, "s")
        here.join(consumer, backlog=10)
        assert delivered(here.take()) == {consumer: [*range(1, 11)]}
        if how == "dies":
            here.machine.left(consumer)
        else:
            here.now_us += LEASE_US
            here.machine.tick(here.now_us)
            here.machine.left(consumer)
    removal = read_removal(the_draft(here.take()).body)
    assert (removal.keys, removal.why) == ({P: [(1, 1)]}, "max_deliveries")


def test_behind_a_message_that_is_held_too_long_leases_that_end_later_do_not_count() -> None:
    here = Instance(queue(deliveries_max=1))
    here.join(backlog=3)
    for sequence in (1, 2, 3):
        here.publish(sequence)
        here.take()
        here.now_us += S_US
    here.now_us += LEASE_US - 3 * S_US
    drafts: list[QueueRecordDraft] = []
    for _ in range(3):
        drafts += [each for each in here.tick(0) if isinstance(each, QueueRecordDraft)]
        here.now_us += S_US
    assert [read_removal(each.body).keys for each in drafts] == [{P: [(1, 1)]}]


@pytest.mark.parametrize(
    ("begun", "counted"),
    [
        ({P: [(1, 2)]}, [(1, 2)]),
        # Of the others, one is acknowledged, and the rest never came.
        ({7: [(1, 3)], P: [(2, 2), (4, 4), (6, 9)]}, [(2, 2)]),
        ({}, []),
    ],
    ids=["two", "some that it does not hold", "none"],
)
def test_of_a_consumer_that_unsubscribes_that_counts_which_a_handler_was_given(
    begun: dict[int, list[tuple[int, int]]], counted: list[tuple[int, int]]
) -> None:
    here = Instance(queue(deliveries_max=1))
    here.join(backlog=4)
    here.publish(1, 5)
    here.take()
    here.machine.done({P: [(4, 4)]})
    # The fifth one is on its way to it.
    assert delivered(here.take()) == {ONE: [5]}
    here.machine.left(ONE, begun=begun)
    said = here.take()
    assert [
        read_removal(each.body).keys for each in said if isinstance(each, QueueRecordDraft)
    ] == ([{P: counted}] if counted else [])
    assert not any(isinstance(each, DeliverLeased) for each in said), "it is served no more"
    here.join(TWO, backlog=9)
    gone = {at for first, last in counted for at in range(first, last + 1)}
    assert delivered(here.take()) == {TWO: [at for at in (1, 2, 3, 5) if at not in gone]}


@pytest.mark.parametrize("most", [0, 1, 3])
def test_a_delivery_says_whether_a_message_leaves_when_it_is_in_vain_too(most: int) -> None:
    here = Instance(queue(deliveries_max=most, cancels_max=9))
    here.publish(1, 3)
    said = []
    for number in range(1, max(most, 1) + 1):
        here.join((number, "s"), backlog=3)
        (decision,) = here.take()
        assert isinstance(decision, DeliverLeased) and len(decision.messages) == 3
        said.append(decision.is_last_try)
        here.machine.left((number, "s"))
    assert said == {0: [False], 1: [True], 3: [False, False, True]}[most]


@pytest.mark.parametrize("is_cancel", [True, False])
def test_a_handler_that_fails_gives_back_its_message_once(is_cancel: bool) -> None:
    here = Instance(queue(cancels_max=2))
    here.publish(1, 3)
    for number in (1, 2):
        here.join((number, "s"), backlog=3)
        assert delivered(here.take()) == {(number, "s"): [1, 2, 3]}
        here.machine.left((number, "s"), begun={P: [(1, 1)]}, is_cancel=is_cancel)
    drafts = [each for each in here.take() if isinstance(each, QueueRecordDraft)]
    removals = [read_removal(each.body) for each in drafts]
    assert [(each.keys, each.why) for each in removals] == (
        [({P: [(1, 1)]}, "max_cancels")] if is_cancel else []
    )


def test_what_nobody_was_given_counts_neither_as_delivered_nor_as_given_back() -> None:
    here = Instance(queue(deliveries_max=1, cancels_max=1))
    here.join()
    here.publish(1)
    for _ in range(4):
        here.machine.cancelled(ONE, [the_lease(here.take())], unseen=True)
    assert delivered(here.take()) == {ONE: [1]}


MODES = {
    "at least once": {},
    "at most once": {"at_most_once": True},
    "without a lease": {"lease_us": 0},
    "local": {"kind": "local"},
    "local, at most once": {"kind": "local", "at_most_once": True},
    "group-local": {"kind": "group_local", "initial_owner": "A"},
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "verb", ["ack", "expire", "done", "cancel", "unseen", "bounce", "time", "left", "failed"]
)
def test_whatever_is_said_of_messages_their_places_come_back(verb: str, mode: str) -> None:
    """Places of a consumer that are taken for ever starve it. A fresh machine says how many there
    are."""
    at_most_once = "most" in mode
    here = Instance(queue(**MODES[mode]))
    here.join(backlog=2)
    for first in (1, 3, 5):
        here.publish(first, first + 1)
        said = here.take()
        if at_most_once:
            if verb == "failed":
                here.machine.failed([the_draft(said).tag], here.machine.state.folded_txid)
                said = here.take()
            here.write([the_draft(said)])
            said = here.take()
        (deliver,) = (each for each in said if isinstance(each, DeliverLeased | DeliverOnce))
        assert len(deliver.messages) == 2, f"round {first}: places are missing"
        consumer = deliver.consumer
        leases = [(each.key, each.number) for each in deliver.messages]
        keys = [key[1] for key, _ in leases]
        if verb in ("cancel", "unseen") and not at_most_once:
            here.machine.cancelled(consumer, leases, unseen=verb == "unseen")
        elif verb == "bounce" and not at_most_once:
            here.machine.bounced(consumer, leases)
        elif verb == "time" and here.definition.lease_us and not at_most_once:
            here.now_us += LEASE_US
            here.machine.tick(here.now_us)
        elif verb in ("left", "bounce") or (verb == "time" and not at_most_once):
            here.machine.left(consumer)
            here.join(backlog=2)
        else:
            # At most once the instance says of what is cancelled that it is done.
            here.machine.done({P: [(keys[0], keys[1])]})
        here.ack(keys[0], keys[1], "expire" if verb == "expire" else "ack")
        here.take()
    assert here.machine.status()["backlog"] == 0 and here.machine.state.depth == 0


@pytest.mark.parametrize("how", ["max_cancels", "max_deliveries", "time_limit"])
def test_where_the_append_of_its_removal_fails_it_is_removed_again_and_not_delivered(
    how: str,
) -> None:
    """A disk that is full for a moment makes nothing of a limit."""
    limits = {
        "max_cancels": {"cancels_max": 1},
        "max_deliveries": {"deliveries_max": 1},
        "time_limit": {"expiration_us": 1},
    }
    here = Instance(queue(**limits[how]))
    here.join()
    here.publish(1)
    lease = the_lease(here.take())
    if how == "max_cancels":
        here.machine.cancelled(ONE, [lease])
    said = here.take() if how == "max_cancels" else here.tick(LEASE_US)
    for _ in range(2):
        (draft,) = said
        assert isinstance(draft, QueueRecordDraft) and read_removal(draft.body).why == how
        here.machine.failed([draft.tag], here.machine.state.folded_txid)
        said = here.take()
    here.write([the_draft(said)])
    assert here.machine.state.depth == 0


@pytest.mark.covers("Queues", "`Expiration`, `ExpirationModel`")
@pytest.mark.parametrize(
    ("model", "own_s", "queue_s", "expires_s"),
    [
        ("default", 5, 9, 5),
        ("default", 0, 9, 9),
        ("queue", 5, 9, 9),
        ("latest", 5, 9, 9),
        ("earliest", 5, 9, 5),
        ("earliest", 0, 9, 9),
        ("default", (1 << 32) - 1, 9, 0),
    ],
)
def test_the_model_says_when_a_message_expires(
    model: str, own_s: int, queue_s: int, expires_s: int
) -> None:
    here = Instance(queue(expiration_us=queue_s * S_US, expiration_model=model))
    here.publish(1, expiration_s=own_s)
    assert here.machine.next_us(here.now_us) == (here.now_us + expires_s * S_US if expires_s else 0)
    if expires_s:
        assert here.tick(expires_s * S_US - 200_000) == []
        assert read_removal(the_draft(here.tick(300_000)).body).why == "time_limit"


@pytest.mark.covers("Queues", "`Expiration`, `ExpirationModel`")
def test_a_leased_message_expires_when_its_lease_ends() -> None:
    here = Instance(queue(expiration_us=S_US))
    here.join()
    here.publish(1, 2)
    leases = here.take()
    assert here.tick(2 * S_US) == []
    here.ack(2)
    draft = the_draft(here.tick(LEASE_US))
    assert leases and read_removal(draft.body).keys == {P: [(1, 1)]}
    assert here.take() == []
    here.write([draft])
    assert here.take() == [Expiration(1, (P, 1), "time_limit")]


@pytest.mark.covers("Replication", "a wall clock that is set both ways")
@pytest.mark.parametrize("jump_us", [-3_600 * S_US, 3_600 * S_US])
def test_messages_age_while_the_clock_on_the_wall_is_set(jump_us: int) -> None:
    here = Instance(queue(expiration_us=10 * S_US))
    here.publish(1)
    here.publish(11, path=(B,), publisher=2)
    here.set_clock(jump_us)
    here.publish(2)
    here.publish(12, path=(B,), publisher=2)
    here.set_clock(0)
    here.publish(3)
    here.join(backlog=9)
    here.machine.left(ONE)
    assert here.tick(10 * S_US - 1) == []
    drafted = [each for each in here.tick(2) if isinstance(each, QueueRecordDraft)]
    found = [read_removal(each.body).keys for each in drafted]
    assert found == [{P: [(1, 3)]}]


@pytest.mark.parametrize("jump_us", [-3_600 * S_US, 3_600 * S_US])
def test_messages_of_others_are_asked_for_while_the_clock_on_the_wall_is_set(jump_us: int) -> None:
    here = Instance()
    here.join(backlog=2)
    here.set_clock(jump_us)
    for sequence in (1, 2):
        here.publish(sequence, path=(B,))
        assert here.take() == [], "it is too young"
        here.now_us += S_US
        (asked,) = here.take()
        assert isinstance(asked, TransferRequest)
        assert sequence in [each.key[1] for each in asked.wanted]
        here.now_us += S_US
        here.ack(sequence, path=(B,))
    assert 0 < here.machine.status()["usual_us"] < S_US


@pytest.mark.parametrize("jump_us", [-48 * 3_600 * S_US, 48 * 3_600 * S_US])
def test_early_acknowledgments_are_kept_while_the_clock_on_the_wall_is_set(jump_us: int) -> None:
    here = Instance()
    here.ack(1)
    here.set_clock(jump_us)
    here.ack(3)
    here.publish(1)
    here.set_clock(0)
    here.publish(2, 3)
    here.join(backlog=9)
    assert delivered(here.take()) == {ONE: [2]}


@pytest.mark.parametrize("ends", ["ack", "removal"])
def test_what_was_done_in_vain_with_a_message_is_forgotten_with_it(ends: str) -> None:
    """Else each message that once was given back would stay in memory."""
    here = Instance(queue(deliveries_max=5, cancels_max=5))
    here.join()
    here.publish(1)
    here.machine.cancelled(ONE, [the_lease(here.take())])
    assert len(here.machine.state.leases._tries) == 1
    if ends == "ack":
        here.ack(1)
    else:
        here.removal(1, "left")
    assert not here.machine.state.leases._tries and not here.machine.state.depth


def test_at_most_once_is_sent_when_its_removal_is_in_the_journal() -> None:
    here = Instance(queue(at_most_once=True))
    here.join(backlog=1)
    here.publish(1, 2)
    draft = the_draft(here.take())
    assert read_removal(draft.body)[2:] == ({P: [(1, 1)]}, "sent")
    assert here.take() == []
    here.write([draft])
    assert delivered(here.take()) == {ONE: [1]}
    assert here.machine.state.depth == 1
    # The acknowledgment makes room for the next one.
    assert here.take() == []
    here.ack(1)
    assert read_removal(the_draft(here.take()).body).keys == {P: [(2, 2)]}


def test_at_most_once_frees_the_place_of_what_came_to_nothing() -> None:
    here = Instance(queue(at_most_once=True))
    here.join(backlog=1)
    here.publish(1, 2)
    here.machine.failed([the_draft(here.take()).tag], here.machine.state.folded_txid)
    draft = the_draft(here.take())
    assert read_removal(draft.body).keys == {P: [(1, 1)]}
    here.ack(1)
    here.write([draft])
    assert read_removal(the_draft(here.take()).body).keys == {P: [(2, 2)]}
    here.machine.left(ONE)
    here.join()
    assert here.take() == []


def test_at_most_once_what_was_sent_to_who_left_is_remembered_no_more() -> None:
    """Nobody will acknowledge it: it would be counted, and kept, for ever."""
    here = Instance(queue(at_most_once=True))
    here.join(backlog=2)
    here.publish(1, 2)
    here.write(here.take())
    assert delivered(here.take()) == {ONE: [1, 2]}
    here.join(TWO)
    here.publish(3)
    here.write(here.take())
    assert delivered(here.take()) == {TWO: [3]}
    here.machine.left(ONE)
    assert here.machine.status()["backlog"] == 1, "what others were sent stays"


def test_at_most_once_what_another_instance_says_has_left_frees_no_place() -> None:
    """The consumer may still work on it."""
    here = Instance(queue(at_most_once=True))
    here.join(backlog=1)
    here.publish(1, 2)
    here.write(here.take())
    assert delivered(here.take()) == {ONE: [1]}
    here.removal(1, "left")
    assert here.take() == []
    here.ack(1)
    assert read_removal(the_draft(here.take()).body).keys == {P: [(2, 2)]}


def test_barriers_wait_for_all_before_them_and_go_to_everybody() -> None:
    here = Instance(queue(barrier="/b = 1", kind="local"))
    here.publish(1, 4, bodies=[{}, {"b": 1}, {}, {"b": 1}])
    here.join(ONE)
    here.join(TWO, wanted="/b = 1")
    assert delivered(here.take()) == {ONE: [1]}
    here.ack(1)
    draft = the_draft(here.take())
    assert read_removal(draft.body)[2:] == ({P: [(2, 2)]}, "barrier")
    assert here.take() == []
    here.machine.failed([draft.tag], here.machine.state.folded_txid)
    draft = the_draft(here.take())
    here.write([draft])
    said = here.take()
    assert delivered(each for each in said if isinstance(each, DeliverOnce)) == {ONE: [2], TWO: [2]}
    assert delivered(each for each in said if isinstance(each, DeliverLeased)) == {ONE: [3]}
    here.ack(3)
    assert read_removal(the_draft(here.take()).body).keys == {P: [(4, 4)]}


def test_a_barrier_of_a_local_queue_waits_for_a_consumer() -> None:
    for kind, waits in (("local", True), ("queue", False)):
        here = Instance(queue(barrier="/b = 1", kind=kind))
        here.publish(1, 1, bodies=[{"b": 1}])
        assert (here.take() == []) == waits


@pytest.mark.covers("Queues", "`BarrierExpression`")
def test_a_barrier_of_another_instance_stays_here_until_its_turn() -> None:
    here = Instance(queue(barrier="/b = 1"))
    here.publish(1, 1, path=(B,), bodies=[{"b": 1}])
    here.removal(1, "barrier")
    assert here.machine.state.depth == 1
    here.join()
    here.write(here.take())
    assert delivered(here.take()) == {ONE: [1]}
    assert here.machine.state.depth == 0


# -- rules 1 and 2 -----------------------------------------------------------------------------
@pytest.mark.covers("Queues", "the register: higher generation")
def test_the_register_is_taken_by_its_order_whoever_wrote_it() -> None:
    here = Instance()
    here.publish(1)
    assert here.register == (0, "A")
    here.move(1, 1, "C", by="C")
    here.move(1, 1, "D", by="A")
    assert here.register == (1, "C")
    here.move(1, 1, "B", by="D")
    assert here.register == (1, "B")
    here.move(1, 2, "A")
    here.move(1, 1, "A")
    assert here.register == (2, "A")
    here.join()
    assert delivered(here.take()) == {ONE: [1]}


def test_nobody_delivers_or_asks_until_the_owners_incarnation_has_a_name() -> None:
    for announced in (True, False):
        here = Instance(snapshot=QueueCheckpoint())
        here.join()
        here.publish(1, path=(20, B))
        here.now_us += S_US
        assert (here.take(), here.register) == ([], (0, ""))
        if announced:
            said = Transfer("A", 0, (), {20: "A"})
            here.command(Command.TRANSFER, pack_transfer(said))
        else:
            here.machine.state.named({20: "A"})
        assert here.register == (0, "A")
        assert delivered(here.take()) == {ONE: [1]}


def announcement(here: Instance, incarnation: int, name: str) -> list[Transfer]:
    """An instance says who bears this incarnation; what the machine says to that."""
    said = Transfer(name, 0, (), {incarnation: name})
    here.command(Command.TRANSFER, pack_transfer(said))
    return [read_transfer(each.body) for each in here.take() if isinstance(each, QueueRecordDraft)]


def test_an_instance_with_a_new_disk_is_told_who_it_was_before() -> None:
    """The records that said so may be removed from all journals, and its messages come back."""
    here = Instance()
    assert not announcement(here, B, "B"), "nobody has another incarnation"
    (said,) = announcement(here, 22, "B")
    assert said.names == {A: "A", B: "B", 22: "B", C: "C"} and not said.moves
    here.machine.failed([said.tag], 0)
    (again,) = [each for each in here.take() if isinstance(each, QueueRecordDraft)]
    here.command(again.command, again.body)
    assert not here.machine.status()["drafts"] and not here.take()
    here.restart(snapshot=here.machine.state.snapshot())
    here.machine.fold(here.runs, here.now_us)
    assert not here.take(), "it is told once"


def test_who_tells_names_of_others_is_told_nothing() -> None:
    here = Instance()
    said = Transfer("B", 5, (), {B: "B", 22: "B", C: "C"})
    here.command(Command.TRANSFER, pack_transfer(said))
    assert not here.take()
    local = Instance(queue(kind="local"))
    assert not announcement(local, 22, "B")


def test_a_local_queue_knows_no_transfers() -> None:
    here = Instance(queue(kind="local"))
    here.publish(1, path=(B,))
    here.move(1, 5, "B")
    assert here.register == (0, "A")


# -- rules 3, 6 and 7 --------------------------------------------------------------------------
def test_a_claim_directly_before_its_message_counts() -> None:
    here = Instance()
    here.move(1, 1, "B")
    here.publish(1, 2)
    assert here.machine.state.registers() == {(P, 1): (1, "B"), (P, 2): (0, "A")}


def test_who_was_first_given_a_message_that_is_sent_again_counts_instead_of_its_path() -> None:
    here = Instance(queue(at_most_once=True))
    here.move(1, 0, "D")
    here.publish(1, 2, path=(B,))
    assert here.machine.state.registers() == {(P, 1): (0, "D"), (P, 2): (0, "B")}
    here.move(2, 0, "C")
    here.move(1, 1, "C")
    here.move(1, 0, "A")
    assert here.machine.state.registers() == {(P, 1): (1, "C"), (P, 2): (0, "C")}


@pytest.mark.covers("Queues", "the register: higher generation")
def test_acknowledgments_win_everywhere_whoever_sent_them() -> None:
    here = Instance()
    here.join()
    here.publish(1, 4, path=(B,))
    here.move(2, 1, "A")
    assert delivered(here.take()) == {ONE: [2]}
    here.ack(1, 3)
    assert set(here.machine.state.registers()) == {(P, 4)}


def test_an_acknowledgment_of_all_that_there_can_be_is_counted() -> None:
    """Whoever wrote it: it is in the journal for good, and read at each start."""
    here = Instance()
    for publisher in (P, P + 1):
        body = pack_acknowledgment(Acknowledgment({publisher: [(1, (1 << 64) - 1)]}))
        here.command(Command.QUEUE_ACKNOWLEDGMENT, body)
    status = here.machine.status()
    assert status["deferred_ack_count"] == (1 << 63) - 1
    control.counts(1, status)
    assert QueueCheckpoint.from_bytes(here.machine.state.stored())


@pytest.mark.covers("Queues", "the register: higher generation")
def test_what_comes_before_its_message_is_kept_and_what_left_is_not() -> None:
    here = Instance()
    here.ack(1)
    here.publish(1, 2)
    assert set(here.machine.state.registers()) == {(P, 2)}
    here.ack(1, 2)
    assert here.machine.status()["deferred_ack_count"] == 0
    assert here.machine.state.depth == 0


def test_what_clients_expire_is_told_where_it_belonged() -> None:
    here = Instance()
    here.publish(1)
    here.publish(2, path=(B,))
    here.ack(1, 2, how="expire")
    assert here.take() == [Expiration(1, (P, 1), "forced_expire")]


def test_ranges_are_as_wide_as_somebody_else_likes() -> None:
    here = Instance()
    here.publish(1, 2_000)
    wide = 1 << 40
    moves = [
        OwnershipChange(P, 10 + at * wide, 10 + (at + 1) * wide - 1, 1, "B") for at in range(4_000)
    ]
    here.command(Command.TRANSFER, pack_transfer(Transfer("B", 0, moves)))
    found = here.machine.state.registers()
    assert (found[P, 9], found[P, 10], found[P, 2_000]) == ((0, "A"), (1, "B"), (1, "B"))
    keys = {P: [(5 + at * wide, 2 + (at + 1) * wide) for at in range(4_000)]}
    said = pack_acknowledgment(Acknowledgment(keys))
    here.command(Command.QUEUE_ACKNOWLEDGMENT, said)
    assert [key[1] for key in here.machine.state.registers()] == [1, 2, 3, 4]


def test_wide_ranges_cost_one_walk_over_the_messages() -> None:
    class Counted(dict[int, Any]):
        walks = 0

        def __iter__(self) -> Any:
            self.walks += 1
            return super().__iter__()

    known = Counted((at, at) for at in range(1, 100))
    within = RangeFinder(known)
    found = [within.find(at * 1_000 + 50, (at + 1) * 1_000 + 49) for at in range(100)]
    assert found[0] == list(range(50, 100)) and not any(found[1:])
    assert known.walks == 1


def test_records_that_cannot_be_read_say_nothing() -> None:
    here = Instance()
    here.publish(1)
    for number in (Command.QUEUE_ACKNOWLEDGMENT, Command.TRANSFER, Command.QUEUE_REMOVAL):
        here.command(number, b"\xc1")
    assert here.machine.state.depth == 1


# -- rules 4 and 5 -----------------------------------------------------------------------------
@pytest.mark.covers("Queues", "the owner prefers consumers of its own")
def test_an_instance_with_room_asks_the_owner_again_and_again() -> None:
    here = Instance()
    here.publish(1, 30, path=(B,))
    here.join(backlog=2)
    assert here.take() == []  # they are too young
    here.now_us += S_US
    (asked,) = here.take()
    assert isinstance(asked, TransferRequest)
    assert asked.count == 2
    assert [each.key[1] for each in asked.wanted] == list(range(1, 9))
    assert {each[1:] for each in asked.wanted} == {(0, "B")}
    assert here.take() == []
    here.now_us += S_US
    (asked,) = here.take()
    # What was asked for in vain goes behind the others.
    assert isinstance(asked, TransferRequest)
    assert [each.key[1] for each in asked.wanted] == list(range(9, 17))


def test_what_no_consumer_here_wants_is_not_asked_for() -> None:
    here = Instance()
    here.publish(1, 3, path=(B,), bodies=[{"c": 1}, {"c": 2}, {"c": 1}])
    here.join(wanted="/c = 2")
    here.now_us += S_US
    (asked,) = here.take()
    assert isinstance(asked, TransferRequest)
    assert [each.key[1] for each in asked.wanted] == [2]


def test_what_is_done_with_gives_its_place_back_before_it_is_on_disk() -> None:
    here = Instance()
    here.join(backlog=2)
    here.publish(1, 9)
    assert delivered(here.take()) == {ONE: [1, 2]}
    here.machine.done({P: [(1, 2), (9, 9)]})
    assert delivered(here.take()) == {ONE: [3, 4]}
    # They are nobody else's until it is, and give no place back once more then, nor said twice.
    here.machine.done({P: [(1, 2)], 99: [(1, 1)]})
    here.join(TWO, backlog=1)
    assert delivered(here.take()) == {TWO: [5]}
    here.ack(1, 2)
    assert here.take() == []
    here.machine.done({P: [(3, 3)]})
    here.ack(3)
    assert delivered(here.take()) == {ONE: [6]}


def test_one_acknowledgment_of_messages_in_any_state_ends_each_of_them() -> None:
    here = Instance()
    here.join(backlog=4)
    here.publish(1, 6)
    here.publish(7, 8, path=(B,))
    assert delivered(here.take()) == {ONE: [1, 2, 3, 4]}
    here.machine.done({P: [(2, 3)]})
    here.ack(2, 7)
    # 1 is its consumer's, 8 is another instance's.
    status = here.machine.status()
    assert (status["queue_depth"], status["backlog"], status["available_here"]) == (2, 1, 0)
    # The places of all three are free, each once.
    here.publish(9, 13)
    assert delivered(here.take()) == {ONE: [9, 10, 11]}


def test_what_a_message_costs_is_for_all_of_a_batch() -> None:
    here = Instance(queue(lease_us=0))
    here.join(backlog=500)
    calls = 0

    def count(frame: FrameType, event: str, _: Any) -> None:
        nonlocal calls
        calls += event == "call" and "/services/" in frame.f_code.co_filename

    # Made before: it is not the machine's work.
    acks = [Acknowledgment({P: [(first, first + 499)]}) for first in (1, 501)]
    sys.setprofile(count)
    try:
        run = here.publish(1, 1_000)
        for each in acks:
            assert len(here.take()) == 1
            here.machine.done(each.keys)
            here.command(Command.QUEUE_ACKNOWLEDGMENT, pack_acknowledgment(each))
    finally:
        sys.setprofile(None)
    assert not here.machine.state.depth and run.count == 1_000
    # Of each message there are its record, which the test builds, the message and its two leases;
    # nothing that the machine decides is decided for one alone.
    assert calls < 6 * 1_000


@pytest.mark.covers("Clients and protocol", "who leaves right behind its acknowledgment")
def test_what_is_done_with_and_not_acknowledged_after_all_comes_back_with_its_lease() -> None:
    for ends in ("time", "left", "cancel"):
        here = Instance()
        here.join(backlog=1)
        here.publish(1, 2)
        key, number = the_lease(here.take())
        here.machine.done({P: [(1, 1)]})
        assert delivered(here.take()) == {ONE: [2]}
        if ends == "time":
            assert delivered(here.tick(LEASE_US)) == {ONE: [1]}
        elif ends == "cancel":
            here.machine.cancelled(ONE, [(key, number)])
            assert here.take() == []  # the other one takes its place
            here.ack(2)
            assert delivered(here.take()) == {ONE: [1]}
        else:
            here.machine.left(ONE)
            here.join(TWO, backlog=2)
            # The acknowledgment is on its way to the disk: until then it is nobody else's.
            assert delivered(here.take()) == {TWO: [2]}
            assert delivered(here.tick(LEASE_US)) == {TWO: [1, 2]}


@pytest.mark.covers("Clients and protocol", "who leaves right behind its acknowledgment")
def test_who_leaves_behind_his_acknowledgment_has_it_given_to_nobody_else() -> None:
    here = Instance()
    here.join(backlog=2)
    here.publish(1, 2)
    assert delivered(here.take()) == {ONE: [1, 2]}
    here.machine.done({P: [(1, 1)]})
    here.machine.left(ONE)
    here.join(TWO, backlog=2)
    assert delivered(here.take()) == {TWO: [2]}
    here.ack(1)
    assert here.take() == []
    here.ack(2)
    assert here.machine.state.depth == 0 and here.tick(LEASE_US) == []


def test_without_a_lease_period_who_leaves_gives_all_back() -> None:
    here = Instance(queue(lease_us=0))
    here.join(backlog=1)
    here.publish(1, 1)
    assert delivered(here.take()) == {ONE: [1]}
    here.machine.done({P: [(1, 1)]})
    here.machine.left(ONE)
    here.join(TWO, backlog=1)
    assert delivered(here.take()) == {TWO: [1]}


def test_at_most_once_who_is_done_has_room_before_it_is_on_disk() -> None:
    here = Instance(queue(at_most_once=True))
    here.join(backlog=1)
    here.publish(1, 2)
    here.write(here.take())
    assert delivered(here.take()) == {ONE: [1]}
    here.machine.done({P: [(1, 1)]})
    assert isinstance(here.take()[0], QueueRecordDraft)


def wanted(*sequences: int) -> list[TransferCandidate]:
    """As another instance asks."""
    return [TransferCandidate((P, sequence), 0, "A") for sequence in sequences]


@pytest.mark.covers("Queues", "the owner prefers consumers of its own")
def test_what_is_free_and_nobody_here_can_take_is_granted_once() -> None:
    here = Instance()
    here.publish(1, 3)
    here.machine.requested("B", 2, wanted(9, 1, 2, 3))
    draft = the_draft(here.take())
    said = read_transfer(draft.body)
    assert (said.by, said.moves) == ("A", [OwnershipChange(P, 1, 2, 1, "B")])
    assert draft.tag == said.tag
    # It is frozen until that is read, here too.
    here.machine.requested("C", 2, wanted(1, 2))
    assert here.take() == []
    here.join()
    assert delivered(here.take()) == {ONE: [3]}
    here.write([draft])
    assert here.machine.state.registers()[P, 1] == (1, "B")
    here.machine.requested("C", 2, wanted(1, 2))
    assert here.take() == []


def test_a_refusal_is_silence_and_what_was_refused_may_be_granted_later() -> None:
    here = Instance()
    here.join()
    here.publish(1)
    here.machine.requested("B", 1, wanted(1))
    assert delivered(here.take()) == {ONE: [1]}
    here.now_us += S_US
    here.machine.tick(here.now_us)
    here.machine.left(ONE)
    # The request is over: who needs it asks again.
    assert here.take() == []
    here.machine.requested("B", 1, wanted(1))
    assert read_transfer(the_draft(here.take()).body).moves == [OwnershipChange(P, 1, 1, 1, "B")]


@pytest.mark.covers("Queues", "the owner prefers consumers of its own")
def test_what_was_refused_just_now_is_granted_when_nobody_here_can_take_it_any_more() -> None:
    here = Instance()
    here.join(backlog=2)
    here.publish(1, 4)
    here.machine.requested("B", 1, wanted(1, 2))
    here.machine.requested("C", 9, wanted(1, 2))
    assert delivered(here.take()) == {ONE: [1, 2]}
    here.machine.left(ONE)
    moves = [move for each in here.take() for move in read_transfer(as_draft(each).body).moves]
    # Each gets as many as it has asked for, and none that it has not.
    assert moves == [OwnershipChange(P, 1, 1, 1, "B"), OwnershipChange(P, 2, 2, 1, "C")]


@pytest.mark.covers("Queues", "a consumer that let a lease end comes after all others")
@pytest.mark.parametrize("wants", ["", "/a = 1"])
def test_a_request_of_another_instance_comes_before_a_late_consumer_here(wants: str) -> None:
    here = Instance()
    here.join(backlog=2, wanted=wants)
    here.publish(1, 3, bodies=[{"a": 1}] * 3)
    assert delivered(here.take()) == {ONE: [1, 2]}
    assert here.tick(LEASE_US - 1) == []
    here.machine.requested("B", 1, wanted(1, 2))
    said = here.tick(1)
    (draft,) = (each for each in said if isinstance(each, QueueRecordDraft))
    assert read_transfer(draft.body).moves == [OwnershipChange(P, 1, 1, 1, "B")]
    # Nobody has asked for the others.
    assert delivered(said) == {ONE: [2, 3]}
    here.join(TWO, wanted=wants)
    assert here.tick(LEASE_US - 1) == []
    here.machine.requested("B", 9, wanted(2, 3))
    # There is one that is not late, and has room.
    assert delivered(here.tick(1)) == {TWO: [2, 3]}


def as_draft(decision: Decision) -> QueueRecordDraft:
    """It is one."""
    assert isinstance(decision, QueueRecordDraft)
    return decision


def test_consumers_here_come_before_a_request_that_was_refused() -> None:
    here = Instance()
    here.join(backlog=1)
    here.publish(1)
    here.machine.requested("B", 1, wanted(1))
    assert delivered(here.take()) == {ONE: [1]}
    here.join(TWO)
    here.machine.left(ONE)
    assert delivered(here.take()) == {TWO: [1]}


@pytest.mark.covers("Queues", "the owner prefers consumers of its own")
def test_where_the_append_fails_the_message_is_free_again() -> None:
    here = Instance()
    here.publish(1)
    here.machine.requested("B", 1, wanted(1))
    draft = the_draft(here.take())
    here.machine.failed([draft.tag, 12345], here.machine.state.folded_txid)
    here.join()
    assert delivered(here.take()) == {ONE: [1]}


def test_a_draft_is_known_by_the_tag_in_its_record() -> None:
    here = Instance()
    here.publish(1)
    here.machine.requested("B", 1, wanted(1))
    draft = the_draft(here.take())
    said = read_transfer(draft.body)
    for other in (said._replace(tag=said.tag + 1), said._replace(by="B")):
        here.command(Command.TRANSFER, pack_transfer(other._replace(moves=[])))
        assert not list(here.machine.state.found(available=True))
    here.command(Command.TRANSFER, pack_transfer(said._replace(moves=[])))
    assert list(here.machine.state.found(available=True))


def test_tags_of_two_lives_are_different() -> None:
    tags = set()
    for life in (1, 2):
        here = Instance(life=life, snapshot=QueueCheckpoint())
        here.publish(1)
        here.machine.requested("B", 1, wanted(1))
        tags.add(the_draft(here.take()).tag)
    assert len(tags) == 2


def test_the_usual_time_follows_acknowledgments_from_elsewhere() -> None:
    here = Instance()
    for sequence in range(1, 100):
        here.publish(sequence, path=(B,))
        here.now_us += S_US
        here.ack(sequence, path=(B,))
    assert here.machine.status()["usual_us"] == pytest.approx(S_US, rel=0.01)


# -- rules 7 and 15 ----------------------------------------------------------------------------
def asked_for_a_while(here: Instance, *wanted: TransferCandidate, count: int = 9) -> list[Decision]:
    """Another instance asks for these until it is answered."""
    said: list[Decision] = []
    for _ in range(4):
        here.machine.requested("B", count, wanted)
        said += here.tick(500_000)
    return said


@pytest.mark.covers("Queues", "what an owner does not have it lets go")
def test_what_an_owner_does_not_have_it_lets_go_to_who_asks() -> None:
    here = Instance()
    here.machine.requested("B", 1, wanted(1, 2))
    assert here.take() == [], "it may be on its way"
    draft = the_draft(asked_for_a_while(here, *wanted(1, 2), count=1)[:1])
    assert read_transfer(draft.body).moves == [OwnershipChange(P, 1, 1, 1, "B")]
    # It comes before that is in the journal: it is frozen until then.
    here.join()
    here.publish(1)
    assert here.take() == []
    here.write([draft])
    assert here.register == (1, "B") and here.take() == []


def test_what_an_owner_let_go_in_vain_is_its_own_when_it_comes() -> None:
    here = Instance()
    draft = the_draft(asked_for_a_while(here, *wanted(1))[:1])
    here.publish(1)
    drafts = [each.tag for each in here.take() if isinstance(each, QueueRecordDraft)]
    here.machine.failed([draft.tag, *drafts], here.machine.state.folded_txid)
    here.join()
    here.machine.failed(range(draft.tag, draft.tag + 9), here.machine.state.folded_txid)
    assert delivered(here.take()) == {ONE: [1]}


def test_of_what_has_left_an_owners_queue_that_is_said_to_who_asks_for_it() -> None:
    """Its acknowledgment may be removed from the journals that would bring it there."""
    for filtered in (False, True):
        here = Instance(queue(filter="/a = 1") if filtered else None)
        here.publish(1, bodies=[{"a": 1}])
        here.ack(1, 2)
        here.machine.requested("B", 1, wanted(1, 2))
        assert here.take() == [], "it is on its way"
        said = asked_for_a_while(here, *wanted(1, 2))
        # What did not pass the filter has never been in it.
        assert bool(said) != filtered
        for draft in said[:1]:
            assert isinstance(draft, QueueRecordDraft)
            assert read_removal(draft.body)[2:] == ({P: [(1, 2)]}, "left")


def test_an_owner_that_others_know_of_lets_go_and_a_later_one_is_told() -> None:
    here = Instance()
    here.publish(1, 2, path=(B,))
    here.move(2, 3, "C")
    asked = TransferCandidate((P, 1), 1, "A"), TransferCandidate((P, 2), 2, "A")
    said = [read_transfer(each.body).moves for each in asked_for_a_while(here, *asked)[:2]]
    assert said == [[OwnershipChange(P, 1, 1, 2, "B")], [OwnershipChange(P, 2, 2, 3, "C")]]


def test_who_takes_messages_over_lets_go_of_those_that_it_does_not_have() -> None:
    here = Instance()
    asked = TransferCandidate((P, 1), 0, "C")
    assert asked_for_a_while(here, asked) == []
    here.machine.proxied(True, frozenset("C"))
    assert asked_for_a_while(here, asked) == []
    here.machine.proxied(True, frozenset())
    draft = the_draft(asked_for_a_while(here, asked)[:1])
    assert read_transfer(draft.body).moves == [OwnershipChange(P, 1, 1, 1, "B")]


@pytest.mark.covers("Queues", "what an owner does not have it lets go")
def test_an_acknowledgment_that_came_before_its_message_is_said_behind_it() -> None:
    here = Instance()
    here.ack(1, 3)
    here.publish(1, 2)
    draft = the_draft(here.take())
    assert read_removal(draft.body)[2:] == ({P: [(1, 2)]}, "left")
    here.machine.failed([draft.tag], here.machine.state.folded_txid)
    draft = the_draft(here.take())
    here.write([draft])
    assert here.take() == [], "once"
    # Who reads the journal again reads that, too.
    here.restart(snapshot=QueueCheckpoint(names=NAMES))
    here.machine.fold(here.runs, here.now_us)
    assert here.take() == []


def test_a_transfer_that_came_before_its_message_is_said_behind_it_if_it_may_be_removed() -> None:
    here = Instance()
    here.move(1, 1, "B")
    assert here.machine.state.floor_txid == 1
    here.publish(1)
    (said,) = [
        read_transfer(each.body) for each in here.take() if isinstance(each, QueueRecordDraft)
    ]
    assert said.moves == [OwnershipChange(P, 1, 1, 1, "B")]
    # Directly before it, and read with it, it stays for as long as the message does.
    together = Instance()
    machine, together.machine = together.machine, Instance().machine
    together.move(1, 1, "B")
    together.publish(1)
    together.machine = machine
    machine.fold(together.runs, together.now_us)
    assert together.take() == [] and machine.state.floor_txid == 0


# -- rule 9 ------------------------------------------------------------------------------------
@pytest.mark.covers("Queues", "a restarted owner begins at its floor")
def test_a_restarted_owner_waits_for_the_fence_and_begins_at_the_floor() -> None:
    here = Instance()
    here.publish(1, 2)
    here.ack(1, 2)
    here.publish(3)
    stored = QueueCheckpoint.from_bytes(here.machine.state.stored())
    assert stored.after_txid == 3
    machine = here.restart(snapshot=stored, fence_txid=5)
    here.join()
    machine.fold([here.runs[-1]], here.now_us)
    machine.requested("B", 1, wanted(3))
    assert (here.take(), machine.state.is_ready) == ([], False)
    here.ack(9)
    assert machine.state.is_ready
    assert delivered(here.take()) == {ONE: [3]}
    here.ack(1)  # it knows what it had
    assert machine.status()["deferred_ack_count"] == 1  # of message 9


def test_a_fence_that_failed_is_not_waited_for() -> None:
    here = Instance()
    here.publish(1)
    machine = here.restart(snapshot=QueueCheckpoint(), fence_txid=5)
    machine.fold(here.runs, here.now_us)
    machine.failed([77], 1)
    assert machine.state.is_ready


@pytest.mark.covers("Queues", "a restarted owner begins at its floor")
def test_live_leases_are_told() -> None:
    here = Instance()
    here.publish(1, 3)
    until_us = here.now_us + 5 * S_US
    leases = [MessageLease((P, 1), ONE, 4, until_us), MessageLease((P, 2), TWO, 5, until_us)]
    machine = here.restart(snapshot=QueueCheckpoint(), fence_txid=3, leases=leases)
    here.join(backlog=2)
    machine.fold(here.runs, here.now_us)
    # One is still leased; the other one's consumer is gone.
    assert delivered(here.take()) == {ONE: [2]}
    machine.cancelled(ONE, [((P, 1), 4)])
    assert delivered(here.take()) == {ONE: [1]}


def test_a_lease_that_was_told_may_end_before_its_message_is_read() -> None:
    here = Instance()
    here.publish(1, 3)
    until_us = here.now_us + LEASE_US
    leases = [MessageLease((P, at), TWO if at == 3 else ONE, at, until_us) for at in (1, 2, 3)]
    machine = here.restart(snapshot=QueueCheckpoint(), fence_txid=3, leases=leases)
    here.join(ONE)
    here.join(TWO)
    machine.cancelled(ONE, [((P, 1), 1), ((P, 2), 9)])
    machine.left(TWO)
    machine.fold(here.runs, here.now_us)
    assert delivered(here.take()) == {ONE: [1, 3]}


def test_an_early_entry_is_used_again_when_the_queue_is_made_again() -> None:
    here = Instance()
    here.move(2, 4, "B")
    here.ack(3)
    here.publish(1, 3)
    stored = QueueCheckpoint.from_bytes(here.machine.state.stored())
    assert stored.after_txid == 2
    machine = here.restart(snapshot=stored)
    machine.fold(here.runs[2:], here.now_us)
    assert machine.state.registers() == {(P, 1): (0, "A"), (P, 2): (4, "B")}


def test_numbers_of_leases_are_above_those_that_were_told() -> None:
    here = Instance()
    here.publish(1, 2)
    high = (1 << 64) - (1 << 32)
    lease = MessageLease((P, 1), ONE, high, here.now_us + S_US)
    machine = here.restart(snapshot=QueueCheckpoint(), leases=[lease], fence_txid=2)
    here.join()
    machine.fold(here.runs, here.now_us)
    assert the_lease(here.take())[1] > high


def test_what_was_told_before_a_restart_is_not_told_again() -> None:
    here = Instance()
    here.publish(1, 2)
    here.ack(1, how="expire")
    assert len(here.take()) == 1
    machine = here.restart(snapshot=QueueCheckpoint.from_bytes(here.machine.state.stored()))
    machine.fold(here.runs, here.now_us)
    assert here.take() == []
    here.ack(2, how="expire")
    assert here.take() == [Expiration(2, (P, 2), "forced_expire")]


# -- rules 10, 12 and 13 -----------------------------------------------------------------------
@pytest.mark.covers("Queues", "leases end by time")
def test_a_cancel_names_the_lease() -> None:
    here = Instance()
    here.join()
    here.publish(1)
    first = the_lease(here.take())
    second = the_lease(here.tick(LEASE_US))
    here.machine.cancelled(ONE, [first])
    here.machine.bounced(TWO, [second])
    here.machine.bounced(ONE, [((P, 7), 1)])
    assert here.take() == []
    here.machine.cancelled(ONE, [second])
    assert the_lease(here.take())[1] not in (first[1], second[1])


def test_an_instance_that_does_not_serve_decides_nothing() -> None:
    here = Instance(is_serving=False)
    here.join()
    here.publish(1, 2, expiration_s=1)
    here.machine.requested("B", 1, wanted(1))
    assert here.tick(2 * S_US) == []
    here.machine.serves()
    assert read_removal(the_draft(here.take()).body).keys == {P: [(1, 2)]}


@pytest.mark.covers("Queues", "proxied transfer")
def test_messages_of_who_is_not_reachable_are_claimed_where_that_is_allowed() -> None:
    here = Instance()
    here.publish(1, path=(B,))
    here.publish(2, path=(C,))
    here.now_us += S_US
    here.machine.requested("C", 1, wanted(1))
    assert here.take() == []
    here.machine.proxied(True, frozenset("AC"))
    here.machine.requested("C", 1, wanted(1))
    draft = the_draft(here.take())
    assert read_transfer(draft.body).moves == [OwnershipChange(P, 1, 1, 1, "C")]
    here.machine.failed([draft.tag], here.machine.state.folded_txid)
    here.join()
    decisions = here.take()
    assert read_transfer(the_draft(decisions).body).moves == [OwnershipChange(P, 1, 1, 1, "A")]
    (asked,) = (each for each in decisions if isinstance(each, TransferRequest))
    assert [each.key for each in asked.wanted] == [(P, 2)]
    here.write(decisions)
    assert delivered(here.take()) == {ONE: [1]}


def test_messages_whose_owner_nobody_knows_may_be_claimed() -> None:
    here = Instance(snapshot=QueueCheckpoint())
    here.publish(1, path=(20,))
    here.join()
    here.now_us += S_US
    here.machine.proxied(True, frozenset("A"))
    decisions = here.take()
    assert read_transfer(the_draft(decisions).body).moves == [OwnershipChange(P, 1, 1, 1, "A")]
    here.machine.state.named({20: "B"})
    here.write(decisions)
    assert (here.register, delivered(here.take())) == ((1, "A"), {ONE: [1]})


def test_what_has_left_does_not_wait_for_the_name_of_its_owner() -> None:
    here = Instance(snapshot=QueueCheckpoint())
    for first in range(1, 6 * UNNAMED_MIN, 512):
        here.publish(first, first + 511, path=(20,))
        here.ack(first, first + 511)
    assert len(here.machine.state.unnamed[20]) <= 2 * UNNAMED_MIN


def test_incarnations_of_which_no_message_is_left_are_forgotten() -> None:
    here = Instance(snapshot=QueueCheckpoint())
    here.publish(1, path=(7,))
    for at in range(2, 3 * UNNAMED_MIN):
        here.publish(at, path=(1_000 + at,))
        here.ack(at, at)
    unnamed = here.machine.state.unnamed
    assert len(unnamed) <= 2 * UNNAMED_MIN and [each.key for each in unnamed[7]] == [(P, 1)]


# -- what is asked -----------------------------------------------------------------------------
def test_messages_are_found_in_order_by_what_they_say_and_whether_they_are_available() -> None:
    here = Instance()
    here.join(backlog=1)
    here.publish(5, publisher=7, bodies=[{"a": 1}])
    here.publish(1, 3, path=(B,), bodies=[{"a": 1}, {"a": 2}, {"a": 1}])
    here.take()
    one = expression("/a = 1")
    assert [each.key for each in here.machine.state.found(one)] == [(7, 5), (P, 1), (P, 3)]
    assert [each.key[1] for each in here.machine.state.found(one, available=True)] == [1, 3]
    assert len(list(here.machine.state.found())) == 4


def test_status_counts() -> None:
    here = Instance()
    here.join()
    here.publish(1, 3)
    here.publish(4, path=(B,))
    here.take()
    here.ack(1)
    here.move(2, 1, "B")
    here.move(4, 1, "A")
    here.now_us += S_US
    here.machine.tick(here.now_us)
    said = here.machine.status()
    expected = {
        "queue_depth": 3,
        "backlog": 2,
        "available_here": 1,
        "came": 4,
        "left": 1,
        "transferred_in": 1,
        "transferred_out": 1,
        "oldest_lease_began_us": here.now_us - S_US,
        "consumers": 1,
        "is_ready": True,
    }
    assert {name: said[name] for name in expected} == expected


def test_the_oldest_lease_has_no_beginning_where_nothing_is_leased() -> None:
    here = Instance()
    here.join()
    here.publish(1)
    here.take()
    began_us = here.now_us
    here.now_us += S_US
    here.machine.tick(here.now_us)
    assert here.machine.status()["oldest_lease_began_us"] == began_us
    here.ack(1)
    assert here.machine.status()["oldest_lease_began_us"] is None


def test_the_oldest_lease_began_first_whatever_the_age_of_its_message() -> None:
    here = Instance()
    here.join()
    here.publish(1)
    first = the_lease(here.take())
    here.publish(2)
    here.take()
    began_us = here.now_us
    here.now_us += S_US
    here.machine.cancelled(ONE, [first])
    assert delivered(here.take()) == {ONE: [1]}
    assert here.machine.status()["oldest_lease_began_us"] == began_us


@pytest.mark.covers("Queues", "`BarrierExpression`")
def test_who_was_sent_a_barrier_and_acknowledges_it_takes_it_from_nobody() -> None:
    here = Instance(queue(barrier="/b = 1"))
    here.join()
    here.ack(1)
    here.publish(1, 1, path=(B,), bodies=[{"b": 1}])
    here.ack(1, path=(B,))
    assert here.machine.state.depth == 1
    here.write(here.take())
    assert delivered(here.take()) == {ONE: [1]}
    here.ack(1)
    assert here.machine.state.depth == 0
    # It may be expired, everywhere.
    here.publish(2, 2, bodies=[{"b": 1}])
    here.ack(2, how="expire")
    assert here.machine.state.depth == 0


# -- views over a queue ------------------------------------------------------------------------
def followed(found: Instance) -> tuple[list[int], list[int]]:
    """Returns the changes that views would be told now: sequences that came, and that left."""
    waiting = found.machine.state.followed
    assert waiting is not None
    told = list(waiting)
    waiting.clear()
    return (
        [each.sequence for each in told if each.state != GONE],
        [each.sequence for each in told if each.state == GONE],
    )


@pytest.mark.covers("Views", "views over queues")
def test_views_are_told_what_comes_and_what_leaves_for_good() -> None:
    found = Instance()
    assert found.machine.state.followed is None, "nobody follows by default"
    found.machine.state.followed = deque()
    found.ack(2)
    found.publish(1, 4, path=(B,))
    assert followed(found) == ([1, 3, 4], []), "2 was done before it came"
    found.machine.subscribed(ConsumerSubscription(ONE, "c", "", 2))
    found.machine.serves()
    found.move(1, 1, "A")
    (decision,) = [each for each in found.take() if isinstance(each, DeliverLeased)]
    assert decision.messages[0].key == (P, 1)
    found.move(4, 1, "C")
    assert followed(found) == ([], []), "a lease and a transfer change nothing"
    found.ack(1)
    found.removal(3, "time_limit")
    found.publish(5, path=(B,))
    found.ack(5)
    assert followed(found) == ([], [1, 3, 5, 5]), "who came and left meanwhile is told as gone"
    assert {key for known in found.machine.state.known.values() for key in known} == {4}
    assert [each.sequence for each in found.machine.state.present()] == [4]


@pytest.mark.covers("Views", "views over queues")
@pytest.mark.parametrize("seed", range(20))
def test_who_applies_what_is_told_has_the_messages_of_the_queue(seed: int) -> None:
    """Whatever comes in whatever order; a queue that is rebuilt tells of all its messages."""
    drawn = random.Random(seed)
    changes = drawn.choice(({}, {"filter": "/n > 3"}, {"at_most_once": True, "lease_us": 0}))
    found = Instance(queue(**changes))
    found.machine.state.followed = deque()
    holds: set[int] = set()
    for at in range(1, 60):
        if drawn.random() < 0.6:
            path = drawn.choice(((), (B,), (C,)))
            found.publish(2 * at, 2 * at + 1, path=path, bodies=[{"n": at % 7}, {"n": 1 + at % 5}])
        first = drawn.randrange(2, 2 * at + 9)
        if drawn.random() < 0.4:
            found.ack(first, first + drawn.randrange(3), how=drawn.choice(("ack", "expire")))
        if drawn.random() < 0.3:
            found.move(first, drawn.randrange(1, 4), drawn.choice("ABC"))
        if drawn.random() < 0.2:
            found.removal(first, drawn.choice(("time_limit", "sent")))
        found.write(found.take())
        if drawn.random() < 0.5:
            came, gone = followed(found)
            holds = (holds | set(came)) - set(gone)
    came, gone = followed(found)
    holds = (holds | set(came)) - set(gone)
    assert holds == {key for known in found.machine.state.known.values() for key in known}
    assert holds
    machine = found.restart(snapshot=QueueCheckpoint(names=NAMES))
    machine.state.followed = deque()
    machine.fold(found.runs, found.now_us)
    came, gone = followed(found)
    assert set(came) == holds and not holds.intersection(gone)
