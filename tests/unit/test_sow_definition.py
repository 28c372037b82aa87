"""What of a SOW topic's configuration goes together."""

from __future__ import annotations

from typing import Any

import pytest

from raylay.services.sow.definition import SowTopicDefinition
from raylay.services.sow.state import SowRules


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"keys": ("/id",), "key_generator": "mine"}, "has keys and a key generator"),
        ({"key_domain": "d"}, "has a key domain and no keys"),
        ({"pattern": "^a", "rules": SowRules(window_us=1)}, "it cannot have a history"),
    ],
)
def test_what_does_not_go_together_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        SowTopicDefinition("orders", "json", **given)


def test_a_topic_says_its_keys_and_no_more() -> None:
    made = SowTopicDefinition("orders", "json", keys=("/id",))
    assert not made.rules.expires
    assert not made.transient
    assert made.recovery_point == "epoch"
