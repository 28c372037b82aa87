"""The program of a pool's buffer, spoken to as its instance does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from raylay.services.config.buffer import SlowClientBufferConfig
from raylay.services.errors import StorageFull
from raylay.services.processes.slow_client_buffer import buffer_server
from raylay.services.processes.slow_client_buffer.buffer_server import BufferServer
from raylay.services.protocol.child import buffer_control as control
from raylay.services.protocol.frames import Frame, FrameReader
from raylay.storage.offline import MemoryOfflineStore

pytestmark = pytest.mark.covers(
    "Clients and protocol", "an offlined client gets all in order and once"
)

DEADLINE_S = 20


class Instance:
    """The instance's end."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self._frames = FrameReader(1 << 28)
        self._came: list[Frame] = []

    def put(self, client: int, number: int, body: bytes) -> None:
        self.writer.write(control.put(client, number, len(body)) + body)

    def say(self, frame: bytes) -> None:
        self.writer.write(frame)

    async def next(self, command: str) -> Frame:
        """The next frame of this command."""
        while True:
            while self._came:
                frame = self._came.pop(0)
                if frame.header["c"] == command:
                    return frame
            data = await self._reader.read(1 << 20)
            assert data, "the buffer is gone"
            self._came += self._frames.feed(data)

    async def taken(self, client: int, most: int = 1 << 20) -> tuple[bytes, int, bool]:
        self.say(control.take(client, most))
        frame = await self.next("taken")
        assert frame.header["k"] == client
        return frame.body, frame.header["n"], frame.header["empty"]


def with_buffer(
    directory: Path, visit: Callable[[Instance], Awaitable[None]], stops: bool = True
) -> str:
    """Runs a buffer and a visit; why it ended."""

    async def run() -> str:
        came: asyncio.Future[Instance] = asyncio.get_running_loop().create_future()
        path = str(directory / "links.sock")
        server = await asyncio.start_unix_server(
            lambda reader, writer: came.set_result(Instance(reader, writer)), path
        )
        config = SlowClientBufferConfig(
            "East-1", "client", 7, path, str(directory / "offline" / "client.lmdb"), 1 << 26
        )
        config = SlowClientBufferConfig.from_json(config.to_json())
        async with asyncio.timeout(DEADLINE_S):
            running = asyncio.create_task(BufferServer(config).run())
            instance = await came
            hello = await instance.next("hello")
            assert (hello.header["buffer"], hello.header["start"]) == ("client", 7)
            await visit(instance)
            if stops:
                instance.say(control.STOP)
            else:
                instance.writer.close()
            why = await running
        server.close()
        assert not (directory / "offline" / "client.lmdb").exists()
        return why

    return asyncio.run(run())


def test_what_is_put_comes_back_in_order_and_names_the_last_one(tmp_path: Path) -> None:
    async def visit(instance: Instance) -> None:
        instance.put(1, 1, b"one ")
        instance.put(2, 1, b"of another")
        instance.put(1, 2, b"two ")
        assert await instance.taken(1) == (b"one two ", 2, True)
        instance.put(1, 3, b"x" * 200_000)
        body, seen, is_empty = await instance.taken(1, 65_536)
        assert 0 < len(body) < 200_000 and (seen, is_empty) == (3, False)
        rest, seen, is_empty = await instance.taken(1)
        assert body + rest == b"x" * 200_000 and (seen, is_empty) == (3, True)
        assert await instance.taken(1) == (b"", 3, True)
        instance.say(control.drop(1))
        assert await instance.taken(1) == (b"", 0, True), "it is another one from here on"
        assert await instance.taken(2) == (b"of another", 1, True)

    assert with_buffer(tmp_path, visit) == "the instance said stop"


def test_it_says_what_is_stored_without_being_asked(tmp_path: Path) -> None:
    async def visit(instance: Instance) -> None:
        instance.put(1, 1, b"one")
        instance.put(4, 9, b"nine")
        frame = await instance.next("stored")
        assert sorted(control.read_stored(frame.body)) == [(1, 1), (4, 9)]
        instance.put(4, 10, b"x" * buffer_server.BATCH_BYTES)
        assert control.read_stored((await instance.next("stored")).body) == [(4, 10)]

    with_buffer(tmp_path, visit)


def test_its_file_goes_with_its_instance(tmp_path: Path) -> None:
    async def visit(instance: Instance) -> None:
        instance.put(1, 1, b"one")
        await instance.next("stored")

    assert "closed" in with_buffer(tmp_path, visit, stops=False)


def test_who_loses_something_to_a_full_disk_is_named_and_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryOfflineStore()
    monkeypatch.setattr(buffer_server, "LmdbOfflineStore", lambda path, size: store)

    async def visit(instance: Instance) -> None:
        instance.put(1, 1, b"one")
        instance.put(2, 1, b"two")
        assert await instance.taken(7) == (b"", 0, True)
        store.fail_next(StorageFull("/x/client.lmdb: no space left", "/x/client.lmdb"))
        instance.put(1, 2, b"more")
        frame = await instance.next("lost")
        assert frame.header["k"] == 1 and "no space left" in frame.header["why"]
        assert await instance.taken(1) == (b"", 0, True)
        assert await instance.taken(2) == (b"two", 1, True)

    with_buffer(tmp_path, visit)
