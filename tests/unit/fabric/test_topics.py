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
    """Statuses by instance, with `_` for `-`."""
    return [{"name": name.replace("_", "-"), "topics": each} for name, each in topics.items()]


def test_messages_rate_and_who_journals() -> None:
    before = look(near_1=[("orders", "json", 10)], near_2=[("orders", "json", 12)])
    after = look(
        near_1=[("orders", "json", 30), ("fx/eur", "fix", 4)], near_2=[("orders", "json", 31)]
    )
    rows = topic_rows(fabric(), before, after, 2.0)
    assert rows == [
        # What one logs the other does: not the sum.
        TopicRow("orders", "json", 31, 10.0, EVERYBODY),
        TopicRow("fx/eur", "fix", 4, 2.0, EVERYBODY),
        # Declared, and no message yet.
        TopicRow("live", "*", 0, 0.0, ()),
    ]


def test_one_that_was_started_again_or_answers_only_now_has_no_wild_rate() -> None:
    before = look(near_1=[("orders", "json", 900)])
    after = look(near_1=[("orders", "json", 5)], near_2=[("orders", "json", 5_000)])
    assert topic_rows(fabric(), before, after, 1.0)[0] == TopicRow(
        "orders", "json", 5_000, 0.0, EVERYBODY
    )


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
