"""The start of child programs (links, queue owners, buffers of slow clients) as Ray actors by an
instance's actor."""

from __future__ import annotations

from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raylay.actors.destination_link import DestinationLink
from raylay.actors.queue_owner import QueueOwner
from raylay.actors.slow_client_buffer import SlowClientBuffer
from raylay.services.config.buffer import SlowClientBufferConfig
from raylay.services.config.instance import LinkConfig, QueueOwnerConfig

CONTROL_CALLS_AT_ONCE = 8
"""Number of control calls that one actor serves at the same time: a slow one must not delay
`status`."""


class ProgramActor:
    """A program as an actor on its instance's node, started from within the instance's actor.

    Not detached: Ray ends it with its owner. Not restarted by Ray: its instance starts it again,
    because only the instance knows whether the dead one's socket is closed.

    Args:
        plain: the actor's class, undecorated.
        config: configuration of the program, as JSON.
    """

    def __init__(self, plain: type, config: str) -> None:
        runtime = ray.get_runtime_context().get_node_id()
        options: dict[str, Any] = {
            "num_cpus": 0,
            "max_restarts": 0,
            "max_concurrency": CONTROL_CALLS_AT_ONCE,
            "scheduling_strategy": NodeAffinitySchedulingStrategy(runtime, soft=False),
        }
        self._handle: Any = ray.remote(**options)(plain).remote(config)

    def kill(self) -> None:
        """Ends the program at once if it still runs."""
        ray.kill(self._handle, no_restart=True)


def start_link(config: LinkConfig) -> ProgramActor:
    """Starts a link as an actor (a LinkFactory)."""
    return ProgramActor(DestinationLink, config.to_json())


def start_queue_owner(config: QueueOwnerConfig) -> ProgramActor:
    """Starts a queue owner as an actor (a QueueFactory)."""
    return ProgramActor(QueueOwner, config.to_json())


def start_buffer(config: SlowClientBufferConfig) -> ProgramActor:
    """Starts a buffer as an actor (a BufferFactory)."""
    return ProgramActor(SlowClientBuffer, config.to_json())
