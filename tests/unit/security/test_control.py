"""Who may control an instance: the table of calls and paths, and that no call is forgotten."""

from __future__ import annotations

import ast
import inspect
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from raylay.services.errors import ConfigurationError, ControlRefused, FabricError
from raylay.services.fabric import Fabric, control
from raylay.services.fabric.plan import record_of
from raylay.services.fabric.records.record import OrphanedDirectory
from raylay.services.security.control import (
    PATHS,
    Caller,
    check_admin,
    not_let_in,
    path_of,
    refusal,
)
from raylay.services.security.modules import ModuleConfig
from raylay.services.security.permissions import EVERYTHING, NOTHING, read_permissions

ROOT = Path(__file__).parents[3]
NAMES = {"destination": "B", "queue": "work", "transport": "tls", "segments": "all", "moved": "A-1",
         "client": "7", "topic": "orders", "action": "recover",
         "reader": "lake"}  # fmt: skip
DOCUMENTED = {
    "downgrade": "/amps/administrator/replication/B/downgrade",
    "upgrade": "/amps/administrator/replication/B/upgrade",
    "enable_proxied": "/amps/administrator/queues/work/enable_proxied_transfer",
    "disable_proxied": "/amps/administrator/queues/work/disable_proxied_transfer",
    "enable_transport": "/amps/administrator/transports/tls/enable",
    "disable_transport": "/amps/administrator/transports/tls/disable",
    "reset_entitlement": "/amps/administrator/authorization/entitlement/reset",
    "compress": "/amps/administrator/transaction_log/journals/all/compress",
    "archive": "/amps/administrator/transaction_log/journals/all/archive",
    "remove": "/amps/administrator/transaction_log/journals/all/remove",
}


# -- the table -----------------------------------------------------------------------------------
@pytest.mark.covers("Configuration", "Entitlement of administrator actions")
def test_documented_actions_have_the_documented_paths() -> None:
    assert {call: path_of(call, NAMES) for call in DOCUMENTED} == DOCUMENTED


def test_no_two_calls_have_one_path_and_the_page_has_them_all() -> None:
    page = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    assert len({path_of(call, NAMES) for call in PATHS}) == len(PATHS)
    for path in PATHS.values():
        shown = path
        for name in NAMES:
            shown = shown.replace(f"{{{name}}}", name.upper())
        assert f"`{shown}`" in page, f"docs/security.md does not have {shown}"


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("plain-1_.~", "plain-1_.~"),
        ("x/downgrade", "x%2Fdowngrade"),
        ("{queue}", "%7Bqueue%7D"),
        ("a b\n", "a%20b%0A"),
        ("é", "%C3%A9"),
        ("\ud800", "%ED%A0%80"),
        ("..", ".."),
    ],
)
def test_a_name_is_one_step_of_a_path(name: str, step: str) -> None:
    path = path_of("upgrade", {"destination": name, "more": "/ignored/"})
    assert path == f"/amps/administrator/replication/{step}/upgrade"


@pytest.mark.parametrize(("call", "details"), [("explode", {}), ("", {}), ("downgrade", {})])
def test_what_is_no_call_has_no_path(call: str, details: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="no call that controls"):
        path_of(call, details)


# -- who may -------------------------------------------------------------------------------------
@pytest.mark.covers("Configuration", "Entitlement of administrator actions")
@pytest.mark.parametrize(
    ("admin", "may"),
    [
        ([], False),
        ([{"topic": "/amps/.*", "read": True}], True),
        ([{"topic": "/amps/administrator/replication/B/downgrade", "read": True}], True),
        ([{"topic": "replication/B/downgrade", "read": True}], False),
        ([{"topic": "/amps/administrator/replication", "read": True}], False),
        ([{"topic": "/amps/.*", "write": True}], False),
        # The first that fits says all that is said.
        ([{"topic": "/amps/.*/downgrade"}, {"topic": "/amps/.*", "read": True}], False),
        ([{"topic": "/amps/.*/upgrade"}, {"topic": "/amps/.*", "read": True}], True),
        # What restricts a topic does not restrict an action: it allows none.
        ([{"topic": "/amps/.*", "read": "/a = 1"}], False),
        ([{"topic": "/amps/.*", "read": True, "select": "-/a"}], False),
    ],
)
def test_admin_needs_read_of_the_whole_path(admin: list[Any], may: bool) -> None:
    path = path_of("downgrade", NAMES)
    found = read_permissions({"admin": admin}, "here")
    assert found.controls(path) is may
    assert bool(refusal(found, "amy", path, "A-1")) is not may


