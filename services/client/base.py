"""A client's shell: performs what its machine decides, between the machine and the connection."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import random
import struct
import time
from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any

from raylay.services.client.arguments import (
    Resolver,
    ServerLike,
    Tls,
    check_owner,
    listed,
    sample_every,
    usable,
)
from raylay.services.client.connection import Connection, open_connection
from raylay.services.client.events import (
    ClientEvent,
    ClientStopped,
    Connect,
    Connected,
    ConnectionEnded,
    ConnectionOpened,
    Disconnected,
    DropStream,
    Effect,
    Event,
    Fail,
    FrameReceived,
    LoopBlocked,
    Notify,
    PauseAnswered,
    PublishFailed,
    QueryInterrupted,
    ReplaceAnswered,
    ResolveServers,
    SendFrame,
    SendPublishes,
    ServerRefused,
    ServersResolved,
    Settled,
    StoreFailed,
    SubscriptionAccepted,
    SubscriptionCompleted,
    SubscriptionFailed,
    SubscriptionPersisted,
    TimePassed,
)
from raylay.services.client.failover import FailoverRule, Server, as_server
from raylay.services.client.fork_guard import guard
from raylay.services.client.keywords import checks_keywords
from raylay.services.client.machine import ClientMachine, ClientOptions, ClientState
from raylay.services.client.messages import MessageBatch
from raylay.services.client.outbox import GATHERING_S_MAX
from raylay.services.client.publish_store import PublishStoreProtocol
from raylay.services.client.sow_query import SowQuery
from raylay.services.client.subscription import Subscription
from raylay.services.client.subscription_state import GROUPED, BookmarkStoreProtocol
from raylay.services.client.tracer import Tracer
from raylay.services.errors import (
    ClientFailed,
    ConnectionLost,
    ForkedClient,
    RaylayError,
    StorageError,
)
from raylay.services.protocol.frames import Frame, encode_front
from raylay.storage.stores import MemoryPublishStore

PUBLISH_FRAME_BYTES = 256 * 1024
"""Records in one `pb` frame: large enough that its cost vanishes, small enough that the server can
commit the first while the next is on the way."""
PUBLISHES_A_SLOW_TURN = 4096
SLOW_FLUSH_S = 0.001
"""Where a flush of the publish store takes longer (a disk), more publishes share one."""
QUEUE_BYTES_MAX_DEFAULT = 16 * 1024 * 1024
PUBLISHES_A_TURN = 256
"""`publish` lets the event loop run after as many, so that acks and sockets are attended to."""
SAMPLING_RATIO_DEFAULT = 0.001
_LOG = logging.getLogger("raylay.client")

STORE_RETRY_S = 1.0


def ends_client(method: Callable[..., None]) -> Callable[..., None]:
    """Ends the client where a method that its event loop calls raises: whoever waits for an answer,
    or calls the client again, is given the error. Otherwise they would wait for ever."""

    @wraps(method)
    def guarded(self: ClientBase, *args: Any) -> None:
        try:
            method(self, *args)
        except Exception as error:
            self._break(error)

    return guarded


class ClientBase:
    """The state of a client and the loop that feeds its machine. The methods that a user calls
    stand on this."""

    _gathering: asyncio.TimerHandle | None = None
    _pump_again: asyncio.TimerHandle | None = None
    _bookmark_flush: asyncio.TimerHandle | None = None
    _store_failure: StorageError | None = None

    @checks_keywords
    def __init__(
        self,
        name: str,
        servers: Sequence[ServerLike] | Resolver = (),
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
    ) -> None:
        self._resolver: Resolver | None = servers if callable(servers) else None
        store = publish_store if publish_store is not None else MemoryPublishStore()
        check_owner(store, name)
        self.name = name
        self.on_event = on_event
        self.on_persisted = on_persisted
        self.on_publish_failed = on_publish_failed
        self._tls = usable(tls, name)
        self._store = store
        # A store that the caller gave outlives this client, and what it holds with it.
        self._owns_store = publish_store is None
        self._bookmark_store = bookmark_store
        self._machine = ClientMachine(
            ClientOptions(
                client_name=name,
                servers=() if callable(servers) else listed(name, servers),
                resolves=self._resolver is not None,
                group=group,
                allow_other_groups=allow_other_groups,
                failover=failover,
                user_id=user_id,
                password=password,
                answers=answers,
                heartbeat_s=heartbeat_s,
                ack_conflation_ms=ack_conflation_ms,
                connect_timeout_s=connect_timeout_s,
                pause_min_ms=pause_min_ms,
                pause_max_ms=pause_max_ms,
                clock_us=time.time_ns() // 1000,
                owns_store=self._owns_store,
                seed=int.from_bytes(os.urandom(8), "little"),
            ),
            store,
        )
        self._bookmark_flush_s = bookmark_flush_ms / 1000
        self._connect_wait_s = connect_wait_s
        self._publish_timeout_s = publish_timeout_s
        self.close_timeout_s = close_timeout_s
        self._tracer = tracer
        self._sample_every = sample_every(sampling_ratio) if tracer is not None else 0
        # At a random place of the first round, so that clients of few messages are sampled too.
        self._until_sample = self._sample_every and 1 + random.randrange(self._sample_every)
        self._publishes_a_turn = self._until_yield = PUBLISHES_A_TURN
        self._loop: asyncio.AbstractEventLoop | None = None
        self._connection: Connection | None = None
        self._opening: asyncio.Task[None] | None = None
        self._resolving: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_s: float | None = None
        self._pump_scheduled = False
        self._connected: asyncio.Future[None] | None = None
        self._settled_waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._room_waiters: list[asyncio.Future[None]] = []
        self._subscribing: dict[str, asyncio.Future[None]] = {}
        self._subscriptions: dict[str, Subscription] = {}
        self._subscription_number = self._asked_number = self._arrivals = 0
        self._asking: dict[int, asyncio.Future[None]] = {}
        self._congested: set[str] = set()
        self._waiting_for_server = 0
        self._error: RaylayError | None = None
        self._refusals: dict[str, str] = {}
        self._performers = self._make_performers()
        guard(self)

    def _forked(self, error: ForkedClient) -> None:
        self._error = error
        self._machine.ended = True
        self._machine.state = ClientState.ENDED

    def _make_performers(self) -> dict[type[Any], Callable[[Any], None]]:
        return {
            ResolveServers: self._resolve_servers,
            Connect: self._connect_to,
            DropStream: self._disconnect,
            SendFrame: self._send_frame,
            SendPublishes: self._send_publishes,
            Settled: self._on_settled,
            SubscriptionAccepted: self._subscription_accepted,
            SubscriptionPersisted: self._subscription_persisted,
            SubscriptionCompleted: self._subscription_completed,
            QueryInterrupted: self._query_interrupted,
            PauseAnswered: self._pause_answered,
            ReplaceAnswered: self._replace_answered,
            SubscriptionFailed: self._subscription_failed,
            Notify: self._tell,
            Fail: self._fail,
        }

    @property
    def machine(self) -> ClientMachine:
        """The decisions and their state, for inspection."""
        return self._machine

    async def _shut_down(self) -> None:
        if self._machine.state is not ClientState.ENDED:
            self._step(ClientStopped())
        if self._timer is not None:
            self._timer.cancel()
        tasks = [task for task in (self._opening, self._resolving) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for timer in (self._pump_again, self._gathering, self._bookmark_flush):
            if timer is not None:
                timer.cancel()
        for subscription in list(self._subscriptions.values()):
            subscription.settle()
            subscription.end(self._error)
        self._subscriptions.clear()
        self._fail_waiters(self._error or ConnectionLost(f"client {self.name} is closed"))
        self._store.flush()
        if self._bookmark_store is not None:
            self._bookmark_store.flush()

    @property
    def status(self) -> str:
        """The client's state, in words."""
        return self._machine.status

    async def _while_reading(self, waiter: asyncio.Future[None], timeout_s: float | None) -> None:
        """Awaits an answer of the server. Reading goes on meanwhile, whatever the queues hold: the
        task that waits may be the one whose slowness would stop it, and wait for ever."""
        self._waiting_for_server += 1
        self._update_reading()
        try:
            await asyncio.wait_for(waiter, timeout_s)
        finally:
            self._waiting_for_server -= 1
            self._update_reading()

    # -- what the machine decides --------------------------------------------------------------
    def _step(self, event: Event) -> None:
        assert self._loop is not None
        performers = self._performers
        effects: list[Effect] = self._machine.step(event, self._loop.time())
        for effect in effects:
            performers[type(effect)](effect)
        due_s = self._machine.wake_s
        if due_s != self._timer_due_s:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_due_s = due_s
            self._timer = None if due_s is None else self._loop.call_at(due_s, self._wake)

    @ends_client
    def _perform(self, event: Event) -> None:
        """Makes a step where no caller can be told what it raises."""
        self._step(event)

    @ends_client
    def _wake(self) -> None:
        self._timer = self._timer_due_s = None
        self._step(TimePassed())

    def _received(self, connection: Connection, frames: list[Frame]) -> None:
        if connection is not self._connection:
            return
        assert self._loop is not None
        machine = self._machine
        machine.heard_s = self._loop.time()
        machine.wall_us = time.time_ns() // 1000
        try:
            for header, body in frames:
                if header["c"] == "p":
                    batch = machine.arrived(header, body)
                    if batch is not None:
                        subscription = self._subscriptions.get(batch.subscription_id)
                        if subscription is not None:
                            self._arrivals = batch.arrival = self._arrivals + 1
                            if batch.lease_s:
                                batch.lease_end_s = self._lease_end_s(batch.lease_s)
                            subscription.put(batch)
                elif header["c"] in GROUPED:
                    self._put_grouped(machine.grouped(header, body))
                else:
                    self._step(FrameReceived(connection.number, header, body))
                    if connection is not self._connection:
                        return
        except (AttributeError, KeyError, TypeError, ValueError, struct.error) as error:
            # A frame whose values are not what the protocol says. What follows cannot be trusted.
            connection.abort()
            self._stream_ended(connection, f"bad_frame: {type(error).__name__}: {error}")
        except Exception as error:
            self._break(error)

    def _lease_end_s(self, lease_s: float) -> float:
        """The time at which a message that has just come with so long a lease is to be given
        back."""
        return time.monotonic() + lease_s

    def _put_grouped(self, batches: list[MessageBatch]) -> None:
        for batch in batches:
            subscription = self._subscriptions.get(batch.subscription_id)
            if subscription is not None:
                self._arrivals = batch.arrival = self._arrivals + 1
                subscription.put(batch)

    @ends_client
    def _stream_ended(self, connection: Connection, reason: str) -> None:
        if connection is self._connection:
            self._connection = None
            self._step(ConnectionEnded(connection.number, reason))

    def _resolve_servers(self, _: ResolveServers) -> None:
        assert self._loop is not None
        self._resolving = self._loop.create_task(self._look_up())

    async def _look_up(self) -> None:
        assert self._resolver is not None
        servers: list[Server] | None = None
        try:
            found = self._resolver()
            if inspect.isawaitable(found):
                found = await found
            servers = list(map(as_server, found))
        except Exception as error:  # the caller's code: the last answer stays in force
            self._refusals["look-up of servers"] = f"{type(error).__name__}: {error}"
        self._perform(ServersResolved(servers))

    def _connect_to(self, effect: Connect) -> None:
        assert self._loop is not None
        self._opening = self._loop.create_task(self._open(effect.connection, effect.address))

    async def _open(self, number: int, address: str) -> None:
        make = partial(Connection, number, self._received, self._stream_ended, self._pump)
        try:
            connection = await open_connection(address, make, self._tls)
        except (OSError, ValueError) as error:
            self._refusals[address] = str(error)
            self._perform(ConnectionEnded(number, str(error)))
            return
        except Exception as error:  # nobody waits for this task
            self._break(error)
            return
        if number != self._machine.connection:
            connection.abort()
            return
        self._connection = connection
        self._perform(ConnectionOpened(number))

    def _disconnect(self, effect: DropStream) -> None:
        connection = self._connection
        self._connection = None
        if connection is not None:
            connection.abort()
        elif self._opening is not None and self._opening is not asyncio.current_task():
            self._opening.cancel()

    def _send_frame(self, effect: SendFrame) -> None:
        if self._connection is not None:
            self._connection.send(effect.header, effect.body)

    def _send_publishes(self, _: SendPublishes) -> None:
        self._pump()

    def _pump(self) -> None:
        """Sends what was published, frame by frame, for as long as the socket takes it."""
        self._pump_scheduled = False
        began_s = time.perf_counter()
        try:
            self._store.flush()
            self._store_failure = None
            slow = time.perf_counter() - began_s > SLOW_FLUSH_S
            self._publishes_a_turn = PUBLISHES_A_SLOW_TURN if slow else PUBLISHES_A_TURN
            connection = self._connection
            if connection is None:
                return
            next_batch = self._machine.next_batch
            while connection.writable:
                batch = next_batch(PUBLISH_FRAME_BYTES)
                if batch is None:
                    break
                records, header = batch.records, batch.header()
                records.insert(0, encode_front(header, sum(map(len, records))))
                connection.write(b"".join(records))
            if self._machine.gathering is (self._gathering is None):
                self._time_gathering()
        except StorageError as error:
            self._store_failed(error)
        except Exception as error:
            self._break(error)

    def _time_gathering(self) -> None:
        """For as long as something is gathered, a timer runs."""
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None
        else:
            assert self._loop is not None
            self._gathering = self._loop.call_later(GATHERING_S_MAX, self._gathered)

    @ends_client
    def _gathered(self) -> None:
        """No answer came for as long as something may be gathered."""
        self._gathering = None
        self._hurry()

    def _hurry(self) -> None:
        """Sends what was published so far, whatever is unanswered: now or in this turn."""
        gathered = self._machine.gathering
        self._machine.hurry()
        if gathered:
            self._pump()

    def _store_failed(self, error: StorageError) -> None:
        """Nothing is sent that the store could not keep: later again, or never."""
        if not error.retriable:
            self._fail(Fail(error))
            return
        assert self._loop is not None
        if self._pump_again is not None:
            self._pump_again.cancel()
        self._pump_again = self._loop.call_later(STORE_RETRY_S, self._pump)
        self._store_failure = error
        self._tell(Notify(StoreFailed(error)))

    def _on_settled(self, effect: Settled) -> None:
        if self._settled_waiters:
            waiting = self._settled_waiters
            self._settled_waiters = [pair for pair in waiting if pair[0] > effect.upto]
            for upto, waiter in waiting:
                if upto <= effect.upto and not waiter.done():
                    waiter.set_result(None)
        if self._room_waiters and not self._store.full:
            waiters, self._room_waiters = self._room_waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)
        if self._tracer is not None:
            self._tracer.publish_persisted(effect.upto)
        if self.on_persisted is not None:
            self._call(self.on_persisted, effect.upto)

    def _subscription_accepted(self, effect: SubscriptionAccepted) -> None:
        answered = self._subscribing.get(effect.subscription_id)
        if answered is not None and not answered.done():
            answered.set_result(None)
        subscription = self._subscriptions.get(effect.subscription_id)
        if subscription is not None and effect.have is not None:
            subscription.put_persisted(effect.have)

    def _subscription_persisted(self, effect: SubscriptionPersisted) -> None:
        subscription = self._subscriptions.get(effect.subscription_id)
        if subscription is not None:
            subscription.put_persisted(effect.have)

    def _subscription_completed(self, effect: SubscriptionCompleted) -> None:
        subscription = self._subscriptions.get(effect.subscription_id)
        if subscription is not None:
            subscription.caught_up.set()
            if effect.ended:
                del self._subscriptions[effect.subscription_id]
                subscription.end()

    def _query_interrupted(self, effect: QueryInterrupted) -> None:
        query = self._subscriptions.get(effect.subscription_id)
        if isinstance(query, SowQuery):
            query.interrupted()

    def _replace_answered(self, effect: ReplaceAnswered) -> None:
        subscription = self._subscriptions.get(effect.subscription_id)
        if subscription is not None and effect.error is None:
            subscription.caught_up.clear()
        self._pause_answered(effect)

    def _pause_answered(self, effect: PauseAnswered | ReplaceAnswered) -> None:
        answered = self._asking.get(effect.number)
        if answered is not None and not answered.done():
            if effect.error is not None:
                answered.set_exception(effect.error)
            else:
                answered.set_result(None)

    def _subscription_failed(self, effect: SubscriptionFailed) -> None:
        subscription = self._subscriptions.pop(effect.subscription_id, None)
        answered = self._subscribing.get(effect.subscription_id)
        if answered is not None and not answered.done():
            answered.set_exception(effect.error)
        elif subscription is not None:
            subscription.end(effect.error)

    def _tell(self, effect: Notify) -> None:
        event = effect.event
        if isinstance(event, Connected):
            if self._connected is not None and not self._connected.done():
                self._connected.set_result(None)
            self._update_reading()
        elif isinstance(event, Disconnected):
            self._update_reading()
        elif isinstance(event, LoopBlocked):
            _LOG.warning(
                "the event loop of client %s stood still for %.1f s, longer than its heartbeat of "
                "%g s: the instance takes it for dead, and messages of queues that it holds are "
                "handled twice. Run what blocks with asyncio.to_thread, or use SyncClient",
                self.name,
                event.blocked_s,
                self._machine.options.heartbeat_s,
            )
        elif isinstance(event, ServerRefused):
            self._refusals[event.address] = event.reason
        elif isinstance(event, PublishFailed):
            if self._tracer is not None:
                self._tracer.publish_failed(event.sequence, event.error.reason)
            if self.on_publish_failed is not None:
                self._call(self.on_publish_failed, event)
        if self.on_event is not None:
            self._call(self.on_event, event)

    def _break(self, error: Exception) -> None:
        failed = ClientFailed(
            f"client {self.name} ended by an error of its own: {type(error).__name__}: {error}"
        )
        failed.__cause__ = error
        self._fail(Fail(failed))

    def _fail(self, effect: Fail) -> None:
        self._error = effect.error
        if self._machine.state is not ClientState.ENDED:
            self._step(ClientStopped(failed=True))
        self._fail_waiters(effect.error)
        for subscription in list(self._subscriptions.values()):
            subscription.end(effect.error)
        self._subscriptions.clear()

    def _fail_waiters(self, error: RaylayError) -> None:
        waiters = [waiter for _, waiter in self._settled_waiters]
        waiters += self._room_waiters
        waiters += self._subscribing.values()
        waiters += self._asking.values()
        if self._connected is not None and isinstance(error, RaylayError):
            waiters.append(self._connected)
        self._settled_waiters.clear()
        self._room_waiters.clear()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_exception(error)
                waiter.exception()  # marks it as looked at, where nobody awaits it any more

    def _call(self, callback: Callable[[Any], None], value: object) -> None:
        try:
            callback(value)
        except Exception as error:  # the caller's code must not end the connection
            assert self._loop is not None
            self._loop.call_exception_handler(
                {"message": f"a callback of client {self.name} failed", "exception": error}
            )

    def _raise_if_ended(self) -> None:
        if self._error is not None:
            raise self._error
        if self._machine.state is ClientState.ENDED:
            raise ConnectionLost(f"client {self.name} is closed")

    # -- what is read and remembered --------------------------------------------------------------
    @ends_client
    def _flush_bookmarks(self) -> None:
        self._bookmark_flush = None
        assert self._bookmark_store is not None
        try:
            self._bookmark_store.flush()
        except StorageError as error:
            # What was not remembered comes again, rather than never.
            self._flush_bookmarks_in(max(self._bookmark_flush_s, STORE_RETRY_S))
            self._tell(Notify(StoreFailed(error)))

    def _flush_bookmarks_in(self, seconds: float) -> None:
        if self._loop is not None:
            self._bookmark_flush = self._loop.call_later(seconds, self._flush_bookmarks)

    def _bookmarks_changed(self) -> None:
        if self._bookmark_flush is not None:
            return
        if self._bookmark_flush_s:
            self._flush_bookmarks_in(self._bookmark_flush_s)
        else:
            # Before the consumer is given anything more.
            self._flush_bookmarks()

    def _congestion_changed(self, subscription: Subscription) -> None:
        if subscription.congested:
            self._congested.add(subscription.id)
        else:
            self._congested.discard(subscription.id)
        self._update_reading()

    def _update_reading(self) -> None:
        machine = self._machine
        paused = (
            bool(self._congested)
            and not self._waiting_for_server
            and machine.state is ClientState.READY
        )
        if paused is not machine.reading_paused:
            machine.reading_paused = paused
            if not paused and self._loop is not None:
                machine.heard_s = self._loop.time()
        if self._connection is not None:
            self._connection.set_reading(not paused)

    def _tell_tracer(self, batch: MessageBatch) -> None:
        assert self._tracer is not None
        beside = {"instance": self._machine.instance, "subscription": batch.subscription_id}
        beside |= {"queue": batch.queue} if batch.queue else {}
        for message in batch.traced_messages():
            self._tracer.delivered(
                message.trace,
                {"bookmark": message.bookmark, "topic": message.topic, **beside},
                batch.timestamp_us * 1000,
                time.time_ns(),
            )
