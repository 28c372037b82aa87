"""`/raylay/log.json`: the log on the instance's disk, within bounds, for those who may read it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, web
from unit.telemetry.test_kept_log import line, write

from raylay.services.errors import RaylayError
from raylay.services.processes.admin import kept_log_routes
from raylay.services.processes.admin.kept_log_routes import KeptLogRoutes, kept_directory_of
from raylay.services.processes.admin.peer_proxy import asked_of_peer
from raylay.services.processes.admin.viewers import Viewer
from raylay.services.telemetry.log_options import LogOptions, LogTarget

pytestmark = pytest.mark.covers("Logging", "the kept log of an instance of another host")
Get = Callable[[str], Awaitable[tuple[int, Any]]]


class Reader:
    user = "amy"

    def __init__(self, allowed: bool) -> None:
        self._allowed = allowed

    def may(self, path: str) -> bool:
        return self._allowed and path == "/amps/instance"


def visit(
    directory: Path | None, act: Callable[[Get], Awaitable[None]], allowed: bool = True
) -> None:
    async def viewer(_: web.Request) -> Viewer:
        return Reader(allowed)  # type: ignore[return-value]

    @web.middleware
    async def refuse(request: web.Request, handler: Any) -> web.StreamResponse:
        try:
            return await handler(request)  # type: ignore[no-any-return]
        except RaylayError as error:
            return web.json_response({"error": str(error)}, status=400)

    async def run() -> None:
        app = web.Application(middlewares=[refuse])
        KeptLogRoutes("A-1", directory, viewer).add_routes(app.router)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]

        async def get(query: str) -> tuple[int, Any]:
            url = f"http://127.0.0.1:{port}/raylay/log.json?{query}"
            async with session.get(url) as found:
                return found.status, json.loads(await found.read())

        try:
            async with ClientSession() as session:
                await act(get)
        finally:
            await runner.cleanup()

    asyncio.run(asyncio.wait_for(run(), 60))


def events(found: Any) -> list[str]:
    return [each["event"] for each in found["lines"]]


def test_lines_are_told_from_a_time_of_a_level_and_the_last_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_log_routes, "LINES_MAX", 3)
    lines = [line(at, f"e{at}", level="error" if at % 2 else "info") for at in range(1, 6)]
    write(tmp_path, "A-1-00000.log", *lines, b"torn\n")

    async def act(get: Get) -> None:
        status, found = await get("")
        assert status == 200 and found["instance"] == "A-1"
        assert (events(found), found["more"]) == (["e1", "e2", "e3"], True)
        _, found = await get(f"since_us={found['lines'][-1]['time_us'] + 1}")
        assert (events(found), found["more"], found["damaged"]) == (["e4", "e5"], False, 1)
        _, found = await get("latest=1&limit=2")
        assert events(found) == ["e4", "e5"]
        _, found = await get("level=error")
        assert events(found) == ["e1", "e3", "e5"]
        for wrong in ("level=loud", "since_us=x", "limit=-1"):
            assert (await get(wrong))[0] == 400

    visit(tmp_path, act)


def test_an_answer_is_bounded_in_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_log_routes, "LINES_BYTES_MAX", 1_000)
    write(tmp_path, "A-1-00000.log", *(line(at, f"e{at}", pad="x" * 300) for at in range(1, 9)))

    async def act(get: Get) -> None:
        _, found = await get("")
        assert (events(found), found["more"]) == (["e1", "e2"], True)
        _, found = await get("latest=1")
        assert events(found) == ["e7", "e8"]

    visit(tmp_path, act)


def test_who_may_not_read_the_instance_reads_no_log(tmp_path: Path) -> None:
    async def act(get: Get) -> None:
        status, found = await get("")
        assert status == 400 and "amy may not read /amps/instance" in found["error"]

    visit(tmp_path, act, allowed=False)


def test_an_instance_that_keeps_none_says_so() -> None:
    async def act(get: Get) -> None:
        status, found = await get("")
        assert status == 404 and "A-1 keeps no log" in json.dumps(found)

    visit(None, act)


def test_lines_of_one_process_are_told(tmp_path: Path) -> None:
    write(tmp_path, "A-1-00000.log", line(1, "own"))
    write(tmp_path, "A-1.B-1-00000.log", line(2, "of a link", process="A-1.B-1"))

    async def act(get: Get) -> None:
        _, found = await get("process=A-1")
        assert events(found) == ["own"]
        _, found = await get("process=../A-1")
        assert events(found) == []
        _, found = await get("")
        assert events(found) == ["own", "of a link"]

    visit(tmp_path, act)


def test_the_kept_log_is_found_among_the_targets() -> None:
    kept = LogTarget(target="file", directory="/d/log/A-1", in_background=True)
    assert kept_directory_of(LogOptions(also=(kept,))) == Path("/d/log/A-1")
    assert kept_directory_of(LogOptions(target="file", directory="/d/logs")) is None


def test_a_peer_passes_the_question_on() -> None:
    assert asked_of_peer("/raylay/peer/A-1/raylay/log.json") == ("A-1", "raylay/log.json")
