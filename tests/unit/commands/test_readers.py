"""The places that a named reader has at several instances."""

from __future__ import annotations

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import pytest
from support.fake_server import FakeServer
from typer.testing import CliRunner
from unit.client.test_sync import ServerThread

from raylay.services.cli import app
from raylay.services.client import Client
from raylay.services.commands import messages, readers
from raylay.services.commands.messages import with_each_client
from raylay.services.commands.readers import merged_readers, reader_lines
from raylay.services.errors import CommandFailed, ConfigurationError


def each_of(servers: list[str], work: Any) -> list[str]:
    with ThreadPoolExecutor(1) as aside:
        asked = aside.submit(with_each_client, "", "", servers, "raylay-reader", work)
        return asked.result()


class Attached:
    """A fabric whose operator may drop readers."""

    def __init__(self, *instances: dict[str, Any]) -> None:
        self.instances = instances
        self.dropped: list[tuple[str, str]] = []

    def status(self) -> dict[str, Any]:
        return {"fabric": "f", "instances": list(self.instances)}

    def control(self, instance: str, call: str, *, reader: str) -> str:
        assert call == "drop_reader"
        self.dropped.append((instance, reader))
        return ""


@pytest.mark.covers("Journal", "an operator drops a named reader of any user")
def test_an_operator_lists_and_drops_readers_of_every_user(monkeypatch: pytest.MonkeyPatch) -> None:
    fabric = Attached(
        {"name": "a-1", "group": "a", "readers": [told("lake", 7, 3, user="amy")]},
        {"name": "a-2", "group": "a", "readers": [told("billing", 1, 0)]},
        {"name": "b-1", "group": "b", "readers": [told("lake", 9, 3, user="amy")]},
        {"name": "b-2", "group": "b", "phase": "dead", "reason": "its node died"},
    )
    monkeypatch.setattr(readers, "controlled", lambda *_: nullcontext(fabric))

    def raylay(*arguments: str) -> Any:
        return CliRunner().invoke(app, ["reader", *arguments])

    listed = raylay("list", "--any-user", "--group", "a")
    assert listed.stdout.splitlines() == [
        "billing  nobody in particular  orders  a-2: 1 message behind, heard of 0 s ago, expires "
        "after 604,800 s",
        "lake  amy  orders  a-1: 7 messages behind, heard of 3 s ago, expires after 604,800 s",
    ]
    done = raylay("drop", "lake", "--any-user", "--group", "a")
    assert done.stdout == "a-1 keeps nothing for reader lake\n" and done.exit_code == 0
    assert fabric.dropped == [("a-1", "lake")]
    done = raylay("drop", "lake", "--any-user")
    assert done.stdout == "a-1, b-1 keep nothing for reader lake\n" and done.exit_code == 1
    assert "b-2 does not answer: dead: its node died" in str(done.exception)
    done = raylay("drop", "lak", "--any-user", "--group", "a")
    assert str(done.exception) == "a-1, a-2: no reader 'lak': did you mean lake?"
    for wrong in (("--any-user", "--server", "h:1"), ("--http", "h:1")):
        assert isinstance(raylay("drop", "lake", *wrong).exception, ConfigurationError), wrong
    # A variable of the shell may hold what belongs to the other way.
    monkeypatch.setenv("RAYLAY_SERVER", "h:1")
    assert raylay("drop", "lake", "--any-user", "--group", "a").exit_code == 0


def test_all_servers_are_asked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The work with each server goes on when all are connected: one after the other it would
    never."""
    monkeypatch.setattr(messages, "EACH_SERVER_WAIT_S", 2.0)
    there = ServerThread()
    second: FakeServer = there.run(FakeServer("B").start())
    met: list[str] = []
    both = asyncio.Barrier(2)

    async def meet(client: Client) -> None:
        async with asyncio.timeout(60):
            await both.wait()
        met.append(client.instance)

    async def fail(client: Client) -> None:
        met.append(client.instance)
        if client.instance == "A":
            raise CommandFailed("not_entitled", "A refuses")

    try:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            deaf = f"127.0.0.1:{silent.getsockname()[1]}"
            addresses = [there.server.address, deaf, second.address]
            (unreached,) = each_of(addresses, meet)
            assert sorted(met) == ["A", "B"]
            assert unreached.startswith(f"{deaf} does not answer: ")
            met.clear()
            with pytest.raises(CommandFailed, match="A refuses"):
                each_of([there.server.address, second.address], fail)
            assert sorted(met) == ["A", "B"], "a refusal keeps no other from being told"
    finally:
        there.run(second.stop())
        there.stop()


def told(name: str, behind: int, told_s: int, **values: Any) -> dict[str, Any]:
    return {
        "name": name, "user": "", "topic": "orders", "behind": behind, "at_most": False,
        "needs_from_txid": 1, "told_s": told_s, "expires_s": 604_800, **values,
    }  # fmt: skip


def test_places_of_one_reader_are_one_entry() -> None:
    merged = merged_readers(
        {"a-1": [told("lake", 7, 3), told("billing", 1, 0)], "a-2": [told("lake", 1_200, 9)]}
    )
    assert [each["name"] for each in merged] == ["billing", "lake"]
    assert merged[1]["instances"] == [
        {
            "instance": "a-1", "behind": 7, "at_most": False, "needs_from_txid": 1, "told_s": 3,
            "expires_s": 604_800,
        },
        {
            "instance": "a-2", "behind": 1_200, "at_most": False, "needs_from_txid": 1, "told_s": 9,
            "expires_s": 604_800,
        },
    ]  # fmt: skip


def test_readers_of_one_name_and_different_topics_stay_apart() -> None:
    merged = merged_readers(
        {"a-1": [told("lake", 0, 0)], "a-2": [told("lake", 0, 0, topic="bids")]}
    )
    assert [(each["topic"], len(each["instances"])) for each in merged] == [
        ("bids", 1),
        ("orders", 1),
    ]


def test_equal_places_are_one_line_and_others_a_line_each() -> None:
    (lake,) = merged_readers(
        {
            "a-1": [told("lake", 7, 3)],
            "a-2": [told("lake", 1_200, 9)],
            "a-3": [told("lake", 7, 1_005)],
            "a-4": [told("lake", 7, 5, at_most=True)],
        }
    )
    assert reader_lines(lake) == [
        "lake  orders  a-1, a-3: 7 messages behind, heard of 3 to 1,005 s ago, expires after "
        "604,800 s",
        "lake  orders  a-2: 1,200 messages behind, heard of 9 s ago, expires after 604,800 s",
        "lake  orders  a-4: at most 7 messages behind, heard of 5 s ago, expires after 604,800 s",
    ]
