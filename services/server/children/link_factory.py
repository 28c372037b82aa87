"""The start of child processes: links, queue owners and buffers of pools."""

from __future__ import annotations

from typing import Protocol

from raylay.services.config.buffer import SlowClientBufferConfig
from raylay.services.config.instance import LinkConfig, QueueOwnerConfig
from raylay.services.server.children.supervisor import ChildHandle


class LinkFactory(Protocol):
    """Starts a link: an actor, a subprocess, or in tests something else."""

    def __call__(self, config: LinkConfig) -> ChildHandle:
        """Starts one. Called in a thread; may block; may raise: it is then tried again."""


class QueueFactory(Protocol):
    """Starts a queue's owner: an actor, a subprocess, or in tests something else."""

    def __call__(self, config: QueueOwnerConfig) -> ChildHandle:
        """Starts one. Called in a thread; may block; may raise: it is then tried again."""


class BufferFactory(Protocol):
    """Starts a pool's buffer: an actor, a subprocess, or in tests something else."""

    def __call__(self, config: SlowClientBufferConfig) -> ChildHandle:
        """Starts one. Called in a thread; may block; may raise: it is then tried again."""
