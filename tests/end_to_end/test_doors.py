"""Frames that are forged, malformed or out of place, at every door of a real instance.

Each is refused with a reason of docs/protocol.md, or passed over as that page says; nothing
changes, and who behaves notices nothing. The whole product of states and frames is in
unit/test_doors.py; here is what needs sockets and processes.
"""

from __future__ import annotations

import dataclasses
import resource
import socket
import struct
from pathlib import Path
from typing import Any

import msgpack
import pytest
from end_to_end.test_bad_input import Good
from support.instance_processes import DEADLINE_S, Client, Executed, Server, Servers, pair, single
from support.link_peers import DESCRIPTION

from raylay.services.capacity.config import CapacityConfig
from raylay.services.config.instance import split_address
from raylay.services.config.journal import JournalConfig
from raylay.services.messages.records import SEQUENCE_MAX, RecordBuilder, publisher_id, run_of, scan
from raylay.services.protocol.frames import (
    HEADER_BYTES_MAX,
    Frame,
    FrameReader,
    Header,
    encode_frame,
)
from raylay.services.protocol.header_values import COMMAND_ID_BYTES_MAX
from raylay.services.protocol.link.proof import proof_of
from raylay.services.protocol.link.replication import (
    REPLICATION_FRAME_BYTES_MAX,
    UpstreamLogon,
    link_logon,
    placed,
)
from raylay.services.replication.membership.placement import InstancePlacement

KEY = "the key of a fabric"
FORGED = InstancePlacement(1, "127.0.0.1:1", "127.0.0.1:2")


class Link:
    """The link of another instance on a plain socket."""

    def __init__(self, server: Server) -> None:
        address = split_address(server.status["replication_address"])
        self.socket = socket.create_connection(address, DEADLINE_S)
        self.socket.settimeout(DEADLINE_S)
        self.reader = FrameReader(frame_bytes_max=REPLICATION_FRAME_BYTES_MAX)
        self.frames: list[Frame] = []

    def send(self, *frames: bytes) -> None:
        self.socket.sendall(b"".join(frames))

    def next(self, command: str) -> Header:
        """The next frame of that command; others are dropped."""
        while True:
            while self.frames:
                frame = self.frames.pop(0)
                if frame.header["c"] == command:
                    return frame.header
            data = self.socket.recv(1 << 18)
            if not data:
                raise EOFError("the instance closed the connection")
            self.frames += self.reader.feed(data)

    def is_closed(self) -> bool:
        """Waits for the end."""
        try:
            while self.socket.recv(1 << 16):
                pass
        except ConnectionResetError:
            pass
        return True


def logon(key: str = "", **values: Any) -> bytes:
    words: dict[str, Any] = {
        "name": "forger", "group": "group", "incarnation": 77, "expect": "group",
        "destination": "solo", "epoch": 1, "digest": b"", "description": DESCRIPTION,
    }  # fmt: skip
    made = UpstreamLogon(**(words | values))
    made.proof = made.proof or proof_of(key, made)
    return link_logon(made)


def is_whole(server: Server) -> bool:
    """Nothing of it has ended, gone back or been retired."""
    words = ("fatal", "Traceback", "retired", "went_back", "instance_moved", "instance_readdressed")
    found = [word for word in words if word in server.log]
    return server.process.poll() is None and not found


# -- where instances live --------------------------------------------------------------------------
@pytest.mark.parametrize("key", ["", KEY])
def test_nobody_who_connects_can_retire_or_readdress_an_instance(
    servers: Servers, tmp_path: Path, key: str
) -> None:
    """One frame to the replication port did, for good."""
    server = single(servers, tmp_path, fabric_key=key)
    good = Good(server)
    first = Link(server)
    first.send(placed({"solo": FORGED}))
    refused = first.next("refused")
    assert refused["reason"] == "not_logged_on" and "before the logon" in refused["text"]
    assert first.is_closed()
    told = {"solo": FORGED, "other": FORGED}
    for number, frame in enumerate(
        (
            logon(placements=told, announces=True),
            logon("another key", placements=told, announces=True),
            logon(placements=told, announces=True, proof=b"\0" * 16),
        )
    ):
        link = Link(server)
        link.send(frame)
        refused = link.next("refused")
        assert refused["reason"] == "unproven" and "fabric_key" in refused["text"], number
        assert "placements" not in refused
        assert link.is_closed()
    # A link of an earlier release or of another fabric is let in, and this of it is not believed.
    link = Link(server)
    link.send(logon(placements=told, generation=3))
    assert "placements" not in link.next("accepted")
    link.send(placed(told))
    server.wait_for("placements_unproven")
    link.send(encode_frame({"c": "nothing"}))
    assert link.next("refused")["reason"] == "unknown_command"
    good.publishes()
    good.kept()
    assert is_whole(server), server.log
    assert server.events("placements_unproven") == 4
    assert server.stop() == 0
    server.start()
    assert server.status["state"] == "ready"


