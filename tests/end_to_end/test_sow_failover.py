"""Who follows a SOW topic over the death of the instance that he follows it at."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import orjson
import pytest
from support.instance_processes import Server, Servers, pair

from raylay.services.client import Client, ClientEvent, Connected, Message
from raylay.services.client.publishing.deletes import delete_body
from raylay.services.messages.records import Command, publisher_id
from raylay.services.sow.definition import SowTopicDefinition
from raylay.services.sow.state import SowRules

# two instances, killed and under load: several seconds
pytestmark = [
    pytest.mark.slow,
    pytest.mark.covers("SOW", "sow_and_subscribe across failovers"),
]

DEADLINE_S = 60.0
ROWS = 300
ROUNDS = 40
KILLED_AFTER = 15
Held = tuple[int, int, bytes]


class View:
    """What a consumer makes of what he is handed out, and what he was handed out for nothing."""

    def __init__(self) -> None:
        self.records: dict[bytes, Held] = {}
        self.kinds: set[tuple[str, str]] = set()
        self.left_out = 0

    def take(self, message: Message) -> None:
        self.kinds.add((message.kind, message.reason))
        if message.kind == "oof":
            assert self.records.pop(message.key, None) is not None, "it was not held"
            return
        found = held(message)
        known = self.records.get(message.key)
        assert known is None or known[:2] != found[:2], "it was held already"
        self.records[message.key] = found


def held(message: Message) -> Held:
    return message.publisher, message.sequence, message.body


async def load(client: Client, view: View, kill: Coroutine[Any, Any, None]) -> None:
    """Rows, then rounds of changes, deltas and deletes; the instance dies in the middle, when
    somebody has seen half of it."""
    for number in range(ROWS):
        await client.publish("rows", orjson.dumps({"id": number, "v": 0}))
    for round_ in range(1, ROUNDS + 1):
        if round_ == KILLED_AFTER:
            await client.flush(DEADLINE_S)
            while len(view.records) < ROWS / 2:
                await asyncio.sleep(0.01)
            killing = asyncio.create_task(kill)
        for number in range(round_ % 3, ROWS, 3):
            # One in five of these leaves the focus of the follower.
            value = 1_000 if (number + round_) % 5 == 0 else round_
            body = orjson.dumps({"id": number, "v": value})
            if number % 2:
                await client.delta_publish("rows", body)
            else:
                await client.publish("rows", body)
        await client.sow_delete("rows", filter=f"/id % 50 = {round_ % 50}")
        await asyncio.sleep(0.01)
    await killing
    await client.flush(DEADLINE_S)


def test_the_view_is_the_survivors_and_nothing_comes_twice(
    servers: Servers, tmp_path: Path
) -> None:
    first, second = pair(
        servers, tmp_path, sow=(SowTopicDefinition("rows", "json", keys=("/id",)),)
    )

    async def follow(client: Client, view: View) -> None:
        rows = await client.sow_and_subscribe("rows", filter="/v < 1000", oof=True)
        async for message in rows:
            view.take(message)
            view.left_out = rows.suppressed_messages

    async def work() -> None:
        addresses = [first.address, second.address]
        views = [View(), View()]
        async with (
            asyncio.timeout(DEADLINE_S),
            Client("publisher", addresses, failover="any") as publisher,
            Client("follower", addresses, failover="any") as follower,
            Client("late", addresses, failover="any") as late,
        ):
            following = [asyncio.create_task(follow(follower, views[0]))]

            async def kill() -> None:
                following.append(asyncio.create_task(follow(late, views[1])))
                await asyncio.sleep(0)
                await asyncio.to_thread(first.kill)
                await asyncio.to_thread(first.start)

            await load(publisher, views[0], kill())
            rows = await follower.sow("rows", filter="/v < 1000").all()
            expected = {row.key: held(row) for row in rows}
            assert len(expected) > ROWS / 2
            while any(view.records != expected for view in views):
                for task in following:
                    if task.done():
                        task.result()
                await asyncio.sleep(0.02)
            for task in following:
                task.cancel()
            await asyncio.gather(*following, return_exceptions=True)
        kinds = set.union(*(view.kinds for view in views))
        assert kinds == {("sow", ""), ("publish", ""), ("oof", "match"), ("oof", "deleted")}
        assert views[0].left_out, "the survivor's rows that it held were left out"

    asyncio.run(work())
    assert_equal_journals(first, second)


@pytest.mark.covers("Views", "aggregated subscriptions: followed", note="over a kill")
def test_groups_are_the_survivors(servers: Servers, tmp_path: Path) -> None:
    first, second = pair(
        servers, tmp_path, sow=(SowTopicDefinition("rows", "json", keys=("/id",)),)
    )
    asked: dict[str, Any] = {
        "filter": "/v < 1000",
        "projection": ["/v AS /v", "COUNT(/id) AS /count", "MAX(/id) AS /last"],
        "grouping": ["/v"],
    }

    async def follow(client: Client, groups: dict[bytes, bytes], kinds: set[str]) -> None:
        async for message in await client.sow_and_subscribe("rows", oof=True, **asked):
            kinds.add(message.kind)
            if message.kind == "oof":
                assert groups.pop(message.key, None) is not None, "it was not held"
            else:
                groups[message.key] = message.body

    async def work() -> None:
        addresses = [first.address, second.address]
        groups: dict[bytes, bytes] = {}
        kinds: set[str] = set()
        async with (
            asyncio.timeout(DEADLINE_S),
            Client("publisher", addresses, failover="any") as publisher,
            Client("follower", addresses, failover="any") as follower,
        ):
            for number in range(ROWS):
                await publisher.publish("rows", orjson.dumps({"id": number, "v": 0}))
            following = asyncio.create_task(follow(follower, groups, kinds))
            for round_ in range(1, ROUNDS + 1):
                if round_ == KILLED_AFTER:
                    await publisher.flush(DEADLINE_S)
                    await asyncio.to_thread(first.kill)
                    await asyncio.to_thread(first.start)
                for number in range(round_ % 3, ROWS, 3):
                    value = 1_000 if (number + round_) % 5 == 0 else round_ - number % 4
                    await publisher.publish("rows", orjson.dumps({"id": number, "v": value}))
                await publisher.sow_delete("rows", filter=f"/id % 50 = {round_ % 50}")
            await publisher.flush(DEADLINE_S)
            rows = await follower.sow("rows", **asked).all()
            expected = {row.key: row.body for row in rows}
            assert len(expected) > 1
            while groups != expected:
                if following.done():
                    following.result()
                await asyncio.sleep(0.02)
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        assert kinds == {"sow", "publish", "oof"}

    asyncio.run(work())


@pytest.mark.covers("SOW", "`sow_and_subscribe` of the past", note="over failovers and restarts")
def test_rows_of_then_and_every_message_since_over_a_kill(servers: Servers, tmp_path: Path) -> None:
    definition = SowTopicDefinition(
        "rows", "json", keys=("/id",), rules=SowRules(window_us=3_600_000_000)
    )
    first, second = pair(servers, tmp_path, sow=(definition,))
    before, since = 400, 6_000
    told: list[ClientEvent] = []

    async def work() -> None:
        addresses = [first.address, second.address]
        async with (
            asyncio.timeout(DEADLINE_S),
            Client("publisher", addresses, failover="any") as publisher,
            Client("follower", addresses, failover="any", on_event=told.append) as follower,
        ):
            for number in range(before):
                await publisher.publish("rows", orjson.dumps({"id": number % 50, "v": number}))
            await publisher.sow_delete("rows", filter="/id = 7")
            await publisher.flush(DEADLINE_S)
            bookmark = f"{publisher_id('publisher')}|{publisher.last_sequence}|"
            for number in range(before, before + since):
                await publisher.publish("rows", orjson.dumps({"id": number % 50, "v": number}))
            await publisher.flush(DEADLINE_S)
            found = await follower.sow_and_subscribe("rows", bookmark=bookmark, rate="4000")
            rows: dict[int, int] = {}
            values: list[int] = []
            async for message in found:
                tree = orjson.loads(message.body)
                if message.kind == "sow":
                    assert tree["id"] not in rows and not values, "each once, before the messages"
                    rows[tree["id"]] = tree["v"]
                    continue
                values.append(tree["v"])
                if len(values) == since // 3:
                    await asyncio.to_thread(first.kill)
                    await asyncio.to_thread(first.start)
                    await publisher.publish("rows", orjson.dumps({"id": 0, "v": before + since}))
                    await publisher.flush(DEADLINE_S)
                if tree["v"] == before + since:
                    break
            last = {number % 50: number for number in range(before)}
            del last[7]
            assert rows == last
            assert values == list(range(before, before + since + 1)), "each once, in order"
            assert sum(isinstance(each, Connected) for each in told) > 1

    asyncio.run(work())


@pytest.mark.covers("SOW", "of any number at once")
def test_many_deletes_that_a_store_sends_again(servers: Servers, tmp_path: Path) -> None:
    first, second = pair(
        servers, tmp_path, sow=(SowTopicDefinition("rows", "json", keys=("/id",)),)
    )

    async def work() -> None:
        addresses = [first.address, second.address]
        async with (
            asyncio.timeout(DEADLINE_S),
            Client("publisher", addresses, failover="any") as publisher,
        ):
            for number in range(1_000):
                await publisher.publish("rows", orjson.dumps({"id": number, "v": number % 10}))
            await publisher.flush(DEADLINE_S)
            # All of them are sent by the store, to the other one: nothing goes out in this turn.
            for number in range(500):
                for by in (f"/v = {number % 7} AND /id < {number}", f"/id = {number + 500}"):
                    publisher.publish_nowait("rows", delete_body(filter=by), command=Command.DELETE)
            first.kill()
            restarting = asyncio.create_task(asyncio.to_thread(first.start))
            await publisher.flush(DEADLINE_S)
            await restarting
            rows = await publisher.sow("rows").all()
            left = {orjson.loads(row.body)["id"] for row in rows}
            gone = {n for n in range(500) if any(n % 10 == m % 7 and n < m for m in range(500))}
            assert left == set(range(1_000)) - gone - set(range(500, 1_000))
            assert len(gone) > 300

    asyncio.run(work())
    assert_equal_journals(first, second)


def assert_equal_journals(first: Server, second: Server) -> None:
    assert sorted(first.journal()) == sorted(second.journal())
