"""Two regions, each on a Ray cluster of its own, that replicate to each other by address.

Then everything of one cluster is killed while it is published to: Ray, instances, links. Clients go
on at the other, and when the lost cluster is started again each region has everything, once.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from raylay import EPOCH, Client, Fabric, Topic
from raylay.services.fabric.plan import free_port

ORDERS = 2_000
OTHER = {"east": "west", "west": "east"}


def declare(region: str, ports: list[int], other_ports: list[int]) -> Fabric:
    """One region's fabric: a hot pair, and the other cluster's instances by their addresses."""
    fabric = Fabric(region, topics=[Topic("orders", "json")]).region(region, instances=2)
    for number in (1, 2):
        fabric.instance(
            f"{region}-{number}", client_port=ports[number - 1], replication_port=ports[number + 1]
        )
        fabric.destination(
            f"{region}-{number}",
            to=[f"127.0.0.1:{port}" for port in other_ports[2:]],
            group=OTHER[region],
            pass_through=f"^{region}$",
            own_group_only=True,
        )
    return fabric


def serve(region: str, directory: str, ports: list[int]) -> None:
    """A process of its own: starts Ray and the region's fabric, until its input ends."""
    own, other = ports[:4], ports[4:]
    with declare(region, own, other).start(Path(directory) / region) as fabric:
        print("ready", flush=True)
        sys.stdin.read()
        fabric.stop()


class Cluster:
    """A region's Ray cluster with all its processes, in a session of their own."""

    def __init__(self, region: str, directory: str, ports: list[int]) -> None:
        arguments = [sys.executable, __file__, region, directory, *map(str, ports)]
        self.process = subprocess.Popen(
            arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )

    def wait_ready(self) -> None:
        """Returns when its instances admit clients."""
        assert self.process.stdout is not None
        if self.process.stdout.readline() != b"ready\n":
            raise SystemExit("the cluster did not start: it says why above")

    def kill(self) -> int:
        """SIGKILL to every process of the cluster; returns how many there were."""
        killed = 0
        for status in Path("/proc").glob("[0-9]*/stat"):
            try:
                session = int(status.read_text().rpartition(")")[2].split()[3])
                if session == self.process.pid:
                    os.kill(int(status.parent.name), signal.SIGKILL)
                    killed += 1
            except (OSError, ValueError):
                continue
        self.process.wait()
        return killed

    def stop(self) -> None:
        """Ends the fabric and its Ray."""
        self.process.communicate()


async def publish(client: Client, first: int) -> None:
    """Half of the orders, each acknowledged when both instances of a region have it on disk."""
    for number in range(first, first + ORDERS // 2):
        await client.publish("orders", b'{"order": %d}' % number)
    await client.flush()


async def count(region: str, ports: list[int]) -> int:
    """How many different orders a region has; waits for all of them."""
    found: list[bytes] = []
    async with Client(f"{region}-reader", [f"127.0.0.1:{port}" for port in ports]) as client:
        async for batch in (await client.subscribe("orders", bookmark=EPOCH)).batches():
            found += [bytes(message.body) for message in batch]
            if len(set(found)) >= ORDERS:
                break
    assert len(found) == len(set(found)), "an order came twice"
    return len(found)


async def main(directory: str) -> None:
    """Publishes half in the east, loses the east, publishes the rest; counts in both."""
    taken: set[int] = set()
    ports = {region: [free_port(taken) for _ in range(4)] for region in OTHER}

    def started(region: str) -> Cluster:
        return Cluster(region, directory, ports[region] + ports[OTHER[region]])

    clusters = {region: started(region) for region in OTHER}
    try:
        for cluster in clusters.values():
            await asyncio.to_thread(cluster.wait_ready)
        servers = [f"127.0.0.1:{port}" for region in OTHER for port in ports[region][:2]]
        # The west may lack what crossed last: it comes when the east's disks are back.
        async with Client("shop", servers, allow_other_groups=True, failover="any") as shop:
            await publish(shop, 0)
            print(f"{ORDERS // 2} orders at {shop.instance}")
            print(f"killed all {clusters['east'].kill()} processes of the east")
            await publish(shop, ORDERS // 2)
            print(f"{ORDERS // 2} orders more at {shop.instance}")
        clusters["east"] = started("east")
        await asyncio.to_thread(clusters["east"].wait_ready)
        for region in OTHER:
            print(f"{region}: {await count(region, ports[region][:2])} of {ORDERS} orders")
    finally:
        for cluster in clusters.values():
            cluster.stop()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        serve(sys.argv[1], sys.argv[2], [int(port) for port in sys.argv[3:]])
    else:
        with tempfile.TemporaryDirectory(prefix="raylay-") as place:
            asyncio.run(main(place))
