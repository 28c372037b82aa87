"""Instances and links as real processes: real sockets, real LMDB, real SIGKILL."""

from __future__ import annotations

import dataclasses
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import forked
from support.instance_processes import (
    DEADLINE_S,
    Client,
    Executed,
    Server,
    Servers,
    free_ports,
    impatient_pair,
    is_given_up_and_found_again,
    pair,
    single,
    subscribe,
)
from support.link_peers import DESCRIPTION

from raylay.services.capacity.config import CapacityConfig
from raylay.services.config.instance import DestinationConfig, InstanceConfig, split_address
from raylay.services.config.journal import JournalConfig
from raylay.services.config.transport import TransportConfig
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.messages.records import (
    RecordBuilder,
    iterate_records,
    publisher_id,
    run_of,
    scan,
)
from raylay.services.messages.topics import TopicRule
from raylay.services.protocol.frames import Frame, Header, encode_frame
from raylay.services.protocol.link.replication import (
    UpstreamLogon,
    batch_front,
    link_logon,
    read_ack,
)
from raylay.services.replication.downgrade import DowngradePolicy


def test_publish_subscribe_and_persisted(servers: Servers, tmp_path: Path) -> None:
    server = single(servers, tmp_path)
    publisher = Client(server.address, "publisher")
    assert publisher.answer["status"] == "success"
    assert publisher.answer["publisher"] == publisher_id("publisher")
    assert publisher.answer["highest"] == 0 and publisher.answer["durable"] == []
    subscriber = Client(server.address, "subscriber")
    subscriber.send({"c": "subscribe", "sub": "s", "t": "^ord", "cid": "2", "a": "processed"})
    assert subscriber.ack(cid="2").header["status"] == "success"
    publisher.publish(range(1, 101))
    publisher.persisted(100)
    publisher.publish(range(101, 103), topic="other")
    publisher.publish(range(103, 105))
    publisher.persisted(104)
    assert subscriber.receive(102) == [f"m{n}" for n in (*range(1, 101), 103, 104)]
    subscriber.send({"c": "unsubscribe", "sub": "all", "cid": "3", "a": "processed"})
    assert subscriber.ack(cid="3").header["status"] == "success"
    publisher.publish(range(105, 106))
    publisher.persisted(105)
    subscriber.send({"c": "ping", "cid": "4"})
    assert subscriber.next().header["cid"] == "4"
    assert server.stop() == 0


def test_a_publisher_hears_its_ack_before_it_is_told_of_its_message(
    servers: Servers, tmp_path: Path
) -> None:
    """On one connection their order can be seen: links, acks, then deliveries and replays."""
    server = single(servers, tmp_path)
    client = Client(server.address, "both")
    for name, options in (("live", {}), ("replay", {"bm": "0|1|"})):
        client.send(
            {"c": "subscribe", "sub": name, "t": "orders", "cid": name, "a": "processed", **options}
        )
        assert client.ack(cid=name).header["status"] == "success"
    for sequence in range(1, 6):
        client.publish(range(sequence, sequence + 1))
        frames = [client.next().header for _ in range(3)]
        assert [header["c"] for header in frames] == ["ack", "p", "p"], frames
        assert frames[0]["s"] == sequence
        assert [header["sub"] for header in frames[1:]] == ["live", "replay"]
    assert server.stop() == 0


@pytest.mark.covers("Clients and protocol", "every ack type")
def test_single_publishes_and_every_ack(servers: Servers, tmp_path: Path) -> None:
    server = single(servers, tmp_path, topics=(TopicRule("orders"),))
    client = Client(server.address, "client")
    kinds = ("received", "processed", "completed", "stats")
    client.send({"c": "subscribe", "sub": "s", "t": "chat", "cid": "s", "a": ",".join(kinds)})
    found = [client.ack(cid="s").header for _ in kinds]
    assert {header["a"]: header["status"] for header in found} == dict.fromkeys(kinds, "success")
    (stats,) = (header for header in found if header["a"] == "stats")
    assert (stats["sub"], stats["matches"], stats["topic_matches"]) == ("s", 0, 0)
    client.send(
        {"c": "p", "t": "orders", "mt": "json", "cid": "u", "a": "received,processed,persisted"},
        b"{}",
    )
    assert client.next().header == {"c": "ack", "a": "received", "cid": "u", "status": "success"}
    processed = client.ack(cid="u", a="processed").header
    assert processed["s"] == 1 and processed["bm"].endswith("|1|")
    assert client.ack(cid="u", a="persisted").header["status"] == "success"
    client.send({"c": "p", "t": "orders", "s": 7, "a": "persisted"}, b"{}")
    assert client.ack(a="persisted").header["s"] == 7
    client.send({"c": "p", "t": "chat", "s": 8, "a": "persisted"}, b"hello")
    delivery = client.next(lambda frame: frame.header["c"] == "p")
    assert "tx" not in delivery.header and next(iterate_records(delivery.body)).body == b"hello"
    client.send({"c": "flush", "cid": "f", "a": "processed,completed,persisted"})
    kinds = {client.ack(cid="f").header["a"] for _ in range(3)}
    assert kinds == {"processed", "completed", "persisted"}


