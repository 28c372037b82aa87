"""The attacker of `neighbour.py`, a process of its own.

    python neighbour_attacker.py ADDRESS

A line on its standard input names a script of support/attacker.py: it is prepared, answered by a
line, and run from the line `on` to the line `off`, which is answered by how often it said
something. It says one thing at a time (as a stranger, four): behind each it waits for the answer to
a ping, and then for a while, so that what is seen is how the instance divides its time, and not who
says most.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from support.attacker import SCRIPTS, Script, logon, ping

from raylay.services.config.instance import split_address
from raylay.services.protocol.frames import FrameReader

PAUSE_S = 0.02
READ_BYTES = 1 << 18
STRANGERS = 4


class Said:
    """One connection of it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._frames = FrameReader(frame_bytes_max=1 << 26)
        self._numbers = itertools.count(1)

    @classmethod
    async def at(cls, address: str) -> Said:
        return cls(*await asyncio.open_connection(*split_address(address)))

    async def until(self, command_id: str, command: str = "ack") -> bool:
        """Whether that came before the connection ended."""
        while True:
            data = await self.reader.read(READ_BYTES)
            if not data:
                return False
            for header, _ in self._frames.feed(data):
                if header["c"] == command and header.get("cid", "") == command_id:
                    return True

    async def say(self, data: bytes, answer: str = "") -> bool:
        """Says it; whether it was answered."""
        name = f"ping {next(self._numbers)}"
        try:
            self.writer.write(data if answer else data + ping(name))
            return await (self.until("", answer) if answer else self.until(name))
        except ConnectionError:
            return False

    async def log_on(self, name: str) -> None:
        self.writer.write(logon(name))
        assert await self.until("l"), "it is not let in"


class Attack:
    """One script, prepared."""

    def __init__(self, address: str, name: str, script: Script) -> None:
        self._address, self._name, self._script = address, name, script
        self._says: Iterator[bytes] = script.again(name)
        self._open: list[Said] = []
        self.said = 0

    async def begin(self) -> None:
        self._main = await Said.at(self._address)
        await self._main.log_on(self._name)
        if self._script.reads:
            assert await self._main.say(self._script.first(self._name))
        else:
            await self._turn_away()

    async def _turn_away(self) -> None:
        """Somebody who subscribes and reads nothing."""
        unread = await Said.at(self._address)
        await unread.log_on(f"{self._name}-unread")
        assert await unread.say(self._script.first(self._name))
        unread.writer.transport.pause_reading()  # type: ignore[attr-defined]
        self._open.append(unread)

    async def run(self) -> None:
        many = STRANGERS if self._script.is_stranger else 1
        await asyncio.gather(*(self._run() for _ in range(many)))

    async def _run(self) -> None:
        while True:
            data = next(self._says)
            if self._script.is_stranger:
                await self._as_stranger(data)
            elif not await self._main.say(data, self._script.answer):
                raise RuntimeError(f"{self._name} was sent away")
            self.said += 1
            await asyncio.sleep(PAUSE_S)

    async def _as_stranger(self, data: bytes) -> None:
        said = await Said.at(self._address)
        try:
            said.writer.write(data)
            await said.until("l")
        except ConnectionError:
            pass
        self._open.append(said)
        while len(self._open) > self._script.stays:
            self._open.pop(0).writer.transport.abort()

    async def end(self) -> None:
        for each in (self._main, *self._open):
            each.writer.transport.abort()


async def serve(address: str) -> None:
    loop = asyncio.get_running_loop()

    async def line() -> str:
        return (await loop.run_in_executor(None, sys.stdin.readline)).strip()

    attack: Attack | None = None
    while told := await line():
        if told == "on":
            assert attack is not None
            before, task = attack.said, loop.create_task(attack.run())
            print("on", flush=True)
            assert await line() == "off"
            if task.done():
                task.result()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            print(attack.said - before, flush=True)
            continue
        if attack is not None:
            await attack.end()
        attack = Attack(address, told, SCRIPTS[told])
        await attack.begin()
        print(told, flush=True)


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
