"""Contexts of the shell: their file, which one counts, and what a command then connects with."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from raylay.services import cli
from raylay.services.commands.shared import contexts
from raylay.services.commands.shared.contexts import ConnectionContext, Contexts, name_meant
from raylay.services.errors import ConfigurationError

pytestmark = pytest.mark.covers("Fabrics and tracing", "a context of the shell")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for variable in (contexts.CONTEXT_VARIABLE, *contexts.VARIABLES):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path


def run(*arguments: str) -> Any:
    return CliRunner().invoke(cli.app, arguments)


def refusal(*arguments: str) -> str:
    done = run(*arguments)
    assert done.exit_code
    return f"{done.output}{done.exception}"


def test_a_context_is_kept_listed_shown_and_removed(home: Path) -> None:
    secret = home / "password"
    secret.write_text("hush")
    done = run(
        "context",
        "add",
        "prod",
        *("--server", "a:9007", "--server", "b:9007", "--http", "a:8085"),
        *("--user", "amy", "--password-file", str(secret), "--use"),
    )
    assert done.exit_code == 0, done.output
    assert "next: raylay status\n" in done.output
    assert run("context", "add", "near", "--fabric", "orders").exit_code == 0

    file = home / "raylay" / "contexts.json"
    assert file.stat().st_mode & 0o777 == 0o600
    assert "hush" not in file.read_text(), "a password is in the file"
    listed = json.loads(run("context", "list", "--json").output)
    assert [(each["name"], each["current"]) for each in listed] == [("near", False), ("prod", True)]
    assert "a:9007 b:9007 a:8085" in run("context", "list").output
    assert json.loads(run("context", "show", "--json").output) == {
        "name": "prod",
        "server": ["a:9007", "b:9007"],
        "http": ["a:8085"],
        "user": "amy",
        "password_file": str(secret),
    }
    assert "user:           amy" in run("context", "show", "prod").output

    assert run("context", "use", "near").exit_code == 0
    assert contexts.load().current == "near"
    assert run("context", "use", "--none").exit_code == 0
    assert contexts.load().current == ""
    assert "no context is current" in refusal("context", "show")
    assert run("context", "use", "near").exit_code == 0
    assert run("context", "remove", "near").exit_code == 0
    assert list(contexts.load().named) == ["prod"]
    assert contexts.load().current == ""


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ("add -x --server a:1", "No such option"),
        ("add a/b --server a:1", "is no name of a context"),
        ("add prod", "give --server, --http or --fabric"),
        ("add prod --fabric orders --server a:1", "give --fabric, or --server"),
        ("add prod --server nohost", "is no address: give host:port"),
        ("add prod --server a:1 --certificate /dev/null", "is no file"),
        ("add prod --server a:1 --ca-file missing.pem", "missing.pem is no file"),
        ("add known --server a:1", "give --replace"),
        ("show typo", "there is no context typo; there are: known"),
        ("use typo", "there is no context typo"),
        ("use", "name a context, or give --none"),
        ("remove typo", "there is no context typo"),
    ],
)
def test_bad_input_changes_nothing(arguments: str, why: str) -> None:
    contexts.save(Contexts({"known": ConnectionContext(server=("a:1",))}, "known"))
    before = contexts.contexts_file().read_bytes()
    assert why in refusal("context", *arguments.split())
    assert contexts.contexts_file().read_bytes() == before


@pytest.mark.parametrize(
    "damage",
    [
        '{"contexts": {"a": {"server": "a:1"}}}',
        '{"contexts": {"a": {"server": [5]}}}',
        '{"contexts": {"a": {"fabric": ["f"]}}}',
        "",
        "{",
        "[]",
        '{"contexts": 3}',
        '{"contexts": {"a": {"port": 1}}}',
        "\x00",
    ],
)
def test_a_damaged_file_is_named(damage: str) -> None:
    contexts.contexts_file().parent.mkdir()
    contexts.contexts_file().write_text(damage)
    for command in (["context", "list"], ["ping"]):
        found = refusal(*command)
        assert "contexts.json" in found or "add it again" in found, found


@pytest.mark.parametrize(
    ("typed", "environment", "wanted"),
    [
        ("", {}, "now"),
        ("--context prod", {}, "prod"),
        ("--context=prod", {"RAYLAY_CONTEXT": "other"}, "prod"),
        ("--server a:1 --context prod", {}, "prod"),
        ("", {"RAYLAY_CONTEXT": "other"}, "other"),
        ("", {"RAYLAY_CONTEXT": "other", "RAYLAY_SERVER": "a:1"}, "other"),
        ("", {"RAYLAY_SERVER": "a:1"}, ""),
        ("", {"RAYLAY_FABRIC": "orders"}, ""),
        ("", {"RAYLAY_HTTP": "a:1"}, ""),
        ("--server a:1", {"RAYLAY_CONTEXT": "other"}, ""),
        ("--http=a:1", {}, ""),
        ("--fabric orders", {}, ""),
        ("-forders", {}, ""),
        ("-f orders", {}, ""),
        ("-- --context prod", {}, "now"),
    ],
)
def test_the_context_that_counts(typed: str, environment: dict[str, str], wanted: str) -> None:
    assert name_meant(typed.split(), environment, "now") == wanted


def test_a_context_replaces_what_the_environment_says() -> None:
    made = ConnectionContext(server=("a:1", "b:2"), user="amy", ca_file="/ca.pem")
    contexts.save(Contexts({"prod": made}, "prod"))
    environment = {"RAYLAY_USER": "bob", "RAYLAY_PASSWORD": "hush", "HOME": "/root"}
    contexts.enter([], "raylay ping", {"server", "fabric"}, environment)
    assert environment == {
        "HOME": "/root",
        "RAYLAY_SERVER": "a:1 b:2",
        "RAYLAY_USER": "amy",
        "RAYLAY_CA_FILE": "/ca.pem",
    }


def test_a_command_without_a_way_to_the_context_says_so() -> None:
    contexts.save(Contexts({"prod": ConnectionContext(server=("a:1",))}, "prod"))
    with pytest.raises(ConfigurationError, match="context prod does not say where `raylay status`"):
        contexts.enter([], "raylay status", {"http", "fabric"}, {})
    assert "give --fabric" in refusal("restart")


def test_commands_use_the_context_and_leave_the_environment(
    monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    secret = home / "password"
    secret.write_text("hush\n")
    made = ConnectionContext(server=("a:1",), user="amy", password_file=str(secret))
    contexts.save(Contexts({"prod": made}))
    asked: list[dict[str, str]] = []

    def note(fabric: str, group: str, servers: list[str] | None) -> Any:
        asked.append(
            {"fabric": fabric, "servers": " ".join(servers or ())}
            | {name: os.environ[name] for name in contexts.VARIABLES if name in os.environ}
        )
        return ()

    monkeypatch.setattr("raylay.services.commands.ping.targets", note)
    monkeypatch.setenv("RAYLAY_PASSWORD", "of the environment")
    before = dict(os.environ)
    run("ping", "--context", "prod")
    run("ping", "--context", "prod", "--user", "bob")
    run("ping", "--server", "c:3", "--user", "bob")
    run("ping", "--server", "c:3", "--user", "bob", "--password-file", str(secret))
    assert dict(os.environ) == before
    assert [each.pop("servers") for each in asked] == ["a:1", "a:1", "c:3", "c:3"]
    kept = {"fabric": "", "RAYLAY_SERVER": "a:1", "RAYLAY_PASSWORD_FILE": str(secret)}
    assert asked == [
        kept | {"RAYLAY_USER": "amy"},
        kept | {"RAYLAY_USER": "bob"},
        {"fabric": "", "RAYLAY_USER": "bob", "RAYLAY_PASSWORD": "of the environment"},
        {"fabric": "", "RAYLAY_USER": "bob", "RAYLAY_PASSWORD_FILE": str(secret)},
    ]


def test_every_command_that_connects_takes_a_context_a_user_and_a_password() -> None:
    group: Any = cli.CommandGroup()
    lacking = []
    for name in cli.COMMANDS:
        command = group.get_command(None, name)
        for each in getattr(command, "commands", {"": command}).values():
            options = {option for parameter in each.params for option in parameter.opts}
            if name != "context" and options & {"--fabric", "--server", "--http"}:
                wanted = {"--context", "--user", "--password-file"}
                if not wanted <= options:
                    lacking.append(each.name)
    assert lacking == []


def test_the_list_says_which_contexts_speak_tls(home: Path) -> None:
    ca_file = home / "ca.pem"
    ca_file.write_text("")
    run("context", "add", "guarded", "--server", "a:1", "--ca-file", str(ca_file))
    run("context", "add", "open", "--server", "a:1")
    run("context", "add", "till", "--fabric", "shop")
    rows = [line.split(maxsplit=2) for line in run("context", "list").output.splitlines()]
    wanted = {"guarded": "yes", "open": "no", "till": "as the fabric"}
    assert {row[0]: row[-1].strip() for row in rows if row and row[0] in wanted} == wanted
