"""Choice of the node of a Ray cluster on which an instance keeps its data: made once, by labels,
and kept.

An instance with `node_labels` belongs to a node that has them. Of several the one with the fewest
instances is taken; its label `host` then pins the instance to it, so that Ray never starts it
beside its data. Nothing here asks Ray: nodes come in as values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from raylay.services.configuration.model import FabricSettings, InstanceSettings
from raylay.services.errors import FabricError

HOST_LABEL = "host"
"""The label by which one node is told from another, whatever its address becomes."""
REGION_LABEL = "region"


class ClusterNode(NamedTuple):
    """A living node of the cluster."""

    address: str
    labels: Mapping[str, str]


@dataclass(slots=True)
class NodePlace:
    """The node on which an instance was placed.

    Attributes:
        labels: labels that only this node has.
        address: address of the node, at which its instances listen.
        region: the node's label `region` where `labels` do not have it; empty: the node has none.
    """

    labels: dict[str, str] = field(default_factory=dict)
    address: str = ""
    region: str = ""


def labelled(settings: FabricSettings, label: str) -> FabricSettings:
    """Returns the fabric in which each instance without node labels of its own runs on the nodes
    where the value of `label` is the instance's group."""
    return settings.model_copy(
        update={
            "instances": tuple(
                instance
                if instance.node_labels
                else instance.model_copy(update={"node_labels": {label: instance.group}})
                for instance in settings.instances
            )
        }
    )


def placed(
    settings: FabricSettings, kept: Mapping[str, NodePlace], nodes: Iterable[ClusterNode]
) -> tuple[FabricSettings, dict[str, NodePlace]]:
    """Puts every instance that has `node_labels` on a node: where it was put before, else where the
    fewest are. Such an instance listens on its node's address unless it names one itself.

    Args:
        kept: the places at which instances were put before, by instance name.
        nodes: the living nodes.

    Returns:
        the settings with the labels and hosts that came of it, and the places to keep.

    Raises:
        FabricError: no node has the labels, the node that holds the data is away, or several have
            them and cannot be told apart.
    """
    living = sorted(nodes, key=lambda node: node.address)
    taken = [*kept.values()]
    places: dict[str, NodePlace] = {}
    instances: list[InstanceSettings] = []
    for instance in settings.instances:
        if not instance.node_labels:
            instances.append(instance)
            continue
        before = kept.get(instance.name)
        if before is not None:
            place = _again(instance, before, living)
        else:
            place = _anew(instance, living, taken)
            taken.append(place)
        places[instance.name] = place
        update: dict[str, object] = {"node_labels": dict(place.labels)}
        former = before.address if before is not None else ""
        if instance.host in ("127.0.0.1", "localhost", "::1", former):
            update["host"] = place.address
        if former and instance.replication_host == former:
            update["replication_host"] = place.address
        update["transports"] = tuple(
            each.model_copy(update={"host": ""}) if former and each.host == former else each
            for each in instance.transports
        )
        instances.append(instance.model_copy(update=update))
    return settings.model_copy(update={"instances": tuple(instances)}), places


def followed(
    settings: FabricSettings, kept: Mapping[str, NodePlace], nodes: Iterable[ClusterNode]
) -> tuple[FabricSettings, dict[str, NodePlace]]:
    """Returns the settings and places with the present addresses of the nodes. Instances on a node
    that is away keep their address."""
    living = list(nodes)
    there = {
        name: place
        for name, place in kept.items()
        if any(_has(node, place.labels) for node in living)
    }
    present = tuple(each for each in settings.instances if each.name in there)
    found, places = placed(settings.model_copy(update={"instances": present}), there, living)
    renewed = {instance.name: instance for instance in found.instances}
    instances = tuple(renewed.get(each.name, each) for each in settings.instances)
    return settings.model_copy(update={"instances": instances}), {**kept, **places}


def _has(node: ClusterNode, labels: Mapping[str, str]) -> bool:
    return all(node.labels.get(key) == value for key, value in labels.items())


def _again(
    instance: InstanceSettings, before: NodePlace, living: Sequence[ClusterNode]
) -> NodePlace:
    if any(before.labels.get(key) != value for key, value in instance.node_labels.items()):
        raise FabricError(
            f"instance {instance.name}: its data is on the node with {_shown(before.labels)}, and "
            f"its node_labels now are {_shown(instance.node_labels)}: give the former ones, or "
            "move it there"
        )
    for node in living:
        if _has(node, before.labels):
            return _place(node, before.labels)
    raise FabricError(
        f"instance {instance.name}: the node that holds its data, {_shown(before.labels)}, is not "
        f"in the cluster: start it; there are {_all(living)}"
    )


def _anew(
    instance: InstanceSettings, living: Sequence[ClusterNode], taken: Sequence[NodePlace]
) -> NodePlace:
    labels = instance.node_labels
    fitting = [node for node in living if _has(node, labels)]
    if not fitting:
        raise FabricError(
            f"instance {instance.name}: no node has {_shown(labels)}; there are {_all(living)}"
        )
    node = min(fitting, key=lambda node: sum(_has(node, place.labels) for place in taken))
    host = node.labels.get(HOST_LABEL)
    if host is not None:
        return _place(node, {**labels, HOST_LABEL: host})
    if len(fitting) > 1:
        raise FabricError(
            f"instance {instance.name}: {len(fitting)} nodes have {_shown(labels)}, and nothing "
            f"tells them apart when one restarts: start each with a label `{HOST_LABEL}` of its own"
        )
    return _place(node, labels)


def _place(node: ClusterNode, labels: Mapping[str, str]) -> NodePlace:
    # An instance that names its host alone belongs to that host's region all the same.
    region = "" if REGION_LABEL in labels else node.labels.get(REGION_LABEL, "")
    return NodePlace(dict(labels), node.address, region)


def _shown(labels: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in sorted(labels.items())) or "no labels"


def _all(nodes: Sequence[ClusterNode]) -> str:
    own = [
        f"{node.address} ({_shown({k: v for k, v in node.labels.items() if '/' not in k})})"
        for node in nodes
    ]
    return ", ".join(own) or "none"
