"""The parts of a fabric that each step breaks. Two steps at the same time on the same part would
undo each other."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations

from raylay.services.configuration.model import FabricSettings
from raylay.services.drills.faults import line_of
from raylay.services.drills.scenario import DrillScenario, FaultHit, FaultStep, Targets
from raylay.services.errors import ConfigurationError

LINE_FAULTS = ("cut", "drop", "slow")

Part = tuple[str, ...]
"""A part of a fabric: its kind, then names."""

_TEXTS = {
    "line": "the line of {} to {}",
    "link": "the process of link {} to {}",
    "process": "the process of {}",
    "clock": "the clock of {}",
    "disk": "the disk of {}",
    "subscriber": "the subscriber in {}",
    "consumers": "the consumers in {}",
    "head": "Ray's GCS",
}


def lines(step: FaultStep, hit: FaultHit) -> list[tuple[str, str]]:
    """Returns (instance, destination) of the lines that a step impairs."""
    if step.fault not in LINE_FAULTS:
        return []
    return [
        (name, destination)
        for name, destination, forward in hit.ways
        if line_of(step, forward=forward, both=hit.both)
    ]


def parts(step: FaultStep, hit: FaultHit, settings: FabricSettings) -> frozenset[Part]:
    found: list[Part] = [("line", *line) for line in lines(step, hit)]
    if step.fault in ("kill_link", "stop_link"):
        found += [("link", name, destination) for name, destination, _ in hit.ways]
    if step.fault in ("kill_instance", "kill_node", "stop", "lose_disk"):
        found += [("process", name) for name in hit.instances]
    if step.fault == "kill_node":
        found += [
            ("link", name, destination.name)
            for name in hit.instances
            for destination in settings.instance(name).destinations
        ]
    if step.fault in ("full_disk", "lose_disk"):
        found += [("disk", name) for name in hit.instances]
    if step.fault == "clock_jump":
        found += [("clock", name) for name in hit.instances]
    if step.fault in ("kill_gcs", "stop_gcs"):
        found.append(("head",))
    if step.fault == "slow_consumer":
        found.append(("subscriber", hit.region))
    if step.fault == "kill_consumers":
        found.append(("consumers", hit.region))
    return frozenset(found)


def described(part: Part) -> str:
    """Describes a part in words."""
    kind, *names = part
    return _TEXTS[kind].format(*names)


def meet(one: FaultStep, other: FaultStep) -> bool:
    """Returns whether two steps overlap in time. A step without a duration is on for its moment."""
    first, second = sorted((one, other), key=lambda step: step.at_ms)
    return second.at_ms < first.at_ms + max(first.lasts_ms, 1)


def refuse_overlaps(scenario: DrillScenario, settings: FabricSettings) -> None:
    """Refuses steps that undo each other whichever instance serves. Steps that meet only when a
    certain instance serves are checked when they begin.

    Raises:
        ConfigurationError: two steps do; the error names them and the part.
    """
    first_group = settings.groups()[0]
    serving = [instance.name for instance in settings.group(first_group)]
    possible = [[*_possible(step, settings, serving)] for step in scenario.steps]
    for one, other in combinations(range(len(scenario.steps)), 2):
        if not meet(scenario.steps[one], scenario.steps[other]):
            continue
        shared = [a & b for a in possible[one] for b in possible[other]]
        if shared and all(shared):
            raise ConfigurationError(
                f"{scenario.name}: {undoing(one + 1, other + 1, min(shared[0]))}"
            )


def undoing(one: int, other: int, part: Part) -> str:
    """Explains why two steps, given by their numbers, do not go together."""
    return (
        f"steps {one} and {other} both break {described(part)} at the same time and would undo "
        "each other: let one begin when the other is over, or give it another target"
    )


def _possible(
    step: FaultStep, settings: FabricSettings, serving: Iterable[str]
) -> Iterable[frozenset[Part]]:
    for name in serving:
        try:
            hit = Targets(settings, name).resolve(step)
        except ConfigurationError:
            continue  # `serving -> A-2` while that one serves
        yield parts(step, hit, settings)
