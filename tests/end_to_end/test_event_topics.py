"""Event topics, with an instance and real clients."""

from __future__ import annotations

import asyncio
import json
import textwrap
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.typed_pages import blocks

from raylay.services.client import Client
from raylay.services.client.subscriptions.subscription import Subscription
from raylay.services.configuration.yaml_file import parse
from raylay.services.errors import CommandFailed, StorageFull
from raylay.services.fabric.plan import FabricRecord, bring_up_to_date, instance_config
from raylay.services.messages.event_topics import CLIENT_STATUS, SOW_STATS
from raylay.services.messages.types.registry import message_type
from raylay.services.server.instance_server import InstanceServer
from raylay.services.server.sow import manager
from raylay.storage.sow import LmdbSowStore

DEADLINE_S = 60.0
ALONE = "fabric: f\ninstances: {A: {}}\n"
KEEPING = (
    ALONE
    + """sow_stats_interval: 100ms
sow_topics:
  - {name: orders, message_type: json, keys: [/id]}
  - {name: /AMPS/ClientStatus, message_type: json, keys: [/client_name]}
  - {name: /AMPS/SOWStats, message_type: fix, keys: [/20066]}
"""
)


@asynccontextmanager
async def instance(directory: Path, text: str = ALONE) -> AsyncIterator[InstanceServer]:
    """The instance A of a fabric's file."""
    settings = parse(text)
    record = FabricRecord("f", str(directory), settings.to_json(), key="k")
    bring_up_to_date(record, settings)
    config = instance_config(settings, record, settings.instance("A"))
    server = InstanceServer(config, directory / "A")
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


def client(server: InstanceServer, name: str, **options: Any) -> Client:
    return Client(name, servers=[server.runtime.client_address], **options)


