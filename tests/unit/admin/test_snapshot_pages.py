"""services/admin/snapshot_pages.py: rows of clients and subscriptions over several snapshots."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from raylay.services.admin import snapshot_pages
from raylay.services.admin.snapshot_pages import COUNTERS, SnapshotPages
from raylay.services.messages.topic_totals import TopicTotal

FIELDS = ("number", "client", *COUNTERS)


def snapshot(
    clients: list[tuple[int, str, int]],
    connected: list[int],
    subscriptions: list[tuple[int, bool, list[str]]] | None = None,
    pid: int = 7,
    **more: Any,
) -> dict[str, Any]:
    """One with rows of clients (number, name, count), and pages of subscriptions."""
    return {
        "pid": pid,
        "client_fields": FIELDS,
        "client_rows": [[number, name, *[count] * 4] for number, name, count in clients],
        "connected": array("Q", connected).tobytes(),
        "subscription_fields": ("subscription",),
        "subscription_pages": [
            {"client": number, "is_first": is_first, "rows": [[name] for name in names]}
            for number, is_first, names in subscriptions or ()
        ],
        **more,
    }


def names(found: dict[str, Any]) -> list[tuple[str, str]]:
    return [(each["client"], each["subscription"]) for each in found["subscribers"]]


def test_rows_stay_until_their_client_has_gone() -> None:
    pages = SnapshotPages()
    pages.merge(snapshot([(1, "a", 0), (2, "b", 0)], [1, 2, 3], [(1, True, ["x"])]), 1)
    found = pages.merge(snapshot([(3, "c", 0)], [1, 2, 3]), 2)
    assert [each["client"] for each in found["client_connections"]] == ["a", "b", "c"]
    assert names(found) == [("a", "x")]
    found = pages.merge(snapshot([], [3]), 3)
    assert [each["client"] for each in found["client_connections"]] == ["c"]
    assert names(found) == []


def test_a_rate_is_of_the_time_between_two_rows_of_a_client() -> None:
    pages = SnapshotPages()
    found = pages.merge(snapshot([(1, "a", 100)], [1]), 1_000_000)
    assert found["client_connections"][0]["rates"]["bytes_in"] is None
    pages.merge(snapshot([], [1]), 2_000_000)
    found = pages.merge(snapshot([(1, "a", 150)], [1]), 6_000_000)
    assert found["client_connections"][0]["rates"] == dict.fromkeys(COUNTERS, 10.0)
    found = pages.merge(snapshot([(1, "a", 150)], [1]), 6_000_000)
    assert found["client_connections"][0]["rates"]["bytes_in"] is None


def test_the_first_page_of_a_client_replaces_its_subscriptions() -> None:
    pages = SnapshotPages()
    found = pages.merge(
        snapshot([(1, "a", 0)], [1], [(1, True, ["x"]), (1, False, ["y"]), (9, True, ["z"])]), 1
    )
    assert names(found) == [("a", "x"), ("a", "y")]
    assert names(pages.merge(snapshot([(1, "a", 0)], [1], [(1, True, ["w"])]), 2)) == [("a", "w")]
    assert names(pages.merge(snapshot([(1, "a", 0)], [1], [(1, True, [])]), 3)) == []


def test_subscriptions_and_topics_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_pages, "SUBSCRIPTIONS_MAX", 3)
    monkeypatch.setattr(snapshot_pages, "TOPICS_MAX", 1)
    pages = SnapshotPages()
    found = pages.merge(
        snapshot(
            [(1, "a", 0), (2, "b", 0)],
            [1, 2],
            [(1, True, ["x", "y"]), (2, True, ["z", "zz"])],
            topic_page=[("orders", "json", 1), ("prices", "json", 2)],
        ),
        1,
    )
    assert len(found["subscribers"]) == 3
    assert found["topics"] == [TopicTotal("orders", "json", 1)]
    found = pages.merge(snapshot([], [2], topic_page=[("orders", "json", 5)]), 2)
    found = pages.merge(snapshot([], [2], [(2, True, ["1", "2", "3"])]), 3)
    assert len(found["subscribers"]) == 3, "the room of those who have gone is free again"
    assert found["topics"] == [TopicTotal("orders", "json", 5)]


def test_another_life_of_the_instance_begins_anew() -> None:
    pages = SnapshotPages()
    pages.merge(snapshot([(1, "a", 9)], [1], [(1, True, ["x"])], topic_page=[("t", "j", 1)]), 1)
    found = pages.merge(snapshot([(1, "b", 5)], [1], pid=8), 2)
    assert [each["client"] for each in found["client_connections"]] == ["b"]
    assert found["client_connections"][0]["rates"]["bytes_in"] is None
    assert (names(found), found["topics"]) == ([], [])
    # One that does not serve yet has no rows at all.
    assert pages.merge({"pid": 9}, 3)["client_connections"] == []
