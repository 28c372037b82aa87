"""The load of a drill on its queue: a publisher and two consumers in every region, and a record of
what each consumer received and acknowledged.

One consumer of a region acknowledges each message when it asks for the next one. The other one
holds each message for a moment, so that a killed consumer always holds something.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from raylay.services.client import Client
from raylay.services.client.events import ClientEvent, Connected
from raylay.services.client.messages import MessageBatch, ranges_of
from raylay.services.client.queues.queue_consumer import QueueConsumer, QueueMessage
from raylay.services.configuration.reserved import BACKLOG_MAX, SOW_TYPE
from raylay.services.drills.history_builder import now_us
from raylay.services.drills.judgement import reaching
from raylay.services.drills.scenario import FaultHit, FaultStep
from raylay.services.errors import FabricError, RaylayError
from raylay.services.messages.records import publisher_id
from raylay.services.messages.topics import DRILL_QUEUE, DRILL_WORK_TOPIC
from raylay.services.verification.history import HistoryMember
from raylay.services.verification.laws.queue_delivery import (
    ExcusedPeriod,
    HandedMessage,
    Kill,
    ProducerRecord,
    QueueEvidence,
    QueueJournal,
    QueueVerdict,
    verdict_of,
)
from raylay.services.verification.violation import Key
from raylay.storage.stores import MemoryPublishStore

RATE_PER_S = 20.0
"""Messages per second that are published in each region."""
WORK_S = 0.01
"""Time that the prompt consumer works on a message."""
HOLD_S = 0.5
"""Time for which the slow consumer holds a message before it acknowledges it."""
TICK_S = 0.05
NETWORK_US = 250_000
"""Most time between an instance's sending and the moment at which this process can read it, where
no step delays it."""
DRAINED_S = 0.25
"""Time between two checks whether the queues are empty."""
CHANGE_S_MAX = 60.0
"""Most time in which consumers are killed or started again."""
QUEUE_STORED_AS = f"{SOW_TYPE}/{DRILL_QUEUE}"
UNQUEUED = f"no region has queue {DRILL_QUEUE} at every instance"
Options = Callable[[str, str], dict[str, Any]]
"""Returns the options of a client by its name and its region."""
Answer = TypeVar("Answer")
Statuses = Callable[[], Coroutine[Any, Any, Mapping[str, Mapping[str, Any]]]]
"""Returns the status of every instance that answers, by its name."""


@dataclass(eq=False)
class QueueProducer:
    """One publisher on the queue, and the record of its publishes."""

    name: str
    group: str
    queue: str = DRILL_QUEUE
    client: Client | None = None
    store: MemoryPublishStore = field(default_factory=MemoryPublishStore)
    times_us: dict[int, int] = field(default_factory=dict)
    """Time at which each message was published, in microseconds, by its sequence."""

    async def open(self, options: dict[str, Any]) -> None:
        self.client = Client(self.name, publish_store=self.store, **options)
        await self.client.connect()

    async def run(self, is_over: Callable[[], bool]) -> None:
        """Publishes at the load's rate until `is_over` returns true."""
        client = self.client
        assert client is not None
        while not is_over():
            # Known before the publish returns: it may wait for room.
            sequence = client.machine.outbox.next_sequence
            self.times_us[sequence] = now_us()
            body = json.dumps({"n": sequence}).encode()
            await client.publish(self.queue, body, SOW_TYPE)
            await asyncio.sleep(1 / RATE_PER_S)

    def produced(self) -> ProducerRecord:
        persisted = self.client.persisted_sequence if self.client is not None else 0
        return ProducerRecord(publisher_id(self.name), self.group, self.times_us, persisted)


@dataclass(slots=True)
class QueueLedger:
    """The deliveries to all consumers of a drill, and their acknowledgments.

    Attributes:
        acked: the messages that a consumer acknowledged.
        acknowledged: (time in microseconds, region) of each acknowledgment.
        network_us: see `NETWORK_US`.
        ticks_us: the times at which the event loop last looked for arrivals, and the time before.
    """

    given: list[HandedMessage] = field(default_factory=list)
    acked: set[Key] = field(default_factory=set)
    acknowledged: list[tuple[int, str]] = field(default_factory=list)
    ticks_us: tuple[int, int] = (0, 0)
    network_us: int = NETWORK_US

    def tick(self) -> None:
        """Notes that the event loop looks at its sockets now. Called regularly."""
        self.ticks_us = now_us(), self.ticks_us[0]

    def came(
        self, keys: Iterable[Key], instance: str, consumer: str, region: str, session_us: int
    ) -> None:
        """Notes that a consumer received messages.

        Args:
            session_us: the time since which the consumer is connected to the instance.
        """
        time_us = now_us()
        # What could be read when the loop looked before was read then.
        sent_us = min(time_us, max(session_us, self.ticks_us[1] - self.network_us))
        self.given += [HandedMessage(time_us, sent_us, k, instance, consumer, region) for k in keys]

    def done(self, key: Key, region: str) -> None:
        self.acked.add(key)
        self.acknowledged.append((now_us(), region))


