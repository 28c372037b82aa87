"""Waiting for what nobody tells of."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

DEADLINE_S = 120.0
"""Only a failure comes near it."""
LOOK_S = 0.01


async def until(found: Callable[[], Any]) -> Any:
    """Waits until `found()` is true, and returns it. The loop goes on meanwhile."""
    deadline_s = time.monotonic() + DEADLINE_S
    while not (answer := found()):
        assert time.monotonic() < deadline_s, "it did not come"
        await asyncio.sleep(LOOK_S)
    return answer


def wait_until(found: Callable[[], Any]) -> Any:
    """Waits until `found()` is true, and returns it. This thread stands still meanwhile."""
    deadline_s = time.monotonic() + DEADLINE_S
    while not (answer := found()):
        assert time.monotonic() < deadline_s, "it did not come"
        time.sleep(LOOK_S)
    return answer
