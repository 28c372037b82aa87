"""SOW topics through the asyncio client, against a scripted server on real sockets."""

from __future__ import annotations

import asyncio
from typing import Any

import msgpack
import pytest
from support.fake_server import FakeServer, records
from support.fake_stores import DictBookmarkStore
from unit.client.test_client import client_of, run

from raylay.services.client import Client, Subscription
from raylay.services.errors import (
    BookmarkNotFound,
    CommandFailed,
    ConnectionLost,
    LocalProtocolError,
)
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.messages.records import Command

pytestmark = [
    pytest.mark.covers("SOW", "a client asks for rows"),
    pytest.mark.covers("SOW", "deltas and deletes of a client are kept and sent again"),
]


def row(sequence: int, key: bytes = b"", body: bytes = b"") -> bytes:
    return records(7, [sequence], body, key=key or b"k%d" % sequence)


async def pair() -> tuple[FakeServer, FakeServer]:
    return await FakeServer("A", B=True).start(), await FakeServer("B", A=True).start()


async def asked(server: FakeServer, command: str = "sow") -> str:
    """The id of the query that came last, once there is one."""
    await server.wait(lambda: server.sessions and server.session.commands(command))
    return str(server.session.commands(command)[-1]["sub"])


async def taken(subscription: Subscription, messages: int) -> list[tuple[str, str, bytes]]:
    """(kind, reason, body) of the next messages."""
    found = []
    while len(found) < messages:
        message = await anext(subscription)
        found.append((message.kind, message.reason, message.body))
    return found


@run
async def test_deltas_and_deletes_are_kept_and_sent_again_like_publishes() -> None:
    first, second = await FakeServer("A", B=True).start(), await FakeServer("B", A=True).start()
    async with client_of(first, second) as client:
        await client.publish("t", b'{"id": 1, "a": 1}')
        await client.delta_publish("t", b'{"id": 1, "b": 2}', key=b"k")
        last = await client.sow_delete("t", filter="/id = 1")
        await first.wait(lambda: len(first.session.published) == 3)
        await first.stop()
        await second.wait(lambda: second.sessions and len(second.session.published) == 3)
        session = second.session
        assert session.published == [last - 2, last - 1, last]
        assert session.does == [Command.PUBLISH, 6, Command.DELETE]
        assert session.bodies[1] == b'{"id": 1, "b": 2}'
        assert msgpack.unpackb(session.bodies[2]) == {"filter": "/id = 1"}
        session.refuse(last - 1, "bad_key", "the key field /id is missing")
        session.ack(last)
        with pytest.raises(CommandFailed, match="the key field /id is missing"):
            await client.flush()
    await second.stop()


@run
async def test_a_delete_of_nothing_named_is_refused_and_nothing_is_sent() -> None:
    server = await FakeServer().start()
    async with client_of(server) as client:
        before = client.last_sequence
        with pytest.raises(LocalProtocolError, match="one of filter, keys and data"):
            await client.sow_delete("t")
        assert client.last_sequence == before
    await server.stop()


@run
async def test_what_is_published_behind_a_delivery_is_later_than_it() -> None:
    server = await FakeServer().start()
    async with client_of(server) as client:
        subscription = await client.subscribe("t")
        ahead_us = client.machine.outbox.wall_us + 30_000_000
        payload = records(7, [1, 2], stamp_us=ahead_us)
        server.session.deliver(subscription.id, payload)
        await subscription.next_batch()
        await client.publish("t", b"{}")
        assert client.machine.outbox.stamp_us == ahead_us + 1
        await client.close(flush=False)
    await server.stop()


@run
async def test_a_query_gives_rows_singly_and_all_at_once() -> None:
    server = await FakeServer().start()
    async with client_of(server) as client:
        query = client.sow("t", filter="/a > 1", order_by="/a", top_n=2, select="[-/,+/a]")
        every = asyncio.ensure_future(query.all())
        name = await asked(server)
        header = server.session.commands("sow")[0]
        assert header["a"] == "processed,completed"
        expected = {"filter": "/a > 1", "order_by": "/a", "top_n": 2, "select": "[-/,+/a]"}
        assert header["o"] == {**expected, "batch": 100}
        server.session.send({"c": "group_begin", "sub": name})
        server.session.rows(name, row(1) + row(2))
        server.session.group_end(name, 2, 9)
        assert [(each.kind, each.key) for each in await every] == [("sow", b"k1"), ("sow", b"k2")]
        assert query.matches == 9
        with pytest.raises(LocalProtocolError, match="has begun"):
            await query.all()
        rows = aiter(client.sow("t", keys=[b"k3"]))
        first = asyncio.ensure_future(anext(rows))
        await server.wait(lambda: len(server.session.commands("sow")) == 2)
        server.session.group(await asked(server), row(3))
        assert (await first).sequence == 3
        assert [each.sequence async for each in rows] == []
        assert server.session.commands("sow")[1]["o"]["keys"] == [b"k3"]
        assert not server.session.commands("unsubscribe"), "they ended by themselves"
        assert not client.machine.subscriptions
    await server.stop()


