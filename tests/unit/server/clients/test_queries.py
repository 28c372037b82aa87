"""Queries of a whole instance, without sockets: groups, what comes behind them, and who is held up
by whom."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pytest
from unit.test_doors import DEADLINE_S, Door, Transport

from raylay.services.capacity.config import CapacityConfig
from raylay.services.config.instance import InstanceConfig
from raylay.services.config.journal import JournalConfig
from raylay.services.config.transport import TransportConfig
from raylay.services.core.fold_backlog import FoldBarrier
from raylay.services.messages.records import Record, RecordBuilder, iterate_records, publisher_id
from raylay.services.messages.topics import TopicRule
from raylay.services.protocol.frames import Header, encode_frame
from raylay.services.replication.downgrade import DowngradePolicy
from raylay.services.replication.journal_lookup import LookupResult
from raylay.services.server.children.supervisor import ChildStart, no_children
from raylay.services.server.clients import queries as query_module
from raylay.services.server.clients.connection import ClientConnection
from raylay.services.server.clients.replay_members import Replay
from raylay.services.server.clients.transport import ClientTransport
from raylay.services.server.instance_server import InstanceServer
from raylay.services.server.turns import PASSES, SWITCH_S
from raylay.services.sow.definition import SowTopicDefinition
from raylay.services.sow.query.query_execution import LOOKED_AT_ONCE, QueryExecution
from raylay.services.sow.state import SowRules
from raylay.services.telemetry.logs import LogOptions

pytestmark = pytest.mark.covers("SOW", "a query's subscription begins at its moment")

ORDERS = SowTopicDefinition("orders", "json", keys=("/id",), hash_indexes=(("/s",),))
TRADES = SowTopicDefinition("trades", "json", keys=("/id",), rules=SowRules(window_us=10**12))
BLOBS = SowTopicDefinition("blobs", "binary")
SHORT = SowTopicDefinition("short", "json", keys=("/id",), rules=SowRules(expires=True))
CONFIG = InstanceConfig(
    "solo", "g", first=True, topics=(TopicRule(".*"),), log=LogOptions(target="none"),
    sow=(ORDERS, TRADES, BLOBS, SHORT),
)  # fmt: skip


class SlowTransport(Transport):
    """One whose socket takes nothing unless it is told to."""

    def __init__(self, connection: asyncio.Protocol) -> None:
        super().__init__(connection)
        self.takes = True
        self.high = 1 << 60
        self.taken = 0
        """Of what was written, by its socket."""
        self.is_paused = False

    def write(self, data: Any) -> None:
        super().write(data)
        self._check()

    def writelines(self, list_of_data: Any) -> None:
        super().writelines(list_of_data)
        self._check()

    def _check(self) -> None:
        if self.takes:
            self.taken = len(self.written)
        elif self.get_write_buffer_size() > self.high and not self.is_paused:
            self.is_paused = True
            self.connection.pause_writing()

    def get_write_buffer_size(self) -> int:
        return len(self.written) - self.taken

    def take(self) -> list[tuple[Header, bytes]]:
        self.taken = 0
        return super().take()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.high = high or self.high

    def drain(self) -> None:
        self.takes = True
        self.taken = len(self.written)
        if self.is_paused:
            self.is_paused = False
            self.connection.resume_writing()


class House:
    """An instance and its clients."""

    def __init__(
        self, directory: Path, config: InstanceConfig, start_child: ChildStart = no_children
    ) -> None:
        self.server = InstanceServer(config, directory, start_child)
        self.published: dict[str, int] = {}
        self.stamp_us = 1

    async def client(self, name: str, accepted_by: str = "", **says: str) -> Door:
        """`accepted_by`: a transport of the configuration, whose modules check the client; empty:
        none does."""
        transports = self.server.parts.listening.transports
        way = transports[accepted_by] if accepted_by else ClientTransport(TransportConfig("door"))
        connection = ClientConnection(self.server.parts.clients, way)
        transport = SlowTransport(connection)
        connection.connection_made(transport)
        door = Door(connection, transport)
        door.send(encode_frame({"c": "logon", "v": 1, "client_name": name, "cid": "l", **says}))
        await door.answer_to("l")
        return door

    def records(self, name: str, *bodies: bytes, topic: str = "orders", **more: Any) -> bytes:
        first = self.published.get(name, 0) + 1
        self.published[name] = first + len(bodies) - 1
        builder = RecordBuilder(publisher_id(name), topic, "json")
        made = []
        for number, body in enumerate(bodies, first):
            self.stamp_us += 1
            made.append(builder.build(number, body, self.stamp_us, **more))
        return b"".join(made)

    async def publish(self, door: Door, name: str, *trees: Any, **more: Any) -> None:
        bodies = [each if isinstance(each, bytes) else orjson.dumps(each) for each in trees]
        payload = self.records(name, *bodies, **more)
        door.send(encode_frame({"c": "pb", "n": len(bodies)}, payload))
        last = self.published[name]
        await door.until(lambda each: each.get("a") == "persisted" and each["s"] >= last)

    async def folded(self) -> None:
        """Waits until what is committed is folded: a large commit is folded in several turns."""
        while self.server.parts.clients.folds.unfolded:
            await asyncio.sleep(0)


def in_house(
    directory: Path,
    visit: Callable[[House], Awaitable[None]],
    config: InstanceConfig = CONFIG,
    start_child: ChildStart = no_children,
) -> None:
    async def run() -> None:
        house = House(directory, config, start_child)
        faults: list[Any] = []
        await house.server.start()
        asyncio.get_running_loop().set_exception_handler(lambda _, each: faults.append(each))
        try:
            async with asyncio.timeout(DEADLINE_S):
                await visit(house)
            assert not faults and not house.server.runtime.has_ended, faults
        finally:
            await house.server.stop()

    asyncio.run(run())


def ask(name: str, topic: str = "orders", command: str = "sow", **options: Any) -> bytes:
    header = {"c": command, "sub": name, "t": topic, "cid": name, "a": "processed,completed"}
    return encode_frame(header | {"o": options})


Said = tuple[Header, list[Record]]


async def frames_until(door: Door, wanted: Callable[[Header], bool]) -> list[Said]:
    """All frames up to the one that is wanted."""
    found: list[Said] = []
    while True:
        door.said += door.transport.take()
        while door.said:
            header, body = door.said.pop(0)
            has_records = header["c"] in ("sow", "p", "oof")
            found.append((header, list(iterate_records(body)) if has_records else []))
            if wanted(header):
                return found
        assert not door.transport.is_over
        # To turn the loop meanwhile would keep the threads from running that are waited for.
        await door.transport.came.wait()


async def group(door: Door, name: str) -> tuple[list[Any], Header]:
    """The rows of a query, and its end."""
    found = await frames_until(
        door, lambda each: each.get("a") == "completed" and each["cid"] == name
    )
    words = [each["c"] for each, _ in found if each.get("sub") == name]
    assert words[:2] == ["ack", "group_begin"] and words[-2:] == ["group_end", "ack"], found
    end = next(each for each, _ in found if each["c"] == "group_end")
    rows = [record for header, records in found if header["c"] == "sow" for record in records]
    assert end["n"] == len(rows)
    return [orjson.loads(each.body) for each in rows], end


@pytest.mark.covers("SOW", "`sow`: group, batches")
def test_rows_of_queries(tmp_path: Path) -> None:
    async def visit(house: House) -> None:
        door = await house.client("p")
        trees = [
            {"id": number, "s": "xyz"[number % 3], "n": {"m": number % 7}} for number in range(50)
        ]
        await house.publish(door, "p", *trees)
        await house.publish(door, "p", {"id": 3, "s": "new"}, {"id": 1}, topic="trades")
        door.send(ask("q", filter="/s = 'x' AND /id > 10", order_by="/id DESC"))
        rows, end = await group(door, "q")
        assert rows == [each for each in reversed(trees) if each["s"] == "x" and each["id"] > 10]
        assert end["matches"] == len(rows)
        door.send(ask("q", order_by="/n/m DESC, /id", top_n=3, skip_n=1))
        rows, end = await group(door, "q")
        assert [(each["n"]["m"], each["id"]) for each in rows] == [(6, 13), (6, 20), (6, 27)]
        assert (end["n"], end["matches"]) == (3, 50)
        await house.publish(door, "p", {"id": 9, "s": "p"}, {"id": 8, "s": "x"}, topic="trades")
        for command in ("sow", "sow_and_subscribe"):
            door.send(ask(f"q{command}", "trades", command, filter="/s = CLIENT_NAME()"))
            assert (await group(door, f"q{command}"))[0] == [{"id": 9, "s": "p"}]
        await house.publish(door, "p", {"id": 8, "s": "q"}, {"id": 7, "s": "p"}, topic="trades")
        ((_, (mine,)),) = (await frames_until(door, lambda each: each["c"] == "p"))[-1:]
        assert orjson.loads(mine.body) == {"id": 7, "s": "p"}
        await house.publish(door, "p", *({"id": n, "s": ""} for n in (7, 8, 9)), topic="trades")
        door.send(ask("q", filter="/id = 7", select="[-/,+/n/m]"))
        assert (await group(door, "q"))[0] == [{"n": {"m": 0}}]
        door.send(ask("q", topic="^(trades|orders)$", filter="/id = 3"))
        assert (await group(door, "q"))[0] == [trees[3], {"id": 3, "s": "new"}], "as configured"
        door.send(ask("all", batch=20))
        found = await frames_until(door, lambda each: each["c"] == "group_end")
        sizes = [(header["n"], len(records)) for header, records in found if header["c"] == "sow"]
        assert sizes == [(20, 20), (20, 20), (10, 10)]
        keys = [record.key for header, records in found for record in records]
        assert keys == sorted(keys)
        door.send(ask("q", keys=[keys[4], keys[9], b"none"]))
        assert len((await group(door, "q"))[0]) == 2
        door.send(ask("q", keys=[]))
        assert (await group(door, "q"))[0] == [], "none is not all"

    in_house(tmp_path, visit)


@pytest.mark.covers("SOW", "`sow`: group, batches")
def test_what_cannot_be_asked_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    async def visit(house: House) -> None:
        door = await house.client("p")
        for frame, reason in (
            (ask("q", topic="nothing"), "no_sow"),
            (ask("q", topic="^nothing.*"), "no_sow"),
            (ask("q", topic="("), "bad_regex"),
            (ask("q", filter="/id >"), "bad_filter"),
            (ask("q", order_by="id"), "bad_order_by"),
            (ask("q", select="id"), "bad_select"),
            (ask("q", topic="blobs", select="[-/]"), "not_supported"),
            (ask("q", as_of="0"), "bad_bookmark"), (ask("q", as_of="noon"), "bad_bookmark"),
            (ask("q", command="sow_and_subscribe", oof=True, filter="UNIX_TIMESTAMP() > 1"),
             "bad_filter"),
        ):  # fmt: skip
            door.send(frame)
            answer = await door.until(lambda each: each.get("cid") == "q")
            assert (answer["status"], answer["reason"], answer["sub"]) == ("failure", reason, "q")
            assert reason != "bad_bookmark" or "is no UTC time" in answer["text"]
        clients = house.server.parts.clients
        assert not len(clients.queries) and not len(clients.live)
        assert not door.connection.subscriptions and not door.connection.resolving
        door.send(ask("q"))
        assert (await group(door, "q"))[0] == []
        door.send(ask("live", topic="elsewhere", command="sow_and_subscribe"))
        assert (await group(door, "live"))[0] == [], "a topic without SOW has an empty group"
        door.send(ask("live"))
        answer = await door.until(lambda each: each.get("cid") == "live")
        assert answer["reason"] == "sub_id_in_use"

    in_house(tmp_path, visit)


@pytest.mark.covers("SOW", "`sow_and_subscribe`: of one moment")
def test_a_query_and_its_subscription_are_of_one_moment(tmp_path: Path) -> None:
    """Under a load of publishes each change comes once: as a row, or behind the group."""

    async def visit(house: House) -> None:
        door, reader = await house.client("p"), await house.client("r")
        await house.publish(door, "p", *({"id": n, "v": 0} for n in range(400)))
        reader.send(ask("s", command="sow_and_subscribe", oof=True, filter="/v < 1000"))
        value = 0
        for _ in range(30):
            value += 1
            await house.publish(door, "p", *({"id": n, "v": value} for n in range(0, 400, 7)))
        await house.publish(door, "p", {"id": 3, "v": 5_000}, {"id": 400, "v": 1})
        found = await frames_until(
            reader, lambda each: each["c"] == "p" and house.published["p"] <= each["tx"] + each["n"]
        )
        words = [header["c"] for header, _ in found if header["c"] != "ack"]
        at = words.index("group_end")
        assert set(words[:at]) == {"group_begin", "sow"} and "group_begin" not in words[at:]
        held: dict[bytes, Any] = {}
        for header, records in found:
            for record in records:
                if header["c"] == "oof":
                    assert header["r"] == "match" and held.pop(record.key)
                else:
                    held[record.key] = orjson.loads(record.body)
        expected = {n: 0 if n % 7 else value for n in range(400)} | {400: 1}
        del expected[3]
        assert {each["id"]: each["v"] for each in held.values()} == expected

    in_house(tmp_path, visit)


@pytest.mark.covers("SOW", "`sow`: group, batches")
@pytest.mark.parametrize("replayed", ["not yet", "read", "caught up"])
def test_what_a_session_is_delivered_comes_behind_its_query(tmp_path: Path, replayed: str) -> None:
    """What a replay has read comes as what is live does; what it has not read, behind them all."""

    async def visit(house: House) -> None:
        door, reader = await house.client("p"), await house.client("r")
        await house.publish(door, "p", *({"id": n} for n in range(2_000)))
        replays, loop = house.server.parts.clients.replays, asyncio.get_running_loop()
        reads, may_read = asyncio.Event(), threading.Event()
        if replayed == "read":
            read_on = replays._read_on

            def later(replay: Replay) -> Callable[[], bool]:
                loop.call_soon_threadsafe(reads.set)
                assert may_read.wait(DEADLINE_S)
                return read_on(replay)

            replays._read_on = later  # type: ignore[method-assign]
        subscribe = {"c": "subscribe", "sub": "replay", "t": "other", "bm": "0", "cid": "2"}
        reader.send(encode_frame({"c": "subscribe", "sub": "live", "t": "other", "cid": "1"}))
        await reader.answer_to("1")
        if replayed != "not yet":
            reader.send(encode_frame(subscribe))
            await reader.answer_to("2")
            (replay,) = replays._replays
            if replayed == "read":
                await reads.wait()
            while replayed == "caught up" and (
                replay.is_aside
                or replay.plan.cursor < house.server.parts.instance.machine.committed_txid
            ):
                await asyncio.sleep(0.001)
        # It does not read for a while: so its queries stand.
        reader.connection.pause_writing()
        if replayed == "not yet":
            reader.send(encode_frame(subscribe))
        reader.send(ask("q"), ask("q2", filter="/id = 5"))
        queries = house.server.parts.clients.queries
        assert len(queries) == 2
        await house.publish(door, "p", {"n": 1}, topic="other")
        may_read.set()
        while replayed == "read" and replay.is_aside:
            await asyncio.sleep(0.001)
        assert len(queries) == 2 and reader.connection.unsent_bytes > 0
        reader.connection.resume_writing()
        found: list[Said] = []
        while {("p", "replay"), ("group_end", "q2")} - {_words(said) for said in found}:
            found += await frames_until(reader, lambda each: each["c"] in ("p", "group_end"))
        words = [_words(said) for said in found if said[0]["c"] not in ("ack", "sow")]
        first, second = (("group_begin", name) for name in ("q", "q2"))
        live, replayed_one = ("p", "live"), ("p", "replay")
        held = [live, replayed_one] if replayed == "read" else [live]
        last = [] if replayed == "read" else [replayed_one]
        ends = [("group_end", name) for name in ("q", "q2")]
        assert words == [first, ends[0], *held, second, ends[1], *last]
        assert not len(queries)

    # One read has it all: behind what has been moved out of a front log another one begins.
    in_house(tmp_path, visit, replace(CONFIG, journal=JournalConfig(front_log=False)))


def _words(said: Said) -> tuple[str, str | None]:
    return said[0]["c"], said[0].get("sub")


@pytest.mark.parametrize("ends", ["", "live", "all"])
def test_what_waits_behind_a_query_goes_out_in_turns_before_the_next_one_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    async def visit(house: House) -> None:
        door, reader = await house.client("p"), await house.client("r")
        await house.publish(door, "p", *({"id": n} for n in range(2_000)))
        reader.send(encode_frame({"c": "subscribe", "sub": "live", "t": "other", "cid": "1"}))
        await reader.answer_to("1")
        connection, queries = reader.connection, house.server.parts.clients.queries
        connection.pause_writing()
        reader.send(ask("q"), ask("q2", filter="/id = 5"))
        for n in range(100):
            await house.publish(door, "p", {"n": n}, topic="other")
        connection.resume_writing()
        monkeypatch.setattr(query_module, "TURN_S", 0.0)
        turns, deliver, turn = [0], connection.deliver, queries._turn

        def delivered(subscription: str, delivery: Any) -> None:
            turns[-1] += 1
            deliver(subscription, delivery)

        def counted() -> bool:
            turns.append(0)
            return turn()

        monkeypatch.setattr(connection, "deliver", delivered)
        monkeypatch.setattr(queries._turns, "_turn", counted)
        while ends and sum(turns) < 10:
            await asyncio.sleep(0)
        if ends:
            assert len(queries) == 1, "the other one waits"
            reader.send(encode_frame({"c": "unsubscribe", "sub": ends, "cid": "u"}))
            sent = sum(turns)
            await frames_until(reader, lambda each: each.get("cid") == "u")
        if ends != "all":
            found = await frames_until(
                reader, lambda each: each.get("sub") == "q2" and each["c"] == "group_end"
            )
            words = [(header["c"], header.get("sub")) for header, _ in found]
            if not ends:
                begin = words.index(("group_begin", "q2"))
                assert words[:begin].count(("p", "live")) == 100
                assert words.index(("p", "live")) > words.index(("group_end", "q"))
            sent = sum(turns) if not ends else sent
        assert max(turns) <= 2 and sum(turns) == sent
        assert not len(queries) and connection.sink is connection and not queries._sessions
        assert not connection.holding().unsent_bytes
        reader.send(encode_frame({"c": "subscribe", "sub": "l", "t": "other", "cid": "2"}))
        await reader.answer_to("2")
        await house.publish(door, "p", {"n": 100}, topic="other")
        await frames_until(reader, lambda each: each.get("sub") == "l" and each["c"] == "p")

    in_house(tmp_path, visit)


def test_unsubscribe_ends_a_query_and_a_connection_all_of_its(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query_module, "TURN_S", 0.0)

    async def visit(house: House) -> None:
        door, reader = await house.client("p"), await house.client("r")
        await house.publish(door, "p", *({"id": n} for n in range(1_000)))
        await house.folded()
        queries, state = (
            house.server.parts.clients.queries,
            house.server.parts.sow.book.topics[0].state,
        )
        reader.send(ask("q"), ask("w"), ask("s", command="sow_and_subscribe"), ask("last"))
        assert len(queries) == 4 and list(reader.connection.resolving) == ["s"]
        reader.send(encode_frame({"c": "unsubscribe", "sub": ["q", "s"], "cid": "u"}))
        found = await frames_until(reader, lambda each: each.get("cid") == "u")
        assert not any(header["c"] == "group_end" for header, _ in found)
        words = await frames_until(reader, lambda each: each["c"] == "group_end")
        assert {header["sub"] for header, _ in words} == {"w"}
        assert len(await group_of(reader, "last")) == 1_000
        assert not len(queries) and not reader.connection.resolving
        reader.send(ask("s", command="sow_and_subscribe"), ask("q"), ask("w"))
        reader.send(encode_frame({"c": "unsubscribe", "sub": "all", "cid": "u"}))
        await reader.answer_to("u")
        assert not len(queries) and not len(house.server.parts.clients.live) and not state._queries
        reader.send(ask("s", command="sow_and_subscribe"), ask("q"))
        reader.transport.close()
        assert not len(queries) and not len(house.server.parts.clients.live) and not state._queries

    in_house(tmp_path, visit)


async def group_of(door: Door, name: str) -> list[Record]:
    found = await frames_until(door, lambda each: each["c"] == "group_end" and each["sub"] == name)
    return [each for header, records in found if header["c"] == "sow" for each in records]


def test_replace_knows_the_keys_of_before_and_who_was_given_rows(tmp_path: Path) -> None:
    async def visit(house: House) -> None:
        door, reader = await house.client("p"), await house.client("r")
        await house.publish(door, "p", *({"id": n} for n in range(5)))
        reader.send(ask("q", order_by="/id"))
        keys = [each.key for each in await group_of(reader, "q")]

        async def asked(name: str, **words: Any) -> dict[str, list[int]]:
            reader.send(ask(name, command="sow_and_subscribe", oof=True, **words))
            came: dict[str, list[int]] = {"sow": [], "oof": []}
            for header, records in await frames_until(
                reader, lambda each: each["c"] == "group_end"
            ):
                if header["c"] in came:
                    came[header["c"]] += [orjson.loads(each.body)["id"] for each in records]
            return {kind: sorted(found) for kind, found in came.items()}

        assert await asked("none", keys=[]) == {"sow": [], "oof": []}, "not all of them"
        assert await asked("k", keys=keys[:2]) == {"sow": [0, 1], "oof": []}
        assert await asked("k", keys=keys[1:3], replace=True) == {"sow": [2], "oof": [0]}
        assert await asked("k", filter="/id > 1", replace=True) == {"sow": [3, 4], "oof": [1]}
        assert await asked("k", keys=keys[:3], replace=True) == {"sow": [0, 1], "oof": [3, 4]}
        assert await asked("k", keys=[], replace=True) == {"sow": [], "oof": [0, 1, 2]}
        # An ordinary one was given none of what was there.
        reader.send(encode_frame({"c": "subscribe", "sub": "s", "t": "orders", "cid": "s"}))
        await reader.answer_to("s")
        assert await asked("s", filter="/id > 1", replace=True) == {"sow": [2, 3, 4], "oof": [0, 1]}
        reader.send(
            encode_frame({"c": "sow_and_subscribe", "sub": "s", "t": "orders", "mt": "xml",
                          "o": {"replace": True}})
        )  # fmt: skip
        assert (await reader.until(lambda each: each.get("reason")))["reason"] == "bad_command"

    in_house(tmp_path, visit)


@pytest.mark.covers("SOW", "`replace`: what comes into focus is sent")
def test_replace_sends_what_comes_into_focus_and_tells_of_what_leaves(tmp_path: Path) -> None:
    async def visit(house: House) -> None:
        door, reader = await house.client("p"), await house.client("r")
        await house.publish(door, "p", *({"id": n, "v": n} for n in range(10)))
        reader.send(ask("s", command="sow_and_subscribe", oof=True, filter="/v < 5"))
        assert len((await group(reader, "s"))[0]) == 5
        reader.send(ask("s", command="sow_and_subscribe", oof=True, filter="/v > 2", replace=True))
        found = await frames_until(reader, lambda each: each["c"] == "group_end")
        came = [
            orjson.loads(r.body)["id"] for h, records in found if h["c"] == "sow" for r in records
        ]
        left = [
            orjson.loads(r.body)["id"] for h, records in found if h["c"] == "oof" for r in records
        ]
        assert sorted(came) == [5, 6, 7, 8, 9] and sorted(left) == [0, 1, 2]
        await house.publish(door, "p", {"id": 1, "v": 1}, {"id": 7, "v": 0}, {"id": 2, "v": 4})
        found = await frames_until(reader, lambda each: each["c"] == "p")
        assert [(h["c"], orjson.loads(r.body)["id"]) for h, records in found for r in records] == [
            ("oof", 7), ("p", 2)
        ]  # fmt: skip
        assert len(house.server.parts.clients.live) == 1
        for topic, words, reason in (
            ("trades", {"command": "sow_and_subscribe", "replace": True}, "bad_command"),
            ("orders", {"command": "sow_and_subscribe"}, "sub_id_in_use"),
        ):
            reader.send(ask("s", topic=topic, **words))  # type: ignore[arg-type]
            answer = await reader.until(lambda each: each.get("reason"))
            assert answer["reason"] == reason
        reader.send(
            encode_frame({"c": "subscribe", "sub": "s", "t": "orders", "cid": "x",
                          "o": {"replace": True, "filter": "/v = 77"}})
        )  # fmt: skip
        await reader.answer_to("x")
        await house.publish(door, "p", {"id": 1, "v": 5}, {"id": 2, "v": 77})
        ((_, (only,)),) = (await frames_until(reader, lambda each: each["c"] == "p"))[-1:]
        assert orjson.loads(only.body) == {"id": 2, "v": 77}
        assert len(house.server.parts.clients.live) == 1

    in_house(tmp_path, visit)


def test_what_a_replaced_filter_leaves_comes_in_frames_of_a_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query_module, "TURN_S", 60.0)

    async def visit(house: House) -> None:
        door, reader = await house.client("p"), await house.client("r")
        for number in range(5):
            await house.publish(door, "p", {"id": number, "text": "x" * 400_000})
        reader.send(ask("s", command="sow_and_subscribe", oof=True))
        await group_of(reader, "s")
        reader.send(ask("s", command="sow_and_subscribe", oof=True, filter="/id = 9", replace=True))
        found = await frames_until(reader, lambda each: each["c"] == "group_end")
        assert [len(records) for header, records in found if header["c"] == "oof"] == [2, 2, 1]

    in_house(tmp_path, visit)


def test_a_slow_reader_holds_up_his_own_query_alone(tmp_path: Path) -> None:
    config = replace(
        CONFIG,
        capacity=CapacityConfig(
            memory_bytes_max=4 * 1024 * 1024, disk_bytes_max=0, client_share=1.0
        ),
    )

    async def visit(house: House) -> None:
        door, slow = await house.client("p"), await house.client("slow")
        body = {"text": "x" * 10_000}
        for first in range(0, 1_000, 100):
            await house.publish(door, "p", *({"id": n} | body for n in range(first, first + 100)))
        transport: Any = slow.transport
        transport.takes = False
        slow.send(ask("q", command="sow_and_subscribe", batch=5))
        while slow.connection.may_write:
            await asyncio.sleep(0)
        for _ in range(100):
            await asyncio.sleep(0)
        assert slow.connection.unsent_bytes < 3 * 1024 * 1024, "it waits, and takes no memory"
        door.send(ask("mine", filter="/id = 500"))
        assert len((await group(door, "mine"))[0]) == 1
        transport.drain()
        assert len(await group_of(slow, "q")) == 1_000
        # What is delivered behind a query that waits counts, and ends who does not read.
        transport.takes = False
        slow.send(ask("again"))
        while slow.connection.may_write:
            await asyncio.sleep(0)
        for first in range(0, 1_000, 50):
            if not slow.connection.is_open:
                break
            await house.publish(door, "p", *({"id": n} | body for n in range(first, first + 50)))
        assert not slow.connection.is_open
        assert len(house.server.parts.clients.queries) == 0 == len(house.server.parts.clients.live)

    in_house(tmp_path, visit, config)


def test_rows_that_wait_for_their_order_count(tmp_path: Path) -> None:
    """Ten clients that ask for all rows in order and read none hold no more than their pool may."""
    limit_bytes = 32 * 1024 * 1024
    config = replace(
        CONFIG,
        capacity=CapacityConfig(memory_bytes_max=limit_bytes, disk_bytes_max=0, client_share=1.0),
        policy=DowngradePolicy(check_interval_ms=60_000),
    )

    async def visit(house: House) -> None:
        door = await house.client("p")
        for first in range(0, 500, 100):
            numbers = range(first, first + 100)
            await house.publish(door, "p", *({"id": n, "text": "x" * 10_000} for n in numbers))
        await house.folded()
        queries = house.server.parts.clients.queries
        slow = [await house.client(f"slow{number}") for number in range(10)]
        for each in slow:
            transport: Any = each.transport
            transport.takes = False
            each.send(ask("q", order_by="/text, /id DESC"))
        most = 0
        for _ in range(100_000):
            running = [each.running for each in queries._sessions.values()]
            kept = [each.memory_bytes for each in running if each is not None]
            most = max(most, sum(kept))
            # Of each that is left its socket is full: none goes on.
            waiting = [each for each in slow if each.connection.is_open]
            if kept and not any(each.connection.takes_rows for each in waiting):
                break
            await asyncio.sleep(0)
        assert limit_bytes / 2 < most < 2 * limit_bytes
        assert 0 < len(waiting) < 5
        door.send(ask("mine", filter="/id < 3", order_by="/id"))
        assert len((await group(door, "mine"))[0]) == 3, "others are answered"

    in_house(tmp_path, visit, config)


def test_what_is_kept_for_a_reader_who_does_not_read_counts(tmp_path: Path) -> None:
    """A query that waits keeps what was there of all that changes before it comes there."""
    config = replace(
        CONFIG,
        capacity=CapacityConfig(
            memory_bytes_max=4 * 1024 * 1024, disk_bytes_max=0, client_share=1.0
        ),
        policy=DowngradePolicy(check_interval_ms=60_000),
    )

    async def visit(house: House) -> None:
        door, slow = await house.client("p"), await house.client("slow")
        body = {"text": "x" * 10_000}
        for first in range(0, 1_000, 100):
            await house.publish(door, "p", *({"id": n} | body for n in range(first, first + 100)))
        transport: Any = slow.transport
        transport.takes = False
        slow.send(ask("q"))
        while slow.connection.may_write:
            await asyncio.sleep(0)
        for first in range(0, 1_000, 100):
            await house.publish(door, "p", *({"id": n} for n in range(first, first + 100)))
        house.server.parts.clients.queries.check()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not slow.connection.is_open
        assert not house.server.parts.sow.book.topics[0].state._queries

    in_house(tmp_path, visit, config)


@pytest.mark.covers("SOW", "a query takes turns")
def test_many_queries_of_many_clients_share_the_turns(tmp_path: Path) -> None:
    async def visit(house: House) -> None:
        door = await house.client("p")
        await house.publish(door, "p", *({"id": n, "s": str(n)} for n in range(1_000)))
        readers = [await house.client(f"r{number}") for number in range(4)]
        many = 500
        for reader in readers:
            reader.send(*(ask(f"q{n}", filter=f"/s = '{n}'") for n in range(many)))
        queries = house.server.parts.clients.queries
        while len(queries) <= many:  # What is said at once is taken in turns, too.
            await asyncio.sleep(0)
        one = await house.client("one")
        one.send(ask("q"))
        assert len((await group(one, "q"))[0]) == 1_000
        assert len(queries), "it did not wait for all the others"
        for reader in readers:
            found = await frames_until(
                reader, lambda each: each["c"] == "group_end" and each["sub"] == f"q{many - 1}"
            )
            assert sum(header["c"] == "sow" for header, _ in found) == many

    in_house(tmp_path, visit)


@pytest.mark.covers("SOW", "a query takes turns")
def test_a_query_has_one_turn_ahead_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each turn has two behind it, and soon nobody else comes in between."""
    monkeypatch.setattr(query_module, "TURN_S", 0.0)

    async def visit(house: House) -> None:
        door = await house.client("asks")
        await house.publish(door, "asks", *({"id": number} for number in range(3_000)))
        pump = house.server.parts.clients.queries
        turns, others = 0, 0
        ended = asyncio.Event()
        turn = pump._turn

        def counted() -> bool:
            nonlocal turns
            turns += 1
            return turn()

        def other() -> None:
            nonlocal others
            others += 1
            if not ended.is_set():
                asyncio.get_running_loop().call_soon(other)

        monkeypatch.setattr(pump._turns, "_turn", counted)
        door.send(ask("q", filter="/id < 0"))
        other()
        await frames_until(door, lambda each: each["c"] == "group_end")
        ended.set()
        assert turns > 5 and others >= turns - 1

    in_house(tmp_path, visit)


