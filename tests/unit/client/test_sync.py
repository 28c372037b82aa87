"""The synchronous face: threads, order, back-pressure, errors."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import pydoc
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import msgspec
import pytest
from support.fake_server import FakeServer, records

from raylay.services.client import EPOCH, Client, SyncClient, runtime
from raylay.services.client.events import Settled
from raylay.services.commands import publish
from raylay.services.errors import (
    BodyTypeError,
    ClientFailed,
    CommandFailed,
    ConnectionLost,
    FlushTimeout,
    ForkedClient,
    LocalProtocolError,
    MessageTypeError,
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
        chooser = client.client.machine.chooser
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
    client.flush(60)
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
            client.flush(60)


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


@pytest.mark.parametrize("merged", [False, True])
def test_of_each_delivery_counts_what_was_handed_out_of_it(
    there: ServerThread, merged: bool
) -> None:
    store = MemoryBookmarkStore()
    with SyncClient("desk", [there.server.address], bookmark_store=store) as client:
        subscription = client.subscribe("t", bookmark=EPOCH, subscription_id="s")
        messages = client.merged(subscription) if merged else subscription
        for sequences, taken in (([1, 2, 3], 3), ([4, 5, 6, 7], 1)):
            there.call(there.server.session.deliver, "s", records(7, sequences))
            assert [next(messages).sequence for _ in range(taken)] == sequences[:taken]
    assert list(store.load("s").items()) == [(7, (1, 4))]


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


def test_a_flush_that_takes_too_long_says_what_is_not_acknowledged(there: ServerThread) -> None:
    there.server.auto_ack = False
    with SyncClient("desk", [there.server.address], close_timeout_s=0.1) as client:
        for _ in range(3):
            client.publish("t", b"x")
        first = client.persisted_sequence + 1
        said = rf"3 messages of desk, {first} to {first + 2}, are not .* connected to .*; they stay"
        with pytest.raises(FlushTimeout, match=said):
            client.flush(0.1)
        there.call(there.server.session.ack, first + 2)
        client.flush(10)


def test_a_command_says_why_it_waits(
    there: ServerThread, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(publish, "WAIT_TOLD_S", 0.05)
    there.server.auto_ack = False

    async def run() -> None:
        async with asyncio.timeout(10), Client("desk", [there.server.address]) as client:
            sequence = await client.publish("t", b"x")
            waits = asyncio.create_task(publish._flush_and_tell(client))
            said = ""
            while "still waiting: 1 messages of desk" not in said:
                said += capsys.readouterr().err
                await asyncio.sleep(0.01)
            there.call(there.server.session.ack, sequence)
            await waits

    asyncio.run(run())


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


@pytest.mark.covers("Queues", "what no handler was given goes back while a handler waits")
def test_while_a_thread_handles_a_message_what_it_was_not_given_goes_back(
    there: ServerThread,
) -> None:
    server = there.server

    def give() -> None:
        name = server.session.commands("subscribe")[-1]["sub"]
        server.session.deliver(name, records(7, [1, 2, 3], topic="orders"), q=1, lp=200)

    with (
        SyncClient("worker", servers=[server.address]) as client,
        client.queue("work", backlog=4) as work,
    ):
        there.call(give)
        assert next(work).body == b"1"
        assert work.queued_messages == 2
        # The thread handles the message, and asks for no other one.
        there.run(server.wait(lambda: server.session.commands("queue_cancel")))
        (back,) = server.session.commands("queue_cancel")
        assert back["unseen"] and work.queued_messages == 0


def test_values_are_published_as_the_client_publishes_them(there: ServerThread) -> None:
    with SyncClient("desk", [there.server.address]) as client:
        client.publish("t", {"n": 1})
        client.delta_publish("t", "text")
        sequences = client.publish_many("t", [{"n": 2}, b"3"])
        client.publish("t", {"n": "1"}, "nvfix")
        with pytest.raises(MessageTypeError, match="publish to t: the body is of type dict"):
            client.publish("t", {"n": {"m": 1}}, "fix")
        with pytest.raises(TypeError, match="body 1 of the list is of type int"):
            client.publish_many("t", [b"4", 5])  # type: ignore[list-item]
        client.sow_delete("t", data={"n": 9})
        client.flush(60)
        assert sequences == [client.persisted_sequence - 3, client.persisted_sequence - 2]
    *published, delete = there.server.session.bodies
    assert published == [b'{"n":1}', b"text", b'{"n":2}', b"3", b"n=1\x01"]
    assert b'{"n":9}' in delete


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        ({"body": 7}, "the body is of type int, and has to be bytes, a text"),
        ({"body": [{"a": 1}]}, "type list, and has to be bytes.*publish_many takes a list"),
        ({"body": None}, "type NoneType, and has to be bytes"),
        ({"topic": b"t"}, "topic is of type bytes, and has to be str"),
        ({"message_type": None}, "message_type is of type NoneType"),
        ({"expiration_s": 1.5}, "expiration_s is of type float, and has to be int"),
        ({"key": "k"}, "key is of type str, and has to be bytes"),
        ({"correlation": 7}, "correlation is of type int, and has to be bytes"),
        ({"correlation": None}, "correlation is of type NoneType, and has to be bytes"),
    ],
)
def test_an_argument_of_the_wrong_type_raises_at_the_call(
    there: ServerThread, arguments: dict[str, Any], hint: str
) -> None:
    """And nothing of it stays in the way of the next publish."""
    with SyncClient("desk", [there.server.address]) as client:
        for publish in (client.publish, client.delta_publish):
            with pytest.raises(TypeError, match=hint):
                publish(**{"topic": "t", "body": b"x", **arguments})

        async def asynchronous() -> None:
            await client.client.publish(**{"topic": "t", "body": b"x", **arguments})

        with pytest.raises(TypeError, match=hint):
            client._run(asynchronous())
        client.publish("t", b"fine")
        client.flush(60)
    assert there.server.session.bodies == [b"fine"]


@pytest.mark.parametrize("kind", [bytearray, memoryview])
def test_every_buffer_of_bytes_is_a_body(there: ServerThread, kind: Any) -> None:
    with SyncClient("desk", [there.server.address]) as client:
        client.publish("t", kind(b"body"))
        client.flush(60)
    assert there.server.session.bodies == [b"body"]


@pytest.mark.parametrize("where", ["publish", "store", "on_settled"])
def test_what_dies_on_the_loop_thread_reaches_the_caller(
    there: ServerThread, monkeypatch: Any, where: str
) -> None:
    """A fault of ours in each of the calls that the event loop makes: `flush`, later publishes and
    `close` say so, and nobody waits for ever."""

    def broken(*_: Any) -> Any:
        raise ZeroDivisionError(where)

    client = SyncClient("desk", [there.server.address], close_timeout_s=60)
    if where == "store":
        monkeypatch.setattr(MemoryPublishStore, "flush", broken)
    elif where == "on_settled":
        client.client.runtime._performers[Settled] = broken
    else:
        monkeypatch.setattr(client.client.machine.outbox, "publish", broken)
    client.publish("t", b"x")
    with pytest.raises(ClientFailed, match=f"ZeroDivisionError: {where}") as caught:
        client.flush(60)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    with pytest.raises(ClientFailed):
        client.publish("t", b"y")
        client.flush(60)
    with pytest.raises(ClientFailed):
        client.subscribe("t")
    monkeypatch.undo()
    client.close(flush=False)
    assert not client._thread.is_alive()


def test_a_fault_while_it_dials_reaches_who_connects(
    there: ServerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(runtime, "open_connection", broken)
    with pytest.raises(ClientFailed, match="ZeroDivisionError"):
        SyncClient("desk", [there.server.address])


def test_a_fault_while_acknowledgments_are_said_reaches_the_caller(
    there: ServerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise ZeroDivisionError

    client = SyncClient("desk", [there.server.address], close_timeout_s=60)
    monkeypatch.setattr(client.client._queues, "publish_acks", broken)
    client._call(client.client._queues._acks_due)
    with pytest.raises(ClientFailed, match="ZeroDivisionError"):
        client.publish("t", b"x")
        client._call(client.client.runtime.raise_if_unusable)
    monkeypatch.undo()
    client.close(flush=False)


def test_a_callback_that_raises_ends_nothing(there: ServerThread) -> None:
    def callback(_: Any) -> None:
        raise ZeroDivisionError

    with SyncClient("desk", [there.server.address], on_persisted=callback) as client:
        for _ in range(3):
            client.publish("t", b"x")
            client.flush(60)
    assert len(there.server.session.bodies) == 3


def test_what_a_callback_began_on_the_loop_ends_nothing(there: ServerThread) -> None:
    """A task, a later call and a future of the user's, whose errors nobody asks for."""
    failed = threading.Semaphore(0)
    begun: list[asyncio.Task[None]] = []

    async def task() -> None:
        try:
            raise ZeroDivisionError("task")
        finally:
            failed.release()

    def later() -> None:
        failed.release()
        raise ZeroDivisionError("later")

    def callback(_: Any) -> None:
        loop = asyncio.get_running_loop()
        begun.append(loop.create_task(task()))
        loop.call_soon(later)
        loop.create_future().set_exception(ZeroDivisionError("future"))

    with SyncClient("desk", [there.server.address], on_persisted=callback) as client:
        for _ in range(3):
            client.publish("t", b"x")
            client.flush(60)
            assert failed.acquire(timeout=60) and failed.acquire(timeout=60)
            client._call(begun.clear)
            client._call(gc.collect)
    assert len(there.server.session.bodies) == 3


