"""Calls on the nodes of instances, for drills and the like."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from raylay.services.errors import FabricError
from raylay.services.fabric.cluster.ray_access import (
    HeadSilent,
    actor_state,
    ask_head,
    first_line,
    is_here,
    ray_module,
)
from raylay.services.fabric.handle import FabricHandle


class NodeCalls:
    """The calls of a driver on the nodes of instances: here where that is this node, else by an
    actor there, which is started at the first call and needs no head for the next.

    Args:
        handle: the fabric's.
    """

    def __init__(self, handle: FabricHandle) -> None:
        self._handle = handle
        self._workers: dict[str, Any] = {}
        """The actor on the node of each instance that was called; None: this process."""

    def run(
        self, name: str, function: Callable[..., Any], *arguments: Any, timeout_s: float = 60.0
    ) -> Any:
        """Calls a function on the node of an instance and returns its result.

        Raises:
            FabricError: the node did not answer.
        """
        ray = ray_module()
        begun = name not in self._workers
        if begun:
            self._workers[name] = self._worker_for(name)
        worker = self._workers[name]
        if worker is None:
            return function(*arguments)
        try:
            return ray.get(worker.run.remote(function, *arguments), timeout=timeout_s)
        except ray.exceptions.RayError as error:
            if begun or not isinstance(error, ray.exceptions.RayActorError):
                raise FabricError(
                    f"the node of {name} did not do it: {first_line(error)}"
                ) from None
        # It ended with its host, which may be back.
        del self._workers[name]
        return self.run(name, function, *arguments, timeout_s=timeout_s)

    def _worker_for(self, name: str) -> Any:
        actor = self._handle.actor(name)
        node = str(actor_state(actor).get("node") or "") if actor is not None else ""
        if is_here(node):
            return None
        from raylay.actors.launch import launch_errands

        return launch_errands(node)

    def end(self) -> None:
        """Ends the actors on other nodes; without a head they end with this driver."""
        workers = [worker for worker in self._workers.values() if worker is not None]
        self._workers.clear()
        with suppress(HeadSilent):
            for worker in workers:
                ask_head(partial(ray_module().kill, worker))