@dataclass(eq=False)
class QueueWorker:
    """One consumer. It ends by `close`, or is killed: then its outstanding acknowledgments are
    never sent.

    Attributes:
        is_slow: whether it holds each message for a moment.
    """

    name: str
    group: str
    is_slow: bool
    ledger: QueueLedger
    queue: str = DRILL_QUEUE
    client: Client | None = None
    consumer: QueueConsumer | None = None
    task: asyncio.Task[None] | None = None
    is_over: bool = False
    held: set[Key] = field(default_factory=set)
    """Messages that the consumer received and has not acknowledged."""
    _session_us: int = 0

    async def open(self, options: dict[str, Any]) -> None:
        client = self.client = Client(
            self.name,
            publish_store=MemoryPublishStore(),
            on_event=self._told,
            on_arrival=lambda batch: self._came(batch, client.machine.instance),
            **options,
        )
        await client.connect()
        self.consumer = client.queue(
            self.queue,
            message_type=SOW_TYPE,
            backlog=BACKLOG_MAX,
            ack="manual" if self.is_slow else "auto",
        )
        await self.consumer.__aenter__()

    async def run(self, options: dict[str, Any]) -> None:
        """Connects the consumer, if it is not connected yet, and works until it is ended."""
        if self.consumer is None:
            await self.open(options)
        assert self.consumer is not None
        await self._work(self.consumer)

    def _told(self, event: ClientEvent) -> None:
        if isinstance(event, Connected):
            self._session_us = now_us()
            # What it held elsewhere goes back there.
            self.held.clear()

    def _came(self, batch: MessageBatch, instance: str) -> None:
        """Notes a batch when it comes in: the consumer may take it much later."""
        keys = [
            (publisher, sequence)
            for publisher, first, last in ranges_of(batch.payload, batch.count)
            for sequence in range(first, last + 1)
        ]
        self.held.update(keys)
        self.ledger.came(keys, instance, self.name, self.group, self._session_us)

    async def _work(self, consumer: QueueConsumer) -> None:
        loop = asyncio.get_running_loop()
        async for message in consumer:
            if self.is_slow:
                loop.call_later(HOLD_S, self._acknowledge, message)
                continue
            await asyncio.sleep(WORK_S)
            # That it asks for the next one says so.
            self._note(message)

    def _acknowledge(self, message: QueueMessage) -> None:
        if not self.is_over:
            self._note(message)
            message.acknowledge()

    def _note(self, message: QueueMessage) -> None:
        key = message.identity()
        self.held.discard(key)
        self.ledger.done(key, self.group)

    async def kill(self) -> int:
        """Ends the consumer as SIGKILL of its process would: the connection breaks, unsent
        acknowledgments are lost, and no consumer holds its messages any more. Returns the number of
        messages that it held."""
        held = len(self.held)
        client = self.client
        self.is_over = True
        if self.task is not None:
            self.task.cancel()
        if client is not None and client.runtime.connection is not None:
            client.runtime.connection.abort()
        await self._end()
        return held

    async def close(self) -> None:
        """Closes the consumer in good order."""
        self.is_over = True
        if self.task is not None:
            self.task.cancel()
        await self._end()

    async def _end(self) -> None:
        if self.task is not None:
            await asyncio.gather(self.task, return_exceptions=True)
        if self.client is not None:
            await self.client.close(flush=False)


