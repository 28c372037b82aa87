"""The Instance actor: a thin shell. The server runs on a thread of its own; nothing per message
passes through a method of this class, because Ray wraps every method in tracing code."""

from __future__ import annotations

import os
from typing import Any

import ray

from raylay.actors.launch_program import StartedActor
from raylay.actors.titles import carry_name
from raylay.services.security.control import Caller
from raylay.services.server.runner import InstanceThread


def node_address() -> str:
    """Returns the address of this process's node; empty where Ray does not tell it."""
    try:
        util: Any = ray.util
        return str(util.get_node_ip_address())
    except Exception:  # called by the constructor, which must not raise
        return ""


class Instance:
    """One instance of a fabric. Lifecycle: named and detached; Ray restarts it.

    What changes something takes a caller: the instance judges him where its configuration has
    `admin`, and raises ControlRefused.

    Args:
        directory: data directory of the instance, which holds its configuration.
        name: name of the instance.
    """

    def __init__(self, directory: str, name: str) -> None:
        # Nothing here may raise: Ray never retries a failed constructor.
        self._thread = InstanceThread(directory, name, StartedActor, node_address())
        self._thread.start()
        carry_name(self, Instance, name)

    @ray.method(num_returns=1)
    def status(self) -> dict[str, Any]:
        """Returns the status of the instance."""
        return self._thread.status()

    @ray.method(num_returns=1)
    def events(self, after: int = 0, limit: int = 1000) -> list[dict[str, Any]]:
        """Returns the last events after number `after`."""
        return self._thread.events(after, limit)

    @ray.method(num_returns=1)
    def authorize(self, call: str, caller: Caller | None, details: dict[str, Any]) -> None:
        """Judges a control call that another process performs."""
        self._thread.authorize(call, caller, details)

    @ray.method(num_returns=1)
    def control(self, call: str, arguments: dict[str, Any], caller: Caller | None) -> Any:
        """Performs a control call; services/server/control_calls.py has the table of them."""
        return self._thread.control(call, arguments, caller)

    @ray.method(num_returns=1)
    def stop(self, call: str, details: dict[str, Any], caller: Caller | None) -> bool:
        """Stops gracefully, and returns whether that was in time. The process lives on until Ray
        ends it."""
        return self._thread.stop(caller=caller, call=call, **details)

    @ray.method(num_returns=1)
    def pid(self) -> int:
        """Returns the id of the process."""
        return os.getpid()
