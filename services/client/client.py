"""The asyncio client: performs what the machine decides, and keeps no decisions of its own."""

from __future__ import annotations

import asyncio
import inspect
import os
import random
import struct
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Protocol

from raylay.services.client.connection import Connection, open_connection, split_address
from raylay.services.client.events import (
    ClientEvent,
    Connect,
    Connected,
    ConnectionEnded,
    ConnectionOpened,
    Disconnect,
    Disconnected,
    Effect,
    Event,
    Fail,
    FrameReceived,
    PauseAnswered,
    PauseWanted,
    PublishFailed,
    ResolveServers,
    ResumeWanted,
    SendFrame,
    SendPublishes,
    ServerRefused,
    ServersResolved,
    Settled,
    Started,
    Stopped,
    StoreFailed,
    SubscriptionAccepted,
    SubscriptionCompleted,
    SubscriptionFailed,
    SubscriptionPersisted,
    SubscriptionUnwanted,
    SubscriptionWanted,
    Tell,
    TimePassed,
)
from raylay.services.client.failover import FailoverRule, Server, as_server
from raylay.services.client.machine import ClientMachine, ClientOptions, PublishStore, State
from raylay.services.client.messages import MessageBatch
from raylay.services.client.resumption import BookmarkStore, Resumption
from raylay.services.client.subscription import Subscription
from raylay.services.errors import (
    ConfigurationError,
    ConnectionLost,
    LocalProtocolError,
    NoSafeInstance,
    PublishStoreFull,
    RaylayError,
    StorageError,
)
from raylay.services.messages.records import decode_record, publisher_id
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
STORE_RETRY_S = 1.0

ServerLike = Server | str | Mapping[str, Any]
Resolver = Callable[[], Sequence[ServerLike] | Awaitable[Sequence[ServerLike]]]


def _check_owner(store: PublishStore, client_name: str) -> None:
    """Raises ConfigurationError when the store holds publishes of another client name."""
    held = next(store.replay(store.lowest), None) if store.messages else None
    if held is not None and decode_record(held[1]).publisher != publisher_id(client_name):
        raise ConfigurationError(
            f"the publish store given to client {client_name} holds publishes of another client "
            "name: give each name its own store"
        )


def _listed(client_name: str, servers: Iterable[ServerLike]) -> tuple[Server, ...]:
    found = tuple(map(as_server, servers))
    if not found:
        raise ConfigurationError(f"client {client_name} has no servers: list one or give a look-up")
    for server in found:
        try:
            split_address(server.address)
        except ValueError as error:
            # Here, not at the first attempt: what cannot be an address would be tried for long.
            raise ConfigurationError(f"client {client_name}: {error}") from None
    return found


def _sample_every(sampling_ratio: float) -> int:
    """One publish in how many is sampled; 0: none."""
    if not 0 <= sampling_ratio <= 1:
        raise ConfigurationError(f"sampling_ratio is {sampling_ratio}: give one of 0 to 1")
    return round(1 / sampling_ratio) if sampling_ratio else 0


class Tracer(Protocol):
    """What the client tells about its sampled messages (ClientTracer in telemetry/tracing.py)."""

    def publish_started(self, sequence: int, topic: str) -> bytes:
        """Begins the trace of a publish; the 25 bytes of trace context that its record carries."""

    def publish_persisted(self, sequence: int) -> None:
        """Every publish up to this sequence is durable. Called once an ack."""

    def publish_failed(self, sequence: int, reason: str) -> None:
        """The server refused this publish."""

    def delivered(
        self, trace: bytes, attributes: dict[str, Any], start_ns: int = 0, end_ns: int = 0
    ) -> None:
        """A sampled message reached its consumer."""


