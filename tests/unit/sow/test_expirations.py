"""services/sow/expirations.py: one entry a key, however often it is published."""

from __future__ import annotations

import random

import pytest

from raylay.services.sow.expirations import STALE_MAX, RecordExpirations


@pytest.mark.covers("SOW", "expiration of message and topic")
def test_who_is_due_comes_in_order() -> None:
    due = RecordExpirations()
    due.note(b"a", 20)
    due.note(b"b", 10)
    assert due.first_us == 10 and due.take(9) is None
    assert due.take(10) == b"b" and due.take(19) is None and due.take(20) == b"a"
    assert due.take(99) is None and due.first_us == 0


def test_what_is_put_off_costs_nothing() -> None:
    due = RecordExpirations()
    for at_us in range(10, 100_000):
        due.note(b"a", at_us)
    assert len(due) == 1 and due.take(10) == b"a", "it is looked at, and noted again"


def test_what_is_due_sooner_or_gone_leaves_little() -> None:
    due = RecordExpirations()
    for at_us in range(100_000, 10, -1):
        due.note(b"a", at_us)
    assert len(due) <= STALE_MAX + 2 and due.take(11) == b"a"
    for number in range(100_000):
        key = b"%d" % number
        due.note(key, 10 + number)
        due.forget(key)
        due.note(b"stays", 5)
    assert len(due) <= 2 * STALE_MAX
    assert [found for _ in range(len(due)) if (found := due.take(1_000_000))] == [b"stays"]


def test_nobody_is_forgotten() -> None:
    """Beside a dictionary."""
    for seed in range(30):
        draw = random.Random(seed)
        due, expires_us = RecordExpirations(), dict[bytes, int]()
        for now_us in range(1, 2_000):
            key = b"%d" % draw.randrange(40)
            if draw.random() < 0.2:
                due.forget(key)
                expires_us.pop(key, None)
            else:
                expires_us[key] = now_us + draw.randrange(1, 400)
                due.note(key, expires_us[key])
            while (found := due.take(now_us)) is not None:
                if found in expires_us and expires_us[found] > now_us:
                    due.note(found, expires_us[found])
                else:
                    expires_us.pop(found, None)
            assert all(each > now_us for each in expires_us.values())
