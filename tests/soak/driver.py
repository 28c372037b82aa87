"""The adversary: breaks a real fabric for a while, heals it, and judges what became of every ack.

A run is bounded by seconds and chosen by a seed (the order of faults; the machine adds its own
timing). Publishers of two kinds (memory store in this process; LMDB store in processes that are
killed), bookmark subscribers with stores, and one fault after another:

    kill             SIGKILL of an instance; Ray starts it again
    kill_region      … of every instance of a region at once
    kill_away        … which stays away for a while
    kill_link        SIGKILL of a link's process
    pause            SIGSTOP of an instance for a while, then SIGCONT
    pause_link       … of a link
    downgrade        by hand, and back by age
    lose_disk        SIGKILL, the data directory deleted, started again: it must not be ready before
                     it has all that its publishers had acks for
    kill_publisher   SIGKILL of a publisher with an LMDB store, started again under its name
    move_publisher   a publisher closes in good order and comes back, another server first
    move_subscriber  the same of a subscriber, with its bookmark store

Two faults may overlap: one is chosen while the last one's wounds are still open. What may not be
asked of any system is left out: a disk is lost only where the rest of its region has everything
that was acknowledged, and a publisher that moves knows what it was told about safety.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from soak.publisher import body_of

from raylay.services.client import EPOCH, Client, Subscription
from raylay.services.client.messages import ranges_of
from raylay.services.errors import FabricError, RaylayError
from raylay.services.fabric import Fabric, Topic
from raylay.services.messages.records import Flag, Kind, iterate_records, publisher_id
from raylay.services.replication.ranges import PublisherRanges
from raylay.services.verdict import PlaceVerdict, Record, Stretch, Verdict, judge, stretches_of_run
from raylay.storage.journal_reader import LmdbJournalReader
from raylay.storage.stores import LmdbBookmarkStore, MemoryBookmarkStore, MemoryPublishStore

PUBLISHER_FILE = Path(__file__).with_name("publisher.py")
TURN_S = 0.02
HEAL_S_MAX = 180.0
"""What an instance with a new disk gets back grows with the run, and all share two cores."""
PAIR = "Pair"


@dataclass(slots=True)
class Plan:
    """What a run is made of."""

    seconds: float
    seed: int
    regions: int = 3
    pair: bool = True
    rate_per_s: int = 250
    """Publishes of each publisher."""
    pause_s_max: float = 3.0
    """Between faults, and how long a stopped process stands still."""


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
        for place in verdict.places:
            if not place.valid:
                lines.append(
                    f"{place.place}: lost {place.lost}, duplicated {place.duplicated}, out of "
                    f"order {place.out_of_order}, unexpected {place.unexpected}: {place.examples}"
                )
        return "\n".join(lines + self.complaints)


def declare(plan: Plan) -> Fabric:
    """Regions of sync pairs, async to one another, and a sync pair that stands alone."""
    fabric = Fabric(
        f"soak-{os.getpid()}-{plan.seed}",
        topics=[Topic("t/.*", "json")],
        downgrade={"age": "1s", "upgrade_age": "500ms"},
        journal={"segment_size": "1MiB"},
        tracing={"sampling_ratio": 0.01, "directory": "traces"},
        logs={"target": "file"},
    )
    for name in ("Chicago", "NewYork", "London")[: plan.regions]:
        fabric.region(name, instances=2)
    if plan.regions > 1:
        fabric.connect_regions("async")
    if plan.pair:
        fabric.region(PAIR, instances=2)
    return fabric


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
    received: list[Stretch] = field(default_factory=list)
    have: PublisherRanges = field(default_factory=PublisherRanges)
    client: Client | None = None
    subscription: Subscription | None = None
    task: asyncio.Task[None] | None = None
    progress: asyncio.Event = field(default_factory=asyncio.Event)


class Soak:
    """One run. Owner: one event loop. Lifecycle: `run`, once."""

    def __init__(self, plan: Plan, fabric: Fabric, directory: Path) -> None:
        """`fabric` is started; `directory` takes the clients' stores."""
        self.plan = plan
        self.fabric = fabric
        self.directory = directory
        self.chance = random.Random(plan.seed)
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
        self._stopped: set[int] = set()
        self._publishing = True
        self._background: set[asyncio.Task[None]] = set()
        self._began_s = time.monotonic()
        self._sane_at_us = 0

    def note(self, text: str) -> None:
        """Keeps a line of what happened."""
        self.log.append(f"{time.monotonic() - self._began_s:7.2f} {text}")

    # -- clients -----------------------------------------------------------------------------
    def _options(self, group: str, first: str | None = None) -> dict[str, Any]:
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
            for _ in range(a_turn):
                sequence = client.machine.next_sequence
                await client.publish("t/" + publisher.group, body_of(client.publisher, sequence))
                publisher.first = publisher.first or sequence
                publisher.published = sequence
            publisher.persisted = max(publisher.persisted, client.persisted_sequence)
            await asyncio.sleep(TURN_S)

    async def _open_publisher(self, publisher: _Publisher, first: str | None = None) -> None:
        store = MemoryPublishStore()
        # What it was told of safety outlives it, as in a store on disk; its numbers do not.
        store.words = publisher.words
        client = Client(
            publisher.name,
            publish_store=store,
            **self._options(publisher.group, first),
        )
        await client.connect()
        publisher.client, publisher.store = client, store

    async def _start_killed(self, killed: _Killed) -> None:
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
            if not killed.first:
                killed.first = told["first"]
            if told["published"] < killed.published:
                self.complaints.append(f"{killed.name} numbers {told} behind {killed.published}")
            killed.published = max(killed.published, told["published"])
            killed.persisted = max(killed.persisted, told["persisted"])
            killed.settled = told["settled"]

    async def _open_subscriber(self, subscriber: _Subscriber, first: str | None = None) -> None:
        client = Client(
            subscriber.name,
            bookmark_store=subscriber.store,
            **self._options(subscriber.group, first),
        )
        await client.connect()
        subscriber.client = client
        subscriber.subscription = await client.subscribe(
            "t/.*", bookmark=EPOCH, subscription_id="all", timeout_s=HEAL_S_MAX
        )
        subscriber.task = asyncio.create_task(self._read(subscriber, subscriber.subscription))

    async def _read(self, subscriber: _Subscriber, subscription: Subscription) -> None:
        async for batch in subscription.batches():
            for stretch in ranges_of(batch.payload, batch.count):
                subscriber.received.append(Stretch(*stretch))
                subscriber.have.add(*stretch)
            for record in iterate_records(batch.payload):
                if record.body != body_of(record.publisher, record.sequence):
                    self.complaints.append(f"{subscriber.name} got another content: {record}")
            subscriber.progress.set()

    # -- faults ------------------------------------------------------------------------------
    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(self._logged(work))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _logged(self, work: Awaitable[None]) -> None:
        try:
            await work
        except (FabricError, RaylayError) as error:
            self.complaints.append(f"{type(error).__name__}: {error}")

    def _anyone(self) -> str:
        return self.chance.choice([name for names in self.groups.values() for name in names])

    async def _status(self) -> dict[str, dict[str, Any]]:
        found = await asyncio.to_thread(self.fabric.status)
        return {status["name"]: status for status in found["instances"]}

    async def kill(self) -> None:
        """SIGKILL of an instance; Ray starts it again."""
        name = self._anyone()
        self.note(f"kill {name}")
        try:
            await asyncio.to_thread(self.fabric.kill, name)
        except FabricError:
            self.note(f"{name} was down already")

    async def kill_region(self) -> None:
        """SIGKILL of a whole region at once."""
        group = self.chance.choice(list(self.groups))
        self.note(f"kill all of {group}")
        for name in self.groups[group]:
            try:
                await asyncio.to_thread(self.fabric.kill, name)
            except FabricError:
                self.note(f"{name} was down already")

    async def kill_away(self) -> None:
        """SIGKILL; it comes back after a while, on its disk."""
        name = self._anyone()
        away_s = self.chance.uniform(0.5, self.plan.pause_s_max)
        self.note(f"kill {name}, away for {away_s:.1f} s")
        try:
            await asyncio.to_thread(self.fabric.kill, name, restart=False)
        except FabricError:
            self.note(f"{name} was down already")
            return
        await asyncio.sleep(away_s)
        await asyncio.to_thread(self.fabric.restart, name)
        self.note(f"{name} is ready again")

    async def kill_link(self) -> None:
        """SIGKILL of a link."""
        name = self._anyone()
        destination = self.chance.choice(self.fabric.declared.instance(name).destinations).name
        self.note(f"kill link {name} to {destination}")
        try:
            await asyncio.to_thread(self.fabric.kill_link, name, destination)
        except FabricError as error:
            self.note(str(error))

    async def _stand_still(self, pid: int, seconds: float) -> None:
        try:
            os.kill(pid, signal.SIGSTOP)
        except ProcessLookupError:
            return
        self._stopped.add(pid)
        try:
            await asyncio.sleep(seconds)
        finally:
            self._stopped.discard(pid)
            try:
                os.kill(pid, signal.SIGCONT)
            except ProcessLookupError:
                pass

    async def pause(self) -> None:
        """An instance stands still."""
        name = self._anyone()
        seconds = self.chance.uniform(0.1, self.plan.pause_s_max)
        pid = await asyncio.to_thread(self.fabric.pid, name)
        if pid:
            self.note(f"stop {name} for {seconds:.1f} s")
            await self._stand_still(pid, seconds)
            self.note(f"{name} goes on")

    async def pause_link(self) -> None:
        """A link stands still."""
        name = self._anyone()
        destination = self.chance.choice(self.fabric.declared.instance(name).destinations).name
        seconds = self.chance.uniform(0.1, self.plan.pause_s_max)
        status = (await self._status())[name]
        pid = status.get("destinations", {}).get(destination, {}).get("pid")
        if pid:
            self.note(f"stop link {name} to {destination} for {seconds:.1f} s")
            await self._stand_still(pid, seconds)

    async def downgrade(self) -> None:
        """By hand; the age brings it back."""
        group = self.chance.choice(list(self.groups))
        name, other = self.chance.sample(self.groups[group], 2)
        self.note(f"downgrade {name} to {other}")
        try:
            await asyncio.to_thread(self.fabric.downgrade, name, other)
        except FabricError as error:
            self.note(str(error))

    async def lose_disk(self) -> None:
        """An instance loses its disk, where the others have everything."""
        group = self.chance.choice(list(self.groups))
        name, *others = self.chance.sample(self.groups[group], len(self.groups[group]))
        found = await self._status()
        victim = found[name]
        whole = victim["ready"] and all(
            found[other]["ready"]
            and victim["destinations"][other]["safe"]
            and found[other]["destinations"][name]["safe"]
            for other in others
        )
        if not whole or self._stopped:
            self.note(f"disk of {name} spared: {group} is not whole")
            self.faults["lose_disk"] -= 1
            return
        self.note(f"{name} loses its disk")
        try:
            await asyncio.to_thread(self.fabric.kill, name, restart=False)
        except FabricError:
            self.note(f"{name} was down already")
            return
        acked = self.record(group)
        await asyncio.to_thread(shutil.rmtree, self.fabric.data_directory(name))
        await asyncio.to_thread(self.fabric.restart, name, HEAL_S_MAX)
        self.note(f"{name} is ready again")
        held, _ = await asyncio.to_thread(journal_of, self.fabric, name, self.complaints)
        lacks = judge({name: held}, acked)
        if lacks.lost:
            self.complaints.append(
                f"{name} lost its disk and was ready without {lacks.lost} acknowledged messages: "
                f"{lacks.places[0].examples}"
            )

    async def kill_publisher(self) -> None:
        """SIGKILL of a publisher with an LMDB store, and started again under its name."""
        if not self.killed:
            return
        killed = self.chance.choice(self.killed)
        process, reader = killed.process, killed.reader
        if process is None or reader is None:
            return
        self.note(f"kill publisher {killed.name}")
        killed.process = None
        process.kill()
        await process.wait()
        await reader
        await self._start_killed(killed)

    async def move_publisher(self) -> None:
        """A publisher closes and comes back, another server first."""
        publisher = self.chance.choice(self.publishers)
        client = publisher.client
        if client is None or publisher.moving:
            return
        target = self.chance.choice(self.groups[publisher.group])
        publisher.moving = True
        self.note(f"move publisher {publisher.name} from {client.instance} to {target}")
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

    async def move_subscriber(self) -> None:
        """A subscriber closes and comes back, with its bookmark store."""
        subscriber = self.chance.choice(self.subscribers)
        client, task = subscriber.client, subscriber.task
        if client is None or task is None:
            return
        subscriber.client = None
        target = self.chance.choice(self.groups[subscriber.group])
        self.note(f"move subscriber {subscriber.name} to {target}")
        await client.close()
        # What was received and waits for the consumer is still handed out.
        await asyncio.gather(task, return_exceptions=True)
        await self._open_subscriber(subscriber, target)

    # -- the run -----------------------------------------------------------------------------
    async def run(self) -> Report:
        """Breaks, heals, judges."""
        plan = self.plan
        for group in self.groups:
            for number in range(2):
                self.publishers.append(_Publisher(f"{group}-memory-{number}", group))
            path = self.directory / f"{group}.publishes"
            self.killed.append(_Killed(f"{group}-lmdb", group, path))
            self.subscribers.append(_Subscriber(f"{group}-reader", group, MemoryBookmarkStore()))
            bookmarks = LmdbBookmarkStore(self.directory / f"{group}.bookmarks")
            self.subscribers.append(_Subscriber(f"{group}-reader-lmdb", group, bookmarks))
        tasks: list[asyncio.Task[None]] = []
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._end_everything, tasks)
            for killed in self.killed:
                await self._start_killed(killed)
            for publisher in self.publishers:
                await self._open_publisher(publisher)
                tasks.append(asyncio.create_task(self._publish(publisher)))
            for subscriber in self.subscribers:
                await self._open_subscriber(subscriber)
            await self._break(plan)
            await self._heal()
            self._publishing = False
            await asyncio.gather(*tasks)
            await self._settle()
            await self._await_subscribers()
            await self._await_whole()
        return await self._judge()

    async def _break(self, plan: Plan) -> None:
        faults: list[Callable[[], Awaitable[None]]] = [
            self.kill,
            self.kill,
            self.kill_region,
            self.kill_away,
            self.kill_link,
            self.kill_link,
            self.pause,
            self.pause_link,
            self.downgrade,
            self.lose_disk,
            self.lose_disk,
            self.kill_publisher,
            self.move_publisher,
            self.move_subscriber,
        ]
        end_s = time.monotonic() + plan.seconds
        round_of: list[Callable[[], Awaitable[None]]] = []
        while time.monotonic() < end_s:
            if not round_of:
                # Every kind comes in each round, so that a short run has them all.
                round_of = self.chance.sample(faults, len(faults))
            fault = round_of.pop()
            self.faults[fault.__name__] += 1
            if fault in (self.pause, self.pause_link):
                self._spawn(fault())  # the next fault may meet a process that stands still
            else:
                await self._logged(fault())
            await asyncio.sleep(self.chance.uniform(0.05, plan.pause_s_max))

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
        if group == PAIR:
            return [PAIR]
        return [name for name in self.groups if name != PAIR]

    def record(self, *groups: str) -> Record:
        """What the publishers of these groups published and were told, until now."""
        record = Record()
        for each in (*self.publishers, *self.killed):
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
            wrong = unwhole(await self._status())
            if not wrong:
                return
            if time.monotonic() > deadline_s:
                self.complaints += wrong
                return
            await asyncio.sleep(0.2)

    async def _end_everything(self, tasks: list[asyncio.Task[None]]) -> None:
        self._publishing = False
        for pid in list(self._stopped):
            os.kill(pid, signal.SIGCONT)
        for task in (*tasks, *self._background):
            task.cancel()
        for killed in self.killed:
            if killed.process is not None and killed.process.returncode is None:
                killed.process.kill()
                await killed.process.wait()
        for subscriber in self.subscribers:
            if subscriber.client is not None:
                await subscriber.client.close()
            if subscriber.task is not None:
                await asyncio.gather(subscriber.task, return_exceptions=True)
            subscriber.store.close()
        for publisher in self.publishers:
            if publisher.client is not None:
                await publisher.client.close(flush=False)

    async def _judge(self) -> Report:
        places: dict[str, list[Stretch]] = {}
        events: Counter[str] = Counter()
        verdicts: list[Verdict] = []
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
                held, late_here = await asyncio.to_thread(
                    journal_of, self.fabric, name, self.complaints
                )
                places[f"journal {name}"] = held
                flagged = max(flagged, late_here)
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
        return Report(verdict, late, self.faults, events, self.complaints)


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
                "owed": 0,
                "sync": to["configured_sync"],
                "safe": to["configured_sync"],
            }
            found = {key: to[key] for key in expected}
            if found != expected:
                wrong.append(f"{name} to {destination}: {found}, {to['why']}")
    return wrong


