"""What an instance writes down of where a restart may begin."""

from __future__ import annotations

import msgpack
import pytest

from raylay.services.errors import RemoteProtocolError
from raylay.services.replication.acknowledgment import RootedRanges, Route, Waiting
from raylay.services.replication.ranges import PublisherRanges, SequenceSet
from raylay.services.replication.recovery import RecoveryPoint

ROUTE = Route(0xB, b"orders", b"json", (0xA, 0xB), "g", 64)


def point() -> RecoveryPoint:
    return RecoveryPoint(
        4,
        RootedRanges({1: PublisherRanges({7: SequenceSet([(1, 9)])})}),
        PublisherRanges({7: SequenceSet([(3, 3)])}),
        PublisherRanges({8: SequenceSet([(5, 5)])}),
        9,
        [Waiting(1, 7, ROUTE, SequenceSet([(5, 5), (7, 9)]))],
        1,
    )


def stored(value: object) -> RecoveryPoint:
    return RecoveryPoint.from_wire(msgpack.unpackb(msgpack.packb(value), strict_map_key=False))


def test_comes_back_as_it_was() -> None:
    found = stored(point().to_wire())
    assert found.to_wire() == point().to_wire()
    assert found.waiting == point().waiting
    assert found.incarnation == 1


@pytest.mark.parametrize("values", [2, 3, 4])
def test_what_an_older_release_wrote_is_read(values: int) -> None:
    """It knew no more than where everything is durable: all behind that is read again."""
    found = stored(point().to_wire()[:values])
    assert (found.durable_txid, found.committed_txid, found.waiting) == (4, 4, [])
    assert bool(found.refused) == (values > 2) and bool(found.unavailable) == (values > 3)


def test_an_older_release_reads_its_part() -> None:
    floor, awaited, refused, unavailable, *_ = point().to_wire()
    assert floor == 4
    assert list(RootedRanges.from_wire(awaited).of(1).of(7)) == [(1, 9)]
    assert PublisherRanges.from_wire(refused) and PublisherRanges.from_wire(unavailable)


def test_a_later_release_may_write_more() -> None:
    assert stored([*point().to_wire(), {"more": 1}]).to_wire() == point().to_wire()


def test_another_incarnation_of_the_directory_takes_over_what_was_published_there() -> None:
    """Once: a root of that name that its own point holds came back from peers."""
    found = point().read_by(2)
    assert list(found.awaited.roots) == [each.root for each in found.waiting] == [2]
    assert point().read_by(1).to_wire() == point().to_wire()
    found.awaited.of(1).add(7, 4, 4)
    again = stored(found.to_wire()).read_by(2)
    assert set(again.awaited.roots) == {1, 2}


def test_holds_no_more_than_what_is_held() -> None:
    found = point().within(PublisherRanges({7: SequenceSet([(1, 7)])}), PublisherRanges())
    assert list(found.awaited.of(1).of(7)) == [(1, 7)]
    assert [list(each.ranges) for each in found.waiting] == [[(5, 5), (7, 7)]]
    assert point().within(PublisherRanges(), PublisherRanges()).waiting == []


def test_what_was_removed_since_was_durable() -> None:
    """The point may be seconds old, and retention goes on."""
    held = PublisherRanges({7: SequenceSet([(1, 9)])})
    found = point().within(held, PublisherRanges({7: SequenceSet([(1, 7)])}))
    assert [list(each.ranges) for each in found.waiting] == [[(8, 9)]]
    assert list(found.awaited.of(1).of(7)) == [(1, 9)]


@pytest.mark.parametrize("value", [[], [1], 7, [1, {}, {}, {}, 1, [[1, 2]]]])
def test_what_is_no_recovery_point_is_refused(value: object) -> None:
    with pytest.raises(RemoteProtocolError):
        stored(value)
