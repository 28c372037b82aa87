"""Clients of a whole instance that do not read as fast as they are sent, without sockets of their
own: what they are sent is all there, once and in order, or they are told why not."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.waiting import until
from unit.server.clients.test_queries import (
    CONFIG,
    House,
    SlowTransport,
    ask,
    frames_until,
    in_house,
)
from unit.test_doors import Door

from raylay.services.capacity.config import CapacityConfig
from raylay.services.capacity.pool import Policy
from raylay.services.commands.status import slow_client_lines
from raylay.services.config.buffer import SlowClientBufferConfig
from raylay.services.config.instance import InstanceConfig
from raylay.services.net.framed import WriteQueue
from raylay.services.processes.slow_client_buffer.buffer_server import BufferServer
from raylay.services.protocol.frames import FrameReader, encode_frame
from raylay.services.server.clients import queries
from raylay.services.server.clients.buffered_connection import UNWEIGHED_BYTES, BufferedConnection
from raylay.services.server.clients.slow_clients import ClientPool

pytestmark = [
    pytest.mark.covers("Clients and protocol", "over the memory limit the largest goes offline"),
    pytest.mark.covers("Clients and protocol", "an offlined client gets all in order and once"),
]

MIB = 1024 * 1024
BODY_BYTES = 10_000


class Buffers:
    """Starts buffers on threads, as an instance starts their processes."""

    def __init__(self) -> None:
        self.started: list[RunningBuffer] = []
        self.fails = False
        self.may_start = threading.Event()
        self.may_start.set()

    def __call__(self, config: SlowClientBufferConfig) -> RunningBuffer:
        self.may_start.wait()
        if self.fails:
            raise OSError("there is no python here")
        buffer = RunningBuffer(config)
        # Before it runs: it may be connected before this thread goes on.
        self.started.append(buffer)
        buffer.begin()
        return buffer


class RunningBuffer:
    """One of them."""

    def __init__(self, config: SlowClientBufferConfig) -> None:
        self.config = config
        self.server = BufferServer(config)
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self.server.run()),  # type: ignore[arg-type]
            daemon=True,
        )

    def begin(self) -> None:
        """Starts its thread."""
        self._thread.start()

    def die(self) -> None:
        """As a kill ends it."""
        self.server._loop.call_soon_threadsafe(self.server._instance.abort, "killed")

    def kill(self) -> None:
        self._thread.join(10)


def in_slow_house(
    directory: Path,
    visit: Callable[[House, Buffers], Awaitable[None]],
    config: InstanceConfig = CONFIG,
    **limits: Any,
) -> None:
    buffers = Buffers()
    limits = {"memory_bytes_max": 4 * MIB, "client_share": 1.0} | limits
    config = replace(config, capacity=CapacityConfig(**limits))

    async def with_buffers(house: House) -> None:
        await visit(house, buffers)

    start_child: Any = buffers
    in_house(directory, with_buffers, config, start_child)
    assert not list((directory / "offline").glob("*")), "the files go with the instance"


async def subscribe(door: Door, name: str = "s", **options: Any) -> None:
    door.send(encode_frame({"c": "subscribe", "sub": name, "t": "orders", "cid": name, **options}))
    await door.answer_to(name)


class Stream:
    """Messages that are published, each with its number."""

    def __init__(self, house: House, door: Door) -> None:
        self._house, self._door = house, door
        self.count = 0

    async def publish(self, count: int) -> None:
        for _ in range(0, count, 50):
            numbers = range(self.count, self.count + 50)
            self.count += 50
            trees = ({"id": n, "text": "x" * BODY_BYTES} for n in numbers)
            await self._house.publish(self._door, "p", *trees)
        # What is folded in another turn is delivered behind that.
        await self._house.folded()


def numbers_in(found: list[Any]) -> list[int]:
    return [
        int(bytes(record.body)[6:].split(b",")[0])
        for header, records in found
        for record in records
    ]


def pool_of(house: House) -> ClientPool:
    return house.server.parts.clients.pools.of("door")


def events(house: House, name: str) -> list[Any]:
    return [each for each in house.server.events() if each["event"] == name]


def is_stored(client: Any) -> bool:
    """Whether nothing of a client is on its way to the disk."""
    frames = client.connection._frames
    return not client.connection.is_open or frames is None or not frames.moving_bytes


def settled(house: House) -> int:
    """What is on its way to the disk, as of now."""
    pool = pool_of(house)
    pool.check(0)
    return pool.pool.offline_memory_bytes


async def drained(door: Door) -> None:
    """Takes all that there is, until the client is online again."""
    transport: Any = door.transport
    transport.drain()
    connection: Any = door.connection
    await until(lambda: not connection.is_offline)


async def seen(door: Door, cid: str = "seen") -> list[Any]:
    """All that came before the answer to a ping."""
    door.send(encode_frame({"c": "ping", "cid": cid}))
    return await frames_until(door, lambda each: each.get("cid") == cid)


async def replayed(door: Door, name: str, count: int) -> list[Any]:
    """All that came until a subscription had so many messages: a replay has no ack behind it."""
    found: list[Any] = []
    while count > 0:
        found += await frames_until(door, lambda each: each["c"] == "p" and each["sub"] == name)
        count -= len(found[-1][1])
    return found


def messages(found: list[Any]) -> list[int]:
    return numbers_in([each for each in found if each[0]["c"] in ("p", "sow")])


@pytest.mark.covers("Actions", "On Client Offline Message Buffering")
def test_a_client_that_goes_offline_and_comes_back_is_told_to_who_listens(tmp_path: Path) -> None:
    async def visit(house: House, _: Buffers) -> None:
        told: list[tuple[str, str]] = []
        house.server.runtime.occurrences.listen(
            ["offline-start", "offline-stop"],
            lambda kind, each: told.append((kind, each["AMPS_CLIENT_NAME"])),
        )
        stream, slow = Stream(house, await house.client("p")), await house.client("slow")
        await subscribe(slow)
        transport: Any = slow.transport
        transport.takes = False
        await stream.publish(500)
        await until(lambda: is_stored(slow))
        assert told == [("offline-start", "slow")]
        await drained(slow)
        assert told == [("offline-start", "slow"), ("offline-stop", "slow")]

    in_slow_house(tmp_path, visit)


def test_an_offlined_client_gets_all_in_order_and_is_online_again(tmp_path: Path) -> None:
    async def visit(house: House, buffers: Buffers) -> None:
        stream, slow = Stream(house, await house.client("p")), await house.client("slow")
        await subscribe(slow)
        transport: Any = slow.transport
        transport.takes = False
        await stream.publish(300)
        slow.send(encode_frame({"c": "ping", "cid": "between"}))
        for _ in range(7):
            await stream.publish(100)
            # On a busy machine what is on its way to the disk could fill the memory.
            await until(lambda: is_stored(slow))
        status = pool_of(house).status()
        assert status["offline"] == 1 == status["went_offline"] and buffers.started
        (shown,) = status["offline_clients"]
        assert shown["client"] == "slow" and 5 * MIB < shown["disk_bytes"] <= shown["unsent_bytes"]
        (told, more) = slow_client_lines([house.server.status()])
        assert told.startswith("solo, pool clients: ")
        assert " of 4.0 MiB in memory, " in told and " for 1 slow client, 1 offline" in told
        assert (
            more.startswith("  slow is offline: ") and " MiB wait for it, the oldest for " in more
        )
        (event,) = events(house, "client_offline")
        assert event["client"] == "slow" and event["memory_bytes"] > 4 * MIB
        await until(lambda: pool_of(house).status()["memory_bytes"] < 3 * MIB)
        pool_of(house).check(0)
        status = pool_of(house).status()
        assert status["memory_bytes"] < 3 * MIB and status["disk_bytes"] > 5 * MIB, status
        await drained(slow)
        found = await seen(slow)
        assert messages(found) == list(range(1_000))
        # Its answers were in line, too: between those before and those after.
        at = next(n for n, each in enumerate(found) if each[0].get("cid") == "between")
        assert messages(found[:at]) and messages(found[at:])
        assert [each["client"] for each in events(house, "client_online")] == ["slow"]
        status = pool_of(house).status()
        assert status["disk_bytes"] == 0 == status["offline"]
        await stream.publish(50)
        assert messages(await seen(slow, "direct")) == list(range(1_000, 1_050))
        assert house.server.status()["capacity"][0]["disconnected"] == 0

        def is_nothing_told() -> bool:
            # Of the last messages its socket may have held some for a moment, until it is looked.
            pool_of(house).check(0)
            return slow_client_lines([house.server.status()]) == []

        await until(is_nothing_told)

    in_slow_house(tmp_path, visit)


@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_lost_or_doubled_however_clients_stall(tmp_path: Path, seed: int) -> None:
    """Both stall and read on at any moment; one asks queries meanwhile, and both are online and
    offline many times."""

    async def visit(house: House, buffers: Buffers) -> None:
        draw = random.Random(seed)
        stream, doors = Stream(house, await house.client("p")), []
        for name in ("a", "b"):
            doors.append(await house.client(name))
            await subscribe(doors[-1])
        came: list[list[Any]] = [[], []]
        asked = 0
        for _ in range(40):
            await stream.publish(draw.choice((50, 50, 100)))
            # The disk is as fast as the publisher here.
            await until(lambda: settled(house) < 4 * MIB)
            for number, door in enumerate(doors):
                transport: Any = door.transport
                what = draw.random()
                if what < 0.3:
                    transport.takes = False
                elif what < 0.55:
                    transport.drain()
                    for _ in range(draw.randint(0, 20)):
                        await asyncio.sleep(0)
                elif what < 0.7 and number:
                    asked += 1
                    door.send(ask(f"q{asked}", filter="/id < 40"))
        for door in doors:
            await drained(door)
        await until(lambda: not len(house.server.parts.clients.queries))
        for number, door in enumerate(doors):
            await drained(door)
            came[number] = await seen(door)
        every = list(range(stream.count))
        for found in came:
            assert numbers_in([each for each in found if each[0]["c"] == "p"]) == every
        rows = numbers_in([each for each in came[1] if each[0]["c"] == "sow"])
        assert sorted(rows) == sorted(list(range(40)) * asked)
        assert pool_of(house).went_offline and not events(house, "slow_client")
        pool_of(house).check(0)
        assert pool_of(house).pool.memory_bytes == 0 == pool_of(house).pool.disk_bytes

    in_slow_house(tmp_path, visit, memory_bytes_max=8 * MIB)


def test_a_stream_that_never_rests_lets_a_client_back_that_keeps_up(tmp_path: Path) -> None:
    async def visit(house: House, buffers: Buffers) -> None:
        stream, slow = Stream(house, await house.client("p")), await house.client("slow")
        await subscribe(slow)
        transport, connection = slow.transport, slow.connection
        transport.takes = False  # type: ignore[attr-defined]
        await stream.publish(600)
        assert connection.is_offline  # type: ignore[attr-defined]
        transport.drain()  # type: ignore[attr-defined]
        rounds = 0
        while connection.is_offline:  # type: ignore[attr-defined]
            rounds += 1
            await stream.publish(50)
        assert messages(await seen(slow)) == list(range(stream.count))

    in_slow_house(tmp_path, visit)


def test_a_buffer_that_dies_costs_its_clients_their_connections_and_nobody_else(
    tmp_path: Path,
) -> None:
    async def visit(house: House, buffers: Buffers) -> None:
        stream, slow = Stream(house, await house.client("p")), await house.client("slow")
        other = await house.client("other")
        for door in (slow, other):
            await subscribe(door)
        transport: Any = slow.transport
        transport.takes = False
        await stream.publish(600)
        await until(lambda: pool_of(house).buffer.process.pid)
        buffers.started[0].die()
        await until(lambda: not slow.connection.is_open)
        (event,) = events(house, "slow_client")
        assert (event["client"], event["limit"]) == ("slow", "buffer")
        assert "the buffer that held it has ended" in event["text"]
        assert [each["reason"] for each in events(house, "client_disconnected")] == ["slow_client"]
        assert messages(await seen(other)) == list(range(600))
        # Who is slow after that has another one.
        again = await house.client("again")
        await subscribe(again)
        again.transport.takes = False  # type: ignore[attr-defined]
        await stream.publish(600)
        # One that reads on before it is there waits for none, and this is about that one.
        await until(lambda: pool_of(house).buffer.process.pid)
        assert len(buffers.started) == 2
        await drained(again)
        assert messages(await seen(again)) == list(range(600, 1_200))

    in_slow_house(tmp_path, visit)


@pytest.mark.covers("Clients and protocol", "who reads on has all at once though the buffer")
@pytest.mark.parametrize("is_soon", [False, True])
def test_who_reads_on_waits_for_no_buffer_to_be_started(tmp_path: Path, is_soon: bool) -> None:
    async def visit(house: House, buffers: Buffers) -> None:
        buffers.may_start.clear()
        stream, slow = Stream(house, await house.client("p")), await house.client("slow")
        await subscribe(slow)
        transport: Any = slow.transport
        transport.takes = False
        await stream.publish(600)
        assert slow.connection.is_offline
        if is_soon:
            # It is there when something has been taken, and gives the rest.
            given_back, pool = slow.connection.came, pool_of(house)

            def came(data: bytes, empty_upto: int | None) -> None:
                slow.connection.came = given_back
                given_back(data, empty_upto)
                buffers.may_start.set()

            slow.connection.came = came
            transport.drain()
            transport.takes = False
            slow.connection.pause_writing()
            await until(lambda: pool.buffer.process.pid)
            assert slow.connection.is_offline
            transport.is_paused = True
        await drained(slow)
        assert is_soon or not buffers.started
        assert messages(await seen(slow)) == list(range(600))
        assert [each["client"] for each in events(house, "client_online")] == ["slow"]
        assert pool_of(house).status()["disk_bytes"] == 0 == settled(house)
        await stream.publish(50)
        assert messages(await seen(slow, "direct")) == list(range(600, 650))
        buffers.may_start.set()
        await until(lambda: pool_of(house).buffer.process.pid)

    in_slow_house(tmp_path, visit)


def test_a_buffer_that_cannot_be_started_costs_only_the_slow(tmp_path: Path) -> None:
    async def visit(house: House, buffers: Buffers) -> None:
        buffers.fails = True
        stream, slow = Stream(house, await house.client("p")), await house.client("slow")
        await subscribe(slow)
        slow.transport.takes = False  # type: ignore[attr-defined]
        await stream.publish(600)
        await until(lambda: not slow.connection.is_open)
        (event,) = events(house, "slow_client")
        assert "cannot be started: there is no python here" in event["text"]
        await stream.publish(50)

    in_slow_house(tmp_path, visit)


@pytest.mark.covers("Clients and protocol", "disconnecting ends subscriptions and queries")
def test_over_the_disk_limit_the_largest_goes_and_its_data_with_it(tmp_path: Path) -> None:
    async def visit(house: House, buffers: Buffers) -> None:
        stream, first = Stream(house, await house.client("p")), await house.client("first")
        await subscribe(first)
        first.transport.takes = False  # type: ignore[attr-defined]
        await stream.publish(550)
        await until(lambda: is_stored(first))
        second = await house.client("second")
        await subscribe(second)
        second.transport.takes = False  # type: ignore[attr-defined]
        first.send(ask("q"))
        while first.connection.is_open:
            await stream.publish(50)
            # On a busy machine what is on its way to the disk could fill the memory before.
            await until(lambda: is_stored(first) and is_stored(second))
        (event,) = events(house, "slow_client")
        assert (event["client"], event["limit"]) == ("first", "disk")
        assert f"at most {8 * MIB} may" in event["text"]
        assert (
            len(house.server.parts.clients.queries) == 0
            and len(house.server.parts.clients.live) == 1
        )
        await drained(second)
        assert messages(await seen(second)) == list(range(550, stream.count))
        (store,) = (each.server._store for each in buffers.started)
        await until(lambda: not store.held_bytes)

    in_slow_house(tmp_path, visit, disk_bytes_max=8 * MIB)


def test_a_drill_narrows_the_limits_and_gives_them_back(tmp_path: Path) -> None:
    async def visit(house: House, buffers: Buffers) -> None:
        stream, slow = Stream(house, await house.client("p")), await house.client("slow")
        await subscribe(slow)
        slow.transport.takes = False  # type: ignore[attr-defined]
        await stream.publish(150)
        assert pool_of(house).status()["memory_bytes"] > MIB and not buffers.started
        house.server.parts.clients.pools.narrow(MIB, 3 * MIB)
        assert [each["client"] for each in events(house, "client_offline")] == ["slow"]
        while slow.connection.is_open:
            await stream.publish(50)
            await until(lambda: is_stored(slow))
        (event,) = events(house, "slow_client")
        assert event["limit"] == "disk" and f"at most {3 * MIB} may" in event["text"]
        house.server.parts.clients.pools.narrow(0, 0)
        again = await house.client("again")
        await subscribe(again)
        again.transport.takes = False  # type: ignore[attr-defined]
        await stream.publish(250)
        status = pool_of(house).status()
        assert status["memory_bytes_max"] == 4 * MIB and status["offline"] == 0
        assert status["client_share"] == 1.0 and status["disk_bytes_max"] > 100 * MIB

    in_slow_house(tmp_path, visit)


def test_a_full_disk_costs_its_clients_their_connections(tmp_path: Path) -> None:
    async def visit(house: House, buffers: Buffers) -> None:
        from raylay.services.errors import StorageFull

        stream, slow = Stream(house, await house.client("p")), await house.client("slow")
        await subscribe(slow)
        slow.transport.takes = False  # type: ignore[attr-defined]
        await stream.publish(600)
        await until(lambda: pool_of(house).buffer.process.pid)

        def full(frames: Any) -> None:
            raise StorageFull("offline/clients.lmdb: no space left", "offline/clients.lmdb")

        buffers.started[0].server._store.put = full  # type: ignore[method-assign]
        await stream.publish(50)
        await until(lambda: not slow.connection.is_open)
        (event,) = events(house, "slow_client")
        assert event["limit"] == "buffer" and "no space left" in event["text"]
        assert pool_of(house).buffer.process.pid, "it serves the others"

    in_slow_house(tmp_path, visit)


def test_a_client_alone_may_hold_its_share(tmp_path: Path) -> None:
    async def visit(house: House, buffers: Buffers) -> None:
        stream, slow = Stream(house, await house.client("p")), await house.client("slow")
        await subscribe(slow)
        slow.transport.takes = False  # type: ignore[attr-defined]
        while slow.connection.is_open:
            await stream.publish(50)
        (event,) = events(house, "slow_client")
        assert event["limit"] == "share" and f"one client may hold {2 * MIB}" in event["text"]
        assert not buffers.started

    in_slow_house(tmp_path, visit, client_share=0.5)


def test_what_waits_too_long_ends_who_let_it_wait(tmp_path: Path) -> None:
    async def visit(house: House, buffers: Buffers) -> None:
        stream, slow = Stream(house, await house.client("p")), await house.client("slow")
        quick = await house.client("quick")
        for door in (slow, quick):
            await subscribe(door)
        slow.transport.takes = False  # type: ignore[attr-defined]
        await stream.publish(50)
        slow.send(encode_frame({"c": "ping", "cid": "x"}))
        await until(lambda: not slow.connection.is_open)
        (event,) = events(house, "slow_client")
        assert (event["client"], event["limit"]) == ("slow", "age")
        assert "at most 200 ms may one" in event["text"]
        assert quick.connection.is_open

    in_slow_house(tmp_path, visit, message_age_ms_max=200)


@pytest.mark.covers("Clients and protocol", "rows of queries go offline")
def test_rows_for_a_client_that_is_offline_go_to_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A query that waits for its reader, and what waits behind it, are memory: once the reader is
    offline, both go to the disk, and the query is over."""
    # How many rows a turn gives is a matter of the machine's speed: here it is one look at records.
    monkeypatch.setattr(queries, "TURN_S", 0.0)

    async def visit(house: House, buffers: Buffers) -> None:
        stream, slow = Stream(house, await house.client("p")), await house.client("slow")
        await stream.publish(500)
        slow.transport.takes = False  # type: ignore[attr-defined]
        slow.send(ask("q", command="sow_and_subscribe", batch=5))
        await until(lambda: not slow.connection.may_write)
        assert len(house.server.parts.clients.queries) == 1
        for _ in range(100):
            await asyncio.sleep(0)
        assert pool_of(house).pool.memory_bytes < 2 * MIB, "rows wait for their reader"
        assert len(house.server.parts.clients.queries) == 1
        await stream.publish(500)
        await until(lambda: not len(house.server.parts.clients.queries))
        assert slow.connection.is_offline  # type: ignore[attr-defined]
        await drained(slow)
        found = await seen(slow)
        assert [each[0]["c"] for each in found if each[0]["c"].startswith("group")] == [
            "group_begin",
            "group_end",
        ]
        came = messages(found)
        assert sorted(came[:500]) == list(range(500)) and came[500:] == list(range(500, 1_000))

    in_slow_house(tmp_path, visit)


