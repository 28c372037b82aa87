"""services/processes/admin/fabric_routes.py and peers.py over real sockets: the view of a fabric
whose instances answer, are silent, slow, or lie."""

from __future__ import annotations

import asyncio
import json
import os
import re
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import ClientSession
from support.admin_fabric import (
    AdminFabric,
    Reply,
    admin_fabric,
    basic,
    destination,
    http,
    says,
)
from support.tls_files import tls_files

from raylay.services.admin.fabric_summary import InstanceSummary
from raylay.services.admin.fabric_topology import ConfiguredInstance, FabricTopology
from raylay.services.errors import ConfigurationError, ControlRefused, FabricError
from raylay.services.processes.admin import peers as peers_module
from raylay.services.processes.admin.peers import FabricPeers, authorization
from raylay.services.processes.admin.viewers import Viewer
from raylay.services.security.control import NOBODY, Caller

Act = Callable[[AdminFabric], Awaitable[None]]


def visit(directory: Path, act: Act, *names: str, **options: Any) -> None:
    async def run() -> None:
        more = {"names": names} if names else {}
        async with admin_fabric(directory, **more, **options) as fabric:  # type: ignore[arg-type]
            await act(fabric)

    asyncio.run(asyncio.wait_for(run(), 120))


def of(found: dict[str, Any], name: str) -> dict[str, Any]:
    (each,) = [each for each in found["instances"] if each["name"] == name]
    return dict(each)


def all_answered(found: dict[str, Any]) -> bool:
    return bool(found["totals"]["answered"] == found["totals"]["instances"])


def test_every_instance_shows_the_whole_fabric(tmp_path: Path) -> None:
    async def act(fabric: AdminFabric) -> None:
        for name in fabric.instances:
            found = await fabric.until(all_answered, name)
            assert (found["fabric"], found["served_by"]) == ("flights", name)
            assert found["viewer"] == {"user": "", "guarded": False}
            assert found["verdict"] == {
                "level": "ready",
                "text": "3 instances are ready, 6 links have caught up",
            }
            assert found["totals"]["in_per_sec"] == 30.0
            assert [each["state"] for each in found["links"]] == ["sync"] * 6
            assert [each["may_fail_over"] for each in found["instances"]] == [True] * 3
            assert found["links"][0]["other_end"] == {
                "instance": "b", "text": "receives from a",
            }  # fmt: skip

    visit(tmp_path, act, "a", "b", "c")


@pytest.mark.slow
def test_what_is_wrong_comes_with_what_to_do(tmp_path: Path) -> None:
    async def act(fabric: AdminFabric) -> None:
        await fabric.until(all_answered)
        instance = fabric.instances["north-2"]
        instance.happens("link_disconnected", destination="north-1")
        instance.changed["destinations"] = {
            "north-1": destination("north-1", unacked=12, age_ms=42_000)
        }
        found = await fabric.until(lambda found: kinds(found)[:1] == ["publishers_wait"])
        problem = found["problems"][0]
        assert problem["text"].startswith("Publishers at north-2 wait for north-1")
        assert problem["do"]["action"] == {
            "instance": "north-2",
            "path": "amps/administrator/replication/north-1/downgrade",
            "label": "downgrade north-1",
        }
        assert of(found, "north-2")["level"] == "act"
        assert found["verdict"]["level"] == "act"
        instance.changed.clear()
        found = await fabric.until(lambda found: not found["problems"])
        assert problem["id"] in [each["id"] for each in found["closed_problems"]]

    visit(tmp_path, act)