@pytest.mark.covers("Laws", "1 no acknowledged loss", note="on real processes")
@pytest.mark.covers("The replication chapters", "the order of an instance is that of its log")
def test_restart_after_sigkill_keeps_all_that_was_acked(servers: Servers, tmp_path: Path) -> None:
    server = single(servers, tmp_path)
    client = Client(server.address, "publisher")
    sent = 0
    for _ in range(20):
        client.publish(range(sent + 1, sent + 501))
        sent += 500
    client.persisted(5_000)
    client.publish(range(sent + 1, sent + 501))
    server.kill()
    acked = 5_000
    server.start()
    client = Client(server.address, "publisher", low=1)
    durable = client.answer["durable"]
    assert durable[0][0] == 1 and durable[0][1] >= acked
    highest = client.answer["highest"]
    assert highest == durable[-1][1]
    client.publish(range(highest + 1, highest + 11))
    client.persisted(highest + 10)
    publisher = publisher_id("publisher")
    assert server.stop() == 0
    assert server.journal() == [(publisher, n) for n in range(1, highest + 11)]


ACKED = {"a": "processed"}


@pytest.mark.covers("The replication chapters", "the order of an instance is that of its log")
def test_the_order_of_an_instance_is_that_of_its_log_over_restarts_and_topics(
    servers: Servers, tmp_path: Path
) -> None:
    """Of three publishers on three topics: what a replay gives is the journal's order, and what was
    before a SIGKILL stays as it was. Who subscribed meanwhile had the same order."""
    server = single(servers, tmp_path)
    topics = ("orders", "trades", "quotes")

    def publish_in_turn(first: int, count: int) -> None:
        clients = [Client(server.address, f"p{number}", low=1) for number in range(3)]
        for at in range(first, first + count):
            for client, topic in zip(clients, (*topics[at % 3 :], *topics[: at % 3]), strict=True):
                client.publish(range(at, at + 1), topic, f"{topic}-{client.answer['publisher']}-")
        for client in clients:
            client.persisted(first + count - 1)
            client.close()

    def replayed(count: int) -> list[str]:
        reader = Client(server.address, "reader")
        subscribe(reader, "0", "^(orders|trades|quotes)$")
        bodies = reader.receive(count)
        reader.close()
        return bodies

    live = Client(server.address, "live")
    live.send({"c": "subscribe", "sub": "s", "t": "^(orders|trades|quotes)$", "cid": "s"} | ACKED)
    live.ack(cid="s")
    publish_in_turn(1, 60)
    before = replayed(180)
    assert live.receive(180) == before
    for life in (1, 2):
        server.kill()
        server.start()
        assert replayed(180 * life) == before
        publish_in_turn(60 * life + 1, 60)
        after = replayed(180 * (life + 1))
        assert after[: 180 * life] == before
        before = after
    assert server.stop() == 0
    numbered = [tuple(map(int, body.rsplit("-", 2)[1:])) for body in before]
    assert numbered == server.journal()
    assert {body.partition("-")[0] for body in before} == set(topics)


@pytest.fixture
def logged(servers: Servers, tmp_path: Path) -> tuple[Server, int]:
    """An instance with 100 messages of `orders`, every tenth of `other`."""
    server = single(servers, tmp_path)
    client = Client(server.address, "publisher")
    for first in range(1, 101, 10):
        client.publish(range(first, first + 9))
        client.publish(range(first + 9, first + 10), topic="other")
    client.persisted(100)
    client.close()
    return server, publisher_id("publisher")


ORDERS = [n for n in range(1, 101) if n % 10]


@pytest.mark.covers("Clients and protocol", "every ack type")
@pytest.mark.covers("Clients and protocol", "bookmarks: epoch")
@pytest.mark.parametrize(
    ("bookmark", "wanted"),
    [
        ("0", ORDERS),
        ("{p}|50|", [n for n in ORDERS if n > 50]),
        ("{p}|52|", [n for n in ORDERS if n > 52]),
        ("{p}|90|,{p}|41|,77|3|", [n for n in ORDERS if n > 41]),
        ("20200102T030405Z", ORDERS),
        ("[{p}|12|:{p}|31|]", [n for n in ORDERS if 12 <= n <= 31]),
        ("({p}|12|:{p}|31|)", [n for n in ORDERS if 12 < n < 31]),
        ("[0:{p}|3|]", [1, 2, 3]),
        ("[{p}|95|:0|1|]", [95, 96, 97, 98, 99]),
    ],
)
def test_bookmarks(logged: tuple[Server, int], bookmark: str, wanted: list[int]) -> None:
    server, publisher = logged
    client = Client(server.address, "subscriber")
    answer = subscribe(client, bookmark.format(p=publisher))
    assert answer.header["status"] == "success"
    assert client.receive(len(wanted)) == [f"m{n}" for n in wanted]
    stats = client.ack(a="stats").header
    assert stats["matches"] == len(wanted)
    assert client.ack(a="completed").header["cid"] == "b"
    later = Client(server.address, "publisher")
    later.publish(range(101, 103))
    later.persisted(102)
    if bookmark[0] in "[(":
        client.send({"c": "ping", "cid": "ping"})
        while (frame := client.next()).header.get("cid") != "ping":
            assert frame.header["c"] != "p", "a range delivered behind its end"
    else:
        assert client.receive(2) == ["m101", "m102"]


