"""Moving an instance to another node of its region: whether, where to, and what is at risk.

Values in, values out: what peers say of it (`Fabric.status`), the living nodes, the fabric's
record. `Fabric.relocate` asks and acts. The new home begins with a higher generation and a data
directory of its own; the former one is kept in the record as left over, and is neither used nor
deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from raylay.services.configuration.model import FabricSettings, InstanceSettings
from raylay.services.errors import ConfigurationError, FabricError
from raylay.services.fabric.cluster.nodes import (
    HOST_LABEL,
    REGION_LABEL,
    ClusterNode,
    NodePlace,
    placed,
)
from raylay.services.fabric.records.record import OrphanedDirectory, RecordedMove

MOVED_S_MIN = 60
"""Seconds after a move in which the instance is moved again only with --force."""


@dataclass(slots=True)
class Relocation:
    """The result of a relocation.

    Attributes:
        generation: generation of the instance from now on.
        place: the node where it lives.
        told: instances that know that the former incarnation is retired.
        untold: instances that could not be asked; the moved instance tells them when they are back.
        risk: sentence on the messages that only the former host may have.
        left_over: the former data directory.
    """

    name: str
    generation: int
    place: NodePlace
    risk: str
    left_over: OrphanedDirectory
    told: list[str] = field(default_factory=list)
    untold: list[str] = field(default_factory=list)


def parse_target(text: str) -> dict[str, str]:
    """Returns the labels that the text of `--to` means: `key=value`, several with commas, or a
    host's name alone.

    Raises:
        ConfigurationError: it is neither.
    """
    if not text:
        return {}
    labels: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = part.partition("=")
        if not key or (equals and not value) or (not equals and "," in text):
            raise ConfigurationError(
                f"--to {text!r}: give a label as key=value, several with commas, or the name of a "
                f"host, which is its label `{HOST_LABEL}`"
            )
        labels[key if equals else HOST_LABEL] = value if equals else key
    return labels


def seen_alive(name: str, statuses: Iterable[Mapping[str, Any]]) -> list[str]:
    """Returns who is connected to the instance, or answers for it, a phrase each."""
    found = []
    for status in statuses:
        if status["name"] == name:
            if status.get("ready"):
                found.append("it answers itself")
            continue
        for destination in status.get("destinations", {}).values():
            if destination.get("connected") and destination.get("peer") == name:
                found.append(f"{status['name']} is connected to it")
                break
        else:
            if any(upstream.get("name") == name for upstream in status.get("upstreams", ())):
                found.append(f"it is connected to {status['name']}")
    return found


def sources(
    settings: FabricSettings, name: str, statuses: Iterable[Mapping[str, Any]]
) -> list[str]:
    """Returns the members of an instance's group from which it can copy, in the order declared."""
    group = settings.instance(name).group
    ready = {status["name"] for status in statuses if status.get("ready")}
    return [each.name for each in settings.group(group) if each.name != name and each.name in ready]


def next_generation(name: str, known: int, statuses: Iterable[Mapping[str, Any]]) -> int:
    """Returns a generation above every one that the record or an instance knows."""
    told = [
        int(entry["generation"])
        for status in statuses
        for entry in status.get("moved", ())
        if entry.get("name") == name
    ]
    return 1 + max([known, *told])


def refusal(name: str, alive: list[str], filled_by: list[str], *, force: bool) -> str:
    """Returns why an instance is not moved; empty: it is moved."""
    if force:
        return ""
    if alive:
        return (
            f"instance {name} is alive ({'; '.join(alive)}): moving it ends it where it is; with "
            "--force it is first asked to stop"
        )
    if not filled_by:
        return (
            f"instance {name}: no member of its group is ready to fill it, so what was "
            "acknowledged may be on its host alone: start one first, or the host; with --force it "
            "begins with what others bring it"
        )
    return ""


def too_soon(name: str, moved_us: int, now_us: int, force: bool) -> str:
    """Returns why an instance that was just moved is not moved again; empty: it is moved.

    Args:
        moved_us: time of the last move, in microseconds since 1970; 0: the instance was never
            moved.
    """
    ago_s = (now_us - moved_us) // 1_000_000
    if force or not 0 <= ago_s < MOVED_S_MIN:
        return ""
    return f"instance {name} was moved {ago_s} s ago and is being started: wait, or give --force"


def risk(settings: FabricSettings, name: str, alive: bool) -> str:
    """Describes, in a sentence, the messages that may exist only on the former host."""
    instance = settings.instance(name)
    if alive:
        return "nothing where it stopped in time: it sends what it took before it ends"
    syncs = [each.name for each in instance.destinations if each.sync]
    if not syncs:
        return (
            "what clients published there and its links, all of them async, had not sent yet, "
            "although it was acknowledged"
        )
    if settings.downgrade_of(instance).age_ms is None:
        return (
            "nothing that was acknowledged, as its acks waited for "
            f"{', '.join(syncs)} unless somebody downgraded these by hand; unacknowledged messages "
            "are sent again by their publishers"
        )
    return (
        f"what it acknowledged while none of {', '.join(syncs)} took part, that is from a "
        "downgrade until its host was lost; all else that was acknowledged is with its group"
    )


