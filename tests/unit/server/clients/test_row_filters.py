"""Row filters of permissions where a client reads by a regular expression, and where it deletes by
a filter: what a row filter hides is neither given nor deleted, and nothing tells of it."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import orjson
import pytest
from unit.server.clients.test_client_occurrences import known_users
from unit.server.clients.test_queries import CONFIG, House, frames_until, in_house
from unit.test_doors import Door

from raylay.services.messages.records import Command
from raylay.services.protocol.frames import encode_frame
from raylay.services.sow.definition import SowTopicDefinition
from raylay.services.sow.state import SowRules

pytestmark = pytest.mark.covers("Configuration", "a row filter hides what it does not pass")

FX = "/desk = 'fx'"
AMY = {
    "logon": True,
    "topic": [
        {"topic": "(orders|notes|views/.*|past)", "read": FX, "write": FX},
        {"topic": "mine/.*", "read": FX, "write": FX},
        {"topic": "staff", "read": True, "select": "-/pay"},
        {"topic": "rows", "read": FX, "select": "-/pay"},
        {"topic": "(free|all)", "read": True},
    ],
}
HIDDEN = "nobody-may-see-this"
"""A text in all that amy may not read, and in nothing else."""
PAST = SowTopicDefinition("past", "json", keys=("/id",), rules=SowRules(window_us=10**12))
ALL = SowTopicDefinition("all", "json", keys=("/id",), pattern="^(mine|others)/")
FREE = SowTopicDefinition("free", "json", keys=("/id",))
ORDERS = SowTopicDefinition("orders", "json", keys=("/id",), rules=SowRules(expires=True))
FOUND = replace(CONFIG, sow=(ORDERS, FREE, ALL, PAST))


def order(number: int, desk: str, **more: Any) -> dict[str, Any]:
    text = "" if desk == "fx" else HIDDEN
    return {"id": number, "desk": desk, "text": text, **more}


class Visit:
    """Boss, who may do everything, and amy."""

    def __init__(self, house: House, boss: Door, amy: Door) -> None:
        self.house = house
        self.boss = boss
        self.amy = amy
        self.early: list[tuple[str, str, Any]] = []
        """Returns the messages that came before the ack of amy's last command."""

    async def publish(self, *trees: Any, topic: str = "orders", **more: Any) -> None:
        await self.house.publish(self.boss, "boss", *trees, topic=topic, **more)
        await self.house.folded()

    async def delete(self, topic: str = "orders", **said: Any) -> None:
        body = msgpack.packb(said)
        await self.publish(body, topic=topic, command=Command.DELETE)

    async def say(
        self, name: str, topic: str, command: str, ack: str = "processed", **more: Any
    ) -> Any:
        """Sends a command of amy's; returns the header of its ack. `early` has what came before."""
        header: dict[str, Any] = {"c": command, "sub": name, "t": topic, "cid": name, "a": ack}
        bookmark = more.pop("bookmark", None)
        if bookmark is not None:
            header["bm"] = bookmark
        self.amy.send(encode_frame(header | {"o": more}))
        frames = await frames_until(self.amy, lambda each: each.get("cid") == name)
        assert "reason" not in frames[-1][0], frames
        assert HIDDEN not in str(frames)
        self.early = [
            (header["sub"], header.get("r", ""), orjson.loads(record.body))
            for header, records in frames
            for record in records
        ]
        return frames[-1][0]

    async def deletes(self, topic: str = "orders", **said: Any) -> str:
        """Deletes as amy; returns the reason of a refusal, or nothing."""
        payload = self.house.records(
            "amy", msgpack.packb(said), topic=topic, command=Command.DELETE
        )
        sequence = self.house.published["amy"]
        self.amy.send(encode_frame({"c": "pb", "n": 1}, payload))
        found = await frames_until(
            self.amy, lambda each: each.get("a") == "persisted" and each["s"] >= sequence
        )
        await self.house.folded()
        assert HIDDEN not in str(found)
        return "".join(each.get("reason", "") for each, _ in found)

    async def left(self) -> list[int]:
        """Returns the ids of all orders, as the boss sees them."""
        header = {"c": "sow", "sub": "left", "t": "orders", "cid": "left", "a": "completed"}
        self.boss.send(encode_frame(header))
        found = await frames_until(self.boss, lambda each: each.get("a") == "completed")
        return sorted(orjson.loads(record.body)["id"] for _, records in found for record in records)

    async def ask(self, name: str, topic: str, command: str = "sow", **more: Any) -> Any:
        """Returns the rows of a query, and its statistics."""
        header: dict[str, Any] = {"c": command, "sub": name, "t": topic, "cid": name, "a": "stats"}
        bookmark = more.pop("bookmark", None)
        if bookmark is not None:
            header["bm"] = bookmark
        self.amy.send(encode_frame(header | {"o": more}))
        found = await frames_until(self.amy, lambda each: each.get("cid") == name)
        rows = [
            (record.topic, orjson.loads(record.body)["id"])
            for header, records in found
            if header["c"] == "sow"
            for record in records
        ]
        header = found[-1][0]
        assert HIDDEN not in str(found)
        return sorted(rows), (header.get("matches"), header.get("topic_matches"))

    async def given(self) -> list[tuple[str, str, dict[str, Any]]]:
        """Returns what amy was given until now: the subscription, the reason of a notice (empty of
        a message) and the message."""
        self.amy.send(encode_frame({"c": "ping", "cid": "mark"}))
        found: list[tuple[str, str, Any]] = []
        for header, records in await frames_until(self.amy, lambda each: each.get("cid") == "mark"):
            for record in records:
                found.append((header["sub"], header.get("r", ""), orjson.loads(record.body)))
        assert HIDDEN not in str(found)
        return found


