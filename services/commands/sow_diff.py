"""`raylay sow diff`: compares the records of a SOW topic at two instances of a running fabric."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raylay.services.commands.shared.interrupts import run_async
from raylay.services.commands.shared.options import CONNECT_TIMEOUT_S, FabricOption, running
from raylay.services.commands.shared.printing import echo, echo_json
from raylay.services.errors import CommandFailed, ConfigurationError, FabricError
from raylay.services.messages.event_topics import is_event_topic
from raylay.services.sow.query.comparison import RecordDifference, TopicComparison, differ, held

if TYPE_CHECKING:
    from raylay.services.client.failover import Server
    from raylay.services.configuration.model import FabricSettings
    from raylay.services.fabric.plan import FabricRecord

KEYS_ASKED_ONCE = 1_000
SECOND_LOOK_S = 0.5
WAIT_S_DEFAULT = 5.0
SHOWN_DEFAULT = 20

Ask = Callable[[str, str, list[bytes] | None], AsyncIterator[Any]]
"""Yields the rows of a topic (name, message type) under these keys; None: all keys."""
Topic = tuple[str, str]
"""Name and message type of a topic."""


@dataclass(frozen=True, slots=True)
class TopicDiff:
    """The differences of one topic.

    Attributes:
        counts: the number of records at each instance in the first look.
        only: the instance that has the topic, where the other one does not.
    """

    topic: Topic
    counts: tuple[int, int] = (0, 0)
    differences: tuple[RecordDifference, ...] = ()
    only: str = ""

    @property
    def is_equal(self) -> bool:
        """Returns whether no record differs, except those that changed at each look."""
        return not self.only and not differ(self.differences)


async def compare_topic(here: Ask, there: Ask, topic: Topic, wait_s: float) -> TopicDiff:
    """Compares one topic of two instances, and compares differing records again for as long as they
    may take to arrive.

    Args:
        wait_s: most time that a message may be on its way.

    Raises:
        CommandFailed: an instance refused the query.
        ConnectionLost: the connection to an instance ended.
    """
    loop = asyncio.get_running_loop()
    found = TopicComparison()
    await _look(found, here, there, topic, None)
    until_s = loop.time() + wait_s
    while found.keys and loop.time() < until_s:
        await asyncio.sleep(min(SECOND_LOOK_S, wait_s))
        await _look(found, here, there, topic, found.keys)
    return TopicDiff(topic, (found.counts[0], found.counts[1]), tuple(found.differences()))


async def _look(
    found: TopicComparison, here: Ask, there: Ask, topic: Topic, keys: list[bytes] | None
) -> None:
    parts: list[list[bytes] | None] = [None]
    if keys is not None:
        starts = range(0, len(keys), KEYS_ASKED_ONCE)
        parts = [keys[start : start + KEYS_ASKED_ONCE] for start in starts]
    for ask, take in ((here, found.first), (there, found.second)):
        for part in parts:
            async for row in ask(*topic, part):
                record = row.record
                take(record.key, held(record.topic, record.publisher, record.sequence, record.body))
    found.end()


def _options(settings: FabricSettings, record: FabricRecord, server: Server) -> dict[str, Any]:
    """Returns the options of a client of the fabric that asks only this instance."""
    from raylay.services.fabric.plan import client_options

    name = f"raylay-sow-diff-{os.getpid()}-{server.instance}"
    return {
        "name": name,
        **client_options(settings, record, server.group, name),
        "servers": [server],
        "connect_wait_s": CONNECT_TIMEOUT_S,
    }


def diff_command(
    here: Annotated[str, typer.Argument(help="An instance.")],
    there: Annotated[str, typer.Argument(help="The other instance.")],
    topic: Annotated[
        str, typer.Option(help="Only this SOW topic; default: all that either instance has.")
    ] = "",
    wait_s: Annotated[
        float,
        typer.Option("--wait", min=0, help=("Seconds to wait for messages that are on their way.")),
    ] = WAIT_S_DEFAULT,
    show: Annotated[
        int, typer.Option(min=0, help="The number of keys to show for each topic; 0: all.")
    ] = SHOWN_DEFAULT,
    fabric: FabricOption = "",
    as_json: Annotated[
        bool, typer.Option("--json", help=("Print one JSON object for each topic."))
    ] = False,
) -> None:
    """Compare the SOW topics of two instances of a running fabric, record by record. Exit code 1 if
    they differ."""
    entry = running(fabric)
    from raylay.services.configuration.model import FabricSettings
    from raylay.services.fabric.plan import FabricRecord, servers

    record = FabricRecord.load(entry.directory)
    if record is None:
        raise FabricError(f"{entry.directory} has no record of fabric {entry.name}")
    settings = FabricSettings.from_json(record.settings)
    topics = _topics(settings, (here, there), topic)
    known = {server.instance: server for server in servers(settings, record, None)}
    two = [_options(settings, record, known[name]) for name in (here, there)]
    found = run_async(_compare(two, topics, wait_s))
    for each in found:
        if as_json:
            echo_json(as_object(each, here, there))
        else:
            for line in lines(each, here, there, show):
                echo(line)
    if not all(each.is_equal for each in found):
        raise typer.Exit(1)


def _topics(
    settings: FabricSettings, names: tuple[str, str], wanted: str
) -> list[tuple[Topic, str]]:
    """Returns the topics that either instance has, each with the name of the only instance that has
    it; empty: both do. Event topics are left out: each instance keeps its own."""
    if names[0] == names[1]:
        raise ConfigurationError(f"{names[0]} is given twice: name two instances")
    have = [
        [
            (each.name, each.message_type)
            for each in settings.sow_of(settings.instance(name))
            if not is_event_topic(each.name)
        ]
        for name in names
    ]
    every = dict.fromkeys((*have[0], *have[1]))
    chosen = [each for each in every if wanted in ("", each[0])]
    if not chosen:
        known = ", ".join(name for name, _ in every) or "none"
        of = f" named {wanted}" if wanted else ""
        raise ConfigurationError(
            f"{names[0]} and {names[1]} have no SOW topic{of}; there are {known}"
        )
    return [
        (each, "" if each in have[0] and each in have[1] else names[each not in have[0]])
        for each in chosen
    ]


async def _compare(
    two: list[dict[str, Any]], topics: list[tuple[Topic, str]], wait_s: float
) -> list[TopicDiff]:
    """Compares the topics, with one client for each instance."""
    from raylay.services.client import Client

    async with AsyncExitStack() as stack:
        asks: list[Ask] = []
        for options in two:
            client = await stack.enter_async_context(Client(**options))
            asks.append(_asking(client, options["servers"][0].instance))
        found = []
        for topic, only in topics:
            if only:
                found.append(TopicDiff(topic, only=only))
            else:
                found.append(await compare_topic(asks[0], asks[1], topic, wait_s))
        return found


def _asking(client: Any, instance: str) -> Ask:
    async def ask(topic: str, message_type: str, keys: list[bytes] | None) -> AsyncIterator[Any]:
        try:
            async for row in client.sow(
                topic, message_type=message_type, keys=keys, non_regex_topic=True
            ):
                yield row
        except CommandFailed as error:
            raise FabricError(f"{instance} refused the query of {topic}: {error}") from None

    return ask


def lines(found: TopicDiff, here: str, there: str, show: int) -> list[str]:
    """Returns the lines on a topic.

    Args:
        show: number of keys to show; 0: all.
    """
    name = f"{found.topic[0]} ({found.topic[1]})"
    if found.only:
        return [f"{name}: only {found.only} has this SOW topic"]
    different = [difference for difference in found.differences if not difference.changing]
    changing = len(found.differences) - len(different)
    counts = f"{here} has {found.counts[0]:,} records, {there} {found.counts[1]:,}"
    what = f"{len(different):,} keys differ" if different else "no key differs"
    told = [f"{name}: {what}; {counts}"]
    if changing:
        told.append(
            f"  {changing:,} keys changed at each look: run it again when there is less traffic"
        )
    shown = different[: show or None]
    for each in shown:
        key = each.key.decode("utf-8", "replace")
        of = next((of.topic for of in (each.here, each.there) if of is not None), "")
        inside = f" of {of}" if of != found.topic[0] else ""
        told.append(f"  {key}{inside}: {here} {_said(each.here)}; {there} {_said(each.there)}")
    if len(shown) < len(different):
        told.append(f"  and {len(different) - len(shown):,} more: --show 0 shows all")
    return told


def _said(held: object) -> str:
    return "has nothing" if held is None else str(held)


def as_object(found: TopicDiff, here: str, there: str) -> dict[str, Any]:
    """Returns the differences as JSON, with all keys that differ."""
    return {
        "topic": found.topic[0],
        "message_type": found.topic[1],
        "only": found.only or None,
        "records": {here: found.counts[0], there: found.counts[1]},
        "differences": [
            {
                "key": difference.key.decode("utf-8", "replace"),
                "what": difference.what,
                "changing": difference.changing,
                here: None if difference.here is None else difference.here._asdict(),
                there: None if difference.there is None else difference.there._asdict(),
            }
            for difference in found.differences
        ],
    }
