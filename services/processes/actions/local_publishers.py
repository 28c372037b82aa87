"""The publishers whose clients are connected to this instance, for actions that ask who published
a message, and whether here or at another instance.

A message tells the id of its publisher only. The instance is asked once about each, and again after
a while: a client may go to another instance.
"""

from __future__ import annotations

import asyncio

from raylay.services.client.messages import MessageBatch
from raylay.services.errors import RaylayError
from raylay.services.processes.actions.instance_calls import InstanceCalls

KEPT_S = 5.0
"""Time, in seconds, for which an answer counts."""
KEPT_MAX = 100_000


class LocalPublishers:
    """See the file's docstring. Owner: the process's event loop.

    Args:
        calls: the calls of the instance.
    """

    def __init__(self, calls: InstanceCalls) -> None:
        self._calls = calls
        self._found: dict[int, tuple[float, str | None]] = {}
        """Answers by publisher id: the time until which the answer counts, and the name of the
        publisher's client; None: the client is not connected here."""

    async def meet(self, batch: MessageBatch) -> None:
        """Asks about the publishers of a batch that are not known."""
        now_s = asyncio.get_running_loop().time()
        unknown = {
            publisher
            for publisher in {each.identity()[0] for each in batch.messages()}
            if self._found.get(publisher, (0.0, None))[0] <= now_s
        }
        if not unknown:
            return
        try:
            names = await self._calls.call("", "publishers", publishers=sorted(unknown))
        except RaylayError:
            return  # they are asked about with the next batch
        if len(self._found) > KEPT_MAX:
            self._found.clear()
        for publisher in unknown:
            self._found[publisher] = now_s + KEPT_S, names.get(publisher)

    def client_of(self, publisher: int) -> str | None:
        """Returns the name of a publisher's client; None: it is not connected here."""
        return self._found.get(publisher, (0.0, None))[1]
