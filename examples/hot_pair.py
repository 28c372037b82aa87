"""Two instances that replicate to each other synchronously; one is killed, nothing is lost."""

from __future__ import annotations

import asyncio

from raylay import EPOCH, Fabric, Topic

MESSAGES = 2_000


def declare() -> Fabric:
    """A group of two; while one is away for longer than 500 ms, publishers go on with the other."""
    fabric = Fabric("pair", topics=[Topic("sales", "json")], downgrade_age="500ms")
    return fabric.region("shop", instances=2)


async def main(fabric: Fabric) -> int:
    """Publishes half, kills the instance that answers, publishes the rest, reads all back."""
    async with fabric.client("till") as till:
        for number in range(MESSAGES):
            if number == MESSAGES // 2:
                await till.flush()
                await asyncio.to_thread(fabric.kill, till.instance)
            await till.publish("sales", b'{"sale": %d}' % number)
        await till.flush()  # durable on both, or on the one that is left
        received = 0
        sales = await till.subscribe("sales", bookmark=EPOCH)
        async for batch in sales.batches():
            received += batch.count
            if received >= MESSAGES:
                return received
    return received


if __name__ == "__main__":
    with declare().start() as pair:
        pair.wait_connected()
        print(f"{asyncio.run(main(pair))} of {MESSAGES} sales read back after the kill")