def played(play: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await play()

    asyncio.run(run())


async def until(
    messages: Subscription, is_last: Callable[[dict[str, Any]], bool]
) -> list[dict[str, Any]]:
    """The events up to one of these."""
    found = []
    async for message in messages:
        (values,) = json.loads(message.body).values()
        found.append(values)
        if is_last(values):
            return found
    raise AssertionError("the subscription ended")


@pytest.mark.covers("Event topics", "client status: each event, with its variables")
def test_a_client_is_watched_from_its_connection_to_its_end(tmp_path: Path) -> None:
    async def play() -> None:
        async with (
            instance(tmp_path, KEEPING) as server,
            client(server, "watcher") as watcher,
        ):
            events = await watcher.subscribe(CLIENT_STATUS)
            async with client(server, "worker") as worker:
                await worker.subscribe("orders", filter="/id > 5")
                (await worker.subscribe("trades")).unsubscribe()
                await worker.publish("orders", b'{"id":1}')
                await worker.sow("orders", filter="/id = 1").all()
                await worker.sow_delete("orders", filter="/id = 1")
                await worker.flush()
            found = await until(
                events, lambda each: each["event"] == "unsubscribe" and each["topic"] == "orders"
            )
            of_worker = [each for each in found if each["client_name"] == "worker"]
            assert [each["event"] for each in of_worker] == [
                "logon",
                "subscribe",
                "subscribe",
                "unsubscribe",
                "sow",
                "sow_delete",
                "disconnect",
                "unsubscribe",
            ]
            logon, orders, trades, gone, query, delete, left, last = of_worker
            assert "connect" in [each["event"] for each in found]
            assert (orders["topic"], orders["filter"]) == ("orders", "/id > 5")
            assert trades["topic"] == gone["topic"] == "trades"
            assert trades["sub_id"] == gone["sub_id"] != orders["sub_id"] == last["sub_id"]
            assert (query["topic"], query["filter"]) == ("orders", "/id = 1") and query["query_id"]
            assert (delete["topic"], delete["filter"]) == ("orders", "/id = 1")
            assert left["reason"] and last["reason"] == "disconnect"
            assert len({each["connection_name"] for each in of_worker}) == 1
            assert logon["client_address"].startswith("127.0.0.1:")
            assert len(logon["timestamp"]) == len("20160509T171919.976304Z")
            assert server.status()["event_topics"]["left_out"] == 0

    played(play)


@pytest.mark.covers("Event topics", "filters and expressions apply, and everything is not events")
@pytest.mark.covers("Event topics", "client status: the documented fields, in each message type")
def test_events_are_filtered_and_come_in_the_type_of_the_subscriber(tmp_path: Path) -> None:
    async def play() -> None:
        async with (
            instance(tmp_path) as server,
            client(server, "watcher") as watcher,
        ):
            everything = await watcher.subscribe(".*")
            filtered = await watcher.subscribe(
                CLIENT_STATUS, filter="/ClientStatus/client_name = 'b'"
            )
            as_fix = await watcher.subscribe(
                "^/AMPS/Client.*", filter="/20067 = 'b'", message_type="fix"
            )
            as_xml = await watcher.subscribe(
                CLIENT_STATUS, filter="/ClientStatus/ClientName = 'b'", message_type="xml"
            )
            for name in ("a", "b"):
                async with client(server, name) as other:
                    await other.publish("orders", name.encode())
                    await other.flush()
            found = await until(filtered, lambda each: each["event"] == "disconnect")
            assert [each["event"] for each in found] == ["logon", "disconnect"]
            for messages, kind, path in (
                (as_fix, "fix", ("20066",)),
                (as_xml, "xml", ("ClientStatus", "Event")),
            ):
                for event in ("logon", "disconnect"):
                    tree: Any = message_type(kind).parse((await anext(messages)).body)
                    for name in path:
                        tree = tree[name]
                    assert tree == event
            got = [(await anext(everything)).body for _ in range(2)]
            assert got == [b"a", b"b"], "whoever wants everything wants no events"

    played(play)


@pytest.mark.covers("Event topics", "nobody but the instance publishes there")
@pytest.mark.covers("Event topics", "message types without views have no event topics")
def test_what_a_client_may_not_do_with_them(tmp_path: Path) -> None:
    async def play() -> None:
        async with (
            instance(tmp_path, KEEPING) as server,
            client(server, "watcher") as watcher,
            client(server, "forger") as forger,
        ):
            events = await watcher.subscribe(CLIENT_STATUS)
            for topic in (CLIENT_STATUS, "/AMPS/else"):
                await forger.publish(topic, b'{"ClientStatus":{"event":"forged"}}')
                with pytest.raises(CommandFailed, match="only A itself publishes") as failed:
                    await forger.flush()
                assert failed.value.reason == "reserved_topic"
            await forger.sow_delete(CLIENT_STATUS, filter="1=1")
            with pytest.raises(CommandFailed, match="only A itself publishes"):
                await forger.flush()
            await forger.publish("orders", b'{"id":1}')
            await forger.flush()
            with pytest.raises(CommandFailed, match="binary") as failed:
                await forger.subscribe(CLIENT_STATUS, message_type="binary")
            assert failed.value.reason == "bad_message_type"
            for topic in (CLIENT_STATUS, "^/AMPS/.*"):
                with pytest.raises(CommandFailed) as failed:
                    await forger.subscribe(topic, bookmark="0|1|")
                assert failed.value.reason == "not_journaled"
            await forger.subscribe("orders")
            found = await until(events, lambda each: each["topic"] == "orders")
            assert "forged" not in [each["event"] for each in found]

    played(play)


async def kept_count(client: Client) -> bool:
    """Returns whether the last count of orders that is kept has one record."""
    rows = await client.sow(SOW_STATS, filter="/20066 = 'orders'", message_type="fix").all()
    return [message_type("fix").parse(row.body)["20067"] for row in rows] == ["1"]


@pytest.mark.covers("Event topics", "SOW statistics: records of each SOW topic at an interval")
@pytest.mark.covers("Event topics", "SOW topics keep events: documented keys, restart")
def test_a_sow_topic_keeps_the_last_event_of_each_client_across_a_restart(tmp_path: Path) -> None:
    async def play() -> None:
        async with instance(tmp_path, KEEPING) as server, client(server, "watcher") as watcher:
            status = await watcher.sow_and_subscribe(
                CLIENT_STATUS, filter="/ClientStatus/client_name = 'worker'"
            )
            async with client(server, "worker") as worker:
                await worker.publish("orders", b'{"id":1}')
                await worker.flush()
            found = await until(status, lambda each: each["event"] == "disconnect")
            assert [each["event"] for each in found] == ["logon", "disconnect"]
            counts = await watcher.subscribe(SOW_STATS)
            found = await until(
                counts, lambda each: each["topic"] == "orders" and each["record_count"] == 1
            )
            assert {each["message_type"] for each in found} >= {"json"}
            while not await kept_count(watcher):
                await anext(counts)
        # Nothing is counted any more: what is there was kept.
        again = KEEPING.replace("sow_stats_interval: 100ms\n", "")
        async with instance(tmp_path, again) as server, client(server, "late") as late:
            (row,) = await late.sow(
                CLIENT_STATUS, filter="/ClientStatus/client_name = 'worker'"
            ).all()
            assert json.loads(row.body)["ClientStatus"]["event"] == "disconnect"
            assert await kept_count(late)

    played(play)


@pytest.mark.covers("Event topics", "entitlement applies")
def test_only_who_may_read_them_gets_them(tmp_path: Path) -> None:
    (tmp_path / "permissions.json").write_text(
        json.dumps(
            {
                "operator": {"logon": True, "topic": [{"topic": ".*", "read": True}]},
                "worker": {
                    "logon": True,
                    "topic": [
                        {"topic": "^/AMPS/SOW", "read": True},
                        {"topic": "^orders$", "read": True, "write": True},
                    ],
                },
            }
        )
    )

    async def play() -> None:
        text = ALONE + (
            "entitlement: {module: permissions, options: "
            f"{{File: {tmp_path / 'permissions.json'}}}}}\n"
        )
        async with (
            instance(tmp_path, text) as server,
            client(server, "a", user_id="operator") as operator,
            client(server, "b", user_id="worker") as worker,
        ):
            events = await operator.subscribe(CLIENT_STATUS)
            with pytest.raises(CommandFailed) as refused:
                await worker.subscribe(CLIENT_STATUS)
            assert refused.value.reason == "not_entitled"
            found = await until(events, lambda each: each["event"] == "entitlement_failure")
            assert (found[-1]["auth_id"], found[-1]["topic"]) == ("worker", CLIENT_STATUS)
            await worker.subscribe("^/AMPS/.*")
            await until(events, lambda each: each["topic"] == "^/AMPS/.*")

    played(play)


@pytest.mark.covers("Event topics", "nothing is computed where nobody listens")
def test_an_instance_listens_only_while_somebody_wants_to_know(tmp_path: Path) -> None:
    async def play() -> None:
        async with instance(tmp_path) as server, client(server, "watcher") as watcher:
            listened = server.runtime.occurrences.listened
            assert "connect-client" not in listened
            events = await watcher.subscribe(CLIENT_STATUS)
            assert "connect-client" in listened
            events.unsubscribe()
            # Its answer is behind that of the unsubscribe.
            await watcher.subscribe(SOW_STATS)
            assert "connect-client" not in listened

    played(play)


@pytest.mark.covers("Event topics", "client status: each event, with its variables")
def test_the_script_and_the_files_of_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (script,) = blocks("events.md", "python")
    for text in blocks("events.md", "yaml"):
        parse(f"{ALONE}{text.replace('fabric: shop', '')}")
    watch: dict[str, Any] = {"Client": Client, "json": json}
    exec(f"async def watch(servers, print):\n{textwrap.indent(script, '    ')}", watch)

    async def play() -> None:
        async with instance(tmp_path) as server:
            printed: asyncio.Queue[tuple[str, ...]] = asyncio.Queue()
            servers = [server.runtime.client_address]
            watching = asyncio.create_task(
                watch["watch"](servers, lambda *words: printed.put_nowait(words))
            )
            while "connect-client" not in server.runtime.occurrences.listened:
                await asyncio.sleep(0.01)
            async with client(server, "desk"):
                assert await printed.get() == ("desk", "logon", "")
            assert await printed.get() == ("desk", "disconnect", "connection closed")
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    played(play)


@pytest.mark.covers("Event topics", "what waits is bounded, and what is left out is counted")
def test_a_store_that_cannot_be_written_does_not_fill_the_memory_with_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager, "UNSAVED_BYTES_MAX", 200_000)
    monkeypatch.setattr(manager, "RETRY_S", 0.0)
    full = True
    commit = LmdbSowStore.commit

    def fails(store: LmdbSowStore, changes: Any) -> None:
        if full and any(set(entries) - {b"f"} for entries, _ in changes.values()):
            raise StorageFull("no space left", "sow.lmdb")
        commit(store, changes)

    monkeypatch.setattr(LmdbSowStore, "commit", fails)

    async def play() -> None:
        nonlocal full
        async with instance(tmp_path, KEEPING) as server:
            tell, number = server.runtime.occurrences.tell, 0
            status = server.status
            while not status()["event_topics"]["left_out"]:
                for _ in range(20):
                    number += 1
                    tell("connect-client", {"AMPS_CLIENT_NAME": f"{number}-{'x' * 5_000}"})
                await asyncio.sleep(0.01)
            feature = server.parts.sow.feature
            assert feature is not None and feature.unsaved_bytes < 1_000_000
            full = False
            while server.parts.sow.status()["sow_store_failure"] or feature.unsaved_bytes:
                await asyncio.sleep(0.01)
            kept = feature.book.topics[1].state.count
            tell("connect-client", {"AMPS_CLIENT_NAME": "later"})
            while feature.book.topics[1].state.count == kept:
                await asyncio.sleep(0.01)

    played(play)
