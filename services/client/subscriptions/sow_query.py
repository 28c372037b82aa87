"""One query of a SOW topic as the application holds it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from raylay.services.client.body_decoder import Value
from raylay.services.client.messages import Message, MessageBatch
from raylay.services.client.subscriptions.queries import PendingQuery
from raylay.services.client.subscriptions.subscription import Subscription
from raylay.services.errors import LocalProtocolError


class SowQuery(Subscription[Value]):
    """The rows of one query, all of one moment.

        async for row in client.sow("orders", filter="/price > 100"):
            print(row.key, row.body)
        rows = await client.sow("orders").all()

    It is sent when the first row is asked for. Where the connection is lost before any was handed
    out, it is asked again; behind that it ends with ConnectionLost, for rows of two instances are
    of no one moment. `all` keeps every row until the last one came, so it is always asked again.

    Owner: the client's event loop. One consumer. It ends behind its last row, when the loop over it
    is left, by `unsubscribe`, or with the error that the server gave.
    """

    def __init__(
        self,
        query: PendingQuery,
        queue_bytes_max: int,
        congestion_changed: Callable[[Subscription[Any]], None],
        unsubscribe: Callable[[Subscription[Any]], None],
        begin: Callable[[SowQuery[Value], PendingQuery], Awaitable[None]],
    ) -> None:
        super().__init__(query, queue_bytes_max, congestion_changed, unsubscribe)
        self._query = query
        self._begin = begin
        self._begun = False
        self._all: list[MessageBatch[Value]] | None = None
        """Rows that `all` has collected so far; None: `all` was not called."""

    @property
    def matches(self) -> int | None:
        """Returns the number of rows that pass the filter, including those that `top_n` and
        `skip_n` left out; None before the last row came."""
        return self._query.matches

    async def _ask(self) -> None:
        if not self._begun:
            self._begun = True
            await self._begin(self, self._query)

    async def next_batch(self) -> MessageBatch[Value] | None:
        """Returns the next rows; None after the last one.

        Raises:
            CommandFailed: the server refused the query, with its reason: `no_sow`, `bad_filter`,
                `bad_order_by`, `bad_select`, `not_supported`.
            ConnectionLost: the connection was lost behind the first rows, or no server answered.
        """
        await self._ask()
        return await super().next_batch()

    async def all(self) -> list[Message[Value]]:
        """Returns every row, all of one moment; they are in memory together. Raises as
        `next_batch`."""
        if self._begun:
            raise LocalProtocolError(
                f"the query of {self.topic!r} has begun: ask for all() of a new one"
            )
        self._all = []
        try:
            await self._ask()
            await self.caught_up.wait()
        except BaseException:
            self.unsubscribe()
            raise
        if self._error is not None:
            raise self._error
        return [message for batch in self._all for message in batch.messages()]

    def __aiter__(self) -> AsyncIterator[Message[Value]]:  # type: ignore[override]
        return self._rows()

    async def _rows(self) -> AsyncIterator[Message[Value]]:
        # When the loop is left, the remaining rows must not keep the client from reading.
        try:
            while (batch := await self.next_batch()) is not None:
                for message in batch.messages():
                    yield message
        finally:
            self.unsubscribe()

    # -- the client's side -------------------------------------------------------------------
    def put(self, batch: MessageBatch[Value]) -> None:
        """Queues rows."""
        if self._all is not None:
            batch.decoder = self.decoder
            self._all.append(batch)
        else:
            super().put(batch)

    def _take(self, batch: MessageBatch[Value]) -> None:
        self._query.handed_out = True
        super()._take(batch)

    def interrupted(self) -> None:
        """Drops the rows that arrived: the query is repeated."""
        if self._all is not None:
            self._all.clear()
        self._drop_queued()
