"""services/processes/admin/head_watch.py: since when Ray's head has been away."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.admin_fabric import AdminFabric
from unit.processes.admin.test_fabric_routes import kinds, visit

from raylay.services.admin.fabric_view import HeadSight
from raylay.services.processes.admin import head_watch
from raylay.services.processes.admin.head_watch import HeadWatch

pytestmark = pytest.mark.covers("Administration", "since when Ray's head is away")


def looks(*found: tuple[str, bool]) -> list[HeadSight | None]:
    """What is known after each of these looks, a second after another: the address that is known
    then, and whether it answers."""
    at: Iterator[tuple[str, bool]] = iter(found)
    now: dict[str, Any] = {"us": 0}

    async def run() -> list[HeadSight | None]:
        async def address() -> str:
            now["us"] += 1_000_000
            now["address"], now["answers"] = next(at)
            return str(now["address"])

        watch = HeadWatch(address, lambda *_: bool(now["answers"]), lambda: int(now["us"]))
        sights = []
        for _ in found:
            await watch.look()
            sights.append(watch.sight)
        return sights

    return asyncio.run(run())


def test_it_is_away_since_the_first_of_two_looks_without_an_answer() -> None:
    here, away = HeadSight("h:1"), HeadSight("h:1", 2_000_000)
    answers = (True, False, False, False, True, False)
    assert looks(*(("h:1", each) for each in answers)) == [here, here, away, away, here, here]
    assert here.document() == {"address": "h:1", "away_since_us": None}


def test_one_that_was_never_seen_is_away_from_the_second_look_on() -> None:
    assert looks(("h:1", False), ("h:1", False)) == [None, HeadSight("h:1", 1_000_000)]


def test_another_address_is_another_head_and_none_is_nothing() -> None:
    found = looks(("h:1", False), ("h:1", False), ("h:2", False), ("h:2", True), ("", True))
    assert found[2:] == [None, HeadSight("h:2"), None]


def test_it_looks_again_and_again_until_it_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_watch, "LOOK_S", 0.0)

    async def run() -> None:
        asked = asyncio.Event()
        count = 0

        async def address() -> str:
            nonlocal count
            count += 1
            if count == 3:
                asked.set()
            return ""

        watch = HeadWatch(address)
        watch.close()
        watch.start()
        async with asyncio.timeout(60):
            await asked.wait()
        watch.close()
        assert watch._task is not None
        with pytest.raises(asyncio.CancelledError):
            await watch._task

    asyncio.run(run())


def test_the_view_and_the_status_tell_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_watch, "LOOK_S", 0.01)
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))  # Nothing listens there, and nothing else can.
        head = f"127.0.0.1:{deaf.getsockname()[1]}"

        async def act(fabric: AdminFabric) -> None:
            found = await fabric.until(lambda found: kinds(found) == ["head"])
            (problem,) = found["problems"]
            assert problem["level"] == "attention"
            assert found["head"] == {"address": head, "away_since_us": problem["since_us"]}
            assert problem["text"].startswith(f"Ray's head at {head} does not answer, as north-")
            assert "raylay head start" in problem["do"]["text"]
            assert found["verdict"]["text"] == problem["text"]
            status, told = await fabric.get("/raylay/status.json", found["served_by"])
            assert status == 200 and told["head"] == found["head"]

        visit(tmp_path, act, topology={"head": head})


def test_without_an_address_nothing_is_told(tmp_path: Path) -> None:
    async def act(fabric: AdminFabric) -> None:
        found = await fabric.until(lambda found: not found["problems"])
        assert found["head"] is None
        assert "head" not in (await fabric.get("/raylay/status.json"))[1]

    visit(tmp_path, act)
