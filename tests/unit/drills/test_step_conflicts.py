"""services/drills/step_conflicts.py: steps that would undo each other are refused."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from raylay.services.configuration.builder import FabricBuilder
from raylay.services.configuration.model import FabricSettings
from raylay.services.drills.scenario import Targets, built_in, parse
from raylay.services.drills.step_conflicts import meet, parts, refuse_overlaps
from raylay.services.drills.step_runner import StepRunner
from raylay.services.errors import ConfigurationError, FabricError
from raylay.services.fabric import Fabric

pytestmark = pytest.mark.covers("Drills", "steps that would undo each other are refused")


def settings_of(regions: int = 3, instances: int = 2) -> FabricSettings:
    builder = FabricBuilder("f")
    for region in "ABC"[:regions]:
        builder.region(region, instances)
    return builder.connect_regions("async").settings()


def drilled(*steps: dict[str, Any]) -> Any:
    return parse({"name": "x", "steps": list(steps)}, "x")


def step(fault: str, target: str = "", at: str = "0s", lasts: str = "", **more: Any) -> Any:
    values = {"fault": fault, "at": at, **more}
    return {**values, **({"target": target} if target else {}), **({"for": lasts} if lasts else {})}


@pytest.mark.parametrize("name", built_in())
def test_those_that_come_with_raylay_undo_nothing(name: str) -> None:
    for settings in (settings_of(), settings_of(2), settings_of(2, 3)):
        refuse_overlaps(built_in()[name], settings)


@pytest.mark.parametrize(
    ("one", "other", "told"),
    [
        (
            step("drop", "A <-> B", lasts="8s"),
            step("slow", "A -> B", "2s", "2s", delay="40ms"),
            "the line of A-1 to B",
        ),
        (
            step("drop", "A-1 -> A-2", lasts="8s"),
            step("drop", "A-2 -> A-1", "7s", "2s"),
            "the line of A-1 to A-2",
        ),
        (
            step("stop", "A-1", lasts="10s"),
            step("kill_instance", "A-1", "2s", "5s"),
            "the process of A-1",
        ),
        (step("stop", "B-2", "3s", "10s"), step("kill_node", "B"), ""),
        (step("stop", "B-2", "0s", "10s"), step("kill_node", "B", "9s"), "the process of B-2"),
        (
            step("stop_link", "A-1 -> A-2", "1s", "5s"),
            step("kill_node", "A-1", "3s"),
            "the process of link A-1 to A-2",
        ),
        (step("kill_link", "A-1 -> A-2"), step("kill_link", "A-1 -> A-2"), "link A-1 to A-2"),
        (
            step("full_disk", "A-1", lasts="5s"),
            step("lose_disk", "A-1", "4s"),
            "the disk of A-1",
        ),
        (
            step("clock_jump", "A-1", lasts="5s", offset="1h"),
            step("clock_jump", "A-1", "4s", "5s", offset="-1h"),
            "the clock of A-1",
        ),
        (step("kill_gcs", lasts="5s"), step("stop_gcs", at="4s", lasts="5s"), "Ray's GCS"),
        (
            step("slow_consumer", "region 1", lasts="5s"),
            step("slow_consumer", "A", "4s", "5s"),
            "the subscriber in A",
        ),
        (
            step("kill_consumers", "region 1", lasts="5s"),
            step("kill_consumers", "A", "4s", "5s"),
            "the consumers in A",
        ),
        # Whoever serves:
        (
            step("drop", "serving <-> partner", lasts="8s"),
            step("cut", "serving <-> partner", "2s", "2s"),
            "the line of A-1 to A-2",
        ),
        (step("kill_node", "A", lasts="9s"), step("stop", "serving", "4s", "2s"), "process of A-1"),
        # One after the other, or beside each other:
        (step("drop", "A <-> B", lasts="8s"), step("cut", "A <-> B", "8s", "1s"), ""),
        (step("drop", "A <-> B", lasts="8s"), step("cut", "A <-> C", "1s", "1s"), ""),
        (step("kill_consumers", "A", lasts="8s"), step("kill_consumers", "B", "1s", "1s"), ""),
        (step("stop", "A-1", lasts="8s"), step("clock_jump", "A-1", "1s", "1s", offset="1s"), ""),
        (step("stop_link", "A-1 -> A-2", lasts="20s"), step("lose_disk", "A-1", "14s"), ""),
        # Who serves may be another one by then:
        (step("kill_instance", "serving", lasts="9s"), step("stop", "serving", "4s", "2s"), ""),
    ],
)
def test_steps_at_the_same_time_on_the_same_part(
    one: dict[str, Any], other: dict[str, Any], told: str
) -> None:
    settings = settings_of()
    if not told:
        refuse_overlaps(drilled(one, other), settings)
        return
    for order in ((one, other), (other, one)):
        with pytest.raises(ConfigurationError, match=f"^x: steps 1 and 2 both break .*{told} at"):
            refuse_overlaps(drilled(*order), settings)


def test_a_moment_meets_what_lasts_and_itself() -> None:
    moment, early, late = drilled(
        step("kill_instance", at="5s"), step("stop", lasts="5s"), step("stop", at="5s", lasts="5s")
    ).steps
    assert meet(moment, moment) and meet(moment, late) and meet(late, moment)
    assert not meet(moment, early) and not meet(early, late)


def test_who_serves_when_they_begin_decides() -> None:
    """A step waits for one that should be over, and is refused beside one that should not."""
    fabric = Fabric("f", drills="allowed").region("A", instances=2)
    scenario = drilled(
        step("stop", "serving", lasts="5s"),
        step("kill_instance", "serving", "3s"),
        step("kill_instance", "A-1", "5s"),
    )
    crowd: Any = None
    runner = StepRunner(scenario, fabric.declared, {}, crowd, print)
    wanted = [
        parts(each, Targets(fabric.declared, "A-1").resolve(each), fabric.declared)
        for each in scenario.steps
    ]

    async def course() -> None:
        await runner.reserve(1, wanted[0])
        with pytest.raises(FabricError, match="steps 1 and 2 both break the process of A-1"):
            await runner.reserve(2, wanted[1])
        waiting = asyncio.create_task(runner.reserve(3, wanted[2]))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        runner.release(1)
        await waiting

    asyncio.run(course())
