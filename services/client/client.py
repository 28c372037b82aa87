"""The asyncio client, the class that applications use."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from types import TracebackType
from typing import Any

from raylay.services.client.arguments import (
    Resolver,
    ServerLike,
    Tls,
    check_owner,
    checks_options,
    listed,
    sow_keys,
    texts,
    usable,
)
from raylay.services.client.body_decoder import Value, body_decoder
from raylay.services.client.events import ClientEvent, PublishFailed
from raylay.services.client.failover import FailoverRule
from raylay.services.client.keywords import checks_keywords
from raylay.services.client.lifecycle import ClientLifecycle
from raylay.services.client.machine import ClientOptions, client_machine
from raylay.services.client.messages import MessageBatch
from raylay.services.client.named_readers import EXPIRES_S_DEFAULT, ReaderCommands
from raylay.services.client.publishing.body_writer import Body, body_bytes
from raylay.services.client.publishing.deletes import delete_body, delete_in_parts
from raylay.services.client.publishing.publish_store import PublishStoreProtocol
from raylay.services.client.publishing.publisher import Publisher
from raylay.services.client.queues.queue import ACK_BATCH, Acknowledging, QueueOperations, Settling
from raylay.services.client.queues.queue_consumer import AckMode, QueueConsumer
from raylay.services.client.runtime import (
    QUEUE_BYTES_MAX_DEFAULT,
    ClientCallbacks,
    ClientRuntime,
)
from raylay.services.client.subscriptions.durable import DurableSubscriptions, place_client
from raylay.services.client.subscriptions.durable_place import DurableTerms
from raylay.services.client.subscriptions.sow_query import SowQuery
from raylay.services.client.subscriptions.subscriber import Subscriber
from raylay.services.client.subscriptions.subscription import Subscription
from raylay.services.client.subscriptions.subscription_state import BookmarkStoreProtocol
from raylay.services.client.tracer import Tracer
from raylay.services.errors import PublishStoreFull
from raylay.services.messages.records import Command
from raylay.storage.stores import MemoryPublishStore

DELTA_PUBLISH = 6
ROWS_A_FRAME = 100
"""Number of rows in one frame of a query by default: a frame costs more than a row."""
SAMPLING_RATIO_DEFAULT = 0.001


class Client:
    """A connection to a fabric that outlives connections: publishes, subscribes, fails over.

        async with Client("orders-desk", servers=["host-a:9007", "host-b:9007"]) as client:
            await client.publish("orders", b"{}")
            await client.flush()

    Args:
        name: the client name, from which the publisher id is made. Where a second client of the
            same name logs on to the instance, the first one ends with LogonRefused (`name_in_use`).
        servers: one server, or several in order of preference, each as `host:port`, a Server or a
            mapping with `address`; or a callable (plain or async) that looks them up before each
            round of attempts.
        group: only instances of this group are used; empty: any that `servers` lists, and their
            peers of the same group.
        allow_other_groups: whether instances of other groups are used as well.
        failover: `safe` (default): the client uses only the instance that it used last, and
            instances that the last report of every instance it has heard calls safe; `any`: it uses
            any instance.
        publish_store: keeps the client's publishes until they are durable; default: in memory.
        bookmark_store: remembers which messages bookmark subscriptions have received; by default in
            memory, as long as this client lives.
        tls: TLS options: a TlsConfig, or a mapping of its values (`ca_file`, `certificate`,
            `private_key`, `server_name`, …); True: TLS with the system's CAs; None: no TLS.
        heartbeat_s: seconds after which a silent server counts as dead; 0: never.
        publish_timeout_s: seconds for which `publish` waits for room in the store.
        connect_wait_s: seconds for which `connect` tries before it gives up.
        bookmark_flush_ms: milliseconds after which received messages are written to the bookmark
            store, at most; a crash delivers the unwritten ones again. 0: written before the
            consumer gets the next batch, or after each `discard`, at the cost of a synced write
            each.
        ack_conflation_ms: milliseconds by which the server may delay acks to merge them, at most.
        sampling_ratio: share of publishes that are reported to `tracer`, from 0 to 1.
        on_event: called for each ClientEvent, on the event loop; must not block.
        on_persisted: called with the highest settled sequence, once for each ack.
        on_publish_failed: called for each refused publish. Without this callback, `flush` raises
            the error.
        on_arrival: called with each batch of messages for a subscription or a consumer of a queue,
            when it arrives; the application may get it much later.

    Raises:
        ConfigurationError: there is no server, an address is not valid, a value is out of range, or
            a file of `tls` cannot be used.

    Owner: one event loop; not thread-safe (SyncClient is).
    """

    @checks_keywords
    @checks_options
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
        resolver = servers if callable(servers) else None
        store = publish_store if publish_store is not None else MemoryPublishStore()
        check_owner(store, name)
        self.name = name
        self.close_timeout_s = close_timeout_s
        self.machine = client_machine(
            ClientOptions(
                client_name=name,
                servers=() if callable(servers) else listed(name, servers),
                resolves=resolver is not None,
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
                owns_store=publish_store is None,
                seed=int.from_bytes(os.urandom(8), "little"),
            ),
            store,
        )
        """The decisions and their state, for inspection."""
        self.runtime = runtime = ClientRuntime(
            self.machine,
            store,
            bookmark_store,
            resolver=resolver,
            tls=usable(tls, name),
            tracer=tracer,
            callbacks=ClientCallbacks(on_event, on_persisted, on_publish_failed, on_arrival),
            bookmark_flush_s=bookmark_flush_ms / 1000,
        )
        """Connections and waiting commands, for inspection and for drills."""
        self._publisher = Publisher(runtime, sampling_ratio, publish_timeout_s)
        self._subscriber = Subscriber(runtime)
        self._queues = QueueOperations(runtime, self._publisher, self._subscriber)
        self.readers = ReaderCommands(runtime)
        self._durable = DurableSubscriptions(
            *(runtime, self._subscriber, self.readers),
            partial(place_client, Client, self.machine.options, tls),
        )
        parts = runtime, self._publisher, self._queues, self._durable
        self._lifecycle = ClientLifecycle(*parts, connect_wait_s)

    async def connect(self) -> None:
        """Connects and logs on. Returns once a server has accepted the client.

        Raises:
            LogonRefused: a server refused the client for good.
            NoUsableServer: TLS or its certificates fit at none of the servers.
            ConnectionLost: no server accepted it within `connect_wait_s`.
        """
        await self._lifecycle.connect()

    @checks_keywords
    async def close(self, *, flush: bool = True, timeout_s: float | None = None) -> None:
        """Ends the client. With `flush` it first waits until everything published is durable, up
        to `timeout_s` (`close_timeout_s` when not given).

        Raises:
            ConnectionLost: something published is not known durable, and the store in memory ends
                with this client. A store that was handed in keeps it for the next client.
        """
        await self._lifecycle.close(flush, self.close_timeout_s if timeout_s is None else timeout_s)

    # -- publishing --------------------------------------------------------------------------
    def publish_nowait(
        self,
        topic: str,
        body: Body,
        message_type: str = "json",
        *,
        expiration_s: int = 0,
        key: bytes = b"",
        correlation: bytes = b"",
        command: int = 0,
    ) -> int:
        """Publishes without waiting. Returns the sequence. The message is sent in this turn of the
        loop, or with the answer to the messages published just before (publishing/outbox.py).

        Args:
            topic: name of the topic, never an expression.
            body: bytes of the message; a text, which is sent in UTF-8; or a mapping, a msgspec
                Struct, a dataclass, an attrs object or a pydantic model, which is written by the
                message type: a built-in one but `binary`, or one that the fabric defines.
            message_type: message type of the body.
            expiration_s: seconds after which the message's record expires in a SOW topic that has
                an `expiration`; 0: as the topic is configured.
            key: SOW key, on a topic whose publishers give the key.
            correlation: correlation id, which every recipient of the message gets.
            command: command of the record; 0: a publish; others: `services/messages/records.py`.

        Raises:
            PublishStoreFull: there is no room in the store; nothing was published.
            LocalProtocolError: an argument or the size breaks a limit; nothing was published.
            MessageTypeError: the message type cannot write the body; nothing was published.
            TypeError: an argument is of the wrong type; nothing was published.
        """
        return self._publisher.publish_now(
            topic, body, message_type, expiration_s, key, correlation, command
        )

    async def publish(
        self,
        topic: str,
        body: Body,
        message_type: str = "json",
        *,
        expiration_s: int = 0,
        key: bytes = b"",
        correlation: bytes = b"",
        command: int = 0,
    ) -> int:
        """Publishes. Returns the sequence at once; waits only for room in the store. The arguments
        and errors are those of `publish_nowait`: `await client.publish("orders", {"id": 1})`.

        Raises:
            PublishStoreFull: no room within `publish_timeout_s`; nothing was published.
        """
        publisher = self._publisher
        try:
            sequence = publisher.publish_now(
                topic, body, message_type, expiration_s, key, correlation, command
            )
        except PublishStoreFull:
            return await publisher.publish_when_room(
                topic, body, message_type, expiration_s, key, correlation, command
            )
        publisher.until_yield -= 1
        if not publisher.until_yield:
            await publisher.yield_to_loop()
        return sequence

    async def publish_many(
        self,
        topic: str,
        bodies: Iterable[Body],
        message_type: str = "json",
        *,
        expiration_s: int = 0,
        keys: Sequence[bytes] | None = None,
        correlation: bytes = b"",
    ) -> list[int]:
        """Publishes several messages on one topic, in order, at less cost for each than `publish`.
        Returns the sequence of each: all are durable when `persisted_sequence` reaches the last
        one, and `PublishFailed.sequence` names one that is refused. Waits for room in the store,
        for up to `publish_timeout_s` each time. All bodies are in memory together.

        Args:
            bodies: bodies, each as in `publish_nowait`.
            keys: SOW key of each message, on a topic whose publishers give the key.
            expiration_s, correlation: of each message, as in `publish_nowait`.

        Raises:
            PublishStoreFull: no room; the error says how many messages were published.
            LocalProtocolError, MessageTypeError, TypeError: as in `publish_nowait`; the error names
                the message, and none was published.
        """
        given = topic, bodies, message_type, expiration_s, keys, correlation
        return await self._publisher.publish_many(*given)

    async def delta_publish(
        self,
        topic: str,
        body: Body,
        message_type: str = "json",
        *,
        expiration_s: int = 0,
        key: bytes = b"",
        correlation: bytes = b"",
    ) -> int:
        """Publishes fields that change: the instance merges them into the record of their key, and
        journals, replicates and delivers the whole message. Where there is no record yet, or the
        topic has no SOW, the body is the message. Returns and raises as `publish`.

        `flush` raises CommandFailed where the instance could not merge it: `bad_message`,
        `bad_key`, `too_large`, or `not_supported` by the message type or the topic.
        """
        return await self.publish(
            topic,
            body,
            message_type,
            expiration_s=expiration_s,
            key=key,
            correlation=correlation,
            command=DELTA_PUBLISH,
        )

    async def sow_delete(
        self,
        topic: str,
        *,
        filter: str | None = None,
        keys: Sequence[bytes] | None = None,
        data: Body | None = None,
        message_type: str = "json",
    ) -> int:
        """Deletes records of a SOW topic: here, and wherever the topic is replicated to. Give one
        of `filter`, `keys` and `data`, or a filter with keys, which deletes the records of these
        keys that pass. Returns and raises as `publish`; the delete is kept, sent again and
        acknowledged as a publish is.

        Args:
            filter: deletes the records that pass the filter; `1=1`: all. Up to 50,000 records: see
                `sow_delete_in_parts`.
            keys: deletes the records with these SOW keys (`Message.key`).
            data: deletes the record with the key that a message with this body would have; given as
                the body of `publish_nowait`.
            message_type: message type of the topic, and of `data`.

        Raises:
            LocalProtocolError: none or several of the three are given; nothing was deleted. `flush`
                raises CommandFailed where the instance refused the delete: `no_sow`, `bad_filter`,
                `bad_message`, `bad_key`, `too_many`.
        """
        types = self.runtime.machine.types
        given = None if data is None else body_bytes(data, topic, message_type, types)
        body = delete_body(filter, keys, given)
        return await self.publish(topic, body, message_type, command=Command.DELETE)

    async def sow_delete_in_parts(
        self, topic: str, *, filter: str, message_type: str = "json"
    ) -> int:
        """Deletes the records of a SOW topic that pass a filter, however many there are. Up to
        50,000 records this is one `sow_delete`. For more, the client queries the keys and deletes
        them in parts of 1,000, each time only the records that still pass. So the deletion is not
        of one moment: records that come to pass meanwhile may stay, and after an error some records
        are deleted; then call it again.

        It first waits until everything that this client has published is durable, so that those
        records are included. The deletes are publishes: `flush` waits for them, and raises
        refusals.

        Returns:
            how many deletes were published.

        Raises:
            CommandFailed: the server refused the query: `no_sow`, `bad_filter`, `not_supported`.
            ConnectionLost: the connection was lost in the middle of it.
            PublishStoreFull: no room within `publish_timeout_s`.
        """
        await self._publisher.until_settled(None)
        return await delete_in_parts(self, topic, filter, message_type)

    @checks_keywords
    async def room(self, timeout_s: float | None = None) -> None:
        """Waits until the publish store has room, for `publish_timeout_s` when no time is given.

        Raises:
            PublishStoreFull: it stayed full.
            RaylayError: what ended the client.
        """
        await self._publisher.room(timeout_s)

    @checks_keywords
    async def flush(self, timeout_s: float | None = None) -> None:
        """Waits until everything published so far is durable. A message on a topic that is declared
        as not journaled counts when it was delivered (`unjournaled_messages`). Acknowledgments of
        queue messages that are held back are published first.

        Raises:
            CommandFailed: a publish was refused, and there is no `on_publish_failed` to tell: its
                topic is `not_journaled`, say. Each refusal is raised once; `SequenceConflict` is
                one kind.
            FlushTimeout: not everything is durable within `timeout_s`; the error says which
                publishes are not acknowledged, and why.
            RaylayError: what ended the client.
        """
        self._queues.publish_acks()
        await self._publisher.flush(timeout_s)

    # -- subscribing and querying --------------------------------------------------------------
    @checks_keywords
    async def subscribe(
        self,
        topic: str,
        *,
        message_type: str = "",
        filter: str = "",
        select: str = "",
        bookmark: str = "",
        bookmark_not_found: str = "",
        subscription_id: str = "",
        durable: str = "",
        durable_expires_s: int = EXPIRES_S_DEFAULT,
        oof: bool = False,
        delta: bool = False,
        no_empties: bool = False,
        no_sowkey: bool = False,
        explicit_discard: bool = False,
        fully_durable: bool = False,
        live: bool = False,
        rate: str = "",
        rate_max_gap: str = "",
        pause: bool = False,
        persisted_ms: int | None = None,
        non_regex_topic: bool = False,
        max_backlog: int | None = None,
        conflation: str = "",
        conflation_key: Sequence[str] = (),
        type: type[Value] | None = None,
        queue_bytes_max: int = QUEUE_BYTES_MAX_DEFAULT,
        timeout_s: float = 30.0,
    ) -> Subscription[Value]:
        """Subscribes to a topic, or to the topics that a regular expression matches.

        Args:
            topic: name of a topic, or a regular expression. Consume a queue with `queue` instead.
            message_type: only messages of this type are delivered; empty: any type.
            filter: only messages that pass this filter are delivered (docs/filters.md): `/price >
                100`.
            select: the fields that are sent: `[-/,+/price]`.
            oof, delta, no_empties, no_sowkey: options for SOW topics, as in `sow_and_subscribe`.
            bookmark: start in the log: `EPOCH`, `NOW`, a bookmark, a list, a time or a range
                (services/messages/bookmarks.py). Empty: an ordinary subscription, whose messages
                are not replayed. Where the bookmark store knows this subscription id, the
                subscription resumes there instead.
            bookmark_not_found: what to do where the log lacks the bookmark: `now`, `epoch` or
                `fail`.
            subscription_id: name under which the bookmark store keeps the subscription; by default
                made from topic, type and filter. A subscription with another filter needs another
                name.
            durable: name under which the instances keep the place of the subscription: it goes on
                from there in a later process, at whichever instance, and messages come again rather
                than never (docs/clients.md). An unknown name begins at `bookmark`, or with the
                first message in the log.
            durable_expires_s: seconds after which an instance forgets a place of which it hears
                nothing; until then it keeps the messages.
            explicit_discard: whether messages count as received only by `Subscription.discard`.
            fully_durable: whether messages are delivered only once every sync destination has them,
                too. While a destination is down and not downgraded, none is delivered.
            live: whether messages at the end of the log are delivered before they are on disk. Not
                together with the other options of this kind.
            rate: limit on the speed: `500` messages a second, `500KB` of records a second, `2X` or
                `.5X` of the speed at which the instance received them.
            rate_max_gap: longest pause, such as `10s`, where `rate` is a multiple of the original
                speed.
            pause: whether the subscription begins paused, until `resume`.
            persisted_ms: longest time between two persisted acks, in milliseconds.
            non_regex_topic: whether `topic` is a name even if it has characters of an expression.
            max_backlog: most messages that may be leased at one time, on a queue (see `queue`).
            conflation: interval, such as `1s`, at most once in which a record, or a key, is sent,
                with its last value; `auto`: messages are conflated only while the consumer does not
                keep up (docs/views.md).
            conflation_key: the fields that make the key, such as `/symbol`; by default the record's
                SOW key. Needed on topics without SOW.
            type: type of `Message.json`: Struct, dataclass, TypedDict, pydantic model; None: plain.
            queue_bytes_max: bytes that may wait for the consumer before reading stops.
            timeout_s: seconds to wait for the server's answer.

        Raises:
            CommandFailed: the server refused, with its reason (`bad_filter`, …).
            BookmarkNotFound: with `bookmark_not_found="fail"`.
            ConnectionLost: no server answered in time; NoSafeInstance: those left are not safe.
            LocalProtocolError: `type` is none, or `durable` is the name of a subscription to
                something else. TypeError: an argument is misspelt, or of a wrong type.
        """
        options = self._subscriber.given(
            select=select,
            oof=oof,
            delta=delta,
            no_empties=no_empties,
            no_sowkey=no_sowkey,
            non_regex_topic=non_regex_topic,
            bookmark_not_found=bookmark_not_found,
            rate=rate,
            rate_max_gap=rate_max_gap,
            fully_durable=fully_durable,
            live=live,
            filter=filter,
            persisted_ms=persisted_ms,
            max_backlog=max_backlog,
            conflation=conflation,
            conflation_key=texts("conflation_key", conflation_key),
        )
        if durable:
            terms = DurableTerms(durable, topic, message_type, filter, durable_expires_s)
            given = bookmark, subscription_id, options, explicit_discard, pause
            return await self._durable.subscribe(terms, *given, queue_bytes_max, timeout_s, type)
        what = topic, message_type, filter, bookmark, subscription_id
        state = self._subscriber.subscription(*what, options, explicit_discard, pause)
        return await self._subscriber.subscribe(state, queue_bytes_max, timeout_s, type)

    async def pause(self, *subscriptions: Subscription) -> None:
        """Stops the server's deliveries for these subscriptions until `resume`. Messages on their
        way, and those queued here, are still handed out. The pause stays through reconnects.

        Raises:
            LocalProtocolError: one has ended, has no bookmark, or is live; nothing was changed.
            CommandFailed: the server refused it.
        """
        await self._subscriber.pause(subscriptions)

    async def resume(self, *subscriptions: Subscription) -> None:
        """Continues paused subscriptions. Those of one call that have the same bookmark and rate
        form one replay: their deliveries are in the order of the log across them, too, also after a
        reconnect (`Merged` reads them in that order).

        Raises:
            LocalProtocolError: one has ended or is not paused; nothing was changed.
            CommandFailed: the server refused it.
        """
        await self._subscriber.resume(subscriptions)

    @checks_keywords
    def sow(
        self,
        topic: str,
        *,
        message_type: str = "",
        filter: str = "",
        order_by: str = "",
        top_n: int | None = None,
        skip_n: int = 0,
        select: str = "",
        keys: Sequence[bytes] | None = None,
        as_of: str = "",
        projection: Sequence[str] = (),
        grouping: Sequence[str] = (),
        non_regex_topic: bool = False,
        batch: int = ROWS_A_FRAME,
        type: type[Value] | None = None,
        queue_bytes_max: int = QUEUE_BYTES_MAX_DEFAULT,
        timeout_s: float = 30.0,
    ) -> SowQuery[Value]:
        """Asks for the records of a SOW topic: `async for row in client.sow("orders")`, or `rows =
        await client.sow("orders").all()`. The query is sent, and may be refused, when the first row
        is asked for (`SowQuery`).

        Args:
            topic: name of a topic, or a regular expression.
            message_type: only topics of this type are queried; empty: any type.
            filter: only records that pass this filter are returned (docs/filters.md).
            order_by: order of the rows, such as `/price DESC, /symbol`; empty: no order that may be
                relied on.
            top_n, skip_n: most rows that are returned, and number of rows that are left out in
                front of them.
            select: the fields that are sent: `[-/,+/price]`.
            keys: only records with these SOW keys are returned.
            as_of: time of the past state that is queried, on a topic with history:
                `20260102T030405Z`.
            projection: fields of an aggregated query, such as `AVG(/delay) AS /delay`: it returns
                one row for each group of records (docs/views.md).
            grouping: fields by which it groups records; none: each record is a row.
            batch: most rows in a frame.
            type: the type that `Message.json` returns, as in `subscribe`.
            queue_bytes_max: bytes that may wait for the consumer before reading stops.
            non_regex_topic: `topic` is a literal name, whatever characters it has.
            timeout_s: seconds to wait for the server's answer.

        Raises:
            LocalProtocolError: `type` is none. TypeError: a misspelt or wrong argument.
        """
        given = self._subscriber.given(
            filter=filter,
            order_by=order_by,
            top_n=top_n,
            skip_n=skip_n or None,
            select=select,
            keys=sow_keys(keys),
            as_of=as_of,
            projection=texts("projection", projection),
            grouping=texts("grouping", grouping),
            non_regex_topic=non_regex_topic,
            batch=batch,
        )
        what = topic, message_type, given
        return self._subscriber.query(*what, queue_bytes_max, timeout_s, type)

    @checks_keywords
    async def sow_and_subscribe(
        self,
        topic: str,
        *,
        message_type: str = "",
        filter: str = "",
        order_by: str = "",
        top_n: int | None = None,
        skip_n: int = 0,
        select: str = "",
        keys: Sequence[bytes] | None = None,
        projection: Sequence[str] = (),
        grouping: Sequence[str] = (),
        conflation: str = "",
        conflation_key: Sequence[str] = (),
        oof: bool = False,
        delta: bool = False,
        no_empties: bool = False,
        no_sowkey: bool = False,
        batch: int = ROWS_A_FRAME,
        bookmark: str = "",
        bookmark_not_found: str = "",
        fully_durable: bool = False,
        rate: str = "",
        rate_max_gap: str = "",
        persisted_ms: int | None = None,
        non_regex_topic: bool = False,
        subscription_id: str = "",
        type: type[Value] | None = None,
        queue_bytes_max: int = QUEUE_BYTES_MAX_DEFAULT,
        timeout_s: float = 30.0,
    ) -> Subscription[Value]:
        """Queries the records of a SOW topic, then delivers every change of them: no change between
        is lost, and none comes twice. The `kind` of a message is `sow` for a record of the query,
        `publish` for a change, and `oof` for a record that left. `group_end` is set when all
        records have come.

        After a failover it goes on at another instance: of that instance's records, only those that
        the consumer does not hold are handed out (services/client/subscriptions/delivered_rows.py).
        For this the client keeps about 200 bytes for each record.

        Args:
            top_n, skip_n: the subscription is a page: a window of `top_n` rows behind the first
                `skip_n`, in the order `order_by`, which the server keeps. Changes come only of
                rows in the window. A row that comes into it is sent; of one that leaves it, the
                consumer hears with `oof`. `Subscription.replace` turns the page.
            projection, grouping: the subscription follows groups of records, as a view does; see
                `sow`.
            conflation, conflation_key: as in `subscribe`; the rows of the query are not conflated.
            oof: whether records that are deleted or expired, or do not pass the filter any more,
                are reported as messages of kind `oof` with a `reason`.
            delta: whether changes come with only the key fields and the changed fields.
            no_empties: whether a delta leaves out the fields that a record has lost.
            no_sowkey: whether deltas come without the SOW key.
            bookmark: position in the log: a time, a bookmark, a list, a range, `EPOCH`. On a topic
                with history, the query returns the records as they were at this position, and every
                later message follows. On other topics, and with `NOW`, it returns the present
                records. Deletions are not reported, and `oof`, `delta`, `select` and `keys` cannot
                be combined with it. After a failover and, with a bookmark store, after a restart,
                the subscription goes on exactly where it was, without rows (`SowReplay`).
            bookmark_not_found: action where the log lacks the bookmark: `now`, `epoch` or `fail`.
            subscription_id: id of the subscription; by default a new one, or with a bookmark store
                one that is made from topic, type and filter.
            fully_durable, rate, rate_max_gap, persisted_ms: options of a bookmark subscription, as
                in `subscribe`.
            type: as in `subscribe`. A notice that a record left (`oof`) may have no body.
            the others: as in `sow`.

        Raises:
            CommandFailed: the server refused, with its reason (`bad_filter`, …).
            BookmarkNotFound: with `bookmark_not_found="fail"`.
            ConnectionLost: no server answered in time; NoSafeInstance: those left are not safe.
            LocalProtocolError: the id is in use, or JSON cannot be parsed into `type`.
            TypeError: an argument is misspelt, or of a wrong type.
        """
        options = self._subscriber.given(
            filter=filter,
            order_by=order_by,
            top_n=top_n,
            skip_n=skip_n or None,
            select=select,
            keys=sow_keys(keys),
            projection=texts("projection", projection),
            grouping=texts("grouping", grouping),
            conflation=conflation,
            conflation_key=texts("conflation_key", conflation_key),
            oof=oof,
            delta=delta,
            no_empties=no_empties,
            no_sowkey=no_sowkey,
            batch=batch,
            bookmark_not_found=bookmark_not_found,
            fully_durable=fully_durable,
            rate=rate,
            rate_max_gap=rate_max_gap,
            persisted_ms=persisted_ms,
            non_regex_topic=non_regex_topic,
        )
        what = topic, message_type, filter, bookmark, subscription_id
        asked = self._subscriber.query_subscription(*what, options)
        return await self._subscriber.query_and_subscribe(asked, queue_bytes_max, timeout_s, type)

    @checks_keywords
    async def delta_subscribe(
        self,
        topic: str,
        *,
        message_type: str = "",
        filter: str = "",
        select: str = "",
        oof: bool = False,
        no_empties: bool = False,
        no_sowkey: bool = False,
        conflation: str = "",
        conflation_key: Sequence[str] = (),
        non_regex_topic: bool = False,
        subscription_id: str = "",
        type: type[Value] | None = None,
        queue_bytes_max: int = QUEUE_BYTES_MAX_DEFAULT,
        timeout_s: float = 30.0,
    ) -> Subscription[Value]:
        """Subscribes to the changes of the records of a SOW topic, each with the key fields and the
        changed fields. Arguments and errors are those of `subscribe`; a delta subscription has no
        bookmark."""
        return await self.subscribe(
            topic,
            message_type=message_type,
            filter=filter,
            select=select,
            oof=oof,
            delta=True,
            no_empties=no_empties,
            no_sowkey=no_sowkey,
            conflation=conflation,
            conflation_key=conflation_key,
            non_regex_topic=non_regex_topic,
            subscription_id=subscription_id,
            type=type,
            queue_bytes_max=queue_bytes_max,
            timeout_s=timeout_s,
        )

    # -- queues --------------------------------------------------------------------------------
    @checks_keywords
    def queue(
        self,
        name: str,
        *,
        message_type: str = "",
        filter: str = "",
        backlog: int = 1,
        ack: AckMode = "auto",
        batch: int = ACK_BATCH,
        type: type[Value] | None = None,
        timeout_s: float = 30.0,
    ) -> QueueConsumer[Value]:
        """A consumer of a queue: `async with client.queue("work", backlog=100) as work:` (see
        `QueueConsumer`).

        Args:
            name: name of the queue.
            message_type: message type of the queue, where there are queues of this name for
                several; empty: the first.
            filter: only messages that pass this filter are delivered (docs/filters.md).
            backlog: number of messages that the consumer holds unacknowledged at one time, at most;
                the queue may allow fewer.
            ack: `auto`: a message is acknowledged when the next one is asked for; `manual`: by the
                application.
            batch: number of acknowledgments that are sent together, at most. They are held back for
                at most 10 ms, and not while there is nothing else to do.
            type: as in `subscribe`. `expire` takes a message out of the queue that does not fit.
            timeout_s: seconds to wait for the server's answer.

        Raises:
            LocalProtocolError: a value is out of its range. When it is entered: CommandFailed where
                the server refused (`no_queue`, `bad_filter`, …).
        """
        return QueueConsumer(
            self._queues,
            name,
            message_type=message_type,
            filter=filter,
            backlog=backlog,
            ack=ack,
            batch=batch,
            timeout_s=timeout_s,
            decoder=body_decoder(type, f"queue {name!r}"),
        )

    @checks_keywords
    def acknowledge(
        self,
        queue: str,
        bookmarks: Iterable[str],
        *,
        message_type: str = "json",
        how: Acknowledging = "ack",
    ) -> int:
        """Acknowledges messages of a queue by their bookmarks, whichever consumer holds them; with
        strict leasing, only those that this client holds at its instance (`not_leased`). The
        acknowledgment is a publish: `flush` waits until it is durable, and raises refusals. Returns
        its sequence; the last one where it takes several records.

        Args:
            bookmarks: `Message.bookmark` of each message.
            how: `ack`, or `expire` for messages that no consumer can handle.

        Raises:
            LocalProtocolError: a value is no bookmark of a message, or `bookmarks` is empty.
            PublishStoreFull: the publish store has no room; nothing was acknowledged.
        """
        return self._queues.acknowledge(queue, bookmarks, message_type, how)

    @checks_keywords
    async def acknowledge_matching(
        self, queue: str, filter: str, *, message_type: str = "json", how: Settling = "ack"
    ) -> int:
        """Acknowledges, expires or gives back all messages of a queue that pass a filter at this
        moment; with strict leasing, only messages that the instance owns and no other client holds.
        Returns their number.

        Args:
            how: `ack`, `expire` or `cancel`.

        Raises:
            CommandFailed: the server refused: `no_queue`, `bad_filter`, `bad_command`.
            ConnectionLost: no server answered; the command may have been performed.
        """
        return await self._queues.acknowledge_matching(queue, filter, message_type, how)

    @checks_keywords
    async def queue_status(self, queue: str, *, message_type: str = "json") -> dict[str, Any]:
        """The status of a queue at the instance that the client is connected to (docs/queues.md).

        Raises:
            CommandFailed: there is no such queue: `no_queue`. ConnectionLost: no server answered.
        """
        return await self._queues.status(queue, message_type)

    # -- life and state ------------------------------------------------------------------------
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

    @property
    def status(self) -> str:
        """Returns the state of the client, as text."""
        return self.machine.status

    @property
    def instance(self) -> str:
        """Returns the name of the instance to which the client is logged on; empty: none."""
        return self.machine.instance

    @property
    def publisher(self) -> int:
        """Returns the publisher id."""
        return self.machine.outbox.publisher

    @property
    def last_sequence(self) -> int:
        """Returns the sequence of the newest publish."""
        return self.machine.outbox.next_sequence - 1

    @property
    def persisted_sequence(self) -> int:
        """Returns the sequence up to which every publish is durable, or was refused."""
        return self.machine.outbox.settled_upto

    @property
    def unjournaled_messages(self) -> int:
        """Returns the number of publishes so far that are in no transaction log: their topic is
        declared as not journaled, and they went only to the subscribers of that moment."""
        return self.machine.outbox.unjournaled

    def trust(self, instance: str) -> None:
        """Allows failover to an instance that another instance called unsafe. For an operator who
        knows that the instance that called it unsafe is gone for good."""
        self.machine.trust(instance)
