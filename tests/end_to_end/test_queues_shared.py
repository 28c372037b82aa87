"""A queue of two instances: real processes, real links, real SIGKILL."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest
from end_to_end.test_queues import Consumer, Key, work
from support.instance_processes import Client, Server, Servers, free_ports, pair
from support.instance_processes import servers as servers

from raylay.services.client import Client as AsyncClient
from raylay.services.config.instance import DestinationConfig, InstanceConfig
from raylay.services.config.transport import TransportConfig
from raylay.services.messages.topics import TopicRule
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
    """Over links that have handed over their connections: both have caught up, and nothing else to
    do."""
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


# -- strict leasing ------------------------------------------------------------------------------


def depth(consumer: Consumer) -> int | None:
    """Messages in the queue, as its process at that instance says; None: it reads the log yet, or
    does not run."""
    consumer.send({"c": "queue_status", "t": "work", "mt": "json", "cid": "d"})
    found: dict[str, Any] = msgpack.unpackb(consumer.ack(cid="d").body)
    return found["queue_depth"] if found.get("is_ready") else None


def refused(consumer: Consumer, sequence: int) -> str:
    """What is said of an acknowledgment that is refused."""
    header = consumer.ack(a="persisted", s=sequence, status="failure").header
    assert header["reason"] == "not_leased"
    return str(header["text"])


@pytest.mark.covers("Queues", "`Leasing` strict")
@pytest.mark.slow
def test_where_leasing_is_strict_nobody_acknowledges_elsewhere_what_a_consumer_holds(
    servers: Servers, tmp_path: Path
) -> None:
    """One consumer holds messages at A; another one's acknowledgment at B removes none of them."""
    queue = work(strict=True, subscription_backlog_max=5)
    first, second = pair(servers, tmp_path, queues=(queue,))
    ann = Consumer(first.address, "ann", max_backlog=5)
    bob = Consumer(second.address, "bob", max_backlog=5)
    publisher = Client(first.address, "pub")
    publisher.publish(range(1, 4))
    publisher.persisted(3)
    held: list[Key] = []
    while len(held) < 3:
        held += [key for key, _ in ann.take()]
    assert refused(bob, bob.done(held)).startswith("3 of 3 messages are not leased")
    while depth(bob) != 3:
        pass  # Its process starts, and reads what comes.
    bob.send({"c": "queue_ack", "t": "work", "mt": "json", "cid": "f", "filter": "1=1"})
    assert bob.ack(cid="f").header["n"] == 0
    # Each is in the log of both in the order in which it was said.
    ann.persisted(ann.done(held[:1]))
    for consumer in (ann, bob):
        while (left := depth(consumer)) in (None, 3):
            pass  # What is durable is read a little later.
        assert left == 2
    # Of what is held in part, the holder's part counts, by the word of the instance, and a
    # client that goes to another instance with it finds both agree.
    again = ann.done([held[1], (held[0][0], 99)])
    assert refused(ann, again).startswith("1 of 2 messages are not leased")
    there = Consumer(second.address, "ann", max_backlog=1)
    there.sequence = again - 1
    assert refused(there, there.done([held[1], (held[0][0], 99)])).startswith("2 of 2 messages")
    for consumer in (ann, there):
        while (left := depth(consumer)) in (None, 2):
            pass
        assert left == 1
    ann.persisted(ann.done(held[2:]))
    for consumer in (ann, there):
        while depth(consumer) != 0:
            pass


# -- an archive ----------------------------------------------------------------------------------


def archived(servers: Servers, path: Path, *, sync: bool) -> tuple[Server, Server, Server]:
    """As `pair`, and an instance to which both replicate what the queue is of, and nothing else."""
    ports = dict(zip(("A", "B", "archive"), free_ports(3), strict=True))
    one_way = TopicRule("orders", "json", exclude_validation=("replicate", "cascade"))
    both_ways = TopicRule(".*", exclude_validation=("cascade",))
    made = []
    for name, port in ports.items():
        links = [
            DestinationConfig(
                f"to-{other}",
                "kept" if other == "archive" else "group",
                other != "archive" or sync,
                (f"127.0.0.1:{ports[other]}",),
                topics=(one_way if other == "archive" else both_ways,),
                pass_through=".*",
                retry_ms_max=100,
            )
            for other in ports
            if other != name != "archive"
        ]
        config = InstanceConfig(
            name,
            "kept" if name == "archive" else "group",
            destinations=tuple(links),
            replication_transports=(TransportConfig("replication", port),),
            first=True,
            queue_definitions=(work(subscription_backlog_max=5),) if links else (),
        )
        made.append(Server(path / name, config, awaited=False))
    servers += made
    for server in made:
        server.await_start()
    for server in made[:2]:
        server.wait_for("link_caught_up", 2)
    return made[0], made[1], made[2]


def kept(server: Server, count: int, wanted: set[str]) -> None:
    """A replay of all that there is gives these messages, each once."""
    reader = Client(server.address, "reader")
    reader.send({"c": "subscribe", "sub": "s", "t": "orders", "bm": "0", "cid": "s"})
    assert reader.ack(cid="s").header["status"] == "success"
    found = reader.receive(count)
    reader.close()
    assert len(found) == count and set(found) == wanted


@pytest.mark.covers("Queues", "an archive that takes the underlying topic alone needs")
@pytest.mark.slow
@pytest.mark.parametrize("sync", [False, True])
def test_an_archive_keeps_what_was_consumed_and_disturbs_nobody(
    servers: Servers, tmp_path: Path, sync: bool
) -> None:
    first, second, archive = archived(servers, tmp_path, sync=sync)
    publisher, here = Client(first.address, "pub"), Consumer(first.address, "here", max_backlog=5)
    publisher.publish(range(1, 21))
    publisher.persisted(20)
    assert len(set(drained(here, 20))) == 20
    here.close()
    # While it is away the queue goes on, at both; only acks may wait for it.
    archive.kill()
    there = Consumer(second.address, "there", max_backlog=5)
    publisher.publish(range(21, 41))
    assert len(set(drained(there, 20))) == 20
    assert sync or publisher.persisted(40) is None
    archive.start()
    if sync:
        publisher.persisted(40)
    # Nothing that was consumed has left it, and a queue is nothing that it knows.
    messages = {f"m{number}" for number in range(1, 41)}
    kept(archive, 40, messages)
    assert Client(archive.address, "asks").answer["status"] == "success"
    asks = Client(archive.address, "ann")
    options = {"max_backlog": 5}
    asks.send({"c": "subscribe", "sub": "s", "t": "work", "mt": "json", "cid": "s", "o": options})
    assert asks.ack(cid="s").header["reason"] == "no_queue"
    while there.status()["json/work"].get("queue_depth") != 0:
        pass  # Its counts come some times a second.
    # It has the messages of the topic, and no other record.
    assert archive.stop() == 0
    assert sorted(number for _, number in archive.journal()) == list(range(1, 41))


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


@pytest.mark.covers("Fabrics and tracing", "a sampled message of a queue shows enqueue")
@pytest.mark.slow
def test_a_trace_shows_what_queues_did_with_a_message_at_every_instance(
    servers: Servers, tmp_path: Path
) -> None:
    options = TracingOptions(sampling_ratio=1.0, file_directory=str(tmp_path / "traces"))
    queue = work(subscription_backlog_max=5, lease_us=2_000_000)
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
