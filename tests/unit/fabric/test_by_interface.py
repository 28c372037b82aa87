"""services/fabric/by_interface.py: a fabric that is controlled over HTTP because Ray's head is
away, before interfaces that a thread of the test serves."""

from __future__ import annotations

import base64
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from support.listening import listening

from raylay.services.admin.actions import BY_HTTP, body_of, read_options
from raylay.services.errors import ConfigurationError, FabricError
from raylay.services.fabric import Fabric, by_interface
from raylay.services.fabric.by_interface import (
    InterfaceFabric,
    call_of_path,
    console_address,
    named_interfaces,
    reach,
)
from raylay.services.fabric.cluster.ray_access import HeadSilent
from raylay.services.fabric.interface_client import (
    InterfaceClient,
    InterfaceSilent,
)
from raylay.services.fabric.plan import FabricRecord, record_of
from raylay.services.fabric.records.registry import RegistryEntry
from raylay.services.net.ray_head import answers_as_head
from raylay.services.security.control import Caller

AMY = Caller("amy", "secret")


@dataclass
class Interface:
    """Stands for an administrator's interface: what it answers, and what it was asked. It waits for
    `meets` before it answers."""

    answers: dict[str, tuple[int, Any]] = field(default_factory=dict)
    asked: list[tuple[str, str, Any, dict[str, str]]] = field(default_factory=list)
    port: int = 0
    meets: Callable[[], object] = lambda: None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"


@contextmanager
def serving(**answers: Any) -> Iterator[Interface]:
    interface = Interface({path: (200, found) for path, found in answers.items()})

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None: ...

        def do_GET(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(length)
            told = json.loads(body) if body else None
            interface.asked.append((self.command, self.path, told, dict(self.headers)))
            interface.meets()
            status, found = interface.answers.get(self.path, (404, {"error": "there is nothing"}))
            data = found if isinstance(found, bytes) else json.dumps(found).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.send_header("Set-Cookie", "raylay-session=token; HttpOnly; Path=/")
            self.end_headers()
            self.wfile.write(data)

        do_POST = do_GET

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    interface.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield interface
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def closed_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


# -- one interface ---------------------------------------------------------------------------------
def test_a_request_says_who_it_is_and_is_let_in_by_its_session_later() -> None:
    with serving(**{"/a": {"found": 1}}) as at:
        client = InterfaceClient(at.address, AMY)
        assert client.get("/a") == {"found": 1} == client.post("/a", {"force": True})
        (method, _, body, headers), (method_2, _, body_2, headers_2) = at.asked
        assert (method, body, method_2, body_2) == ("GET", None, "POST", {"force": True})
        expected = base64.b64encode(b"amy:secret").decode()
        assert headers["Authorization"] == f"Basic {expected}"
        assert headers["X-Raylay"] == "1" and "Cookie" not in headers
        assert headers_2["Cookie"] == "raylay-session=token"
        InterfaceClient(f"http://{at.address}/", Caller("", "token")).get("/a")
        assert at.asked[-1][3]["Authorization"] == "Bearer token"
        InterfaceClient(at.address).get("/a")
        assert "Authorization" not in at.asked[-1][3]


@pytest.mark.parametrize("address", ["", "host", "ftp://h:1", "h:port", "http://:1", "h:99999999"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ConfigurationError, match="no address of an administrator's interface"):
        InterfaceClient(address)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (
            (401, {"error": "give a user"}),
            "does not let you in: give a user. Give --user and",
        ),
        ((403, {"error": "amy may not"}), "^amy may not$"),
        ((200, b"<html>"), "answers 200, and not as an administrator's interface"),
        ((500, b""), "answers 500"),
        ((500, [1]), "answers 500"),
    ],
)
def test_an_error_is_a_sentence(answer: tuple[int, Any], text: str) -> None:
    with serving() as at:
        at.answers["/a"] = answer
        with pytest.raises(FabricError, match=text):
            InterfaceClient(at.address).get("/a")


