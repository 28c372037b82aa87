"""The adversary: breaks a real fabric for a while, heals it, and judges what became of every ack.

A run is bounded by seconds, or by a list of faults, and chosen by a seed (which faults, in which
order, and what each hits; the machine adds its own timing). Publishers of two kinds (memory store
in this process; LMDB store in processes that are killed), bookmark subscribers with stores, and one
fault after another (faults.py). Two may overlap: one is chosen while the last one's wounds are
still open.

All connections pass a relay that can be broken (relay.py). What happened is judged twice: every
journal and subscriber by services/drills/verdict.py, and a sync group of three by the laws that the
simulator's checkers know (services/drills/history_builder.py).
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import sys
import time
from collections import Counter
from collections.abc import Awaitable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from soak import working
from soak.faults import LASTING, Faults, SmallDisk, small_disks
from soak.publisher import body_of
from soak.relay import Relay
from soak.working import Working

from raylay.services.client import EPOCH, Client, Server, Subscription
from raylay.services.client.messages import MessageBatch, ranges_of
from raylay.services.configuration.model import InstanceSettings
from raylay.services.drills.history_builder import (
    ClientNotice,
    ClientRecorder,
    HistoryBuilder,
    SubscriberRecorder,
    members_of,
    now_us,
)
from raylay.services.drills.verdict import (
    PlaceVerdict,
    PublishRecord,
    SequenceStretch,
    Verdict,
    judge,
    stretches_of_run,
)
from raylay.services.errors import FabricError, RaylayError
from raylay.services.fabric import Fabric, Topic
from raylay.services.fabric.plan import data_directory, instance_config
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.messages.records import Flag, Kind, Run, iterate_records, publisher_id
from raylay.services.verification import checkers
from raylay.services.verification.history import RunHistory
from raylay.services.verification.laws.queue_delivery import QueueVerdict
from raylay.storage.journal_reader import LmdbJournalReader
from raylay.storage.stores import LmdbBookmarkStore, MemoryBookmarkStore, MemoryPublishStore

PUBLISHER_FILE = Path(__file__).with_name("publisher.py")
TURN_S = 0.02
THREADS = 32
HEAL_S_MAX = 180.0
"""What an instance with a new disk gets back grows with the run, and all share two cores."""
PAIR = "Pair"
TRIO = "Trio"
"""A sync group of three, whose history is recorded."""
SMALL_DISKS = "disks"
ALONE = (PAIR, TRIO)
"""Groups that replicate to no other."""


@dataclass(slots=True)
class Plan:
    """What a run is made of."""

    seconds: float
    seed: int
    regions: int = 3
    pair: bool = True
    trio: bool = False
    rate_per_s: int = 250
    """Publishes of each publisher."""
    pause_s_max: float = 3.0
    """Between faults, and how long what they break stays broken."""
    faults: tuple[str, ...] = ()
    """These, one after another, in place of what the seed draws for `seconds`."""
    queue: bool = False
    """Whether there are workers on a queue, too."""
    real_disk: bool = True
    """Whether the disk of one instance is really full, where this machine allows it (root)."""


@dataclass(slots=True)
class Report:
    """What a run came to."""

    verdict: Verdict
    late: int
    """Copies that were journaled behind a higher one and flagged so, between regions whose
    PassThrough splits what they bring (law 3 allows it there and nowhere else)."""
    faults: Counter[str]
    events: Counter[str]
    complaints: list[str]
    """What is wrong besides the verdict: an instance not whole, a content that is another's, …"""
    history: RunHistory | None = None
    """Of the group of three."""
    queue: QueueVerdict | None = None
    """What became of a queue's messages. What is wrong with them is among the complaints."""
    seconds: float = 0.0
    """How long it took, healing included."""

    @property
    def valid(self) -> bool:
        """Whether nothing is wrong."""
        return self.verdict.valid and not self.complaints

    def __str__(self) -> str:
        verdict = self.verdict
        lines = [
            f"published {verdict.published}, persisted {verdict.persisted}, late {self.late}, "
            f"faults {dict(self.faults)}, events {dict(self.events)}"
        ]
        if self.queue is not None:
            lines.append(self.queue.sentence)
        for place in verdict.places:
            if not place.valid:
                lines.append(
                    f"{place.place}: lost {place.lost}, duplicated {place.duplicated}, out of "
                    f"order {place.out_of_order}, unexpected {place.unexpected}: {place.examples}"
                )
        return "\n".join(lines + self.complaints)


