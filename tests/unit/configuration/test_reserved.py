"""services/configuration/reserved.py: the drills' topics, where drills are allowed."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from raylay.services.config.compared_terms import queue_terms, sow_terms
from raylay.services.configuration.model import FabricSettings
from raylay.services.configuration.queues import QueueSettings
from raylay.services.configuration.reserved import with_drill_topic
from raylay.services.configuration.sow_topics import SowTopicSettings
from raylay.services.fabric import Fabric, Topic
from raylay.services.fabric.checks.check import check_settings
from raylay.services.fabric.plan import instance_config, record_of
from raylay.services.messages.topics import (
    DRILL_QUEUE,
    DRILL_SOW_TOPIC,
    DRILL_TOPIC,
    DRILL_WORK_TOPIC,
    TopicMatcher,
    TopicRule,
)
from raylay.services.messages.types.definitions import TypeDefinition

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ("hot_pair", "geographic", "three_regions", "hub_and_spoke", "one_way_feed", "dmz_pair")


def two(topics: Any, drills: Any = "allowed", **options: Any) -> Fabric:
    made = Fabric("shops", topics=topics, drills=drills)
    return made.region("near", instances=2, **options).region("far", instances=1)


def taking(settings: FabricSettings, place: Path) -> dict[str, bool]:
    """By instance and by link: whether it takes the drills' topic as it is started."""
    record = record_of(settings, place)
    found = {}
    for instance in settings.instances:
        config = instance_config(settings, record, instance)
        found[instance.name] = takes(config.topics)
        for each in config.destinations:
            found[f"{instance.name} {each.name}"] = takes(each.topics)
    return found


def takes(topics: tuple[TopicRule, ...]) -> bool:
    matcher = TopicMatcher(topics)
    ours = (DRILL_TOPIC, DRILL_SOW_TOPIC, DRILL_WORK_TOPIC)
    found = {matcher.matches(topic.encode(), b"any") for topic in ours}
    assert len(found) == 1, "some of them alone"
    return found.pop()


def kept(settings: FabricSettings, name: str, place: Path) -> list[str]:
    """The SOW topics that an instance is started with."""
    config = instance_config(settings, record_of(settings, place), settings.instance(name))
    assert [each.name for each in sow_terms(config.sow)] == [
        each.name for each in config.sow if each.name != DRILL_SOW_TOPIC
    ], "a link compares the user's alone"
    return [each.name for each in config.sow]


@pytest.mark.parametrize("topics", [[Topic("orders", "json")], [".*"], [Topic(".*", "nvfix")]])
def test_each_instance_and_each_link_takes_it(topics: Any, tmp_path: Path) -> None:
    settings = two(topics).connect_regions("async", topics=topics).settings()
    found = taking(settings, tmp_path)
    assert len(found) == 3 + 5 and all(found.values()), found


def test_without_the_mark_nothing_changes(tmp_path: Path) -> None:
    settings = two([Topic("orders")], "refused").settings()
    assert with_drill_topic(settings) is settings
    assert not taking(settings, tmp_path)["near-1"]
    assert kept(settings, "near-1", tmp_path) == []


def test_of_one_the_last_message_of_each_key_is_kept(tmp_path: Path) -> None:
    orders = {"name": "orders", "message_type": "json", "keys": ["/id"]}
    trades = {"name": "trades", "message_type": "json", "keys": ["/id"]}
    made = two([Topic("orders"), Topic("trades")]).instance("quiet", "near", topics=[])
    made.instance("fixed", "near").instance("own", "near", sow_topics=[trades])
    settings = made.settings().model_copy(
        update={"sow_topics": (SowTopicSettings.model_validate(orders),)}
    )
    changed = {"fixed": {"message_types": ("fix",)}}
    settings = settings.model_copy(
        update={
            "instances": tuple(
                each.model_copy(update=changed.get(each.name, {})) for each in settings.instances
            )
        }
    )
    assert kept(settings, "near-1", tmp_path) == ["orders", DRILL_SOW_TOPIC]
    added = with_drill_topic(settings).instance("near-1").sow_topics or ()
    assert added[-1].recovery_point == "now", "no journal of before is read for it"
    assert kept(settings, "own", tmp_path) == ["trades", DRILL_SOW_TOPIC]
    # Who keeps no log, and who takes no JSON, keeps what is declared.
    assert kept(settings, "quiet", tmp_path) == kept(settings, "fixed", tmp_path) == ["orders"]
    kinds = (TypeDefinition("json", "fix"),)
    other = settings.model_copy(update={"message_types": kinds})
    assert DRILL_SOW_TOPIC not in kept(other, "near-1", tmp_path), "json is another type there"


