"""What a SIGKILL costs: until acks go on, and until the killed instance has everything again."""

from __future__ import annotations

import asyncio
import os
import signal
import time

from context import Bench, Figure, body, percentile, publish_all

from raylay.services.client import Client
from raylay.services.fabric import Fabric

KILLS = 5
LOAD_TICK_S = 0.002
LOAD_A_TICK = 20
BEHIND = 1_000_000
TIMEOUT_S = 60.0


class _Gap:
    """Watches the acks of one publisher around a kill."""

    def __init__(self) -> None:
        self.client: Client | None = None
        self.victim = ""
        self.killed_after = 0
        self.killed_at_s = 0.0
        self.resumed = asyncio.Event()
        self.gap_ms = 0.0

    def persisted(self, upto: int) -> None:
        """Counts the first ack, on the survivor, of a message published after the kill."""
        assert self.client is not None
        if self.victim and not self.resumed.is_set() and upto > self.killed_after:
            if self.client.instance in ("", self.victim):
                return
            self.gap_ms = (time.perf_counter() - self.killed_at_s) * 1000
            self.resumed.set()


async def _gap_ms(bench: Bench, fabric: Fabric) -> float:
    watch = _Gap()
    message = body(128)
    async with bench.client(fabric, on_persisted=watch.persisted) as client:
        watch.client = client

        async def load() -> None:
            while not watch.resumed.is_set():
                for _ in range(LOAD_A_TICK):
                    await client.publish("bench/failover", message)
                await asyncio.sleep(LOAD_TICK_S)

        loading = asyncio.create_task(load())
        await asyncio.sleep(0.5)
        victim = client.instance
        # The pid is asked for before the clock starts: the gap is the client's, not the driver's.
        pid = await asyncio.to_thread(fabric.pid, victim)
        watch.killed_after = client.last_sequence
        watch.killed_at_s = time.perf_counter()
        os.kill(pid, signal.SIGKILL)
        watch.victim = victim
        await asyncio.wait_for(watch.resumed.wait(), TIMEOUT_S)
        await loading
    return watch.gap_ms


async def failover_gap_ms(bench: Bench) -> list[Figure]:
    """SIGKILL of the instance under load to the first persisted ack on the survivor."""
    fabric = bench.failover_pair()
    gaps_ms = []
    for _ in range(KILLS):
        gaps_ms.append(await _gap_ms(bench, fabric))
        await asyncio.to_thread(fabric.wait_ready)
        await asyncio.to_thread(fabric.wait_connected)
    return [Figure("failover_gap_ms_p50", percentile(gaps_ms, 0.5), "ms")]


async def resync_1M_behind(bench: Bench) -> list[Figure]:
    """An instance comes back a million messages behind: from the link's logon to caught up."""
    fabric = bench.failover_pair()
    async with bench.client(fabric) as client:
        await publish_all(client, "bench/resync", body(128), 1)
        survivor = client.instance
        away = next(s.instance for s in fabric.servers() if s.instance != survivor)
        await asyncio.to_thread(fabric.kill, away, restart=False)
        await publish_all(client, "bench/resync", body(128), BEHIND)
    began_us = time.time_ns() // 1000
    await asyncio.to_thread(fabric.restart, away)
    await asyncio.to_thread(fabric.wait_connected)
    events = [
        event
        for event in await asyncio.to_thread(lambda: list(fabric.events(after_us=began_us)))
        if event["instance"] == survivor and event.get("destination") == away
    ]
    connected_us = [e["time_us"] for e in events if e["event"] == "link_connected"][-1]
    caught_up_us = [e["time_us"] for e in events if e["event"] == "link_caught_up"][-1]
    seconds = (caught_up_us - connected_us) / 1e6
    return [Figure("resync_1M_behind", BEHIND / seconds, "messages/s")]
