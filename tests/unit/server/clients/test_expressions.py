"""Regular expressions of subscriptions, of a whole instance: those of one client have a limit."""

from __future__ import annotations

from pathlib import Path

import pytest
from unit.server.clients.test_queries import House, in_house
from unit.test_doors import Door

from raylay.services.protocol.frames import encode_frame

pytestmark = pytest.mark.covers("Configuration", "subscriptions of one user are bounded together")

LARGE = "(%d|[a-zé-ü]{1,900}x?[0-9a-fé-ü]{1,90})"


@pytest.mark.parametrize("bookmark", ["", "0|1|"])
def test_a_client_has_so_many_expressions_and_others_have_their_own(
    tmp_path: Path, bookmark: str
) -> None:
    async def subscribed(door: Door, name: str, number: int) -> str:
        topic = LARGE % number
        header = {"c": "subscribe", "sub": name, "t": topic, "cid": name, "bm": bookmark}
        door.send(encode_frame(header))
        answer = await door.answer_to(name)
        return str(answer.get("reason", ""))

    async def visit(house: House) -> None:
        mallory, victim = await house.client("mallory"), await house.client("victim")
        count = 0
        while not (reason := await subscribed(mallory, f"s{count}", count)):
            count += 1
        assert reason == "too_many" and 5 < count < 100
        assert not await subscribed(victim, "v", 1)
        mallory.send(encode_frame({"c": "unsubscribe", "sub": "s0", "cid": "u"}))
        await mallory.answer_to("u")
        assert not await subscribed(mallory, "again", 1)
        assert await subscribed(mallory, "more", 1) == "too_many"
        assert mallory.connection.is_open

    in_house(tmp_path, visit)
