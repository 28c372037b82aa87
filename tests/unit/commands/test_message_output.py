"""Messages are printed without halting the client, however slowly they are read."""

from __future__ import annotations

import asyncio
import fcntl
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.fake_server import FakeServer, Session, records

from raylay.services.client.events import LoopBlocked
from raylay.services.commands.shared.connection_log import ConnectionLog
from raylay.services.commands.shared.message_output import MessageOutput

DEADLINE_S = 30.0
F_SETPIPE_SZ = 1031
PIPE_BYTES = 4096
ROWS = [*range(1, 2001)]
LARGE = b"x" * 1_000_000


class Pipe:
    """A pipe of one page in the place of the standard output. The test decides when it is read."""

    def __init__(self) -> None:
        self.read_end, self.write_end = os.pipe()
        fcntl.fcntl(self.write_end, F_SETPIPE_SZ, PIPE_BYTES)

    def is_full(self) -> bool:
        return not select.select([], [self.write_end], [], 0)[1]

    async def becomes_full(self) -> None:
        # The kernel gives no notice when a pipe becomes full.
        until_s = time.monotonic() + DEADLINE_S
        while not self.is_full():
            assert time.monotonic() < until_s
            await asyncio.sleep(0.01)

    def read(self, count: int) -> bytes:
        found = b""
        while len(found) < count:
            found += os.read(self.read_end, count - len(found))
        return found

    def close(self) -> None:
        os.close(self.read_end)
        os.close(self.write_end)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    made.close()


def becomes_stdout(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces the standard output. The test itself calls it, because pytest replaces the output of
    each phase."""
    monkeypatch.setattr(sys, "stdout", os.fdopen(pipe.write_end, "w", closefd=False))


def message(body: bytes) -> Any:
    return SimpleNamespace(kind="publish", body=body)


class Answering(FakeServer):
    """Gives each subscription more than a pipe takes."""

    def answer(self, session: Session, header: dict[str, Any], body: bytes) -> None:
        super().answer(session, header, body)
        name = header.get("sub", header.get("qid", ""))
        if header["c"] == "subscribe":
            is_queue = "max_backlog" in header.get("o", {})
            session.deliver(name, records(7, ROWS), **({"q": 1} if is_queue else {}))
        elif header["c"] == "sow":
            session.send({"c": "group_begin", "sub": name})
            session.rows(name, records(7, ROWS))


def beside_a_reader_that_waits(
    arguments: tuple[str, ...],
    pipe: Pipe,
    runtime: Path,
    test: Callable[[FakeServer, subprocess.Popen[bytes]], Awaitable[None]],
) -> None:
    async def main() -> None:
        server = await Answering().start()
        process = subprocess.Popen(
            [sys.executable, "-m", "raylay.services.entry", *arguments, "--server", server.address],
            stdout=pipe.write_end,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "RAYLAY_RUNTIME_DIR": str(runtime)},
        )
        try:
            await pipe.becomes_full()
            await test(server, process)
        finally:
            process.kill()
            process.wait()
            await server.stop()

    asyncio.run(main())


@pytest.mark.parametrize(
    "arguments",
    [("subscribe", "t"), ("subscribe", "work", "--backlog", "5000"), ("sow", "t")],
    ids=["subscribe", "consume", "sow"],
)
def test_a_client_goes_on_while_nobody_reads_what_it_prints(
    arguments: tuple[str, ...], pipe: Pipe, tmp_path: Path
) -> None:
    async def test(server: FakeServer, process: subprocess.Popen[bytes]) -> None:
        server.session.drop()
        await server.wait(lambda: len(server.sessions) > 1 and server.session.logged_on)

    beside_a_reader_that_waits(arguments, pipe, tmp_path, test)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_it_though_nobody_reads(number: int, pipe: Pipe, tmp_path: Path) -> None:
    async def test(server: FakeServer, process: subprocess.Popen[bytes]) -> None:
        process.send_signal(number)
        assert await asyncio.to_thread(process.wait, DEADLINE_S) == 0

    beside_a_reader_that_waits(("subscribe", "t"), pipe, tmp_path, test)


def test_what_is_read_slowly_arrives_whole_while_the_loop_turns(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    becomes_stdout(pipe, monkeypatch)

    async def main() -> bytes:
        output = MessageOutput(as_json=False)
        written = asyncio.create_task(output.write([message(LARGE), message(b"last")]))
        await pipe.becomes_full()
        assert not written.done()
        found = await asyncio.to_thread(pipe.read, len(LARGE) + 6)
        await written
        # The pipe has room, so the loop itself writes.
        await output.write([message(b"after")])
        return found + pipe.read(6)

    assert asyncio.run(main()) == LARGE + b"\nlast\nafter\n"


def test_a_reader_that_goes_is_told(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    becomes_stdout(pipe, monkeypatch)

    async def main() -> None:
        output = MessageOutput(as_json=False)
        written = asyncio.create_task(output.write([message(LARGE)]))
        await pipe.becomes_full()
        os.close(pipe.read_end)
        with pytest.raises(BrokenPipeError):
            await written
        pipe.read_end = os.open(os.devnull, os.O_RDONLY)

    asyncio.run(main())


def test_an_output_that_others_made_non_blocking_is_waited_for(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    becomes_stdout(pipe, monkeypatch)
    os.set_blocking(pipe.write_end, False)

    async def main() -> bytes:
        written = asyncio.create_task(MessageOutput(as_json=False).write([message(LARGE)]))
        await pipe.becomes_full()
        found = await asyncio.to_thread(pipe.read, len(LARGE) + 1)
        await written
        return found

    assert asyncio.run(main()) == LARGE + b"\n"


def test_a_file_is_written_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "out"
    with open(path, "w") as file:
        monkeypatch.setattr(sys, "stdout", file)
        file.write("before\n")

        async def main() -> None:
            output = MessageOutput(as_json=False)
            await output.write([message(LARGE)])
            await output.write([message(b"after")])

        asyncio.run(main())
    assert path.read_bytes() == b"before\n" + LARGE + b"\nafter\n"


def test_a_command_that_stood_still_says_so_to_its_user(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ConnectionLog()(LoopBlocked(36.5))
    told = capsys.readouterr().err
    assert told.startswith("raylay: this command stood still for longer than its heartbeat")
    assert "(36.5 s)" in told and "asyncio" not in told
