"""SOW topics from a fabric's file to the rows of a query, and two instances that are compared."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.instance_processes import Server, Servers

from raylay.services.client import Client
from raylay.services.client.failover import Server as Address
from raylay.services.commands.sow_diff import _compare
from raylay.services.configuration.yaml_file import parse
from raylay.services.errors import CommandFailed
from raylay.services.fabric.plan import FabricRecord, bring_up_to_date, instance_config
from raylay.services.messages.types.definitions import TypeDefinition
from raylay.services.pipeline.audit.sow import compare_sow, entries_of, sow_sources, sums_of
from raylay.services.pipeline.journals import JournalPlace
from raylay.services.server.instance_server import InstanceServer

FILE = """fabric: f
topics: [{name: "^(ticks|orders)", message_type: json}]
instances: {A: {}, B: {}}
sow_topics:
  - {name: ticks/own, message_type: json, keys: [/id]}
  - name: ticks
    message_type: json
    pattern: ^ticks/
    keys: [/symbol]
    preprocessing: ["UPPER(/symbol) AS /symbol"]
    enrichment:
      - /price - /price OF PREVIOUS AS /change HINT OPTIONAL
      - TOPIC_NAME() AS /at
      - AMPS_INSTANCE_NAME() AS /by
  - {name: orders, message_type: json, keys: [/id]}
  - {name: /AMPS/ClientStatus, message_type: json, keys: [/client_name]}
