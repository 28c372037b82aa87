"""What of a SOW topic's configuration goes together."""

from __future__ import annotations

from typing import Any

import pytest

from raylay.services.sow.definition import SowTopicDefinition, recovery_from_us
from raylay.services.sow.state import SowRules


@pytest.mark.covers("SOW", "what excludes one another")
@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"keys": ("/id",), "key_generator": "mine"}, "has keys and a key generator"),
        ({"key_domain": "d"}, "has a key domain and no keys"),
        ({"pattern": "^a", "rules": SowRules(window_us=1)}, "it cannot have a history"),
        ({"pattern": "^a"}, "has a pattern and no keys: give it some"),
        (
            {"pattern": "^a", "keys": ("/id",), "key_domain": "d"},
            "has a pattern and a key domain: leave it out",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        SowTopicDefinition("orders", "json", **given)


@pytest.mark.covers("SOW", "`persistent` and `transient`")
@pytest.mark.parametrize(
    ("text", "us"),
    [
        ("epoch", 0),
        ("now", None),
        ("1970-01-02", 86_400_000_000),
        ("1970-01-01T01:00:00.5+01:00", 500_000),
        ("19700101T000001Z", 1_000_000),
    ],
)
def test_from_where_it_is_made_anew(text: str, us: int | None) -> None:
    assert recovery_from_us(text) == us
    SowTopicDefinition("orders", "json", recovery_point=text)


@pytest.mark.covers("SOW", "`persistent` and `transient`")
def test_a_recovery_point_that_is_none() -> None:
    with pytest.raises(ValueError, match=r"expected epoch, now, or an instant .*, got 'soon'"):
        SowTopicDefinition("orders", "json", recovery_point="soon")


def test_a_topic_says_its_keys_and_no_more() -> None:
    made = SowTopicDefinition("orders", "json", keys=("/id",))
    assert not made.rules.expires
    assert not made.transient
    assert made.recovery_point == "epoch"
