"""The actor that works on a node for a driver elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class NodeWorker:
    """Calls functions on its node: a call needs no answer of Ray's head, a task would.

    Owner: a driver, with which the actor ends. Lifecycle: `run` any number of times.
    """

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)
