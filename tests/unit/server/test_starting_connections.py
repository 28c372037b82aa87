"""services/server/starting_connections.py: whoever comes before the instance has recovered is told
what it waits for, and is served once it has."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from unit.server.links.test_security import Peer
from unit.server.test_access import events

from raylay.services.config.bootstrap import BootstrapConfig
from raylay.services.config.instance import InstanceConfig, split_address
from raylay.services.errors import FabricError
from raylay.services.messages.topics import TopicRule
from raylay.services.protocol.frames import FrameReader, Header, encode_frame
from raylay.services.protocol.link.bootstrap import request
from raylay.services.protocol.link.replication import UpstreamLogon, link_logon
from raylay.services.replication.values import Identity
from raylay.services.server import starting_connections
from raylay.services.server.data.recovery import InstanceRecovery
from raylay.services.server.instance_server import InstanceServer

DEADLINE_S = 60.0
CONFIG = InstanceConfig("A", "g", first=True)
LOGON = encode_frame({"c": "logon", "v": 1, "client_name": "desk", "cid": "l"})
LINK = link_logon(UpstreamLogon("B", "g", 77, "g", "A", 1, b"", description=b"", address=""))
COPY = request(Identity("B", "g", 77), (TopicRule(".*"),), ())


class Client:
    """A client that speaks by hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer

    @classmethod
    async def at(cls, server: InstanceServer) -> Client:
        address = split_address(server.runtime.client_address)
        return cls(*await asyncio.open_connection(*address))

    async def answer(self, frame: bytes) -> Header:
        """The answer to the first frame; the connection then ends, or goes on."""
        self.writer.write(frame)
        frames = FrameReader()
        while data := await self._reader.read(1 << 16):
            for found in frames.feed(data):
                return found.header
        raise AssertionError("no answer")


def starting(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    visit: Callable[[InstanceServer, Callable[[], Awaitable[None]]], Awaitable[None]],
) -> None:
    """Visits an instance that recovers until `recovered` is called."""
    begun, may_end = threading.Event(), threading.Event()
    recover = InstanceRecovery.recover

    def held(self: InstanceRecovery, *arguments: Any) -> Any:
        begun.set()
        may_end.wait()
        return recover(self, *arguments)

    monkeypatch.setattr(InstanceRecovery, "recover", held)

    async def run() -> None:
        server = InstanceServer(CONFIG, tmp_path)
        task = asyncio.ensure_future(server.start())
        try:
            async with asyncio.timeout(DEADLINE_S):

                async def recovered() -> None:
                    may_end.set()
                    await task

                await asyncio.to_thread(begun.wait)
                await visit(server, recovered)
                await recovered()
        finally:
            may_end.set()
            await server.stop()

    asyncio.run(run())


def test_who_comes_before_it_has_recovered_is_told_what_it_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def visit(server: InstanceServer, recovered: Callable[[], Awaitable[None]]) -> None:
        assert server.status()["state"] == "recovering" and len(server.status()["transports"]) == 2
        with pytest.raises(FabricError, match="A does not serve: it is recovering; try again"):
            assert server.parts
        client, link, copy = await Client.at(server), await Peer.at(server), await Peer.at(server)
        answer = await client.answer(LOGON)
        assert (answer["cid"], answer["reason"]) == ("l", "not_ready")
        assert answer["text"] == "A is recovering"
        link.writer.write(LINK)
        copy.writer.write(COPY)
        for peer in (link, copy):
            (refused,) = await peer.said()
            assert (refused["reason"], refused["text"]) == ("not_ready", "A is recovering")
        assert [each["peer"] for each in events(server, "bootstrap_refused")] == ["B"]
        waiting = await Client.at(server)
        await recovered()
        # The connection was accepted before: it comes again, and is served.
        answer = await waiting.answer(LOGON)
        assert answer["reason"] == "not_ready"
        assert "was starting when this connection came: connect again" in answer["text"]
        again = await Client.at(server)
        assert (await again.answer(LOGON))["status"] == "success"
        assert server.status()["state"] == "ready"

    starting(tmp_path, monkeypatch, visit)


@pytest.mark.parametrize("at", ["client", "replication"])
def test_what_is_no_frame_ends_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    async def visit(server: InstanceServer, _: Callable[[], Awaitable[None]]) -> None:
        if at == "client":
            answer = await (await Client.at(server)).answer(b"\xff" * 64)
        else:
            peer = await Peer.at(server)
            peer.writer.write(b"\xff" * 64)
            (answer,) = await peer.said()
        assert answer["reason"] and answer["reason"] != "not_ready"
        assert server.runtime.fault is None

    starting(tmp_path, monkeypatch, visit)


@pytest.mark.parametrize("at", ["client", "replication"])
def test_a_fault_in_it_ends_only_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    def fails(_: Any) -> Any:
        raise ValueError("a mistake of ours")

    async def visit(server: InstanceServer, _: Callable[[], Awaitable[None]]) -> None:
        monkeypatch.setattr(starting_connections, "unserved", fails)
        monkeypatch.setattr(
            starting_connections.NativeCodec, "receive", lambda self, data: fails(0)
        )
        if at == "client":
            assert (await (await Client.at(server)).answer(LOGON))["reason"] == "internal_error"
        else:
            peer = await Peer.at(server)
            peer.writer.write(LINK)
            assert [each["reason"] for each in await peer.said()] == ["internal_error"]
        monkeypatch.undo()
        assert server.runtime.faults_contained == 1 and not server.runtime.has_ended

    starting(tmp_path, monkeypatch, visit)


@asynccontextmanager
async def bootstrapping(tmp_path: Path) -> AsyncIterator[InstanceServer]:
    config = replace(CONFIG, bootstrap=BootstrapConfig(("127.0.0.1:1",)))
    server = InstanceServer(config, tmp_path)
    task = asyncio.ensure_future(server.start())
    try:
        async with asyncio.timeout(DEADLINE_S):
            while not events(server, "bootstrap_started"):
                await asyncio.sleep(0)
            yield server
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


def test_who_would_copy_from_who_copies_itself_is_told(tmp_path: Path) -> None:
    async def run() -> None:
        async with bootstrapping(tmp_path) as server:
            peer, client = await Peer.at(server), await Client.at(server)
            peer.writer.write(COPY)
            (refused,) = await peer.said()
            assert refused["reason"] == "bootstrapping"
            assert refused["text"].startswith(
                "A is itself empty and waits to copy from 127.0.0.1:1: where that is B, both wait"
            )
            assert (await client.answer(LOGON))["reason"] == "not_ready"
            assert server.status()["bootstrap"]["done"] is False

    asyncio.run(run())
