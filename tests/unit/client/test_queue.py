"""Queues through the asyncio client, against a scripted server on real sockets."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import msgpack
import msgspec
import pytest
from support.fake_server import FakeServer, Session, records
from unit.client.test_client import client_of, run

from raylay.services.client import UnacknowledgedMessages, runtime
from raylay.services.client.queues import queue, queue_consumer
from raylay.services.client.queues.queue_consumer import AckMode, QueueConsumer
from raylay.services.errors import (
    BodyTypeError,
    CommandFailed,
    ConnectionLost,
    LocalProtocolError,
)
from raylay.services.queues.records import Acknowledgment, read_acknowledgment
from raylay.storage.stores import LmdbPublishStore

ACK = 3


def said(session: Session) -> list[Acknowledgment]:
    """What was acknowledged, record by record."""
    pairs = zip(session.does, session.bodies, strict=True)
    return [read_acknowledgment(body) for command, body in pairs if command == ACK]


def acked(session: Session, how: str = "ack") -> set[tuple[int, int]]:
    """The messages of that."""
    return {
        (publisher, sequence)
        for each in said(session)
        if each.how == how
        for publisher, ranges in each.keys.items()
        for first, last in ranges
        for sequence in range(first, last + 1)
    }


def deliver(session: Session, *sequences: int) -> None:
    name = session.commands("subscribe")[-1]["sub"]
    session.deliver(name, records(7, sequences, topic="orders"), q=1, lp=30_000)


async def take(work: QueueConsumer, messages: int) -> list[bytes]:
    return [(await anext(work)).body for _ in range(messages)]


@pytest.mark.covers("Queues", "an ordinary subscription to a queue that acknowledges nothing")
@pytest.mark.parametrize("lease_ms", [1, None])
@run
async def test_an_ordinary_subscription_that_acknowledges_nothing_is_told_once(
    lease_ms: int | None, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "UNACKNOWLEDGED_S", 0.002)
    server = await FakeServer().start()
    events: list[Any] = []
    is_told = asyncio.Event()

    def note(event: Any) -> None:
        if isinstance(event, UnacknowledgedMessages):
            events.append(event)
            is_told.set()

    async with client_of(server, on_event=note) as client:
        work = await client.subscribe("work")
        lease = {} if lease_ms is None else {"lp": lease_ms}
        server.session.deliver(work.id, records(7, [1], topic="orders"), q=1, **lease)
        await anext(work)
        async with asyncio.timeout(60):
            await is_told.wait()
        server.session.deliver(work.id, records(7, [1], topic="orders"), q=1, **lease)
        await anext(work)
        assert not client.runtime.ack_watches
    assert events == [UnacknowledgedMessages("work", 0.002 if lease_ms is None else 0.001)]
    (line,) = (each.message for each in caplog.records if "acknowledges nothing" in each.message)
    assert "Consume the queue with client.queue('work')" in line
    await server.stop()


@pytest.mark.covers("Queues", "an ordinary subscription to a queue that acknowledges nothing")
@run
async def test_who_acknowledges_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    server = await FakeServer().start()
    async with client_of(server) as client:
        async with client.queue("work") as consumer:
            deliver(server.session, 1)
            await anext(consumer)
            assert not client.runtime.ack_watches, "a consumer acknowledges"
        work = await client.subscribe("work")
        client.acknowledge("work", ["7|1|"])
        server.session.deliver(work.id, records(7, [2], topic="orders"), q=1, lp=1)
        await anext(work)
        async with asyncio.timeout(60):
            while client.runtime.ack_watches:
                await asyncio.sleep(0.001)
        late = await client.subscribe("late")
        server.session.deliver(late.id, records(7, [3], topic="orders"), q=1, lp=3_600_000)
        await anext(late)
        (watch,) = client.runtime.ack_watches.values()
        await server.wait(lambda: len(server.session.published) >= 2)
        server.session.ack(server.session.published[-1])
    assert watch.cancelled(), "a client that is closed looks no more"
    assert not [each for each in caplog.records if "acknowledges nothing" in each.message]
    await server.stop()


@pytest.mark.covers("Queues", "the client: acknowledgments go together and again until")
@run
async def test_a_message_is_acknowledged_when_the_next_one_is_asked_for() -> None:
    server = await FakeServer().start()
    async with client_of(server) as client:
        async with client.queue("work", backlog=8, filter="/a = 1") as work:
            (asked,) = server.session.commands("subscribe")
            assert (asked["t"], asked["o"]) == ("work", {"max_backlog": 8, "filter": "/a = 1"})
            deliver(server.session, 1, 2, 3)
            message = await anext(work)
            assert (message.body, message.topic, message.queue) == (b"1", "orders", "work")
            assert message.bookmark == "7|1|" and work.queued_messages == 2
            await anext(work)
            await server.wait(lambda: acked(server.session) == {(7, 1)})
            await anext(work)
        await server.wait(lambda: acked(server.session) == {(7, 1), (7, 2), (7, 3)})
        await server.wait(lambda: server.session.commands("unsubscribe"))
        server.session.ack(server.session.published[-1])
    await server.stop()


@pytest.mark.covers("Queues", "the client: acknowledgments go together and again until")
@run
async def test_acknowledgments_go_together_and_at_once_where_there_is_nothing_else_to_do() -> None:
    server = await FakeServer().start()
    async with client_of(server) as client:
        async with client.queue("work", backlog=1000, batch=400) as work:
            deliver(server.session, *range(1, 1001))
            for n in range(1, 1001):
                assert (await anext(work)).body == b"%d" % n
            waiting = asyncio.ensure_future(anext(work))
            await server.wait(lambda: len(acked(server.session)) == 1000)
            found = said(server.session)
            assert len(found) < 30 and all(len(each.keys[7]) == 1 for each in found)
            waiting.cancel()
        server.session.ack(server.session.published[-1])
    await server.stop()


@run
async def test_a_part_of_the_backlog_is_acknowledged_while_the_rest_is_processed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = await FakeServer().start()
    server.auto_ack = True
    async with client_of(server) as client, client.queue("work", backlog=10) as work:
        deliver(server.session, *range(1, 11))
        await anext(work)
        connection = client.runtime.connection
        assert connection is not None
        written: list[bytes] = []
        write = connection.write

        def note(data: bytes) -> None:
            written.append(data)
            write(data)

        monkeypatch.setattr(connection, "write", note)
        # None of these lets the loop do anything else.
        await take(work, 4)
        assert not written
        await take(work, 1)
        assert len(written) == 1
        await take(work, 4)
        assert len(written) == 1
    await server.stop()


@run
async def test_an_acknowledgment_waits_for_no_answer_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runtime, "GATHERING_S_MAX", 60.0)
    server = await FakeServer().start()
    async with client_of(server) as client, client.queue("work", backlog=2) as work:
        deliver(server.session, *range(1, 13))
        for _ in range(12):
            await anext(work)
            # One by one, as the handling of messages does that awaits something.
            await asyncio.sleep(0)
        await server.wait(lambda: len(acked(server.session)) == 11)
        assert len(said(server.session)) == 11
        server.auto_ack = True
        server.session.ack(server.session.published[-1])
    await server.stop()


@run
async def test_a_flush_says_acknowledgments_that_wait_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queue, "ACK_INTERVAL_S", 60.0)
    server = await FakeServer().start()
    server.auto_ack = True
    async with client_of(server) as client, client.queue("work", backlog=8) as work:
        deliver(server.session, 1, 2, 3)
        await take(work, 3)
        assert not said(server.session)
        await client.flush()
        assert [each.keys for each in said(server.session)] == [{7: [(1, 2)]}]
    await server.stop()


@run
@pytest.mark.parametrize("ack", ["auto", "manual"])
@pytest.mark.parametrize("by", ["messages", "batches"])
async def test_before_a_message_whose_last_try_it_is_what_is_done_is_acknowledged(
    by: str, ack: str
) -> None:
    """Each time, because the process may end in any handler. Otherwise they go together."""
    server = await FakeServer().start()
    server.auto_ack = True

    def sends(*sequences: int, **more: Any) -> None:
        name = server.session.commands("subscribe")[-1]["sub"]
        payload = records(7, sequences, topic="orders")
        server.session.deliver(name, payload, q=1, lp=30_000, **more)

    async with client_of(server) as client:
        outbox = client.runtime.machine.outbox
        async with client.queue("work", backlog=40, ack=ack) as work:
            sends(1, 2, 3)
            sends(4, 5, 6, last=True)
            sends(7, 8, 9)
            while work.queued_messages < 9:
                await asyncio.sleep(0)
            published: list[int] = []
            for _ in range(3):
                before = outbox.next_sequence
                for _ in range(3 if by == "messages" else 1):
                    given = await (anext(work) if by == "messages" else work.next_batch())
                    assert given is not None
                    if ack == "manual":
                        given.acknowledge()
                published.append(outbox.next_sequence - before)
            assert published == ([0, 3, 1] if by == "messages" else [0, 1, 1])
    await server.stop()


@pytest.mark.covers("Queues", "the client: acknowledgments go together and again until")
@run
async def test_what_an_exception_leaves_is_given_back() -> None:
    server = await FakeServer().start()
    async with client_of(server) as client:
        with pytest.raises(ZeroDivisionError):
            async with client.queue("work", backlog=4) as work:
                deliver(server.session, 1, 2)
                await take(work, 2)
                raise ZeroDivisionError
        await server.wait(lambda: partings(server.session) == [(True, {7: [2, 2]})])
        assert not server.session.commands("queue_cancel")
        await server.wait(lambda: acked(server.session) == {(7, 1)})
        server.session.ack(server.session.published[-1])
    await server.stop()


def clock(monkeypatch: pytest.MonkeyPatch, now_s: Callable[[], float]) -> None:
    """Gives consumers a steady clock of their own; the loop keeps its."""
    made = SimpleNamespace(monotonic=now_s, time_ns=time.time_ns)
    monkeypatch.setattr(queue, "time", made)
    monkeypatch.setattr(queue_consumer, "time", made)


def cancels(session: Session, *, unseen: bool) -> list[Any]:
    """Keys of what was given back."""
    return [
        msgpack.unpackb(body, strict_map_key=False)
        for header, body in session.frames
        if header["c"] == "queue_cancel" and bool(header.get("unseen")) is unseen
    ]


def partings(session: Session) -> list[tuple[bool, Any]]:
    """Returns, for each consumer that left, whether it gave back the messages it had begun, and
    those messages."""
    return [
        (bool(header.get("cancel")), msgpack.unpackb(body, strict_map_key=False))
        for header, body in session.frames
        if header["c"] == "unsubscribe"
    ]


@run
async def test_a_consumer_that_leaves_says_what_it_was_given_and_has_not_settled() -> None:
    """One frame says both: a consumer that gave back before it left would be served again."""
    server = await FakeServer().start()
    server.auto_ack = True
    async with client_of(server) as client:
        async with client.queue("work", backlog=2, ack="manual") as work:
            for first in range(1, 20, 3):
                deliver(server.session, first, first + 1, first + 2)
                for number in range(first, first + 3):
                    message = await anext(work)
                    if number != 2:
                        message.acknowledge()
            deliver(server.session, 22, 23)
            await anext(work)
            deliver(server.session, 24, 25)
            while work.queued_messages < 3:
                await asyncio.sleep(0)
            assert len(work._given) <= 7, "settled ones are forgotten"
        await server.wait(lambda: partings(server.session) == [(False, {7: [2, 2, 22, 22]})])
        assert not server.session.commands("queue_cancel")
        async with client.queue("work", backlog=9) as work:
            deliver(server.session, 31, 32, 33)
            await take(work, 2)
        await server.wait(lambda: partings(server.session)[1:] == [(False, {})])
        assert (7, 32) in acked(server.session)
    await server.stop()


@run
@pytest.mark.parametrize("by_hand", [True, False])
async def test_a_batch_that_failed_counts_but_for_what_was_said_of_its_messages(
    by_hand: bool,
) -> None:
    server = await FakeServer().start()
    server.auto_ack = True
    ack = "manual" if by_hand else "auto"
    async with client_of(server) as client:
        for says in (True, False):
            with pytest.raises(RuntimeError):
                async with client.queue("work", backlog=6, ack=ack) as work:
                    deliver(server.session, 1, 2, 3, 4)
                    async for batch in work.batches():
                        assert len(batch) == 3
                        if says:
                            next(iter(batch)).acknowledge()
                        raise RuntimeError
        wanted = [(not by_hand, {7: [2, 3]}), (not by_hand, {7: [1, 3]})]
        await server.wait(lambda: partings(server.session) == wanted)
        assert acked(server.session) == {(7, 1)}
        assert not server.session.commands("queue_cancel")
    await server.stop()


@run
async def test_a_message_whose_lease_is_nearly_over_is_given_back_and_not_handed_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = 1_000.0
    clock(monkeypatch, lambda: now_s)
    server = await FakeServer().start()
    server.auto_ack = True
    async with (
        asyncio.timeout(60),
        client_of(server) as client,
        client.queue("work", backlog=9) as work,
    ):
        deliver(server.session, 1, 2, 3)
        assert await take(work, 1) == [b"1"]
        now_s += 26.9
        assert await take(work, 1) == [b"2"]
        now_s += 0.2
        await asyncio.sleep(0.2)
        deliver(server.session, 4)
        assert await take(work, 1) == [b"4"]
        await server.wait(lambda: cancels(server.session, unseen=True) == [{7: [3, 3]}])
        assert work.returned_messages == 1
        await server.wait(lambda: acked(server.session) == {(7, 1), (7, 2)})
    await server.stop()


@run
async def test_a_message_without_a_lease_is_never_overdue() -> None:
    server = await FakeServer().start()
    server.auto_ack = True
    async with (
        asyncio.timeout(60),
        client_of(server) as client,
        client.queue("work", backlog=9) as work,
    ):
        name = server.session.commands("subscribe")[-1]["sub"]
        server.session.deliver(name, records(7, (1, 2), topic="orders"), q=1)
        assert await take(work, 2) == [b"1", b"2"]
        assert work.returned_messages == 0
    await server.stop()


@run
async def test_what_waited_in_the_socket_while_the_loop_was_blocked_has_aged_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = 1_000.0
    clock(monkeypatch, lambda: now_s)
    server = await FakeServer().start()
    server.auto_ack = True
    async with (
        asyncio.timeout(60),
        client_of(server) as client,
        client.queue("work", backlog=9) as work,
    ):
        assert client._queues._turn_timer is not None
        client._queues._turn_timer.cancel()  # as if the loop stood still
        now_s += 40
        deliver(server.session, 1)
        async with asyncio.timeout(60):
            task = asyncio.ensure_future(anext(work))
            await server.wait(lambda: cancels(server.session, unseen=True) == [{7: [1, 1]}])
            assert not task.done()
            task.cancel()
    await server.stop()


@run
async def test_by_hand_each_message_says_what_became_of_it_once() -> None:
    server = await FakeServer().start()
    async with client_of(server) as client:
        async with client.queue("work", backlog=4, ack="manual") as work:
            deliver(server.session, 1, 2, 3, 4)
            done, back, bad, kept = [await anext(work) for _ in range(4)]
            done.acknowledge()
            done.cancel()
            back.cancel()
            bad.expire()
            assert done.is_settled and not kept.is_settled
            await server.wait(lambda: acked(server.session, "expire") == {(7, 3)})
        assert acked(server.session) == {(7, 1)}
        (cancel,) = [body for h, body in server.session.frames if h["c"] == "queue_cancel"]
        assert msgpack.unpackb(cancel, strict_map_key=False) == {7: [2, 2]}
        server.session.ack(server.session.published[-1])
    await server.stop()


@pytest.mark.covers("Queues", "the client: acknowledgments go together and again until")
@run
async def test_after_a_failover_acknowledgments_are_sent_again_and_what_waited_is_dropped() -> None:
    first, second = await FakeServer("A", B=True).start(), await FakeServer("B", A=True).start()
    async with client_of(first, second) as client:
        async with client.queue("work", backlog=8) as work:
            deliver(first.session, 1, 2, 3)
            await take(work, 2)
            await first.wait(lambda: acked(first.session) == {(7, 1)})
            await first.stop()
            await second.wait(lambda: second.sessions and second.session.commands("subscribe"))
            await second.wait(lambda: acked(second.session) == {(7, 1)})
            deliver(second.session, 3)
            assert await take(work, 1) == [b"3"], "once: what waited here was another session's"
            await second.wait(lambda: acked(second.session) == {(7, 1), (7, 2)})
        await second.wait(lambda: acked(second.session) == {(7, 1), (7, 2), (7, 3)})
        second.session.ack(second.session.published[-1])
    await second.stop()


@run
async def test_a_client_that_is_started_again_says_what_is_in_its_store(tmp_path: Path) -> None:
    """What the first life acknowledged, and nobody has said to be durable. What it had taken and
    not acknowledged is not in it: another consumer gets that."""
    server = await FakeServer().start()
    store = LmdbPublishStore(tmp_path / "publishes")
    client = client_of(server, publish_store=store)
    await client.connect()
    work = await client.queue("work", backlog=8).__aenter__()  # its end is never come to
    deliver(server.session, 1, 2, 3, 4)
    await take(work, 3)
    await client.publish("orders", b"between")
    await server.wait(lambda: acked(server.session) == {(7, 1), (7, 2)})
    server.session.drop()  # with the process, as far as the store knows
    await client.close(flush=False)
    store.close()
    first, published = server.session, set(server.session.published)

    store = LmdbPublishStore(tmp_path / "publishes")
    async with client_of(server, publish_store=store) as client:
        await server.wait(lambda: server.session is not first and acked(server.session))
        await server.wait(lambda: set(server.session.published) == published)
        assert acked(server.session) == {(7, 1), (7, 2)} and b"between" in server.session.bodies
        server.session.ack(max(published))
        await client.flush()
    assert store.messages == 0
    store.close()
    await server.stop()


@run
async def test_what_cannot_be_kept_is_said_when_there_is_room() -> None:
    from raylay.storage.stores import MemoryPublishStore

    server = await FakeServer().start()
    store = MemoryPublishStore(messages_max=1)
    async with client_of(server, publish_store=store) as client:
        async with client.queue("work", backlog=2) as work:
            deliver(server.session, 1, 2, 3)
            await take(work, 3)
            await server.wait(lambda: acked(server.session) == {(7, 1)})
            server.auto_ack = True
            server.session.ack(server.session.published[-1])
            await server.wait(lambda: {(7, 1), (7, 2)} <= acked(server.session))
        await server.wait(lambda: len(acked(server.session)) == 3)
    await server.stop()


@pytest.mark.covers("Queues", "the client: acknowledgments go together and again until")
@run
async def test_messages_are_acknowledged_by_bookmark_whoever_holds_them() -> None:
    server = await FakeServer().start()
    server.auto_ack = True
    async with client_of(server) as client:
        client.acknowledge("work", ["7|2|", "9|1|", "7|1|"])
        client.acknowledge("work", ["7|5|"], how="expire")
        await client.flush()
        assert said(server.session) == [
            Acknowledgment({7: [(1, 2)], 9: [(1, 1)]}),
            Acknowledgment({7: [(5, 5)]}, "expire"),
        ]
        for wrong in ([], ["0"], ["20260102T000000Z"]):
            with pytest.raises(LocalProtocolError, match="give a list of bookmarks of the form"):
                client.acknowledge("work", wrong)
    await server.stop()


class Answering(FakeServer):
    """Answers the commands of queues as it is told to."""

    answers: dict[str, Any]
    body = b""

    def answer(self, session: Session, header: dict[str, Any], body: bytes) -> None:
        super().answer(session, header, body)
        if header["c"] in ("queue_ack", "queue_status") and self.answers:
            front = {"c": "ack", "a": "processed", "cid": header["cid"]}
            session.send(front | self.answers, self.body)


@pytest.mark.covers("Queues", "the client: acknowledgments go together and again until")
@run
async def test_messages_are_acknowledged_by_filter_and_counted() -> None:
    server = Answering()
    await server.start()
    server.answers = {"status": "success", "n": 12}
    async with client_of(server) as client:
        assert await client.acknowledge_matching("work", "/a = 1", how="expire") == 12
        (asked,) = server.session.commands("queue_ack")
        assert {key: asked[key] for key in ("t", "mt", "filter", "how")} == {
            "t": "work",
            "mt": "json",
            "filter": "/a = 1",
            "how": "expire",
        }
        server.answers = {"status": "failure", "reason": "bad_filter", "text": "column 4: no"}
        with pytest.raises(CommandFailed, match="column 4: no"):
            await client.acknowledge_matching("work", "/a =")
        server.answers, server.body = {"status": "success"}, msgpack.packb({"depth": 3})
        assert await client.queue_status("work") == {"depth": 3}
    await server.stop()


@run
async def test_a_command_that_nobody_answers_ends_with_the_connection() -> None:
    server = Answering()
    await server.start()
    server.answers = {}
    async with client_of(server) as client:
        asking = asyncio.ensure_future(client.queue_status("work"))
        await server.wait(lambda: server.session.commands("queue_status"))
        server.session.drop()
        with pytest.raises(ConnectionLost, match="it may have been done or not; ask again"):
            await asking
    await server.stop()


@run
async def test_what_cannot_be_is_refused_before_anything_is_sent() -> None:
    server = await FakeServer().start()
    async with client_of(server) as client:
        for options in ({"backlog": 0}, {"batch": 0}, {"ack": "never"}):
            with pytest.raises(LocalProtocolError):
                client.queue("work", **options)  # type: ignore[arg-type]
        work = client.queue("work")
        with pytest.raises(LocalProtocolError, match="enter the consumer of work first"):
            await anext(work)
        server.subscribe_refusal = "no_queue"
        with pytest.raises(CommandFailed) as refused:
            await work.__aenter__()
        assert refused.value.reason == "no_queue"
        assert not server.session.commands("queue_ack")
    await server.stop()


class Order(msgspec.Struct):
    id: int


@run
async def test_a_message_that_is_not_of_the_type_is_expired_and_the_others_go_on() -> None:
    server = await FakeServer().start()
    server.auto_ack = True
    async with client_of(server) as client:
        async with client.queue("work", backlog=8, type=Order) as work:
            name = server.session.commands("subscribe")[-1]["sub"]
            for number, body in enumerate((b'{"id": 1}', b'{"id": "x"}', b'{"id": 3}'), 1):
                server.session.deliver(name, records(7, [number], body), q=1, lp=30_000)
            found: list[int] = []
            async for message in work:
                try:
                    found.append(message.json().id)
                except BodyTypeError as error:
                    assert (error.path, error.bookmark) == ("$.id", "7|2|")
                    message.expire()
                if message.sequence == 3:
                    break
        assert found == [1, 3]
        await server.wait(lambda: acked(server.session) == {(7, 1), (7, 3)})
        assert acked(server.session, "expire") == {(7, 2)}
    await server.stop()


@run
async def test_a_type_that_is_none_is_refused_where_it_is_given() -> None:
    server = await FakeServer().start()
    async with client_of(server) as client:
        with pytest.raises(LocalProtocolError, match="queue 'work'"):
            client.queue("work", type=object)
        with pytest.raises(LocalProtocolError, match="subscription of 'orders'"):
            await client.subscribe("orders", type=object)
        assert not server.session.commands("subscribe")
    await server.stop()


@run
async def test_batches_are_at_most_half_the_backlog_and_acknowledged_in_turn() -> None:
    server = await FakeServer().start()
    server.auto_ack = True
    async with client_of(server) as client, client.queue("work", backlog=8, type=Order) as work:
        name = server.session.commands("subscribe")[-1]["sub"]
        payload = b"".join(records(7, [n], b'{"id": %d}' % n) for n in range(1, 7))
        server.session.deliver(name, payload, q=1, lp=30_000)
        batch = await work.next_batch()
        assert batch is not None and len(batch) == 4
        assert [each.id for each in batch.json()] == [1, 2, 3, 4]
        assert batch.bodies()[0] == b'{"id": 1}' and work.queued_messages == 2
        batch = await work.next_batch()
        assert batch is not None and [each.id for each in batch.json()] == [5, 6]
        await server.wait(lambda: acked(server.session) == {(7, n) for n in range(1, 5)})
    await server.wait(lambda: len(acked(server.session)) == 6)
    assert [len(each.keys[7]) for each in said(server.session)] == [1, 1]
    await server.stop()


@run
async def test_a_message_of_a_batch_is_settled_by_itself() -> None:
    server = await FakeServer().start()
    server.auto_ack = True
    async with client_of(server) as client:
        async with client.queue("work", backlog=8, ack="manual") as work:
            deliver(server.session, 1, 2, 3)
            batch = await work.next_batch()
            assert batch is not None
            messages = list(batch)
            messages[1].expire()
            batch.acknowledge()
            batch.cancel()
            assert messages[0].is_settled and list(batch) == messages
            deliver(server.session, 4, 5)
            batch = await work.next_batch()
            assert batch is not None
            batch.cancel()
            assert work.queued_messages == 0
        await server.wait(lambda: acked(server.session) == {(7, 1), (7, 3)})
        assert acked(server.session, "expire") == {(7, 2)}
        await server.wait(lambda: server.session.commands("queue_cancel"))
    await server.stop()


@run
async def test_batches_that_were_not_handed_out_are_given_back() -> None:
    server = await FakeServer().start()
    server.auto_ack = True
    async with client_of(server) as client:
        with pytest.raises(RuntimeError):
            async with client.queue("work", backlog=4) as work:
                deliver(server.session, 1, 2, 3, 4)
                async for batch in work.batches():
                    assert len(batch) == 2
                    raise RuntimeError
        await server.wait(lambda: partings(server.session) == [(True, {7: [1, 2]})])
        assert not acked(server.session)
    await server.stop()


@run
async def test_overdue_batches_are_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    server = await FakeServer().start()
    server.auto_ack = True
    async with client_of(server) as client, client.queue("work", backlog=4) as work:
        deliver(server.session, 1, 2, 3, 4)
        assert await work.next_batch() is not None
        monkeypatch.setattr(
            queue_consumer, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + 60)
        )
        waiting = asyncio.ensure_future(work.next_batch())
        await server.wait(lambda: server.session.commands("queue_cancel"))
        assert work.returned_messages == 2
        waiting.cancel()
    await server.stop()


def deliver_for(session: Session, lease_s: float, *sequences: int) -> None:
    """Delivers messages with a lease of their own."""
    name = session.commands("subscribe")[-1]["sub"]
    lease_ms = round(lease_s * 1000)
    session.deliver(name, records(7, sequences, topic="orders"), q=1, lp=lease_ms)


@pytest.mark.covers("Queues", "what no handler was given goes back while a handler waits")
@pytest.mark.parametrize("ack", ["auto", "manual"])
@pytest.mark.parametrize("by_batches", [False, True])
@run
async def test_while_a_handler_waits_what_it_was_not_given_goes_back_by_a_timer(
    by_batches: bool, ack: AckMode
) -> None:
    """Also deliveries that nobody has asked for, and those that are not due stay."""
    server = await FakeServer().start()
    server.auto_ack = True
    async with (
        asyncio.timeout(60),
        client_of(server) as client,
        client.queue("work", backlog=4, ack=ack) as work,
    ):
        deliver_for(server.session, 0.2, 1, 2, 3)
        deliver_for(server.session, 0.2, 4)
        deliver_for(server.session, 600, 5)
        in_hand = await (work.next_batch() if by_batches else anext(work))
        assert in_hand is not None and not in_hand.is_settled
        await server.wait(lambda: cancels(server.session, unseen=True))
        back = [3, 4] if by_batches else [2, 4]
        assert cancels(server.session, unseen=True) == [{7: back}]
        assert work.returned_messages == back[1] - back[0] + 1
        assert work.queued_messages == 1
        while not in_hand.is_settled:
            await asyncio.sleep(0.01)
        # Its acknowledgment counts all the same.
        in_hand.acknowledge()
        assert await take(work, 1) == [b"5"]
        held = {(7, 1), (7, 2)} if by_batches else {(7, 1)}
        await server.wait(lambda: held <= acked(server.session))
    await server.stop()


@run
async def test_messages_of_a_lost_connection_or_of_who_has_left_are_not_leased() -> None:
    server = await FakeServer().start()
    server.auto_ack = True
    async with client_of(server) as client:
        async with client.queue("work", backlog=4, ack="manual") as work:
            deliver(server.session, 1, 2)
            lost = await anext(work)
            assert not lost.is_settled
            work.disconnected()
            assert lost.is_settled
            deliver(server.session, 3)
            message = await anext(work)
            assert not message.is_settled
        assert message.is_settled
    await server.stop()


@run
async def test_single_messages_and_batches_are_not_mixed_within_a_delivery() -> None:
    server = await FakeServer().start()
    server.auto_ack = True
    async with client_of(server) as client, client.queue("work", backlog=4) as work:
        deliver(server.session, 1, 2, 3, 4)
        await anext(work)
        with pytest.raises(LocalProtocolError, match=r"3 messages .* one by one"):
            await work.next_batch()
        await take(work, 3)
        deliver(server.session, 5, 6, 7, 8)
        assert await work.next_batch() is not None
        # The rest of a delivery that was begun by batches can be read one by one.
        assert await take(work, 2) == [b"7", b"8"]
    await server.stop()


@run
async def test_a_lost_connection_drops_batches_that_were_not_handed_out() -> None:
    server = await FakeServer().start()
    server.auto_ack = True
    async with client_of(server) as client, client.queue("work", backlog=4) as work:
        deliver(server.session, 1, 2, 3, 4)
        assert await work.next_batch() is not None
        assert work.queued_messages == 2
        work.disconnected()
        assert work.queued_messages == 0
    await server.stop()


def counted_calls(work: Callable[[], None]) -> int:
    """The calls of functions that some work takes, this one's and built-in ones included."""
    count = 0

    def note(frame: FrameType, event: str, arg: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize(("by_batch", "calls_max"), [(False, 7.5), (True, 1.5)])
@run
async def test_a_message_takes_so_many_calls_and_fewer_by_batch(
    by_batch: bool, calls_max: float
) -> None:
    server = await FakeServer().start()
    server.auto_ack = True
    async with client_of(server) as client, client.queue("work", backlog=400) as work:
        deliver(server.session, *range(1, 401))
        # The delivery is here, and nothing of what follows waits for the loop.
        assert await anext(work) is not None
        rest = range(398)
        if by_batch:
            await take(work, 399)
            deliver(server.session, *range(401, 801))
            assert await work.next_batch() is not None
            rest = range(1)

        def read() -> None:
            for _ in rest:
                try:
                    (work.next_batch() if by_batch else work.__anext__()).send(None)
                except StopIteration:
                    pass

        found = counted_calls(read) / (200 if by_batch else len(rest))
        assert found <= calls_max, found
    await server.stop()
