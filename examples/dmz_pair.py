"""A server in a demilitarized zone, which may not connect to the inside, and one inside, which may
connect to it: both replicate to each other over the connection that the inside makes."""

from __future__ import annotations

import asyncio

from raylay import EPOCH, Fabric, Topic

MESSAGES = 1_000


def declare() -> Fabric:
    """`web` has no address of `inside`: it waits to be connected to."""
    fabric = Fabric("dmz", topics=[Topic("orders", "json"), Topic("prices", "json")])
    fabric.instance("web").instance("inside")
    fabric.destination("web", to=["inside"], sync=True, dial=False)
    return fabric.destination("inside", to=["web"])


async def publish(fabric: Fabric, group: str, topic: str) -> None:
    """Publishes at one side; of orders each is acknowledged when it is on disk on both."""
    async with fabric.client(f"{topic}-publisher", group=group) as client:
        for number in range(MESSAGES):
            await client.publish(topic, b'{"number": %d}' % number)
        await client.flush()


async def count(fabric: Fabric, group: str, topic: str) -> int:
    """Reads at the other side until all of it is there."""
    async with fabric.client(f"{topic}-reader", group=group) as client:
        found = 0
        async for batch in (await client.subscribe(topic, bookmark=EPOCH)).batches():
            found += batch.count
            if found >= MESSAGES:
                break
        return found


async def main(fabric: Fabric) -> tuple[int, int]:
    """Publishes on both sides, while the process that holds the one connection is killed."""
    async with asyncio.TaskGroup() as group:
        group.create_task(publish(fabric, "web", "orders"))
        group.create_task(publish(fabric, "inside", "prices"))
        await asyncio.to_thread(fabric.kill_link, "inside", "web")
    return await count(fabric, "inside", "orders"), await count(fabric, "web", "prices")


if __name__ == "__main__":
    with declare().start() as dmz:
        dmz.wait_connected()
        orders, prices = asyncio.run(main(dmz))
        dmz.wait_connected()
        web, _ = dmz.status()["instances"]
        way = web["destinations"]["inside"]["address"]
        print(f"inside has {orders} orders, web has {prices} prices; web replicates {way}")
