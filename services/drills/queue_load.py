"""The load of a drill on its queue: a publisher and two consumers in every region, and what each
consumer was given and has acknowledged.

One consumer of a region acknowledges each message when it asks for the next one. The other one
keeps what it has for a moment, so that somebody who is killed holds something.
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
from raylay.services.client.queue_consumer import QueueConsumer, QueueMessage
from raylay.services.configuration.reserved import BACKLOG_MAX, SOW_TYPE
from raylay.services.drills.history_builder import now_us
from raylay.services.drills.judgement import reaching
from raylay.services.drills.scenario import FaultHit, FaultStep
from raylay.services.errors import FabricError, RaylayError
from raylay.services.messages.records import publisher_id
from raylay.services.messages.topics import DRILL_QUEUE, DRILL_WORK_TOPIC
from raylay.services.protocol.frames import Header
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
"""Time that a message takes the consumer that acknowledges each by itself."""
HOLD_S = 0.5
"""Time for which the other consumer has a message before it acknowledges it."""
TICK_S = 0.05
NETWORK_US = 250_000
"""Most time from an instance's sending until it can be read here, where nobody holds it up."""
DRAINED_S = 0.25
"""Time between two looks whether queues are empty."""
CHANGE_S_MAX = 60.0
"""Time within which consumers are killed, or come back."""
QUEUE_STORED_AS = f"{SOW_TYPE}/{DRILL_QUEUE}"
UNQUEUED = f"no region has queue {DRILL_QUEUE} at all of its instances"
Options = Callable[[str, str], dict[str, Any]]
"""Options of a client, by its name and its region."""
Answer = TypeVar("Answer")
Statuses = Callable[[], Coroutine[Any, Any, Mapping[str, Mapping[str, Any]]]]
"""Statuses of all instances that answer, now."""


@dataclass(eq=False)
class QueueProducer:
    """One publisher on the queue, and its record."""

    name: str
    group: str
    queue: str = DRILL_QUEUE
    client: Client | None = None
    store: MemoryPublishStore = field(default_factory=MemoryPublishStore)
    times_us: dict[int, int] = field(default_factory=dict)
    """Time at which each message was published, by its sequence."""

    async def open(self, options: dict[str, Any]) -> None:
        """Connects."""
        self.client = Client(self.name, publish_store=self.store, **options)
        await self.client.connect()

    async def run(self, is_over: Callable[[], bool]) -> None:
        """Publishes at its rate until it is over."""
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
        """Returns the record of its publishes, for the verdict."""
        persisted = self.client.persisted_sequence if self.client is not None else 0
        return ProducerRecord(publisher_id(self.name), self.group, self.times_us, persisted)


@dataclass(slots=True)
class QueueLedger:
    """The deliveries to all consumers of a drill, and their acknowledgments.

    Attributes:
        said: messages that one of them acknowledged.
        acknowledged: (time in microseconds, region) of each time that one did.
        network_us: from an instance's sending until it can be read here, at most.
        ticks_us: when the event loop last looked for what had come, and when before that.
    """

    given: list[HandedMessage] = field(default_factory=list)
    said: set[Key] = field(default_factory=set)
    acknowledged: list[tuple[int, str]] = field(default_factory=list)
    ticks_us: tuple[int, int] = (0, 0)
    network_us: int = NETWORK_US

    def tick(self) -> None:
        """The loop looks at its sockets at least as often as this is called."""
        self.ticks_us = now_us(), self.ticks_us[0]

    def came(
        self, keys: Iterable[Key], instance: str, consumer: str, region: str, session_us: int
    ) -> None:
        """A consumer has these.

        Args:
            session_us: since when it is connected there.
        """
        time_us = now_us()
        # What could be read when the loop looked before was read then.
        sent_us = min(time_us, max(session_us, self.ticks_us[1] - self.network_us))
        self.given += [HandedMessage(time_us, sent_us, k, instance, consumer, region) for k in keys]

    def done(self, key: Key, region: str) -> None:
        """A consumer acknowledges it."""
        self.said.add(key)
        self.acknowledged.append((now_us(), region))


