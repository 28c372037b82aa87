"""What `raylay up` shows while a fabric starts, and what it says when it is up."""

from __future__ import annotations

import io
import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from raylay.services.commands import lifecycle
from raylay.services.commands.starting import next_command, shown_progress, up_lines
from raylay.services.configuration import yaml_file
from raylay.services.fabric import Fabric, Topic

MAKEFILE = Path(__file__).parents[3] / "Makefile"


def told(console: Console, *words: str) -> Callable[[str], None]:
    times_s = iter((10.0, 11.5, 12.25, 13.0))
    with shown_progress(console, lambda: next(times_s)) as tell:
        for each in words:
            tell(each)
    return tell


def test_without_a_terminal_progress_is_plain_lines() -> None:
    console = Console(file=io.StringIO())
    tell = told(console, "starting Ray", "starting Ray", "1 of 2 instances are ready")
    tell("one is restarted later")
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().splitlines() == [
        "  1.5 s  starting Ray",
        "  2.2 s  1 of 2 instances are ready",
    ]
    assert lifecycle.PROGRESS.findall(console.file.getvalue()) == [
        "starting Ray",
        "1 of 2 instances are ready",
    ]


def test_on_a_terminal_progress_is_one_line_that_goes() -> None:
    console = Console(file=io.StringIO(), force_terminal=True)
    told(console, "starting Ray", "1 of 2 instances are ready")
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    assert "instances are ready" in shown and " s  " not in shown
    assert shown.endswith("\x1b[2K"), "the line is gone"


def test_who_is_up_says_where_clients_go_and_what_to_type() -> None:
    fabric = Fabric("flights", topics=[Topic("flights/.*", "json")])
    fabric.region("A", instances=2).region("B", instances=1)
    lines = up_lines(fabric.settings(), "data/flights", {"A": ["h:1", "h:2"], "B": ["h:3"]}, "; x")
    assert lines == [
        "raylay is up: flights in data/flights; x",
        "clients of A: h:1, h:2",
        "clients of B: h:3",
        "next: raylay publish flights/1 '{\"hello\": 1}' --fabric flights --group A",
    ]
    servers = {"A": ["h:1"]}
    shown = up_lines(fabric.settings(), "data/flights", servers, console="http://h:4/")
    assert shown[-2] == "console: http://h:4/" and shown[-1] == lines[-1]
    # Only what is whole counts as up: the process may just be writing.
    text = "starting flights\n  0.1 s  starting Ray\n" + "\n".join(lines)
    assert lifecycle._ready_lines(text) == ""
    assert lifecycle._ready_lines(text + "\n").splitlines() == lines


@pytest.mark.parametrize(
    ("topics", "words"),
    [
        ([Topic("orders", "fix")], "publish orders '{\"hello\": 1}' --type fix --fabric f"),
        ([Topic("a|b", "json"), Topic("c", "json")], "publish c '"),
        ([Topic("a", "json", journaled=False)], "status --fabric f"),
        ([Topic("a[bc]", "json")], "status --fabric f"),
        ([Topic(".*", "json")], "publish 1 '"),
    ],
)
def test_the_next_command_publishes_to_a_topic_that_there_is(
    topics: list[Topic], words: str
) -> None:
    settings = Fabric("f", topics=topics).region("A", instances=1).settings()
    command = next_command(settings)
    assert words in command
    topic = command.split()[2]
    if " publish " in command:
        assert any(re.fullmatch(each.name, topic) for each in settings.topics)


@pytest.mark.parametrize(
    ("sow", "words"),
    [
        ({"name": "orders", "keys": ["/id"]}, """orders '{"hello": 1, "id": 1}' --fabric f"""),
        ({"name": "orders", "keys": ["/a/b", "/a/c"]},
         """orders '{"hello": 1, "a": {"b": 1, "c": 1}}' --fabric f"""),
        ({"name": "orders"}, """orders '{"hello": 1}' --key 1 --fabric f"""),
        ({"name": "all", "pattern": "^ord", "keys": ["/id"]},
         """orders '{"hello": 1, "id": 1}' --fabric f"""),
        ({"name": "orders", "pattern": "^ord", "keys": ["/id"]}, "publish trades '"),
        ({"name": "other", "keys": ["/id"]}, """orders '{"hello": 1}' --fabric f"""),
    ],
)  # fmt: skip
def test_the_next_command_gives_the_key_of_a_sow_topic(sow: dict[str, Any], words: str) -> None:
    topics = [{"name": "orders", "message_type": "json"}, {"name": "trades"}, {"name": "other"}]
    settings = yaml_file.parse(json.dumps(
        {"fabric": "f", "regions": {"A": 1}, "topics": topics,
         "sow_topics": [{"message_type": "json"} | sow]}
    ))  # fmt: skip
    assert words in next_command(settings)