def kinds(found: dict[str, Any]) -> list[str]:
    return [each["kind"] for each in found["problems"]]


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Takes a request, and says nothing until the other side gives up."""
    await reader.read()


async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n")
    while True:
        writer.write(b" " * 65_536)
        await writer.drain()


async def slow_headers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"X-A: b\r\n")
        await writer.drain()
        await asyncio.sleep(0.05)


async def refused(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


def summary(**changed: Any) -> bytes:
    told = {"summary_version": 1, "instance": "liar", "state": "ready", **changed}
    return json.dumps(told).encode()


@pytest.mark.covers("Administration", "peers that are silent, slow or lie harm nothing; onl")
@pytest.mark.parametrize(
    ("reply", "missing", "text"),
    [
        (silent, ("never",), "within 1 s"),
        (slow_headers, ("never",), ""),
        (refused, ("never",), ""),
        (endless, ("wrong", "never"), ""),
        (says(http(summary(instance="north-1"))), ("wrong",), "answers 'north-1'"),
        (says(http(summary(clients="many"))), ("wrong",), "clients"),
        (says(http(summary(links=[{"destination": "x"}] * 2_000))), ("wrong",), "links"),
        (says(http(b"[" * 500_000)), ("wrong",), "no summary"),
        (says(http(b"<html>")), ("wrong",), "no summary"),
        (says(http(summary(summary_version=9))), ("version",), "version 9"),
        (says(http(b"", "404 Not Found")), ("version",), "install one release"),
        (says(http(b"", "401 Unauthorized")), ("not_entitled",), "does not let"),
        (says(http(b"", "403 Forbidden")), ("not_entitled",), "does not let"),
        (says(http(b"", "500 No")), ("never",), "status 500"),
        (says(http(b"", "302 Found", "Location: http://127.0.0.1:1/\r\n")), ("wrong",), "302"),
        (says(http(b"\x1f\x8b", headers="Content-Encoding: gzip\r\n")), ("wrong",), "form"),
        (says(b"SSH-2.0-OpenSSH\r\n\r\n"), ("never",), ""),
        (says(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{}"), ("never",), ""),
    ],
    ids=range(18),
)
def test_a_peer_that_is_silent_or_lies_is_named_and_harms_nothing(
    tmp_path: Path, reply: Reply, missing: tuple[str, ...], text: str
) -> None:
    async def act(fabric: AdminFabric) -> None:
        found = await fabric.until(
            lambda found: (
                bool(of(found, "liar")["why_missing"]) and found["totals"]["answered"] == 2
            )
        )
        liar = of(found, "liar")
        assert liar["missing"] in missing and text in liar["why_missing"]
        assert (liar["state"], liar["clients"]) == ("unknown", None)
        assert found["totals"] == {
            "in_per_sec": 20.0, "out_per_sec": 40.0, "acks_per_sec": 20.0, "clients": 4,
            "subscriptions": 2, "answered": 2, "instances": 3,
        }  # fmt: skip
        assert {each["by"] for each in liar["seen_by_others"]} == {"north-1", "north-2"}
        (problem,) = [each for each in found["problems"] if each["kind"] == "unknown"]
        assert problem["instance"] == "liar"

    visit(tmp_path, act, replies={"liar": reply})


@pytest.mark.covers("Administration", "peers that are silent, slow or lie harm nothing; onl")
def test_a_silent_peer_delays_no_other(tmp_path: Path) -> None:
    """The view is there while the question to the silent one is still out."""
    out = asyncio.Event()

    async def hangs(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        out.set()
        await reader.read()

    async def act(fabric: AdminFabric) -> None:
        await fabric.until(lambda found: found["totals"]["answered"] == 2)
        await out.wait()

    visit(tmp_path, act, replies={"liar": hangs})


@pytest.mark.slow
def test_an_own_instance_that_hangs_is_told_like_another(tmp_path: Path) -> None:
    async def act(fabric: AdminFabric) -> None:
        fabric.instances["north-1"].release = asyncio.Event()
        found = await fabric.until(lambda found: found["totals"]["answered"] == 1)
        assert of(found, "north-1")["state"] == "unknown"
        fabric.instances["north-1"].release.set()
        fabric.instances["north-1"].release = None
        await fabric.until(all_answered)
        fabric.instances["north-1"].is_away = True
        found = await fabric.until(lambda found: of(found, "north-1")["missing"] == "silent")
        assert of(found, "north-1")["why_missing"] == "north-1 does not answer"

    visit(tmp_path, act)


def test_names_that_are_markup_are_names(tmp_path: Path) -> None:
    name = "<script>alert(1)</script>"

    async def act(fabric: AdminFabric) -> None:
        found = await fabric.until(all_answered)
        assert [each["name"] for each in found["instances"]] == ["north-1", name]
        async with fabric.session.get(fabric.url("/raylay/fabric.json")) as response:
            assert response.content_type == "application/json"
            assert response.headers["X-Content-Type-Options"] == "nosniff"

    visit(tmp_path, act, "north-1", name)


def test_a_large_view_is_compressed_where_that_is_wanted(tmp_path: Path) -> None:
    async def act(fabric: AdminFabric) -> None:
        for instance in fabric.instances.values():
            instance.changed["topic_page"] = [(f"topic-{at}", "json", at) for at in range(100)]
        await fabric.until(lambda found: len(found["topics"]) == 100)
        async with ClientSession(auto_decompress=False) as session:
            for wanted, given in (("gzip", "gzip"), ("identity", None)):
                url = fabric.url("/raylay/fabric.json")
                async with session.get(url, headers={"Accept-Encoding": wanted}) as response:
                    await response.read()
                    assert response.headers.get("Content-Encoding") == given

    visit(tmp_path, act)


# -- users -----------------------------------------------------------------------------------------
@pytest.mark.covers("Administration", "authentication, entitlement and sessions of the inte")
def test_each_user_sees_what_that_user_may(tmp_path: Path) -> None:
    async def act(fabric: AdminFabric) -> None:
        assert (await fabric.get("/raylay/fabric.json"))[0] == 401
        found = await fabric.until(all_answered, headers=basic("reader"))
        assert found["viewer"] == {"user": "reader", "guarded": True}
        found = await fabric.until(
            lambda found: of(found, "north-2")["missing"] == "not_entitled",
            headers=basic("nobody"),
        )
        assert {each["missing"] for each in found["instances"]} == {"not_entitled"}
        assert found["totals"]["answered"] == 0
        assert [each["state"] for each in found["links"]] == ["unknown", "unknown"]
        for path in ("summary.json", "events.json", "check.json", "drills.json", "drills/x"):
            status, _ = await fabric.get(f"/raylay/{path}", headers=basic("nobody"))
            assert status == 403, path
            status, _ = await fabric.get(f"/raylay/{path}")
            assert status == 401, path
        status, _ = await fabric.get("/raylay/fabric.json", headers=basic("reader", "wrong"))
        assert status == 401

    visit(tmp_path, act, guarded=True)


@pytest.mark.slow
def test_a_peer_checks_a_password_once(tmp_path: Path) -> None:
    async def act(fabric: AdminFabric) -> None:
        await fabric.until(all_answered, headers=basic("reader"))
        answers: set[int] = set()

        def has_answered(times: int) -> Callable[[dict[str, Any]], bool]:
            def holds(found: dict[str, Any]) -> bool:
                answers.add(found["instances"][1]["answered_us"])
                return len(answers) >= times

            return holds

        # A slow machine may have given up the first question, whose password was checked all the
        # same; from the first answer on the session counts.
        identified = fabric.instances["north-2"].identified
        checked = len(identified)
        await fabric.until(has_answered(4), headers=basic("reader"))
        assert len(identified) == checked
        assert set(identified) == {"reader"}

    visit(tmp_path, act, guarded=True)


@pytest.mark.parametrize(
    ("caller", "header"),
    [
        (NOBODY, ""),
        (Caller("", "token"), "Bearer token"),
        (Caller("anna", "pw"), "Basic YW5uYTpwdw=="),
    ],
)
def test_credentials_are_passed_on_as_they_came(caller: Caller, header: str) -> None:
    assert authorization(caller) == header


def test_peers_are_asked_over_tls_and_checked(tmp_path: Path) -> None:
    files = tls_files()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.server.certificate, files.server.key)

    async def act(fabric: AdminFabric) -> None:
        await fabric.until(all_answered)
        status, found = await fabric.get("/raylay/peer/north-2/amps/instance/name.json")
        assert (status, found["amps"]["instance"]["name"]) == (200, "north-2")
        # Another authority's certificate is not believed.
        fabric.write(ca_file="")
        found = await fabric.until(lambda found: "TLS" in of(found, "north-2")["why_missing"])
        status, found = await fabric.get("/raylay/peer/north-2/amps/instance/name.json")
        assert status == 503 and "TLS" in found["error"]

    visit(tmp_path, act, topology={"ca_file": files.ours.file}, tls=context)


def test_paths_that_need_no_logon_show_the_fabric_to_everybody(tmp_path: Path) -> None:
    async def act(fabric: AdminFabric) -> None:
        found = await fabric.until(all_answered)
        assert found["viewer"] == {"user": "", "guarded": True}
        assert (await fabric.get("/raylay/check.json"))[0] == 401
        assert (await fabric.get("/raylay/peer/north-2/amps/instance.json"))[0] == 401
        assert not fabric.instances["north-2"].identified

    paths = re.compile("^/raylay/(fabric|summary)[.]json$")
    visit(tmp_path, act, guarded=True, anonymous_paths=paths)


# -- the topology's file -----------------------------------------------------------------------
@pytest.mark.slow
def test_the_topology_is_read_again_when_it_changes(tmp_path: Path) -> None:
    async def act(fabric: AdminFabric) -> None:
        await fabric.until(all_answered)
        path = tmp_path / "north-1" / "admin-fabric.json"
        before = path.read_text()
        path.write_text("{")
        found = await fabric.until(lambda found: "topology_problem" in found)
        assert str(path) in found["topology_problem"]
        assert len(found["instances"]) == 2, "what was known stays"
        path.write_text(before.replace('"North"', '"South"'))
        found = await fabric.until(lambda found: found["regions"][0]["name"] == "South")
        assert "topology_problem" not in found
        fabric.addresses.pop("north-2")
        fabric.write()
        found = await fabric.until(lambda found: len(found["instances"]) == 1)
        with path.open("r+b") as file:
            os.truncate(file.fileno(), 20 * 1024 * 1024)
        found = await fabric.until(lambda found: "topology_problem" in found)
        assert "too large" in found["topology_problem"]

    visit(tmp_path, act)


def test_an_instance_without_a_fabric_shows_itself(tmp_path: Path) -> None:
    async def act(fabric: AdminFabric) -> None:
        fabric.instances["lone"].changed = {
            "queues": {
                "json/work": {
                    "queue_depth": 5, "message_type": "json", "topic": "work", "delivered": 0,
                    "subscriptions": 1,
                }
            },
            "destinations": {"audit": destination("elsewhere")},
        }  # fmt: skip
        found = await fabric.until(lambda found: bool(found["queues"]))
        assert [each["name"] for each in found["instances"]] == ["lone"]
        assert found["links"][0]["to"] == ["elsewhere"]
        assert (found["queues"][0]["name"], found["queues"][0]["depth"]) == ("work", 5)
        assert (await fabric.get("/raylay/check.json"))[1]["checked_us"] is None

    visit(tmp_path, act, "lone", writes=False)


# -- the parts by themselves -----------------------------------------------------------------------
async def own(viewer: Viewer) -> InstanceSummary:
    return msgspec.json.decode(summary(), type=InstanceSummary)


def test_an_answer_grows_old() -> None:
    async def run() -> None:
        now_s = [100.0]
        peers = FabricPeers("liar", own, lambda: now_s[0])
        board = peers.board(Viewer("", NOBODY, None))
        made = FabricTopology("", (ConfiguredInstance("liar", "L"), ConfiguredInstance("b", "L")))
        while peers.answers(board).get("liar", None) is None or board.states["liar"].running:
            await peers.refresh(board, made)
        assert peers.answers(board)["liar"].age_s == 0.0
        assert peers.answers(board)["b"].missing == "none"
        now_s[0] += 38.0
        found = peers.answers(board)["liar"]
        assert (found.age_s, found.known) == (38.0, None)
        await peers.refresh(board, FabricTopology("", ()))
        assert peers.answers(board) == {}
        await peers.close()

    asyncio.run(run())


def test_the_boards_are_bounded() -> None:
    async def run() -> None:
        started = asyncio.Event()

        async def hangs(viewer: Viewer) -> InstanceSummary:
            started.set()
            await asyncio.Event().wait()
            raise AssertionError

        peers = FabricPeers("liar", hangs)
        made = FabricTopology("", (ConfiguredInstance("liar", "L"),))
        first = peers.board(Viewer("0", Caller("0", "x"), None))
        asked = asyncio.ensure_future(peers.refresh(first, made))
        await started.wait()
        running = first.states["liar"].running
        assert running is not None
        for at in range(1, peers_module.BOARDS_MAX + 1):
            peers.board(Viewer(str(at), Caller(str(at), "x"), None))
        await asked
        await asyncio.wait([running])
        assert running.cancelled()
        assert peers.board(Viewer("0", Caller("0", "x"), None)) is not first
        # The same name with another password is another user.
        one, two = (peers.board(Viewer("a", Caller("a", word), None)) for word in ("x", "y"))
        assert one is not two
        await peers.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("reply", "error", "text"),
    [
        (says(http(b'{"a": 1}')), None, ""),
        (says(http(b'{"error": "no such bookmark"}', "404 No")), FabricError, "no such bookmark"),
        (says(http(b"[]")), FabricError, "status 200"),
        (says(http(b"<")), FabricError, "status 200"),
        (says(http(b"{}", "403 No")), ControlRefused, "does not let"),
        (says(http(b"{}", headers="Content-Encoding: br\r\n")), FabricError, "form"),
        (refused, FabricError, "does not answer"),
    ],
    ids=range(7),
)
def test_a_peer_is_asked_for_json(
    tmp_path: Path, reply: Reply, error: type[Exception] | None, text: str
) -> None:
    async def act(fabric: AdminFabric) -> None:
        peers = FabricPeers("north-1", own)
        viewer = Viewer("", NOBODY, None)
        try:
            asked = peers.get_json(viewer, fabric.topology, "liar", "raylay/trace/1")
            if error is None:
                assert await asked == {"a": 1}
            else:
                with pytest.raises(error, match=text):
                    await asked
            with pytest.raises(ConfigurationError, match="nowhere"):
                await peers.get_json(viewer, fabric.topology, "nowhere", "x")
        finally:
            await peers.close()

    visit(tmp_path, act, replies={"liar": reply})


def test_authorities_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    async def run() -> None:
        peers = FabricPeers("north", own)
        assert peers.trust(FabricTopology("", ())) is True
        with pytest.raises(FabricError, match=r"absent\.pem"):
            peers.trust(FabricTopology("", (), ca_file=str(tmp_path / "absent.pem")))
        found = peers.trust(FabricTopology("", (), verify_name=False))
        assert found is peers.trust(FabricTopology("", (), verify_name=False))

    asyncio.run(run())
