"""services/configuration/reserved.py: the drills' topic, where drills are allowed."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from raylay.services.configuration.model import FabricSettings
from raylay.services.configuration.reserved import with_drill_topic
from raylay.services.fabric import Fabric, Topic
from raylay.services.fabric.check import check_settings
from raylay.services.fabric.plan import instance_config, record_of
from raylay.services.messages.topics import DRILL_TOPIC, TopicMatcher

ROOT = Path(__file__).resolve().parents[2]
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
        found[instance.name] = TopicMatcher(config.topics).matches(DRILL_TOPIC.encode(), b"any")
        for each in config.destinations:
            taken = TopicMatcher(each.topics).matches(DRILL_TOPIC.encode(), b"any")
            found[f"{instance.name} {each.name}"] = taken
    return found


@pytest.mark.parametrize("topics", [[Topic("orders", "json")], [".*"], [Topic(".*", "nvfix")]])
def test_each_instance_and_each_link_takes_it(topics: Any, tmp_path: Path) -> None:
    settings = two(topics).connect_regions("async", topics=topics).settings()
    found = taking(settings, tmp_path)
    assert len(found) == 3 + 5 and all(found.values()), found


def test_without_the_mark_nothing_changes(tmp_path: Path) -> None:
    settings = two([Topic("orders")], "refused").settings()
    assert with_drill_topic(settings) is settings
    assert not taking(settings, tmp_path)["near-1"]


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
    added = settings.instance("near-1").destinations[0].topics[-1]
    # Nothing replicates back: that is left out of each link of such a shape.
    assert added.name == DRILL_TOPIC
    assert added.exclude_validation == ("replicate", "sow", "cascade")


@pytest.mark.parametrize("example", EXAMPLES)
def test_no_link_of_an_example_is_refused_for_it(example: str) -> None:
    script = runpy.run_path(str(ROOT / "examples" / f"{example}.py"), run_name="declared")
    settings = script["declare"]().declared.model_copy(update={"drills": "allowed"})
    runs = with_drill_topic(settings)
    assert runs != settings
    assert check_settings(settings).errors == check_settings(runs).errors
