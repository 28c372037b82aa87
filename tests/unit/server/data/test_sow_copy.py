"""The SOW records that a bootstrap copies with a log (services/server/sow/copy.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from raylay.services.config.instance import InstanceConfig
from raylay.services.server.sow.copy import SowCopy
from raylay.services.sow.definition import SowTopicDefinition


@pytest.mark.covers("Event topics", "SOW topics keep events: documented keys, restart")
def test_a_bootstrap_does_not_ask_for_the_events_of_its_source(tmp_path: Path) -> None:
    orders = SowTopicDefinition("orders", "json", keys=("/id",))
    events = SowTopicDefinition("/AMPS/SOWStats", "json", keys=("/SOWStats/topic",))
    copy = SowCopy(InstanceConfig("A", "g", sow=(orders, events)), tmp_path)
    assert list(copy.wanted) == [orders.stored_as]
    copy.abandon()
