"""The resource tree of an instance: `/amps/instance` (behaviour.md 9.4), from what the instance
tells of itself once for each sample.

Documented values have their documented names. What Raylay has beyond them stands under `raylay`,
in the instance and in each entry, so that a reader of the documents is never surprised.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from raylay.services.admin.computed_topics import (
    computed_counts,
    conflated_branch,
    identity,
    views_branch,
)
from raylay.services.admin.rates import CounterRates
from raylay.services.admin.requests import format_time
from raylay.services.admin.snapshot_pages import COUNTERS
from raylay.services.admin.subscription_branches import (
    aggregations_branch,
    conflation_branch,
    paginations_branch,
    subscriptions_branch,
)
from raylay.services.admin.tree import Branch, Collection, Node
from raylay.services.messages.topic_totals import TopicTotal

Snapshot = Mapping[str, Any]
"""The values that an instance reports (`services/server/admin_snapshot.py`), with the rows of all
pages (`SnapshotPages`) and what its administrator's process reads by itself
(`InstanceReadings`)."""
NS_PER_US = 1_000


def instance_branch(snapshot: Snapshot, rates: CounterRates, time_us: int) -> Branch:
    """Returns `/amps/instance`.

    Args:
        snapshot: the snapshot of an instance in any state. A value that it lacks is absent from the
            tree.
        rates: counter rates, on which `begin` was called for this sample.
        time_us: time of the sample, in microseconds since 1970.
    """
    rated = _Rated(rates)
    configuration = snapshot.get("configuration", {})
    return {
        "name": snapshot["name"],
        "name_hash": str(snapshot.get("name_hash", "")),
        "description": snapshot.get("description", ""),
        "version": snapshot.get("version", ""),
        "pid": snapshot["pid"],
        "cwd": snapshot.get("cwd", ""),
        "config_path": snapshot.get("config_path", ""),
        "user_id": snapshot.get("user_id", ""),
        "timestamp": format_time(time_us),
        "uptime": _uptime(snapshot.get("uptime_s", 0.0)),
        "api": {"command_queue_depth": snapshot.get("command_queue_depth")},
        "clients": Collection("client", _clients(snapshot)),
        "conflated_topics": Collection("conflated_topic", conflated_branch(snapshot, rated)),
        "cpu": dict(snapshot.get("cpu", {})),
        "environment": Collection(
            "variable",
            {name: {"value": value} for name, value in snapshot.get("environment", {}).items()},
        ),
        "lifetimes": Collection("lifetime", _lifetimes(snapshot)),
        "logging": _logging(configuration.get("log", {})),
        "subscriptions": Collection("subscription", subscriptions_branch(snapshot)),
        "memory": _memory(snapshot),
        "message_types": Collection(
            "message_type", _message_types(snapshot.get("message_types", ()), configuration)
        ),
        "processors": Collection("processor", _processors(snapshot, rated)),
        "queries": {
            "queued_queries": snapshot.get("queries_queued"),
            "raylay": {"queries": Collection("query", _queries(snapshot))},
        },
        "queues": Collection("queue", _queues(snapshot, rated)),
        "replication": Collection("destination", _destinations(snapshot, rated)),
        "sow": Collection("topic", _sow_topics(snapshot, rated)),
        "statistics": dict(snapshot.get("statistics", {})),
        "transaction_log": _transaction_log(snapshot, rated),
        "transports": Collection("transport", _transports(snapshot)),
        "views": Collection("view", views_branch(snapshot, rated)),
        "raylay": {
            **_own(snapshot),
            **rated(
                ("own",),
                {name: snapshot[name] for name in _OWN_COUNTERS if name in snapshot},
            ),
            "aggregations": Collection("aggregation", aggregations_branch(snapshot, rated)),
            "conflated_subscriptions": conflation_branch(snapshot, rated),
            "pools": Collection("pool", _pools(snapshot)),
            "processes": Collection("process", _processes(snapshot)),
            "topics": Collection("topic", _topics(snapshot, rated)),
            "upstreams": Collection("upstream", _upstreams(snapshot)),
        },
    }


class _Rated:
    """Writes counters into a branch, each with its rate as a second leaf."""

    def __init__(self, rates: CounterRates) -> None:
        self._rates = rates

    def __call__(self, place: tuple[str, ...], counters: Mapping[str, int]) -> dict[str, Node]:
        found: dict[str, Node] = {}
        for name, count in counters.items():
            found[name] = count
            found[f"{name}_per_sec"] = self._rates.of((*place, name), count)
        return found


def _uptime(seconds: float) -> str:
    """Returns a duration as `hh:mm:ss.uuuuuu`, as documented; hours are not cut at 24."""
    whole, microseconds = divmod(round(seconds * 1_000_000), 1_000_000)
    minutes, second = divmod(whole, 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours:02}:{minute:02}:{second:02}.{microseconds:06}"


def _time(time_us: int | None) -> str | None:
    return None if not time_us else format_time(time_us)


def _clients(snapshot: Snapshot) -> dict[str, Branch]:
    found: dict[str, Branch] = {}
    queues = snapshot.get("socket_queues", {})
    for each in snapshot.get("client_connections", ()):
        counters: dict[str, Node] = {}
        for name in COUNTERS:
            counters[name] = each[name]
            counters[f"{name}_per_sec"] = each["rates"][name]
        received, sent = queues.get(each["address"], (None, None))
        found[str(each["number"])] = {
            "client_name": each["client"],
            "client_name_hash": str(each["publisher"]),
            "authenticated_id": each["user"],
            "remote_address": each["address"],
            "connection_name": each["transport"],
            "connect_time": _time(each["connected_us"]),
            **counters,
            "denied_reads": each["denied_reads"],
            "denied_writes": each["denied_writes"],
            "queued_bytes_out": each["unsent_bytes"],
            "queue_max_latency": each["age_ms"] / 1000,
            "subscription_count": each["subscriptions"],
            "transport_rx_queue": received,
            "transport_tx_queue": sent,
            "raylay": {
                "state": each["state"],
                "published_upto": each["published_upto"],
                "unacknowledged": each["unacknowledged"],
                "oldest_unacknowledged_ms": each["oldest_unacknowledged_ms"],
                "seconds_behind": each["age_ms"] // 1000,
                "trend": each.get("trend"),
                "memory_bytes": each["memory_bytes"],
                "offline_bytes": each["offline_bytes"],
                "times_slowed": each["times_slowed"],
                "measured_us": each["measured_us"],
            },
        }
    return found


def _lifetimes(snapshot: Snapshot) -> dict[str, Branch]:
    return {
        str(time_us): {"timestamp": format_time(time_us), "event": event, "version": version}
        for time_us, event, version in snapshot.get("lifetimes", ())
    }


def _logging(options: Mapping[str, Any]) -> Branch:
    """Returns the targets of the log by their documented names; of each kind the first one."""
    found: dict[str, Node] = {}
    for target in (options, *options.get("also", ())) if options else ():
        kind = target["target"]
        values = {"level": target["level"], "format": target["format"]}
        if kind in ("file", "gzip"):
            file_name = "/".join(filter(None, (target["directory"], target.get("file_name", ""))))
            found.setdefault("file", {"protocol": kind, "file_name": file_name, **values})
        elif kind == "syslog":
            own = {"ident": target["ident"], "facility": target["facility"]}
            found.setdefault("syslog", {"protocol": kind, **own, **values})
        elif kind != "none":
            found.setdefault("console", {"protocol": kind, **values})
    return found


def _memory(snapshot: Snapshot) -> Branch:
    process = snapshot.get("memory", {})
    caches: dict[str, Branch] = {}
    metrics = snapshot.get("metrics", {})
    for name, size in (
        ("client_buffers", metrics.get("buffer_bytes")),
        ("incomplete_frames", metrics.get("incomplete_bytes")),
        ("staged", snapshot.get("staged_bytes")),
        ("sow", sum(each["pending_bytes"] for each in snapshot.get("sow_topics", {}).values())),
    ):
        caches[name] = {"name": name, "size": size}
    return {
        **process,
        "caches": Collection("cache", caches),
        "paginations": Collection("pagination", paginations_branch(snapshot)),
    }


def _message_types(names: Iterable[str], configuration: Mapping[str, Any]) -> dict[str, Branch]:
    found: dict[str, Branch] = {
        name: {"name": name, "type": name, "module": "built in", "options": ""} for name in names
    }
    for each in configuration.get("type_definitions", ()):
        options = json.dumps(each.get("options", {}), sort_keys=True)
        found[each["name"]] = {
            "name": each["name"],
            "type": each["kind"],
            "module": each["kind"],
            "options": options if options != "{}" else "",
        }
    return found


def _processors(snapshot: Snapshot, rated: _Rated) -> dict[str, Branch]:
    """The documented processor types: the parts that take messages, and those that find who wants
    them."""
    deliveries = snapshot.get("deliveries", {})
    sow = snapshot.get("sow_topics", {}).values()
    put = sum(each["inserted"] + each["updated"] + each["deleted"] for each in sow)
    published, replicated = snapshot.get("published", 0), snapshot.get("replicated_in", 0)
    found: dict[str, Branch] = {}
    for name, description, received, matched in (
        ("all", "all of the instance", published + replicated, snapshot.get("delivered", 0)),
        ("external", "publishes of clients", published, deliveries.get("live", 0)),
        ("replication", "messages of other instances", replicated, 0),
        ("bookmark", "replays of the transaction log", 0, deliveries.get("bookmark", 0)),
        ("queue", "messages of queues", 0, deliveries.get("queue", 0)),
        ("sow", "records and queries of SOW topics", put, deliveries.get("rows", 0)),
    ):
        counters = {"messages_received": received, "matches_found": matched}
        if name == "all":
            counters["messages_received_bytes"] = snapshot.get("payload_bytes", 0)
        found[name] = {"description": description, **rated(("processors", name), counters)}
    return found


def _queries(snapshot: Snapshot) -> dict[str, Branch]:
    return {
        f"{each['client']}/{each['query']}": {
            "client_id": each["client_name"],
            "query_id": each["query"],
            "topic": each["topic"],
            "message_type": each["message_type"],
            "filter": each["filter"],
            "is_running": each["is_running"],
        }
        for each in snapshot.get("queries", ())
    }


def _queues(snapshot: Snapshot, rated: _Rated) -> dict[str, Branch]:
    found: dict[str, Branch] = {}
    configuration = snapshot.get("configuration", {}).get("queue_definitions", ())
    definitions = {(each["name"], each["message_type"]): each for each in configuration}
    for stored_as, each in snapshot.get("queues", {}).items():
        own = {key: value for key, value in each.items() if _is_leaf(value)}
        topic, message_type = own.pop("topic"), own.pop("message_type")
        defined = definitions.get((topic, message_type), {})
        depth = own.pop("queue_depth", None)
        came, left = own.pop("came", None), own.pop("left", None)
        counters = {
            name: own.pop(name, 0)
            for name in ("delivered", "transferred_in", "transferred_out", "expired_leases")
        }
        found[f"{topic}!{message_type}"] = {
            "topic": topic,
            "message_type": message_type,
            "queue_depth": depth,
            "owned": _owned(each),
            "backlog": own.pop("backlog", None),
            "max_backlog": defined.get("backlog_max", 0),
            "target_queue_depth": defined.get("target_depth", 0),
            "inactive_message_count": own.pop("inactive_message_count", None),
            "deferred_ack_count": own.pop("deferred_ack_count", None),
            "age_of_oldest_lease": _whole_s(own.pop("age_of_oldest_lease_us", None)),
            "seconds_behind": own.pop("seconds_behind", None),
            "proxied_transfer": own.pop("proxied_transfer", None),
            **rated(("queues", stored_as), counters),
            "details": {
                "depth": depth,
                "insert_count": came,
                "delete_count": left,
                "last_queued_txid": own.get("folded_txid"),
            },
            "raylay": {"name": stored_as, "trend": own.pop("trend", None), **own},
        }
    return found


def _owned(queue: Mapping[str, Any]) -> int | None:
    """Returns the messages that this instance may deliver, or has delivered on a lease."""
    if queue.get("available_here") is None:
        return None
    return int(queue["available_here"]) + int(queue.get("backlog") or 0)


def _whole_s(microseconds: int | None) -> int | None:
    return None if microseconds is None else microseconds // 1_000_000


def _destinations(snapshot: Snapshot, rated: _Rated) -> dict[str, Branch]:
    found: dict[str, Branch] = {}
    for name, each in snapshot.get("destinations", {}).items():
        counters = {
            "messages_out": each.get("sent_records", 0),
            "bytes_out": each.get("sent_bytes", 0),
        }
        found[name] = {
            "name": name,
            "destination_name": each["peer"],
            "destination_group_name": each["group"],
            "destination_admin_addr": each.get("admin_address", ""),
            "authenticated_id": each.get("user", ""),
            "client_name": each["client_name"],
            "client_type": "source",
            "connect_time": _time(each.get("connected_us")),
            "disconnect_time": _time(each.get("disconnected_us")),
            "disconnect_count": each.get("disconnects", 0),
            "is_connected": each["connected"],
            "pass_through": each.get("pass_through", ""),
            "replication_type": "sync" if each["sync"] else "async",
            "seconds_behind": each["age_ms"] // 1000,
            **rated(("replication", name), counters),
            "raylay": {
                "configured_type": "sync" if each["configured_sync"] else "async",
                "is_downgraded": each["downgraded"],
                "is_downgraded_by_hand": each["downgraded_by_hand"],
                "is_caught_up": each["caught_up"],
                "is_safe": each["safe"],
                "why_unsafe": each["why_unsafe"],
                "why": each["why"],
                "unacked": each["unacked"],
                "age_ms": each["age_ms"],
                "lag": each["lag"],
                "trend": each.get("trend"),
                "persisted": each.get("persisted"),
                "stored_txid": each.get("stored_txid"),
                "skipped": each.get("skipped"),
                "is_direct": each.get("direct"),
                "sent_wire_bytes": each.get("sent_wire_bytes"),
                "address": each["address"],
                "incarnation": each.get("incarnation", ""),
                "pid": each["pid"],
                "starts": each["starts"],
            },
        }
    return found


def _sow_topics(snapshot: Snapshot, rated: _Rated) -> dict[str, Branch]:
    configuration = snapshot.get("configuration", {}).get("sow", ())
    definitions = {_stored_as(each): each for each in configuration}
    queried = snapshot.get("queried", {})
    found: dict[str, Branch] = {}
    for name, each in snapshot.get("sow_topics", {}).items():
        defined = definitions.get(name, {})
        topic, rules = defined.get("name", name), defined.get("rules", {})
        found[name] = {
            "topic": topic,
            "message_type": defined.get("message_type", ""),
            "path": "" if defined.get("transient") else snapshot.get("sow_path", ""),
            "stored_bytes": None if defined.get("transient") else snapshot.get("sow_bytes"),
            "valid_keys": each["records"],
            "historical_window": _whole_s(rules.get("window_us")),
            "historical_granularity": _whole_s(rules.get("granularity_us")),
            **_sow_counts(rated, name, each, queried.get(topic, 0)),
            "raylay": {
                key: each[key]
                for key in ("txid", "saved_txid", "pending_bytes", "tombstones", "expired")
            },
        }
    for name, counts in computed_counts(snapshot):
        message_type, topic = identity(name)
        found[name] = {
            "topic": topic,
            "message_type": message_type,
            "path": "",
            "stored_bytes": None,
            "valid_keys": counts["records"],
            "historical_window": 0,
            "historical_granularity": 0,
            **_sow_counts(rated, name, counts, queried.get(topic, 0)),
            "raylay": {"computed": True},
        }
    return found


def _sow_counts(
    rated: _Rated, name: str, counts: Mapping[str, int], queries: int
) -> dict[str, Node]:
    counters = {
        "insert_count": counts["inserted"],
        "update_count": counts["updated"],
        "delete_count": counts["deleted"],
        "query_count": queries,
    }
    return {
        _RATES_OF_SOW.get(counter, counter): value
        for counter, value in rated(("sow", name), counters).items()
    }


_RATES_OF_SOW = {
    "insert_count_per_sec": "inserts_per_sec",
    "update_count_per_sec": "updates_per_sec",
    "delete_count_per_sec": "deletes_per_sec",
    "query_count_per_sec": "queries_per_sec",
}


def _stored_as(definition: Mapping[str, Any]) -> str:
    return f"{definition['message_type']}/{definition['name']}"


def _transaction_log(snapshot: Snapshot, rated: _Rated) -> Branch:
    segments: Iterable[Mapping[str, Any]] = snapshot.get("segments", ())
    journals: dict[str, Branch] = {
        str(each["first_txid"]): {
            "file_name": each["path"],
            "min_timestamp": _time(each["first_time_us"]),
            "max_timestamp": _time(each["last_time_us"]),
            "is_archived": each["archived"],
            "is_compressed": each["state"] == "compressed",
            "raylay": {
                "first_txid": each["first_txid"],
                "last_txid": each["last_txid"],
                "bytes": each["bytes_on_disk"],
                "records": each["records"],
                "state": each["state"],
            },
        }
        for each in segments
    }
    times = [each[name] for each in segments for name in ("first_time_us", "last_time_us")]
    known = [time_us for time_us in times if time_us]
    counters = {
        "messages": snapshot.get("messages_logged", 0),
        "payload_bytes": snapshot.get("payload_bytes", 0),
        "commits": snapshot.get("commits", 0),
    }
    return {
        "min_timestamp": _time(min(known, default=0)),
        "max_timestamp": _time(max(known, default=0)),
        "journals": Collection("journal", journals),
        "write_latency": _histogram(snapshot.get("write_latency"), NS_PER_US),
        "write_size": _histogram(snapshot.get("write_size"), 1),
        "raylay": {
            **{key: snapshot.get(key) for key in ("first_txid", "committed_txid", "notes")},
            **rated(("transaction_log",), counters),
            "journal_count": len(journals),
            "bytes": sum(each["bytes_on_disk"] for each in segments),
            "problem": snapshot.get("journal_problem", ""),
        },
    }


def _histogram(found: Mapping[str, Any] | None, divisor: int) -> Branch:
    """Returns a histogram with the counts of its buckets by their upper bounds, those without a
    count left out."""
    if found is None:
        return {}
    bounds = [*(str(bound // divisor) for bound in found["bounds"]), "more"]
    counted = [f"{bound}={n}" for bound, n in zip(bounds, found["counts"], strict=True) if n]
    minimum, maximum = found["minimum"], found["maximum"]
    return {
        "histogram": " ".join(counted),
        "minimum": None if minimum is None else minimum // divisor,
        "maximum": None if maximum is None else maximum // divisor,
        "raylay": {
            "count": sum(found["counts"]),
            "p50": _percentile(found, 0.5, divisor),
            "p99": _percentile(found, 0.99, divisor),
        },
    }


def _percentile(found: Mapping[str, Any], fraction: float, divisor: int) -> int | None:
    """Returns the upper bound of the bucket that holds this fraction."""
    wanted, reached = fraction * sum(found["counts"]), 0
    for bound, count in zip(found["bounds"], found["counts"], strict=False):
        reached += count
        if reached and reached >= wanted:
            return int(bound) // divisor
    return None if found["maximum"] is None else int(found["maximum"]) // divisor


def _pools(snapshot: Snapshot) -> dict[str, Branch]:
    return {
        each["pool"]: {key: value for key, value in each.items() if _is_leaf(value)}
        for each in snapshot.get("capacity", ())
    }


def _processes(snapshot: Snapshot) -> dict[str, Branch]:
    return {str(each["pid"]): dict(each) for each in snapshot.get("processes", ())}


def _topics(snapshot: Snapshot, rated: _Rated) -> dict[str, Branch]:
    found: dict[str, Branch] = {}
    for values in snapshot.get("topics", ()):
        total = TopicTotal(*values)
        key = f"{total.topic}!{total.message_type}"
        found[key] = {
            "topic": total.topic,
            "message_type": total.message_type,
            **rated(("topics", key), {"messages": total.logged}),
            # Retention takes off messages, which is no rate.
            "messages": total.messages,
            "bytes": total.bytes,
            "oldest": format_time(total.oldest_us) if total.oldest_us else "",
            "newest": format_time(total.newest_us) if total.newest_us else "",
        }
    return found


def _upstreams(snapshot: Snapshot) -> dict[str, Branch]:
    return {each["name"]: dict(each) for each in snapshot.get("upstreams", ())}


def _transports(snapshot: Snapshot) -> dict[str, Branch]:
    return {
        each["name"]: {
            "name": each["name"],
            "type": _type(each),
            "is_enabled": each["enabled"],
            "message_type": ",".join(each["message_types"]),
            "options": "",
            "raylay": {
                "address": each["address"],
                "connections": each["connections"],
                "connections_max": each["connections_max"],
                "tls_refused": each["tls_refused"],
                "problem": each["problem"],
            },
        }
        for each in snapshot.get("transports", ())
    }


def _type(transport: Mapping[str, Any]) -> str:
    """Returns a transport's type by its documented name."""
    if transport["kind"] == "replication":
        return "amps-replication-secure" if transport["tls"] else "amps-replication"
    return "tcps" if transport["tls"] else "tcp"


