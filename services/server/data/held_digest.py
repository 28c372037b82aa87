"""The digest of the messages that an instance holds, kept for the links that ask for it."""

from __future__ import annotations

import asyncio

from raylay.services.messages.ranges import PublisherRanges
from raylay.services.replication.running_digest import RunningDigest
from raylay.services.server.cooperative import yield_between


class HeldDigest:
    """The digest of the held messages, computed once for several links.

    Owner: the instance's event loop.
    """

    def __init__(self) -> None:
        self._digest = RunningDigest()
        self._working = asyncio.Lock()

    async def of(self, held: PublisherRanges) -> bytes:
        """Returns the digest of these held ranges, or of those of a moment ago."""
        async with self._working:
            async for _ in yield_between(self._digest.work(held)):
                pass
            return self._digest.value
