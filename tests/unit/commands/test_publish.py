"""`raylay publish` as a process against a scripted server: its result, its sum, its input."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from support.fake_server import FakeServer

ENDS_WITHIN_S = 30.0
"""By itself, though its input stays open: never, else. A second of it is for the last acks."""


async def start(server: FakeServer, *arguments: str, runtime: Path) -> asyncio.subprocess.Process:
    """`raylay publish` with its three streams."""
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "raylay.services.cli", "publish", *arguments,
        "--server", server.address,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "RAYLAY_RUNTIME_DIR": str(runtime)},
    )  # fmt: skip


def with_server(test: Callable[[FakeServer], Awaitable[None]]) -> None:
    """Runs it beside a server, within a minute."""

    async def main() -> None:
        async with asyncio.timeout(60):
            server = await FakeServer().start()
            await test(server)
            await server.stop()

    asyncio.run(main())


def test_the_result_is_on_stdout(tmp_path: Path) -> None:
    async def test(server: FakeServer) -> None:
        server.auto_ack = True
        process = await start(server, "t", "{}", runtime=tmp_path)
        out, err = await process.communicate()
        assert (process.returncode, err) == (0, b"")
        assert out.startswith(b"1 persisted in ")
        assert out.split()[-1].decode().endswith(f"|{server.session.published[0]}|")
        process = await start(server, "t", "--json", runtime=tmp_path)
        out, err = await process.communicate(b"one\r\n\ntwo")
        told = json.loads(out)
        assert server.session.bodies == [b"one", b"", b"two"]
        assert (told["published"], told["persisted"], told["refused"]) == (3, 3, 0)
        assert told["bookmark"].endswith(f"|{server.session.published[-1]}|")
        assert 0 < told["seconds"] < 60 and not told["interrupted"]

    with_server(test)


@pytest.mark.parametrize("answered", [True, False])
def test_ctrl_c_ends_it_with_its_sum(tmp_path: Path, answered: bool) -> None:
    """A line is sent when it is there, though the next one never comes."""

    async def test(server: FakeServer) -> None:
        server.auto_ack = answered
        process = await start(server, "t", runtime=tmp_path)
        assert process.stdin is not None
        process.stdin.write(b"one\ntwo\nthr")
        await server.wait(lambda: server.sessions and len(server.session.published) == 2)
        process.send_signal(signal.SIGINT)
        # Its input stays open: it ends by itself.
        assert process.stdout is not None and process.stderr is not None
        async with asyncio.timeout(ENDS_WITHIN_S):
            out = await process.stdout.read()
            assert await process.wait() == 130
        assert await process.stderr.read() == b""
        if answered:
            assert out.startswith(b"interrupted: 2 persisted in ")
        else:
            assert out.startswith(b"interrupted: 0 persisted in ")
            assert b"2 were not answered, and may be persisted or not" in out

    with_server(test)


def test_ctrl_c_in_the_middle_of_many_counts_every_one_that_was_sent(tmp_path: Path) -> None:
    async def test(server: FakeServer) -> None:
        server.auto_ack = True
        arguments = ("t", '{"n":{n}}', "--count", "100000000", "--json")
        process = await start(server, *arguments, runtime=tmp_path)
        await server.wait(lambda: server.sessions and len(server.session.published) > 1000)
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(ENDS_WITHIN_S):
            out, _ = await process.communicate()
        told, sent = json.loads(out), server.session.published
        assert told["interrupted"] and told["published"] == told["persisted"] == len(sent)
        assert told["bookmark"].endswith(f"|{sent[-1]}|")

    with_server(test)


def test_what_is_refused_is_counted_and_said(tmp_path: Path) -> None:
    async def test(server: FakeServer) -> None:
        process = await start(server, "t", runtime=tmp_path)
        assert process.stdin is not None
        process.stdin.write(b"one\ntwo\nthree\n")
        process.stdin.close()
        await server.wait(lambda: server.sessions and len(server.session.published) == 3)
        first = server.session.published[0]
        for sequence in (first, first + 1):
            server.session.refuse(sequence, "storm", "it rains")
        server.session.ack(first + 2)
        out, err = await process.communicate()
        assert process.returncode == 1
        assert out.startswith(b"1 persisted in ") and b"; 2 refused" in out
        assert err == b"raylay: 2 messages were refused; the first: it rains\n"

    with_server(test)


@pytest.mark.covers("The replication chapters", "what no transaction log takes")
def test_what_nobody_journals_is_called_so(tmp_path: Path) -> None:
    async def test(server: FakeServer) -> None:
        for json_wanted in (False, True):
            arguments = ("--json",) if json_wanted else ()
            process = await start(server, "t", *arguments, runtime=tmp_path)
            assert process.stdin is not None
            process.stdin.write(b"one\ntwo\n")
            process.stdin.close()
            await server.wait(
                lambda: (
                    server.sessions
                    and not server.session.ended
                    and len(server.session.published) == 2
                )
            )
            upto = server.session.published[-1]
            server.session.send(
                {"c": "ack", "a": "persisted", "s": upto, "status": "success", "unjournaled": 2}
            )
            out, err = await process.communicate()
            assert (process.returncode, err) == (0, b"")
            if json_wanted:
                told = json.loads(out)
                assert (told["unjournaled"], told["persisted"], told["bookmark"]) == (2, 0, None)
            else:
                assert out.startswith(b"2 delivered to live subscribers, not journaled in ")
                assert b"persisted" not in out and b"|" not in out

    with_server(test)
