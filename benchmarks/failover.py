"""What a SIGKILL costs: until acks go on, and until the killed instance has everything again, with
and without live traffic beside it."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import deque

from context import Bench, Figure, body, publish_all

from raylay.services.client import Client
from raylay.services.fabric import Fabric
from raylay.services.hosts.latency import quantile

KILLS = 20
GAPS = ("failover_gap_ms_p50", "failover_gap_ms_p95")
GAPS_BY_AGE = ("failover_by_age_gap_ms_p50", "failover_by_age_gap_ms_p95")
LOAD_TICK_S = 0.002
LOAD_A_TICK = 20
BEHIND = 1_000_000
LIVE_PER_S = 20_000
LIVE_TICK_S = 0.001
LIVE_BEFORE_S = 2.0
LIVE_AFTER_S = 1.0
POLL_S = 0.1
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


async def _gaps(bench: Bench, fabric: Fabric, names: tuple[str, str]) -> list[Figure]:
    gaps_ms = []
    for _ in range(KILLS):
        gaps_ms.append(await _gap_ms(bench, fabric))
        await asyncio.to_thread(fabric.wait_ready)
        await asyncio.to_thread(fabric.wait_connected)
    values = quantile(gaps_ms, 0.5), quantile(gaps_ms, 0.95)
    return [Figure(name, value, "ms") for name, value in zip(names, values, strict=True)]


async def failover_gap_ms(bench: Bench) -> list[Figure]:
    """SIGKILL of the instance under load to the first persisted ack on the survivor, 20 times: of a
    pair that downgrades by evidence, and of one that waits for the age."""
    by_evidence = await _gaps(bench, bench.failover_pair(), GAPS)
    return by_evidence + await _gaps(bench, bench.failover_pair(by_evidence=False), GAPS_BY_AGE)


async def _fall_behind(bench: Bench, fabric: Fabric, topic: str) -> tuple[str, str]:
    """One instance goes away and misses a million messages. Returns (who has them, who is away)."""
    async with bench.client(fabric) as client:
        await publish_all(client, topic, body(128), 1)
        survivor = client.instance
        away = next(s.instance for s in fabric.servers() if s.instance != survivor)
        await asyncio.to_thread(fabric.kill, away, restart=False)
        await publish_all(client, topic, body(128), BEHIND)
    return survivor, away


async def _link_times_us(fabric: Fabric, survivor: str, away: str, began_us: int) -> dict[str, int]:
    """When the survivor last reported each of its events about the other one."""
    events = await asyncio.to_thread(lambda: list(fabric.events(after_us=began_us)))
    return {
        event["event"]: event["time_us"]
        for event in events
        if event["instance"] == survivor and event.get("destination") == away
    }


async def resync_1M_behind(bench: Bench) -> list[Figure]:
    """An instance comes back a million messages behind: from the link's logon to caught up."""
    fabric = bench.failover_pair()
    survivor, away = await _fall_behind(bench, fabric, "bench/resync")
    began_us = time.time_ns() // 1000
    await asyncio.to_thread(fabric.restart, away)
    await asyncio.to_thread(fabric.wait_connected)
    at_us = await _link_times_us(fabric, survivor, away, began_us)
    seconds = (at_us["link_caught_up"] - at_us["link_connected"]) / 1e6
    return [Figure("resync_1M_behind", BEHIND / seconds, "messages/s")]


class Acks:
    """How long each publish waited for its persisted ack. Publishes of one tick share a time."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[int, float, int]] = deque()
        """(last sequence, when the tick began, messages)."""
        self.took: list[tuple[float, float, int]] = []
        """(when the ack came, how long it took in ms, messages)."""

    def persisted(self, upto: int) -> None:
        """`on_persisted` of the client."""
        now_s = time.time()
        while self.waiting and self.waiting[0][0] <= upto:
            _, began_s, messages = self.waiting.popleft()
            self.took.append((now_s, (now_s - began_s) * 1000, messages))

    async def publish(
        self, client: Client, topic: str, message: bytes, per_s: int, ended: asyncio.Event
    ) -> None:
        """Publishes so many messages a second until `ended` is set."""
        started_s, sent = time.perf_counter(), 0
        while not ended.is_set():
            due = int((time.perf_counter() - started_s) * per_s) + 1 - sent
            began_s = time.time()
            for _ in range(due):
                last = await client.publish(topic, message)
            if due:
                self.waiting.append((last, began_s, due))
                sent += due
            await asyncio.sleep(LIVE_TICK_S)

    def between(self, from_s: float, to_s: float) -> list[float]:
        """A value in ms for each message that was published or acknowledged in this time."""
        return [
            took_ms
            for at_s, took_ms, messages in self.took
            if from_s <= at_s and at_s - took_ms / 1000 <= to_s
            for _ in range(messages)
        ]


async def resync_live(bench: Bench) -> list[Figure]:
    """The same while 20,000 messages a second are published at the instance that sends it all:
    acks count from the link's logon until a second after its destination is sync again, and, to
    compare, of the second before the other one is started (`alone`)."""
    fabric = bench.failover_pair()
    survivor, away = await _fall_behind(bench, fabric, "bench/resync-live")
    acks = Acks()
    message = body(128)
    ended = asyncio.Event()
    async with bench.client(fabric, on_persisted=acks.persisted) as client:
        assert client.instance == survivor
        publishing = acks.publish(client, "bench/resync-live", message, LIVE_PER_S, ended)
        loading = asyncio.create_task(publishing)
        await asyncio.sleep(LIVE_BEFORE_S)
        began_us = time.time_ns() // 1000
        await asyncio.to_thread(fabric.restart, away)
        at_us: dict[str, int] = {}
        deadline_s = time.monotonic() + TIMEOUT_S
        while not {"link_connected", "link_caught_up", "upgraded"} <= set(at_us):
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{away} has not caught up: {at_us}")
            await asyncio.sleep(POLL_S)
            at_us = await _link_times_us(fabric, survivor, away, began_us)
        await asyncio.sleep(LIVE_AFTER_S)
        ended.set()
        await loading
        await client.flush()
    connected_s, caught_up_s = at_us["link_connected"] / 1e6, at_us["link_caught_up"] / 1e6
    during_ms = acks.between(connected_s, at_us["upgraded"] / 1e6 + LIVE_AFTER_S)
    rate = BEHIND / (caught_up_s - connected_s)
    alone_ms = acks.between(began_us / 1e6 - LIVE_BEFORE_S / 2, began_us / 1e6)
    return [
        Figure("resync_live", rate, "messages/s"),
        Figure("resync_live_ack_alone_ms_p99", quantile(alone_ms, 0.99), "ms"),
        Figure("resync_live_ack_ms_p50", quantile(during_ms, 0.5), "ms"),
        Figure("resync_live_ack_ms_p99", quantile(during_ms, 0.99), "ms"),
    ]
