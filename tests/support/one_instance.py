"""One instance without Ray, for a test that visits it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from unit.test_counted_calls import links_here

from raylay.services.config.instance import InstanceConfig
from raylay.services.server.instance_server import InstanceServer

DEADLINE_S = 60.0


def in_instance(
    directory: Path, visit: Callable[[InstanceServer], Awaitable[None]], config: InstanceConfig
) -> None:
    """Starts it, visits it and stops it. Its links run on the same loop."""

    async def run() -> None:
        server = InstanceServer(config, directory, links_here(asyncio.get_running_loop()))
        await server.start()
        try:
            async with asyncio.timeout(DEADLINE_S):
                await visit(server)
        finally:
            await server.stop()

    asyncio.run(run())


def server_on(
    loop: asyncio.AbstractEventLoop, config: InstanceConfig, directory: Path
) -> InstanceServer:
    """Makes a server on a loop that the test runs by and by."""

    async def make() -> InstanceServer:
        return InstanceServer(config, directory)

    return loop.run_until_complete(make())


def transports(server: InstanceServer) -> dict[str, dict[str, Any]]:
    """Their status, by name."""
    return {each["name"]: each for each in server.status()["transports"]}


def events(server: InstanceServer, kind: str) -> list[dict[str, Any]]:
    """Returns the events of a kind that it told of, oldest first."""
    return [each for each in server.events() if each["event"] == kind]
