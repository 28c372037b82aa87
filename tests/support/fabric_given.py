"""Fabrics for the tests of the administrator's interface: topologies, and what instances tell."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from raylay.services.admin.fabric_summary import (
    SUMMARY_VERSION,
    InstanceSummary,
    LinkSummary,
)
from raylay.services.admin.fabric_topology import (
    ConfiguredInstance,
    ConfiguredLink,
    ConfiguredQueue,
    FabricTopology,
)
from raylay.services.admin.fabric_view import PeerAnswer

NOW_US = 1_800_000_000_000_000


def topology(regions: int = 2, members: int = 1, **more: Any) -> FabricTopology:
    """A fabric in which each instance has a sync link to each member of its group, and an async one
    to each other region."""
    names = [f"R{region}" for region in range(regions)]
    instances = [
        ConfiguredInstance(f"{region}-{number}", region, f"127.0.0.1:{9000 + number}")
        for region in names
        for number in range(members)
    ]
    links = []
    for each in instances:
        for other in instances:
            if other.group == each.group and other.name != each.name:
                links.append(
                    ConfiguredLink(each.name, other.name, (other.name,), other.group, True)
                )
        for region in names:
            if region != each.group:
                to = tuple(other.name for other in instances if other.group == region)
                links.append(ConfiguredLink(each.name, region, to, region, False))
    return FabricTopology("flights", tuple(instances), tuple(links), **more)


def with_queue(made: FabricTopology, name: str = "work") -> FabricTopology:
    names = tuple(each.name for each in made.instances)
    return dataclasses.replace(made, queues=(ConfiguredQueue(name, "json", names),))


def link(configured: ConfiguredLink, **more: Any) -> LinkSummary:
    values: dict[str, Any] = {
        "connected_to": configured.to[0],
        "configured_sync": configured.sync,
        "sync": configured.sync,
        "connected": True,
        "caught_up": True,
        "safe": configured.sync,
        "unacked": 0,
        "lag": 0,
        "age_ms": 0,
        "rate_per_sec": 100.0,
        "bytes_per_sec": 1_000.0,
        "trend": "steady",
    }
    return LinkSummary(configured.destination, **{**values, **more})


def summary(
    made: FabricTopology,
    name: str,
    links: Mapping[str, Mapping[str, Any]] | None = None,
    **more: Any,
) -> InstanceSummary:
    """Returns the summary of a healthy instance.

    Args:
        links: changed values of its links, by destination.
    """
    configured = made.instance(name)
    assert configured is not None
    values: dict[str, Any] = {
        "group": configured.group,
        "time_us": NOW_US,
        "process": "7/1",
        "state": "ready",
        "in_per_sec": 10.0,
        "out_per_sec": 20.0,
        "acks_per_sec": 10.0,
        "clients": 2,
        "subscriptions": 3,
        "disk_free_percent": 60.0,
        "unacknowledged": 0,
        "slow_clients": 0,
        "links": tuple(
            link(each, **(links or {}).get(each.destination, {}))
            for each in made.links
            if each.instance == name
        ),
        "upstreams": (),
    }
    return InstanceSummary(SUMMARY_VERSION, name, **{**values, **more})


def answer(found: InstanceSummary | None, age_s: float = 0.4, missing: Any = "") -> PeerAnswer:
    return PeerAnswer(found, NOW_US - round(age_s * 1e6), age_s, missing, "")


def answers(
    made: FabricTopology, changed: Mapping[str, PeerAnswer] | None = None
) -> dict[str, PeerAnswer]:
    """Healthy answers of all instances, and those that are given."""
    healthy = {each.name: answer(summary(made, each.name)) for each in made.instances}
    return {**healthy, **(changed or {})}
