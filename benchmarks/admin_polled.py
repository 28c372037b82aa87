"""The cost of a console that polls an instance, for that instance.

An instance without Ray whose administrator's interface takes a sample of statistics every second.
Parts in which a console asks it once a second, and parts in which the interface's process stands
still, come in turn: compared are the medians of the parts' figures.
"""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import ClientSession
from compared_parts import measured_part, ratio
from context import Bench, Figure, body
from publishers import Process

from raylay.services.client import Client
from raylay.services.config.admin_interface import AdminInterfaceConfig
from raylay.services.config.instance import InstanceConfig
from raylay.services.telemetry.logs import LogOptions

PARTS = 6
"""Number of parts with a console, and of parts without one."""
SINGLE_S = 2.0
"""Seconds of each part in which one message after the other is published."""
MESSAGES = 800_000
"""Messages of each part that are published without waiting, about two seconds of them."""
TOPIC = "bench/polled"
PATHS = ("/raylay/fabric.json", "/amps/instance.json")
"""Resources that a console asks for, once a second."""
NAMES = (
    "admin_polled_publish",
    "admin_polled_ack_p50",
    "admin_polled_ack_p99",
    "admin_polled_processor",
)


@asynccontextmanager
async def console(address: str, pid: int, *, looks: bool) -> AsyncIterator[None]:
    """A console that asks once a second; or else an interface that stands still."""
    if not looks:
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)
        return

    async def poll(session: ClientSession) -> None:
        while True:
            for path in PATHS:
                async with session.get(path) as response:
                    assert response.status == 200, await response.text()
                    await response.read()
            await asyncio.sleep(1.0)

    async with ClientSession(f"http://{address}") as session:
        polling = asyncio.create_task(poll(session))
        yield
        assert not polling.done(), "the interface answers"
        polling.cancel()
        await asyncio.gather(polling, return_exceptions=True)


async def admin_polled(bench: Bench) -> list[Figure]:
    """An instance that a console looks at, against one without."""
    quiet, polled = [], []
    message = body(128)
    memory = Path("/dev/shm")
    place = memory if os.access(memory, os.W_OK) else bench.directory
    with tempfile.TemporaryDirectory(dir=place) as directory:
        config = InstanceConfig(
            "solo",
            "g",
            first=True,
            interface=AdminInterfaceConfig(interval_ms=1_000),
            log=LogOptions(target="none"),
        )
        instance = Process(Path(directory) / "solo", config)
        try:
            while not (status := instance.ask()["status"])["admin_interface"]["address"]:
                await asyncio.sleep(0.05)
            address, pid = (status["admin_interface"][name] for name in ("address", "pid"))
            async with Client("publisher", servers=[status["client_address"]]) as client:
                await measured_part(client, instance, TOPIC, message, MESSAGES, SINGLE_S)
                for number in range(2 * PARTS):
                    looks = number % 4 in (1, 2)  # none of the two always comes behind the other
                    async with console(address, pid, looks=looks):
                        found = await measured_part(
                            client, instance, TOPIC, message, MESSAGES, SINGLE_S
                        )
                    (polled if looks else quiet).append(found)
        finally:
            instance.stop()

    return [
        Figure("admin_polled_publish", ratio(polled, quiet, "rate"), "ratio"),
        Figure("admin_polled_ack_p50", ratio(polled, quiet, "took_ms"), "ratio"),
        Figure("admin_polled_ack_p99", ratio(polled, quiet, "took_ms", 0.99), "ratio"),
        Figure("admin_polled_processor", ratio(polled, quiet, "processor_us"), "ratio"),
    ]
