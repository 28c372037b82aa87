"""No command ends in a traceback for what the machine, or the person who types, did."""

from __future__ import annotations

import errno
import itertools
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from raylay.services import cli
from raylay.services.commands import lifecycle
from raylay.services.commands.shared.error_messages import error_line
from raylay.services.configuration import yaml_file
from raylay.services.errors import ConfigurationError, FabricError
from raylay.services.fabric.plan import FabricRecord, record_of
from raylay.services.fabric.records import registry

pytestmark = pytest.mark.covers("Fabrics and tracing", "no command ends in a traceback")

FABRIC = "fabric: walked\ntopics: [notes]\nregions: {here: 2}\n"
# Of every command, what it needs to be given; PATH is a file or directory, F a running fabric.
GIVEN = {
    "up": "PATH",
    "up --detach": "PATH --directory DIRECTORY",
    "up --address 127.0.0.1:1": "PATH --directory DIRECTORY",
    "apply": "PATH",
    "down": "F",
    "status": "F",
    "list": "",
    "subscribers": "F",
    "topics": "F",
    "error": "21-0010",
    "filter": "/a=1 PATH",
    "downgrade": "here-1 here-2 F",
    "upgrade": "here-1 here-2 F",
    "reconnect": "here-1 here-2 F",
    "connections": "F",
    "consumers": "work F",
    "disconnect": "desk F",
    "status --watch": "F",
    "compact": "here-1 orders F",
    "diagnostics": "here-1 F",
    "action": "here-1 instance/admit F",
    "admit": "here-1 F",
    "restart": "F",
    "stop": "here-1 F",
    "start": "here-1 F",
    "relocate": "here-1 F",
    "watch": "F",
    "events": "F",
    "logs": "here-1 F",
    "console": "F",
    "top": "F",
    "backup": "--to DIRECTORY F",
    "restore": "PATH",
    "dump": "PATH",
    "identify": "PATH",
    "find": "x PATH",
    "statistics query": "PATH",
    "statistics report": "PATH",
    "head start": "F",
    "head keep": "F",
    "ping": "--timeout 0.01 F",
    "publish": "notes {} F",
    "publish --delta": "notes {} --key k F",
    "bench pub": "notes --count 1 F",
    "bench sub": "notes --count 1 F",
    "bench queue": "work --count 1 F",
    "delete": "notes --filter 1=1 F",
    "sow": "notes F",
    "subscribe": "notes F",
    "sow diff": "here-1 here-2 F",
    "subscribe --sow": "notes --oof F",
    "subscribe --backlog": "5 notes F",
    "context add": "prod --server a:1",
    "context list": "",
    "context show": "typo",
    "context use": "typo",
    "context remove": "typo",
    "reader list": "F",
    "reader drop": "lake F",
    "queue status": "work F",
    "queue ack": "work 7|1| F",
    "queue expire": "work --filter 1=1 F",
    "queue cancel": "work --filter 1=1 F",
    "queue proxied": "work here-1 F",
    "transport status": "F",
    "transport enable": "here-1 client F",
    "transport disable": "here-1 client F",
    "entitlement reset": "here-1 F",
    "entitlement show": "PATH amy",
    "password": "amy --file PATH",
    "certificates": "PATH --name here-1",
    "trace": "PATH",
    "drill": "kill-instance F",
    "drill --clean": "F",
    "fabric check": "PATH",
    "check host": "--directory PATH --port 1",
    "check instance": "PATH",
    "check storage": "--seconds 0.01 --size 4KiB --directory PATH",
    "config check": "PATH",
    "config show": "PATH",
    "config schema": "",
    "pipeline archive": "PATH --lake PATH",
    "pipeline compact": "PATH",
    "pipeline expire": "PATH --before 2026-01-02",
    "pipeline audit": "PATH",
    "pipeline aggregate": "PATH --topic t --schema a:int --by a --into b --checkpoint PATH",
    "pipeline latency": "PATH",
    "pipeline replay": "PATH F",
    "pipeline publish": "PATH F",
    "journal dump": "PATH",
    "journal grep": "x PATH",
    "journal verify": "PATH",
    "journal repair": "PATH",
    "journal compress": "PATH",
    "journal archive": "PATH --archive PATH",
    "journal remove": "PATH --before 1s",
    "journal salvage": "PATH F",
}
MAY_WORK = {
    "certificates", "check host", "check instance", "check storage", "config check",
    "config schema", "config show", "context add", "context list", "error", "fabric check",
    "find", "identify", "list", "trace",
}  # fmt: skip
"""What only looks at this host, or at files, or makes some."""
CLIENTS = {
    "publish",
    "bench pub",
    "bench sub",
    "bench queue",
    "publish --delta",
    "delete",
    "sow",
    "subscribe",
    "subscribe --sow",
    "pipeline replay",
    "subscribe --backlog",
    "reader list",
    "reader drop",
    "queue status",
    "queue ack",
    "queue expire",
    "queue cancel",
}
"""They wait for servers of a fabric that is known, as long as it takes."""


def leaves(command: Any, name: str) -> Iterator[str]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield name
        return
    if hasattr(command, "alone"):
        yield name
    for each, found in inner.items():
        yield from leaves(found, f"{name} {each}")


def test_every_command_is_walked_over() -> None:
    root: Any = typer.main.get_command(cli.app)
    names = {each for name in cli.COMMANDS for each in leaves(root.get_command(None, name), name)}
    assert names == {" ".join(itertools.takewhile(_is_word, name.split())) for name in GIVEN}