def test_bookmark_now_tells_what_lies_before(logged: tuple[Server, int]) -> None:
    server, publisher = logged
    client = Client(server.address, "subscriber")
    answer = subscribe(client, "0|1|")
    have = PublisherRanges.from_wire(answer.header["have"])
    assert list(have.of(publisher)) == [(1, 100)]
    later = Client(server.address, "publisher")
    later.publish(range(101, 111))
    later.persisted(110)
    assert client.receive(10) == [f"m{n}" for n in range(101, 111)]
    persisted = client.ack(a="persisted").header
    assert list(PublisherRanges.from_wire(persisted["have"]).of(publisher)) == [(101, 110)]


def test_bookmark_tells_what_lies_before_a_message(logged: tuple[Server, int]) -> None:
    server, publisher = logged
    client = Client(server.address, "subscriber")
    answer = subscribe(client, f"{publisher}|55|")
    have = PublisherRanges.from_wire(answer.header["have"])
    assert list(have.of(publisher)) == [(1, 55)]


@pytest.mark.covers("Clients and protocol", "resumption by ranges on another instance")
def test_durable_subscriber_gets_what_it_has_not(logged: tuple[Server, int]) -> None:
    server, publisher = logged
    have = PublisherRanges()
    have.add_ranges(publisher, [(1, 40), (45, 46), (60, 70)])
    client = Client(server.address, "subscriber")
    subscribe(client, "0", have=have.to_wire())
    wanted = [n for n in ORDERS if (publisher, n) and not have.covers(publisher, [(n, n)])]
    assert client.receive(len(wanted)) == [f"m{n}" for n in wanted]


@pytest.mark.parametrize(
    ("bookmark", "topic", "options", "reason"),
    [
        ("what", "orders", {}, "bad_bookmark"),
        ("77|1|", "orders", {"bookmark_not_found": "fail"}, "bookmark_not_found"),
        ("0", "orders[", {}, "bad_regex"),
        ("0", "", {}, "bad_topic"),
        ("0", "orders", {"bookmark_not_found": "maybe"}, "bad_command"),
    ],
)
def test_a_refused_subscription_names_its_reason_and_the_session_goes_on(
    logged: tuple[Server, int], bookmark: str, topic: str, options: dict[str, Any], reason: str
) -> None:
    client = Client(logged[0].address, "subscriber")
    answer = subscribe(client, bookmark, topic, **options).header
    assert (answer["status"], answer["reason"]) == ("failure", reason)
    assert subscribe(client, "0").header["status"] == "success"
    assert subscribe(client, "0").header["reason"] == "sub_id_in_use"


def test_a_bookmark_subscription_needs_a_journaled_topic(servers: Servers, tmp_path: Path) -> None:
    server = single(servers, tmp_path, topics=(TopicRule("orders"),))
    client = Client(server.address, "subscriber")
    assert subscribe(client, "0", "chat").header["reason"] == "not_journaled"


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """An instance for those who end no more than their own connection."""
    made: Servers = []
    yield single(made, tmp_path_factory.mktemp("lasting"))
    made[0].kill()


@pytest.mark.covers("Clients and protocol", "frames, limits")
@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (encode_frame({"c": "pb"}), "not_logged_on"),
        (encode_frame({"c": "fly"}), "unknown_command"),
        (encode_frame({"c": "logon", "v": 9, "client_name": "x"}), "bad_version"),
        (encode_frame({"c": "logon", "v": 1, "client_name": ""}), "bad_client_name"),
        (b"\x03\x00\x00\x00\x01\x00\xc1", "bad_frame"),
        (b"\xff\xff\xff\x7f\x01\x00", "frame_too_large"),
        (b"\x00\x00\x02\x00\x01\x00", "frame_too_large"),
    ],
)
def test_bad_frames_end_that_client_only(lasting: Server, data: bytes, reason: str) -> None:
    other = Client(lasting.address, f"beside {data[:20].hex()}")
    client = Client(lasting.address)
    client.socket.sendall(data)
    frame = client.next().header
    assert (frame["c"], frame["status"], frame["reason"]) == ("ack", "failure", reason)
    assert client.closed()
    other.publish(range(1, 2))
    other.persisted(1)


def test_bad_records_end_that_client_only(servers: Servers, tmp_path: Path) -> None:
    server = single(servers, tmp_path)
    good = Client(server.address, "good")
    record = RecordBuilder(publisher_id("bad"), "orders", "json").build(1, b"{}", 1)
    foreign = RecordBuilder(5, "orders", "json").build(1, b"{}", 1)
    for body, reason in (
        (record[:-1] + b"!", "bad_record"),
        (record + record[:20], "bad_record"),
        (b"", "bad_record"),
        (foreign, "foreign_publisher"),
        (record, ""),
    ):
        client = Client(server.address, "bad")
        client.send({"c": "pb", "n": 1}, body)
        frame = client.next().header
        assert frame.get("reason", "") == reason
    client.send({"c": "pb", "n": 1}, record)
    assert client.next().header["reason"] == "sequence_order"
    again = Client(server.address, "bad", low=1)
    assert again.answer["durable"] == [[1, 1]]
    other = RecordBuilder(publisher_id("bad"), "orders", "json").build(1, b"other", 1)
    again.send({"c": "pb", "n": 1}, other)
    frame = again.next().header
    assert (frame["s"], frame["status"], frame["reason"]) == (1, "failure", "sequence_conflict")
    good.publish(range(1, 2))
    good.persisted(1)


