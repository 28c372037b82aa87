"""Fixtures that all of these tests share."""

from __future__ import annotations

from support.instance_processes import servers

__all__ = ["servers"]
