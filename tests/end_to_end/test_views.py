"""Views from a fabric's file to the rows of a query and the changes that followers get."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from raylay.services.client import Client
from raylay.services.configuration.yaml_file import parse
from raylay.services.errors import CommandFailed
from raylay.services.fabric.plan import FabricRecord, bring_up_to_date, instance_config
from raylay.services.server.instance_server import InstanceServer
from raylay.services.views import view

FILE = """fabric: f
topics: [{name: "^(orders|customers)", message_type: json}]
instances: {A: {}}
sow_topics:
  - {name: orders, message_type: json, keys: [/id], expiration: enabled}
  - {name: customers, message_type: json, keys: [/id]}
views:
  - name: sums
    message_type: json
    topic: orders
    grouping: [/customer]
    projection: [/customer AS /customer, SUM(/price) AS /sum, COUNT(/price) AS /count]
    filter: /price > 0
  - name: named
    message_type: json
    joins: ["[sums]./customer = [customers]./id"]
    projection:
      - "[sums]./customer AS /customer"
      - "[customers]./name AS /name HINT OPTIONAL"
      - "[sums]./sum AS /sum"
  - name: all
    message_type: json
    topic: sums
    grouping: [/none]
    projection: [SUM(/sum) AS /sum]
    conflation: inline
conflated_topics:
  - {name: slow, message_type: json, topic: sums, interval: 200ms, filter: /sum > 1}