def test_who_has_the_key_is_believed(servers: Servers, tmp_path: Path) -> None:
    server = single(servers, tmp_path, fabric_key=KEY)
    link = Link(server)
    link.send(logon(KEY, placements={"other": FORGED}, announces=True))
    assert link.next("placed")["placements"] == [["other", *FORGED[:3]]]
    assert link.is_closed()
    server.wait_for("instance_moved")
    link = Link(server)
    link.send(logon(KEY, placements={"solo": FORGED}))
    assert link.next("refused")["reason"] == "moved"
    assert server.process.wait(DEADLINE_S) == 1 and "retired" in server.log


def test_nobody_takes_the_place_of_a_link_that_is_connected(
    servers: Servers, tmp_path: Path
) -> None:
    """A logon in the name of a peer ended its link, and with the highest epoch made the peer begin
    anew as an old copy of itself."""
    first, second = pair(servers, tmp_path)
    for server, other in ((first, second), (second, first)):
        assert server.stop() == 0
        # Its key is proved to servers of its own fabric alone: those that it names.
        server.config = dataclasses.replace(
            server.config,
            fabric_key=KEY,
            destinations=tuple(
                dataclasses.replace(each, server_names=(other.config.name,))
                for each in server.config.destinations
            ),
        )
        server.config.save(server.directory)
        server.log = ""
    for server in (first, second):
        server.start()
    for server in (first, second):
        server.wait_for("link_caught_up")
    good = Good(first)
    incarnation = int(second.log.partition("incarnation=")[2][:16], 16)
    for words in (
        {"name": "B", "incarnation": incarnation},
        {"name": "other", "incarnation": incarnation},
        {"name": "B", "incarnation": 5, "generation": 9},
    ):
        link = Link(first)
        link.send(logon(destination="to-A", epoch=(1 << 64) - 1, **words))
        refused = link.next("refused")
        assert refused["reason"] == "unproven" and "B of the fabric" in refused["text"]
        assert link.is_closed()
        good.publishes()
    good.server = second
    good.kept()
    assert first.events("link_disconnected") == first.events("upstream_disconnected") == 0
    second.kill()
    second.log = ""
    second.start()
    second.wait_for("link_caught_up")
    assert is_whole(first) and is_whole(second)


def test_a_forged_batch_does_not_make_an_instance_begin_anew(
    servers: Servers, tmp_path: Path
) -> None:
    server = single(servers, tmp_path, fabric_key=KEY)
    good = Good(server)
    link = Link(server)
    link.send(logon())
    link.next("accepted")
    link.send(encode_frame({"c": "batch", "n": 1, "y": [7, 1, 2]}))
    assert link.next("ack")["n"] == 1
    server.wait_for("old_copy_unproven")
    link.send(encode_frame({"c": "batch", "n": 2, "y": [-7, 1, 2]}))
    assert link.next("refused")["reason"] == "bad_ranges"
    good.publishes()
    good.kept()
    assert is_whole(server), server.log


@pytest.mark.covers("Configuration", "gaps in what a user's names number are bounded")
def test_a_forged_batch_does_not_use_up_the_numbers_of_a_publisher(
    servers: Servers, tmp_path: Path
) -> None:
    """The publisher went on behind it, and had no numbers left."""
    server = single(servers, tmp_path, fabric_key=KEY)
    good = Good(server)
    link = Link(server)
    link.send(logon())
    link.next("accepted")
    record = RecordBuilder(publisher_id("victim"), "orders", "json").build(SEQUENCE_MAX, b"{}", 1)
    (chunk,) = scan(record)
    link.send(encode_frame({"c": "batch", "n": 1}, run_of(chunk, record).encode()))
    refused = link.next("refused")
    assert refused["reason"] == "implausible_sequence" and str(SEQUENCE_MAX) in refused["text"]
    assert link.is_closed()
    server.wait_for("upstream_refused")
    victim = Client(server.address, "victim")
    assert victim.answer["highest"] == 0
    victim.publish(range(1, 4))
    victim.persisted(3)
    good.publishes()
    good.kept()
    assert is_whole(server), server.log


