"""A walk through every door: every state of a connection with every frame that the protocol has,
valid by itself and with each of its values in turn missing, of another type and too large.

The instance is whole, with its journal and its event loop; what is missing is sockets. A frame is
answered, or passed over as docs/protocol.md says; what it refuses it refuses with a reason of that
page and with words, and then nothing has changed. No frame disturbs anybody else: a client goes on
publishing and a sync link goes on bringing, and both have their acks.
"""

from __future__ import annotations

import asyncio
import re
import struct
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.link_peers import DESCRIPTION

from raylay.services.config.instance import (
    DestinationConfig,
    InstanceConfig,
    LinkConfig,
    split_address,
)
from raylay.services.config.transport import TransportConfig
from raylay.services.errors import CorruptRecord, RemoteProtocolError
from raylay.services.messages.ranges import PublisherRanges, SequenceSet
from raylay.services.messages.records import RecordBuilder, decode_runs, publisher_id, run_of, scan
from raylay.services.messages.topics import TopicRule
from raylay.services.net.framed import WriteQueue
from raylay.services.processes.link.downstream import Downstream
from raylay.services.processes.link.link_server import LinkServer
from raylay.services.protocol.child import control
from raylay.services.protocol.client.compression import Decompressor, compressor
from raylay.services.protocol.client.session import ServerSession
from raylay.services.protocol.client.subscribe import HAVE_CHUNKS_MAX
from raylay.services.protocol.frames import HEADER_BYTES_MAX, FrameReader, Header, encode_frame
from raylay.services.protocol.header_values import COMMAND_ID_BYTES_MAX
from raylay.services.protocol.link import bootstrap
from raylay.services.protocol.link.description import unpack_description
from raylay.services.protocol.link.proof import is_proven, proof_of
from raylay.services.protocol.link.replication import (
    REPLICATION_FRAME_BYTES_MAX,
    LinkAccepted,
    PartReader,
    UpstreamLogon,
    batch_front,
    exchange_frames,
    link_logon,
    read_accepted,
    read_ack,
    read_batch,
    read_lacks,
    read_link_logon,
    read_part,
    read_placed,
    root_of,
    sent_at_ns,
)
from raylay.services.protocol.link.tunnel import stream_of
from raylay.services.replication.acknowledgment import RootedRanges
from raylay.services.replication.instance import LinkStart
from raylay.services.replication.membership.placement import InstancePlacement, to_wire
from raylay.services.replication.membership.validation import DestinationTerms
from raylay.services.server import turns
from raylay.services.server.clients.connection import ClientConnection
from raylay.services.server.clients.transport import ClientTransport
from raylay.services.server.instance_server import InstanceServer
from raylay.services.server.links import upstream_connection
from raylay.services.server.links.upstream_connection import UpstreamConnection
from raylay.services.telemetry.logs import LogOptions
from raylay.storage.state import KEY_BYTES_MAX

pytestmark = pytest.mark.covers("SOW", "frames of queries and changes")

PAGE = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text(encoding="utf-8")
DEADLINE_S = 30.0
KEY = "the key of a fabric"
CATALOGUE = frozenset(
    word
    for begin, end in (
        ("one of the reasons below", "\n\n**"),
        ("**Bootstrap", "## "),
        ("## Reasons", "$"),
    )
    for word in re.findall(r"`([a-z_]+)`", PAGE.partition(begin)[2].partition(end)[0])
)
"""The reasons that the page lists."""


def test_reasons_are_found_where_the_page_lists_them() -> None:
    """One of each list: it is found by the words before it, which may be written anew."""
    assert {"gap", "bootstrapping", "auth"} <= CATALOGUE


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a test is not soon back at a peer that it let wait."""
    monkeypatch.setattr(upstream_connection, "SILENCE_S_MAX", 600.0)


@pytest.fixture(autouse=True)
def a_pass_takes_all_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes all that a test says in one turn, as in the tests of the server."""
    monkeypatch.setattr(turns, "TURN_S", 600.0)


class Transport(asyncio.Transport):
    """What a connection writes."""

    def __init__(self, connection: asyncio.Protocol) -> None:
        super().__init__()
        self.connection = connection
        self.written = bytearray()
        self.is_over = False
        self.came = asyncio.Event()

    def write(self, data: Any) -> None:
        self.written += data
        self.came.set()

    def writelines(self, list_of_data: Any) -> None:
        for data in list_of_data:
            self.written += data
        self.came.set()

    def close(self) -> None:
        if not self.is_over:
            self.is_over = True
            self.came.set()
            self.connection.connection_lost(None)

    abort = close

    def is_closing(self) -> bool:
        return self.is_over

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def take(self) -> list[tuple[Header, bytes]]:
        """The frames that were written since the last time."""
        self.came.clear()
        written, self.written = bytes(self.written), bytearray()
        return list(FrameReader(frame_bytes_max=REPLICATION_FRAME_BYTES_MAX).feed(written))


