"""Commands print by services/commands/shared/printing.py alone, where what others chose is
escaped."""

from __future__ import annotations

import ast
import io
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from raylay.services.commands.shared import printing
from raylay.services.commands.shared.printing import columns_left_out, print_table
from raylay.services.errors import FabricError

SERVICES = Path(__file__).parents[3] / "services"
PRINTING = SERVICES / "commands" / "shared" / "printing.py"
FILES = [
    SERVICES / "cli.py",
    SERVICES / "pipeline" / "commands.py",
    *sorted(path for path in (SERVICES / "commands").rglob("*.py") if path != PRINTING),
]
PRINTS = {"print", "echo", "secho", "add_row"}
HOSTILE = "\x1b[2J\x9b31m[bold]x[/]\u202e\nforged\x7f"


class Terminal(io.TextIOWrapper):
    """A standard output that says whether it is a terminal."""

    def __init__(self, terminal: bool) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", newline="")
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal

    @property
    def written(self) -> bytes:
        self.flush()
        assert isinstance(self.buffer, io.BytesIO)
        return self.buffer.getvalue()


def message(**values: Any) -> Any:
    return SimpleNamespace(
        **{
            "kind": "publish", "topic": "t", "bookmark": "1|1|", "key": b"", "reason": "",
            "timestamp_us": 1, "body": HOSTILE.encode(), "message_type": "json", "publisher": 1,
            "sequence": 1, "correlation": HOSTILE.encode(), "origin_time_us": 1,
            "is_sampled": False, **values,
        }
    )  # fmt: skip


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_no_command_prints_by_itself(path: Path) -> None:
    wrong = []
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        if isinstance(called, ast.Name) and called.id in PRINTS - {"echo"}:
            wrong.append(f"{path.name}:{node.lineno}: {called.id}")
        # What cli.py prints by itself is the version, which is ours.
        if isinstance(called, ast.Attribute) and called.attr in PRINTS and path.name != "cli.py":
            wrong.append(f"{path.name}:{node.lineno}: {called.attr}")
    assert not wrong, "by services/commands/shared/printing.py: what is printed may be of others"


def test_lines_texts_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    printing.echo(HOSTILE)
    printing.echo_text(f"one\n{HOSTILE}", err=True)
    printing.echo_json({"name": HOSTILE}, ascii_only=False)
    out, err = capsys.readouterr()
    first, second = out.splitlines()
    assert first.isprintable() and second.isprintable()
    assert [line.isprintable() for line in err.splitlines()] == [True] * 3


def test_a_message_on_a_terminal_is_no_command(monkeypatch: pytest.MonkeyPatch) -> None:
    oof = message(kind="oof", reason="deleted", key=b"k\nforged")
    monkeypatch.setattr(sys, "stdout", Terminal(terminal=True))
    for each in (message(), oof, message(body=b"\xff\x9b")):
        for as_json in (False, True):
            text = printing.message_line(each, as_json, True, is_terminal=True).decode()
            assert text.endswith("\n") and text[:-1].isprintable()


def test_json_has_everything_that_a_message_has() -> None:
    attributes = {
        "topic": "orders/failed", "message_type": "json", "bookmark": "7|2|", "publisher": 7,
        "sequence": 2, "key": "k", "correlation": '{"queue": "work"}', "origin_time_us": 3,
        "timestamp_us": 4, "traceparent": "00-1-2-01", "body": "{}",
    }  # fmt: skip
    raw = {name: attributes[name].encode() for name in ("key", "correlation", "body")}
    found = message(**attributes | raw, is_sampled=True)
    assert json.loads(printing.message_line(found, True, is_terminal=False)) == attributes


def test_a_message_in_a_pipe_has_its_bytes() -> None:
    each = message(body=b"\xff\x1b")
    assert printing.message_line(each, False, is_terminal=False) == b"\xff\x1b\n"
    oof = message(kind="oof", reason="deleted", key=b"k\x1b", body=b"b")
    assert printing.message_line(oof, False, is_terminal=False) == (
        b"out of focus, deleted: k\\x1b b\n"
    )


def test_the_error_that_ends_a_command_is_no_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from raylay.services import cli

    def fail() -> None:
        raise FabricError(f"it says {HOSTILE}")

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(SystemExit):
        cli.main()
    err = capsys.readouterr().err
    assert all(line.isprintable() for line in err.splitlines())


COLUMNS = ("instance", "state", "messages", "address")
ROWS = [("Chicago-1", "ready", "1,234,567", "10.0.0.1:9007")]


@pytest.mark.parametrize(
    ("width", "left_out"),
    [
        (44, []),
        (43, ["address"]),
        (29, ["address"]),
        (28, ["address", "state"]),
        (9, ["address", "state"]),
    ],
)
def test_a_narrow_terminal_leaves_out_as_few_columns_as_possible(
    width: int, left_out: list[str]
) -> None:
    # 9 + 5 + 9 + 13 characters, two between columns, and one at each end.
    assert columns_left_out(COLUMNS, ROWS, ("address", "state"), width) == left_out


@pytest.mark.parametrize("width", [30, 40, 60, 80])
def test_a_table_fits_a_terminal_and_cuts_no_name(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(width))
    print_table("t", COLUMNS, ROWS, ("messages",), optional=("address", "state"))
    shown = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    table, _, note = shown.partition(f"{width} columns leave out ")
    assert max(map(len, table.splitlines())) <= width
    assert "Chicago-1" in table and "1,234,567" in table
    left_out = columns_left_out(COLUMNS, ROWS, ("address", "state"), width)
    assert note.partition(":")[0] == ", ".join(left_out)
    assert all((column in table) == (column not in left_out) for column in COLUMNS)