class QueueLoad:
    """The publishers and consumers of a drill's queue. Owner: the drill's event loop. Lifecycle:
    `open` to `close`.

    Args:
        groups: the names of the instances of each region.
        statuses: the status of each instance before the drill.
        members: the members of the topology.
        queue, topic: the queue, of messages of type json, and the topic that it holds.
        network_us: see `NETWORK_US`.

    Attributes:
        why: the reason why there is no load on a queue; empty: there is one.
        regions: the regions that have a publisher and consumers.
        complaints: faults of the load itself.
        left: the number of messages that each instance's queue holds in the end.
    """

    def __init__(
        self,
        number: str,
        groups: Mapping[str, Sequence[str]],
        statuses: Mapping[str, Mapping[str, Any]],
        members: Mapping[str, HistoryMember],
        *,
        queue: str = DRILL_QUEUE,
        topic: str = DRILL_WORK_TOPIC,
        network_us: int = NETWORK_US,
    ) -> None:
        self._number = number
        self.queue = queue
        self._stored_as = f"{SOW_TYPE}/{queue}"
        having = [
            group
            for group, names in groups.items()
            if all(self._stored_as in statuses[name].get("queues", {}) for name in names)
        ]
        self.regions = _joined(having, members, (topic, queue))
        self.names = [name for group in self.regions for name in groups[group]]
        self.notes = [
            f"Region {group} had no part in it: it is not linked with the others in both "
            "directions."
            for group in having
            if group not in self.regions
        ]
        self.why = "" if self.regions else UNQUEUED
        self.complaints: list[str] = []
        self.ledger = QueueLedger(network_us=network_us)
        self.kills: list[Kill] = []
        self.left: dict[str, int] = {}
        self._upto_txid: dict[str, int] = {}
        """Transaction ids that each instance's journal has reached once everything is published."""
        self._read_txid: dict[str, int] = {}
        self.producers = [
            QueueProducer(f"drill-{number}-{g}-queue", g, queue) for g in self.regions
        ]
        self.workers: list[QueueWorker] = []
        self._away: dict[str, tuple[int, int]] = {}
        """Regions whose consumers are killed: the time, and the number of messages that they
        held."""
        self._options: Options = lambda name, group: {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lives = 0
        self._publishing = True
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def publishers(self) -> list[int]:
        return [publisher_id(producer.name) for producer in self.producers]

    async def open(self, options: Options) -> None:
        """Connects the consumers, then the publishers, and begins to publish."""
        self._options, self._loop = options, asyncio.get_running_loop()
        self._tasks = [asyncio.create_task(self._tick())]
        for region in self.regions:
            for worker in self._staff(region):
                await worker.open(options(worker.name, region))
            self._begin(region)
        for producer in self.producers:
            await producer.open(options(producer.name, producer.group))
        self._tasks += [
            asyncio.create_task(producer.run(lambda: not self._publishing))
            for producer in self.producers
        ]

    async def _tick(self) -> None:
        while True:
            self.ledger.tick()
            await asyncio.sleep(TICK_S)

    def _staff(self, region: str) -> list[QueueWorker]:
        self._lives += 1
        new = [
            QueueWorker(
                f"drill-{self._number}-{region}-{kind}{self._lives}",
                region,
                is_slow,
                self.ledger,
                self.queue,
            )
            for kind, is_slow in (("prompt", False), ("slow", True))
        ]
        self.workers += new
        return new

    def _begin(self, region: str) -> None:
        for worker in self.workers:
            if worker.group == region and worker.task is None:
                worker.task = asyncio.create_task(worker.run(self._options(worker.name, region)))

    # -- the fault -------------------------------------------------------------------------------
    def check(self, region: str) -> None:
        """Refuses a region without consumers.

        Raises:
            FabricError: the region has none; the error says why.
        """
        if region not in self.regions:
            notes = " ".join(self.notes)
            raise FabricError(
                f"region {region} has no consumers of queue {self.queue}: {self.why or notes}"
            )

    async def kill(self, region: str) -> int:
        """Kills the consumers of a region. Returns the number of messages that they held."""
        killed = [worker for worker in self.workers if worker.group == region]
        began_us = now_us()
        held = sum(await asyncio.gather(*(worker.kill() for worker in killed)))
        self.workers = [worker for worker in self.workers if worker not in killed]
        self._away[region] = began_us, held
        return held

    async def hire(self, region: str) -> None:
        """Starts new consumers in a region whose consumers were killed. Does not wait until they
        are connected."""
        if region not in self._away:
            return
        began_us, held = self._away.pop(region)
        self.kills.append(Kill(region, began_us, now_us(), held))
        if self._publishing:
            self._staff(region)
            self._begin(region)

    def from_thread(self, doing: Coroutine[Any, Any, Answer]) -> Answer:
        """Runs a coroutine on the load's event loop from another thread, and waits for its
        result."""
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(doing, self._loop).result(CHANGE_S_MAX)

    # -- the end -----------------------------------------------------------------------------
    async def settle(self, wait_s: float, statuses: Statuses) -> None:
        """Ends the publishing, waits for the outstanding acks, and waits until the queues are
        empty."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + wait_s
        self._publishing = False
        for done in await asyncio.gather(*self._tasks[1:], return_exceptions=True):
            if isinstance(done, Exception):
                self.complaints.append(f"a publisher of the queue failed: {done}")
        for producer in self.producers:
            assert producer.client is not None
            await self._flush(producer.name, producer.client, wait_s)
        while self.names:
            self.note_left(await statuses())
            if not any(self.left.values()):
                break
            if loop.time() > deadline_s:
                self.complaints += [
                    f"the queue of {name} has read its journal up to transaction id "
                    f"{self._read_txid[name]:,} of {upto:,}"
                    for name, upto in self._upto_txid.items()
                    if self._read_txid[name] < upto
                ]
                break
            await asyncio.sleep(DRAINED_S)
        for worker in self.workers:
            if worker.task is not None and worker.task.done():
                self.complaints.append(f"{worker.name} ended: {worker.task.exception()!r}")
            if worker.client is not None:
                await self._flush(worker.name, worker.client, max(1.0, deadline_s - loop.time()))

    async def _flush(self, name: str, client: Client, wait_s: float) -> None:
        try:
            await client.flush(wait_s)
        except (TimeoutError, RaylayError) as error:
            self.complaints.append(f"{name} waits for acks: {error!r}; {client.status}")

    def note_left(self, statuses: Mapping[str, Mapping[str, Any]]) -> None:
        """Notes how many messages each instance's queue holds. An instance that does not answer
        counts with its last report. An instance that never answered, or has not yet read all that
        its journal held at the first call, counts as holding at least one."""
        for name in self.names:
            status = statuses.get(name, {})
            told = status.get("queues", {}).get(self._stored_as, {})
            if "committed_txid" in status:
                self._upto_txid.setdefault(name, int(status["committed_txid"]))
            self._read_txid[name] = int(told.get("folded_txid", self._read_txid.get(name, 0)))
            self.left[name] = int(told.get("queue_depth", self.left.get(name, 1)))
            if self._read_txid[name] < self._upto_txid.get(name, 0):
                self.left[name] = max(1, self.left[name])

    async def close(self) -> None:
        self._publishing = False
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        with suppress(RaylayError):
            await asyncio.gather(*(worker.close() for worker in self.workers))
        for producer in self.producers:
            if producer.client is not None:
                await producer.client.close(flush=False)

    def judge(
        self,
        journals: Mapping[str, QueueJournal],
        new: Iterable[str],
        excuses: Sequence[ExcusedPeriod],
        *,
        is_undisturbed: bool,
    ) -> QueueVerdict:
        """Judges the load on the queue.

        Args:
            journals: the content of the journals of the instances in `names`, where they could be
                read.
            new: the instances that lost their disks.
            excuses: the periods in which an instance could not act on what it knew.
            is_undisturbed: whether nothing else was broken, so that other consumers have to take
                over.
        """
        if self.why:
            return QueueVerdict(why=self.why, notes=self.notes)
        found = QueueEvidence(
            [producer.produced() for producer in self.producers],
            self.ledger.given,
            self.ledger.acked,
            journals,
            self.left,
            set(new),
            excuses,
        )
        done = dict.fromkeys(self.regions, 0)
        for _, region in self.ledger.acknowledged:
            done[region] += 1
        verdict = verdict_of(found, done, self.kills, self.notes)
        if not verdict.persisted:
            self.complaints.append("could not judge the queue: nothing on it was acknowledged")
        for takeover in verdict.takeovers:
            if (
                is_undisturbed
                and len(self.regions) > 1
                and takeover.published
                and not takeover.moved
            ):
                self.complaints.append(
                    f"no consumer took over the messages of {takeover.region} while its own were "
                    "away"
                )
        return verdict


class KillConsumers:
    """Kills the consumers of a region, and starts new ones when the step is over."""

    def __init__(self, load: QueueLoad) -> None:
        self._load = load

    def inject(self, step: FaultStep, hit: FaultHit) -> list[str]:
        held = self._load.from_thread(self._load.kill(hit.region))
        some = "1 message" if held == 1 else f"{held:,} messages"
        return [f"they held {some} that they had not acknowledged"]

    def renew(self, step: FaultStep, hit: FaultHit, left_s: float) -> None:
        """Does nothing: a killed consumer stays dead."""

    def heal(self, step: FaultStep, hit: FaultHit) -> None:
        self._load.from_thread(self._load.hire(hit.region))


def _joined(
    groups: Sequence[str], members: Mapping[str, HistoryMember], topics: Sequence[str]
) -> list[str]:
    """Returns the first of these regions, and the regions that links connect with it in both
    directions."""
    if not groups:
        return []
    reach = [reaching(members, topic, SOW_TYPE) for topic in topics]
    found: list[str] = []
    for group in groups:
        if all(
            group in of[other] and other in of[group] for of in reach for other in [group, *found]
        ):
            found.append(group)
    return found
