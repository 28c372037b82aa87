"""Sessions that end: what they had is given up, of many subscriptions in turns."""

from __future__ import annotations

import asyncio
from pathlib import Path

from unit.server.clients.test_queries import House, in_house

from raylay.services.protocol.frames import encode_frame
from raylay.services.server.clients.sessions import LEAVING_AT_ONCE

MANY = 4 * LEAVING_AT_ONCE


def test_a_session_with_many_subscriptions_gives_them_up_in_turns(tmp_path: Path) -> None:
    """10,000 of them, with filters, held everybody up for seconds."""

    async def visit(house: House) -> None:
        clients = house.server.parts.clients
        door, other = await house.client("many"), await house.client("other")
        kinds = ({}, {"o": {"filter": "/id = 7"}}, {"o": {"oof": True}}, {"bm": "0|1|"})
        for number in range(MANY):
            header = {"c": "subscribe", "sub": f"s{number}", "t": "^pat/", "cid": f"c{number}"}
            door.send(encode_frame({**header, **kinds[number % 4]}))
            await door.answer_to(f"c{number}")
        other.send(encode_frame({"c": "subscribe", "sub": "o", "t": "pat/x", "cid": "o"}))
        await other.answer_to("o")

        def kept() -> int:
            return len(clients.live) + len(clients.replays)

        assert kept() == MANY + 1
        taken: list[int] = []
        door.connection.connection_lost(None)
        assert not door.connection.subscriptions and door.connection.number not in clients.sessions
        while kept() > 1:
            taken.append(kept())
            await asyncio.sleep(0)
        assert len(taken) >= 3
        steps = [
            before - after for before, after in zip((MANY + 1, *taken), (*taken, 1), strict=True)
        ]
        assert max(steps) <= LEAVING_AT_ONCE
        # Nothing went wrong with who stays.
        await house.publish(other, "other", {"id": 7}, topic="pat/x")

    in_house(tmp_path, visit)


def test_who_is_given_up_is_given_nothing_meanwhile(tmp_path: Path) -> None:
    async def visit(house: House) -> None:
        clients = house.server.parts.clients
        door, other = await house.client("many"), await house.client("other")
        for number in range(2 * LEAVING_AT_ONCE):
            header = {"c": "subscribe", "sub": f"s{number}", "t": "^pat/", "cid": f"c{number}"}
            door.send(encode_frame(header))
            await door.answer_to(f"c{number}")
        delivered = clients.delivered
        door.connection.connection_lost(None)
        assert len(clients.live) == LEAVING_AT_ONCE
        other.connection.data_received(
            encode_frame({"c": "pb", "n": 1}, house.records("other", b"{}", topic="pat/x"))
        )
        await other.until(lambda each: each.get("a") == "persisted")
        assert clients.delivered == delivered and not len(clients.live)

    in_house(tmp_path, visit)
