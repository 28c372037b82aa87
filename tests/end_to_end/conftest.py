"""What all of these tests have."""

from __future__ import annotations

from support.instance_processes import servers

__all__ = ["servers"]
