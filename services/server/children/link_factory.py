"""How the process of a link, and that of a queue's owner, is started."""

from __future__ import annotations

from typing import Protocol

from raylay.services.server.children.supervisor import ChildHandle
from raylay.services.server.config import LinkConfig, QueueOwnerConfig


class LinkFactory(Protocol):
    """Starts a link: an actor, a subprocess, or in tests something else."""

    def __call__(self, config: LinkConfig) -> ChildHandle:
        """Starts one. Called in a thread; may block; may raise: it is then tried again."""


class QueueFactory(Protocol):
    """Starts a queue's owner: an actor, a subprocess, or in tests something else."""

    def __call__(self, config: QueueOwnerConfig) -> ChildHandle:
        """Starts one. Called in a thread; may block; may raise: it is then tried again."""