def test_more_queries_than_may_wait_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query_module, "QUERIES_MAX", 3)

    async def visit(house: House) -> None:
        door = await house.client("p")
        await house.publish(door, "p", *({"id": n} for n in range(5)))
        door.send(*(ask(f"q{number}") for number in range(4)))
        answer = await door.until(lambda each: each.get("reason"))
        assert (answer["reason"], answer["sub"]) == ("too_many", "q3")

    in_house(tmp_path, visit)


@pytest.mark.covers("SOW", "historical queries")
def test_the_past_of_a_topic_with_history(tmp_path: Path) -> None:
    async def visit(house: House) -> None:
        door = await house.client("p")
        await house.publish(door, "p", {"id": 1, "v": 1}, {"id": 2, "v": 1}, topic="trades")
        state = house.server.parts.sow.book.topics[1].state
        then_us = max(each.updated_us for each in state.records())
        while house.server.runtime.now_us() <= then_us + 1:
            await asyncio.sleep(0)
        await house.publish(door, "p", {"id": 1, "v": 2}, topic="trades")
        as_of = datetime.fromtimestamp(then_us / 1e6, UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        door.send(ask("q", topic="trades", as_of=as_of, order_by="/id"))
        assert (await group(door, "q"))[0] == [{"id": 1, "v": 1}, {"id": 2, "v": 1}]
        for early in ("20000101T000000Z", "19700101T000000Z", "19000101T000000Z"):
            door.send(ask("q", topic="trades", as_of=early))
            assert (await group(door, "q"))[0] == []
        door.send(ask("q", topic="trades", filter="/v = 2"))
        assert (await group(door, "q"))[0] == [{"id": 1, "v": 2}]

    in_house(tmp_path, visit)


@pytest.mark.covers("SOW", "out of focus: `deleted`")
def test_what_expires_leaves_and_does_not_disturb_a_replay(tmp_path: Path) -> None:
    async def visit(house: House) -> None:
        door, reader = await house.client("p"), await house.client("r")
        reader.send(
            encode_frame({"c": "subscribe", "sub": "b", "t": "short", "bm": "0", "cid": "b"})
        )
        await reader.answer_to("b")
        reader.send(ask("s", topic="short", command="sow_and_subscribe", oof=True))
        await group_of(reader, "s")
        house.stamp_us = house.server.runtime.now_us()
        await house.publish(door, "p", {"id": 1}, topic="short", expiration_s=1)
        house.server.runtime.clock_offset_us += 5_000_000
        house.server.parts.sow.check()
        found = await frames_until(reader, lambda each: each["c"] == "oof")
        header, (record,) = found[-1]
        assert (header["r"], orjson.loads(record.body)) == ("expired", {"id": 1})

    in_house(tmp_path, visit)


def test_deltas_and_deletions_by_a_client(tmp_path: Path) -> None:
    async def visit(house: House) -> None:
        door, reader = await house.client("p"), await house.client("r")
        await house.publish(door, "p", {"id": 1, "a": 1, "b": 2})
        reader.send(ask("d", command="sow_and_subscribe", oof=True, delta=True))
        await group_of(reader, "d")
        await house.publish(door, "p", {"id": 1, "a": 1, "b": 3})
        ((header, (record,)),) = (await frames_until(reader, lambda each: each["c"] == "p"))[-1:]
        assert (record.command, orjson.loads(record.body)) == (6, {"id": 1, "b": 3})
        assert header["tx"] == 2 and record.key

    in_house(tmp_path, visit)


class Passing:
    """What a turn finds: how many passes of the loop others had since the one before, and after
    what time it lets another thread have the interpreter."""

    def __init__(self, queries: Any) -> None:
        self.passes = 0
        self.found: list[tuple[int, float]] = []
        self._turn = queries._turn
        queries._turns._turn = self.turn

    def turn(self) -> bool:
        self.found.append((self.passes, sys.getswitchinterval()))
        self.passes = 0
        return bool(self._turn())

    async def count(self) -> None:
        while True:
            self.passes += 1
            await asyncio.sleep(0)


@pytest.mark.covers("SOW", "a query takes turns")
def test_between_two_turns_others_have_their_passes_and_threads_the_interpreter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query_module, "TURN_S", 0.0)

    async def visit(house: House) -> None:
        door, reader = await house.client("p"), await house.client("r")
        await house.publish(door, "p", *({"id": number} for number in range(1_000)))
        await house.folded()
        usual_s = sys.getswitchinterval()
        passing = Passing(house.server.parts.clients.queries)
        counting = asyncio.create_task(passing.count())
        reader.send(ask("q", filter="/id < 10"))
        assert len(await group_of(reader, "q")) == 10
        counting.cancel()
        assert len(passing.found) >= 1_000 // LOOKED_AT_ONCE
        for passes, switch_s in passing.found[1:]:
            # One that reads, one that commits, one that answers.
            assert passes == PASSES == 3
            assert switch_s == pytest.approx(SWITCH_S) and switch_s < usual_s
        assert sys.getswitchinterval() == usual_s

    in_house(tmp_path, visit)


