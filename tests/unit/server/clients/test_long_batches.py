"""A long publish batch is taken in turns: others are served in between, and it is as if it had been
taken at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import attacker
from unit.server.clients.test_queries import CONFIG, House, frames_until, in_house
from unit.test_doors import Door

from raylay.services.core import fold_backlog
from raylay.services.messages.topics import TopicRule
from raylay.services.protocol.frames import encode_frame
from raylay.services.replication.instance import batch_scan
from raylay.services.security.permissions import Grant
from raylay.services.server import turns
from raylay.services.server.clients import connection as connection_module
from raylay.services.server.commits import Commits

pytestmark = pytest.mark.covers("Configuration", "a long publish batch is checked in slices")

COUNT = 300
PLAIN = replace(CONFIG, sow=(), topics=(TopicRule("log.*"),), unjournaled=(TopicRule("live.*"),))


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten records are a part, one part is a turn."""
    monkeypatch.setattr(turns, "TURN_S", 0.0)
    monkeypatch.setattr(batch_scan, "SLICE_BYTES", 1_000)
    monkeypatch.setattr(connection_module, "SLICE_BYTES", 1_000)
    for name in ("PART_RECORDS", "PART_RUNS"):
        monkeypatch.setattr(fold_backlog, name, 10)
    monkeypatch.setattr(fold_backlog, "SLICE_RUNS", 10)


def plain_house(directory: Path, visit: Callable[[House], Awaitable[None]]) -> None:
    in_house(directory, visit, PLAIN)


def batch(house: House, *topics: str) -> tuple[bytes, int]:
    """The frame of `COUNT` records, on these topics in turn; its last sequence."""
    records = [
        house.records("p", b'{"n":%d}' % n, topic=topics[n % len(topics)]) for n in range(COUNT)
    ]
    return encode_frame({"c": "pb", "n": COUNT}, b"".join(records)), house.published["p"]


def received(house: House, door: Door) -> int:
    return house.server.parts.instance.machine.received_of(door.connection.number)


async def until_received(house: House, door: Door, least: int) -> None:
    while received(house, door) < least:
        await asyncio.sleep(0)


async def between(other: Door, name: str) -> None:
    other.send(attacker.ping(name))
    await other.answer_to(name)


async def subscribe(house: House, topic: str, content: str) -> Door:
    reader = await house.client("reader")
    header = {"c": "subscribe", "sub": "s", "t": topic, "cid": "s", "o": {"filter": content}}
    reader.send(encode_frame(header))
    await reader.answer_to("s")
    return reader


