"""What commands keep in memory has a limit in sum, and is given back when they end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from unit.server.clients.test_queries import House, SlowTransport, ask, frames_until, in_house
from unit.test_doors import Door

from raylay.services.messages.ranges import PublisherRanges
from raylay.services.protocol.frames import encode_frame
from raylay.services.security.retained_bytes import RetainedBytes, keys_bytes

pytestmark = pytest.mark.covers("Configuration", "what commands keep")

HAVE = PublisherRanges()
for _chunk in range(100):
    HAVE.add(7, _chunk * 8_192 + 4_094, _chunk * 8_192 + 4_094)
KEYS = [number.to_bytes(16, "big") for number in range(1_000)]
AT_ONCE = 3


def subscribe(sub: str, **options: Any) -> bytes:
    header = {"c": "subscribe", "sub": sub, "t": "orders", "cid": sub, "bm": "0"}
    return encode_frame({**header, "o": {"have": HAVE.to_wire(), **options}})


def unsubscribe(*subs: str) -> bytes:
    return encode_frame({"c": "unsubscribe", "cid": "u", "sub": list(subs)})


def limited(house: House, size_bytes: int) -> RetainedBytes:
    """Room for three of these on a connection."""
    kept = RetainedBytes(4 * (AT_ONCE * size_bytes + size_bytes // 2))
    house.server.parts.clients.retained = kept
    return kept


async def comes(wanted: Callable[[], bool]) -> None:
    """Waits until it is so: commands are taken in turns of the loop, and looked up in threads."""
    while not wanted():
        await asyncio.sleep(0)


async def reason(door: Door, name: str) -> str:
    answer = await door.answer_to(name)
    return str(answer.get("reason", ""))


def test_what_subscribers_have_is_limited_in_sum(tmp_path: Path) -> None:
    """Each of 10,000 subscriptions of a connection could keep 90 MB."""

    async def visit(house: House) -> None:
        kept = limited(house, HAVE.memory_bytes)
        door = await house.client("s")
        for number in range(AT_ONCE):
            door.send(subscribe(f"s{number}", pause=number == 0))
            assert not await reason(door, f"s{number}")
        assert kept.bytes == AT_ONCE * HAVE.memory_bytes
        door.send(subscribe("more"))
        assert await reason(door, "more") == "too_many"
        assert "more" not in door.connection.subscriptions
        door.send(subscribe("none", have=None))
        assert not await reason(door, "none")
        door.send(unsubscribe("s0", "s1", "none"))
        await door.answer_to("u")
        assert kept.bytes == HAVE.memory_bytes
        # One that is ended while its start is looked up.
        door.send(subscribe("short"), unsubscribe("short"), subscribe("next"))
        assert not await reason(door, "next")
        await comes(lambda: kept.bytes == 2 * HAVE.memory_bytes)
        door.send(subscribe("bad", filter="/id >"))
        assert await reason(door, "bad") == "bad_filter"
        assert kept.bytes == 2 * HAVE.memory_bytes
        door.connection.connection_lost(None)
        assert not kept.bytes and not len(kept)

    in_house(tmp_path, visit)


async def busy(house: House) -> tuple[Door, SlowTransport]:
    """A client whose query waits for its socket, so that others wait for that."""
    writer = await house.client("p")
    await house.publish(writer, "p", *[{"id": n, "s": "y" * 1_000} for n in range(500)])
    door = await house.client("q")
    transport = door.transport
    assert isinstance(transport, SlowTransport)
    transport.takes = False
    transport.high = 1_000
    door.send(ask("first", batch=1))
    await comes(lambda: transport.is_paused)
    return door, transport


def test_keys_of_queries_that_wait_are_limited_in_sum(tmp_path: Path) -> None:
    async def visit(house: House) -> None:
        size_bytes = keys_bytes(KEYS)
        kept = limited(house, size_bytes)
        door, transport = await busy(house)
        queries = house.server.parts.clients.queries
        for number in range(AT_ONCE):
            door.send(ask(f"k{number}", keys=KEYS))
        door.send(ask("more", keys=KEYS), ask("bad", keys=KEYS[:9], filter="/id >"), ask("plain"))
        await comes(lambda: len(queries) == AT_ONCE + 2)
        assert kept.bytes == AT_ONCE * size_bytes
        door.send(unsubscribe("k0"))
        await comes(lambda: len(queries) == AT_ONCE + 1)
        assert kept.bytes == (AT_ONCE - 1) * size_bytes
        door.send(ask("again", keys=KEYS))
        await comes(lambda: len(queries) == AT_ONCE + 2)
        assert kept.bytes == AT_ONCE * size_bytes
        transport.drain()
        found = await frames_until(
            door, lambda each: each.get("a") == "completed" and each.get("cid") == "again"
        )
        refused = {each["cid"]: each["reason"] for each, _ in found if each.get("reason")}
        assert refused == {"more": "too_many", "bad": "bad_filter"}
        assert not kept.bytes and not len(queries)

    in_house(tmp_path, visit)


def test_keys_of_a_subscription_count_until_it_ends(tmp_path: Path) -> None:
    async def visit(house: House) -> None:
        size_bytes = keys_bytes(KEYS)
        kept = limited(house, size_bytes)
        door = await house.client("q")
        for number in range(AT_ONCE):
            door.send(ask(f"k{number}", command="sow_and_subscribe", keys=KEYS))
            await frames_until(door, lambda each: each.get("a") == "completed")
        assert kept.bytes == AT_ONCE * size_bytes
        door.send(ask("more", command="sow_and_subscribe", keys=KEYS))
        assert await reason(door, "more") == "too_many"
        assert "more" not in door.connection.resolving
        door.send(unsubscribe("k0", "k1"))
        await door.answer_to("u")
        # One takes the place of the other: for the moment both count.
        door.send(ask("k2", command="sow_and_subscribe", keys=KEYS[:500], replace=True))
        await frames_until(door, lambda each: each.get("a") == "completed")
        assert kept.bytes == keys_bytes(KEYS[:500])
        door.send(encode_frame({"c": "unsubscribe", "cid": "all", "sub": "all"}))
        await door.answer_to("all")
        assert not kept.bytes

    in_house(tmp_path, visit)


def test_who_leaves_gives_all_back(tmp_path: Path) -> None:
    async def visit(house: House) -> None:
        kept = limited(house, keys_bytes(KEYS))
        door, _ = await busy(house)
        door.send(ask("k", keys=KEYS), ask("s", command="sow_and_subscribe", keys=KEYS[:9]))
        await comes(lambda: len(house.server.parts.clients.queries) == 3)
        assert kept.bytes == keys_bytes(KEYS) + keys_bytes(KEYS[:9])
        door.connection.connection_lost(None)
        assert not kept.bytes and not len(kept) and not len(house.server.parts.clients.queries)

    in_house(tmp_path, visit)
