"""SOW topics through the asyncio client, against a scripted server on real sockets."""

from __future__ import annotations

import msgpack
import pytest
from unit.fake_server import FakeServer, records
from unit.test_client import client_of, run

from raylay.services.errors import CommandFailed, LocalProtocolError
from raylay.services.messages.records import Command


@run
async def test_deltas_and_deletes_are_kept_and_sent_again_like_publishes() -> None:
    first, second = await FakeServer("A", B=True).start(), await FakeServer("B", A=True).start()
    async with client_of(first, second) as client:
        await client.publish("t", b'{"id": 1, "a": 1}')
        await client.delta_publish("t", b'{"id": 1, "b": 2}', key=b"k")
        last = await client.sow_delete("t", filter="/id = 1")
        await first.wait(lambda: len(first.session.published) == 3)
        await first.stop()
        await second.wait(lambda: second.sessions and len(second.session.published) == 3)
        session = second.session
        assert session.published == [last - 2, last - 1, last]
        assert session.does == [Command.PUBLISH, 6, Command.DELETE]
        assert session.bodies[1] == b'{"id": 1, "b": 2}'
        assert msgpack.unpackb(session.bodies[2]) == {"filter": "/id = 1"}
        session.refuse(last - 1, "bad_key", "the key field /id is missing")
        session.ack(last)
        with pytest.raises(CommandFailed, match="the key field /id is missing"):
            await client.flush()
    await second.stop()


@run
async def test_a_delete_of_nothing_named_is_refused_and_nothing_is_sent() -> None:
    server = await FakeServer().start()
    async with client_of(server) as client:
        before = client.last_sequence
        with pytest.raises(LocalProtocolError, match="one of filter, keys and data"):
            await client.sow_delete("t")
        assert client.last_sequence == before
    await server.stop()


@run
async def test_what_is_published_behind_a_delivery_is_later_than_it() -> None:
    server = await FakeServer().start()
    async with client_of(server) as client:
        subscription = await client.subscribe("t")
        ahead_us = client.machine.wall_us + 30_000_000
        payload = records(7, [1, 2], stamp_us=ahead_us)
        server.session.deliver(subscription.id, payload)
        await subscription.next_batch()
        await client.publish("t", b"{}")
        assert client.machine.stamp_us == ahead_us + 1
        await client.close(flush=False)
    await server.stop()
