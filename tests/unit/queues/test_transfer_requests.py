"""services/queues/transfer/transfer_requests.py: what to ask other instances for, and when."""

from __future__ import annotations

import pytest

from raylay.services.queues.checkpoint import Arrival
from raylay.services.queues.decisions import TransferRequest
from raylay.services.queues.message import GONE, QueuedMessage
from raylay.services.queues.transfer.ownership import Ownership
from raylay.services.queues.transfer.transfer_requests import (
    AGAIN_MIN_US,
    CANDIDATES_MAX,
    CANDIDATES_MIN,
    DROPPED_MAX,
    GRANT_US,
    LOOK_AGAIN_US,
    LOOKED_AT_MAX,
    REPEAT_US,
    SWEPT_FROM,
    USUAL_MAX_US,
    USUAL_MIN_US,
    USUAL_US,
    TransferRequests,
)

P = 1
S_US = 1_000_000
B, C = Ownership(0, "B"), Ownership(0, "C")


def message(sequence: int, register: Ownership = B, at_us: int = 0) -> QueuedMessage:
    """One that came at that time."""
    return QueuedMessage(Arrival(1, at_us), sequence, (P, sequence), register)


def asking(*messages: QueuedMessage) -> TransferRequests:
    """That knows these."""
    made = TransferRequests()
    for each in messages:
        made.add(each)
    return made


def keys(request: TransferRequest) -> list[int]:
    """The sequences that are asked for."""
    return [each.key[1] for each in request.wanted]


def all_of(message: QueuedMessage) -> bool:
    """A consumer that wants everything."""
    return True


def test_each_owner_is_asked_for_as_much_as_there_is_room_for() -> None:
    made = asking(*(message(at, B) for at in range(1, 4)), *(message(at, C) for at in range(4, 9)))
    one, two = made.requests(USUAL_US, 5, all_of)
    assert (one.count, keys(one)) == (3, [1, 2, 3])
    assert (two.count, keys(two)) == (2, [4, 5, 6, 7, 8])
    assert {each[1:] for each in two.wanted} == {(0, "C")}
    assert asking(message(1)).requests(USUAL_US, 0, all_of) == []


def test_candidates_are_more_than_there_is_room_for_and_not_too_many() -> None:
    many = asking(*map(message, range(1, 2_000)))
    assert len(many.requests(USUAL_US, 1, all_of)[0].wanted) == CANDIDATES_MIN
    many = asking(*map(message, range(1, 2_000)))
    assert len(many.requests(USUAL_US, 1_000, all_of)[0].wanted) == CANDIDATES_MAX


@pytest.mark.covers("Queues", "the owner prefers consumers of its own")
def test_what_is_younger_than_usual_is_not_asked_for_nor_what_came_behind_it() -> None:
    made = asking(message(1), message(2, at_us=1), message(3, at_us=2))
    (request,) = made.requests(USUAL_US, 5, all_of)
    assert keys(request) == [1]
    # The two that are too young will be asked for sooner than the first one again.
    assert made.next_us(USUAL_US) == USUAL_US + LOOK_AGAIN_US
    made.got((P, 1))
    (request,) = made.requests(USUAL_US + 2, 5, all_of)
    assert keys(request) == [2, 3, 1]


def test_what_came_before_the_clock_was_set_back_is_asked_for() -> None:
    """It and all behind it, and not only when the clock has come there again."""
    made = asking(message(1, at_us=3_600_000_000), message(2))
    (request,) = made.requests(USUAL_US, 5, all_of)
    assert keys(request) == [1, 2]


def test_a_request_is_repeated_with_those_that_were_not_asked_for_yet() -> None:
    made = asking(*map(message, range(1, 13)))
    found = requested(made, range(REPEAT_US, 3 * REPEAT_US, 10_000))
    assert found == [
        (REPEAT_US, [1, 2, 3, 4, 5, 6, 7, 8]),
        # Four were not asked for yet: it is not waited for long.
        (REPEAT_US + 2 * GRANT_US, [9, 10, 11, 12, 1, 2, 3, 4]),
        (2 * REPEAT_US + 2 * GRANT_US, [5, 6, 7, 8, 9, 10, 11, 12]),
    ]


def requested(made: TransferRequests, times: range, room: int = 1) -> list[tuple[int, list[int]]]:
    """When it asks, and for what."""
    asked = [(now_us, made.requests(now_us, room, all_of)) for now_us in times]
    return [(now_us, keys(each[0])) for now_us, each in asked if each]


@pytest.mark.covers("Queues", "the owner prefers consumers of its own")
def test_where_nothing_is_new_an_owner_is_asked_twice_a_second() -> None:
    made = asking(*map(message, range(1, CANDIDATES_MIN + 1)))
    times = [at for at, _ in requested(made, range(USUAL_US, USUAL_US + 10 * S_US, 10_000))]
    assert times == [USUAL_US + at * REPEAT_US for at in range(20)]
    # And nothing is to be done in between.
    assert made.next_us(times[-1]) == times[-1] + REPEAT_US


def test_what_is_new_is_asked_for_beside_what_was_asked_for_in_vain() -> None:
    made = asking(message(1))
    assert requested(made, range(USUAL_US, 2 * USUAL_US, 10_000))
    made.add(message(2))
    first_us = USUAL_US + 2 * GRANT_US
    assert requested(made, range(2 * USUAL_US, REPEAT_US, 10_000)) == [(first_us, [1, 2])]


