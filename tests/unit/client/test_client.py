"""The asyncio client against a scripted server, on real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop
from support.fake_server import FakeServer, records
from support.fake_stores import DictBookmarkStore, DictPublishStore

from raylay.services.client import (
    EPOCH,
    NOW,
    Client,
    ClientEvent,
    Connected,
    Disconnected,
    Merged,
    PublishFailed,
    ServerRefused,
    StoreFailed,
    WaitingForSafeInstance,
)
from raylay.services.client.messages import MessageBatch
from raylay.services.client.publishing.outbox import UNANSWERED_MESSAGES_MAX
from raylay.services.client.runtime import PUBLISH_FRAME_BYTES
from raylay.services.errors import (
    CommandFailed,
    ConfigurationError,
    ConnectionLost,
    CorruptRecord,
    LocalProtocolError,
    LogonRefused,
    MessageTypeError,
    NoSafeInstance,
    PublishStoreFull,
    SequenceConflict,
    StorageError,
    StorageFull,
)
from raylay.services.messages.ranges import PublisherRanges, SequenceSet
from raylay.services.messages.records import RECORD_BYTES_MAX, publisher_id
from raylay.storage.stores import LmdbBookmarkStore, LmdbPublishStore, MemoryPublishStore

pytestmark = pytest.mark.covers("Clients and protocol", "publish store: bounded")


def run(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Runs an async test with a deadline: a client that hangs is a failure, not a wait."""

    @functools.wraps(test)
    def bounded(**fixtures: Any) -> None:
        async def main() -> None:
            async with asyncio.timeout(60):
                await test(**fixtures)

        asyncio.run(main())

    return bounded


class Events:
    """The client's events, which a test may wait for."""

    def __init__(self) -> None:
        self.seen: list[ClientEvent] = []
        self._changed = asyncio.Event()

    def __call__(self, event: ClientEvent) -> None:
        self.seen.append(event)
        self._changed.set()

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.seen if isinstance(event, kind)]

    async def wait(self, kind: type[Any], count: int = 1) -> Any:
        async with asyncio.timeout(30):
            while len(self.of(kind)) < count:
                self._changed.clear()
                await self._changed.wait()
        return self.of(kind)[count - 1]


def client_of(*servers: FakeServer, **options: Any) -> Client:
    options.setdefault("pause_min_ms", 5)
    options.setdefault("close_timeout_s", 0.2)
    return Client("desk", [server.address for server in servers], **options)


# -- publishing ----------------------------------------------------------------------------------
@pytest.mark.covers("The replication chapters", "names and sequences")
@run
async def test_publish_to_persisted() -> None:
    server = await FakeServer().start()
    server.auto_ack = True
    acks: list[int] = []
    async with client_of(server, on_persisted=acks.append) as client:
        sequences = [await client.publish("t", b"%d" % n) for n in range(1_000)]
        await client.flush()
        assert client.persisted_sequence == sequences[-1] == client.last_sequence
    session = server.session
    assert session.published == sequences == list(range(sequences[0], sequences[0] + 1_000))
    assert session.bodies == [b"%d" % n for n in range(1_000)]
    assert acks[-1] == sequences[-1] and acks == sorted(acks)
    assert len(acks) == len(session.commands("pb")) < 20, "one a batch, not one a message"
    await server.stop()


@run
async def test_many_messages_of_one_call_have_a_sequence_each() -> None:
    server = await FakeServer().start()
    server.auto_ack = True
    async with client_of(server) as client:
        first = await client.publish("t", b"first")
        bodies = [b"%d" % n for n in range(1_000)]
        sequences = await client.publish_many("t", bodies, expiration_s=9)
        keyed = await client.publish_many("t", ["a", "b"], keys=[b"k", b"l"], correlation=b"c")
        assert await client.publish_many("t", []) == []
        last = await client.publish("t", b"last")
        await client.flush()
        assert [first, *sequences, *keyed, last] == list(range(first, last + 1))
        assert client.persisted_sequence == last
    session = server.session
    assert session.bodies == [b"first", *bodies, b"a", b"b", b"last"]
    got = session.records
    assert {record.expiration_s for record in got[1:1_001]} == {9}
    assert [(record.key, record.correlation) for record in got[1_001:]] == [
        (b"k", b"c"),
        (b"l", b"c"),
        (b"", b""),
    ]
    times = [record.origin_time_us for record in got]
    assert times == sorted(set(times)), "they ascend"
    await server.stop()


@run
async def test_many_messages_are_published_all_or_none_where_one_cannot_be() -> None:
    server = await FakeServer().start()
    server.auto_ack = True
    async with client_of(server) as client:
        refused: list[tuple[dict[str, Any], type[Exception], str]] = [
            ({"bodies": [b"1", None]}, TypeError, "body 1 of the list is of type NoneType"),
            ({"bodies": [b"1", {"a": object()}]}, MessageTypeError, "body 1 of the list"),
            ({"bodies": {"a": 1}}, TypeError, "have to be a list of bodies"),
            ({"bodies": b"12"}, TypeError, "have to be a list of bodies"),
            ({"bodies": 5}, TypeError, "type int, and have to be a list of bodies"),
            ({"bodies": [b"1"], "keys": {b"k"}}, TypeError, "keys is of type set, and has to be"),
            ({"bodies": [b"1"], "correlation": None}, TypeError, "correlation is of type None"),
            ({"bodies": [b"1"], "keys": []}, LocalProtocolError, "0 keys for 1 bodies"),
            ({"bodies": [b"1"], "keys": ["k"]}, TypeError, "key is of type str"),
            ({"bodies": [b"1"], "expiration_s": -1}, LocalProtocolError, "expiration"),
            ({"bodies": [b"1", bytes(RECORD_BYTES_MAX)]}, LocalProtocolError, "a record may have"),
            ({"bodies": [b"1"], "topic": ""}, LocalProtocolError, "topic is 0 bytes"),
        ]
        before = client.last_sequence
        for arguments, error, text in refused:
            with pytest.raises(error, match=text):
                await client.publish_many(**{"topic": "t", **arguments})
        assert client.last_sequence == before
    assert server.session.bodies == []
    await server.stop()


@run
async def test_many_messages_wait_for_room_in_the_store() -> None:
    server = await FakeServer().start()
    server.auto_ack = True
    store = MemoryPublishStore(messages_max=10)
    async with client_of(server, publish_store=store, publish_timeout_s=0.05) as client:
        bodies = [b"%d" % n for n in range(100)]
        sequences = await client.publish_many("t", bodies)
        await client.flush()
        assert sequences == list(range(sequences[0], sequences[0] + 100))
        assert server.session.bodies == bodies
        server.auto_ack = False
        with pytest.raises(PublishStoreFull, match="the first 10 of 100 messages were published"):
            await client.publish_many("t", bodies)
    await server.stop()


