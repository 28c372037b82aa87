"""The QueueOwner actor."""

from __future__ import annotations

from raylay.actors.program import Program
from raylay.services.config.instance import QueueOwnerConfig
from raylay.services.processes.queue_owner.run_queue_owner import serve


class QueueOwner(Program):
    """One queue's owner.

    Args:
        config: a QueueOwnerConfig as JSON.
    """

    def __init__(self, config: str) -> None:
        made = QueueOwnerConfig.from_json(config)
        title = f"{made.instance}/{made.definition.name}"
        super().__init__(QueueOwner, title, "queue_owner", made, serve)
