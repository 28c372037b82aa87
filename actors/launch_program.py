"""The start of child programs (links, queue owners, buffers of slow clients, administrator's
interfaces, runners of actions) as Ray actors by an instance's actor."""

from __future__ import annotations

from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raylay.actors.child import (
    ActionRunner,
    AdministratorInterface,
    ChildActor,
    DestinationLink,
    QueueOwner,
    SlowClientBuffer,
)
from raylay.services.config.actions import ActionRunnerConfig
from raylay.services.config.admin_interface import AdminProcessConfig
from raylay.services.config.buffer import SlowClientBufferConfig
from raylay.services.config.instance import LinkConfig, QueueOwnerConfig
from raylay.services.server.children.supervisor import ChildConfig

CONTROL_CALLS_AT_ONCE = 8
"""Control calls that one actor serves at the same time: a slow one must not hold up `status`."""
ACTORS: dict[type, type[ChildActor]] = {
    ActionRunnerConfig: ActionRunner,
    AdminProcessConfig: AdministratorInterface,
    LinkConfig: DestinationLink,
    QueueOwnerConfig: QueueOwner,
    SlowClientBufferConfig: SlowClientBuffer,
}
"""Actor class of each kind of program, by the class of the program's configuration."""


class StartedActor:
    """A program as an actor on its instance's node, started from within the instance's actor.

    Not detached: Ray ends it with its owner. Not restarted by Ray: its instance starts it again,
    because only the instance knows whether the dead one's socket is closed.
    """

    def __init__(self, config: ChildConfig) -> None:
        node = ray.get_runtime_context().get_node_id()
        options: dict[str, Any] = {
            "num_cpus": 0,
            "max_restarts": 0,
            "max_concurrency": CONTROL_CALLS_AT_ONCE,
            "scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False),
        }
        plain: Any = ACTORS[type(config)]
        self._handle: Any = ray.remote(**options)(plain).remote(config.to_json())

    def kill(self) -> None:
        """Ends it at once if it still runs."""
        ray.kill(self._handle, no_restart=True)
