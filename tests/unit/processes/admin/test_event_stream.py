"""services/processes/admin/event_stream.py over real sockets: events of the whole fabric as they
come."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientResponse
from support.admin_fabric import AdminFabric, admin_fabric

from raylay.services.admin import fabric_events
from raylay.services.admin.fabric_events import MISSED
from raylay.services.processes.admin import event_stream
from raylay.services.processes.admin.event_stream import EventStreams

FAST = 0.02


def quick() -> EventStreams:
    return EventStreams(poll_s=FAST, heartbeat_s=2 * FAST)


def visit(directory: Path, act: Callable[[AdminFabric], Awaitable[None]], *names: str) -> None:
    async def run() -> None:
        every = names or ("north-1", "north-2")
        async with admin_fabric(directory, every, streams=quick) as fabric:
            await act(fabric)

    asyncio.run(asyncio.wait_for(run(), 120))


@asynccontextmanager
async def reading(fabric: AdminFabric, **headers: str) -> AsyncIterator[ClientResponse]:
    async with fabric.session.get(fabric.url("/raylay/events"), headers=headers) as response:
        assert response.status == 200
        assert response.content_type == "text/event-stream"
        yield response


async def blocks(response: ClientResponse) -> AsyncIterator[str]:
    """The parts of the stream, heartbeats too."""
    while True:
        yield (await response.content.readuntil(b"\n\n")).decode().rstrip("\n")


async def events(
    response: ClientResponse, until: Callable[[dict[str, Any]], bool]
) -> list[tuple[str, dict[str, Any]]]:
    """The events up to one, each with its id."""
    found = []
    async for block in blocks(response):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if line[0] != ":")
        if "data" in fields:
            found.append((fields["id"], json.loads(fields["data"])))
            if until(found[-1][1]):
                return found
    raise AssertionError("the stream ended")


def named(name: str) -> Callable[[dict[str, Any]], bool]:
    return lambda event: bool(event["event"] == name)


@pytest.mark.covers("Administration", "events of all instances as they come, gaps told")
def test_events_of_all_instances_come_as_they_happen(tmp_path: Path) -> None:
    async def act(fabric: AdminFabric) -> None:
        one, two = fabric.instances.values()
        one.happens("before", text="line\nbreak <script>")
        async with reading(fabric) as response:
            (first,) = await events(response, named("before"))
            assert first[1]["instance"] == "north-1"
            assert first[1]["text"] == "before: line\nbreak <script>"
            two.happens("downgraded", destination="north-1", why="too old")
            found = await events(response, named("downgraded"))
            assert found[-1][1] == {
                "instance": "north-2",
                "number": 1,
                "time_us": 10**15 + 1,
                "event": "downgraded",
                "text": "downgraded north-1: too old",
                "level": "attention",
                "details": {"destination": "north-1", "why": "too old"},
            }

    visit(tmp_path, act)


def test_a_quiet_stream_says_that_it_is_there(tmp_path: Path) -> None:
    async def act(fabric: AdminFabric) -> None:
        async with reading(fabric) as response:
            async for block in blocks(response):
                if block.startswith(":"):
                    return

    visit(tmp_path, act)


@pytest.mark.covers("Administration", "events of all instances as they come, gaps told")
def test_a_reader_goes_on_where_it_was(tmp_path: Path) -> None:
    async def act(fabric: AdminFabric) -> None:
        one = fabric.instances["north-1"]
        for name in ("first", "second"):
            one.happens(name)
        async with reading(fabric) as response:
            found = await events(response, named("second"))
        one.happens("third")
        async with reading(fabric, **{"Last-Event-ID": found[0][0]}) as response:
            again = await events(response, named("third"))
            assert [event["event"] for _, event in again] == ["second", "third"]
        # A position of another process means nothing here: it is told that some may be missing.
        async with reading(fabric, **{"Last-Event-ID": "ffff-1"}) as response:
            again = await events(response, named("third"))
            assert [event["event"] for _, event in again] == [MISSED, "first", "second", "third"]

    visit(tmp_path, act, "north-1")


@pytest.mark.parametrize("given", ["", "-", "x-1", "-1", "9" * 5_000, "{}-{}", "\u00e9-1"])
def test_a_position_that_is_none_begins_anew(tmp_path: Path, given: str) -> None:
    async def act(fabric: AdminFabric) -> None:
        fabric.instances["north-1"].happens("first")
        async with reading(fabric, **{"Last-Event-ID": given}) as response:
            await events(response, named("first"))

    visit(tmp_path, act, "north-1")


def test_a_reader_that_is_too_slow_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fabric_events, "BOOK_EVENTS_MAX", 10)

    async def act(fabric: AdminFabric) -> None:
        one = fabric.instances["north-1"]
        one.happens("first")
        async with reading(fabric) as response:
            found = await events(response, named("first"))
        for _ in range(30):
            one.happens("more")
        one.happens("last")
        async with reading(fabric, **{"Last-Event-ID": found[0][0]}) as response:
            again = await events(response, named("last"))
            assert again[0][1]["event"] == MISSED
            assert again[0][1]["details"]["missed"] == 21
            assert len(again) == 11

    visit(tmp_path, act, "north-1")


@pytest.mark.covers("Administration", "events of all instances as they come, gaps told")
def test_readers_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "SUBSCRIBERS_MAX", 1)

    async def act(fabric: AdminFabric) -> None:
        async with reading(fabric) as response:
            async for _ in blocks(response):
                break
            status, found = await fabric.get("/raylay/events")
            assert status == 503 and "close a page" in found["error"]
        # Once the first is gone there is room again.
        while True:
            async with fabric.session.get(fabric.url("/raylay/events")) as response:
                if response.status == 200:
                    return

    visit(tmp_path, act)


def test_streams_end_with_the_interface(tmp_path: Path) -> None:
    async def run() -> None:
        ended: list[ClientResponse] = []
        async with admin_fabric(tmp_path, ("north-1",), streams=quick) as fabric:
            response = await fabric.session.get(fabric.url("/raylay/events"))
            assert response.status == 200
            ended.append(response)
            await response.content.readline()

    asyncio.run(asyncio.wait_for(run(), 60))


# -- the events of one instance ----------------------------------------------------------------
@pytest.mark.parametrize(
    ("query", "numbers"),
    [
        ("", [1, 2, 3, 4, 5]),
        ("?limit=2", [4, 5]),
        ("?after=1&limit=2", [2, 3]),
        ("?after=0", [1, 2, 3, 4, 5]),
        ("?after=5", []),
        ("?limit=0", []),
        ("?after=9999999999999999999", []),
    ],
)
def test_the_events_of_the_instance_are_paged(
    tmp_path: Path, query: str, numbers: list[int]
) -> None:
    async def act(fabric: AdminFabric) -> None:
        for at in range(5):
            fabric.instances["north-1"].happens(f"e{at}")
        status, found = await fabric.get(f"/raylay/events.json{query}")
        assert status == 200
        assert [each["number"] for each in found["events"]] == numbers
        assert (found["instance"], found["last_event"]) == ("north-1", 5)

    visit(tmp_path, act)


@pytest.mark.parametrize("query", ["?after=-1", "?limit=x", "?after=1e9", "?after=" + "9" * 99])
def test_a_number_that_is_none_is_refused(tmp_path: Path, query: str) -> None:
    async def act(fabric: AdminFabric) -> None:
        status, found = await fabric.get(f"/raylay/events.json{query}")
        assert status == 400 and "is no number" in found["error"]

    visit(tmp_path, act)
