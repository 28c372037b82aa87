"""An instance that judges who controls it: every call, on the thread that Ray's actor has."""

from __future__ import annotations

import asyncio
import inspect
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from argon2 import PasswordHasher

from raylay.services.client import SyncClient
from raylay.services.config.instance import InstanceConfig
from raylay.services.errors import CommandFailed, ConfigurationError, ControlRefused, FabricError
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.plugins import authentication as modules
from raylay.services.security.control import AdminConfig, Caller, path_of
from raylay.services.security.credentials import Answer, Challenge, Credentials, LogonDenied
from raylay.services.security.modules import ModuleConfig
from raylay.services.server import access
from raylay.services.server.runner import InstanceThread
from raylay.services.telemetry.logs import LogOptions

DEADLINE_S = 20.0
CHEAP = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
SECRET = "a long secret of amy's"
AMY, EVE, BOB = (Caller(user, SECRET) for user in ("amy", "eve", "bob"))
PERMISSIONS = {
    "amy": {"admin": [{"topic": "/amps/.*", "read": True}]},
    # Who may do everything as a client may control nothing by that.
    "eve": {"logon": True, "topic": [{"topic": ".*", "read": True, "write": True}]},
    "bob": {
        "admin": [{"topic": "/amps/administrator/authorization/.*", "read": True}],
        "user_name": "robert",
    },
}
KEY = "0123456789abcdef"


class Place(NamedTuple):
    """An instance with `admin`, and the files of its modules."""

    thread: InstanceThread
    path: Path

    def events(self, *names: str) -> list[dict[str, Any]]:
        return [each for each in self.thread.events() if each["event"] in names]


def configured(path: Path, **more: Any) -> InstanceConfig:
    (path / "passwords").write_text(
        "".join(f"{user}:{CHEAP.hash(SECRET)}\n" for user in PERMISSIONS)
    )
    (path / "permissions").write_text(json.dumps(PERMISSIONS))
    return InstanceConfig(
        "solo", "g", first=True, drills=True, fabric_key=KEY, log=LogOptions(target="none"),
        admin=AdminConfig(
            ModuleConfig("passwords", {"File": str(path / "passwords")}),
            ModuleConfig("permissions", {"File": str(path / "permissions")}),
        ),
        **more,
    )  # fmt: skip


def running(directory: Path, config: InstanceConfig) -> InstanceThread:
    config.save(directory)
    thread = InstanceThread(str(directory), "solo", _no_link)
    thread.start()
    until_s = time.monotonic() + DEADLINE_S
    while not (status := thread.status())["ready"]:
        assert time.monotonic() < until_s, status
        time.sleep(0.01)
    return thread


def _no_link(config: Any) -> Any:
    raise AssertionError("there is no destination")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    path = tmp_path_factory.mktemp("control")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(modules, "hasher", lambda: CHEAP)
        thread = running(path / "data", configured(path))
        yield Place(thread, path)
        assert thread.stop(caller=AMY)


PLACED = {"moved": "Z", "generation": 1, "address": "z:1", "client_address": "z:2"}
CLIENT = {"transport": "client"}
CLOCK = {"kind": "clock", "seconds": 0.0, "options": {"offset_us": 0}}
CALLS: dict[str, dict[str, Any]] = {
    "downgrade": {"destination": "B", "force": True},
    "upgrade": {"destination": "B"},
    "drill": CLOCK,
    "place": PLACED,
    "admit": {"senders": [], "force": True},
    "reconnect": {"destination": "B"},
    "disconnect": {"client": "7"},
    "drop_reader": {"reader": "lake"},
    "compact": {"topic": "orders"},
    "dump": {},
    "enable_proxied": {"queue": "work"},
    "disable_proxied": {"queue": "work"},
    "enable_transport": CLIENT,
    "disable_transport": CLIENT,
    "reset_authentication": {},
    "reset_entitlement": {},
    "compress": {"segments": "all"},
    "archive": {"segments": 7},
    "remove": {"segments": 7},
    "run_action": {"action": "recover", "parameters": {"who": "amy"}},
}
"""Every control call, with arguments."""
ENDS: list[Callable[[InstanceThread, Caller | None], Any]] = [
    lambda thread, caller: thread.stop(caller=caller),
    lambda thread, caller: thread.stop(caller=caller, call="restart"),
    lambda thread, caller: thread.stop(caller=caller, call="place", moved="solo"),
    lambda thread, caller: thread.authorize("kill", caller, {}),
]
WRONG = {
    "nobody": None,
    "unknown": Caller("zoe", SECRET),
    "wrong password": Caller("amy", SECRET[:-1]),
    "no password": Caller("amy"),
    "client": EVE,
    "wrong key": Caller("", "", KEY[:-1]),
}