@pytest.mark.covers("Clients and protocol", "duplicate client names")
def test_the_newer_of_two_connections_with_one_name_stays(servers: Servers, tmp_path: Path) -> None:
    server = single(servers, tmp_path)
    older = Client(server.address, "name", user_id="u")
    stranger = Client(server.address, "name", user_id="v")
    assert stranger.answer["reason"] == "name_in_use"
    newer = Client(server.address, "name", user_id="u")
    assert newer.answer["status"] == "success"
    assert older.next().header["reason"] == "name_in_use" and older.closed()
    newer.publish(range(1, 2))
    newer.persisted(1)


@pytest.mark.covers("The replication chapters", "heartbeats, the interval chosen")
def test_heartbeats(servers: Servers, tmp_path: Path) -> None:
    server = single(servers, tmp_path)
    client = Client(server.address, "client")
    client.send({"c": "heartbeat", "o": {"start_s": 0.5}, "cid": "h"})
    client.ack(cid="h")
    for _ in range(2):
        client.next(lambda frame: frame.header["c"] == "heartbeat")
        client.send({"c": "heartbeat"})
    assert client.next(lambda frame: frame.header["c"] == "ack").header["reason"] == "heartbeat"
    assert client.closed()


@pytest.mark.covers("Clients and protocol", "every ack type")
def test_acks_are_conflated_up_to_the_bound(servers: Servers, tmp_path: Path) -> None:
    server = single(servers, tmp_path)
    client = Client(server.address, "client", o={"ack_conflation_ms": 300})
    began_s = time.monotonic()
    for number in range(1, 21):
        client.publish(range(number, number + 1))
        client.send({"c": "ping", "cid": "p"})
    acks: list[Header] = []
    while not acks or acks[-1]["s"] < 20:
        acks.append(client.ack(a="persisted").header)
    assert len(acks) <= 2
    assert time.monotonic() - began_s >= 0.25


@pytest.mark.covers("Clients and protocol", "one slow client delays nobody")
def test_a_slow_client_is_disconnected_and_delays_nobody(servers: Servers, tmp_path: Path) -> None:
    server = single(
        servers, tmp_path, capacity=CapacityConfig(memory_bytes_max=1024 * 1024, client_share=0.5)
    )
    slow = Client(server.address, "slow")
    quick = Client(server.address, "quick")
    for client in (slow, quick):
        client.send({"c": "subscribe", "sub": "s", "t": "orders", "cid": "s", "a": "processed"})
        client.ack(cid="s")
    publisher = Client(server.address, "publisher")
    builder = RecordBuilder(publisher.answer["publisher"], "orders", "json")
    body = bytes(100_000)
    received = 0
    for number in range(1, 201):
        publisher.send({"c": "pb", "n": 1}, builder.build(number, body, 1))
        received += quick.next(lambda frame: frame.header["c"] == "p").header["n"]
    publisher.persisted(200)
    assert received == 200
    server.wait_for("reason=slow_client")
    assert slow.closed()


def test_a_full_disk_refuses_publishers_and_passes(servers: Servers, tmp_path: Path) -> None:
    server = single(
        servers,
        tmp_path,
        storage_bytes_max=3 * 1024 * 1024,
        journal=JournalConfig(segment_bytes=1024 * 1024),
    )
    client = Client(server.address, "publisher")
    builder = RecordBuilder(client.answer["publisher"], "orders", "json")
    acked = number = 0
    reason = ""
    while not reason and number < 100:
        number += 1
        client.send({"c": "pb", "n": 1}, builder.build(number, bytes(100_000), 1))
        frame = client.next(lambda frame: frame.header["c"] == "ack").header
        reason = frame.get("reason", "")
        acked = acked if reason else frame["s"]
    assert reason == "storage_full" and client.closed()
    server.wait_for("storage_failed")
    # Subscribers are served as before.
    reader = Client(server.address, "reader")
    reader.send(
        {"c": "subscribe", "sub": "s", "t": "orders", "bm": "0", "cid": "b", "a": "completed"}
    )
    while reader.next().header.get("a") != "completed":
        pass
    assert server.stop() == 0
    server.config.storage_bytes_max = None
    server.config.save(server.directory)
    server.start()
    client = Client(server.address, "publisher", low=1)
    assert client.answer["durable"] == [[1, acked]]
    assert client.answer["highest"] == acked
    client.publish(range(acked + 1, acked + 2))
    client.persisted(acked + 1)


