"""Calls on the nodes of instances, for drills and the like."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from raylay.services.errors import FabricError
from raylay.services.fabric.handle import FabricHandle
from raylay.services.fabric.ray_access import (
    HeadSilent,
    actor_state,
    ask_head,
    first_line,
    is_here,
    ray_module,
)


class NodeCalls(FabricHandle):
    """The calls of a driver on an instance's node."""

    def on_node_of(
        self, name: str, function: Callable[..., Any], *arguments: Any, timeout_s: float = 60.0
    ) -> Any:
        """Calls a function on the node of an instance and returns its result: here where that is
        this node, else by an actor there, which is started at the first call and needs no head for
        the next.

        Raises:
            FabricError: the node did not answer.
        """
        ray = ray_module()
        begun = name not in self._errands
        if begun:
            self._errands[name] = self._errands_on(name)
        actor = self._errands[name]
        if actor is None:
            return function(*arguments)
        try:
            return ray.get(actor.run.remote(function, *arguments), timeout=timeout_s)
        except ray.exceptions.RayError as error:
            if begun or not isinstance(error, ray.exceptions.RayActorError):
                raise FabricError(
                    f"the node of {name} did not do it: {first_line(error)}"
                ) from None
        # It ended with its host, which may be back.
        del self._errands[name]
        return self.on_node_of(name, function, *arguments, timeout_s=timeout_s)

    def _errands_on(self, name: str) -> Any:
        """Returns the actor that does calls on the node of an instance; None: this process."""
        handle = self._handle(name)
        node = str(actor_state(handle).get("node") or "") if handle is not None else ""
        if is_here(node):
            return None
        from raylay.actors.launch import launch_errands

        return launch_errands(node)

    def end_errands(self) -> None:
        """Ends what `on_node_of` began on other nodes; without a head it ends with this driver."""
        actors = [actor for actor in self._errands.values() if actor is not None]
        self._errands.clear()
        with suppress(HeadSilent):
            for actor in actors:
                ask_head(partial(ray_module().kill, actor))
