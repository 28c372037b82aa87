"""Conflated subscriptions at an instance, as a client has them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from end_to_end.test_views import Instance
from support.one_instance import events, in_instance

from raylay.services.capacity.config import CapacityConfig
from raylay.services.client import EPOCH, NOW, Client, Message, Subscription
from raylay.services.config.instance import InstanceConfig
from raylay.services.errors import CommandFailed
from raylay.services.messages.topics import TopicRule
from raylay.services.queues.definition import QueueDefinition
from raylay.services.server.instance_server import InstanceServer
from raylay.services.sow.definition import SowTopicDefinition

pytestmark = pytest.mark.covers("Views", "conflated subscriptions")

CONFIG = InstanceConfig(
    "A-1",
    "A",
    first=True,
    topics=(TopicRule("rows|quotes|work", "json"),),
    sow=(SowTopicDefinition("rows", "json", keys=("/id",)),),
    queue_definitions=(QueueDefinition("queue", "json", underlying="work"),),
)
LONG = "1h"
"""An interval that does not end while a test runs."""


def with_client(
    directory: Path, visit: Callable[[Client, InstanceServer], Awaitable[None]]
) -> None:
    async def run(server: InstanceServer) -> None:
        async with Client("c", servers=[server.runtime.client_address]) as client:
            await visit(client, server)

    in_instance(directory, run, CONFIG)


async def publish(client: Client, topic: str, *values: dict[str, Any]) -> None:
    for value in values:
        await client.publish(topic, orjson.dumps(value))
    await client.flush()


def said(message: Message) -> tuple[str, str, Any]:
    return message.kind, message.reason, orjson.loads(message.body) if message.body else None


async def changes(subscription: Subscription, count: int) -> list[tuple[str, str, Any]]:
    """The next changes, without the rows of a query."""
    found: list[tuple[str, str, Any]] = []
    while len(found) < count:
        message = await anext(subscription)
        if message.kind in ("publish", "oof"):
            found.append(said(message))
    return found


@pytest.mark.covers("Views and conflation, title by title", "the first change")
def test_a_record_comes_once_an_interval_with_its_last_value(tmp_path: Path) -> None:
    async def visit(client: Client, server: InstanceServer) -> None:
        await publish(client, "rows", {"id": 1, "p": 0})
        followed = await client.sow_and_subscribe("rows", conflation="300ms", oof=True)
        row = await anext(followed)
        assert said(row) == ("sow", "", {"id": 1, "p": 0}), "rows are not conflated"
        deltas = await client.delta_subscribe("rows", conflation="300ms")
        for value in range(1, 6):
            await publish(client, "rows", {"id": 1, "p": value}, {"id": 2, "p": value})
        await client.sow_delete("rows", filter="/id = 2")
        # The instance gives the last value of the record; how many intervals there were depends on
        # the speed of the machine.
        found: list[tuple[str, str, Any]] = []
        while ("publish", "", {"id": 1, "p": 5}) not in found:
            found += await changes(followed, 1)
        merged: dict[str, Any] = {}
        while merged.get("p") != 5 or merged["id"] != 1:
            ((_, _, body),) = await changes(deltas, 1)
            merged = body if body["id"] == 1 else merged
        conflated = server.parts.clients.conflated.status()
        assert (conflated["subscriptions"], conflated["definitions"]) == (2, 1)

    with_client(tmp_path, visit)


def test_a_replaced_subscription_gets_what_is_pending_first(tmp_path: Path) -> None:
    async def visit(client: Client, server: InstanceServer) -> None:
        rows = await client.sow_and_subscribe("rows", filter="/p > 0", conflation=LONG, oof=True)
        plain = await client.subscribe("rows", filter="/p > 0", conflation=LONG)
        await publish(client, "rows", {"id": 1, "p": 1}, {"id": 2, "p": 2}, {"id": 3, "p": 0})
        status = server.parts.clients.conflated.status
        assert status()["pending"] == 4
        await rows.replace(filter="/p < 2")
        found = sorted(await changes(rows, 3), key=str)
        assert found == [
            ("oof", "match", {"id": 2, "p": 2}),
            ("publish", "", {"id": 1, "p": 1}),
            ("publish", "", {"id": 2, "p": 2}),
        ]
        await plain.replace(filter="/p < 2")
        assert len(await changes(plain, 2)) == 2
        assert status()["pending"] == 0, "the new ones are conflated again, and share nothing"
        await publish(client, "rows", {"id": 1, "p": 1})
        assert status()["pending"] == 2
        rows.unsubscribe()
        while status()["subscriptions"] > 1:
            await asyncio.sleep(0.01)
        assert status()["pending"] == 1

    with_client(tmp_path, visit)


@pytest.mark.covers("Views and conflation, title by title", "`conflation_key`")
def test_messages_of_a_topic_without_sow_need_a_key(tmp_path: Path) -> None:
    async def visit(client: Client, server: InstanceServer) -> None:
        with pytest.raises(CommandFailed, match="give conflation_key") as refused:
            await client.subscribe("quotes", conflation="1s")
        assert refused.value.reason == "bad_command"
        with pytest.raises(CommandFailed, match="is a queue"):
            await client.subscribe("queue", conflation="1s")
        quotes = await client.subscribe("quotes", conflation="100ms", conflation_key=["/s"])
        await publish(client, "quotes", {"s": "A", "p": 1}, {"s": "B", "p": 1}, {"s": "A", "p": 2})
        last: dict[str, int] = {}
        while last != {"A": 2, "B": 1}:
            ((_, _, body),) = await changes(quotes, 1)
            last[body["s"]] = body["p"]
        # The client is still there after what was refused.
        assert len(server.parts.clients.live) == 1

    with_client(tmp_path, visit)


@pytest.mark.covers("Views and conflation, title by title", "`auto`: nothing")
def test_auto_gives_at_once_what_the_client_takes(tmp_path: Path) -> None:
    async def visit(client: Client, _: InstanceServer) -> None:
        auto = await client.sow_and_subscribe("rows", conflation="auto", oof=True)
        await publish(client, "rows", {"id": 1, "p": 1})
        assert await changes(auto, 1) == [("publish", "", {"id": 1, "p": 1})]
        await client.sow_delete("rows", filter="/id = 1")
        assert await changes(auto, 1) == [("oof", "deleted", {"id": 1, "p": 1})]

    with_client(tmp_path, visit)


def test_equal_subscriptions_of_several_clients_share_what_is_pending(tmp_path: Path) -> None:
    async def visit(client: Client, server: InstanceServer) -> None:
        async with Client("d", servers=[server.runtime.client_address]) as other:
            for each in (client, other):
                await each.subscribe("rows", filter="/p > 0", conflation=LONG)
            status = server.parts.clients.conflated.status
            body = "x" * 100_000
            values = ({"id": number, "p": 1, "b": body} for number in range(10))
            await publish(client, "rows", *values)
            assert status()["definitions"] == 1 and status()["pending"] == 10
            held = [each.holding().memory_bytes for each in server.parts.clients.sessions.values()]
            assert all(each > 10 * 100_000 / 2 for each in held), "each is charged its share"
        while len(server.parts.clients.live) > 1:
            await asyncio.sleep(0.01)
        await publish(client, "rows", {"id": 10, "p": 1, "b": body})
        assert status()["pending"] == 11
        (session,) = server.parts.clients.sessions.values()
        assert session.holding().memory_bytes > 10 * 100_000, "who is left has it all"

    with_client(tmp_path, visit)


@pytest.mark.parametrize(
    ("topic", "options"),
    [
        ("sums", {}),
        ("slow", {}),
        (
            "orders",
            {
                "projection": ["/customer AS /customer", "SUM(/price) AS /sum"],
                "grouping": ["/customer"],
            },
        ),
    ],
    ids=["view", "conflated topic", "aggregation"],
)
@pytest.mark.covers("Views and conflation, title by title", "a view and a")
def test_computed_records_are_conflated_like_those_of_topics(
    tmp_path: Path, topic: str, options: dict[str, Any]
) -> None:
    async def run() -> None:
        async with Instance(tmp_path) as at:
            await at.publish("orders", {"id": 1, "customer": 1, "price": 5})
            followed = await at.client.sow_and_subscribe(
                topic, oof=True, conflation="100ms", **options
            )
            held = await anext(followed) if topic != "slow" else None
            for price in range(6, 10):
                await at.publish("orders", {"id": 1, "customer": 1, "price": price})
            while held is None or held.kind == "group_end" or orjson.loads(held.body)["sum"] != 9:
                held = await anext(followed)
            await at.client.sow_delete("orders", filter="/id = 1")
            while held.kind != "oof":
                held = await anext(followed)
            assert orjson.loads(held.body)["sum"] == 9 and held.topic == topic

    asyncio.run(run())


@pytest.mark.covers("Views", "conflated replays")
@pytest.mark.covers("Views and conflation, title by title", "a replay is conflated")
def test_a_replay_is_conflated_along_its_timeline_and_goes_on_live(tmp_path: Path) -> None:
    async def visit(client: Client, server: InstanceServer) -> None:
        for value in range(5):
            await publish(client, "quotes", {"s": "A", "p": value}, {"s": "B", "p": value})
            await publish(client, "rows", {"id": value % 2, "p": value})
        past = f"[{EPOCH}:{NOW}]"
        whole = await client.subscribe(
            "quotes", bookmark=past, conflation=LONG, conflation_key=["/s"]
        )
        assert [await changes(whole, 1) for _ in range(2)] == [
            [("publish", "", {"s": "A", "p": 4})],
            [("publish", "", {"s": "B", "p": 4})],
        ], "the range ends within the interval"
        rows = await client.sow_and_subscribe("rows", bookmark=NOW, conflation="100ms")
        live = await client.subscribe(
            "rows|quotes", bookmark=EPOCH, conflation="100ms", conflation_key=["/id", "/s"]
        )
        await publish(client, "rows", {"id": 0, "p": 9}, {"id": 1, "p": 10})
        last: dict[str, int] = {}
        while last != {"0": 9, "1": 10, "A": 4, "B": 4}:
            ((_, _, body),) = await changes(live, 1)
            last[str(body.get("s", body.get("id")))] = body["p"]
        held: dict[int, int] = {}
        while held != {0: 9, 1: 10}:
            message = await anext(rows)
            if message.body:
                _, _, body = said(message)
                held[body["id"]] = body["p"]
        with pytest.raises(CommandFailed, match="no conflation=auto"):
            await client.subscribe("rows", bookmark=EPOCH, conflation="auto")
        with pytest.raises(CommandFailed, match="live delivers messages as they come"):
            await client.subscribe("rows", bookmark=EPOCH, conflation="1s", live=True)
        with pytest.raises(CommandFailed, match="give conflation_key"):
            await client.subscribe("quotes", bookmark=EPOCH, conflation="1s")
        replays = server.parts.replays
        (session,) = server.parts.clients.sessions.values()
        options = [replays.options_of(each) for each in session.subscriptions.values()]
        assert any("conflation=100ms,conflation_key=[/id,/s]" in each for each in options)
        pending = await client.subscribe("rows", bookmark=NOW, conflation=LONG)
        await publish(client, "rows", {"id": 2, "p": 1})
        while not session.holding().memory_bytes:
            await asyncio.sleep(0.01)
        pending.unsubscribe()
        while session.holding().memory_bytes:
            await asyncio.sleep(0.01)

    with_client(tmp_path, visit)


def test_a_client_that_does_not_read_gets_the_last_value_of_each_record(tmp_path: Path) -> None:
    async def visit(client: Client, server: InstanceServer) -> None:
        address = server.runtime.client_address
        async with Client("slow", servers=[address]) as slow:
            auto = await slow.subscribe("rows", conflation="auto", queue_bytes_max=1_000)
            status = server.parts.clients.conflated.status
            count = 0
            body = "x" * 100_000
            # Until the sockets on the way are full, nothing waits.
            while status()["conflated"] < 5:
                await publish(client, "rows", {"id": count % 3, "n": count, "body": body})
                count += 1
            for number in range(3):
                await publish(client, "rows", {"id": number, "n": -1})
            last: dict[int, int] = {}
            came = 0
            while last != {0: -1, 1: -1, 2: -1}:
                ((_, _, found),) = await changes(auto, 1)
                last[found["id"]] = found["n"]
                came += 1
            assert came < count, "at least five changes were never given"
            await publish(client, "rows", {"id": 0, "n": -2})
            assert await changes(auto, 1) == [("publish", "", {"id": 0, "n": -2})]

    with_client(tmp_path, visit)


def test_a_client_whose_pending_changes_take_too_much_is_disconnected(tmp_path: Path) -> None:
    config = replace(CONFIG, capacity=CapacityConfig(memory_bytes_max=1_000_000))

    async def run(server: InstanceServer) -> None:
        address = server.runtime.client_address
        async with (
            Client("p", servers=[address]) as client,
            Client("c", servers=[address]) as other,
        ):
            await other.subscribe("rows", conflation=LONG)
            number = 0
            while not events(server, "slow_client"):
                number += 1
                await publish(client, "rows", {"id": number, "body": "x" * 10_000})
            assert number > 20, "half of the memory is one client's"
            (event,) = events(server, "slow_client")
            assert (event["client"], event["limit"]) == ("c", "share")

    in_instance(tmp_path, run, config)
