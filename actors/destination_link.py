"""The DestinationLink actor: a thin shell.

The link runs on a thread of its own and ends the process when its instance's Unix socket closes.
Its instance starts it again; Ray must not."""

from __future__ import annotations

import os

import ray

from raylay.actors.titles import carry_name
from raylay.services.programs.link.thread import LinkThread
from raylay.services.server.config import LinkConfig


class DestinationLink:
    """One destination's link. Lifecycle: child of its Instance actor, max_restarts=0.

    Args:
        config: a LinkConfig as JSON.
    """

    def __init__(self, config: str) -> None:
        made = LinkConfig.from_json(config)
        self._thread = LinkThread(made)
        self._thread.start()
        carry_name(self, DestinationLink, f"{made.instance}→{made.destination.name}")

    @ray.method(num_returns=1)
    def pid(self) -> int:
        """Of the process."""
        return os.getpid()
