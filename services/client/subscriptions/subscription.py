"""One subscription as the application holds it: a bounded queue between socket and consumer."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import Any, Generic

from raylay.services.client.arguments import sow_keys
from raylay.services.client.body_decoder import BodyDecoder, Value
from raylay.services.client.keywords import shown_value
from raylay.services.client.messages import Message, MessageBatch
from raylay.services.client.subscriptions.subscription_state import SubscriptionState
from raylay.services.errors import LocalProtocolError, RaylayError
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.protocol.frames import Header

MESSAGE_OVERHEAD_BYTES = 256
"""Bytes that a queued batch counts for in addition to its payload, for the queue's limit."""


def check_message(value: object) -> None:
    """Refuses a value that is no message of a subscription.

    Raises:
        TypeError: the value is no `Message`.
    """
    if not isinstance(value, Message):
        found = f"{shown_value(value)}, of type {type(value).__name__}"
        raise TypeError(f"discard(): message is {found}: give a message of the subscription")


class Subscription(Generic[Value]):
    """Messages of one subscription, singly (`async for message in subscription`) or in batches
    (`async for batch in subscription.batches()`).

    When the consumer is slow and the queue reaches its limit, the client stops reading from its
    socket; nothing is dropped. A message counts as seen when the consumer asks for the next one, a
    batch when it asks for the next batch: after a crash it comes again rather than never. With
    `explicit_discard` only `discard` makes it seen.

    Owner: the client's event loop. One consumer. It ends by `unsubscribe`, at the end of a bookmark
    range, or with the error that the server gave.
    """

    def __init__(
        self,
        resumption: SubscriptionState,
        queue_bytes_max: int,
        congestion_changed: Callable[[Subscription[Any]], None],
        unsubscribe: Callable[[Subscription[Any]], None],
        bookmarks_changed: Callable[[], None] | None = None,
        taken: Callable[[MessageBatch], None] | None = None,
        replace: Callable[[Subscription[Any], dict[str, Any]], Awaitable[None]] | None = None,
    ) -> None:
        self.id = resumption.id
        self.topic = resumption.topic
        self.caught_up = asyncio.Event()
        """Set when the replay of a bookmark subscription has reached the log's end as it was."""
        self.group_end = self.caught_up
        """Event of `sow_and_subscribe`: set when every row of the query has arrived; some may still
        wait in the queue."""
        self.congested = False
        """Whether the queue is at its limit."""
        self._resumption = resumption
        self._queue_bytes_max = queue_bytes_max
        self._congestion_changed = congestion_changed
        self._unsubscribe = unsubscribe
        self._bookmarks_changed = bookmarks_changed
        self._on_taken = taken
        self._replace = replace
        self.decoder: BodyDecoder | None = None
        """Parses the bodies, where the subscription was given a type."""
        self.lacks_acks = not resumption.has_consumer
        """Whether nothing is known to acknowledge the messages of a queue that it is given; False
        once the client looks after that."""
        self.parting: tuple[Header, bytes] = ({}, b"")
        """Further header fields and the body of the `unsubscribe` command: what a consumer of a
        queue says of the messages that it holds."""
        self._items: deque[MessageBatch[Value] | PublisherRanges] = deque()
        self._queued_bytes = 0
        self._queued_messages = 0
        self._current: MessageBatch[Value] | None = None
        self._messages: Iterator[Message[Value]] | None = None
        self._handed_out = 0
        self._singly = False
        """Whether the messages of the present delivery are handed out one by one."""
        self._waiter: asyncio.Future[None] | None = None
        self._ended = False
        self._error: RaylayError | None = None

    # -- the client's side -------------------------------------------------------------------
    def put(self, batch: MessageBatch[Value]) -> None:
        """Queues a delivery."""
        batch.decoder = self.decoder
        self._items.append(batch)
        self._queued_messages += batch.count
        self._queued_bytes += len(batch.payload) + MESSAGE_OVERHEAD_BYTES
        if self._queued_bytes >= self._queue_bytes_max and not self.congested:
            self.congested = True
            self._congestion_changed(self)
        self._wake()

    def put_persisted(self, have: PublisherRanges) -> None:
        """Queues a persisted ack: it counts when everything before it was taken."""
        if not self._items and self._current is None:
            self._pass(have)
        elif self._items and isinstance(self._items[-1], PublisherRanges):
            self._items[-1].update(have)
        else:
            self._items.append(have)

    def end(self, error: RaylayError | None = None) -> None:
        """Ends the subscription: queued messages are still handed out, then iteration stops or
        raises."""
        if not self._ended:
            self._ended = True
            self._error = error
            self.caught_up.set()
            self._wake()

    def count_handed_out(self, messages: int) -> None:
        """Notes how many messages of the current delivery were handed out, for callers that take
        deliveries and hand out single messages. May be called from the consumer's thread."""
        self._handed_out = messages
        self._singly = True

    def settle(self) -> None:
        """Counts everything handed out as received. For a client that closes in good order."""
        self._count_seen(self._handed_out)

    def settle_finished(self) -> None:
        """Counts everything as received that was handed out before the message, or the batch, that
        the consumer has in hand."""
        if self._singly and self._handed_out:
            self._count_seen(self._handed_out - 1)

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    # -- the consumer's side -----------------------------------------------------------------
    @property
    def queued_messages(self) -> int:
        """Returns the number of messages that arrived and were not asked for yet."""
        return self._queued_messages

    @property
    def suppressed_messages(self) -> int:
        """Returns the number of messages that arrived a second time, after a reconnect, and were
        left out."""
        return self._resumption.suppressed

    async def next_batch(self) -> MessageBatch[Value] | None:
        """Returns the next delivery; None when the subscription has ended.

        Raises:
            CommandFailed: the server ended the subscription, or refused to resume it.
            RaylayError: what ended the client.
        """
        self._settle_current()
        while True:
            batch = self._peek()
            if batch is not None:
                self._items.popleft()
                self._take(batch)
                return batch
            if self._ended:
                if self._error is not None:
                    raise self._error
                return None
            _check_unread(self)
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None

    def _settle_current(self) -> None:
        """Notes that the consumer asks for more, and so is done with the present delivery."""
        self._count_seen(self._current.count if self._current is not None else 0)
        self._current = self._messages = None

    def _peek(self) -> MessageBatch[Value] | None:
        """Returns the next delivery without removing it; handles queued acks before it."""
        items = self._items
        while items:
            item = items[0]
            if isinstance(item, MessageBatch):
                return item
            items.popleft()
            self._pass(item)
        return None

    @property
    def first_lease_end_s(self) -> float:
        """Returns `MessageBatch.lease_end_s` of the first queued delivery; 0: it has none, or
        nothing is queued."""
        batch = self._peek()
        return 0.0 if batch is None else batch.lease_end_s

    def take_overdue(self, now_s: float) -> list[MessageBatch[Value]]:
        """Removes the first queued deliveries, as far as their leases have ended or nearly so, and
        returns them.

        Args:
            now_s: time by the steady clock, as `MessageBatch.lease_end_s`.
        """
        found: list[MessageBatch[Value]] = []
        while (batch := self._peek()) is not None and 0.0 < batch.lease_end_s <= now_s:
            self._items.popleft()
            self._left_queue(batch)
            found.append(batch)
        return found

    def _left_queue(self, batch: MessageBatch[Value]) -> None:
        self._queued_messages -= batch.count
        self._queued_bytes -= len(batch.payload) + MESSAGE_OVERHEAD_BYTES
        if self.congested and self._queued_bytes * 2 <= self._queue_bytes_max:
            self.congested = False
            self._congestion_changed(self)

    def _take(self, batch: MessageBatch[Value]) -> None:
        self._current = batch
        self._handed_out = batch.count
        self._singly = False
        self._left_queue(batch)
        if batch.traced and self._on_taken is not None:
            self._on_taken(batch)

    def _count_seen(self, messages: int) -> None:
        current = self._current
        if current is None or current.ranges is None or self._resumption.explicit_discard:
            return
        self._resumption.taken(current.prefix_ranges(messages))
        if self._bookmarks_changed is not None:
            self._bookmarks_changed()

    def _pass(self, have: PublisherRanges) -> None:
        self._resumption.passed(have)
        if self._bookmarks_changed is not None:
            self._bookmarks_changed()

    async def batches(self) -> AsyncIterator[MessageBatch[Value]]:
        """Yields deliveries, one by one, until the subscription ends."""
        while (batch := await self.next_batch()) is not None:
            yield batch

    def __aiter__(self) -> Subscription[Value]:
        return self

    async def __anext__(self) -> Message[Value]:
        while True:
            if self._messages is not None:
                message = next(self._messages, None)
                if message is not None:
                    self._handed_out += 1
                    return message
            batch = await self.next_batch()
            if batch is None:
                raise StopAsyncIteration
            self._messages = batch.messages()
            self.count_handed_out(0)

    async def replace(
        self,
        *,
        filter: str = "",
        keys: Sequence[bytes] | None = None,
        order_by: str | None = None,
        top_n: int | None = None,
        skip_n: int | None = None,
    ) -> None:
        """Replaces the filter and the keys of the subscription, and the place and the order of its
        page; everything else of it stays. The new ones also hold at each later server.

        For a `sow_and_subscribe`, the records that are new in the focus come next, as messages of
        kind `sow`, and, if it was subscribed with `oof`, those that left it, with the reason
        `match`; `group_end` is set when all of them have arrived. An ordinary subscription gets
        later publishes by the new filter. Messages that are queued here are still handed out.

        Returns when the server has taken the filter: after a running group, and if need be after a
        reconnect. Messages that arrive meanwhile are queued, however many they are. A cancelled
        call does not undo the replacement.

        Args:
            filter: only messages that pass this filter are delivered (docs/filters.md); empty: all.
            keys: only the records with these SOW keys are delivered; None: all. For
                `sow_and_subscribe` only.
            order_by, top_n, skip_n: another order and another window of a subscription that is a
                page, as in `sow_and_subscribe`; None: as before. The filter is not kept: a page
                that is turned gives it again.

        Raises:
            CommandFailed: the server refused (`bad_filter`, …): the subscription goes on as it was.
            LocalProtocolError: it has ended, has a bookmark, or is a query; nothing was changed.
        """
        focus: dict[str, Any] = {"filter": filter} if filter else {}
        listed = sow_keys(keys)
        if listed is not None:
            focus["keys"] = listed
        page = {"order_by": order_by, "top_n": top_n, "skip_n": skip_n}
        focus |= {name: value for name, value in page.items() if value is not None}
        if self._replace is None:
            raise LocalProtocolError(
                f"{self.id!r} can be given no other filter: {self._resumption.irreplaceable}"
            )
        await self._replace(self, focus)

    def discard(self, message: Message) -> None:
        """Counts one message as received. Needed only with `explicit_discard` and a bookmark
        store."""
        check_message(message)
        self._resumption.taken([(message.publisher, message.sequence, message.sequence)])
        if self._bookmarks_changed is not None:
            self._bookmarks_changed()

    def unsubscribe(self) -> None:
        """Ends the subscription. Queued messages are not handed out any more."""
        self.settle()
        self._current = self._messages = None
        self._drop_queued()
        self.end()
        self._unsubscribe(self)

    def _drop_queued(self) -> None:
        self._items.clear()
        self._queued_bytes = self._queued_messages = 0
        if self.congested:
            self.congested = False
            self._congestion_changed(self)