def declare(plan: Plan) -> RelayedFabric:
    """Regions of sync pairs, async to one another; a sync pair and a sync group of three, each of
    which stands alone."""
    fabric = RelayedFabric(
        f"soak-{os.getpid()}-{plan.seed}",
        topics=[Topic("t/.*", "json"), *([Topic(working.TOPIC, "json")] * plan.queue)],
        queues=[working.DECLARED] * plan.queue,
        downgrade={"age": "1s", "upgrade_age": "500ms"},
        journal={"segment_size": "1MiB"},
        tracing={"sampling_ratio": 0.01, "directory": "traces"},
        logs={"target": "file", "format": "json"},
    )
    for name in ("Chicago", "NewYork", "London")[: plan.regions]:
        fabric.region(name, instances=2)
    if plan.regions > 1:
        fabric.connect_regions("async")
    if plan.pair:
        fabric.region(PAIR, instances=2)
    if plan.trio:
        fabric.region(TRIO, instances=3)
        fabric.instance(f"{TRIO}-3", directory=str(Path(SMALL_DISKS, f"{TRIO}-3", "data")))
    return fabric


class RelayedFabric(Fabric):
    """A fabric all of whose connections, of links and of clients, pass a relay."""

    relay: Relay

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__(name, **options)
        self.instances.write_config = self._write_config  # type: ignore[method-assign]

    def _write_config(self, instance: InstanceSettings) -> None:
        settings, record = self.handle.known()
        config = instance_config(settings, record, instance)
        first, *more = config.client_transports
        assert first.advertised is not None
        relayed = self._for_clients(instance.name, first.advertised)
        config.client_transports = (replace(first, advertised=relayed), *more)
        config.destinations = tuple(
            replace(
                destination,
                addresses=tuple(
                    self.relay.route(f"{instance.name}>{name}", address)
                    for name, address in zip(
                        destination.server_names, destination.addresses, strict=True
                    )
                ),
                client_addresses=tuple(
                    self._for_clients(name, address)
                    for name, address in zip(
                        destination.server_names, destination.client_addresses, strict=True
                    )
                ),
            )
            for destination in config.destinations
        )
        config.save(data_directory(record, instance))

    def _for_clients(self, name: str, address: str) -> str:
        return self.relay.route(f"clients>{name}", address)

    def servers(self, group: str | None = None) -> list[Server]:
        """As clients are to reach them: through the relay."""
        return [
            replace(server, address=self._for_clients(server.instance, server.address))
            for server in super().servers(group)
        ]


@dataclass(slots=True)
class _Publisher:
    """A publisher of this process: what it published and was told."""

    name: str
    group: str
    client: Client | None = None
    first: int = 0
    published: int = 0
    persisted: int = 0
    moving: bool = False
    store: MemoryPublishStore = field(default_factory=MemoryPublishStore)
    words: bytes = b""
    earlier: list[tuple[int, int, int]] = field(default_factory=list)
    """(first, published, persisted) of clients before it: without their store the numbers of the
    next begin at the clock."""
    recorder: ClientRecorder | None = None


@dataclass(slots=True)
class _Killed:
    """A publisher that is a process of its own."""

    name: str
    group: str
    store: Path
    process: asyncio.subprocess.Process | None = None
    first: int = 0
    published: int = 0
    persisted: int = 0
    settled: bool = False
    lives: int = 0
    reader: asyncio.Task[None] | None = None


@dataclass(slots=True)
class _Subscriber:
    name: str
    group: str
    store: MemoryBookmarkStore
    received: list[SequenceStretch] = field(default_factory=list)
    have: PublisherRanges = field(default_factory=PublisherRanges)
    client: Client | None = None
    subscription: Subscription | None = None
    task: asyncio.Task[None] | None = None
    progress: asyncio.Event = field(default_factory=asyncio.Event)
    fully_durable: bool = False
    ended_at: str = ""
    recorder: SubscriberRecorder | None = None


