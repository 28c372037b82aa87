"""A client without a publish store lives hundreds of times at a pair: what both hold of it is one
range, whichever process it was."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from support.instance_processes import DEADLINE_S, Server, Servers, pair

from raylay.services.client import Client
from raylay.services.messages.ranges import SequenceSet
from raylay.services.messages.records import publisher_id

pytestmark = pytest.mark.covers("Clients and protocol", "lives without a publish store")

LIVES = 300
_PUBLISH = """
import asyncio, sys
from raylay.services.client import Client

async def main():
    async with Client("cron", [sys.argv[1]]) as client:
        await client.publish("orders", b"from a process of its own")
        await client.flush(timeout_s=30)

asyncio.run(main())
"""


async def live(address: str, messages: int = 1) -> None:
    async with Client("cron", [address]) as client:
        for number in range(messages):
            await client.publish("orders", b"%d" % number)
        await client.flush(timeout_s=DEADLINE_S)


async def live_many(address: str) -> None:
    for _ in range(LIVES):
        await live(address)


def held(server: Server) -> SequenceSet:
    found = SequenceSet()
    for publisher, sequence in server.journal():
        if publisher == publisher_id("cron"):
            found.add(sequence, sequence)
    return found


@pytest.mark.slow
def test_hundreds_of_lives_are_one_range_at_both_of_a_pair(
    servers: Servers, tmp_path: Path
) -> None:
    """Each was a range of its own, for good, at both."""
    first, second = pair(servers, tmp_path)
    asyncio.run(live_many(first.address))
    for server in (first, second):
        assert held(server).count == LIVES and len(held(server).ranges()) == 1
    # A restart forgets what was left; so does the other instance while its link is down.
    first.kill()
    first.start()
    for server in (first, second):
        server.wait_for("link_caught_up", 2)
    asyncio.run(live_many(first.address))
    for server in (first, second):
        assert held(server).count == 2 * LIVES and len(held(server).ranges()) == 2


async def run(address: str) -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", _PUBLISH, address)
    async with asyncio.timeout(DEADLINE_S):
        assert await process.wait() == 0


def test_so_are_processes_as_cron_starts_them(servers: Servers, tmp_path: Path) -> None:
    first, second = pair(servers, tmp_path)
    for _ in range(5):
        asyncio.run(run(first.address))
    for server in (first, second):
        assert held(server).count == 5 and len(held(server).ranges()) == 1


async def command(address: str, *words: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "raylay.services.cli", *words, "--server", address),
        stdout=asyncio.subprocess.DEVNULL,
    )
    async with asyncio.timeout(DEADLINE_S):
        assert await process.wait() == 0


def test_one_command_after_another_is_one_publisher(servers: Servers, tmp_path: Path) -> None:
    """Each process was a publisher of its own, with its id in its name, and none is forgotten."""
    first, second = pair(servers, tmp_path)
    for number in range(4):
        asyncio.run(command(first.address, "publish", "orders", str(number)))
    for server in (first, second):
        found = server.journal()
        assert len({publisher for publisher, _ in found}) == 1
        numbers = sorted(number for _, number in found)
        assert numbers == list(range(numbers[0], numbers[0] + 4))
