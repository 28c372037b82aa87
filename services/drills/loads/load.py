"""The load of a drill: publishers and durable subscribers in every region, and a record of what
each was told.

Everything runs on the drill's event loop. A record has one entry for each batch or acknowledgment,
not for each message.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from raylay.services.client import NOW, Client, Subscription
from raylay.services.client.events import ClientEvent, Connected, Disconnected
from raylay.services.client.messages import ranges_of
from raylay.services.client.runtime import QUEUE_BYTES_MAX_DEFAULT
from raylay.services.configuration.model import FabricSettings
from raylay.services.configuration.reserved import with_drill_topic
from raylay.services.drills.history_builder import (
    ClientNotice,
    ClientRecorder,
    SubscriberRecorder,
    now_us,
)
from raylay.services.drills.measure import AckGroup, FailoverTime
from raylay.services.drills.scenario import LoadSettings
from raylay.services.drills.verdict import PublishRecord, SequenceStretch
from raylay.services.errors import ConfigurationError, RaylayError
from raylay.services.fabric import Fabric
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.messages.records import publisher_id
from raylay.services.messages.topics import (
    DRILL_TOPIC,
    TopicMatcher,
    TopicRule,
    is_regex,
)
from raylay.storage.stores import MemoryBookmarkStore, MemoryPublishStore

TURN_S = 0.02
HEARTBEAT_S = 1.5
SLOW_HEARTBEAT_S = 10.0
"""Heartbeat interval of a client that a step may keep from reading. It is long, so that the client
is not taken for dead on a busy machine."""
WAIT_S_MAX = 180.0
TRACED_PER_S = 300.0
"""Most publishes of the whole load that are traced in a second."""
SLOW_QUEUE_BYTES = 64 * 1024
SLOW_SOCKET_BYTES = 256 * 1024
"""Size of the receive buffer of a client that a step may keep from reading. The kernel would buffer
tens of MiB for a socket that was read quickly until a moment ago, but messages that the client does
not take are to wait at its instance."""


def topic_for(settings: FabricSettings, named: str = "") -> tuple[str, str]:
    """Returns (topic, message type) of a drill's messages.

    Args:
        named: a topic of the user's own; empty: the drills' own topic.

    Raises:
        ConfigurationError: the first instance does not journal the topic, or its port for clients
            takes no message type of the topic.
    """
    if is_regex(named):
        raise ConfigurationError(f"--topic {named} is a regular expression: name one topic")
    settings = with_drill_topic(settings)
    first = settings.instances[0]
    topic = named or DRILL_TOPIC
    rules = [
        rule
        for rule in settings.topics_of(first)
        if rule.journaled and TopicMatcher((TopicRule(rule.name),)).matches(topic.encode(), b"")
    ]
    if not rules:
        raise ConfigurationError(
            f"{first.name} does not journal {topic}: a drill judges what is journaled; "
            + ("name a topic of its log" if named else "and it journals no other topic either")
        )
    taken = first.message_types
    for rule in rules:
        if rule.message_type != "*":
            if not taken or rule.message_type in taken:
                return topic, rule.message_type
        elif not taken or "json" in taken:
            return topic, "json"
        else:
            return topic, taken[0]
    raise ConfigurationError(
        f"the port of {first.name} for clients takes no messages of the types of topic {topic}: "
        f"{', '.join(rule.message_type for rule in rules)}; choose a topic of a type that it takes"
    )


@dataclass(eq=False)
class LoadPublisher:
    """One publisher of the load, and the record of its publishes."""

    name: str
    group: str
    topic: str
    kind: str
    rate_per_s: float
    body_bytes: int
    notices: list[ClientNotice]
    failovers: list[FailoverTime]
    client: Client | None = None
    store: MemoryPublishStore = field(default_factory=MemoryPublishStore)
    first: int = 0
    published: int = 0
    persisted: int = 0
    sent: deque[tuple[int, int, int]] = field(default_factory=deque)
    """(time in microseconds, first, last) of sequences that are not acknowledged."""
    acks: list[AckGroup] = field(default_factory=list)
    rates: list[tuple[int, int]] = field(default_factory=list)
    """(time in microseconds, number of messages) of each publish turn."""
    recorder: ClientRecorder | None = None

    async def open(self, options: dict[str, Any]) -> None:
        recorder = self.recorder = ClientRecorder(self.notices.append)
        watch = FailoverWatch(self.name, "publisher", self.failovers)

        def told(event: ClientEvent) -> None:
            recorder.event(event)
            watch.event(event)

        self.client = Client(
            self.name,
            publish_store=self.store,
            on_event=told,
            on_persisted=self._persisted,
            **options,
        )
        recorder.machine = self.client.machine
        await self.client.connect()

    def _persisted(self, upto: int) -> None:
        assert self.recorder is not None
        self.recorder.persisted(upto)
        time_us = now_us()
        oldest_us = time_us
        count = 0
        sent = self.sent
        while sent and sent[0][1] <= upto:
            sent_us, first, last = sent.popleft()
            oldest_us = min(oldest_us, sent_us)
            count += min(last, upto) - first + 1
            if last > upto:
                sent.appendleft((sent_us, upto + 1, last))
        self.persisted = max(self.persisted, upto)
        if count:
            machine = self.client.machine if self.client is not None else None
            instance = machine.instance if machine is not None else ""
            self.acks.append(AckGroup(time_us, count, (time_us - oldest_us) / 1000, instance))

    @property
    def unacknowledged(self) -> int:
        """Number of messages without an acknowledgment now."""
        return sum(last - first + 1 for _, first, last in self.sent)

    async def run(self, is_over: Callable[[], bool]) -> None:
        """Publishes at the publisher's rate until `is_over` returns true."""
        client, recorder = self.client, self.recorder
        assert client is not None and recorder is not None
        began_s = time.monotonic()
        done = 0
        pad = b"x" * max(0, self.body_bytes - 60)
        while not is_over():
            due = int((time.monotonic() - began_s) * self.rate_per_s) + 1 - done
            if due > 0:
                began_us, first = now_us(), client.machine.outbox.next_sequence
                if not self.first:
                    self.first = first
                last = first - 1
                for _ in range(min(due, 5_000)):
                    sequence = client.machine.outbox.next_sequence
                    body = b'{"p": %d, "n": %d, "pad": "%b"}' % (client.publisher, sequence, pad)
                    self.published = sequence
                    # Known before the publish returns: an ack may come while it waits for room.
                    self.sent.append((now_us(), sequence, sequence))
                    last = await client.publish(self.topic, body, self.kind)
                recorder.published(first, last, began_us)
                self._join_sent(began_us, first, last)
                self.rates.append((began_us, last - first + 1))
                done += last - first + 1
            await asyncio.sleep(min(TURN_S, 1 / self.rate_per_s) if due < 5_000 else 0)

    def _join_sent(self, began_us: int, first: int, last: int) -> None:
        """Replaces the entries of one turn's messages by one entry."""
        while self.sent and self.sent[-1][1] >= first:
            self.sent.pop()
        lowest = max(first, self.persisted + 1)
        if lowest <= last:
            self.sent.append((began_us, lowest, last))


