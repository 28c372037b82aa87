"""The runtime of a client: performs the effects that its machine returns, between machine and
connection."""

from __future__ import annotations

import asyncio
import inspect
import logging
import ssl
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, Protocol

from raylay.services.client.arguments import Resolver
from raylay.services.client.connection import (
    Connection,
    failure_text,
    open_connection,
    split_address,
)
from raylay.services.client.events import (
    ClientEvent,
    ClientStopped,
    CommandAnswered,
    CommandWanted,
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
    UnacknowledgedMessages,
)
from raylay.services.client.failover import Server, as_server
from raylay.services.client.fork_guard import guard
from raylay.services.client.machine import ClientMachine, ClientState
from raylay.services.client.messages import LEASE_PART, MessageBatch
from raylay.services.client.publishing.outbox import GATHERING_S_MAX, RECORDS_REFUSED
from raylay.services.client.publishing.publish_store import PublishStoreProtocol
from raylay.services.client.subscriptions.sow_query import SowQuery
from raylay.services.client.subscriptions.subscription import Subscription
from raylay.services.client.subscriptions.subscription_state import GROUPED, BookmarkStoreProtocol
from raylay.services.client.tracer import Tracer
from raylay.services.errors import (
    ClientFailed,
    ConnectionLost,
    ForkedClient,
    LocalProtocolError,
    RaylayError,
    RemoteProtocolError,
    StorageError,
)
from raylay.services.net.tls_config import TlsConfig
from raylay.services.net.tls_stream import TlsError
from raylay.services.protocol.frames import Frame, Header, encode_front

PUBLISH_FRAME_BYTES = 256 * 1024
"""Bytes of records in one `pb` frame: large enough that the cost of a frame is negligible, small
enough that the server can commit the first one while the next is on the way."""
PUBLISHES_A_SLOW_TURN = 4096
SLOW_FLUSH_S = 0.001
"""Seconds that a flush of the publish store (a disk) takes, above which more publishes share one
flush."""
QUEUE_BYTES_MAX_DEFAULT = 16 * 1024 * 1024
PUBLISHES_A_TURN = 256
"""Number of publishes after which `publish` lets the event loop run, so that acks and sockets are
handled."""
UNACKNOWLEDGED_S = 30.0
"""Seconds after which a message of a queue without leases counts as not acknowledged."""
_LOG = logging.getLogger("raylay.client")

STORE_RETRY_S = 1.0
BAD_VALUES = (
    AttributeError,
    LookupError,
    OverflowError,
    RemoteProtocolError,
    TypeError,
    ValueError,
    struct.error,
)
"""Errors that values of a server's frame raise which violate the protocol."""


def ends_client(method: Callable[..., None]) -> Callable[..., None]:
    """Ends the client when a method that its event loop calls raises: every caller that waits, or
    calls the client again, gets the error. Otherwise callers would wait for ever."""

    @wraps(method)
    def guarded(self: ClientRuntime, *args: Any) -> None:
        try:
            method(self, *args)
        except Exception as error:
            self.end_by(error)

    return guarded


class LeaseHolder(Protocol):
    """A consumer of a queue, whose messages are leased to it over the connection."""

    def disconnected(self) -> None:
        """Notes that the connection is lost: leases over it have ended."""

    def give_back_overdue(self) -> float:
        """Gives back messages that no handler was given and whose leases have ended, or nearly so.
        Returns the time, by `time.monotonic`, at which others have to be given back; infinity: none
        has to be."""


@dataclass(frozen=True, slots=True)
class ClientCallbacks:
    """The functions of the application that a client calls, on its event loop.

    Attributes:
        on_event: called with each ClientEvent.
        on_persisted: called with the highest settled sequence, once for each acknowledgment.
        on_publish_failed: called with each refused publish. Without it, `Client.flush` raises the
            error.
        on_arrival: called with each batch of messages when it comes in, before its consumer gets
            it.
    """

    on_event: Callable[[ClientEvent], None] | None = None
    on_persisted: Callable[[int], None] | None = None
    on_publish_failed: Callable[[PublishFailed], None] | None = None
    on_arrival: Callable[[MessageBatch], None] | None = None


