"""The topics of a fabric, of two looks at its instances."""

from __future__ import annotations

from typing import Any

from raylay.services.fabric import Fabric, Topic
from raylay.services.fabric.topics import TopicRow, topic_rows

EVERYBODY = ("near-1", "near-2", "far-1")


def fabric(**options: Any) -> Any:
    topics = [Topic("orders", "json"), Topic("fx/.*"), Topic("live", journaled=False)]
    made = Fabric("f", topics=topics, **options).region("near", instances=2)
    return made.region("far", instances=1).settings()


def look(**topics: list[tuple[str, str, int]]) -> list[dict[str, Any]]:
    """Statuses by instance, with `_` for `-`; each message takes 10 bytes."""
    return [
        {
            "name": name.replace("_", "-"),
            "topics": [(t, kind, n, 10 * n, 100 - n, 100 + n, 7 * n) for t, kind, n in each],
        }
        for name, each in topics.items()
    ]


def essence(row: TopicRow) -> tuple[Any, ...]:
    return row.topic, row.message_type, row.messages, row.rate_per_s, row.journaled_by


def test_messages_rate_and_who_journals() -> None:
    before = look(near_1=[("orders", "json", 10)], near_2=[("orders", "json", 12)])
    after = look(
        near_1=[("orders", "json", 30), ("fx/eur", "fix", 4)], near_2=[("orders", "json", 31)]
    )
    rows = topic_rows(fabric(), before, after, 2.0)
    assert [essence(row) for row in rows] == [
        # What one logs the other does: not the sum. A rate is that of the counter for rates.
        ("orders", "json", 31, 70.0, EVERYBODY),
        ("fx/eur", "fix", 4, 14.0, EVERYBODY),
        # Declared, and no message yet.
        ("live", "*", 0, 0.0, ()),
    ]
    assert (rows[0].bytes, rows[0].oldest_us, rows[0].newest_us) == (310, 69, 131)
    assert [(name, each.messages) for name, each in rows[0].instances] == [
        ("near-1", 30),
        ("near-2", 31),
    ]
    assert rows[1].to_json()["instances"] == {
        "near-1": {"messages": 4, "bytes": 40, "oldest_us": 96, "newest_us": 104}
    }
    assert (rows[2].oldest_us, rows[2].newest_us, rows[2].instances) == (0, 0, ())


def test_one_that_was_started_again_or_answers_only_now_has_no_wild_rate() -> None:
    before = look(near_1=[("orders", "json", 900)])
    after = look(near_1=[("orders", "json", 5)], near_2=[("orders", "json", 5_000)])
    row = topic_rows(fabric(), before, after, 1.0)[0]
    assert essence(row) == ("orders", "json", 5_000, 0.0, EVERYBODY)


def test_an_instance_with_topics_of_its_own_and_the_drills_topic() -> None:
    made = Fabric("f", topics=["orders"], drills="allowed").region("near", instances=2)
    settings = made.instance("near-2", topics=["trades"]).settings()
    stopped = [{"name": "near-1", "ready": False}]
    found = {row.topic: row.journaled_by for row in topic_rows(settings, stopped, stopped, 1.0)}
    assert found == {
        "orders": ("near-1",), "trades": ("near-2",), "raylay/drill": ("near-1", "near-2"),
        "raylay/drill-sow": ("near-1", "near-2"), "raylay/drill-work": ("near-1", "near-2"),
        "raylay/drill-queue": ("near-1", "near-2"),
    }  # fmt: skip


def test_a_queue_is_kept_by_the_instances_that_have_it() -> None:
    queue = {"name": "work", "message_type": "json", "underlying": "orders"}
    made = Fabric("f", topics=["orders"], queues=[queue]).region("near", instances=2)
    settings = made.instance("archive", queues=[]).settings()
    rows = topic_rows(settings, look(near_1=[]), look(near_1=[("orders", "json", 2)]), 1.0)
    assert [(row.topic, row.messages, row.journaled_by) for row in rows] == [
        ("orders", 2, ("near-1", "near-2", "archive")),
        ("work", 0, ("near-1", "near-2")),
    ]
