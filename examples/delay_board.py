"""A departures board: the ten worst delays by airline and airport, live, of flights that leave now.

January's flights of 2013 are published within some seconds. `departures` keeps each of them,
`carriers` the names of the airlines. A view sums the delays up by airline and airport, a second one
joins the names, a conflated topic sends each record twice a second at most, and the board follows a
page of that: ten rows, however many flights there are. Half way the instance where the board is is
killed, and the board goes on at the other one. Then it asks, without any declaration, for the
destinations that wait longest. Both are compared with a plain computation over the same flights.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from three_regions import read_flights

from raylay import Client, Fabric

FLIGHTS = 10_000
PUBLISH_S = 8.0
TICK_S = 0.05
TIMEOUT_S = 60.0
ROWS = 10
ORDER = "/average DESC, /carrier, /airport"
CARRIERS = {
    "9E": "Endeavor", "AA": "American", "AS": "Alaska", "B6": "JetBlue", "DL": "Delta",
    "EV": "ExpressJet", "F9": "Frontier", "FL": "AirTran", "HA": "Hawaiian", "MQ": "Envoy",
    "OO": "SkyWest", "UA": "United", "US": "US Airways", "VX": "Virgin", "WN": "Southwest",
}  # fmt: skip
"""The names that are published; YV (Mesa) is missing, and comes without one."""
DELAYS: dict[str, Any] = {
    "name": "delays",
    "message_type": "json",
    "topic": "departures",
    "grouping": ["/carrier", "/origin"],
    "projection": [
        "/carrier AS /carrier",
        "/origin AS /airport",
        "COUNT(/dep_delay) AS /flights",
        "AVG(/dep_delay) AS /average",
        "MAX(/dep_delay) AS /worst",
    ],
}
NAMED: dict[str, Any] = {
    "name": "delays/named",
    "message_type": "json",
    "joins": ["[delays]./carrier = [carriers]./code"],
    "projection": [
        *(f"[delays]./{name} AS /{name}" for name in ("carrier", "airport", "flights")),
        "[delays]./average AS /average",
        "[delays]./worst AS /worst",
        "[carriers]./name AS /airline HINT OPTIONAL",
    ],
    "conflation": "inline",
}
SLOW: dict[str, Any] = {
    "name": "delays/board", "message_type": "json", "topic": "delays/named", "interval": "500ms",
}  # fmt: skip


def declare() -> Fabric:
    """Returns a sync pair with the flights, the two views and the conflated topic."""
    keys = {"departures": ["/id"], "carriers": ["/code"]}
    fabric = Fabric(
        "airport",
        topics=[{"name": name, "message_type": "json"} for name in keys],
        sow_topics=[
            {"name": name, "message_type": "json", "keys": fields} for name, fields in keys.items()
        ],
        views=[DELAYS, NAMED],
        conflated_topics=[SLOW],
    )
    return fabric.region("NewYork", instances=2)


def january() -> list[dict[str, Any]]:
    """Returns the first flights of the year, each with a number of its own, as they left."""
    bodies = [body for each in read_flights(FLIGHTS).values() for body in each]
    flights = sorted(map(json.loads, bodies), key=lambda flight: str(flight["time_hour"]))
    return [{"id": number} | flight for number, flight in enumerate(flights)]


async def publish(
    client: Client, flights: list[dict[str, Any]], half_way: Callable[[], Awaitable[Any]]
) -> None:
    """Publishes the airlines, and the flights spread over `PUBLISH_S`."""
    for code, name in CARRIERS.items():
        await client.publish("carriers", {"code": code, "name": name})
    part = max(1, int(len(flights) * TICK_S / PUBLISH_S))
    killing = None
    for begin in range(0, len(flights), part):
        if killing is None and begin >= len(flights) // 2:
            killing = asyncio.ensure_future(half_way())
        for flight in flights[begin : begin + part]:
            await client.publish("departures", flight)
        await asyncio.sleep(TICK_S)
    assert killing is not None
    await killing
    await client.flush()


class Board:
    """The rows that are shown: those that the server says."""

    def __init__(self) -> None:
        self.rows: dict[bytes, dict[str, Any]] = {}
        self.messages = 0

    async def follow(self, client: Client, expected: list[dict[str, Any]], shown: Live) -> None:
        """Follows the page until it is as expected."""
        page = await client.sow_and_subscribe(
            SLOW["name"], order_by=ORDER, top_n=ROWS, skip_n=0, oof=True
        )
        async for message in page:
            self.messages += 1
            if message.kind == "oof":
                self.rows.pop(message.key, None)
            else:
                self.rows[message.key] = message.json()
            shown.update(self.table())
            if self.ordered() == expected:
                return

    def ordered(self) -> list[dict[str, Any]]:
        """Returns the rows from above to below."""
        return sorted(self.rows.values(), key=place)

    def table(self) -> Table:
        """Returns the board as it stands."""
        table = Table("airline", "airport", title=f"the {ROWS} worst: {self.messages:,} messages")
        for column in ("flights", "mean delay, min", "worst, min"):
            table.add_column(column, justify="right")
        for row in self.ordered():
            table.add_row(
                row.get("airline", row["carrier"]),
                row["airport"],
                f"{row['flights']:,}",
                f"{row['average']:.1f}",
                f"{row['worst']}",
            )
        return table


def place(row: dict[str, Any]) -> tuple[Any, ...]:
    """Returns where a row stands on the board."""
    return -row["average"], row["carrier"], row["airport"]


def worst(flights: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the rows that the board must have in the end, computed plainly."""
    delays: dict[tuple[str, str], list[int]] = defaultdict(list)
    for flight in flights:
        if flight["dep_delay"] is not None:
            delays[flight["carrier"], flight["origin"]].append(flight["dep_delay"])
    rows = []
    for (carrier, airport), values in delays.items():
        row = {"carrier": carrier, "airport": airport, "flights": len(values)}
        row |= {"average": sum(values) / len(values), "worst": max(values)}
        rows.append(row | ({"airline": CARRIERS[carrier]} if carrier in CARRIERS else {}))
    return sorted(rows, key=place)[:ROWS]


