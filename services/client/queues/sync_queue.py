"""A consumer of a queue as a plain iterator."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from types import TracebackType
from typing import Any, Generic

from raylay.services.client.body_decoder import Value
from raylay.services.client.queues.queue_consumer import (
    QueueBatch,
    QueueConsumer,
    QueueMessage,
)

Run = Callable[[Coroutine[Any, Any, Any]], Any]
"""Runs a coroutine on the client's loop and waits for its result."""


class SyncQueueConsumer(Generic[Value]):
    """A queue consumer for use in a thread, with the rules of `QueueConsumer`:

        with client.queue("work", backlog=100) as work:
            for message in work:
                handle(message.body)

    `for batch in work.batches()` changes threads once a batch instead of once a message.

    Owner: the thread that iterates.
    """

    def __init__(self, run: Run, consumer: QueueConsumer[Value]) -> None:
        self._run = run
        self._consumer = consumer.called_by(self._on_loop)

    def _on_loop(self, work: Callable[[], None]) -> None:
        async def call() -> None:
            work()

        self._run(call())

    def __enter__(self) -> SyncQueueConsumer[Value]:
        self._run(self._consumer.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._run(self._consumer.__aexit__(kind, error, trace))

    def __iter__(self) -> Iterator[QueueMessage[Value]]:
        return self

    def __next__(self) -> QueueMessage[Value]:
        found: QueueMessage[Value] | None = self._run(self._next())
        if found is None:
            raise StopIteration
        return found

    async def _next(self) -> QueueMessage[Value] | None:
        return await anext(self._consumer, None)

    def next_batch(self) -> QueueBatch[Value] | None:
        """Returns the next messages together (`QueueConsumer.next_batch`)."""
        found: QueueBatch[Value] | None = self._run(self._consumer.next_batch())
        return found

    def batches(self) -> Iterator[QueueBatch[Value]]:
        """Yields messages together, until the client ends (`QueueConsumer.batches`)."""
        while (batch := self.next_batch()) is not None:
            yield batch

    @property
    def queued_messages(self) -> int:
        """Returns the number of messages that arrived and were not asked for yet."""
        return self._consumer.queued_messages