@pytest.mark.covers("Clients and protocol", "rows of queries go offline")
def test_replays_wait_for_who_is_offline(tmp_path: Path) -> None:
    async def visit(house: House, buffers: Buffers) -> None:
        stream, slow = Stream(house, await house.client("p")), await house.client("slow")
        await subscribe(slow, "live")
        slow.transport.takes = False  # type: ignore[attr-defined]
        await stream.publish(550)
        assert slow.connection.is_offline  # type: ignore[attr-defined]
        # What lay in memory when it went offline is on the disk, too: nothing else grows it.
        await until(lambda: is_stored(slow))
        held_bytes = slow.connection.unsent_bytes
        assert held_bytes > 5 * MIB
        quick = await house.client("quick")
        replay = encode_frame({"c": "subscribe", "sub": "r", "t": "orders", "bm": "0", "cid": "r"})
        slow.send(replay)
        quick.send(replay)

        # Replays have their turns in a circle: by then the other one had as many.
        await replayed(quick, "r", 550)
        assert slow.connection.unsent_bytes < held_bytes + MIB
        await drained(slow)
        found = await replayed(slow, "r", 550)
        found += await seen(slow)
        for name in ("live", "r"):
            got = [each for each in found if each[0]["c"] == "p" and each[0]["sub"] == name]
            assert numbers_in(got) == list(range(550)), name

    in_slow_house(tmp_path, visit)


