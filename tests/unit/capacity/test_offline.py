"""Frames on their way to a buffer and back: in order, once, and online only when none is left."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylay.services.capacity.offline import OfflineFrames

pytestmark = pytest.mark.covers(
    "Clients and protocol", "an offlined client gets all in order and once"
)


@given(st.lists(st.sampled_from(["put", "see", "ask", "answer"]), max_size=200))
def test_it_comes_back_only_when_the_buffer_has_seen_and_given_all(steps: list[str]) -> None:
    """The buffer sees later what was put, and its answers come later still."""
    frames = OfflineFrames()
    there: deque[int] = deque()  # Sizes that the buffer has.
    under_way: deque[int] = deque()
    answers: deque[tuple[int, int | None, int]] = deque()
    put = came = seen = 0
    for number, step in enumerate(steps, 1):
        if step == "put":
            put += number
            under_way.append(number)
            frames.put(number)
        elif step == "see" and under_way:
            there.append(under_way.popleft())
            seen += 1
        elif step == "ask":
            size = there.popleft() if there else 0
            answers.append((size, None if there else seen, seen))
        elif step == "answer" and answers:
            size, empty_upto, stored = answers.popleft()
            frames.stored(stored)
            came += size
            is_back = frames.taken(size, empty_upto)
            assert not is_back or came == put
            assert frames.disk_bytes == put - came
            if is_back:
                assert frames.moving_bytes == frames.disk_bytes == 0
        assert frames.moving_bytes <= put


def test_what_is_not_stored_yet_lies_in_memory() -> None:
    frames = OfflineFrames()
    assert [frames.put(10), frames.put(20), frames.put(30)] == [1, 2, 3]
    assert (frames.moving_bytes, frames.disk_bytes) == (60, 60)
    frames.stored(2)
    assert (frames.moving_bytes, frames.disk_bytes) == (30, 60)
    assert not frames.taken(30, None) and frames.disk_bytes == 30
    assert not frames.taken(0, 2), "one more is on its way"
    frames.stored(3)
    assert frames.taken(30, 3) and not frames.moving_bytes


def test_one_that_put_nothing_is_back_at_once() -> None:
    assert OfflineFrames().taken(0, 0)
