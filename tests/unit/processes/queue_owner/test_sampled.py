"""The table of the sampled messages of a queue."""

from __future__ import annotations

import pytest
from unit.telemetry.test_tracing import message

from raylay.services.processes.queue_owner.sampled import SampledMessage, SampledMessages
from raylay.services.queues.decisions import LeasedDelivery, MessageLease

pytestmark = pytest.mark.covers("Fabrics and tracing", "a sampled message of a queue shows enqueue")

ANN, BOB = (1, "1:s"), (2, "2:s")
PUBLISHER = message().publisher


def marks(*sequences: int, messages_max: int = 100) -> SampledMessages:
    found = SampledMessages(messages_max)
    for sequence in sequences:
        found.add(SampledMessage(message(sequence), 100 + sequence))
    return found


def sequences(found: list[SampledMessage]) -> list[int]:
    return [mark.message.sequence for mark in found]


def test_they_are_found_by_ranges_however_wide_and_by_what_is_delivered() -> None:
    found = marks(3, 5, 9)
    for ranges in ([(1, 4), (9, 9)], [(3, 3), (9, 9)], [(1, 3), (6, 1 << 63)]):
        assert sequences(found.among(PUBLISHER, ranges)) == [3, 9]
    assert found.among(PUBLISHER, [(4, 4), (6, 8), (10, 99)]) == []
    assert found.among(PUBLISHER + 1, [(1, 99)]) == []
    messages = [LeasedDelivery(100 + at, (PUBLISHER, at), at, 0) for at in range(4, 9)]
    assert [(mark.key[1], each.number) for mark, each in found.of(messages)] == [(5, 5)]


def test_it_is_empty_when_all_have_left() -> None:
    found = marks(3, 5)
    assert found and len(found) == 2
    for mark in found.among(PUBLISHER, [(1, 9)]):
        found.leased(mark, MessageLease(mark.key, ANN, 1, 0), 1)
        found.remove(mark)
    assert not found and found.held() == [] and found.get((PUBLISHER, 3)) is None


def test_above_its_limit_the_oldest_is_forgotten() -> None:
    found = marks(*range(1, 11), messages_max=4)
    found.add(SampledMessage(message(10), 999))
    assert (len(found), found.forgotten) == (4, 6)
    assert sequences(found.among(PUBLISHER, [(1, 99)])) == [7, 8, 9, 10]


def test_leases_end_in_the_order_in_which_they_were_given() -> None:
    found = marks(1, 2, 3)
    first, second, third = found.among(PUBLISHER, [(1, 3)])
    for until_us, mark, consumer in ((20, first, ANN), (30, second, BOB), (40, third, ANN)):
        found.leased(mark, MessageLease(mark.key, consumer, until_us, until_us), 7)
    assert found.ended(19) == [] and found.ended(30) == [first, second]
    assert found.held(ANN) == [first, third]
    found.freed(first)
    assert first.lease is None and found.ended(30) == [second]
    # Given to somebody again it ends last.
    found.leased(second, MessageLease(second.key, ANN, 50, 50), 8)
    assert found.ended(40) == [third] and found.held() == [third, second]
    # A lease without an end does not end.
    endless = marks(1)
    (mark,) = endless.among(PUBLISHER, [(1, 1)])
    endless.leased(mark, MessageLease(mark.key, ANN, 1, 0), 1)
    assert endless.ended(1 << 62) == []