def test_under_load_an_owner_is_asked_so_often_as_its_grants_take() -> None:
    made = asking(message(1))
    now_us, asked = USUAL_US, 0
    for sequence in range(2, 1_002):
        now_us += 10_000
        made.add(message(sequence, at_us=now_us - USUAL_US))
        for request in made.requests(now_us, 5_000, all_of):
            asked += 1
            if sequence < 500:
                # One of them is granted, soon: so the next one need not wait for long.
                made.got(request.wanted[0].key, now_us + 5_000)
    # 5 s in which a grant comes to be known to take 5 ms, and 5 s in which none comes.
    assert asked == pytest.approx(10 * S_US / AGAIN_MIN_US, rel=0.1)


def test_with_more_room_more_is_asked_for() -> None:
    made = asking(*map(message, range(1, 6)))
    (request,) = made.requests(USUAL_US, 1, all_of)
    assert (request.count, len(request.wanted)) == (1, 5)
    assert made.requests(USUAL_US + GRANT_US, 4, all_of) == []
    (request,) = made.requests(USUAL_US + 2 * GRANT_US, 4, all_of)
    assert request.count == 4
    assert made.requests(USUAL_US + 4 * GRANT_US, 4, all_of) == []


def test_consumers_that_want_something_else_are_asked_for_soon() -> None:
    made = asking(message(1), message(2))
    (request,) = made.requests(USUAL_US, 5, lambda each: each.sequence == 1)
    made.consumers_changed()
    (request,) = made.requests(USUAL_US + 2 * GRANT_US, 5, all_of)
    assert sorted(keys(request)) == [1, 2]


def test_consumers_that_changed_are_looked_for_at_once() -> None:
    made = asking(message(1))
    assert made.requests(USUAL_US, 5, lambda _: False) == []
    made.consumers_changed()
    (request,) = made.requests(USUAL_US, 5, all_of)
    assert keys(request) == [1]


def test_what_is_gone_keeps_nobody_from_asking() -> None:
    """30,000 were done where they came from while nobody here had room: the next one is asked for
    at once, and not when all of them were looked at, some each 20 ms."""
    many = [message(at) for at in range(1, 30_001)]
    made = asking(*many)
    for each in many:
        each.state = GONE
    made.add(message(30_001))
    looks = 0
    while not (asked := made.requests(USUAL_US, 1, all_of)):
        looks += 1
    assert keys(asked[0]) == [30_001]
    assert looks <= 30_001 // DROPPED_MAX + 1


def test_where_nobody_asks_what_is_gone_takes_no_memory() -> None:
    made, stays = asking(message(1)), 0
    for sequence in range(2, 20_000):
        each = message(sequence)
        made.add(each)
        each.state = GONE
        stays = max(stays, sum(map(len, made._by_owner.values())))
    assert stays <= SWEPT_FROM + 1


def test_what_is_out_takes_room_until_it_is_here() -> None:
    made = asking(message(1), message(2), message(3, C))
    (request,) = made.requests(USUAL_US, 2, all_of)
    assert keys(request) == [1, 2] and made.is_waiting
    assert made.requests(USUAL_US, 2, all_of) == []
    made.got((P, 9))
    made.got((P, 1))
    assert [keys(each) for each in made.requests(USUAL_US, 2, all_of)] == [[3]]
    made.got((P, 2))
    made.got((P, 3))
    assert not made.is_waiting


def test_what_is_gone_or_anothers_is_dropped_when_it_is_looked_at() -> None:
    first, second, third = (message(at) for at in (1, 2, 3))
    made = asking(first, second, third)
    first.state = GONE
    second.register = C
    assert made.candidates("B", USUAL_US, 9, all_of) == [third]
    third.state = GONE
    assert made.candidates("B", USUAL_US, 9, all_of) == []
    assert made.owners() == []
    assert made.next_us(5) == 0


def test_a_filter_that_fits_few_of_many_costs_one_turn_no_more_than_it_may() -> None:
    made = asking(*map(message, range(1, 3 * LOOKED_AT_MAX)))
    looked: list[int] = []

    def wants(each: QueuedMessage) -> bool:
        looked.append(each.sequence)
        return each.sequence == 2 * LOOKED_AT_MAX

    now_us = USUAL_US
    assert made.candidates("B", now_us, 9, wants) == []
    # Nothing was found: it does not look again at once.
    assert made.candidates("B", now_us + LOOK_AGAIN_US - 1, 9, wants) == []
    assert len(looked) == LOOKED_AT_MAX
    (found,) = made.candidates("B", now_us + LOOK_AGAIN_US, 9, wants)
    assert found.sequence == 2 * LOOKED_AT_MAX
    assert len(looked) == 2 * LOOKED_AT_MAX


def test_a_message_that_stands_twice_is_a_candidate_once() -> None:
    one = message(1)
    assert asking(one, one).candidates("B", USUAL_US, 9, all_of) == [one]


def test_an_owner_without_a_name_is_not_asked_and_may_be_claimed_from() -> None:
    made = asking(message(1, Ownership(0, "")))
    assert made.requests(USUAL_US, 9, all_of) == []
    assert made.next_us(USUAL_US) == 0
    assert made.owners() == [""]
    assert len(made.candidates("", USUAL_US, 9, all_of)) == 1


def test_the_usual_time_is_within_bounds() -> None:
    made = TransferRequests()
    for age_us, end_us in ((10**12, USUAL_MAX_US), (-5, USUAL_MIN_US)):
        for _ in range(200):
            made.acknowledged(age_us)
        assert abs(made.usual_us - end_us) < 10