@run
async def test_no_rows_are_not_all_rows() -> None:
    server = await FakeServer().start()
    async with client_of(server) as client:
        found = asyncio.ensure_future(client.sow("t", top_n=0).all())
        await server.wait(lambda: len(server.session.commands("sow")) == 1)
        assert server.session.commands("sow")[0]["o"] == {"top_n": 0, "batch": 100}
        found.cancel()
    await server.stop()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"keys": [b"%032d" % number for number in range(2_000)]}, "give fewer keys"),
        ({"filter": "/a = '\ud800'"}, "no kind that can be sent"),
        ({"top_n": 1 << 70}, "no kind that can be sent"),
    ],
)
def test_what_no_command_can_say_is_refused_at_once(wrong: dict[str, Any], said: str) -> None:
    async def work() -> None:
        server = await FakeServer().start()
        async with client_of(server) as client:
            with pytest.raises(LocalProtocolError, match=said):
                await client.sow("t", timeout_s=1, **wrong).all()
            assert not client.machine.subscriptions
        await server.stop()

    asyncio.run(work())


@run
async def test_a_loop_that_is_left_ends_the_query() -> None:
    server = await FakeServer().start()
    async with client_of(server) as client:

        async def first_row() -> int:
            async for each in client.sow("t", queue_bytes_max=1):
                return each.sequence
            return 0

        found = asyncio.ensure_future(first_row())
        name = await asked(server)
        server.session.send({"c": "group_begin", "sub": name})
        server.session.rows(name, row(1) + row(2))
        server.session.rows(name, row(3))
        assert await found == 1
        await server.wait(lambda: server.session.commands("unsubscribe"))
        assert not client.machine.reading_paused
    await server.stop()


@pytest.mark.parametrize("command", ["sow", "sow_and_subscribe"])
def test_a_refused_query_raises_with_the_reason(command: str) -> None:
    @run
    async def test() -> None:
        server = await FakeServer().start()
        server.subscribe_refusal = "bad_filter"
        async with client_of(server) as client:
            with pytest.raises(CommandFailed) as failed:
                if command == "sow":
                    await client.sow("t").all()
                else:
                    await client.sow_and_subscribe("t")
            assert (failed.value.command, failed.value.reason) == (command, "bad_filter")
            assert not client.machine.subscriptions
        await server.stop()

    test()


@run
async def test_a_query_whose_rows_were_not_handed_out_is_asked_again_elsewhere() -> None:
    first, second = await pair()
    async with client_of(first, second) as client:
        every = asyncio.ensure_future(client.sow("t").all())
        one_by_one = client.sow("t")
        taker = asyncio.ensure_future(one_by_one.next_batch())
        await first.wait(lambda: first.sessions and len(first.session.commands("sow")) == 2)
        first.session.send({"c": "group_begin", "sub": "query-1"})
        first.session.rows("query-1", row(1))
        await first.stop()
        await second.wait(lambda: second.sessions and len(second.session.commands("sow")) == 2)
        second.session.group("query-1", row(2), row(3))
        second.session.group("query-2", row(4))
        assert [each.sequence for each in await every] == [2, 3], "of one moment"
        batch = await taker
        assert batch is not None and [each.sequence for each in batch] == [4]
    await second.stop()


@run
async def test_a_query_whose_rows_were_handed_out_ends_with_its_connection() -> None:
    first, second = await pair()
    async with client_of(first, second) as client:
        query = client.sow("t")
        taker = asyncio.ensure_future(query.next_batch())
        name = await asked(first)
        first.session.send({"c": "group_begin", "sub": name})
        first.session.rows(name, row(1))
        await taker
        first.session.rows(name, row(2))
        await first.stop()
        with pytest.raises(ConnectionLost, match=r"in the middle of the query of 't'.*as all\(\)"):
            while await query.next_batch() is not None:
                pass
        await second.wait(lambda: second.sessions and second.session.logged_on)
        assert not second.session.commands("sow")
    await second.stop()


