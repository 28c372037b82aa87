"""A client's session in another writing than the native one: the instance does not notice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from unit.test_doors import DEADLINE_S, Door, House, in_house

from raylay.services.config.transport import TransportConfig
from raylay.services.messages.records import iterate_records
from raylay.services.protocol.client.answers import DeliveryProtocol
from raylay.services.protocol.client.codec import NativeCodec
from raylay.services.protocol.client.commands import Command, Flush, Logon, Ping, Publish, Subscribe
from raylay.services.protocol.frames import encode_frame
from raylay.services.server.clients.connection import ClientConnection
from raylay.services.server.clients.transport import ClientTransport
from raylay.services.subscriptions.delivery import DeliveryContent

pytestmark = pytest.mark.covers(
    "Replication", "a session is served in any writing that a codec has"
)

DOOR = ClientTransport(TransportConfig("door"))
ACKS = frozenset(("processed", "persisted"))


class LineCodec:
    """Commands and answers as lines of words."""

    heartbeat = b"HEARTBEAT\n"

    def __init__(self, holds: Callable[[int], None]) -> None:
        self._rest = b""
        self.is_closed = False

    def receive(self, data: bytes) -> list[Command]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [self._command(line.decode()) for line in lines]

    def _command(self, line: str) -> Command:
        word, *words = line.split(" ")
        if word == "LOGON":
            return Logon(words[0], 0, "1", "", "", 0)
        if word == "PUBLISH":
            return Publish(words[0], "json", words[1].encode(), 0, "u", ACKS, 0, b"", b"")
        if word == "SUBSCRIBE":
            return Subscribe(words[0], words[1], "", "", "s", ACKS, "", None, 0, False, False)
        return Flush("f", ACKS) if word == "FLUSH" else Ping("p")

    def logged_on(self) -> None: ...

    def closed(self) -> None:
        self.is_closed = True

    def acknowledgment(
        self,
        kind: str,
        command_id: str = "",
        reason: str = "",
        text: str = "",
        body: bytes = b"",
        **extras: Any,
    ) -> bytes:
        return f"{kind.upper()} {command_id} {reason or 'well'}\n".encode()

    def logon_answer(self, command_id: str, *, instance: str, **words: Any) -> bytes:
        return f"WELCOME {command_id} {instance}\n".encode()

    def persisted_ack(
        self, sequence: int, reason: str = "", text: str = "", unjournaled: int = 0
    ) -> bytes:
        return f"SAFE {sequence}\n".encode()

    def ranges_ack(self, kind: str, subscription: str, have: Any, command_id: str = "") -> bytes:
        return f"HAVE {subscription}\n".encode()

    def safety_notice(self, peers: list[dict[str, Any]]) -> bytes:
        return b"PEERS\n"

    def delivery(
        self, subscription: str, delivery: DeliveryProtocol
    ) -> tuple[Sequence[bytes], int]:
        bodies = (each.body for body in delivery.bodies for each in iterate_records(body))
        lines = [f"{subscription}: {body.decode()}\n".encode() for body in bodies]
        return lines, sum(map(len, lines))


async def said(door: Door, *wanted: str, times: int = 1) -> list[str]:
    """Returns the lines that a door has said once each of these texts was in them."""
    async with asyncio.timeout(DEADLINE_S):
        while any(door.transport.written.decode().count(each) < times for each in wanted):
            await asyncio.sleep(0)
    written, door.transport.written = door.transport.written.decode(), bytearray()
    return written.splitlines()


def test_a_session_of_another_protocol_is_served_like_any_other(tmp_path: Path) -> None:
    async def visit(house: House, good: Door, peer: Door) -> None:
        line = house.enter(ClientConnection(house.server.parts.clients, DOOR, LineCodec))
        line.send(b"LOGON lines\nSUBSCRIBE mine orders\nPING\nPUBL")
        assert await said(line, "PROCESSED p") == [
            "WELCOME 1 solo", "PROCESSED s well", "PROCESSED p well"
        ]  # fmt: skip
        line.send(b"ISH orders hello\nFLUSH\n")
        # On a busy machine the second command has a turn of its own, behind the delivery.
        lines = await said(line, "mine: hello\n", "PERSISTED u well\n", "PERSISTED f well\n")
        assert lines[0] == "PROCESSED u well"
        assert lines.index("PERSISTED u well") < lines.index("mine: hello")
        await house.nobody_is_disturbed(good, peer)
        assert await said(line, "mine: {}", times=2) == ["mine: {}", "mine: {}"]
        house.server.parts.clients.safety_changed()
        assert await said(line, "PEERS") == ["PEERS"]
        await good.until(lambda header: header["c"] == "safety")
        assert len({type(each.codec) for each in house.server.parts.clients.sessions.values()}) == 2
        line.transport.close()
        assert line.connection.codec.is_closed

    in_house(tmp_path / "solo", visit)


class Kept:
    """A sink that keeps what it is given."""

    def __init__(self) -> None:
        self.kept: list[tuple[str, DeliveryContent]] = []

    def deliver(self, subscription: str, delivery: DeliveryContent) -> None:
        self.kept.append((subscription, delivery))


def test_deliveries_go_to_the_sink_that_a_session_has(tmp_path: Path) -> None:
    """Of live subscriptions and of replays, in their order, and back to the socket."""

    async def visit(house: House, good: Door, peer: Door) -> None:
        door = await house.client("slow")
        door.send(
            encode_frame({"c": "subscribe", "sub": "live", "t": "orders", "cid": "s"}),
            encode_frame({"c": "subscribe", "sub": "b", "t": "orders", "bm": "0", "cid": "b"}),
        )
        await door.answer_to("b")
        connection, sink = door.connection, Kept()
        connection.sink, direct = sink, connection.sink
        await house.nobody_is_disturbed(good, peer)
        async with asyncio.timeout(DEADLINE_S):
            while sum(delivery.count for _, delivery in sink.kept) < 4:
                await asyncio.sleep(0)
        for name in ("live", "b"):
            txids = [delivery.first_txid for of, delivery in sink.kept if of == name]
            assert txids == sorted(txids) and txids
        assert not any(header["c"] == "p" for header, _ in door.transport.take())
        connection.sink = direct
        for name, delivery in sink.kept:
            direct.deliver(name, delivery)
        await door.until(lambda header: header["c"] == "p")

    in_house(tmp_path / "solo", visit)


def test_asking_the_native_codec_for_an_answer_costs_no_call() -> None:
    """Its tables hold the functions themselves."""
    codec = NativeCodec()
    plain: list[Callable[..., Any]] = [codec.persisted_ack, codec.acknowledgment, codec.delivery]
    assert all(not hasattr(each, "__self__") for each in plain)
