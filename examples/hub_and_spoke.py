"""Hub and spoke: publishers at a pair of ingestion instances, a pair of hubs that only pass on, and
applications that read at instances of their own. A hub is killed meanwhile; every reader has all.

    in-1 <=sync=> in-2        publishers fail over between these
      | sync  \\/  sync |
    hub-1 <=sync=> hub-2      no clients: only replication
      | async \\/ async |
    desk           risk       readers; nothing goes back
"""

from __future__ import annotations

import asyncio

from raylay.services.client import EPOCH
from raylay.services.fabric import Fabric, Topic

ORDERS = 2_000
READERS = ("desk", "risk")


def declare() -> Fabric:
    """Links from each ingestion instance to the hubs and from each hub to each reader."""
    fabric = Fabric("spokes", topics=[Topic("orders", "json")], downgrade_age="500ms")
    ingestion, hubs = ["in-1", "in-2"], ["hub-1", "hub-2"]
    fabric.region("ingestion", ingestion).region("hub", hubs)
    for name in ingestion:
        # What the partner took for the publishers goes by the partner's own link.
        fabric.destination(name, to=hubs, name="hub", sync=True)
    for name in READERS:
        fabric.instance(name, group=name)
        for hub in hubs:
            fabric.destination(hub, to=[name], pass_through="^(ingestion|hub)$")
    return fabric


async def read(fabric: Fabric, group: str) -> int:
    """What a reader finds at its instance."""
    async with fabric.client(f"{group}-reader", group=group) as client:
        received = 0
        async for batch in (await client.subscribe("orders", bookmark=EPOCH)).batches():
            received += batch.count
            if received >= ORDERS:
                break
        return received


async def main(fabric: Fabric) -> list[int]:
    """Publishes, kills a hub half way, reads at both spokes."""
    async with fabric.client("desk-writer", group="ingestion") as writer:
        for number in range(ORDERS):
            if number == ORDERS // 2:
                await asyncio.to_thread(fabric.kill, "hub-1")
            await writer.publish("orders", b'{"order": %d}' % number)
        await writer.flush()
    return list(await asyncio.gather(*(read(fabric, group) for group in READERS)))


if __name__ == "__main__":
    with declare().start() as spokes:
        spokes.wait_connected()
        for reader, count in zip(READERS, asyncio.run(main(spokes)), strict=True):
            print(f"{reader}: {count} of {ORDERS} orders")