@dataclass
class Door:
    """One connection."""

    connection: Any
    transport: Transport
    said: list[tuple[Header, bytes]] = field(default_factory=list)
    sent: bytes = b""

    def send(self, *frames: bytes) -> None:
        self.sent = b"".join(frames)[:400]
        if not self.transport.is_over:
            self.connection.data_received(b"".join(frames))

    async def until(self, wanted: Callable[[Header], bool]) -> Header:
        """The first frame that is wanted."""
        while True:
            self.said += self.transport.take()
            while self.said:
                header = self.said.pop(0)[0]
                if wanted(header):
                    return header
            assert not self.transport.is_over, f"the connection ended behind {self.sent!r}"
            try:
                async with asyncio.timeout(DEADLINE_S):
                    await self.transport.came.wait()
            except TimeoutError:
                raise AssertionError(f"no answer to {self.sent!r}") from None

    async def answer_to(self, command_id: str) -> Header:
        return await self.until(lambda header: header.get("cid") == command_id)


class House:
    """An instance, and those who must not be disturbed."""

    def __init__(self, directory: Path) -> None:
        config = InstanceConfig(
            "solo", "g", topics=(TopicRule("orders"),), first=True,
            log=LogOptions(target="none"), fabric_key=KEY,
        )  # fmt: skip
        self.server = InstanceServer(config, directory)
        self.epoch = 0
        self.number = 0
        self.published = 0
        self.doors: list[Door] = []

    def enter(self, connection: asyncio.Protocol) -> Door:
        transport = Transport(connection)
        connection.connection_made(transport)
        self.doors.append(Door(connection, transport))
        return self.doors[-1]

    async def client(self, name: str) -> Door:
        """One that has logged on, has one subscription of each kind, and has published."""
        door = self.enter(
            ClientConnection(self.server.parts.clients, ClientTransport(TransportConfig("door")))
        )
        door.send(encode_frame({"c": "logon", "v": 1, "client_name": name, "cid": "1"}))
        header = await door.until(lambda header: header.get("cid") == "1")
        assert header["status"] == "success", header
        return door

    async def busy_client(self, name: str) -> Door:
        door = await self.client(name)
        door.send(
            encode_frame({"c": "subscribe", "sub": "live", "t": "orders", "cid": "s"}),
            encode_frame({"c": "subscribe", "sub": "b", "t": "orders", "bm": "0", "cid": "b",
                          "o": {"pause": True}}),
            encode_frame({"c": "p", "t": "orders", "cid": "u", "a": "persisted"}, b"{}"),
        )  # fmt: skip
        await door.until(lambda header: header.get("cid") == "b")
        return door

    def logon(self, **words: Any) -> UpstreamLogon:
        self.epoch += 1
        made: dict[str, Any] = {
            "name": "peer", "group": "g", "incarnation": 0xB, "expect": "g",
            "destination": "solo", "epoch": self.epoch, "digest": b"", "address": "peer:1",
            "description": DESCRIPTION,
        }  # fmt: skip
        return UpstreamLogon(**(made | words))

    async def link(self, **words: Any) -> Door:
        """The link of an instance, let in."""
        logon = self.logon(**words)
        logon.proof = proof_of(KEY, logon)
        door = self.enter(UpstreamConnection(self.server.parts.upstreams))
        door.send(link_logon(logon))
        await door.until(lambda header: header["c"] == "waited" and not header["more"])
        return door

    async def settle(self) -> None:
        """Until nothing that was begun goes on, beside what goes on for ever."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                await asyncio.sleep(0)
                if not self.server.runtime.tasks_running:
                    return
                await asyncio.wait(self.server.runtime._tasks)

    def facts(self) -> tuple[Any, ...]:
        """What a refused frame must leave as it is."""
        machine = self.server.parts.instance.machine
        return (
            machine.next_txid, machine.known.digest(), machine.placements.to_wire(),
            machine.went_back, machine.retired, dict(machine.destinations),
            machine.missing.ranges.count,
        )  # fmt: skip

    async def nobody_is_disturbed(self, good: Door, peer: Door) -> None:
        self.published += 1
        good.send(encode_frame({"c": "pb", "n": 1}, record("good", self.published)))
        await good.until(
            lambda header: header.get("a") == "persisted" and header["s"] == self.published
        )
        self.number += 1
        peer.send(batch(self.number, record("theirs", self.number)))
        await peer.until(lambda header: header["c"] == "ack" and header["n"] == self.number)
        machine = self.server.parts.instance.machine
        machine.check_invariants()
        assert not self.server.runtime.has_ended, "a task failed"
        assert not len(machine.placements) and not machine.went_back and not machine.retired


def record(name: str, sequence: int) -> bytes:
    return RecordBuilder(publisher_id(name), "orders", "json").build(sequence, b"{}", 1)


def block(records: bytes) -> bytes:
    run = run_of(scan(records)[0], records)
    run.path, run.receive_time_us, run.first_txid = (0xB,), 1, 1
    return run.encode()


def batch(number: int, records: bytes) -> bytes:
    body = block(records)
    return batch_front(number, False, False, b"", "", len(body)) + body


def in_house(directory: Path, visit: Callable[[House, Door, Door], Awaitable[None]]) -> None:
    async def run() -> None:
        house = House(directory)
        faults: list[Any] = []
        await house.server.start()
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: faults.append(context))
        good, peer = await house.client("good"), await house.link(name="good-peer", incarnation=0xC)
        try:
            await visit(house, good, peer)
            assert not faults and not house.server.runtime.has_ended, faults
            assert not good.transport.is_over and not peer.transport.is_over
        finally:
            for door in house.doors:
                door.transport.close()
            await house.server.stop()

    asyncio.run(run())


# -- the frames ----------------------------------------------------------------------------------
CLIENT_FRAMES: list[tuple[Header, bytes]] = [
    ({"c": "logon", "v": 1, "client_name": "bad", "low": 1, "cid": "x", "user_id": "u", "pw": "w",
      "o": {"ack_conflation_ms": 1}}, b""),
    ({"c": "p", "t": "orders", "mt": "json", "s": 5, "cid": "x", "a": "processed,persisted", "e": 9,
      "k": "key", "x": b"correlation"}, b"{}"),
    ({"c": "p", "t": "orders", "cid": "x", "a": "persisted"}, b"{}"),
    ({"c": "pb", "n": 1}, record("bad", 7)),
    ({"c": "subscribe", "sub": "n", "t": "orders", "mt": "json", "cid": "x", "a": "processed,stats",
      "o": {"non_regex_topic": True}}, b""),
    ({"c": "subscribe", "sub": "n", "t": "orders", "bm": "0", "cid": "x", "a": "processed",
      "o": {"bookmark_not_found": "now", "have": {7: SequenceSet([(1, 9)]).to_bytes()},
            "persisted_ms": 5, "window": 0, "fully_durable": True, "rate": "2X",
            "rate_max_gap": "1s", "pause": True, "live": False}}, b""),
    ({"c": "subscribe", "sub": "n", "t": "orders", "bm": "0", "cid": "x"},
     msgpack.packb({7: SequenceSet([(1, 9)]).to_bytes()})),
    ({"c": "subscribe", "sub": "b", "cid": "x", "a": "processed", "o": {"resume": True}}, b""),
    ({"c": "subscribe", "sub": ["b"], "cid": "x", "o": {"pause": True}}, b""),
    ({"c": "p", "t": "orders", "cid": "x", "a": "persisted", "cmd": 6}, b"{}"),
    ({"c": "sow", "sub": "n", "t": "orders", "mt": "json", "cid": "x", "a": "processed,completed",
      "o": {"filter": "/a = 1", "select": "[-/,+/a]", "order_by": "/a DESC", "top_n": 5,
            "skip_n": 1, "batch": 5, "keys": [b"k"], "as_of": "20260102T030405Z"}}, b""),
    ({"c": "sow_and_subscribe", "sub": "n", "t": "orders", "cid": "x",
      "o": {"filter": "/a = 1", "select": "[-/,+/a]", "oof": True, "delta": True,
            "no_empties": True, "no_sowkey": True}}, b""),
    ({"c": "unsubscribe", "sub": ["live", "none"], "cid": "x", "a": "processed"}, b""),
    ({"c": "flush", "cid": "x", "a": "processed,completed,persisted"}, b""),
    ({"c": "heartbeat", "cid": "x", "o": {"start_s": 60}}, b""),
    ({"c": "heartbeat"}, b""),
    ({"c": "ping", "cid": "x"}, b""),
]  # fmt: skip
"""What a client says."""
SERVER_FRAMES: list[tuple[Header, bytes]] = [
    ({"c": "ack", "a": "persisted", "s": 5, "status": "success"}, b""),
    ({"c": "safety", "peers": [{"name": "x", "safe": True}]}, b""),
    ({"c": "unheard-of", "cid": "x"}, b""),
]
"""What a client is told, and what nobody says."""
MOVED = to_wire({"elsewhere": InstancePlacement(1, "e:1", "e:2")})
RANGES = {7: SequenceSet([(1, 9)]).to_bytes()}
LINK_FRAMES: list[tuple[Header, bytes]] = [
    ({"c": "logon", "v": 1, "name": "bad", "group": "g", "incarnation": 0xD, "expect": "g",
      "destination": "solo", "epoch": 1, "digest": bytes(64), "conflation": 1, "address": "bad:1",
      "generation": 1, "placements": MOVED, "proof": bytes(16)}, b""),
    ({"c": "logon", "v": 1, "name": "bad", "group": "g", "incarnation": 0xD, "expect": "g",
      "destination": "solo", "epoch": 1, "digest": bytes(64), "announces": True,
      "placements": MOVED}, b""),
    ({"c": "logon", "v": 1, "name": "bad", "group": "g", "incarnation": 0xD, "expect": "g",
      "destination": "solo", "epoch": 1, "digest": bytes(64), "salvages": True}, b""),
    ({"c": "bootstrap", "v": 1, "name": "bad", "group": "g", "incarnation": 0xD},
     msgpack.packb([[["orders", "json"]], [["orders", "json"]]])),
    ({"c": "batch", "n": 1, "m": True, "u": True, "w": 7, "y": [7, 1, 2]},
     msgpack.packb({5: {7: [1, 2]}}) + block(record("replicated", 3))),
    ({"c": "batch", "n": 1, "z": "zlib"}, compressor("zlib")(block(record("replicated", 4)))),
    ({"c": "lacks", "whole": True}, msgpack.packb(RANGES)),
    ({"c": "placed", "placements": MOVED}, b""),
    ({"c": "carry", "n": 1}, b"bytes of a stream"),
    ({"c": "carry_end", "n": 1, "why": "over"}, b""),
    ({"c": "beat"}, b""),
]  # fmt: skip
"""What a link says."""
INSTANCE_FRAMES: list[tuple[Header, bytes]] = [
    ({"c": "accepted", "v": 1, "name": "bad", "group": "g", "incarnation": 0xD, "client": "bad:2",
      "same": False, "generation": 1, "placements": MOVED}, b""),
    ({"c": "held", "more": True}, msgpack.packb(RANGES)),
    ({"c": "waited", "root": 5, "more": False}, msgpack.packb(RANGES)),
    ({"c": "ack", "n": 0, "at": 5}, msgpack.packb([{7: [1, 2]}, {5: {7: [1, 2]}}, {7: [3, 3]}])),
    ({"c": "refused", "reason": "retired", "text": "over", "placements": MOVED}, b""),
    ({"c": "carry_begin", "n": 1}, b""),
]  # fmt: skip
"""What a link is told, beside some of the above."""
OTHERS: list[Any] = [
    None, True, -1, 0, 1.5, (1 << 64) - 1, "", "x", "x" * 9_000, "€" * 200, b"", b"\xff" * 9_000,
    [], [[]] * 9_000, ["x", 1, None], {}, {5: 5}, {"c": {}}, float("nan"),
    [-7, 1, 2], [1 << 63, 5, 4], [["n", 1, "x", "y"]], [["n", 1 << 40, "h:1", "h:2"]],
]  # fmt: skip
"""A value of each type, and too large ones."""
BODIES = [
    b"\xff",
    bytes(40),
    msgpack.packb({-7: SequenceSet([(1, 9)]).to_bytes()}),
    msgpack.packb([1] * 9_000),
    b"\x91" * 2_000,
]


def changed(header: Header, body: bytes) -> Iterator[tuple[Header, bytes]]:
    """A frame as it is, and with each of its values in turn missing and another one."""
    yield header, body
    places = [(header, key) for key in header]
    options = header.get("o")
    if isinstance(options, dict):
        places += [(options, key) for key in options]
    for place, key in places:
        for value in ("missing", filling(header, key), *OTHERS):
            made = {each: at for each, at in place.items() if each != key or value != "missing"}
            if value != "missing":
                made[key] = value
            yield (made if place is header else header | {"o": made}), body
    yield header | {"o": {"have": {1: b"?"}}}, body
    yield header | {"unknown": "word"}, body
    for other in (b"", *BODIES, body[:-1], body + b"\0"):
        yield header, other


def filling(header: Header, key: str) -> str:
    """A text so long that no byte more fits a header."""
    others = {each: at for each, at in header.items() if each != key}
    return "x" * (HEADER_BYTES_MAX - len(msgpack.packb(others | {key: "x" * 60_000})) + 60_000)


def whole(frames: list[tuple[Header, bytes]]) -> list[tuple[Header, bytes, bool]]:
    """All that becomes of the frames; and whether it is one of them as it is."""
    return [
        (*made, not number)
        for header, body in frames
        for number, made in enumerate(changed(header, body))
    ]


def as_they_are(*frames: list[tuple[Header, bytes]]) -> list[tuple[Header, bytes, bool]]:
    return [(header, body, False) for each in frames for header, body in each]


def judge(header: Header, said: list[tuple[Header, bytes]], over: bool) -> bool:
    """Whether it was refused; that it was so as the page says."""
    refused = [
        each for each, _ in said if each["c"] == "refused" or each.get("status") == "failure"
    ]
    for each in refused:
        assert each["reason"] in CATALOGUE, (header, each)
        assert len(each["text"]) > 10, (header, each)
    if over:
        assert refused or any(each["c"] in ("placed", "bootstrap_end") for each, _ in said), header
    return bool(refused)


def answered(header: Header) -> str:
    """The command id under which a command that is done is answered; empty: it is not."""
    acks = set((header.get("a") or "").split(",")) - {"", "none"}
    command, options = header.get("c"), header.get("o") or {}
    if command == "p":
        wants = acks & ({"processed"} if header.get("s") else {"processed", "persisted"})
    elif command == "heartbeat":
        wants = options.get("start_s")
    else:
        wants = command in ("ping", "pb") or not header.get("a") or acks
    return str(header["cid"]) if wants and header.get("cid") not in (None, "") else ""


NOT_HERE = ("logon", "p", "sow")
"""What is refused as it is: another logon, and what only a topic with state can be asked."""
NEW, BUSY, GONE = "before the logon", "logged on", "after its end"


@pytest.mark.parametrize("state", [NEW, BUSY, GONE])
def test_every_frame_at_the_door_of_clients(tmp_path: Path, state: str) -> None:
    async def visit(house: House, good: Door, peer: Door) -> None:
        # Behind the end no value is read.
        cases = as_they_are(CLIENT_FRAMES) if state == GONE else whole(CLIENT_FRAMES)
        cases += as_they_are(SERVER_FRAMES, LINK_FRAMES, INSTANCE_FRAMES)
        door: Door | None = None
        for number, (header, body, is_whole) in enumerate(cases):
            if state == NEW:
                door = house.enter(
                    ClientConnection(
                        house.server.parts.clients, ClientTransport(TransportConfig("door"))
                    )
                )
            elif door is None:
                door = await house.busy_client("bad")
            if state == GONE:
                door.transport.close()
            await house.settle()
            door.said = door.transport.take()
            before = house.facts()
            door.connection.data_received(encode_frame(header, body))
            await house.settle()
            said = door.transport.take()
            refused = judge(header, said, door.transport.is_over and state != GONE)
            if refused or state == GONE:
                assert house.facts() == before, header
            if state == GONE:
                assert not said, header
            elif state == NEW:
                assert refused or (header.get("c") == "logon" and said[0][0]["c"] == "ack"), header
            else:
                assert not (is_whole and refused) or header["c"] in NOT_HERE, said
                if not refused and (cid := answered(header)):
                    door.said = said
                    await door.answer_to(cid)
            # What was refused has changed nothing: the next frame comes over the same connection.
            if state != BUSY or not refused or door.transport.is_over:
                door.transport.close()
                door = None
            if not number % 25:
                await house.nobody_is_disturbed(good, peer)
        await house.nobody_is_disturbed(good, peer)

    in_house(tmp_path / "solo", visit)


ACCEPTED, COPYING, ASKING = "accepted", "copying", "while its logon is looked at"


@pytest.mark.parametrize("state", [NEW, ASKING, COPYING, ACCEPTED, GONE])
def test_every_frame_at_the_door_of_links(tmp_path: Path, state: str) -> None:
    """Of a link of no fabric that proves itself: what it says must end nothing."""

    async def visit(house: House, good: Door, peer: Door) -> None:
        changes = state in (NEW, ACCEPTED)
        cases = whole(LINK_FRAMES) if changes else as_they_are(LINK_FRAMES)
        cases += as_they_are(INSTANCE_FRAMES, CLIENT_FRAMES, SERVER_FRAMES)
        for number, (header, body, is_whole) in enumerate(cases):
            door = house.enter(UpstreamConnection(house.server.parts.upstreams))
            if state in (ACCEPTED, GONE):
                door.send(link_logon(house.logon()))
                await door.until(lambda each: each["c"] == "waited" and not each["more"])
            if state == GONE:
                door.transport.close()
            await house.settle()
            door.transport.take()
            before = house.facts()
            if state == ASKING:
                door.send(link_logon(house.logon(incarnation=0xE)))
            elif state == COPYING:
                door.send(encode_frame(*LINK_FRAMES[3]))
            door.connection.data_received(encode_frame(header, body))
            await house.settle()
            said = door.transport.take()
            refused = judge(header, said, door.transport.is_over and state != GONE)
            if refused or state == GONE:
                assert house.facts() == before, header
            if state in (ASKING, COPYING):
                assert refused, header
            elif state == NEW and not refused:
                assert header.get("c") in ("logon", "bootstrap"), header
            elif state == ACCEPTED:
                assert refused == door.transport.is_over, header
                assert not (is_whole and refused) or header["c"] in ("logon", "bootstrap"), said
            door.transport.close()
            if not number % 25:
                await house.nobody_is_disturbed(good, peer)
        await house.nobody_is_disturbed(good, peer)

    in_house(tmp_path / "solo", visit)


def test_who_is_let_in_at_the_door_of_links_is_known_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queues need the names of incarnations: an instance that joins when the records that said them
    are removed has them from here."""

    async def visit(house: House, good: Door, peer: Door) -> None:
        upstreams = house.server.parts.upstreams
        assert upstreams.queues is house.server.parts.queues
        met: list[Mapping[int, str]] = []
        monkeypatch.setattr(upstreams.queues, "named", met.append)
        await house.link(name="new", incarnation=0xE)
        refused = house.enter(UpstreamConnection(upstreams))
        refused.send(link_logon(house.logon(name="worse", incarnation=0xD, expect="other")))
        await house.settle()
        assert refused.transport.is_over
        assert met == [{0xE: "new"}]

    in_house(tmp_path / "solo", visit)


