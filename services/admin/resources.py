"""The resource tree of an instance: `/amps/instance` (behaviour.md 9.4), from what the instance
tells of itself once for each sample.

Documented values have their documented names. What Raylay has beyond them stands under `raylay`,
in the instance and in each entry, so that a reader of the documents is never surprised.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from raylay.services.admin.rates import CounterRates
from raylay.services.admin.requests import format_time
from raylay.services.admin.tree import Branch, Collection, Node

Snapshot = Mapping[str, Any]
"""What an instance tells of itself (`services/server/status.py`), as msgpack carries it."""


def instance_branch(snapshot: Snapshot, rates: CounterRates, time_us: int) -> Branch:
    """Returns `/amps/instance`.

    Args:
        snapshot: of an instance in any state; what is missing in it is missing in the tree.
        rates: of this sample, begun.
        time_us: of the sample, in microseconds since 1970.
    """
    rated = _Rated(rates)
    return {
        "name": snapshot["name"],
        "description": snapshot.get("description", ""),
        "version": snapshot.get("version", ""),
        "pid": snapshot["pid"],
        "cwd": snapshot.get("cwd", ""),
        "config_path": snapshot.get("config_path", ""),
        "user_id": snapshot.get("user_id", ""),
        "timestamp": format_time(time_us),
        "uptime": _uptime(snapshot.get("uptime_s", 0.0)),
        "clients": Collection("client", _clients(snapshot, rated)),
        "subscriptions": Collection("subscription", _subscriptions(snapshot)),
        "memory": dict(snapshot.get("memory", {})),
        "message_types": Collection(
            "message_type",
            {name: {"name": name} for name in snapshot.get("message_types", ())},
        ),
        "processors": Collection("processor", {"all": _processor(snapshot, rated)}),
        "queues": Collection("queue", _queues(snapshot, rated)),
        "replication": Collection("destination", _destinations(snapshot, rated)),
        "sow": Collection("topic", _sow_topics(snapshot, rated)),
        "transaction_log": _transaction_log(snapshot),
        "transports": Collection("transport", _transports(snapshot)),
        "raylay": _own(snapshot),
    }


class _Rated:
    """Adds the rate of a counter beside it."""

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


def _clients(snapshot: Snapshot, rated: _Rated) -> dict[str, Branch]:
    found: dict[str, Branch] = {}
    for each in snapshot.get("client_connections", ()):
        key = str(each["number"])
        counters = {name: each[name] for name in ("bytes_in", "bytes_out", "messages_out")}
        found[key] = {
            "client_name": each["client"],
            "client_name_hash": each["publisher"],
            "authenticated_id": each["user"],
            "remote_address": each["address"],
            "connection_name": each["transport"],
            "connect_time": _time(each["connected_us"]),
            **rated(("clients", key), counters),
            "queued_bytes_out": each["unsent_bytes"],
            "queue_max_latency": each["age_ms"] / 1000,
            "subscription_count": each["subscriptions"],
            "raylay": {
                "state": each["state"],
                "published_upto": each["published_upto"],
                "unacknowledged": each["unacknowledged"],
                "offline_bytes": each["offline_bytes"],
            },
        }
    return found


def _subscriptions(snapshot: Snapshot) -> dict[str, Branch]:
    found: dict[str, Branch] = {}
    for each in snapshot.get("subscribers", ()):
        found[f"{each['client']}/{each['subscription']}"] = {
            "client_id": each["client"],
            "sub_id": each["subscription"],
            "topic": each["topic"],
            "message_type": ",".join(each["message_types"]),
            "filter": each.get("filter", ""),
            "bookmark": each["bookmark"],
            "backlog": each["unsent_bytes"],
            "seconds_behind": each.get("seconds_behind"),
            "raylay": {"delivered": each["delivered"], "transactions_behind": each["behind"]},
        }
    return found


def _processor(snapshot: Snapshot, rated: _Rated) -> Branch:
    counters = {"messages_received": snapshot.get("published", 0)}
    counters["matches_found"] = snapshot.get("delivered", 0)
    return {"description": "all of the instance", **rated(("processors", "all"), counters)}


def _queues(snapshot: Snapshot, rated: _Rated) -> dict[str, Branch]:
    found: dict[str, Branch] = {}
    for name, each in snapshot.get("queues", {}).items():
        own = {key: value for key, value in each.items() if _is_leaf(value)}
        found[name] = {
            "topic": own.pop("topic"),
            "message_type": own.pop("message_type"),
            **rated(("queues", name), {"delivered": own.pop("delivered")}),
            "subscription_count": own.pop("subscriptions"),
            "raylay": own,
        }
    return found


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
            "client_name": each["client_name"],
            "client_type": "source",
            "is_connected": each["connected"],
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
                "address": each["address"],
                "pid": each["pid"],
                "starts": each["starts"],
            },
        }
    return found


def _sow_topics(snapshot: Snapshot, rated: _Rated) -> dict[str, Branch]:
    return {
        name: {
            "topic": name,
            "valid_keys": each["records"],
            **rated(("sow", name), {"delete_count": each["deleted"]}),
            "raylay": {
                key: each[key]
                for key in ("txid", "saved_txid", "pending_bytes", "tombstones", "expired")
            },
        }
        for name, each in snapshot.get("sow_topics", {}).items()
    }


def _transaction_log(snapshot: Snapshot) -> Branch:
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
    return {
        "min_timestamp": _time(min(known, default=0)),
        "max_timestamp": _time(max(known, default=0)),
        "journals": Collection("journal", journals),
        "write_latency": dict(snapshot.get("write_latency", {})),
        "raylay": {
            key: snapshot.get(key) for key in ("first_txid", "committed_txid", "messages", "notes")
        },
    }


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
    "persisted",
    "replicated_in",
    "duplicates",
    "late",
    "conflicts",
    "unavailable",
    "commits",
    "commit_ms_p50",
    "commit_ms_p99",
    "staged_bytes",
    "storage_failure",
    "front_log_failure",
    "retention_held",
    "last_event",
    "control_problem",
)


def _own(snapshot: Snapshot) -> Branch:
    return {name: snapshot[name] for name in _OWN if name in snapshot}


def _is_leaf(value: object) -> bool:
    return value is None or isinstance(value, str | int | float | bool)
