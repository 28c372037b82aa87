"""services/processes/child_program.py: how a program beside an instance ends."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from raylay.services.errors import StorageError
from raylay.services.net.framed import WriteQueue
from raylay.services.processes.child_program import ChildProgram, InstanceSocket
from raylay.services.protocol.frames import Header, encode_frame


class Program(ChildProgram):
    """One that ends when it is told to, and says what of a fault."""

    def __init__(self) -> None:
        self.said: list[tuple[Header, bytes]] = []
        self.faults: list[str] = []
        self.logged: list[str] = []

    async def run(self, path: str) -> str:
        loop = self.begin()
        await loop.create_unix_connection(
            lambda: InstanceSocket(self, WriteQueue(loop), loop), path
        )
        return await self.gone

    def instance_said(self, header: Header, body: bytes) -> None:
        self.said.append((header, body))

    def failed(self, text: str) -> None:
        self.faults.append(text)


def test_the_instances_socket_closing_ends_it(tmp_path: Path) -> None:
    path = str(tmp_path / "socket")

    async def work() -> None:
        async def instance(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(encode_frame({"c": "hello"}, b"there"))
            writer.close()

        program = Program()
        async with await asyncio.start_unix_server(instance, path):
            assert await program.run(path) == "connection closed by the other side"
        assert program.said == [({"c": "hello"}, b"there")] and not program.faults

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
        program = Program()
        loop = program.begin()
        told: list[str] = []
        monkeypatch.setattr(loop, "default_exception_handler", lambda context: told.append("it"))
        loop.call_exception_handler({"message": "a callback raised", "exception": error})
        assert (program.faults, program.gone.done()) == ([fault] if fault else [], bool(fault))
        # What is no fault of the program's has no traceback.
        assert bool(told) is isinstance(error, KeyError)
        program.instance_lost("later")
        assert (await program.gone == "later") is not bool(fault)

    asyncio.run(work())
