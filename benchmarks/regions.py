"""What single messages cost on the fabric of three regions: six instances, eighteen links.

One publisher a region, at 30, 300 and 3,000 messages/s in all. Beside the times of the acks: the
processor time of all instances and links, and how often one of their threads slept, which is how
often it was woken. An idle process of Ray is woken, too, 100 times a second: what nobody published
is measured first, and taken off the wake-ups of a message, not off its processor time. What as many
bare actors take meanwhile, which nothing but fewer processes could spare, is taken off in a figure
of its own.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import ray
from context import Bench, Figure, body

from raylay.services.client import Client
from raylay.services.fabric import Fabric, Topic
from raylay.services.hosts.latency import quantile

SITES = ("Chicago", "NewYork", "London")
RATES = (30, 300, 3_000)
LOAD_S = 8.0
WARM_UP_S = 1.0
IDLE_S = 8.0
SETTLE_S = 3.0
NAMES = (
    "regions_idle_cores",
    "regions_idle_of_actors",
    *(
        f"regions_{rate}_{name}"
        for rate in RATES
        for name in (
            "ack_ms_p50",
            "ack_ms_p99",
            "processor_ms",
            "above_actors_ms",
            "wake_ups",
        )
    ),
)


class _Idle:
    """An actor of which nothing is asked."""

    def pid(self) -> int:
        """Of its process."""
        return os.getpid()


def three_regions(bench: Bench) -> Fabric:
    """As `make demo` has it, downgrade Age 5 s."""
    found = Fabric(
        "regions",
        topics=[Topic("bench/.*")],
        downgrade_age="5s",
        tracing={"directory": "traces"},
        logs={"target": "file", "level": "warning"},
    )
    for site in SITES:
        found.region(site, instances=2)
    found.connect_regions("async")
    found.start(bench.directory / "regions")
    found.wait_connected()
    return found


def processes(fabric: Fabric) -> list[int]:
    """Of its instances and links."""
    pids = []
    for instance in fabric.status()["instances"]:
        pids.append(instance["pid"])
        pids += [destination["pid"] for destination in instance["destinations"].values()]
    return pids


def _of_threads(pids: Iterable[int], file: str, value: Callable[[str], int]) -> int:
    total = 0
    for pid in pids:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            try:
                total += value((thread / file).read_text(encoding="utf-8", errors="replace"))
            except (FileNotFoundError, ProcessLookupError):
                pass  # It ended meanwhile.
    return total


def _slept(status: str) -> int:
    return int(status.partition("\nvoluntary_ctxt_switches:")[2].split(maxsplit=1)[0])


class Spent:
    """Processor time of processes and wake-ups of their threads, from its making on."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._pids = list(pids)
        self._before = self._now()

    def _now(self) -> tuple[float, int, int]:
        processor_ns = _of_threads(self._pids, "schedstat", lambda found: int(found.split()[0]))
        return time.perf_counter(), processor_ns, _of_threads(self._pids, "status", _slept)

    def per_second(self) -> tuple[float, float]:
        """(seconds of processor time a second, wake-ups a second)."""
        before, now = self._before, self._now()
        seconds = now[0] - before[0]
        return (now[1] - before[1]) / 1e9 / seconds, (now[2] - before[2]) / seconds


class _Publisher:
    """One client at a steady rate; times count from when a message was due."""

    def __init__(self, bench: Bench, fabric: Fabric, site: str) -> None:
        self.took_ms: list[float] = []
        self._due_s: dict[int, float] = {}
        """By sequence, in their order."""
        self.client: Client = bench.client(fabric, group=site, on_persisted=self._persisted)
        self._topic = f"bench/{site}"

    def _persisted(self, upto: int) -> None:
        now_s = time.perf_counter()
        due_s = self._due_s
        while due_s and next(iter(due_s)) <= upto:
            self.took_ms.append((now_s - due_s.pop(next(iter(due_s)))) * 1000)

    async def run(self, rate: float, seconds: float, shift_s: float) -> None:
        message = body(128)
        start_s = time.perf_counter() + shift_s
        for number in range(int(rate * seconds)):
            due_s = start_s + number / rate
            delay_s = due_s - time.perf_counter()
            if delay_s > 0:
                await asyncio.sleep(delay_s)
            self._due_s[self.client.last_sequence + 1] = due_s
            await self.client.publish(self._topic, message)
        await self.client.flush()


async def regions(bench: Bench) -> list[Figure]:
    """Idle beside as many bare actors, then under each rate."""
    fabric = await asyncio.to_thread(three_regions, bench)
    try:
        pids = await asyncio.to_thread(processes, fabric)
        figures, idle_wakes, bare_cores = await _idle(pids)
        publishers = [_Publisher(bench, fabric, site) for site in SITES]
        await asyncio.gather(*(each.client.connect() for each in publishers))
        for rate in RATES:
            figures += await _under(publishers, pids, rate, idle_wakes, bare_cores)
        for each in publishers:
            await each.client.close()
    finally:
        await asyncio.to_thread(fabric.stop)
    return figures


async def _idle(pids: list[int]) -> tuple[list[Figure], float, float]:
    actor: Any = ray.remote(num_cpus=0)(_Idle)
    bare = [actor.remote() for _ in pids]
    theirs = await asyncio.to_thread(lambda: ray.get([each.pid.remote() for each in bare]))
    await asyncio.sleep(SETTLE_S)
    ours, others = Spent(pids), Spent(theirs)
    await asyncio.sleep(IDLE_S)
    (cores, wakes), (bare_cores, _) = ours.per_second(), others.per_second()
    for each in bare:
        ray.kill(each)
    figures = [
        Figure("regions_idle_cores", cores, "cores"),
        Figure("regions_idle_of_actors", cores / bare_cores, "of as many bare actors"),
    ]
    return figures, wakes, bare_cores


async def _under(
    publishers: list[_Publisher], pids: list[int], rate: int, idle_wakes: float, bare_cores: float
) -> list[Figure]:
    async def run(seconds: float) -> None:
        each = rate / len(publishers)
        await asyncio.gather(
            *(
                publisher.run(each, seconds, number / rate)
                for number, publisher in enumerate(publishers)
            )
        )

    await run(WARM_UP_S)
    for publisher in publishers:
        publisher.took_ms.clear()
    spent = Spent(pids)
    await run(LOAD_S)
    cores, wakes = spent.per_second()
    took_ms = [each for publisher in publishers for each in publisher.took_ms]
    name = f"regions_{rate}"
    return [
        Figure(f"{name}_ack_ms_p50", quantile(took_ms, 0.5), "ms"),
        Figure(f"{name}_ack_ms_p99", quantile(took_ms, 0.99), "ms"),
        Figure(f"{name}_processor_ms", cores / rate * 1000, "ms a message"),
        Figure(f"{name}_above_actors_ms", (cores - bare_cores) / rate * 1000, "ms a message"),
        Figure(f"{name}_wake_ups", (wakes - idle_wakes) / rate, "a message"),
    ]