class Soak:
    """One run. Owner: one event loop. Lifecycle: `run`, once."""

    heal_s_max = HEAL_S_MAX

    def __init__(
        self,
        plan: Plan,
        fabric: RelayedFabric,
        directory: Path,
        disks: dict[str, SmallDisk] | None = None,
    ) -> None:
        """`fabric` is started; `directory` takes the clients' stores; `disks` can be full."""
        self.plan = plan
        self.fabric = fabric
        self.directory = directory
        self.relay = fabric.relay
        self.small_disks = disks or {}
        self.chance = random.Random(plan.seed)
        self.breaker = Faults(self)
        self.working = Working(self)
        self.recordings: dict[str, HistoryBuilder] = {}
        self.faults: Counter[str] = Counter()
        self.complaints: list[str] = []
        self.log: list[str] = []
        """What was done and when, for people who look for the reason of a failure."""
        self.groups: dict[str, list[str]] = {}
        for instance in fabric.declared.instances:
            self.groups.setdefault(instance.group, []).append(instance.name)
        self.publishers: list[_Publisher] = []
        self.killed: list[_Killed] = []
        self.subscribers: list[_Subscriber] = []
        self._publishing = True
        self._background: set[asyncio.Task[None]] = set()
        self._statuses: dict[str, dict[str, Any]] = {}
        """As they were when all was over."""
        self.began_s = time.monotonic()
        if plan.trio:
            self.recordings[TRIO] = HistoryBuilder(
                self.members(TRIO), fabric.directory / "logs", f"t/{TRIO}"
            )

    def members(self, group: str) -> dict[str, Any]:
        """The instances of a group, as laws see them."""
        return members_of(
            (
                instance.name,
                instance.group,
                [
                    (found.destination(), found.server_names)
                    for found in self.fabric.instance_config(instance.name).destinations
                ],
            )
            for instance in self.fabric.declared.group(group)
        )

    def note(self, text: str) -> None:
        """Keeps a line of what happened."""
        self.log.append(f"{time.monotonic() - self.began_s:7.2f} {text}")
        for recording in self.recordings.values():
            recording.faults.append((now_us(), text))

    # -- clients -----------------------------------------------------------------------------
    def options(self, group: str, first: str | None = None) -> dict[str, Any]:
        """What a client of a group is made with."""
        servers = self.fabric.servers(group)
        if first is not None:
            servers.sort(key=lambda server: server.instance != first)
        return {
            "servers": servers,
            "group": group,
            "heartbeat_s": 1.5,
            "connect_wait_s": HEAL_S_MAX,
            "publish_timeout_s": HEAL_S_MAX,
            "close_timeout_s": HEAL_S_MAX,
        }

    async def _publish(self, publisher: _Publisher) -> None:
        """Publishes until the end of the faults, as evenly as the machine allows."""
        a_turn = max(1, int(self.plan.rate_per_s * TURN_S))
        while self._publishing:
            client = publisher.client
            if client is None or publisher.moving:
                await asyncio.sleep(TURN_S)
                continue
            began_us, first = now_us(), client.machine.outbox.next_sequence
            for _ in range(a_turn):
                sequence = client.machine.outbox.next_sequence
                await client.publish("t/" + publisher.group, body_of(client.publisher, sequence))
                publisher.first = publisher.first or sequence
                publisher.published = sequence
            if publisher.recorder is not None:
                publisher.recorder.published(first, sequence, began_us)
            publisher.persisted = max(publisher.persisted, client.persisted_sequence)
            await asyncio.sleep(TURN_S)

    async def _open_publisher(self, publisher: _Publisher, first: str | None = None) -> None:
        store = MemoryPublishStore()
        # What it was told of safety outlives it, as in a store on disk; its numbers do not.
        store.words = publisher.words
        recording = self.recordings.get(publisher.group)
        recorder = publisher.recorder = (
            ClientRecorder(recording.notices.append) if recording else None
        )
        client = Client(
            publisher.name,
            publish_store=store,
            on_event=recorder.event if recorder else None,
            on_persisted=recorder.persisted if recorder else None,
            **self.options(publisher.group, first),
        )
        if recorder is not None:
            recorder.machine = client.machine
        await client.connect()
        publisher.client, publisher.store = client, store

    async def move_publisher(self, publisher: _Publisher, target: str) -> None:
        """A publisher closes and comes back, this server first."""
        client = publisher.client
        assert client is not None
        publisher.moving = True
        try:
            await client.close()
            publisher.client = None
            publisher.words = publisher.store.words
            persisted = max(publisher.persisted, client.persisted_sequence)
            if publisher.published:
                publisher.earlier.append((publisher.first, publisher.published, persisted))
            publisher.first = publisher.published = publisher.persisted = 0
            await self._open_publisher(publisher, target)
        finally:
            publisher.moving = False

    async def start_killed(self, killed: _Killed) -> None:
        options = {
            "name": killed.name,
            "servers": [
                [server.address, server.instance, server.group]
                for server in self.fabric.servers(killed.group)
            ],
            "group": killed.group,
            "store": str(killed.store),
            "topic": "t/" + killed.group,
            "rate_per_s": self.plan.rate_per_s,
            "record": killed.group in self.recordings,
        }
        killed.lives += 1
        killed.process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(PUBLISHER_FILE),
            json.dumps(options),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(PUBLISHER_FILE.parents[1])},
        )
        killed.reader = asyncio.create_task(self._read_killed(killed, killed.process))

    async def _read_killed(self, killed: _Killed, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            told = json.loads(line)
            if "said" in told:
                said = [ClientNotice._make((*each[:-1], tuple(each[-1]))) for each in told["said"]]
                self.recordings[killed.group].notices += said
                continue
            if not killed.first:
                killed.first = told["first"]
            if told["published"] < killed.published:
                self.complaints.append(f"{killed.name} numbers {told} behind {killed.published}")
            killed.published = max(killed.published, told["published"])
            killed.persisted = max(killed.persisted, told["persisted"])
            killed.settled = told["settled"]

    async def _open_subscriber(self, subscriber: _Subscriber, first: str | None = None) -> None:
        recorder = subscriber.recorder

        def came(batch: MessageBatch) -> None:
            if recorder is not None:
                recorder.came(batch, client.machine.instance)

        client = Client(
            subscriber.name,
            bookmark_store=subscriber.store,
            on_arrival=came,
            **self.options(subscriber.group, first),
        )
        await client.connect()
        subscriber.client = client
        subscriber.subscription = await client.subscribe(
            "t/.*",
            bookmark=EPOCH,
            subscription_id="all",
            fully_durable=subscriber.fully_durable,
            timeout_s=HEAL_S_MAX,
        )
        subscriber.task = asyncio.create_task(self._read(subscriber, subscriber.subscription))

    async def _read(self, subscriber: _Subscriber, subscription: Subscription) -> None:
        async for batch in subscription.batches():
            for stretch in ranges_of(batch.payload, batch.count):
                subscriber.received.append(SequenceStretch(*stretch))
                subscriber.have.add(*stretch)
            for record in iterate_records(batch.payload):
                if record.body != body_of(record.publisher, record.sequence):
                    self.complaints.append(f"{subscriber.name} got another content: {record}")
            subscriber.progress.set()

    async def move_subscriber(self, subscriber: _Subscriber, target: str) -> None:
        """A subscriber closes and comes back with its bookmark store, this server first."""
        client, task = subscriber.client, subscriber.task
        assert client is not None and task is not None
        subscriber.client = None
        await client.close()
        # What was received and waits for the consumer is still handed out.
        await asyncio.gather(task, return_exceptions=True)
        await self._open_subscriber(subscriber, target)

    # -- what there is -----------------------------------------------------------------------
    async def status(self) -> dict[str, dict[str, Any]]:
        """By instance what it says of itself."""
        found = await asyncio.to_thread(self.fabric.status)
        return {status["name"]: status for status in found["instances"]}

    def journal(self, name: str) -> list[Run]:
        """What an instance's journal holds, in its order; its contents are looked at on the way."""
        return journal_of(self.fabric, name, self.complaints)

    def stretches(self, name: str) -> list[SequenceStretch]:
        """The same as the verdict takes it."""
        return stretches_of(self.journal(name))

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(self._logged(work))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _logged(self, work: Awaitable[None]) -> None:
        try:
            await work
        except (FabricError, RaylayError) as error:
            self.complaints.append(f"{type(error).__name__}: {error}")

    # -- the run -----------------------------------------------------------------------------
    async def run(self) -> Report:
        """Breaks, heals, judges."""
        plan = self.plan
        # Many faults wait for an instance at the same time; each takes a thread.
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS))
        for group in self.groups:
            for number in range(2):
                self.publishers.append(_Publisher(f"{group}-memory-{number}", group))
            path = self.directory / f"{group}.publishes"
            self.killed.append(_Killed(f"{group}-lmdb", group, path))
            self.subscribers.append(_Subscriber(f"{group}-reader", group, MemoryBookmarkStore()))
            bookmarks = LmdbBookmarkStore(self.directory / f"{group}.bookmarks")
            self.subscribers.append(_Subscriber(f"{group}-reader-lmdb", group, bookmarks))
            recording = self.recordings.get(group)
            if recording is not None:
                name = f"{group}-reader-durable"
                durable = _Subscriber(name, group, MemoryBookmarkStore(), fully_durable=True)
                self.subscribers.append(durable)
                for each in self.subscribers:
                    if each.group == group:
                        recorder = SubscriberRecorder(each.name, ".*", each.fully_durable)
                        each.recorder = recorder
                        recording.subscribers.append(recorder)
        tasks: list[asyncio.Task[None]] = []
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._end_everything, tasks)
            for killed in self.killed:
                await self.start_killed(killed)
            for publisher in self.publishers:
                await self._open_publisher(publisher)
                tasks.append(asyncio.create_task(self._publish(publisher)))
            for subscriber in self.subscribers:
                await self._open_subscriber(subscriber)
            if plan.queue:
                stack.push_async_callback(self.working.close)
                await self.working.open()
            await self._break(plan)
            await self._heal()
            self._publishing = False
            await asyncio.gather(*tasks)
            await self._settle()
            await self.working.settle(HEAL_S_MAX)
            await self._await_subscribers()
            await self._await_whole()
        return await self._judge()

    async def _break(self, plan: Plan) -> None:
        breaker = self.breaker
        end_s = time.monotonic() + plan.seconds
        number = 0
        while number < len(plan.faults) if plan.faults else time.monotonic() < end_s:
            # A source of its own for each: what one fault draws does not depend on how far
            # another one is.
            chance = random.Random(f"{plan.seed}/{number}")
            name = plan.faults[number] if plan.faults else breaker.draw(chance)
            number += 1
            self.faults[name] += 1
            work = breaker.named(name)(chance)
            if name in LASTING:
                self._spawn(work)  # the next fault may meet what this one has broken
            else:
                await self._logged(work)
            await asyncio.sleep(chance.uniform(0.05, plan.pause_s_max))

    async def _heal(self) -> None:
        await asyncio.gather(*list(self._background))
        self.note("heal")
        await self._logged(asyncio.to_thread(self.fabric.wait_ready, timeout_s=HEAL_S_MAX))

    async def _settle(self) -> None:
        """Everybody flushes."""

        async def flush(publisher: _Publisher) -> None:
            client = publisher.client
            if client is None:
                self.complaints.append(f"{publisher.name} has no client at the end")
                return
            try:
                await client.flush(HEAL_S_MAX)
            except (TimeoutError, RaylayError) as error:
                self.complaints.append(
                    f"{publisher.name} got no ack behind {client.persisted_sequence} of "
                    f"{client.last_sequence}: {error!r}; {client.status}"
                )
            publisher.persisted = max(publisher.persisted, client.persisted_sequence)

        async def end(killed: _Killed) -> None:
            process, reader = killed.process, killed.reader
            assert process is not None and reader is not None and process.stdin is not None
            process.stdin.write(b"end\n")
            try:
                await asyncio.wait_for(process.wait(), HEAL_S_MAX)
            except TimeoutError:
                process.kill()
            await reader
            if not killed.settled or killed.persisted != killed.published:
                self.complaints.append(f"{killed.name} did not settle: {killed}")

        await asyncio.gather(*map(flush, self.publishers), *map(end, self.killed))

    def _topics_of(self, group: str) -> list[str]:
        """The groups whose publishers reach this group."""
        if group in ALONE:
            return [group]
        return [name for name in self.groups if name not in ALONE]

    def record(self, *groups: str) -> PublishRecord:
        """What the publishers of these groups published and were told, until now."""
        record = PublishRecord()
        publishers: list[_Publisher | _Killed] = [*self.publishers, *self.killed]
        for each in publishers:
            if each.group not in groups:
                continue
            lives = [(each.first, each.published, each.persisted)] if each.published else []
            if isinstance(each, _Publisher):
                lives += each.earlier
            for first, published, persisted in lives:
                record.add(publisher_id(each.name), first, published, persisted)
        return record

    async def _await_subscribers(self) -> None:
        async def complete(subscriber: _Subscriber) -> None:
            wanted = self.record(*self._topics_of(subscriber.group)).persisted
            while not all(
                subscriber.have.covers(publisher, ranges)
                for publisher, ranges in wanted.sets.items()
            ):
                subscriber.progress.clear()
                await subscriber.progress.wait()

        async def await_one(subscriber: _Subscriber) -> None:
            try:
                await asyncio.wait_for(complete(subscriber), HEAL_S_MAX / 2)
            except TimeoutError:
                client = subscriber.client
                where = client.status if client is not None else "no client"
                self.complaints.append(f"{subscriber.name} waits for messages: {where}")

        await asyncio.gather(*map(await_one, self.subscribers))

    async def _await_whole(self) -> None:
        """After healing: nothing owed, all links connected and caught up, all safe."""
        deadline_s = time.monotonic() + HEAL_S_MAX / 2
        while True:
            self._statuses = await self.status()
            wrong = unwhole(self._statuses)
            if not wrong:
                return
            if time.monotonic() > deadline_s:
                self.complaints += wrong
                return
            await asyncio.sleep(0.2)

    async def _end_everything(self, tasks: list[asyncio.Task[None]]) -> None:
        self._publishing = False
        self.breaker.heal()
        for task in (*tasks, *self._background):
            task.cancel()
        for killed in self.killed:
            if killed.process is not None and killed.process.returncode is None:
                killed.process.kill()
                await killed.process.wait()
        for subscriber in self.subscribers:
            if subscriber.client is not None:
                subscriber.ended_at = subscriber.client.instance
                await subscriber.client.close()
            if subscriber.task is not None:
                await asyncio.gather(subscriber.task, return_exceptions=True)
            subscriber.store.close()
        for publisher in self.publishers:
            if publisher.client is not None:
                await publisher.client.close(flush=False)

    async def _judge(self) -> Report:
        places: dict[str, list[SequenceStretch]] = {}
        events: Counter[str] = Counter()
        verdicts: list[Verdict] = []
        journals: dict[str, list[Run]] = {}
        late = 0
        for group, names in self.groups.items():
            record = self.record(*self._topics_of(group))
            places = {
                f"subscriber {each.name}": each.received
                for each in self.subscribers
                if each.group == group
            }
            flagged = 0
            for name in names:
                runs = await asyncio.to_thread(self.journal, name)
                places[f"journal {name}"] = stretches_of(runs)
                flagged = max(flagged, late_in(runs))
                if group in self.recordings:
                    journals[name] = runs
            one = judge(places, record)
            if plan_splits(self.fabric, group, disk_lost=bool(self.faults["lose_disk"])):
                late += sum(_allow_late(place, flagged) for place in one.places)
            verdicts.append(one)
        for event in await asyncio.to_thread(lambda: list(self.fabric.events())):
            events[event["event"]] += 1
            if event["event"] in ("fatal", "conflict", "unavailable"):
                self.complaints.append(f"event {event}")
        total = self.record(*self.groups)
        verdict = Verdict(
            [place for one in verdicts for place in one.places],
            total.published_messages,
            total.persisted_messages,
        )
        history = None
        for group, recording in self.recordings.items():
            history = await self._history(group, recording, journals)
            self.complaints += await asyncio.to_thread(broken_laws, history)
        queue = await self.working.judge()
        if queue is not None and self.working.load is not None:
            self.complaints += [f"{each.law}: {each.text}" for each in queue.broken]
            self.complaints += self.working.load.complaints
        return Report(verdict, late, self.faults, events, self.complaints, history, queue)

    async def _history(
        self, group: str, recording: HistoryBuilder, journals: dict[str, list[Run]]
    ) -> RunHistory:
        unacked = {}
        for publisher in self.publishers:
            if publisher.group == group and publisher.client is not None:
                unacked[publisher.name] = publisher.store.messages
        for killed in self.killed:
            if killed.group == group:
                unacked[killed.name] = killed.published - killed.persisted
                # It may have died before it told what it published.
                recording.notices.append(
                    ClientNotice(
                        "published", 0, killed.name, publisher_id(killed.name), "", 0,
                        killed.first, killed.published,
                    )
                )  # fmt: skip
        for each in self.subscribers:
            if each.recorder is not None and each.client is not None:
                each.recorder.instance = each.ended_at
        recording.missed = self.breaker.missed
        statuses = self._statuses
        return await asyncio.to_thread(
            recording.history,
            {name: journals[name] for name in self.groups[group]},
            {name: statuses[name] for name in self.groups[group]},
            unacked,
        )


