"""services/processes/child_program.py: how a program beside an instance ends."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from raylay.services.errors import StorageError
from raylay.services.processes.child_program import ChildProgram
from raylay.services.protocol.frames import Header, encode_frame


class Handler:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.program = ChildProgram(self, self.turn)
        self.turns = 0
        self.said: list[tuple[Header, bytes]] = []
        self.faults: list[str] = []
        self.logged: list[str] = []

    async def run(self, path: str, *works: Coroutine[Any, Any, None]) -> str:
        self.program.begin()
        await self.program.connect(path, encode_frame({"c": "hello"}))
        return await self.program.run(*works)

    def turn(self) -> None:
        self.turns += 1

    def instance_said(self, header: Header, body: bytes) -> None:
        self.said.append((header, body))

    def failed(self, text: str) -> None:
        self.faults.append(text)


def test_the_instances_socket_closing_ends_it(tmp_path: Path) -> None:
    path = str(tmp_path / "socket")

    async def work() -> None:
        async def instance(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readexactly(len(encode_frame({"c": "hello"})))
            writer.write(encode_frame({"c": "hello"}, b"there"))
            writer.close()

        handler = Handler()
        async with await asyncio.start_unix_server(instance, path):
            assert await handler.run(path) == "connection closed by the other side"
        assert handler.said == [({"c": "hello"}, b"there")] and not handler.faults
        assert handler.turns == 1

    asyncio.run(work())


def test_a_work_that_raises_ends_it(tmp_path: Path) -> None:
    path = str(tmp_path / "socket")

    async def fails() -> None:
        raise StorageError("no space", "/x")

    async def work() -> None:
        server = await asyncio.start_unix_server(lambda reader, writer: None, path)
        with pytest.raises(StorageError, match="no space"):
            await Handler().run(path, asyncio.sleep(3_600), fails())
        server.close()

    asyncio.run(work())


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (StorageError("no space", "/x"), "no space"),
        (KeyError(), "KeyError()"),
        (BrokenPipeError(), ""),
        (asyncio.CancelledError(), ""),
        (None, ""),
    ],
)
def test_a_fault_ends_it_and_a_sockets_error_does_not(
    error: BaseException | None, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        handler = Handler()
        program, loop = handler.program, handler.program.begin()
        told: list[str] = []
        monkeypatch.setattr(loop, "default_exception_handler", lambda context: told.append("it"))
        loop.call_exception_handler({"message": "a callback raised", "exception": error})
        assert (handler.faults, program.gone.done()) == ([fault] if fault else [], bool(fault))
        # What is no fault of the program's has no traceback.
        assert bool(told) is isinstance(error, KeyError)
        program.end("later")
        assert (await program.gone == "later") is not bool(fault)

    asyncio.run(work())