"""


class Instance:
    """The instance of the file, and a client of it."""

    def __init__(self, directory: Path, more: str = "") -> None:
        filter_ = "    filter: /price > 0\n"
        settings = parse(FILE.replace(filter_, f"{filter_}    {more}\n" if more else filter_))
        record = FabricRecord("f", str(directory), settings.to_json(), key="k")
        bring_up_to_date(record, settings)
        config = instance_config(settings, record, settings.instances[0])
        self.server = InstanceServer(config, directory / "A")

    async def __aenter__(self) -> Instance:
        await self.server.start()
        self.client = Client("c", servers=[self.server.runtime.client_address])
        await self.client.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.__aexit__(None, None, None)
        await self.server.stop()

    async def publish(self, topic: str, *values: dict[str, Any]) -> None:
        for value in values:
            await self.client.publish(topic, json.dumps(value).encode())
        await self.client.flush()

    async def rows(self, topic: str, **options: Any) -> list[Any]:
        rows = await self.client.sow(topic, **options).all()
        return sorted((json.loads(row.body) for row in rows), key=json.dumps)


@pytest.mark.covers("Views", "views: queried, filtered and ordered")
@pytest.mark.covers("Views and conflation, title by title", "a view is queried")
def test_views_are_queried_and_the_same_after_a_restart(tmp_path: Path) -> None:
    async def check(at: Instance) -> None:
        assert await at.rows("sums") == [
            {"customer": 1, "sum": 30, "count": 2},
            {"customer": 2, "sum": 5, "count": 1},
        ]
        assert await at.rows("sums", filter="/sum > 10") == [{"customer": 1, "sum": 30, "count": 2}]
        rows = await at.client.sow("sums", order_by="/sum DESC", top_n=1).all()
        assert [json.loads(row.body)["customer"] for row in rows] == [1]
        assert rows[0].bookmark.partition("|")[0] in ("", "0")
        assert await at.rows("named") == [
            {"customer": 1, "name": "ann", "sum": 30},
            {"customer": 2, "sum": 5},
        ]
        assert await at.rows("all") == [{"sum": 35}]

    async def run() -> None:
        async with Instance(tmp_path) as at:
            await at.publish("customers", {"id": 1, "name": "ann"})
            await at.publish(
                "orders",
                {"id": 1, "customer": 1, "price": 10},
                {"id": 2, "customer": 2, "price": 5},
                {"id": 3, "customer": 2, "price": 20},
                {"id": 4, "customer": 2, "price": -1},
                {"id": 3, "customer": 1, "price": 20},
            )
            await check(at)
            status = at.server.parts.status.status()["views"]
            assert status["json/sums"]["records"] == 2 and status["json/sums"]["updates"] >= 4
        async with Instance(tmp_path) as at:
            await check(at)
            await at.client.sow_delete("orders", filter="/customer = 2")
            await at.client.flush()
            assert await at.rows("named") == [{"customer": 1, "name": "ann", "sum": 30}]
            assert await at.rows("all") == [{"sum": 30}]

    asyncio.run(run())


@pytest.mark.covers("Views", "views: followed with deltas and out-of-focus notices")
@pytest.mark.covers("Views and conflation, title by title", "a view is queried")
def test_followers_of_a_view_get_its_changes(tmp_path: Path) -> None:
    async def run() -> None:
        async with Instance(tmp_path) as at:
            client = at.client
            plain = await client.subscribe("sums")
            rows = await client.sow_and_subscribe("sums", filter="/sum > 10", oof=True)
            deltas = await client.sow_and_subscribe("sums", delta=True)
            await at.publish("orders", {"id": 1, "customer": 1, "price": 10})
            await at.publish("orders", {"id": 2, "customer": 1, "price": 20})
            await at.publish("orders", {"id": 1, "customer": 1, "price": -5})
            await client.sow_delete("orders", filter="/id = 2")
            bodies = [json.loads((await anext(plain)).body) for _ in range(3)]
            assert [(each["sum"], each["count"]) for each in bodies] == [(10, 1), (30, 2), (20, 1)]
            focus = []
            while len(focus) < 3:
                message = await anext(rows)
                if message.kind not in ("group_begin", "group_end"):
                    focus.append((message.kind, json.loads(message.body)["sum"]))
            assert [sum_ for _, sum_ in focus] == [30, 20, 20]
            assert focus[-1][0] != focus[0][0]
            changed = []
            while len(changed) < 3:
                message = await anext(deltas)
                if message.kind not in ("group_begin", "group_end"):
                    changed.append(json.loads(message.body))
            assert changed[1] == {"customer": 1, "sum": 30, "count": 2}
            assert changed[2] == {"customer": 1, "sum": 20, "count": 1}

    asyncio.run(run())


@pytest.mark.covers("Views", "views: what they refuse")
@pytest.mark.covers("Views and conflation, title by title", "no client publishes")
def test_nobody_publishes_to_a_view_or_replays_it(tmp_path: Path) -> None:
    async def run() -> None:
        async with Instance(tmp_path) as at:
            client = at.client
            with pytest.raises(CommandFailed, match="is computed"):
                await client.subscribe("sums", bookmark="0")
            with pytest.raises(Exception, match="from other topics"):
                await client.publish("sums", b'{"customer":1}')
                await client.flush()

    asyncio.run(run())


@pytest.mark.covers("Views", "views: what they refuse")
def test_a_view_beyond_its_limit_ends_its_followers_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view, "WEIGHED_EVERY", 1)

    async def run() -> None:
        async with Instance(tmp_path, more="memory_bytes_max: 3000") as at:
            follower = await at.client.subscribe("sums")
            slow = await at.client.subscribe("slow")
            for number in range(20):
                await at.publish("orders", {"id": number, "customer": number, "price": 5})
            for each in (follower, slow):
                with pytest.raises(CommandFailed, match="out of service"):
                    async for _ in each:
                        pass
            with pytest.raises(CommandFailed, match="out of service") as caught:
                await at.rows("sums")
            assert caught.value.reason == "view_full"
            with pytest.raises(CommandFailed, match="out of service"):
                await at.client.subscribe("all")
            assert len(await at.rows("orders")) == 20
            events = at.server.runtime.events_log.after(0)
            told = [each["topic"] for each in events if each["event"] == "view_full"]
            assert told[0] == "json/sums" and "json/slow" in told

    asyncio.run(run())


@pytest.mark.covers("Views", "conflated topics: a follower gets each record")
@pytest.mark.covers("Views and conflation, title by title", "a copy of a topic")
def test_a_conflated_topic_gives_the_last_value_of_an_interval(tmp_path: Path) -> None:
    async def run() -> None:
        async with Instance(tmp_path) as at:
            follower = await at.client.sow_and_subscribe("slow", oof=True)
            for price in range(1, 21):
                await at.publish("orders", {"id": 1, "customer": 1, "price": price})
            given: list[Any] = []
            while not given or given[-1] != 20:
                message = await anext(follower)
                if message.kind not in ("group_begin", "group_end"):
                    given.append(json.loads(message.body)["sum"])
            assert given == sorted(given) and len(given) < 20, "most were replaced"
            assert await at.rows("slow") == [{"customer": 1, "sum": 20, "count": 1}]
            status = at.server.parts.status.status()["conflated_topics"]["json/slow"]
            assert status["records"] == 1 and status["conflated"] == 20 - 1 - len(given)
            await at.client.sow_delete("orders", filter="/id = 1")
            gone = await anext(follower)
            assert json.loads(gone.body)["sum"] == 20 and gone.kind != "publish"
            assert await at.rows("slow") == []
        async with Instance(tmp_path) as at:
            await at.publish("orders", {"id": 2, "customer": 2, "price": 7})
        async with Instance(tmp_path) as at:
            assert await at.rows("slow") == [{"customer": 2, "sum": 7, "count": 1}]

    asyncio.run(run())
