"""Filters of consumers: how often messages are looked at."""

from __future__ import annotations

import pytest
from support.queues_given import Bodies, delivered, given, message, subscribed

from raylay.services.queues.delivery import dispatcher, filters


@pytest.mark.covers("Queues", "filters of subscriptions")
def test_a_filter_that_few_pass_looks_at_each_message_once() -> None:
    bodies = Bodies({txid: {"n": txid % 500} for txid in range(1, 5_001)})
    queue = given(subscribed("a", 1, "/n = 7"), bodies=bodies)
    messages = [message(txid) for txid in range(1, 5_001)]
    for each in messages:
        queue.add(each)
    assert bodies.reads == 0, "nobody has looked, so nothing is to be read"
    found = []
    while (pick := queue.next()) is not None:
        queue.leased(pick[1], pick[0])
        assert queue.next() is None
        queue.freed(pick[1], pick[0])
        found.append(pick[0].txid)
    assert found == list(range(7, 5_001, 500))
    assert bodies.reads == 5_000


def test_who_has_no_room_looks_at_nothing() -> None:
    bodies = Bodies({txid: {"n": 1} for txid in range(1, 101)})
    queue = given(subscribed("a", 1, "/n = 1"), bodies=bodies)
    for txid in range(1, 101):
        queue.add(message(txid))
    assert delivered(queue) == [("a", 1)]
    assert queue.next() is None and not queue.is_searching
    assert bodies.reads == 1


def test_who_has_no_room_misses_nothing_that_others_look_at() -> None:
    bodies = Bodies({txid: {"n": txid} for txid in range(1, 11)})
    queue = given(
        subscribed("a", 1, "/n < 5"), subscribed("b", 1, "/n > 8"), bodies=bodies, fairness="fast"
    )
    messages = [message(txid) for txid in range(1, 11)]
    for each in messages:
        queue.add(each)
    assert delivered(queue) == [("a", 1), ("b", 9)]
    queue.freed((1, "a"), messages[0])
    assert delivered(queue) == [("a", 2)]
    assert bodies.reads == 9, "one look is for all that have looked as far"


@pytest.mark.covers("Queues", "filters of subscriptions")
def test_a_search_is_done_in_pieces_and_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatcher, "LOOKS_BESIDE", 10)
    monkeypatch.setattr(dispatcher, "LOOKS_MAX", 100)
    bodies = Bodies({txid: {"n": txid} for txid in range(1, 1_001)})
    queue = given(subscribed("a", 9, "/n > 900"), subscribed("b", 2), bodies=bodies)
    for txid in range(1, 1_001):
        queue.add(message(txid))
    assert delivered(queue) == [("b", 1), ("b", 2)]
    assert queue.is_searching and bodies.reads <= 10 + 10 + 10 + 100
    turns = 0
    while queue.is_searching and queue.next() is None:
        turns += 1
    assert 7 <= turns <= 9
    assert delivered(queue, 2) == [("a", 901), ("a", 902)]
    assert bodies.reads == 902


def test_new_messages_are_asked_once_for_all_filters() -> None:
    bodies = Bodies()
    everyone = [subscribed(f"c{number}", 1, f"/n = {number}") for number in range(50)]
    queue = given(*everyone, bodies=bodies)
    assert queue.next() is None
    one = message(1)
    assert queue.wants(one)
    queue.add(one, {"n": 30})
    assert delivered(queue) == [("c30", 1)]
    assert bodies.reads == 0


@pytest.mark.covers("Queues", "filters of subscriptions")
def test_many_filters_look_at_the_same_messages_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some are given at once, the others while those are looking."""
    monkeypatch.setattr(dispatcher, "LOOKS_BESIDE", 10)
    monkeypatch.setattr(dispatcher, "LOOKS_MAX", 50)
    bodies = Bodies({txid: {"n": txid} for txid in range(1, 1_001)})
    queue = given(bodies=bodies)
    for txid in range(1, 1_001):
        queue.add(message(txid))
    for number in range(100):
        queue.subscribed(subscribed(f"c{number}", 1, f"/n = {10 * number + 905}"))
        if number % 10 == 0:
            assert queue.next() is None
    found = []
    while queue.is_searching or queue.next() is not None:
        found += delivered(queue)
    assert found == [(f"c{number}", 10 * number + 905) for number in range(10)]
    # Who comes later begins at the first message, and goes on with the others where they are.
    assert bodies.reads <= 2 * 1_000


def test_what_is_found_beyond_measure_is_forgotten_and_found_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(filters, "FOUND_MAX", 10)
    bodies = Bodies({txid: {"n": 1} for txid in range(1, 101)})
    queue = given(subscribed("a", 1, "/n = 1"), bodies=bodies)
    assert queue.next() is None
    for txid in range(1, 101):
        queue.add(message(txid))
    assert bodies.reads <= 20, "who found enough looks at no more"
    found = []
    while (pick := queue.next()) is not None:
        queue.leased(pick[1], pick[0])
        queue.freed(pick[1], pick[0])
        found.append(pick[0].txid)
    assert found == list(range(1, 101))


def test_a_message_that_cannot_be_read_passes_no_filter() -> None:
    queue = given(subscribed("a", 9, "/n IS NULL"), bodies=Bodies({2: {}}))
    for txid in (1, 2):
        queue.add(message(txid))
    assert delivered(queue) == [("a", 2)]


def test_filters_ask_what_is_around_a_message_and_who_the_client_is() -> None:
    bodies = Bodies({1: {"to": "client of b"}, 2: {"to": "client of a"}, 3: {}})
    wanted = "/to = CLIENT_NAME() OR BOOKMARK() = '3'"
    queue = given(subscribed("a", 9, wanted), bodies=bodies)
    for txid in (1, 2):
        queue.add(message(txid))
    assert delivered(queue) == [("a", 2)]
    queue.add(message(3))
    assert delivered(queue) == [("a", 3)]


def test_heads_that_no_longer_hold_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each message that comes back is a new head: they are swept while a decision is being made."""
    monkeypatch.setattr(filters, "FOUND_MAX", 8)
    bodies = Bodies({txid: {"n": txid % 4} for txid in range(1, 2_001)})
    everyone = [subscribed(f"c{number}", 2, f"/n = {number}") for number in range(4)]
    queue = given(*everyone, bodies=bodies)
    for txid in range(1, 2_001):
        queue.add(message(txid))
        for pick in [queue.next()]:
            assert pick is not None and pick[0].txid == txid
            queue.leased(pick[1], pick[0])
            queue.freed(pick[1], pick[0])
            assert len(queue._filters._heads) <= 4 * 4 + 1
