"""The QueueOwner actor: a thin shell.

The queue's owner runs on a thread of its own and ends the process when its instance's Unix socket
closes. Its instance starts it again; Ray must not."""

from __future__ import annotations

import os

import ray

from raylay.actors.titles import carry_name
from raylay.services.programs.queue_owner.thread import OwnerThread
from raylay.services.server.config import QueueOwnerConfig


class QueueOwner:
    """One queue's owner. Lifecycle: child of its Instance actor, max_restarts=0.

    Args:
        config: a QueueOwnerConfig as JSON.
    """

    def __init__(self, config: str) -> None:
        made = QueueOwnerConfig.from_json(config)
        self._thread = OwnerThread(made)
        self._thread.start()
        carry_name(self, QueueOwner, f"{made.instance}/{made.definition.name}")

    @ray.method(num_returns=1)
    def pid(self) -> int:
        """Of the process."""
        return os.getpid()