def _is_word(text: str) -> bool:
    return not text.startswith("--")


class Walk:
    """Runs commands as the shell does, in this process."""

    def __init__(self, patch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str]) -> None:
        self._patch = patch
        self._capture = capture

    def __call__(self, name: str, path: Path, fabric: str, directory: Path) -> str:
        """What it says on stderr. An exception that is no exit fails the test."""
        given = GIVEN[name].replace("PATH", str(path)).replace("DIRECTORY", str(directory))
        given = given.replace("F", f"--fabric {fabric}") if given.endswith("F") else given
        self._patch.setattr(sys, "argv", ["raylay", *name.split(), *given.split()])
        self._capture.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        told = self._capture.readouterr()
        if name in MAY_WORK and not ended.value.code:
            return told.err
        assert ended.value.code in (1, 2), (name, told)
        # A verdict is the output; a refusal stands on stderr.
        assert told.err.strip() or name in MAY_WORK, name
        assert "Traceback" not in told.err + told.out
        return told.err


@pytest.fixture
def walk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Walk:
    runtime = tmp_path / "runtime"
    monkeypatch.setenv(registry.REGISTRY_VARIABLE, str(runtime))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(runtime))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.chdir(tmp_path)
    return Walk(monkeypatch, capfd)


@pytest.mark.parametrize("name", GIVEN)
@pytest.mark.parametrize("kind", ["missing", "directory", "bytes", "impossible"])
def test_a_path_that_is_not_what_it_should_be(
    name: str, kind: str, walk: Walk, tmp_path: Path
) -> None:
    path = tmp_path / kind
    if kind == "directory":
        path.mkdir()
    elif kind == "bytes":
        path.write_bytes(b"\xff\x00\xfe: [")
    elif kind == "impossible":
        path = Path("/dev/null/there")
    walk(name, path, "nobody", path)


@pytest.mark.parametrize("name", GIVEN)
@pytest.mark.parametrize("kind", ["ray", "head", "registry", "record", "directory"])
def test_a_machine_that_does_not_let_it_go_on(
    name: str, kind: str, walk: Walk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray is not installed; nothing answers where its head was; a file lies where the registry
    was; the record is cut off; the fabric's directory is no directory."""
    if name in CLIENTS and kind in ("ray", "head"):
        pytest.skip("it waits for servers, and asks no Ray")
    path = tmp_path / "f.yaml"
    path.write_text(FABRIC)
    place = tmp_path / "place"
    settings = yaml_file.load(path)
    record_of(settings, place).save()
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    pid = os.getpid()
    registry.register(
        registry.RegistryEntry(
            "walked", str(place), f"127.0.0.1:{port}", pid, registry.process_start(pid)
        )
    )
    if kind == "ray":
        monkeypatch.setitem(sys.modules, "ray", None)
    elif kind == "head":
        # Another test may have connected this process to a Ray.
        monkeypatch.setattr("ray.is_initialized", lambda: False)
    elif kind == "registry":
        (tmp_path / "file").write_text("")
        monkeypatch.setenv(registry.REGISTRY_VARIABLE, str(tmp_path / "file"))
    elif kind == "record":
        (place / "fabric.json").write_text('{"name": "wal')
    elif kind == "directory":
        (place / "fabric.json").rename(tmp_path / "fabric.json")
        place.rmdir()
        place.write_text("")
    if name == "down":
        # It would end the process that holds the fabric, which is this one.
        monkeypatch.setattr(os, "kill", lambda pid, number: None)
        monkeypatch.setattr(lifecycle, "STOP_TIMEOUT_S", 0.05)
    walk(name, path, "walked", place)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (FabricError("no fabric"), "raylay: no fabric"),
        (ConfigurationError("f.yaml:3: wrong"), "f.yaml:3: wrong"),
        (
            OSError(errno.ENOSPC, "No space left on device", "/a/b"),
            "raylay: /a/b: No space left on device; free some space",
        ),
        (
            OSError(errno.ENOSPC, "No space left on device"),
            "raylay: the output, or a file of it: No space left on device; free some space",
        ),
        (
            PermissionError(errno.EACCES, "Permission denied", b"/a"),
            "raylay: /a: Permission denied; it belongs to another user, or its mode forbids it",
        ),
        (ConnectionResetError("it went"), "raylay: it went"),
        (MemoryError(), "raylay: this host is out of memory"),
        (type("Lost", (Exception,), {"__module__": "ray.exceptions"})("a\nb"), "raylay: Ray: a"),
    ],
)
def test_what_the_machine_did_is_one_line(error: Exception, line: str) -> None:
    assert error_line(error) == line


def test_a_package_that_is_missing_is_named() -> None:
    line = error_line(ModuleNotFoundError("No module named 'ray'"))
    assert line is not None
    assert line.startswith("raylay: No module named 'ray': install Raylay again for ")


def test_a_mistake_of_ours_keeps_its_traceback() -> None:
    assert error_line(KeyError("x")) is None
    assert error_line(ValueError("x")) is None


def test_a_record_that_the_disk_refuses_is_an_error_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    record = FabricRecord("f", str(tmp_path / "file" / "below"), "{}")
    with pytest.raises(FabricError, match=r"below/fabric.json cannot be written: Not a directory"):
        record.save()


@pytest.mark.parametrize("command", ["--help", "--version", "drill --list"])
def test_an_output_that_takes_nothing_is_one_line(
    command: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert os.system(f"{sys.executable} -m raylay.services.cli {command} >/dev/full") != 0
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("raylay: the output")