# -- a sample of the walk --------------------------------------------------------------------------
SAMPLE: list[tuple[Header, bytes]] = [
    ({"c": "ack", "a": "persisted", "s": 5}, b""),
    ({"c": "logon", "v": 9, "client_name": "x"}, b""),
    ({"c": "p", "t": "orders", "s": -1}, b"{}"),
    ({"c": "pb", "n": 0}, b""),
    ({"c": "subscribe", "sub": "s", "t": "(", "bm": "0"}, b""),
    ({"c": "heartbeat", "o": {"start_s": "soon"}}, b""),
    ({"c": "bootstrap", "v": 1, "name": "x", "group": "g", "incarnation": -1}, b"\xff"),
    ({"c": "batch", "n": "one"}, b""),
    ({"c": "batch", "n": 1, "w": 9}, b"\xff"),
    ({"c": "lacks"}, msgpack.packb({-1: b""})),
    ({"c": "placed", "placements": [["B", 1, "nowhere", ""]]}, b""),
    ({"c": "accepted", "v": 1, "name": "x"}, b""),
    ({"c": "carry_begin", "n": 1}, b""),
    ({"c": "unheard-of"}, b""),
]


def refusal_at(door: Client | Link) -> Header:
    """Why it is refused; it comes before the end of the connection."""
    while True:
        data = door.socket.recv(1 << 18)
        assert data, "the connection ended without a word"
        for frame in door.reader.feed(data):
            if frame.header["c"] == "refused" or frame.header.get("status") == "failure":
                return frame.header


def test_a_sample_of_frames_at_every_door_of_a_pair(servers: Servers, tmp_path: Path) -> None:
    """Garbage, a frame cut short and a length beyond the limit as well."""
    first, second = pair(servers, tmp_path)
    good = Good(first)
    sent = [encode_frame(*frame) for frame in SAMPLE]
    sent += [b"\xff" * 100, b"\x10\0\0\0\xff\xff" + bytes(20), struct.pack("<IH", 1 << 31, 9)]
    for epoch, frame in enumerate(sent, 1):
        link = Link(first)
        link.send(logon(destination="to-A", epoch=epoch))
        link.next("accepted")
        doors: list[Client | Link] = [Client(first.address), Link(first)]
        doors += [Client(first.address, "bad"), link]
        for door in doors:
            door.socket.sendall(frame)
            refused = refusal_at(door)
            assert refused["reason"] and len(refused["text"]) > 10, (frame, refused)
            door.socket.close()
        good.publishes()
    for server in (first, second):
        assert is_whole(server), server.log
        good.server = server
        good.kept()
    # Neither the link of the one nor that of the other was disturbed.
    assert first.events("link_disconnected") == second.events("link_disconnected") == 0


