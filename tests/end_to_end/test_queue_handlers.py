"""Handlers of a queue that fail, with real clients, sockets and processes: only what a handler was
given counts."""

from __future__ import annotations

import json
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