@dataclass(eq=False)
class LoadSubscriber:
    """One durable subscriber of the load, and the record of what it received."""

    name: str
    group: str
    failovers: list[FailoverTime]
    store: MemoryBookmarkStore = field(default_factory=MemoryBookmarkStore)
    received: list[SequenceStretch] = field(default_factory=list)
    have: PublisherRanges = field(default_factory=PublisherRanges)
    times: list[tuple[int, int]] = field(default_factory=list)
    """(time in microseconds, number of messages) of each batch."""
    client: Client | None = None
    subscription: Subscription | None = None
    task: asyncio.Task[None] | None = None
    recorder: SubscriberRecorder | None = None
    progress: asyncio.Event = field(default_factory=asyncio.Event)
    reads: asyncio.Event = field(default_factory=asyncio.Event)
    ended_at: str = ""

    async def open(
        self,
        topic: str,
        options: dict[str, Any],
        queue_bytes_max: int = QUEUE_BYTES_MAX_DEFAULT,
        *,
        live: bool = False,
    ) -> None:
        """Connects and subscribes from the newest message on.

        Args:
            live: whether messages that the subscriber does not take wait for it, in the server's
                memory and then on its disk. Otherwise the server reads its log on when the
                subscriber takes more, and nothing waits.
        """
        self.reads.set()
        recorder = self.recorder = SubscriberRecorder(self.name, topic, False)
        watch = FailoverWatch(self.name, "subscriber", self.failovers)

        def told(event: ClientEvent) -> None:
            watch.event(event)
            if live and isinstance(event, Connected) and self.client is not None:
                _narrow(self.client)

        client = self.client = Client(
            self.name,
            bookmark_store=self.store,
            on_event=told,
            on_arrival=lambda batch: recorder.came(batch, client.machine.instance),
            **options,
        )
        await self.client.connect()
        self.subscription = await self.client.subscribe(
            topic,
            bookmark=NOW,
            subscription_id="drill",
            timeout_s=WAIT_S_MAX,
            queue_bytes_max=queue_bytes_max,
            live=live,
        )
        self.task = asyncio.create_task(self._read(self.subscription))

    async def _read(self, subscription: Subscription) -> None:
        async for batch in subscription.batches():
            count = 0
            for stretch in ranges_of(batch.payload, batch.count):
                self.received.append(SequenceStretch(*stretch))
                self.have.add(*stretch)
                count += stretch[2] - stretch[1] + 1
            self.times.append((now_us(), count))
            self.progress.set()
            await self.reads.wait()

    def set_reading(self, reads: bool) -> None:
        """Sets whether the subscriber takes messages. May be called from any thread."""
        change = self.reads.set if reads else self.reads.clear
        if self.task is not None:
            self.task.get_loop().call_soon_threadsafe(change)

    async def complete(self, wanted: PublisherRanges) -> None:
        """Waits until the subscriber has received all of `wanted`."""
        while not all(
            self.have.covers(publisher, ranges) for publisher, ranges in wanted.sets.items()
        ):
            self.progress.clear()
            await self.progress.wait()


