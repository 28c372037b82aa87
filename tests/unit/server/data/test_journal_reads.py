"""Reads of the journal in the one thread: who asks for much waits for himself."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from unit.server.clients.test_queries import House, in_house

from raylay.services.messages.bookmarks import BOOKMARKS_MAX
from raylay.services.protocol.frames import encode_frame
from raylay.services.server.clients.replay import POINTS_AT_ONCE

pytestmark = pytest.mark.covers("Configuration", "replays and look-ups in the journal take turns")


def test_those_who_ask_take_turns(tmp_path: Path) -> None:
    async def visit(house: House) -> None:
        reading = house.server.parts.reading
        may_go = threading.Event()
        order: list[str] = []

        def read(who: str) -> str:
            may_go.wait()
            order.append(who)
            return who

        asked = [asyncio.ensure_future(reading.run(read, f"m{n}", of="m")) for n in range(20)]
        await asyncio.sleep(0)
        asked.append(asyncio.ensure_future(reading.run(read, "v", of="v")))
        await asyncio.sleep(0)
        gone = asyncio.ensure_future(reading.run(read, "gone", of="w"))
        await asyncio.sleep(0)
        gone.cancel()
        may_go.set()
        assert await asyncio.gather(*asked) == [f"m{n}" for n in range(20)] + ["v"]
        assert order.index("v") <= 3 and "gone" not in order
        assert [each for each in order if each != "v"] == [f"m{n}" for n in range(20)]

        def fails() -> None:
            raise ValueError("what it raises")

        with pytest.raises(ValueError, match="what it raises"):
            await reading.run(fails, of="m")
        assert not reading._waiting

    in_house(tmp_path, visit)


def test_who_waits_when_it_ends_is_told(tmp_path: Path) -> None:
    kept: list[Any] = []

    async def visit(house: House) -> None:
        reading = house.server.parts.reading
        may_go = threading.Event()
        asked = [asyncio.ensure_future(reading.run(may_go.wait)) for _ in range(5)]
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(reading.close())
        await asyncio.sleep(0)
        may_go.set()
        await closing
        kept.extend(await asyncio.gather(*asked, return_exceptions=True))

    in_house(tmp_path, visit)
    assert any(isinstance(each, asyncio.CancelledError) for each in kept) and len(kept) == 5


def test_others_read_while_a_long_list_of_bookmarks_is_looked_up(tmp_path: Path) -> None:
    async def visit(house: House) -> None:
        door, mallory = await house.client("p"), await house.client("mallory")
        await house.publish(door, "p", *({"id": number} for number in range(100)))
        reading = house.server.parts.reading
        parts: list[int] = []
        run = reading.run

        async def counted(work: Any, *arguments: Any, **named: Any) -> Any:
            if work.__name__ == "look_up" and arguments:
                parts.append(len(arguments[0]))
            return await run(work, *arguments, **named)

        reading.run = counted  # type: ignore[method-assign]
        count = 10 * POINTS_AT_ONCE
        for name, bookmark in (
            ("messages", ",".join(f"{number}|1|" for number in range(1, count + 1))),
            ("times", ",".join(f"20260102T030405.{number:06}Z" for number in range(count))),
            ("same", ",".join(["7|7|"] * BOOKMARKS_MAX)),
        ):
            header = {"c": "subscribe", "sub": name, "t": "orders", "bm": bookmark, "cid": name}
            parts.clear()
            mallory.send(encode_frame(header))
            await mallory.answer_to(name)
            assert all(each <= POINTS_AT_ONCE for each in parts)
            assert len(parts) == (0 if name == "same" else 10), name

    in_house(tmp_path, visit)
