"""Long work on an event loop, one part in each turn, so that other work comes in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import TypeVar

Part = TypeVar("Part")


async def yield_between(work: Iterable[Part]) -> AsyncIterator[Part]:
    """Yields each part of the work in a turn of its own."""
    for part in work:
        yield part
        await asyncio.sleep(0)
