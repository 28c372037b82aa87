"""Conflation (services/subscriptions/conflation.py), compared with a plain model."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raylay.services.subscriptions.conflation import ConflatedChange, Conflator

pytestmark = pytest.mark.covers("Views", "conflation: a key")

INTERVAL_US = 10
STEPS = st.lists(
    st.tuples(
        st.integers(0, 4),
        st.sampled_from([b"a", b"b", b"c"]),
        st.one_of(st.none(), st.binary(max_size=3), st.binary(max_size=3)),
    ),
    max_size=40,
)


@settings(max_examples=400)
@given(STEPS)
def test_a_follower_gets_a_key_once_an_interval_and_ends_with_the_topic(
    steps: list[tuple[int, bytes, bytes | None]],
) -> None:
    conflator: Conflator[bytes] = Conflator(INTERVAL_US, len)
    topic: dict[bytes, bytes] = {}
    follower: dict[bytes, bytes] = {}
    given_at: dict[bytes, int] = {}
    changed_at: dict[bytes, int] = {}
    now_us = 0

    def give(changes: list[ConflatedChange[bytes]]) -> None:
        for each in changes:
            assert now_us - given_at.get(each.key, -INTERVAL_US) >= INTERVAL_US
            assert now_us - each.first_us == INTERVAL_US
            assert each.first_us == changed_at.pop(each.key)
            assert each.before == follower.get(each.key), "what it was given last"
            given_at[each.key] = now_us
            if each.now is None:
                del follower[each.key]
            else:
                follower[each.key] = each.now

    def flush() -> None:
        give(conflator.due(now_us))
        for key, since_us in list(changed_at.items()):
            if since_us + INTERVAL_US <= now_us:
                # It came and went: nobody was told.
                assert key not in follower
                del changed_at[key]

    for wait_us, key, value in steps:
        for _ in range(wait_us):
            now_us += 1
            flush()
        before = topic.get(key)
        if value is None and before is None:
            continue
        if value is None:
            del topic[key]
        else:
            topic[key] = value
        changed_at.setdefault(key, now_us)
        conflator.change(key, before, value, now_us)
        pending = conflator.pending(key)
        assert pending is not None and (pending.before, pending.now) == (follower.get(key), value)
        assert conflator.next_due_us == min(changed_at.values()) + INTERVAL_US
    while conflator:
        now_us += 1
        flush()
    assert follower == topic
    assert not conflator.pending_bytes and conflator.next_due_us is None


def test_what_is_due_is_given_a_few_keys_at_a_time() -> None:
    conflator: Conflator[bytes] = Conflator(INTERVAL_US)
    for number in range(5):
        conflator.change(b"%d" % number, None, b"x", 0)
    assert [each.key for each in conflator.due(INTERVAL_US, 2)] == [b"0", b"1"]
    assert [each.key for each in conflator.due(INTERVAL_US, 2)] == [b"2", b"3"]
    assert len(conflator) == 1
    assert conflator.pending(b"0") is None


def test_all_that_is_pending_can_be_taken_before_it_is_due() -> None:
    conflator: Conflator[bytes] = Conflator(INTERVAL_US)
    conflator.change(b"a", None, b"1", 0, "inserted")
    conflator.change(b"a", b"1", b"2", 1, "updated")
    conflator.change(b"b", None, b"1", 2)
    conflator.change(b"b", b"1", None, 3, "deleted")
    assert conflator.all() == [ConflatedChange(b"a", 0, None, b"2", "updated")]
    assert conflator.replaced == 3
    assert not conflator


def test_a_key_that_is_dropped_is_not_given() -> None:
    conflator: Conflator[bytes] = Conflator(INTERVAL_US, len)
    conflator.change(b"a", None, b"1", 0)
    conflator.change(b"b", None, b"1", 1)
    conflator.drop(b"a")
    assert conflator.next_due_us == 1 + INTERVAL_US and b"a" not in conflator
    conflator.change(b"a", None, b"2", 2)
    assert [each.key for each in conflator.due(1 + INTERVAL_US)] == [b"b"]
    assert conflator.all() == [ConflatedChange(b"a", 2, None, b"2", "")]
    assert conflator.replaced == 1 and not conflator.pending_bytes


def test_who_joins_between_two_changes_knows_what_it_found() -> None:
    conflator: Conflator[bytes] = Conflator(INTERVAL_US)
    first = conflator.join()
    conflator.change(b"a", b"0", b"1", 0)
    second = conflator.join()
    conflator.change(b"a", b"1", None, 1)
    third = conflator.join()
    (found,) = conflator.changes()
    assert [found.known_to(each) for each in (first, second)] == [b"0", b"1"]
    assert third > found.last_join, "it is not told of the key"
    assert len(conflator) == 1
