"""What queues.py measures, on Redis: a stream with a consumer group, every write synced before its
answer (`appendfsync always`). Each consumer asks for as many messages as its backlog is, and
acknowledges them with one XACK in the round trip that asks for the next ones."""

from __future__ import annotations

import asyncio
import shutil
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
CLIENTS = HERE.parent / "build" / "peers"
"""Where `make bench-peers` puts the client of Redis."""
PIPELINE = 500
BLOCK_MS = 1_000
START_S_MAX = 10.0
TICK_S = 0.001


def missing() -> str:
    """Why it cannot be measured here; empty: it can."""
    if str(CLIENTS) not in sys.path:
        sys.path.append(str(CLIENTS))
    if shutil.which("redis-server") is None:
        return "no redis-server: sudo apt-get install redis-server"
    return "" if find_spec("redis") else "no client of Redis: make bench-peers installs it"


async def redis_queue(
    directory: Path,
    cases: Sequence[tuple[int, int]],
    messages: dict[int, int],
    runs: int,
    body: bytes,
) -> list[float]:
    """Messages a second of each case, published to acknowledged; none, and a line that says why,
    where there is no Redis.

    Args:
        cases: numbers of consumers, with their backlog.
        messages: by backlog.
    """
    if why := missing():
        print(f"bench: no figures of Redis: {why}", file=sys.stderr, flush=True)
        return []
    sys.path.append(str(HERE / "peers"))
    from peer import Server, free_ports, until
    from redis.asyncio import Redis

    (port,) = free_ports(1)
    directory.mkdir()
    server = Server(
        [
            *("redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", str(directory)),
            *("--appendonly", "yes", "--appendfsync", "always", "--save", ""),
        ],
        directory / "log",
    )
    try:
        async with Redis(port=port) as client:
            await until(client.ping, "redis-server")
            found = []
            for consumers, backlog in cases:
                rates = [
                    await _run(port, client, consumers, backlog, messages[backlog], body)
                    for _ in range(runs)
                ]
                found.append(max(rates))
            return found
    finally:
        server.kill()


async def _run(
    port: int, publisher: Any, consumers: int, backlog: int, messages: int, body: bytes
) -> float:
    from redis.asyncio import Redis

    await publisher.delete("work")
    await publisher.xgroup_create("work", "workers", id="0", mkstream=True)
    counts = [0] * consumers

    async def consume(number: int) -> None:
        async with Redis(port=port) as client:
            done: list[bytes] = []
            while True:
                pipeline = client.pipeline(transaction=False)
                if done:
                    pipeline.execute_command("XACK", "work", "workers", *done)
                pipeline.execute_command(
                    *("XREADGROUP", "GROUP", "workers", f"c{number}", "COUNT", backlog),
                    *("BLOCK", BLOCK_MS, "STREAMS", "work", ">"),
                )
                *_, got = await pipeline.execute()
                done = []
                if not got:
                    continue
                entries = got[b"work"][0] if isinstance(got, dict) else got[0][1]
                done = [entry[0] for entry in entries]
                counts[number] += len(done)

    async def publish() -> None:
        for first in range(0, messages, PIPELINE):
            pipeline = publisher.pipeline(transaction=False)
            for _ in range(min(PIPELINE, messages - first)):
                pipeline.execute_command("XADD", "work", "*", "b", body)
            await pipeline.execute()

    started_s = time.perf_counter()
    tasks = [asyncio.create_task(consume(number)) for number in range(consumers)]
    try:
        await publish()
        # Asked of the server: a consumer that waits for more hears of its last XACK a second later.
        while sum(counts) < messages or (await publisher.xpending("work", "workers"))["pending"]:
            await asyncio.sleep(TICK_S)
        seconds = time.perf_counter() - started_s
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    for error in ended:
        if isinstance(error, Exception):
            raise error
    assert sum(counts) == messages, f"{sum(counts)} of {messages}"
    return messages / seconds
