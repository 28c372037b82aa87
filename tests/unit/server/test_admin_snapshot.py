"""What an instance tells its administrator's process: whole, without secrets, and never much of the
loop at once."""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import count
from pathlib import Path
from typing import Any

import msgpack
import pytest
from support.one_instance import in_instance

from raylay.services.admin.snapshot_pages import SnapshotPages
from raylay.services.client import Client
from raylay.services.config.instance import InstanceConfig
from raylay.services.config.transport import TransportConfig
from raylay.services.queues.definition import QueueDefinition
from raylay.services.security.modules import ModuleConfig
from raylay.services.server import admin_snapshot
from raylay.services.server.admin_snapshot import AdminSnapshots, shown_configuration
from raylay.services.server.instance_server import InstanceServer
from raylay.services.sow.definition import SowTopicDefinition


def snapshots(server: InstanceServer, clock: Any = lambda: 0.0) -> AdminSnapshots:
    """Its snapshots by a clock of the test."""
    made = server.parts.admin_snapshots
    made._clock = clock
    return made


async def whole(server: InstanceServer) -> dict[str, Any]:
    """A snapshot as its reader has it, over msgpack."""
    made = snapshots(server)
    made._last_s = None
    found = msgpack.unpackb(msgpack.packb(await made.take()))
    return SnapshotPages().merge(found, 1)


