"""services/admin/computed_topics.py: views and conflated topics in the resource tree, also of what
is not known of them."""

from __future__ import annotations

from typing import Any

from raylay.services.admin.computed_topics import FollowerCounts
from raylay.services.admin.rates import CounterRates
from raylay.services.admin.resources import instance_branch
from raylay.services.admin.tree import Branch, node_at

VIEW: dict[str, Any] = {
    "records": 3, "taken": 30, "updates": 20, "inserted": 5, "updated": 13, "deleted": 2,
    "memory_bytes": 1_000, "queue_depth": 4, "under": ["json/orders", "fix/customers"],
    "in_service": True, "refusal": "",
}  # fmt: skip
CONFLATED: dict[str, Any] = {
    "records": 3, "taken": 30, "updates": 10, "inserted": 5, "updated": 3, "deleted": 2,
    "pending": 1, "pending_bytes": 80, "conflated": 20, "executions": 4, "spent_us": 1_500,
    "queue_depth": 0, "under": ["json/sums"], "in_service": True, "refusal": "",
}  # fmt: skip
SNAPSHOT: dict[str, Any] = {
    "name": "north", "pid": 7,
    "views": {"json/sums": VIEW},
    "conflated_topics": {"json/slow": CONFLATED},
    "configuration": {
        "views": [
            {
                "name": "sums", "message_type": "json", "inline": True, "grouping": ["/a", "/b"],
                "projection": ["/a AS /a", "SUM(/c) AS /c"], "filter": "",
                "joins": ["[orders]./id = [customers]./id"], "memory_bytes_max": 5_000,
            }
        ],
        "conflated_topics": [
            {
                "name": "slow", "message_type": "json", "topic": "sums", "interval_us": 250_000,
                "filter": "/c > 1", "enrichment": ["/c * 2 AS /d", "NOW() AS /at"],
            }
        ],
    },
    "queried": {"sums": 6},
}  # fmt: skip


SUBSCRIBERS = [
    ("sums", ("fix", "json")),
    ("sums", ()),
    ("sums", ("fix",)),
    ("slow", ("json",)),
    ("^s", ("json",)),
]


def subscribers() -> list[dict[str, Any]]:
    """Returns the rows of subscriptions of one client."""
    return [
        {
            "number": 1, "client": "desk", "subscription": str(at), "topic": topic,
            "message_types": types, "filter": "", "options": "", "kind": "live", "delivered": 0,
            "cursor_txid": None,
        }
        for at, (topic, types) in enumerate(SUBSCRIBERS)
    ]  # fmt: skip


def tree(**changed: Any) -> Branch:
    rates = CounterRates()
    rates.begin(1)
    return instance_branch({**SNAPSHOT, **changed}, rates, 1_000_000)


def at(found: Branch, *path: str) -> Any:
    return node_at(found, path)


def test_subscriptions_that_name_a_topic_are_counted() -> None:
    found = FollowerCounts({"subscribers": subscribers()})
    assert (found.of("sums", "json"), found.of("slow", "json"), found.of("x", "json")) == (2, 1, 0)


def test_a_view_has_its_documented_values() -> None:
    view = dict(at(tree(), "views", "json/sums"))
    own = view.pop("raylay")
    assert view == {
        "topic": "sums",
        "message_type": "json",
        "underlying_topic": "orders,customers",
        "projection": "/a AS /a, SUM(/c) AS /c",
        "grouping": "/a,/b",
        "conflation": "inline",
        "conflation_ratio": 1.5,
        "queue_depth": 4,
    }
    assert (own["records"], own["updates"], own["subscriptions"]) == (3, 20, 0)
    assert (own["memory_bytes"], own["memory_bytes_max"]) == (1_000, 5_000)
    assert own["joins"] == "[orders]./id = [customers]./id" and own["in_service"] is True


def test_a_conflated_topic_has_its_documented_values() -> None:
    topic = dict(at(tree(), "conflated_topics", "json/slow"))
    own = topic.pop("raylay")
    assert topic == {
        "topic": "slow",
        "message_type": "json",
        "underlying_topic": "sums",
        "interval": "250ms",
        "filter": "/c > 1",
        "pattern": "",
        "topic_format": "",
        "conflation_ratio": 3.0,
        "total_executions": 4,
        "total_time": 0.0015,
    }
    assert (own["pending"], own["conflated"], own["subscriptions"]) == (1, 20, 0)
    assert own["enrichment"] == "/c * 2 AS /d, NOW() AS /at"


def test_their_records_are_among_those_of_the_sow_topics() -> None:
    found = at(tree(), "sow", "json/sums")
    assert (found["valid_keys"], found["insert_count"], found["update_count"]) == (3, 5, 13)
    assert (found["delete_count"], found["query_count"], found["path"]) == (2, 6, "")
    assert at(tree(), "sow", "json/slow", "topic") == "slow"


def test_what_has_not_begun_or_is_not_configured_any_more_is_told_all_the_same() -> None:
    still = {**VIEW, "taken": 0, "updates": 0, "in_service": False, "refusal": "it is full"}
    found = tree(views={"json/sums": still}, configuration={})
    view = at(found, "views", "json/sums")
    assert (view["conflation_ratio"], view["projection"]) == (0.0, "")
    assert (view["raylay"]["in_service"], view["raylay"]["reason"]) == (False, "it is full")
    assert at(found, "conflated_topics", "json/slow", "interval") == ""
    configured = {**SNAPSHOT["configuration"]["conflated_topics"][0], "interval_us": 5_000_000}
    found = tree(configuration={"conflated_topics": [configured]})
    assert at(found, "conflated_topics", "json/slow", "interval") == "5s"


def test_an_instance_without_them_has_none() -> None:
    found = tree(views={}, conflated_topics={})
    assert at(found, "views").branches == {} == at(found, "conflated_topics").branches
    assert FollowerCounts({}).of("sums", "json") == 0
