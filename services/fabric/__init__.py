"""A fabric as its user sees it: `Fabric`, `Topic` and the look-up of servers by its name."""

from __future__ import annotations

from raylay.services import fabric_ray, fabric_registry
from raylay.services.configuration.model import (
    DowngradeSettings,
    FabricSettings,
    JournalSettings,
)
from raylay.services.fabric.clients import lookup
from raylay.services.fabric.fabric import Fabric, Topic
from raylay.services.fabric.finding import fetch, find_running
from raylay.services.fabric.record_store import _record_text, _save_config, namespace_of

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
