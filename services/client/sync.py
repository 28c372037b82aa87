"""The client for scripts and threads: the asyncio client on a loop thread of its own.

Publishes from all threads go into one queue; the loop thread is woken once for everything in it, so
that a thread change costs per batch and not per message.
"""

from __future__ import annotations

import asyncio
import atexit
import inspect
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from functools import update_wrapper
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from raylay.services.client.application_spans import span_reader
from raylay.services.client.arguments import Resolver, ServerLike, Tls
from raylay.services.client.body_decoder import Value
from raylay.services.client.client import DELTA_PUBLISH, SAMPLING_RATIO_DEFAULT, Client
from raylay.services.client.events import ClientEvent, PublishFailed
from raylay.services.client.failover import FailoverRule
from raylay.services.client.fork_guard import guard
from raylay.services.client.keywords import checks_keywords
from raylay.services.client.messages import Message, MessageBatch
from raylay.services.client.named_readers import SyncReaderCommands
from raylay.services.client.publishing.body_writer import Body, bodies_bytes, body_bytes
from raylay.services.client.publishing.deletes import delete_body
from raylay.services.client.publishing.outbox import check_values
from raylay.services.client.publishing.publish_store import PublishStoreProtocol
from raylay.services.client.queues.queue_consumer import QueueConsumer
from raylay.services.client.queues.sync_queue import SyncQueueConsumer
from raylay.services.client.subscriptions.sow_query import SowQuery
from raylay.services.client.subscriptions.subscription import Merged, Subscription
from raylay.services.client.subscriptions.subscription_state import BookmarkStoreProtocol
from raylay.services.client.tracer import Tracer
from raylay.services.errors import (
    ConnectionLost,
    FlushTimeout,
    ForkedClient,
    LocalProtocolError,
    PublishStoreFull,
    RaylayError,
)
from raylay.services.messages.records import RECORD_BYTES_MAX, Command

A = TypeVar("A")
P = ParamSpec("P")
T = TypeVar("T")

HANDED_OVER_MAX = 10_000
HANDED_OVER_BYTES_MAX = 64 * 1024 * 1024
"""Number and bytes of publishes between the callers' threads and the loop thread; above either,
`publish` blocks."""

_OPEN: dict[SyncClient, None] = {}
"""The clients of this process that are not closed. The end of the program closes them."""
_Publish = tuple[str, bytes, str, int, bytes, bytes, int, bytes]


class SyncSubscription(Generic[Value]):
    """A subscription as a plain iterator of messages; `batches()` iterates deliveries.

    Owner: the thread that iterates. The rules of `Subscription` hold.
    """

    def __init__(self, client: SyncClient, subscription: Subscription[Value] | Merged) -> None:
        self._client = client
        self._subscription = subscription
        self._messages: Iterator[Message[Value]] | None = None
        self._given = 0
        """Number of messages of the current delivery that were handed out singly."""

    @property
    def id(self) -> str:
        """Returns the subscription id."""
        return self._subscription.id

    def next_batch(self, timeout_s: float | None = None) -> MessageBatch[Value] | None:
        """Returns the next delivery; None when the subscription has ended.

        Raises:
            TimeoutError: none came within `timeout_s`; nothing is lost.
            RaylayError: what ended the subscription.
        """
        return self._client._run(self._next(timeout_s))

    async def _next(self, timeout_s: float | None) -> MessageBatch[Value] | None:
        async with asyncio.timeout(timeout_s):
            return await self._subscription.next_batch()

    def batches(self) -> Iterator[MessageBatch[Value]]:
        """Yields deliveries, one by one, until the subscription ends."""
        while (batch := self.next_batch()) is not None:
            yield batch

    def __iter__(self) -> Iterator[Message[Value]]:
        return self

    def __next__(self) -> Message[Value]:
        while True:
            if self._messages is not None:
                message = next(self._messages, None)
                if message is not None:
                    self._given += 1
                    self._subscription.count_handed_out(self._given)
                    return message
            batch = self._client._run(self._next_singly())
            if batch is None:
                raise StopIteration
            self._messages, self._given = batch.messages(), 0

    async def _next_singly(self) -> MessageBatch[Value] | None:
        batch = await self._subscription.next_batch()
        # This must run on the loop before anything else, because a client that closes counts the
        # messages that were handed out.
        self._subscription.count_handed_out(0)
        return batch

    def replace(
        self,
        *,
        filter: str = "",
        keys: Sequence[bytes] | None = None,
        order_by: str | None = None,
        top_n: int | None = None,
        skip_n: int | None = None,
    ) -> None:
        """Replaces the filter, the keys and the page of the subscription
        (`Subscription.replace`)."""
        (one,) = _of((self,))
        asked = one.replace(filter=filter, keys=keys, order_by=order_by, top_n=top_n, skip_n=skip_n)
        self._client._run(asked)

    def discard(self, message: Message) -> None:
        """Counts one message as received (`explicit_discard`)."""
        self._client._call(self._subscription.discard, message)

    def unsubscribe(self) -> None:
        """Ends the subscription."""
        self._client._call(self._subscription.unsubscribe)