async def begun(client: Client, server: FakeServer, *rows: bytes, oof: bool = True) -> Subscription:
    """A sow_and_subscribe with these rows."""
    subscription = await client.sow_and_subscribe("t", filter="/a > 1", oof=oof)
    server.session.group(subscription.id, *rows)
    await subscription.group_end.wait()
    return subscription


@run
async def test_rows_then_changes_then_what_leaves() -> None:
    server = await FakeServer().start()
    async with client_of(server) as client:
        subscription = await begun(client, server, row(1, b"a"), row(2, b"b"))
        assert server.session.commands("sow_and_subscribe")[0]["o"]["oof"] is True
        server.session.deliver(subscription.id, row(3, b"a"))
        server.session.out_of_focus(subscription.id, "match", row(4, b"b"))
        assert await taken(subscription, 4) == [
            ("sow", "", b"1"),
            ("sow", "", b"2"),
            ("publish", "", b"3"),
            ("oof", "match", b"4"),
        ]
        with pytest.raises(LocalProtocolError, match="give a list of SOW keys"):
            await client.sow_and_subscribe("t", keys=b"abc")  # type: ignore[arg-type]
    await server.stop()


@pytest.mark.covers("SOW", "sow_and_subscribe across failovers")
@pytest.mark.parametrize("oof", [True, False])
def test_after_a_failover_no_row_is_doubled_and_none_is_missing(oof: bool) -> None:
    @run
    async def test() -> None:
        first, second = await pair()
        async with client_of(first, second) as client:
            found = await begun(client, first, row(1, b"a"), row(2, b"b"), row(3, b"c"), oof=oof)
            first.session.deliver(found.id, row(4, b"d"))
            await taken(found, 4)
            await first.stop()
            assert await asked(second, "sow_and_subscribe") == found.id
            # b was changed, c deleted, e is new meanwhile.
            second.session.group(found.id, row(1, b"a"), row(5, b"b"), row(4, b"d"), row(6, b"e"))
            second.session.deliver(found.id, row(7, b"a"))
            rows = [("sow", "", b"5"), ("sow", "", b"6")]
            gone = [("oof", "deleted", b"")] if oof else []
            expected = [*rows, *gone, ("publish", "", b"7")]
            assert await taken(found, len(expected)) == expected
            assert found.suppressed_messages == 2
        await second.stop()

    test()


@run
async def test_another_filter_holds_at_the_next_instance_too() -> None:
    first, second = await pair()
    async with client_of(first, second) as client:
        found = await begun(client, first, row(1, b"a"), row(2, b"b"))
        await found.replace(filter="/a > 2", keys=[b"b", b"c"])
        command = first.session.commands("sow_and_subscribe")[1]
        options = {"filter": "/a > 2", "keys": [b"b", b"c"], "oof": True, "batch": 100}
        assert command["sub"] == found.id and command["o"] == {**options, "replace": True}
        assert not found.group_end.is_set(), "what is newly in focus is on its way"
        first.session.send({"c": "group_begin", "sub": found.id})
        first.session.rows(found.id, row(3, b"c"))
        first.session.out_of_focus(found.id, "match", row(1, b"a"))
        first.session.group_end(found.id, 1, 1)
        await found.group_end.wait()
        assert [each[:2] for each in await taken(found, 4)] == [
            ("sow", ""), ("sow", ""), ("sow", ""), ("oof", "match")
        ]  # fmt: skip
        first.subscribe_refusal = "bad_filter"
        with pytest.raises(CommandFailed, match="refused"):
            await found.replace(filter="/a >", order_by="/a", top_n=5, skip_n=0)
        refused = first.session.commands("sow_and_subscribe")[2]["o"]
        assert (refused["order_by"], refused["top_n"], refused["skip_n"]) == ("/a", 5, 0)
        assert found.group_end.is_set(), "no rows come"
        await first.stop()
        await second.wait(lambda: second.sessions and second.session.commands("sow_and_subscribe"))
        assert second.session.commands("sow_and_subscribe")[0]["o"] == options
        second.session.group(found.id, row(2, b"b"), row(4, b"c"))
        assert await taken(found, 1) == [("sow", "", b"4")]
        found.unsubscribe()
        with pytest.raises(LocalProtocolError, match="has ended"):
            await found.replace()
        with pytest.raises(LocalProtocolError, match="ask a new one"):
            await client.sow("t").replace(filter="/a = 1")
        with pytest.raises(LocalProtocolError, match="list of SOW keys"):
            await found.replace(keys=b"abc")  # type: ignore[arg-type]
    await second.stop()


