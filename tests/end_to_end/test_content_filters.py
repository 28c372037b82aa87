"""Content filters on real processes: of destinations, over restarts, and of subscriptions."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.instance_processes import Client, Server, Servers, pair, servers, single  # noqa: F401

from raylay.services.client.subscriptions.subscription_state import read_have
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.messages.records import RecordBuilder, iterate_records
from raylay.services.messages.topics import TopicRule

pytestmark = pytest.mark.covers(
    "Replication", "a content filter lets some records of a run through"
)

REGIONS = ("EU", "US", "all")
FILTER = "/region IN ('EU', 'all')"


def publish(client: Client, first: int, last: int) -> list[str]:
    """Publishes these numbers, each with a region tag in turn; a body that is no JSON with each
    tenth.

    Returns:
        The bodies that pass the filter.
    """
    builder = RecordBuilder(client.answer["publisher"], "orders", "json")
    bodies = [
        f'{{"n": {number}, "region": "{REGIONS[number % 3]}"}}'[: None if number % 10 else -1]
        for number in range(first, last + 1)
    ]
    payload = b"".join(
        builder.build(number, body.encode(), 0) for number, body in enumerate(bodies, first)
    )
    client.send({"c": "pb", "n": len(bodies)}, payload)
    return [body for body in bodies if '"US"' not in body and body.endswith("}")]


def replayed(server: Server, count: int) -> list[str]:
    """The first messages of an instance's log."""
    reader = Client(server.address, f"reader-{count}")
    reader.send({"c": "subscribe", "sub": "s", "t": "orders", "bm": "0", "cid": "2"})
    found = reader.receive(count)
    reader.close()
    return found


def test_only_what_passes_is_replicated_and_owed(
    servers: Servers,  # noqa: F811
    tmp_path: Path,
) -> None:
    first, second = pair(servers, tmp_path, topics=(TopicRule("orders", filter=FILTER),))
    publisher = Client(first.address, "publisher")
    passing = publish(publisher, 1, 60)
    publisher.persisted(60)
    assert replayed(second, len(passing)) == passing
    # While the other is away, and over a restart of this one.
    watcher = Client(first.address, "watcher")
    watcher.send({"c": "subscribe", "sub": "s", "t": "orders", "cid": "2", "a": "processed"})
    watcher.ack(cid="2")
    second.kill()
    passing += publish(publisher, 61, 120)
    watcher.receive(60)
    first.kill()
    first.start()
    second.start()
    first.wait_for("link_caught_up", 2)
    publisher = Client(first.address, "publisher")
    passing += publish(publisher, 121, 150)
    publisher.persisted(150)
    assert replayed(second, len(passing)) == passing
    assert len(second.journal()) == len(passing)
    assert len(first.journal()) == 150


def test_what_an_instance_sends_over_a_direct_connection_passes_the_filter(
    servers: Servers,  # noqa: F811
    tmp_path: Path,
) -> None:
    """It sends in place of the link there, and asks the filter in its place."""
    first, second = pair(servers, tmp_path, topics=(TopicRule("orders", filter=FILTER),))
    first.wait_for("link_direct")
    publisher = Client(first.address, "publisher")
    passing = publish(publisher, 1, 60)
    publisher.persisted(60)
    assert replayed(second, len(passing)) == passing
    assert len(second.journal()) == len(passing)
    assert not first.events("link_disconnected"), first.log


@pytest.mark.covers("Filters by content", "a subscription with a filter gets what passes")
def test_a_subscription_gets_what_passes_its_filter(
    servers: Servers,  # noqa: F811
    tmp_path: Path,
) -> None:
    server = single(servers, tmp_path, topics=(TopicRule("orders"),))
    subscriber = Client(server.address, "subscriber")

    def subscribe(name: str, text: object, topic: str = "orders", **more: str) -> str:
        options = {"filter": text} if text else {}
        header = {"c": "subscribe", "sub": name, "t": topic, "cid": name, "a": "processed"}
        subscriber.send(header | {"o": options} | more)
        answer = subscriber.ack(cid=name).header
        return str(answer.get("reason", answer["status"]))

    assert subscribe("all", "") == subscribe("some", FILTER) == "success"
    assert subscribe("one", "/n = 7", "^ord") == subscribe("none", "/n = 'x'") == "success"
    assert subscribe("wrong", "/n = ") == subscribe("w", "/n = ", bm="0") == "bad_filter"
    assert subscribe("number", 7) == "bad_command"
    publisher = Client(server.address, "publisher")
    passing = publish(publisher, 1, 60)
    publisher.persisted(60)
    every, some, one = (subscriber.receive(60, "all"), [], [])  # type: ignore[var-annotated]
    while len(some) < len(passing) or not one:
        frame = subscriber.next(lambda frame: frame.header["c"] == "p")
        bodies = [each.body.decode() for each in iterate_records(frame.body, verify=True)]
        assert len(bodies) == frame.header["n"]
        numbers = range(frame.header["tx"], frame.header["tx"] + len(bodies))
        assert bodies == [every[number - 1] for number in numbers]
        {"some": some, "one": one}[frame.header["sub"]].extend(bodies)
    assert some == passing and one == [every[6]]
    subscriber.send({"c": "unsubscribe", "sub": ["all", "some"], "cid": "u", "a": "processed"})
    assert subscriber.ack(cid="u").header["status"] == "success"
    # Nothing comes to those who left.
    publish(publisher, 67, 67)
    publisher.persisted(67)
    subscriber.send({"c": "ping", "cid": "end"})
    assert subscriber.next().header["cid"] == "end"


@pytest.mark.covers("Filters by content", "a bookmark subscription with a filter")
def test_a_replay_gets_what_passes_and_is_acked_what_does_not(
    servers: Servers,  # noqa: F811
    tmp_path: Path,
) -> None:
    """From the disk, then what is committed meanwhile; a second one resumes with what the first one
    was told."""
    server = single(servers, tmp_path, topics=(TopicRule("orders"),))
    publisher = Client(server.address, "publisher")
    passing = publish(publisher, 1, 3_000)
    publisher.persisted(3_000)
    reader = Client(server.address, "reader")
    header = {"c": "subscribe", "sub": "s", "t": "orders", "bm": "0", "cid": "2"}
    reader.send(header | {"a": "completed,persisted,stats", "o": {"filter": FILTER}})
    assert reader.receive(len(passing)) == passing
    stats = reader.next(lambda frame: frame.header.get("a") == "stats").header
    assert (stats["matches"], stats["topic_matches"]) == (len(passing), 3_000)
    passing += publish(publisher, 3_001, 3_300)
    publisher.persisted(3_300)
    assert reader.receive(len(passing) - stats["matches"]) == passing[stats["matches"] :]
    reader.close()
    # Another one, of which no ack is dropped among messages.
    reader = Client(server.address, "durable")
    reader.send(header | {"a": "persisted", "o": {"filter": FILTER}})
    have = PublisherRanges()
    while have.of(publisher.answer["publisher"]).last() != 3_300:
        frame = reader.next(lambda frame: frame.header.get("a") == "persisted")
        have.update(read_have(frame.header, frame.body) or PublisherRanges())
    assert list(have.of(publisher.answer["publisher"])) == [(1, 3_300)]
    reader.close()
    late = publish(publisher, 3_301, 3_330)
    again = Client(server.address, "durable")
    again.send(header | {"o": {"filter": FILTER, "have": have.to_wire(), "rate": "200"}})
    assert again.receive(len(late)) == late
