"""What a driver sends to other nodes is named there by module, and code is installed on each node.

While a fabric is upgraded node by node, the release on the other side may be an earlier one, which
has these under the names of its own modules. Both sides use those.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

Named = TypeVar("Named", bound=Callable[..., object])


def known_as(module: str) -> Callable[[Named], Named]:
    """Sends a function or a class under the name of a module that every release has."""

    def name(travelling: Named) -> Named:
        travelling.__module__ = module
        return travelling

    return name
