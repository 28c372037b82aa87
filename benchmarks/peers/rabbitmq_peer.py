"""RabbitMQ: three nodes; a quorum queue a topic, and a stream where several read it or from its
beginning, as its documents advise for both."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from peer import (
    POLL_S,
    START_S_MAX,
    Bodies,
    Peer,
    Publisher,
    QueueConsumer,
    Server,
    free_ports,
    until,
)

NODES = 3
PREFETCH = 2_000
ACK_EVERY = 500
SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
"""The program itself: that in PATH changes to a user of its own."""


class RabbitPublisher(Publisher):
    """Publisher confirms, a task a message."""

    def __init__(self, peer: RabbitMQ, topic: str) -> None:
        super().__init__()
        self._peer = peer
        self._topic = topic
        self._connection: Any = None
        self._channel: Any = None
        self._properties: Any = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._connecting = asyncio.Lock()

    async def connect(self, failed: Any = None) -> None:
        """Opens a channel, to another node where the one that failed was the last."""
        from pamqp.commands import Basic

        async with self._connecting:
            if failed is not self._channel:
                return
            self._connection = await self._peer.connect()
            self._channel = await self._connection.channel(publisher_confirms=True)
            self._properties = Basic.Properties(delivery_mode=2, message_id="m")

    async def publish(self, body: bytes) -> None:
        self.sent += 1
        task = asyncio.create_task(self._confirmed(self.sent, body))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _confirmed(self, number: int, body: bytes) -> None:
        while True:
            channel = self._channel
            try:
                await channel.basic_publish(
                    body, routing_key=self._topic, properties=self._properties
                )
                break
            except (Exception, asyncio.CancelledError):
                if self._connection is None:
                    return
                # A failover: what was not confirmed is sent again to another node.
                try:
                    await self.connect(channel)
                except Exception:
                    await asyncio.sleep(POLL_S)
        self.count_acked(1, number)

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        await connection.close()


class RabbitConsumer(QueueConsumer):
    """A consumer with a prefetch count of its backlog. It acknowledges half a backlog at once."""

    def __init__(self, connection: Any, backlog: int, took: Callable[[int], None]) -> None:
        self._connection = connection
        self._channel: Any = None
        self._backlog = backlog
        self._took = took
        self._latest = self._acknowledged = 0
        """The delivery tags of the latest message, and of the latest that it acknowledged."""

    async def begin(self, topic: str) -> None:
        """Subscribes."""
        self._channel = await self._connection.channel()
        await self._channel.basic_qos(prefetch_count=self._backlog)
        await self._channel.basic_consume(topic, self._take)

    async def _take(self, message: Any) -> None:
        self._latest = message.delivery.delivery_tag
        self._took(1)
        if self._latest - self._acknowledged >= max(1, self._backlog // 2):
            await self.settle()

    async def settle(self) -> None:
        if self._latest > self._acknowledged:
            self._acknowledged = self._latest
            await self._channel.basic_ack(self._latest, multiple=True)

    async def close(self) -> None:
        await self._connection.close()


class RabbitMQ(Peer):
    """Three nodes; a publisher is answered when two of them have synced a quorum queue's."""

    name = "rabbitmq"
    copies = "two of three disks (streams: two of three memories)"
    lacks = frozenset(("failover_by_age", "sow_publish", "sow_one", "sow_watch_1000"))

    def __init__(self) -> None:
        self._servers: list[Server] = []
        self._ports: list[int] = []
        self._epmd: Server | None = None
        self._environment: dict[str, str] = {}
        self._killed = 0
        self._streams: set[str] = set()
        self._consumed: dict[str, int] = {}

    @staticmethod
    def missing() -> str:
        if not SERVER.exists() or shutil.which("epmd") is None:
            return "no rabbitmq-server: sudo apt-get install rabbitmq-server"
        return "" if find_spec("aiormq") else "no aio-pika: make bench-peers installs it"

    async def start(self, directory: Path) -> None:
        (directory / "home").mkdir(parents=True)
        (epmd,) = free_ports(1)
        self._ports = free_ports(NODES)
        self._environment = {"HOME": str(directory / "home"), "ERL_EPMD_PORT": str(epmd)}
        self._epmd = Server(["epmd", "-port", str(epmd)], directory / "epmd.log", self._environment)
        distribution = free_ports(NODES)
        nodes = "".join(
            f"cluster_formation.classic_config.nodes.{number + 1} = bench{number}@localhost\n"
            for number in range(NODES)
        )
        for number, port in enumerate(self._ports):
            place = directory / f"rabbitmq-{number}"
            place.mkdir()
            (place / "plugins").write_text("[].\n")
            (place / "rabbitmq.conf").write_text(
                f"listeners.tcp.1 = 127.0.0.1:{port}\n"
                f"cluster_formation.peer_discovery_backend = classic_config\n{nodes}"
            )
            environment = {
                **self._environment,
                "RABBITMQ_NODENAME": f"bench{number}@localhost",
                "RABBITMQ_DIST_PORT": str(distribution[number]),
                "RABBITMQ_MNESIA_BASE": str(place / "data"),
                "RABBITMQ_LOG_BASE": str(place / "logs"),
                "RABBITMQ_CONFIG_FILE": str(place / "rabbitmq.conf"),
                "RABBITMQ_ENABLED_PLUGINS_FILE": str(place / "plugins"),
                "RABBITMQ_PID_FILE": str(place / "pid"),
                # The script becomes the server, which therefore has the pid that it was given.
                "RUNNING_UNDER_SYSTEMD": "1",
            }
            self._servers.append(Server([str(SERVER)], place / "log", environment))
            if not number:
                await until(lambda: (directory / "home" / ".erlang.cookie").exists(), "RabbitMQ")
        await self._all_online()

    async def _all_online(self) -> None:
        def online() -> bool:
            command = ["/usr/lib/rabbitmq/bin/rabbitmqctl", "-n", f"bench{self._first}@localhost"]
            done = subprocess.run(
                [*command, "await_online_nodes", str(NODES), "--timeout", "20"],
                env={"PATH": "/usr/bin:/bin", **self._environment},
                capture_output=True,
                timeout=START_S_MAX,
            )
            return done.returncode == 0

        async def answers() -> bool:
            for port in self._ports:
                await (await self.connect(port)).close()
            return await asyncio.to_thread(online)

        await until(answers, "the cluster of RabbitMQ")

    @property
    def _first(self) -> int:
        """The number of a node that was not killed last."""
        return (self._killed + 1) % NODES

    async def connect(self, port: int = 0) -> Any:
        """A connection to a node, or to the first one that answers."""
        import aiormq

        ports = [port] if port else [self._ports[(self._first + n) % NODES] for n in range(NODES)]
        for each in ports:
            try:
                return await aiormq.connect(f"amqp://guest:guest@127.0.0.1:{each}/")
            except (OSError, aiormq.exceptions.AMQPError):
                continue
        raise OSError("no node of RabbitMQ answers")

    async def stop(self) -> None:
        for server in (*self._servers, *([self._epmd] if self._epmd else [])):
            server.kill()

    def pids(self) -> list[int]:
        return [server.pid for server in self._servers]

    async def make_topic(self, topic: str, *, readable_again: bool = False) -> None:
        if readable_again:
            self._streams.add(topic)
        kind = "stream" if readable_again else "quorum"
        connection = await self.connect()
        channel = await connection.channel()
        await channel.queue_declare(topic, durable=True, arguments={"x-queue-type": kind})
        await connection.close()

    async def drop_topic(self, topic: str) -> None:
        connection = await self.connect()
        await (await connection.channel()).queue_delete(topic)
        await connection.close()

    async def held(self, topic: str) -> list[int]:
        # What each node says of the queue, and what was consumed without an acknowledgment.
        counts = []
        for port in self._ports:
            connection = await self.connect(port)
            channel = await connection.channel()
            declared = await channel.queue_declare(topic, passive=True)
            counts.append(int(declared.message_count or 0) + self._consumed.get(topic, 0))
            await connection.close()
        return counts

    async def publisher(self, topic: str) -> Publisher:
        publisher = RabbitPublisher(self, topic)
        await publisher.connect()
        return publisher

    async def subscribe(self, topic: str, bodies: Bodies) -> Callable[[], object]:
        if topic in self._streams:
            return await self._read_stream(topic, "next", bodies)
        connection = await self.connect()
        channel = await connection.channel()
        self._consumed[topic] = 0

        async def read(message: Any) -> None:
            self._consumed[topic] += 1
            bodies([message.body])

        await channel.basic_qos(prefetch_count=PREFETCH)
        await channel.basic_consume(topic, read, no_ack=True)
        return connection.close

    async def _read_stream(self, topic: str, offset: str, bodies: Bodies) -> Callable[[], object]:
        connection = await self.connect()
        channel = await connection.channel()
        await channel.basic_qos(prefetch_count=PREFETCH)
        received = 0

        async def read(message: Any) -> None:
            nonlocal received
            received += 1
            bodies([message.body])
            if received % ACK_EVERY == 0:
                await channel.basic_ack(message.delivery.delivery_tag, multiple=True)

        await channel.basic_consume(topic, read, arguments={"x-stream-offset": offset})
        return connection.close

    async def replay(self, topic: str, count: int) -> int:
        received = length_bytes = 0
        done = asyncio.Event()

        def read(found: list[bytes]) -> None:
            nonlocal received, length_bytes
            for each in found:
                if received < count:
                    received += 1
                    length_bytes += len(each)
            if received == count:
                done.set()

        end: Any = await self._read_stream(topic, "first", read)
        await done.wait()
        await end()
        return length_bytes

    async def make_queue(self, topic: str) -> str:
        await self.make_topic(topic)
        return topic

    async def consumer(
        self, topic: str, backlog: int, took: Callable[[int], None]
    ) -> QueueConsumer:
        consumer = RabbitConsumer(await self.connect(), backlog, took)
        await consumer.begin(topic)
        return consumer

    async def left(self, topic: str) -> int:
        connection = await self.connect()
        declared = await (await connection.channel()).queue_declare(topic, passive=True)
        await connection.close()
        return int(declared.message_count or 0)

    async def fail(self, topic: str) -> Callable[[], object]:
        # Publishers use the first node, and a queue is led where it was declared: there.
        victim = self._first

        def kill() -> None:
            self._killed = victim
            self._servers[victim].kill()

        return kill

    async def mend(self) -> None:
        self._servers[self._killed] = self._servers[self._killed].again()
        await self._all_online()
