"""The common shell of the actors that run child programs.

The program runs on a thread of its own and ends the process when its instance's Unix socket closes.
Its instance starts it again; Ray must not."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine
from typing import Any

import ray

from raylay.actors.titles import carry_name
from raylay.services.processes.running import Config, ProgramThread


class Program:
    """One program. Lifecycle: child of its Instance actor, max_restarts=0.

    Args:
        plain: the actor's class, undecorated.
        title: title of the process, as `ps` shows it.
        kind: kind of the program, for logs.
        config: configuration of the program.
        serve: runs the program until its instance is gone.
    """

    def __init__(
        self,
        plain: type,
        title: str,
        kind: str,
        config: Config,
        serve: Callable[[Config], Coroutine[Any, Any, None]],
    ) -> None:
        self._thread = ProgramThread(kind, config, serve)
        self._thread.start()
        carry_name(self, plain, title)

    @ray.method(num_returns=1)
    def pid(self) -> int:
        """Returns the id of the process."""
        return os.getpid()
