"""The start of Ray actors, with launch_program.py: names, namespace, restarts, placement.

The actors' classes stay plain (they are called directly in tests); here they get their options.
"""

from __future__ import annotations

from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raylay.actors.instance import Instance
from raylay.actors.launch_program import CONTROL_CALLS_AT_ONCE
from raylay.actors.node_worker import NodeWorker

RESTARTS_ENDLESS = -1
__all__ = [
    "launch_instance",
    "launch_errands",
    "task",
]


def launch_instance(
    name: str, directory: str, namespace: str, node_labels: dict[str, str] | None = None
) -> Any:
    """Starts the actor of an instance: named and detached, so that the driver may leave, and
    restarted by Ray for ever. Its configuration lies in its data directory on that node.

    Args:
        name: name of the instance, and of the actor in `namespace`.
        directory: data directory of the instance.
        node_labels: labels of the node that has the data: the actor does not start elsewhere.

    Raises:
        ValueError: Ray has a live actor of this name.
    """
    options: dict[str, Any] = {
        "name": name,
        "namespace": namespace,
        "lifetime": "detached",
        "num_cpus": 0,
        "max_restarts": RESTARTS_ENDLESS,
        "max_concurrency": CONTROL_CALLS_AT_ONCE,
    }
    if node_labels:
        options["label_selector"] = node_labels
    return ray.remote(**options)(Instance).remote(directory, name)


def launch_errands(node: str) -> Any:
    """Starts the actor that works for this driver on a node, given by its id in hex."""
    there = NodeAffinitySchedulingStrategy(node, soft=False)
    options: dict[str, Any] = {"num_cpus": 0, "max_restarts": 0, "scheduling_strategy": there}
    return ray.remote(**options)(NodeWorker).remote()


def task(function: Any, **options: Any) -> Any:
    """Returns a function as a Ray task that needs no CPU, for work on another node."""
    return ray.remote(num_cpus=0, **options)(function)
