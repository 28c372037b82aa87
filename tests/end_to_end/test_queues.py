"""Queues as real processes: an instance, its queue's owner, real sockets, LMDB, real SIGKILL."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest
from support.instance_processes import DEADLINE_S, Client, Server, free_ports

from raylay.services.config.instance import DestinationConfig, InstanceConfig
from raylay.services.config.transport import TransportConfig
from raylay.services.messages.records import Command, RecordBuilder, iterate_records
from raylay.services.messages.topics import TopicRule
from raylay.services.protocol.frames import Frame
from raylay.services.queues.definition import QueueDefinition
from raylay.services.queues.records import Acknowledgment, keys_of, pack_acknowledgment

pytestmark = pytest.mark.covers("Queues", "subscribing, deliveries with the lease")

Key = tuple[int, int]


class Consumer(Client):
    """A client that takes messages of a queue, and says when they are done."""

    def __init__(self, address: str, name: str, queue: str = "work", **options: Any) -> None:
        super().__init__(address, name)
        self.queue = queue
        self.sequence = self.answer["highest"]
        self.builder = RecordBuilder(self.answer["publisher"], queue, "json")
        self.sub(**options)

    def sub(self, **options: Any) -> Frame:
        self.send(
            {"c": "subscribe", "sub": "s", "t": self.queue, "mt": "json", "cid": "s", "o": options}
        )
        return self.ack(cid="s")

    def take(self) -> list[tuple[Key, str]]:
        """The messages of the next delivery."""
        frame = self.next(lambda frame: frame.header["c"] == "p")
        assert frame.header["q"] == 1
        found = [
            ((record.publisher, record.sequence), record.body.decode())
            for record in iterate_records(frame.body, verify=True)
        ]
        assert len(found) == frame.header["n"]
        self.header = frame.header
        return found

    def done(self, keys: list[Key], how: str = "ack") -> int:
        self.sequence += 1
        body = pack_acknowledgment(Acknowledgment(keys_of(keys), how))
        record = self.builder.build(
            self.sequence, body, time.time_ns() // 1000, command=Command.QUEUE_ACKNOWLEDGMENT
        )
        self.send({"c": "pb", "n": 1}, record)
        return self.sequence

    def cancel(self, keys: list[Key]) -> int:
        flat = {
            publisher: [each for pair in ranges for each in pair]
            for publisher, ranges in keys_of(keys).items()
        }
        self.send(
            {"c": "queue_cancel", "t": self.queue, "mt": "json", "cid": "c"}, msgpack.packb(flat)
        )
        count: int = self.ack(cid="c").header["n"]
        return count

    def status(self) -> dict[str, Any]:
        self.send({"c": "queue_status", "cid": "q"})
        found: dict[str, Any] = msgpack.unpackb(self.ack(cid="q").body)
        return found


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Any]:
    made: list[Server] = []

    def make(*definitions: QueueDefinition, **values: Any) -> Server:
        config = InstanceConfig(
            "solo",
            "g",
            first=True,
            topics=(TopicRule(".*", "json"),),
            queue_definitions=definitions,
            **values,
        )
        made.append(Server(tmp_path / f"solo{len(made)}", config))
        return made[-1]

    yield make
    for server in made:
        if server.process.poll() is None:
            server.kill()


def work(**values: Any) -> QueueDefinition:
    return QueueDefinition("work", "json", underlying="orders", **values)


def test_a_queue_says_its_depth_right_after_each_start(servers: Any) -> None:
    server = servers(work(lease_us=60_000_000))
    asker = Client(server.address, "asker")

    def depth() -> Any:
        asker.send({"c": "queue_status", "t": "work", "mt": "json", "cid": "q"})
        return msgpack.unpackb(asker.ack(cid="q").body)["queue_depth"]

    assert depth() == 0
    publisher = Client(server.address, "pub")
    publisher.publish(range(1, 7))
    publisher.persisted(6)
    while depth() != 6:
        time.sleep(0.01)
    server.kill()
    server.start()
    asker = Client(server.address, "asker")
    assert isinstance(depth(), int)
    while depth() != 6:
        time.sleep(0.01)


def test_what_a_consumer_has_acknowledged_before_it_leaves_is_done(servers: Any) -> None:
    server = servers(
        work(subscription_backlog_max=10, deliveries_max=1, dead_letters="orders/failed")
    )
    failed = Client(server.address, "watcher")
    failed.send({"c": "subscribe", "sub": "s", "t": "orders/failed", "mt": "json", "cid": "s"})
    failed.ack(cid="s")
    publisher = Client(server.address, "pub")
    consumer = Consumer(server.address, "ann")
    for number in range(1, 6):
        publisher.publish(range(number, number + 1))
        ((key, _),) = consumer.take()
        consumer.persisted(consumer.done([key]))
        # The owner hears of the acknowledgment's commit and of this in one read.
        consumer.send({"c": "unsubscribe", "sub": "s", "cid": "u"})
        consumer.ack(cid="u")
        consumer.sub()
    # The last one is given up: its letter is the only one.
    publisher.publish(range(6, 7))
    ((key, body),) = consumer.take()
    consumer.send({"c": "unsubscribe", "sub": "s", "cid": "u"})
    frame = failed.next(lambda frame: frame.header["c"] == "p")
    (letter,) = iterate_records(frame.body, verify=True)
    said = json.loads(letter.correlation)
    assert letter.body.decode() == body
    assert (said["reason"], said["deliveries"]) == ("max_deliveries", 1)


@pytest.mark.slow
def test_only_what_a_handler_was_given_counts_for_a_consumer_that_unsubscribes(
    servers: Any,
) -> None:
    """Messages on the way to the consumer do not count, nor those that it has not looked at."""
    server = servers(work(subscription_backlog_max=4, deliveries_max=1))
    publisher = Client(server.address, "pub")
    publisher.publish(range(1, 11))
    publisher.persisted(10)
    leaves = Consumer(server.address, "leaves", max_backlog=4)
    held: list[tuple[Key, str]] = []
    while len(held) < 4:
        held += leaves.take()
    leaves.done([key for key, _ in held[:2]])
    while len(held) < 6:
        held += leaves.take()
    publisher_of, third = held[2][0]
    begun = msgpack.packb({publisher_of: [third, third]})
    leaves.send({"c": "unsubscribe", "sub": "s", "cid": "u", "cancel": True}, begun)
    leaves.ack(cid="u")
    stays = Consumer(server.address, "stays", max_backlog=4)
    found: list[Key] = []
    while len(found) < 7:
        keys = [key for key, _ in stays.take()]
        found += keys
        stays.done(keys)
    assert sorted(sequence for _, sequence in found) == [4, 5, 6, 7, 8, 9, 10]


def test_each_message_is_one_consumers(servers: Any) -> None:
    server = servers(work(subscription_backlog_max=10, lease_us=60_000_000))
    ann = Consumer(server.address, "ann", max_backlog=2)
    bob = Consumer(server.address, "bob", max_backlog=2)
    publisher = Client(server.address, "pub")
    publisher.publish(range(1, 7))
    publisher.persisted(6)
    first = ann.take()
    first += ann.take() if len(first) < 2 else []
    assert 59_000 < ann.header["lp"] <= 60_000
    second = bob.take()
    second += bob.take() if len(second) < 2 else []
    assert len({key for key, _ in first + second}) == 4
    ann.persisted(ann.done([key for key, _ in first]))
    # What is given back goes to somebody again; what nobody held is nobody's to give.
    assert bob.cancel([second[0][0], first[0][0]]) == 1
    ann.close()
    left = {key for key, _ in second[1:]}
    seen: set[Key] = set()
    while len(seen) < 3:
        taken = [key for key, _ in bob.take()]
        seen |= set(taken)
        bob.done(taken)
    bob.persisted(bob.done(list(left)))
    assert seen.isdisjoint(key for key, _ in first) and seen.isdisjoint(left)


@pytest.mark.covers("Queues", "nothing acknowledged comes again and nothing is lost")
def test_nothing_acknowledged_comes_again_and_nothing_is_lost(servers: Any) -> None:
    """Two consumers do 1,000 messages; the owner is killed in the middle, later the instance."""
    count = 1_000
    server = servers(work(subscription_backlog_max=100))
    publisher = Client(server.address, "pub")
    publisher.publish(range(1, count + 1))
    publisher.persisted(count)
    done: set[Key] = set()
    times: Counter[Key] = Counter()

    def consume(consumers: list[Consumer], upto: int) -> None:
        """Each ack is waited for before the next delivery is looked at."""
        while len(done) < upto:
            for consumer in consumers:
                taken = [key for key, _ in consumer.take()]
                again = done.intersection(taken)
                assert not again, f"{len(again)} were acknowledged and came again"
                times.update(taken)
                consumer.persisted(consumer.done(taken))
                done.update(taken)
                if len(done) >= upto:
                    return

    consumers = [Consumer(server.address, name, max_backlog=20) for name in ("ann", "bob")]
    consume(consumers, 300)
    pid = consumers[0].status()["json/work"]["pid"]
    os.kill(pid, signal.SIGKILL)
    consume(consumers, 600)
    assert server.events("queue_owner_ended") == 1
    server.kill()
    for consumer in consumers:
        consumer.close()
    server.start()
    consumers = [Consumer(server.address, name, max_backlog=20) for name in ("ann", "bob")]
    consume(consumers, count)
    assert len(done) == count
    # Those that were on their way when something was killed, and no others.
    assert sum(times.values()) <= count + 2 * 2 * 20
    for consumer in consumers:
        consumer.close()
    final = Consumer(server.address, "cy", max_backlog=20)
    deadline_s = time.monotonic() + DEADLINE_S
    while (found := final.status()["json/work"]).get("queue_depth") != 0:
        assert time.monotonic() < deadline_s, found
        time.sleep(0.05)
    assert found["leases"] == 0


@pytest.mark.covers("Queues", "a dead letter is in the journal before its message is gone")
def test_no_dead_letter_is_lost_when_the_instance_is_killed_in_their_midst(servers: Any) -> None:
    """Some messages wait too long, and a consumer gives the others up; owner and instance are
    killed while their letters are written."""
    count, given_up = 4_000, 1_000
    server = servers(
        work(dead_letters="failed", subscription_backlog_max=given_up, expiration_us=2_000_000)
    )
    # It is there first: what is leased does not expire, however busy the machine is.
    consumer = Consumer(server.address, "ann", max_backlog=given_up)
    publisher = Client(server.address, "pub")
    publisher.publish(range(1, count + 1))
    publisher.persisted(count)
    taken: list[Key] = []
    while len(taken) < given_up:
        taken += [key for key, _ in consumer.take()]
    consumer.persisted(consumer.done(taken, "expire"))
    consumer.close()
    watcher = Consumer(server.address, "watcher", max_backlog=0)
    owner = watcher.status()["json/work"]["pid"]
    letters, reasons = Counter[str](), Counter[str]()

    def read(client: Client, upto: int) -> None:
        """Letters from the first one on, until so many messages have one."""
        letters.clear()
        reasons.clear()
        client.send({"c": "subscribe", "sub": "l", "t": "failed", "cid": "l", "bm": "0"})
        while len(letters) < upto:
            frame = client.next(lambda frame: frame.header["c"] == "p")
            for record in iterate_records(frame.body, verify=True):
                said = json.loads(record.correlation)
                assert (said["queue"], said["topic"]) == ("work", "orders")
                letters[said["bookmark"]] += 1
                reasons[said["reason"]] += 1

    reader = Client(server.address, "reader")
    read(reader, given_up + 1)
    os.kill(owner, signal.SIGKILL)
    read(Client(server.address, "second reader"), given_up + 1_000)
    server.kill()
    assert len(letters) < count, "it is killed in the midst"
    server.start()
    read(Client(server.address, "reader"), count)
    assert reasons["forced_expire"] >= given_up
    assert set(letters.values()) == {1}, "a kill makes no second letter of a message"


@pytest.mark.covers("Queues", "at-most-once: out of the queue before it is sent")
@pytest.mark.slow
def test_at_most_once_leaves_the_queue_before_it_is_sent(servers: Any) -> None:
    server = servers(work(at_most_once=True, subscription_backlog_max=5))
    publisher = Client(server.address, "pub")
    publisher.publish(range(1, 4))
    publisher.persisted(3)
    ann = Consumer(server.address, "ann", max_backlog=5)
    taken: list[Key] = []
    while len(taken) < 3:
        taken += [key for key, _ in ann.take()]
    ann.close()
    server.kill()
    server.start()
    bob = Consumer(server.address, "bob", max_backlog=5)
    publisher = Client(server.address, "pub2")
    publisher.publish(range(1, 2), text="new")
    assert [body for _, body in bob.take()] == ["new1"]


@pytest.mark.slow
def test_a_lease_that_ends_gives_the_message_to_another(servers: Any) -> None:
    server = servers(work(lease_us=200_000))
    publisher = Client(server.address, "pub")
    publisher.publish(range(1, 2))
    ann = Consumer(server.address, "ann")
    assert [body for _, body in ann.take()] == ["m1"]
    bob = Consumer(server.address, "bob")
    assert [body for _, body in bob.take()] == ["m1"]


def test_by_filter_messages_are_found_looked_at_and_done(servers: Any) -> None:
    server = servers(work())
    publisher = Client(server.address, "pub")
    builder = RecordBuilder(publisher.answer["publisher"], "orders", "json")
    publisher.send(
        {"c": "pb", "n": 4},
        b"".join(builder.build(at, b'{"n": %d}' % at, 0) for at in range(1, 5)),
    )
    publisher.persisted(4)
    ann = Consumer(server.address, "ann", filter="/n = 4")
    assert [body for _, body in ann.take()] == ['{"n": 4}']
    ann.send(
        {"c": "sow", "sub": "w", "t": "work", "mt": "json", "cid": "w", "o": {"filter": "/n > 1"}}
    )
    ann.ack(cid="w")
    rows = [
        record.body for record in iterate_records(ann.next(lambda f: f.header["c"] == "sow").body)
    ]
    assert rows == [b'{"n": 2}', b'{"n": 3}']
    assert ann.next(lambda f: f.header["c"] == "group_end").header["matches"] == 2
    ann.send({"c": "queue_ack", "t": "work", "mt": "json", "cid": "f", "filter": "/n < 3"})
    assert ann.ack(cid="f").header["n"] == 2
    ann.send({"c": "queue_ack", "t": "work", "cid": "x", "filter": "/n = 3", "how": "expire"})
    assert ann.ack(cid="x").header["n"] == 1
    server.wait_for("queue_message_expired")
    ann.send({"c": "queue_ack", "t": "work", "cid": "b", "filter": "/n = 4", "how": "cancel"})
    assert ann.ack(cid="b").header["n"] == 1
    assert [body for _, body in ann.take()] == ['{"n": 4}']


@pytest.mark.parametrize(
    ("header", "body", "reason"),
    [
        ({"c": "subscribe", "sub": "x", "t": "work", "o": {"max_backlog": 0}}, b"", "bad_command"),
        (
            {"c": "subscribe", "sub": "x", "t": "work", "o": {"max_backlog": "9"}},
            b"",
            "bad_command",
        ),
        ({"c": "subscribe", "sub": "x", "t": "work", "o": {"filter": "/n >"}}, b"", "bad_filter"),
        ({"c": "subscribe", "sub": "x", "t": "work", "o": {"oof": True}}, b"", "not_supported"),
        ({"c": "subscribe", "sub": "s", "t": "work"}, b"", "sub_id_in_use"),
        (
            {"c": "subscribe", "sub": "x", "t": "orders", "o": {"max_backlog": 5}},
            b"",
            "no_queue",
        ),
        ({"c": "queue_cancel", "t": "nothing"}, b"\x80", "no_queue"),
        ({"c": "queue_cancel", "t": "work"}, b"\xc1", "bad_message"),
        ({"c": "queue_ack", "t": "work", "filter": "/n ="}, b"", "bad_filter"),
        ({"c": "queue_ack", "t": "nothing"}, b"", "no_queue"),
        ({"c": "queue_ack", "t": "work", "how": "lose"}, b"", "bad_command"),
        ({"c": "subscribe", "sub": "x", "t": "work", "o": {"select": "-/n"}}, b"", "not_supported"),
        ({"c": "p", "t": "orders", "cmd": 3, "a": "processed"}, b"\x80", "no_queue"),
        ({"c": "p", "t": "work", "mt": "json", "cmd": 3, "a": "processed"}, b"\xc1", "bad_message"),
    ],
)
def test_what_cannot_be_done_is_refused_and_the_session_goes_on(
    solo: tuple[Server, Consumer], header: dict[str, Any], body: bytes, reason: str
) -> None:
    _, ann = solo
    ann.send(header | {"cid": "r"}, body)
    assert ann.ack(cid="r").header["reason"] == reason
    ann.send({"c": "ping", "cid": "p"})
    ann.ack(cid="p")


@pytest.mark.covers("Queues", "a subscription with a bookmark replays the underlying topic")
def test_a_subscription_with_a_bookmark_replays_what_the_queue_is_of(
    solo: tuple[Server, Consumer],
) -> None:
    server, _ = solo
    publisher = Client(server.address, "replayed")
    publisher.publish(range(1, 3), text="of the topic ")
    publisher.persisted(2)
    command = {"c": "subscribe", "t": "work", "bm": f"{publisher.answer['publisher']}|1|"}
    for name, more in (("typed", {"mt": "json"}), ("literal", {"o": {"non_regex_topic": True}})):
        reader = Client(server.address, name)
        reader.send(command | more | {"sub": name, "cid": name})
        assert reader.ack(cid=name).header["status"] == "success"
        assert reader.receive(1, name) == ["of the topic 2"]


@pytest.fixture(scope="module")
def solo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Consumer]]:
    config = InstanceConfig(
        "solo",
        "g",
        first=True,
        topics=(TopicRule(".*", "json"),),
        queue_definitions=(work(),),
    )
    server = Server(tmp_path_factory.mktemp("solo"), config)
    ann = Consumer(server.address, "ann")
    deadline_s = time.monotonic() + DEADLINE_S
    while not ann.status()["json/work"].get("is_ready"):
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    yield server, ann
    server.kill()


@pytest.mark.slow
def test_work_moves_to_the_instance_whose_consumers_have_time(tmp_path: Path) -> None:
    """All is published at A, whose consumer holds two messages and does nothing; B's does the
    rest, which B is granted on request."""
    ports = dict(zip("AB", free_ports(2), strict=True))
    made: dict[str, Server] = {}
    for name, other in (("A", "B"), ("B", "A")):
        destination = DestinationConfig(
            f"to-{other}",
            "g",
            True,
            (f"127.0.0.1:{ports[other]}",),
            pass_through="g",
            retry_ms_max=200,
        )
        config = InstanceConfig(
            name,
            "g",
            destinations=(destination,),
            replication_transports=(TransportConfig("replication", ports[name]),),
            first=name == "A",
            topics=(TopicRule(".*", "json"),),
            queue_definitions=(work(subscription_backlog_max=10),),
        )
        made[name] = Server(tmp_path / name, config)
    try:
        publisher = Client(made["A"].address, "pub")
        publisher.publish(range(1, 41))
        publisher.persisted(40)
        idle = Consumer(made["A"].address, "idle", max_backlog=2)
        held = {key for key, _ in idle.take()}
        busy = Consumer(made["B"].address, "busy", max_backlog=10)
        done: set[Key] = set()
        while len(done) + len(held) < 40:
            taken = {key for key, _ in busy.take()}
            assert not taken & (done | held)
            busy.persisted(busy.done(list(taken)))
            done |= taken
            held -= done
            while len(held) < 2:
                held |= {key for key, _ in idle.take()}
        assert len(done) == 38
        deadline_s = time.monotonic() + DEADLINE_S
        while (found := busy.status()["json/work"]).get("transferred_in") != 38:
            assert time.monotonic() < deadline_s, found
            time.sleep(0.05)
    finally:
        for server in made.values():
            server.kill()
