"""The subscriptions of an instance in its resource tree, and what they share: the orders of
paginated ones, the groups of aggregated ones, and what waits for conflated ones (behaviour.md
9.4)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from raylay.services.admin.computed_topics import Rated, Snapshot
from raylay.services.admin.tree import Branch


def subscriptions_branch(snapshot: Snapshot) -> dict[str, Branch]:
    """Returns the entries of `/amps/instance/subscriptions`."""
    found: dict[str, Branch] = {}
    clients = {each["number"]: each for each in snapshot.get("client_connections", ())}
    for each in snapshot.get("subscribers", ()):
        client = clients[each["number"]]
        found[f"{each['number']}/{each['subscription']}"] = {
            "client_id": each["client"],
            "sub_id": each["subscription"],
            "topic": each["topic"],
            "message_type": ",".join(each["message_types"]),
            "filter": each["filter"],
            "options": each["options"],
            "bookmark": each["kind"] == "bookmark",
            "pagination_id": each.get("pagination"),
            "backlog": client["unsent_bytes"],
            "seconds_behind": each.get("seconds_behind"),
            "raylay": {
                "kind": each["kind"],
                "order_by": each.get("order_by", ""),
                "client_number": each["number"],
                "delivered": each["delivered"],
                "cursor_txid": each["cursor_txid"],
                "transactions_behind": each.get("behind"),
                "age_ms": client["age_ms"],
                "trend": each.get("trend"),
            },
        }
    return found


def paginations_branch(snapshot: Snapshot) -> dict[str, Branch]:
    """Returns the entries of `/amps/instance/memory/paginations`: the ordered records that the
    windows of paginated subscriptions share."""
    return {
        str(each["number"]): {
            "name": each["topic"],
            "size": each["memory_bytes"],
            "raylay": {
                key: each[key]
                for key in (
                    *("message_type", "filter", "order_by", "records", "windows"),
                    *("subscriptions", "is_built"),
                )
            },
        }
        for each in snapshot.get("paginations") or ()
    }


def aggregations_branch(snapshot: Snapshot, rated: Rated) -> dict[str, Branch]:
    """Returns the views without a name that aggregated queries and subscriptions share."""
    found: dict[str, Branch] = {}
    for each in snapshot.get("aggregations") or ():
        key = _digest(each)
        found[key] = {
            "topic": each["topic"],
            "message_type": each["message_type"],
            "filter": each["filter"],
            "projection": ", ".join(each["projection"]),
            "grouping": ",".join(each["grouping"]),
            "users": each["users"],
            "is_built": each["is_ready"],
            "records": each["records"],
            "memory_bytes": each["memory_bytes"],
            **rated(("aggregations", key), {name: each[name] for name in ("taken", "updates")}),
        }
    return found


def _digest(aggregation: Mapping[str, Any]) -> str:
    """Returns the id of an aggregation, the same in each sample."""
    names = ("topic", "message_type", "filter", "projection", "grouping")
    text = json.dumps([aggregation[name] for name in names])
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]


def conflation_branch(snapshot: Snapshot, rated: Rated) -> Branch:
    """Returns what waits for conflated subscriptions, and what they were given."""
    told = snapshot.get("conflated_subscriptions") or {}
    now = ("subscriptions", "definitions", "pending", "pending_bytes")
    counters = {name: told.get(name, 0) for name in ("given", "conflated")}
    return {
        **{name: told.get(name, 0) for name in now},
        **rated(("conflated_subscriptions",), counters),
    }
