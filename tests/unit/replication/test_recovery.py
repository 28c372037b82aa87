"""What an instance writes down of where a restart may begin."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import pytest

from raylay.services.errors import RemoteProtocolError
from raylay.services.messages.ranges import PublisherRanges, SequenceSet
from raylay.services.replication.acknowledgment import RootedRanges, Route, WaiterTable
from raylay.services.replication.recovery import (
    POINT_KEY,
    PREFIX,
    RecoveryLog,
    RecoveryPoint,
    committed_txid_of,
    cut_to,
)
from raylay.storage.state import LmdbStateStore

pytestmark = [
    pytest.mark.covers("Replication", "a restart with other filters"),
    pytest.mark.covers("Replication", "a restart goes on from what was written down"),
]

ROUTE = Route(0xB, b"orders", b"json", (0xA, 0xB), "g", 64)
OTHER_ROUTE = ROUTE._replace(sender=0, path=())


def point() -> RecoveryPoint:
    waiting = WaiterTable()
    waiting.assign(1, ROUTE, 7, [(5, 5), (7, 9)])
    return RecoveryPoint(
        4,
        RootedRanges({1: PublisherRanges({7: SequenceSet([(1, 9)])})}),
        PublisherRanges({7: SequenceSet([(3, 3)])}),
        PublisherRanges({8: SequenceSet([(5, 5)])}),
        9,
        waiting,
        1,
    )


def content(found: RecoveryPoint) -> Any:
    """All that it says, to be compared."""
    return (
        found.durable_txid,
        found.committed_txid,
        found.incarnation,
        {root: sets for root, sets in found.awaited.roots.items() if sets},
        found.refused,
        found.unavailable,
        {(each.root, each.publisher, each.route): list(each.ranges) for each in found.waiting},
    )


def write(stored: dict[str, bytes], log: RecoveryLog, made: RecoveryPoint) -> set[str]:
    """Writes a point down; returns the keys that it took."""
    changes = log.changes(made)
    for key, value in changes.items():
        if value is None:
            stored.pop(key, None)
        else:
            stored[key] = value
    log.written(made)
    return set(changes)


def test_comes_back_as_it_was() -> None:
    stored: dict[str, bytes] = {}
    write(stored, RecoveryLog(stored), point())
    assert content(RecoveryLog(stored).point) == content(point())
    assert committed_txid_of(stored) == 9


def test_nothing_written_is_an_empty_point() -> None:
    assert content(RecoveryLog({}).point) == content(RecoveryPoint())
    assert committed_txid_of({}) == 0 and cut_to(3, {}) == {}


def test_what_filters_let_through_comes_back_with_its_verdict() -> None:
    passed = replace(point(), filters=((".*", "*", "eu"), ("orders", "*", "us")))
    passed.waiting.assign(1, ROUTE._replace(passed=("eu", "us")), 7, [(10, 11)])
    stored: dict[str, bytes] = {}
    write(stored, RecoveryLog(stored), passed)
    found = RecoveryLog(stored).point
    assert content(found) == content(passed) and found.filters == passed.filters
    stored |= {key: value for key, value in cut_to(3, stored).items() if value is not None}
    cut = RecoveryLog(stored).point
    assert (cut.durable_txid, cut.committed_txid, cut.filters) == (3, 3, passed.filters)


def test_what_new_filters_have_not_judged_is_read_again() -> None:
    eu, us = (".*", "*", "eu"), ("orders", "*", "us")
    before = replace(point(), filters=(eu, us))
    for filters in ((), (eu,), (us, eu)):
        assert before.judged_by(filters) is before
    again = before.judged_by((eu, ("trades", "*", "us")))
    assert again.committed_txid == again.durable_txid == 4 and not again.waiting
    assert again.awaited == before.awaited


def test_only_what_changed_is_written() -> None:
    stored: dict[str, bytes] = {}
    log = RecoveryLog(stored)
    awaited, waiting = RootedRanges(), WaiterTable()
    for publisher in range(1, 1_001):
        awaited.of(1).add(publisher, 1, 1)
        waiting.assign(1, ROUTE, publisher, [(1, 1)])

    def now(committed_txid: int) -> RecoveryPoint:
        return RecoveryPoint(
            0, awaited.copy(), committed_txid=committed_txid, waiting=waiting.copy()
        )

    assert len(write(stored, log, now(1_000))) == 2_001
    awaited.of(1).add(5, 2, 2)
    waiting.settle(1, 9, [(1, 1)])
    waiting.assign(1, OTHER_ROUTE, 11, [(2, 2)])
    ninth, eleventh = (f"{PREFIX}/w/{1:016x}/{number:016x}" for number in (9, 11))
    keys = write(stored, log, now(1_001))
    assert keys == {f"{PREFIX}/a/{1:016x}/{5:016x}", ninth, eleventh, POINT_KEY}
    assert ninth not in stored
    assert content(RecoveryLog(stored).point) == content(now(1_001))
    assert write(stored, log, now(1_001)) == {POINT_KEY}
    # Another life begins with what it read, and writes no more than what changes then.
    log = RecoveryLog(stored)
    held = PublisherRanges({number: SequenceSet([(1, 2)]) for number in range(1, 1_001)})
    begun = log.point.within(held, PublisherRanges())
    awaited, waiting = begun.awaited, begun.waiting
    awaited.of(1).add(6, 2, 2)
    assert write(stored, log, now(1_002)) == {f"{PREFIX}/a/{1:016x}/{6:016x}", POINT_KEY}
    assert content(RecoveryLog(stored).point) == content(now(1_002))


def test_of_a_root_that_is_gone_nothing_is_left_on_disk() -> None:
    stored: dict[str, bytes] = {}
    log = RecoveryLog(stored)
    write(stored, log, point())
    taken_over = point().read_by(2)
    write(stored, log, taken_over)
    assert content(RecoveryLog(stored).point) == content(taken_over)
    write(stored, log, RecoveryPoint(4, committed_txid=9))
    assert set(stored) == {POINT_KEY}


def test_what_was_not_written_is_written_with_the_next_one(tmp_path: Path) -> None:
    """Random histories on a real store: after each write that did not fail, and from each life to
    the next one, what is on disk is the point; after one that failed it is the one before."""
    draw = random.Random(1)
    store = LmdbStateStore(tmp_path / "state.lmdb")
    log = RecoveryLog(dict(store.items(PREFIX)))
    awaited, refused, waiting = RootedRanges(), PublisherRanges(), WaiterTable()
    expected = content(RecoveryPoint())
    for txid in range(1, 400):
        for _ in range(draw.randint(0, 3)):
            root, publisher, first = draw.choice((0, 7)), draw.randint(1, 9), draw.randint(1, 50)
            ranges = [(first, first + draw.randint(0, 5))]
            what = draw.randint(0, 4)
            if what == 0:
                awaited.of(root).add_ranges(publisher, ranges)
            elif what == 1:
                awaited.remove_ranges(root, publisher, ranges)
            elif what == 2:
                waiting.settle(root, publisher, [(1, 60)])
                waiting.assign(root, draw.choice((ROUTE, OTHER_ROUTE)), publisher, ranges)
            elif what == 3:
                waiting.settle(root, publisher, ranges)
            else:
                refused.add_ranges(publisher, ranges)
        made = RecoveryPoint(txid, awaited.copy(), refused.copy(), committed_txid=txid)
        made.waiting = waiting.copy()
        if draw.random() < 0.8:
            store.put(log.changes(made))
            log.written(made)
            expected = content(made)
        assert content(RecoveryLog(dict(store.items(PREFIX))).point) == expected
        if draw.random() < 0.05:
            # A crash: what was not written is gone.
            store.close()
            store = LmdbStateStore(tmp_path / "state.lmdb")
            log = RecoveryLog(dict(store.items(PREFIX)))
            begun = log.point.within(
                PublisherRanges({each: SequenceSet([(0, 99)]) for each in range(10)}),
                PublisherRanges(),
            )
            awaited, refused, waiting = begun.awaited, begun.refused, begun.waiting
            assert content(log.point) == expected
    store.close()


def test_another_incarnation_of_the_directory_takes_over_what_was_published_there() -> None:
    """Once: a root of that name that its own point holds came back from peers."""
    found = point().read_by(2)
    assert list(found.awaited.roots) == [each.root for each in found.waiting] == [2]
    assert content(point().read_by(1)) == content(point())
    found.awaited.of(1).add(7, 4, 4)
    stored: dict[str, bytes] = {}
    write(stored, RecoveryLog(stored), found)
    again = RecoveryLog(stored).point.read_by(2)
    assert set(again.awaited.roots) == {1, 2}


def test_ends_with_its_journal() -> None:
    stored: dict[str, bytes] = {}
    write(stored, RecoveryLog(stored), point())
    stored |= {key: value for key, value in cut_to(6, stored).items() if value is not None}
    assert committed_txid_of(stored) == 6
    found = RecoveryLog(stored).point
    assert (found.durable_txid, found.committed_txid) == (4, 6)
    assert content(found)[2:] == content(point())[2:]


def test_holds_no_more_than_what_is_held() -> None:
    found = point().within(PublisherRanges({7: SequenceSet([(1, 7)])}), PublisherRanges())
    assert list(found.awaited.of(1).of(7)) == [(1, 7)]
    assert [list(each.ranges) for each in found.waiting] == [[(5, 5), (7, 7)]]
    assert list(point().within(PublisherRanges(), PublisherRanges()).waiting) == []
    assert content(point()) == content(point()), "what it is made of stays"


def test_what_was_removed_since_was_durable() -> None:
    """The point may be seconds old, and retention goes on."""
    held = PublisherRanges({7: SequenceSet([(1, 9)])})
    found = point().within(held, PublisherRanges({7: SequenceSet([(1, 7)])}))
    assert [list(each.ranges) for each in found.waiting] == [[(8, 9)]]
    assert list(found.awaited.of(1).of(7)) == [(1, 9)]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (POINT_KEY, msgpack.packb([1, 1])),
        (f"{PREFIX}/a/{1:016x}", b""),
        (f"{PREFIX}/a/{1:016x}/{2:016x}", b"x"),
        (f"{PREFIX}/z/{2:016x}", SequenceSet([(1, 1)]).to_bytes()),
        (f"{PREFIX}/w/{1:016x}/{2:016x}", msgpack.packb([[1, 2]])),
    ],
)
def test_what_is_no_part_of_a_recovery_point_is_refused(key: str, value: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        RecoveryLog({key: value})
