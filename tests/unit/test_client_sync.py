"""The synchronous face: threads, order, back-pressure, errors."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest
from unit.fake_server import FakeServer, records

from raylay.services.client import EPOCH, SyncClient
from raylay.services.errors import (
    CommandFailed,
    ConnectionLost,
    LocalProtocolError,
    PublishStoreFull,
)
from raylay.storage.stores import MemoryBookmarkStore, MemoryPublishStore

T = TypeVar("T")


class ServerThread:
    """A fake server on a loop of its own, since the test itself blocks."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.server: FakeServer = self.run(FakeServer().start())
        self.server.auto_ack = True

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(10)

    def call(self, function: Any, *args: Any) -> None:
        async def call() -> None:
            function(*args)

        self.run(call())

    def stop(self) -> None:
        self.run(self.server.stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


@pytest.fixture
def there() -> Iterator[ServerThread]:
    made = ServerThread()
    yield made
    made.stop()


def test_publishes_of_many_threads_keep_each_threads_order(there: ServerThread) -> None:
    with SyncClient("desk", [there.server.address]) as client:

        def publish(name: int) -> None:
            for n in range(2_000):
                client.publish("t", b"%d %d" % (name, n))

        threads = [threading.Thread(target=publish, args=(name,)) for name in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        client.flush(10)
        assert client.persisted_sequence == client.client.last_sequence
    session = there.server.session
    assert len(session.bodies) == 6_000
    for name in range(3):
        mine = [body for body in session.bodies if body.startswith(b"%d " % name)]
        assert mine == [b"%d %d" % (name, n) for n in range(2_000)]
    assert len(session.commands("pb")) < 3_000, "batched between the threads"


def test_trust_is_the_asyncio_clients(there: ServerThread) -> None:
    with SyncClient("desk", [there.server.address]) as client:
        there.call(lambda: there.server.session.safety(other=False))
        client.publish("t", b"x")
        client.flush(10)
        chooser = client.client._machine.chooser
        assert "unsafe" in chooser.refusal("other")
        client.trust("other")
        assert not chooser.refusal("other")


def test_closing_flushes(there: ServerThread) -> None:
    with SyncClient("desk", [there.server.address]) as client:
        for n in range(100):
            client.publish("t", b"%d" % n)
    assert len(there.server.session.bodies) == 100
    with pytest.raises(ConnectionLost):
        client.publish("t", b"x")


def test_a_message_that_breaks_a_limit_raises_where_it_was_published(there: ServerThread) -> None:
    with SyncClient("desk", [there.server.address]) as client:
        with pytest.raises(LocalProtocolError):
            client.publish("", b"x")
        with pytest.raises(LocalProtocolError):
            client.publish("t", bytes(17 * 1024 * 1024))
        client.publish("t", b"fine")
    assert there.server.session.bodies == [b"fine"]


def test_a_full_store_blocks_then_raises(there: ServerThread, monkeypatch: Any) -> None:
    monkeypatch.setattr("raylay.services.client.sync.HANDED_OVER_MAX", 10)
    there.server.auto_ack = False
    store = MemoryPublishStore(messages_max=5)
    client = SyncClient(
        "desk",
        [there.server.address],
        publish_store=store,
        publish_timeout_s=0.1,
        close_timeout_s=0.1,
    )
    with pytest.raises(PublishStoreFull):
        for n in range(16):
            client.publish("t", b"%d" % n)
    there.run(there.server.wait(lambda: len(there.server.session.bodies) == 5))
    there.server.auto_ack = True
    there.call(there.server.session.ack, there.server.session.published[-1])
    client.flush(5)
    assert there.server.session.bodies == [b"%d" % n for n in range(15)], "the 16th was refused"
    client.close()


def test_a_refused_publish_reaches_flush(there: ServerThread) -> None:
    there.server.auto_ack = False
    with SyncClient("desk", [there.server.address]) as client:
        client.publish("t", b"x")
        there.run(there.server.wait(lambda: there.server.session.published))
        session = there.server.session
        there.call(session.refuse, session.published[0], "storage_full", "no space")
        with pytest.raises(CommandFailed, match="no space"):
            client.flush(5)


def test_iterates_messages_and_batches(there: ServerThread) -> None:
    with SyncClient("desk", [there.server.address]) as client:
        subscription = client.subscribe("t", bookmark=EPOCH)
        for payload in (records(7, [1, 2]), records(7, [3]), records(7, [4])):
            there.call(there.server.session.deliver, subscription.id, payload)
        assert [next(subscription).sequence for _ in range(3)] == [1, 2, 3]
        assert [message.sequence for message in next(subscription.batches())] == [4]
        with pytest.raises(TimeoutError):
            subscription.next_batch(timeout_s=0.02)
        there.call(there.server.session.deliver, subscription.id, records(7, [5]))
        assert next(subscription).body == b"5"
        subscription.unsubscribe()
        assert list(subscription) == []


@pytest.mark.parametrize("merged", [False, True])
def test_what_was_not_handed_out_of_a_delivery_comes_again(
    there: ServerThread, merged: bool
) -> None:
    """A loop that is left in the middle of a delivery, as at `break`, and a client that closes."""
    store = MemoryBookmarkStore()
    with SyncClient("desk", [there.server.address], bookmark_store=store) as client:
        subscription = client.subscribe("t", bookmark=EPOCH, subscription_id="s")
        there.call(there.server.session.deliver, "s", records(7, [1, 2, 3]))
        messages = client.merged(subscription) if merged else subscription
        assert next(messages).sequence == 1
    assert list(store.load("s").items()) == [(7, (1, 1))]


def test_a_delivery_that_was_taken_whole_does_not_come_again(there: ServerThread) -> None:
    store = MemoryBookmarkStore()
    with SyncClient("desk", [there.server.address], bookmark_store=store) as client:
        subscription = client.subscribe("t", bookmark=EPOCH, subscription_id="s")
        there.call(there.server.session.deliver, "s", records(7, [1, 2, 3]))
        assert subscription.next_batch(5) is not None
    assert list(store.load("s").items()) == [(7, (1, 3))]


def test_a_failed_connect_leaves_no_thread(there: ServerThread) -> None:
    there.server.logon_refusal = "bad_client_name"
    before = threading.active_count()
    with pytest.raises(CommandFailed):
        SyncClient("desk", [there.server.address])
    assert threading.active_count() == before


def test_deltas_and_deletes_keep_their_place_among_publishes(there: ServerThread) -> None:
    with SyncClient("desk", [there.server.address]) as client:
        client.publish("t", b"1")
        client.delta_publish("t", b"2", key=b"k")
        client.sow_delete("t", keys=[b"k"])
        with pytest.raises(LocalProtocolError, match="one of filter, keys and data"):
            client.sow_delete("t")
        client.publish("t", b"3")
        client.flush(10)
    assert there.server.session.does == [1, 6, 2, 1]


def test_a_delete_in_parts_is_behind_what_was_published(there: ServerThread) -> None:
    server = there.server
    with SyncClient("desk", [server.address]) as client, ThreadPoolExecutor(1) as beside:
        client.publish("t", b"1")
        deleting = beside.submit(client.sow_delete_in_parts, "t", filter="/a = 1")
        there.run(server.wait(lambda: server.session.commands("sow")))
        assert server.session.does == [1], "what was published is durable by now"
        (asked,) = server.session.commands("sow")
        there.call(server.session.group, asked["sub"], records(7, [1], b"{}", key=b"k"))
        assert deleting.result() == 1
        client.flush(10)
    assert server.session.does == [1, 2]


def test_queries_and_what_follows_them(there: ServerThread) -> None:
    server = there.server

    def group_of(name: str) -> None:
        server.session.group(name, records(7, [1], key=b"a"), records(7, [2], key=b"b"))

    with SyncClient("desk", [server.address]) as client:
        query = client.sow("t")
        rows = threading.Thread(target=lambda: found.extend(query))
        found: list[Any] = []
        rows.start()
        there.run(server.wait(lambda: server.session.commands("sow")))
        there.call(group_of, "query-1")
        rows.join(10)
        assert [each.key for each in found] == [b"a", b"b"]
        assert query.matches == 2
        follows = client.sow_and_subscribe("t", oof=True)
        there.call(group_of, follows.id)
        assert [next(follows).kind, next(follows).kind] == ["sow", "sow"]
        follows.replace(filter="/a = 1")
        assert server.session.commands("sow_and_subscribe")[1]["o"]["replace"] is True
        with pytest.raises(LocalProtocolError, match="several subscriptions read as one"):
            client.merged(follows).replace()
        server.subscribe_refusal = "no_sow"
        with pytest.raises(CommandFailed, match="refused"):
            client.sow("t").all()
        with pytest.raises(CommandFailed):
            client.delta_subscribe("t")


def test_a_queue_is_a_plain_iterator(there: ServerThread) -> None:
    with SyncClient("desk", [there.server.address]) as client:
        with client.queue("work", backlog=4, ack="manual") as work:
            (asked,) = there.server.session.commands("subscribe")
            payload = records(7, [1, 2, 3], topic="orders")
            there.call(there.server.session.deliver, asked["sub"], payload)
            done, kept, bad = [next(work) for _ in range(3)]
            assert (done.body, done.queue, kept.bookmark) == (b"1", "work", "7|2|")
            done.acknowledge()
            bad.expire()
        client.flush()
        assert there.server.session.does == [3, 3]
        assert client.acknowledge("work", ["7|2|"]) and client.flush() is None
