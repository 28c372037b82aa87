"""`raylay ping` against scripted servers."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.fake_server import FakeServer, Session
from typer.testing import CliRunner
from unit.client.test_sync import ServerThread

from raylay.services.cli import app
from raylay.services.commands import ping
from raylay.services.commands.ping import PingResult
from raylay.services.errors import ConnectionLost
from raylay.services.fabric import Fabric
from raylay.services.fabric.plan import record_of
from raylay.services.fabric.records import registry
from raylay.services.fabric.records.registry import RegistryEntry, process_start

pytestmark = pytest.mark.covers("Utilities", "Command-Line Basic Client: `raylay ping`")


class Answering(FakeServer):
    """Answers pings, until it is to end the connection instead."""

    drops_at = 0

    def answer(self, session: Session, header: dict[str, Any], body: bytes) -> None:
        super().answer(session, header, body)
        if header["c"] == "ping":
            if len(session.commands("ping")) == self.drops_at:
                session.drop()
                return
            session.send({"c": "ack", "a": "processed", "cid": header["cid"], "status": "success"})


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerThread]:
    monkeypatch.setenv(registry.REGISTRY_VARIABLE, str(tmp_path / "runtime"))
    made = ServerThread()
    made.run(made.server.stop())
    made.server = made.run(Answering("NY-1", "NY").start())
    made.server.auto_ack = True
    monkeypatch.setenv("RAYLAY_SERVER", made.server.address)
    yield made
    made.stop()


def raylay(*arguments: str) -> Any:
    with ThreadPoolExecutor(1) as aside:
        return aside.submit(CliRunner().invoke, app, ("ping", *arguments)).result()


def test_the_times_of_an_instance(there: ServerThread) -> None:
    done = raylay("--count", "3", "--json")
    assert done.exit_code == 0
    told = json.loads(done.stdout)
    assert (told["instance"], told["group"]) == ("NY-1", "NY")
    assert told["address"] == there.server.address and told["error"] == ""
    assert told["connect_ms"] > 0 and told["logon_ms"] > 0
    assert told["round_trip"]["count"] == 3
    assert 0 < told["round_trip"]["p50_ms"] <= told["round_trip"]["max_ms"]
    assert told["publish_to_ack"] is None, "nobody asked for messages"
    assert there.server.session.published == []
    shown = raylay("--count", "1").stdout
    assert shown.startswith(f"NY-1 at {there.server.address}: connected in ")
    assert ", logged on in " in shown and ", round trip " in shown


def test_messages_are_published_one_after_the_other(there: ServerThread) -> None:
    done = raylay("--count", "4", "--topic", "t", "--body", "x", "--json")
    assert json.loads(done.stdout)["publish_to_ack"]["count"] == 4
    assert there.server.session.bodies == [b"x"] * 4
    assert len(there.server.session.commands("pb")) == 4, "none was sent before the ack before"
    assert "published to ack" in raylay("--topic", "t").stdout


def test_one_that_is_away_does_not_hide_the_others(there: ServerThread) -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))  # Nothing listens there, and nothing else can.
        away = f"127.0.0.1:{deaf.getsockname()[1]}"
        done = raylay("--server", away, "--server", there.server.address, "--timeout", "0.5")
    # Where this machine is slow, the second may not answer in time either.
    assert done.exit_code == 1
    assert f"{away}: " in done.output and there.server.address in done.output


def test_all_are_connected_to_at_once_and_told_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask() -> None:
        both = asyncio.Barrier(2)

        async def one(name: str, where: str, *_: Any) -> PingResult:
            if where == "a":
                await both.wait()
                await asyncio.sleep(0)
            else:
                await both.wait()
            return PingResult(where)

        monkeypatch.setattr(ping, "ping_one", one)
        told: list[str] = []
        targets: Any = [("a", {}), ("b", {})]
        plan = ping.PingPlan(1, "", "json", "", 1.0)
        async with asyncio.timeout(60):
            found = await ping.ping_all(
                "desk", targets, plan, lambda each: told.append(each.address)
            )
        assert told == [each.address for each in found] == ["a", "b"]

    asyncio.run(ask())


def test_one_that_refuses_the_client_says_why(there: ServerThread) -> None:
    there.server.logon_refusal = "not_authenticated"
    done = raylay("--json")
    told = json.loads(done.stdout)
    assert done.exit_code == 1 and "not_authenticated" in told["error"]
    assert told["round_trip"] is None


def test_a_connection_that_is_lost_is_no_time_of_an_instance(there: ServerThread) -> None:
    assert isinstance(there.server, Answering)
    there.server.drops_at = 3
    told = json.loads(raylay("--json").stdout)
    assert told["round_trip"]["count"] == 2 and "lost" in told["error"]


def test_an_answer_that_does_not_come_or_comes_on_another_connection_is_an_error() -> None:
    async def never() -> None:
        await asyncio.Event().wait()

    async def at_once() -> None: ...

    with pytest.raises(ConnectionLost, match=r"no answer within 0\.001 s"):
        asyncio.run(ping._timed(never, 0.001, []))
    with pytest.raises(ConnectionLost, match="was lost: reset"):
        asyncio.run(ping._timed(at_once, 60.0, ["reset"]))


def test_a_fabric_is_asked_instance_by_instance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(registry.REGISTRY_VARIABLE, str(tmp_path / "runtime"))
    monkeypatch.delenv("RAYLAY_SERVER", raising=False)
    directory = tmp_path / "orders"
    fabric = Fabric("orders").region("near", instances=2).region("far", instances=1)
    record_of(fabric.settings(), directory).save()
    me = registry.os.getpid()
    registry.register(RegistryEntry("orders", str(directory), "", me, process_start(me)))
    found = list(ping.targets("orders", "", None))
    assert [(each.instance, each.group) for each, _ in found] == [
        ("near-1", "near"),
        ("near-2", "near"),
        ("far-1", "far"),
    ]
    assert all("servers" not in options for _, options in found)
    assert [each.instance for each, _ in ping.targets("orders", "far", None)] == ["far-1"]


def test_a_topic_without_a_journal_is_told() -> None:
    result = PingResult("h:1", acks_ms=[1.0], unjournaled=1)
    assert result.line() == (
        "h:1: published to ack 1.00 ms, the topic is not journaled: acks say that messages were "
        "delivered"
    )
    assert result.as_json()["unjournaled"] == 1