def dialled() -> tuple[LinkServer, Door, list[Header]]:
    """A link that has dialled its destination, and what it tells its own instance."""
    to = DestinationConfig("solo", "g", True, ("127.0.0.1:1",))
    link = LinkServer(LinkConfig("own", "g", 0xA, 1, "", "", None, to))
    runtime = link.runtime
    runtime.loop = asyncio.get_running_loop()
    runtime.outbox = WriteQueue(runtime.loop)
    told: list[Header] = []

    def tell(data: bytes) -> None:
        for header, body in FrameReader().feed(data):
            told.append(header)
            if header["c"] in ("held", "waited"):
                # The instance takes it as it is.
                read_part(body, PublisherRanges())
                assert 0 <= header["root"] < 1 << 64

    instance: Any = SimpleNamespace(send=tell)
    runtime.instance = instance
    link.pump.reader = SimpleNamespace(first_txid=1)  # type: ignore[assignment]
    downstream = Downstream(runtime, link.dialling, link.pump, carried=False)
    transport = Transport(downstream)
    downstream.connection_made(transport)
    link.pump.downstream = downstream
    link.dialling._start_answer = runtime.loop.create_future()
    link.pump.pump = lambda: None  # type: ignore[method-assign]
    return link, Door(downstream, transport), told


