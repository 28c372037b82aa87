"""Bootstrap frames: golden bytes, round trips, and what bad ones become."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from raylay.services.errors import RemoteProtocolError
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.messages.topics import TopicRule
from raylay.services.protocol.frames import Frame, FrameReader
from raylay.services.protocol.link import bootstrap, replication
from raylay.services.protocol.link.replication import PartReader
from raylay.services.replication.instance import Identity

pytestmark = [
    pytest.mark.covers("SOW", "a bootstrap copies of SOW topics what the log does not reach back"),
    pytest.mark.covers("Resync and bootstrap", "`Bootstrap` in AMPSConfig"),
]

B = Identity("B", "g", 11)
REQUEST_BYTES = (
    b"\x4f\x00\x00\x00"  # length: 79
    b"\x2c\x00"  # header length: 44
    b"\x85"  # map of 5
    b"\xa1c\xa9bootstrap"
    b"\xa1v\x01"
    b"\xa4name\xa1B"
    b"\xa5group\xa1g"
    b"\xabincarnation\x0b"
    b"\x92"  # asked for, and journaled:
    b"\x91\x92\xa3^tr\xa1*"
    b"\x92\x92\xa6orders\xa4json\x92\xa6trades\xa1*"
)


def one(data: bytes) -> Frame:
    (frame,) = FrameReader().feed(data)
    return frame


def test_golden_request() -> None:
    journaled = (TopicRule("orders", "json"), TopicRule("trades"))
    assert bootstrap.request(B, (TopicRule("^tr"),), journaled) == REQUEST_BYTES
    frame = one(REQUEST_BYTES)
    assert bootstrap.read_request(frame.header) == B
    choice = bootstrap.read_choice(frame.body)
    assert choice.is_whole((TopicRule("trades"),)) and not choice.is_whole((TopicRule("orders"),))


@pytest.mark.parametrize(
    ("header", "body", "reason"),
    [
        ({"v": 9}, b"\x92\x90\x90", "bad_version"),
        ({"name": 3}, b"\x92\x90\x90", "bad_command"),
        ({}, b"", "bad_command"),
        ({}, b"\x92\x91\x01\x90", "bad_command"),
        ({}, b"\x92\x91\x92\x01\x02\x90", "bad_command"),
        ({}, b"\x92\x91\x92\xa1(\xa1*\x90", "bad_command"),
    ],
)
def test_a_bad_request(header: dict[str, Any], body: bytes, reason: str) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        bootstrap.read_request(one(REQUEST_BYTES).header | header)
        bootstrap.read_choice(body)
    assert caught.value.reason == reason


@given(st.binary(max_size=60))
@example(b"\x81\x90\x00")  # a map whose key is a list
def test_any_bytes_are_a_request_or_a_protocol_error(body: bytes) -> None:
    for read in (lambda: bootstrap.read_choice(body),
                 lambda: PartReader().read(body, PublisherRanges())):  # fmt: skip
        try:
            read()
        except RemoteProtocolError:
            pass


SOW_BYTES = (
    b"\x24\x00\x00\x00"  # length: 36
    b"\x17\x00"  # header length: 23
    b"\x82"  # map of 2
    b"\xa1c\xadbootstrap_sow"
    b"\xa1t\xa3j/o"
    b"\x91\x92\xc4\x02va\xc4\x031\x002"
)


def test_golden_sow() -> None:
    assert list(bootstrap.sow_frames("j/o", [(b"va", b"1\x002")])) == [SOW_BYTES]
    frame = one(SOW_BYTES)
    assert bootstrap.read_sow(frame.header, frame.body) == ("j/o", [(b"va", b"1\x002")])


def test_sow_entries_come_in_frames_of_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "SOW_BYTES", 100)
    entries = [(b"v%d" % number, b"x" * 40) for number in range(7)] + [(b"w", b"x" * 1000)]
    frames = [one(each) for each in bootstrap.sow_frames("t", entries)]
    assert len(frames) == 3
    found = [bootstrap.read_sow(each.header, each.body)[1] for each in frames]
    assert [entry for each in found for entry in each] == entries
    assert not list(bootstrap.sow_frames("t", []))


@pytest.mark.parametrize("body", [b"", b"\x01", b"\x91\x01", b"\x91\x92\xa1a\xc4\x00", b"\xc1"])
def test_what_are_no_sow_entries(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        bootstrap.read_sow({"c": "bootstrap_sow", "t": "t"}, body)
    with pytest.raises(RemoteProtocolError):
        bootstrap.read_sow({"c": "bootstrap_sow"}, b"\x90")


def test_sow_topics_are_asked_for_where_both_have_them_alike() -> None:
    held = {"a": b"1", "b": b"2", "c": b"3"}
    request = one(bootstrap.request(B, (), (), {"a": b"1", "b": b"other", "d": b"4"}))
    assert bootstrap.sow_wanted(request.header, held) == ["a"]
    assert bootstrap.sow_wanted(one(REQUEST_BYTES).header, held) == []
    assert bootstrap.sow_wanted({"sow": 1}, held) == []
    many = {str(number): b"" for number in range(10_000)}
    assert len(one(bootstrap.request(B, (), (), many)).header["sow"]) == bootstrap.SOW_TOPICS_MAX


def test_begin_runs_and_end() -> None:
    begin = bootstrap.BootstrapBegin(B, 5, 900)
    assert bootstrap.read_begin(one(bootstrap.begin(begin)).header) == begin
    frame = one(bootstrap.runs_front(77, 3) + b"abc")
    assert bootstrap.read_runs(frame.header) == 77 and frame.body == b"abc"
    assert bootstrap.is_end(one(bootstrap.END).header) and not bootstrap.is_end(frame.header)
    for header in ({"c": "bootstrap_begin"}, {"c": "bootstrap_runs", "tx": "1"}):
        with pytest.raises(RemoteProtocolError):
            bootstrap.read_begin(header)
        with pytest.raises(RemoteProtocolError):
            bootstrap.read_runs(header)


def test_what_cannot_be_given_comes_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replication, "PART_BYTES", 20)
    lacks = PublisherRanges()
    for publisher in range(1, 6):
        lacks.add(publisher, 1, publisher)
    frames = bootstrap.lacks_frames(lacks)
    assert len(frames) > 1
    found, reader = PublisherRanges(), PartReader()
    for frame in frames:
        reader.read(one(frame).body, found)
    assert found == lacks
    assert bootstrap.lacks_frames(PublisherRanges()) == []


def test_a_source_says_no_more_entries_than_their_bytes_can_hold() -> None:
    """Entries of nothing take five bytes on the wire, and 100 in memory."""
    entries = [[bytes(17), b"v"]] * 2_000
    assert bootstrap.read_sow({"c": "bootstrap_sow", "t": "x"}, msgpack.packb(entries))[1]
    with pytest.raises(RemoteProtocolError) as caught:
        bootstrap.read_sow({"c": "bootstrap_sow", "t": "x"}, msgpack.packb([[b"", b""]] * 60_000))
    assert caught.value.reason == "bad_command"