def test_everything_and_nothing() -> None:
    assert all(EVERYTHING.controls(path_of(call, NAMES)) for call in PATHS)
    assert not any(NOTHING.controls(path_of(call, NAMES)) for call in PATHS)
    assert refusal(None, "", "/amps/x", "A-1") == ""


def test_a_refusal_says_who_what_and_what_to_do() -> None:
    path = path_of("downgrade", NAMES)
    told = refusal(NOTHING, "amy", path, "A-1")
    for part in ("A-1", "amy", path, "nothing was changed", "`admin`"):
        assert part in told
    assert "nobody in particular" in refusal(NOTHING, "", path, "A-1")
    assert "RAYLAY_USER" in not_let_in("amy", path, "A-1")
    assert len(refusal(NOTHING, "x" * 10_000, path, "A-1")) < 1_000


def test_what_keeps_nobody_out_or_everybody_is_refused() -> None:
    some = ModuleConfig("passwords", {"File": "f"})
    check_admin(some, None, "A")
    check_admin(None, some, "A")
    with pytest.raises(ConfigurationError, match=r"A: admin names no module.*give"):
        check_admin(None, None, "A")
    with pytest.raises(ConfigurationError, match=r"certificates.*passwords or tokens"):
        check_admin(ModuleConfig("certificates"), some, "A")


def test_secrets_are_not_shown() -> None:
    said = Caller("amy", "pss-wrd", "k-e-y")
    assert "amy" in repr(said)
    assert "pss-wrd" not in repr(said) and "k-e-y" not in repr(said)
    assert pickle.loads(pickle.dumps(said)) == said


# -- that nothing is forgotten -------------------------------------------------------------------
READS = {"status", "events", "pid", "authorize"}
"""Methods of the actor that change nothing."""
JUDGED = {"control", "stop"}


@pytest.mark.covers("Configuration", "Entitlement of administrator actions")
def test_every_method_of_an_instance_is_judged_or_changes_nothing() -> None:
    tree = ast.parse((ROOT / "actors" / "instance.py").read_text(encoding="utf-8"))
    (actor,) = (each for each in tree.body if isinstance(each, ast.ClassDef))
    methods = {each.name: each for each in actor.body if isinstance(each, ast.FunctionDef)}
    public = {name for name in methods if not name.startswith("_")}
    assert public == READS | JUDGED, "make a new call one of `ControlCalls`, or put it here"
    for name in JUDGED:
        assert "caller" in {each.arg for each in methods[name].args.args}, name


