"""The digest that logons begin with is kept up with what changes."""

from __future__ import annotations

import random
import struct

from raylay.services.messages.ranges import PublisherRanges, SequenceSet
from raylay.services.replication.running_digest import RunningDigest


def test_is_that_of_the_sets_whatever_happened_to_them() -> None:
    draw = random.Random(1)
    held, running = PublisherRanges(), RunningDigest()
    assert running.value == held.digest()
    for _ in range(300):
        for _ in range(draw.randint(0, 4)):
            first = draw.randint(0, 40)
            ranges = [(first, first + draw.randint(0, 9))]
            if draw.random() < 0.7:
                held.add_ranges(draw.randint(0, 9), ranges)
            else:
                held.remove_ranges(draw.randint(0, 9), ranges)
        copied = held.copy()
        if draw.random() < 0.3:
            # A logon that is given up in the middle.
            next(running.work(copied, 1), None)
            continue
        for _ in running.work(copied, draw.randint(1, 3)):
            held.add(draw.randint(0, 9), 50, draw.randint(50, 60))
        assert running.value == copied.digest()


def test_works_off_what_changed_and_no_more_in_a_turn_than_a_slice() -> None:
    held, running = PublisherRanges(), RunningDigest()
    for publisher in range(1, 1_001):
        held.add(publisher, 1, 1)
    assert len(list(running.work(held.copy(), 100))) == 10
    held.add(5, 2, 2)
    assert len(list(running.work(held.copy(), 1))) == 1
    assert running.value == held.digest()


def test_nobody_numbers_so_that_what_lacks_is_not_seen() -> None:
    # Of a bitmap XXH3 multiplies halves of words that are nought here; their other halves add up.
    found = []
    for one_half, other_half in ((1_000, 2_000), (1_001, 1_999)):
        bits = bytearray(200) + b"U" * 312
        bits[38:46] = struct.pack("<4sI", bytes.fromhex("7c01812c"), one_half)
        bits[102:110] = struct.pack("<4sI", bytes.fromhex("ded46de9"), other_half)
        held = PublisherRanges()
        held.of(7).update(
            SequenceSet((at, at) for at in range(4096) if bits[at // 8] >> at % 8 & 1)
        )
        found.append(held)
    one, other = found
    assert one.of(7) != other.of(7) and one.digest() != other.digest()


def test_an_empty_set_is_no_set_and_publishers_do_not_change_places() -> None:
    one, other = PublisherRanges(), PublisherRanges()
    one.add(1, 5, 5)
    one.of(9)
    other.add(2, 5, 5)
    assert one.digest() != other.digest()
    other.remove_ranges(2, [(5, 5)])
    other.add(1, 5, 5)
    assert one.digest() == other.digest()