@run
async def test_an_ordinary_subscription_is_told_what_leaves_too() -> None:
    server = await FakeServer().start()
    async with client_of(server) as client:
        subscription = await client.subscribe("t", filter="/a > 1", oof=True, select="[-/,+/a]")
        expected = {"filter": "/a > 1", "oof": True, "select": "[-/,+/a]"}
        assert server.session.commands("subscribe")[0]["o"] == expected
        server.session.deliver(subscription.id, row(1))
        server.session.out_of_focus(subscription.id, "deleted", row(1))
        assert [kind for kind, *_ in await taken(subscription, 2)] == ["publish", "oof"]
        await client.delta_subscribe("t")
        assert server.session.commands("subscribe")[1]["o"] == {"delta": True}
    await server.stop()


@run
async def test_who_reads_a_row_and_then_writes_is_later_than_it() -> None:
    server = await FakeServer().start()
    async with client_of(server) as client:
        ahead_us = client.machine.outbox.wall_us + 30_000_000
        every = asyncio.ensure_future(client.sow("t").all())
        name = await asked(server)
        late = records(7, [1], key=b"a", stamp_us=ahead_us)
        server.session.group(name, late + records(8, [1], key=b"b"))
        await every
        await client.publish("t", b"{}")
        assert client.machine.outbox.stamp_us == ahead_us + 1
        await client.close(flush=False)
    await server.stop()


def up_to(sequence: int) -> dict[int, bytes]:
    """All that publisher 7 has said so far."""
    found = PublisherRanges()
    if sequence:
        found.add(7, 1, sequence)
    return found.to_wire()


def rows_of_then(
    server: FakeServer, name: str, before: int, *rows: bytes, ends: bool = True
) -> None:
    """Rows, and that the replay begins behind a message."""
    server.session.send({"c": "group_begin", "sub": name})
    for each in rows:
        server.session.rows(name, each)
    if ends:
        end = {"c": "group_end", "sub": name, "n": len(rows), "matches": len(rows)}
        server.session.send({**end, "have": up_to(before)})


THEN = "20260102T030405Z"


@run
async def test_rows_of_then_and_a_replay_that_goes_on_where_it_was() -> None:
    first, second = await pair()
    async with client_of(first, second) as client:
        found = await client.sow_and_subscribe("t", bookmark=THEN, filter="/a > 1", order_by="/a")
        (command,) = first.session.commands("sow_and_subscribe")
        assert (command["bm"], command["a"]) == (THEN, "processed,completed,persisted")
        assert command["o"] == {"filter": "/a > 1", "order_by": "/a", "batch": 100}
        assert not found.group_end.is_set()
        rows_of_then(first, found.id, 4, row(1, b"a"), row(4, b"b"))
        await found.group_end.wait()
        assert not found.caught_up.is_set(), "the replay has not come to its end"
        first.session.deliver(found.id, records(7, [5, 6]))
        first.session.send({"c": "ack", "a": "completed", "sub": found.id, "status": "success"})
        await found.caught_up.wait()
        assert [each[0] for each in await taken(found, 4)] == ["sow", "sow", "publish", "publish"]
        await first.stop()
        assert await asked(second, "subscribe") == found.id
        (again,) = second.session.commands("subscribe")
        assert again["o"] == {"filter": "/a > 1", "have": up_to(6)}
        assert not second.session.commands("sow_and_subscribe")
        second.session.deliver(found.id, records(7, [4, 6, 7]))
        message = await anext(found)
        assert (message.kind, message.sequence, message.bookmark) == ("publish", 7, "7|7|")
        assert found.suppressed_messages == 2
    await second.stop()


@run
async def test_a_group_that_is_lost_is_asked_for_again_and_no_row_comes_twice() -> None:
    first, second = await pair()
    async with client_of(first, second) as client:
        found = await client.sow_and_subscribe("t", bookmark=THEN)
        rows_of_then(first, found.id, 4, row(1, b"a"), row(4, b"b"), ends=False)
        await taken(found, 2)
        await first.stop()
        assert await asked(second, "sow_and_subscribe") == found.id
        (again,) = second.session.commands("sow_and_subscribe")
        assert (again["bm"], again["o"]) == (THEN, {"batch": 100})
        rows_of_then(second, found.id, 3, row(1, b"a"), row(3, b"b"), row(2, b"c"))
        second.session.deliver(found.id, records(7, [4]))
        # b is what it is there: the row that the first one gave comes behind it.
        assert await taken(found, 3) == [
            ("sow", "", b"3"),
            ("sow", "", b"2"),
            ("publish", "", b"4"),
        ]
    await second.stop()