DIALLED, ACCEPTING, ANSWERED, STARTED = "dialled", "accepted", "answered", "started"


@pytest.mark.parametrize("state", [DIALLED, ACCEPTING, ANSWERED, STARTED])
def test_every_frame_at_the_door_of_a_link(state: str) -> None:
    """What a destination sends ends its connection and no more, with a reason that is told; and
    nothing is told the instance but what was sound."""

    async def run() -> None:
        sent = [*INSTANCE_FRAMES, *LINK_FRAMES[-4:]]
        cases = whole(sent) + as_they_are(LINK_FRAMES, CLIENT_FRAMES, SERVER_FRAMES)
        for header, body, is_whole in cases:
            link, door, told = dialled()
            link.dialling.bring = lambda stream: None  # type: ignore[method-assign]
            if state != DIALLED:
                for part in exchange_frames(
                    LinkAccepted("there", "g", 0xD, "there:2", False),
                    PublisherRanges(),
                    RootedRanges(),
                ):
                    door.send(part)
                    if state == ACCEPTING:
                        break
                assert link.pump.downstream is not None
                assert link.pump.downstream.answer.done() == (state != ACCEPTING)
            if state == STARTED:
                nothing = RootedRanges(), RootedRanges()
                start = LinkStart(True, *nothing, 0xA, 0, PublisherRanges(), False)
                frames = FrameReader().feed(b"".join(control.start_frames(start, None)))
                for frame in frames:
                    link.instance_said(*frame)
                assert link.pump.is_started
            told.clear()
            door.connection.data_received(encode_frame(header, body))
            why = door.connection.why
            if door.transport.is_over:
                # Of a refusal its own words are told; of anything else, nothing.
                is_refusal = header.get("c") == "refused"
                assert why and (is_refusal or len(why) > 10), header
                assert is_refusal or not told, (header, told)
            for each in told:
                known = ("placed", "answered", "progress", "event", "stale", "held", "waited")
                assert each["c"] in known, each
                # Behind the answer no part of it is told any more.
                assert state in (DIALLED, ACCEPTING) or each["c"] not in ("held", "waited"), each
            if is_whole and state == STARTED and header["c"] not in ("accepted", "refused"):
                assert not door.transport.is_over, (header, why)
            if header.get("c") in ("logon", "p", "subscribe", "safety", "unheard-of"):
                assert door.transport.is_over, header
            door.transport.close()

    asyncio.run(run())


