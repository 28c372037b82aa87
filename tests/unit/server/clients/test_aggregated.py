"""Aggregated queries of a whole instance, without sockets: entitlements, waiting queries, ends."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest
from unit.server.clients.test_queries import House, frames_until, in_house
from unit.test_doors import Door

from raylay.services.protocol.frames import encode_frame
from raylay.services.security.permissions import read_permissions
from raylay.services.server.sow import manager
from raylay.services.views import aggregated

SUMS = {"projection": ["/s AS /s", "SUM(/n) AS /n"], "grouping": ["/s"]}
TREES = [{"id": number, "s": number % 2, "n": number, "desk": "fx"} for number in range(4)] + [
    {"id": 9, "s": 0, "n": 100, "desk": "rates"}
]


def frame(command: str, name: str, topic: str = "orders", **options: Any) -> bytes:
    options = options if "projection" in options else SUMS | options
    return encode_frame({"c": command, "sub": name, "t": topic, "cid": name, "o": options})


async def answer(door: Door, name: str) -> Any:
    """Waits for the end of a query. Returns its rows, or the reason of its refusal."""

    def is_end(header: Any) -> bool:
        if header["c"] == "group_end":
            return bool(header["sub"] == name)
        return bool(header.get("cid") == name and header.get("reason"))

    found = await frames_until(door, is_end)
    last = found[-1][0]
    if last["c"] != "group_end":
        return last["reason"]
    return sorted(
        (
            orjson.loads(record.body)
            for header, records in found
            if header["c"] == "sow" and header["sub"] == name
            for record in records
        ),
        key=str,
    )


async def rows(door: Door, name: str, command: str = "sow", **options: Any) -> Any:
    door.send(frame(command, name, **options))
    return await answer(door, name)


@pytest.mark.covers("Views", "aggregations: what may not be read")
def test_groups_have_only_records_that_may_be_read(tmp_path: Path) -> None:
    grants = {
        "amy": [{"topic": "orders", "read": "/desk = 'fx'"}],
        "bob": [{"topic": "orders", "read": True, "select": "-/n"}],
        "eve": [{"topic": "orders", "read": False}],
    }

    async def visit(house: House) -> None:
        boss = await house.client("boss")
        await house.publish(boss, "boss", *TREES)
        await house.folded()
        every = [{"s": 0, "n": 102}, {"s": 1, "n": 4}]
        assert await rows(boss, "q") == every
        doors = {}
        for name, topics in grants.items():
            doors[name] = await house.client(name)
            doors[name].connection.permissions = read_permissions({"topic": topics}, "test")
        mine = [{"s": 0, "n": 2}, {"s": 1, "n": 4}]
        amy = doors["amy"]
        assert await rows(amy, "q") == mine
        assert await rows(boss, "s", "sow_and_subscribe") == every
        assert await rows(amy, "s", "sow_and_subscribe") == mine
        assert await rows(amy, "f", filter="/n = 2 OR /n = 100") == [{"s": 0, "n": 2}]
        assert await rows(amy, "g", filter="/n > 1") == [{"s": 0, "n": 2}, {"s": 1, "n": 3}]
        # What is shared is shared by those who may read the same.
        shared = house.server.parts.sow.status()["aggregations"]
        assert sorted(each["users"] for each in shared) == [1, 1]
        for name in ("bob", "eve"):
            assert await rows(doors[name], "q") == "not_entitled"
            assert await rows(doors[name], "s", "sow_and_subscribe") == "not_entitled"
        await house.publish(boss, "boss", {"id": 9, "s": 1, "n": 100, "desk": "rates"})
        await house.publish(boss, "boss", {"id": 0, "s": 1, "n": 7, "desk": "fx"})
        told: list[Any] = []
        while len(told) < 2:
            found = await frames_until(amy, lambda each: each["c"] == "p")
            told += [orjson.loads(each.body) for _, records in found for each in records]
        assert told == [{"s": 0, "n": 2}, {"s": 1, "n": 11}]

    in_house(tmp_path, visit)


@pytest.mark.covers("Views", "aggregations: built in turns")
def test_queries_of_a_client_that_leaves_end_wherever_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager, "TURN_S", 0.0)
    monkeypatch.setattr(aggregated, "TAKEN_AT_ONCE", 1)

    async def visit(house: House) -> None:
        boss, amy = await house.client("boss"), await house.client("amy")
        await house.publish(
            boss, "boss", *({"id": number, "s": number, "n": 1} for number in range(300))
        )
        await house.folded()
        sow = house.server.parts.sow
        assert len(await rows(boss, "s", "sow_and_subscribe")) == 300
        transport = amy.transport
        transport.high, transport.takes = 1, False
        # One that cannot send its rows, and, behind it, one that is ready and one that is built.
        amy.send(frame("sow", "one", batch=1))
        amy.send(frame("sow", "two"))
        amy.send(frame("sow_and_subscribe", "three"))
        amy.send(frame("sow", "four", filter="/n > 0"))
        while [each["users"] for each in sow.status()["aggregations"]] != [4, 1]:
            await asyncio.sleep(0)
        amy.connection.connection_lost(None)
        while [each["users"] for each in sow.status()["aggregations"]] != [1]:
            await asyncio.sleep(0)
        boss.send(encode_frame({"c": "unsubscribe", "sub": "all", "cid": "u"}))
        await boss.answer_to("u")
        assert sow.status()["aggregations"] == []

    in_house(tmp_path, visit)


@pytest.mark.covers("Views", "aggregations: what they refuse")
def test_a_client_is_charged_for_its_part_of_an_aggregation(tmp_path: Path) -> None:
    async def visit(house: House) -> None:
        boss = await house.client("boss")
        await house.publish(boss, "boss", *TREES)
        await house.folded()
        check = house.server.parts._checks().check
        assert len(await rows(boss, "s", "sow_and_subscribe")) == 2
        check()
        (shared,) = house.server.parts.sow.status()["aggregations"]
        assert boss.connection._shared_bytes == shared["memory_bytes"] > 0
        assert boss.connection.holding().memory_bytes >= shared["memory_bytes"]
        boss.send(encode_frame({"c": "unsubscribe", "sub": "all", "cid": "u"}))
        await boss.answer_to("u")
        check()
        assert boss.connection._shared_bytes == 0

    in_house(tmp_path, visit)
