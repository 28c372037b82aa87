"""Geographic replication: an instance in each region, where that region's clients publish and read,
and every message in every region. One region goes away and comes back; nobody else waits for it.

            NewYork
    async //       \\ async
    London == async == HongKong
"""

from __future__ import annotations

import asyncio

from raylay import EPOCH, Fabric, Topic

REGIONS = ("NewYork", "London", "HongKong")
TRADES = 1_000


def declare() -> Fabric:
    """Each instance replicates to the two others what was published in its own region."""
    fabric = Fabric("trading", topics=[Topic("trades", "json")])
    for region in REGIONS:
        fabric.region(region, [region])
    return fabric.connect_regions("async")


async def trade(fabric: Fabric, region: str) -> None:
    """Publishes in one region: acknowledged there, whatever the others do."""
    async with fabric.client(f"{region}-trader", group=region) as trader:
        for number in range(TRADES):
            await trader.publish(
                "trades", b'{"region": "%b", "trade": %d}' % (region.encode(), number)
            )
        await trader.flush()


async def read(fabric: Fabric, region: str) -> int:
    """What is found in a region, when all of it has come."""
    async with fabric.client(f"{region}-reader", group=region) as reader:
        found = 0
        async for batch in (await reader.subscribe("trades", bookmark=EPOCH)).batches():
            found += batch.count
            if found >= TRADES * len(REGIONS):
                break
        return found


async def main(fabric: Fabric) -> list[int]:
    """London's instance is away while the others trade, and comes back before London trades."""
    await asyncio.to_thread(fabric.kill, "London", restart=False)
    await asyncio.gather(trade(fabric, "NewYork"), trade(fabric, "HongKong"))
    await asyncio.to_thread(fabric.restart, "London")
    await trade(fabric, "London")
    return list(await asyncio.gather(*(read(fabric, region) for region in REGIONS)))


if __name__ == "__main__":
    with declare().start() as trading:
        trading.wait_connected()
        for where, count in zip(REGIONS, asyncio.run(main(trading)), strict=True):
            print(f"{where}: {count} of {TRADES * len(REGIONS)} trades")