def test_a_link_believes_of_placements_only_those_it_dialled() -> None:
    """Over a connection that the other side made, that side may be anybody."""

    async def run() -> None:
        for carried in (False, True):
            _, door, told = dialled()
            door.connection.is_carried = carried
            door.send(encode_frame({"c": "placed", "placements": MOVED}))
            door.send(encode_frame({"c": "refused", "reason": "x", "placements": MOVED}))
            assert [each["c"] for each in told].count("placed") == (0 if carried else 2)
            door.transport.close()
        for proven in (False, True):
            _, door, told = dialled()
            door.connection._is_proven = proven
            door.send(encode_frame({"c": "refused", "reason": "stale_epoch", "text": "old"}))
            assert ({"c": "stale"} in told) == proven

    asyncio.run(run())


# -- each decoder, with whatever comes -------------------------------------------------------------
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-(1 << 63), (1 << 64) - 1), st.floats(), st.text(),
    st.binary(), st.sampled_from(["persisted", "0", "1|2|", "json", "zlib", "h:1", "orders"]),
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.dictionaries(st.one_of(st.integers(-9, 1 << 63), st.text()), inner, max_size=4),
    ),
    max_leaves=12,
)
SOURCE_FRAMES: list[tuple[Header, bytes]] = [
    (
        {
            "c": "bootstrap_begin", "name": "bad", "group": "g", "incarnation": 0xD,
            "first": 1, "last": 9,
        },
        b"",
    ),
    ({"c": "bootstrap_lacks"}, msgpack.packb(RANGES)),
    ({"c": "bootstrap_runs", "tx": 9}, block(record("copied", 1))),
]  # fmt: skip
"""What an instance is told that copies another one's log."""
FRAMES = [*CLIENT_FRAMES, *LINK_FRAMES, *INSTANCE_FRAMES, *SOURCE_FRAMES]
BYTES = st.one_of(
    st.binary(),
    VALUES.map(msgpack.packb),
    # A right one with a few bytes wrong.
    st.tuples(
        st.sampled_from([body for _, body in FRAMES if body]), st.integers(0), st.binary(max_size=3)
    ).map(lambda made: _overwritten(*made)),
)


