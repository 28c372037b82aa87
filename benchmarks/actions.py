"""The cost of an action for the messages that do not start it.

Two instances without Ray, of which one has an action on the messages of a topic, and so the process
that runs it. Messages of another topic are published at one and then at the other, in turn;
messages that start the action come all the while. Compared are the medians of the parts' figures.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from compared_parts import Part, measured_part, ratio
from context import Bench, Figure, body
from publishers import Process

from raylay.services.actions.model import ActionDefinition, ActionModule
from raylay.services.client import Client
from raylay.services.config.instance import InstanceConfig
from raylay.services.telemetry.logs import LogOptions

PARTS = 20
"""Number of parts at each instance."""
SINGLE_S = 0.5
"""Seconds of each part in which one message after the other is published."""
MESSAGES = 200_000
"""Messages of each part that are published without waiting, about half a second of them."""
STARTS_S = 0.1
"""Time, in seconds, between two messages that start the action."""
TOPIC, STARTS = "bench/elsewhere", "bench/starts"
NAMES = ("actions_publish", "actions_ack_p50", "actions_ack_p99", "actions_processor")
ACTION = ActionDefinition(
    "copy",
    (ActionModule("on", "publish-message", (("Topic", STARTS), ("MessageType", "json"))),),
    (
        ActionModule(
            "do",
            "publish-message",
            (("Topic", "bench/copies"), ("MessageType", "json"), ("Data", "{{AMPS_DATA}}")),
        ),
    ),
)


@asynccontextmanager
async def starting(client: Client) -> AsyncIterator[None]:
    """Publishes messages that start the action, as long as a part lasts."""

    async def publish() -> None:
        while True:
            await client.publish(STARTS, b'{"n": 1}')
            await asyncio.sleep(STARTS_S)

    task = asyncio.create_task(publish())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def actions(bench: Bench) -> list[Figure]:
    """An instance with an action on another topic, against one without."""
    found: dict[bool, list[Part]] = {True: [], False: []}
    message = body(128)
    memory = Path("/dev/shm")
    place = memory if os.access(memory, os.W_OK) else bench.directory
    with tempfile.TemporaryDirectory(dir=place) as directory:
        instances = {
            has: Process(
                Path(directory) / f"solo{has:d}",
                InstanceConfig(
                    "solo",
                    "g",
                    first=True,
                    actions=(ACTION,) if has else (),
                    log=LogOptions(target="none"),
                ),
            )
            for has in (True, False)
        }
        try:
            addresses = {
                has: each.ask()["status"]["client_address"] for has, each in instances.items()
            }
            await _performed(instances[True], addresses[True])
            async with (
                Client("publisher", servers=[addresses[True]]) as beside,
                Client("publisher", servers=[addresses[False]]) as alone,
            ):
                clients = {True: beside, False: alone}
                for number in range(-2, 2 * PARTS):
                    has = number % 4 in (1, 2)  # none of the two always comes behind the other
                    async with starting(clients[has]):
                        figures = await measured_part(
                            clients[has], instances[has], TOPIC, message, MESSAGES, SINGLE_S
                        )
                    if number >= 0:
                        found[has].append(figures)
        finally:
            for each in instances.values():
                each.stop()

    return [
        Figure("actions_publish", ratio(found[True], found[False], "rate"), "ratio"),
        Figure("actions_ack_p50", ratio(found[True], found[False], "took_ms"), "ratio"),
        Figure("actions_ack_p99", ratio(found[True], found[False], "took_ms", 0.99), "ratio"),
        Figure("actions_processor", ratio(found[True], found[False], "processor_us"), "ratio"),
    ]


async def _performed(instance: Process, address: str) -> None:
    """Waits until the action has run."""
    async with Client("publisher", servers=[address]) as client:
        while True:
            await client.publish(STARTS, b'{"n": 0}')
            status = await asyncio.to_thread(instance.ask)
            if status["status"]["actions"]["actions"].get("copy", {}).get("runs"):
                return
            await asyncio.sleep(STARTS_S)
