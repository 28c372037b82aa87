"""A fabric as its user sees it: `Fabric`, `Topic` and the look-up of servers by its name.

Each name is imported from its module when it is used: a command that only looks for a fabric's
entry needs none of them, and together they take a tenth of a second of processor time.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raylay.services.configuration.action_modules import Do, If, On
    from raylay.services.configuration.actions import Action
    from raylay.services.configuration.model import FabricSettings
    from raylay.services.fabric.clients import lookup
    from raylay.services.fabric.fabric import Fabric, Topic
    from raylay.services.fabric.records.discovery import fetch, find_running
    from raylay.services.fabric.records.record_store import namespace_of

__all__ = [
    "Fabric",
    "Topic",
    "FabricSettings",
    "Action",
    "On",
    "If",
    "Do",
    "lookup",
    "namespace_of",
    "fetch",
    "find_running",
]

_MODEL = "raylay.services.configuration.model"
_ACTIONS = "raylay.services.configuration.action_modules"
_MODULES = {
    "Fabric": "raylay.services.fabric.fabric",
    "Topic": "raylay.services.fabric.fabric",
    "FabricSettings": _MODEL,
    "Action": "raylay.services.configuration.actions",
    "On": _ACTIONS,
    "If": _ACTIONS,
    "Do": _ACTIONS,
    "lookup": "raylay.services.fabric.clients",
    "namespace_of": "raylay.services.fabric.records.record_store",
    "fetch": "raylay.services.fabric.records.discovery",
    "find_running": "raylay.services.fabric.records.discovery",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = found
    return found
