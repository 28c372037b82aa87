"""What of a queue's configuration goes together."""

from __future__ import annotations

from typing import Any

import pytest

from raylay.services.errors import ConfigurationError
from raylay.services.messages.bookmarks import Point
from raylay.services.queues.definition import DAY_US, QueueDefinition, recovery_from


@pytest.mark.covers("Queues", "`Queue`, `LocalQueue`")
@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"name": "^work"}, "its name is a topic of its own"),
        ({"kind": "global"}, "kind 'global' is none of queue, local, group_local"),
        ({"fairness": "random"}, "fairness 'random' is none of fast, round-robin, proportional"),
        ({"expiration_model": "never"}, "expiration_model 'never' is none of default"),
        ({"subscription_backlog_max": 0}, "nobody would get a message"),
        ({"priority": "/p", "barrier": "/b = 1"}, "a priority and a barrier"),
        ({"target_depth": 1000, "priority": "/p"}, "target_depth goes with neither"),
        ({"target_depth": 1000, "barrier": "/b = 1"}, "target_depth goes with neither"),
        ({"target_depth": 999}, "target_depth is below 1000"),
        ({"underlying": "^orders/"}, "say with publish_target"),
        ({"at_most_once": True, "fairness": "fast"}, "can only be round-robin"),
        ({"kind": "group_local"}, "its initial_owner is missing"),
        ({"initial_owner": "a"}, "only a group_local queue has an initial_owner"),
        ({"domain": "d"}, "only a group_local queue has a domain"),
        ({"recovery_point": "soon"}, "recovery_point: "),
    ],
)
def test_what_does_not_go_together_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^queue .*{says}"):
        QueueDefinition(**{"name": "work", "message_type": "json"} | given)


@pytest.mark.parametrize(
    ("text", "point"),
    [
        ("epoch", Point("epoch")),
        ("0", Point("epoch")),
        ("now", Point("now")),
        ("creation", Point("now")),
        ("7|12|", Point("message", 7, 12)),
        ("1970-01-02T00:00:00.5Z", Point("time", time_us=86_400_500_000)),
        ("1970-01-02", Point("time", time_us=86_400_000_000)),
        ("19700102T000000Z", Point("time", time_us=86_400_000_000)),
    ],
)
def test_from_where_it_is_made_the_first_time(text: str, point: Point) -> None:
    QueueDefinition("work", "json", recovery_point=text)
    assert recovery_from(text) == point


def test_what_is_not_given_is_as_documented() -> None:
    made = QueueDefinition("work", "json")
    assert (made.topic, made.target, made.stored_as) == ("work", "work", "json/work")
    assert (made.is_distributed, made.at_most_once, made.strict) == (True, False, False)
    assert (made.lease_us, made.expiration_us, made.backlog_max) == (0, 0, 0)
    assert (made.subscription_backlog_max, made.deferred_ack_us) == (1, DAY_US)
    assert made.fairness_model == "proportional"
    assert QueueDefinition("w", "json", at_most_once=True).fairness_model == "round-robin"
    assert QueueDefinition("w", "json", fairness="fast").fairness_model == "fast"
    assert not QueueDefinition("w", "json", kind="local").is_distributed


@pytest.mark.covers("Queues", "`UnderlyingTopic`")
def test_where_a_publish_to_its_name_goes() -> None:
    assert QueueDefinition("w", "json", underlying="orders").target == "orders"
    made = QueueDefinition("w", "json", underlying="^orders/", publish_target="orders/new")
    assert (made.topic, made.target) == ("^orders/", "orders/new")
