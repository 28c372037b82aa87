"""Aggregations of a queue's messages as real processes: an instance, its queue's owner, real
sockets, real SIGKILL."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from end_to_end.test_queues import Consumer
from end_to_end.test_views_over_queues import publish
from support.instance_processes import Client as PlainClient
from support.instance_processes import Server, Servers, single

from raylay.services.client import Client
from raylay.services.messages.topics import TopicRule
from raylay.services.queues.definition import QueueDefinition

pytestmark = [pytest.mark.slow, pytest.mark.covers("Views", "aggregations of queues")]

KINDS: dict[str, Any] = {
    "projection": ["/kind AS /kind", "COUNT(/id) AS /count", "SUM(/id) AS /sum"],
    "grouping": ["/kind"],
}


@pytest.fixture
def server(servers: Servers, tmp_path: Path) -> Server:
    queue = QueueDefinition("work", "json", underlying="orders", lease_us=60_000_000)
    topics = (TopicRule(".*", "json"),)
    return single(servers, tmp_path, first=True, topics=topics, queue_definitions=(queue,))


async def rows(client: Client, **more: Any) -> dict[str, tuple[int, int]]:
    found = [json.loads(row.body) for row in await client.sow("work", **KINDS, **more).all()]
    return {each["kind"]: (each["count"], each["sum"]) for each in found}


async def until(messages: Any, held: dict[bytes, Any], wanted: dict[str, tuple[int, int]]) -> None:
    while {each["kind"]: (each["count"], each["sum"]) for each in held.values()} != wanted:
        message = await anext(messages)
        if message.kind == "oof":
            del held[message.key]
        elif message.body:
            assert message.topic == "work"
            held[message.key] = json.loads(message.body)


def test_the_messages_of_a_queue_are_aggregated(server: Server) -> None:
    """Leased messages count, and acknowledged ones do not, whatever is killed in between."""
    publisher = PlainClient(server.address, "pub")
    publish(publisher, 1, "mail", "mail", "print")

    async def run() -> None:
        async with asyncio.timeout(120), Client("c", servers=[server.address]) as client:
            first = {"mail": (2, 3), "print": (1, 3)}
            for _ in range(3):
                # The queue is followed, and let go, each time.
                assert await rows(client) == first
            assert await rows(client, filter="/id > 2") == {"print": (1, 3)}
            held: dict[bytes, Any] = {}
            messages = await client.sow_and_subscribe("work", oof=True, **KINDS)
            await until(messages, held, first)
            consumer = Consumer(server.address, "ann", max_backlog=1)
            ((key, _),) = consumer.take()
            publish(publisher, 4, "mail")
            await until(messages, held, {"mail": (3, 7), "print": (1, 3)})
            consumer.persisted(consumer.done([key]))
            await until(messages, held, {"mail": (2, 6), "print": (1, 3)})
            os.kill(consumer.status()["json/work"]["pid"], signal.SIGKILL)
            publish(publisher, 5, "fax")
            await until(messages, held, {"mail": (2, 6), "print": (1, 3), "fax": (1, 5)})
            assert await rows(client) == {"mail": (2, 6), "print": (1, 3), "fax": (1, 5)}
            for _ in range(2):
                ((key, _),) = consumer.take()
                consumer.persisted(consumer.done([key]))
            await until(messages, held, {"mail": (1, 4), "fax": (1, 5)})
            consumer.close()
        # Nobody follows the queue meanwhile.
        publish(publisher, 6, "fax")
        async with asyncio.timeout(120), Client("d", servers=[server.address]) as client:
            assert await rows(client) == {"mail": (1, 4), "fax": (2, 11)}

    asyncio.run(run())
    assert server.events("queue_owner_failed") == 0
    publisher.close()
