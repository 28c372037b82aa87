"""The state of the world in `make demo`: the last flight of each aircraft, by its tail number.

Each airport publishes, every few seconds, the last flight of each aircraft that left it. So an
aircraft that flies from New York's three airports has three publishers, in three regions, and
`conflict: last_writer` makes all six instances come to the same flight of it. In each region a
subscriber asks for what there is and follows what changes, over the kill as well. In the end all
six instances are asked, and compared with one another and with what the followers hold.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

import orjson

from raylay import Client, Fabric
from raylay.services.client import Message

TOPIC = "last-flights"
SOW_TOPIC: dict[str, Any] = {
    "name": TOPIC, "message_type": "json", "keys": ["/tailnum"], "conflict": "last_writer",
}  # fmt: skip
PARTS = 5
"""So often in a run each airport publishes what it has; not at the moment of the kill."""
CAUGHT_UP_S_MAX = 10.0
"""For what is on its way to a follower when all journals have it."""

Held = tuple[int, int, bytes]
"""Publisher, sequence and body of a record."""


def held(message: Message) -> Held:
    """The change of a record that a message carries."""
    return message.publisher, message.sequence, message.body


class Latest:
    """The last flight of each aircraft that left one airport, as far as it was not published."""

    def __init__(self) -> None:
        self._flights: dict[str, bytes] = {}
        self._parts = 0

    def left(self, bodies: list[bytes]) -> None:
        """These flights left. Some have no tail number in the data."""
        for body in bodies:
            tail = orjson.loads(body)["tailnum"]
            if tail:
                self._flights[tail] = body

    def due(self, share: float) -> list[bytes]:
        """What is to be published when so much of the run is over, 0 to 1; nothing in between."""
        if share * PARTS < self._parts + 1:
            return []
        self._parts = int(share * PARTS)
        flights = list(self._flights.values())
        self._flights.clear()
        return flights


@dataclass(slots=True)
class Follower:
    """The records of a topic that one region's follower holds, by the messages that it got."""

    region: str
    client: Client
    topic: str = TOPIC
    records: dict[bytes, Held] = field(default_factory=dict)

    async def run(self) -> None:
        """Follows until it is cancelled."""
        subscription = await self.client.sow_and_subscribe(self.topic, oof=True)
        async for message in subscription:
            if message.kind == "oof":
                self.records.pop(message.key, None)
            else:
                self.records[message.key] = held(message)


@dataclass(frozen=True, slots=True)
class States:
    """Returns the records that the six instances and the followers hold of a topic in the end.

    Attributes:
        records: records of the first instance, by SOW key.
        different: of each other place how many records differ from those; none: it is left out.
    """

    records: dict[bytes, Held]
    different: dict[str, int]

    @property
    def valid(self) -> bool:
        """Whether all hold the same, and something."""
        return bool(self.records) and not self.different

    def line(self, name: str, noun: str) -> str:
        """Returns the line for people: the topic's name, and what a record of it is."""
        found = "the same at all instances and followers"
        if self.different:
            places = ", ".join(f"{place}: {count}" for place, count in self.different.items())
            found = f"different at {places}"
        state = "ok" if self.valid else "WRONG"
        return f"{name:<22} {len(self.records):>9,} {noun}: {found}  {state}"


async def compare(fabric: Fabric, followers: list[Follower], topic: str = TOPIC) -> States:
    """Asks every instance, and waits a little for the followers."""
    states = {
        server.instance: await _ask(server.instance, server.address, topic)
        for server in fabric.servers()
    }
    first = next(iter(states.values()))
    deadline_s = time.monotonic() + CAUGHT_UP_S_MAX
    while any(each.records != first for each in followers) and time.monotonic() < deadline_s:
        await asyncio.sleep(0.1)
    states |= {f"follower {each.region}": each.records for each in followers}
    different = {place: _differences(first, records) for place, records in states.items()}
    return States(first, {place: count for place, count in different.items() if count})


async def _ask(instance: str, address: str, topic: str) -> dict[bytes, Held]:
    async with Client(f"asks-{instance}", servers=[address]) as client:
        rows = await client.sow(topic, batch=1_000).all()
    return {row.key: held(row) for row in rows}


def _differences(one: dict[bytes, Held], other: dict[bytes, Held]) -> int:
    return sum(one.get(key) != other.get(key) for key in one.keys() | other.keys())
