"""A connection whose other side does not read as fast as it is sent: what it costs the others."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from raylay.services.capacity.pool import ClientHolding, Policy
from raylay.services.net.framed import WRITE_HIGH_BYTES, WRITE_LOW_BYTES, WriteQueue
from raylay.services.protocol.frames import FrameReader
from raylay.services.server.clients.buffered_connection import (
    CHUNK_BYTES,
    FRAME_BYTES,
    MOVING_BYTES,
    UNWEIGHED_BYTES,
    BufferedConnection,
)
from raylay.services.subscriptions.deferred_deliveries import DeferredDeliveries

pytestmark = pytest.mark.covers(
    "Clients and protocol", "however much waits when a client goes offline"
)

MIB = 1024 * 1024


class Pool:
    """Decides nothing."""

    def __init__(self) -> None:
        self.back = self.weighed = 0
        self.is_full = False

    def has_room(self, connection: BufferedConnection) -> bool:
        return not self.is_full

    def weigh(self, connection: BufferedConnection) -> None:
        self.weighed += 1

    def came_back(self, connection: BufferedConnection) -> None:
        self.back += 1

    def left(self, connection: BufferedConnection) -> None:
        pass


class Socket(asyncio.Transport):
    """Takes what it is told to, and no more."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[bytes] = []
        self.waits_bytes = 0
        self.is_paused = False
        self.connection: Any = None

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def is_closing(self) -> bool:
        return False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return self.waits_bytes

    def close(self) -> None:
        pass

    abort = close

    def write(self, data: Any) -> None:
        self.writelines([data])

    def writelines(self, list_of_data: Any) -> None:
        self.pieces += list_of_data
        self.waits_bytes += sum(map(len, list_of_data))
        if self.waits_bytes > WRITE_HIGH_BYTES and not self.is_paused:
            self.is_paused = True
            self.connection.pause_writing()

    def read(self, size_bytes: int) -> None:
        """The other side reads."""
        self.waits_bytes = max(0, self.waits_bytes - size_bytes)
        if self.is_paused and self.waits_bytes <= WRITE_LOW_BYTES:
            self.is_paused = False
            self.connection.resume_writing()


class Disk:
    """A pool's buffer: what it is asked it does when it is told to."""

    def __init__(self) -> None:
        self.connection: Any = None
        self.puts: list[tuple[int, list[bytes], int]] = []
        """Not stored yet."""
        self.count = 0
        self.held: list[bytes] = []
        self.seen = 0
        self.asked: list[int] = []
        self.drops = 0
        """It was told so often to forget the client."""

    def put(self, client: int, number: int, parts: Sequence[bytes], size_bytes: int) -> None:
        assert size_bytes == sum(map(len, parts))
        self.count += 1
        self.puts.append((number, list(parts), size_bytes))

    def take(self, client: int, bytes_max: int) -> None:
        self.asked.append(bytes_max)

    def drop(self, client: int) -> None:
        assert not self.puts and not self.held
        self.drops += 1

    def store(self) -> None:
        """Stores what came, and says so."""
        puts, self.puts = self.puts, []
        for number, parts, _ in puts:
            self.held += parts
            self.seen = number
        if puts:
            self.connection.stored(self.seen)

    def answer(self) -> None:
        """Gives back what was asked for: what was put before it, at least."""
        if self.asked:
            self.store()
            bytes_max, data = self.asked.pop(0), b""
            while self.held and len(data) < bytes_max:
                data += self.held.pop(0)
            self.connection.came(data, None if self.held else self.seen)


