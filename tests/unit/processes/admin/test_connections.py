"""services/processes/admin/connections.py: how many connections there may be, and how silent."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest
import uvloop

from raylay.services.processes.admin.connections import BoundedConnections

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


def visit(
    act: Callable[[BoundedConnections, Callable[[], Awaitable[Streams]]], Awaitable[None]],
    connections_max: int = 8,
    silence_s: float = 60.0,
) -> None:
    async def run() -> None:
        bounded = BoundedConnections(Echo, connections_max, silence_s)
        server = await asyncio.get_running_loop().create_server(bounded, "127.0.0.1")
        host, port = server.sockets[0].getsockname()
        writers = []

        async def connect() -> Streams:
            streams = await asyncio.open_connection(host, port)
            writers.append(streams[1])
            return streams

        try:
            await act(bounded, connect)
        finally:
            for writer in writers:
                writer.close()
            server.close()
            bounded.close()

    asyncio.run(asyncio.wait_for(run(), 30))


async def echoed(streams: Streams, data: bytes = b"x") -> bytes:
    streams[1].write(data)
    return await streams[0].read(len(data))


def test_the_longest_silent_gives_way() -> None:
    async def act(bounded: BoundedConnections, connect: Callable[[], Awaitable[Streams]]) -> None:
        first, second = await connect(), await connect()
        for each in (first, second, first):
            assert await echoed(each) == b"x"
        third = await connect()
        assert await echoed(third) == b"x"
        with suppress(ConnectionResetError):
            assert await second[0].read(1) == b""
        assert await echoed(first) == b"x"
        assert len(bounded) == 2

    visit(act, connections_max=2)


@pytest.mark.covers("Administration", "actions by GET are off by default; requests of other")
def test_a_silent_connection_ends_and_one_that_talks_stays() -> None:
    async def act(bounded: BoundedConnections, connect: Callable[[], Awaitable[Streams]]) -> None:
        silent, talking = await connect(), await connect()
        assert await echoed(silent) == b"x"
        ended = asyncio.ensure_future(silent[0].read(1))
        while not ended.done():
            assert await echoed(talking) == b"x"
        assert len(bounded) == 1

    visit(act, silence_s=0.2)


def test_one_that_left_is_not_counted() -> None:
    async def act(bounded: BoundedConnections, connect: Callable[[], Awaitable[Streams]]) -> None:
        streams = await connect()
        assert await echoed(streams) == b"x"
        streams[1].close()
        await streams[1].wait_closed()
        while len(bounded):
            await asyncio.sleep(0)

    visit(act)


def test_the_slowest_reader_gives_way_when_too_much_waits_for_all() -> None:
    """Readers that take nothing cost memory for each byte that waits; one alone is never ended."""

    async def run() -> None:
        made: list[Flood] = []

        def flood() -> Flood:
            made.append(Flood())
            return made[-1]

        bounded = BoundedConnections(flood, 8, 60.0, unsent_bytes_max=FLOOD_BYTES * 3 // 2)
        server = await asyncio.get_running_loop().create_server(bounded, "127.0.0.1")
        address = server.sockets[0].getsockname()
        first = await asyncio.open_connection(*address, limit=1024)
        await made_is(made, 1)
        assert not made[0].ended.is_set(), "one alone may have as much as it asked for"
        second = await asyncio.open_connection(*address, limit=1024)
        await made[0].ended.wait()
        assert not made[1].ended.is_set() and len(bounded) == 1
        for _, writer in (first, second):
            writer.transport.abort()
        server.close()
        bounded.close()

    asyncio.run(asyncio.wait_for(run(), 30))


FLOOD_BYTES = 64 * 1024 * 1024


class Flood(asyncio.Protocol):
    """Answers with more than the kernel takes."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(bytes(FLOOD_BYTES))

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set()


async def made_is(made: list[Flood], count: int) -> None:
    while len(made) < count:
        await asyncio.sleep(0)


def test_the_loop_of_the_process_ends_connections_too() -> None:
    """The process runs on uvloop, whose transports are of no class of asyncio."""

    async def run() -> None:
        made: list[Silent] = []

        def silent() -> Silent:
            made.append(Silent())
            return made[-1]

        bounded = BoundedConnections(silent, 1, 60.0)
        server = await asyncio.get_running_loop().create_server(bounded, "127.0.0.1")
        address = server.sockets[0].getsockname()
        _, first = await asyncio.open_connection(*address)
        while not made:
            await asyncio.sleep(0)
        _, second = await asyncio.open_connection(*address)
        await made[0].ended.wait()
        for writer in (first, second):
            writer.close()
        server.close()
        bounded.close()

    uvloop.run(asyncio.wait_for(run(), 30))


class Silent(asyncio.Protocol):
    def __init__(self) -> None:
        self.ended = asyncio.Event()

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set()