ASKED: dict[str, tuple[Callable[[Fabric], Any], str, set[str]]] = {
    "kill": (lambda fabric: fabric.kill("A-1"), "kill", {"A-1"}),
    "kill_link": (lambda fabric: fabric.kill_link("A-1", "A-2"), "kill_link", {"A-1"}),
    "restart": (lambda fabric: fabric.restart("A-1"), "restart", {"A-1"}),
    "rolling_restart": (lambda fabric: fabric.rolling_restart(), "restart", {"A-1", "A-2"}),
    "apply": (lambda fabric: fabric.apply(declared(["more"])), "apply", {"A-1", "A-2"}),
    "stop": (lambda fabric: fabric.stop(), "stop", {"A-1", "A-2"}),
    "relocate": (lambda fabric: fabric.relocate("A-1", force=True), "place", {"A-1", "A-2"}),
    "note_salvage": (
        lambda fabric: fabric.note_salvage("A-1", 1, salvaged=True, lacking=0),
        "note_salvage",
        {"A-1", "A-2"},
    ),
    "forget_left_over": (
        lambda fabric: fabric.forget_left_over("/gone/A-9"),
        "forget",
        {"A-1", "A-2"},
    ),
}
"""What is asked for before something is done from outside, and where."""
AT_THE_INSTANCE: dict[str, Callable[[Fabric], Any]] = {
    "downgrade": lambda fabric: fabric.downgrade("A-1", "A-2"),
    "upgrade": lambda fabric: fabric.upgrade("A-1", "A-2"),
    "admit": lambda fabric: fabric.admit("A-1"),
    "inject": lambda fabric: fabric.inject("A-1", "disk", 1.0),
    "proxied": lambda fabric: fabric.proxied("A-1", "work"),
    "switch_transport": lambda fabric: fabric.switch_transport("A-1", "client", on=False),
    "reset_entitlement": lambda fabric: fabric.reset_entitlement("A-1"),
    "control": lambda fabric: fabric.control("A-1", "compress", segments=7),
}
"""Calls of a method of the instance that judges them."""
ELSEWHERE = {
    "relocate_due": "relocates",
    "start": "nothing runs that could be asked: who starts has the files",
    "on_node_of": "runs a function of the driver's for drills, which ask before the first fault",
    "end_errands": "ends what this process began",
    "leave": "ends this process's part alone",
    "act_as": "says who it is",
    "authorize": "asks",
}
"""Public methods that change something and ask otherwise, or not, and why."""
LOOKS = {
    *("attach", "load", "of", "ask", "status", "events", "servers", "directory", "declared", "pid"),
    *("data_directory", "instance_config", "wait_ready", "wait_connected", "shared_hosts"),
    *("client", "sync_client", "client_options", "consoles"),
}
"""Look at the fabric, and make handles and clients."""
DECLARES = {"region", "instance", "destination", "connect_regions", "settings"}
"""Of a declaration that does not run yet."""


@pytest.mark.covers("Configuration", "Entitlement of administrator actions")
def test_every_method_of_a_fabric_asks_or_says_why_not() -> None:
    public = {name for name, _ in inspect.getmembers(Fabric) if not name.startswith("_")}
    known = {*ASKED, *AT_THE_INSTANCE, *ELSEWHERE, *LOOKS, *DECLARES}
    assert public == known, "put a new method where it belongs: one that changes something asks"


def declared(topics: list[str]) -> Fabric:
    return Fabric("f", topics=topics, admin={"entitlement": "permissions"}).region("A", 2)


def running(place: Path) -> Fabric:
    """A fabric that runs, as far as this process knows."""
    fabric = Fabric.of(declared([".*"]).settings())
    fabric.handle.record = record = record_of(fabric.declared, place)
    # One that was moved away, and is not of the fabric any more.
    record.left_over.append(OrphanedDirectory("A-9", 0, "h", {}, "/gone/A-9", "h:1", 0))
    return fabric


