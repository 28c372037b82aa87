"""A refused link of a real fabric: where people see why, and that a repaired file is enough."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from raylay.services.errors import FabricError
from raylay.services.fabric import Fabric

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.usefixtures("fabric"),
    pytest.mark.covers("Replication", "validation at connect"),
]
REFUSED_WITHIN_S = 60


def one_way(**options: object) -> Fabric:
    """Instance A replicates to Audit, which replicates nothing back."""
    fabric = Fabric("watched", logs={"target": "file"})
    fabric.instance("A").instance("Audit")
    return fabric.destination("A", "Audit", **options)


def why(fabric: Fabric) -> str:
    """What the status says of the link from A to Audit."""
    by_name = {each["name"]: each for each in fabric.status()["instances"]}
    found: str = by_name["A"]["destinations"]["Audit"]["why"]
    return found


@pytest.mark.covers("The replication chapters", "the detecting side says what to change")
def test_why_a_link_is_refused_is_in_the_status_and_goes_with_the_cause(tmp_path: Path) -> None:
    says = "replicate: A replicates .* (any type) to Audit, which does not replicate it back"
    with one_way(exclude_validation=()).start(tmp_path / "data") as fabric:
        deadline_s = time.monotonic() + REFUSED_WITHIN_S
        while says not in why(fabric):
            assert time.monotonic() < deadline_s, why(fabric)
            time.sleep(0.1)
        with pytest.raises(FabricError, match=re.escape(says)):
            fabric.wait_connected(timeout_s=0)
        told = {event["event"]: event for event in fabric.events() if "text" in event}
        assert told["link_refused"]["reason"] == "validation"
        assert says in told["link_refused"]["text"]
        assert says in told["upstream_refused"]["text"]
        assert told["upstream_refused"]["peer"] == "A"
    with one_way().start(tmp_path / "data") as fabric:
        fabric.wait_connected()
        assert why(fabric) == ""