def facts(thread: InstanceThread) -> dict[str, Any]:
    status = thread.status()
    return {name: status[name] for name in ("state", "ready", "transports", "moved", "incarnation")}


@pytest.mark.covers("Configuration", "Entitlement of administrator actions")
def test_every_control_call_has_a_path_and_takes_the_names_in_it(place: Place) -> None:
    server = place.thread._server
    assert server is not None and set(CALLS) == set(server.parts.calls.table), "put a new call here"
    for call, arguments in CALLS.items():
        assert path_of(call, arguments).startswith("/amps/administrator/")
        inspect.signature(server.parts.calls.table[call]).bind(**arguments)


@pytest.mark.covers("Configuration", "who may not control an instance changes nothing")
@pytest.mark.parametrize("said", WRONG)
def test_who_may_not_control_it_changes_nothing(said: str, place: Place) -> None:
    before = facts(place.thread)
    number = place.thread.events()[-1]["number"]
    asked = [partial(place.thread.control, *call, WRONG[said]) for call in CALLS.items()]
    asked += [partial(end, place.thread, WRONG[said]) for end in ENDS]
    for ask in asked:
        with pytest.raises(ControlRefused, match=r"^solo refuses.*/amps/administrator/") as why:
            ask()
        assert SECRET not in str(why.value) and KEY[:-1] not in str(why.value), ask
    assert facts(place.thread) == before
    told = place.thread.events(number)
    assert [each["event"] for each in told].count("control_refused") == len(asked)
    assert {each["event"] for each in told} <= {"control_refused", "logon_denied"}
    assert SECRET not in json.dumps(place.thread.events())


@pytest.mark.covers("Configuration", "who may not control an instance changes nothing")
def test_who_may_control_it_does_and_the_events_say_who_and_what(place: Place) -> None:
    number = place.thread.events()[-1]["number"]
    assert "is disabled" in place.thread.control("disable_transport", CLIENT, AMY)
    assert "is enabled" in place.thread.control("enable_transport", CLIENT, AMY)
    place.thread.control("place", PLACED, AMY)
    assert place.thread.control("remove", {"segments": "all"}, AMY) == []
    with pytest.raises(ConfigurationError, match="no Destination 'B'"):
        place.thread.control("downgrade", {"destination": "B"}, AMY)
    told = [each for each in place.thread.events(number) if each["event"] == "control"]
    assert [(each["user"], each["path"]) for each in told] == [
        ("amy", "/amps/administrator/transports/client/disable"),
        ("amy", "/amps/administrator/transports/client/enable"),
        ("amy", "/amps/administrator/placements/Z/move"),
        ("amy", "/amps/administrator/transaction_log/journals/all/remove"),
        ("amy", "/amps/administrator/replication/B/downgrade"),
    ]
    assert [each["name"] for each in place.thread.status()["moved"]] == ["Z"]


@pytest.mark.covers("Journal", "an operator drops a named reader of any user")
def test_an_operator_drops_a_reader_of_any_user(place: Place) -> None:
    def names() -> list[str]:
        return [each["name"] for each in place.thread.status()["readers"]]

    address = [place.thread.status()["transports"][0]["address"]]
    number = place.thread.events()[-1]["number"]
    with SyncClient("eve-program", address, user_id="eve") as eve:
        eve.readers.tell("lake", "orders", PublisherRanges())
    with (
        SyncClient("zoe-program", address, user_id="zoe") as zoe,
        pytest.raises(CommandFailed, match="have an operator drop that one"),
    ):
        zoe.readers.drop("lake")
    with pytest.raises(ControlRefused, match="/amps/administrator/readers/lake/drop"):
        place.thread.control("drop_reader", {"reader": "lake"}, EVE)
    with pytest.raises(ConfigurationError, match="solo has no reader 'lak': did you mean lake"):
        place.thread.control("drop_reader", {"reader": "lak"}, AMY)
    assert names() == ["lake"], "nobody has dropped it"
    told = place.thread.control("drop_reader", {"reader": "lake"}, AMY)
    assert told == "solo keeps nothing for reader lake of user eve" and names() == []
    (event,) = (
        each
        for each in place.thread.events(number)
        if each["event"] == "control" and each["path"].endswith("/lake/drop")
    )
    assert (event["user"], event["reader"]) == ("amy", "lake")