def visited(directory: Path, visit: Callable[[Visit], Awaitable[None]]) -> None:
    async def begun(house: House) -> None:
        boss = await house.client("boss")
        amy = await house.client("amy", "known", user_id="amy")
        await visit(Visit(house, boss, amy))

    known = known_users(directory, {"amy": AMY})
    in_house(directory, begun, replace(FOUND, client_transports=(*FOUND.client_transports, known)))


def test_a_live_subscription_gets_what_the_row_filter_passes(tmp_path: Path) -> None:
    async def visit(at: Visit) -> None:
        await at.say("all", ".*", "subscribe")
        await at.say("some", "^ord.*s", "subscribe", filter="/id > 1")
        await at.say("seen", ".*", "subscribe", filter=f"/text = '{HIDDEN}' OR 1 = 1")
        for topic in ("orders", "notes", "free", "staff", "rows", "others"):
            desk = "fx" if topic == "free" else "rates"
            await at.publish(order(1, desk), order(2, "fx"), topic=topic)
        await at.publish(HIDDEN.encode(), topic="notes")
        found = await at.given()
        ids = {
            name: [body["id"] for sub, _, body in found if sub == name]
            for name in ("all", "some", "seen")
        }
        assert ids["all"] == ids["seen"] == [2, 2, 1, 2], found
        assert ids["some"] == [2]

    visited(tmp_path, visit)


def test_a_follower_by_an_expression_sees_records_come_and_go_within_the_row_filter(
    tmp_path: Path,
) -> None:
    """An update of a hidden record tells nothing, not even that its key exists; a record that
    becomes hidden leaves as it was."""

    async def visit(at: Visit) -> None:
        await at.publish(order(1, "fx"), order(2, "rates"), order(3, "fx"), order(4, "rates"))
        await at.say("f", "ord.*", "sow_and_subscribe", "completed", oof=True, delta=True)
        assert [body["id"] for _, _, body in at.early] == [1, 3], "the rows"
        await at.publish(order(2, "rates", n=1))  # hidden, and stays so
        await at.publish(order(1, "rates"))  # leaves
        await at.publish(order(4, "fx"))  # comes
        await at.publish(order(3, "fx", n=1))  # stays
        await at.delete(filter="/id IN (2, 1)")  # hidden ones
        await at.delete(filter="/id = 4")
        await at.publish(order(5, "rates"), expiration_s=1)
        found = [(reason, body.get("desk"), body["id"]) for _, reason, body in await at.given()]
        assert found == [
            ("match", "fx", 1), ("", "fx", 4), ("", None, 3), ("deleted", "fx", 4)
        ]  # fmt: skip

    visited(tmp_path, visit)


def test_a_query_by_an_expression_has_the_rows_that_the_row_filter_passes(tmp_path: Path) -> None:
    """The number, the order and the statistics are as if there were no other records."""

    async def visit(at: Visit) -> None:
        for topic in ("orders", "free", "past", "mine/a", "mine/b", "others/a"):
            desk = "fx" if topic == "free" else "rates"
            await at.publish(order(1, desk), order(2, "fx"), order(3, desk), topic=topic)
        mine = [("free", 1), ("free", 2), ("mine/a", 2), ("mine/b", 2), ("orders", 2), ("past", 2)]
        plain = [each for each in mine if each != ("free", 1)]
        free = ("free", 3)
        assert await at.ask("q1", ".*") == (sorted([*mine, free]), (7, 7))
        assert await at.ask("q2", ".*", filter="/id < 3") == (mine, (6, 6))
        assert await at.ask("q3", ".*", filter=f"/text = '{HIDDEN}'") == ([], (0, 0))
        rows, _ = await at.ask("q4", ".*", top_n=3, skip_n=1, order_by="/id DESC")
        assert len(rows) == 3 and set(rows) <= {*plain, ("free", 2)}
        assert (await at.ask("q5", "mine/.*"))[0] == [("mine/a", 2), ("mine/b", 2)]
        assert (await at.ask("q6", "all"))[0] == [("mine/a", 2), ("mine/b", 2)], "by its own name"
        assert (await at.ask("q7", "(staff|rows|others.*)", "sow_and_subscribe"))[0] == []
        assert await at.ask("q8", "pa.*", as_of="20991231T000000Z") == ([("past", 2)], (1, 1))

    visited(tmp_path, visit)


