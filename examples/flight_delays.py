"""Departure delays by carrier and day, summed up by Spark while the flights are published.

A pair of instances takes the first flights of 2013 as JSON on `flights/<origin>`. Spark reads one
instance's journal as a stream, sums the delays up by carrier in windows of a day, and publishes
each window that changes to the SOW topic `delays`, which keeps the last result of each day and
carrier. A client asks for what is there and follows it: the table that is shown. At the end what
the client has, and what a query of the topic finds, is compared with a plain computation over the
same flights. Ask it yourself while it runs:

    raylay sow delays --filter "/carrier = 'UA'" --order-by "/dep_delay_mean DESC" --top 3

The time of a message is the flight's own, so the windows are days of 2013. A stream that closes
windows needs messages roughly in the order of that time. The file is not: it goes from January to
October and from December back to February. January's flights are, to within a day.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from three_regions import read_flights

from raylay import Client, Fabric, Message, RaylayError, Topic
from raylay.services.pipeline.aggregate import Windows, aggregate
from raylay.services.pipeline.journals import JournalPlace, places

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FLIGHTS = 20_000
FLIGHTS_MAX = 27_004
"""January's."""
PUBLISH_S = 15.0
TICK_S = 0.05
REDRAW_S = 0.5
SETTLE_S_MAX = 120.0
WINDOWS = Windows(
    topic="flights/.*",
    schema="carrier STRING, dep_delay DOUBLE, time_hour STRING",
    by=("carrier",),
    values=("dep_delay",),
    time="to_timestamp(time_hour)",
    window_ms=24 * 3600 * 1000,
    watermark_ms=48 * 3600 * 1000,
    updates=True,
)
SOW_TOPIC: dict[str, Any] = {
    "name": "delays",
    "message_type": "json",
    "keys": ["/window_start", "/carrier"],
}
WORST: dict[str, Any] = {
    "filter": "/messages >= 10",
    "order_by": "/dep_delay_mean DESC",
    "top_n": 5,
}
"""The query of the days and carriers with the longest delays."""
Key = tuple[str, str]
"""Day and carrier."""


def declare() -> Fabric:
    """A sync pair that journals the flights and the results, and keeps the last of each result."""
    topics = [Topic("flights/.*", "json"), Topic("delays", "json")]
    made = Fabric("delays", topics=topics, sow_topics=[SOW_TOPIC])
    return made.region("NewYork", instances=2)


def plainly(bodies: list[bytes]) -> dict[Key, tuple[int, float | None]]:
    """Flights and mean departure delay by day and carrier, without Spark."""
    counts: dict[Key, int] = defaultdict(int)
    delays: dict[Key, list[int]] = defaultdict(list)
    for flight in map(json.loads, bodies):
        key = (flight["time_hour"][:10], flight["carrier"])
        counts[key] += 1
        if flight["dep_delay"] is not None:
            delays[key].append(flight["dep_delay"])
    return {
        key: (count, sum(delays[key]) / len(delays[key]) if delays[key] else None)
        for key, count in counts.items()
    }


def key_of(result: Mapping[str, Any]) -> Key:
    """Of which day and carrier a result is."""
    return result["window_start"][:10], result["carrier"]


class Board:
    """What a client that follows the results has so far."""

    def __init__(self) -> None:
        self.results: dict[Key, dict[str, Any]] = {}
        self.messages = 0

    async def follow(self, client: Client, ready: asyncio.Event) -> None:
        """Takes what is there and what changes until it is cancelled."""
        subscription = await client.sow_and_subscribe("delays")
        ready.set()
        async for message in subscription:
            result = message.json()
            self.results[key_of(result)] = result
            self.messages += message.kind == "publish"

    def table(self) -> Table:
        """The carriers' last day."""
        shown = Table("carrier", "day", title=f"{self.messages:,} results of Spark's")
        for column in ("flights", "mean delay, min", "worst, min"):
            shown.add_column(column, justify="right")
        days = {carrier: day for day, carrier in sorted(self.results)}
        for carrier, day in sorted(days.items()):
            result = self.results[day, carrier]
            mean, worst = result["dep_delay_mean"], result["dep_delay_max"]
            shown.add_row(
                carrier,
                day,
                f"{result['messages']:,}",
                "" if mean is None else f"{mean:.1f}",
                "" if worst is None else f"{worst:.0f}",
            )
        return shown


def differences(results: Mapping[Key, dict[str, Any]], bodies: list[bytes]) -> int:
    """How many results are not what a plain computation gives."""
    expected = plainly(bodies)
    wrong = len(expected.keys() ^ results.keys())
    for key in expected.keys() & results.keys():
        count, mean = expected[key]
        found = results[key]
        there = found["dep_delay_mean"]
        same = (mean is None) == (there is None)
        if same and mean is not None:
            same = abs(mean - there) < 1e-9 * max(1.0, abs(mean))
        wrong += not same or count != found["messages"]
    return wrong


def results_of(rows: Iterable[Message]) -> dict[Key, dict[str, Any]]:
    """Results by day and carrier, in the order of a query's rows."""
    found = [row.json() for row in rows]
    return {key_of(result): result for result in found}


