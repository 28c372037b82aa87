"""A queue's door at its instance: which decisions of the owner still hold, and what clients' acks
may do. Each rule has its planted mistake (rules 6, 8 to 11 of queues)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sim.queue_mistakes import ForeignDoor, LenientDoor

from raylay.services.messages.records import (
    Command,
    RecordBuilder,
    Run,
    publisher_id,
    run_of,
    scan,
    unnumbered_publisher_id,
)
from raylay.services.queues import frontend as door_module
from raylay.services.queues import records
from raylay.services.queues.decisions import (
    ConsumerSubscription,
    DeliverLeased,
    DeliverOnce,
    Key,
    LeasedDelivery,
    MessageLease,
    TransferCandidate,
    TransferRequest,
)
from raylay.services.queues.definition import QueueDefinition
from raylay.services.queues.frontend import (
    REQUESTS_MAX,
    SWEPT_AT_ONCE,
    DeliveryCheck,
    Flood,
    QueueFrontend,
)
from raylay.services.queues.recent_removals import REMOVED_MAX
from raylay.services.queues.records import Acknowledgment, Removal, Transfer

SEQUENCES = st.integers(1, 30)
P, Q = 7, 9
"""Publishers of the messages."""
ANN, BOB = (1, "s"), (2, "s")


def frontend(strict: bool = False, kind: str = "queue", **more: Any) -> QueueFrontend:
    made = QueueFrontend(
        QueueDefinition("work", "json", kind=kind, strict=strict, **more), "a", 0xA
    )
    made.owner_came(0, 0)
    made.subscribed(ConsumerSubscription(ANN, "ann", "", 10))
    made.subscribed(ConsumerSubscription(BOB, "bob", "", 10))
    return made


def leased(*keys: Key, until_us: int = 0, number: int = 100) -> list[LeasedDelivery]:
    return [LeasedDelivery(at, key, number + at, until_us) for at, key in enumerate(keys, 1)]


def run(command: Command, *bodies: bytes, first_txid: int = 50) -> Run:
    builder = RecordBuilder(publisher_id("ann"), "work", "json")
    payload = b"".join(
        builder.build(at, body, 0, command=command) for at, body in enumerate(bodies, 1)
    )
    (chunk,) = scan(payload)
    made = run_of(chunk, payload)
    made.first_txid = first_txid
    return made


def acked(*keys: Key) -> bytes:
    return records.pack_acknowledgment(Acknowledgment(records.keys_of(keys)))


# -- decisions -----------------------------------------------------------------------------------


def test_what_was_decided_is_sent_and_leased() -> None:
    here = frontend()
    messages = leased((P, 1), (P, 2), until_us=500)
    assert here.decide(DeliverLeased(ANN, messages, 10), 100) == DeliveryCheck(messages, [])
    assert here.leases(100) == [
        MessageLease((P, 1), ANN, 101, 500),
        MessageLease((P, 2), ANN, 102, 500),
    ]
    assert here.delivered == 2 and not here.bounced


def test_what_is_for_a_session_that_is_gone_goes_back() -> None:
    here = frontend()
    assert here.session_left(ANN[0]) == [ANN]
    found = here.decide(DeliverLeased(ANN, leased((P, 1)), 10), 100)
    assert found == DeliveryCheck([], [((P, 1), 101)])
    # The same name on a new session is somebody else.
    here.subscribed(ConsumerSubscription((3, "s"), "ann", "", 10))
    assert not here.decide(DeliverLeased(ANN, leased((P, 1)), 10), 100).send
    assert not here.leases(100)


def test_what_comes_when_its_lease_is_over_goes_back() -> None:
    here = frontend()
    messages = [
        LeasedDelivery(1, (P, 1), 1, 100),
        LeasedDelivery(2, (P, 2), 2, 101),
        LeasedDelivery(3, (P, 3), 3, 0),
    ]
    found = here.decide(DeliverLeased(ANN, messages, 10), 100)
    assert found == DeliveryCheck(messages[1:], [((P, 1), 1)])
    assert [each.key for each in here.leases(100)] == [(P, 2), (P, 3)]


def test_what_the_journal_says_is_gone_goes_back_whoever_said_it() -> None:
    here = frontend()
    here.fold(run(Command.QUEUE_ACKNOWLEDGMENT, acked((P, 1)), acked((P, 3), (Q, 3))))
    expired = records.pack_removal(Removal("b", 1, {P: [(4, 4)]}, "time_limit"))
    here.fold(run(Command.QUEUE_REMOVAL, expired, first_txid=60))
    messages = leased((P, 1), (P, 2), (P, 3), (P, 4), (Q, 1))
    found = here.decide(DeliverLeased(ANN, messages, 49), 100)
    assert [each.key for each in found.send] == [(P, 2), (Q, 1)]
    assert [key for key, _ in found.bounced] == [(P, 1), (P, 3), (P, 4)]


def test_what_is_gone_beside_a_delivery_keeps_nothing_back() -> None:
    here = frontend()
    here.fold(run(Command.QUEUE_ACKNOWLEDGMENT, acked((P, 1), (P, 5), (Q, 3))))
    for keys, bounced in (
        ([(P, 2), (P, 3), (P, 4)], []),
        ([(P, 6), (P, 4)], []),
        ([(P, 6), (P, 5)], [(P, 5)]),
        ([(Q, 2), (P, 3), (Q, 4)], []),
        ([(P, 1), (Q, 1), (Q, 3)], [(P, 1), (Q, 3)]),
        ([(77, 1), (77, 5)], []),
    ):
        found = here.decide(DeliverLeased(ANN, leased(*keys), 49), 100)
        assert [key for key, _ in found.bounced] == bounced
        assert [each.key for each in found.send] == [key for key in keys if key not in bounced]


def test_what_the_owner_had_folded_is_not_judged_for_ever() -> None:
    here = frontend()
    here.fold(run(Command.QUEUE_ACKNOWLEDGMENT, acked((P, 1)), first_txid=50))
    assert here.decide(DeliverLeased(ANN, leased((P, 1)), 49), 0).bounced
    here.fold(run(Command.QUEUE_ACKNOWLEDGMENT, acked((P, 2)), first_txid=51))
    # It had folded the first one, and still has the message: an ack that was forgotten unused.
    for _ in range(2):
        found = here.decide(DeliverLeased(ANN, leased((P, 1), (P, 2)), 50), 0)
    assert found.bounced[-1][0] == (P, 2)
    found = here.decide(DeliverLeased(ANN, leased((P, 1), (P, 2)), 51), 0)
    assert not found.bounced


@pytest.mark.covers("Queues", "at-most-once: out of the queue before it is sent")
def test_at_most_once_is_sent_though_its_removal_is_in_the_journal() -> None:
    here = frontend()
    sent = records.pack_removal(Removal("a", 1, {P: [(1, 1)]}, "sent"))
    here.fold(run(Command.QUEUE_REMOVAL, sent))
    messages = leased((P, 1))
    assert here.decide(DeliverOnce(ANN, messages, 49), 0) == DeliveryCheck(messages, [])
    assert not here.leases(0)
    here.left(ANN)
    assert not here.decide(DeliverOnce(ANN, messages, 50), 0).send


def test_an_acknowledged_message_is_nobodys() -> None:
    here = frontend()
    here.decide(DeliverLeased(ANN, leased((P, 1), (P, 2), (P, 3)), 10), 0)
    here.fold(run(Command.QUEUE_ACKNOWLEDGMENT, acked((P, 1), (P, 2))))
    assert [each.key for each in here.leases(0)] == [(P, 3)]
    # Of a length that somebody else gave: it costs what there is, not what is said.
    body = records.pack_acknowledgment(Acknowledgment({P: [(1, (1 << 64) - 1)]}))
    here.fold(run(Command.QUEUE_ACKNOWLEDGMENT, body))
    assert not here.lease_count
    assert here.decide(DeliverLeased(ANN, leased((P, 5)), 10), 0).bounced


def test_a_record_that_nobody_can_read_changes_nothing() -> None:
    here = frontend()
    here.decide(DeliverLeased(ANN, leased((P, 1)), 10), 0)
    for command in (Command.QUEUE_ACKNOWLEDGMENT, Command.QUEUE_REMOVAL, Command.TRANSFER):
        here.fold(run(command, b"\xc1", b"", b"\x80"))
    assert here.lease_count == 1 and not here.is_announced


def spread(count: int, wide: int, apart: int) -> bytes:
    ranges = [(at * apart + 1, at * apart + wide) for at in range(count)]
    return records.pack_acknowledgment(Acknowledgment({P: ranges}))


def test_what_wide_ranges_cost_is_bounded_by_the_leases() -> None:
    """Each of these ranges spans as many sequences as there are leases: no more of them are met
    than leases, twice."""

    class Counting(dict[int, tuple[tuple[int, str], int, int]]):
        asked = 0

        def __contains__(self, key: object) -> bool:
            Counting.asked += 1
            return super().__contains__(key)

        def __iter__(self) -> Iterator[int]:
            Counting.asked += len(self)
            return super().__iter__()

    here = frontend()
    count = 2_000
    here.decide(DeliverLeased(ANN, leased(*((P, at) for at in range(1, count + 1))), 10), 0)
    here._leases[P] = Counting(here._leases[P])
    here.fold(run(Command.QUEUE_ACKNOWLEDGMENT, spread(2_000, count // 2, count)))
    assert here.lease_count == count // 2
    assert Counting.asked < 5 * count


def test_what_has_left_takes_no_more_memory_than_so_much() -> None:
    here = frontend()
    for at in range(REMOVED_MAX // 2_000 + 1):
        here.fold(run(Command.QUEUE_ACKNOWLEDGMENT, spread(2_000, 1, 1 << 40), first_txid=50 + at))
    assert not here._removed._young and not here._removed._old
    # It is not known what they were: all that was decided before goes back.
    back = here.decide(DeliverLeased(ANN, leased((Q, 1)), 50 + at - 1), 0)
    assert not back.send and len(back.bounced) == 1
    assert here.decide(DeliverLeased(ANN, leased((Q, 1)), 50 + at), 0).send
    assert not here._removed


def test_very_wide_ranges_of_what_has_left_are_not_remembered_one_by_one() -> None:
    here = frontend()
    here.fold(run(Command.QUEUE_ACKNOWLEDGMENT, spread(4, 1 << 40, 1 << 50), first_txid=50))
    assert not here._removed._young
    assert here.decide(DeliverLeased(ANN, leased((Q, 1)), 49), 0).bounced
    assert here.decide(DeliverLeased(ANN, leased((Q, 1)), 50), 0).send


def test_an_owner_that_decides_nothing_says_what_it_has_folded() -> None:
    here = frontend()
    here.fold(run(Command.QUEUE_ACKNOWLEDGMENT, acked((P, 1)), first_txid=50))
    here.folded(49)
    assert (P, 1) in here._removed
    here.folded(50)
    assert not here._removed


def test_leases_that_are_over_are_forgotten_some_at_a_time() -> None:
    here = frontend()
    for publisher in (P, Q):
        for consumer, first in ((ANN, 1), (BOB, SWEPT_AT_ONCE + 1)):
            keys = ((publisher, at) for at in range(first, first + SWEPT_AT_ONCE))
            here.decide(DeliverLeased(consumer, leased(*keys), 10), 0)
    whole = here.lease_count
    here.left(ANN)
    assert len(here.leases(0)) == whole // 2
    assert here.cancelled(ANN[0], {P: [(1, 3)]}) == {}
    here.tick(0)
    assert whole - SWEPT_AT_ONCE <= here.lease_count
    here.tick(0)
    assert whole - 2 * SWEPT_AT_ONCE <= here.lease_count < whole
    for _ in range(8):
        here.tick(0)
    assert here.lease_count == whole // 2 == len(here.leases(0))
    # What has none is looked at again.
    here.left(BOB)
    for _ in range(8):
        here.tick(0)
    assert not here.lease_count


# -- leases --------------------------------------------------------------------------------------


def test_a_consumer_that_leaves_has_no_leases_and_one_that_is_replaced_keeps_them() -> None:
    here = frontend()
    here.decide(DeliverLeased(ANN, leased((P, 1)), 10), 0)
    here.decide(DeliverLeased(BOB, leased((P, 2)), 10), 0)
    here.subscribed(ConsumerSubscription(ANN, "ann", "/x > 1", 20))
    assert here.lease_count == 2
    assert here.left(ANN) and not here.left(ANN)
    assert here.leases(0) == [MessageLease((P, 2), BOB, 101, 0)]


def test_a_cancel_names_the_lease_and_is_of_the_holder_alone() -> None:
    here = frontend()
    here.decide(DeliverLeased(ANN, leased((P, 1), (P, 2)), 10), 0)
    here.decide(DeliverLeased(BOB, leased((P, 3)), 10), 0)
    assert here.cancelled(ANN[0], {P: [(1, 1 << 63)], Q: [(1, 5)]}) == {
        ANN: [((P, 1), 101), ((P, 2), 102)]
    }
    assert here.cancelled(ANN[0], {P: [(1, 3)]}) == {}
    assert [each.key for each in here.leases(0)] == [(P, 3)]


def test_leases_that_have_ended_are_forgotten() -> None:
    here = frontend()
    here.decide(
        DeliverLeased(ANN, [LeasedDelivery(1, (P, 1), 1, 50), LeasedDelivery(2, (P, 2), 2, 0)], 10),
        0,
    )
    here.tick(49)
    assert here.lease_count == 2
    here.tick(50)
    assert [each.key for each in here.leases(50)] == [(P, 2)] and here.lease_count == 1


# -- strict leasing ------------------------------------------------------------------------------


def judged(here: QueueFrontend, client: str, keys: Sequence[Key], now_us: int = 0) -> list[Key]:
    said = here.judged(Acknowledgment(records.keys_of(keys)), publisher_id(client), now_us)
    return [
        (publisher, at)
        for publisher, ranges in said.keys.items()
        for first, last in ranges
        for at in range(first, last + 1)
    ]


@pytest.mark.covers("Queues", "`Leasing` strict")
def test_where_leasing_is_strict_a_client_acknowledges_what_it_holds_here() -> None:
    here = frontend(strict=True)
    here.decide(DeliverLeased(ANN, leased((P, 2), (P, 3), until_us=50), 10), 0)
    everything = [(P, 1), (P, 2), (P, 3), (P, 4), (Q, 2)]
    assert judged(here, "ann", everything) == [(P, 2), (P, 3)]
    assert judged(here, "bob", everything) == []
    # A lease that has ended holds nothing: the message may be another one's elsewhere.
    assert judged(here, "ann", everything, now_us=50) == []
    said = Acknowledgment({P: [(2, 3)]})
    assert here.judged(said, publisher_id("ann"), 0) is said


@pytest.mark.covers("Queues", "`Leasing` strict")
def test_where_leasing_is_strict_an_instance_without_the_lease_takes_nothing() -> None:
    """docs/queues.md, "Strict leasing": it does not know who holds what elsewhere."""
    here, other = frontend(strict=True), frontend(strict=True)
    here.decide(DeliverLeased(ANN, leased((P, 2), until_us=50), 10), 0)
    for client in ("ann", "bob"):
        assert judged(other, client, [(P, 2)]) == []


def test_what_an_instance_numbers_for_a_client_is_that_clients() -> None:
    here = frontend(strict=True)
    here.decide(DeliverLeased(ANN, leased((P, 2)), 10), 0)
    said = Acknowledgment({P: [(2, 2)]})
    assert here.judged(said, unnumbered_publisher_id("ann", 0xA, 0), 0) is said
    assert not here.judged(said, unnumbered_publisher_id("bob", 0xA, 0), 0).keys


@pytest.mark.covers("Queues", "`Leasing` strict")
def test_no_client_is_taken_for_another_one_by_the_id_that_an_instance_gives_that_one() -> None:
    """Its incarnation and its life are told to who logs on, and a client may have any name."""
    here = frontend(strict=True)
    here.decide(DeliverLeased(ANN, leased((P, 2)), 10), 0)
    for client in ("ann|10|0", "client|ann|10|0", "\ufffdclient|ann|10|0"):
        assert judged(here, client, [(P, 2)]) == []


def test_at_most_once_nothing_is_leased_and_nothing_judged() -> None:
    here = frontend(strict=True, at_most_once=True)
    here.decide(DeliverOnce(ANN, leased((P, 2)), 10), 0)
    assert judged(here, "bob", [(P, 2)]) == [(P, 2)]


def test_a_barrier_that_a_client_was_sent_does_not_spoil_what_it_says_beside() -> None:
    here = frontend(strict=True, barrier="/n = 2")
    here.decide(DeliverLeased(ANN, leased((P, 1)), 10), 0)
    for consumer in (ANN, BOB):
        here.decide(DeliverOnce(consumer, leased((P, 2), (Q, 2)), 10), 0)
    said = Acknowledgment({P: [(1, 2)], Q: [(2, 2)]})
    assert here.judged(said, publisher_id("ann"), 0) is said
    assert judged(here, "bob", [(P, 1), (P, 2), (P, 3)]) == [(P, 2)]
    here.left(BOB)
    assert judged(here, "bob", [(P, 2)]) == []


def test_only_the_last_barriers_of_a_consumer_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door_module, "BARRIERS_MAX", 2)
    here = frontend(strict=True, barrier="/n = 2")
    here.decide(DeliverOnce(ANN, leased((P, 1), (P, 2), (P, 3)), 10), 0)
    assert judged(here, "ann", [(P, 1), (P, 2), (P, 3)]) == [(P, 2), (P, 3)]


def test_by_a_filter_a_client_says_what_becomes_of_all_that_no_other_one_holds() -> None:
    """Its instance owns them: nobody holds them elsewhere."""
    here = frontend(strict=True)
    here.decide(DeliverLeased(ANN, leased((P, 2), until_us=50), 10), 0)

    def left(client: str, now_us: int = 0) -> records.Keys:
        said = Acknowledgment({P: [(1, 3)]})
        return here.without_others(said, publisher_id(client), now_us).keys

    assert left("bob") == {P: [(1, 1), (3, 3)]}
    assert left("ann") == left("bob", now_us=50) == {P: [(1, 3)]}


@pytest.mark.covers("Configuration", "who may read some of a queue acknowledges what he holds")
def test_what_a_client_holds_is_what_it_was_delivered_and_nobody_else_was_since() -> None:
    here = frontend()
    here.decide(DeliverLeased(ANN, leased(*((P, at) for at in (2, 3, 4, 7)), until_us=50), 10), 0)
    here.decide(DeliverLeased(BOB, leased((P, 3), (Q, 1)), 10), 60)

    def held(client: str, keys: records.Keys) -> records.Keys:
        return here.held_by(Acknowledgment(keys), publisher_id(client)).keys

    everything = {P: [(1, 1 << 40)], Q: [(1, 2)], 11: [(1, 1)]}
    assert held("ann", everything) == {P: [(2, 2), (4, 4), (7, 7)]}, "also where its lease is over"
    assert held("ann", {P: [(3, 6)]}) == {P: [(4, 4)]}
    assert held("bob", everything) == {P: [(3, 3)], Q: [(1, 1)]}
    assert held("eve", everything) == {}


def test_where_it_is_not_whoever_has_done_it_says_so() -> None:
    here = frontend()
    here.decide(DeliverLeased(ANN, leased((P, 2)), 10), 0)
    assert judged(here, "bob", [(P, 2)]) == [(P, 2)]


# -- owners --------------------------------------------------------------------------------------


def test_an_owner_begins_behind_all_that_its_predecessor_drafted_with_the_leases_there_are() -> (
    None
):
    here = frontend()
    here.decide(DeliverLeased(ANN, leased((P, 1), until_us=40), 10), 0)
    here.decide(DeliverLeased(BOB, leased((P, 2), until_us=60), 10), 0)
    here.owner_left()
    here.left(BOB)
    here.subscribed(ConsumerSubscription((3, "t"), "cy", "", 1))
    begin = here.owner_came(77, 0)
    assert begin.fence_txid == 77
    assert begin.leases == [MessageLease((P, 1), ANN, 101, 40)]
    assert [each.client for each in begin.consumers] == ["ann", "cy"]
    # What was committed while there was no owner is below the fence.
    here.owner_left()
    here.fold(run(Command.QUEUE_ACKNOWLEDGMENT, acked((P, 9)), first_txid=70))
    here.owner_came(77, 50)
    assert not here.leases(50) and here.decide(DeliverLeased(ANN, leased((P, 9)), 77), 50).send


# -- who bears which incarnation -----------------------------------------------------------------


def test_an_instance_says_once_who_bears_its_incarnation() -> None:
    here = frontend()
    assert records.read_transfer(here.announcement()) == Transfer("a", 0, [], {0xA: "a"})
    other = records.pack_transfer(Transfer("b", 0, (), {0xB: "b", 0xA: "b"}))
    here.fold(run(Command.TRANSFER, other))
    assert here.announcement()
    here.fold(run(Command.TRANSFER, here.announcement()))
    assert here.announcement() == b""
    assert frontend(kind="local").announcement() == b""


# -- requests ------------------------------------------------------------------------------------

REQUEST = TransferRequest(2, [TransferCandidate((P, 1), 0, "b")])


def test_a_request_is_heeded_once_however_often_it_comes() -> None:
    a, b = Flood("a", 1, 10), Flood("b", 2, 20)
    asked = a.made("json/work", REQUEST)
    assert (asked.name, asked.queue) == ("a", "json/work")
    assert TransferRequest(asked.count, asked.wanted) == REQUEST
    assert b.is_new(asked) and not b.is_new(asked)
    assert not a.is_new(asked)
    again = a.made("json/work", REQUEST)
    assert b.is_new(again)
    # Another life of the same data begins to count anew.
    assert b.is_new(Flood("a", 1, 11).made("json/work", REQUEST))


def test_requests_may_overtake_one_another_and_cost_bounded_memory() -> None:
    a, b = Flood("a", 1, 10), Flood("b", 2, 20)
    made = [a.made("json/work", REQUEST) for _ in range(5 * REQUESTS_MAX)]
    assert b.is_new(made[1]) and b.is_new(made[0])
    assert all(b.is_new(each) for each in made[2:])
    assert not any(b.is_new(each) for each in made)
    assert len(b._seen[1, 10][1]) <= 2 * REQUESTS_MAX + 1


# -- planted mistakes ----------------------------------------------------------------------------


class NamesInsteadOfNumbers(QueueFrontend):
    """A consumer is who has the name."""

    def subscribed(self, each: ConsumerSubscription) -> None:
        super().subscribed(each._replace(consumer=(0, each.consumer[1])))

    def decide(self, decision: DeliverLeased | DeliverOnce, now_us: int) -> DeliveryCheck:
        return super().decide(decision._replace(consumer=(0, decision.consumer[1])), now_us)


class NoEnd(QueueFrontend):
    """A decision holds however late it comes."""

    def decide(self, decision: DeliverLeased | DeliverOnce, now_us: int) -> DeliveryCheck:
        return super().decide(decision, 0)


class NotLookedUp(QueueFrontend):
    """What was committed since it was decided is not looked at."""

    def decide(self, decision: DeliverLeased | DeliverOnce, now_us: int) -> DeliveryCheck:
        self._removed.clear()
        return super().decide(decision, now_us)


class AtMostOnceLikeOthers(QueueFrontend):
    """What has left the queue is not sent."""

    def decide(self, decision: DeliverLeased | DeliverOnce, now_us: int) -> DeliveryCheck:
        return super().decide(DeliverLeased(*decision), now_us)


@pytest.mark.parametrize(
    ("mistake", "test"),
    [
        (NamesInsteadOfNumbers, test_what_is_for_a_session_that_is_gone_goes_back),
        (NoEnd, test_what_comes_when_its_lease_is_over_goes_back),
        (NotLookedUp, test_what_the_journal_says_is_gone_goes_back_whoever_said_it),
        (AtMostOnceLikeOthers, test_at_most_once_is_sent_though_its_removal_is_in_the_journal),
        (LenientDoor, test_where_leasing_is_strict_a_client_acknowledges_what_it_holds_here),
        (ForeignDoor, test_where_leasing_is_strict_an_instance_without_the_lease_takes_nothing),
    ],
)
def test_planted_mistakes_are_found(
    mistake: type[QueueFrontend], test: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "QueueFrontend", mistake)
    assert callable(test)
    with pytest.raises(AssertionError):
        test()


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4)), max_size=6), st.sets(SEQUENCES))
def test_what_is_left_of_ranges_is_all_but_what_others_hold(
    steps: list[tuple[int, int]], others: set[int]
) -> None:
    ranges, at = [], 0
    for gap, wide in steps:
        ranges.append((at + gap, at + gap + wide - 1))
        at += gap + wide
    left = door_module._without(ranges, sorted(others))
    found = [each for first, last in left for each in range(first, last + 1)]
    said = [each for first, last in ranges for each in range(first, last + 1)]
    assert found == [each for each in said if each not in others]


def test_what_a_later_life_numbers_for_a_client_is_that_clients_too() -> None:
    here = QueueFrontend(QueueDefinition("work", "json", strict=True), "a", 0xA, 3)
    here.owner_came(0, 0)
    here.subscribed(ConsumerSubscription(ANN, "ann", "", 10))
    here.decide(DeliverLeased(ANN, leased((P, 2)), 10), 0)
    said = Acknowledgment({P: [(2, 2)]})
    assert here.judged(said, unnumbered_publisher_id("ann", 0xA, 3), 0) is said
    assert not here.judged(said, unnumbered_publisher_id("ann", 0xA, 0), 0).keys
