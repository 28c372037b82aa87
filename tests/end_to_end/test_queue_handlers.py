"""Handlers of a queue that fail, with real clients, sockets and processes: only what a handler was
given counts."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.instance_processes import Server

from raylay import Message, SyncClient
from raylay.services.config.instance import InstanceConfig
from raylay.services.messages.topics import TopicRule
from raylay.services.queues.definition import QueueDefinition

LETTERS = "orders/failed"
POISON = b"800"


@pytest.fixture(params=[1, 2])
def server(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[Server, int]]:
    """An instance, and the `deliveries_max` of its queue."""
    most: int = request.param
    queue = QueueDefinition(
        "work",
        "json",
        underlying="orders",
        deliveries_max=most,
        dead_letters=LETTERS,
        subscription_backlog_max=10,
    )
    config = InstanceConfig(
        "solo", "g", first=True, topics=(TopicRule(".*", "json"),), queue_definitions=(queue,)
    )
    made = Server(tmp_path / "solo", config)
    yield made, most
    made.kill()


CONSUMER = """
import asyncio, os, sys
from raylay import Client

async def main():
    async with Client("dies", servers=[sys.argv[1]]) as client:
        async with client.queue("work", backlog=10) as work:
            async for message in work:
                print(message.body.decode(), flush=True)
                if message.body == b"803":
                    os._exit(9)
                if message.body == b"809":
                    break
        await client.flush()

asyncio.run(main())
"""


def test_only_the_message_that_ends_its_consumers_becomes_a_letter(
    server: tuple[Server, int],
) -> None:
    """Finished ones before it are acknowledged before it is handled, where its delivery, or
    theirs, is the last one."""
    instance, most = server
    with SyncClient("reader", servers=[instance.address]) as reader:
        failed = reader.subscribe(LETTERS)
        for number in range(800, 810):
            reader.publish("orders", b"%d" % number)
        reader.flush()
        handled: list[str] = []
        for _ in range(most + 2):
            made = subprocess.run(
                [sys.executable, "-c", CONSUMER, instance.address],
                stdout=subprocess.PIPE,
                text=True,
                timeout=60,
            )
            handled += made.stdout.split()
            if made.returncode == 0:
                break
            assert made.returncode == 9
        letter: Message = next(iter(failed))
        assert letter.body == b"803"
        assert json.loads(letter.correlation)["deliveries"] == most
        assert set(handled) == {str(number) for number in range(800, 810)}
        assert handled.count("803") <= most + 1


def fail_once(client: SyncClient, ack: str) -> None:
    """A program that fails on the first message that it is given."""
    with (
        pytest.raises(RuntimeError),
        client.queue("work", backlog=10, ack=ack) as work,
    ):
        for _ in work:
            raise RuntimeError


@pytest.mark.parametrize("ack", ["auto", "manual"])
def test_a_handler_that_fails_counts_once_for_its_message(
    server: tuple[Server, int], ack: str
) -> None:
    instance, most = server
    with (
        SyncClient("failing", servers=[instance.address]) as client,
        SyncClient("reader", servers=[instance.address]) as reader,
    ):
        failed = reader.subscribe(LETTERS)
        for number in range(800, 840):
            client.publish("orders", b"%d" % number)
        client.flush()
        for attempt in range(1, most + 1):
            fail_once(client, ack)
            if attempt < most:
                assert client.queue_status("work")["queue_depth"] == 40
        letter: Message = next(iter(failed))
        assert letter.body == POISON
        assert json.loads(letter.correlation)["deliveries"] == most
        found = []
        with client.queue("work", backlog=10) as work:
            for message in work:
                found.append(message.body)
                if len(found) == 39:
                    break
        client.flush()
        assert sorted(found) == [b"%d" % number for number in range(801, 840)]
