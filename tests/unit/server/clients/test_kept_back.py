"""Counts of what may not be read: nobody is told them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from unit.server.clients.test_queries import CONFIG, House, ask, frames_until, in_house
from unit.test_doors import Door

from raylay.services.messages.topics import TopicRule
from raylay.services.protocol.frames import encode_frame
from raylay.services.security.permissions import read_permissions
from raylay.services.sow.definition import SowTopicDefinition

pytestmark = pytest.mark.covers("Configuration", "statistics of a query tell of no record")

FX = {
    "topic": [{"topic": "orders", "read": "/desk = 'fx'"}, {"topic": "(all|mine/.*)", "read": True}]
}
ALL = SowTopicDefinition("all", "json", keys=("/id",), pattern="^(mine|others)/")


async def stats(
    door: Door,
    name: str,
    topic: str = "orders",
    command: str = "sow",
    bookmark: str = "",
    **options: Any,
) -> tuple[int, int]:
    header = {"c": command, "sub": name, "t": topic, "cid": name, "a": "stats", "bm": bookmark}
    door.send(encode_frame(header | {"o": options}))
    found = await frames_until(door, lambda each: each.get("a") == "stats")
    return found[-1][0]["matches"], found[-1][0]["topic_matches"]


def test_statistics_tell_nothing_of_what_may_not_be_read(tmp_path: Path) -> None:
    """Whether there is a record of a key, or with a value, a filter would tell by its counts."""

    async def visit(house: House) -> None:
        boss, amy = await house.client("boss"), await house.client("amy")
        desks = ["fx"] * 3 + ["rates"] * 17
        trees = [
            {"id": number, "desk": desk, "s": f"s{number}"} for number, desk in enumerate(desks)
        ]
        await house.publish(boss, "boss", *trees)
        for topic in ("mine/a", "others/a", "others/b"):
            await house.publish(boss, "boss", {"id": topic}, topic=topic)
        await house.folded()
        amy.connection.permissions = read_permissions(FX, "test")
        keys = [record.key for _, records in await rows(boss) for record in records]
        assert len(keys) == 20
        for number, options in enumerate(
            ({"filter": "/id = 15"}, {"filter": "/s = 's15'"}, {"keys": keys[:1]}, {"keys": keys})
        ):
            one, two = await stats(amy, f"a{number}", **options)
            assert one == two <= 3, options
        assert await stats(boss, "b", filter="/s = 's15' OR /id = 1") == (2, 20), "as ever"
        assert await stats(amy, "pattern", topic="all") == (1, 1)
        replay = {"command": "subscribe", "bookmark": "0", "filter": "/id > 10"}
        assert await stats(amy, "r", **replay) == (0, 0)
        assert (await stats(boss, "r", **replay))[1] == 20

    async def rows(door: Door) -> list[Any]:
        door.send(ask("rows"))
        return await frames_until(door, lambda each: each["c"] == "group_end")

    config = replace(CONFIG, topics=(TopicRule(".*"),), sow=(*CONFIG.sow, ALL))
    in_house(tmp_path, visit, config)
