"""Leases of a client that stops reading: offline it keeps them until their time is over, and is
given nothing more; disconnected it gives them back at once."""

from __future__ import annotations

import time
from typing import Any

import pytest
from end_to_end.test_queues import Consumer, Key, servers, work
from support.instance_processes import Client, Server

from raylay.services.capacity.config import CapacityConfig
from raylay.services.messages.records import RecordBuilder, iterate_records

__all__ = ["servers"]  # a fixture

pytestmark = [
    pytest.mark.slow,
    pytest.mark.covers("Clients and protocol", "a consumer of a queue that goes offline keeps"),
]
MIB = 1024 * 1024
BODY = bytes(50_000)
FLOW_MAX = 4_000
"""Messages: 200 MB, many times what an instance here keeps of them."""


class Feed:
    """What a consumer subscribes to besides, and does not read."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._client = Client(server.address, "feed")
        self._builder = RecordBuilder(self._client.answer["publisher"], "feed", "json")
        self._count = 0

    def flow(self, until: str) -> None:
        """Publishes until the instance has said that."""
        while until not in self._server.log:
            assert self._count < FLOW_MAX, self._server.log
            for _ in range(10):
                self._count += 1
                record = self._builder.build(self._count, BODY, 1)
                self._client.send({"c": "pb", "n": 1}, record)
            self._client.persisted(self._count)


def some(consumer: Consumer, count: int) -> set[Key]:
    """The next messages of its queue. They are acknowledged: their leases are over."""
    taken: set[Key] = set()
    while len(taken) < count:
        found = [key for key, _ in consumer.take()]
        consumer.done(found)
        taken.update(found)
    return taken


def held(consumer: Consumer, count: int) -> set[Key]:
    """The next messages of its queue, which it holds."""
    taken: set[Key] = set()
    while len(taken) < count:
        taken.update(key for key, _ in consumer.take())
    return taken


def begun(servers: Any, lease_s: int, **limits: Any) -> tuple[Consumer, Feed, Consumer, Client]:
    """A consumer that holds three messages and is offline; its feed; another consumer that has
    six more; who published them."""
    capacity = CapacityConfig(memory_bytes_max=4 * MIB, client_share=1.0, **limits)
    queue = work(subscription_backlog_max=20, lease_us=lease_s * 1_000_000)
    server = servers(queue, capacity=capacity)
    slow, publisher = Consumer(server.address, "slow", max_backlog=3), Client(server.address, "pub")
    publisher.publish(range(1, 4))
    publisher.persisted(3)
    assert len(held(slow, 3)) == 3
    slow.send({"c": "subscribe", "sub": "feed", "t": "feed", "cid": "f"})
    slow.ack(cid="f")
    feed = Feed(server)
    feed.flow("client_offline")
    other = Consumer(server.address, "other", max_backlog=20)
    publisher.publish(range(4, 10))
    assert {number for _, number in some(other, 6)} == set(range(4, 10)), "what nobody holds"
    return slow, feed, other, publisher


def test_a_client_that_goes_offline_keeps_its_leases_and_is_given_no_more(servers: Any) -> None:
    began_s, lease_s = time.monotonic(), 20
    slow, _, other, publisher = begun(servers, lease_s)
    back = some(other, 3)
    assert {number for _, number in back} == {1, 2, 3} and time.monotonic() - began_s >= lease_s
    # The offline one holds nothing any more, and could be given three.
    publisher.publish(range(10, 20))
    publisher.persisted(19)
    assert {number for _, number in some(other, 10)} == set(range(10, 20))
    slow.send({"c": "ping", "cid": "last"})
    got: set[Key] = set()
    while (frame := slow.next(lambda frame: True)).header.get("cid") != "last":
        if frame.header["c"] == "p" and frame.header.get("q"):
            records = iterate_records(frame.body)
            got |= {(record.publisher, record.sequence) for record in records}
    assert not got


def test_a_slow_client_that_is_disconnected_gives_its_leases_back(servers: Any) -> None:
    began_s, lease_s = time.monotonic(), 600
    # All of them are kept: who is let go closes its socket.
    slow, feed, other, publisher = begun(servers, lease_s, disk_bytes_max=16 * MIB)
    feed.flow("reason=slow_client")
    assert {number for _, number in some(other, 3)} == {1, 2, 3}
    assert time.monotonic() - began_s < lease_s
    with pytest.raises((EOFError, ConnectionError)):
        slow.next(lambda frame: False)
    publisher.close()
