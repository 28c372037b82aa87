"""Named readers: what they keep, how many there may be, and whose they are."""

from __future__ import annotations

from dataclasses import replace

import msgpack
import pytest

from raylay.services.errors import RemoteProtocolError
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.subscriptions import named_readers
from raylay.services.subscriptions.named_readers import NamedReader, NamedReaders
from raylay.services.subscriptions.reader_counts import LackedMessages

pytestmark = pytest.mark.covers("Journal", "named readers that hold retention")


def held(*ranges: tuple[int, int]) -> PublisherRanges:
    found = PublisherRanges()
    for first, last in ranges:
        found.add(7, first, last)
    return found


def reader(*ranges: tuple[int, int], name: str = "lake", user: str = "") -> NamedReader:
    return NamedReader(name, user, "orders", held(*ranges), 60, 1_000_000)


SUMMARIES = [(1, 10, held((1, 10))), (11, 12, PublisherRanges()), (13, 20, held((11, 18)))]


def test_the_first_segment_with_a_message_that_is_lacked_is_kept() -> None:
    for ranges, floor_txid in (
        ([(1, 9)], 1),
        ([(2, 18)], 1),
        ([(1, 10)], 13),
        ([(1, 17)], 13),
        ([(1, 18)], 21),
        ([(1, 100)], 21),
    ):
        made = reader(*ranges)
        made.measure(SUMMARIES)
        assert made.floor_txid == floor_txid, ranges
    made.measure([])
    assert made.floor_txid == 0


def test_what_lies_behind_a_segment_that_is_not_sealed_yet_is_kept() -> None:
    made = reader((1, 100))
    made.measure([SUMMARIES[0], SUMMARIES[2]])
    assert made.floor_txid == 11


def test_the_reader_that_lacks_most_holds() -> None:
    readers = NamedReaders([reader((1, 10), name="ahead"), reader((1, 3), name="behind")])
    assert readers.holding(1) is not None  # Not measured yet: nothing goes.
    readers.measure(SUMMARIES)
    assert len(readers) == 2 and readers.holding(1) is None
    found = readers.holding(13)
    assert found is not None and found.name == "behind"
    readers.forget("behind")
    readers.forget("never was")
    assert readers.holding(13) is None
    found = readers.holding(14)
    assert found is not None and (found.name, found.floor_txid) == ("ahead", 13)
    assert NamedReaders().holding(100) is None


def test_a_new_place_keeps_the_floor_only_if_it_goes_forward() -> None:
    readers = NamedReaders([reader((1, 10))])
    readers.measure(SUMMARIES)
    readers.take(reader((1, 12)))
    assert [each.floor_txid for each in readers] == [13]
    readers.take(reader((1, 5)))
    assert [each.floor_txid for each in readers] == [0]


def test_the_disk_has_the_whole_reader() -> None:
    made = reader((1, 10), (12, 13), user="anna")
    made = replace(made, message_type="fix", filter="/n > 1")
    assert NamedReader.unpack(made.pack()) == made


def test_what_is_added_joins_what_a_name_holds_and_reads_the_same() -> None:
    readers = NamedReaders([reader((1, 10))])
    assert readers.added(reader((12, 13))).have == held((1, 10), (12, 13))
    assert [each.have for each in readers] == [held((1, 10))]
    assert readers.added(reader((1, 2), name="other")).have == held((1, 2))
    for other in ({"topic": "trades"}, {"message_type": "fix"}, {"filter": "/n > 1"}):
        with pytest.raises(RemoteProtocolError, match="'lake' reads orders, and not") as no:
            readers.added(replace(reader((1, 2)), **other))
        assert no.value.reason == "bad_command"
    of_anna = NamedReaders([reader(user="anna")])
    with pytest.raises(RemoteProtocolError, match="another user's"):
        of_anna.added(reader(user="ben"))


def test_a_place_is_told_with_what_it_is_of() -> None:
    made = replace(reader((1, 2)), message_type="fix", filter="/n > 1")
    *terms, have = msgpack.unpackb(made.place(), strict_map_key=False)
    assert terms == ["orders", "fix", "/n > 1"]
    assert PublisherRanges.from_wire(have) == held((1, 2))


def test_a_reader_expires_when_nothing_is_heard_of_it() -> None:
    readers = NamedReaders([reader((1, 10))])
    assert readers.expired(61_000_000) == []
    assert [each.name for each in readers.expired(61_000_001)] == ["lake"]


def test_only_its_user_changes_a_reader() -> None:
    readers = NamedReaders([reader(user="anna"), reader(name="free")])
    readers.check(reader(user="anna"))
    readers.check(reader(name="free", user="ben"))
    assert readers.check_user("other", "ben") is None
    with pytest.raises(RemoteProtocolError, match="another user's") as refused:
        readers.check(reader(user="ben"))
    assert refused.value.reason == "not_entitled"


def test_readers_are_bounded_in_number_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    readers = NamedReaders([reader((1, 10))])
    monkeypatch.setattr(named_readers, "READERS_MAX", 1)
    readers.check(reader((1, 12)))
    with pytest.raises(RemoteProtocolError, match="1 named readers already") as refused:
        readers.check(reader(name="second"))
    assert refused.value.reason == "too_many"
    monkeypatch.setattr(named_readers, "HELD_BYTES_MAX", 0)
    with pytest.raises(RemoteProtocolError, match="more than 0 bytes"):
        readers.check(reader((1, 12)))


def test_the_status_says_how_far_behind_a_reader_is() -> None:
    readers = NamedReaders([reader((1, 10), (100, 200))])
    assert readers.status(lambda _: LackedMessages(8, True), 6_500_000) == [
        {
            "name": "lake",
            "user": "",
            "topic": "orders",
            "behind": 8,
            "at_most": True,
            "needs_from_txid": 0,
            "told_s": 5,
            "expires_s": 60,
        }
    ]
