"""A client's session as the server sees it: golden bytes of each command and answer, the table of
what is allowed when, and what bad values become (docs/protocol.md)."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylay.services.errors import RemoteProtocolError
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.messages.rates import Rate
from raylay.services.protocol.client.answers import (
    HEARTBEAT,
    acknowledgment,
    group_begin,
    group_end,
    logon_answer,
    oof_parts,
    persisted_ack,
    queue_delivery_parts,
    ranges_ack,
    safety_notice,
    sow_parts,
)
from raylay.services.protocol.client.commands import (
    Command,
    CommandRefused,
    Flush,
    Heartbeat,
    Logoff,
    Logon,
    Pause,
    Ping,
    Publish,
    PublishBatchCommand,
    QueueAck,
    QueueCancel,
    QueueStatus,
    ReaderCommand,
    Resume,
    SowAndSubscribe,
    SowCommand,
    Subscribe,
    Unsubscribe,
)
from raylay.services.protocol.client.session import (
    ALLOWED,
    COMMANDS,
    LOGGED_ON,
    NEW,
    ServerSession,
    SessionState,
)
from raylay.services.protocol.frames import FRAME_BYTES_MAX, encode_frame
from raylay.services.protocol.header_values import ACK_TYPES
from raylay.services.subscriptions.delivery import DeliveryContent

pytestmark = [
    pytest.mark.covers("Replication", "a session is served in any writing that a codec has"),
    pytest.mark.covers("Clients and protocol", "frames, limits"),
    pytest.mark.covers("SOW", "frames of queries and changes"),
    pytest.mark.covers("Queues", "subscribing, deliveries with the lease"),
]

LOGON = (
    b"\x2b\x00\x00\x00"  # length: 43
    b"\x29\x00"  # header length: 41
    b"\x85"  # map of 5
    b"\xa1c\xa5logon"
    b"\xa1v\x01"
    b"\xabclient_name\xa5alice"
    b"\xa3low\x07"
    b"\xa3cid\xa11"
)
COMMAND_BYTES: list[tuple[bytes, Command]] = [
    (LOGON, Logon("alice", 7, "1", "", "", 0)),
    (
        b"\x16\x00\x00\x00"  # length: 22
        b"\x14\x00"  # header length: 20
        b"\x82"
        b"\xa1c\xa6logoff"
        b"\xa6unused\x92\x0a\x1e",
        Logoff((10, 30), ""),
    ),
    (
        b"\x34\x00\x00\x00"  # length: 52
        b"\x30\x00"  # header length: 48
        b"\x86"
        b"\xa1c\xa1p"
        b"\xa1t\xa1o"
        b"\xa2mt\xa4json"
        b"\xa1s\x09"
        b"\xa3cid\xa12"
        b"\xa1a\xb3processed,persisted"
        b"{}",
        Publish("o", "json", b"{}", 9, "2", frozenset(("processed", "persisted")), 0, b"", b""),
    ),
    (
        b"\x12\x00\x00\x00"  # length: 18
        b"\x09\x00"  # header length: 9
        b"\x82\xa1c\xa2pb"
        b"\xa1n\x01"
        b"records",
        PublishBatchCommand(b"records", 1),
    ),
    (
        b"\x1e\x00\x00\x00"  # length: 30
        b"\x1c\x00"  # header length: 28
        b"\x84"
        b"\xa1c\xa9subscribe"
        b"\xa3sub\xa1s"
        b"\xa1t\xa1o"
        b"\xa2bm\xa10",
        Subscribe("s", "o", "", "0", "", frozenset(), "now", None, 0, False, False),
    ),
    (
        b"\x41\x00\x00\x00"  # length: 65
        b"\x3f\x00"  # header length: 63
        b"\x85"
        b"\xa1c\xa9subscribe"
        b"\xa3sub\xa1s"
        b"\xa1t\xa1o"
        b"\xa2bm\xa10"
        b"\xa1o\x83\xa4rate\xa22X\xacrate_max_gap\xa310s\xa5pause\xc3",
        Subscribe(
            "s",
            "o",
            "",
            "0",
            "",
            frozenset(),
            "now",
            None,
            0,
            False,
            False,
            paused=True,
            rate=Rate("speed", 2.0, 10_000_000),
        ),
    ),
    (
        b"\x27\x00\x00\x00"  # length: 39
        b"\x25\x00"  # header length: 37
        b"\x85\xa1c\xa9subscribe\xa3sub\xa1s\xa1t\xa1o\xa2bm\xa10"
        b"\xa1o\x81\xa4live\xc3",
        Subscribe("s", "o", "", "0", "", frozenset(), "now", None, 0, False, False, live=True),
    ),
    (
        b"\x28\x00\x00\x00"  # length: 40
        b"\x26\x00"  # header length: 38
        b"\x84\xa1c\xa9subscribe\xa3sub\x92\xa1s\xa1q\xa3cid\xa15"
        b"\xa1o\x81\xa5pause\xc3",
        Pause(("s", "q"), "5", frozenset()),
    ),
    (
        b"\x34\x00\x00\x00"  # length: 52
        b"\x32\x00"  # header length: 50
        b"\x85\xa1c\xa9subscribe\xa3sub\xa3s,q\xa3cid\xa16\xa1a\xa9processed"
        b"\xa1o\x81\xa6resume\xc3",
        Resume(("s", "q"), "6", frozenset(("processed",))),
    ),
    (
        b"\x46\x00\x00\x00"  # length: 70
        b"\x44\x00"  # header length: 68
        b"\x84\xa1c\xa9subscribe\xa3sub\xa1s\xa1t\xa1o"
        b"\xa1o\x84\xa5delta\xc3\xa3oof\xc3\xa6filter\xa6/a > 1\xa6select\xa8[-/,+/a]",
        Subscribe(
            "s",
            "o",
            "",
            "",
            "",
            frozenset(),
            "now",
            None,
            0,
            False,
            False,
            filter="/a > 1",
            select="[-/,+/a]",
            oof=True,
            delta=True,
        ),
    ),
    (
        b"\x22\x00\x00\x00"  # length: 34
        b"\x20\x00"  # header length: 32
        b"\x84\xa1c\xa3sow\xa3sub\xa1q\xa1t\xa1o"
        b"\xa1o\x81\xa8order_by\xa2/a",
        SowCommand("q", "o", "", "", frozenset(), order_by="/a"),
    ),
    (
        b"\x40\x00\x00\x00"  # length: 64
        b"\x3e\x00"  # header length: 62
        b"\x84\xa1c\xa3sow\xa3sub\xa1q\xa1t\xa1o"
        b"\xa1o\x85\xa5top_n\x05\xa6skip_n\x02\xa5batch\x64\xa4keys\x92\xc4\x01k\xc4\x01l"
        b"\xa5as_of\xa18",
        SowCommand(
            "q",
            "o",
            "",
            "",
            frozenset(),
            top_n=5,
            skip_n=2,
            batch=100,
            keys=frozenset((b"k", b"l")),
            as_of="8",
        ),
    ),
    (
        b"\x38\x00\x00\x00"  # length: 56
        b"\x36\x00"  # header length: 54
        b"\x85\xa1c\xb1sow_and_subscribe\xa3sub\xa1q\xa1t\xa1o\xa3cid\xa17"
        b"\xa1o\x82\xa3oof\xc3\xa7replace\xc3",
        SowAndSubscribe(
            SowCommand("q", "o", "", "7", frozenset()),
            Subscribe(
                "q",
                "o",
                "",
                "",
                "7",
                frozenset(),
                "now",
                None,
                0,
                False,
                False,
                oof=True,
                replace=True,
            ),
        ),
    ),
    (
        b"\x33\x00\x00\x00"  # length: 51
        b"\x31\x00"  # header length: 49
        b"\x85\xa1c\xb1sow_and_subscribe\xa3sub\xa1q\xa1t\xa1o"
        b"\xa2bm\xa45|9|\xa1o\x81\xa5batch\x07",
        SowAndSubscribe(
            SowCommand("q", "o", "", "", frozenset(), batch=7),
            Subscribe("q", "o", "", "5|9|", "", frozenset(), "now", None, 0, False, False),
        ),
    ),
    (
        b"\x10\x00\x00\x00\x0e\x00\x83\xa1c\xa1p\xa1t\xa1o\xa3cmd\x06",
        Publish("o", "json", b"", 0, "", frozenset(), 0, b"", b"", 6),
    ),
    (
        b"\x19\x00\x00\x00\x17\x00\x82\xa1c\xabunsubscribe\xa3sub\xa3all",
        Unsubscribe(None, "", frozenset()),
    ),
    (
        b"\x24\x00\x00\x00\x1d\x00\x83\xa1c\xabunsubscribe\xa3sub\xa1s\xa6cancel\xc3"
        b"\x81\x07\x92\x01\x03",
        Unsubscribe(("s",), "", frozenset(), {7: [(1, 3)]}, True),
    ),
    (
        b"\x18\x00\x00\x00\x16\x00\x83\xa1c\xa5flush\xa3cid\xa13\xa1a\xa4none",
        Flush("3", frozenset(("none",))),
    ),
    (
        b"\x1b\x00\x00\x00\x19\x00\x82\xa1c\xa9heartbeat\xa1o\x81\xa7start_s\x02",
        Heartbeat(2, ""),
    ),
    (b"\x0f\x00\x00\x00\x0d\x00\x81\xa1c\xa9heartbeat", Heartbeat(None, "")),
    (b"\x10\x00\x00\x00\x0e\x00\x82\xa1c\xa4ping\xa3cid\xa14", Ping("4")),
    (
        b"\x2c\x00\x00\x00"  # length: 44
        b"\x25\x00"  # header length: 37
        b"\x84"
        b"\xa1c\xacqueue_cancel"
        b"\xa1t\xa4work"
        b"\xa2mt\xa4json"
        b"\xa3cid\xa15"
        b"\x81\x07\x92\x01\x03",
        QueueCancel("work", "json", "5", {7: [(1, 3)]}),
    ),
    (
        b"\x35\x00\x00\x00"  # length: 53
        b"\x33\x00"  # header length: 51
        b"\x85"
        b"\xa1c\xa9queue_ack"
        b"\xa1t\xa4work"
        b"\xa3cid\xa16"
        b"\xa6filter\xa6/n = 1"
        b"\xa3how\xa6expire",
        QueueAck("work", "", "6", "/n = 1", "expire"),
    ),
    (
        b"\x18\x00\x00\x00\x16\x00\x82\xa1c\xacqueue_status\xa3cid\xa17",
        QueueStatus("", "", "7"),
    ),
    (
        b"\x31\x00\x00\x00"  # length: 49
        b"\x2e\x00"  # header length: 46
        b"\x85"
        b"\xa1c\xa6reader"
        b"\xa4name\xa4lake"
        b"\xa1t\xa6orders"
        b"\xa3cid\xa18"
        b"\xa9expires_s\x3c"
        b"\x80",
        ReaderCommand("lake", "orders", "8", PublisherRanges(), 60),
    ),
]


def received(data: bytes, state: SessionState, size: int = 1 << 20) -> list[Command]:
    """What a session in that state makes of the bytes, fed in pieces."""
    session = ServerSession()
    if state is LOGGED_ON:
        session.logged_on()
    found: list[Command] = []
    for at in range(0, len(data), size):
        found += session.receive(data[at : at + size])
    return found


@pytest.mark.parametrize(("data", "command"), COMMAND_BYTES)
def test_golden_commands_whole_and_byte_by_byte(data: bytes, command: Command) -> None:
    state = NEW if isinstance(command, Logon) else LOGGED_ON
    assert received(data, state) == [command]
    assert received(data, state, 1) == [command]
    assert received(data + data[:5], state) == [command]


def test_golden_answers() -> None:
    assert HEARTBEAT == b"\x0f\x00\x00\x00\x0d\x00\x81\xa1c\xa9heartbeat"
    assert persisted_ack(300) == (
        b"\x29\x00\x00\x00"  # length: 41
        b"\x27\x00"  # header length: 39
        b"\x84"
        b"\xa1c\xa3ack"
        b"\xa1a\xa9persisted"
        b"\xa1s\xcd\x01\x2c"
        b"\xa6status\xa7success"
    )
    assert acknowledgment("processed", "7") == (
        b"\x2a\x00\x00\x00\x28\x00\x84\xa1c\xa3ack\xa1a\xa9processed\xa3cid\xa17"
        b"\xa6status\xa7success"
    )
    failed = msgpack.unpackb(persisted_ack(5, "sequence_conflict", "other content")[6:])
    assert failed == {
        "c": "ack",
        "a": "persisted",
        "status": "failure",
        "reason": "sequence_conflict",
        "text": "other content",
        "s": 5,
    }
    assert group_begin("q") == (b"\x17\x00\x00\x00\x15\x00\x82\xa1c\xabgroup_begin\xa3sub\xa1q")
    assert b"".join(sow_parts("q", [b"one", b"two"])[0]) == (
        b"\x18\x00\x00\x00\x10\x00\x83\xa1c\xa3sow\xa3sub\xa1q\xa1n\x02onetwo"
    )
    assert group_end("q", 2, 300) == (
        b"\x23\x00\x00\x00\x21\x00\x84\xa1c\xa9group_end\xa3sub\xa1q\xa1n\x02"
        b"\xa7matches\xcd\x01\x2c"
    )
    before = PublisherRanges()
    assert group_end("q", 2, 3, before) == (
        b"\x27\x00\x00\x00\x25\x00\x85\xa1c\xa9group_end\xa3sub\xa1q\xa1n\x02"
        b"\xa7matches\x03\xa4have\x80"
    )
    before.add(5, 1, 9)
    assert group_end("q", 2, 3, before) == (
        b"\x40\x00\x00\x00\x3e\x00\x85\xa1c\xa9group_end\xa3sub\xa1q\xa1n\x02"
        b"\xa7matches\x03\xa4have\x81\x05\xc4\x16\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00"
        b"\x00\x00\x00\x00\x00\x00\x01\x00\x01\x00\x09\x00"
    )
    for publisher in range(3_000):
        before.add(publisher, 1, 9)
    frame = group_end("q", 2, 3, before)
    header_bytes = int.from_bytes(frame[4:6], "little")
    assert "have" not in msgpack.unpackb(frame[6 : 6 + header_bytes])
    body = msgpack.unpackb(frame[6 + header_bytes :], strict_map_key=False)
    assert PublisherRanges.from_wire(body) == before
    left = DeliveryContent(0, 5, 1, 3, False, [b"rec"])
    assert b"".join(oof_parts("q", "match", left)[0]) == (
        b"\x1d\x00\x00\x00\x18\x00\x84\xa1c\xa3oof\xa3sub\xa1q\xa1n\x01\xa1r\xa5matchrec"
    )
    peers: list[dict[str, Any]] = [{"name": "B", "group": "g", "addresses": ["h:1"], "safe": True}]
    assert msgpack.unpackb(safety_notice(peers)[6:]) == {"c": "safety", "peers": peers}


def test_the_bytes_of_a_delivery_of_a_queue() -> None:
    parts, size_bytes = queue_delivery_parts("s", 2, 5, 300, [b"one", b"two"])
    data = b"".join(parts)
    assert len(data) == size_bytes
    assert data == (
        b"\x23\x00\x00\x00"  # length: 35
        b"\x1b\x00"  # header length: 27
        b"\x86"
        b"\xa1c\xa1p"
        b"\xa3sub\xa1s"
        b"\xa1n\x02"
        b"\xa2ts\x05"
        b"\xa1q\x01"
        b"\xa2lp\xcd\x01\x2c"
        b"onetwo"
    )
    parts, _ = queue_delivery_parts("s", 1, 5, None, [b"one"])
    assert b"lp" not in b"".join(parts)
    parts, _ = queue_delivery_parts("s", 1, 5, None, [b"one"], is_last_try=True)
    assert b"".join(parts).endswith(b"\xa1q\x01\xa4last\xc3one")
    parts, _ = queue_delivery_parts("s", 1, 5, None, [b"one"], traced=True)
    assert b"".join(parts).endswith(b"\xa1q\x01\xa2tr\x01one")


def test_the_logon_answer_has_what_the_protocol_lists() -> None:
    data = logon_answer(
        "1",
        instance="A",
        group="g",
        incarnation=(1 << 64) - 1,
        publisher=5,
        durable=[(1, 3)],
        highest=9,
        peers=[],
        now_us=7,
    )
    assert msgpack.unpackb(data[6:]) == {
        "c": "ack",
        "a": "processed",
        "cid": "1",
        "status": "success",
        "v": 1,
        "instance": "A",
        "group": "g",
        "incarnation": (1 << 64) - 1,
        "publisher": 5,
        "durable": [[1, 3]],
        "highest": 9,
        "peers": [],
        "now": 7,
    }
    left = logon_answer(
        "1",
        instance="A",
        group="g",
        incarnation=1,
        publisher=5,
        durable=[],
        highest=9,
        peers=[],
        now_us=7,
        unused=(10, 30),
    )
    assert msgpack.unpackb(left[6:])["unused"] == [10, 30]
    many = [(2 * n, 2 * n) for n in range(100_000)]
    answer = logon_answer(
        "1",
        instance="A",
        group="g",
        incarnation=1,
        publisher=5,
        durable=many,
        highest=9,
        peers=[],
        now_us=1 << 63,
    )
    assert int.from_bytes(answer[4:6], "little") < 1 << 16 and len(answer) < 1 << 16


def test_a_processed_ack_tells_what_retention_removed() -> None:
    missing = PublisherRanges()
    missing.add_ranges(7, [(2, 3), (9, 9)])
    header = {"c": "ack", "a": "processed", "cid": "1", "status": "success", "sub": "s"}
    told = encode_frame(header | {"missing": 3, "missing_of": {7: [3, 2, 9]}})
    assert ranges_ack("processed", "s", None, "1", missing) == told
    assert ranges_ack("processed", "s", None, "1", PublisherRanges()) == encode_frame(header)
    for publisher in range(1_000, 1_200):
        missing.add(publisher, 1, 1)
    data = ranges_ack("processed", "s", None, "1", missing)
    many = msgpack.unpackb(data[6 : 6 + int.from_bytes(data[4:6], "little")], strict_map_key=False)
    assert (many["missing"], len(many["missing_of"])) == (203, 100)
    assert many["missing_of"][7] == [3, 2, 9]


def test_large_ranges_go_into_the_body() -> None:
    small = PublisherRanges()
    small.add(7, 1, 10)
    data = ranges_ack("persisted", "s", small)
    header_bytes = int.from_bytes(data[4:6], "little")
    header = msgpack.unpackb(data[6 : 6 + header_bytes], strict_map_key=False)
    assert PublisherRanges.from_wire(header["have"]) == small
    large = PublisherRanges()
    large.add_ranges(7, [(2 * n, 2 * n) for n in range(400_000)])
    data = ranges_ack("persisted", "s", large)
    header_bytes = int.from_bytes(data[4:6], "little")
    header = msgpack.unpackb(data[6 : 6 + header_bytes])
    assert "have" not in header and header["sub"] == "s"
    body = msgpack.unpackb(data[6 + header_bytes :], strict_map_key=False)
    assert PublisherRanges.from_wire(body) == large


@pytest.mark.parametrize("command", sorted(COMMANDS))
@pytest.mark.parametrize("state", list(SessionState))
def test_the_table_of_states(state: SessionState, command: str) -> None:
    session = ServerSession(state=state)
    header: dict[str, Any] = {"c": command, "v": 1, "sub": "s", "t": "t", "n": 1}
    header["client_name"] = "x"
    if command in ALLOWED[state]:
        assert len(session.receive(encode_frame(header))) == 1
        return
    with pytest.raises(RemoteProtocolError) as caught:
        session.receive(encode_frame(header))
    assert caught.value.reason == ("not_logged_on" if state is NEW else "bad_command")


@pytest.mark.parametrize("state", list(SessionState))
def test_unknown_commands_end_the_session(state: SessionState) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        ServerSession(state=state).receive(encode_frame({"c": "swo"}))
    assert caught.value.reason == "unknown_command"


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"v": 2}, "bad_version"),
        ({"v": None}, "bad_version"),
        ({"client_name": ""}, "bad_client_name"),
        ({"client_name": 5}, "bad_client_name"),
        ({"client_name": "n" * 1025}, "bad_client_name"),
        ({"low": -1}, "bad_command"),
        ({"takes_unused": 1}, "bad_command"),
        ({"o": {"ack_conflation_ms": "soon"}}, "bad_command"),
    ],
)
def test_a_bad_logon_ends_the_session(values: dict[str, Any], reason: str) -> None:
    header = {"c": "logon", "v": 1, "client_name": "x"} | values
    with pytest.raises(RemoteProtocolError) as caught:
        ServerSession().receive(encode_frame(header))
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"c": "logoff"}, "bad_command"),
        ({"c": "logoff", "unused": [5]}, "bad_command"),
        ({"c": "logoff", "unused": [0, 5]}, "bad_command"),
        ({"c": "logoff", "unused": [6, 5]}, "bad_command"),
        ({"c": "logoff", "unused": ["5", 6]}, "bad_command"),
        ({"c": "logoff", "unused": [5, 1 << 63]}, "bad_command"),
        ({"c": "p"}, "bad_topic"),
        ({"c": "p", "t": "x" * 1025}, "bad_topic"),
        ({"c": "p", "t": 5}, "bad_command"),
        ({"c": "p", "t": "x", "s": "1"}, "bad_command"),
        ({"c": "p", "t": "x", "s": 1 << 63}, "bad_command"),
        ({"c": "p", "t": "x", "e": -1}, "bad_command"),
        ({"c": "p", "t": "x", "mt": "m" * 256}, "bad_command"),
        ({"c": "subscribe", "t": "x"}, "bad_command"),
        ({"c": "subscribe", "sub": "s", "t": "x", "o": 5}, "bad_command"),
        ({"c": "subscribe", "sub": "s", "t": "x", "o": {"have": {1: b"?"}}}, "bad_command"),
        ({"c": "subscribe", "sub": "s", "t": "x", "o": {"have": 3}}, "bad_command"),
        ({"c": "subscribe", "sub": "s", "t": "x", "o": {"window": 5}}, "bad_command"),
        ({"c": "subscribe", "sub": "s", "t": "x", "o": {"rate": "5"}}, "bad_command"),
        ({"c": "subscribe", "sub": "s", "t": "x", "o": {"live": True}}, "bad_command"),
        ({"c": "subscribe", "sub": "s", "t": "x", "bm": "0", "o": {"rate": "?"}}, "bad_command"),
        ({"c": "subscribe", "sub": "s", "t": "x", "bm": "0", "o": {"rate": [5]}}, "bad_command"),
        (
            {"c": "subscribe", "sub": "s", "t": "x", "bm": "0", "o": {"rate_max_gap": "1s"}},
            "bad_command",
        ),
        (
            {"c": "subscribe", "sub": "s", "t": "x", "bm": "0", "o": {"live": 1, "pause": 1}},
            "bad_command",
        ),
        ({"c": "subscribe", "o": {"resume": True}}, "bad_command"),
        ({"c": "subscribe", "sub": [5], "o": {"resume": True}}, "bad_command"),
        ({"c": "subscribe", "sub": ",", "o": {"pause": True}}, "bad_command"),
        ({"c": "subscribe", "sub": "s", "o": {"pause": True, "rate": "5"}}, "bad_command"),
        ({"c": "p", "t": "x", "cmd": 4}, "bad_command"),
        ({"c": "p", "t": "x", "cmd": "6"}, "bad_command"),
        ({"c": "subscribe", "sub": "s", "t": "x", "bm": "0", "o": {"oof": True}}, "not_supported"),
        ({"c": "subscribe", "sub": "s", "t": "x", "bm": "0", "o": {"delta": 1}}, "not_supported"),
        ({"c": "subscribe", "sub": "s", "t": "x", "o": {"conflation": "9ms"}}, "bad_command"),
        ({"c": "subscribe", "sub": "s", "t": "x", "o": {"conflation": "2d"}}, "bad_command"),
        ({"c": "subscribe", "sub": "s", "t": "x", "o": {"conflation": "5"}}, "bad_command"),
        (
            {"c": "subscribe", "sub": "s", "t": "x", "o": {"conflation_key": ["/a"]}},
            "bad_command",
        ),
        (
            {
                "c": "subscribe",
                "sub": "s",
                "t": "x",
                "o": {"conflation": "1s", "conflation_key": ["a"]},
            },
            "bad_command",
        ),
        ({"c": "subscribe", "sub": "s", "t": "x", "o": {"projection": ["/a"]}}, "bad_command"),
        ({"c": "sow", "sub": "q", "t": "x", "o": {"conflation": "1s"}}, "bad_command"),
        ({"c": "sow", "sub": "q", "t": "x", "o": {"grouping": ["/a"]}}, "bad_command"),
        (
            {"c": "sow", "sub": "q", "t": "x", "o": {"projection": ["/a"], "select": "[-/]"}},
            "not_supported",
        ),
        (
            {
                "c": "sow_and_subscribe",
                "sub": "q",
                "t": "x",
                "o": {"projection": ["/a"], "replace": True},
            },
            "not_supported",
        ),
        (
            {"c": "sow_and_subscribe", "sub": "q", "t": "x", "bm": "0", "o": {"top_n": 5}},
            "not_supported",
        ),
        ({"c": "subscribe", "sub": "s", "t": "x", "o": {"filter": 5}}, "bad_command"),
        ({"c": "sow", "t": "x"}, "bad_command"),
        ({"c": "sow", "sub": "q"}, "bad_topic"),
        ({"c": "sow", "sub": "q", "t": "x", "o": {"oof": True}}, "bad_command"),
        ({"c": "sow", "sub": "q", "t": "x", "o": {"batch": 10_001}}, "bad_command"),
        ({"c": "sow", "sub": "q", "t": "x", "o": {"top_n": 0}}, "bad_command"),
        ({"c": "sow", "sub": "q", "t": "x", "o": {"top_n": "5"}}, "bad_command"),
        ({"c": "sow", "sub": "q", "t": "x", "o": {"skip_n": 5}}, "bad_command"),
        ({"c": "sow", "sub": "q", "t": "x", "o": {"keys": b"k"}}, "bad_command"),
        ({"c": "sow", "sub": "q", "t": "x", "o": {"keys": ["k"]}}, "bad_command"),
        ({"c": "sow", "sub": "q", "t": "x", "o": {"order_by": 5}}, "bad_command"),
        ({"c": "sow", "sub": "q", "t": "x", "o": {"grouping": "[/a]"}}, "bad_command"),
        (
            {"c": "sow_and_subscribe", "sub": "q", "t": "x", "bm": "0", "o": {"oof": True}},
            "not_supported",
        ),
        (
            {"c": "sow_and_subscribe", "sub": "q", "t": "x", "bm": "0", "o": {"pause": True}},
            "not_supported",
        ),
        (
            {"c": "sow_and_subscribe", "sub": "q", "t": "x", "bm": "0", "o": {"keys": [b"k"]}},
            "not_supported",
        ),
        (
            {"c": "sow_and_subscribe", "sub": "q", "t": "x", "bm": "0", "o": {"have": {}}},
            "bad_command",
        ),
        ({"c": "sow_and_subscribe", "sub": "q", "t": "x", "bm": 5}, "bad_command"),
        ({"c": "sow_and_subscribe", "sub": "q", "t": "x", "o": {"as_of": "8"}}, "not_supported"),
        ({"c": "sow_and_subscribe", "sub": "q", "t": "x", "o": {"pause": True}}, "bad_command"),
        ({"c": "unsubscribe"}, "bad_command"),
        ({"c": "subscribe", "sub": "s", "t": "x", "o": {"max_backlog": 0}}, "bad_command"),
        ({"c": "subscribe", "sub": "s", "t": "x", "o": {"max_backlog": 1_000_001}}, "bad_command"),
        ({"c": "subscribe", "sub": "s", "t": "x", "o": {"max_backlog": True}}, "bad_command"),
        ({"c": "queue_ack", "t": "x", "how": "lose"}, "bad_command"),
        ({"c": "queue_ack", "t": "x", "filter": 7}, "bad_command"),
        ({"c": "queue_ack", "t": ""}, "bad_topic"),
        ({"c": "queue_cancel", "t": "x"}, "bad_message"),
        ({"c": "heartbeat", "o": {"start_s": 0}}, "bad_command"),
    ],
)
def test_a_bad_value_refuses_the_command_alone(values: dict[str, Any], reason: str) -> None:
    session = ServerSession()
    session.logged_on()
    (refused,) = session.receive(encode_frame(values | {"cid": "9"}))
    assert isinstance(refused, CommandRefused)
    assert (refused.reason, refused.command_id) == (reason, "9")
    assert session.receive(encode_frame({"c": "ping", "cid": "10"})) == [Ping("10")]


@pytest.mark.parametrize("resent", ["", "eu-1"])
def test_a_batch_that_was_sent_before(resent: str) -> None:
    session = ServerSession()
    session.logged_on()
    header = encode_frame({"c": "pb", "n": 2, "r": resent}, b"records")
    assert session.receive(header) == [PublishBatchCommand(b"records", 2, resent)]
    first = encode_frame({"c": "pb", "n": 2}, b"records")
    assert session.receive(first) == [PublishBatchCommand(b"records", 2, None)]


@pytest.mark.parametrize("resent", [1, True, b"eu-1", "a" * 401])
def test_to_whom_a_batch_was_sent_before_is_a_name(resent: Any) -> None:
    session = ServerSession()
    session.logged_on()
    with pytest.raises(RemoteProtocolError, match="`r` of pb is no text of at most 400 bytes"):
        session.receive(encode_frame({"c": "pb", "n": 2, "r": resent}, b"records"))


ASKING: list[tuple[dict[str, Any], bytes]] = [
    ({"c": "p", "t": "o", "s": 1}, b""),
    ({"c": "subscribe", "sub": "s", "t": "o"}, b""),
    ({"c": "subscribe", "sub": "s", "o": {"pause": True}}, b""),
    ({"c": "subscribe", "sub": "s", "o": {"resume": True}}, b""),
    ({"c": "sow", "sub": "s", "t": "o"}, b""),
    ({"c": "sow_and_subscribe", "sub": "s", "t": "o"}, b""),
    ({"c": "unsubscribe", "sub": "s"}, b""),
    ({"c": "flush"}, b""),
]


@pytest.mark.covers("Clients and protocol", "an ack type that there is not is refused")
@pytest.mark.parametrize(("header", "body"), ASKING)
@pytest.mark.parametrize("acks", ["persistent", "processed,Persisted", "processed,", " ", 0, []])
def test_an_ack_type_that_there_is_not_is_refused(
    header: dict[str, Any], body: bytes, acks: object
) -> None:
    (refused,) = received(encode_frame(header | {"a": acks, "cid": "7"}, body), LOGGED_ON)
    assert isinstance(refused, CommandRefused)
    assert (refused.reason, refused.command_id) == ("bad_command", "7")
    if isinstance(acks, str):
        assert "persisted, processed" in refused.text
    for good in ("", "none", "processed", ",".join(sorted(ACK_TYPES))):
        (command,) = received(encode_frame(header | {"a": good}, body), LOGGED_ON)
        assert not isinstance(command, CommandRefused)


@pytest.mark.parametrize("count", [None, 0, -1, "1", True, 1.0])
def test_a_batch_says_how_many_records_it_has(count: object) -> None:
    session = ServerSession()
    session.logged_on()
    with pytest.raises(RemoteProtocolError, match="`n` of pb") as caught:
        session.receive(encode_frame({"c": "pb", "n": count}, b"records"))
    assert caught.value.reason == "bad_command"


def test_large_frames_are_taken_only_behind_the_logon() -> None:
    frame = encode_frame({"c": "pb", "n": 1}, bytes(70_000))
    session = ServerSession()
    with pytest.raises(RemoteProtocolError) as caught:
        session.receive(frame)
    assert caught.value.reason == "frame_too_large"
    session = ServerSession()
    session.logged_on()
    assert session.receive(frame) == [PublishBatchCommand(bytes(70_000), 1)]
    assert session.reader.frame_bytes_max == FRAME_BYTES_MAX


_VALUES = st.none() | st.booleans() | st.integers(-5, 1 << 40) | st.text(max_size=5) | st.binary()


@given(
    st.sampled_from(sorted(COMMANDS)),
    st.dictionaries(
        st.sampled_from(
            ["t", "mt", "s", "sub", "bm", "o", "a", "cid", "e", "k", "x", "n", "v", "cmd"]
        ),
        _VALUES
        | st.dictionaries(
            st.sampled_from(
                [
                    "have",
                    "start_s",
                    "window",
                    "rate",
                    "rate_max_gap",
                    "pause",
                    "live",
                    "filter",
                    "select",
                    "order_by",
                    "top_n",
                    "skip_n",
                    "batch",
                    "keys",
                    "as_of",
                    "oof",
                    "delta",
                    "replace",
                    "conflation",
                    "conflation_key",
                    "projection",
                    "grouping",
                ]
            ),
            _VALUES | st.floats() | st.lists(_VALUES, max_size=3),
        ),
    ),
    st.binary(max_size=50),
)
def test_any_values_are_a_command_or_a_refusal(
    command: str, header: dict[str, Any], body: bytes
) -> None:
    session = ServerSession()
    if command != "logon":
        session.logged_on()
    try:
        assert len(session.receive(encode_frame({"c": command} | header, body))) == 1
    except RemoteProtocolError as error:
        assert command in ("logon", "pb") and error.reason


def test_an_ack_says_how_many_are_in_no_journal() -> None:
    ack = msgpack.unpackb(persisted_ack(9, unjournaled=4)[6:])
    assert ack == {"c": "ack", "a": "persisted", "s": 9, "status": "success", "unjournaled": 4}
