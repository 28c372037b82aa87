"""The state of the world of a real instance, asked and followed by real clients: one server for all
of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import msgpack
import orjson
import pytest
from support.instance_processes import Client as RawClient
from support.instance_processes import Server

from raylay.services.client import Client
from raylay.services.client.messages import Message
from raylay.services.client.subscriptions.subscription import Subscription
from raylay.services.config.instance import InstanceConfig
from raylay.services.errors import CommandFailed
from raylay.services.messages.records import iterate_records
from raylay.services.messages.topics import TopicRule
from raylay.services.sow.definition import SowTopicDefinition

pytestmark = pytest.mark.covers("SOW", "a query's subscription begins at its moment")

DEADLINE_S = 30.0
CONFIG = InstanceConfig(
    "solo", "group", topics=(TopicRule(".*"),),
    sow=(
        SowTopicDefinition("rows", "json", keys=("/id",), hash_indexes=(("/s",),)),
        SowTopicDefinition("busy", "json", keys=("/id",)),
        SowTopicDefinition("changing", "json", keys=("/id",)),
        SowTopicDefinition("replaced", "json", keys=("/id",)),
        SowTopicDefinition("merged", "json", keys=("/id",)),
        SowTopicDefinition("fx", "json", pattern="^fx/", keys=("/id",)),
    ),
)  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    made = Server(tmp_path_factory.mktemp("sow") / "solo", CONFIG)
    yield made
    made.kill()


def with_clients(server: Server, work: Callable[[Client, Client], Awaitable[None]]) -> None:
    async def run() -> None:
        made = [Client(name, servers=[server.address]) for name in ("publisher", "reader")]
        for each in made:
            await each.connect()
        try:
            async with asyncio.timeout(DEADLINE_S):
                await work(*made)
        finally:
            for each in made:
                await each.close()

    asyncio.run(run())


async def publish(client: Client, topic: str, *trees: Any) -> None:
    for each in trees:
        await client.publish(topic, orjson.dumps(each))
    await client.flush()


def trees(messages: list[Message]) -> list[Any]:
    return [orjson.loads(each.body) for each in messages]


async def take(subscription: Subscription, count: int) -> list[tuple[str, str, Any]]:
    """The next ones: kind, reason and fields."""
    found = []
    async for each in subscription:
        found.append((each.kind, each.reason, orjson.loads(each.body)))
        if len(found) == count:
            break
    return found


@pytest.mark.covers("SOW", "`sow`: group, batches")
def test_queries(server: Server) -> None:
    async def work(publisher: Client, reader: Client) -> None:
        rows = [{"id": n, "s": "xyz"[n % 3], "p": n * 7 % 100} for n in range(1_000)]
        await publish(publisher, "rows", *rows)
        found = await reader.sow(
            "rows", filter="/p > 90 AND /s = 'x'", order_by="/p DESC, /id"
        ).all()
        expected = [each for each in rows if each["p"] > 90 and each["s"] == "x"]
        assert trees(found) == sorted(expected, key=lambda each: (-each["p"], each["id"]))
        assert {each.kind for each in found} == {"sow"} and all(each.key for each in found)
        asked = reader.sow("rows", order_by="/id", top_n=3, skip_n=2, batch=2, select="[-/,+/id]")
        assert trees(await asked.all()) == [{"id": 2}, {"id": 3}, {"id": 4}]
        assert asked.matches == 1_000
        assert trees(await reader.sow("rows", filter="/id = 17").all()) == [rows[17]]
        assert len(await reader.sow("rows", filter="/s IN ('x', 'none')", batch=7).all()) == 334
        keys = [each.key for each in found[:2]]
        assert len(await reader.sow("rows", keys=keys).all()) == 2
        await publish(publisher, "fx/eur", {"id": 1})
        await publish(publisher, "fx/usd", {"id": 1})
        assert [each.topic for each in await reader.sow("fx/usd").all()] == ["fx/usd"]
        every = await reader.sow("^(fx/.*|rows)$", filter="/id = 1").all()
        assert [each.topic for each in every[:1]] == ["rows"] and len(every) == 3
        for options, reason in (
            ({"filter": "/id ="}, "bad_filter"), ({"order_by": "id"}, "bad_order_by"),
            ({"select": "id"}, "bad_select"), ({"topic": "nothing"}, "no_sow"),
            ({"as_of": "yesterday"}, "bad_bookmark"), ({"skip_n": 5}, "bad_command"),
        ):  # fmt: skip
            with pytest.raises(CommandFailed) as caught:
                await reader.sow(**{"topic": "rows", **options}).all()  # type: ignore[arg-type]
            assert caught.value.reason == reason

    with_clients(server, work)


@pytest.mark.covers("SOW", "`sow_and_subscribe`: of one moment")
def test_a_subscription_begins_at_the_moment_of_its_query(server: Server) -> None:
    async def work(publisher: Client, reader: Client) -> None:
        await publish(publisher, "busy", *({"id": n, "v": 0} for n in range(500)))

        last = 1_000_000
        begun = asyncio.Event()

        async def load() -> None:
            value = 0
            while value < last:
                value = last if begun.is_set() else value + 1
                await publish(publisher, "busy", *({"id": n, "v": value} for n in range(0, 500, 5)))

        loading = asyncio.create_task(load())
        followers = []
        for _ in range(5):
            wanted = f"/v < {last}"
            followers.append(await reader.sow_and_subscribe("busy", oof=True, filter=wanted))
        for each in followers:
            await each.group_end.wait()
        begun.set()
        await loading
        for each in followers:
            held: dict[bytes, int] = {}
            async for message in each:
                tree = orjson.loads(message.body)
                if message.kind == "oof":
                    assert message.reason == "match" and tree["v"] == last
                    del held[message.key]
                else:
                    assert tree["v"] > held.get(message.key, -1), "newer than what it had"
                    held[message.key] = tree["v"]
                if message.kind == "oof" and tree["id"] == 495:
                    break
            assert list(held.values()) == [0] * 400

    with_clients(server, work)


@pytest.mark.covers("SOW", "oof, deltas and select lists")
def test_what_changes_and_what_leaves(server: Server) -> None:
    async def work(publisher: Client, reader: Client) -> None:
        one = {"id": 1, "p": 5, "s": "x"}
        await publish(publisher, "changing", one, {"id": 2, "p": 1, "s": "y"})
        delta = await reader.sow_and_subscribe("changing", filter="/p > 1", oof=True, delta=True)
        cut = await reader.subscribe("changing", select="[-/,+/p]", filter="/p > 1")
        assert await take(delta, 1) == [("sow", "", one)]
        await publish(publisher, "changing", one | {"p": 7}, one | {"p": 0}, one | {"p": 9})
        assert await take(delta, 3) == [
            ("publish", "", {"id": 1, "p": 7}),
            ("oof", "match", one | {"p": 0}),
            ("publish", "", one | {"p": 9}),
        ]
        assert [tree for _, _, tree in await take(cut, 2)] == [{"p": 7}, {"p": 9}]
        with pytest.raises(CommandFailed) as caught:
            await reader.sow_and_subscribe("changing", filter="/p >")
        assert caught.value.reason == "bad_filter"

    with_clients(server, work)


@pytest.mark.covers("SOW", "`replace`: what comes into focus is sent")
def test_another_filter_moves_the_focus(server: Server) -> None:
    async def work(publisher: Client, reader: Client) -> None:
        rows = [{"id": n, "v": n} for n in range(10)]
        await publish(publisher, "replaced", *rows)
        follower = await reader.sow_and_subscribe("replaced", filter="/v < 5", oof=True)
        plain = await reader.subscribe("replaced", filter="/v < 5")
        assert len(await take(follower, 5)) == 5

        held = {n: n for n in range(5)}
        for filter_, true in (
            ("/v > 2", lambda v: v > 2), ("/v > 90", lambda v: v > 90), ("", lambda v: True),
        ):  # fmt: skip
            await follower.replace(filter=filter_)
            # It is changed while the rows are on their way.
            await publish(publisher, "replaced", {"id": 3, "v": 3})
            await follower.group_end.wait()
            while held != {n: n for n in range(10) if true(n)}:
                ((kind, reason, tree),) = await take(follower, 1)
                if kind == "oof":
                    assert reason == "match" and held.pop(tree["id"]) == tree["v"]
                else:
                    assert kind == "publish" or tree["id"] not in held, "it was in focus before"
                    held[tree["id"]] = tree["v"]
        await plain.replace(filter="/v = 77")
        with pytest.raises(CommandFailed) as caught:
            await plain.replace(filter="/v =")
        assert caught.value.reason == "bad_filter"
        await publish(publisher, "replaced", {"id": 1, "v": 4}, {"id": 2, "v": 77})
        found: list[Any] = []
        while not found or found[-1]["v"] != 77:
            found += [tree for _, _, tree in await take(plain, 1)]
        assert [tree["v"] for tree in found] == [3, 3, 3, 77]

    with_clients(server, work)


def test_deltas_are_merged_and_records_deleted(server: Server) -> None:
    async def work(publisher: Client, reader: Client) -> None:
        await publish(publisher, "merged", *({"id": n, "a": 1, "b": n} for n in range(6)))
        follower = await reader.sow_and_subscribe("merged", oof=True, order_by="/id")
        rows = [tree for _, _, tree in await take(follower, 6)]
        assert [each["id"] for each in rows] == list(range(6))
        await publisher.delta_publish("merged", b'{"id":3,"b":-1}')
        assert await take(follower, 1) == [("publish", "", {"id": 3, "a": 1, "b": -1})]
        await publisher.sow_delete("merged", filter="/b >= 4")
        await publisher.sow_delete("merged", data=b'{"id":0}')
        (found,) = await reader.sow("merged", filter="/id = 1").all()
        await publisher.sow_delete("merged", keys=[found.key])
        await publisher.flush()
        gone = await take(follower, 4)
        assert {each[:2] for each in gone} == {("oof", "deleted")}
        assert [tree["id"] for _, _, tree in gone[2:]] == [0, 1]
        assert sorted(tree["id"] for _, _, tree in gone[:2]) == [4, 5]
        left = trees(await reader.sow("merged", order_by="/id").all())
        assert left == [{"id": 2, "a": 1, "b": 2}, {"id": 3, "a": 1, "b": -1}]

    with_clients(server, work)
    raw = RawClient(server.address, "raw")
    options = {"t": "merged", "a": "processed,persisted"}
    raw.send({"c": "p", "cid": "1", "cmd": 6, **options}, b'{"id":2,"b":5}')
    assert raw.ack(cid="1", a="persisted").header["status"] == "success"
    raw.send({"c": "p", "cid": "2", "cmd": 2, **options}, msgpack.packb({"filter": "/id = 3"}))
    assert raw.ack(cid="2", a="persisted").header["status"] == "success"
    raw.send({"c": "sow", "sub": "q", "t": "merged", "cid": "3", "a": "completed"})
    rows = raw.next(lambda frame: frame.header["c"] == "sow")
    assert [each.body for each in iterate_records(rows.body)] == [b'{"id":2,"a":1,"b":5}']
    raw.send({"c": "p", "cid": "4", "cmd": 2, **options, "t": "plain"}, msgpack.packb({"keys": []}))
    assert raw.ack(cid="4").header["reason"] == "no_sow"