class SyncQuery(SyncSubscription[Value]):
    """A query as a plain iterator of rows; the rules of `SowQuery` hold.

    Owner: the thread that iterates.
    """

    def __init__(self, client: SyncClient, query: SowQuery[Value]) -> None:
        super().__init__(client, query)
        self._query = query

    @property
    def matches(self) -> int | None:
        """The number of rows that pass the filter (`SowQuery.matches`)."""
        return self._query.matches

    def all(self) -> list[Message[Value]]:
        """Returns every row, all of one moment; they are in memory together. Raises as
        `next_batch`."""
        return self._client._run(self._query.all())

    def __iter__(self) -> Iterator[Message[Value]]:
        # When the loop is left, the remaining rows must not keep the client from reading.
        try:
            for batch in self.batches():
                yield from batch.messages()
        finally:
            if not self._client._closed:
                self.unsubscribe()


_SYNCHRONOUS = {
    "Subscription": "SyncSubscription",
    "SowQuery": "SyncQuery",
    "QueueConsumer": "SyncQueueConsumer",
}
"""The names of the results of `Client`, and those of the results of `SyncClient`."""


def _in_a_coroutine(
    method: Callable[Concatenate[Client, P], T],
) -> Callable[Concatenate[Client, P], Coroutine[Any, Any, T]]:
    """Turns a method of `Client` that does not wait into a coroutine, which runs on the loop
    thread."""

    async def call(client: Client, /, *args: P.args, **keywords: P.kwargs) -> T:
        return method(client, *args, **keywords)

    update_wrapper(call, method)
    return call


def _blocking(
    method: Callable[Concatenate[Client, P], Coroutine[Any, Any, A]],
    made: Callable[[SyncClient, A], T],
) -> Callable[Concatenate[SyncClient, P], T]:
    """Returns the blocking form of a method of `Client`: the same name, arguments and docstring,
    callable from any thread.

    Args:
        made: returns the caller's object for the method's result.
    """

    def call(self: SyncClient, /, *args: P.args, **keywords: P.kwargs) -> T:
        return made(self, self._run(method(self.client, *args, **keywords)))

    update_wrapper(call, method)
    call.__module__, call.__qualname__ = __name__, f"SyncClient.{method.__name__}"
    # `help` and editors read it: the result is not that of `method`.
    signature = inspect.signature(method)
    kind, bracket, of = signature.return_annotation.partition("[")
    result = f"{_SYNCHRONOUS.get(kind, kind)}{bracket}{of}"
    call.__signature__ = signature.replace(return_annotation=result)  # type: ignore[attr-defined]
    return call


def _itself(_: SyncClient, found: T) -> T:
    return found


def _sync_consumer(client: SyncClient, consumer: QueueConsumer[Value]) -> SyncQueueConsumer[Value]:
    return SyncQueueConsumer(client._run, consumer)


def _of(subscriptions: tuple[SyncSubscription, ...]) -> list[Subscription]:
    found = [one._subscription for one in subscriptions]
    for one in found:
        if isinstance(one, Merged):
            raise LocalProtocolError(
                f"{one.id} is several subscriptions read as one: name each of them"
            )
    return [one for one in found if isinstance(one, Subscription)]


