"""What one client says at once is taken in turns: others come in between, and the order stays."""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support import attacker
from unit.server.clients.test_queries import House, frames_until, in_house

from raylay.services.errors import RemoteProtocolError
from raylay.services.protocol.client.subscribe import UNSUBSCRIBED_MAX
from raylay.services.protocol.frames import (
    LONG_HEADER_VALUES_MAX,
    FrameReader,
    encode_frame,
)
from raylay.services.server import turns

pytestmark = pytest.mark.covers("Configuration", "thousands of commands at once are taken in turns")

MANY = 300


@pytest.fixture(autouse=True)
def one_command_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "TURN_S", 0.0)


def test_others_are_answered_between_the_commands_of_who_says_many(tmp_path: Path) -> None:
    async def visit(house: House) -> None:
        much, many = await house.client("much"), await house.client("many")
        other = await house.client("other")
        for each in (much, many):
            each.send(b"".join(attacker.subscribe(f"s{n}", "orders") for n in range(MANY)))
        other.send(attacker.ping("between"))
        await other.answer_to("between")
        assert len(house.server.parts.clients.live) < 2 * MANY
        for each in (much, many):
            found = await frames_until(each, lambda header: header.get("cid") == f"s{MANY - 1}")
            # As they were said, each once.
            assert [header["cid"] for header, _ in found] == [f"s{n}" for n in range(MANY)]
        assert len(house.server.parts.clients.live) == 2 * MANY

    in_house(tmp_path, visit)


def test_what_comes_behind_many_commands_and_behind_a_look_into_the_journal_keeps_its_order(
    tmp_path: Path,
) -> None:
    async def visit(house: House) -> None:
        door = await house.client("p")
        pings = b"".join(attacker.ping(f"a{n}") for n in range(MANY))
        await house.publish(door, "p", {"id": 1}, {"id": 2})
        again = await house.client("p")
        house.published["p"] = 0
        records = house.records("p", b'{"id":1}', b'{"id":2}', b'{"id":3}')
        resent = encode_frame({"c": "pb", "n": 3, "r": "solo"}, records)
        again.send(pings + resent + attacker.subscribe("s", "orders") + attacker.ping("last"))
        found = await frames_until(again, lambda header: header.get("cid") == "last")
        said = [header["cid"] for header, _ in found if header.get("cid")]
        assert said == [*(f"a{n}" for n in range(MANY)), "s", "last"]
        again.send(attacker.ping("read on"))
        await again.answer_to("read on")

    in_house(tmp_path, visit)


def test_who_ends_in_the_middle_of_what_it_said_leaves_nothing(tmp_path: Path) -> None:
    async def visit(house: House) -> None:
        door, other = await house.client("p"), await house.client("other")
        door.send(b"".join(attacker.subscribe(f"s{n}", "orders") for n in range(MANY)))
        other.send(attacker.ping("between"))
        await other.answer_to("between")
        door.connection.connection_lost(None)
        while house.server.parts.clients.turns.turns.is_scheduled:
            await asyncio.sleep(0)
        assert len(house.server.parts.clients.live) == 0

    in_house(tmp_path, visit)


def test_a_long_header_of_too_many_values_is_refused() -> None:
    """One of four million empty arrays took 3.5 s of the loop."""
    for many in (b"\x90", b"\x91\x01", b"\x80", b"\x01"):
        count = LONG_HEADER_VALUES_MAX + 1
        packed = b"\x82\xa1c\xa4ping\xa1o\xdd" + count.to_bytes(4, "big") + many * count
        length = len(packed).to_bytes(4, "little")
        frame = (6 + len(packed)).to_bytes(4, "little") + b"\xff\xff" + length + packed
        with pytest.raises(RemoteProtocolError) as raised:
            FrameReader().feed(frame)
        assert raised.value.reason == "bad_frame"
    right = attacker.long_header(LONG_HEADER_VALUES_MAX // 2)
    assert len(FrameReader().feed(right)) == 1


def test_as_many_subscriptions_are_ended_at_once_as_there_may_be(tmp_path: Path) -> None:
    async def visit(house: House) -> None:
        door = await house.client("p")
        for many, status in ((UNSUBSCRIBED_MAX, "success"), (UNSUBSCRIBED_MAX + 1, "failure")):
            door.send(attacker.long_header(many))
            found = await frames_until(door, lambda header: header.get("cid") == "u")
            assert found[-1][0]["status"] == status

    in_house(tmp_path, visit)


def test_a_reader_gives_so_many_frames_and_the_rest_when_it_is_asked_again() -> None:
    reader = FrameReader(frames_max=3)
    data = b"".join(attacker.ping(f"{n}") for n in range(7))
    found = [reader.feed(data[:-1]), reader.feed(b""), reader.feed(data[-1:]), reader.feed(b"")]
    assert [len(each) for each in found] == [3, 3, 1, 0]
    assert [header["cid"] for each in found for header, _ in each] == [f"{n}" for n in range(7)]


def test_a_turn_that_fails_leaves_threads_as_they_were_and_others_their_turn() -> None:
    """Spaced turns on a loop that is passed by hand."""
    usual_s = sys.getswitchinterval()
    loop: Any = SimpleNamespace(due=deque())
    loop.call_soon = lambda work: loop.due.append(work)
    found: list[float] = []

    def turn() -> bool:
        found.append(sys.getswitchinterval())
        if len(found) == 1:
            raise ValueError("a fault")
        return len(found) < 3

    spaced = turns.SpacedTurns(cast(Any, SimpleNamespace(loop=loop)), turn)
    spaced.schedule()
    spaced.schedule()
    passes = faults = 0
    while loop.due:
        passes += 1
        try:
            loop.due.popleft()()
        except ValueError:
            faults += 1
        assert sys.getswitchinterval() == usual_s
    assert faults == 1 and len(found) == 3 and passes == 3 * turns.PASSES
    assert found == pytest.approx([turns.SWITCH_S] * 3) and not spaced.is_scheduled