"""


PAIR = "regions: {R: {instances: [A, B], links: sync}}"


class Two:
    """The instances of the file, each alone."""

    def __init__(self, directory: Path) -> None:
        settings = parse(FILE)
        self.record = FabricRecord("f", str(directory), settings.to_json(), key="k")
        bring_up_to_date(self.record, settings)
        self.servers = {
            each.name: InstanceServer(
                instance_config(settings, self.record, each), directory / each.name
            )
            for each in settings.instances
        }
        self.clients: dict[str, Client] = {}

    async def __aenter__(self) -> Two:
        self._stack = AsyncExitStack()
        for name, server in self.servers.items():
            await server.start()
            self._stack.push_async_callback(server.stop)
            client = Client(f"p-{name}", servers=[server.runtime.client_address])
            self.clients[name] = await self._stack.enter_async_context(client)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def publish(self, name: str, topic: str, *bodies: bytes) -> None:
        for body in bodies:
            await self.clients[name].publish(topic, body)
        await self.clients[name].flush()

    async def rows(self, name: str, topic: str, **options: Any) -> list[tuple[str, bytes]]:
        rows = await self.clients[name].sow(topic, **options).all()
        return sorted((row.topic, row.body) for row in rows)


@pytest.mark.covers("SOW", "many topics in one")
def test_a_file_makes_topics_that_are_queried_by_each_of_their_names(tmp_path: Path) -> None:
    async def run() -> None:
        async with Two(tmp_path) as two:
            await two.publish(
                "A",
                "ticks/nyse",
                b'{"symbol":"ibm","price":10}',
                b'{"symbol":"IBM","price":12}',
            )
            await two.publish("A", "ticks/xetra", b'{"symbol":"ibm","price":7}')
            await two.publish("A", "ticks/own", b'{"id":1}')
            nyse = (
                "ticks/nyse",
                b'{"symbol":"IBM","price":12,"change":2,"at":"ticks/nyse","by":"A"}',
            )
            xetra = ("ticks/xetra", b'{"symbol":"IBM","price":7,"at":"ticks/xetra","by":"A"}')
            assert await two.rows("A", "ticks/nyse") == [nyse]
            assert await two.rows("A", "^ticks/x") == [xetra]
            assert await two.rows("A", "ticks") == [nyse, xetra], "the physical name"
            assert await two.rows("A", "ticks", filter="/change = 2") == [nyse]
            assert await two.rows("A", "ticks/own") == [("ticks/own", b'{"id":1}')]
            with pytest.raises(CommandFailed, match="no SOW topic of A is 'elsewhere'"):
                await two.rows("A", "elsewhere")
            keys = [row.key for row in await two.clients["A"].sow("ticks").all()]
            assert len(set(keys)) == 2, "one symbol, two topics, two keys"
            await two.clients["A"].sow_delete("ticks/xetra", filter="1=1")
            await two.clients["A"].flush()
            assert await two.rows("A", "ticks") == [nyse]

    asyncio.run(run())


@pytest.mark.covers("SOW", "preprocessing and enrichment")
@pytest.mark.covers("SOW", "preprocessing before the key")
@pytest.mark.slow
def test_fields_are_computed_where_a_message_is_published(servers: Servers, tmp_path: Path) -> None:
    """What comes from another instance is as it was computed there."""
    settings = parse(FILE.replace("instances: {A: {}, B: {}}", PAIR))
    record = FabricRecord("f", str(tmp_path), settings.to_json(), key="k")
    bring_up_to_date(record, settings)
    for each in settings.instances:
        servers.append(Server(tmp_path / each.name, instance_config(settings, record, each)))
    for server in servers:
        server.wait_for("link_caught_up")

    async def published_at(at: Server, price: int) -> bytes:
        """What both have then. The pair is sync: what is persisted is there."""
        found = []
        async with Client(f"p-{price}", servers=[at.address], publish_timeout_s=10) as client:
            await client.publish("ticks/nyse", b'{"symbol":"IBM","price":%d}' % price)
            await client.flush()
        for number, server in enumerate(servers):
            async with Client(f"q-{price}-{number}", servers=[server.address]) as client:
                found += [row.body for row in await client.sow("ticks").all()]
        assert found[0] == found[1] and len(found) == 2
        return found[0]

    first, second = servers
    asyncio.run(published_at(first, 10))
    body = asyncio.run(published_at(first, 12))
    assert b'"change":2' in body and b'"by":"A"' in body
    body = asyncio.run(published_at(second, 9))
    assert b'"change":-3' in body and b'"by":"B"' in body


@pytest.mark.covers("SOW", "`raylay sow diff`")
@pytest.mark.covers("SOW", "the audit compares SOW topics by stores and journals")
def test_two_instances_are_compared_while_they_run_and_by_their_journals(tmp_path: Path) -> None:
    async def run() -> Two:
        async with Two(tmp_path) as two:
            for name in two.clients:
                await two.publish(name, "orders", b'{"id":1}', b'{"id":2}')
            await two.publish("A", "ticks/nyse", b'{"symbol":"A"}')
            both = [
                {"name": "diff", "servers": [Address(each.runtime.client_address, name, name)]}
                for name, each in two.servers.items()
            ]
            topics = [((name, "json"), "") for name in ("ticks/own", "ticks", "orders")]
            own, ticks, orders = await _compare(both, topics, 0)
            assert own.is_equal and own.counts == (0, 0)
            assert [each.what for each in ticks.differences] == ["missing there"]
            # Each has them from a publisher of its own.
            assert [each.what for each in orders.differences] == ["other message"] * 2
        return two

    two = asyncio.run(run())
    places = [JournalPlace(name, name, str(tmp_path / name / "journal")) for name in two.servers]

    def each(do: Any, values: Any) -> list[Any]:
        return [do(value) for value in values]

    later_us = time.time_ns() // 1000 + 60_000_000
    for stored in (True, False):
        sources = sow_sources(two.record, places)
        found = compare_sow(sources, each, later_us, 1.0, sums_of, entries_of)
        orders, ticks, own = found
        assert (own["topic"], own["records"], own["differing"]) == (
            "ticks/own",
            {"A": 0, "B": 0},
            0,
        )
        assert (ticks["topic"], ticks["records"]) == ("ticks", {"A": 1, "B": 0})
        assert [key["held"]["B"] for key in ticks["keys"]] == [None]
        assert (orders["differing"], orders["in_flight"], orders["not_compared"]) == (2, 0, {})
        under_way = compare_sow(sources, each, later_us, 600.0, sums_of, entries_of)
        assert [each["in_flight"] for each in under_way] == [2, 1, 0]
        if stored:
            broken = [replace(each, types=(TypeDefinition("x", "none"),)) for each in sources[1:]]
            orders, *_ = compare_sow(
                [sources[0], *broken], each, later_us, 1.0, sums_of, entries_of
            )
            assert orders["records"] == {"A": 2} and not orders["differing"]
            assert "no kind is called 'none'" in orders["not_compared"]["B"]
            # Without a store it is all in the journal, and the same comes out.
            for name in two.servers:
                (tmp_path / name / "sow.lmdb").unlink()
