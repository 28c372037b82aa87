"""Every command that says something says it as JSON, too, for scripts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from raylay.services import cli
from raylay.services.commands import admin, queues, readers, security, transports
from raylay.services.commands.lifecycle import _ready_lines
from raylay.services.commands.starting import up_lines
from raylay.services.fabric import Fabric

MESSAGES = "its output is messages, or what a filter does with them"
REPORT = "it prints its report as one JSON object in any case"
WITHOUT = {
    "filter": MESSAGES,
    "config schema": REPORT,
    **{
        f"pipeline {each}": REPORT
        for each in (
            "archive", "compact", "expire", "audit", "aggregate", "latency", "replay", "publish",
        )
    },
}  # fmt: skip
"""Commands that need no --json, each with the reason."""


def leaves(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    """The commands below a command, by the words that call them."""
    below = getattr(command, "commands", None)
    if below is None:
        yield name, command
        return
    for word, each in below.items():
        yield from leaves(f"{name} {word}", each)


def every_command() -> dict[str, Any]:
    group: Any = typer.main.get_command(cli.app)
    context = typer.Context(group)
    return {
        words: command
        for name in cli.COMMANDS
        for words, command in leaves(name, group.get_command(context, name))
    }


def test_every_command_has_json_or_a_reason_to_have_none() -> None:
    found = every_command()
    without = {
        name
        for name, command in found.items()
        if "--json" not in {option for each in command.params for option in each.opts}
    }
    assert without == set(WITHOUT), "give it --json, or a reason in WITHOUT"
    assert len(found) > 60


class Attached:
    """A fabric in which every control call succeeds."""

    name = "f"

    def downgrade(self, instance: str, destination: str, *, force: bool) -> None:
        pass

    def upgrade(self, instance: str, destination: str) -> None:
        pass

    def admit(self, instance: str, *, force: bool) -> None:
        pass

    def control(self, instance: str, call: str, **arguments: Any) -> Any:
        return [f"{instance} did {call}", "and more"] if call == "dump" else None

    def proxied(self, instance: str, queue: str, *, on: bool) -> str:
        return f"{instance}: {queue} is {'' if on else 'not '}taken over"

    def switch_transport(self, instance: str, transport: str, *, on: bool) -> str:
        return f"{transport} is {'open' if on else 'closed'}"

    def reset_entitlement(self, instance: str, of_user: str) -> int:
        return 3


class OneClient:
    """A client whose instance does what it is asked."""

    def __init__(self, instance: str = "a-1") -> None:
        self.instance = instance
        self.readers = self

    async def known(self) -> list[dict[str, Any]]:
        return [{"name": "billing"}]

    async def drop(self, name: str) -> None:
        pass

    def acknowledge(self, *_: Any, **__: Any) -> None:
        pass

    async def flush(self) -> None:
        pass

    async def acknowledge_matching(self, *_: Any, **__: Any) -> int:
        return 1_200


@contextmanager
def controlled(*_: Any) -> Iterator[Attached]:
    yield Attached()


def with_client(fabric: str, group: str, server: Any, name: str, ask: Any) -> None:
    import asyncio

    asyncio.run(ask(OneClient()))


def with_each_client(fabric: str, group: str, server: Any, name: str, ask: Any) -> list[str]:
    import asyncio

    for each in ("a-1", "a-2"):
        asyncio.run(ask(OneClient(each)))
    return []


ACTIONS = """<Actions><Action>
<On><Module>amps-action-on-schedule</Module><Options><Every>1h</Every></Options></On>
<Do><Module>amps-action-do-publish-message</Module>
<Options><Topic>a</Topic><MessageType>json</MessageType>
<Data>${RAYLAY_DOLLAR}{5}</Data></Options></Do>
<Do><Module>amps-action-do-nothing</Module></Do>
</Action></Actions>"""
CALLS = {
    "downgrade a-1 a-2": {"instance": "a-1", "destination": "a-2", "downgraded": True},
    "upgrade a-1 a-2": {"instance": "a-1", "destination": "a-2", "downgraded": False},
    "reconnect a-1 a-2": {"instance": "a-1", "result": None},
    "compact a-1 orders": {"instance": "a-1", "result": None},
    "diagnostics a-1": {"instance": "a-1", "result": ["a-1 did dump", "and more"]},
    "action a-1 sow/orders/compact": {"instance": "a-1", "result": None},
    "admit a-1": {"instance": "a-1", "admitted": True},
    "transport enable a-1 tcp": {
        "instance": "a-1", "transport": "tcp", "enabled": True, "message": "tcp is open",
    },
    "transport disable a-1 tcp": {
        "instance": "a-1", "transport": "tcp", "enabled": False, "message": "tcp is closed",
    },
    "queue proxied work a-1 --off": {
        "instance": "a-1", "queue": "work", "proxied": False,
        "message": "a-1: work is not taken over",
    },
    "queue ack work 1|1| 1|2|": {"queue": "work", "command": "ack", "messages": 2},
    "queue expire work --filter 1=1": {"queue": "work", "command": "expire", "messages": 1_200},
    "queue cancel work --filter 1=1": {"queue": "work", "command": "cancel", "messages": 1_200},
    "reader drop billing": {"reader": "billing", "dropped": True, "instances": ["a-1", "a-2"]},
    "entitlement reset a-1 amy": {"instance": "a-1", "sessions": 3},
}  # fmt: skip


@pytest.mark.parametrize("call", CALLS)
def test_what_a_command_did_is_one_object(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (admin, queues, security, transports):
        monkeypatch.setattr(module, "controlled", controlled)
    monkeypatch.setattr(queues, "with_client", with_client)
    monkeypatch.setattr(readers, "with_each_client", with_each_client)
    done = CliRunner().invoke(cli.app, [*call.split(), "--json"])
    assert done.exit_code == 0, (done.output, done.exception)
    assert json.loads(done.stdout) == CALLS[call]
    plain = CliRunner().invoke(cli.app, call.split())
    assert plain.exit_code == 0 and not plain.stdout.startswith("{")


def raylay(*arguments: Any, **options: Any) -> list[Any]:
    done = CliRunner().invoke(cli.app, [*map(str, arguments), "--json"], **options)
    assert done.exit_code == 0, (done.output, done.exception)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_files_that_a_command_makes_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("HOME", str(tmp_path))
    (added,) = raylay("context", "add", "prod", "--server", "a:9007")
    assert (added["context"], added["current"]) == ("prod", False)
    assert Path(added["file"]).exists()
    assert raylay("context", "use", "prod") == [{"current": "prod"}]
    assert raylay("context", "remove", "prod") == [{"context": "prod", "removed": True}]
    made = raylay("certificates", tmp_path / "tls", "--name", "a-1=localhost")
    assert [sorted(each) for each in made] == [
        ["ca_file", "private_key"],
        ["certificate", "days", "names"],
    ]
    assert Path(made[1]["certificate"]).exists() and made[1]["names"] == ["a-1", "localhost"]
    users = tmp_path / "users"
    for change in ("added", "changed"):
        told = raylay("password", "amy", "--file", users, input="a long password\n")
        assert told == [{"user": "amy", "file": str(users), "change": change}]
    told = raylay("password", "amy", "--file", users, "--remove")
    assert told[0]["change"] == "removed"


def test_a_fabrics_settings_are_one_object(tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_text("fabric: f\ntopics: [orders]\nregions: {here: 2}\n")
    (shown,) = raylay("config", "show", file)
    assert shown["name"] == "f" and [each["name"] for each in shown["topics"]] == ["orders"]


def test_each_ampsconfig_is_one_object(tmp_path: Path) -> None:
    files = [tmp_path / f"{name}.xml" for name in ("a", "b")]
    for file in files:
        file.write_text(f"<AMPSConfig><Name>{file.stem}</Name>{ACTIONS}</AMPSConfig>")
    shown = raylay("config", "show", *files)
    assert [(each["file"], each["AMPSConfig"]["Name"]) for each in shown] == [
        (str(file), file.stem) for file in files
    ]
    config = shown[0]["AMPSConfig"]
    assert config["ClientMaxCapacity"] == "50%"
    # The elements keep their order, although one name occurs twice.
    elements = config["Actions"]["Action"][0]
    assert [name for each in elements for name in each] == ["On", "Do", "Do"]
    assert elements[1]["Do"]["Options"]["Data"] == "${5}"
    assert "the data directory" in shown[0]["left_out"]["MessageDiskPath"]


def test_a_detached_start_prints_the_object_of_its_process() -> None:
    settings = Fabric("f", topics=["orders"]).region("here", instances=1).settings()
    lines = "\n".join(up_lines(settings, "data/f", {"here": ["a:1"]}))
    told = '{"fabric": "f", "state": "up", "clients": {"here": ["a:1"]}}'
    assert _ready_lines(f"starting f\n 1.0 s  waiting\n{told}\n", as_json=True) == told
    assert _ready_lines(f"starting f\n{told[:-1]}", as_json=True) == "", "not whole yet"
    assert _ready_lines(f"starting f\n{lines}\n") == lines


def test_what_a_user_may_do(tmp_path: Path) -> None:
    file = tmp_path / "permissions.yaml"
    file.write_text("amy: {logon: true, topic: [{topic: orders, read: '/a = 1', select: -/pay}]}\n")
    call = "/amps/administrator/instance/stop"
    (told,) = raylay("entitlement", "show", file, "amy", "orders", call)
    assert (told["user"], told["logon"], told["controls"]) == ("amy", True, {call: False})
    read, write = told["topics"]["orders"]["read"], told["topics"]["orders"]["write"]
    assert (read["allowed"], read["filter"], read["select"]) == (True, "/a = 1", "-/pay")
    assert write["allowed"] is False