def _overwritten(data: bytes, at: int, other: bytes) -> bytes:
    at %= len(data)
    return data[:at] + other + data[at + len(other) :]


@st.composite
def frames(draw: st.DrawFn) -> tuple[Header, bytes]:
    """A frame of the protocol, some of its values others."""
    header, body = draw(st.sampled_from(FRAMES))
    header = dict(header)
    keys = sorted(header.keys() - {"c"})
    if keys and draw(st.booleans()):
        header[draw(st.sampled_from(keys))] = draw(VALUES)
    return header, draw(BYTES) if draw(st.booleans()) else body


def check_ranges(ranges: dict[int, list[tuple[int, int]]]) -> None:
    for publisher, pairs in ranges.items():
        assert 0 <= publisher < 1 << 64 and pairs
        assert all(0 <= first <= last < 1 << 64 for first, last in pairs)


def check_batch(header: Header, body: bytes) -> None:
    made = read_batch(header, body)
    assert 0 <= made.number < 1 << 64
    for ranges in (made.yours, *made.awaited.values()):
        check_ranges(ranges)


def check_ack(header: Header, body: bytes) -> None:
    number, held, persisted, conflicts = read_ack(header, body)
    assert 0 <= number < 1 << 64 and all(0 <= root < 1 << 64 for root in persisted)
    for ranges in (held, conflicts, *persisted.values()):
        check_ranges(ranges)