def test_one_that_is_gone_or_silent_is_named() -> None:
    with pytest.raises(InterfaceSilent, match="does not answer"):
        InterfaceClient(f"127.0.0.1:{closed_port()}").get("/a")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = InterfaceClient(f"127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(InterfaceSilent, match="does not answer: timed out"):
            client.get("/a", timeout_s=0.05)


def test_a_head_is_known_by_its_first_byte() -> None:
    assert answers_as_head("", 1.0) and answers_as_head("/unix/socket", 1.0)
    assert not answers_as_head(f"127.0.0.1:{closed_port()}", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as stopped:
        assert not answers_as_head(f"127.0.0.1:{stopped.getsockname()[1]}", 0.05)
    with serving() as at:
        assert answers_as_head(at.address, 10.0)


# -- a fabric --------------------------------------------------------------------------------------
STATUS = {"name": "A-1", "ready": True, "phase": "serving", "destinations": {}}


def fabric_of(at: Interface) -> InterfaceFabric:
    settings = Fabric("f").region("A", 2).settings()
    return InterfaceFabric("f", {"A-1": InterfaceClient(at.address)}, settings)


def test_every_instance_is_told_or_why_not() -> None:
    with serving(**{"/raylay/status.json": STATUS}) as at:
        found = fabric_of(at).status()
        first, second = found["instances"]
        assert found["fabric"] == "f" and first["ready"] and first["group"] == "A"
        assert not second["ready"] and second["phase"] == "unknown"
        assert "A-2 has no administrator's interface: `admin: {enabled: true}`" in second["reason"]
        at.answers["/raylay/status.json"] = (200, [])
        assert fabric_of(at).status()["instances"][0]["reason"] == "A-1 tells no status"


def silent_server() -> socket.socket:
    """A listener that takes connections and never answers."""
    return socket.create_server(("127.0.0.1", 0))


def client_at(listener: socket.socket) -> InterfaceClient:
    return InterfaceClient(f"127.0.0.1:{listener.getsockname()[1]}")


def test_all_instances_are_asked_at_once() -> None:
    """Each interface answers when all were asked: one after the other they would never answer."""
    path = "/raylay/status.json"
    both = threading.Barrier(2, timeout=60)
    with serving(**{path: STATUS}) as first, serving(**{path: STATUS}) as second:
        first.meets = second.meets = both.wait
        first.answers["/raylay/status.json?events_after=0"] = (200, {"events": []})
        second.answers["/raylay/status.json?events_after=0"] = (200, {"events": []})
        name = {"amps": {"instance": {"name": "A"}}}
        first.answers["/amps/instance/name.json"] = (200, name)
        second.answers["/amps/instance/name.json"] = (200, name)
        interfaces = {each.address: InterfaceClient(each.address) for each in (first, second)}
        fabric = InterfaceFabric("f", interfaces)
        assert [each["ready"] for each in fabric.status()["instances"]] == [True, True]
        assert list(fabric.events()) == []
        assert len(first.asked) == len(second.asked) == 2
        second_asked = threading.Event()
        second.meets = second_asked.set

        def after_second() -> None:
            first.meets = lambda: None
            assert second_asked.wait(60)

        first.meets = after_second
        assert named_interfaces([first.address, second.address]).names() == ["A"]


def test_many_silent_instances_cost_the_time_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(by_interface, "STATUS_TIMEOUT_S", 1.0)
    with ExitStack() as stack:
        listeners = [stack.enter_context(silent_server()) for _ in range(40)]
        interfaces = {f"A-{number}": client_at(each) for number, each in enumerate(listeners)}
        began_s = time.monotonic()
        found = InterfaceFabric("f", interfaces, stopped=["A-7"]).status(["A-7", "A-8", "A-39"])
        found_of_all = InterfaceFabric("f", interfaces).status()["instances"]
        assert time.monotonic() - began_s < 20.0, "40 of 1 s each would be 40 s"
    assert [each["name"] for each in found["instances"]] == ["A-7", "A-8", "A-39"]
    assert [each["phase"] for each in found["instances"]] == ["stopped", "unknown", "unknown"]
    assert len(found_of_all) == 40
    assert all("not answer" in each["reason"] for each in found_of_all)


def test_a_named_interface_that_is_silent_keeps_no_other_from_being_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(by_interface, "STATUS_TIMEOUT_S", 2.0)
    told: list[str] = []
    name = {"amps": {"instance": {"name": "A-1"}}}
    with silent_server() as silent, serving(**{"/amps/instance/name.json": name}) as at:
        deaf = f"127.0.0.1:{silent.getsockname()[1]}"
        found = named_interfaces([deaf, at.address], told.append)
        assert found.names() == ["A-1"] and found.interfaces()[0].url == f"http://{at.address}"
        with pytest.raises(FabricError, match="does not answer"):
            named_interfaces([deaf])
    (line,) = told
    assert f"http://{deaf} does not answer" in line


def test_an_action_is_posted_to_its_path() -> None:
    path = "/amps/administrator/replication/A-2/downgrade"
    with serving(**{path: {"done": "downgrade", "result": None}}) as at:
        fabric = fabric_of(at)
        fabric.downgrade("A-1", "A-2", force=True)
        assert at.asked[-1][:3] == ("POST", path, {"force": True})
        fabric.downgrade("A-1", "A-2")
        assert at.asked[-1][:3] == ("POST", path, None)
        with pytest.raises(FabricError, match="there is nothing"):
            fabric.upgrade("A-1", "A-2")
        with pytest.raises(FabricError, match="instance A-2 has no administrator's interface"):
            fabric.upgrade("A-2", "A-1")
        with pytest.raises(ConfigurationError, match="A-7"):
            fabric.upgrade("A-7", "A-1")
        with pytest.raises(FabricError, match=r"restart of A-1 needs Ray's head"):
            fabric.control("A-1", "restart")


def test_the_other_actions_are_those_of_a_fabric() -> None:
    root = "/amps/administrator"
    answers = {
        f"{root}/instance/admit": {"result": None},
        f"{root}/queues/work/enable_proxied_transfer": {"result": "on"},
        f"{root}/queues/work/disable_proxied_transfer": {"result": "off"},
        f"{root}/transports/client/enable": {"result": "open"},
        f"{root}/transports/client/disable": {"result": "shut"},
        f"{root}/authorization/entitlement/reset": {"result": 3},
    }
    with serving(**answers) as at:
        fabric = fabric_of(at)
        fabric.admit("A-1", force=True)
        assert at.asked[-1][2] == {"force": True, "senders": ["A-2"]}
        assert [fabric.proxied("A-1", "work", on=on) for on in (True, False)] == ["on", "off"]
        switched = [fabric.switch_transport("A-1", "client", on=on) for on in (True, False)]
        assert switched == ["open", "shut"]
        assert fabric.reset_entitlement("A-1", "bob") == 3
        assert at.asked[-1][2] == {"user": "bob"}


def test_events_of_all_come_in_order_and_follow() -> None:
    def event(number: int) -> dict[str, Any]:
        return {"number": number, "time_us": number * 10, "event": "e"}

    answers = {
        "/raylay/status.json?events_after=0": {"events": [event(1), event(2)]},
        "/raylay/status.json?events_after=2": {"events": []},
    }
    with serving(**answers) as at:
        found = list(fabric_of(at).events(after_us=10))
        assert [(each["instance"], each["number"]) for each in found] == [("A-1", 2)]
        stops = iter((False, True))
        assert len(list(fabric_of(at).events(follow=True, stop=lambda: next(stops)))) == 2


@pytest.mark.covers("Administration", "events of all instances as they come, gaps told")
def test_events_of_an_instance_that_was_started_again_are_not_lost() -> None:
    """A restarted instance counts its events from 1 again. In a container its process has the
    same id, too."""

    def event(number: int, name: str) -> dict[str, Any]:
        return {"number": number, "time_us": number * 10, "event": name}

    path = "/raylay/status.json?events_after="
    before, after = {"pid": 1, "started_us": 5}, {"pid": 1, "started_us": 9}
    with serving() as at:
        at.answers = {
            f"{path}0": (200, {**before, "events": [event(1, "a"), event(2, "b")]}),
            f"{path}2": (200, {**before, "events": []}),
        }
        rounds = 0

        def stop() -> bool:
            nonlocal rounds
            rounds += 1
            if rounds == 1:
                at.answers = {f"{path}2": (503, {"error": "it starts"})}
            elif rounds == 2:
                at.answers = {
                    f"{path}0": (200, {**after, "events": [event(1, "c"), event(2, "d")]}),
                    f"{path}2": (200, {**after, "events": []}),
                }
            return rounds == 3

        found = fabric_of(at).events(follow=True, stop=stop)
        assert [each["event"] for each in found] == ["a", "b", "c", "d"]


@pytest.mark.parametrize("call", sorted(BY_HTTP))
def test_a_body_is_read_as_it_was_meant(call: str) -> None:
    arguments = {"force": True, "of_user": "bob", "senders": ["a"], "destination": "B"}
    read = read_options(call, body_of(call, arguments))
    assert read.items() <= arguments.items() and "destination" not in read
    assert body_of(call, {"force": False, "of_user": "", "senders": None}) == {}


def test_a_path_names_a_call() -> None:
    assert call_of_path("/replication/a%2Fb/downgrade/", force=True) == (
        "downgrade",
        {"destination": "a/b", "force": True},
    )
    assert call_of_path("diagnostics/dump", force=False) == ("dump", {})
    with pytest.raises(ConfigurationError, match="'explode' names no action"):
        call_of_path("explode", force=False)
    with pytest.raises(ConfigurationError, match="it takes no body"):
        call_of_path("diagnostics/dump", force=True)


# -- which way -------------------------------------------------------------------------------------
def running(place: Path, port: int | None, head: str) -> RegistryEntry:
    settings = Fabric("f", admin={"enabled": True} if port else None).region("A", 2).settings()
    record: FabricRecord = record_of(settings, place)
    if port:
        record.ports["A-1"].admin = port
        record.ports["A-2"].admin = closed_port()
    place.mkdir()
    record.save()
    return RegistryEntry("f", str(place), head)


def test_a_head_that_answers_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Fabric, "attach", lambda name: nullcontext(f"attached to {name}"))
    told: list[str] = []
    with (
        serving() as at,
        reach(running(tmp_path / "f", None, at.address), (), told.append) as found,
    ):
        assert found == "attached to f" and told == []


def test_a_head_that_is_slow_is_waited_for_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(by_interface, "HEAD_TOLD_S", 0.0)
    monkeypatch.setattr(Fabric, "attach", lambda name: nullcontext(f"attached to {name}"))
    told: list[str] = []
    is_told = threading.Event()

    def tell(text: str) -> None:
        told.append(text)
        is_told.set()

    def answer(connection: socket.socket) -> None:
        is_told.wait(60)
        connection.sendall(b"\0")

    with (
        listening(answer) as address,
        reach(running(tmp_path / "f", None, address), (), tell) as found,
    ):
        assert found == "attached to f"
    assert told == [f"Ray's head at {address} does not answer yet: waiting for up to 8 s"]


@pytest.mark.covers("Administration", "without Ray's head the shell goes through the interf")
def test_without_a_head_the_interfaces_are_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYLAY_USER", "amy")
    monkeypatch.setenv("RAYLAY_PASSWORD", "secret")
    told: list[str] = []
    with serving(**{"/raylay/status.json": STATUS}) as at:
        entry = running(tmp_path / "f", at.port, f"127.0.0.1:{closed_port()}")
        with reach(entry, (), told.append) as found:
            first, second = found.status()["instances"]
            assert first["ready"] and not second["ready"]
            assert "does not answer" in second["reason"]
        (text,) = told
        assert "does not answer: asking over the administrator's interface, which 2 of 2" in text
        assert "no instance that ends is started again" in text
        assert "Authorization" in at.asked[-1][3]


@pytest.mark.covers("Administration", "without Ray's head the shell goes through the interf")
def test_without_a_head_and_an_interface_it_says_what_to_do(tmp_path: Path) -> None:
    entry = running(tmp_path / "f", None, f"127.0.0.1:{closed_port()}")
    with (
        pytest.raises(HeadSilent, match=r"admin: \{enabled: true\}.*administration\.md"),
        reach(entry),
    ):
        pass
    (tmp_path / "f" / "fabric.json").unlink()
    with pytest.raises(FabricError, match="has no record of fabric f"), reach(entry):
        pass
    with pytest.raises(ConfigurationError, match="name a fabric"), reach(None):
        pass


def test_the_console_is_at_the_first_instance_that_listens(tmp_path: Path) -> None:
    with serving() as at:
        entry = running(tmp_path / "f", at.port, "")
        record = FabricRecord.load(tmp_path / "f")
        assert record is not None
        assert (
            console_address(entry) == f"http://{at.address}/" == console_address(None, [at.address])
        )
        record.ports["A-1"].admin, record.ports["A-2"].admin = closed_port(), at.port
        record.save()
        assert console_address(entry) == f"http://{at.address}/"
    with pytest.raises(FabricError, match="no administrator's interface answers at http"):
        console_address(entry)
    with pytest.raises(FabricError, match=r"no instance of fabric f has .*enabled: true"):
        console_address(running(tmp_path / "g", None, ""))
    with pytest.raises(ConfigurationError, match="name a fabric"):
        console_address(None)


def test_a_named_interface_knows_the_others() -> None:
    name = {"amps": {"instance": {"name": "A-1"}}}
    view = {"fabric": "f", "instances": [{"name": "A-1"}, {"name": "A-2"}]}
    peer = {**STATUS, "name": "A-2"}
    told: list[str] = []
    with serving(
        **{
            "/amps/instance/name.json": name,
            "/raylay/fabric.json": view,
            "/raylay/status.json": STATUS,
            "/raylay/peer/A-2/raylay/status.json": peer,
            "/raylay/peer/A-2/amps/administrator/diagnostics/dump": {"result": ["line"]},
        }
    ) as at:
        with reach(None, [at.address], told.append) as found:
            assert [each["name"] for each in found.status()["instances"]] == ["A-1", "A-2"]
            assert found.control("A-2", "dump") == ["line"]
            with pytest.raises(FabricError, match="needs the fabric's settings"):
                found.declared  # noqa: B018
        assert told == [f"over the administrator's interface at {at.address}"]
        # One that knows no peers is one of itself.
        at.answers["/raylay/fabric.json"] = (404, {"error": "no"})
        alone = named_interfaces([at.address]).status()["instances"]
        assert [each["name"] for each in alone] == ["A-1"]
        at.answers["/amps/instance/name.json"] = (200, {"hello": 1})
        with pytest.raises(FabricError, match="is no administrator's interface"):
            named_interfaces([at.address])