_OWN = (
    "group",
    "state",
    "phase",
    "reason",
    "ready",
    "incarnation",
    "generation",
    "client_address",
    "replication_address",
    "durable_txid",
    "next_txid",
    "pending",
    "duplicates",
    "late",
    "conflicts",
    "unavailable",
    "commits",
    "ack_ms_p50",
    "ack_ms_p99",
    "commit_ms_p50",
    "commit_ms_p99",
    "staged_bytes",
    "storage_failure",
    "front_log_failure",
    "retention_held",
    "last_event",
    "control_problem",
    "min_sync_destinations",
    "sessions",
    "bookmark_subscriptions",
    "publisher_names",
    "publisher_conflicts",
    "connection_faults",
    "filters_given_up",
    "runs_unreadable",
    "sow_store_failure",
    "topics_of_others",
)


_OWN_COUNTERS = ("published", "persisted", "delivered", "replicated_in")


def _own(snapshot: Snapshot) -> Branch:
    # A time that nothing was measured of lately has a history all the same.
    found: dict[str, Node] = dict.fromkeys(("ack_ms_p50", "ack_ms_p99"))
    return found | {name: snapshot[name] for name in _OWN if name in snapshot}


def _is_leaf(value: object) -> bool:
    return value is None or isinstance(value, str | int | float | bool)