def told(result: Any) -> None:
    """A coroutine function says what is wrong when its result is awaited."""
    if inspect.iscoroutine(result):
        result.send(None)


CALLS: list[tuple[str, tuple[Any, ...]]] = [
    ("subscribe", ("t",)),
    ("sow", ("t",)),
    ("sow_and_subscribe", ("t",)),
    ("delta_subscribe", ("t",)),
    ("queue", ("t",)),
    ("acknowledge", ("t", [])),
    ("acknowledge_matching", ("t", "1=1")),
    ("queue_status", ("t",)),
]


@pytest.mark.parametrize(("method", "given"), CALLS)
def test_a_misspelt_option_is_refused_with_the_nearest_one(
    there: ServerThread, method: str, given: tuple[Any, ...]
) -> None:
    with SyncClient("desk", [there.server.address]) as client:
        for owner in (client, client.client):
            call = getattr(owner, method)
            wanted = next(
                name for name in ("bookmark_not_found", "filter", "how", "message_type")
                if name in inspect.signature(call).parameters
                and (name not in ("filter", "how") or len(given) < 2)
            )  # fmt: skip
            with pytest.raises(TypeError, match=f"did you mean '{wanted}'"):
                told(call(*given, **{wanted[:-1]: "x"}))
            with pytest.raises(TypeError, match=r"has no argument 'zzz': it takes .*message_type"):
                told(call(*given, zzz=1))
            with pytest.raises(TypeError, match=f"{wanted} is 5, of type int: give a text"):
                told(call(*given, **{wanted: 5}))
    assert not there.server.session.commands("subscribe")