# -- too large -------------------------------------------------------------------------------------
def test_what_is_too_large_to_be_said_again_is_refused(servers: Servers, tmp_path: Path) -> None:
    """A command id comes back in an ack, whose header ended the instance when it was too long."""
    server = single(servers, tmp_path)
    good = Good(server)
    client = Client(server.address, "bad")
    longest = HEADER_BYTES_MAX - 256
    for header in (
        {"c": "ping"},
        {"c": "flush"},
        {"c": "p", "t": ""},
        {"c": "p", "t": "orders", "a": "processed"},
        {"c": "subscribe", "sub": "s", "t": "orders"},
        {"c": "unsubscribe", "sub": "all"},
        {"c": "heartbeat", "o": {"start_s": 5}},
    ):
        for cid in ("x" * longest, "€" * (COMMAND_ID_BYTES_MAX // 2), ["list"], 1.5, True):
            client.send(header | {"cid": cid})
            refused = client.next(lambda frame: frame.header.get("status") == "failure").header
            assert refused["reason"] in ("bad_command", "bad_topic")
            assert refused.get("cid", "-") == "-"
    client.send({"c": "subscribe", "sub": "s" * longest, "t": "orders"})
    assert client.ack(status="failure").header["reason"] == "bad_command"
    client.send({"c": "ping", "cid": "x" * COMMAND_ID_BYTES_MAX})
    client.ack(cid="x" * COMMAND_ID_BYTES_MAX)
    client.send({"c": "logon", "v": 1, "client_name": "other", "cid": "x" * longest})
    assert client.closed()
    good.publishes()
    good.kept()
    assert is_whole(server), server.log


def test_a_name_too_long_for_a_key_of_the_state_is_refused(
    servers: Servers, tmp_path: Path
) -> None:
    """A destination's name is part of a key on the disk: one of 768 bytes ended the instance."""
    server = single(servers, tmp_path)
    good = Good(server)
    for words in ({"destination": "€" * 255}, {"name": "x" * 401}, {"name": ""}, {"address": "?"}):
        link = Link(server)
        link.send(logon(**words))
        refused = link.next("refused")
        assert refused["reason"] == "bad_command" and next(iter(words)) in refused["text"]
        assert link.is_closed()
    link = Link(server)
    link.send(logon(destination="x" * 400))
    link.next("accepted")
    good.publishes()
    good.kept()
    assert is_whole(server), server.log


def test_who_asks_and_never_reads_is_ended(servers: Servers, tmp_path: Path) -> None:
    server = single(
        servers, tmp_path, capacity=CapacityConfig(memory_bytes_max=1024 * 1024, client_share=0.5)
    )
    good = Good(server)
    client = Client(server.address, "bad")
    asked = encode_frame({"c": "ping", "cid": "x" * 1000}) * 200
    with pytest.raises(ConnectionError):
        for _ in range(500):
            client.socket.sendall(asked)
    server.wait_for("reason=slow_client")
    good.publishes()
    good.kept()
    assert is_whole(server), server.log


def test_a_flood_of_connections_leaves_the_journal_its_files(
    servers: Servers, tmp_path: Path
) -> None:
    """With 128 files, 80 connections: a client that logs on finds its place, and goes on through
    several segments."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, limits[1]))
    try:
        # A forked process has a descriptor more than a user's.
        server = single(
            servers, tmp_path, kind=Executed, journal=JournalConfig(segment_bytes=1024 * 1024)
        )
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    good = Good(server)
    crowd = []
    for number in range(300):
        crowd.append(Link(server) if number % 2 else Client(server.address))
        if not number % 50:
            good.publishes()
    first = crowd[0]
    data = first.socket.recv(1 << 16)
    (frame,) = FrameReader().feed(data)
    assert frame.header["reason"] == "too_many" and "ulimit" in frame.header["text"]
    builder = RecordBuilder(good.client.answer["publisher"], "orders", "json")
    for _ in range(40):
        good.last += 1
        good.client.send({"c": "pb", "n": 1}, builder.build(good.last, bytes(100_000), 1))
        good.client.persisted(good.last)
    late = Good(server, "late")
    for door in crowd:
        door.socket.close()
    late.publishes()
    good.kept()
    late.kept()
    assert is_whole(server) and "storage_failed" not in server.log, server.log


def test_flushes_and_subscriptions_have_their_limits(servers: Servers, tmp_path: Path) -> None:
    """B is away, so no flush behind a publish is answered."""
    server, other = pair(servers, tmp_path)
    other.kill()
    server.wait_for("link_disconnected")
    client = Client(server.address, "bad")
    client.publish(range(1, 2))
    flush = encode_frame({"c": "flush", "a": "persisted", "cid": "f"})
    client.socket.sendall(flush * 10_001)
    assert client.ack(status="failure").header["reason"] == "too_many"
    subscribe = [
        encode_frame({"c": "subscribe", "sub": f"s{n}", "t": "nothing", "a": "none", "cid": "s"})
        for n in range(10_001)
    ]
    client.socket.sendall(b"".join(subscribe))
    refused = client.ack(status="failure").header
    assert (refused["reason"], refused["sub"]) == ("too_many", "s10000")
    have = msgpack.packb({n: b"" for n in range(200_000)})
    client.send({"c": "subscribe", "sub": "h", "t": "orders", "bm": "0", "cid": "h"}, have)
    assert client.ack(cid="h").header["reason"] == "bad_command"
    other.start()
    client.ack(a="persisted", cid="f")
    assert is_whole(server), server.log