class Merged:
    """Several subscriptions of one client as one stream, in the order in which their deliveries
    arrived: for subscriptions that were resumed together, the order of the log.

        merged = Merged(orders, trades)
        async for message in merged:
            print(message.subscription_id, message.body)

    The rules of `Subscription` hold for each of them. It ends when all have ended, or with the
    first error. One consumer, and no other of the subscriptions in it.
    """

    def __init__(self, *subscriptions: Subscription) -> None:
        self.id = ",".join(subscription.id for subscription in subscriptions)
        self._subscriptions = subscriptions
        self._current: Subscription | None = None
        self._messages: Iterator[Message] | None = None

    async def next_batch(self) -> MessageBatch | None:
        """Returns the next delivery of any of the subscriptions; None when all have ended.

        Raises:
            RaylayError: the error that ended one of the subscriptions.
        """
        if self._current is not None:
            self._current._settle_current()
            self._current = None
        self._messages = None
        while True:
            found: Subscription | None = None
            first: MessageBatch | None = None
            for subscription in self._subscriptions:
                batch = subscription._peek()
                if batch is not None and (first is None or batch.arrival < first.arrival):
                    found, first = subscription, batch
            if found is not None and first is not None:
                found._items.popleft()
                found._take(first)
                self._current = found
                return first
            for subscription in self._subscriptions:
                if subscription._error is not None:
                    raise subscription._error
            if all(subscription._ended for subscription in self._subscriptions):
                return None
            await self._until_woken()

    async def _until_woken(self) -> None:
        for subscription in self._subscriptions:
            _check_unread(subscription)
        waiter = asyncio.get_running_loop().create_future()
        for subscription in self._subscriptions:
            subscription._waiter = waiter
        try:
            await waiter
        finally:
            for subscription in self._subscriptions:
                subscription._waiter = None

    async def batches(self) -> AsyncIterator[MessageBatch]:
        """Yields deliveries, one by one, until all subscriptions have ended."""
        while (batch := await self.next_batch()) is not None:
            yield batch

    def __aiter__(self) -> Merged:
        return self

    async def __anext__(self) -> Message:
        while True:
            if self._messages is not None:
                message = next(self._messages, None)
                if message is not None:
                    if self._current is not None:
                        self._current._handed_out += 1
                    return message
            batch = await self.next_batch()
            if batch is None:
                raise StopAsyncIteration
            assert self._current is not None
            self._current.count_handed_out(0)
            self._messages = batch.messages()

    def count_handed_out(self, messages: int) -> None:
        """Notes how many messages were handed out, see `Subscription.count_handed_out`."""
        if self._current is not None:
            self._current.count_handed_out(messages)

    def discard(self, message: Message) -> None:
        """Counts one message as received (`explicit_discard`)."""
        check_message(message)
        for subscription in self._subscriptions:
            if subscription.id == message.subscription_id:
                subscription.discard(message)

    def unsubscribe(self) -> None:
        """Ends all of the subscriptions."""
        self._current = self._messages = None
        for subscription in self._subscriptions:
            subscription.unsubscribe()


def _check_unread(subscription: Subscription[Any]) -> None:
    """Raises LocalProtocolError where another task waits for messages of the subscription."""
    if subscription._waiter is not None:
        raise LocalProtocolError(
            f"another task waits for messages of subscription {subscription.id} on "
            f"{subscription.topic!r}: let one task read, or subscribe once for each"
        )