def check_sets(sets: PublisherRanges) -> None:
    assert all(0 <= publisher < 1 << 64 for publisher in sets.sets)
    assert PublisherRanges.from_wire(sets.to_wire()) == sets
    sets.digest()


def check_placed(header: Header, _: bytes) -> None:
    for name, placement in read_placed(header).items():
        assert name
        for address in placement[1:3]:
            assert not address or split_address(str(address))


def check_logon(header: Header, body: bytes) -> None:
    made = read_link_logon(header, body)
    assert len(f"epoch/{made.incarnation:016x}/{made.destination}".encode()) <= KEY_BYTES_MAX
    assert made.incarnation < 1 << 64 and made.epoch.to_bytes(8, "big") and made.name
    assert not made.address or split_address(made.address)
    check_placed(header, body)
    assert not is_proven(KEY, made)
    (frame,) = FrameReader().feed(link_logon(made))
    assert read_link_logon(frame.header, frame.body) == made


def check_accepted(header: Header, _: bytes) -> None:
    made = read_accepted(header)
    assert made.incarnation.to_bytes(8, "big") and made.name
    assert not made.client or split_address(made.client)


def check_copy(header: Header, body: bytes) -> None:
    identity, choice = bootstrap.read_request(header), bootstrap.read_choice(body)
    assert identity.incarnation.to_bytes(8, "big") and identity.name
    choice.is_whole(())


