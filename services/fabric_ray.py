"""What the nodes of a fabric know by this name, whatever their release (fabric/travelling.py)."""

from __future__ import annotations

from raylay.services.fabric.ray_access import kill_process

__all__ = ["kill_process"]
