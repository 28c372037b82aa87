"""Frames byte for byte (docs/protocol.md, "Frames"), and what a reader does with anything else."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylay.services.errors import LocalProtocolError, RemoteProtocolError
from raylay.services.protocol.child import control
from raylay.services.protocol.client.answers import logon_answer, safety_notice
from raylay.services.protocol.frames import (
    FRAME_BYTES_MAX,
    HEADER_BYTES_MAX,
    LONG_HEADER,
    LONG_HEADER_BYTES_MAX,
    UNAUTHENTICATED_FRAME_BYTES_MAX,
    Frame,
    FrameReader,
    Header,
    encode_frame,
    encode_front,
    first_frame,
)
from raylay.services.protocol.link.replication import placed, read_placed
from raylay.services.replication.membership.placement import InstancePlacement

pytestmark = pytest.mark.covers("Clients and protocol", "frames, limits")

GOLDEN: list[tuple[Header, bytes, bytes]] = [
    (
        {"c": "ping"},
        b"",
        b"\x0a\x00\x00\x00"  # length: 10
        b"\x08\x00"  # header length: 8
        b"\x81\xa1c\xa4ping",
    ),
    (
        {"c": "p", "sub": "s", "n": 2, "tx": 300},
        b"body",
        b"\x1a\x00\x00\x00"  # length: 26
        b"\x14\x00"  # header length: 20
        b"\x84"  # map of 4
        b"\xa1c\xa1p"
        b"\xa3sub\xa1s"
        b"\xa1n\x02"
        b"\xa2tx\xcd\x01\x2c"  # 300 as u16, big-endian as msgpack has it
        b"body",
    ),
    (
        {"c": "ack", "k": b"\x00\xff"},
        b"",
        b"\x0f\x00\x00\x00\x0d\x00\x82\xa1c\xa3ack\xa1k\xc4\x02\x00\xff",  # k: 2 bytes of binary
    ),
]


@pytest.mark.parametrize(("header", "body", "data"), GOLDEN)
def test_golden_bytes_both_ways(header: Header, body: bytes, data: bytes) -> None:
    assert encode_frame(header, body) == data
    assert encode_front(header, len(body)) + body == data
    assert FrameReader().feed(data) == [Frame(header, body)]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 1000])
def test_frames_arrive_in_any_pieces(size: int) -> None:
    stream = b"".join(data for _, _, data in GOLDEN) * 3
    reader = FrameReader()
    frames: list[Frame] = []
    for at in range(0, len(stream), size):
        frames += reader.feed(stream[at : at + size])
    assert frames == [Frame(header, body) for header, body, _ in GOLDEN] * 3
    assert reader.buffered == 0


def test_the_first_frame_and_what_is_behind_it() -> None:
    """Whatever follows, frames or not."""
    first, rest = encode_frame({"c": "carried"}, b"body"), b"\xff" * 9
    for end in range(len(first)):
        assert first_frame(first[:end]) is None
    for tail in (b"", rest, first):
        assert first_frame(first + tail) == (Frame({"c": "carried"}, b"body"), tail)
    with pytest.raises(RemoteProtocolError, match="over the limit"):
        first_frame(first[:6], 5)


def test_what_follows_a_frame_is_kept() -> None:
    reader = FrameReader()
    data = GOLDEN[1][2]
    assert len(reader.feed(data + data[:9])) == 1
    assert reader.buffered == 9
    assert reader.feed(data[9:]) == [Frame(GOLDEN[1][0], b"body")]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x01\x00\x00\x00\x00\x00\x00", "bad_frame"),  # no room for the header length
        (b"\x05\x00\x00\x00\x04\x00\x81\xa1c", "bad_frame"),  # header longer than the frame
        (b"\x03\x00\x00\x00\x01\x00\xc1", "bad_frame"),  # no msgpack
        (b"\x03\x00\x00\x00\x01\x00\x07", "bad_frame"),  # no map
        (b"\x03\x00\x00\x00\x01\x00\x80", "bad_frame"),  # a map without `c`
        (encode_frame({"c": 7}), "bad_frame"),  # `c` is no text
        # Half a surrogate pair: ids of an instance's own are of names that have one (records.py).
        (b"\x09\x00\x00\x00\x07\x00\x81\xa1c\xa3\xed\xbf\xbf", "bad_frame"),
        (b"\x02\x00\x00\x00\x00\x00", "bad_frame"),  # no header
        (b"\xff\xff\xff\xff\x01\x00", "frame_too_large"),
        ((FRAME_BYTES_MAX + 1).to_bytes(4, "little") + b"\x01\x00", "frame_too_large"),
    ],
)
def test_bad_frames_are_refused_from_their_first_bytes(data: bytes, reason: str) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        FrameReader().feed(data)
    assert caught.value.reason == reason


def test_limits_are_checked_before_the_bytes_come() -> None:
    reader = FrameReader(frame_bytes_max=100)
    with pytest.raises(RemoteProtocolError, match="over the limit of 100"):
        reader.feed(b"\x65\x00\x00\x00\x01\x00")
    reader = FrameReader(header_bytes_max=10)
    with pytest.raises(RemoteProtocolError, match="header of 11 bytes"):
        reader.feed(b"\x40\x00\x00\x00\x0b\x00")
    assert HEADER_BYTES_MAX < LONG_HEADER < 1 << 16


@given(st.binary(max_size=200), st.integers(1, 40))
def test_any_bytes_are_frames_or_a_protocol_error(data: bytes, size: int) -> None:
    reader = FrameReader(frame_bytes_max=1000)
    try:
        for at in range(0, len(data), size):
            reader.feed(data[at : at + size])
    except RemoteProtocolError as error:
        assert error.reason in ("bad_frame", "frame_too_large")
    assert reader.buffered <= 1006


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), _VALUES, max_size=5), st.text(), st.binary())
def test_any_header_survives(header: dict[str, object], command: str, body: bytes) -> None:
    header["c"] = command
    data = encode_frame(header, body)
    assert FrameReader().feed(data) == [Frame(header, body)]
    assert msgpack.unpackb(data[6 : 6 + int.from_bytes(data[4:6], "little")]) == header


PEERS = [
    {
        "name": f"raylay-instance-{number:04}.raylay.production.svc.cluster.local",
        "group": f"region-{number % 7}",
        "addresses": [f"raylay-instance-{number:04}.raylay.production.svc.cluster.local:9007"],
        "safe": number % 2 == 0,
    }
    for number in range(2_000)
]
"""As many as a fabric of two thousand instances has, with names of Kubernetes."""


def placements(count: int = 2_000) -> dict[str, InstancePlacement]:
    return {
        str(peer["name"]): InstancePlacement(number + 1, peer["addresses"][0], peer["addresses"][0])
        for number, peer in enumerate(PEERS[:count])
    }


@pytest.mark.parametrize("at_once", [1, 7, 1 << 30])
def test_what_lists_every_instance_is_a_frame_however_many_there_are(at_once: int) -> None:
    """Six hundred peers ended the instance at the first logon of a client."""
    frames = [
        safety_notice(PEERS),
        logon_answer(
            "1", instance="A", group="g", incarnation=1, publisher=2, durable=[(1, 5)], highest=5,
            peers=PEERS, now_us=3,
        ),
        placed(placements()),
        control.placed(placements()),
        encode_frame({"c": "after"}, b"body"),
    ]  # fmt: skip
    assert max(map(len, frames)) > 65_535
    stream = b"".join(frames)
    reader, found = FrameReader(), []
    for at in range(0, len(stream), at_once):
        found += reader.feed(stream[at : at + at_once])
        if at_once == 1 and len(found) == 1:
            # One byte at a time was seen to work: the rest at once.
            found += reader.feed(stream[at + 1 :])
            break
    assert [frame.header["c"] for frame in found] == ["safety", "ack", "placed", "placed", "after"]
    assert found[0].header["peers"] == found[1].header["peers"] == PEERS
    assert read_placed(found[2].header) == placements()
    assert (found[4].body, reader.buffered) == (b"body", 0)


def test_a_header_of_the_longest_short_length_and_one_more() -> None:
    """Golden: the first 10 bytes of each."""
    fits = HEADER_BYTES_MAX - len(msgpack.packb({"c": "x", "t": "y" * 60_000})) + 60_000
    for more, front in (
        (0, "00000100feff"),
        (1, "05000100ffffffff0000"),
    ):
        data = encode_frame({"c": "x", "t": "y" * (fits + more)})
        assert data.hex().startswith(front)
        (frame,) = FrameReader().feed(data)
        assert len(frame.header["t"]) == fits + more


def test_a_long_header_is_no_way_around_a_limit() -> None:
    long = safety_notice(PEERS)
    with pytest.raises(RemoteProtocolError, match="frame of"):
        FrameReader(frame_bytes_max=UNAUTHENTICATED_FRAME_BYTES_MAX).feed(long)
    with pytest.raises(RemoteProtocolError, match="header of"):
        FrameReader(header_bytes_max=1_000).feed(long)
    wrong = long[:6] + (len(long)).to_bytes(4, "little") + long[10:]
    with pytest.raises(RemoteProtocolError, match="header of"):
        FrameReader().feed(wrong)
    with pytest.raises(LocalProtocolError, match="is over the limit"):
        encode_frame({"c": "x", "t": "y" * LONG_HEADER_BYTES_MAX})


@pytest.mark.parametrize("at_once", [1, 3, 7, 100, 10_000])
def test_what_is_held_of_a_frame_that_is_not_whole_is_told(at_once: int) -> None:
    """Before it is kept, and not of frames that come whole."""
    stream = (
        encode_frame({"c": "a"}, b"x" * 50) + encode_frame({"c": "b"}) + encode_frame({"c": "c"})
    )
    told = [0]
    reader = FrameReader(holds=told.append)
    for at in range(0, len(stream), at_once):
        reader.feed(stream[at : at + at_once])
        assert told[-1] == reader.buffered
    assert reader.buffered == 0 and (len(told) == 1) is (at_once >= len(stream))


def test_what_may_not_be_held_is_not_kept() -> None:
    frame = encode_frame({"c": "a"}, b"x" * 5_000)

    def holds(held_bytes: int) -> None:
        if held_bytes > 3_000:
            raise RemoteProtocolError("too much", "too_many")

    reader = FrameReader(holds=holds)
    assert reader.feed(frame[:2_000]) == []
    with pytest.raises(RemoteProtocolError):
        reader.feed(frame[2_000:4_000])
    assert reader.buffered == 2_000
    reader.clear()
    assert reader.buffered == 0
    with pytest.raises(RemoteProtocolError):
        FrameReader.feed(reader, frame[:4_000])
    assert reader.buffered == 0
    assert len(reader.feed(frame)) == 1, "what comes whole is not held"
