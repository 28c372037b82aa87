"""A conflated topic over a topic with a pattern, of a whole instance without sockets: each of its
topics is queried and followed by its own name, and nobody publishes to them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from unit.server.clients.test_queries import CONFIG, House, ask, frames_until, group, in_house

from raylay.services.protocol.frames import encode_frame
from raylay.services.sow.definition import SowTopicDefinition
from raylay.services.views.definition import ConflatedTopicDefinition

pytestmark = pytest.mark.covers("Views", "conflated topics: a follower gets each record")

FX = SowTopicDefinition("fx", "json", keys=("/id",), pattern="^fx/")
SLOW = ConflatedTopicDefinition("slow", "json", "fx", 100_000, topic_format="slow/%n")


def test_each_topic_is_followed_and_queried_by_its_own_name(tmp_path: Path) -> None:
    async def visit(house: House) -> None:
        boss, amy = await house.client("boss"), await house.client("amy")
        for name, topic in (("one", "slow/fx/eur"), ("all", "^slow/")):
            header = {"c": "subscribe", "sub": name, "t": topic, "cid": name, "a": "processed"}
            amy.send(encode_frame(header))
            await frames_until(amy, lambda each, name=name: each.get("cid") == name)
        for topic in ("fx/eur", "fx/usd"):
            await house.publish(boss, "boss", {"id": 1, "of": topic}, topic=topic)
        given: dict[str, list[Any]] = {"one": [], "all": []}
        while sum(map(len, given.values())) < 3:
            *_, (header, records) = await frames_until(amy, lambda each: each["c"] == "p")
            given[header["sub"]] += [(each.topic, orjson.loads(each.body)) for each in records]
        eur = ("slow/fx/eur", {"id": 1, "of": "fx/eur"})
        assert given["one"] == [eur]
        assert sorted(given["all"], key=str) == [eur, ("slow/fx/usd", {"id": 1, "of": "fx/usd"})]
        for number, (topic, ids) in enumerate(
            (
                ("slow/fx/usd", ["fx/usd"]),
                ("slow", ["fx/eur", "fx/usd"]),
                ("^slow/fx/e", ["fx/eur"]),
            )
        ):
            amy.send(ask(f"q{number}", topic))
            rows, _ = await group(amy, f"q{number}")
            assert sorted(each["of"] for each in rows) == ids
        payload = house.records("boss", b'{"id": 1}', topic="slow/fx/eur")
        boss.send(encode_frame({"c": "pb", "n": 1}, payload))
        last = house.published["boss"]
        found = await frames_until(boss, lambda each: each.get("s", 0) >= last)
        assert found[-1][0]["reason"] == "reserved_topic"

    in_house(tmp_path, visit, replace(CONFIG, sow=(FX,), conflated_topics=(SLOW,)))
