"""A test system fed one way from production: real messages go there, and nothing comes back."""

from __future__ import annotations

import asyncio

from raylay import EPOCH, Fabric, Topic

MESSAGES = 1_000


def declare() -> Fabric:
    """A production pair, and a test instance in a group of its own, so that no client of one fails
    over to the other."""
    fabric = Fabric("feed", topics=[Topic("prices", "json")])
    fabric.region("production", instances=2).instance("test", group="test")
    for name in ("production-1", "production-2"):
        fabric.destination(name, to=["test"], pass_through="^production$")
    return fabric


async def count(fabric: Fabric, group: str, expected: int) -> int:
    """Reads at a group until everything expected is there."""
    async with fabric.client(f"{group}-reader", group=group) as client:
        found = 0
        async for batch in (await client.subscribe("prices", bookmark=EPOCH)).batches():
            found += batch.count
            if found >= expected:
                break
        return found


async def main(fabric: Fabric) -> tuple[int, int]:
    """Publishes on both sides: the test side has both parts, production its own only."""
    async with fabric.client("trial", group="test") as trial:
        for number in range(MESSAGES):
            await trial.publish("prices", b'{"trial": %d}' % number)
        await trial.flush()
    async with fabric.client("market", group="production") as market:
        for number in range(MESSAGES):
            await market.publish("prices", b'{"price": %d}' % number)
        await market.flush()
    return await count(fabric, "production", MESSAGES), await count(fabric, "test", 2 * MESSAGES)


if __name__ == "__main__":
    with declare().start() as feed:
        feed.wait_connected()
        production, test = asyncio.run(main(feed))
        print(f"production has {production} prices, test has {test} with its own")
