"""Spark over the network: a million messages of a running pair, alone and beside a publisher of
20,000 messages a second, whose acks count.

    python benchmarks/pipeline_network.py SERVER NICE     reads once for each line of its input

Spark is a process of its own. Its executors belong on other hosts, for which this machine stands
too: in the figures `_yielding` Spark takes only the processor time that the pair and the publisher
leave. Parts with a read and parts without one come in turn while the publisher goes on, and so do
parts beside processes that only count, at the lowest priority: what the acks lose there they lose
to a machine that is busy, whatever it does.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median

from context import Bench, Figure, body, publish_all
from failover import Acks

from raylay.services.client import Client
from raylay.services.hosts.latency import quantile

MESSAGES = 1_000_000
TOPIC, LIVE = "bench/network", "bench/network-live"
RATE = 20_000
TICK_S = 0.005
ALONE_S = 3.0
WARM_S = 1.0
PARTS = 3
"""Number of parts of each kind."""
NICE = 19
COUNTING = 4
"""Number of processes that only count: Spark has its two Python workers and some threads."""
COUNT_PROGRAM = "import os, sys; os.nice(int(sys.argv[1]))\nwhile True: pass"
END_S = 120
NAMES = (
    "pipeline_network",
    "pipeline_network_beside",
    "pipeline_network_ack_alone_ms_p99",
    "pipeline_network_ack_ms_p99",
    "pipeline_network_ack_p99",
    "pipeline_network_busy_ack_p99",
    "pipeline_network_yielding_beside",
    "pipeline_network_yielding_ack_p99",
)


class Reads:
    """A Spark of its own process that reads on request."""

    def __init__(self, server: str, nice: int) -> None:
        self._child = subprocess.Popen(
            [sys.executable, __file__, server, str(nice)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def read(self) -> float:
        """Reads all messages of the topic, and returns their number a second."""
        assert self._child.stdin is not None and self._child.stdout is not None
        print("read", file=self._child.stdin, flush=True)
        told = self._child.stdout.readline()
        assert told, "the reader over the network failed"
        return MESSAGES / float(told)

    def close(self) -> None:
        """Ends the process."""
        assert self._child.stdin is not None and self._child.stdout is not None
        self._child.stdin.close()
        self._child.stdout.close()
        assert self._child.wait(END_S) == 0


@contextmanager
def reads(server: str, nice: int = 0) -> Iterator[Reads]:
    """A reader that has read once, so that Spark has compiled what it runs."""
    made = Reads(server, nice)
    try:
        made.read()
        yield made
    finally:
        made.close()


@contextmanager
def counting() -> Iterator[None]:
    """Processes that only count, at the lowest priority."""
    command = [sys.executable, "-c", COUNT_PROGRAM, str(NICE)]
    children = [subprocess.Popen(command) for _ in range(COUNTING)]
    try:
        yield
    finally:
        for child in children:
            child.kill()
            child.wait()


async def pipeline_network(bench: Bench) -> list[Figure]:
    """See the top of this file."""
    fabric = bench.fabric("network", 2)
    server = fabric.servers()[0].address
    async with bench.client(fabric) as client:
        await publish_all(client, TOPIC, body(128), MESSAGES)
    with reads(server) as reader:
        alone = max([await asyncio.to_thread(reader.read) for _ in range(PARTS)])
        beside = await _beside(bench, reader)
    with reads(server, NICE) as reader:
        yielding = await _beside(bench, reader)
    bench.stop("network")
    return [
        Figure(NAMES[0], alone, "messages/s"),
        Figure(NAMES[1], median(beside.rates), "messages/s"),
        Figure(NAMES[2], median(beside.alone), "ms"),
        Figure(NAMES[3], median(beside.reading), "ms"),
        Figure(NAMES[4], median(beside.reading) / median(beside.alone), "of that without"),
        Figure(NAMES[5], median(beside.counting) / median(beside.alone), "of that without"),
        Figure(NAMES[6], median(yielding.rates), "messages/s"),
        Figure(NAMES[7], median(yielding.reading) / median(yielding.alone), "of that without"),
    ]


@dataclass(frozen=True, slots=True)
class _Parts:
    """Rates of reads in messages a second, and the p99 of acks in ms in the parts of each kind."""

    rates: list[float] = field(default_factory=list)
    alone: list[float] = field(default_factory=list)
    reading: list[float] = field(default_factory=list)
    counting: list[float] = field(default_factory=list)


async def _beside(bench: Bench, reader: Reads) -> _Parts:
    fabric = bench.fabric("network", 2)
    acks = Acks()
    ended = asyncio.Event()
    found = _Parts()

    async def part(times: list[float], work: Awaitable[object]) -> None:
        from_s = time.time()
        await work
        times.append(quantile(acks.between(from_s, time.time()), 0.99))

    async def read() -> None:
        found.rates.append(await asyncio.to_thread(reader.read))

    async with bench.client(fabric, on_persisted=acks.persisted) as client:
        loading = asyncio.create_task(_load(client, acks, ended))
        await asyncio.sleep(WARM_S)
        for _ in range(PARTS):
            await part(found.alone, asyncio.sleep(ALONE_S))
            await part(found.reading, read())
            with counting():
                await part(found.counting, asyncio.sleep(ALONE_S))
        ended.set()
        await loading
        await client.flush()
    return found


async def _load(client: Client, acks: Acks, ended: asyncio.Event) -> None:
    """Publishes at a steady rate."""
    message = body(128)
    started_s, sent = time.perf_counter(), 0
    while not ended.is_set():
        due = int((time.perf_counter() - started_s) * RATE) + 1 - sent
        began_s = time.time()
        for _ in range(due):
            last = await client.publish(LIVE, message)
        if due:
            acks.waiting.append((last, began_s, due))
            sent += due
        await asyncio.sleep(TICK_S)


def answer(server: str, nice: int) -> None:
    """Reads once for each line of the input, and tells the seconds that it took."""
    from raylay.services.pipeline import session

    os.nice(nice)
    spark = session(app="raylay bench", log_level="OFF")
    rows = spark.read.format("raylay").options(servers=server, topic=f"^{TOPIC}$", columns="body")
    try:
        for _ in sys.stdin:
            began_s = time.perf_counter()
            found = rows.load().count()
            assert found == MESSAGES, found
            print(time.perf_counter() - began_s, flush=True)
    finally:
        spark.stop()


if __name__ == "__main__":
    answer(sys.argv[1], int(sys.argv[2]))
