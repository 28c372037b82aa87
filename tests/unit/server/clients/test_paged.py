"""Pages of a whole instance, without sockets: the query, the window that follows it, replacements,
and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import orjson
import pytest
from unit.server.clients.test_queries import CONFIG, House, ask, frames_until, group, in_house
from unit.test_doors import Door

from raylay.services.expressions.budgets import BURST_STEPS
from raylay.services.messages.records import Command
from raylay.services.protocol.frames import encode_frame
from raylay.services.security.permissions import read_permissions
from raylay.services.server.clients import pages as pages_module
from raylay.services.subscriptions import pages as pages_of

pytestmark = pytest.mark.covers("Views", "paginated subscriptions: who applies")

PAGE: dict[str, Any] = {"top_n": 3, "skip_n": 0, "order_by": "/p DESC, /id", "oof": True}


def page(name: str = "page", topic: str = "orders", **options: Any) -> bytes:
    return ask(name, topic, "sow_and_subscribe", **{**PAGE, **options})


class Shown:
    """The rows that a client shows of one page: those of its queries, and what came behind them."""

    def __init__(self, door: Door, name: str = "page") -> None:
        self.door = door
        self.name = name
        self.rows: dict[bytes, Any] = {}
        self.came: list[tuple[str, Any]] = []

    async def began(self) -> Any:
        """Takes a group. Returns its end."""
        found = await frames_until(
            self.door, lambda each: each.get("a") == "completed" and each["cid"] == self.name
        )
        self._take(found)
        return next(header for header, _ in found if header["c"] == "group_end")

    def _take(self, found: Any) -> None:
        for header, records in found:
            if header.get("sub") != self.name:
                continue
            for record in records:
                body = orjson.loads(record.body)
                self.came.append((header.get("r") or header["c"], body))
                if header["c"] == "oof":
                    del self.rows[record.key]
                elif record.command == Command.DELTA_PUBLISH:
                    self.rows[record.key] |= body
                else:
                    self.rows[record.key] = body

    async def settled(self, house: House) -> list[Any]:
        """Takes what a commit has brought. Returns the rows in order."""
        await house.folded()
        self.door.send(ask("settled", "orders", top_n=1))
        self._take(await frames_until(self.door, lambda each: each.get("a") == "completed"))
        return self.now

    @property
    def now(self) -> list[Any]:
        return sorted(self.rows.values(), key=lambda each: (-each["p"], each["id"]))


@pytest.mark.covers("Views", "`top_n` and `skip_n` of a subscription")
@pytest.mark.covers("Views and conflation, title by title", "a paginated subscription")
def test_a_page_follows_its_rows(tmp_path: Path) -> None:
    async def visit(house: House) -> None:
        door, other = await house.client("c"), await house.client("p")
        await house.publish(other, "p", *({"id": n, "p": n % 10} for n in range(50)))
        door.send(page(batch=2))
        shown = Shown(door)
        end = await shown.began()
        assert (end["n"], end["matches"]) == (3, 50)
        assert [(each["id"], each["p"]) for each in shown.now] == [(9, 9), (19, 9), (29, 9)]
        assert [body for _, body in shown.came] == shown.now, "in order"
        shown.came.clear()
        await house.publish(other, "p", {"id": 7, "p": 8}, {"id": 8, "p": 50}, {"id": 19, "p": 9.5})
        assert [each["id"] for each in await shown.settled(house)] == [8, 19, 9]
        assert shown.came[:2] == [("match", {"id": 29, "p": 9}), ("p", {"id": 8, "p": 50})]
        keys = list(shown.rows)
        body = msgpack.packb({"filter": "/id = 9"})
        await house.publish(other, "p", body, command=Command.DELETE)
        assert [each["id"] for each in await shown.settled(house)] == [8, 19, 29]
        assert set(shown.rows) != set(keys)
        door.send(encode_frame({"c": "unsubscribe", "sub": "page", "cid": "u"}))
        await door.answer_to("u")
        clients = house.server.parts.clients
        assert not len(clients.live) and not len(clients.pages.table)

    in_house(tmp_path, visit)


@pytest.mark.covers("Views", "`replace` of a page")
@pytest.mark.covers("Views and conflation, title by title", "`replace` shows")
def test_another_page_brings_the_difference(tmp_path: Path) -> None:
    async def visit(house: House) -> None:
        door, other = await house.client("c"), await house.client("p")
        await house.publish(other, "p", *({"id": n, "p": 100 - n} for n in range(20)))
        shown = Shown(door)
        door.send(page())
        await shown.began()
        shown.came.clear()
        door.send(page(skip_n=1, replace=True))
        await shown.began()
        assert shown.came == [("sow", {"id": 3, "p": 97}), ("match", {"id": 0, "p": 100})] or (
            shown.came == [("match", {"id": 0, "p": 100}), ("sow", {"id": 3, "p": 97})]
        )
        assert [each["id"] for each in shown.now] == [1, 2, 3]
        shown.came.clear()
        door.send(page(skip_n=1, filter="/id > 1", order_by="/id", replace=True))
        end = await shown.began()
        assert sorted(each["id"] for each in shown.now) == [3, 4, 5]
        assert end["matches"] == 18
        await house.publish(other, "p", {"id": 4, "p": 0}, {"id": 0, "p": 0})
        assert sorted(each["id"] for each in await shown.settled(house)) == [3, 4, 5]
        assert len(house.server.parts.clients.pages.table) == 1
        for frame, word in (
            (ask("page", command="sow_and_subscribe", replace=True), "repeat top_n"),
            (encode_frame({"c": "subscribe", "sub": "page", "t": "orders", "cid": "page",
                           "a": "completed", "o": {"replace": True}}), "repeat top_n"),
            (page("page", "trades", replace=True), "another topic"),
            (page(), "in use"),
        ):  # fmt: skip
            door.send(frame)
            answer = await door.answer_to("page")
            assert word in answer["text"], answer
        door.send(ask("plain", command="sow_and_subscribe"))
        await group(door, "plain")
        door.send(page("plain", replace=True))
        assert "leave out top_n" in (await door.answer_to("plain"))["text"]
        await house.publish(other, "p", {"id": 3, "p": 1})
        shown.came.clear()
        await shown.settled(house)
        assert shown.came == [("p", {"id": 3, "p": 1})], "what was refused changed nothing"

    in_house(tmp_path, visit)


def test_what_can_be_no_page_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    async def visit(house: House) -> None:
        door = await house.client("c")
        for more, reason in (
            ({"topic": "nothing"}, "no_sow"),
            ({"topic": "^ord"}, "not_supported"),
            ({"filter": "UNIX_TIMESTAMP() > 1"}, "bad_filter"),
            ({"order_by": "p"}, "bad_order_by"),
            ({"select": "p"}, "bad_select"),
            ({"conflation": "1s"}, "not_supported"),
            ({"top_n": 0}, "bad_command"),
            ({"top_n": pages_of.PAGE_ROWS_MAX + 1}, "too_large"),
        ):
            door.send(page(**more))
            assert (await door.answer_to("page"))["reason"] == reason, more
        clients = house.server.parts.clients
        assert not len(clients.live) and not door.connection.subscriptions

    in_house(tmp_path, visit)


def test_an_order_is_built_in_turns_while_others_publish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three clients wait for one order; records change, come and go while it is built. One of them
    leaves, one unsubscribes."""
    monkeypatch.setattr(pages_module, "READ_AT_ONCE", 1)
    monkeypatch.setattr(pages_module, "TURN_S", 1e-6)

    async def visit(house: House) -> None:
        doors = [await house.client(f"c{number}") for number in range(3)]
        other = await house.client("p")
        await house.publish(other, "p", *({"id": n, "p": n} for n in range(60)))
        for door in doors:
            door.send(page())
        clients = house.server.parts.clients
        assert len(clients.queries) == 3 and len(clients.live) == 3
        assert clients.queries.names(doors[0].connection, "page")
        await house.publish(
            other, "p", {"id": 3, "p": 1000}, {"id": 59, "p": -1}, {"id": 99, "p": 7}
        )
        doors[1].send(encode_frame({"c": "unsubscribe", "sub": "page", "cid": "u"}))
        doors[2].connection.connection_lost(None)
        shown = Shown(doors[0])
        await shown.began()
        assert [each["id"] for each in await shown.settled(house)] == [3, 58, 57]
        await house.publish(other, "p", {"id": 58, "p": 0})
        assert [each["id"] for each in await shown.settled(house)] == [3, 57, 56]
        assert len(clients.pages.table) == 1 and len(clients.live) == 1

    in_house(tmp_path, visit)


