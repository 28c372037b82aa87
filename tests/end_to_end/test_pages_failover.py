"""Pages over the death of the instance at which they are followed: in the end each consumer shows
exactly the window of the survivor."""

from __future__ import annotations

import asyncio
from pathlib import Path

import orjson
import pytest
from support.instance_processes import Servers, pair

from raylay.services.client import Client, Message
from raylay.services.sow.definition import SowTopicDefinition

# two instances, killed and under load: several seconds
pytestmark = [
    pytest.mark.slow,
    pytest.mark.covers("Views", "paginated subscriptions: after a failover"),
]

DEADLINE_S = 60.0
ROWS = 200
ROUNDS = 30
KILLED_AFTER = 12


class Page:
    """The rows that a consumer holds, by the messages that it was given."""

    def __init__(self, skip_n: int, order_by: str, filter: str = "", delta: bool = False) -> None:
        self.skip_n = skip_n
        self.order_by = order_by
        self.filter = filter
        self.delta = delta
        self.rows: dict[bytes, dict[str, int]] = {}
        self.kinds: set[tuple[str, str]] = set()

    async def follow(self, client: Client) -> None:
        rows = await client.sow_and_subscribe(
            "rows", filter=self.filter, order_by=self.order_by, top_n=20, skip_n=self.skip_n,
            oof=True, delta=self.delta,
        )  # fmt: skip
        async for message in rows:
            self.take(message)

    def take(self, message: Message) -> None:
        self.kinds.add((message.kind, message.reason))
        if message.kind == "oof":
            assert self.rows.pop(message.key, None) is not None, "it was not shown"
            return
        body = orjson.loads(message.body)
        self.rows[message.key] = self.rows.get(message.key, {}) | body

    async def expected(self, client: Client) -> dict[bytes, dict[str, int]]:
        rows = client.sow(
            "rows", filter=self.filter, order_by=self.order_by, top_n=20, skip_n=self.skip_n
        )
        return {row.key: orjson.loads(row.body) for row in await rows.all()}


async def load(client: Client) -> None:
    for round_ in range(1, ROUNDS + 1):
        for number in range(round_ % 3, ROWS, 3):
            body = orjson.dumps({"id": number, "v": (number * 31 + round_ * 17) % 101, "r": round_})
            await client.publish("rows", body)
        await client.sow_delete("rows", filter=f"/id % 25 = {round_ % 25}")
        if round_ == KILLED_AFTER:
            await client.flush(DEADLINE_S)
        await asyncio.sleep(0)
    await client.flush(DEADLINE_S)


def test_after_a_kill_each_page_is_the_survivors_window(servers: Servers, tmp_path: Path) -> None:
    first, second = pair(
        servers, tmp_path, sow=(SowTopicDefinition("rows", "json", keys=("/id",)),)
    )

    async def work() -> None:
        addresses = [first.address, second.address]
        pages = [
            Page(0, "/v DESC"),
            Page(30, "/v, /id", delta=True),
            Page(5, "", filter="/v > 20"),
            Page(150, "/r"),
        ]
        async with (
            asyncio.timeout(DEADLINE_S),
            Client("publisher", addresses, failover="any") as publisher,
            Client("follower", addresses, failover="any") as follower,
        ):
            for number in range(ROWS):
                await publisher.publish("rows", orjson.dumps({"id": number, "v": number, "r": 0}))
            await publisher.flush(DEADLINE_S)
            following = [asyncio.create_task(each.follow(follower)) for each in pages]
            while any(len(each.rows) < 20 for each in pages):
                await asyncio.sleep(0.01)
            loading = asyncio.create_task(load(publisher))
            while ("publish", "") not in pages[0].kinds:
                await asyncio.sleep(0.01)
            await asyncio.to_thread(first.kill)
            await asyncio.to_thread(first.start)
            await loading
            expected = [await each.expected(follower) for each in pages]
            assert len(expected[0]) == 20
            while [each.rows for each in pages] != expected:
                for task in following:
                    if task.done():
                        task.result()
                await asyncio.sleep(0.02)
            assert ("oof", "match") in pages[0].kinds
            for task in following:
                task.cancel()
            await asyncio.gather(*following, return_exceptions=True)

    asyncio.run(work())