@run
async def test_values_are_published_by_the_message_type() -> None:
    server = await FakeServer().start()
    server.auto_ack = True
    async with client_of(server) as client:
        await client.publish("t", {"n": 1})
        client.publish_nowait("t", "text")
        await client.delta_publish("t", {"n": 2}, "msgpack")
        await client.sow_delete("t", data={"n": 3})
        before = client.last_sequence
        for publish in (client.publish, client.delta_publish):
            with pytest.raises(MessageTypeError, match="publish to t: the body is of type dict"):
                await publish("t", {"n": 1}, "quotes")
        assert client.last_sequence == before
    bodies = server.session.bodies
    assert bodies[:3] == [b'{"n":1}', b"text", b"\x81\xa1n\x02"]
    assert b'{"n":3}' in bodies[3]
    await server.stop()


@run
async def test_one_turn_of_the_loop_is_one_frame() -> None:
    server = await FakeServer().start()
    server.auto_ack = True
    async with client_of(server) as client:
        for _ in range(500):
            client.publish_nowait("t", b"x")
        await client.flush()
    assert [header["n"] for header in server.session.commands("pb")] == [500]
    await server.stop()


async def gathering(client: Client, server: FakeServer) -> None:
    """Publishes until something is gathered: one message more than may be unanswered."""
    for count in range(1, UNANSWERED_MESSAGES_MAX + 1):
        client.publish_nowait("t", b"x")
        await server.wait(lambda count=count: len(server.session.published) == count)
    client.publish_nowait("t", b"x")
    await asyncio.sleep(0)
    assert client.machine.outbox.gathering


