"""What one client that reads 1 byte a second costs 100 others that read at once.

An instance without Ray, its data in memory and with real-time scheduling where that is allowed, so
that what else uses disk and processors counts for little. Parts with the slow client and parts
without it come in turn: compared are the medians of the parts' figures, which one stall of the
machine does not reach. The slow client is offline before a part with it begins.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple, cast

from context import Bench, Figure
from memory import anonymous_mb
from publishers import Process

from raylay.services.capacity.config import CapacityConfig
from raylay.services.client import Client
from raylay.services.config.instance import InstanceConfig, split_address
from raylay.services.hosts.latency import quantile
from raylay.services.protocol.frames import encode_frame
from raylay.services.telemetry.logs import LogOptions

MIB = 1024 * 1024
OTHERS = 100
RATE = 100
"""Messages a second, each to all of them."""
PART_S = 2.0
PARTS = 8
"""Of each kind."""
WARM_S = 0.5
BODY_BYTES = 128
MEMORY_BYTES = 4 * MIB
FILL_MESSAGES = 10_000
TOPIC, FILL = "bench/beside", "bench/fill"
PRIORITY = 10
RECEIVE_BYTES = 64 * 1024
NAMES = (
    "slow_beside_alone_ms_p99",
    "slow_beside_ms_p99",
    "slow_beside_p99",
    "slow_beside_p50",
    "slow_beside_processor",
    "slow_beside_alone_long_turns",
    "slow_beside_long_turns",
    "slow_beside_memory_mb",
)
_STAMP = re.compile(rb"@(\d{19})@")
_STAMP_BYTES = 21


class Part(NamedTuple):
    """What was measured in one part: times to the readers, the instance's processor time a message,
    and its turns above 5 ms of processor time."""

    took_ms: list[float]
    processor_us: float
    long_turns: int


def give_precedence(pid: int) -> None:
    """A process comes before all that have no real-time scheduling; what it starts has none. Where
    this is not allowed, nothing happens."""
    policy = os.SCHED_FIFO | os.SCHED_RESET_ON_FORK
    for thread in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(PermissionError, ProcessLookupError):
            os.sched_setscheduler(int(thread), policy, os.sched_param(PRIORITY))


def logon(name: str) -> bytes:
    """The first frame of a client."""
    return encode_frame({"c": "logon", "v": 1, "client_name": name, "low": 0, "cid": "1"})


def subscribe(topic: str) -> bytes:
    """Its second frame."""
    return encode_frame({"c": "subscribe", "sub": "s", "t": topic, "a": "processed", "cid": "2"})


class Reader(asyncio.Protocol):
    """One of those that read at once. It finds the instant in each body and looks at nothing
    else."""

    def __init__(self, number: int, took_ms: list[float]) -> None:
        self._number = number
        self._took_ms = took_ms
        self._rest = b""
        self._transport: asyncio.Transport
        self._answers = 0
        self.received = 0
        self.begun = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Logs on."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(logon(f"reader-{self._number}"))

    def data_received(self, data: bytes) -> None:
        """An answer, one after the other, then messages."""
        if not self.begun.done():
            self._answers += 1
            if self._answers == 1:
                self._transport.write(subscribe(TOPIC))
            else:
                self.begun.set_result(None)
            return
        now_ns = time.perf_counter_ns()
        data = self._rest + data
        end = 0
        for found in _STAMP.finditer(data):
            self._took_ms.append((now_ns - int(found[1])) / 1e6)
            self.received += 1
            end = found.end()
        self._rest = data[max(end, len(data) - _STAMP_BYTES + 1) :]


class Beside:
    """The instance, its readers, and the client that publishes."""

    def __init__(self, instance: Process, client: Client, address: str) -> None:
        self._instance = instance
        self._client = client
        self._address = address
        self._took_ms: list[float] = []
        self._readers: list[Reader] = []
        self._published = 0
        self._slows = 0

    async def begin(self) -> None:
        """All are there."""
        loop = asyncio.get_running_loop()
        host, port = split_address(self._address)
        for number in range(OTHERS):
            reader = Reader(number, self._took_ms)
            await loop.create_connection(lambda made=reader: made, host, port)  # type: ignore[misc]
            await reader.begun
            self._readers.append(reader)
        await self._publish(PART_S)

    async def ask(self) -> dict[str, Any]:
        """What the instance says of itself."""
        return await asyncio.to_thread(self._instance.ask)

    async def _is_offline(self) -> bool:
        return bool((await self.ask())["status"]["capacity"][0]["offline"])

    async def _publish(self, seconds: float) -> None:
        """At a steady rate; until all have all of it."""
        rest = b"x" * (BODY_BYTES - 42) + b'"}'
        began_s, total = time.perf_counter(), int(RATE * seconds)
        for sent in range(1, total + 1):
            stamp = b'{"at": "@%019d@", "text": "' % time.perf_counter_ns()
            await self._client.publish(TOPIC, stamp + rest)
            await asyncio.sleep(max(0.0, began_s + sent / RATE - time.perf_counter()))
        self._published += total
        while any(each.received < self._published for each in self._readers):
            await asyncio.sleep(0.001)

    async def part(self) -> Part:
        """Measures one."""
        await self._publish(WARM_S)
        self._took_ms.clear()
        before = await self.ask()
        await self._publish(PART_S)
        after = await self.ask()
        used_s = after["processor_s"] - before["processor_s"]
        took_ms = list(self._took_ms)
        return Part(took_ms, used_s * 1e6 / (RATE * PART_S), after["long_turns"])

    @asynccontextmanager
    async def a_slow_one(self) -> AsyncIterator[None]:
        """A slow client beside the others, which is offline from the beginning on."""
        self._slows += 1
        loop = asyncio.get_running_loop()
        with socket.socket() as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
            slow.connect(split_address(self._address))
            slow.sendall(logon(f"slow-{self._slows}"))
            slow.recv(RECEIVE_BYTES)
            slow.sendall(subscribe(f"^({TOPIC}|{FILL})$"))
            slow.recv(RECEIVE_BYTES)
            slow.setblocking(False)
            while not await self._is_offline():
                for _ in range(FILL_MESSAGES):
                    await self._client.publish(FILL, b"x" * BODY_BYTES)
                await self._client.flush()

            async def read() -> None:
                while await loop.sock_recv(slow, 1):
                    await asyncio.sleep(1.0)

            reading = asyncio.create_task(read())
            yield
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        while await self._is_offline():
            await asyncio.sleep(0.01)


async def slow_beside(bench: Bench) -> list[Figure]:
    """The others' times and the instance's processor time, with a slow one against without it."""
    alone: list[Part] = []
    beside: list[Part] = []
    memory = Path("/dev/shm")
    place = memory if os.access(memory, os.W_OK) else bench.directory
    with tempfile.TemporaryDirectory(dir=place) as directory:
        capacity = CapacityConfig(memory_bytes_max=MEMORY_BYTES, client_share=1.0)
        quiet = LogOptions(target="none")
        config = InstanceConfig("solo", "g", first=True, capacity=capacity, log=quiet)
        instance = Process(Path(directory) / "solo", config)
        address = instance.ask()["status"]["client_address"]
        before = os.sched_getscheduler(0), os.sched_getparam(0)
        give_precedence(instance.pid)
        give_precedence(os.getpid())
        try:
            async with Client("publisher", servers=[address]) as client:
                fabric = Beside(instance, client, address)
                await fabric.begin()
                memory_mb = anonymous_mb(instance.pid)
                for number in range(2 * PARTS):
                    if number % 4 in (0, 3):  # none of the two always comes behind the other
                        alone.append(await fabric.part())
                    else:
                        async with fabric.a_slow_one():
                            beside.append(await fabric.part())
                memory_mb = anonymous_mb(instance.pid) - memory_mb
        finally:
            with contextlib.suppress(PermissionError):
                os.sched_setscheduler(0, *before)
            instance.stop()
    kinds = alone, beside
    p50s, p99s = (
        [quantile([quantile(each.took_ms, share) for each in parts], 0.5) for parts in kinds]
        for share in (0.5, 0.99)
    )
    used = [quantile([each.processor_us for each in parts], 0.5) for parts in kinds]
    return [
        Figure("slow_beside_alone_ms_p99", p99s[0], "ms"),
        Figure("slow_beside_ms_p99", p99s[1], "ms"),
        Figure("slow_beside_p99", p99s[1] / p99s[0], "ratio"),
        Figure("slow_beside_p50", p50s[1] / p50s[0], "ratio"),
        Figure("slow_beside_processor", used[1] / used[0], "ratio"),
        Figure("slow_beside_alone_long_turns", sum(each.long_turns for each in alone), "turns"),
        Figure("slow_beside_long_turns", sum(each.long_turns for each in beside), "turns"),
        Figure("slow_beside_memory_mb", memory_mb, "MB"),
    ]
