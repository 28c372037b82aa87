"""services/queues/delivery/leases.py: the messages that consumers have."""

from __future__ import annotations

import pytest

from raylay.services.queues.checkpoint import Arrival
from raylay.services.queues.decisions import Consumer, MessageLease
from raylay.services.queues.delivery.leases import STALE_MAX, LeaseTable
from raylay.services.queues.message import LEASED, QueuedMessage
from raylay.services.queues.transfer.ownership import Ownership

ONE, TWO = (1, "s"), (2, "s")


def message(sequence: int) -> QueuedMessage:
    """A message."""
    return QueuedMessage(Arrival(1, 0), sequence, (1, sequence), Ownership(0, "A"))


def lease(
    made: LeaseTable,
    each: QueuedMessage,
    consumer: Consumer = ONE,
    until_us: int = 10,
    number: int = 1,
) -> MessageLease:
    """Leases it, as the machine does."""
    given = MessageLease(each.key, consumer, number, until_us)
    each.state, each.held = LEASED, given
    made.lease(each, given)
    return given


def end(made: LeaseTable, each: QueuedMessage) -> None:
    """Ends it, as the machine does."""
    assert isinstance(each.held, MessageLease)
    made.end(each, each.held)
    each.held = None


def test_who_has_what() -> None:
    made = LeaseTable()
    first, second, third = (message(at) for at in (1, 2, 3))
    assert made.first_end_us() == 0
    lease(made, second, until_us=20)
    lease(made, first, TWO, until_us=10)
    lease(made, third, until_us=30)
    assert (made.of(ONE), made.of(TWO), len(made)) == ([second, third], [first], 3)
    assert made.first_end_us() == 10
    assert set(made.consumers()) == {ONE, TWO}
    end(made, first)
    end(made, second)
    assert (made.of(TWO), made.consumers(), made.first_end_us()) == ([], [ONE], 30)


@pytest.mark.parametrize("until_us", [0, 10])
def test_several_are_leased_and_ended_together_as_one_by_one(until_us: int) -> None:
    made = LeaseTable(deliveries_max=2)
    messages = [message(at) for at in range(5)]
    for number, each in enumerate(messages):
        each.state, each.held = LEASED, MessageLease(each.key, ONE, number, until_us)
    made.lease_all(ONE, messages[:3], until_us)
    made.lease_all(ONE, messages[3:], until_us)
    assert made.of(ONE) == messages and len(made) == 5 and made.first_us == until_us
    assert not made.tried(messages[1], is_cancel=False)
    made.end_all(ONE, messages[:2])
    assert made.of(ONE) == messages[2:] and len(made) == 3
    # It has left, and one that is like it begins anew.
    assert not made.tried(messages[1], is_cancel=False)
    made.end_all(ONE, messages[2:])
    assert not made.consumers() and not len(made)


def test_the_last_try_of_a_message_is_the_one_after_all_others_were_in_vain() -> None:
    first, second = message(1), message(2)
    assert not LeaseTable().is_last_try([first])
    assert not LeaseTable(cancels_max=1).is_last_try([first])
    assert LeaseTable(deliveries_max=1).is_last_try([first])
    made = LeaseTable(deliveries_max=3)
    assert not made.is_last_try([first, second])
    assert not made.tried(second, is_cancel=False)
    assert not made.is_last_try([first, second])
    assert not made.tried(second, is_cancel=False)
    assert made.is_last_try([first, second]) and not made.is_last_try([first])
    made.forget(second)
    assert not made.is_last_try([first, second])


def test_leases_end_in_order_of_time_and_those_without_an_end_do_not() -> None:
    made = LeaseTable()
    messages = [message(at) for at in range(4)]
    for number, (each, until_us) in enumerate(zip(messages, (30, 10, 0, 20), strict=True)):
        lease(made, each, until_us=until_us, number=number)
    assert made.first_us == 10
    assert made.ended(9) == []
    assert made.ended(20) == [messages[1], messages[3]]
    assert made.first_us == 30
    assert made.ended_count == 2


def test_an_end_of_an_earlier_lease_is_none() -> None:
    made = LeaseTable()
    one = message(1)
    lease(made, one, until_us=10, number=1)
    end(made, one)
    lease(made, one, until_us=20, number=2)
    assert made.ended(15) == []
    assert made.ended(20) == [one]


def test_ends_of_leases_that_are_over_are_not_kept() -> None:
    made = LeaseTable()
    for number in range(3 * STALE_MAX):
        one = message(number)
        lease(made, one, until_us=10**9 + number, number=number)
        end(made, one)
    assert len(made._ends) <= STALE_MAX + 2


def test_how_often_in_vain_is_counted_only_where_it_matters() -> None:
    one, two = message(1), message(2)
    assert [LeaseTable().tried(one, is_cancel=True) for _ in range(9)] == [""] * 9
    made = LeaseTable(deliveries_max=3, cancels_max=2)
    assert [made.tried(one, is_cancel=cancel) for cancel in (False, True)] == ["", ""]
    assert made.tried(one, is_cancel=False) == "max_deliveries"
    assert made.tried(two, is_cancel=True) == ""
    assert made.tried(two, is_cancel=True) == "max_cancels"
    made.forget(two)
    assert made.tried(two, is_cancel=True) == ""
