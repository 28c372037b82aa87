"""A fabric as its user sees it: `Fabric`, `Topic` and the look-up of servers by its name."""

from __future__ import annotations

from raylay.services import fabric_ray, fabric_registry
from raylay.services.fabric.fabric import (
    DowngradeSettings,
    Fabric,
    FabricSettings,
    JournalSettings,
    Topic,
    _record_text,
    _save_config,
    fetch,
    find_running,
    lookup,
    namespace_of,
)

__all__ = [
    "Fabric",
    "Topic",
    "FabricSettings",
    "JournalSettings",
    "DowngradeSettings",
    "lookup",
    "namespace_of",
    "fetch",
    "find_running",
    # Known to every release by these names (travelling.py).
    "_record_text",
    "_save_config",
    "fabric_ray",
    "fabric_registry",
]
