"""A pool of workers in two regions, and one queue: the workers of one region are killed, and those
of the other one take over."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections import Counter

from raylay import Client, Fabric

ORDERS = 1_000
WORKERS = 2
"""In each region."""
BACKLOG = 5
"""Orders that a worker may hold."""
BETWEEN_S = 0.002
TIMEOUT_S = 60.0

Done = Counter[tuple[str, str]]
"""How often each order was done, by region and bookmark."""


def declare() -> Fabric:
    """Two regions that replicate to each other, and a queue over both."""
    queue = {
        "name": "work",
        "message_type": "json",
        "underlying": "orders",
        "lease": "10s",
        "subscription_backlog_max": BACKLOG,
    }
    fabric = Fabric("workers", topics=[{"name": "orders", "message_type": "json"}], queues=[queue])
    fabric.region("east", instances=1).region("west", instances=1)
    return fabric.connect_regions("async")


class Worker:
    """A process in a region, as a person starts one: it prints each order and acknowledges it."""

    def __init__(self, region: str, address: str, done: Done) -> None:
        self.region = region
        self.command = ["subscribe", "work", "--backlog", str(BACKLOG), "--json"]
        self.command += ["--server", address]
        self.done = done

    async def start(self) -> Worker:
        """Starts it."""
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "raylay.services.cli", *self.command,
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        self.reading = asyncio.create_task(self._read())
        return self

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            # Of a worker that is killed the last line may be cut off.
            with contextlib.suppress(ValueError):
                self.done[self.region, json.loads(line)["bookmark"]] += 1

    async def kill(self) -> None:
        """Kills it, whatever it does."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()
        await self.reading


async def until_there(shop: Client, count: int) -> None:
    """Waits until the queue has so many consumers where the shop is."""
    while (await shop.queue_status("work"))["subscriptions"] < count:
        await asyncio.sleep(0.05)


async def main(fabric: Fabric) -> Done:
    """Publishes in the east, and kills the workers there in the middle. Waits for the rest."""
    done: Done = Counter()
    east, west = (
        [Worker(region, fabric.servers(region)[0].address, done) for _ in range(WORKERS)]
        for region in ("east", "west")
    )
    async with (
        asyncio.timeout(TIMEOUT_S),
        fabric.client("shop", group="east") as shop,
        fabric.client("shop-west", group="west") as shop_west,
    ):
        await asyncio.gather(*(worker.start() for worker in east + west))
        try:
            await until_there(shop, WORKERS)
            await until_there(shop_west, WORKERS)
            for number in range(ORDERS):
                if number == ORDERS // 2:
                    await asyncio.gather(*(worker.kill() for worker in east))
                await shop.publish("orders", b'{"order": %d}' % number)
                await asyncio.sleep(BETWEEN_S)
            await shop.flush()
            while (await shop.queue_status("work")).get("queue_depth") != 0:
                await asyncio.sleep(0.1)
        finally:
            await asyncio.gather(*(worker.kill() for worker in east + west))
    return done


def verdict(done: Done) -> list[str]:
    """What became of the orders, for people."""
    by_region = Counter(region for region, _ in done)
    times = Counter[str]()
    for (_, bookmark), count in done.items():
        times[bookmark] += count
    again = sum(count > 1 for count in times.values())
    is_right = len(times) == ORDERS and again <= WORKERS * BACKLOG
    return [
        f"east did {by_region['east']} orders until its workers were killed",
        f"west did {by_region['west']}",
        f"{len(times)} of {ORDERS} orders are done, {again} of them twice: "
        + ("ok" if is_right else "WRONG"),
    ]


if __name__ == "__main__":
    with declare().start() as pool:
        pool.wait_connected()
        print("\n".join(verdict(asyncio.run(main(pool)))))