def test_a_build_waits_while_its_user_has_worked_too_much(tmp_path: Path) -> None:
    async def visit(house: House) -> None:
        door, other = await house.client("c"), await house.client("p")
        await house.publish(other, "p", *({"id": n, "p": n} for n in range(5)))
        await house.folded()
        clients = house.server.parts.clients
        budget = clients._asker(door.connection.number).budget
        assert budget is not None
        # So much that no real time makes up for it while the test runs.
        budget.spend(1_000 * BURST_STEPS)
        door.send(page(filter="/p > 1"))
        door.send(page("free"))
        await Shown(door, "free").began()
        assert clients.queries.names(door.connection, "page"), "its filter cannot be paid for"
        later_us = house.server.runtime.steady_us()
        while budget.is_low:
            later_us += 60_000_000
            clients.budgets.recover(later_us)
        clients.queries.check()
        shown = Shown(door)
        await shown.began()
        assert [each["p"] for each in shown.now] == [4, 3, 2]

    in_house(tmp_path, visit)


@pytest.mark.covers("Views and conflation, title by title", "without an order")
def test_clients_are_charged_for_the_orders_that_they_share(tmp_path: Path) -> None:
    async def visit(house: House) -> None:
        doors = [await house.client(f"c{number}") for number in range(2)]
        other = await house.client("p")
        await house.publish(other, "p", *({"id": n, "p": n} for n in range(500)))
        await house.folded()
        clients = house.server.parts.clients

        def held() -> list[int]:
            clients.queries.check()
            return [each.connection.holding().memory_bytes for each in doors]

        assert held() == [0, 0]
        doors[0].send(page())
        await Shown(doors[0]).began()
        alone = clients.pages.table.memory_bytes
        assert held() == [alone, 0] and alone > 500 * 260
        doors[1].send(page(skip_n=7))
        await Shown(doors[1]).began()
        assert held() == [alone // 2, alone // 2]
        doors[0].send(encode_frame({"c": "unsubscribe", "sub": "page", "cid": "u"}))
        await doors[0].answer_to("u")
        assert held() == [0, alone]
        doors[1].connection.connection_lost(None)
        assert clients.pages.table.memory_bytes == 0
        assert held()[0] == 0

    in_house(tmp_path, visit)


def test_a_page_has_what_a_row_filter_lets_its_client_see(tmp_path: Path) -> None:
    """The filter of the permissions is a part of the page's: what it hides is not counted, takes no
    place, and is shown as it was when it comes to be hidden."""
    limited = {"topic": [{"topic": "orders", "read": "/s = 'fx'"}]}
    cut = {"topic": [{"topic": "orders", "read": True, "select": "-/p"}]}

    async def visit(house: House) -> None:
        door, other = await house.client("c"), await house.client("p")
        trees = ({"id": n, "p": n, "s": "fx" if n % 2 else "other"} for n in range(20))
        await house.publish(other, "p", *trees)
        await house.folded()
        door.connection.permissions = read_permissions(limited, "test")
        shown = Shown(door)
        door.send(page(filter="/p < 18"))
        end = await shown.began()
        assert ([each["id"] for each in shown.now], end["matches"]) == ([17, 15, 13], 9)
        changed = ({"id": 17, "p": 17, "s": "secret"}, {"id": 16, "p": 16, "s": "fx"})
        await house.publish(other, "p", *changed)
        assert [each["id"] for each in await shown.settled(house)] == [16, 15, 13]
        assert {"id": 17, "p": 17, "s": "fx"} in [body for _, body in shown.came]
        assert not any(body["s"] == "secret" for _, body in shown.came)
        door.connection.permissions = read_permissions(cut, "test")
        door.send(page("other"))
        refused = await door.answer_to("other")
        assert refused["reason"] == "not_entitled", "an order would tell of a field that is closed"
        door.send(page("other", order_by=""))
        found = Shown(door, "other")
        await found.began()
        assert [set(each) for each in found.rows.values()] == [{"id", "s"}] * 3

    in_house(tmp_path, visit)


def test_an_order_that_takes_too_much_memory_ends_its_subscriptions(tmp_path: Path) -> None:
    config = replace(CONFIG, client_buffer_bytes_max=10_000)

    async def visit(house: House) -> None:
        door, other = await house.client("c"), await house.client("p")
        await house.publish(other, "p", *({"id": n, "p": n} for n in range(20)))
        door.send(page())
        await Shown(door).began()
        await house.publish(other, "p", *({"id": n, "p": n} for n in range(20, 60)))
        ended = await door.until(lambda each: each["c"] == "ack" and each.get("reason"))
        assert (ended["sub"], ended["reason"]) == ("page", "too_large")
        assert not door.connection.subscriptions
        door.send(page())
        found = await frames_until(door, lambda each: each.get("a") == "completed")
        assert found[-1][0]["reason"] == "too_large"
        assert not len(house.server.parts.clients.live)

    in_house(tmp_path, visit, config)


def test_a_build_that_fails_ends_its_queries_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def visit(house: House) -> None:
        from raylay.services.errors import SowDamaged
        from raylay.services.subscriptions.pages import PageOrder

        door, other = await house.client("c"), await house.client("p")
        await house.publish(other, "p", {"id": 1, "p": 1})
        for error, reason in ((SowDamaged("no record"), "storage_error"),
                              (ZeroDivisionError(), "internal_error")):  # fmt: skip

            def fails(order: PageOrder, most: int, error: Exception = error) -> int:
                raise error

            with monkeypatch.context() as patched:
                patched.setattr(PageOrder, "build", fails)
                door.send(page())
                found = await frames_until(door, lambda each: each.get("a") == "completed")
            assert found[-1][0]["reason"] == reason
        door.send(page())
        shown = Shown(door)
        await shown.began()
        assert shown.now == [{"id": 1, "p": 1}]

    in_house(tmp_path, visit)
