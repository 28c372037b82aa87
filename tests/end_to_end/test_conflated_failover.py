"""Conflated subscriptions over the death of the instance that they are at: the consumer ends with
the last value of each record, whatever was pending there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from support.instance_processes import Servers, pair

from raylay.services.client import EPOCH, Client, Message, Subscription
from raylay.services.sow.definition import SowTopicDefinition

# two instances, one of them killed: several seconds
pytestmark = [pytest.mark.slow, pytest.mark.covers("Views", "conflated subscriptions")]

DEADLINE_S = 60.0
ROWS = 50
ROUNDS = 30
KILLED_AFTER = 10
Follow = Callable[[Client], Awaitable[Subscription]]


class Consumer:
    """A consumer that applies what it is given to the records that it holds."""

    def __init__(self, is_delta: bool = False) -> None:
        self.records: dict[int, Any] = {}
        self.messages = 0
        self.twice = 0
        self._is_delta = is_delta
        self._seen: set[tuple[int, int]] = set()

    def take(self, message: Message) -> None:
        if not message.body:
            return
        body = orjson.loads(message.body)
        self.messages += 1
        identity = message.publisher, message.sequence
        self.twice += identity in self._seen
        self._seen.add(identity)
        before = self.records.get(body["id"], {}) if self._is_delta else {}
        self.records[body["id"]] = {**before, **body}


async def rows(client: Client) -> Subscription:
    return await client.sow_and_subscribe("rows", conflation="50ms")


async def deltas(client: Client) -> Subscription:
    return await client.sow_and_subscribe("rows", conflation="50ms", delta=True)


async def replay(client: Client) -> Subscription:
    return await client.subscribe("rows", bookmark=EPOCH, conflation="50ms")


@pytest.mark.parametrize("follow", [rows, deltas, replay])
def test_the_consumer_ends_with_the_last_values(
    servers: Servers, tmp_path: Path, follow: Follow
) -> None:
    definition = SowTopicDefinition("rows", "json", keys=("/id",))
    first, second = pair(servers, tmp_path, sow=(definition,))
    consumer = Consumer(is_delta=follow is deltas)

    async def consume(client: Client) -> None:
        async for message in await follow(client):
            consumer.take(message)

    async def work() -> None:
        addresses = [first.address, second.address]
        async with (
            asyncio.timeout(DEADLINE_S),
            Client("publisher", addresses, failover="any") as publisher,
            Client("follower", addresses, failover="any") as follower,
        ):
            following = asyncio.create_task(consume(follower))
            for round_ in range(ROUNDS):
                for number in range(ROWS):
                    body = {"id": number, "v": round_, "w": number % 3}
                    await publisher.publish("rows", orjson.dumps(body))
                await publisher.flush(DEADLINE_S)
                if round_ == KILLED_AFTER:
                    while not consumer.messages:
                        await asyncio.sleep(0.01)
                    await asyncio.to_thread(first.kill)
                    await asyncio.to_thread(first.start)
            last = {n: {"id": n, "v": ROUNDS - 1, "w": n % 3} for n in range(ROWS)}
            while consumer.records != last:
                if following.done():
                    following.result()
                await asyncio.sleep(0.02)
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        assert follow is not replay or not consumer.twice, "no message was handed out twice"

    asyncio.run(work())
