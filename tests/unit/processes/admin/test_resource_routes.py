"""services/processes/admin/resource_routes.py and guard.py over real sockets: resources, history,
actions, and what is refused."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from xml.etree import ElementTree

import pytest
from aiohttp import ClientSession
from aiohttp.test_utils import TestServer
from yarl import URL

from raylay.services.errors import ConfigurationError, ControlRefused, FabricError
from raylay.services.processes.admin import bodies
from raylay.services.processes.admin import guard as guard_module
from raylay.services.processes.admin.action_routes import ActionRoutes
from raylay.services.processes.admin.guard import REQUESTS_MAX, InterfaceSettings, RequestGuard
from raylay.services.processes.admin.host import HostReader
from raylay.services.processes.admin.resource_routes import ResourceRoutes
from raylay.services.processes.admin.sampler import Sampler
from raylay.services.processes.admin.statistics_thread import StatisticsThread
from raylay.services.processes.admin.viewers import COOKIE, Viewers
from raylay.services.security.control import Caller
from raylay.services.security.permissions import Permissions, read_permissions
from raylay.storage import statistics as store_module
from raylay.storage.statistics import StatisticsStore

HEADER = {"X-Raylay": "1"}
AGAIN = {"kind": "on", "module": "admin", "options": [["Path", "again"]]}
READS_HOST = {"admin": [{"topic": "/amps/host.*", "read": True}]}


class Instance:
    """Stands for the instance behind its socket."""

    def __init__(self) -> None:
        self.snapshots = 0
        self.published = 0
        self.performed: list[tuple[str, Caller, dict[str, Any]]] = []
        self.identified = 0
        self.is_away = False
        self.release: asyncio.Event | None = None

    async def status(self, events_after: int | None) -> dict[str, Any]:
        events = {} if events_after is None else {"events": [{"number": events_after + 1}]}
        return {"name": "north", "ready": True, "at": object(), **events}

    async def snapshot(self) -> dict[str, Any]:
        self.snapshots += 1
        if self.release is not None:
            await self.release.wait()
        if self.is_away:
            raise FabricError("north does not answer")
        return {
            "name": "north",
            "pid": 7,
            "uptime_s": 3_661.5,
            "published": self.published,
            "state": "ready",
            "configuration": {"actions": [{"name": "a", "on": [AGAIN]}]},
            "destinations": {
                "south": {
                    "peer": "south-1", "group": "South", "client_name": "c", "connected": True,
                    "sync": True, "configured_sync": True, "downgraded": False,
                    "downgraded_by_hand": False, "caught_up": True, "safe": True, "why_unsafe": "",
                    "why": "", "unacked": 5, "age_ms": 2_500, "lag": 5, "address": "127.0.0.1:1",
                    "pid": 8, "starts": 1, "sent_records": 9,
                }
            },
        }  # fmt: skip

    async def identify(self, caller: Caller, address: str) -> tuple[str, Permissions | None]:
        self.identified += 1
        if caller.password != "right":
            raise ControlRefused("no")
        granted = None if caller.user_id == "root" else read_permissions(READS_HOST, "test")
        return caller.user_id, granted

    async def perform(self, call: str, caller: Caller, arguments: Mapping[str, Any]) -> Any:
        if arguments.get("destination") == "nowhere":
            raise ConfigurationError("north has no Destination 'nowhere': it has south")
        self.performed.append((call, caller, dict(arguments)))
        return None


class Visit:
    def __init__(
        self,
        session: ClientSession,
        server: TestServer,
        instance: Instance,
        statistics: StatisticsThread,
    ) -> None:
        self.session, self.server, self.instance = session, server, instance
        self.statistics = statistics

    async def get(self, path: str | URL, **more: Any) -> tuple[int, Any]:
        return await self.ask("GET", path, **more)

    async def ask(self, method: str, path: str | URL, **more: Any) -> tuple[int, Any]:
        url = self.server.make_url("/").join(path) if isinstance(path, URL) else None
        url = url or self.server.make_url(str(path))
        async with self.session.request(method, url, **more) as found:
            body = await found.read()
            is_json = found.content_type == "application/json"
            return found.status, json.loads(body) if is_json else body


def visit(
    act: Callable[[Visit], Awaitable[None]],
    clock: Callable[[], float] = time.monotonic,
    **settings: Any,
) -> None:
    async def run() -> None:
        instance = Instance()
        host = HostReader()
        sampler = Sampler(instance, host.read, clock)
        statistics = StatisticsThread(StatisticsStore)
        await statistics.open()
        get_actions = settings.pop("get_actions", False)
        viewers = Viewers(instance)
        guard = RequestGuard(InterfaceSettings("north", **settings), viewers)
        actions = ActionRoutes("north", instance, sampler, viewers, get_actions=get_actions)
        app = guard.build()
        ResourceRoutes(guard, sampler, statistics, actions).add_routes(app.router)
        try:
            async with TestServer(app) as server, ClientSession() as session:
                await act(Visit(session, server, instance, statistics))
        finally:
            await sampler.close()
            await statistics.close()

    asyncio.run(asyncio.wait_for(run(), 60))


def basic(user: str, password: str = "right") -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


@pytest.mark.covers("Administration", "the documented tree, as JSON with texts, as XML, as")
def test_every_node_is_served_in_its_formats() -> None:
    async def act(at: Visit) -> None:
        status, found = await at.get("/amps/instance/replication/south.json")
        (entry,) = found["amps"]["instance"]["replication"]
        assert status == 200
        assert (entry["id"], entry["replication_type"], entry["seconds_behind"]) == (
            "south",
            "sync",
            "2",
        )
        assert entry["raylay"]["unacked"] == "5"
        status, body = await at.get("/amps/instance/uptime.xml")
        assert status == 200
        assert ElementTree.fromstring(body).findtext("instance/uptime") == "01:01:01.500000"
        status, found = await at.get("/amps/host/memory/total")
        assert int(found["amps"]["host"]["memory"]["total"]) > 0

    visit(act)


@pytest.mark.covers("Administration", "an instance tells its values at most once a second,")
def test_many_requests_ask_the_instance_once() -> None:
    async def act(at: Visit) -> None:
        await asyncio.gather(*(at.get("/amps/instance/name.json") for _ in range(10)))
        assert at.instance.snapshots == 1

    visit(act, clock=lambda: 0.0)


@pytest.mark.covers("Administration", "history of a leaf by `t0` and `t1`, of a branch at a")
def test_the_history_of_a_leaf_is_lines_of_time_and_value() -> None:
    async def act(at: Visit) -> None:
        for time_us, published in ((1_000_000, 10), (2_000_000, 30)):
            at.instance.published = published
            tree = await Sampler(at.instance, lambda: {}).tree()
            await at.statistics.append(time_us, tree)
        path = "/amps/instance/processors/all/messages_received"
        first = "19700101T000001.000000Z,10\n"
        assert await at.get(f"{path}.csv") == (
            200,
            f"{first}19700101T000002.000000Z,30\n".encode(),
        )
        assert await at.get(f"{path}.csv?t1=19700101T000001Z") == (200, first.encode())
        status, found = await at.get(f"{path}.json?t0=19700101T000002Z")
        assert [each["value"] for each in found["amps"]["history"]] == ["30"]
        status, found = await at.get("/amps/instance/processors.csv")
        assert status == 400 and "only a leaf is served as CSV" in found["error"]

    visit(act)


@pytest.mark.covers("Administration", "the documented tree, as JSON with texts, as XML, as")
@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("/amps/instance/clients/99.json", 404, "'99'"),
        ("/amps/nothing", 404, "'nothing'"),
        ("/amps/host?t0=never", 400, "is no time"),
        ("/amps/" + "a/" * 40, 400, "steps"),
        ("/amps/administrator/replication/north/kill", 404, "'north'"),
        ("/amps/instance/%0D%1B", 404, r"there is no '\r\x1b' at /amps/instance/\r\x1b"),
        ("/amps/instance?t0=0001-01-01T00:00:00%2B23:59", 400, "out of range"),
        ("/raylay/nothing", 404, "north serves nothing at '/raylay/nothing'"),
        ("/amps/instance/name%0A", 404, "north serves nothing at"),
    ],
)
def test_what_is_not_there_is_named(path: str, status: int, text: str) -> None:
    async def act(at: Visit) -> None:
        found_status, found = await at.get(URL(path, encoded=True))
        assert found_status == status
        assert text in found["error"]

    visit(act)


def test_an_instance_that_is_away_is_told_with_503() -> None:
    async def act(at: Visit) -> None:
        at.instance.is_away = True
        assert (await at.get("/amps/instance.json"))[0] == 503
        at.instance.is_away = False
        assert (await at.get("/amps/instance.json"))[0] == 200

    visit(act)


@pytest.mark.covers("Administration", "administrator's actions: each is the control call th")
def test_an_action_is_a_control_call() -> None:
    async def act(at: Visit) -> None:
        path = "/amps/administrator/replication/south/downgrade"
        status, found = await at.ask("POST", path, headers=HEADER)
        assert (status, found["done"], found["destination"]) == (200, "downgrade", "south")
        assert [(call, details) for call, _, details in at.instance.performed] == [
            ("downgrade", {"destination": "south"})
        ]
        path = "/amps/administrator/replication/nowhere/downgrade"
        status, found = await at.ask("POST", path, headers=HEADER)
        assert status == 400 and "it has south" in found["error"]
        status, found = await at.get("/amps/administrator.json")
        assert found["amps"]["administrator"]["replication"] == [
            {"id": "south", "downgrade": "true", "upgrade": "true", "reconnect": "true"}
        ]
        assert found["amps"]["administrator"]["instance"] == {"admit": "true"}
        status, found = await at.get("/amps/administrator/diagnostics.xml")
        assert status == 200 and b"<dump>true</dump>" in found
        status, found = await at.get("/amps/administrator/replication/nowhere.json")
        assert status == 404 and "'nowhere'" in found["error"]
        status, found = await at.ask("POST", "/amps/administrator/explode", headers=HEADER)
        assert status == 404 and "/amps/administrator.json lists" in found["error"]

    visit(act)


def test_a_body_adds_to_an_action() -> None:
    async def act(at: Visit) -> None:
        path = "/amps/administrator/replication/south/downgrade"
        assert (await at.ask("POST", path, headers=HEADER, json={"force": True}))[0] == 200
        assert at.instance.performed[-1][2] == {"destination": "south", "force": True}
        for body in (b"{", b"[" * 60_000, b'{"force": 1}', b'{"destination": "x"}', b"\xff"):
            status, found = await at.ask("POST", path, headers=HEADER, data=body)
            assert status == 400 and found["error"], body
        assert (await at.ask("POST", path, headers=HEADER, data=b"x" * 70_000))[0] == 413
        assert len(at.instance.performed) == 1

    visit(act)


@pytest.mark.covers("Actions", "On a REST Request")
def test_a_request_for_an_action_of_the_configuration_has_its_parameters_in_query_or_body() -> None:
    async def act(at: Visit) -> None:
        path = "/amps/administrator/actions/again"
        query = {"who": "amy", "why": "a b&c"}
        status, found = await at.ask("POST", path, headers=HEADER, params=query)
        assert (status, found["done"], found["action"]) == (200, "run_action", "again")
        assert at.instance.performed[-1][2] == {"action": "again", "parameters": query}
        body = {"why": "another"}
        await at.ask("POST", path, headers=HEADER, params=query, json=body)
        assert at.instance.performed[-1][2]["parameters"] == {"who": "amy", "why": "another"}
        await at.ask("POST", path, headers=HEADER)
        assert at.instance.performed[-1][2] == {"action": "again"}
        count = len(at.instance.performed)
        assert (await at.ask("POST", path, headers=HEADER, params=query, json=["x"]))[0] == 400
        assert (await at.ask("POST", path, params=query))[0] == 403, "a page of another site"
        assert (await at.get(path, params=query))[0] == 405
        assert len(at.instance.performed) == count
        assert (await at.get("/amps/administrator/actions.json"))[1]["amps"] == {
            "administrator": {"actions": {"again": "true"}}
        }

    visit(act)

    async def documented(at: Visit) -> None:
        status, _ = await at.get("/amps/administrator/actions/again", params={"who": "amy"})
        assert status == 200 and at.instance.performed[-1][2]["parameters"] == {"who": "amy"}

    visit(documented, get_actions=True)


@pytest.mark.covers("Administration", "authentication, entitlement and sessions of the inte")
def test_a_reset_ends_the_sessions_of_the_interface_too() -> None:
    async def act(at: Visit) -> None:
        path = "/amps/administrator/authorization/entitlement/reset"
        root = {**HEADER, **basic("root")}
        url = at.server.make_url("/amps/host/name")
        async with at.session.get(url, headers=basic("amy")) as found:
            cookies = {"Cookie": f"{COOKIE}={found.cookies[COOKIE].value}"}
        assert (await at.ask("POST", path, headers=root, json={"user": "bob"}))[0] == 200
        assert (await at.get("/amps/host/name", headers=cookies))[0] == 200
        assert (await at.ask("POST", path, headers=root))[0] == 200
        assert (await at.get("/amps/host/name", headers=cookies))[0] == 401

    visit(act, guarded=True)


@pytest.mark.covers("Administration", "what an action risks is told in live numbers before")
def test_the_risk_of_an_action_is_told_before_it_is_done() -> None:
    async def act(at: Visit) -> None:
        path = "amps/administrator/replication/south/downgrade"
        status, found = await at.get("/raylay/risk", params={"path": path})
        assert status == 200 and "5 messages that south lacks" in found["risk"][1]
        assert (found["path"], found["verb"], found["name"]) == (path, "downgrade", "south")
        assert found["allowed"] is True and found["why_not"] == "" and found["typed"] == ""
        assert found["curl"].endswith(f"/{path}") and "X-Raylay" in found["curl"]
        assert found["raylay"] == "raylay downgrade north south"
        assert found["effect"]["value"] == "true" and found["sampled_us"] > 0
        status, found = await at.get("/raylay/risk", params={"path": "amps/administrator/x"})
        assert status == 404 and "names no action of north" in found["error"]
        assert (await at.get("/raylay/risk"))[0] == 400
        assert not at.instance.performed

    visit(act)


def test_the_shell_is_told_the_status_and_events() -> None:
    async def act(at: Visit) -> None:
        status, found = await at.get("/raylay/status.json")
        assert status == 200 and found["ready"] is True and "events" not in found
        status, found = await at.get("/raylay/status.json?events_after=7")
        assert found["events"] == [{"number": 8}]
        for text in ("-1", "x", "", "9" * 20, "\u0661"):
            status, found = await at.get("/raylay/status.json", params={"events_after": text})
            assert status == 400 and "is no number of an event" in found["error"]

    visit(act)

    async def guarded(at: Visit) -> None:
        status, found = await at.get("/raylay/status.json", headers=basic("amy"))
        assert status == 403 and "amy may not read /amps/instance" in found["error"]
        assert (await at.get("/raylay/status.json", headers=basic("root")))[0] == 200

    visit(guarded, guarded=True)


def test_who_may_not_read_the_instance_learns_no_names_and_numbers_of_it() -> None:
    """Actions and risks are told in names and values of the instance."""

    async def act(at: Visit) -> None:
        amy, root = basic("amy"), basic("root")
        url = "/amps/administrator.json"
        risk = {"path": "amps/administrator/replication/south/downgrade"}
        assert b"south" not in json.dumps(await at.get(url, headers=amy)).encode()
        _, found = await at.get("/raylay/risk", params=risk, headers=amy)
        assert found["risk"] == [] and found["effect"] is None and not found["allowed"]
        assert "amy may not use" in found["why_not"]
        at.session.cookie_jar.clear()
        assert b"south" in json.dumps(await at.get(url, headers=root)).encode()
        assert (await at.get("/raylay/risk", params=risk, headers=root))[1]["risk"]

    visit(act, guarded=True)


def test_a_history_that_is_too_long_is_asked_for_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "READ_SAMPLES_MAX", 2)

    async def act(at: Visit) -> None:
        for time_us in (1_000_000, 2_000_000, 3_000_000):
            tree = await Sampler(at.instance, lambda: {}).tree()
            await at.statistics.append(time_us, tree)
        leaf = "/amps/instance/processors/all/messages_received.csv"
        for path in (leaf, "/amps/instance/timestamp.csv"):
            status, found = await at.get(path)
            assert status == 400 and "t1=19700101T000002.000000Z" in found["error"], found
            status, found = await at.get(f"{path}?t1=19700101T000002Z")
            assert status == 200 and len(found.splitlines()) == 2

    visit(act)


def test_the_risk_says_who_may_not() -> None:
    async def act(at: Visit) -> None:
        path = {"path": "amps/administrator/instance/admit"}
        status, found = await at.get("/raylay/risk", params=path, headers=basic("amy"))
        assert status == 200 and found["allowed"] is False
        assert found["why_not"].startswith("amy may not use /amps/administrator/instance/admit")
        assert "-u amy " in found["curl"] and "right" not in found["curl"]

    visit(act, guarded=True)


@pytest.mark.covers("Administration", "actions by GET are off by default; requests of other")
@pytest.mark.parametrize(
    ("method", "headers", "status"),
    [
        ("GET", {}, 405),
        ("GET", HEADER, 405),
        ("DELETE", HEADER, 405),
        ("POST", {}, 403),
        ("POST", {**HEADER, "Origin": "http://elsewhere.example"}, 403),
        ("POST", {**HEADER, "Origin": "null"}, 403),
        ("POST", {**HEADER, "Origin": "http://[::1"}, 403),
    ],
)
def test_an_action_that_another_site_may_have_sent_is_refused(
    method: str, headers: dict[str, str], status: int
) -> None:
    async def act(at: Visit) -> None:
        path = "/amps/administrator/replication/south/downgrade"
        assert (await at.ask(method, path, headers=headers))[0] == status
        assert not at.instance.performed

    visit(act)


@pytest.mark.covers("Administration", "actions by GET are off by default; requests of other")
def test_the_documented_get_may_be_allowed() -> None:
    async def act(at: Visit) -> None:
        status, _ = await at.get("/amps/administrator/replication/south/upgrade")
        assert status == 200 and at.instance.performed[0][0] == "upgrade"

    visit(act, get_actions=True)


@pytest.mark.covers("Administration", "actions by GET are off by default; requests of other")
@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("rebound.example", 421),
        ("north.example:1", 200),
        ("localhost", 200),
        ("[::1]:5", 200),
        ("[::1", 421),
        ("[nowhere]", 421),
    ],
)
def test_only_its_own_names_are_answered(host: str, status: int) -> None:
    async def act(at: Visit) -> None:
        found = await at.get("/amps/host/name.json", headers={"Host": host})
        assert found[0] == status

    visit(act, host_names=frozenset(("north.example",)))


@pytest.mark.covers("Administration", "authentication, entitlement and sessions of the inte")
def test_a_password_is_checked_once_and_a_cookie_stands_for_it() -> None:
    async def act(at: Visit) -> None:
        url = at.server.make_url("/amps/host/name.json")
        async with at.session.get(url) as found:
            assert found.status == 401 and "Basic" in found.headers["WWW-Authenticate"]
        async with at.session.get(url, headers=basic("reader", "wrong")) as found:
            assert found.status == 401
        async with at.session.get(url, headers=basic("reader")) as found:
            assert found.status == 200
            cookie = found.cookies[COOKIE]
            assert cookie["httponly"] and cookie["samesite"] == "Strict"
        cookies = {"Cookie": f"{COOKIE}={cookie.value}"}
        for _ in range(3):
            assert (await at.get("/amps/host/name.json", headers=cookies))[0] == 200
        assert at.instance.identified == 2
        # What this user may not read, or do, is refused.
        status, found = await at.get("/amps/instance.json", headers=cookies)
        assert status == 403 and "/amps/instance" in found["error"]
        check = "/amps/administrator/authorization/entitlement/transports/amps-admin/check.json"
        for path, allowed in (("/amps/host", True), ("/amps/instance", False)):
            assert await at.get(f"{check}?path={path}", headers=cookies) == (200, allowed)

    visit(act, guarded=True)


@pytest.mark.covers("Administration", "actions by GET are off by default; requests of other")
def test_more_requests_than_can_be_answered_are_told_to_come_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(guard_module, "TURN_S_MAX", 0.05)

    async def act(at: Visit) -> None:
        at.instance.release = asyncio.Event()
        waiting = [
            asyncio.ensure_future(at.get("/amps/instance/name.json")) for _ in range(REQUESTS_MAX)
        ]
        while True:
            status, _ = await at.get("/amps/nothing/at/all.csv?t0=never")
            if status == 503:
                break
        at.instance.release.set()
        assert {status for status, _ in await asyncio.gather(*waiting)} == {200}

    visit(act)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"[" * 30_000, "no JSON"),
        (b"9" * 30_000, "no JSON"),
        (b"\xff\xfe", "no JSON"),
        (b'{"senders": ["\\ud800"]}', "half of a character"),
        (b'{"\\udfff": 1}', "half of a character"),
        (b'{"force": NaN}', "must be true or false"),
        (b'{"force": 1, "unknown": 2}', "must be true or false"),
    ],
)
def test_a_body_that_says_nothing_is_refused_in_words(body: bytes, text: str) -> None:
    async def act(at: Visit) -> None:
        path = "/amps/administrator/instance/admit"
        status, found = await at.ask("POST", path, headers=HEADER, data=body)
        assert status == 400 and text in found["error"], found
        assert not at.instance.performed

    visit(act)


def test_a_compressed_body_is_refused() -> None:
    async def act(at: Visit) -> None:
        headers = {**HEADER, "Content-Encoding": "gzip"}
        path = "/amps/administrator/instance/admit"
        status, found = await at.ask("POST", path, headers=headers, data=b"no gzip")
        assert status == 400 and "compressed" in found["error"], found

    visit(act)


def test_a_body_that_does_not_come_keeps_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "BODY_S_MAX", 0.05)

    async def act(at: Visit) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", at.server.port)
        writer.write(
            b"POST /amps/administrator/instance/admit HTTP/1.1\r\nHost: localhost\r\n"
            b"X-Raylay: 1\r\nContent-Length: 9\r\n\r\n{"
        )
        assert b" 408 " in await reader.readline()
        writer.close()

    visit(act)


def test_an_authorization_that_is_no_text_is_none() -> None:
    async def act(at: Visit) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", at.server.port)
        writer.write(
            b"GET /amps/host HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer \xff\r\n\r\n"
        )
        assert b" 401 " in await reader.readline()
        writer.close()
        assert not at.instance.identified

    visit(act, guarded=True)


def test_every_answer_says_that_nothing_of_it_is_run() -> None:
    async def act(at: Visit) -> None:
        for path in ("/amps/host/name.json", "/amps/nothing", "/nothing"):
            async with at.session.get(at.server.make_url(path)) as found:
                assert "default-src 'none'" in found.headers["Content-Security-Policy"]
                assert found.headers["X-Content-Type-Options"] == "nosniff"
                assert found.headers["Cache-Control"] == "no-store"

    visit(act)
