"""What two instances have of a SOW topic is compared by keys, and looked at again."""

from __future__ import annotations

import pytest

from raylay.services.sow.query.comparison import (
    HeldRecord,
    RecordDifference,
    TopicComparison,
    differ,
    held,
)

pytestmark = pytest.mark.covers("SOW", "`raylay sow diff`")

A1 = held("t", 1, 5, b"a")
A2 = held("t", 1, 6, b"b")
OTHER_BODY = held("t", 1, 5, b"c")
OTHER_TOPIC = held("u", 1, 5, b"a")


def look(
    found: TopicComparison, here: dict[bytes, HeldRecord], there: dict[bytes, HeldRecord]
) -> None:
    for key, each in here.items():
        found.first(key, each)
    for key, each in there.items():
        found.second(key, each)
    found.end()


def told(found: TopicComparison) -> dict[bytes, str]:
    return {each.key: each.what for each in found.differences()}


def test_what_differs_is_told_by_key() -> None:
    found = TopicComparison()
    look(
        found,
        {b"e": A1, b"a": A1, b"b": A1, b"c": A1, b"t": A1},
        {b"e": A1, b"b": A2, b"c": OTHER_BODY, b"d": A1, b"t": OTHER_TOPIC},
    )
    assert told(found) == {
        b"a": "missing there",
        b"b": "other message",
        b"c": "other body",
        b"d": "missing here",
        b"t": "other message",
    }
    assert found.keys == [b"a", b"b", b"c", b"d", b"t"]
    assert found.counts == [5, 5]
    assert differ(found.differences())
    assert str(A2).startswith("1|6, body ")


def test_nobody_chooses_two_bodies_that_pass_for_one() -> None:
    # XXH3 multiplies the first eight bytes, which are nought here, with the next eight.
    one, other = (bytes.fromhex("b8fe6c3923a44bbe") + each * 56 for each in (b"1", b"2"))
    other = other[:16] + one[16:]
    found = TopicComparison()
    look(found, {b"a": held("t", 1, 5, one)}, {b"a": held("t", 1, 5, other)})
    assert told(found) == {b"a": "other body"}


def test_what_has_arrived_meanwhile_is_no_difference() -> None:
    found = TopicComparison()
    look(found, {b"a": A2, b"b": A1}, {b"a": A1})
    look(found, {b"a": A2, b"b": A1}, {b"a": A2, b"b": A1})
    assert found.keys == [] and not differ(found.differences())
    assert found.counts == [2, 1], "of the first look"


def test_what_changes_all_the_time_does_not_count() -> None:
    found = TopicComparison()
    look(found, {b"a": A1, b"b": A1}, {b"a": A2})
    assert differ(found.differences())
    look(found, {b"a": A2, b"b": A1}, {b"a": A1})
    assert [(each.key, each.changing) for each in found.differences()] == [
        (b"a", True),
        (b"b", False),
    ]
    look(found, {b"a": A2}, {b"a": A1})
    assert list(found.differences()) == [RecordDifference(b"a", A2, A1)], "it stood still"
    look(found, {b"a": A1}, {})
    assert not differ(found.differences())


def test_two_without_records_are_equal() -> None:
    found = TopicComparison()
    look(found, {}, {})
    assert found.keys == []