def test_a_fault_that_nobody_foresaw_ends_the_query_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def visit(house: House) -> None:
        door = await house.client("one")
        await house.publish(door, "one", {"id": 1})
        with monkeypatch.context() as broken:
            broken.setattr(QueryExecution, "turn", lambda *_: 1 // 0)
            for command in ("sow", "sow_and_subscribe"):
                door.send(ask("asked", command=command))
                told = await door.until(lambda each: each.get("status") == "failure")
                assert told["reason"] == "internal_error"
                assert "solo failed to answer (ZeroDivisionError)" in told["text"]
        said = house.server.runtime.events_log.after()
        event = next(each for each in said if each["event"] == "query_failed")
        assert event["topic"] == "orders"
        assert "in _go_on" in event["text"]
        door.send(ask("asked"))
        frames = await frames_until(door, lambda each: each["c"] == "group_end")
        assert [header["n"] for header, _ in frames if header["c"] == "sow"] == [1]

    in_house(tmp_path, visit)


def bodies_of(found: list[Said]) -> list[Any]:
    return [
        orjson.loads(each.body)["n"]
        for header, records in found
        if header["c"] == "p"
        for each in records
    ]


def test_who_asks_behind_an_ack_waits_for_its_folds_and_others_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some 2,000 records are committed and acked; what is asked behind that waits for their folds,
    while another client publishes and is acked between them."""

    async def visit(house: House) -> None:
        door, reader = await house.client("p"), await house.client("r")
        other, late = await house.client("other"), await house.client("late")
        folds, live = house.server.parts.clients.folds, house.server.parts.clients.live
        reader.send(encode_frame({"c": "subscribe", "sub": "early", "t": "orders", "cid": "e"}))
        await reader.answer_to("e")
        machine, count = house.server.parts.instance.machine, 2_000
        # As a link brings it: it is one commit.
        payload = house.records("p", *(b'{"id":%d,"n":%d}' % (n, n) for n in range(count)))
        number = door.connection.number
        runs = machine.client_runs(number, payload, count)
        effects, _ = machine.client_published(
            number, runs, house.server.runtime.steady_us(), LookupResult()
        )
        # Turns behind the first one wait until they are let go, and who waits does not help: no
        # disk is too slow for this.
        monkeypatch.setattr(FoldBarrier, "take", lambda waiting, most: None)
        steps: Any = house.server.parts.instance.perform.__self__  # type: ignore[attr-defined]
        later, held = steps._later, []
        steps._later = held.append
        house.server.parts.instance.perform(effects)
        while machine.committed_txid < count:
            await asyncio.sleep(0)
        assert folds.unfolded, "it is folded in turns"
        late.send(encode_frame({"c": "subscribe", "sub": "late", "t": "orders", "cid": "l"}))
        reader.send(
            ask("q"),
            ask("s", command="sow_and_subscribe"),
            encode_frame({"c": "unsubscribe", "sub": "early", "cid": "u"}),
        )
        assert not len(house.server.parts.clients.queries) and len(live) == 1
        await house.publish(other, "other", {"n": 1}, topic="plain")
        assert folds.unfolded, "another client is acked meanwhile"
        steps._later = later
        monkeypatch.undo()
        for turn in held:
            later(turn)
        found = await frames_until(reader, lambda each: each.get("sub") == "s" and "n" in each)
        early = [each for each in found if each[0].get("sub") == "early"]
        assert bodies_of(early) == list(range(count)), "all of before, in order"
        assert not [each for each in found if each[0]["c"] == "p" and each not in early]
        rows = {"q": 0, "s": 0}
        found += await frames_until(
            reader, lambda each: each["c"] == "group_end" and each["sub"] == "s"
        )
        for header, records in found:
            if header["c"] == "sow":
                rows[header["sub"]] += len(records)
        assert rows == {"q": count, "s": count}
        # On a connection of its own nothing else holds it back.
        await house.publish(door, "p", {"id": 1, "n": count})
        found = await frames_until(late, lambda each: each["c"] == "p")
        assert bodies_of(found) == [count], "nothing from before"

    in_house(tmp_path, visit)


def test_a_long_frame_is_prepared_in_turns(tmp_path: Path) -> None:
    """Another client is acked before all of it is, and what is behind it on its connection comes
    behind it."""

    async def visit(house: House) -> None:
        door, other = await house.client("p"), await house.client("other")
        count = 5_000
        bodies = [b'{"id":%d}' % n if n % 1_000 else b"no json" for n in range(count)]
        door.send(
            encode_frame({"c": "pb", "n": count}, house.records("p", *bodies)),
            encode_frame({"c": "flush", "a": "persisted", "cid": "f"}),
        )
        received = house.server.parts.instance.machine.received_of
        assert received(door.connection.number) < count
        await house.publish(other, "other", {"n": 1}, topic="plain")
        assert received(door.connection.number) < count, "not behind all of it"
        found = await frames_until(door, lambda each: each.get("cid") == "f")
        door.send(ask("q"))
        found += await frames_until(door, lambda each: each["c"] == "group_end")
        rows = sum(len(records) for header, records in found if header["c"] == "sow")
        assert rows == count - 5
        acks = [header for header, _ in found if header.get("a") == "persisted"]
        refused = [each["s"] for each in acks if each.get("reason") == "bad_message"]
        assert refused == [1, 1_001, 2_001, 3_001, 4_001]
        upto = [each["s"] for each in acks if "s" in each and "reason" not in each]
        assert upto == sorted(upto) and upto[-1] == count
        for number in refused:  # said when its part is prepared, before the ack that covers it
            said = [ack.get("s") == number and "reason" in ack for ack in acks].index(True)
            covered = [ack.get("s", 0) >= number and "reason" not in ack for ack in acks]
            assert said < covered.index(True)
        assert [each["cid"] for each in acks if "cid" in each] == ["f"]

    in_house(tmp_path, visit)


@pytest.mark.covers("Views", "views: queried")
def test_who_asks_a_view_that_is_built_waits_and_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from raylay.services.views.building import TopicBuild
    from raylay.services.views.definition import ViewDefinition

    view = ViewDefinition(
        "counts",
        "json",
        topic="orders",
        projection=("/customer AS /customer", "COUNT(/id) AS /n"),
        grouping=("/customer",),
    )
    may_go_on: list[bool] = []
    take = TopicBuild.take

    def held(build: TopicBuild, is_over: Callable[[], bool]) -> Any:
        return take(build, is_over) if may_go_on else []

    monkeypatch.setattr(TopicBuild, "take", held)

    async def visit(house: House) -> None:
        door = await house.client("asking")
        for name in ("one", "dropped", "wrong"):
            text = "/n > 'a' AND" if name == "wrong" else "/n > 0"
            door.send(ask(name, topic="counts", filter=text))
        door.send(ask("following", topic="counts", command="sow_and_subscribe"))
        other = await house.client("other")
        await house.publish(other, "other", {"id": 1, "customer": 5}, {"id": 2, "customer": 5})
        other.send(ask("orders"))
        rows, _ = await group(other, "orders")
        assert sorted(each["id"] for each in rows) == [1, 2]
        queries = house.server.parts.clients.queries
        assert len(queries) == 4 and not door.transport.take()
        door.send(encode_frame({"c": "unsubscribe", "sub": "dropped", "cid": "u"}))
        await door.answer_to("u")
        gone = await house.client("gone")
        gone.send(ask("lost", topic="counts"))
        await turns(lambda: len(queries) == 4)
        gone.connection.connection_lost(None)
        await turns(lambda: len(queries) == 3)
        (status,) = house.server.parts.sow.status()["views"].values()
        assert status["built_percent"] == 0
        may_go_on.append(True)
        found = await frames_until(
            door, lambda each: each.get("a") == "completed" and each["cid"] == "following"
        )
        refused = [each for each, _ in found if each.get("cid") == "wrong"]
        assert [each["reason"] for each in refused] == ["bad_filter"]
        bodies = [orjson.loads(each.body) for _, records in found for each in records]
        assert bodies == [{"customer": 5, "n": 2}] * 2
        assert "built_percent" not in next(iter(house.server.parts.sow.status()["views"].values()))
        await house.publish(other, "other", {"id": 3, "customer": 5})
        (*_, (_, (change,))) = await frames_until(door, lambda each: each["c"] == "p")
        assert orjson.loads(change.body) == {"customer": 5, "n": 3}

    async def turns(is_so: Callable[[], bool]) -> None:
        while not is_so():
            await asyncio.sleep(0)

    in_house(tmp_path, visit, replace(CONFIG, views=(view,)))