def choose(
    settings: FabricSettings,
    nodes: Mapping[str, NodePlace],
    living: Iterable[ClusterNode],
    name: str,
    to: Mapping[str, str],
) -> NodePlace:
    """Returns the node to which the instance is moved: another node of its region, with the labels
    that are asked for.

    Raises:
        FabricError: no node is fit, several are and nothing decides between them, the node is of
            another region, or the region that it must be of is not known.
    """
    before = nodes.get(name)
    if before is None:
        raise FabricError(
            f"instance {name} is bound to no node: give it node_labels, or start the fabric with "
            "`--node-label region`, so that it has a node to be moved from"
        )
    kept = {key: value for key, value in before.labels.items() if key != HOST_LABEL}
    if before.region:
        kept[REGION_LABEL] = before.region
    # Without a label `region`, all labels that its node shares with others stand for the region.
    region = {REGION_LABEL: kept[REGION_LABEL]} if REGION_LABEL in kept else kept
    other_region = [f"{key}={to[key]}" for key in region if key in to and to[key] != region[key]]
    if other_region:
        raise FabricError(
            f"instance {name} stays in its region, {_shown(region)}, where its group can fill it: "
            f"--to {', '.join(other_region)} is another one"
        )
    wanted = {**kept, **to}
    if not wanted:
        raise FabricError(
            f"instance {name}: nothing says of which region its host, {_shown(before.labels)}, is: "
            "say with --to where it is to go, or start the nodes with a label "
            f"`{REGION_LABEL}` and the fabric anew"
        )
    elsewhere = [node for node in living if not _is(node, before)]
    alone = settings.instance(name).model_copy(update={"node_labels": wanted})
    others = {other: place for other, place in nodes.items() if other != name}
    only = settings.model_copy(update={"instances": (alone,)})
    return placed(only, others, elsewhere)[1][name]


def _shown(labels: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in sorted(labels.items()))


def with_moves(
    settings: FabricSettings, moves: Mapping[str, RecordedMove], nodes: Mapping[str, NodePlace]
) -> FabricSettings:
    """Settings as declared, with the moved instances where they live now: a `replication_host` of
    their own, and a host of a transport, was an address of the former host."""

    def where(instance: InstanceSettings) -> InstanceSettings:
        place = nodes.get(instance.name)
        if instance.name not in moves or place is None:
            return instance
        update = {
            "node_labels": dict(place.labels),
            "host": place.address,
            "replication_host": "",
            "transports": tuple(
                each.model_copy(update={"host": ""}) for each in instance.transports
            ),
        }
        return instance.model_copy(update=update)

    return settings.model_copy(update={"instances": tuple(map(where, settings.instances))})


def away_since(
    place: NodePlace, living: Iterable[ClusterNode], dead: Iterable[tuple[ClusterNode, int]]
) -> str:
    """Returns why an instance is not restarted: the node that holds its data is away. Empty: that
    node is there.

    Args:
        dead: nodes that are gone, each with the time since when, in milliseconds since 1970.
    """
    gone_ms = gone_since_ms(place, living, dead)
    if gone_ms is None:
        return ""
    shown = place.labels.get(HOST_LABEL) or place.address
    if not gone_ms:
        return f"its host {shown} is not in the cluster"
    moment = datetime.fromtimestamp(gone_ms / 1000, UTC)
    return f"its host {shown} is away since {moment:%Y-%m-%d %H:%M:%S} UTC"


def gone_since_ms(
    place: NodePlace, living: Iterable[ClusterNode], dead: Iterable[tuple[ClusterNode, int]]
) -> int | None:
    """Returns the time since when a node is away, in milliseconds since 1970; 0: the node is away,
    and Ray does not know since when; None: the node is there."""
    if any(_is(node, place) for node in living):
        return None
    return max((at_ms for node, at_ms in dead if _is(node, place)), default=0)


def due(gone_ms: Mapping[str, int | None], now_ms: int, after_ms: int | None) -> list[str]:
    """Returns the instances that are to be moved by the operator's policy: those whose host has
    been away for `after_ms` milliseconds. An instance is left to the operator if Ray does not know
    since when its host is away."""
    if after_ms is None:
        return []
    return [
        name for name, since_ms in gone_ms.items() if since_ms and now_ms - since_ms >= after_ms
    ]


def _is(node: ClusterNode, place: NodePlace) -> bool:
    return all(node.labels.get(key) == value for key, value in place.labels.items())


def incarnation_of(name: str, statuses: Iterable[Mapping[str, Any]]) -> str:
    """Returns the incarnation of an instance that its peers last saw, as hexadecimal digits; empty:
    no peer reports it."""
    for status in statuses:
        for destination in status.get("destinations", {}).values():
            seen = str(destination.get("incarnation", ""))
            if destination.get("peer") == name and seen.strip("0"):
                return seen
    return ""


def relocation_lines(done: Relocation) -> list[str]:
    """Describes the relocation for people."""
    where = _shown(done.place.labels)
    lines = [
        f"{done.name} lives on {where} ({done.place.address}) as generation {done.generation}",
        f"retired at {', '.join(done.told) or 'nobody yet'}"
        + (f"; {', '.join(done.untold)} will hear of it when back" if done.untold else ""),
        f"left over: {done.left_over.directory} on {done.left_over.host}",
        f"at risk, on that host alone: {done.risk}",
        "when the host is back: `raylay journal salvage` with that directory, there",
    ]
    return lines