def test_a_second_process_is_refused(servers: Servers, tmp_path: Path) -> None:
    server = single(servers, tmp_path)
    again = subprocess.run(
        [sys.executable, "-m", "raylay.services.server.run_instance", str(server.directory)],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert again.returncode == 1
    assert "another process" in again.stderr and str(server.directory) in again.stderr


@pytest.mark.covers("The replication chapters", "incoming transports")
@pytest.mark.parametrize(
    ("option", "transport"),
    [
        ("client_transports", "client transport"),
        ("replication_transports", "replication transport"),
        ("metrics_port", "metrics"),
    ],
)
def test_a_port_in_use_is_named_whatever_it_is_for(
    tmp_path: Path, option: str, transport: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        of_port = number if option == "metrics_port" else (TransportConfig("any", number),)
        InstanceConfig("other", "group", **{option: of_port}).save(tmp_path / "other")
        other = forked.run(
            [sys.executable, "-m", "raylay.services.server.run_instance", str(tmp_path / "other")],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )
    assert other.returncode == 1 and not other.stdout
    assert f":{number}" in other.stderr and "in use" in other.stderr
    assert "other" in other.stderr and transport in other.stderr
    assert "Traceback" not in other.stderr


@pytest.mark.covers("Replication", "Compression and CompressionType")
@pytest.mark.covers("The replication chapters", "chosen at the source")
@pytest.mark.parametrize("compression", ["", "zstd", pytest.param("zlib", marks=pytest.mark.slow)])
def test_a_sync_pair_has_all_on_both(servers: Servers, tmp_path: Path, compression: str) -> None:
    first, second = pair(
        servers, tmp_path, compression=bool(compression), compression_type=compression or "zstd"
    )
    clients = [Client(first.address, "one"), Client(second.address, "two")]
    for start in range(1, 2_001, 100):
        for client in clients:
            client.publish(range(start, start + 100))
    for client in clients:
        client.persisted(2_000)
    one, two = publisher_id("one"), publisher_id("two")
    for server in (first, second):
        found = server.journal()
        assert len(found) == 4_000
        assert [n for p, n in found if p == one] == list(range(1, 2_001))
        assert [n for p, n in found if p == two] == list(range(1, 2_001))
    late = Client(second.address, "one", low=1)
    # What the other one acked is not acked here: it is resent, asked for again, journaled once.
    assert (late.answer["durable"], late.answer["highest"]) == ([], 2_000)
    late.publish(range(1, 2_001))
    late.persisted(2_000)
    assert all(len(server.journal()) == 4_000 for server in (first, second))
    again = Client(second.address, "one", low=1)
    assert again.answer["durable"] == [[1, 2_000]]
    assert second.stop() == 0
    second.start()
    # Who waits for what was sent again is in the log as notes: they are no messages.
    told = second.status
    assert (told["messages"], told["notes"] > 0) == (4_000, True)
    assert told["messages"] + told["notes"] == told["committed_txid"]


def test_a_scrape_counts_messages_whatever_their_sequences(
    servers: Servers, tmp_path: Path
) -> None:
    first, _ = pair(servers, tmp_path)
    first.stop()
    (port,) = free_ports(1)
    dataclasses.replace(first.config, metrics_port=port).save(first.directory)
    first.start()
    first.wait_for("link_caught_up", 2)
    client = Client(first.address, "publisher")
    start = 1_790_000_000_000_000
    client.publish(range(start, start + 100))
    client.persisted(start + 99)
    client.send({"c": "p", "t": "orders", "mt": "json", "cid": "2", "a": "persisted"}, b"m")
    client.ack(cid="2", a="persisted")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    found = {
        name: float(value)
        for name, value in (line.rsplit(" ", 1) for line in lines if line[0] != "#")
    }
    of = 'destination="to-B",instance="A"'
    assert found['raylay_published_total{instance="A"}'] == 101
    assert found['raylay_persisted_total{instance="A"}'] == 101
    assert found[f"raylay_destination_persisted_total{{{of}}}"] == 101


@pytest.mark.covers("Laws", "7 liveness after healing", note="on real processes")
@pytest.mark.covers("The replication chapters", "sync: no persisted ack before local log")
def test_acks_wait_for_a_killed_peer_and_come_when_it_is_back(
    servers: Servers, tmp_path: Path
) -> None:
    first, second = pair(servers, tmp_path)
    client = Client(first.address, "publisher")
    client.publish(range(1, 101))
    client.persisted(100)
    second.kill()
    client.publish(range(101, 201))
    client.send({"c": "flush", "cid": "local", "a": "completed"})
    client.ack(cid="local", a="completed")
    client.socket.settimeout(0.5)
    with pytest.raises(TimeoutError):
        client.persisted(200)
    client.socket.settimeout(DEADLINE_S)
    second.start()
    client.persisted(200)
    publisher = publisher_id("publisher")
    assert second.journal() == [(publisher, n) for n in range(1, 201)]


@pytest.mark.covers(
    "Journal",
    "what is prepared while the disk writes a commit leaves",
    note="SIGKILL in between (fails where the outbox does not hold)",
)
def test_killed_while_its_disk_writes_it_has_told_nobody(
    servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the publisher, nor a subscriber, nor the other instance: all are told of what is on
    the disk."""
    first, second = pair(servers, tmp_path, kind=Executed)
    first.kill()
    monkeypatch.setenv("RAYLAY_JOURNAL_FAULT", "front.prepared:20")
    first.start()
    monkeypatch.delenv("RAYLAY_JOURNAL_FAULT")
    first.wait_for("link_direct")
    client, subscriber = Client(first.address, "publisher"), Client(first.address, "subscriber")
    subscriber.send({"c": "subscribe", "t": "orders", "sub": "s", "cid": "2"})
    subscriber.ack(cid="2")
    acked = 0
    with pytest.raises((EOFError, ConnectionError)):
        while acked < 1_000:
            client.publish(range(acked + 1, acked + 2))
            client.persisted(acked + 1)
            acked += 1
    assert first.process.wait(DEADLINE_S) == -signal.SIGKILL
    # What the writer thread commits in between, where the disk is slow, does not count.
    assert 10 < acked < 1_000
    assert len(subscriber.receive(acked)) == acked
    with pytest.raises((EOFError, ConnectionError)):
        subscriber.receive(1)
    second.wait_for("upstream_disconnected", 2)
    publisher = publisher_id("publisher")
    assert second.journal() == [(publisher, number) for number in range(1, acked + 1)]
    first.start()
    client = Client(first.address, "publisher")
    client.publish(range(acked + 1, acked + 3))
    client.persisted(acked + 2)
    for server in (first, second):
        assert server.journal() == [(publisher, number) for number in range(1, acked + 3)]


@pytest.mark.covers("Laws", "1 no acknowledged loss", note="on real processes")
@pytest.mark.covers("The replication chapters", "a spare takes over when the first fails")
def test_a_publisher_fails_over_under_load(servers: Servers, tmp_path: Path) -> None:
    """Law 1, 2 and 3: what was acked is there, once, in order, on both, whatever was killed."""
    first, second = pair(servers, tmp_path)
    last = 20_000
    client = Client(first.address, "publisher")
    acked = 0
    for start in range(1, last + 1, 200):
        client.publish(range(start, start + 200))
        if start == 12_001:
            first.kill()
            break
        if start > 2_000:
            client.persisted(start - 2_000)
            acked = start - 2_000
    assert acked >= 9_000
    client = Client(second.address, "publisher", low=acked + 1)
    highest = client.answer["highest"]
    assert highest >= acked
    durable = PublisherRanges()
    durable.add_ranges(1, client.answer["durable"])
    # What is durable need not be sent again; what is merely there must be, to be acked.
    resend = durable.of(1).missing(acked + 1, last)
    for low, high in resend:
        for start in range(low, high + 1, 500):
            client.publish(range(start, min(high, start + 499) + 1))
    first.start()
    client.persisted(last)
    publisher = publisher_id("publisher")
    for server in (first, second):
        assert server.journal() == [(publisher, n) for n in range(1, last + 1)]


@pytest.mark.covers("Replication", "downgrade and upgrade by age")
@pytest.mark.covers("The replication chapters", "the acks that waited come at once")
@pytest.mark.covers("Replication", "downgraded at once on evidence")
@pytest.mark.parametrize(
    "policy",
    [
        pytest.param(DowngradePolicy(age_ms=300, by_evidence=False), id="by age"),
        pytest.param(DowngradePolicy(age_ms=3_600_000), id="by evidence"),
    ],
)
def test_a_downgrade_releases_acks_behind_the_notice(
    servers: Servers, tmp_path: Path, policy: DowngradePolicy
) -> None:
    first, second = pair(servers, tmp_path, policy)
    client = Client(first.address, "publisher")
    client.publish(range(1, 11))
    client.persisted(10)
    first.wait_for("link_caught_up")
    second.kill()
    client.publish(range(11, 21))
    frame = client.next(
        lambda frame: (
            (frame.header["c"] == "safety" and not frame.header["peers"][0]["safe"])
            or (frame.header.get("a") == "persisted" and frame.header["s"] >= 20)
        )
    )
    assert frame.header["c"] == "safety", "the ack came before the notice"
    client.persisted(20)
    second.start()
    frame = client.next(
        lambda frame: frame.header["c"] == "safety" and frame.header["peers"][0]["safe"]
    )
    assert frame.header["peers"][0]["addresses"] == [second.address]
    first.wait_for("upgraded")
    client.publish(range(21, 31))
    client.persisted(30)
    assert len(second.journal()) == 30


@pytest.mark.covers("Replication", "a killed link is started again")
def test_a_killed_link_is_started_again_once(servers: Servers, tmp_path: Path) -> None:
    first, _ = pair(servers, tmp_path, kind=Executed)
    client = Client(first.address, "publisher")
    sequence = 0
    first.wait_for("link_caught_up")
    for times in range(1, 4):
        client.publish(range(sequence + 1, sequence + 101))
        sequence += 100
        children = subprocess.run(
            ["ps", "-ww", "--ppid", str(first.process.pid), "-o", "pid=,args="],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()
        links = [int(line.split()[0]) for line in children if "run_link" in line]
        assert len(links) == 1
        os.kill(links[0], signal.SIGKILL)
        client.persisted(sequence)
        first.wait_for_behind("link_caught_up", "link_process_ended", times)
    assert first.events("link_process_ended") == 3


@pytest.mark.covers("Replication", "a lost disk admits clients only when it has caught up")
def test_an_instance_that_lost_its_disk_catches_up_before_it_admits_clients(
    servers: Servers, tmp_path: Path
) -> None:
    first, second = pair(servers, tmp_path)
    client = Client(second.address, "publisher")
    for start in range(1, 1_001, 100):
        client.publish(range(start, start + 100))
    client.persisted(1_000)
    incarnation = client.answer["incarnation"]
    second.kill()
    first.process.send_signal(signal.SIGSTOP)
    try:
        config = second.config
        config.first = False
        port = split_address(second.address)[1]
        config.client_transports = (TransportConfig("client", port),)
        empty = Server(tmp_path / "empty", config)
        servers.append(empty)
        assert not empty.status["ready"]
        refused = Client(empty.address, "publisher").answer
        assert refused["reason"] == "not_ready"
        assert "none has connected" in refused["text"] and "failover list" in refused["text"]
    finally:
        first.process.send_signal(signal.SIGCONT)
    empty.wait_for(" ready")
    client = Client(empty.address, "publisher", low=1)
    assert client.answer["incarnation"] != incarnation
    assert client.answer["highest"] == 1_000
    publisher = publisher_id("publisher")
    assert empty.journal() == [(publisher, n) for n in range(1, 1_001)]
    empty.kill()
    empty.start()
    assert empty.status["ready"], "a restart with its data admits clients at once"


@pytest.mark.covers("Replication", "the group of the downstream is checked")
def test_a_link_to_the_wrong_group_says_what_to_change(servers: Servers, tmp_path: Path) -> None:
    server = single(servers, tmp_path)
    destination = DestinationConfig(
        "there", "elsewhere", True, (server.status["replication_address"],), retry_ms_min=1_000
    )
    config = InstanceConfig("A", "east", destinations=(destination,))
    servers.append(Server(tmp_path / "A", config))
    servers[-1].wait_for("correct the Group of Destination")
    server.wait_for("correct the Group of Destination")


@pytest.mark.covers("Replication", "several addresses in priority order")
@pytest.mark.covers("The replication chapters", "addresses in order")
def test_a_destination_takes_the_first_address_that_answers(
    servers: Servers, tmp_path: Path
) -> None:
    there = single(servers, tmp_path)
    dead, alive = free_ports(1)[0], there.status["replication_address"]
    destination = DestinationConfig(
        "there",
        "group",
        True,
        (f"127.0.0.1:{dead}", f"localhost:{alive.rpartition(':')[2]}"),
        topics=(TopicRule(".*", exclude_validation=("replicate",)),),
    )
    config = InstanceConfig("A", "group", destinations=(destination,), first=True)
    servers.append(Server(tmp_path / "A", config))
    client = Client(servers[-1].address, "publisher")
    client.publish(range(1, 11))
    client.persisted(10)
    assert len(there.journal()) == 10


@pytest.mark.slow
@pytest.mark.covers("Replication", "several addresses in priority order")
def test_a_silent_destination_is_given_up_and_found_again(
    servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = impatient_pair(servers, tmp_path, monkeypatch)
    is_given_up_and_found_again(first, second, Client(first.address, "publisher"))


def stands_still(second: Server, seconds: float) -> None:
    """Its loop, with all else of it, longer than its peers wait for a beat."""
    second.process.send_signal(signal.SIGSTOP)
    try:
        time.sleep(seconds)
    finally:
        second.process.send_signal(signal.SIGCONT)


@pytest.mark.slow
@pytest.mark.covers("Configuration", "an instance whose loop is held for longer")
@pytest.mark.parametrize("direct", [False, True])
def test_a_link_outlives_a_loop_that_is_held_for_longer_than_its_timeout(
    servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, direct: bool
) -> None:
    """Neither the other side takes it for lost, nor it the other side when it goes on: what came
    meanwhile lies unread, and its timers are overdue."""
    monkeypatch.setenv("RAYLAY_TEST_BEAT_S", "0.1")
    first, second = pair(
        servers,
        tmp_path,
        of_each={"direct_links": direct},
        heartbeat_ms=100,
        timeout_ms=1_000,
    )
    client = Client(first.address, "publisher")
    if direct:
        first.wait_for("link_direct")
    before = [
        each.events(kind)
        for each in (first, second)
        for kind in ("link_disconnected", "upstream_disconnected", "nothing came")
    ]
    stands_still(second, 2.5)
    client.publish(range(1, 11))
    client.persisted(10)
    stands_still(first, 2.5)
    client.publish(range(11, 21))
    client.persisted(20)
    time.sleep(1.5)  # Whoever gives up does so when it looks again.
    assert before == [
        each.events(kind)
        for each in (first, second)
        for kind in ("link_disconnected", "upstream_disconnected", "nothing came")
    ]
    assert len(second.journal()) == 20


@pytest.mark.covers("Replication", "epochs and batch numbers")
def test_a_batch_that_skips_a_number_or_comes_of_an_older_epoch_is_refused(
    servers: Servers, tmp_path: Path
) -> None:
    server = single(servers, tmp_path)
    address = server.status["replication_address"]

    def connect(epoch: int) -> Client:
        client = Client(address)
        logon = UpstreamLogon("up", "east", 77, "group", "to-solo", epoch, b"", 0, DESCRIPTION)
        client.socket.sendall(link_logon(logon))
        return client

    payload = RecordBuilder(5, "orders", "json").build(1, b"{}", 1)
    block = run_of(scan(payload)[0], payload).encode()
    link = connect(5)
    link.next(lambda frame: frame.header["c"] == "waited")
    link.socket.sendall(batch_front(1, False, True, b"", "", len(block)) + block)
    assert link.next(lambda frame: frame.header["c"] == "ack").header["n"] == 1
    link.socket.sendall(batch_front(3, False, False, b"", "", len(block)) + block)
    assert link.next().header["reason"] == "gap"
    for epoch in (4, 5):
        assert connect(epoch).next().header["reason"] == "stale_epoch"
    server.kill()
    server.start()
    address = server.status["replication_address"]
    assert connect(5).next().header["reason"] == "stale_epoch"
    link = connect(6)
    assert link.next().header["c"] == "accepted"
    link.next(lambda frame: frame.header["c"] == "waited")
    link.socket.sendall(batch_front(1, False, False, b"", "", 3) + b"bad")
    assert link.next().header["reason"] == "bad_record"
    assert len(server.journal()) == 1


def test_acks_to_a_link_are_conflated_up_to_the_bound(servers: Servers, tmp_path: Path) -> None:
    server = single(servers, tmp_path)
    link = Client(server.status["replication_address"])
    logon = UpstreamLogon("up", "east", 77, "group", "d", 1, b"", 300, DESCRIPTION)
    link.socket.sendall(link_logon(logon))
    link.next(lambda frame: frame.header["c"] == "waited")
    builder = RecordBuilder(5, "orders", "json")
    began_s = time.monotonic()
    for number in range(1, 21):
        payload = builder.build(number, b"{}", 1)
        block = run_of(scan(payload)[0], payload).encode()
        link.socket.sendall(batch_front(number, False, False, b"", "", len(block)) + block)
    acks: list[Frame] = []
    while not acks or acks[-1].header["n"] < 20:
        acks.append(link.ack())
    assert len(acks) <= 2 and time.monotonic() - began_s >= 0.25
    persisted = PublisherRanges()
    for frame in acks:
        for answered in read_ack(frame.header, frame.body)[2].values():
            for publisher, ranges in answered.items():
                persisted.add_ranges(publisher, ranges)
    assert list(persisted.of(5)) == [(1, 20)]


@pytest.mark.covers("Clients and protocol", "frames, limits")
@pytest.mark.parametrize("seed", range(3))
def test_any_bytes_to_any_transport_harm_nobody(
    servers: Servers, tmp_path: Path, seed: int
) -> None:
    server = single(servers, tmp_path)
    good = Client(server.address, "good")
    chance = random.Random(seed)
    for number in range(60):
        bad = Client(chance.choice([server.address, server.status["replication_address"]]))
        header = {"c": chance.choice(["logon", "pb", "batch", "subscribe"]), "v": 1}
        header |= {"client_name": "x", "name": "n", "epoch": chance.choice([1, -1, "e"])}
        data = bytearray(encode_frame(header, chance.randbytes(chance.randint(0, 200))))
        for _ in range(chance.randint(0, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        try:
            bad.socket.sendall(bytes(data) + chance.randbytes(chance.randint(0, 99)))
        except ConnectionError:
            pass  # it hung up before it had read all
        bad.close()
        good.publish(range(number + 1, number + 2))
    good.persisted(60)
    assert "fatal" not in server.log


@pytest.mark.covers("The replication chapters", "what no transaction log takes")
def test_a_topic_that_nobody_declared_is_refused_message_by_message(
    servers: Servers, tmp_path: Path
) -> None:
    topics, live = (TopicRule("orders"),), (TopicRule("ticks"),)
    server = single(servers, tmp_path, topics=topics, unjournaled=live)
    client, listener = Client(server.address, "p"), Client(server.address, "listener")
    listener.send({"c": "subscribe", "sub": "s", "t": ".*", "cid": "s"})
    assert listener.ack(cid="s").header["status"] == "success"
    names = ("orders", "ordes", "ordes", "ticks", "orders")
    client.send(
        {"c": "pb", "n": len(names)},
        b"".join(
            RecordBuilder(client.answer["publisher"], name, "json").build(number, b"1", 0)
            for number, name in enumerate(names, 1)
        ),
    )
    for sequence, in_words in ((2, True), (3, False)):
        refused = client.ack(status="failure", s=sequence).header
        assert refused["reason"] == "not_journaled"
        assert ("'ordes'" in refused["text"]) is in_words
    unjournaled = 0
    while (ack := client.ack(status="success", a="persisted").header)["s"] < len(names):
        unjournaled += ack.get("unjournaled", 0)
    assert unjournaled + ack.get("unjournaled", 0) == 1
    # One message for itself, numbered by the client, and by the server.
    client.send({"c": "p", "t": "ordes", "mt": "json", "s": 6, "a": "persisted"}, b"1")
    assert client.ack(s=6).header["reason"] == "not_journaled"
    client.send({"c": "p", "t": "ordes", "mt": "json", "cid": "n", "a": "persisted"}, b"1")
    assert client.ack(cid="n").header["reason"] == "not_journaled"
    client.send({"c": "p", "t": "ticks", "mt": "json", "cid": "t", "a": "persisted"}, b"1")
    assert client.ack(cid="t").header["unjournaled"] == 1
    client.send({"c": "p", "t": "ticks", "mt": "json", "s": 7, "a": "persisted"}, b"1")
    assert client.ack(s=7).header["unjournaled"] == 1
    got: Counter[str] = Counter()
    while got.total() < 5:
        frame = listener.next(lambda frame: frame.header["c"] == "p")
        got.update(record.topic for record in iterate_records(frame.body))
    assert got == {"orders": 2, "ticks": 3}
    server.kill()
    assert [sequence for _, sequence in server.journal()] == [1, 5]
