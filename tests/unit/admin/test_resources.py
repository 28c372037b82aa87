"""services/admin/resources.py: the tree of an instance in any state, and of what it cannot know."""

from __future__ import annotations

from typing import Any

import pytest

from raylay.services.admin.rates import CounterRates
from raylay.services.admin.requests import format_time
from raylay.services.admin.resources import instance_branch
from raylay.services.admin.tree import Branch, Node, as_text, node_at

LOG = {"target": "stderr", "level": "info", "format": "text", "directory": ""}


def tree(**snapshot: Any) -> Branch:
    rates = CounterRates()
    rates.begin(1)
    return instance_branch({"name": "north", "pid": 7, **snapshot}, rates, 1_000_000)


def at(node: Branch, path: str) -> Node:
    return node_at(node, path.split("/"))


def test_an_instance_that_begins_has_a_tree_without_what_is_not_known() -> None:
    found = tree()
    assert at(found, "timestamp") == "19700101T000001.000000Z"
    assert at(found, "uptime") == "00:00:00.000000"
    assert at(found, "transaction_log/write_size") == {}
    assert as_text(at(found, "transaction_log/min_timestamp")) == ""  # type: ignore[arg-type]
    assert at(found, "logging") == {}
    assert at(found, "processors/all/messages_received") == 0


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ({**LOG, "target": "none"}, {}),
        (LOG, {"console": {"protocol": "stderr", "level": "info", "format": "text"}}),
        (
            {**LOG, "target": "file", "directory": "/l"},
            {
                "file": {"protocol": "file", "file_name": "/l", "level": "info", "format": "text"},
            },
        ),
    ],
)
def test_the_log_has_its_documented_name(log: dict[str, str], expected: Branch) -> None:
    assert at(tree(configuration={"log": log}), "logging") == expected


def test_a_histogram_names_the_buckets_that_have_a_count() -> None:
    latency = {
        "bounds": [1_000, 2_000, 4_000], "counts": [0, 3, 0, 1], "total": 9,
        "minimum": 1_500, "maximum": 9_000,
    }  # fmt: skip
    found = at(tree(write_latency=latency), "transaction_log/write_latency")
    assert found == {
        "histogram": "2=3 more=1", "minimum": 1, "maximum": 9,
        "raylay": {"count": 4, "p50": 2, "p99": 9},
    }  # fmt: skip
    empty = {**latency, "counts": [0, 0, 0, 0], "minimum": None, "maximum": None}
    found = at(tree(write_latency=empty), "transaction_log/write_latency")
    assert isinstance(found, dict) and found["minimum"] is None and found["histogram"] == ""
    assert found["raylay"] == {"count": 0, "p50": None, "p99": None}


def test_a_queue_whose_owner_has_told_nothing_has_no_numbers() -> None:
    queues = {"json/jobs": {"topic": "jobs", "message_type": "json", "delivered": 0}}
    found = at(tree(queues=queues), "queues/jobs!json")
    assert isinstance(found, dict)
    assert found["owned"] is None and found["age_of_oldest_lease"] is None
    told = {"available_here": 3, "backlog": 2, "age_of_oldest_lease_us": 5_900_000}
    queues["json/jobs"].update(told)  # type: ignore[arg-type]
    found = at(tree(queues=queues), "queues/jobs!json")
    assert isinstance(found, dict)
    assert (found["owned"], found["age_of_oldest_lease"]) == (5, 5)


@pytest.mark.parametrize("transient", [True, False])
def test_a_sow_topic_in_memory_has_no_file(transient: bool) -> None:
    counts = dict.fromkeys(
        ("records", "inserted", "updated", "deleted", "txid", "saved_txid", "pending_bytes",
         "tombstones", "expired"),
        1,
    )  # fmt: skip
    definition = {
        "name": "prices", "message_type": "json", "transient": transient,
        "rules": {"window_us": 9_000_000, "granularity_us": 0},
    }  # fmt: skip
    branch = node_at(
        tree(
            sow_topics={"json/prices": counts},
            configuration={"sow": [definition]},
            queried={"prices": 4},
            sow_path="/d/sow.lmdb",
            sow_bytes=10,
        ),
        ("sow", "json/prices"),
    )
    assert isinstance(branch, dict)
    assert branch["path"] == ("" if transient else "/d/sow.lmdb")
    assert branch["stored_bytes"] == (None if transient else 10)
    assert (branch["query_count"], branch["historical_window"]) == (4, 9)
    assert branch["queries_per_sec"] is None


@pytest.mark.parametrize(
    ("kind", "tls", "expected"),
    [
        ("client", False, "tcp"),
        ("client", True, "tcps"),
        ("replication", False, "amps-replication"),
        ("replication", True, "amps-replication-secure"),
    ],
)
def test_a_transport_has_its_documented_type(kind: str, tls: bool, expected: str) -> None:
    transport = {
        "name": "t", "kind": kind, "tls": tls, "enabled": True, "message_types": ["json"],
        "address": "", "connections": 0, "connections_max": None, "tls_refused": 0, "problem": "",
    }  # fmt: skip
    assert at(tree(transports=[transport]), "transports/t/type") == expected


def test_message_types_have_their_options() -> None:
    found = tree(
        message_types=("json",),
        configuration={
            "type_definitions": [
                {"name": "order", "kind": "protobuf", "options": {"message": "Order"}},
                {"name": "plain", "kind": "binary"},
            ]
        },
    )
    assert at(found, "message_types/json/module") == "built in"
    assert at(found, "message_types/order/options") == '{"message": "Order"}'
    assert at(found, "message_types/plain/options") == ""


def test_queries_lifetimes_processes_and_upstreams_are_told() -> None:
    query = {
        "client": 3, "client_name": "desk", "query": "q", "topic": "t", "message_type": "json",
        "filter": "/a", "is_running": True,
    }  # fmt: skip
    found = tree(
        queries=[query],
        lifetimes=[(1_000_000, "start", "1.0")],
        processes=[{"pid": 5, "name": "link south"}],
        upstreams=[{"name": "south", "group": "g"}],
        capacity=[{"pool": "clients", "behind": 1, "offline_clients": []}],
        topics=[("orders", "json", 5, 60, 1_000_000, 2_000_000, 9)],
        sow_topics={},
        published=5,
    )
    assert node_at(found, ("queries", "raylay", "queries", "3/q", "filter")) == "/a"
    assert at(found, "lifetimes/1000000/version") == "1.0"
    assert at(found, "raylay/processes/5/name") == "link south"
    assert at(found, "raylay/upstreams/south/group") == "g"
    assert at(found, "raylay/pools/clients") == {"pool": "clients", "behind": 1}
    assert at(found, "raylay/topics/orders!json/messages") == 5
    assert at(found, "raylay/topics/orders!json/bytes") == 60
    assert at(found, "raylay/topics/orders!json/newest") == format_time(2_000_000)
    assert at(found, "raylay/published") == 5
