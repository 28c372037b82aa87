"""Room for the long batches of links: in hand are no more bytes than the limit, or one batch."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylay.services.replication.batch_room import BatchRoom

pytestmark = pytest.mark.covers(
    "Configuration", "what a peer may say is bounded by what it can know"
)


class Asker:
    """Connections that enter a room, and ask again when they are told to."""

    def __init__(self, bytes_max: int) -> None:
        self.room = BatchRoom(bytes_max)
        self.told: list[str] = []

    def enter(self, of: str, size_bytes: int) -> bool:
        return self.room.enter(of, size_bytes, lambda: self.told.append(of))


def test_who_finds_no_room_comes_in_when_there_is_some_in_the_order_of_arrival() -> None:
    asker = Asker(100)
    assert asker.enter("a", 60) and not asker.enter("b", 50) and not asker.enter("c", 10)
    assert not asker.enter("b", 50) and asker.room.bytes == 60 and asker.told == []
    asker.room.leave("a")
    assert asker.told == ["b"] and not asker.enter("c", 10), "it does not overtake"
    assert asker.enter("b", 50)
    assert asker.told == ["b", "c"] and asker.enter("c", 10) and asker.room.bytes == 60
    assert "b" in asker.room and "a" not in asker.room


def test_one_that_is_longer_than_the_limit_comes_in_alone() -> None:
    asker = Asker(100)
    assert asker.enter("a", 500) and not asker.enter("b", 1)
    asker.room.leave("a")
    assert asker.enter("b", 1)


def test_one_that_waits_and_ends_lets_the_next_one_in() -> None:
    asker = Asker(100)
    assert asker.enter("a", 100) and not asker.enter("b", 100) and not asker.enter("c", 100)
    asker.room.leave("a")
    assert asker.told == ["b"]
    asker.room.leave("b")
    assert asker.told == ["b", "c"] and asker.enter("c", 100)
    asker.room.leave("c")
    asker.room.leave("c")
    assert not len(asker.room) and asker.room.bytes == 0


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 90)), max_size=60))
def test_nobody_waits_for_ever(steps: list[tuple[int, int]]) -> None:
    """Whoever is told asks again at once or leaves; in the end all have been in."""
    room = BatchRoom(100)
    again: list[int] = []
    sizes: dict[int, int] = {}

    def ask(of: int) -> None:
        room.enter(of, sizes[of], lambda: again.append(of))

    for of, size_bytes in steps:
        if of in sizes:
            del sizes[of]
            room.leave(of)
        else:
            sizes[of] = size_bytes
            ask(of)
        while again:
            told = again.pop(0)
            if told in sizes and told not in room:
                ask(told)
        assert sum(sizes[each] for each in sizes if each in room) == room.bytes <= 100
    while sizes:
        inside = [each for each in sizes if each in room]
        assert inside, "somebody waits, and nobody is in"
        del sizes[inside[0]]
        room.leave(inside[0])
        while again:
            told = again.pop(0)
            if told in sizes and told not in room:
                ask(told)
    assert not len(room)
