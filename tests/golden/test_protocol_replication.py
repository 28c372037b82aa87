"""Replication frames: golden bytes, round trips, and what bad ones become."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylay.services.errors import RemoteProtocolError
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.messages.records import SEQUENCE_HELD_MAX, SEQUENCE_MAX
from raylay.services.protocol.frames import FrameReader, encode_frame
from raylay.services.protocol.link.replication import (
    BEAT,
    PART_BYTES,
    RANGES_IN_ACK_MAX,
    REFUSAL_CHARACTERS_MAX,
    LinkAccepted,
    UpstreamLogon,
    ack_frames,
    batch_front,
    check_version,
    exchange_frames,
    lacks_frames,
    link_logon,
    pack_rooted,
    placed,
    read_accepted,
    read_ack,
    read_batch,
    read_lacks,
    read_link_logon,
    read_part,
    read_placed,
    refusal,
    unpack_rooted,
)
from raylay.services.protocol.link.tunnel import carry_begin, carry_end, carry_front, stream_of
from raylay.services.replication.acknowledgment import RootedRanges
from raylay.services.replication.effects import AckUpstream, Ranges
from raylay.services.replication.membership.placement import InstancePlacement

pytestmark = pytest.mark.covers("Replication", "a carried stream")

LOGON = UpstreamLogon("A", "g", 1, "h", "to-B", 2, bytes(range(64)))
LOGON_BYTES = (
    b"\x94\x00\x00\x00"  # length: 148
    b"\x92\x00"  # header length: 146
    b"\x89"  # map of 9
    b"\xa1c\xa5logon"
    b"\xa1v\x01"
    b"\xa4name\xa1A"
    b"\xa5group\xa1g"
    b"\xabincarnation\x01"
    b"\xa6expect\xa1h"
    b"\xabdestination\xa4to-B"
    b"\xa5epoch\x02"
    b"\xa6digest\xc4\x40" + bytes(range(64))
)


def read_logon_with(key: str, value: Any) -> dict[str, Any]:
    (frame,) = FrameReader().feed(LOGON_BYTES)
    return frame.header | {key: value}


def test_golden_logon() -> None:
    assert link_logon(LOGON) == LOGON_BYTES
    (frame,) = FrameReader().feed(LOGON_BYTES)
    assert read_link_logon(frame.header) == LOGON
    conflated = replace(LOGON, ack_conflation_ms=20)
    (frame,) = FrameReader().feed(link_logon(conflated))
    assert frame.header["conflation"] == 20 and read_link_logon(frame.header) == conflated
    described = replace(LOGON, description=b"of itself")
    assert link_logon(described) == b"\x9d" + LOGON_BYTES[1:] + b"of itself"
    (frame,) = FrameReader().feed(link_logon(described))
    assert read_link_logon(frame.header, frame.body) == described


def test_golden_logon_of_a_link_that_carries() -> None:
    carrying = replace(LOGON, address="b:1")
    golden = b"\xa0\x00\x00\x00\x9e\x00\x8a" + LOGON_BYTES[7:] + b"\xa7address\xa3b:1"
    assert link_logon(carrying) == golden
    (frame,) = FrameReader().feed(golden)
    assert read_link_logon(frame.header) == carrying


MOVED_BYTES = (
    b"\xc2\x00\x00\x00"  # length: 194
    b"\xc0\x00"  # header length: 192
    b"\x8c"  # map of 12
    + LOGON_BYTES[7:]
    + b"\xaageneration\x01"
    b"\xaaplacements\x91"  # array of one
    b"\x94\xa1B\x03\xa3b:1\xa3b:2"
    b"\xa8salvages\xc3"
)


@pytest.mark.covers("Moved instances", "a lower generation is retired for good")
def test_golden_logon_of_a_moved_instance() -> None:
    """Of a moved instance, by a link that brings what a retired directory holds."""
    moved = {"B": InstancePlacement(3, "b:1", "b:2")}
    second = replace(LOGON, generation=1, placements=moved, salvages=True)
    assert link_logon(second) == MOVED_BYTES
    (frame,) = FrameReader().feed(MOVED_BYTES)
    assert read_link_logon(frame.header) == second


@pytest.mark.covers("Moved instances", "a lower generation is retired for good")
def test_golden_placed_and_refused() -> None:
    moved = {"B": InstancePlacement(3, "b:1", "b:2")}
    data = placed(moved)
    assert data == (
        b"\x24\x00\x00\x00\x22\x00"  # length: 36, header length: 34
        b"\x82\xa1c\xa6placed\xaaplacements\x91\x94\xa1B\x03\xa3b:1\xa3b:2"
    )
    (frame,) = FrameReader().feed(data)
    assert read_placed(frame.header) == moved
    (frame,) = FrameReader().feed(refusal("retired", "B was moved", moved))
    assert read_placed(frame.header) == moved
    assert read_placed({"c": "refused"}) == {}


@pytest.mark.covers("Moved instances", "a link of another version is refused")
@pytest.mark.parametrize("version", [None, 0, 2, "1"])
def test_another_version_is_refused(version: Any) -> None:
    for read in (check_version, read_link_logon):
        with pytest.raises(RemoteProtocolError) as found:
            read(read_logon_with("v", version))
        assert found.value.reason == "bad_version"
        assert str(found.value) == (
            f"replication version {version} is not spoken here, which is version 1: run releases "
            "of one version on both sides"
        )


@pytest.mark.covers("Moved instances", "a link of another version is refused")
def test_the_answer_says_where_the_one_that_answers_lives_and_whoever_else_was_moved() -> None:
    moved = {"B": InstancePlacement(3, "b:1", "b:2")}
    accepted = LinkAccepted("B", "h", 9, "b:2", True, 3, moved)
    first, *_ = exchange_frames(accepted, None, RootedRanges())
    (frame,) = FrameReader().feed(first)
    assert read_accepted(frame.header) == accepted
    with pytest.raises(RemoteProtocolError, match="a generation is no number"):
        read_accepted(frame.header | {"generation": -1})
    with pytest.raises(RemoteProtocolError, match="replication version 4 is not spoken here"):
        read_accepted(frame.header | {"v": 4})


def test_golden_carried_stream() -> None:
    begin = b"\x14\x00\x00\x00\x12\x00\x82\xa1c\xabcarry_begin\xa1n\x01"
    assert carry_begin(1) == begin
    front = b"\x11\x00\x00\x00\x0c\x00\x82\xa1c\xa5carry\xa1n\x01"
    assert carry_front(1, 3) == front
    end = b"\x1b\x00\x00\x00\x19\x00\x83\xa1c\xa9carry_end\xa1n\x01\xa3why\xa4gone"
    assert carry_end(1, "gone") == end
    frames = FrameReader().feed(begin + front + b"\x00\xff!" + end)
    assert [stream_of(frame.header) for frame in frames] == [1, 1, 1]
    assert frames[1].body == b"\x00\xff!"


@pytest.mark.parametrize("number", [None, 0, -1, "1", 1.0, True])
def test_a_carried_stream_has_a_number(number: Any) -> None:
    with pytest.raises(RemoteProtocolError, match="no number"):
        stream_of({"c": "carry", "n": number})


def test_golden_batch() -> None:
    awaited = pack_rooted({6: {7: [(1, 3), (5, 5)]}})
    # map: root 6 to a map: publisher 7 to [1, 3, 5, 5]
    assert awaited == b"\x81\x06\x81\x07\x94\x01\x03\x05\x05"
    data = batch_front(4, True, True, awaited, "", 3) + b"run"
    assert data == (
        b"\x23\x00\x00\x00"  # length: 35
        b"\x15\x00"  # header length: 21
        b"\x85"
        b"\xa1c\xa5batch"
        b"\xa1n\x04"
        b"\xa1m\xc3"
        b"\xa1u\xc3"
        b"\xa1w\x09"
        b"\x81\x06\x81\x07\x94\x01\x03\x05\x05"  # awaited
        b"run"
    )
    (frame,) = FrameReader().feed(data)
    batch = read_batch(frame.header, frame.body)
    assert (batch.number, batch.marked, batch.caught_up, batch.compression) == (4, True, True, "")
    assert batch.awaited == {6: {7: [(1, 3), (5, 5)]}} and batch.block == b"run"
    assert batch.yours == {}
    yours = {7: [(1, 3), (5, 5)], 8: [(2, 2)]}
    data = batch_front(4, False, False, b"", "", 0, yours)
    assert data == (
        b"\x1a\x00\x00\x00"  # length: 26
        b"\x18\x00"  # header length: 24
        b"\x83"
        b"\xa1c\xa5batch"
        b"\xa1n\x04"
        b"\xa1y\x99\x07\x01\x03\x07\x05\x05\x08\x02\x02"  # publisher, first, last each
    )
    (frame,) = FrameReader().feed(data)
    assert read_batch(frame.header, frame.body).yours == yours
    for kind in ("zstd", "zlib"):
        (frame,) = FrameReader().feed(batch_front(1, False, False, b"", kind, 0))
        assert frame.header == {"c": "batch", "n": 1, "z": kind}
        assert read_batch(frame.header, frame.body).compression == kind


def test_golden_ack_and_beat() -> None:
    assert BEAT == b"\x0a\x00\x00\x00\x08\x00\x81\xa1c\xa4beat"
    (data,) = ack_frames(AckUpstream(0, 9, {}, {4: {5: [(1, 2)]}}, {}), 8)
    assert data == (
        b"\x1a\x00\x00\x00"  # length: 26
        b"\x0e\x00"  # header length: 14
        b"\x83\xa1c\xa3ack\xa1n\x09\xa2at\x08"
        b"\x93"  # array of 3
        b"\x80"  # held: nothing
        b"\x81\x04\x81\x05\x92\x01\x02"  # persisted: root 4, publisher 5: [1, 2]
        b"\x80"  # conflicts: nothing
    )
    (frame,) = FrameReader().feed(data)
    assert read_ack(frame.header, frame.body) == (9, {}, {4: {5: [(1, 2)]}}, {})
    (data,) = ack_frames(AckUpstream(0, 9), 8)
    (frame,) = FrameReader().feed(data)
    assert frame.body == b"" and read_ack(frame.header, b"") == (9, {}, {}, {})


def test_an_ack_of_very_many_ranges_comes_in_parts() -> None:
    many = [(3 * n, 3 * n) for n in range(RANGES_IN_ACK_MAX + 5)]
    ack = AckUpstream(0, 4, {1: [(1, 1)]}, {8: {2: many}}, {3: [(9, 9)]})
    together = AckUpstream(0, 4)
    frames = ack_frames(ack, 0)
    assert len(frames) == 4
    for data in frames:
        (frame,) = FrameReader().feed(data)
        number, held, persisted, conflicts = read_ack(frame.header, frame.body)
        assert number == 4
        together.held.update(held)
        together.conflicts.update(conflicts)
        for root, part in persisted.items():
            into = together.persisted.setdefault(root, {})
            for publisher, ranges in part.items():
                into.setdefault(publisher, []).extend(ranges)
    assert together == ack


def test_golden_accepted() -> None:
    held, waited = PublisherRanges(), RootedRanges()
    accepted, last = exchange_frames(LinkAccepted("B", "h", 77, "c:1", True), None, waited)
    assert accepted == (
        b"\x3e\x00\x00\x00"  # length: 62
        b"\x3c\x00"  # header length: 60
        b"\x87"  # map of 7
        b"\xa1c\xa8accepted"
        b"\xa1v\x01"
        b"\xa4name\xa1B"
        b"\xa5group\xa1h"
        b"\xabincarnation\x4d"
        b"\xa6client\xa3c:1"
        b"\xa4same\xc3"
    )
    assert last == encode_frame({"c": "waited", "root": 0, "more": False})
    first, *_ = exchange_frames(LinkAccepted("B", "h", 7, "", False), held, waited)
    (frame,) = FrameReader().feed(first)
    assert not read_accepted(frame.header).same


@pytest.mark.parametrize("same", [False, True])
def test_the_exchange_survives(same: bool) -> None:
    held, waited = PublisherRanges(), RootedRanges()
    for publisher in range(1, 20):
        held.add_ranges(publisher, [(2 * n, 2 * n) for n in range(1_000_000 // publisher)])
    waited.of(4).add(3, 1, 5)
    waited.of(6).add(3, 7, 7)
    accepted = LinkAccepted("B", "h", 77, "host:1", same)
    frames = list(exchange_frames(accepted, None if same else held, waited))
    assert all(len(data) < PART_BYTES + 1024 for data in frames)
    found_held, found_waited = PublisherRanges(), RootedRanges()
    more = True
    for at, data in enumerate(frames):
        (frame,) = FrameReader().feed(data)
        if not at:
            assert read_accepted(frame.header) == accepted
            continue
        assert more
        is_held = frame.header["c"] == "held"
        read_part(frame.body, found_held if is_held else found_waited.of(frame.header["root"]))
        more = frame.header["more"]
    assert not more
    assert found_waited.roots == waited.roots
    assert found_held == (PublisherRanges() if same else held)


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        ({"c": "batch"}, "not_logged_on"),
        ({"c": "logon"}, "bad_version"),
        ({"c": "logon", "v": 1}, "bad_command"),
        ({"c": "logon", "v": 1, "name": "n" * 300}, "bad_command"),
        (read_logon_with("address", 5), "bad_command"),
        (read_logon_with("address", "a" * 301), "bad_command"),
    ],
)
def test_a_bad_logon(header: dict[str, Any], reason: str) -> None:
    (frame,) = FrameReader().feed(encode_frame(header))
    with pytest.raises(RemoteProtocolError) as caught:
        read_link_logon(frame.header)
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    "header",
    [
        {"c": "batch"},
        {"c": "batch", "n": 1, "w": 9},
        {"c": "batch", "n": 1, "w": -1},
        {"c": "batch", "n": 1, "z": "gzip"},
        {"c": "batch", "n": 1, "y": 5},
        {"c": "batch", "n": 1, "y": [7, 1]},
        {"c": "batch", "n": 1, "y": [7, 2, 1]},
        {"c": "batch", "n": 1, "y": ["7", 1, 2]},
        {"c": "batch", "n": 1, "y": [7, -1, 2]},
    ],
)
def test_a_bad_batch(header: dict[str, Any]) -> None:
    with pytest.raises(RemoteProtocolError):
        read_batch(header, b"12345678")


def test_golden_lacks() -> None:
    lacks = PublisherRanges()
    lacks.add(0x0102, 1, 3)
    (frame,) = lacks_frames(lacks, True)
    (found,) = FrameReader().feed(frame)
    header, body = found.header, found.body
    assert header == {"c": "lacks", "whole": True}
    assert body == b"\x81\xcd\x01\x02\xc4" + bytes((len(lacks.of(0x0102).to_bytes()),)) + (
        lacks.of(0x0102).to_bytes()
    )
    assert read_lacks(header, body) == (lacks, True)
    assert read_lacks({"c": "lacks"}, b"") == (PublisherRanges(), False)
    with pytest.raises(RemoteProtocolError):
        read_lacks(header, b"\xc1")


def test_a_refusal_is_cut_to_what_fits() -> None:
    (frame,) = FrameReader().feed(refusal("group", "x" * 50_000))
    assert frame.header["reason"] == "group"
    assert len(frame.header["text"]) == REFUSAL_CHARACTERS_MAX


_RANGES = st.dictionaries(
    st.integers(1, (1 << 64) - 1),
    st.lists(st.tuples(st.integers(0, 1 << 40), st.integers(0, 1 << 20)), min_size=1, max_size=4),
    max_size=4,
).map(lambda sets: {key: [(a, a + n) for a, n in pairs] for key, pairs in sets.items()})


@given(_RANGES)
def test_ranges_survive(ranges: Ranges) -> None:
    assert unpack_rooted(pack_rooted({9: ranges})) == {9: ranges}


def test_ranges_name_every_sequence_that_a_record_can_have() -> None:
    """Journals of earlier releases hold sequences that nobody may give any more."""
    held = {7: [(SEQUENCE_MAX, SEQUENCE_HELD_MAX)]}
    (frame,) = ack_frames(AckUpstream(0, 1, held, {3: held}, held), 0)
    ((header, body),) = FrameReader().feed(frame)
    assert read_ack(header, body) == (1, held, {3: held}, held)


@given(st.binary(min_size=1, max_size=80))
def test_any_bytes_are_ranges_or_a_protocol_error(data: bytes) -> None:
    for read in (
        lambda: unpack_rooted(data),
        lambda: read_ack({"c": "ack", "n": 1}, data),
        lambda: read_part(data, PublisherRanges()),
    ):
        try:
            read()
        except RemoteProtocolError as error:
            assert error.reason == "bad_ranges"
