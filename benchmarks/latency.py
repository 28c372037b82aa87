"""Times of single messages on the sync pair."""

from __future__ import annotations

import asyncio
import time

from context import Bench, Figure, body, publish_all
from regions import Spent, processes

from raylay.services.hosts.latency import quantile

WINDOW_1_MESSAGES = 1_500
NAMES = tuple(
    f"pair_ack_window1_{name}" for name in ("ms_p50", "ms_p99", "processor_ms", "wake_ups")
)
DELIVERY_S = 6.0
TICK_S = 0.001


async def pair_ack_window1_ms(bench: Bench) -> list[Figure]:
    """From `publish()` to the persisted ack, one message at a time."""
    message = body(128)
    took_ms = []
    async with bench.client(bench.pair()) as client:
        await publish_all(client, "bench/window", message, 100)
        pids = await asyncio.to_thread(processes, bench.pair())
        spent = Spent(pids)
        for _ in range(WINDOW_1_MESSAGES):
            started_s = time.perf_counter()
            await client.publish("bench/window", message)
            await client.flush()
            took_ms.append((time.perf_counter() - started_s) * 1000)
        cores, wakes = spent.per_second()
    rate = 1000 * len(took_ms) / sum(took_ms)
    return [
        Figure("pair_ack_window1_ms_p50", quantile(took_ms, 0.5), "ms"),
        Figure("pair_ack_window1_ms_p99", quantile(took_ms, 0.99), "ms"),
        Figure("pair_ack_window1_processor_ms", cores / rate * 1000, "ms a message"),
        Figure("pair_ack_window1_wake_ups", wakes / rate, "a message"),
    ]


async def _deliver(bench: Bench, rate: int) -> list[Figure]:
    """From `publish()` to the subscriber, at a steady rate; an ordinary subscription."""
    fabric = bench.pair()
    took_ms: list[float] = []
    async with bench.client(fabric) as reader, bench.client(fabric) as client:
        subscription = await reader.subscribe(f"bench/deliver-{rate}")

        async def read() -> None:
            async for batch in subscription.batches():
                now_s = time.perf_counter()
                for each in batch.bodies():
                    took_ms.append((now_s - float(each[:20])) * 1000)

        reading = asyncio.create_task(read())
        total = int(rate * DELIVERY_S)
        topic, rest = f"bench/deliver-{rate}", b"x" * 108
        started_s = time.perf_counter()
        sent = 0
        while sent < total:
            now_s = time.perf_counter()
            for _ in range(min(total, int((now_s - started_s) * rate) + 1) - sent):
                stamp = f"{time.perf_counter():020.9f}".encode()
                await client.publish(topic, stamp + rest)
                sent += 1
            await asyncio.sleep(TICK_S)
        await client.flush()
        while len(took_ms) < total:
            await asyncio.sleep(TICK_S)
        reading.cancel()
    steady = took_ms[rate // 2 :]  # the first half second warms up
    return [
        Figure(f"deliver_{rate}_ms_p50", quantile(steady, 0.5), "ms"),
        Figure(f"deliver_{rate}_ms_p99", quantile(steady, 0.99), "ms"),
    ]


async def deliver_1000_ms(bench: Bench) -> list[Figure]:
    """At 1,000 messages/s."""
    return await _deliver(bench, 1_000)


async def deliver_10000_ms(bench: Bench) -> list[Figure]:
    """At 10,000 messages/s."""
    return await _deliver(bench, 10_000)
