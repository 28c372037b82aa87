"""Messages a second from `publish()` to the persisted ack, as the caller sees it."""

from __future__ import annotations

import asyncio
import time

from context import Bench, Figure, best_of, body, publish_all

from raylay.services.fabric import Fabric

WARM_UP = 20_000
RUNS = 3


async def _measure(
    bench: Bench, fabric: Fabric, publishers: int, body_bytes: int, messages: int
) -> float:
    message = body(body_bytes)
    clients = [bench.client(fabric) for _ in range(publishers)]
    await asyncio.gather(*(client.connect() for client in clients))
    each = messages // publishers

    async def run() -> float:
        started_s = time.perf_counter()
        await asyncio.gather(
            *(
                publish_all(client, f"bench/{number}", message, each)
                for number, client in enumerate(clients)
            )
        )
        return each * publishers / (time.perf_counter() - started_s)

    await asyncio.gather(
        *(publish_all(client, "bench/warm", message, WARM_UP // publishers) for client in clients)
    )
    value = await best_of(RUNS, run)
    await asyncio.gather(*(client.close() for client in clients))
    return value


async def single_persisted_128B_1pub(bench: Bench) -> list[Figure]:
    """One instance, one publisher."""
    value = await _measure(bench, bench.single(), 1, 128, 400_000)
    return [Figure("single_persisted_128B_1pub", value, "messages/s")]


async def pair_persisted_128B_1pub(bench: Bench) -> list[Figure]:
    """A sync pair, one publisher: each message is on both disks."""
    value = await _measure(bench, bench.pair(), 1, 128, 400_000)
    return [Figure("pair_persisted_128B_1pub", value, "messages/s")]


async def pair_persisted_128B_4pub(bench: Bench) -> list[Figure]:
    """A sync pair, four publishers."""
    value = await _measure(bench, bench.pair(), 4, 128, 400_000)
    return [Figure("pair_persisted_128B_4pub", value, "messages/s")]


async def pair_persisted_1KiB_1pub(bench: Bench) -> list[Figure]:
    """A sync pair, one publisher, bodies of 1 KiB."""
    value = await _measure(bench, bench.pair(), 1, 1024, 150_000)
    return [Figure("pair_persisted_1KiB_1pub", value, "messages/s")]