class Client:
    """A connection to a fabric that outlives connections: publishes, subscribes, fails over.

        async with Client("orders-desk", servers=["host-a:9007", "host-b:9007"]) as client:
            await client.publish("orders", b"{}")
            await client.flush()

    Args:
        name: the client name; it makes the publisher id. Two live clients of one name throw each
            other out.
        servers: addresses in order of preference, or a callable (plain or async) that looks them
            up before each round of attempts.
        group: only instances of this group are used; empty: any that `servers` lists, and their
            peers of the same group.
        allow_other_groups: use other groups' instances as well.
        failover: `safe` (default) goes only to instances that the last one called safe; `any`.
        publish_store: what is published and not durable yet; in memory when not given.
        bookmark_store: what bookmark subscriptions have seen; not given: for as long as this
            client lives.
        heartbeat_s: a server that is silent as long is left; 0: never.
        publish_timeout_s: how long `publish` waits for room in the store.
        connect_wait_s: how long `connect` tries before it gives up.
        bookmark_flush_ms: what was seen is on disk after as long at most; a crash brings back what
            was not.
        ack_conflation_ms: upper bound by which the server may delay acks to merge them.
        sampling_ratio: share of publishes that `tracer` is told of.
        on_event: called for each ClientEvent, on the event loop; must not block.
        on_persisted: called with the highest settled sequence, once an ack.
        on_publish_failed: called for each refused publish. Without it `flush` raises the error.

    Raises:
        ConfigurationError: there is no server, an address is none, a value is out of range.

    Owner: one event loop; not thread-safe (SyncClient is).
    """

    def __init__(
        self,
        name: str,
        servers: Sequence[ServerLike] | Resolver = (),
        *,
        group: str = "",
        allow_other_groups: bool = False,
        failover: FailoverRule = "safe",
        publish_store: PublishStore | None = None,
        bookmark_store: BookmarkStore | None = None,
        user_id: str = "",
        password: str = "",
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
        known = () if callable(servers) else _listed(name, servers)
        store = publish_store if publish_store is not None else MemoryPublishStore()
        _check_owner(store, name)
        self.name = name
        self.on_event = on_event
        self.on_persisted = on_persisted
        self.on_publish_failed = on_publish_failed
        self._store = store
        # A store that the caller gave outlives this client, and what it holds with it.
        self._owns_store = publish_store is None
        self._pump_again: asyncio.TimerHandle | None = None
        self._bookmark_flush: asyncio.TimerHandle | None = None
        self._bookmark_store = bookmark_store
        self._machine = ClientMachine(
            ClientOptions(
                client_name=name,
                servers=known,
                resolves=self._resolver is not None,
                group=group,
                allow_other_groups=allow_other_groups,
                failover=failover,
                user_id=user_id,
                password=password,
                heartbeat_s=heartbeat_s,
                ack_conflation_ms=ack_conflation_ms,
                connect_timeout_s=connect_timeout_s,
                pause_min_ms=pause_min_ms,
                pause_max_ms=pause_max_ms,
                clock_us=time.time_ns() // 1000,
                seed=int.from_bytes(os.urandom(8), "little"),
            ),
            store,
        )
        self._bookmark_flush_s = bookmark_flush_ms / 1000
        self._connect_wait_s = connect_wait_s
        self._publish_timeout_s = publish_timeout_s
        self.close_timeout_s = close_timeout_s
        self._tracer = tracer
        self._sample_every = _sample_every(sampling_ratio) if tracer is not None else 0
        # At a random place of the first round, so that clients of few messages are sampled too.
        self._until_sample = self._sample_every and 1 + random.randrange(self._sample_every)
        self._publishes_a_turn = PUBLISHES_A_TURN
        self._until_yield = PUBLISHES_A_TURN
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

    def _make_performers(self) -> dict[type[Any], Callable[[Any], None]]:
        return {
            ResolveServers: self._resolve_servers,
            Connect: self._connect_to,
            Disconnect: self._disconnect,
            SendFrame: self._send_frame,
            SendPublishes: self._send_publishes,
            Settled: self._on_settled,
            SubscriptionAccepted: self._subscription_accepted,
            SubscriptionPersisted: self._subscription_persisted,
            SubscriptionCompleted: self._subscription_completed,
            PauseAnswered: self._pause_answered,
            SubscriptionFailed: self._subscription_failed,
            Tell: self._tell,
            Fail: self._fail,
        }

    # -- life --------------------------------------------------------------------------------
    async def connect(self) -> None:
        """Connects and logs on. Returns once a server has accepted the client.

        Raises:
            LogonRefused: a server refused the client for good.
            ConnectionLost: no server accepted it within `connect_wait_s`.
        """
        if self._loop is not None:
            raise LocalProtocolError(f"client {self.name} was started before: make a new one")
        self._loop = asyncio.get_running_loop()
        self._connected = self._loop.create_future()
        self._step(Started())
        try:
            await asyncio.wait_for(asyncio.shield(self._connected), self._connect_wait_s)
        except TimeoutError:
            await self._shut_down()
            tried = "; ".join(f"{where}: {why}" for where, why in self._refusals.items())
            raise ConnectionLost(
                f"client {self.name} found no server in {self._connect_wait_s} s ({tried})"
            ) from None
        except BaseException:
            await self._shut_down()
            raise

    async def close(self, *, flush: bool = True, timeout_s: float | None = None) -> None:
        """Ends the client. With `flush` it first waits until everything published is durable, up
        to `timeout_s` (`close_timeout_s` when not given).

        Raises:
            ConnectionLost: something published is not known durable, and the store in memory ends
                with this client. A store that was handed in keeps it for the next client.
        """
        unsettled = 0
        if timeout_s is None:
            timeout_s = self.close_timeout_s
        try:
            if flush and self._error is None and self._machine.state is not State.ENDED:
                try:
                    await self._until_settled(timeout_s)
                except TimeoutError:
                    unsettled = self._store.messages
        finally:
            await self._shut_down()
        if unsettled and self._owns_store:
            raise ConnectionLost(
                f"client {self.name} closed with {unsettled} publishes that were not acknowledged "
                f"within {timeout_s} s"
            )

    async def _shut_down(self) -> None:
        if self._machine.state is not State.ENDED:
            self._step(Stopped())
        if self._timer is not None:
            self._timer.cancel()
        tasks = [task for task in (self._opening, self._resolving) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for timer in (self._pump_again, self._bookmark_flush):
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

    async def __aenter__(self) -> Client:
        await self.connect()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close(flush=error is None)

    # -- what can be asked -------------------------------------------------------------------
    @property
    def machine(self) -> ClientMachine:
        """The decisions and their state, for inspection."""
        return self._machine

    @property
    def instance(self) -> str:
        """The instance that the client is logged on to; empty while there is none."""
        return self._machine.instance

    @property
    def publisher(self) -> int:
        """The publisher id."""
        return self._machine.publisher

    @property
    def last_sequence(self) -> int:
        """The newest publish's sequence."""
        return self._machine.next_sequence - 1

    @property
    def persisted_sequence(self) -> int:
        """Every publish up to this sequence is durable, or was refused."""
        return self._machine.settled_upto

    @property
    def status(self) -> str:
        """Where the client stands, in words."""
        return self._machine.status

    def trust(self, instance: str) -> None:
        """Allows to fail over to an instance that another called unsafe. For a person who knows
        that the other is gone for good."""
        self._machine.trust(instance)

    # -- publishing --------------------------------------------------------------------------
    def publish_nowait(
        self,
        topic: str,
        body: bytes,
        message_type: str = "json",
        *,
        expiration_s: int = 0,
        key: bytes = b"",
        correlation: bytes = b"",
    ) -> int:
        """Publishes without waiting. Returns the sequence; it is sent in this turn of the loop.

        Raises:
            PublishStoreFull: there is no room in the store; nothing was published.
            LocalProtocolError: topic, message type or size break a limit; nothing was published.
        """
        trace = b""
        if self._until_sample:
            self._until_sample -= 1
            if not self._until_sample:
                trace = self._sample(topic)
        try:
            sequence = self._machine.publish(
                topic,
                body,
                message_type,
                time.time_ns() // 1000,
                trace,
                expiration_s,
                key,
                correlation,
            )
        except RaylayError as error:
            if trace and self._tracer is not None:
                self._tracer.publish_failed(self._machine.next_sequence, str(error))
            raise self._error or error from None
        if not self._pump_scheduled:
            self._pump_scheduled = True
            assert self._loop is not None
            self._loop.call_soon(self._pump)
        return sequence

    async def publish(
        self,
        topic: str,
        body: bytes,
        message_type: str = "json",
        *,
        expiration_s: int = 0,
        key: bytes = b"",
        correlation: bytes = b"",
    ) -> int:
        """Publishes. Returns the sequence at once; waits only for room in the store.

        Raises:
            PublishStoreFull: no room within `publish_timeout_s`; nothing was published.
            LocalProtocolError: topic, message type or size break a limit; nothing was published.
        """
        try:
            sequence = self.publish_nowait(
                topic,
                body,
                message_type,
                expiration_s=expiration_s,
                key=key,
                correlation=correlation,
            )
        except PublishStoreFull:
            deadline_s = time.monotonic() + self._publish_timeout_s
            while True:
                await self.room(deadline_s - time.monotonic())
                try:
                    return self.publish_nowait(
                        topic,
                        body,
                        message_type,
                        expiration_s=expiration_s,
                        key=key,
                        correlation=correlation,
                    )
                except PublishStoreFull:
                    continue
        self._until_yield -= 1
        if not self._until_yield:
            self._until_yield = self._publishes_a_turn
            await asyncio.sleep(0)
        return sequence

    async def room(self, timeout_s: float | None = None) -> None:
        """Waits until the publish store has room; `publish_timeout_s` when no time is given.

        Raises:
            PublishStoreFull: it stayed full.
            RaylayError: what ended the client.
        """
        if timeout_s is None:
            timeout_s = self._publish_timeout_s
        deadline_s = time.monotonic() + timeout_s
        while self._store.full:
            self._raise_if_ended()
            assert self._loop is not None
            waiter = self._loop.create_future()
            self._room_waiters.append(waiter)
            try:
                await self._while_reading(waiter, max(0.0, deadline_s - time.monotonic()))
            except TimeoutError:
                raise PublishStoreFull(
                    f"publish store of {self.name} stayed full with {self._store.messages} "
                    f"messages: no acknowledgment made room within {timeout_s:.3g} s; {self.status}"
                ) from None

    async def flush(self, timeout_s: float | None = None) -> None:
        """Waits until everything published so far is durable.

        Raises:
            CommandFailed: a publish was refused, and there is no `on_publish_failed` to tell. Each
                refusal is raised once; `SequenceConflict` is one kind.
            TimeoutError: not within `timeout_s`.
            RaylayError: what ended the client.
        """
        await self._until_settled(timeout_s)
        failures = self._machine.failures
        if failures and self.on_publish_failed is None:
            raise failures.popleft().error

    async def _until_settled(self, timeout_s: float | None) -> None:
        target = self._machine.next_sequence - 1
        if target <= self._machine.settled_upto:
            return
        self._raise_if_ended()
        assert self._loop is not None
        waiter = self._loop.create_future()
        self._settled_waiters.append((target, waiter))
        if self._machine.options.ack_conflation_ms and self._connection is not None:
            # Somebody waits: the server need not keep the ack back any longer.
            self._pump()
            self._connection.send({"c": "flush", "cid": "flush", "a": "persisted"})
        await self._while_reading(waiter, timeout_s)

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

    def _sample(self, topic: str) -> bytes:
        self._until_sample = self._sample_every
        machine = self._machine
        if self._tracer is None or self._store.full or not machine.next_sequence:
            return b""
        return self._tracer.publish_started(machine.next_sequence, topic)

    def _pump(self) -> None:
        """Sends what was published, frame by frame, for as long as the socket takes it."""
        self._pump_scheduled = False
        began_s = time.perf_counter()
        try:
            self._store.flush()
        except StorageError as error:
            self._store_failed(error)
            return
        slow = time.perf_counter() - began_s > SLOW_FLUSH_S
        self._publishes_a_turn = PUBLISHES_A_SLOW_TURN if slow else PUBLISHES_A_TURN
        connection = self._connection
        if connection is None:
            return
        next_batch = self._machine.next_batch
        while connection.writable:
            batch = next_batch(PUBLISH_FRAME_BYTES)
            if batch is None:
                return
            records = batch.records
            header = {"c": "pb", "n": len(records)}
            records.insert(0, encode_front(header, sum(map(len, records))))
            connection.write(b"".join(records))

    def _store_failed(self, error: StorageError) -> None:
        """Nothing is sent that the store could not keep: later again, or never."""
        if not error.retriable:
            self._fail(Fail(error))
            return
        assert self._loop is not None
        if self._pump_again is not None:
            self._pump_again.cancel()
        self._pump_again = self._loop.call_later(STORE_RETRY_S, self._pump)
        self._tell(Tell(StoreFailed(error)))

    # -- subscriptions -----------------------------------------------------------------------
    async def subscribe(
        self,
        topic: str,
        *,
        message_type: str = "",
        bookmark: str = "",
        bookmark_not_found: str = "",
        subscription_id: str = "",
        explicit_discard: bool = False,
        fully_durable: bool = False,
        live: bool = False,
        rate: str = "",
        rate_max_gap: str = "",
        pause: bool = False,
        persisted_ms: int | None = None,
        queue_bytes_max: int = QUEUE_BYTES_MAX_DEFAULT,
        timeout_s: float = 30.0,
        **options: Any,
    ) -> Subscription:
        """Subscribes to a topic, or to the topics that a regular expression matches.

        Args:
            topic: literal, or a regular expression where it has regex characters.
            message_type: only messages of this type; empty: any.
            bookmark: where to start in the log: `EPOCH`, `NOW`, a bookmark, a list, a time or a
                range (services/messages/bookmarks.py). Empty: an ordinary subscription, whose
                messages are not replayed. What the bookmark store knows of this subscription id
                goes before: then it resumes there.
            bookmark_not_found: `now`, `epoch` or `fail`.
            subscription_id: the name under which the bookmark store remembers; made from topic and
                type when it is not given.
            explicit_discard: messages count as seen by `Subscription.discard` only.
            fully_durable: messages come only once every sync destination has them as well; while
                one is down, none come, until it is downgraded.
            live: at the end of the log messages come before they are on disk. Not with the others
                of these options.
            rate: at most so much: `500` messages a second, `500KB` of records a second, `2X` or
                `.5X` the speed at which the instance received them.
            rate_max_gap: with a multiple of the original speed, the longest idle: `10s`.
            pause: nothing comes until `resume`.
            persisted_ms: the longest pause between two persisted acks.
            queue_bytes_max: bytes that wait for the consumer before reading stops.
            timeout_s: for the server's answer.
            options: further options of the protocol's `subscribe`.

        Raises:
            CommandFailed: the server refused, with its reason (`bad_regex`, `not_journaled`, …).
            BookmarkNotFound: with `bookmark_not_found="fail"`.
            ConnectionLost: no server answered within `timeout_s`; NoSafeInstance where the only
                ones left must not be failed over to.
        """
        self._raise_if_ended()
        assert self._loop is not None, "connect first"
        if persisted_ms is not None:
            options["persisted_ms"] = persisted_ms
        given = {
            "bookmark_not_found": bookmark_not_found,
            "rate": rate,
            "rate_max_gap": rate_max_gap,
            "fully_durable": fully_durable,
            "live": live,
        }
        options.update((key, value) for key, value in given.items() if value)
        if not subscription_id:
            self._subscription_number += 1
            subscription_id = (
                f"{topic}|{message_type}"
                if bookmark and self._bookmark_store is not None
                else f"sub-{self._subscription_number}"
            )
        resumption = Resumption(
            subscription_id,
            topic,
            message_type,
            bookmark,
            options,
            self._bookmark_store,
            explicit_discard=explicit_discard,
            paused=pause,
        )
        subscription = Subscription(
            resumption,
            queue_bytes_max,
            self._congestion_changed,
            self._unsubscribe,
            self._bookmarks_changed if bookmark and self._bookmark_store is not None else None,
            self._tell_tracer if self._tracer is not None else None,
        )
        await self._begin(subscription, resumption, timeout_s)
        return subscription

    async def _begin(
        self, subscription: Subscription, resumption: Resumption, timeout_s: float
    ) -> None:
        """Asks for a subscription and waits for the answer."""
        assert self._loop is not None, "connect first"
        subscription_id = subscription.id
        if subscription_id in self._subscriptions:
            raise LocalProtocolError(
                f"subscription id {subscription_id!r} is in use: give each its own",
                "sub_id_in_use",
            )
        answered = self._loop.create_future()
        self._subscribing[subscription_id] = answered
        self._subscriptions[subscription_id] = subscription
        self._step(SubscriptionWanted(resumption))
        try:
            await self._while_reading(answered, timeout_s)
        except BaseException as error:
            subscription.unsubscribe()
            if isinstance(error, TimeoutError):
                kind = NoSafeInstance if self._machine.waits_for_safe_instance else ConnectionLost
                raise kind(
                    f"no answer to the subscribe of {subscription.topic!r} within {timeout_s} s: "
                    f"{self.status}"
                ) from None
            raise
        finally:
            self._subscribing.pop(subscription_id, None)

    async def pause(self, *subscriptions: Subscription) -> None:
        """Has the server deliver no more of these until `resume`. What is on its way, and what is
        queued here, still comes. It holds across reconnects.

        Raises:
            LocalProtocolError: one has ended, has no bookmark, or is live; nothing was changed.
            CommandFailed: the server refused it.
        """
        await self._ask(PauseWanted, subscriptions)

    async def resume(self, *subscriptions: Subscription) -> None:
        """Goes on with paused subscriptions. Those of one call that have the same bookmark and
        rate are one replay: what they get stands in the order of the log across them too, also
        after a reconnect (`Merged` reads them in that order).

        Raises:
            LocalProtocolError: one has ended or is not paused; nothing was changed.
            CommandFailed: the server refused it.
        """
        await self._ask(ResumeWanted, subscriptions)

    async def _ask(
        self,
        kind: type[PauseWanted] | type[ResumeWanted],
        subscriptions: Sequence[Subscription],
    ) -> None:
        self._raise_if_ended()
        if not subscriptions:
            return
        assert self._loop is not None, "connect first"
        self._asked_number = number = self._asked_number + 1
        answered = self._asking[number] = self._loop.create_future()
        try:
            self._step(kind(number, tuple(dict.fromkeys(one.id for one in subscriptions))))
            await self._while_reading(answered, None)
        finally:
            self._asking.pop(number, None)

    def _unsubscribe(self, subscription: Subscription) -> None:
        if self._subscriptions.pop(subscription.id, None) is not None:
            self._step(SubscriptionUnwanted(subscription.id))

    def _bookmarks_changed(self) -> None:
        if self._bookmark_flush is None and self._loop is not None:
            self._bookmark_flush = self._loop.call_later(
                self._bookmark_flush_s, self._flush_bookmarks
            )

    def _flush_bookmarks(self) -> None:
        self._bookmark_flush = None
        assert self._bookmark_store is not None
        try:
            self._bookmark_store.flush()
        except StorageError as error:
            self._tell(Tell(StoreFailed(error)))
            self._bookmarks_changed()

    def _congestion_changed(self, subscription: Subscription) -> None:
        if subscription.congested:
            self._congested.add(subscription.id)
        else:
            self._congested.discard(subscription.id)
        self._update_reading()

    def _update_reading(self) -> None:
        machine = self._machine
        paused = (
            bool(self._congested) and not self._waiting_for_server and machine.state is State.READY
        )
        if paused is not machine.reading_paused:
            machine.reading_paused = paused
            if not paused and self._loop is not None:
                machine.heard_s = self._loop.time()
        if self._connection is not None:
            self._connection.set_reading(not paused)

    def _tell_tracer(self, batch: MessageBatch) -> None:
        assert self._tracer is not None
        for message in batch.traced_messages():
            self._tracer.delivered(
                message.trace,
                {
                    "bookmark": message.bookmark,
                    "topic": message.topic,
                    "instance": self._machine.instance,
                    "subscription": batch.subscription_id,
                },
                batch.timestamp_us * 1000,
                time.time_ns(),
            )

    # -- between machine and sockets ---------------------------------------------------------
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

    def _wake(self) -> None:
        self._timer = self._timer_due_s = None
        self._step(TimePassed())

    def _received(self, connection: Connection, frames: list[Frame]) -> None:
        if connection is not self._connection:
            return
        assert self._loop is not None
        machine = self._machine
        machine.heard_s = self._loop.time()
        try:
            for header, body in frames:
                if header["c"] == "p":
                    batch = machine.arrived(header, body)
                    if batch is not None:
                        subscription = self._subscriptions.get(batch.subscription_id)
                        if subscription is not None:
                            self._arrivals = batch.arrival = self._arrivals + 1
                            subscription.put(batch)
                else:
                    self._step(FrameReceived(connection.number, header, body))
                    if connection is not self._connection:
                        return
        except (AttributeError, KeyError, TypeError, ValueError, struct.error) as error:
            # A frame whose values are not what the protocol says. What follows cannot be trusted.
            connection.abort()
            self._stream_ended(connection, f"bad_frame: {type(error).__name__}: {error}")

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
        self._step(ServersResolved(servers))

    def _connect_to(self, effect: Connect) -> None:
        assert self._loop is not None
        self._opening = self._loop.create_task(self._open(effect.connection, effect.address))

    async def _open(self, number: int, address: str) -> None:
        make = partial(Connection, number, self._received, self._stream_ended, self._pump)
        try:
            connection = await open_connection(address, make)
        except (OSError, ValueError) as error:
            self._refusals[address] = str(error)
            self._step(ConnectionEnded(number, str(error)))
            return
        if number != self._machine.connection:
            connection.abort()
            return
        self._connection = connection
        self._step(ConnectionOpened(number))

    def _disconnect(self, effect: Disconnect) -> None:
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

    def _pause_answered(self, effect: PauseAnswered) -> None:
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

    def _tell(self, effect: Tell) -> None:
        event = effect.event
        if isinstance(event, Connected):
            if self._connected is not None and not self._connected.done():
                self._connected.set_result(None)
            self._update_reading()
        elif isinstance(event, Disconnected):
            self._update_reading()
        elif isinstance(event, ServerRefused):
            self._refusals[event.address] = event.reason
        elif isinstance(event, PublishFailed):
            if self._tracer is not None:
                self._tracer.publish_failed(event.sequence, event.error.reason)
            if self.on_publish_failed is not None:
                self._call(self.on_publish_failed, event)
        if self.on_event is not None:
            self._call(self.on_event, event)

    def _fail(self, effect: Fail) -> None:
        self._error = effect.error
        if self._machine.state is not State.ENDED:
            self._step(Stopped())
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
        if self._machine.state is State.ENDED:
            raise ConnectionLost(f"client {self.name} is closed")
