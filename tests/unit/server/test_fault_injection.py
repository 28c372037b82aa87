"""services/server/fault_injection.py: what an instance breaks in itself, for how long, and for
whom."""

from __future__ import annotations

import asyncio
import json
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from raylay.services.config.instance import InstanceConfig
from raylay.services.errors import ConfigurationError
from raylay.services.net.impaired import OPEN
from raylay.services.server.fault_injection import (
    HOLD_FILE,
    FaultInjection,
    await_release,
    hold,
    is_held,
    release,
)

pytestmark = pytest.mark.covers(
    "Drills", "an instance takes faults only where its fabric is marked"
)

WAIT_S = 30.0


class Link:
    def __init__(self) -> None:
        self.told: list[tuple[str, float]] = []

    def impair(self, state: dict[str, Any], seconds: float) -> None:
        self.told.append((state["mode"], seconds))


class Server:
    """What Injections needs of an instance."""

    def __init__(self, drills: bool) -> None:
        self.config = InstanceConfig("A", "G", drills=drills)
        self.loop = asyncio.get_running_loop()
        self.links = {"B": Link()}
        self.clock_offset_us = 0
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.limits: list[tuple[int, int]] = []
        self.changed = asyncio.Event()

    def report(self, event: str, **details: Any) -> None:
        self.events.append((event, details))
        self.changed.set()

    def narrow(self, memory_bytes: int, disk_bytes: int) -> None:
        self.limits.append((memory_bytes, disk_bytes))

    async def until(self, count: int) -> None:
        async with asyncio.timeout(WAIT_S):
            while len(self.events) < count:
                self.changed.clear()
                await self.changed.wait()


def run(work: Callable[[Server, FaultInjection], Any], *, drills: bool = True) -> None:
    async def main() -> None:
        server = Server(drills)
        await work(
            server,  # type: ignore[arg-type]
            FaultInjection(server, server.links, server.narrow),  # type: ignore[arg-type]
        )

    asyncio.run(main())


@contextmanager
def limit_kept() -> Iterator[tuple[int, int]]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        yield before
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_an_instance_that_is_not_marked_takes_nothing() -> None:
    async def work(server: Server, injections: FaultInjection) -> None:
        for kind, options in (("disk", {}), ("clock", {"offset_us": 1}), ("line", {})):
            with pytest.raises(
                ConfigurationError, match=r"A: this fabric is not marked for drills"
            ):
                injections.inject(kind, 1.0, options)
        injections.tell_link("B")
        assert not server.events and not server.links["B"].told

    run(work, drills=False)


@pytest.mark.parametrize(
    ("kind", "seconds", "options", "told"),
    [
        ("flood", 1.0, {}, "no fault is called 'flood': there are line, clock, disk and"),
        ("capacity", 1.0, {"memory_bytes": -1}, "limits are 0 or more bytes, not -1"),
        ("disk", 601.0, {}, "a fault lasts 0 to 600 seconds, not 601"),
        ("disk", -1.0, {}, "0 to 600"),
        ("line", 1.0, {"destination": "X", "mode": "cut"}, "A has no destination 'X'"),
        ("line", 1.0, {"destination": "B", "mode": "bad"}, "open, cut, dropped, slow, not 'bad'"),
        ("line", 1.0, {"destination": "B", "speed": 1}, "a line: .*speed"),
    ],
)
def test_what_is_no_fault_is_refused_and_changes_nothing(
    kind: str, seconds: float, options: dict[str, Any], told: str
) -> None:
    async def work(server: Server, injections: FaultInjection) -> None:
        with pytest.raises(ConfigurationError, match=told):
            injections.inject(kind, seconds, options)
        assert not server.events and not server.links["B"].told

    run(work)


def test_a_line_is_told_to_its_link_and_ends_by_itself() -> None:
    async def work(server: Server, injections: FaultInjection) -> None:
        injections.inject("line", 60.0, {"destination": "B", "mode": "cut"})
        # A process that begins meanwhile hears of what is left.
        injections.tell_link("B")
        injections.inject("line", 0.2, {"destination": "B", "mode": "cut"})  # renewed
        assert [mode for mode, _ in server.links["B"].told] == ["cut"] * 3
        assert all(0 < seconds <= 60.0 for _, seconds in server.links["B"].told)
        await server.until(2)
        assert [details["mode"] for _, details in server.events] == ["cut", "open"]
        assert server.links["B"].told[-1] == (OPEN.mode, 0.0)

    run(work)


def test_the_limits_of_slow_clients_are_narrow_for_a_while() -> None:
    async def work(server: Server, injections: FaultInjection) -> None:
        for _ in range(2):  # renewed
            injections.inject("capacity", 0.2, {"memory_bytes": 7, "disk_bytes": 0})
        await server.until(2)
        assert server.limits == [(7, 0), (0, 0)]
        assert server.events[0] == ("drill_capacity", {"memory_bytes": 7, "disk_bytes": 0})

    run(work)


def test_a_clock_is_set_and_set_back() -> None:
    async def work(server: Server, injections: FaultInjection) -> None:
        injections.inject("clock", 0.1, {"offset_us": -5_000_000})
        assert server.clock_offset_us == -5_000_000
        await server.until(2)
        assert server.clock_offset_us == 0
        injections.inject("clock", 60.0, {"offset_us": 7})
        injections.inject("clock", 0.0, {})
        assert server.clock_offset_us == 0

    run(work)


def test_a_disk_takes_nothing_until_the_lease_ends(tmp_path: Path) -> None:
    async def work(server: Server, injections: FaultInjection) -> None:
        with limit_kept() as before:
            injections.inject("disk", 0.2, {})
            with (
                pytest.raises(OSError, match="File too large"),
                (tmp_path / "x").open("wb") as file,
            ):
                file.write(b"x")
                file.flush()
            await server.until(2)
            assert resource.getrlimit(resource.RLIMIT_FSIZE) == before
            assert [details["full"] for _, details in server.events] == [True, False]

    run(work)


# -- instances that stay away --------------------------------------------------------------------
def test_who_is_held_waits_until_it_is_released_or_the_time_is_over(tmp_path: Path) -> None:
    async def main() -> None:
        await await_release(tmp_path, lambda: False)  # nobody holds it
        hold(tmp_path, 600.0)
        assert is_held(tmp_path)
        waiting = asyncio.ensure_future(await_release(tmp_path, lambda: False))
        await asyncio.sleep(0.15)
        assert not waiting.done()
        release(tmp_path)
        await asyncio.wait_for(waiting, WAIT_S)
        began_s = time.monotonic()
        hold(tmp_path, 0.3)
        await asyncio.wait_for(await_release(tmp_path, lambda: False), WAIT_S)
        assert time.monotonic() - began_s >= 0.25
        assert not is_held(tmp_path)

    asyncio.run(main())


@pytest.mark.parametrize("text", ["{", "{}", '{"away_until_us": null}', "[]"])
def test_a_torn_file_holds_nobody(tmp_path: Path, text: str) -> None:
    (tmp_path / HOLD_FILE).write_text(text)
    asyncio.run(asyncio.wait_for(await_release(tmp_path, lambda: False), WAIT_S))
    assert not is_held(tmp_path)


def test_who_is_stopped_waits_no_longer(tmp_path: Path) -> None:
    hold(tmp_path, 600.0)
    asyncio.run(asyncio.wait_for(await_release(tmp_path, lambda: True), WAIT_S))
    assert json.loads((tmp_path / HOLD_FILE).read_text())["away_until_us"] > 0