class Client:
    """A connection, with all that is beside it."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.pool, self.socket, self.disk = Pool(), Socket(), Disk()
        connection = BufferedConnection(
            WriteQueue(loop), loop, FrameReader(), self.pool, Policy(1.0, None)
        )
        connection.number, connection.client_name = 1, "slow"
        self.connection = self.socket.connection = self.disk.connection = connection
        connection.connection_made(self.socket)
        self._sent: list[bytes] = []

    @property
    def sent(self) -> bytes:
        return b"".join(self._sent)

    def send(self, *parts: bytes) -> None:
        """One message in a turn of its own."""
        self._sent += parts
        self.connection.send_parts(parts, sum(map(len, parts)))
        self.connection.write_collected()

    def stall(self) -> None:
        """Its socket is full."""
        self.send(bytes(WRITE_HIGH_BYTES + 1))
        assert self.socket.is_paused

    @property
    def moving_bytes(self) -> int:
        return sum(size_bytes for _, _, size_bytes in self.disk.puts)


def with_client(visit: Callable[[Client], None]) -> None:
    async def run() -> None:
        visit(Client())

    asyncio.run(run())


def numbered(count: int, size_bytes: int) -> list[bytes]:
    return [number.to_bytes(4, "big") * (size_bytes // 4) for number in range(count)]


def test_many_small_messages_go_to_the_disk_in_few_parts_and_few_at_a_time() -> None:
    """However much waits when a client goes offline: no turn of the loop does it all."""

    def visit(client: Client) -> None:
        client.stall()
        for each in numbered(40_000, 200):
            client.send(each[:60], each[60:])
        assert not client.disk.count
        client.connection.go_offline(client.disk)
        disk, rounds = client.disk, 0
        while disk.puts:
            assert len(disk.puts) <= MOVING_BYTES // CHUNK_BYTES + 1, "in one turn"
            assert client.moving_bytes <= MOVING_BYTES + CHUNK_BYTES
            assert {len(parts) for _, parts, _ in disk.puts} == {1}, "each is one piece"
            rounds += 1
            disk.store()
        assert rounds == 4 and disk.count <= 8_000_000 // CHUNK_BYTES
        assert client.connection.holding().memory_bytes < 2 * WRITE_HIGH_BYTES
        client.socket.read(2 * MIB)
        while disk.asked:
            disk.answer()
            client.socket.read(2 * MIB)
            # As the pool does: it is online when its socket has taken what it was given.
            client.connection.look()
        assert client.pool.back == 1 and b"".join(client.socket.pieces) == client.sent

    with_client(visit)


def test_each_frame_of_a_chunk_says_its_own_length() -> None:
    """A small message and a very long one are one chunk, and two frames."""

    def visit(client: Client) -> None:
        client.stall()
        client.connection.go_offline(client.disk)
        client.send(bytes(10_000))
        client.send(bytes(FRAME_BYTES))
        assert [size_bytes for _, _, size_bytes in client.disk.puts] == [10_000, FRAME_BYTES]

    with_client(visit)


def test_what_was_collected_in_one_turn_is_no_one_chunk() -> None:
    """The buffer takes no frame of more than 256 MiB: all its clients would be lost."""

    def visit(client: Client) -> None:
        client.stall()
        client.send(*numbered(40_000, 200))
        client.connection.go_offline(client.disk)
        disk = client.disk
        while disk.puts:
            assert client.moving_bytes <= MOVING_BYTES + CHUNK_BYTES
            assert max(size_bytes for _, _, size_bytes in disk.puts) <= CHUNK_BYTES + 200
            disk.store()
        while client.connection.is_offline:
            client.socket.read(2 * MIB)
            disk.answer()
            client.connection.look()
        assert b"".join(client.socket.pieces) == client.sent

    with_client(visit)


def test_a_message_to_who_is_offline_costs_no_write_of_its_own() -> None:
    def visit(client: Client) -> None:
        client.stall()
        client.connection.go_offline(client.disk)
        for each in numbered(10_000, 128):
            client.send(each)
            client.disk.store()
        assert client.disk.count == 10_000 * 128 // CHUNK_BYTES == 20
        holding = client.connection.holding()
        assert holding.disk_bytes == 20 * CHUNK_BYTES
        assert holding.unsent_bytes == len(client.sent), "what is no chunk yet is counted"

    with_client(visit)


def test_large_messages_that_wait_stay_those_of_all_and_small_ones_are_one_piece() -> None:
    def visit(client: Client) -> None:
        client.stall()
        large = bytes(3 * CHUNK_BYTES)
        client.send(b"front", large)
        for each in numbered(1_000, 100):
            client.send(each)
        client.connection.go_offline(client.disk)
        (_, first, _), (_, second, _) = client.disk.puts
        assert first[1] is large and len(second) == 1

    with_client(visit)


def test_what_stands_behind_a_gap_is_not_written_to_a_client_that_is_leaving() -> None:
    """The buffer says that frames are lost and, in the same chunk, gives what came behind them: the
    client would note that it has all up to there. Its end comes later in that turn."""

    def visit(client: Client) -> None:
        client.stall()
        client.connection.go_offline(client.disk)
        for each in numbered(40, 100_000):
            client.send(each)
        client.disk.store()
        client.disk.held.pop(0)
        before = list(client.socket.pieces)
        client.socket.read(2 * MIB)
        assert client.disk.asked
        client.connection.is_leaving = True
        client.disk.answer()
        assert client.socket.pieces == before and client.pool.back == 0

    with_client(visit)


def test_what_is_no_chunk_yet_is_written_when_the_connection_is_closed() -> None:
    def visit(client: Client) -> None:
        client.stall()
        for each in numbered(1_000, 100):
            client.send(each)
        client.connection.close("over")
        assert b"".join(client.socket.pieces) == client.sent

    with_client(visit)


@pytest.mark.parametrize("seed", range(20))
def test_all_comes_once_and_in_order(seed: int) -> None:
    """Whatever it is sent, whenever it reads, and however slow the disk is."""

    def visit(client: Client) -> None:
        draw, was_offline = random.Random(seed), 0
        connection, disk, socket = client.connection, client.disk, client.socket
        at = 0
        for _ in range(1_500):
            what = draw.random()
            if what < 0.6:
                size_bytes = draw.choice((40, 4_000, 200_000))
                for _ in range(draw.randint(1, 30) if size_bytes < 200_000 else 1):
                    at += 1
                    client.send(at.to_bytes(8, "big") * (size_bytes // 8))
            elif what < 0.7:
                socket.read(draw.choice((1, 300_000, 3_000_000)))
            elif what < 0.85:
                disk.answer()
            elif what < 0.95:
                disk.store()
            elif not connection.is_offline and connection.holding().memory_bytes > 3_000_000:
                was_offline += 1
                disk.seen = 0
                connection.go_offline(disk)
        while socket.waits_bytes or connection.is_offline:
            socket.read(3_000_000)
            disk.answer()
            connection.look()
        assert b"".join(socket.pieces) == client.sent
        assert was_offline and client.pool.back == was_offline
        assert disk.drops == was_offline, "each time begins with nothing of the one before"
        assert connection.may_write and not any(connection.holding()[:3])

    with_client(visit)


def test_a_share_of_common_memory_is_held_but_not_unsent() -> None:
    def visit(client: Client) -> None:
        connection = client.connection
        connection.charge(5_000)
        connection.charge(-2_000)
        assert connection.holding() == ClientHolding(3_000)
        assert client.pool.weighed == 1, "less needs no decision"
        connection.behind = DeferredDeliveries()
        connection.behind.query_bytes = 10
        assert connection.holding().memory_bytes == 3_010

    with_client(visit)


def test_a_client_takes_all_unless_something_waits_for_it() -> None:
    def visit(client: Client) -> None:
        connection = client.connection
        assert connection.takes_all
        connection.behind = DeferredDeliveries()
        assert not connection.takes_all, "the rows of a query go first"
        connection.behind = None
        client.send(bytes(UNWEIGHED_BYTES + 1))
        assert connection.may_write and not connection.takes_all
        client.socket.read(1)
        assert connection.takes_all
        client.stall()
        assert not connection.takes_all

    with_client(visit)


def test_a_client_whose_share_of_memory_has_no_room_stays_offline() -> None:
    """The client would go offline again at once, and come back for ever."""

    def visit(client: Client) -> None:
        connection, disk = client.connection, client.disk
        connection.charge(5_000)
        client.pool.is_full = True
        connection.go_offline(disk)
        disk.answer()
        assert connection.is_offline and not client.pool.back
        connection.look()
        assert connection.is_offline and not disk.asked
        client.pool.is_full = False
        connection.look()
        disk.answer()
        assert not connection.is_offline and client.pool.back == 1

    with_client(visit)