def test_who_leaves_while_it_is_offline_leaves_nothing(tmp_path: Path) -> None:
    async def visit(house: House, buffers: Buffers) -> None:
        stream, slow = Stream(house, await house.client("p")), await house.client("slow")
        await subscribe(slow)
        slow.transport.takes = False  # type: ignore[attr-defined]
        await stream.publish(600)
        await until(lambda: pool_of(house).buffer.process.pid)
        slow.connection.end("name_in_use", "another one has its name")  # type: ignore[attr-defined]
        assert not slow.connection.is_open and not pool_of(house).pool.clients
        (store,) = (each.server._store for each in buffers.started)
        await until(lambda: not store.held_bytes)
        # What is not offline is written to the end: all before the reason.
        direct = await house.client("direct")
        await subscribe(direct)
        direct.transport.takes = False  # type: ignore[attr-defined]
        await stream.publish(200)
        direct.connection.end("shutting_down", "over")  # type: ignore[attr-defined]
        frames = direct.transport.take()
        assert frames[-1][0]["reason"] == "shutting_down"
        assert sum(header.get("n", 0) for header, _ in frames if header["c"] == "p") == 200

    in_slow_house(tmp_path, visit)


def test_what_was_kept_goes_to_the_socket_of_who_is_offline_again_at_once() -> None:
    """It comes back online, and with what was kept meanwhile it is over a limit."""
    put: list[bytes] = []

    class Buffer:
        def put(self, client: int, number: int, parts: Any, size_bytes: int) -> None:
            put.append(b"".join(parts))

        def take(self, client: int, bytes_max: int) -> None:
            pass

        def drop(self, client: int) -> None:
            pass

    class AgainOver:
        def weigh(self, connection: BufferedConnection) -> None:
            pass

        times = 0

        def has_room(self, connection: BufferedConnection) -> bool:
            return True

        def came_back(self, connection: BufferedConnection) -> None:
            self.times += 1
            if self.times == 1:
                connection.go_offline(Buffer())

        left = weigh

    async def run() -> bytes:
        loop = asyncio.get_running_loop()
        pool = AgainOver()
        connection = BufferedConnection(
            WriteQueue(loop), loop, FrameReader(), pool, Policy(1.0, None)
        )
        connection.number = 1
        transport = SlowTransport(connection)
        connection.connection_made(transport)
        connection.go_offline(Buffer())
        connection.came(b"", 7)
        connection.send(b"kept ")
        connection.write_collected()
        # Not while its socket has not taken what it was given: it could go round in circles.
        transport.takes = False
        connection.came(bytes(UNWEIGHED_BYTES + 1), 0)
        assert not transport.written.endswith(b"kept ")
        transport.written.clear()
        transport.taken = 0
        transport.takes = True
        connection.look()
        connection.came(b"", 0)
        assert connection.is_offline
        connection.send(b"behind")
        connection.write_collected()
        assert bytes(transport.written) == b"kept ", "it waits"
        connection.came(b"", 0)
        return bytes(transport.written)

    assert asyncio.run(run()) == b"kept behind" and not put