def queued(settings: FabricSettings, name: str, place: Path) -> list[str]:
    """The queues that an instance is started with: each is a process."""
    config = instance_config(settings, record_of(settings, place), settings.instance(name))
    assert [each.name for each in queue_terms(config.queue_definitions)] == [
        each.name for each in config.queue_definitions if each.name != DRILL_QUEUE
    ], "a link compares the user's alone"
    return [each.name for each in config.queue_definitions]


def test_one_is_of_a_queue_where_drills_are_allowed_and_nowhere_else(tmp_path: Path) -> None:
    work = {"name": "work", "message_type": "json", "underlying": "orders"}
    made = two([Topic("orders")]).instance("quiet", "near", topics=[], queues=[])
    made.instance("own", "near", queues=[]).instance("fixed", "near", queues=[])
    settings = made.settings().model_copy(update={"queues": (QueueSettings(**work),)})
    changed = {"fixed": {"message_types": ("fix",)}}
    settings = settings.model_copy(
        update={
            "instances": tuple(
                each.model_copy(update=changed.get(each.name, {})) for each in settings.instances
            )
        }
    )
    assert queued(settings, "near-1", tmp_path) == ["work", DRILL_QUEUE]
    assert queued(settings, "own", tmp_path) == [DRILL_QUEUE]
    # Who keeps no log, and who takes no JSON, runs what is declared.
    assert queued(settings, "quiet", tmp_path) == queued(settings, "fixed", tmp_path) == []
    refused = settings.model_copy(update={"drills": "refused"})
    assert queued(refused, "near-1", tmp_path) == ["work"]
    assert queued(refused, "own", tmp_path) == []
    # A link brings the queue's name, too: acknowledgments are under it.
    config = instance_config(settings, record_of(settings, tmp_path), settings.instances[0])
    for each in config.destinations:
        assert TopicMatcher(each.topics).matches(DRILL_QUEUE.encode(), b"json")
    # An instance that lost its disk has in it what it gets back before its queue's process runs.
    assert config.queue_definitions[-1].recovery_point == "epoch"


def test_who_keeps_no_log_gets_none_and_another_fabric_gets_nothing(tmp_path: Path) -> None:
    fabric = two([Topic("orders")]).instance("quiet", "near", topics=[])
    fabric.destination("near-1", "elsewhere:7001", group="other", topics=["orders"], name="out")
    found = taking(fabric.settings(), tmp_path)
    assert found["near-1"] and not found["quiet"] and not found["near-1 out"]


def test_a_link_that_leaves_out_checks_leaves_them_out_for_it_too() -> None:
    topic = {"name": "orders", "exclude_validation": ["sow"]}
    fabric = Fabric("shops", topics=["orders"], drills="allowed")
    fabric.region("near", instances=1).region("far", instances=1)
    fabric.destination("near-1", "far-1", topics=[topic])
    settings = with_drill_topic(fabric.settings())
    _, *added = settings.instance("near-1").destinations[0].topics
    ours = [DRILL_TOPIC, DRILL_SOW_TOPIC, DRILL_WORK_TOPIC, DRILL_QUEUE]
    assert [each.name for each in added] == ours
    # Nothing replicates back: that is left out of each link of such a shape.
    for each in added:
        assert each.exclude_validation == ("replicate", "sow", "cascade")


@pytest.mark.parametrize("example", EXAMPLES)
def test_no_link_of_an_example_is_refused_for_it(example: str) -> None:
    script = runpy.run_path(str(ROOT / "examples" / f"{example}.py"), run_name="declared")
    settings = script["declare"]().declared.model_copy(update={"drills": "allowed"})
    runs = with_drill_topic(settings)
    assert runs != settings
    assert check_settings(settings).errors == check_settings(runs).errors
