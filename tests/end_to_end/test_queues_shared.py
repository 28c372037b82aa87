"""A queue of two instances: real processes, real links, real SIGKILL."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from end_to_end.test_instance import Client, Servers, pair
from end_to_end.test_instance import servers as servers
from end_to_end.test_queues import Consumer, Key, work

from raylay.services.client import Client as AsyncClient
from raylay.services.telemetry.client_traces import ClientTracer
from raylay.services.telemetry.trace_report import print_trace
from raylay.services.telemetry.tracing import TracingOptions, start_tracing


def drained(consumer: Consumer, messages: int) -> list[Key]:
    """Takes so many messages, each acknowledged as it comes."""
    found: list[Key] = []
    while len(found) < messages:
        taken = [key for key, _ in consumer.take()]
        # Whoever waits for an ack passes over the deliveries before it.
        last = consumer.done(taken)
        found += taken
    consumer.persisted(last)
    return found


@pytest.mark.slow
def test_work_moves_to_the_instance_that_has_consumers(servers: Servers, tmp_path: Path) -> None:
    """Over links that have lent their connections: both have caught up, and nothing else to do."""
    first, second = pair(servers, tmp_path, queues=(work(subscription_backlog_max=5),))
    publisher = Client(first.address, "pub")
    publisher.publish(range(1, 21))
    publisher.persisted(20)
    there = Consumer(second.address, "ann", max_backlog=5)
    taken = drained(there, 20)
    assert len(set(taken)) == 20
    while (status := there.status()["json/work"]).get("queue_depth") != 0:
        pass  # Its counts come some times a second.
    assert status["transferred_in"] == 20


@pytest.mark.slow
def test_what_a_killed_instance_owned_is_consumed_when_it_is_back(
    servers: Servers, tmp_path: Path
) -> None:
    first, second = pair(servers, tmp_path, queues=(work(subscription_backlog_max=5),))
    publisher = Client(first.address, "pub")
    publisher.publish(range(1, 31))
    publisher.persisted(30)
    there = Consumer(second.address, "ann", max_backlog=5)
    taken = drained(there, 10)
    first.kill()
    first.start()
    taken += drained(there, 20)
    assert len(set(taken)) == 30
    while there.status()["json/work"].get("queue_depth") != 0:
        pass  # Its counts come some times a second.


# -- traces --------------------------------------------------------------------------------------


def ways_of(span: dict[str, Any], above: str = "") -> Iterator[str]:
    """Each span with all that are above it, each with who wrote it and what became of it."""
    attributes = span["attributes"]
    said = [span["name"], span["process"].split(".")[0]]
    if span["name"] != "publish":
        said += [str(attributes[each]) for each in ("generation", "outcome") if each in attributes]
    way = f"{above} / {' '.join(said)}" if above else span["name"]
    yield way
    for child in span["children"]:
        yield from ways_of(child, way)


async def consume_traced(first: str, second: str, options: TracingOptions) -> str:
    """Publishes one message at an instance, lets its lease at the other one expire, acknowledges
    it there. Returns its bookmark."""
    tracers = {name: ClientTracer(start_tracing(name, options), name) for name in ("pub", "ann")}
    given = {"sampling_ratio": 1.0}
    async with (
        AsyncClient("pub", [first], tracer=tracers["pub"], **given) as publisher,
        AsyncClient("ann", [second], tracer=tracers["ann"], **given) as ann,
    ):
        await publisher.publish("orders", b"{}")
        await publisher.flush()
        async with ann.queue("work", ack="manual", backlog=5) as queue:
            await anext(queue)
            again = await anext(queue)
            again.acknowledge()
            await ann.flush()
        for each in tracers.values():
            each.close()
        return again.bookmark


@pytest.mark.slow
def test_a_trace_shows_what_queues_did_with_a_message_at_every_instance(
    servers: Servers, tmp_path: Path
) -> None:
    options = TracingOptions(sampling_ratio=1.0, file_directory=str(tmp_path / "traces"))
    queue = work(subscription_backlog_max=5, lease_us=400_000)
    first, second = pair(servers, tmp_path, queues=(queue,), tracing=options)
    addresses = first.address, second.address
    bookmark = asyncio.run(asyncio.wait_for(consume_traced(*addresses, options), 60))
    depth: Any = None
    while depth != [0, 0]:
        # Both have folded the acknowledgment.
        status = [Consumer(each, "asks", filter="/none = 1").status() for each in addresses]
        depth = [each["json/work"].get("queue_depth") for each in status]
    assert [first.stop(), second.stop()] == [0, 0]
    out = io.StringIO()
    print_trace(tmp_path / "traces", bookmark, out, as_json=True)
    (publish,) = json.loads(out.getvalue())["spans"]
    ways = set(ways_of(publish))
    text = io.StringIO()
    print_trace(tmp_path / "traces", bookmark, text)
    here = "publish / commit A"
    there = f"{here} / link send A / remote commit B / enqueue B"
    held = f"{there} / lease B"
    for wanted in (
        f"{here} / enqueue A",
        f"{here} / enqueue A / transfer A 1",
        f"{here} / enqueue A / acknowledgment A",
        f"{here} / enqueue A / removal A ack",
        there,
        f"{there} / transfer B 1",
        f"{held} expired / delivery B / delivery ann",
        f"{held} acked / delivery B / delivery ann / acknowledgment ann persisted",
        f"{there} / acknowledgment B",
        f"{there} / removal B ack",
    ):
        assert wanted in ways, text.getvalue()
    assert not any("lease A" in way for way in ways), text.getvalue()
    assert "lease [expired]" in text.getvalue() and "A → B" in text.getvalue()
