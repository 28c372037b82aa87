"""One `sow_and_subscribe` with a bookmark as the application holds it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from raylay.services.client.body_decoder import Value
from raylay.services.client.messages import MessageBatch
from raylay.services.client.subscriptions.queries import GROUP_END, QueryReplay
from raylay.services.client.subscriptions.subscription import Subscription
from raylay.services.errors import RaylayError


class SowReplay(Subscription[Value]):
    """The records as they were at a bookmark, then every message behind it.

    `group_end` is set when all records have come, and from the start where the bookmark store says
    that they came in a life before; `caught_up` when the replay has reached the end of the log as
    it was.

    Owner: the client's event loop. One consumer. It ends as `Subscription` does.
    """

    def __init__(
        self,
        replay: QueryReplay,
        queue_bytes_max: int,
        congestion_changed: Callable[[Subscription[Any]], None],
        unsubscribe: Callable[[Subscription[Any]], None],
        bookmarks_changed: Callable[[], None] | None,
        taken: Callable[[MessageBatch], None] | None,
        replace: Callable[[Subscription[Any], dict[str, Any]], Awaitable[None]],
    ) -> None:
        super().__init__(
            replay,
            queue_bytes_max,
            congestion_changed,
            unsubscribe,
            bookmarks_changed,
            taken,
            replace,
        )
        self._replay = replay
        self.group_end = asyncio.Event()
        if replay.has_rows:
            self.group_end.set()

    def put(self, batch: MessageBatch[Value]) -> None:
        """Queues rows or messages, or the messages before the replay: the bookmark store gets those
        when the consumer is done with the rows."""
        if batch.kind != GROUP_END:
            super().put(batch)
            return
        self.group_end.set()
        self.put_persisted(self._replay.before)

    def end(self, error: RaylayError | None = None) -> None:
        """Ends the subscription, also for callers that wait for its rows."""
        super().end(error)
        self.group_end.set()
