"""Hub and spoke: publishers at a pair of ingestion instances, a pair of hubs that only pass on, and
applications that read at instances of their own. While orders flow, a hub is killed, and later an
application is added, for which only the hubs are restarted. Every reader has every order.

    in-1 <=sync=> in-2        publishers fail over between these
      | sync  \\/  sync |
    hub-1 <=sync=> hub-2      no clients: only replication
      | async \\/ async |
    desk    risk    audit     readers; nothing goes back
"""

from __future__ import annotations

import asyncio

from raylay import EPOCH, Fabric, Topic

ORDERS = 3_000
READERS = ("desk", "risk")
LATER = "audit"


def declare(readers: tuple[str, ...] = READERS) -> Fabric:
    """Links from each ingestion instance to the hubs and from each hub to each reader."""
    fabric = Fabric("spokes", topics=[Topic("orders", "json")], downgrade_age="500ms")
    ingestion, hubs = ["in-1", "in-2"], ["hub-1", "hub-2"]
    fabric.region("ingestion", ingestion).region("hub", hubs)
    for name in ingestion:
        # What the partner took for the publishers goes by the partner's own link.
        fabric.destination(name, to=hubs, name="hub", sync=True)
    for name in readers:
        fabric.instance(name, group=name)
        for hub in hubs:
            fabric.destination(hub, to=[name], pass_through="^(ingestion|hub)$")
    return fabric


async def read(fabric: Fabric, group: str, orders: int) -> int:
    """What a reader finds at its instance, when all of it has come."""
    async with fabric.client(f"{group}-reader", group=group) as client:
        received = 0
        async for batch in (await client.subscribe("orders", bookmark=EPOCH)).batches():
            received += batch.count
            if received >= orders:
                break
        return received


async def main(fabric: Fabric) -> dict[str, int]:
    """Publishes on and on, kills a hub, adds a reader, reads at all spokes."""
    published = 0
    enough = asyncio.Event()

    async def publish() -> None:
        nonlocal published
        async with fabric.client("desk-writer", group="ingestion") as writer:
            while published < ORDERS or not enough.is_set():
                for _ in range(10):
                    await writer.publish("orders", b'{"order": %d}' % published)
                    published += 1
                await writer.flush()
                await asyncio.sleep(0.01)

    publishing = asyncio.create_task(publish())
    await asyncio.to_thread(fabric.kill, "hub-1")
    await asyncio.to_thread(fabric.wait_connected)
    done = await asyncio.to_thread(fabric.apply, declare((*READERS, LATER)))
    print(f"started {', '.join(done.started)}; restarted {', '.join(done.restarted)}")
    enough.set()
    await publishing
    readers = (*READERS, LATER)
    counts = await asyncio.gather(*(read(fabric, reader, published) for reader in readers))
    for reader, count in zip(readers, counts, strict=True):
        print(f"{reader}: {count} of {published} orders")
    return dict(zip(readers, counts, strict=True))


if __name__ == "__main__":
    with declare().start() as spokes:
        spokes.wait_connected()
        asyncio.run(main(spokes))