def test_a_misspelt_argument_of_a_client_is_refused(there: ServerThread) -> None:
    for kind in (SyncClient, Client):
        with pytest.raises(TypeError, match=r"\(\) has no argument 'user': did you mean 'user_id'"):
            kind("desk", [there.server.address], user="amy")


def test_the_synchronous_methods_have_the_arguments_of_the_others() -> None:
    assert inspect.signature(SyncClient).parameters == inspect.signature(Client).parameters
    for method, _ in CALLS:
        known = inspect.signature(getattr(Client, method)).parameters
        assert inspect.signature(getattr(SyncClient, method)).parameters.keys() == known.keys()
        assert not [each for each in known.values() if each.kind is each.VAR_KEYWORD], method


def test_the_help_of_the_synchronous_methods_names_their_own_results() -> None:
    for method, result in (
        ("subscribe", "SyncSubscription[Value]"),
        ("sow_and_subscribe", "SyncSubscription[Value]"),
        ("delta_subscribe", "SyncSubscription[Value]"),
        ("sow", "SyncQuery[Value]"),
        ("queue", "SyncQueueConsumer[Value]"),
        ("acknowledge", "int"),
        ("queue_status", "dict[str, Any]"),
    ):
        shown = pydoc.plain(pydoc.render_doc(getattr(SyncClient, method)))
        assert f"function {method} in module raylay.services.client.sync" in shown
        line = next(each for each in shown.splitlines() if each.startswith(f"{method}(self"))
        assert line.endswith(f"-> '{result}'"), line
        own, other = (inspect.signature(getattr(kind, method)) for kind in (SyncClient, Client))
        assert own.parameters == other.parameters