def worst(rows: Iterable[Message]) -> Table:
    """What the query of the worst days found."""
    shown = Table("day", "carrier", title="The worst days")
    for column in ("flights", "mean delay, min"):
        shown.add_column(column, justify="right")
    for (day, carrier), result in results_of(rows).items():
        shown.add_row(day, carrier, f"{result['messages']:,}", f"{result['dep_delay_mean']:.1f}")
    return shown


async def feed(client: Client, bodies: list[bytes], seconds: float) -> None:
    """Publishes the flights, spread evenly, each on the topic of its airport."""
    started_s, done = time.monotonic(), 0
    while done < len(bodies):
        share = (time.monotonic() - started_s) / seconds if seconds else 1.0
        due = min(len(bodies), int(len(bodies) * share) + 1)
        for body in bodies[done:due]:
            await client.publish(f"flights/{json.loads(body)['origin']}", body)
        done = due
        await asyncio.sleep(TICK_S)
    await client.flush()


async def run(
    spark: SparkSession,
    place: JournalPlace,
    publish: Mapping[str, str],
    clients: tuple[Client, Client],
    bodies: list[bytes],
    checkpoint: Path,
    console: Console,
    seconds: float = PUBLISH_S,
) -> dict[str, int]:
    """Feeds and follows; the figures at the end.

    Args:
        place: the journal that Spark reads.
        publish: where Spark publishes.
        clients: the publisher and the follower, connected.
    """
    board, ready, stop = Board(), asyncio.Event(), threading.Event()
    publisher, follower = clients

    def summed_up(**options: Any) -> Any:
        return aggregate(spark, place, WINDOWS, "delays", publish, checkpoint, **options)

    following = asyncio.create_task(board.follow(follower, ready))
    await ready.wait()
    live = asyncio.create_task(asyncio.to_thread(summed_up, stop=stop))
    feeding = asyncio.create_task(feed(publisher, bodies, seconds))
    try:
        with Live(board.table(), console=console, auto_refresh=False) as shown:
            while not feeding.done() and not live.done() and not following.done():
                await asyncio.sleep(REDRAW_S)
                shown.update(board.table(), refresh=console.is_terminal)
            stop.set()
            first = await live
            await feeding
            # A second run goes on where the first was stopped, and ends when it has all.
            last = await asyncio.to_thread(summed_up, until_caught_up=True)
            published = first.published + last.published
            deadline_s = time.monotonic() + SETTLE_S_MAX
            while board.messages < published and time.monotonic() < deadline_s:
                if following.done():
                    following.result()
                await asyncio.sleep(TICK_S)
            shown.update(board.table(), refresh=True)
        rows = await follower.sow("delays", batch=1_000).all()
        console.print(worst(await follower.sow("delays", **WORST).all()))
    finally:
        stop.set()
        for task in (following, feeding):
            task.cancel()
        await asyncio.gather(following, feeding, live, return_exceptions=True)
    return {
        "flights": len(bodies),
        "read": first.records + last.records,
        "published": published,
        "received": board.messages,
        "windows": len(board.results),
        "asked": len(rows),
        "late": first.dropped_late + last.dropped_late,
        "wrong": differences(board.results, bodies) + differences(results_of(rows), bodies),
    }


def is_right(found: Mapping[str, int]) -> bool:
    """Whether everything was read, received, kept once, and is what a plain computation finds."""
    return (
        found["read"] == found["flights"]
        and found["received"] == found["published"] > 0
        and found["asked"] == found["windows"]
        and not found["late"]
        and not found["wrong"]
    )


async def on_a_fabric(fabric: Fabric, bodies: list[bytes], seconds: float, console: Console) -> Any:
    """The example, on a fabric that runs."""
    from raylay.services.pipeline import session

    spark = await asyncio.to_thread(session, app="flight delays", log_level="OFF")
    try:
        with tempfile.TemporaryDirectory() as checkpoint:
            async with fabric.client("airports") as feeder, fabric.client("board") as follower:
                return await run(
                    spark,
                    places(path=str(fabric.directory))[0],
                    {"fabric": str(fabric.directory)},
                    (feeder, follower),
                    bodies,
                    Path(checkpoint),
                    console,
                    seconds,
                )
    finally:
        await asyncio.to_thread(spark.stop)


def january(count: int) -> list[bytes]:
    """The first flights, of all airports, in the order of their hour."""
    found = [body for each in read_flights(min(count, FLIGHTS_MAX)).values() for body in each]
    return sorted(found, key=lambda body: str(json.loads(body)["time_hour"]))


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--flights", type=int, default=FLIGHTS, help="how many, of January's")
    parser.add_argument("--seconds", type=float, default=PUBLISH_S, help="of publishing")
    arguments = parser.parse_args()
    console = Console()
    try:
        bodies = january(arguments.flights)
        with declare().start() as fabric:
            fabric.wait_connected()
            found = asyncio.run(on_a_fabric(fabric, bodies, arguments.seconds, console))
    except RaylayError as error:
        print(f"flight delays: {error}", file=sys.stderr)
        return 1
    print(json.dumps({"flight_delays": found}), flush=True)
    return 0 if is_right(found) else 1


if __name__ == "__main__":
    sys.exit(main())