@run
async def test_nothing_before_the_rows_is_something_to_go_on_with() -> None:
    first, second = await pair()
    async with client_of(first, second) as client:
        found = await client.sow_and_subscribe("t", bookmark="0|1|")
        rows_of_then(first, found.id, 0)
        await found.group_end.wait()
        await first.stop()
        await asked(second, "subscribe")
        assert second.session.commands("subscribe")[0]["o"] == {"have": {}}
    await second.stop()


@pytest.mark.covers("SOW", "`sow_and_subscribe` of the past", note="over failovers and restarts")
@run
async def test_with_a_bookmark_store_it_goes_on_without_rows_once_they_were_taken() -> None:
    server, store = await FakeServer().start(), DictBookmarkStore()

    async def life(rows_taken: int, ends: bool) -> None:
        async with client_of(server, bookmark_store=store, bookmark_flush_ms=0) as client:
            found = await client.sow_and_subscribe("t", bookmark=THEN, filter="/a > 1")
            rows_of_then(server, found.id, 4, row(1, b"a"), row(4, b"b"), ends=ends)
            for _ in range(rows_taken):
                await found.next_batch()
            if ends:
                await found.group_end.wait()
            if rows_taken == 2 and ends:
                server.session.deliver(found.id, records(7, [5]))
                await found.next_batch()

    # Rows that were not all taken, of a group that has ended or not, come again.
    for rows_taken, ends in ((0, False), (2, False), (1, True)):
        await life(rows_taken, ends)
        assert not any(store.ranges.values())
    await life(2, True)
    async with client_of(server, bookmark_store=store) as client:
        found = await client.sow_and_subscribe("t", bookmark=THEN, filter="/a > 1")
        assert found.group_end.is_set(), "no rows come"
        (command,) = server.session.commands("subscribe")
        assert command["o"] == {"filter": "/a > 1", "have": up_to(5)}
        assert len(server.session.commands("sow_and_subscribe")) == 0
        other = await client.sow_and_subscribe("t", bookmark=THEN, filter="/a > 2")
        assert other.id != found.id and not other.group_end.is_set()
        plain = await client.subscribe("t", bookmark=THEN, filter="/a > 1")
        assert plain.id not in (found.id, other.id)
    await server.stop()


@run
async def test_it_is_paused_and_resumed_and_holds_its_pause_at_the_next_instance() -> None:
    first, second = await pair()
    async with client_of(first, second) as client:
        found = await client.sow_and_subscribe("t", bookmark=THEN)
        await client.pause(found)
        await first.stop()
        await second.wait(lambda: second.sessions and second.session.commands("subscribe"))
        assert "pause" not in second.session.commands("sow_and_subscribe")[0]["o"]
        pause = second.session.commands("subscribe")[0]
        assert (pause["sub"], pause["o"]) == ([found.id], {"pause": True})
        rows_of_then(second, found.id, 4, row(1, b"a"))
        assert await taken(found, 1) == [("sow", "", b"1")]
        await client.resume(found)
        assert second.session.commands("subscribe")[1]["o"] == {"resume": True}
        with pytest.raises(LocalProtocolError, match="it has a bookmark"):
            await found.replace(filter="/a > 1")
    await second.stop()


@run
async def test_a_refusal_and_the_end_of_the_client_are_told_to_who_waits_for_rows() -> None:
    server = await FakeServer().start()
    async with client_of(server) as client:
        server.subscribe_refusal = "bookmark_not_found"
        with pytest.raises(BookmarkNotFound):
            await client.sow_and_subscribe("t", bookmark="7|9|", bookmark_not_found="fail")
        assert server.session.commands("sow_and_subscribe")[0]["o"]["bookmark_not_found"] == "fail"
        server.subscribe_refusal = ""
        found = await client.sow_and_subscribe("t", bookmark="[0:0|1|]")
        rows_of_then(server, found.id, 4, row(1, b"a"), ends=False)
        found.unsubscribe()
        await found.group_end.wait()
        assert await found.next_batch() is None
    await server.stop()
