"""services/admin/subscription_branches.py: subscriptions in the resource tree, and what they
share."""

from __future__ import annotations

from typing import Any

from raylay.services.admin.rates import CounterRates
from raylay.services.admin.resources import instance_branch
from raylay.services.admin.tree import Branch, node_at

ORDER: dict[str, Any] = {
    "number": 3, "topic": "prices", "message_type": "json", "filter": "/id > 1",
    "order_by": "/price DESC", "records": 5, "windows": 2, "subscriptions": 4,
    "memory_bytes": 900, "is_built": True,
}  # fmt: skip
GROUPS: dict[str, Any] = {
    "topic": "prices", "message_type": "json", "filter": "", "grouping": ["/a", "/b"],
    "projection": ["/a", "COUNT(/b) AS /n"], "users": 2, "is_ready": False, "records": 7,
    "memory_bytes": 800, "taken": 20, "updates": 10,
}  # fmt: skip
PAGE: dict[str, Any] = {
    "number": 1, "client": "desk", "subscription": "s", "topic": "prices",
    "message_types": ["json"],
    "filter": "/id > 1", "options": "top_n=2,skip_n=0", "kind": "paginated", "delivered": 9,
    "cursor_txid": None, "order_by": "/price DESC", "pagination": 3,
}  # fmt: skip
CLIENT: dict[str, Any] = {
    "number": 1, "client": "desk", "publisher": 5, "user": "", "address": "", "transport": "",
    "connected_us": 1, "bytes_in": 0, "bytes_out": 0, "messages_in": 0, "messages_out": 0,
    "rates": dict.fromkeys(("bytes_in", "bytes_out", "messages_in", "messages_out")),
    "unsent_bytes": 12, "memory_bytes": 0, "offline_bytes": 0, "age_ms": 40, "subscriptions": 1,
    "published_upto": 0, "unacknowledged": 0, "oldest_unacknowledged_ms": 0, "denied_reads": 0,
    "denied_writes": 0, "times_slowed": 0, "state": "connected", "measured_us": 1,
}  # fmt: skip


def tree(**snapshot: Any) -> Branch:
    rates = CounterRates()
    rates.begin(1)
    return instance_branch({"name": "north", "pid": 7, **snapshot}, rates, 1_000_000)


def at(found: Branch, *path: str) -> Any:
    return node_at(found, path)


def test_a_paginated_subscription_names_the_order_that_it_shares() -> None:
    found = tree(subscribers=[PAGE], client_connections=[CLIENT], paginations=[ORDER])
    page = at(found, "subscriptions", "1/s")
    assert (page["pagination_id"], page["bookmark"], page["backlog"]) == (3, False, 12)
    assert page["raylay"]["kind"] == "paginated" and page["raylay"]["order_by"] == "/price DESC"
    order = at(found, "memory", "paginations", str(page["pagination_id"]))
    assert (order["name"], order["size"]) == ("prices", 900)
    assert (order["raylay"]["windows"], order["raylay"]["subscriptions"]) == (2, 4)


def test_an_aggregation_has_one_id_from_sample_to_sample() -> None:
    other = {**GROUPS, "filter": "/a > 1"}
    (one, two) = at(tree(aggregations=[GROUPS, other]), "raylay", "aggregations").branches.items()
    (again,) = at(tree(aggregations=[{**GROUPS, "users": 1}]), "raylay", "aggregations").branches
    assert one[0] == again != two[0]
    shown = one[1]
    assert (shown["projection"], shown["grouping"]) == ("/a, COUNT(/b) AS /n", "/a,/b")
    assert (shown["users"], shown["is_built"], shown["updates"]) == (2, False, 10)
    assert shown["updates_per_sec"] is None


def test_what_waits_for_conflated_subscriptions_is_told_of_all() -> None:
    told = {
        "subscriptions": 2, "definitions": 1, "pending": 3, "pending_bytes": 70, "given": 9,
        "conflated": 90,
    }  # fmt: skip
    found = at(tree(conflated_subscriptions=told), "raylay", "conflated_subscriptions")
    assert (found["pending"], found["given"], found["conflated_per_sec"]) == (3, 9, None)
    nothing = at(tree(), "raylay", "conflated_subscriptions")
    assert (nothing["pending"], nothing["conflated"]) == (0, 0)
    assert at(tree(), "memory", "paginations").branches == {}