@pytest.mark.covers("Administration", "`instance`: clients, subscriptions with seconds behi")
def test_clients_and_subscriptions_are_told_with_all_that_is_documented(tmp_path: Path) -> None:
    config = InstanceConfig(
        "A",
        "g",
        first=True,
        sow=(SowTopicDefinition("prices", "json", keys=("/id",)),),
        queue_definitions=(QueueDefinition("jobs", "json"),),
    )

    async def visit(server: InstanceServer) -> None:
        address = server.runtime.client_address
        async with (
            Client("desk", [address], user_id="amy") as desk,
            Client("pub", [address]) as pub,
        ):
            live = await desk.subscribe("orders", filter="/id > 1")
            replay = await desk.subscribe("orders", bookmark="0")
            await desk.subscribe("jobs", max_backlog=3)
            for each in range(3):
                await pub.publish("orders", b'{"id":%d}' % each)
                await pub.publish("prices", b'{"id":%d}' % (each // 2))
            await pub.flush()
            await anext(aiter(live))
            for _ in range(3):
                await anext(aiter(replay))
            rows = [each async for each in desk.sow("prices")]
            assert rows
            (first,) = [
                each.published_from
                for each in server.parts.clients.sessions.values()
                if each.client_name == "pub"
            ]
            found = await whole(server)
        rows_of = {each["client"]: each for each in found["client_connections"]}
        assert rows_of["desk"]["user"] == "amy"
        assert rows_of["desk"]["transport"] == "client"
        assert rows_of["desk"]["subscriptions"] == 3
        assert rows_of["desk"]["messages_out"] == 4
        assert rows_of["pub"]["messages_in"] == 6
        assert rows_of["pub"]["published_upto"] == first + 5
        assert rows_of["pub"]["unacknowledged"] == 0
        assert rows_of["pub"]["bytes_in"] > 100
        assert rows_of["desk"]["bytes_out"] > 100
        by_kind = {each["kind"]: each for each in found["subscribers"]}
        assert by_kind["live"]["filter"] == "/id > 1"
        assert by_kind["live"]["delivered"] == 1
        assert by_kind["bookmark"]["options"].startswith("bookmark=0")
        assert by_kind["bookmark"]["cursor_txid"] == found["committed_txid"]
        assert (by_kind["queue"]["topic"], by_kind["queue"]["options"]) == ("jobs", "max_backlog=3")
        assert {each["client"] for each in found["subscribers"]} == {"desk"}
        totals = {each.topic: each for each in found["topics"]}
        assert {name: each.messages for name, each in totals.items()} == {
            "orders": 3,
            "prices": 3,
            "jobs": 0,  # the queue's own records
        }
        assert totals["orders"].bytes > 100 and totals["orders"].newest_us
        assert found["queried"] == {"prices": 1}
        (sow,) = found["sow_topics"].values()
        assert (sow["records"], sow["inserted"], sow["updated"]) == (2, 2, 1)
        for name in ("write_latency", "write_size"):
            histogram = found[name]
            assert len(histogram["counts"]) == len(histogram["bounds"]) + 1
            assert 0 < histogram["minimum"] <= histogram["maximum"]
        assert sum(found["write_size"]["counts"]) <= found["commits"]
        assert found["write_size"]["total"] == found["payload_bytes"]
        assert found["deliveries"]["bookmark"] == 3
        assert found["metrics"]["published"] == 6 and found["metrics"]["ranges_held"] >= 1

    in_instance(tmp_path / "data", visit, config)


@pytest.mark.covers("Administration", "an instance tells its values at most once a second,")
def test_what_subscriptions_share_is_told_with_their_kinds(tmp_path: Path) -> None:
    topics = (SowTopicDefinition("prices", "json", keys=("/id",)),)

    async def visit(server: InstanceServer) -> None:
        async with Client("desk", [server.runtime.client_address]) as desk:
            for each in range(5):
                await desk.publish("prices", b'{"id":%d,"price":%d}' % (each, each % 3))
            await desk.flush()
            found = await snapshots(server).take()
            assert (found["paginations"], found["aggregations"]) == ([], [])
            assert found["conflated_subscriptions"] == {}
            assert found["metrics"]["aggregations"] == found["metrics"]["pagination_bytes"] == 0
            await desk.subscribe("prices", conflation="10s")
            for skip in (0, 2):
                page = await desk.sow_and_subscribe(
                    "prices", order_by="/price DESC", top_n=2, skip_n=skip
                )
                await anext(aiter(page))
            groups = await desk.sow_and_subscribe(
                "prices", filter="/id < 4", grouping=["/price"],
                projection=["/price AS /price", "COUNT(/id) AS /ids"],
            )  # fmt: skip
            await anext(aiter(groups))
            plain = await desk.subscribe("prices")
            await desk.publish("prices", b'{"id":1,"price":7}')
            # Whoever follows the messages gets them behind the views, in one fold with the others.
            await anext(aiter(plain))
            found = await whole(server)
        rows = {each["kind"]: each for each in found["subscribers"]}
        assert set(rows) == {"conflated", "paginated", "aggregated", "live"}
        assert rows["conflated"]["options"] == "conflation=10000ms"
        assert (rows["paginated"]["order_by"], rows["paginated"]["pagination"]) == (
            "/price DESC",
            1,
        )
        assert rows["aggregated"]["topic"] == "prices"
        (order,) = found["paginations"]
        assert (order["number"], order["topic"], order["order_by"]) == (1, "prices", "/price DESC")
        assert (order["records"], order["windows"], order["subscriptions"]) == (5, 2, 2)
        assert order["is_built"] and order["memory_bytes"] > 0
        (shared,) = found["aggregations"]
        assert (shared["topic"], shared["users"], shared["records"]) == ("prices", 1, 3)
        conflated = found["conflated_subscriptions"]
        assert (conflated["subscriptions"], conflated["pending"]) == (1, 1)
        metrics = found["metrics"]
        assert (metrics["subscriptions_conflated"], metrics["aggregations"]) == (1, 1)
        assert metrics["pagination_bytes"] == order["memory_bytes"]
        assert metrics["aggregation_bytes"] > 0 < metrics["conflation_pending_bytes"]

    in_instance(tmp_path / "data", visit, InstanceConfig("A", "g", first=True, sow=topics))


@pytest.mark.covers("Administration", "an instance tells its values at most once a second,")
def test_a_snapshot_is_taken_once_however_many_ask(tmp_path: Path) -> None:
    async def visit(server: InstanceServer) -> None:
        made = snapshots(server)
        first, second = await asyncio.gather(made.take(), made.take())
        assert first is second is await made.take()
        made._last_s = None
        assert await made.take() is not first

    in_instance(tmp_path / "data", visit, InstanceConfig("A", "g", first=True))


@pytest.mark.covers("Administration", "an instance tells its values at most once a second,")
def test_rows_take_the_loop_in_slices_and_their_rest_comes_next(tmp_path: Path) -> None:
    async def visit(server: InstanceServer) -> None:
        address = server.runtime.client_address
        clients = [Client(f"c{each}", [address]) for each in range(6)]
        for each in clients:
            await each.__aenter__()
        for _ in range(40):
            await clients[0].subscribe("orders")
        # Each look at the clock is a millisecond later: a row takes one, and five are a snapshot.
        ticks = count()
        made = snapshots(server, lambda: next(ticks) * admin_snapshot.SLICE_S)
        pages, taken, found = SnapshotPages(), 0, {}
        seen: set[str] = set()
        while len(seen) < len(clients):
            made._last_s = None
            turns = 0
            task = asyncio.ensure_future(made.take())
            while not task.done():
                turns += 1
                await asyncio.sleep(0)
            assert turns > 3, "the loop does other work between the rows"
            snapshot = await task
            assert len(snapshot["client_rows"]) + len(snapshot["subscription_pages"]) <= 6
            found = pages.merge(snapshot, taken)
            seen = {each["client"] for each in found["client_connections"]}
            taken += 1
        assert taken > 1
        assert len(found["subscribers"]) == 40
        for each in clients[1:]:
            await each.__aexit__(None, None, None)
        while len(server.parts.clients.sessions) > 1:
            await asyncio.sleep(0)
        made._last_s = None
        found = pages.merge(await made.take(), taken)
        assert [each["client"] for each in found["client_connections"]] == ["c0"]
        await clients[0].__aexit__(None, None, None)

    in_instance(tmp_path / "data", visit, InstanceConfig("A", "g", first=True))


def test_publishes_that_wait_for_their_acks_are_told_with_their_age(tmp_path: Path) -> None:
    async def visit(server: InstanceServer) -> None:
        made = snapshots(server)
        async with Client("pub", [server.runtime.client_address]) as pub:
            await pub.publish("orders", b"{}")
            await pub.flush()
            (client,) = server.parts.clients.sessions.values()
            assert made._unacknowledged_ms(client, 0) == 0
            assert made._unacknowledged_ms(client, 1) == 0
            at_s, upto = made._marks[client.number]
            made._marks[client.number] = at_s - 2.0, upto
            assert made._unacknowledged_ms(client, 1) >= 2000
            made._marks[client.number] = at_s - 2.0, upto - 1
            assert made._unacknowledged_ms(client, 1) == 0, "that one is acknowledged"

    in_instance(tmp_path / "data", visit, InstanceConfig("A", "g", first=True))


def test_the_times_to_acks_are_those_of_the_last_seconds(tmp_path: Path) -> None:
    async def visit(server: InstanceServer) -> None:
        made, times = snapshots(server), server.parts.commits.ack_latency
        assert made._ack_times() == {}, "nothing was acknowledged"
        for _ in range(99):
            times.record(1_400_000)
        times.record(180_000_000)
        assert made._ack_times() == {"ack_ms_p50": 1.5, "ack_ms_p99": 1.5}
        times.record(180_000_000)
        assert made._ack_times()["ack_ms_p99"] == 200.0
        made._ack_marks = deque(
            (at_s - 2 * admin_snapshot.ACKS_S, of) for at_s, of in made._ack_marks
        )
        assert made._ack_times() == {}, "all of it is long ago"

    in_instance(tmp_path / "data", visit, InstanceConfig("A", "g", first=True))


@pytest.mark.covers("Administration", "`instance`: clients, subscriptions with seconds behi")
def test_the_configuration_is_told_without_secrets() -> None:
    config = InstanceConfig(
        "A",
        "g",
        fabric_key="xyzzy",
        authenticator=ModuleConfig("m", {"Password": "xyzzy", "User": "amy"}),
        client_transports=(
            TransportConfig("t", authentication=ModuleConfig("n", {"Uri": "https://a:xyzzy@b/c"})),
        ),
    )
    found = shown_configuration(config)
    assert "xyzzy" not in str(found)
    assert found["authenticator"]["options"] == {"Password": "***", "User": "amy"}
    assert found["name"] == "A" and found["fabric_key"] == "***"
