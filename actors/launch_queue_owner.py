"""How an instance's actor starts the actors of its queues' owners."""

from __future__ import annotations

from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raylay.actors.launch_link import CONTROL_CALLS_AT_ONCE
from raylay.actors.queue_owner import QueueOwner
from raylay.services.server.config import QueueOwnerConfig


class QueueOwnerActor:
    """A queue's owner as an actor on its instance's node, started from within the instance's actor.

    Not detached: Ray ends it with its owner. Not restarted by Ray: its instance starts it again,
    because only the instance knows whether the dead one's socket is closed.

    Args:
        config: what it is started with.
    """

    def __init__(self, config: QueueOwnerConfig) -> None:
        here = ray.get_runtime_context().get_node_id()
        options: dict[str, Any] = {
            "num_cpus": 0,
            "max_restarts": 0,
            "max_concurrency": CONTROL_CALLS_AT_ONCE,
            "scheduling_strategy": NodeAffinitySchedulingStrategy(here, soft=False),
        }
        self._handle: Any = ray.remote(**options)(QueueOwner).remote(config.to_json())

    def kill(self) -> None:
        """Ends it at once if it still runs."""
        ray.kill(self._handle, no_restart=True)
