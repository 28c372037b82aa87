"""The view of `make demo`: departure delays by carrier and airport, of each aircraft's last flight.

Each instance computes the view `delays` from the SOW topic `last-flights`, at each change: an
aircraft that leaves from another airport leaves one group for another. Nothing of a view is
journaled or replicated, and the instance that is killed computes it anew. In the end the records of
all six instances are compared with one another, byte for byte, and with what followers in the three
regions hold; and those of the first with a plain computation over the last flights that it has,
value for value and type for type. No value of this view depends on the order of the messages.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from last_flights import TOPIC as LAST_FLIGHTS
from last_flights import Follower, Held, States, compare
from rich.table import Table

from raylay import Fabric

TOPIC = "delays"
VIEW: dict[str, Any] = {
    "name": TOPIC,
    "message_type": "json",
    "topic": LAST_FLIGHTS,
    "grouping": ["/carrier", "/origin"],
    "conflation": "inline",
    "projection": [
        "/carrier AS /carrier",
        "/origin AS /airport",
        "COUNT(/tailnum) AS /aircraft",
        "COUNT_DISTINCT(/dest) AS /destinations",
        "AVG(/dep_delay) AS /average",
        "SUM(/dep_delay) AS /sum",
        "MIN(/dep_delay) AS /best",
        "MAX(/dep_delay) AS /worst",
    ],
}
SHOWN = 5
"""Rows of the table that is shown."""


def computed(flights: Iterable[bytes]) -> list[dict[str, Any]]:
    """Returns the records that the view must have over these last flights, in any order."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for flight in map(json.loads, flights):
        groups[flight["carrier"], flight["origin"]].append(flight)
    records = []
    for (carrier, airport), members in groups.items():
        delays = [each["dep_delay"] for each in members if each["dep_delay"] is not None]
        records.append(
            {
                "carrier": carrier,
                "airport": airport,
                "aircraft": len(members),
                "destinations": len({each["dest"] for each in members}),
                "average": sum(delays) / len(delays) if delays else None,
                "sum": sum(delays) if delays else None,
                "best": min(delays, default=None),
                "worst": max(delays, default=None),
            }
        )
    return records


def differences(found: Iterable[bytes], expected: Iterable[dict[str, Any]]) -> int:
    """Returns how many records differ in a value or its type; 5 and 5.0 do."""
    one = {json.dumps(json.loads(body), sort_keys=True) for body in found}
    other = {json.dumps(record, sort_keys=True) for record in expected}
    return len(one ^ other)


def worst(records: Iterable[Held]) -> Table:
    """Returns the groups with the longest average delays, of what a follower holds."""
    found = [json.loads(body) for _, _, body in records]
    delayed = [each for each in found if each["average"] is not None]
    delayed.sort(key=lambda each: each["average"], reverse=True)
    shown = Table("carrier", "airport", title="view `delays`, followed in one of the regions")
    for column in ("aircraft", "destinations", "mean delay, min", "worst, min"):
        shown.add_column(column, justify="right")
    for each in delayed[:SHOWN]:
        shown.add_row(
            each["carrier"],
            each["airport"],
            f"{each['aircraft']:,}",
            str(each["destinations"]),
            f"{each['average']:.1f}",
            str(each["worst"]),
        )
    return shown


async def compare_views(fabric: Fabric, followers: list[Follower], flights: States) -> States:
    """Asks every instance for the view, and compares also with a plain computation.

    Args:
        followers: those of the view.
        flights: the last flights, of the first instance.
    """
    states = await compare(fabric, followers, TOPIC)
    bodies = [body for _, _, body in states.records.values()]
    expected = await asyncio.to_thread(computed, [body for _, _, body in flights.records.values()])
    if wrong := differences(bodies, expected):
        states.different["the plain computation"] = wrong
    return states