@pytest.mark.covers("Configuration", "who may not control an instance changes nothing")
def test_what_changes_counts_at_the_next_call(place: Place) -> None:
    """A reset is nobody's to forget: nothing is kept."""
    assert place.thread.control("reset_entitlement", {}, BOB) == 0
    assert place.events("control")[-1]["user"] == "robert"
    with pytest.raises(ControlRefused, match=r"robert may not use .*transports/client/disable"):
        place.thread.control("disable_transport", CLIENT, BOB)
    permissions = place.path / "permissions"
    taken = {**PERMISSIONS, "bob": {"admin": []}}
    permissions.write_text(json.dumps(taken))
    with pytest.raises(ControlRefused, match=r"bob may not use .*reset"):
        place.thread.control("reset_entitlement", {}, BOB)
    # What cannot be read allows nothing.
    permissions.write_text("{")
    with pytest.raises(ControlRefused, match="logon_denied"):
        place.thread.control("reset_entitlement", {}, AMY)
    assert "neither YAML nor JSON" in place.events("logon_denied")[-1]["text"]
    permissions.write_text(json.dumps(PERMISSIONS))
    assert place.thread.control("reset_entitlement", {}, AMY) == 0
    passwords = place.path / "passwords"
    kept = passwords.read_text()
    passwords.write_text("\n".join(kept.splitlines()[1:]))
    with pytest.raises(ControlRefused):
        place.thread.control("reset_entitlement", {}, AMY)
    passwords.write_text(kept)


def test_a_drill_is_asked_for_once_in_a_while_until_a_reset(place: Place) -> None:
    def renew(said: Caller = AMY, kind: str = "clock") -> int:
        place.thread.control("drill", {**CLOCK, "kind": kind}, said)
        return len(place.events("control"))

    count = renew()
    assert renew() == renew() == count, "each would cost a hash"
    assert renew(kind="disk") == count + 1
    for other in (EVE, Caller("amy", "wrong")):
        with pytest.raises(ControlRefused):
            renew(other)
    assert renew() == count + 1
    place.thread.control("reset_entitlement", {}, AMY)
    assert renew() == count + 3


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (Caller("u" * 1_025, ""), "a user id has up to 1024 bytes"),
        (Caller("u", "p" * 8_193), "a password or token up to 8192"),
    ],
)
def test_what_is_too_long_is_refused(said: Caller, why: str, place: Place) -> None:
    with pytest.raises(ControlRefused, match=why):
        place.thread.control("reset_entitlement", {}, said)


def test_no_other_call_is_let_through(place: Place) -> None:
    with pytest.raises(ConfigurationError, match="'explode' is no call"):
        place.thread.authorize("explode", AMY, {})
    with pytest.raises(ConfigurationError, match="'explode' is no call"):
        place.thread.stop(caller=AMY, call="explode")
    with pytest.raises(ControlRefused):
        place.thread.stop(caller=Caller(fabric_key=KEY), call="restart")
    assert place.thread.status()["ready"]


@pytest.mark.covers("Configuration", "what an instance cannot judge in time")
def test_nobody_stops_it_by_what_else_he_may_do(place: Place) -> None:
    """Amy may have all of it done: each call alone."""
    for call, details in (
        ("drill", {}),
        ("admit", {}),
        ("reset_entitlement", {}),
        ("kill_link", {"destination": "B"}),
        ("note_salvage", {"moved": "solo"}),
        ("place", {"moved": "Z"}),
        ("place", {}),
    ):
        place.thread.authorize(call, AMY, {"moved": "Z", **details})
        with pytest.raises(ConfigurationError, match="is no call that solo is stopped for"):
            place.thread.stop(caller=AMY, call=call, **details)
    assert place.thread.status()["ready"]


@pytest.mark.covers("Configuration", "what an instance cannot judge in time")
def test_an_event_says_who_it_was_whatever_the_details_say(place: Place) -> None:
    forged = {"user": "amy", "path": "/amps/x", "instance": "other", "kind": "clean"}
    with pytest.raises(ControlRefused):
        place.thread.authorize("drill", EVE, forged)
    told = place.events("control_refused")[-1]
    assert (told["user"], told["kind"]) == ("eve", "clean")
    assert told["path"] == "/amps/administrator/instance/drill" and "instance" not in told


@pytest.mark.covers("Configuration", "what an instance cannot judge in time")
def test_a_file_that_is_broken_is_told_of_before_somebody_is_refused(place: Place) -> None:
    permissions = place.path / "permissions"
    assert not place.thread.status()["control_problem"]
    count = len(place.events("security_file_failed"))
    permissions.write_text("{")
    until_s = time.monotonic() + DEADLINE_S
    while len(place.events("security_file_failed")) == count:
        assert time.monotonic() < until_s
        time.sleep(0.01)
    told = place.events("security_file_failed")[-1]
    assert told["transport"] == "amps-admin"
    assert (
        str(permissions) in told["text"]
        and place.thread.status()["control_problem"] == told["text"]
    )
    permissions.write_text(json.dumps(PERMISSIONS))
    assert place.thread.control("reset_entitlement", {}, AMY) == 0
    assert not place.thread.status()["control_problem"]