def journal_of(fabric: Fabric, name: str, complaints: list[str]) -> tuple[list[Stretch], int]:
    """What an instance's journal holds, in its order, and how many of it are flagged late; its
    contents are looked at as well."""
    held: list[Stretch] = []
    late = 0
    with LmdbJournalReader(fabric.data_directory(name) / "journal") as reader:
        after_txid = 0
        while runs := reader.read(after_txid):
            for run in runs:
                held += stretches_of_run(run)
                if run.kind != Kind.RECORDS:
                    continue
                late += run.count if run.flags & Flag.LATE else 0
                for record in iterate_records(run.payload, verify=True):
                    if record.body != body_of(record.publisher, record.sequence):
                        complaints.append(f"journal of {name} has another content: {record}")
            after_txid = runs[-1].last_txid
    return held, late


def soak(plan: Plan, directory: Path) -> Report:
    """Runs a plan on a fabric of its own, in `directory`. Uses the Ray of this process, else one
    that it starts."""
    with declare(plan).start(directory / "fabric", timeout_s=HEAL_S_MAX) as fabric:
        fabric.wait_connected(HEAL_S_MAX)
        run = Soak(plan, fabric, directory)
        report = asyncio.run(run.run())
        (directory / "soak.log").write_text("\n".join([*run.log, str(report), ""]))
        return report