@dataclass(eq=False)
class QueueWorker:
    """One consumer. It ends by `close`, or is killed: then nothing that it had to say is said.

    Attributes:
        is_slow: whether it keeps what it has for a moment.
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
    """Messages that it was given and has not acknowledged."""
    _session_us: int = 0

    async def open(self, options: dict[str, Any]) -> None:
        """Connects."""
        client = self.client = Client(
            self.name, publish_store=MemoryPublishStore(), on_event=self._told, **options
        )
        self._listen(client)
        await client.connect()
        self.consumer = client.queue(
            self.queue,
            message_type=SOW_TYPE,
            backlog=BACKLOG_MAX,
            ack="manual" if self.is_slow else "auto",
        )
        await self.consumer.__aenter__()

    async def run(self, options: dict[str, Any]) -> None:
        """Connects, if it has not, and works until it is ended."""
        if self.consumer is None:
            await self.open(options)
        assert self.consumer is not None
        await self._work(self.consumer)

    def _told(self, event: ClientEvent) -> None:
        if isinstance(event, Connected):
            self._session_us = now_us()
            # What it held elsewhere goes back there.
            self.held.clear()

    def _listen(self, client: Client) -> None:
        """Hears of what comes when it comes in: the consumer may take it much later."""
        machine = client.machine
        hand_out = machine.arrived

        def arrived(header: Header, payload: bytes) -> MessageBatch | None:
            batch = hand_out(header, payload)
            if batch is not None:
                keys = [
                    (publisher, sequence)
                    for publisher, first, last in ranges_of(batch.payload, batch.count)
                    for sequence in range(first, last + 1)
                ]
                self.held.update(keys)
                name = machine.instance
                self.ledger.came(keys, name, self.name, self.group, self._session_us)
            return batch

        machine.arrived = arrived  # type: ignore[method-assign]

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
        """Ends the consumer as SIGKILL of its process would: its connection is gone, with all that
        was not sent, and what it held is held by nobody. Returns how many messages it held."""
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
        """Ends it in good order."""
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
        groups: regions with the names of their instances.
        statuses: of the instances, before the drill.
        members: of the topology.
        queue, topic: the queue, of messages of type json, and the topic that it holds.
        network_us: see `QueueLedger`.

    Attributes:
        why: why there is no such load; empty: there is.
        regions: that have a part in it.
        complaints: what went wrong besides the verdict.
        left: by instance, how many messages its queue says it holds in the end.
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
            f"Region {group} had no part in it: links do not lead there and back."
            for group in having
            if group not in self.regions
        ]
        self.why = "" if self.regions else UNQUEUED
        self.complaints: list[str] = []
        self.ledger = QueueLedger(network_us=network_us)
        self.kills: list[Kill] = []
        self.left: dict[str, int] = {}
        self._upto_txid: dict[str, int] = {}
        """Everything that was published is in the journals up to there."""
        self._read_txid: dict[str, int] = {}
        self.producers = [
            QueueProducer(f"drill-{number}-{g}-queue", g, queue) for g in self.regions
        ]
        self.workers: list[QueueWorker] = []
        self._away: dict[str, tuple[int, int]] = {}
        """Regions whose consumers were killed: when, and how many messages they held."""
        self._options: Options = lambda name, group: {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lives = 0
        self._publishing = True
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def publishers(self) -> list[int]:
        """Ids of the publishers."""
        return [publisher_id(producer.name) for producer in self.producers]

    async def open(self, options: Options) -> None:
        """Connects everybody and begins: consumers first."""
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
        """New consumers of a region."""
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
            FabricError: it has none; says why.
        """
        if region not in self.regions:
            notes = " ".join(self.notes)
            raise FabricError(
                f"region {region} has no consumers of queue {self.queue}: {self.why or notes}"
            )

    async def kill(self, region: str) -> int:
        """Kills the consumers of a region; returns how many messages they held."""
        killed = [each for each in self.workers if each.group == region]
        began_us = now_us()
        held = sum(await asyncio.gather(*(each.kill() for each in killed)))
        self.workers = [each for each in self.workers if each not in killed]
        self._away[region] = began_us, held
        return held

    async def hire(self, region: str) -> None:
        """The region has consumers again, if they were killed. They connect by and by."""
        if region not in self._away:
            return
        began_us, held = self._away.pop(region)
        self.kills.append(Kill(region, began_us, now_us(), held))
        if self._publishing:
            self._staff(region)
            self._begin(region)

    def from_thread(self, doing: Coroutine[Any, Any, Answer]) -> Answer:
        """Has the load's loop do something, and waits for it."""
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(doing, self._loop).result(CHANGE_S_MAX)

    # -- the end -----------------------------------------------------------------------------
    async def settle(self, wait_s: float, statuses: Statuses) -> None:
        """Publishing ends, acks that are owed are waited for, and queues have to become empty."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + wait_s
        self._publishing = False
        for done in await asyncio.gather(*self._tasks[1:], return_exceptions=True):
            if isinstance(done, Exception):
                self.complaints.append(f"a publisher of the queue failed: {done}")
        for each in self.producers:
            assert each.client is not None
            await self._flush(each.name, each.client, wait_s)
        while self.names:
            self.note_left(await statuses())
            if not any(self.left.values()):
                break
            if loop.time() > deadline_s:
                self.complaints += [
                    f"the queue of {name} has read its journal up to {self._read_txid[name]:,} of "
                    f"{upto:,}"
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
        """Notes the depths of the queues that instances report. An instance that does not answer
        counts with its last report; one that never answered, or has not read all that its journal
        had when this was first asked, counts as holding something."""
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
        """Ends every client."""
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
            journals: of the instances in `names`, as far as they could be read.
            new: instances that lost their disks.
            excuses: when which instance could not act on what it knew.
            is_undisturbed: nothing else was broken: others have to take over.
        """
        if self.why:
            return QueueVerdict(why=self.why, notes=self.notes)
        found = QueueEvidence(
            [producer.produced() for producer in self.producers],
            self.ledger.given,
            self.ledger.said,
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
        for each in verdict.takeovers:
            if is_undisturbed and len(self.regions) > 1 and each.published and not each.moved:
                text = f"nobody took over the work of {each.region} while its consumers were away"
                self.complaints.append(text)
        return verdict


class KillConsumers:
    """The consumers of a region die, and others come when it is over."""

    def __init__(self, load: QueueLoad) -> None:
        self._load = load

    def inject(self, step: FaultStep, hit: FaultHit) -> list[str]:
        """Kills the consumers."""
        held = self._load.from_thread(self._load.kill(hit.region))
        some = "1 message" if held == 1 else f"{held:,} messages"
        return [f"they held {some} that they had not acknowledged"]

    def renew(self, step: FaultStep, hit: FaultHit, left_s: float) -> None:
        """Does nothing: a consumer that is dead stays so."""

    def heal(self, step: FaultStep, hit: FaultHit) -> None:
        """Others come."""
        self._load.from_thread(self._load.hire(hit.region))


def _joined(
    groups: Sequence[str], members: Mapping[str, HistoryMember], topics: Sequence[str]
) -> list[str]:
    """Returns the first of these regions, and those that links connect to it in both directions."""
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