def test_a_forked_child_is_told_at_once(there: ServerThread) -> None:
    """Each call, in a real child; the parent goes on."""
    with SyncClient("desk", [there.server.address]) as client:
        client.publish("t", b"before")
        client.flush(60)
        reading, writing = os.pipe()
        client._lock.acquire()  # as another thread may have it
        parent = os.getpid()
        child = os.fork()
        if not child:
            said = []
            for call in (
                lambda: client.publish("t", b"x"),
                lambda: client.flush(60),
                lambda: client.subscribe("t"),
                lambda: client.client.publish_nowait("t", b"x"),
            ):
                try:
                    call()
                    said.append("nothing")
                except ForkedClient as error:
                    text = str(error)
                    tells = f"process {parent} " in text and f" {os.getpid()}:" in text
                    said.append(type(error).__name__ if tells else text)
                except Exception as error:
                    said.append(type(error).__name__)
            client.close()
            os.write(writing, " ".join(said).encode())
            os._exit(0)
        client._lock.release()
        os.close(writing)
        with open(reading, "rb") as pipe:
            ready, _, _ = select.select((pipe,), (), (), 20)
            if not ready:
                os.kill(child, signal.SIGKILL)
            said = pipe.read().decode()
        os.waitpid(child, 0)
        assert said == " ".join(["ForkedClient"] * 4)
        client.publish("t", b"after")
        client.flush(60)
    assert there.server.session.bodies == [b"before", b"after"]


class Order(msgspec.Struct):
    id: int


def test_bodies_have_the_type_that_a_subscription_was_given(there: ServerThread) -> None:
    with SyncClient("desk", [there.server.address]) as client:
        orders = client.subscribe("orders", type=Order)
        name = there.server.session.commands("subscribe")[-1]["sub"]
        for number, body in enumerate((b'{"id": 1}', b"{}", b'{"id": 3}'), 1):
            there.call(there.server.session.deliver, name, records(7, [number], body))
        assert next(orders).json() == Order(1)
        with pytest.raises(BodyTypeError, match="required field `id`"):
            next(orders).json()
        batch = orders.next_batch()
        assert batch is not None and batch.json() == [Order(3)]


def test_a_queue_is_read_by_batches(there: ServerThread) -> None:
    with SyncClient("desk", [there.server.address]) as client:
        with client.queue("work", backlog=4, type=Order) as work:
            name = there.server.session.commands("subscribe")[-1]["sub"]
            payload = b"".join(records(7, [n], b'{"id": %d}' % n) for n in range(1, 5))
            there.call(lambda: there.server.session.deliver(name, payload, q=1))
            found: list[int] = []
            for batch in work.batches():
                found += [each.id for each in batch.json()]
                batch.acknowledge()
                if len(found) == 4:
                    break
        assert found == [1, 2, 3, 4]


UNCLOSED = """
import sys
from raylay import SyncClient
client = SyncClient("desk", [sys.argv[1]], close_timeout_s=float(sys.argv[2]))
client.publish("t", b"sent")
closed = SyncClient("other", [sys.argv[1]], close_timeout_s=0.2)
closed.close()
"""


@pytest.mark.parametrize(
    ("acks", "wait_s", "told"), [(True, 60.0, []), (False, 0.2, ["1 publishes that were not"])]
)
def test_a_client_that_is_open_at_the_end_of_the_program_is_closed(
    there: ServerThread, acks: bool, wait_s: float, told: list[str]
) -> None:
    there.server.auto_ack = acks
    done = subprocess.run(
        [sys.executable, "-c", UNCLOSED, there.server.address, str(wait_s)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0
    assert [body for each in there.server.sessions for body in each.bodies] == [b"sent"]
    lines = done.stderr.splitlines()
    assert len(lines) == len(told) and all(map(str.__contains__, lines, told)), lines
