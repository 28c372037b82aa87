"""A client that stops reading, at an instance's real sockets and with its real buffer process."""

from __future__ import annotations

import os
import selectors
import signal
import socket
from pathlib import Path

import pytest
from support.instance_processes import DEADLINE_S, Client, Server, Servers, single
from support.waiting import wait_until

from raylay.services.capacity.config import CapacityConfig
from raylay.services.messages.records import RecordBuilder, iterate_records

pytestmark = pytest.mark.covers("Clients and protocol", "a client that stops reading goes offline")

MIB = 1024 * 1024
BODY_BYTES = 50_000
MESSAGES = 1_200
LIMITS = CapacityConfig(memory_bytes_max=8 * MIB, client_share=1.0)


def stalled(server: Server, stream: Stream) -> Path:
    """Publishes until somebody is offline and its buffer is there; the buffer's file."""
    while "client_offline" not in server.log:
        stream.publish(50)
    file = server.directory / "offline" / "clients.lmdb"
    wait_until(file.exists)
    return file


def written(file: Path, stream: Stream) -> None:
    """Waits until the disk has what was published, but for what sockets and memory may hold."""
    wait_until(lambda: file.stat().st_size > stream.count * BODY_BYTES - 18 * MIB)


def memory_of(server: Server) -> int:
    """Resident, of the instance's process."""
    text = Path(f"/proc/{server.process.pid}/status").read_text(encoding="ascii")
    line = next(line for line in text.splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


def buffer_of(server: Server) -> int:
    """The process of the instance's buffer."""
    pid = server.process.pid
    for each in os.listdir(f"/proc/{pid}/task"):
        children = Path(f"/proc/{pid}/task/{each}/children").read_text(encoding="ascii")
        for child in children.split():
            if b"slow_client_buffer" in Path(f"/proc/{child}/cmdline").read_bytes():
                return int(child)
    raise AssertionError("there is no buffer")


class Stream:
    """A publisher and a quick subscriber: what one publishes the other has at once."""

    def __init__(self, server: Server) -> None:
        self.publisher = Client(server.address, "publisher")
        self.quick = Client(server.address, "quick")
        subscribe(self.quick)
        self._builder = RecordBuilder(self.publisher.answer["publisher"], "orders", "json")
        self.count = 0

    def publish(self, count: int) -> None:
        """Publishes so many, one after the other."""
        for _ in range(count):
            self.count += 1
            body = f"{self.count:08}".encode() + bytes(BODY_BYTES)
            self.publisher.send({"c": "pb", "n": 1}, self._builder.build(self.count, body, 1))
            self.quick.next(lambda frame: frame.header["c"] == "p")
        self.publisher.persisted(self.count)


def subscribe(client: Client, **options: str) -> None:
    header = {"c": "subscribe", "sub": "s", "t": "orders", "cid": "s", "a": "processed"}
    client.send(header | options)
    client.ack(cid="s")


def numbers(client: Client, count: int) -> list[int]:
    """Of the next messages: at least so many."""
    found: list[int] = []
    while len(found) < count:
        frame = client.next(lambda frame: frame.header["c"] == "p")
        found += [int(bytes(record.body)[:8]) for record in iterate_records(frame.body)]
    return found


@pytest.mark.slow
def test_a_client_that_stops_reading_has_all_of_it_when_it_reads_on(
    servers: Servers, tmp_path: Path
) -> None:
    server = single(servers, tmp_path, capacity=LIMITS)
    stream, slow = Stream(server), Client(server.address, "slow")
    subscribe(slow)
    stream.publish(20)
    before_bytes = memory_of(server)
    file = stalled(server, stream)
    while stream.count < MESSAGES:
        stream.publish(50)
        written(file, stream)
    # 60 MB were sent that nobody read: twice the limit, and what else a process needs, at most.
    assert (grown := memory_of(server) - before_bytes) < 40 * MIB, grown
    slow.send({"c": "ping", "cid": "still served"})
    assert numbers(slow, MESSAGES) == list(range(1, MESSAGES + 1))
    slow.ack(cid="still served")
    server.wait_for("client_online")
    stream.publish(10)
    assert numbers(slow, 10) == list(range(MESSAGES + 1, MESSAGES + 11))
    assert server.stop() == 0 and not file.exists()


@pytest.mark.slow
def test_a_killed_buffer_costs_the_slow_their_connection_and_a_bookmark_goes_on_exactly(
    servers: Servers, tmp_path: Path
) -> None:
    server = single(servers, tmp_path, capacity=LIMITS)
    stream, slow = Stream(server), Client(server.address, "slow")
    subscribe(slow)
    written(stalled(server, stream), stream)
    os.kill(buffer_of(server), signal.SIGKILL)
    server.wait_for("limit=buffer")
    server.wait_for("reason=slow_client")
    had: list[int] = []
    with pytest.raises((EOFError, ConnectionError)):
        while True:
            had += numbers(slow, 1)
    count = stream.count
    assert had == list(range(1, len(had) + 1)) and len(had) < count, "nothing is missing in between"
    stream.publish(10)
    again = Client(server.address, "slow")
    publisher = stream.publisher.answer["publisher"]
    subscribe(again, bm=f"{publisher}|{len(had)}|" if had else "0")
    assert numbers(again, count + 10 - len(had)) == list(range(len(had) + 1, count + 11))


OTHERS = 100
TOGETHER = 500
"""Messages of a batch, of 200 bytes."""
SMALL_LIMITS = CapacityConfig(memory_bytes_max=2 * MIB, client_share=1.0)


class Others:
    """Those who read all that comes, at once."""

    def __init__(self, server: Server) -> None:
        self._readers = selectors.DefaultSelector()
        for number in range(OTHERS):
            client = Client(server.address, f"other-{number}")
            subscribe(client)
            self._readers.register(client.socket, selectors.EVENT_READ, client)
        self._had: dict[Client, int] = {}

    def read(self, count: int) -> None:
        """Until each of them has had so many messages."""
        had = self._had
        while len(had) < OTHERS or min(had.values()) < count:
            found = self._readers.select(DEADLINE_S)
            assert found, "they wait for somebody"
            for key, _ in found:
                client: Client = key.data
                for frame in client.reader.feed(client.socket.recv(1 << 18)):
                    assert frame.header["c"] == "p"
                    had[client] = had.get(client, 0) + frame.header["n"]


@pytest.mark.covers("Clients and protocol", "one client that reads a byte now and then among")
@pytest.mark.slow
def test_one_that_reads_a_byte_now_and_then_among_100_others(
    servers: Servers, tmp_path: Path
) -> None:
    """They have each batch before the next one is published; nothing of its is lost, and the
    instance holds no more than the limit says."""
    server = single(servers, tmp_path, capacity=SMALL_LIMITS)
    publisher, slow, others = (
        Client(server.address, "publisher"),
        Client(server.address, "slow"),
        (Others(server)),
    )
    slow.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
    subscribe(slow)
    builder = RecordBuilder(publisher.answer["publisher"], "orders", "json")
    file = server.directory / "offline" / "clients.lmdb"
    count = batches_behind = before_bytes = 0
    # So many would all have room in memory while the buffer's process starts.
    while batches_behind < 15:
        first, count = count + 1, count + TOGETHER
        payload = b"".join(
            builder.build(number, f"{number:08}".encode() + bytes(140), 1)
            for number in range(first, count + 1)
        )
        publisher.send({"c": "pb", "n": TOGETHER}, payload)
        publisher.persisted(count)
        others.read(count)
        slow.frames += slow.reader.feed(slow.socket.recv(1))
        before_bytes = before_bytes or memory_of(server)
        batches_behind += "client_offline" in server.log
    wait_until(lambda: file.exists() and file.stat().st_size > MIB)
    grown = memory_of(server) - before_bytes
    assert grown < SMALL_LIMITS.memory_bytes_max * 2 + 16 * MIB, grown
    assert numbers(slow, count) == list(range(1, count + 1))
    server.wait_for("client_online")
    assert server.events("limit=") == 0, "no limit was said to be passed"
