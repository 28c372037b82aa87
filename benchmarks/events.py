"""The cost of event topics, for acks of clients that have nothing to do with them.

An instance without Ray. In each part 1,000 clients connect and log on, 200 a second, while one
publisher waits for the ack of each message. In some parts a client subscribes to
`/AMPS/ClientStatus`; compared are the medians of the parts' figures.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from context import Bench, Figure, body
from publishers import Process

from raylay.services.client import Client
from raylay.services.config.instance import InstanceConfig, split_address
from raylay.services.hosts.latency import quantile
from raylay.services.messages.event_topics import CLIENT_STATUS
from raylay.services.protocol.frames import FrameReader, encode_frame
from raylay.services.telemetry.logs import LogOptions

PARTS = 4
"""Number of parts with a subscriber, and of parts without one."""
CLIENTS = 1_000
CLIENTS_PER_S = 200
TOPIC = "bench/events"
NAMES = ("events_watched_ack_p50", "events_watched_ack_p99")


class Crowd:
    """The clients that connect, in a process of their own.

    Args:
        address: address of the instance.
    """

    def __init__(self, address: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def say(self, command: str) -> str:
        """Has a command performed, and returns the answer to it."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline().strip()
        assert answer, "the clients' process has ended"
        return answer

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


async def part(client: Client, crowd: Crowd, message: bytes, *, watched: bool) -> list[float]:
    """Returns the milliseconds to each ack of a part."""
    if watched:
        await asyncio.to_thread(crowd.say, "watch")
    coming = asyncio.create_task(asyncio.to_thread(crowd.say, "come"))
    took_ms = []
    while not coming.done():
        began_s = time.perf_counter()
        await client.publish(TOPIC, message)
        await client.flush()
        took_ms.append((time.perf_counter() - began_s) * 1000)
    await coming
    seen = int(await asyncio.to_thread(crowd.say, "go"))
    assert not watched or seen >= 2 * CLIENTS, f"{seen} events of {CLIENTS} clients came"
    return took_ms


async def events_watched(bench: Bench) -> list[Figure]:
    """Clients that connect while somebody wants to know, against nobody."""
    watched: list[list[float]] = []
    alone: list[list[float]] = []
    message = body(128)
    memory = Path("/dev/shm")
    place = memory if os.access(memory, os.W_OK) else bench.directory
    with tempfile.TemporaryDirectory(dir=place) as directory:
        config = InstanceConfig("solo", "g", first=True, log=LogOptions(target="none"))
        instance = Process(Path(directory) / "solo", config)
        try:
            address = instance.ask()["status"]["client_address"]
            crowd = Crowd(address)
            async with Client("publisher", servers=[address]) as client:
                await part(client, crowd, message, watched=False)
                for number in range(2 * PARTS):
                    is_watched = number % 4 in (1, 2)  # none always comes behind the other
                    found = await part(client, crowd, message, watched=is_watched)
                    (watched if is_watched else alone).append(found)
            crowd.stop()
        finally:
            instance.stop()

    def ratio(share: float) -> float:
        one, other = (
            quantile([quantile(each, share) for each in parts], 0.5) for parts in (watched, alone)
        )
        return one / other

    return [
        Figure("events_watched_ack_p50", ratio(0.5), "ratio"),
        Figure("events_watched_ack_p99", ratio(0.99), "ratio"),
    ]


# -- the process of the clients --------------------------------------------------------------------
class _RawClient:
    """A client that says what it has to, and counts the messages that come."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.frames = FrameReader()
        self.messages = 0

    @classmethod
    async def logged_on(cls, address: str, name: str) -> _RawClient:
        made = cls(*await asyncio.open_connection(*split_address(address)))
        await made.asked({"c": "logon", "v": 1, "client_name": name, "low": 0, "cid": "1"})
        return made

    async def asked(self, command: dict[str, object]) -> None:
        """Sends a command, and waits for its answer."""
        self.writer.write(encode_frame(command, b""))
        while not self._took(await self.reader.read(1 << 18), str(command["cid"])):
            pass

    def _took(self, data: bytes, command_id: str) -> bool:
        assert data, "the instance closed the connection"
        found = False
        for header, _ in self.frames.feed(data):
            self.messages += header.get("n", 1) if header["c"] == "p" else 0
            found |= header.get("cid") == command_id
        return found

    async def read(self) -> None:
        while data := await self.reader.read(1 << 18):
            self._took(data, "")


async def _crowd(address: str) -> None:
    watcher: _RawClient | None = None
    reading: asyncio.Task[None] | None = None
    present: list[_RawClient] = []
    rounds = 0
    while command := (await asyncio.to_thread(sys.stdin.readline)).strip():
        if command == "watch":
            watcher = await _RawClient.logged_on(address, "watcher")
            await watcher.asked({"c": "subscribe", "cid": "2", "sub": "s", "t": CLIENT_STATUS})
            reading = asyncio.create_task(watcher.read())
        elif command == "come":
            rounds += 1
            began_s = time.monotonic()
            for number in range(CLIENTS):
                await asyncio.sleep(began_s + number / CLIENTS_PER_S - time.monotonic())
                present.append(await _RawClient.logged_on(address, f"c-{rounds}-{number}"))
        else:
            seen = 0 if watcher is None else watcher.messages
            for each in (*present, *([] if watcher is None else [watcher])):
                each.writer.close()
            present, watcher = [], None
            if reading is not None:
                reading.cancel()
            print(seen, flush=True)
            continue
        print("done", flush=True)


if __name__ == "__main__":
    asyncio.run(_crowd(sys.argv[1]))