@pytest.mark.covers("Configuration", "who may not control an instance changes nothing")
@pytest.mark.parametrize("method", ASKED)
def test_who_may_not_changes_nothing_from_outside(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without Ray: the instances refuse what they are asked for."""
    do, call, names = ASKED[method]
    fabric = running(tmp_path / "f")
    asked: list[tuple[set[str], str]] = []

    def authorize(names: Any, call: str, **details: Any) -> None:
        asked.append((set(names), call))
        path_of(call, details)  # it has the names that its path needs
        raise FabricError("refused")

    def statuses(names: Any) -> list[dict[str, Any]]:
        return [{"name": name, "ready": True} for name in names]

    monkeypatch.setattr(fabric._control, "authorize", authorize)
    monkeypatch.setattr(fabric.handle, "refresh", lambda: None)
    monkeypatch.setattr(fabric.handle, "actor", lambda name: object())
    monkeypatch.setattr(fabric.instances, "check_ports", lambda *arguments: None)
    monkeypatch.setattr(fabric.instances, "statuses", statuses)
    before = fabric.handle.known()[1].to_json()
    with pytest.raises(FabricError, match=r"^refused$"):
        do(fabric)
    assert asked == [(names, call)]
    assert fabric.handle.known()[1].to_json() == before
    assert not list(tmp_path.rglob("*")), "nothing was written"


class Ray:
    """What calls of instances came by."""

    class exceptions:
        class RayError(Exception): ...

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.verb = ""

    def __getattr__(self, verb: str) -> Any:
        self.verb = verb
        return self

    def remote(self, *arguments: Any) -> Any:
        self.calls.append((self.verb, arguments))

    def get(self, ref: Any, timeout: float) -> Any:
        return 0


@pytest.mark.parametrize("method", AT_THE_INSTANCE)
def test_who_asks_is_said_to_the_instance_that_judges(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = Ray()
    monkeypatch.setattr(control, "ray_module", lambda: ray)
    monkeypatch.setenv("RAYLAY_USER", "amy")
    monkeypatch.setenv("RAYLAY_PASSWORD", "secret")
    fabric = running(tmp_path)
    monkeypatch.setattr(fabric.handle, "actor", lambda name: ray)
    AT_THE_INSTANCE[method](fabric)
    fabric.act_as("bob", "other")
    AT_THE_INSTANCE[method](fabric)
    assert [verb for verb, _ in ray.calls] == ["control"] * 2
    callers = [arguments[-1] for _, arguments in ray.calls]
    assert callers == [Caller("amy", "secret"), Caller("bob", "other")]
    (_, (call, arguments, _)), _ = ray.calls
    assert path_of(call, arguments), "the names in its path are arguments"


@pytest.mark.covers("Configuration", "what an instance cannot judge in time")
@pytest.mark.parametrize(
    ("cause", "may"),
    [
        (None, True),
        (ControlRefused("A-1 refuses"), False),
        (ConfigurationError("a module cannot be used"), False),
        # It answered, and did not allow it.
        (TypeError("a module's own fault"), False),
    ],
)
def test_what_an_instance_has_not_allowed_is_not_done_from_outside(
    cause: Exception | None, may: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Answers(Ray):
        class exceptions:
            class RayError(Exception): ...

            class RayTaskError(RayError):
                cause: Exception | None = None

        def remote(self, *arguments: Any) -> Any:
            return object()

        def wait(self, refs: Any, num_returns: int, timeout: float) -> None: ...

        def get(self, ref: Any, timeout: float) -> Any:
            if cause is not None:
                error = self.exceptions.RayTaskError(str(cause))
                error.cause = cause
                raise error

    ray = Answers()
    monkeypatch.setattr(control, "ray_module", lambda: ray)
    monkeypatch.setattr(control, "actor_state", lambda actor: {"state": "ALIVE"})
    fabric = running(tmp_path)
    monkeypatch.setattr(fabric.handle, "actor", lambda name: ray)
    if may:
        fabric.authorize(["A-1"], "kill")
        return
    with pytest.raises(FabricError, match=str(cause)):
        fabric.authorize(["A-1"], "kill")


def test_where_no_instance_asks_nothing_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYLAY_USER", "amy")
    monkeypatch.setenv("RAYLAY_PASSWORD_FILE", str(tmp_path / "none"))
    fabric = Fabric("f").region("A", 2)
    fabric.instance("A-2", admin={"authentication": "passwords"})
    assert fabric._control.caller_for("A-1") is None
    with pytest.raises(
        ConfigurationError, match=r"control A-2: the password file .*none cannot be read"
    ):
        fabric._control.caller_for("A-2")


def test_the_process_that_a_fabric_ends_with_says_no_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYLAY_PASSWORD_FILE", str(tmp_path / "none"))
    fabric = running(tmp_path)
    fabric._lifecycle.owns = True
    key = fabric.handle.known()[1].key
    assert fabric._lifecycle.caller_at_the_end("A-1") == Caller(fabric_key=key) and key
