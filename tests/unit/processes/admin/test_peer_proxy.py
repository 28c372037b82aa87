"""services/processes/admin/peer_proxy.py over real sockets: what is passed on, and what is not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientError, ClientSession
from multidict import CIMultiDict
from support.admin_fabric import (
    POST,
    AdminFabric,
    FakeInstance,
    Reply,
    admin_fabric,
    basic,
    http,
    says,
)
from yarl import URL

from raylay.services.errors import ConfigurationError
from raylay.services.processes.admin import peer_proxy
from raylay.services.processes.admin.guard import InterfaceSettings, RequestGuard
from raylay.services.processes.admin.peer_proxy import (
    HOP_HEADER,
    asked_of_peer,
    is_action,
    passed_back,
)
from raylay.services.processes.admin.viewers import Viewers

PEER = "/raylay/peer/north-2"
DOWNGRADE = "amps/administrator/replication/north-1/downgrade"


def visit(
    directory: Path,
    act: Callable[[AdminFabric], Awaitable[None]],
    *names: str,
    **options: Any,
) -> None:
    async def run() -> None:
        more = {"names": names} if names else {}
        async with admin_fabric(directory, **more, **options) as fabric:  # type: ignore[arg-type]
            await act(fabric)

    asyncio.run(asyncio.wait_for(run(), 120))


# -- paths -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("path", "name", "rest"),
    [
        ("a/amps/instance.json", "a", "amps/instance.json"),
        ("a/amps.json", "a", "amps.json"),
        ("a%2Fb/amps/host", "a/b", "amps/host"),
        ("a/amps/instance/clients/7%2F8.csv", "a", "amps/instance/clients/7%2F8.csv"),
        ("a/raylay/trace/1%7C2%7C", "a", "raylay/trace/1%7C2%7C"),
        ("a/raylay/events.json", "a", "raylay/events.json"),
        ("a/raylay/status.json", "a", "raylay/status.json"),
        ("a/metrics", "a", "metrics"),
    ],
)
def test_these_paths_are_passed_on(path: str, name: str, rest: str) -> None:
    assert asked_of_peer(f"/raylay/peer/{path}") == (name, rest)


@pytest.mark.covers("Administration", "peers that are silent, slow or lie harm nothing; onl")
@pytest.mark.parametrize(
    "path",
    [
        "a",
        "a/",
        "a/index.html",
        "a/console/core/html.js",
        "a/raylay/peer/b/amps/instance",
        "a/raylay/fabric.json",
        "a/raylay%2Fpeer/b/amps/instance",
        "a/amps/../raylay/peer/b/amps",
        "a/amps/%2e%2e/raylay/peer/b/amps",
        "a/amps//instance",
        "a/amps/a%0d%0aX-Evil:1",
        "a/amps/a%00",
        "a/ampsy/instance",
        "a/raylay/trace/",
        "a/raylay/messagesx",
        "a/" + "amps/" * 2_000,
    ],
)
def test_no_other_path_is_passed_on(path: str) -> None:
    with pytest.raises(ConfigurationError):
        asked_of_peer(f"/raylay/peer/{path}")


@pytest.mark.parametrize(
    ("path", "action"),
    [
        (DOWNGRADE, True),
        (f"{DOWNGRADE}.json", True),
        ("amps/administrator.json", False),
        ("amps/instance/replication", False),
        ("raylay/events", False),
    ],
)
def test_actions_are_told_from_resources(path: str, action: bool) -> None:
    assert is_action(path) is action


def test_only_named_headers_come_back() -> None:
    found = passed_back(
        CIMultiDict(
            {
                "Content-Type": "text/html; charset=utf-8",
                "Set-Cookie": "raylay-session=stolen",
                "Location": "http://elsewhere.example",
                "Access-Control-Allow-Origin": "*",
                "Content-Security-Policy": "default-src *",
                "Retry-After": "1",
            }
        )
    )
    assert found == {
        "Content-Type": "text/html; charset=utf-8",
        "Retry-After": "1",
        "Content-Security-Policy": peer_proxy.SANDBOX,
    }
    for kind in ("text/javascript", "image/svg+xml", "application/xhtml+xml", ""):
        found = passed_back(CIMultiDict({"Content-Type": kind} if kind else {}))
        assert found["Content-Type"] == "application/octet-stream"
        assert found["Content-Disposition"] == "attachment"


# -- over sockets ----------------------------------------------------------------------------------
def test_another_instance_answers_through_this_one(tmp_path: Path) -> None:
    async def act(fabric: AdminFabric) -> None:
        for name in ("north-1", "north-2"):
            status, found = await fabric.get(f"/raylay/peer/{name}/amps/instance/name.json")
            assert (status, found["amps"]["instance"]["name"]) == (200, name)
            status, found = await fabric.get(f"/raylay/peer/{name}/amps/instance/nothing.json")
            assert status == 404 and "nothing" in found["error"]
            status, found = await fabric.get(f"/raylay/peer/{name}/raylay/summary.json")
            assert (status, found["instance"]) == (200, name)
            path = f"/raylay/peer/{name}/amps/instance/uptime.json?t0=never"
            status, found = await fabric.get(path)
            assert status == 400 and "t0" in found["error"]

    visit(tmp_path, act)


def test_a_head_has_no_body_and_a_large_body_is_refused(tmp_path: Path) -> None:
    async def act(fabric: AdminFabric) -> None:
        for name in ("north-1", "north-2"):
            url = fabric.url(f"/raylay/peer/{name}/amps/instance/name.json")
            async with fabric.session.head(url) as response:
                assert (response.status, await response.read()) == (200, b"")
            path = f"/raylay/peer/{name}/{DOWNGRADE}"
            status, _ = await fabric.ask("POST", path, headers=POST, data=b" " * 200_000)
            assert status == 413
            assert not fabric.instances[name].performed

    visit(tmp_path, act)


def test_an_action_is_performed_where_it_is_sent_and_only_by_a_page_of_ours(tmp_path: Path) -> None:
    async def act(fabric: AdminFabric) -> None:
        for name in ("north-1", "north-2"):
            path = f"/raylay/peer/{name}/{DOWNGRADE}"
            other = {**POST, "Origin": "http://elsewhere.example"}
            for method, headers, expected in (
                ("POST", {}, 403),
                ("POST", other, 403),
                ("GET", POST, 405),
                ("DELETE", POST, 405),
                ("POST", POST, 200),
            ):
                status, found = await fabric.ask(
                    method, path, headers=headers, json={} if method == "POST" else None
                )
                assert status == expected, found
            assert [each[0] for each in fabric.instances[name].performed] == ["downgrade"]

    visit(tmp_path, act)


@pytest.mark.covers("Administration", "peers that are silent, slow or lie harm nothing; onl")
@pytest.mark.parametrize(
    ("path", "headers", "status", "text"),
    [
        ("/raylay/peer/nowhere/amps/instance.json", {}, 404, "there are north-1, north-2"),
        ("/raylay/peer/127.0.0.1:1/amps/instance.json", {}, 404, "127.0.0.1:1"),
        (f"{PEER}/raylay/peer/north-1/amps/instance.json", {}, 400, "is not passed on"),
        (f"{PEER}/amps/instance.json", {HOP_HEADER: "x"}, 508, "does not pass on"),
    ],
)
def test_nothing_else_is_asked_and_nothing_goes_round(
    tmp_path: Path, path: str, headers: dict[str, str], status: int, text: str
) -> None:
    async def act(fabric: AdminFabric) -> None:
        found_status, found = await fabric.get(path, headers=headers)
        assert found_status == status and text in found["error"]

    visit(tmp_path, act)


def test_an_instance_without_an_interface_is_named(tmp_path: Path) -> None:
    async def act(fabric: AdminFabric) -> None:
        status, found = await fabric.get("/raylay/peer/bare/amps/instance.json")
        assert status == 404 and "`port`" in found["error"]

    async def run() -> None:
        async with admin_fabric(tmp_path, writes=False) as fabric:
            fabric.addresses["bare"] = ""
            fabric.write()
            await fabric.until(lambda found: len(found["instances"]) == 3)
            await act(fabric)

    asyncio.run(asyncio.wait_for(run(), 60))


class Heard:
    """A peer that keeps what it hears."""

    def __init__(self, answer: bytes) -> None:
        self.requests: list[bytes] = []
        self._answer = answer

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.requests.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(self._answer)
        await writer.drain()


def test_a_peer_hears_the_headers_that_it_needs_and_no_others(tmp_path: Path) -> None:
    heard = Heard(http(b"{}", headers="Set-Cookie: raylay-session=evil\r\nX-Evil: 1\r\n"))

    async def act(fabric: AdminFabric) -> None:
        headers = {
            **basic("root"),
            "Cookie": "other=secret",
            "X-Forwarded-For": "10.0.0.1",
            "Accept": "application/json",
            "Accept-Encoding": "gzip",
            "Last-Event-ID": "5",
        }
        url = URL(fabric.url("/raylay/peer/heard/amps/a%2Fb.json?t0=1%260"), encoded=True)
        async with fabric.session.get(url, headers=headers) as response:
            assert response.status == 200
            assert "X-Evil" not in response.headers
            cookies = response.headers.getall("Set-Cookie", [])
            assert not any("evil" in each for each in cookies)
        request = heard.requests[-1].decode()
        assert request.startswith("GET /amps/a%2Fb.json?t0=1%260 HTTP/1.1\r\n")
        lines = {
            line.partition(":")[0].lower(): line.partition(":")[2].strip()
            for line in request.split("\r\n")[1:]
        }
        assert lines["authorization"] == headers["Authorization"]
        assert (lines["accept-encoding"], lines["last-event-id"]) == ("identity", "5")
        assert lines[HOP_HEADER.lower()] == "north-1"
        assert not {"cookie", "x-forwarded-for"} & lines.keys()

    visit(tmp_path, act, "north-1", replies={"heard": heard}, guarded=True)


@pytest.mark.parametrize(
    ("reply", "status", "text"),
    [
        (says(http(b"{}", "401 No")), 403, "does not let"),
        (says(http(b"", "302 Found", "Location: http://127.0.0.1/\r\n")), 502, "302"),
        (says(http(b"x", headers="Content-Encoding: gzip\r\n")), 502, "form"),
        (says(b"nonsense\r\n\r\n"), 503, "does not answer"),
        (says(b""), 503, "does not answer"),
        (says(http(b'{"error": "busy"}', "503 Busy")), 503, "busy"),
    ],
    ids=range(6),
)
def test_what_a_peer_cannot_answer_is_told(
    tmp_path: Path, reply: Reply, status: int, text: str
) -> None:
    async def act(fabric: AdminFabric) -> None:
        found_status, found = await fabric.get("/raylay/peer/odd/amps/instance.json")
        assert found_status == status and text in found["error"]

    visit(tmp_path, act, "north-1", replies={"odd": reply})


def test_a_page_of_a_peer_has_no_rights_here(tmp_path: Path) -> None:
    page = b"<script>fetch('/amps/instance')</script>"
    lies = http(page).replace(b"application/json", b"text/javascript")

    async def act(fabric: AdminFabric) -> None:
        async with fabric.session.get(fabric.url("/raylay/peer/odd/raylay/drills/x")) as response:
            assert await response.read() == page
            assert response.headers["Content-Security-Policy"].startswith("sandbox; ")
            assert response.headers["X-Content-Type-Options"] == "nosniff"
            assert response.content_type == "application/octet-stream"
            assert response.headers["Content-Disposition"] == "attachment"

    visit(tmp_path, act, "north-1", replies={"odd": says(lies)})


def test_a_stream_is_passed_on_as_it_comes(tmp_path: Path) -> None:
    """The first line is there before the peer has sent the second one."""
    go_on = asyncio.Event()

    async def lines(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nConnection: close\r\n\r\n1\n"
        )
        await go_on.wait()
        writer.write(b"2\n")
        await writer.drain()

    async def act(fabric: AdminFabric) -> None:
        url = fabric.url("/raylay/peer/odd/raylay/messages")
        async with fabric.session.get(url) as response:
            assert await response.content.readline() == b"1\n"
            go_on.set()
            assert await response.content.readline() == b"2\n"

    visit(tmp_path, act, "north-1", replies={"odd": lines})


def test_an_answer_that_breaks_off_does_not_pass_for_whole(tmp_path: Path) -> None:
    cut = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 50\r\n\r\n{}"

    async def act(fabric: AdminFabric) -> None:
        with pytest.raises(ClientError):
            async with fabric.session.get(fabric.url("/raylay/peer/odd/amps/x")) as response:
                await response.read()

    visit(tmp_path, act, "north-1", replies={"odd": says(cut)})


def test_what_is_passed_on_at_once_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_proxy, "PROXIED_MAX", 2)
    waiting = asyncio.Semaphore(0)
    go_on = asyncio.Event()

    async def hangs(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        waiting.release()
        await go_on.wait()
        writer.write(http(b"{}"))
        await writer.drain()

    async def act(fabric: AdminFabric) -> None:
        path = "/raylay/peer/odd/amps/instance.json"
        asked = [asyncio.ensure_future(fabric.get(path)) for _ in range(2)]
        for _ in range(2):
            await waiting.acquire()
        status, found = await fabric.get(path)
        assert status == 503 and "try again" in found["error"]
        go_on.set()
        assert [status for status, _ in await asyncio.gather(*asked)] == [200, 200]
        assert (await fabric.get(path))[0] == 200

    visit(tmp_path, act, "north-1", replies={"odd": hangs})


def test_who_leaves_ends_what_is_passed_on(tmp_path: Path) -> None:
    gone = asyncio.Event()

    async def hangs(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n: hello\n\n")
        await reader.read()
        gone.set()

    async def act(fabric: AdminFabric) -> None:
        async with (
            ClientSession() as session,
            session.get(fabric.url("/raylay/peer/odd/raylay/events")) as response,
        ):
            assert await response.content.readline() == b": hello\n"
        await gone.wait()

    visit(tmp_path, act, "north-1", replies={"odd": hangs})


def test_a_session_begun_for_the_own_instance_is_kept(tmp_path: Path) -> None:
    async def act(fabric: AdminFabric) -> None:
        path = "/raylay/peer/north-1/amps/instance/name.json"
        assert (await fabric.get(path))[0] == 401
        async with fabric.session.get(fabric.url(path), headers=basic("reader")) as response:
            found = json.loads(await response.read())
            assert found["amps"]["instance"]["name"] == "north-1"
            cookie = response.cookies["raylay-session"].value
        headers = {"Cookie": f"raylay-session={cookie}"}
        assert (await fabric.get(path, headers=headers))[0] == 200
        assert fabric.instances["north-1"].identified == ["reader"]
        status, _ = await fabric.get(path, headers=basic("nobody"))
        assert status == 403

    visit(tmp_path, act, guarded=True)


@pytest.mark.parametrize(
    ("path", "is_stream"),
    [
        ("/raylay/events", True),
        ("/raylay/events.json", False),
        ("/raylay/messages", True),
        ("/raylay/peer/south/amps/host", True),
        ("/raylay/peer/north/amps/host", False),
        ("/raylay/peer/north/raylay/events", True),
        ("/raylay/peer/north/raylay/events.json", False),
    ],
)
def test_only_streams_wait_for_no_turn(path: str, is_stream: bool) -> None:
    """What the own instance is asked for by its name is bounded as if it were asked without."""
    viewers = Viewers(FakeInstance("north", "north", ()))
    guard = RequestGuard(InterfaceSettings("north"), viewers)
    assert guard.waits_not(path) is is_stream