def test_the_process_that_the_fabric_ends_with_needs_no_user(tmp_path: Path) -> None:
    admin = AdminConfig(entitlement=ModuleConfig("amps-default-no-entitlement-module"))
    thread = running(tmp_path / "data", replace(configured(tmp_path), admin=admin))
    with pytest.raises(ControlRefused):
        thread.stop(caller=AMY)
    assert thread.status()["ready"]
    assert thread.stop(caller=Caller(fabric_key=KEY))


def test_without_admin_everybody_may_and_events_say_what_was_done(tmp_path: Path) -> None:
    thread = running(tmp_path / "data", replace(configured(tmp_path), admin=None))
    assert "is disabled" in thread.control("disable_transport", CLIENT)
    assert "is enabled" in thread.control("enable_transport", CLIENT, WRONG["unknown"])
    thread.control("drill", CLOCK)
    told = [each for each in thread.events() if each["event"] in ("control", "control_refused")]
    assert [(each["event"], each["user"], each["path"]) for each in told] == [
        ("control", "", "/amps/administrator/transports/client/disable"),
        ("control", "", "/amps/administrator/transports/client/enable"),
    ]
    assert thread.stop()


def test_what_has_no_server_cannot_judge(tmp_path: Path) -> None:
    """It may be ended: nobody could be asked ever."""
    thread = InstanceThread(str(tmp_path), "solo", _no_link)
    thread.start()
    with pytest.raises(FabricError, match="does not serve"):
        thread.control("upgrade", {"destination": "B"})
    thread.authorize("kill", None, {})
    assert thread.stop()
    thread.authorize("kill", None, {})


class Says:
    """An installed module that answers so."""

    answer: Answer | Exception = LogonDenied("no")

    def __init__(self, options: dict[str, str]) -> None: ...

    async def authenticate(self, asked: Credentials) -> Answer:
        assert (asked.transport, asked.is_control) == ("amps-admin", True)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (LogonDenied("because"), "the logon was denied"),
        (LogonDenied("many", is_busy=True), "try again a little later"),
        (Challenge("amy", "what?"), "by a challenge, which control calls cannot meet"),
        (ValueError(f"it saw {SECRET}"), "the logon was denied"),
    ],
)
def test_what_a_module_of_ones_own_answers(
    answer: Answer | Exception, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from raylay.services.server.control import ControlAccess
    from raylay.services.server.runtime import InstanceRuntime

    monkeypatch.setattr(Says, "answer", answer)
    monkeypatch.setattr(access, "authentication", lambda config, where: Says({}))
    config = replace(configured(tmp_path), admin=AdminConfig(ModuleConfig("says")))

    async def ask() -> None:
        runtime = InstanceRuntime(config, tmp_path)
        with pytest.raises(ControlRefused, match=why):
            await ControlAccess(runtime).allow("admit", AMY)
        assert SECRET not in json.dumps(runtime.events_log.after(0, 100))

    asyncio.run(ask())


@pytest.mark.covers("Configuration", "what an instance cannot judge in time")
def test_what_is_not_judged_in_time_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else who asks, and waits 15 s, would take it for an instance that hangs, and kill it."""
    from raylay.services.fabric.control import JUDGED_TIMEOUT_S
    from raylay.services.server import control
    from raylay.services.server.runtime import InstanceRuntime

    class Hangs(Says):
        async def authenticate(self, asked: Credentials) -> Answer:
            await asyncio.Event().wait()
            raise AssertionError

    assert control.JUDGED_S_MAX < JUDGED_TIMEOUT_S
    monkeypatch.setattr(control, "JUDGED_S_MAX", 0.01)
    monkeypatch.setattr(access, "authentication", lambda config, where: Hangs({}))
    config = replace(configured(tmp_path), admin=AdminConfig(ModuleConfig("says")))

    async def ask() -> None:
        runtime = InstanceRuntime(config, tmp_path)
        with pytest.raises(ControlRefused, match="modules have not answered"):
            await asyncio.wait_for(control.ControlAccess(runtime).allow("kill", AMY), DEADLINE_S)
        assert runtime.events_log.after(0, 100)[-1]["event"] == "control_refused"

    asyncio.run(ask())


def test_modules_of_the_clients_count_where_admin_names_none(tmp_path: Path) -> None:
    admin = configured(tmp_path).admin
    assert admin is not None
    config = replace(
        configured(tmp_path), authentication=admin.authentication, entitlement=admin.entitlement
    )
    assert replace(config, admin=AdminConfig()).for_control() == (
        admin.authentication,
        admin.entitlement,
    )
    own = AdminConfig(ModuleConfig("tokens"))
    assert replace(config, admin=own).for_control() == (ModuleConfig("tokens"), admin.entitlement)
    assert InstanceConfig.from_json(config.to_json()).admin == admin
    with pytest.raises(ConfigurationError, match="admin names no module"):
        InstanceConfig("a", "g", admin=AdminConfig()).check()