def test_the_next_command_says_where_credentials_are_given() -> None:
    settings = yaml_file.parse(json.dumps(
        {"fabric": "f", "regions": {"A": 1}, "topics": ["orders"],
         "authentication": {"module": "passwords", "options": {"File": "users"}}}
    ))  # fmt: skip
    command = next_command(settings)
    assert command.startswith("raylay publish orders")
    assert command.endswith("--fabric f --user USER --password-file FILE")


def made(*options: str) -> list[str]:
    """What `make setup` would type."""
    make = ["make", "--dry-run", "--no-print-directory", *options, "setup"]
    place = MAKEFILE.parent
    return subprocess.run(
        make, cwd=place, capture_output=True, text=True, check=True
    ).stdout.splitlines()


def test_setup_ends_with_what_to_type() -> None:
    assert "Next: make demo" in made()[-1]


def test_setup_compiles_what_each_process_of_the_first_start_would() -> None:
    (line,) = [line for line in made("--always-make") if "compileall" in line]
    packages = {path.parent.name for path in MAKEFILE.parent.glob("*/py.typed")}
    assert packages and packages <= set(line.split())


FIND_PYTHON = MAKEFILE.parent / "deploy" / "find_python"


def found_python(tmp_path: Path, took_us: dict[str, str], *first: str) -> tuple[str, int]:
    """What it takes of Pythons that say of themselves that they take so long, or fail."""
    for name, said in took_us.items():
        python = tmp_path / name
        python.write_text(f"#!/bin/sh\n{said}\n")
        python.chmod(0o755)
    # Those of the machine are left out.
    script = FIND_PYTHON.read_text().replace("/usr/local/bin/ /usr/bin/", "")
    run = subprocess.run(
        ["/bin/sh", "-c", script, "sh", *first],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    return run.stdout.strip(), run.returncode


def test_setup_takes_the_first_python_unless_another_is_clearly_faster(tmp_path: Path) -> None:
    plain, near = "echo 1000 /a", "echo 910 /b"
    assert found_python(tmp_path, {"python3.11": plain, "python3": near}) == ("python3.11", 0)
    found = found_python(tmp_path, {"python3.12": "echo 890 /c"})
    assert found == ("python3.12", 0)
    # By another name the same one takes as long, whatever a busy machine makes of it.
    assert found_python(tmp_path, {"python3.13": "echo 700 /c"}) == ("python3.12", 0)


def test_setup_says_where_another_python_than_that_of_the_environment_is_clearly_faster(
    tmp_path: Path,
) -> None:
    others = {"python3.11": "echo 910 /b", "python3.12": "echo 1500 /c"}
    assert found_python(tmp_path, {**others, "mine": "echo 1000 /a"}, "mine") == ("mine", 0)
    assert found_python(tmp_path, {"mine": "echo 1020 /a"}, "mine") == ("python3.11", 0)
    # Made with that one.
    assert found_python(tmp_path, {"mine": "echo 1100 /b"}, "mine") == ("mine", 0)
    typed = "\n".join(made())
    assert "deploy/find_python .venv/bin/python" in typed and "rm -r .venv && make setup" in typed


def test_setup_takes_no_python_that_is_too_old_or_makes_no_environments(tmp_path: Path) -> None:
    assert found_python(tmp_path, {"python3": "exit 1"}) == ("", 1)
    assert found_python(tmp_path, {"python3.13": "echo 900 /d"}) == ("python3.13", 0)


def test_setup_finds_the_python_of_this_machine() -> None:
    run = subprocess.run([FIND_PYTHON], capture_output=True, text=True, check=True)
    version = subprocess.run([run.stdout.strip(), "-V"], capture_output=True, text=True, check=True)
    assert version.stdout.startswith("Python 3.1")


def test_progress_is_no_markup() -> None:
    for terminal in (False, True):
        console = Console(file=io.StringIO(), force_terminal=terminal, width=100)
        told(console, "[bold]a[/bold] [link=http://x]b[/link] :boom: \x9b31m[/]")
        assert isinstance(console.file, io.StringIO)
        shown = console.file.getvalue()
        assert "[bold]a[/bold] [link=http://x]b[/link] :boom: \\x9b31m[/]" in shown
