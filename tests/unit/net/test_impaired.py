"""services/net/impaired.py on real sockets: what a line does to what passes over it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from raylay.services.net.impaired import OPEN, ImpairedLine, Impairment

pytestmark = pytest.mark.covers("Drills", "what a line does to what passes")

WAIT_S = 30.0
DROPPED = Impairment("dropped")


class End(asyncio.Protocol):
    """Either end of a connection: what it got, and whether it ended."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.got = b""
        self.ended = False
        self.changed = asyncio.Event()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.got += data
        self.changed.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended = True
        self.changed.set()

    def write(self, data: bytes) -> None:
        assert self.transport is not None
        self.transport.write(data)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not condition():
                self.changed.clear()
                await self.changed.wait()


@asynccontextmanager
async def pair(line: ImpairedLine) -> AsyncIterator[tuple[End, End]]:
    """(the link's end over the line, the destination's)."""
    loop = asyncio.get_running_loop()
    accepted: asyncio.Queue[End] = asyncio.Queue()

    def accept() -> End:
        end = End()
        accepted.put_nowait(end)
        return end

    server = await loop.create_server(accept, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    try:
        _, ours = await line.open(End, lambda make: loop.create_connection(make, host, port))
        theirs = await asyncio.wait_for(accepted.get(), WAIT_S)
        yield ours, theirs
    finally:
        server.close()
        line.set(OPEN, 0.0)
        for end in (ours, theirs):
            if end.transport is not None:
                end.transport.abort()


def run(work: Callable[[ImpairedLine, End, End], Any]) -> None:
    async def main() -> None:
        line = ImpairedLine(asyncio.get_running_loop())
        async with pair(line) as (ours, theirs):
            await work(line, ours, theirs)

    asyncio.run(main())


def test_an_open_line_hands_on_at_once_and_in_order() -> None:
    async def work(line: ImpairedLine, ours: End, theirs: End) -> None:
        ours.write(b"one ")
        assert ours.transport is not None
        ours.transport.writelines([b"two ", b"three"])
        await theirs.until(lambda: theirs.got == b"one two three")
        theirs.write(b"ack")
        await ours.until(lambda: ours.got == b"ack")
        ours.transport.close()
        await theirs.until(lambda: theirs.ended)
        await ours.until(lambda: ours.ended)

    run(work)


def test_what_is_dropped_arrives_when_it_heals() -> None:
    async def work(line: ImpairedLine, ours: End, theirs: End) -> None:
        line.set(DROPPED, 60.0)
        ours.write(b"a")
        theirs.write(b"b")
        ours.write(b"c")
        assert ours.transport is not None and ours.transport.get_write_buffer_size() == 2
        await asyncio.sleep(0.05)  # time enough for what must not happen
        assert not theirs.got and not ours.got
        line.set(OPEN, 0.0)
        await theirs.until(lambda: theirs.got == b"ac")
        await ours.until(lambda: ours.got == b"b")

    run(work)


def test_one_direction_may_be_dropped_alone() -> None:
    async def work(line: ImpairedLine, ours: End, theirs: End) -> None:
        line.set(Impairment("dropped", out=True, back=False), 60.0)
        ours.write(b"lost")
        theirs.write(b"heard")
        await ours.until(lambda: ours.got == b"heard")
        assert not theirs.got

    run(work)


def test_an_end_is_not_heard_of_over_a_dropped_line() -> None:
    async def work(line: ImpairedLine, ours: End, theirs: End) -> None:
        line.set(DROPPED, 60.0)
        assert ours.transport is not None
        ours.transport.abort()
        await ours.until(lambda: ours.ended)
        await asyncio.sleep(0.05)
        assert not theirs.ended
        line.set(OPEN, 0.0)
        await theirs.until(lambda: theirs.ended)

    run(work)


def test_the_other_side_s_end_is_heard_of_when_it_heals() -> None:
    async def work(line: ImpairedLine, ours: End, theirs: End) -> None:
        line.set(DROPPED, 60.0)
        assert theirs.transport is not None
        theirs.write(b"last words")
        theirs.transport.close()
        await theirs.until(lambda: theirs.ended)
        await asyncio.sleep(0.05)
        assert not ours.ended and not ours.got
        line.set(OPEN, 0.0)
        await ours.until(lambda: ours.ended)
        assert ours.got == b"last words"

    run(work)


def test_a_cut_resets_and_refuses() -> None:
    async def work(line: ImpairedLine, ours: End, theirs: End) -> None:
        line.set(Impairment("cut"), 60.0)
        await ours.until(lambda: ours.ended)
        await theirs.until(lambda: theirs.ended)
        loop = asyncio.get_running_loop()
        with pytest.raises(ConnectionRefusedError, match="drill"):
            await line.open(End, lambda make: loop.create_connection(make, "127.0.0.1", 9))

    run(work)


def test_a_dial_over_a_dropped_line_hangs_until_it_heals() -> None:
    async def work(line: ImpairedLine, ours: End, theirs: End) -> None:
        assert theirs.transport is not None
        host, port = theirs.transport.get_extra_info("sockname")
        line.set(DROPPED, 60.0)
        loop = asyncio.get_running_loop()
        dial = asyncio.ensure_future(
            line.open(End, lambda make: loop.create_connection(make, host, port))
        )
        await asyncio.sleep(0.05)
        assert not dial.done()
        line.set(OPEN, 0.0)
        _, again = await asyncio.wait_for(dial, WAIT_S)
        assert again.transport is not None
        again.transport.abort()

    run(work)


def test_a_slow_line_delays_each_direction_and_keeps_the_order() -> None:
    async def work(line: ImpairedLine, ours: End, theirs: End) -> None:
        line.set(Impairment("slow", delay_ms=50.0), 60.0)
        began_s = line.loop.time()
        for word in (b"a", b"b", b"c"):
            ours.write(word)
        await theirs.until(lambda: theirs.got == b"abc")
        assert line.loop.time() - began_s >= 0.049
        theirs.write(b"ack")
        await ours.until(lambda: ours.got == b"ack")
        assert line.loop.time() - began_s >= 0.098

    run(work)


def test_a_narrow_line_takes_its_time() -> None:
    async def work(line: ImpairedLine, ours: End, theirs: End) -> None:
        line.set(Impairment("slow", bytes_per_s=100_000.0), 60.0)
        began_s = line.loop.time()
        for _ in range(4):
            ours.write(bytes(5_000))
        await theirs.until(lambda: len(theirs.got) == 20_000)
        assert line.loop.time() - began_s >= 0.19

    run(work)


def test_it_heals_by_itself_when_nobody_asks_again() -> None:
    async def work(line: ImpairedLine, ours: End, theirs: End) -> None:
        line.set(DROPPED, 0.1)
        ours.write(b"late")
        await theirs.until(lambda: theirs.got == b"late")
        assert line.state == OPEN

    run(work)


def test_loss_and_delay_bound_what_tcp_reaches() -> None:
    # Mathis and others: 1.22 segments a round trip over the root of the loss.
    state = Impairment("slow", delay_ms=40.0, loss=0.01)
    assert 220_000 < state.rate_bytes_per_s < 223_000
    assert Impairment("slow", delay_ms=40.0).rate_bytes_per_s == 0
    assert Impairment("slow", delay_ms=40.0, loss=0.01, bytes_per_s=5e6).rate_bytes_per_s == 5e6