async def longest(client: Client) -> list[tuple[str, int]]:
    """Asks for the three destinations whose flights waited longest, in all."""
    rows = await client.sow(
        "departures",
        filter="/dep_delay > 0",
        grouping=["/dest"],
        projection=["/dest", "SUM(/dep_delay) AS /minutes"],
        order_by="/minutes DESC, /dest",
        top_n=3,
    ).all()
    return [(row["dest"], row["minutes"]) for row in (each.json() for each in rows)]


def waited(flights: list[dict[str, Any]]) -> list[tuple[str, int]]:
    """Returns the same, computed plainly."""
    minutes: dict[str, int] = defaultdict(int)
    for flight in flights:
        minutes[flight["dest"]] += max(0, flight["dep_delay"] or 0)
    return sorted(minutes.items(), key=lambda each: (-each[1], each[0]))[:3]


async def main(fabric: Fabric, console: Console) -> list[str]:
    """Publishes and follows; returns what there is to say."""
    flights = await asyncio.to_thread(january)
    board = Board()
    killed: list[str] = []

    async def kill() -> None:
        killed.append(screen.instance)
        await asyncio.to_thread(fabric.kill, screen.instance)

    async with fabric.client("airports") as airports, fabric.client("board") as screen:
        with Live(board.table(), console=console, auto_refresh=console.is_terminal) as shown:
            async with asyncio.timeout(PUBLISH_S + TIMEOUT_S):
                await asyncio.gather(
                    publish(airports, flights, kill), board.follow(screen, worst(flights), shown)
                )
        found, now_at = await longest(screen), screen.instance
    is_right = found == waited(flights)
    return [
        f"the board went from {killed[0]} to {now_at}, as the first was killed",
        f"the board has the {ROWS} worst of {len(flights):,} flights: ok",
        f"{', '.join(dest for dest, _ in found)} waited longest: {'ok' if is_right else 'WRONG'}",
    ]


if __name__ == "__main__":
    with declare().start() as made:
        made.wait_connected()
        print("\n".join(asyncio.run(main(made, Console(file=sys.stderr)))))