def _narrow(client: Client) -> None:
    connection = client.runtime.connection
    transport = connection.transport if connection is not None else None
    found = transport.get_extra_info("socket") if transport is not None else None
    if found is not None:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SLOW_SOCKET_BYTES)


class FailoverWatch:
    """Records the failovers of one client."""

    def __init__(self, client: str, kind: str, into: list[FailoverTime]) -> None:
        self._client = client
        self._kind = kind
        self._into = into
        self._left: tuple[int, str, str] | None = None

    def event(self, event: ClientEvent) -> None:
        """Handles an event of the client; passed to it as `on_event`."""
        if isinstance(event, Disconnected) and event.instance:
            if self._left is None:
                self._left = now_us(), event.instance, event.reason
        elif isinstance(event, Connected):
            left_us, before, reason = self._left or (0, "", "")
            self._into.append(
                FailoverTime(
                    self._client, self._kind, left_us, now_us(), before, event.instance, reason,
                    event.resent_messages,
                )
            )  # fmt: skip
            self._left = None


class LoadClients:
    """All clients of a drill's load. Owner: the drill's event loop. Lifecycle: `open` to
    `close`."""

    def __init__(self, fabric: Fabric, load: LoadSettings, number: str, topic: str) -> None:
        self._fabric = fabric
        self._load = load
        self._number = number
        base, kind = topic_for(fabric.declared, topic) if load.publishers else ("", "")
        self.topic, self.kind = base, kind
        self.notices: list[ClientNotice] = []
        self.failovers: list[FailoverTime] = []
        groups = fabric.declared.groups()
        self.publishers = [
            LoadPublisher(
                f"drill-{number}-{group}-pub{n}", group, base, kind, load.rate_per_s,
                load.body_bytes, self.notices, self.failovers,
            )
            for group in groups
            for n in range(1, load.publishers + 1)
        ]  # fmt: skip
        self.subscribers = [
            LoadSubscriber(f"drill-{number}-{group}-sub{n}", group, self.failovers)
            for group in groups
            for n in range(1, load.subscribers + 1)
            if load.publishers
        ]
        self._publishing = True
        self._tasks: list[asyncio.Task[None]] = []
        self.complaints: list[str] = []

    def options(self, name: str, group: str) -> dict[str, Any]:
        total = self._load.rate_per_s * max(1, len(self.publishers))
        made = self._fabric.client_options(name, group=group)
        if "tracer" in made:
            made["sampling_ratio"] = max(made["sampling_ratio"], min(1.0, TRACED_PER_S / total))
        return {
            **made,
            "heartbeat_s": HEARTBEAT_S,
            "connect_wait_s": WAIT_S_MAX,
            "publish_timeout_s": WAIT_S_MAX,
            "close_timeout_s": WAIT_S_MAX,
        }

    async def open(self, slow_regions: set[str]) -> None:
        """Connects the subscribers, then the publishers, and begins to publish.

        Args:
            slow_regions: the regions that get one more subscriber, which a step may keep from
                reading.
        """
        for subscriber in self.subscribers:
            options = self.options(subscriber.name, subscriber.group)
            await subscriber.open(self.topic, options)
        for region in sorted(slow_regions):
            slow = LoadSubscriber(f"drill-{self._number}-{region}-slow", region, self.failovers)
            options = self.options(slow.name, region) | {"heartbeat_s": SLOW_HEARTBEAT_S}
            await slow.open(self.topic, options, SLOW_QUEUE_BYTES, live=True)
            self.subscribers.append(slow)
        for publisher in self.publishers:
            await publisher.open(self.options(publisher.name, publisher.group))
        self._tasks = [
            asyncio.create_task(publisher.run(lambda: not self._publishing))
            for publisher in self.publishers
        ]

    @property
    def serving(self) -> str:
        """The instance to which the first publisher is connected."""
        client = self.publishers[0].client if self.publishers else None
        if client is not None and client.instance:
            return client.instance
        return self._fabric.declared.instances[0].name

    def slow(self, region: str) -> list[LoadSubscriber]:
        """Returns the subscribers of a region that a step may keep from reading."""
        return [s for s in self.subscribers if s.group == region and s.name.endswith("-slow")]

    @property
    def unacknowledged(self) -> int:
        """Number of messages of all publishers without an acknowledgment now."""
        return sum(publisher.unacknowledged for publisher in self.publishers)

    def record(self) -> PublishRecord:
        """Returns the record of what was published and acknowledged until now."""
        record = PublishRecord()
        for publisher in self.publishers:
            if publisher.published:
                record.add(
                    publisher_id(publisher.name),
                    publisher.first,
                    publisher.published,
                    publisher.persisted,
                )
        return record

    async def settle(self, wait_s: float) -> None:
        """Ends the publishing, and waits until every publisher has its acks."""
        self._publishing = False
        for done in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(done, Exception):
                self.complaints.append(f"a publisher failed: {done}")

        async def flush(publisher: LoadPublisher) -> None:
            client = publisher.client
            assert client is not None
            try:
                await client.flush(wait_s)
            except (TimeoutError, RaylayError) as error:
                self.complaints.append(
                    f"{publisher.name} waits for acks behind {client.persisted_sequence} of "
                    f"{client.last_sequence}: {error!r}; {client.status}"
                )
            publisher.persisted = max(publisher.persisted, client.persisted_sequence)

        await asyncio.gather(*map(flush, self.publishers))

    async def await_subscribers(self, wanted: dict[str, PublisherRanges], wait_s: float) -> None:
        """Waits until every subscriber has received what is owed to its region."""

        async def await_one(subscriber: LoadSubscriber) -> None:
            try:
                async with asyncio.timeout(wait_s):
                    await subscriber.complete(wanted[subscriber.group])
            except TimeoutError:
                client = subscriber.client
                where = client.status if client is not None else "no client"
                self.complaints.append(f"{subscriber.name} waits for messages: {where}")

        await asyncio.gather(*map(await_one, self.subscribers))

    async def close(self) -> None:
        self._publishing = False
        for task in self._tasks:
            task.cancel()
        for subscriber in self.subscribers:
            subscriber.reads.set()
            if subscriber.client is not None:
                subscriber.ended_at = subscriber.client.instance
                await subscriber.client.close()
            if subscriber.task is not None:
                await asyncio.gather(subscriber.task, return_exceptions=True)
            subscriber.store.close()
        for publisher in self.publishers:
            if publisher.client is not None:
                await publisher.client.close(flush=False)
