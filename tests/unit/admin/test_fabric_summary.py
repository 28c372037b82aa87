"""services/admin/fabric_summary.py: what an instance tells of itself, and that a peer is not
believed."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylay.services.admin.fabric_summary import (
    SUMMARY_BYTES_MAX,
    InstanceSummary,
    Summarizer,
    SummaryRefusal,
    read_summary,
)

SECOND = 1_000_000
DESTINATION = {
    "peer": "south-1", "connected": True, "sync": True, "configured_sync": True,
    "downgraded": False, "downgraded_by_hand": False, "caught_up": True, "safe": True,
    "why_unsafe": "", "why": "", "unacked": 5, "age_ms": 2_500, "lag": 5,
    "sent_records": 100, "sent_bytes": 1_000,
}  # fmt: skip
SNAPSHOT: dict[str, Any] = {
    "name": "north",
    "group": "North",
    "pid": 7,
    "state": "ready",
    "uptime_s": 3.5,
    "sessions": 4,
    "subscriptions": 2,
    "bookmark_subscriptions": 3,
    "pending": 6,
    "rates": {"published_per_s": 1.5, "persisted_per_s": 2.5, "delivered_per_s": 3.5},
    "destinations": {"south": DESTINATION},
    "upstreams": [{"name": "south-1", "group": "South", "incarnation": "1"}],
    "queues": {
        "json/work": {
            "topic": "work", "message_type": "json", "why": "", "queue_depth": 12,
            "available_here": 3, "leases": 2,
            "age_of_oldest_lease_us": 1_500_000, "expired_leases": 1, "transferred_in": 4,
            "transferred_out": 5, "subscriptions": 1,
        }
    },
    "topics": [("orders", "json", 80, 800, 3, 9, 100)],
    "sow_topics": {"json/orders": {"records": 9}, "json/prices": {"records": 1}},
    "subscribers": [
        {"topic": "orders", "message_types": ["json"]},
        {"topic": "orders", "message_types": []},
    ],
    "capacity": [
        {
            "offline_clients": [
                {"client": "slow", "unsent_bytes": 3, "disk_bytes": 2, "age_ms": 9_000}
            ]
        }
    ],
    "client_connections": [
        {"client": "late", "age_ms": 12_000, "unsent_bytes": 5},
        {"client": "fine", "age_ms": 10, "unsent_bytes": 5},
        {"client": "slow", "age_ms": 9_000, "unsent_bytes": 5},
    ],
    "last_event": 0,
}  # fmt: skip


def take(at: Summarizer, second: int = 0, **changed: Any) -> InstanceSummary:
    return at.take(
        {**SNAPSHOT, **changed}, time_us=10**15 + second * SECOND, steady_us=second * SECOND
    )


def changed_link(**more: Any) -> dict[str, Any]:
    return {"south": {**DESTINATION, **more}}


def test_an_instance_is_summed_up_and_read_as_it_was_written() -> None:
    at = Summarizer()
    take(at)
    found = take(
        at,
        2,
        destinations=changed_link(sent_records=150),
        topics=[("orders", "json", 75, 750, 4, 10, 110)],
    )
    assert (found.in_per_sec, found.acks_per_sec, found.out_per_sec) == (1.5, 2.5, 3.5)
    assert (found.clients, found.subscriptions, found.unacknowledged) == (4, 5, 6)
    (link,) = found.links
    assert (link.connected_to, link.rate_per_sec, link.unacked) == ("south-1", 25.0, 5)
    (queue,) = found.queues
    assert (queue.name, queue.message_type) == ("work", "json")
    assert (queue.depth, queue.oldest_lease_s, queue.moved_out) == (12, 1.5, 5)
    assert [(each.client, each.offline, each.bytes) for each in found.slow] == [
        ("late", False, 5), ("slow", True, 3)
    ]  # fmt: skip
    assert [(each.name, each.records, each.subscribers) for each in found.topics] == [
        ("orders", 9, 2),
        ("prices", 1, 0),
    ]
    first = found.topics[0]
    assert first.in_per_sec == 5.0, "of the counter that only rises"
    assert (first.messages, first.bytes, first.oldest_us, first.newest_us) == (75, 750, 4, 10)
    assert read_summary(msgspec.json.encode(found), "north") == found


def test_views_are_told_with_what_came_and_what_they_gave() -> None:
    view = {
        "records": 3, "taken": 100, "updates": 50, "memory_bytes": 7, "queue_depth": 0,
        "under": ["json/orders", "fix/rates"], "in_service": True, "refusal": "",
    }  # fmt: skip
    slow = {
        "records": 2, "taken": 50, "updates": 5, "pending": 3, "pending_bytes": 90,
        "under": ["json/sums"], "in_service": False, "refusal": "it is over another one",
    }  # fmt: skip
    at = Summarizer()
    told = {"views": {"json/sums": view}, "conflated_topics": {"json/slow": slow}}
    take(at, **told)
    told["views"] = {"json/sums": {**view, "taken": 120, "updates": 60, "built_percent": 12.5}}
    found = take(at, 2, **told)
    sums, conflated = found.views
    assert (sums.name, sums.kind, sums.under) == ("sums", "view", "orders, rates")
    assert (sums.taken_per_sec, sums.updates_per_sec, sums.built_percent) == (10.0, 5.0, 12.5)
    assert (sums.memory_bytes, sums.waiting, sums.in_service) == (7, 0, True)
    assert (conflated.kind, conflated.waiting, conflated.memory_bytes) == ("conflated", 3, 90)
    assert (conflated.in_service, conflated.why) == (False, "it is over another one")
    assert {each.name for each in found.topics if each.sow} == {"orders", "prices", "sums", "slow"}
    assert read_summary(msgspec.json.encode(found), "north") == found


def test_the_certificate_that_ends_first_is_told() -> None:
    soon = [
        {"ends_us": 30, "warning": "a ends"},
        {"ends_us": 10, "warning": "b ends"},
        {"ends_us": 5, "warning": ""},
    ]
    assert take(Summarizer(), certificates=soon).certificate_warning == "b ends"
    assert take(Summarizer(), certificates=soon[2:]).certificate_warning == ""


def test_an_instance_that_has_not_begun_knows_little() -> None:
    found = Summarizer().take({"name": "north"}, time_us=1, steady_us=1)
    assert (found.clients, found.slow_clients, found.links) == (None, None, ())
    assert read_summary(msgspec.json.encode(found), "north") == found


@pytest.mark.parametrize(
    ("changed", "refused"),
    [
        ({"connected": False, "why": "topology: no topic is shared"}, True),
        ({"connected": False, "why": "Connection lost: it ended"}, False),
        ({"connected": False, "why": ""}, False),
        ({"connected": True, "why": "topology: no topic is shared"}, False),
    ],
)
def test_a_refused_link_is_told_from_a_lost_one(changed: dict[str, Any], refused: bool) -> None:
    found = take(Summarizer(), destinations=changed_link(**changed)).links[0]
    assert found.refused is refused
    assert found.connected_to == ("south-1" if changed["connected"] else "")


def events(*found: tuple[str, int]) -> dict[str, Any]:
    made = [
        {"number": at, "time_us": time_us, "event": name, "destination": "south"}
        for at, (name, time_us) in enumerate(found, 1)
    ]
    return {"events": made, "last_event": len(made)}


def test_a_link_is_as_it_is_since_the_event_that_made_it_so() -> None:
    at = Summarizer()
    lost = changed_link(connected=False)
    assert take(at, destinations=lost).links[0].since_us is None
    told_lost = changed_link(connected=False, disconnected_us=3)
    assert take(at, destinations=told_lost).links[0].since_us == 3
    told = events(("link_connected", 5), ("link_disconnected", 7))
    assert take(at, 1, destinations=lost, **told).links[0].since_us == 7
    # Each further attempt is refused again.
    told = events(
        ("link_connected", 5), ("link_disconnected", 7), ("link_refused", 8), ("link_refused", 9)
    )
    assert take(at, 2, destinations=lost, **told).links[0].since_us == 7
    told = events(*[("other", 1)] * 4, ("link_connected", 20), ("link_caught_up", 21))
    assert take(at, 3, **told).links[0].since_us == 21
    catching = changed_link(caught_up=False)
    assert take(at, 4, destinations=catching).links[0].since_us == 20
    told = events(*[("other", 1)] * 6, ("downgraded", 30))
    down = changed_link(downgraded=True, sync=False)
    found = take(at, 5, destinations=down, **told).links[0]
    assert (found.since_us, found.downgraded_us) == (30, 30)
    gone = changed_link(downgraded=True, sync=False, connected=False)
    found = take(at, 5, destinations=gone).links[0]
    assert (found.since_us, found.downgraded_us) == (None, 30)
    # Another process of the instance: nothing of it holds.
    assert take(at, 6, destinations=down, pid=8).links[0].since_us is None


def test_a_link_that_catches_up_says_how_long_it_will_take() -> None:
    at = Summarizer()
    for second in range(20):
        lag = 10_000 - 100 * second
        found = take(at, second, destinations=changed_link(caught_up=False, lag=lag)).links[0]
    assert (found.trend, found.seconds_left) == ("shrinking", 81)
    for second in range(20, 80):
        found = take(at, second, destinations=changed_link(age_ms=second * 1_000)).links[0]
    assert (found.trend, found.seconds_left) == ("growing", None)


def test_the_trend_of_a_queue_is_that_of_its_depth() -> None:
    at = Summarizer()
    for second in range(20):
        queue = {**SNAPSHOT["queues"]["json/work"], "queue_depth": second * 100}
        found = take(at, second, queues={"json/work": queue})
    assert found.queues[0].trend == "growing"


SENT = msgspec.json.decode(msgspec.json.encode(take(Summarizer())))


@pytest.mark.parametrize(
    ("changed", "missing", "text"),
    [
        ({"summary_version": 2}, "version", "version 2"),
        ({"summary_version": 10**40}, "version", "install one release"),
        ({"instance": "<script>"}, "wrong", "'<script>'"),
        ({"clients": -1}, "wrong", "clients"),
        ({"clients": "4"}, "wrong", "clients"),
        ({"in_per_sec": 10**30}, "wrong", "in_per_sec"),
        ({"state": "x" * 2_000}, "wrong", "state"),
        ({"links": [{"destination": "a"}] * 1_001}, "wrong", "links"),
        ({"links": {}}, "wrong", "links"),
        ({"links": [{"destination": "a", "trend": "sideways"}]}, "wrong", "trend"),
        (
            {"events": [{"instance": "x", "number": 1, "time_us": 1, "event": "", "text": ""}]},
            "wrong",
            "another instance",
        ),
    ],
)
def test_a_peer_is_not_believed(changed: dict[str, Any], missing: str, text: str) -> None:
    with pytest.raises(SummaryRefusal, match=text) as caught:
        read_summary(json.dumps({**SENT, **changed}).encode(), "north")
    assert caught.value.missing == missing


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b"\xff\xfe",
        b'{"summary_version":1}',
        b'{"summary_version":NaN}',
        b'{"summary_version":1,"instance":"north","x":' + b"[" * 200_000,
        b'{"summary_version":1,"instance":"north","x":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
        b" " * (SUMMARY_BYTES_MAX + 1),
    ],
    ids=range(9),
)
def test_what_is_no_summary_is_named(data: bytes) -> None:
    with pytest.raises(SummaryRefusal, match="north"):
        read_summary(data, "north")


@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=20,
), st.sampled_from(sorted(SENT)))  # fmt: skip
def test_whatever_stands_in_a_summary_is_read_or_refused(value: object, key: str) -> None:
    data = json.dumps({**SENT, key: value}).encode()
    try:
        found = read_summary(data, "north")
    except SummaryRefusal:
        return
    assert found.instance == "north"
    msgspec.json.encode(found)


@pytest.mark.covers("Administration", "the console's page of actions")
def test_actions_are_told_and_of_too_many_those_that_failed() -> None:
    told = {
        "runs": 3, "failures": 1, "dropped": 2, "chains_stopped": 0, "waiting": 4,
        "waiting_bytes": 9, "step": "", "last_error": "x" * 2_000, "last_run_us": 77,
    }  # fmt: skip
    (found,) = take(Summarizer(), actions={"pid": 1, "actions": {"a": told}}).actions
    assert (found.name, found.runs, found.failures, found.dropped) == ("a", 3, 1, 2)
    assert (found.waiting, found.last_run_us, len(found.last_error)) == (4, 77, 1_000)
    assert take(Summarizer(), actions={"pid": 1, "actions": {}}).actions == ()
    assert take(Summarizer(), actions=None).actions == ()
    # The process has not told of the runs of this one yet.
    assert take(Summarizer(), actions={"actions": {"new": {}}}).actions[0].runs == 0
    many = {f"a{at:03}": {"failures": int(at == 150)} for at in range(200)}
    summary = take(Summarizer(), actions={"actions": many})
    assert len(summary.actions) == 100 and summary.actions[0].name == "a150"
    assert read_summary(msgspec.json.encode(summary), "north") == summary