class SyncClient:
    """The synchronous form of `Client`: the same arguments, usable from any thread.

        with SyncClient("loader", servers=["host-a:9007"]) as client:
            client.publish("orders", b"{}")
            client.flush()

    Callbacks (`on_event`, …) run on the loop thread. A client that is still open when the program
    ends is closed then, which may take `close_timeout_s`.
    """

    @checks_keywords
    def __init__(
        self,
        name: str,
        servers: ServerLike | Sequence[ServerLike] | Resolver = (),
        *,
        group: str = "",
        allow_other_groups: bool = False,
        failover: FailoverRule = "safe",
        publish_store: PublishStoreProtocol | None = None,
        bookmark_store: BookmarkStoreProtocol | None = None,
        user_id: str = "",
        password: str = "",
        answers: Callable[[str, str], tuple[str, str]] | None = None,
        tls: Tls = None,
        heartbeat_s: float = 5.0,
        connect_timeout_s: float = 3.0,
        connect_wait_s: float = 30.0,
        publish_timeout_s: float = 30.0,
        close_timeout_s: float = 10.0,
        pause_min_ms: int = 50,
        pause_max_ms: int = 3_000,
        bookmark_flush_ms: int = 100,
        ack_conflation_ms: int = 0,
        sampling_ratio: float = SAMPLING_RATIO_DEFAULT,
        tracer: Tracer | None = None,
        on_event: Callable[[ClientEvent], None] | None = None,
        on_persisted: Callable[[int], None] | None = None,
        on_publish_failed: Callable[[PublishFailed], None] | None = None,
        on_arrival: Callable[[MessageBatch], None] | None = None,
    ) -> None:
        self.client = Client(
            name,
            servers,
            group=group,
            allow_other_groups=allow_other_groups,
            failover=failover,
            publish_store=publish_store,
            bookmark_store=bookmark_store,
            user_id=user_id,
            password=password,
            answers=answers,
            tls=tls,
            heartbeat_s=heartbeat_s,
            connect_timeout_s=connect_timeout_s,
            connect_wait_s=connect_wait_s,
            publish_timeout_s=publish_timeout_s,
            close_timeout_s=close_timeout_s,
            pause_min_ms=pause_min_ms,
            pause_max_ms=pause_max_ms,
            bookmark_flush_ms=bookmark_flush_ms,
            ack_conflation_ms=ack_conflation_ms,
            sampling_ratio=sampling_ratio,
            tracer=tracer,
            on_event=on_event,
            on_persisted=on_persisted,
            on_publish_failed=on_publish_failed,
            on_arrival=on_arrival,
        )
        self.readers = SyncReaderCommands(self._run, self.client.readers)
        self._read_span = span_reader()
        """The reader of the calling thread's span: the loop thread has none."""
        self._publish_timeout_s = publish_timeout_s
        self._lock = threading.Condition()
        self._queue: deque[_Publish] = deque()
        self._queue_bytes = 0
        self._drain_scheduled = False
        self._drained: asyncio.Task[None] | None = None
        self._failure: RaylayError | None = None
        self._closed = self._is_forked = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name=f"raylay client {name}", daemon=True
        )
        self._thread.start()
        guard(self)
        try:
            self._run(self.client.connect())
        except BaseException:
            self._stop_loop()
            raise
        _OPEN[self] = None

    def _forked(self, error: ForkedClient) -> None:
        # Made anew: another thread may have held the lock when the process was forked.
        self._lock = threading.Condition()
        self._failure, self._is_forked = error, True
        _OPEN.pop(self, None)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._is_forked and self._failure is not None:
            work.close()
            raise self._failure
        if self._closed:
            work.close()
            raise ConnectionLost(f"client {self.client.name} is closed")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _call(self, function: Any, *args: Any) -> None:
        async def call() -> None:
            function(*args)

        self._run(call())

    # -- publishing --------------------------------------------------------------------------
    def publish(
        self,
        topic: str,
        body: Body,
        message_type: str = "json",
        *,
        expiration_s: int = 0,
        key: bytes = b"",
        correlation: bytes = b"",
        command: int = 0,
    ) -> None:
        """Publishes; blocks only for room. One thread's publishes keep their order. The arguments
        are those of `Client.publish_nowait`.

        Raises:
            PublishStoreFull: no room within `publish_timeout_s`; this message was not published.
            LocalProtocolError: topic, message type, command or size break a limit.
            MessageTypeError: the message type cannot write the body; it was not published.
            TypeError: an argument is of the wrong type; this message was not published.
            RaylayError: what ended the client, or the failure of an earlier publish that was still
                on its way to the loop thread.
        """
        # Errors in the arguments are raised here, not on the loop thread.
        self.client.machine.outbox.builder(topic, message_type)
        check_values(expiration_s, key, correlation, command)
        if type(body) is not bytes:
            body = body_bytes(body, topic, message_type, self.client.machine.types)
        if len(body) + len(key) + len(correlation) > RECORD_BYTES_MAX - 2048:
            raise LocalProtocolError(
                f"message of {len(body)} bytes on {topic}: a record may have {RECORD_BYTES_MAX}"
            )
        span = self._read_span() if self._read_span is not None else b""
        with self._lock:
            if self._crowded():
                self._wait_for_room()
            if self._closed:
                raise ConnectionLost(f"client {self.client.name} is closed")
            if self._failure is not None:
                raise self._failure
            self._queue_bytes += len(body)
            values = (topic, body, message_type, expiration_s, key, correlation, command, span)
            self._queue.append(values)
            wake = not self._drain_scheduled
            self._drain_scheduled = True
        if wake:
            self._loop.call_soon_threadsafe(self._start_drain)

    def publish_many(
        self,
        topic: str,
        bodies: Iterable[Body],
        message_type: str = "json",
        *,
        expiration_s: int = 0,
        keys: Sequence[bytes] | None = None,
        correlation: bytes = b"",
    ) -> list[int]:
        """Publishes several messages on one topic (`Client.publish_many`); blocks until all are
        published, behind everything that was published before. Returns the sequence of each."""
        written = bodies_bytes(bodies, topic, message_type, self.client.machine.types)
        given = topic, written, message_type, expiration_s, keys, correlation
        return self._run(self._publish_many(*given))

    async def _publish_many(self, *given: Any) -> list[int]:
        await self._until_drained()
        return await self.client._publisher.publish_many(*given)

    def delta_publish(
        self,
        topic: str,
        body: Body,
        message_type: str = "json",
        *,
        expiration_s: int = 0,
        key: bytes = b"",
        correlation: bytes = b"",
    ) -> None:
        """Publishes fields that change (`Client.delta_publish`); blocks and raises as `publish`."""
        self.publish(
            topic,
            body,
            message_type,
            expiration_s=expiration_s,
            key=key,
            correlation=correlation,
            command=DELTA_PUBLISH,
        )

    def sow_delete(
        self,
        topic: str,
        *,
        filter: str | None = None,
        keys: Sequence[bytes] | None = None,
        data: Body | None = None,
        message_type: str = "json",
    ) -> None:
        """Deletes records of a SOW topic (`Client.sow_delete`); blocks and raises as `publish`."""
        types = self.client.machine.types
        given = None if data is None else body_bytes(data, topic, message_type, types)
        body = delete_body(filter, keys, given)
        self.publish(topic, body, message_type, command=Command.DELETE)

    def sow_delete_in_parts(self, topic: str, *, filter: str, message_type: str = "json") -> int:
        """Deletes all records that pass a filter (`Client.sow_delete_in_parts`); blocks until
        everything published before is durable, and the deletes are published."""
        self.flush()
        return self._run(
            self.client.sow_delete_in_parts(topic, filter=filter, message_type=message_type)
        )

    def _crowded(self) -> bool:
        return len(self._queue) >= HANDED_OVER_MAX or self._queue_bytes >= HANDED_OVER_BYTES_MAX

    def _wait_for_room(self) -> None:
        deadline_s = time.monotonic() + self._publish_timeout_s
        while self._crowded() and self._failure is None and not self._closed:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or not self._lock.wait(left_s):
                raise PublishStoreFull(
                    f"publish store of {self.client.name} stayed full for "
                    f"{self._publish_timeout_s:.3g} s"
                )

    def _start_drain(self) -> None:
        self._drained = self._loop.create_task(self._drain())

    async def _drain(self) -> None:
        """Publishes the messages that callers queued, until the queue is empty."""
        client, queue = self.client, self._queue
        # Each message has positional arguments, and the span in which it was published.
        publish_now = client._publisher.publish_now
        while True:
            failure: RaylayError | None = None
            taken_bytes = 0
            try:
                for _ in range(min(len(queue), HANDED_OVER_MAX)):
                    values = queue[0]
                    publish_now(*values)
                    taken_bytes += len(values[1])
                    queue.popleft()
            except RaylayError as error:
                failure = error
            except Exception as error:
                self.client.runtime.end_by(error)
                failure = self.client.runtime.error
            with self._lock:
                self._queue_bytes -= taken_bytes
                self._lock.notify_all()
                if not queue:
                    self._drain_scheduled = False
                    return
            if isinstance(failure, PublishStoreFull):
                try:
                    await client.room()
                except PublishStoreFull:
                    pass  # callers see the error after their own timeout; nothing is dropped
                except RaylayError as error:
                    self._give_up(error)
                    return
            elif failure is not None:
                self._give_up(failure)
                return
            else:
                await asyncio.sleep(0)

    def _give_up(self, error: RaylayError) -> None:
        with self._lock:
            self._failure = error
            self._lock.notify_all()

    async def _flush(self, timeout_s: float | None) -> None:
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                await self._until_drained()
        except TimeoutError:
            raise FlushTimeout(
                f"what {self.client.name} published last is not sent after {timeout_s:.3g} s: "
                f"{self.client.status}"
            ) from None
        if deadline_s is not None:
            timeout_s = max(0.0, deadline_s - time.monotonic())
        await self.client.flush(timeout_s)

    async def _until_drained(self) -> None:
        while self._drain_scheduled and self._failure is None:
            if self._drained is not None and not self._drained.done():
                await asyncio.wait((self._drained,))
            else:
                await asyncio.sleep(0)  # `_start_drain` is in the loop's queue
        if self._failure is not None:
            raise self._failure

    def flush(self, timeout_s: float | None = None) -> None:
        """Blocks until everything published so far is durable.

        Raises:
            CommandFailed: a publish was refused and there is no `on_publish_failed`.
            FlushTimeout: not everything is durable within `timeout_s`; the error says which
                publishes are not acknowledged, and why.
        """
        self._run(self._flush(timeout_s))

    @property
    def persisted_sequence(self) -> int:
        """Returns the sequence up to which every publish is durable, or was refused."""
        return self.client.persisted_sequence

    def trust(self, instance: str) -> None:
        """Allows failover to an instance that another instance called unsafe (`Client.trust`)."""
        self._call(self.client.trust, instance)

    # -- subscriptions -----------------------------------------------------------------------
    # Each has the arguments of the method of `Client` that it names, for people and for editors.
    subscribe = _blocking(Client.subscribe, SyncSubscription)
    sow_and_subscribe = _blocking(Client.sow_and_subscribe, SyncSubscription)
    delta_subscribe = _blocking(Client.delta_subscribe, SyncSubscription)
    acknowledge_matching = _blocking(Client.acknowledge_matching, _itself)
    queue_status = _blocking(Client.queue_status, _itself)
    sow = _blocking(_in_a_coroutine(Client.sow), SyncQuery)
    acknowledge = _blocking(_in_a_coroutine(Client.acknowledge), _itself)
    queue = _blocking(_in_a_coroutine(Client.queue), _sync_consumer)

    def pause(self, *subscriptions: SyncSubscription) -> None:
        """Stops the server's deliveries for these subscriptions until `resume` (`Client.pause`)."""
        self._run(self.client.pause(*_of(subscriptions)))

    def resume(self, *subscriptions: SyncSubscription) -> None:
        """Continues paused subscriptions, together (`Client.resume`)."""
        self._run(self.client.resume(*_of(subscriptions)))

    def merged(self, *subscriptions: SyncSubscription) -> SyncSubscription:
        """Returns several subscriptions as one stream, in the order in which their deliveries
        arrived: for those that were resumed together, the order of the log (`Merged`)."""
        return SyncSubscription(self, Merged(*_of(subscriptions)))

    # -- life --------------------------------------------------------------------------------
    def close(self, *, flush: bool = True) -> None:
        """Ends the client; with `flush` once everything published is durable (`Client.close`)."""
        if self._closed or self._is_forked:
            return  # the connection of a forked child's client is its parent's
        _OPEN.pop(self, None)
        try:
            self._run(self._close(flush and self._failure is None))
        finally:
            with self._lock:
                self._closed = True
                self._lock.notify_all()
            self._stop_loop()

    async def _close(self, flush: bool) -> None:
        deadline_s = self._loop.time() + self.client.close_timeout_s
        try:
            if flush:
                try:
                    async with asyncio.timeout(self.client.close_timeout_s):
                        await self._flush(None)
                except TimeoutError:
                    pass  # reported below, or by the client's own close
        finally:
            if self._drained is not None:
                self._drained.cancel()
            left_s = max(0.0, deadline_s - self._loop.time())
            await self.client.close(flush=flush, timeout_s=left_s)
        if flush and self._queue:
            raise ConnectionLost(
                f"client {self.client.name} closed with {len(self._queue)} publishes that found "
                "no room in its store"
            )

    def _stop_loop(self) -> None:
        self._closed = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> SyncClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(flush=error is None)


def _close_all() -> None:
    """Closes the clients that the program has left open. Their threads end with the program, and
    messages that `publish` has taken would otherwise stay unsent."""
    for client in list(_OPEN):
        try:
            client.close()
        except RaylayError as error:
            print(f"raylay: at the end of the program: {error}", file=sys.stderr)


atexit.register(_close_all)