def plan_splits(fabric: Fabric, group: str, *, disk_lost: bool) -> bool:
    """Whether what reaches this group may come over links that carry different parts of it: by
    configuration, or because an instance with a new disk passes on what it has got back so far."""
    declared = fabric.declared
    return any(
        destination.group == group
        and instance.group != group
        and (disk_lost or not destination.own_group_only)
        for instance in declared.instances
        for destination in instance.destinations
    )


def _allow_late(place: PlaceVerdict, flagged: int) -> int:
    """Takes what was flagged late off a place's faults; returns how much."""
    allowed = min(place.out_of_order, flagged)
    place.out_of_order -= allowed
    return allowed


def unwhole(statuses: dict[str, dict[str, Any]]) -> list[str]:
    """What is not as it should be when nothing is broken and nobody publishes."""
    wrong = []
    for name, status in statuses.items():
        if not status["ready"]:
            wrong.append(f"{name} is not ready: {status['reason']}")
            continue
        if status["pending"]:
            wrong.append(f"{name} has {status['pending']} ranges pending")
        for destination, to in status["destinations"].items():
            expected = {
                "connected": True,
                "caught_up": True,
                "unacked": 0,
                "sync": to["configured_sync"],
                "safe": to["configured_sync"],
            }
            found = {key: to[key] for key in expected}
            if found != expected:
                examples = ", ".join(to["unacked_examples"])
                wrong.append(f"{name} to {destination}: {found}, {to['why']} {examples}".rstrip())
    return wrong