@run
@pytest.mark.parametrize("how", ["ack", "flush", "close", "time"])
async def test_what_is_gathered_goes_with_an_answer_or_without(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if how != "time":
        monkeypatch.setattr("raylay.services.client.runtime.GATHERING_S_MAX", 1_000.0)
    server = await FakeServer().start()
    client = client_of(server)
    await client.connect()
    await gathering(client, server)
    session, more = server.session, asyncio.ensure_future(asyncio.sleep(0))
    if how == "ack":
        session.ack(session.published[0])
    elif how == "flush":
        more = asyncio.ensure_future(client.flush())
    elif how == "close":
        more = asyncio.ensure_future(client.close(flush=False))
    await server.wait(lambda: len(session.published) == UNANSWERED_MESSAGES_MAX + 1)
    if how == "flush":
        # Nor does what is published and flushed in one turn.
        client.publish_nowait("t", b"x")
        other = asyncio.ensure_future(client.flush())
        await server.wait(lambda: len(session.published) == UNANSWERED_MESSAGES_MAX + 2)
        session.ack(session.published[-1])
        await other
    await more
    await client.close(flush=False)
    await server.stop()


@run
async def test_a_full_store_waits_and_then_raises_and_drops_nothing() -> None:
    server = await FakeServer().start()
    store = MemoryPublishStore(messages_max=3)
    async with client_of(server, publish_store=store, publish_timeout_s=0.1) as client:
        first, *_ = [await client.publish("t", b"x") for _ in range(3)]
        with pytest.raises(PublishStoreFull):
            client.publish_nowait("t", b"x")
        with pytest.raises(PublishStoreFull, match="stayed full with 3 messages"):
            await client.publish("t", b"x")
        waiting = asyncio.ensure_future(client.publish("t", b"late"))
        await server.wait(lambda: len(server.session.published) == 3)
        server.session.ack(first)
        assert await waiting == first + 3
        await server.wait(lambda: len(server.session.published) == 4)
        assert server.session.bodies == [b"x", b"x", b"x", b"late"]
        server.auto_ack = True
        server.session.ack(first + 3)
        await client.flush()
    await server.stop()


@run
async def test_a_conflict_reaches_flush_once_and_the_others_are_persisted() -> None:
    server = await FakeServer().start()
    async with client_of(server) as client:
        first, *_ = [await client.publish("t", body) for body in (b"a", b"b", b"c")]
        await server.wait(lambda: len(server.session.published) == 3)
        server.session.ack(first)
        server.session.refuse(first + 1, "sequence_conflict", "held with another content")
        server.session.ack(first + 2)
        with pytest.raises(SequenceConflict, match="another content") as caught:
            await client.flush()
        assert caught.value.reason == "sequence_conflict"
        await client.flush()
        assert client.persisted_sequence == first + 2
    await server.stop()


@run
async def test_with_a_callback_refusals_go_there() -> None:
    server = await FakeServer().start()
    failed: list[PublishFailed] = []
    async with client_of(server, on_publish_failed=failed.append) as client:
        sequence = await client.publish("t", b"a")
        await server.wait(lambda: server.session.published)
        server.session.refuse(sequence, "storage_full")
        await client.flush()
    assert [(f.sequence, f.error.reason) for f in failed] == [(sequence, "storage_full")]
    assert failed[0].record.endswith(b"a")
    await server.stop()


@run
async def test_flush_asks_for_acks_that_the_server_keeps_back() -> None:
    server = await FakeServer().start()
    async with client_of(server, ack_conflation_ms=5_000) as client:
        sequence = await client.publish("t", b"x")
        flushed = asyncio.ensure_future(client.flush())
        await server.wait(lambda: server.session.commands("flush"))
        assert server.session.published == [sequence], "what is to be flushed goes first"
        server.session.ack(sequence)
        await flushed
    assert server.session.commands("logon")[0]["o"] == {"ack_conflation_ms": 5_000}
    await server.stop()


@run
async def test_close_says_what_was_not_acknowledged() -> None:
    server = await FakeServer().start()
    client = client_of(server, close_timeout_s=0.05)
    await client.connect()
    await client.publish("t", b"a")
    with pytest.raises(ConnectionLost, match="1 publishes that were not acknowledged"):
        await client.close()
    await server.stop()


@run
async def test_the_socket_that_does_not_keep_up_stops_the_sending_not_the_client() -> None:
    server = await FakeServer().start()
    server.auto_ack = True
    async with client_of(server, close_timeout_s=10) as client:
        session = server.session
        assert session.transport is not None
        session.transport.pause_reading()
        body = bytes(64 * 1024)
        for _ in range(400):
            await client.publish("t", body)
        connection = client.runtime.connection
        assert connection is not None and connection.transport is not None
        # 25 MB are published; the buffer holds its limit and one frame, the store the rest.
        assert connection.transport.get_write_buffer_size() < 2 * 1024 * 1024
        assert client.machine.outbox.unsent
        session.transport.resume_reading()
        await client.flush()
        assert len(session.published) == 400
    await server.stop()


@run
async def test_a_stream_that_broke_is_not_written_to_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """asyncio says `socket.send() raised exception` for each write to one."""
    server = await FakeServer().start()
    async with client_of(server, pause_min_ms=10) as client:
        transport = server.session.transport
        assert transport is not None
        server.auto_ack = True
        # Nobody here is told before the first writes have failed.
        transport.get_extra_info("socket").shutdown(socket.SHUT_RDWR)
        for _ in range(40):
            client.publish_nowait("t", bytes(PUBLISH_FRAME_BYTES))
        await client.flush()
        assert len(server.session.published) == 40
    assert not [each for each in caplog.records if each.name == "asyncio"]
    await server.stop()


@pytest.mark.parametrize("context", [bytes(24), bytes(300), "x" * 25, None])
@run
async def test_a_trace_context_that_no_instance_takes_is_refused_and_the_client_goes_on(
    context: Any,
) -> None:
    class Tracer:
        def publish_started(self, *_: Any) -> Any:
            return context

        def publish_persisted(self, *_: Any) -> None: ...

    server = await FakeServer().start()
    server.auto_ack = True
    tracer: Any = Tracer()
    async with client_of(server, tracer=tracer, sampling_ratio=1) as client:
        with pytest.raises(LocalProtocolError, match="publish to t: publish_started of the tracer"):
            client.publish_nowait("t", b"x")
        with pytest.raises(LocalProtocolError, match="give the 25 bytes"):
            await client.publish_many("t", [b"x"])
        assert not client.machine.outbox.store.messages
        context = b""
        client.publish_nowait("t", b"x")
        await client.flush()
    await server.stop()


@run
async def test_tracing_samples_and_closes() -> None:
    class Tracer:
        def __init__(self) -> None:
            self.started: list[int] = []
            self.upto = 0
            self.deliveries: list[tuple[bytes, Any]] = []

        def publish_started(
            self, sequence: int, topic: str, attributes: dict[str, Any], parent: bytes = b""
        ) -> bytes:
            self.started.append(sequence)
            address = {"server_address": "127.0.0.1", "server_port": server.port}
            assert attributes == {"body_bytes": 1, **address}
            assert parent == b""
            return bytes([7]) * 25

        def publish_persisted(self, sequence: int) -> None:
            self.upto = sequence

        def publish_failed(self, sequence: int, reason: str) -> None:
            raise AssertionError

        def delivered(
            self, trace: bytes, attributes: Any, start_ns: int = 0, end_ns: int = 0
        ) -> None:
            self.deliveries.append((trace, attributes))

    server = await FakeServer().start()
    server.auto_ack = True
    tracer = Tracer()
    async with client_of(server, tracer=tracer, sampling_ratio=0.1) as client:
        subscription = await client.subscribe("t")
        first, *_ = [await client.publish("t", b"x") for _ in range(30)]
        await client.flush()
        # One in ten, the first one at a random place.
        begin = tracer.started[0]
        assert first <= begin < first + 10
        assert tracer.started == [begin, begin + 10, begin + 20]
        assert tracer.upto == first + 29
        [(_, payload)] = [frame for frame in server.session.frames if frame[0]["c"] == "pb"]
        server.session.deliver(subscription.id, payload, tr=True)
        batch = await subscription.next_batch()
        assert batch is not None and batch.count == 30
        assert [trace for trace, _ in tracer.deliveries] == [bytes([7]) * 25] * 3
        given = tracer.deliveries[0][1]
        assert given["bookmark"] == f"{client.publisher}|{begin}|"
        assert (given["body_bytes"], given["server_port"]) == (1, server.port)
    await server.stop()


@run
async def test_nothing_is_sent_that_the_store_could_not_keep(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("raylay.services.client.runtime.STORE_RETRY_S", 0.01)
    server = await FakeServer().start()
    server.auto_ack = True
    events = Events()
    store = DictPublishStore()
    async with client_of(server, publish_store=store, on_event=events) as client:
        store.failure = StorageFull("no space for publishes")
        await client.publish("t", b"x")
        failed = await events.wait(StoreFailed, 2)
        assert str(failed.error) == "no space for publishes"
        assert not server.session.published
        store.failure = None
        await client.flush()
        assert server.session.bodies == [b"x"]
    await server.stop()


@run
async def test_a_damaged_store_ends_the_client() -> None:
    server = await FakeServer().start()
    store = DictPublishStore()
    client = client_of(server, publish_store=store)
    await client.connect()
    store.failure = CorruptRecord("the store is damaged")
    await client.publish("t", b"x")
    with pytest.raises(CorruptRecord):
        await client.flush()
    with pytest.raises(CorruptRecord):
        await client.publish("t", b"x")
    store.failure = None
    await client.close()
    assert not server.session.published
    await server.stop()


def test_under_uvloop() -> None:
    async def scenario() -> None:
        server = await FakeServer("A", B=True).start()
        other = await FakeServer("B", A=True).start()
        other.auto_ack = True
        events = Events()
        async with client_of(server, other, on_event=events) as client:
            subscription = await client.subscribe("t", bookmark=EPOCH, queue_bytes_max=1)
            server.session.deliver(subscription.id, records(7, [1]))
            server.session.deliver(subscription.id, records(7, [2]))
            assert [(await anext(subscription)).sequence for _ in range(2)] == [1, 2]
            sequence = await client.publish("t", b"x")
            await server.stop()
            await events.wait(Connected, 2)
            await client.flush()
            assert other.session.published == [sequence]
            other.session.deliver(subscription.id, records(7, [2, 3]))
            assert (await anext(subscription)).sequence == 3
        await other.stop()

    uvloop.run(asyncio.wait_for(scenario(), 10))


# -- connecting and failing over -----------------------------------------------------------------
@run
async def test_no_server_is_an_error_that_names_them() -> None:
    server = await FakeServer().start()
    await server.stop()
    client = client_of(server, connect_wait_s=0.1)
    with pytest.raises(ConnectionLost, match=server.address):
        await client.connect()
    with pytest.raises(ConfigurationError, match="no servers"):
        Client("desk")


@run
async def test_a_refused_logon_carries_the_reason() -> None:
    server = await FakeServer().start()
    server.logon_refusal = "bad_client_name"
    with pytest.raises(LogonRefused) as caught:
        await client_of(server).connect()
    assert caught.value.reason == "bad_client_name"
    await server.stop()


@pytest.mark.covers("The replication chapters", "reconnection and failover")
@run
async def test_fails_over_and_resends_exactly_what_is_not_durable_in_order() -> None:
    first_server = await FakeServer("A", B=True).start()
    second_server = await FakeServer("B", A=False).start()
    events = Events()
    async with client_of(first_server, second_server, on_event=events) as client:
        first, *_ = [await client.publish("t", b"%d" % n) for n in range(10)]
        await first_server.wait(lambda: len(first_server.session.published) == 10)
        first_server.session.ack(first + 1)
        second_server.durable = [[first + 2, first + 3], [first + 6, first + 6]]
        second_server.highest = first + 6
        await first_server.stop()
        await events.wait(Connected, 2)
        await client.publish("t", b"new")
        expected = [first + n for n in (4, 5, 7, 8, 9, 10)]
        await second_server.wait(lambda: len(second_server.session.published) >= 6)
        assert second_server.session.published == expected
        assert second_server.session.bodies == [b"4", b"5", b"7", b"8", b"9", b"new"]
        assert second_server.session.commands("logon")[0]["low"] == first + 2
        second_server.session.ack(first + 10)
        await client.flush()
        assert client.instance == "B"
    assert events.of(Connected)[1].resent_messages == 5
    await second_server.stop()


@run
async def test_a_resend_larger_than_the_socket_takes_keeps_order_before_new_publishes() -> None:
    server = await FakeServer().start()
    events = Events()
    async with client_of(server, on_event=events, close_timeout_s=10) as client:
        body = bytes(100_000)
        first, *_ = [await client.publish("t", body) for _ in range(60)]
        await server.wait(lambda: len(server.session.published) == 60)
        server.session.drop()
        await events.wait(Connected, 2)
        for _ in range(60):
            await client.publish("t", body)
        await server.wait(lambda: len(server.session.published) == 120)
        assert server.session.published == list(range(first, first + 120))
        server.session.ack(first + 119)
        await client.flush()
    await server.stop()


@pytest.mark.covers("The replication chapters", "no publisher and no bookmark subscriber")
@run
async def test_an_unsafe_peer_is_remembered_across_the_death_of_who_said_so() -> None:
    first_server = await FakeServer("A", B=True).start()
    second_server = await FakeServer("B", A=True).start()
    first_server.peer_addresses = {"B": [second_server.address]}
    events = Events()
    async with client_of(first_server, second_server, on_event=events) as client:
        first_server.session.safety(B=False)
        sequence = await client.publish("t", b"x")
        await first_server.wait(lambda: first_server.session.published)
        # Acknowledged without B: from here on B must not be used.
        first_server.session.ack(sequence)
        await client.flush()
        port = first_server.port
        await first_server.stop()
        waiting = await events.wait(WaitingForSafeInstance, 2)
        assert dict(waiting.refused) == {"B": "A called it unsafe to fail over to"}
        assert not second_server.sessions
        # A returns, calls B safe, dies again: now B will do.
        returned = await FakeServer("A", B=True).start(port)
        returned.peer_addresses = first_server.peer_addresses
        await events.wait(Connected, 2)
        await returned.stop()
        assert (await events.wait(Connected, 3)).instance == "B"
    await second_server.stop()


@pytest.mark.covers("The replication chapters", "no publisher and no bookmark subscriber")
@run
async def test_a_subscriber_does_not_follow_to_a_downgraded_peer_either() -> None:
    """With a bookmark subscription and nothing published."""
    first_server = await FakeServer("A", B=True).start()
    second_server = await FakeServer("B", A=True).start()
    first_server.peer_addresses = {"B": [second_server.address]}
    events = Events()
    async with client_of(first_server, second_server, on_event=events) as client:
        subscription = await client.subscribe("t", bookmark=EPOCH)
        first_server.session.deliver(subscription.id, records(7, [1]))
        assert (await anext(subscription)).body == b"1"
        first_server.session.safety(B=False)
        # An answer behind the notice: it was heard.
        await client.subscribe("u")
        port = first_server.port
        await first_server.stop()
        waiting = await events.wait(WaitingForSafeInstance, 2)
        assert dict(waiting.refused) == {"B": "A called it unsafe to fail over to"}
        assert not second_server.sessions
        returned = await FakeServer("A").start(port)
        assert (await events.wait(Connected, 2)).instance == "A"
        await returned.wait(lambda: len(returned.session.commands("subscribe")) == 2)
        assert returned.session.commands("subscribe")[0]["sub"] == subscription.id
    await returned.stop()
    await second_server.stop()


@run
async def test_an_unknown_server_that_turns_out_unsafe_gets_nothing() -> None:
    first_server = await FakeServer("A", B=False).start()
    second_server = await FakeServer("B").start()
    events = Events()
    async with client_of(first_server, second_server, on_event=events) as client:
        await client.publish("t", b"x")
        await first_server.wait(lambda: first_server.session.published)
        first_server.session.drop()
        refused = await events.wait(ServerRefused)
        assert refused.instance == "B"
        await events.wait(Connected, 2)
        assert client.instance == "A"
        await first_server.wait(lambda: first_server.session.published)
        first_server.session.ack(client.last_sequence)
    assert not second_server.session.published
    await first_server.stop()
    await second_server.stop()


@run
async def test_servers_from_a_look_up() -> None:
    server = await FakeServer("A", "Chicago").start()
    london = await FakeServer("L", "London").start()

    async def look_up() -> list[dict[str, str]]:
        return [
            {"address": london.address, "instance": "L", "group": "London"},
            {"address": server.address, "instance": "A", "group": "Chicago"},
        ]

    async with Client("desk", look_up, group="Chicago") as client:
        assert client.instance == "A"
    assert not london.sessions
    await server.stop()
    await london.stop()


@run
async def test_a_silent_server_is_left() -> None:
    server = await FakeServer("A", B=True).start()
    other = await FakeServer("B", A=True).start()
    events = Events()
    async with client_of(server, other, heartbeat_s=0.2, on_event=events) as client:
        await server.wait(lambda: len(server.session.commands("heartbeat")) > 1)
        server.silent = True
        await events.wait(Connected, 2)
        assert client.instance == "B"
    assert events.of(Disconnected)[0].reason == "heartbeat"
    beats = server.session.commands("heartbeat")
    assert beats[0]["o"] == {"start_s": 0.2} and "o" not in beats[1]
    await server.stop()
    await other.stop()


@run
async def test_a_second_client_of_the_name_ends_this_one() -> None:
    server = await FakeServer().start()
    client = client_of(server)
    await client.connect()
    subscription = await client.subscribe("t")
    server.session.send(
        {"c": "ack", "a": "processed", "status": "failure", "reason": "name_in_use"}
    )
    with pytest.raises(LogonRefused, match="name_in_use"):
        await subscription.next_batch()
    with pytest.raises(LogonRefused):
        await client.publish("t", b"x")
    await client.close()
    await server.stop()


@run
async def test_a_durable_store_resends_after_the_process_is_gone(tmp_path: Path) -> None:
    server = await FakeServer().start()
    store = LmdbPublishStore(tmp_path / "publishes")
    client = client_of(server, publish_store=store, close_timeout_s=0.05)
    await client.connect()
    sequences = [await client.publish("t", b"%d" % n) for n in range(5)]
    await server.wait(lambda: len(server.session.published) == 5)
    server.session.ack(sequences[1])
    await client.close()  # nothing is lost by it: the store keeps the others
    store.close()
    store = LmdbPublishStore(tmp_path / "publishes")
    async with client_of(server, publish_store=store) as client:
        assert await client.publish("t", b"after") == sequences[-1] + 1
        await server.wait(lambda: len(server.session.published) == 4)
        assert server.session.bodies == [b"2", b"3", b"4", b"after"]
        server.session.ack(client.last_sequence)
        await client.flush()
    store.close()
    await server.stop()


def test_a_store_of_another_client_is_refused() -> None:
    store = MemoryPublishStore()
    store.put(1, records(publisher_id("other"), [1]))
    with pytest.raises(ConfigurationError, match="another client name"):
        Client("desk", ["x:1"], publish_store=store)
    Client("other", ["x:1"], publish_store=store)


@run
async def test_a_store_is_of_one_client_until_it_is_closed() -> None:
    server = await FakeServer().start()
    store = MemoryPublishStore()
    async with client_of(server, publish_store=store):
        other = Client("other", [server.address], publish_store=store)
        with pytest.raises(LocalProtocolError, match="other: client desk uses its publish store"):
            await other.connect()
    async with client_of(server, publish_store=store) as again:
        assert again.instance
    await server.stop()


# -- subscriptions -------------------------------------------------------------------------------
@run
async def test_what_arrives_is_told_before_anybody_takes_it() -> None:
    server = await FakeServer().start()
    arrived: list[list[bytes]] = []
    came = asyncio.Event()

    def told(batch: MessageBatch) -> None:
        arrived.append(batch.bodies())
        came.set()
        raise RuntimeError("it is the application's affair, and ends no connection")

    faults: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
    async with client_of(server, on_arrival=told) as client:
        subscription = await client.subscribe("t", message_type="json")
        server.session.deliver(subscription.id, records(7, range(1, 4)))
        await came.wait()
        assert arrived == [[b"1", b"2", b"3"]] and len(faults) == 1
        batch = await subscription.next_batch()
        assert batch is not None and batch.bodies() == arrived[0]
    await server.stop()


@run
async def test_messages_singly_and_in_batches() -> None:
    server = await FakeServer().start()
    async with client_of(server) as client:
        subscription = await client.subscribe("t", message_type="json")
        server.session.deliver(subscription.id, records(7, range(1, 4)))
        server.session.deliver(subscription.id, records(7, range(4, 6)))
        got = []
        async for message in subscription:
            got.append((message.bookmark, message.body))
            if len(got) == 2:
                break
        assert got == [("7|1|", b"1"), ("7|2|", b"2")]
        batch = await subscription.next_batch()
        assert batch is not None and batch.bodies() == [b"4", b"5"]
        subscription.unsubscribe()
        await server.wait(lambda: server.session.commands("unsubscribe"))
        assert [b async for b in subscription.batches()] == []
    await server.stop()


@run
async def test_a_refused_subscription_raises_with_the_reason() -> None:
    server = await FakeServer().start()
    async with client_of(server) as client:
        server.subscribe_refusal = "not_journaled"
        with pytest.raises(CommandFailed) as caught:
            await client.subscribe("t", bookmark=EPOCH)
        assert caught.value.reason == "not_journaled"
        server.subscribe_refusal = ""
        await client.subscribe("t", bookmark=EPOCH)
    await server.stop()


@pytest.mark.covers("The replication chapters", "an ordinary subscription is restored")
@run
async def test_an_ordinary_subscription_is_restored_where_the_client_reconnects() -> None:
    """As it was asked for, without a word of the application; what was unsubscribed is not."""
    first_server = await FakeServer("A", B=True).start()
    second_server = await FakeServer("B").start()
    first_server.peer_addresses = {"B": [second_server.address]}
    async with client_of(first_server, second_server) as client:
        subscription = await client.subscribe("^t", message_type="json", filter="/a = 1")
        over = await client.subscribe("u")
        over.unsubscribe()
        first_server.session.deliver(subscription.id, records(7, [1]))
        assert (await anext(subscription)).body == b"1"
        (asked, _) = first_server.session.commands("subscribe")
        assert asked["o"]["filter"] == "/a = 1"
        await first_server.stop()
        await second_server.wait(
            lambda: second_server.sessions and second_server.session.commands("subscribe")
        )
        (again,) = second_server.session.commands("subscribe")
        assert {key: again[key] for key in again if key != "cid"} == {
            key: asked[key] for key in asked if key != "cid"
        }
        second_server.session.deliver(subscription.id, records(7, [2]))
        assert (await anext(subscription)).body == b"2"
    await second_server.stop()


@pytest.mark.covers("The replication chapters", "subscriptions resume exactly where they were")
@run
async def test_a_bookmark_subscription_resumes_elsewhere_without_gap_or_duplicate() -> None:
    server = await FakeServer("A", B=True).start()
    other = await FakeServer("B", A=True).start()
    server.have = {7: SequenceSet([(1, 100)]).to_bytes()}
    events = Events()
    async with client_of(server, other, on_event=events) as client:
        subscription = await client.subscribe("t", bookmark=NOW)
        server.session.deliver(subscription.id, records(7, [101, 103]))
        server.session.deliver(subscription.id, records(8, [1, 2]))
        batch = await subscription.next_batch()
        assert batch is not None and batch.bodies() == [b"101", b"103"]
        # The batch of publisher 8 still waits for the consumer; it must not come twice either.
        await server.stop()
        await events.wait(Connected, 2)
        await other.wait(lambda: other.session.commands("subscribe"))
        have = other.session.commands("subscribe")[0]["o"]["have"]
        assert PublisherRanges.from_wire(have) == PublisherRanges(
            {7: SequenceSet([(1, 101), (103, 103)]), 8: SequenceSet([(1, 2)])}
        )
        # A server that repeats itself all the same, and closes the gap.
        other.session.deliver(subscription.id, records(7, [101, 102, 103, 104]))
        got: list[bytes] = []
        while len(got) < 4:
            batch = await subscription.next_batch()
            assert batch is not None
            got += batch.bodies()
        assert got == [b"1", b"2", b"102", b"104"]
        assert subscription.suppressed_messages == 2
    await other.stop()


@pytest.mark.covers("The replication chapters", "a subscriber that is killed")
@run
async def test_with_no_time_between_flushes_a_batch_is_kept_before_the_next_is_given() -> None:
    server = await FakeServer().start()
    store = DictBookmarkStore()
    flushed: list[PublisherRanges] = []
    store.flush = lambda: flushed.append(store.load("s"))  # type: ignore[method-assign]
    async with client_of(server, bookmark_store=store, bookmark_flush_ms=0) as client:
        subscription = await client.subscribe("t", bookmark=EPOCH, subscription_id="s")
        for first in (1, 3):
            server.session.deliver("s", records(7, [first, first + 1]))
        while subscription.queued_messages < 4:
            await asyncio.sleep(0)
        await subscription.next_batch()
        assert not flushed, "asked for, not done with"
        # The loop has no turn in between: both are here.
        await subscription.next_batch()
        assert flushed == [PublisherRanges({7: SequenceSet([(1, 2)])})]
        other = await client.subscribe(
            "u", bookmark=EPOCH, subscription_id="s2", explicit_discard=True
        )
        server.session.deliver("s2", records(8, [1, 2]))
        before = len(flushed)
        other.discard(await anext(other))
        assert len(flushed) == before + 1
    await server.stop()


@run
async def test_a_bookmark_store_that_cannot_write_is_tried_again_and_stops_nobody() -> None:
    server = await FakeServer().start()
    store = DictBookmarkStore()
    tries = 0

    def flush() -> None:
        nonlocal tries
        tries += 1
        raise StorageError("the disk is full", "store")

    store.flush = flush  # type: ignore[method-assign]
    told: list[object] = []
    client = client_of(server, bookmark_store=store, bookmark_flush_ms=0, on_event=told.append)
    await client.connect()
    subscription = await client.subscribe("t", bookmark=EPOCH, subscription_id="s")
    for first in (1, 3, 5):
        server.session.deliver("s", records(7, [first, first + 1]))
    for _ in range(3):
        await subscription.next_batch()
    assert tries == 1, "it is not asked again for each batch"
    assert [type(each) for each in told].count(StoreFailed) == 1
    with pytest.raises(StorageError):
        await client.close()
    await server.stop()


KILLED = """
import sys
from raylay.services.client import EPOCH, LmdbBookmarkStore, SyncClient
store = LmdbBookmarkStore(sys.argv[2])
client = SyncClient("desk", servers=[sys.argv[1]], bookmark_store=store, bookmark_flush_ms=0)
for message in client.subscribe("t", bookmark=EPOCH, subscription_id="s"):
    print(message.sequence, flush=True)
    if message.sequence == 5:
        sys.stdin.read()  # It is killed here: a moment later it would have taken the next batch.
"""


@pytest.mark.covers("The replication chapters", "a subscriber that is killed")
@run
async def test_a_subscriber_killed_at_once_has_kept_all_but_its_last_batch(tmp_path: Path) -> None:
    server = await FakeServer().start()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", KILLED, server.address, str(tmp_path / "store"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    await server.wait(lambda: server.sessions and server.session.commands("subscribe"))
    for first in (1, 3, 5):
        server.session.deliver("s", records(7, [first, first + 1]))
    while await process.stdout.readline() != b"5\n":
        pass
    process.kill()
    await process.wait()
    with contextlib.closing(LmdbBookmarkStore(tmp_path / "store")) as store:
        assert store.load("s") == PublisherRanges({7: SequenceSet([(1, 4)])})
    await server.stop()


@pytest.mark.covers("The replication chapters", "a bookmark store")
@run
async def test_a_bookmark_store_has_what_the_consumer_is_done_with() -> None:
    server = await FakeServer().start()
    store = DictBookmarkStore()
    async with client_of(server, bookmark_store=store, bookmark_flush_ms=1) as client:
        subscription = await client.subscribe("t", bookmark=EPOCH, subscription_id="s")
        server.session.deliver("s", records(7, [1, 2]))
        server.session.deliver("s", records(7, [3, 4, 5]))
        await subscription.next_batch()
        assert not store.load("s"), "asked for, not done with"
        assert (await anext(subscription)).sequence == 3
        assert store.load("s") == PublisherRanges({7: SequenceSet([(1, 2)])})
        assert (await anext(subscription)).sequence == 4
    # Closed in good order: 4 was handed out, 5 was not.
    assert store.load("s") == PublisherRanges({7: SequenceSet([(1, 4)])})
    assert store.flushes
    async with client_of(server, bookmark_store=store) as client:
        await client.subscribe("t", bookmark=EPOCH, subscription_id="s")
        [header] = server.session.commands("subscribe")
        assert PublisherRanges.from_wire(header["o"]["have"]) == store.load("s")
    await server.stop()


@run
async def test_a_persisted_ack_counts_when_what_came_before_it_was_taken() -> None:
    server = await FakeServer().start()
    store = DictBookmarkStore()
    async with client_of(server, bookmark_store=store) as client:
        subscription = await client.subscribe("t", bookmark=EPOCH, subscription_id="s")
        session = server.session
        session.deliver("s", records(7, [2]))
        have = {7: SequenceSet([(1, 9)]).to_bytes()}
        session.send({"c": "ack", "a": "persisted", "sub": "s", "status": "success", "have": have})
        session.deliver("s", records(7, [12]))
        await subscription.next_batch()
        assert not store.load("s")
        await subscription.next_batch()
        assert store.load("s") == PublisherRanges({7: SequenceSet([(1, 9)])})
    await server.stop()


@run
async def test_persisted_acks_that_wait_together_all_count() -> None:
    server = await FakeServer().start()
    store = DictBookmarkStore()
    async with client_of(server, bookmark_store=store) as client:
        subscription = await client.subscribe("t", bookmark=EPOCH, subscription_id="s")
        session = server.session
        session.deliver("s", records(7, [2]))
        for first, last in ((1, 4), (5, 9)):
            have = {7: SequenceSet([(first, last)]).to_bytes()}
            session.send(
                {"c": "ack", "a": "persisted", "sub": "s", "status": "success", "have": have}
            )
        session.deliver("s", records(7, [12]))
        await subscription.next_batch()
        await subscription.next_batch()
        assert store.load("s") == PublisherRanges({7: SequenceSet([(1, 9)])})
    await server.stop()


@run
async def test_merged_subscriptions_come_in_the_order_in_which_they_arrived() -> None:
    server = await FakeServer().start()
    store = DictBookmarkStore()
    async with client_of(server, bookmark_store=store) as client:
        first, second = [
            await client.subscribe("t", bookmark=EPOCH, subscription_id=name, pause=True)
            for name in ("a", "b")
        ]
        assert all(h["o"] == {"pause": True} for h in server.session.commands("subscribe"))
        await client.resume(first, second)
        assert server.session.commands("subscribe")[-1]["sub"] == ["a", "b"]
        merged = Merged(first, second)
        waiting = asyncio.ensure_future(anext(merged))
        await asyncio.sleep(0)
        assert not waiting.done()
        session = server.session
        session.deliver("b", records(7, [1, 2]))
        session.deliver("a", records(7, [3]))
        session.deliver("b", records(7, [4]))
        found = [await waiting, *[await anext(merged) for _ in range(3)]]
        assert [(m.subscription_id, m.sequence) for m in found] == [
            ("b", 1),
            ("b", 2),
            ("a", 3),
            ("b", 4),
        ]
        assert list(store.load("b").items()) == [(7, (1, 2))], "4 is with the consumer"
        assert list(store.load("a").items()) == [(7, (3, 3))]
        merged.unsubscribe()
        assert await merged.next_batch() is None
        await server.wait(lambda: len(session.commands("unsubscribe")) == 2)
    await server.stop()


@run
async def test_merged_subscriptions_end_with_the_first_error() -> None:
    server = await FakeServer().start()
    async with client_of(server) as client:
        first, second = [await client.subscribe("t", bookmark=EPOCH) for _ in range(2)]
        server.session.deliver(first.id, records(7, [1]))
        server.session.send(
            {"c": "ack", "a": "processed", "sub": second.id, "status": "failure", "reason": "x"}
        )
        merged = Merged(first, second)
        assert (await anext(merged)).sequence == 1
        with pytest.raises(CommandFailed):
            await anext(merged)
    await server.stop()


@run
async def test_a_pause_that_is_on_its_way_when_the_client_closes_is_told() -> None:
    server = await FakeServer().start()
    client = client_of(server)
    await client.connect()
    subscription = await client.subscribe("t", bookmark=EPOCH)
    server.silent = True
    pausing = asyncio.ensure_future(client.pause(subscription))
    await server.wait(lambda: len(server.session.commands("subscribe")) == 2)
    await client.close()
    with pytest.raises(ConnectionLost):
        await pausing
    await server.stop()


@run
async def test_explicit_discard() -> None:
    server = await FakeServer().start()
    store = DictBookmarkStore()
    async with client_of(server, bookmark_store=store) as client:
        subscription = await client.subscribe(
            "t", bookmark=EPOCH, subscription_id="s", explicit_discard=True
        )
        server.session.deliver("s", records(7, [1, 2, 3]))
        await anext(subscription)
        with pytest.raises(TypeError, match="message is 5, of type int: give a message"):
            subscription.discard(5)  # type: ignore[arg-type]
        subscription.discard(await anext(subscription))
        await anext(subscription)
    assert store.load("s") == PublisherRanges({7: SequenceSet([(2, 2)])})
    await server.stop()


@run
async def test_a_slow_consumer_stops_the_reading_and_loses_nothing() -> None:
    server = await FakeServer().start()
    async with client_of(server, heartbeat_s=0.1) as client:
        subscription = await client.subscribe("t", queue_bytes_max=1024 * 1024)
        session = server.session
        assert session.transport is not None
        payload = records(7, range(1, 101), bytes(1_000))
        for _ in range(300):  # 32 MB, far above queue and socket buffers together
            session.deliver(subscription.id, payload)
        await asyncio.sleep(0.5)  # longer than the heartbeat: silence proves nothing while paused
        assert client.machine.reading_paused
        assert session.transport.get_write_buffer_size() > 1024 * 1024
        assert subscription.queued_messages * 1_000 < 3 * 1024 * 1024
        count = 0
        async for batch in subscription.batches():
            count += batch.count
            if count == 30_000:
                break
        assert not client.machine.reading_paused
        assert client.instance == "A"
    assert len(server.sessions) == 1
    await server.stop()


@run
async def test_a_full_queue_does_not_keep_acks_from_a_consumer_that_publishes() -> None:
    server = await FakeServer().start()
    server.auto_ack = True
    store = MemoryPublishStore(messages_max=1)
    async with client_of(server, publish_store=store) as client:
        subscription = await client.subscribe("t", queue_bytes_max=1)
        for sequence in range(1, 50):
            server.session.deliver(subscription.id, records(7, [sequence]))
        for _ in range(49):
            await subscription.next_batch()
            await client.publish("u", b"x")
        await client.flush()
    assert len(server.session.published) == 49
    await server.stop()


@run
async def test_a_bounded_subscription_ends_and_an_open_one_has_caught_up() -> None:
    server = await FakeServer().start()
    async with client_of(server) as client:
        bounded = await client.subscribe("t", bookmark="[0:7|3|)")
        opened = await client.subscribe("t", bookmark=EPOCH)
        for subscription in (bounded, opened):
            server.session.deliver(subscription.id, records(7, [1, 2]))
            server.session.send(
                {"c": "ack", "a": "completed", "sub": subscription.id, "status": "success"}
            )
        assert [message.body async for message in bounded] == [b"1", b"2"]
        await opened.caught_up.wait()
        assert opened.queued_messages == 2
    await server.stop()


# -- bad servers ---------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "header",
    [
        {"c": "ack", "a": "persisted", "s": "x", "status": "success"},
        {"c": "p", "sub": "s", "n": 3},
        {"c": "p", "sub": "s", "n": "three"},
        {"c": "p", "sub": ["s"], "n": 1},
        {"c": "p", "sub": "s", "n": -1},
        {"c": "ack", "a": "persisted", "s": float("inf"), "status": "success"},
    ],
)
def test_a_frame_that_makes_no_sense_ends_the_connection_not_the_client(
    header: dict[str, Any],
) -> None:
    @run
    async def test() -> None:
        server = await FakeServer().start()
        events = Events()
        async with client_of(server, on_event=events) as client:
            await client.subscribe("t", bookmark=EPOCH, subscription_id="s")
            server.session.send(header, b"no records")
            lost = await events.wait(Disconnected)
            assert lost.reason.startswith("bad_frame")
            await events.wait(Connected, 2)
            assert client.instance == "A"
        await server.stop()

    test()


@pytest.mark.parametrize("bookmark", ["", EPOCH])
def test_more_records_than_a_frame_has_room_for_end_the_connection(bookmark: str) -> None:
    """A record that says it has no length is found again and again: with 1 << 60 of them the
    client would loop, and collect, for ever."""

    @run
    async def test() -> None:
        server = await FakeServer().start()
        server.auto_ack = True
        events = Events()
        async with client_of(server, on_event=events) as client:
            await client.subscribe("t", bookmark=bookmark, subscription_id="s")
            await client.publish("t", b"so that each delivery is searched for its latest time")
            for number, count in enumerate((6, 1 << 60), start=1):
                server.session.send({"c": "p", "sub": "s", "n": count}, bytes(300))
                lost = await events.wait(Disconnected, number)
                assert lost.reason == f"bad_frame: ValueError: {count} records in 300 bytes"
                await events.wait(Connected, number + 1)
        await server.stop()

    test()


@run
async def test_bytes_that_are_no_frame_end_the_connection() -> None:
    server = await FakeServer().start()
    events = Events()
    async with client_of(server, on_event=events):
        transport = server.session.transport
        assert transport is not None
        transport.write(b"\xff" * 64)
        lost = await events.wait(Disconnected)
        assert lost.reason.startswith("frame_too_large")
        await events.wait(Connected, 2)
    await server.stop()


@run
async def test_subscribing_says_that_it_waits_for_a_safe_instance() -> None:
    server = await FakeServer("A", B=False).start()
    other = await FakeServer("B").start()
    server.peer_addresses = {"B": [other.address]}
    events = Events()
    async with client_of(server, other, on_event=events) as client:
        server.session.safety(B=False)
        await server.stop()
        await events.wait(WaitingForSafeInstance)
        with pytest.raises(NoSafeInstance, match="B: A called it unsafe"):
            await client.subscribe("t", timeout_s=0.02)
        client.trust("B")
        await events.wait(Connected, 2)
        assert client.instance == "B"
        await client.subscribe("t")
    await other.stop()


@pytest.mark.parametrize(
    "address", ["nonsense", "host", "host:", "host:port", "host:70000", "unix:"]
)
def test_what_cannot_be_an_address_is_refused_at_once(address: str) -> None:
    with pytest.raises(ConfigurationError, match=f"client c: address '{address}'"):
        Client("c", servers=["127.0.0.1:9007", address])


@pytest.mark.covers("Clients and protocol", "a call with a wrong argument")
@run
async def test_a_client_that_is_not_connected_says_so() -> None:
    client = Client("desk", ["127.0.0.1:1"])
    for call in (
        client.subscribe("t"),
        client.sow_and_subscribe("t"),
        client.subscribe("t", durable="billing"),
        client.queue_status("work"),
        client.acknowledge_matching("work", "/a = 1"),
        client.readers.known(),
    ):
        with pytest.raises(LocalProtocolError, match="client desk is not connected: await"):
            await call
    with pytest.raises(LocalProtocolError, match="client desk is not connected: await"):
        client.sow("t")


@pytest.mark.covers("Clients and protocol", "a call with a wrong argument")
def test_a_client_belongs_to_the_loop_that_connected_it() -> None:
    client = Client("desk", ["127.0.0.1:1"])
    server = FakeServer()

    async def connected() -> Client:
        await server.start()
        client = Client("desk", [server.address])
        await client.connect()
        return client

    first = asyncio.new_event_loop()
    try:
        client = first.run_until_complete(connected())
        foreign = "client desk belongs to another event loop, the one that connected it"

        async def elsewhere() -> None:
            for call in (
                client.subscribe("t"),
                client.queue_status("work"),
                client.sow("t").all(),
                client.publish("t", b"1"),
                client.flush(1),
            ):
                with pytest.raises(LocalProtocolError, match=foreign):
                    await call

        asyncio.run(elsewhere())
        first.run_until_complete(client.close(flush=False))
        first.run_until_complete(server.stop())
        client = first.run_until_complete(connected())
        first.run_until_complete(server.stop())
        connecting = asyncio.all_tasks(first)
        for task in connecting:
            task.cancel()
        first.run_until_complete(asyncio.gather(*connecting, return_exceptions=True))
    finally:
        first.close()
    for _ in range(2):
        with pytest.raises(LocalProtocolError, match=foreign):
            client.publish_nowait("t", b"1")


@pytest.mark.covers("Clients and protocol", "a call with a wrong argument")
@run
async def test_what_is_no_position_and_no_acknowledgment_is_refused_here() -> None:
    server = await FakeServer().start()
    async with Client("desk", [server.address]) as client:
        with pytest.raises(LocalProtocolError, match="bookmark 'yesterday'") as refused:
            await client.subscribe("t", bookmark="yesterday")
        assert refused.value.reason == "bad_bookmark"
        with pytest.raises(LocalProtocolError, match=r"is not of the form \[begin:end\)"):
            await client.subscribe("t", durable="d", bookmark="[0:")
        wrong: list[Any] = [["x"], [], "7|1|", [b"7|1|"], ["0"]]
        for bookmarks in wrong:
            with pytest.raises(LocalProtocolError, match="messages of work give a list of book"):
                client.acknowledge("work", bookmarks)
        with pytest.raises(LocalProtocolError, match="work: how is 'nix': give ack or expire"):
            client.acknowledge("work", ["7|1|"], how="nix")
        with pytest.raises(LocalProtocolError, match="give ack or expire or cancel"):
            await client.acknowledge_matching("work", "/a = 1", how="nix")
        assert not server.session.bodies and not server.session.commands("subscribe")
    await server.stop()


@run
async def test_a_cancellation_that_comes_with_the_answer_is_one() -> None:
    server = await FakeServer().start()
    async with Client("desk", [server.address]) as client:
        answered = asyncio.get_running_loop().create_future()
        waiting = asyncio.create_task(client.runtime.while_reading(answered, 60))
        await asyncio.sleep(0)
        answered.set_result(None)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    await server.stop()


@run
async def test_a_client_that_was_never_connected_is_closed_without_an_error() -> None:
    server = await FakeServer().start()
    client = client_of(server)
    await client.close()
    assert client.status == "not connected (ended)"
    await client.close()
    with pytest.raises(LocalProtocolError, match="was started or closed before: make a new one"):
        await client.connect()
    await server.stop()


@run
async def test_what_is_no_value_of_a_command_or_subscription_is_refused_by_name() -> None:
    server = await FakeServer().start()
    no_one: Any = 5
    text: Any = "s"
    async with client_of(server) as client:
        refused: list[tuple[Any, type[Exception], str]] = [
            (client.pause(no_one), TypeError, "5 is of type int: give what `subscribe` returned"),
            (client.resume(text), TypeError, "'s' is of type str: give what"),
            (client.readers.place("\ud800"), LocalProtocolError, "of the command reader cannot be"),
            (client.queue_status("\ud800"), LocalProtocolError, "surrogates not allowed"),
            (client.subscribe("t", queue_bytes_max=0), LocalProtocolError, "max is 0: give the"),
            (
                client.sow_and_subscribe("t", queue_bytes_max=-1),
                LocalProtocolError,
                "queue_bytes_max is -1: give the bytes that may wait",
            ),
            (
                client.subscribe("t", durable="d", durable_expires_s=-1),
                LocalProtocolError,
                "durable subscription 'd': durable_expires_s is -1: give whole seconds, from 1 to",
            ),
        ]
        for call, error, words in refused:
            with pytest.raises(error, match=words):
                await call
        with pytest.raises(LocalProtocolError, match="queue_bytes_max is 0"):
            client.sow("t", queue_bytes_max=0)
        with pytest.raises(TypeError, match="instance is of type int: give an instance's name"):
            client.trust(no_one)
        assert not client.machine.subscriptions
    assert not server.session.commands("subscribe") and not server.session.commands("reader")
    await server.stop()


@run
async def test_a_second_task_that_reads_a_subscription_is_told_and_the_first_goes_on() -> None:
    server = await FakeServer().start()
    server.auto_ack = True
    async with client_of(server) as client:
        subscription = await client.subscribe("t")
        first = asyncio.ensure_future(subscription.next_batch())
        await asyncio.sleep(0)
        with pytest.raises(LocalProtocolError, match="another task waits for messages of subscr"):
            await subscription.next_batch()
        with pytest.raises(
            LocalProtocolError, match=f"{subscription.id} on 't': let one task read"
        ):
            await Merged(subscription).next_batch()
        await client.publish("t", b"x")
        await client.flush()
        [(_, payload)] = [frame for frame in server.session.frames if frame[0]["c"] == "pb"]
        server.session.deliver(subscription.id, payload)
        batch = await first
        assert batch is not None and batch.count == 1
    await server.stop()