def check_description(_: Header, body: bytes) -> None:
    unpack_description("bad", "g", DestinationTerms("solo", "g", ()), body)


def check_parts(_: Header, body: bytes) -> None:
    found = PublisherRanges()
    PartReader().read(body, found)
    check_sets(found)


def check_runs(_: Header, body: bytes) -> None:
    for run in decode_runs(body):
        assert run.encode()


DECODERS: list[Callable[[Header, bytes], Any]] = [
    check_batch, check_ack, check_placed, check_logon, check_accepted, check_copy,
    check_description, check_runs,
    lambda header, body: check_sets(read_lacks(header, body)[0]),
    check_parts,
    lambda header, _: bootstrap.read_begin(header),
    lambda header, _: bootstrap.read_runs(header),
    bootstrap.read_sow,
    lambda header, _: root_of(header).to_bytes(8, "big"),
    lambda header, _: sent_at_ns(header).to_bytes(8, "big"),
    lambda header, _: stream_of(header),
    lambda _, body: Decompressor(1 << 20).decompress("zlib", body),
    lambda _, body: Decompressor(1 << 20).decompress("zstd", body),
    lambda _, body: scan(body),
]  # fmt: skip


def check_decoders(header: Header, body: bytes) -> None:
    for decode in DECODERS:
        try:
            decode(header, body)
        except (RemoteProtocolError, CorruptRecord) as error:
            assert str(error)


def test_each_decoder_with_each_changed_frame() -> None:
    every = LINK_FRAMES + INSTANCE_FRAMES + SOURCE_FRAMES
    for header, body, _ in whole(every):
        if type(header.get("c")) is str:
            check_decoders(header, body)


@settings(max_examples=400, deadline=None)
@given(frames())
def test_a_decoder_gives_what_is_sound_or_says_what_is_not(frame: tuple[Header, bytes]) -> None:
    check_decoders(*frame)


@settings(max_examples=300, deadline=None)
@given(st.lists(frames(), max_size=4), st.booleans(), st.integers(1, 50))
def test_a_session_gives_commands_or_ends(
    sent: list[tuple[Header, bytes]], known: bool, cut: int
) -> None:
    session = ServerSession()
    if known:
        session.logged_on()
    data = b"".join(encode_frame(*frame) for frame in sent)
    try:
        for at in range(0, len(data), cut):
            for command in session.receive(data[at : at + cut]):
                assert len(getattr(command, "command_id", "").encode()) <= COMMAND_ID_BYTES_MAX
    except RemoteProtocolError as error:
        assert error.reason in CATALOGUE and str(error)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_random_bytes_are_frames_or_an_error(data: bytes) -> None:
    for limit in (100, 1 << 20):
        try:
            FrameReader(frame_bytes_max=limit).feed(data)
        except RemoteProtocolError as error:
            assert error.reason in ("bad_frame", "frame_too_large")
    try:
        made = SequenceSet.from_bytes(data)
    except RemoteProtocolError:
        return
    assert SequenceSet.from_bytes(made.to_bytes()) == made


def test_what_a_subscriber_has_costs_no_more_than_its_bytes() -> None:
    """Stretches in descending order cost the square of their number: 200,000 took minutes."""
    count = 200_000
    stretches = b"".join(struct.pack("<QQ", 2 * at, 2 * at + 1) for at in reversed(range(count)))
    with pytest.raises(RemoteProtocolError, match="stretch"):
        SequenceSet.from_bytes(struct.pack("<II", count, 0) + stretches)
    chunks = b"".join(struct.pack("<QHHH", at, 1, 4095, 4095) for at in range(count))
    with pytest.raises(RemoteProtocolError, match=f"{count} stretches .* at most"):
        wire = {7: struct.pack("<II", 0, count) + chunks}
        PublisherRanges.from_wire(wire, chunks_max=HAVE_CHUNKS_MAX)