def test_a_replay_by_an_expression_gives_what_the_row_filter_passes(tmp_path: Path) -> None:
    async def visit(at: Visit) -> None:
        for topic in ("orders", "notes", "free", "others"):
            desk = "fx" if topic == "free" else "rates"
            await at.publish(order(1, desk), order(2, "fx"), topic=topic)
        await at.publish(HIDDEN.encode(), topic="notes")
        for name, more, ids in (
            ("all", {}, [2, 2, 1, 2]),
            ("one", {"filter": "/id = 1"}, [1]),
            ("seen", {"filter": f"/text = '{HIDDEN}'"}, []),
        ):
            stats = await at.say(name, ".*", "subscribe", "stats", bookmark="0", **more)
            assert stats["matches"] == stats["topic_matches"] == len(ids)
            found = [body["id"] for sub, _, body in at.early if sub == name]
            assert found == ids, name
        rows, _ = await at.ask("h", "ord.*", "sow_and_subscribe", bookmark="0")
        assert rows in ([], [("orders", 2)])
        await at.publish(order(8, "rates"), order(9, "fx"))
        found: list[tuple[str, int]] = []
        while len(found) < 2:
            *_, (header, records) = await frames_until(at.amy, lambda each: each["c"] == "p")
            found += [(header["sub"], orjson.loads(each.body)["id"]) for each in records]
        assert sorted(found) == [("all", 9), ("h", 9)]

    visited(tmp_path, visit)


def test_a_replaced_subscription_tells_only_of_what_it_might_see(tmp_path: Path) -> None:
    async def visit(at: Visit) -> None:
        await at.publish(*(order(number, "fx" if number % 2 else "rates") for number in range(6)))
        await at.say("r", "ord.*", "sow_and_subscribe", "completed", oof=True, filter="/id < 4")
        assert [body["id"] for _, _, body in at.early] == [1, 3]
        more = {"filter": "/id > 2", "replace": True}
        await at.say("r", "ord.*", "sow_and_subscribe", "completed", oof=True, **more)
        found = [(reason, body["id"]) for _, reason, body in at.early]
        assert sorted(found) == [("", 5), ("match", 1)]

    visited(tmp_path, visit)


def test_a_delete_by_filter_removes_what_passes_the_row_filter_too(tmp_path: Path) -> None:
    """Whatever it asks for; a delete by keys or by a message is refused as before, and so is one of
    a topic that may not be written."""

    async def visit(at: Visit) -> None:
        await at.publish(*(order(number, "fx" if number % 2 else "rates") for number in range(6)))
        await at.publish(order(1, "fx"), topic="free")
        for said, ids in (
            ({"filter": f"/text = '{HIDDEN}' OR /id = 5"}, [0, 1, 2, 3, 4]),
            ({"filter": "/id < 3"}, [0, 2, 3, 4]),
            ({"filter": "1 = 1"}, [0, 2, 4]),
        ):
            assert await at.deletes(**said) == ""
            assert await at.left() == ids
        for said in ({"data": orjson.dumps({"id": 0})}, {"keys": [b"0"]}):
            assert await at.deletes(**said) == "not_entitled"
        assert await at.deletes("free", filter="1 = 1") == "not_entitled"
        assert await at.deletes(filter="/id =") == "bad_filter"
        await at.publish(order(0, "fx"))
        await at.house.folded()
        assert await at.deletes(filter="/id < 3") == "" and await at.left() == [2, 4]

    visited(tmp_path, visit)


@pytest.mark.parametrize("seed", range(4))
def test_a_follower_holds_what_it_may_read_after_any_changes(tmp_path: Path, seed: int) -> None:
    """A follower of everything that applies what comes has the readable records, and never got
    anything of another one."""
    drawn = random.Random(seed)

    async def visit(at: Visit) -> None:
        topics = ("orders", "free", "mine/a")
        await at.say("f", ".*", "sow_and_subscribe", oof=True)
        state: dict[tuple[str, int], str] = {}
        holds: set[tuple[str, int]] = set()
        for _ in range(40):
            topic, number = drawn.choice(topics), drawn.randrange(5)
            if drawn.random() < 0.2:
                await at.delete(topic, filter=f"/id = {number}")
                state.pop((topic, number), None)
            else:
                desk = drawn.choice(("fx", "rates")) if topic != "free" else "fx"
                await at.publish(order(number, desk, of=topic), topic=topic)
                state[topic, number] = desk
        for _, reason, body in await at.given():
            (holds.discard if reason else holds.add)((body["of"], body["id"]))
        assert holds == {key for key, desk in state.items() if desk == "fx"}
        rows, _ = await at.ask("q", ".*")
        assert set(rows) == holds

    visited(tmp_path, visit)
