"""Redis: a stream a topic, on a primary and a replica that both sync every write (`appendfsync
always`), and `WAIT 1` behind each pipeline; three sentinels for the failover."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from peer import KEY, Bodies, Peer, Publisher, QueueConsumer, Reader, Server, free_ports, until

BLOCK_MS = 1_000
BATCH = 500
"""Of a publisher with a window of 1,000: one pipeline is written while the next one fills."""
READ_COUNT = 1_000
DOWN_AFTER_MS = 500


Commands = Callable[[str, bytes], tuple[tuple[Any, ...], ...]]


def _to_stream(topic: str, body: bytes) -> tuple[tuple[Any, ...], ...]:
    return (("XADD", topic, "*", "b", body),)


def _to_hash(topic: str, body: bytes) -> tuple[tuple[Any, ...], ...]:
    return (("HSET", topic, body[KEY], body),)


def _to_hash_and_watchers(topic: str, body: bytes) -> tuple[tuple[Any, ...], ...]:
    return (("HSET", topic, body[KEY], body), ("PUBLISH", topic, body))


class RedisPublisher(Publisher):
    """What is handed over while a pipeline is under way goes with the next one."""

    def __init__(
        self, connect: Callable[[], Any], topic: str, commands: Commands = _to_stream
    ) -> None:
        super().__init__()
        self._commands = commands
        self._connect = connect
        self._redis = connect()
        self._topic = topic
        # Without a limit of time: an ack is two copies. Of what is left after a failover it is one.
        self._wait = ("WAIT", 1, 0)
        self._pending: list[bytes] = []
        self._more = asyncio.Event()
        self._writing = asyncio.create_task(self._write())

    async def publish(self, body: bytes) -> None:
        self._pending.append(body)
        self.sent += 1
        self._more.set()
        if len(self._pending) >= BATCH:
            await asyncio.sleep(0)

    async def one(self, body: bytes) -> None:
        self.sent += 1
        await self._pipeline([body])
        self.count_acked(1)

    async def _pipeline(self, bodies: list[bytes]) -> None:
        pipeline = self._redis.pipeline(transaction=False)
        for body in bodies:
            for command in self._commands(self._topic, body):
                pipeline.execute_command(*command)
        pipeline.execute_command(*self._wait)
        found = await pipeline.execute()
        assert found[-1] >= self._wait[1], found[-1]

    async def _write(self) -> None:
        from redis.exceptions import RedisError

        while True:
            await self._more.wait()
            self._more.clear()
            bodies, self._pending = self._pending, []
            while bodies:
                try:
                    await self._pipeline(bodies)
                except (RedisError, OSError):
                    # A failover: what was not acknowledged is sent again to the new primary.
                    self._wait = ("WAIT", 0, 0)
                    await self._redis.aclose()
                    await asyncio.sleep(0.01)
                    self._redis = self._connect()
                    continue
                self.count_acked(len(bodies))
                bodies = []

    async def close(self) -> None:
        self._writing.cancel()
        await self._redis.aclose()


class RedisReader(Reader):
    """A client that asks a hash."""

    def __init__(self, redis: Any, topic: str) -> None:
        self._redis = redis
        self._topic = topic

    async def get(self, key: str) -> bytes:
        body: bytes = await self._redis.hget(self._topic, key)
        return body

    async def close(self) -> None:
        await self._redis.aclose()


class RedisConsumer(QueueConsumer):
    """A consumer of a group. It acknowledges what it has taken in the round trip that asks for
    more."""

    def __init__(
        self, redis: Any, topic: str, number: int, backlog: int, took: Callable[[int], None]
    ) -> None:
        self._redis = redis
        self._topic = topic
        self._ask = (
            *("XREADGROUP", "GROUP", "workers", f"c{number}", "COUNT", backlog),
            *("BLOCK", BLOCK_MS, "STREAMS", topic, ">"),
        )
        self._took = took
        self._taking = asyncio.create_task(self._take())

    async def _take(self) -> None:
        taken: list[bytes] = []
        while True:
            pipeline = self._redis.pipeline(transaction=False)
            if taken:
                pipeline.execute_command("XACK", self._topic, "workers", *taken)
            pipeline.execute_command(*self._ask)
            *_, found = await pipeline.execute()
            taken = [entry[0] for entries in _entries(found) for entry in entries]
            if taken:
                self._took(len(taken))

    async def settle(self) -> None:
        # Asked, since the answer to XACK comes behind that of an XREADGROUP that waits. With the
        # last message taken, the server knows of those before: the task has sent its XACK.
        async with self._redis.client() as asking:
            while (await asking.xpending(self._topic, "workers"))["pending"]:
                await asyncio.sleep(0)

    async def close(self) -> None:
        self._taking.cancel()
        await self._redis.aclose()


class Redis(Peer):
    """A primary, its replica, and three sentinels that a failover needs."""

    name = "redis"
    copies = "both disks"
    lacks = frozenset(("failover_by_age",))

    def __init__(self) -> None:
        self._servers: dict[int, Server] = {}
        self._sentinels: dict[int, Server] = {}
        self._killed = 0
        self._consumers = 0
        self._directory = Path()

    @staticmethod
    def missing() -> str:
        if shutil.which("redis-server") is None:
            return "no redis-server: sudo apt-get install redis-server"
        return "" if find_spec("redis") else "no redis-py: make bench-peers installs it"

    async def start(self, directory: Path) -> None:
        primary, replica = free_ports(2)
        self._directory = directory
        self._serve(primary)
        self._serve(replica, of=primary)
        for port in (primary, replica):
            await self._answers(port)
        await self._linked(primary)
        for port in free_ports(3):
            place = directory / f"sentinel-{port}"
            place.mkdir()
            (place / "sentinel.conf").write_text(
                f"port {port}\nbind 127.0.0.1\ndir {place}\n"
                f"sentinel monitor bench 127.0.0.1 {primary} 2\n"
                f"sentinel down-after-milliseconds bench {DOWN_AFTER_MS}\n"
                "sentinel failover-timeout bench 2000\n"
            )
            self._sentinels[port] = Server(
                ["redis-server", str(place / "sentinel.conf"), "--sentinel"], place / "log"
            )
        for port in self._sentinels:
            await self._answers(port)
            await until(lambda port=port: self._knows_all(port), "Redis Sentinel")

    def _serve(self, port: int, of: int = 0) -> None:
        place = self._directory / f"redis-{port}"
        place.mkdir(parents=True, exist_ok=True)
        command = [
            *("redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", str(place)),
            *("--appendonly", "yes", "--appendfsync", "always", "--save", ""),
            *("--repl-diskless-sync-delay", "0"),
        ]
        if of:
            command += ["--replicaof", f"127.0.0.1 {of}"]
        self._servers[port] = Server(command, place / "log")

    async def _ask(self, port: int, *command: Any) -> Any:
        from redis.asyncio import Redis as Connection
        from redis.exceptions import RedisError

        async with Connection(port=port) as connection:
            try:
                return await connection.execute_command(*command)
            except RedisError as error:
                raise OSError(str(error)) from None

    async def _answers(self, port: int) -> None:
        await until(lambda: self._ask(port, "PING"), f"redis-server on port {port}")

    async def _linked(self, primary: int) -> None:
        async def linked() -> bool:
            replication = await self._ask(primary, "INFO", "replication")
            return bool(
                replication["role"] == "master"
                and replication.get("slave0", {}).get("state") == "online"
            )

        await until(linked, "the replica of Redis")

    async def _knows_all(self, port: int) -> bool:
        found = await self._ask(port, "SENTINEL", "MASTER", "bench")
        state = (
            found if isinstance(found, dict) else dict(zip(found[::2], found[1::2], strict=True))
        )
        state = {_text(key): _text(value) for key, value in state.items()}
        return int(state["num-other-sentinels"]) == 2 and int(state["num-slaves"]) >= 1

    async def _primary(self) -> int:
        for port in self._sentinels:
            answer = await self._ask(port, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", "bench")
            return int(answer[1])
        raise AssertionError("no sentinel")

    async def stop(self) -> None:
        for server in (*self._sentinels.values(), *self._servers.values()):
            server.kill()

    def pids(self) -> list[int]:
        return [server.pid for server in self._servers.values()]

    async def make_topic(self, topic: str, *, readable_again: bool = False) -> None:
        pass

    async def drop_topic(self, topic: str) -> None:
        await self._ask(await self._primary(), "DEL", topic)

    async def held(self, topic: str) -> list[int]:
        return [int(await self._ask(port, "XLEN", topic)) for port in self._servers]

    def _connect(self) -> Any:
        from redis.asyncio.sentinel import Sentinel

        sentinel = Sentinel([("127.0.0.1", port) for port in self._sentinels], socket_timeout=1.0)
        return sentinel.master_for("bench", socket_timeout=None)

    async def publisher(self, topic: str) -> Publisher:
        return RedisPublisher(self._connect, topic)

    async def subscribe(self, topic: str, bodies: Bodies) -> Callable[[], object]:
        redis = self._connect()
        await redis.ping()
        ready = asyncio.Event()

        async def read() -> None:
            last: Any = "$"
            newest = await redis.execute_command("XREVRANGE", topic, "+", "-", "COUNT", 1)
            last = newest[0][0] if newest else "0"
            ready.set()
            while True:
                found = await redis.xread({topic: last}, count=READ_COUNT, block=60_000)
                for entries in _entries(found):
                    last = entries[-1][0]
                    bodies([fields[b"b"] for _, fields in entries])

        reading = asyncio.create_task(read())
        await ready.wait()

        async def end() -> None:
            reading.cancel()
            await redis.aclose()

        return end

    async def replay(self, topic: str, count: int) -> int:
        redis = self._connect()
        received = length_bytes = 0
        last: Any = "0"
        while received < count:
            for entries in _entries(await redis.xread({topic: last}, count=READ_COUNT)):
                last = entries[-1][0]
                received += len(entries)
                for _, fields in entries:
                    length_bytes += len(fields[b"b"])
        await redis.aclose()
        return length_bytes

    async def make_state(self, topic: str) -> None:
        pass

    async def drop_state(self, topic: str) -> None:
        await self.drop_topic(topic)

    async def keys_held(self, topic: str) -> list[int]:
        return [int(await self._ask(port, "HLEN", topic)) for port in self._servers]

    async def state_publisher(self, topic: str, *, watched: bool) -> Publisher:
        return RedisPublisher(self._connect, topic, _to_hash_and_watchers if watched else _to_hash)

    async def reader(self, topic: str) -> Reader:
        return RedisReader(self._connect(), topic)

    async def watch(self, topic: str, bodies: Bodies) -> Callable[[], object]:
        redis = self._connect()
        channel = redis.pubsub(ignore_subscribe_messages=True)
        await channel.subscribe(topic)

        async def read() -> None:
            async for message in channel.listen():
                bodies([message["data"]])

        reading = asyncio.create_task(read())

        async def end() -> None:
            reading.cancel()
            await channel.aclose()
            await redis.aclose()

        return end

    async def make_queue(self, topic: str) -> str:
        await self._ask(
            await self._primary(), "XGROUP", "CREATE", topic, "workers", "0", "MKSTREAM"
        )
        return topic

    async def consumer(
        self, topic: str, backlog: int, took: Callable[[int], None]
    ) -> QueueConsumer:
        self._consumers += 1
        return RedisConsumer(self._connect(), topic, self._consumers, backlog, took)

    async def left(self, topic: str) -> int:
        found = await self._ask(await self._primary(), "XPENDING", topic, "workers")
        return int(found["pending"] if isinstance(found, dict) else found[0])

    async def fail(self, topic: str) -> Callable[[], object]:
        self._killed = await self._primary()
        return self._servers[self._killed].kill

    async def mend(self) -> None:
        (survivor,) = (port for port in self._servers if port != self._killed)
        self._serve(self._killed, of=survivor)
        await self._answers(self._killed)
        await self._linked(survivor)
        for port in self._sentinels:
            await until(lambda port=port: self._knows_all(port), "Redis Sentinel")


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _entries(found: Any) -> list[Any]:
    """The lists of entries of what XREAD returns, in either protocol of Redis."""
    if isinstance(found, dict):
        return [entries for lists in found.values() for entries in lists if entries]
    return [entries for _, entries in found or () if entries]