def foreign_loop(name: str) -> LocalProtocolError:
    """The error of a client that is used on another event loop than the one that connected it."""
    return LocalProtocolError(
        f"client {name} belongs to another event loop, the one that connected it: connect a client "
        "on each loop, or share a SyncClient between threads"
    )


class ClientRuntime:
    """The loop, the connection and the timers of a client: performs the effects that its machine
    returns.

    The operations that a user calls (publishing/publisher.py, subscriptions/subscriber.py,
    queues/queue.py) share one.

    Args:
        machine: the decisions, and their state.
        store: the publish store, with the messages that are published and not durable yet.
        bookmark_store: the messages that bookmark subscriptions have received; None: they are not
            remembered.
        resolver: looks the servers up before each round of attempts; None: the machine has them.
        tls: TLS settings of the connections; None: no TLS.
        tracer: gets the sampled publishes and deliveries; None: nothing is traced.
        callbacks: the application's callbacks.
        bookmark_flush_s: seconds after which, at the latest, received bookmarks are on disk.

    Attributes:
        subscriptions: the subscriptions by their ids.
        consumers: the consumers of queues, each of which is called when the connection is lost.
        acknowledges: whether the application acknowledged messages of a queue by `acknowledge`.
        ack_watches: the timers that look whether messages of a queue are acknowledged, by the id of
            their subscription.
        turned_s: time, by `time.monotonic`, at which the event loop was last known to run: a frame
            that has come since may have waited in the socket from then on.
        error: the error that ended the client; None: it has not failed.
        refusals: the reason why the last attempt at an address failed, by address.
        opened_s: time, by the loop's clock, at which the last stream was open.
        settled_waiters: (sequence, future) of each caller that waits until the sequence is settled.
        room_waiters: the future of each caller that waits for room in the store.

    Owner: one event loop.
    """

    _gathering: asyncio.TimerHandle | None = None
    _pump_again: asyncio.TimerHandle | None = None
    _bookmark_flush: asyncio.TimerHandle | None = None
    store_failure: StorageError | None = None
    _warned_of = ""

    def __init__(
        self,
        machine: ClientMachine,
        store: PublishStoreProtocol,
        bookmark_store: BookmarkStoreProtocol | None,
        *,
        resolver: Resolver | None,
        tls: TlsConfig | ssl.SSLContext | None,
        tracer: Tracer | None,
        callbacks: ClientCallbacks,
        bookmark_flush_s: float,
    ) -> None:
        self.name = machine.options.client_name
        self.machine = machine
        self.outbox = machine.outbox
        self.store = store
        self.bookmark_store = bookmark_store
        self.tracer = tracer
        self.callbacks = callbacks
        self._resolver = resolver
        self._tls = tls
        self._bookmark_flush_s = bookmark_flush_s
        self.publishes_a_turn = PUBLISHES_A_TURN
        self.loop: asyncio.AbstractEventLoop | None = None
        self.connection: Connection | None = None
        self.opened_s = 0.0
        self._opening: asyncio.Task[None] | None = None
        self._resolving: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_s: float | None = None
        self.pump_scheduled = False
        self.connected: asyncio.Future[None] | None = None
        self.settled_waiters: list[tuple[int, asyncio.Future[None]]] = []
        self.room_waiters: list[asyncio.Future[None]] = []
        self.subscribing: dict[str, asyncio.Future[None]] = {}
        self.subscriptions: dict[str, Subscription] = {}
        self.consumers: set[LeaseHolder] = set()
        self.acknowledges = False
        self.ack_watches: dict[str, asyncio.TimerHandle] = {}
        self.turned_s = 0.0
        self._subscription_number = self._asked_number = self._arrivals = 0
        self._asking: dict[int, asyncio.Future[None]] = {}
        self._commanding: dict[int, asyncio.Future[tuple[Header, bytes]]] = {}
        self._congested: set[str] = set()
        self._waiting_for_server = 0
        self.error: RaylayError | None = None
        self.refusals: dict[str, str] = {}
        self._performers: dict[type[Any], Callable[[Any], None]] = {
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
            CommandAnswered: self._command_answered,
            Notify: self._tell,
            Fail: self._fail,
        }
        guard(self)

    def _forked(self, error: ForkedClient) -> None:
        self.error = error
        self.outbox.ended = True
        self.machine.state = ClientState.ENDED

    async def shut_down(self) -> None:
        """Ends the connection, the timers and all waiting calls, and flushes the stores."""
        if self.loop is None:
            # It was never connected: there is nothing to end but its state.
            self.machine.step(ClientStopped(), 0.0)
        elif self.machine.state is not ClientState.ENDED:
            self.step(ClientStopped())
        if self._timer is not None:
            self._timer.cancel()
        tasks = [task for task in (self._opening, self._resolving) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for watch in self.ack_watches.values():
            watch.cancel()
        for timer in (self._pump_again, self._gathering, self._bookmark_flush):
            if timer is not None:
                timer.cancel()
        for subscription in list(self.subscriptions.values()):
            subscription.settle()
            subscription.end(self.error)
        self.subscriptions.clear()
        self._fail_waiters(self.error or ConnectionLost(f"client {self.name} is closed"))
        self.store.flush()
        if self.bookmark_store is not None:
            self.bookmark_store.flush()

    @property
    def status(self) -> str:
        """Returns the state of the client, as text."""
        return self.machine.status

    def next_subscription_number(self) -> int:
        """Returns a number for the id of a subscription that the application has not named."""
        self._subscription_number += 1
        return self._subscription_number

    async def answer_to(self, request: Callable[[int], Event]) -> None:
        """Feeds an event that is made with the request's number, and waits for its answer.

        Raises:
            CommandFailed: the server refused it.
            RaylayError: what ended the client.
        """
        loop = self.own_loop()
        self._asked_number = number = self._asked_number + 1
        answered = self._asking[number] = loop.create_future()
        try:
            self.step(request(number))
            await self.while_reading(answered, None)
        finally:
            self._asking.pop(number, None)

    async def command(self, header: Header, body: bytes = b"") -> tuple[Header, bytes]:
        """Sends a command that is answered once, and returns header and body of the answer.

        Raises:
            CommandFailed: the server refused it.
            ConnectionLost: no server answered; the command may have been performed.
            LocalProtocolError: a value cannot be sent; nothing was.
        """
        loop = self.own_loop()
        try:
            encode_front(header, len(body))
        except (ValueError, TypeError, OverflowError) as error:
            raise LocalProtocolError(
                f"a value of the command {header['c']} cannot be sent: {error}"
            ) from None
        self._asked_number = number = self._asked_number + 1
        answered = self._commanding[number] = loop.create_future()
        try:
            self.step(CommandWanted(number, header, body))
            self._waiting_for_server += 1
            self.update_reading()
            try:
                found: tuple[Header, bytes] = await answered
                return found
            finally:
                self._waiting_for_server -= 1
                self.update_reading()
        finally:
            self._commanding.pop(number, None)

    async def while_reading(self, waiter: asyncio.Future[None], timeout_s: float | None) -> None:
        """Awaits an answer of the server. Reading goes on meanwhile, whatever the queues hold: the
        task that waits may be the one whose slowness would stop it, and wait for ever."""
        self._waiting_for_server += 1
        self.update_reading()
        try:
            async with asyncio.timeout(timeout_s):
                await waiter
        finally:
            self._waiting_for_server -= 1
            self.update_reading()

    # -- the machine's effects --------------------------------------------------------------------
    def step(self, event: Event) -> None:
        """Feeds an event to the machine, and performs the effects."""
        assert self.loop is not None
        performers = self._performers
        effects: list[Effect] = self.machine.step(event, self.loop.time())
        for effect in effects:
            performers[type(effect)](effect)
        due_s = self.machine.wake_s
        if due_s != self._timer_due_s:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_due_s = due_s
            self._timer = None if due_s is None else self.loop.call_at(due_s, self._wake)

    @ends_client
    def _perform(self, event: Event) -> None:
        """Feeds an event where no caller can get the errors."""
        self.step(event)

    @ends_client
    def _wake(self) -> None:
        self._timer = self._timer_due_s = None
        self.step(TimePassed())

    def _received(self, connection: Connection, frames: list[Frame]) -> None:
        if connection is not self.connection:
            return
        assert self.loop is not None
        machine = self.machine
        outbox = self.outbox
        outbox.heard_s = self.loop.time()
        outbox.wall_us = time.time_ns() // 1000
        try:
            for header, body in frames:
                if header["c"] == "p":
                    batch = machine.arrived(header, body)
                    if batch is not None:
                        if self.callbacks.on_arrival is not None:
                            self._call(self.callbacks.on_arrival, batch)
                        subscription = self.subscriptions.get(batch.subscription_id)
                        if subscription is not None:
                            self._arrivals = batch.arrival = self._arrivals + 1
                            if batch.lease_s:
                                batch.lease_end_s = self.turned_s + batch.lease_s * LEASE_PART
                            if batch.queue and subscription.lacks_acks:
                                self._watch_acks(subscription, batch)
                            subscription.put(batch)
                elif header["c"] in GROUPED:
                    self._put_grouped(machine.grouped(header, body))
                else:
                    self.step(FrameReceived(connection.number, header, body))
                    if connection is not self.connection:
                        return
        except BAD_VALUES as error:
            # The frame's values violate the protocol, so later frames cannot be trusted, either.
            connection.abort()
            reason = f"bad_frame: {type(error).__name__}: {error}"
            self._stream_ended(connection, reason, False)
        except Exception as error:
            self.end_by(error)

    def _watch_acks(self, subscription: Subscription, batch: MessageBatch) -> None:
        """Begins to look whether the first messages of a queue that an ordinary subscription was
        given are acknowledged."""
        assert self.loop is not None
        subscription.lacks_acks = False
        held_s = batch.lease_s or UNACKNOWLEDGED_S
        self.ack_watches[subscription.id] = self.loop.call_later(
            held_s, self._check_acks, subscription, UnacknowledgedMessages(batch.queue, held_s)
        )

    @ends_client
    def _check_acks(self, subscription: Subscription, event: UnacknowledgedMessages) -> None:
        del self.ack_watches[subscription.id]
        # A client that acknowledges messages itself knows how.
        if not self.acknowledges and self.subscriptions.get(subscription.id) is subscription:
            self._tell(Notify(event))

    def _put_grouped(self, batches: list[MessageBatch]) -> None:
        for batch in batches:
            subscription = self.subscriptions.get(batch.subscription_id)
            if subscription is not None:
                self._arrivals = batch.arrival = self._arrivals + 1
                subscription.put(batch)

    @ends_client
    def _stream_ended(self, connection: Connection, reason: str, lasting: bool) -> None:
        if connection is self.connection:
            self.connection = None
            reason = reason.removeprefix(f"{self.machine.address}: ")
            self.step(ConnectionEnded(connection.number, reason, lasting))

    def _resolve_servers(self, _: ResolveServers) -> None:
        assert self.loop is not None
        self._resolving = self.loop.create_task(self._look_up())

    async def _look_up(self) -> None:
        assert self._resolver is not None
        servers: list[Server] | None = None
        try:
            found = self._resolver()
            if inspect.isawaitable(found):
                found = await found
            servers = list(map(as_server, found))
        except Exception as error:  # the caller's code: the last answer stays valid
            self.refusals["look-up of servers"] = f"{type(error).__name__}: {error}"
        self._perform(ServersResolved(servers))

    def _connect_to(self, effect: Connect) -> None:
        assert self.loop is not None
        self._opening = self.loop.create_task(self._open(effect.connection, effect.address))

    async def _open(self, number: int, address: str) -> None:
        make = partial(Connection, number, self._received, self._stream_ended, self.pump)
        try:
            connection = await open_connection(address, make, self._tls)
        except (OSError, ValueError) as error:
            reason = self.refusals[address] = failure_text(error, address)
            lasting = isinstance(error, TlsError) and error.lasting
            self._perform(ConnectionEnded(number, reason, lasting))
            return
        except Exception as error:  # no caller waits for this task
            self.end_by(error)
            return
        if number != self.machine.connection:
            connection.abort()
            return
        self.connection = connection
        assert self.loop is not None
        self.opened_s = self.loop.time()
        self._perform(ConnectionOpened(number))

    def _disconnect(self, effect: DropStream) -> None:
        connection = self.connection
        self.connection = None
        if connection is not None:
            connection.abort()
        elif self._opening is not None and self._opening is not asyncio.current_task():
            self._opening.cancel()

    def _send_frame(self, effect: SendFrame) -> None:
        if self.connection is not None:
            self.connection.send(effect.header, effect.body)

    def _send_publishes(self, _: SendPublishes) -> None:
        self.pump()

    def pump(self) -> None:
        """Sends publishes, frame by frame, as long as the socket takes them."""
        self.pump_scheduled = False
        began_s = time.perf_counter()
        try:
            self.store.flush()
            self.store_failure = None
            slow = time.perf_counter() - began_s > SLOW_FLUSH_S
            self.publishes_a_turn = PUBLISHES_A_SLOW_TURN if slow else PUBLISHES_A_TURN
            connection = self.connection
            if connection is None:
                return
            next_batch = self.outbox.next_batch
            while connection.writable:
                batch = next_batch(PUBLISH_FRAME_BYTES)
                if batch is None:
                    break
                records, header = batch.records, batch.header()
                records.insert(0, encode_front(header, sum(map(len, records))))
                connection.write(b"".join(records))
            if self.outbox.gathering is (self._gathering is None):
                self._time_gathering()
        except StorageError as error:
            self._store_failed(error)
        except Exception as error:
            self.end_by(error)

    def _time_gathering(self) -> None:
        """Starts or stops the timer that runs while publishes are gathered."""
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None
        else:
            assert self.loop is not None
            self._gathering = self.loop.call_later(GATHERING_S_MAX, self._gathered)

    @ends_client
    def _gathered(self) -> None:
        """Sends gathered publishes, because no answer came within the allowed time."""
        self._gathering = None
        self.hurry()

    def hurry(self) -> None:
        """Sends everything published so far, without waiting for answers: now, or in this turn of
        the loop."""
        gathered = self.outbox.gathering
        self.outbox.hurry()
        if gathered:
            self.pump()

    def _store_failed(self, error: StorageError) -> None:
        """Handles a store that could not keep records: nothing unkept is sent, and the write is
        tried again later, or the client ends."""
        if not error.retriable:
            self._fail(Fail(error))
            return
        assert self.loop is not None
        if self._pump_again is not None:
            self._pump_again.cancel()
        self._pump_again = self.loop.call_later(STORE_RETRY_S, self.pump)
        self.store_failure = error
        self._tell(Notify(StoreFailed(error)))

    def _on_settled(self, effect: Settled) -> None:
        if self.settled_waiters:
            waiting = self.settled_waiters
            self.settled_waiters = [pair for pair in waiting if pair[0] > effect.upto]
            for upto, waiter in waiting:
                if upto <= effect.upto and not waiter.done():
                    waiter.set_result(None)
        if self.room_waiters and not self.store.full:
            waiters, self.room_waiters = self.room_waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)
        if self.tracer is not None:
            self.tracer.publish_persisted(effect.upto)
        if self.callbacks.on_persisted is not None:
            self._call(self.callbacks.on_persisted, effect.upto)

    def _subscription_accepted(self, effect: SubscriptionAccepted) -> None:
        answered = self.subscribing.get(effect.subscription_id)
        if answered is not None and not answered.done():
            answered.set_result(None)
        subscription = self.subscriptions.get(effect.subscription_id)
        if subscription is not None and effect.have is not None:
            subscription.put_persisted(effect.have)

    def _subscription_persisted(self, effect: SubscriptionPersisted) -> None:
        subscription = self.subscriptions.get(effect.subscription_id)
        if subscription is not None:
            subscription.put_persisted(effect.have)

    def _subscription_completed(self, effect: SubscriptionCompleted) -> None:
        subscription = self.subscriptions.get(effect.subscription_id)
        if subscription is not None:
            subscription.caught_up.set()
            if effect.ended:
                del self.subscriptions[effect.subscription_id]
                subscription.end()

    def _query_interrupted(self, effect: QueryInterrupted) -> None:
        query = self.subscriptions.get(effect.subscription_id)
        if isinstance(query, SowQuery):
            query.interrupted()

    def _replace_answered(self, effect: ReplaceAnswered) -> None:
        subscription = self.subscriptions.get(effect.subscription_id)
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

    def _command_answered(self, effect: CommandAnswered) -> None:
        answered = self._commanding.get(effect.number)
        if answered is None or answered.done():
            return
        if effect.error is not None:
            answered.set_exception(effect.error)
        else:
            answered.set_result((effect.header, effect.body))

    def _subscription_failed(self, effect: SubscriptionFailed) -> None:
        subscription = self.subscriptions.pop(effect.subscription_id, None)
        answered = self.subscribing.get(effect.subscription_id)
        if answered is not None and not answered.done():
            answered.set_exception(effect.error)
        elif subscription is not None:
            subscription.end(effect.error)

    def _tell(self, effect: Notify) -> None:
        event = effect.event
        if isinstance(event, Connected):
            if self.connected is not None and not self.connected.done():
                self.connected.set_result(None)
            self.update_reading()
        elif isinstance(event, Disconnected):
            for consumer in self.consumers:
                consumer.disconnected()
            self.update_reading()
            said = f"{event.reason}: {event.text}"
            if event.reason in RECORDS_REFUSED and said != self._warned_of:
                self._warned_of = said
                _LOG.warning(
                    "%s ended the connection of client %s, which sends its publishes again: %s",
                    event.instance,
                    self.name,
                    said,
                )
        elif isinstance(event, LoopBlocked):
            _LOG.warning(
                "the event loop of client %s stood still for %.1f s, longer than its heartbeat of "
                "%g s: the instance takes it for dead, and messages of queues that it holds are "
                "handled twice. Run what blocks with asyncio.to_thread, or use SyncClient",
                self.name,
                event.blocked_s,
                self.machine.options.heartbeat_s,
            )
        elif isinstance(event, UnacknowledgedMessages):
            _LOG.warning(
                "client %s subscribes to queue %s and has not acknowledged its message for %g s: "
                "an ordinary subscription acknowledges nothing, and is given no further message "
                "until it has room. Consume the queue with client.queue(%r), or call "
                "client.acknowledge for each message",
                self.name,
                event.queue,
                event.held_s,
                event.queue,
            )
        elif isinstance(event, ServerRefused):
            self.refusals[event.address] = event.reason
        elif isinstance(event, PublishFailed):
            if self.tracer is not None:
                self.tracer.publish_failed(event.sequence, event.error.reason)
            if self.callbacks.on_publish_failed is not None:
                self._call(self.callbacks.on_publish_failed, event)
        if self.callbacks.on_event is not None:
            self._call(self.callbacks.on_event, event)

    def end_by(self, error: Exception) -> None:
        """Ends the client by an unexpected error: all waiting calls get ClientFailed."""
        failed = ClientFailed(
            f"client {self.name} ended by an error of its own: {type(error).__name__}: {error}"
        )
        failed.__cause__ = error
        self._fail(Fail(failed))

    def _fail(self, effect: Fail) -> None:
        self.error = effect.error
        if self.machine.state is not ClientState.ENDED:
            self.step(ClientStopped(failed=True))
        self._fail_waiters(effect.error)
        for subscription in list(self.subscriptions.values()):
            subscription.end(effect.error)
        self.subscriptions.clear()

    def _fail_waiters(self, error: RaylayError) -> None:
        waiters: list[asyncio.Future[Any]] = [waiter for _, waiter in self.settled_waiters]
        waiters += self.room_waiters
        waiters += self.subscribing.values()
        waiters += self._asking.values()
        waiters += self._commanding.values()
        if self.connected is not None and isinstance(error, RaylayError):
            waiters.append(self.connected)
        self.settled_waiters.clear()
        self.room_waiters.clear()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_exception(error)
                waiter.exception()  # marks the error as retrieved, where nothing awaits it any more

    def _call(self, callback: Callable[[Any], None], value: object) -> None:
        try:
            callback(value)
        except Exception as error:  # the caller's code must not end the connection
            assert self.loop is not None
            self.loop.call_exception_handler(
                {"message": f"a callback of client {self.name} failed", "exception": error}
            )

    def raise_if_unusable(self) -> None:
        """Raises the error that ended the client, ConnectionLost where it is closed, or
        LocalProtocolError where it was not connected yet."""
        if self.error is not None:
            raise self.error
        if self.machine.state is ClientState.ENDED:
            raise ConnectionLost(f"client {self.name} is closed")
        if self.loop is None:
            raise LocalProtocolError(
                f"client {self.name} is not connected: await `connect()` first, or use the client "
                "in `async with`"
            )

    def own_loop(self) -> asyncio.AbstractEventLoop:
        """Returns the event loop that the client belongs to, which is the one that connected it.

        Raises:
            RaylayError: what ended the client.
            LocalProtocolError: it was not connected yet, or the caller runs on another loop.
        """
        self.raise_if_unusable()
        assert self.loop is not None
        if asyncio.get_running_loop() is not self.loop:
            raise foreign_loop(self.name)
        return self.loop

    # -- reading and bookmarks --------------------------------------------------------------------
    @ends_client
    def _flush_bookmarks(self) -> None:
        self._bookmark_flush = None
        assert self.bookmark_store is not None
        try:
            self.bookmark_store.flush()
        except StorageError as error:
            # Messages that were not written are delivered again, rather than lost.
            self._flush_bookmarks_in(max(self._bookmark_flush_s, STORE_RETRY_S))
            self._tell(Notify(StoreFailed(error)))

    def _flush_bookmarks_in(self, seconds: float) -> None:
        if self.loop is not None:
            self._bookmark_flush = self.loop.call_later(seconds, self._flush_bookmarks)

    def bookmarks_changed(self) -> None:
        """Lets the bookmark store be flushed, now or a little later."""
        if self._bookmark_flush is not None:
            return
        if self._bookmark_flush_s:
            self._flush_bookmarks_in(self._bookmark_flush_s)
        else:
            # The bookmarks are stored before the consumer gets the next message.
            self._flush_bookmarks()

    def congestion_changed(self, subscription: Subscription) -> None:
        """Stops or resumes reading when a subscription's queue became full, or has room again."""
        if subscription.congested:
            self._congested.add(subscription.id)
        else:
            self._congested.discard(subscription.id)
        self.update_reading()

    def update_reading(self) -> None:
        """Reads from the connection, unless a queue is full and no call waits for the server."""
        machine = self.machine
        paused = (
            bool(self._congested)
            and not self._waiting_for_server
            and machine.state is ClientState.READY
        )
        if paused is not machine.reading_paused:
            machine.reading_paused = paused
            if not paused and self.loop is not None:
                self.outbox.heard_s = self.loop.time()
        if self.connection is not None:
            self.connection.set_reading(not paused)

    def server_attributes(self) -> dict[str, Any]:
        """Returns address and port of the present server, for spans."""
        address = self.machine.chooser.current_address
        if not address:
            return {}
        host, port = split_address(address)
        return {"server_address": host} | ({"server_port": port} if port else {})

    def tell_tracer(self, batch: MessageBatch) -> None:
        """Tells the tracer of the traced messages of a delivery."""
        assert self.tracer is not None
        beside = {"instance": self.machine.instance, "subscription": batch.subscription_id}
        beside |= self.server_attributes()
        beside |= {"queue": batch.queue} if batch.queue else {}
        for message in batch.traced_messages():
            self.tracer.delivered(
                message.trace,
                {
                    "bookmark": message.bookmark,
                    "topic": message.topic,
                    "body_bytes": len(message.body),
                    **beside,
                },
                batch.timestamp_us * 1000,
                time.time_ns(),
            )