def journal_of(fabric: Fabric, name: str, complaints: list[str]) -> list[Run]:
    """What an instance's journal holds, in its order, without the records where the headers tell
    which they are; their contents are looked at before."""
    held: list[Run] = []
    with LmdbJournalReader(fabric.data_directory(name) / "journal") as reader:
        after_txid = 0
        while runs := reader.read(after_txid):
            for run in runs:
                if run.topic in working.TOPICS:
                    continue  # judged by themselves
                if run.kind == Kind.RECORDS:
                    for record in iterate_records(run.payload, verify=True):
                        if record.body != body_of(record.publisher, record.sequence):
                            complaints.append(f"journal of {name} has another content: {record}")
                    if run.contiguous and run.topic:
                        run = replace(run, payload=b"", raw=None)
                held.append(run)
            after_txid = runs[-1].last_txid
    return held


def stretches_of(runs: list[Run]) -> list[SequenceStretch]:
    """A journal as the verdict takes it."""
    return [stretch for run in runs for stretch in stretches_of_run(run)]


def late_in(runs: list[Run]) -> int:
    """How many messages are flagged late."""
    return sum(run.count for run in runs if run.kind == Kind.RECORDS and run.flags & Flag.LATE)


def broken_laws(history: RunHistory) -> list[str]:
    """What the simulator's checkers find in a recorded history."""
    return [
        f"{found.law}: {found.text}" for found in checkers.check_all(history) if not found.separate
    ]


def soak(plan: Plan, directory: Path) -> Report:
    """Runs a plan on a fabric of its own, in `directory`. Uses the Ray of this process, else one
    that it starts."""
    place = directory / "fabric"
    name = f"{TRIO}-3"
    wanted = {name: place / SMALL_DISKS / name} if plan.trio and plan.real_disk else {}
    fabric = declare(plan)
    with ExitStack() as stack:
        fabric.relay = stack.enter_context(Relay())
        disks = small_disks(wanted)
        for disk in disks.values():
            stack.callback(disk.close)
        stack.enter_context(fabric.start(place, timeout_s=HEAL_S_MAX))
        fabric.wait_connected(HEAL_S_MAX)
        run = Soak(plan, fabric, directory, disks)
        report = asyncio.run(run.run())
        report.seconds = time.monotonic() - run.began_s
        if not report.valid:
            # What is in memory goes with this run: it is evidence now.
            for name, disk in disks.items():
                shutil.copytree(disk.path, place / f"{name}-disk")
        (directory / "soak.log").write_text("\n".join([*run.log, str(report), ""]))
        return report