async def numbers_of(reader: Door, count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        (*_, (_, records)) = await frames_until(reader, lambda header: header["c"] == "p")
        found += [record.sequence for record in records]
    return found


class Judge:
    """The permission of a session with a write filter."""

    def read(self, topic: bytes) -> Grant:
        return Grant(True)

    def write(self, topic: bytes) -> Grant:
        return Grant(True, "/n != 7 AND /n != 207")


@pytest.mark.parametrize("topics", [("log/a",), ("log/a", "log/b"), ("log/a", "live/b")])
def test_others_are_answered_between_its_parts(tmp_path: Path, topics: tuple[str, ...]) -> None:
    async def visit(house: House) -> None:
        door, other = await house.client("p"), await house.client("other")
        frame, last = batch(house, *topics)
        door.send(frame, encode_frame({"c": "flush", "a": "persisted", "cid": "f"}))
        await between(other, "while it is checked")
        assert received(house, door) == 0, "nothing is taken before all is checked"
        if len(topics) > 1:
            await until_received(house, door, 1)
            await between(other, "while it is taken")
            assert received(house, door) < last
        said = await frames_until(door, lambda header: header.get("cid") == "f")
        acked = [
            header["s"] for header, _ in said if header.get("a") == "persisted" and "s" in header
        ]
        assert acked == sorted(acked) and acked[-1] == last
        assert received(house, door) == last

    plain_house(tmp_path, visit)


def test_what_is_wrong_at_its_end_refuses_all_of_it(tmp_path: Path) -> None:
    async def visit(house: House) -> None:
        door = await house.client("p")
        frame, _ = batch(house, "log/a", "log/b")
        door.send(frame[:-1] + b"!")
        answer = await door.until(lambda header: header.get("reason") == "bad_record")
        assert "fails its checksum" in answer["text"]
        assert house.server.parts.instance.machine.next_txid == 1, "nothing was taken"

    plain_house(tmp_path, visit)


@pytest.mark.parametrize("ends", ["while it is checked", "while it is taken"])
def test_who_ends_between_its_parts_is_acked_what_is_there(tmp_path: Path, ends: str) -> None:
    async def visit(house: House) -> None:
        door, other = await house.client("p"), await house.client("other")
        frame, last = batch(house, "log/a", "log/b")
        door.send(frame)
        await between(other, "now")
        if ends == "while it is taken":
            await until_received(house, door, 1)
        taken = received(house, door)
        assert taken < last
        door.transport.close()
        said = [header for header, _ in door.transport.take()]
        acked = max([header["s"] for header in said if header.get("a") == "persisted"], default=0)
        await between(other, "behind it")
        again = await house.client("p")
        while house.server.parts.clients.turns.turns.is_scheduled:
            await asyncio.sleep(0)
        machine = house.server.parts.instance.machine
        assert acked <= taken == machine.intake.highest.get(again.connection.publisher, 0)
        assert machine.next_txid == taken + 1, "each once, and nothing behind it"
        # All of it once more, as its client sends what it has no ack for.
        again.send(frame)
        await again.until(lambda header: header.get("a") == "persisted" and header["s"] == last)
        assert machine.next_txid == last + 1

    plain_house(tmp_path, visit)


def test_what_a_filter_lets_nobody_publish_is_refused_between_its_parts(tmp_path: Path) -> None:
    async def visit(house: House) -> None:
        door, other = await house.client("p"), await house.client("other")
        clients, number = house.server.parts.clients, door.connection.number
        judge = clients.judge(Judge(), "u", "p", "")  # type: ignore[arg-type]
        door.connection.judge = judge
        house.server.parts.instance.machine._publishers._sessions[number].judge = judge
        frame, last = batch(house, "log/a")
        door.send(frame, encode_frame({"c": "flush", "a": "persisted", "cid": "f"}))
        await until_received(house, door, 1)
        await between(other, "while it is judged")
        assert received(house, door) < last
        said = [
            header for header, _ in await frames_until(door, lambda each: each.get("cid") == "f")
        ]
        refused = [header["s"] for header in said if header.get("reason") == "not_entitled"]
        assert refused == [8, 208]
        assert house.server.parts.instance.machine.next_txid == last - 1

    plain_house(tmp_path, visit)


@pytest.mark.parametrize("topic", ["log/a", "live/a"])
def test_what_filters_look_at_is_delivered_in_parts_and_once(
    tmp_path: Path, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fold takes long of what is journaled, the publish of all else."""
    monkeypatch.setattr("raylay.services.core.effect_loop.TURN_S", 0.0)

    async def visit(house: House) -> None:
        house.server.parts.clients.folds.unfolded._slice_records = 10  # type: ignore[union-attr]
        reader = await subscribe(house, topic, "/n >= 0")
        brief = await subscribe_brief(house, topic)
        door, other = await house.client("p"), await house.client("other")
        frame, last = batch(house, topic)
        door.send(frame)
        if topic == "live/a":
            await until_received(house, door, 1)
        else:
            await door.until(lambda header: header.get("a") == "persisted" and header["s"] == last)
        await between(other, "while it is delivered")
        # One of those who look ends: what was delivered to the other one is not delivered again.
        brief.transport.close()
        assert await numbers_of(reader, COUNT) == list(range(1, COUNT + 1))
        await house.publish(door, "p", {"n": -1}, {"n": 5_000}, topic=topic)
        assert await numbers_of(reader, 1) == [last + 2]

    async def subscribe_brief(house: House, topic: str) -> Door:
        door = await house.client("brief")
        header = {"c": "subscribe", "sub": "s", "t": topic, "cid": "s", "o": {"filter": "/n > 1"}}
        door.send(encode_frame(header))
        await door.answer_to("s")
        return door

    plain_house(tmp_path, visit)


def test_while_much_is_staged_no_part_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_full: list[Any] = [True]
    monkeypatch.setattr(Commits, "takes_parts", property(lambda self: not is_full[0]))

    async def visit(house: House) -> None:
        door, other = await house.client("p"), await house.client("other")
        frame, last = batch(house, "log/a", "log/b")
        door.send(frame)
        for n in range(20):
            await between(other, f"meanwhile {n}")
        assert received(house, door) == 0
        is_full[0] = False
        await door.until(lambda header: header.get("a") == "persisted" and header["s"] == last)

    plain_house(tmp_path, visit)


def test_of_long_batches_that_wait_for_their_turns_so_much_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sixty connections held 1 GB by a frame of 16 MiB each."""
    is_full: list[Any] = [True]
    monkeypatch.setattr(Commits, "takes_parts", property(lambda self: not is_full[0]))

    async def visit(house: House) -> None:
        in_hand = house.server.parts.clients.in_hand
        large, small = await house.client("p"), await house.client("q")
        frame, _ = batch(house, "log/a", "log/b")
        large.send(frame)
        while not in_hand.bytes:
            await asyncio.sleep(0)
        in_hand.bytes_max = in_hand.bytes
        records = b"".join(house.records("q", b'{"n":%d}' % n, topic="log/a") for n in range(20))
        small.send(encode_frame({"c": "pb", "n": 20}, records))
        refused = await large.until(lambda header: header.get("reason") == "too_many")
        assert "are long and not all taken" in refused["text"]
        assert in_hand.bytes == len(records)
        is_full[0] = False
        await small.until(lambda header: header.get("a") == "persisted" and header["s"] == 20)
        while len(in_hand):
            await asyncio.sleep(0)

    plain_house(tmp_path, visit)
