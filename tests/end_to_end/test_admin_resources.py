"""The documented resource tree of a real instance over HTTP: complete, true, in each format, now
and at an earlier time; and the same metrics for Prometheus."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from aiohttp import ClientSession
from end_to_end.test_admin_interface import config, visit

from raylay.services.client import Client
from raylay.services.queues.definition import QueueDefinition
from raylay.services.server.instance_server import InstanceServer
from raylay.services.sow.definition import SowTopicDefinition
from raylay.services.views.definition import ConflatedTopicDefinition, ViewDefinition

DOCUMENTED: Mapping[str, str] = {
    "instance": (
        "api clients config_path conflated_topics cpu cwd description environment lifetimes "
        "logging memory message_types name name_hash pid processors queries queues replication "
        "sow statistics subscriptions timestamp transaction_log transports uptime user_id version "
        "views"
    ),
    "instance/api": "command_queue_depth",
    "instance/clients/*": (
        "authenticated_id bytes_in bytes_in_per_sec bytes_out bytes_out_per_sec client_name "
        "client_name_hash connect_time connection_name denied_reads denied_writes messages_in "
        "messages_in_per_sec messages_out messages_out_per_sec queue_max_latency queued_bytes_out "
        "remote_address subscription_count transport_rx_queue transport_tx_queue"
    ),
    "instance/conflated_topics/*": (
        "conflation_ratio filter interval message_type pattern topic topic_format "
        "total_executions total_time underlying_topic"
    ),
    "instance/lifetimes/*": "event timestamp version",
    "instance/memory": "caches rss vmsize",
    "instance/message_types/*": "module name options type",
    "instance/processors/all": (
        "description matches_found matches_found_per_sec messages_received "
        "messages_received_bytes messages_received_bytes_per_sec messages_received_per_sec"
    ),
    "instance/queries": "queued_queries",
    "instance/queues/*": (
        "age_of_oldest_lease backlog deferred_ack_count details expired_leases "
        "inactive_message_count max_backlog message_type owned proxied_transfer queue_depth "
        "seconds_behind target_queue_depth topic transferred_in transferred_out"
    ),
    "instance/replication/*": (
        "authenticated_id bytes_out bytes_out_per_sec client_name client_type connect_time "
        "destination_admin_addr destination_group_name destination_name disconnect_count "
        "disconnect_time is_connected messages_out messages_out_per_sec name pass_through "
        "replication_type seconds_behind"
    ),
    "instance/sow/*": (
        "delete_count deletes_per_sec historical_granularity historical_window insert_count "
        "inserts_per_sec message_type path queries_per_sec query_count stored_bytes topic "
        "update_count updates_per_sec valid_keys"
    ),
    "instance/statistics": (
        "file_name file_size interval memory_used queries time_per_sample total_commit_time "
        "total_samples total_time"
    ),
    "instance/subscriptions/*": (
        "backlog bookmark client_id filter message_type options seconds_behind sub_id topic"
    ),
    "instance/transaction_log": "journals max_timestamp min_timestamp write_latency write_size",
    "instance/transaction_log/journals/*": (
        "file_name is_archived is_compressed max_timestamp min_timestamp"
    ),
    "instance/transaction_log/write_latency": "histogram maximum minimum",
    "instance/transaction_log/write_size": "histogram maximum minimum",
    "instance/transports/*": "is_enabled message_type name options type",
    "instance/views/*": (
        "conflation conflation_ratio grouping message_type projection queue_depth topic "
        "underlying_topic"
    ),
    "host": "cpus disks memory name network",
    "host/cpus/all": "idle_percent iowait_percent system_percent user_percent",
    "host/memory": "anonymous available buffers cached free in_use swap_free swap_total total",
    "host/network/*": (
        "bytes_in bytes_in_per_second bytes_out bytes_out_per_second errors packets_in packets_out"
    ),
}
"""The documented values that have a meaning here, by the place where they are; `*`: any entry.
Those that have none are rows of docs/deviations.md."""


async def get(session: ClientSession, path: str, status: int = 200) -> Any:
    """Returns the JSON, or the text, of an answer."""
    async with session.get(path) as response:
        text = await response.text()
        assert response.status == status, text
        return json.loads(text) if response.content_type == "application/json" else text


async def statistics_of(session: ClientSession, count: int) -> list[str]:
    """Waits until there are so many samples in the statistics; returns their times."""
    while True:
        lines = (await get(session, "/amps/instance/timestamp.csv")).splitlines()
        if len(lines) >= count:
            return [line.partition(",")[0] for line in lines]
        await asyncio.sleep(0.05)


def found_at(tree: Any, place: str) -> Any:
    """Returns the node of a place in a JSON tree."""
    node = tree["amps"]
    for step in place.split("/"):
        if isinstance(node, list):
            node = next(each for each in node if step in ("*", each["id"]))
        else:
            node = node[step]
    return node


@pytest.mark.slow
@pytest.mark.covers("Administration", "two real instances show one another, and one acts on")
def test_every_documented_value_is_there_and_true(tmp_path: Path) -> None:
    made = config(
        sow=(SowTopicDefinition("prices", "json", keys=("/id",)),),
        views=(
            ViewDefinition(
                "sums",
                "json",
                "prices",
                projection=("/id AS /id", "COUNT(/id) AS /count"),
                grouping=("/id",),
                inline=True,
            ),
        ),
        conflated_topics=(ConflatedTopicDefinition("slow", "json", "sums", 100_000),),
        queue_definitions=(QueueDefinition("jobs", "json", subscription_backlog_max=4),),
        fabric_key="xyzzy",
    )
    made.destinations = (replace(made.destinations[0], sync=False),)

    async def work(server: InstanceServer, session: ClientSession) -> None:
        address = server.runtime.client_address
        async with (
            Client("<desk>", [address], user_id="amy") as desk,
            Client("pub", [address]) as pub,
        ):
            live = await desk.subscribe("orders", filter="/id > 1")
            slow = await desk.subscribe("slow", oof=True)
            await desk.subscribe("orders", bookmark="0")
            await desk.subscribe("jobs", max_backlog=3)
            for each in range(3):
                await pub.publish("orders", b'{"id":%d}' % each)
                await pub.publish("prices", b'{"id":%d}' % (each // 2))
                await pub.publish("jobs", b"{}")
            await pub.flush()
            await anext(aiter(live))
            for _ in range(2):
                await anext(aiter(slow))
            times = await statistics_of(session, 3)
            while True:
                found = await get(session, "/amps.json")
                queue = found_at(found, "instance/queues/jobs!json")
                given = found_at(found, "instance/conflated_topics/*")["raylay"]["updates"]
                if queue["backlog"] == "3" and given == "2":
                    break
                await asyncio.sleep(0.05)
            for place, names in DOCUMENTED.items():
                node = found_at(found, place)
                missing = set(names.split()) - set(node)
                assert not missing, f"{place} lacks {missing}"
            assert found_at(found, "instance/pid") == str(os.getpid())
            clients = {each["client_name"]: each for each in found_at(found, "instance/clients")}
            assert clients["pub"]["messages_in"] == "9"
            assert clients["pub"]["raylay"]["unacknowledged"] == "0"
            assert clients["<desk>"]["authenticated_id"] == "amy"
            assert clients["<desk>"]["subscription_count"] == "4"
            assert int(found_at(found, "instance/memory/rss")) > 1_000_000
            await the_views(session, found)
            sow = found_at(found, "instance/sow/*")
            assert (sow["valid_keys"], sow["insert_count"], sow["update_count"]) == ("2", "2", "1")
            assert queue["queue_depth"] == "3"
            journal = found_at(found, "instance/transaction_log/journals/*")
            assert Path(journal["file_name"]).exists()
            assert found_at(found, "instance/lifetimes/*")["event"] == "start"
            assert not found_at(found, "instance/statistics")["raylay"]["problem"]
            text = await get(session, "/amps/instance/clients.xml")
            names = {each.findtext("client_name") for each in ElementTree.fromstring(text)[0][0]}
            assert names == {"<desk>", "pub"}
            await the_past(session, times)
            await beside_the_tree(session)

    visit(tmp_path, made, work)


async def the_views(session: ClientSession, found: Any) -> None:
    """Looks at the view and the conflated topic, at their metrics and their history."""
    view = found_at(found, "instance/views/*")
    assert (view["topic"], view["underlying_topic"]) == ("sums", "prices")
    assert (view["grouping"], view["conflation"]) == ("/id", "inline")
    assert view["projection"] == "/id AS /id, COUNT(/id) AS /count"
    assert (view["queue_depth"], view["raylay"]["in_service"]) == ("0", "true")
    assert (view["raylay"]["records"], view["raylay"]["taken"]) == ("2", "3")
    updates = int(view["raylay"]["updates"])
    assert 2 <= updates <= 3 and float(view["conflation_ratio"]) == round(3 / updates, 3)
    slow = found_at(found, "instance/conflated_topics/*")
    assert (slow["topic"], slow["underlying_topic"], slow["interval"]) == ("slow", "sums", "100ms")
    assert slow["raylay"]["subscriptions"] == "1"
    assert 1 <= int(slow["total_executions"]) <= 2
    rows = {each["topic"]: each for each in found["amps"]["instance"]["sow"]}
    for name in ("sums", "slow"):
        assert (rows[name]["valid_keys"], rows[name]["insert_count"]) == ("2", "2")
    metrics = await get(session, "/metrics")
    assert 'raylay_view_records{instance="north",topic="json/sums"} 2.0' in metrics
    assert 'raylay_conflated_updates_total{instance="north",topic="json/slow"} 2.0' in metrics
    for place in ("views/json%2Fsums/queue_depth", "conflated_topics/json%2Fslow/total_time"):
        assert (await get(session, f"/amps/instance/{place}.csv")).splitlines()
    text = await get(session, "/raylay/messages?topic=sums&source=sow&order=/id DESC&limit=1")
    row = json.loads(text.splitlines()[0])["row"]
    assert json.loads(row["body"]) == {"id": 1, "count": 1} and row["sow_key"]
    fabric = await get(session, "/raylay/fabric.json")
    assert {each["name"]: each["level"] for each in fabric["views"]} == {
        "sums": "ready",
        "slow": "ready",
    }
    summary = await get(session, "/raylay/summary.json")
    topics = [each for each in summary["topics"] if each["sow"]]
    assert {each["name"] for each in topics} == {"prices", "sums", "slow"}


async def the_past(session: ClientSession, times: list[str]) -> None:
    """Looks at the history of leaves, and at whole branches at the time of a sample."""
    number = "/amps/instance/processors/all/messages_received"
    lines = (await get(session, f"{number}.csv?t0={times[1]}")).splitlines()
    assert lines[0].startswith(f"{times[1]},")
    (line,) = (await get(session, f"{number}.csv?t1={times[0]}")).splitlines()
    assert line.startswith(f"{times[0]},")
    query = f"?t0={times[1]}&t1={times[1]}"
    past = await get(session, f"/amps/instance.json{query}")
    assert found_at(past, "instance/name") == "north"
    assert int(found_at(past, "instance/memory/rss")) > 1_000_000
    assert found_at(past, "instance/clients/*")["connection_name"] == "client"
    assert found_at(past, "instance/transaction_log/write_size/raylay/count")
    error = await get(session, f"/amps/instance.json?t0={times[1]}", 400)
    assert "give as t0 and t1 the same time" in error["error"]
    error = await get(session, "/amps/instance.json?t0=20200101T000000Z&t1=20200101T000000Z", 400)
    assert "there is no sample of 20200101T000000.000000Z" in error["error"]
    error = await get(session, "/amps/instance/clients.csv", 400)
    assert "only a leaf is served as CSV" in error["error"]
    error = await get(session, "/amps/instance/config/name.csv", 400)
    assert "has no history" in error["error"]


async def beside_the_tree(session: ClientSession) -> None:
    """Looks at the configuration, the schema and the metrics."""
    for path in ("/amps/instance/config.xml", "/amps/instance/config.json", "/raylay/config.json"):
        found = str(await get(session, path))
        assert "north" in found and "***" in found and "xyzzy" not in found
    assert (await get(session, "/amps/instance/config/name"))["amps"]["instance"]["config"] == {
        "name": "north"
    }
    assert "element client_name { text }? &" in await get(session, "/amps.rnc")
    metrics = await get(session, "/metrics")
    assert 'raylay_published_total{instance="north"} 9.0' in metrics
    assert 'raylay_destination_connected{destination="south",instance="north"} 0.0' in metrics
    assert 'raylay_commit_latency_seconds_bucket{instance="north",le="+Inf"}' in metrics
    assert "raylay_ranges_held" in metrics
    # Of the instance's process, not of the one that answers.
    assert 'process_resident_memory_bytes{instance="north"}' in metrics
    assert 'raylay_build_info{instance="north",python="' in metrics
    assert 'raylay_committed_bytes_total{instance="north"}' in metrics
    assert 'raylay_queue_consumers{instance="north",queue="json/jobs"}' in metrics
    assert 'raylay_destination_sent_bytes_total{destination="south",instance="north"}' in metrics


def test_a_damaged_statistics_file_is_moved_aside_and_told_of(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    directory.mkdir()
    (directory / "statistics.db").write_bytes(b"no database" * 1000)

    async def work(server: InstanceServer, session: ClientSession) -> None:
        await statistics_of(session, 1)
        found = await get(session, "/amps/instance/statistics.json")
        problem = found_at(found, "instance/statistics/raylay/problem")
        assert "statistics begin anew" in problem and "statistics.db.damaged" in problem
        assert (directory / "statistics.db.damaged").read_bytes().startswith(b"no database")

    visit(directory, config(), work)
