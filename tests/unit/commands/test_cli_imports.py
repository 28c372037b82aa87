"""A command imports what it needs: in modules, as a time says little on a busy machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from raylay.services.cli import COMMANDS, app

# What starts no fabric and asks none needs none of this; each costs 20 ms and more.
HEAVY = {"ray", "lmdb", "opentelemetry", "yaml", "asyncio", "msgpack", "re2", "zstandard", "jinja2"}
IMPORTED = """
import sys
from raylay.services import cli
sys.argv = ["raylay", *sys.argv[1:]]
try:
    cli.main()
except SystemExit:
    pass
print("\\n".join(sys.modules), file=sys.stderr)
"""
OF_EVERY_COMMAND = {"raylay.services", "raylay.services.cli"}
OF_LOOKING = {
    "raylay.services.commands",
    "raylay.services.commands.shared",
    # For what it says here: there is no fabric.
    "raylay.services.commands.shared.error_messages",
    "raylay.services.commands.status",
    "raylay.services.commands.shared.connection_options",
    "raylay.services.commands.shared.contexts",
    "raylay.services.commands.shared.controlled",
    "raylay.services.commands.shared.options",
    "raylay.services.commands.shared.printing",
    "raylay.services.errors",
    "raylay.services.fabric",
    "raylay.services.fabric.records",
    "raylay.services.fabric.records.discovery",
    "raylay.services.fabric.locks",
    "raylay.services.fabric.records.registry",
    "raylay.services.fabric.files",
    "raylay.services.messages",
    "raylay.services.messages.plain_text",
    "raylay.storage",
    "raylay.storage.file_systems",
    "raylay.storage.files",
}


def imported(runtime: Path, *arguments: str) -> set[str]:
    """The modules that a command has imported when it ends."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        # Not in the checkout, where somebody may have a fabric in data/.
        cwd=runtime,
        env={**os.environ, "RAYLAY_RUNTIME_DIR": str(runtime), "RAY_ADDRESS": ""},
    )
    return set(done.stderr.splitlines())


@pytest.mark.parametrize(
    ("arguments", "more"),
    [
        (("--help",), set()),
        (("--version",), set()),
        (("status",), OF_LOOKING | {"raylay.services.fabric.records.stopped"}),
        (
            ("events",),
            (OF_LOOKING - {"raylay.services.commands.status"})
            | {
                "raylay.services.commands.events",
                "raylay.services.commands.shared.earlier_events",
                "raylay.services.commands.shared.kept_logs",
                "raylay.services.fabric.records.stopped",
            },
        ),
    ],
)
def test_a_command_imports_what_it_needs(
    tmp_path: Path, arguments: tuple[str, ...], more: set[str]
) -> None:
    found = imported(tmp_path, *arguments)
    assert {name for name in found if name.startswith("raylay.")} == OF_EVERY_COMMAND | more
    assert not found & HEAVY


def test_status_of_a_fabric_imports_none_of_the_broker_and_none_of_amps_config() -> None:
    """But the values that its settings are made of. Ray is imported when it is joined."""
    code = "import sys; from raylay.services.fabric import Fabric; print('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    found = set(done.stdout.split())
    assert "raylay.services.fabric.fabric" in found
    assert not found & {
        "ray",
        "yaml",
        "opentelemetry",
        "raylay.services.replication.instance",
        "raylay.services.configuration.amps",
        "raylay.services.server.instance_server",
        "raylay.storage.lmdb_journal",
    }


def test_the_list_of_commands_says_what_each_says_itself() -> None:
    for name, (place, about) in COMMANDS.items():
        command: Any = typer.main.get_command(app)
        found = command.get_command(None, name)
        assert found.name == name, place
        assert " ".join((found.help or "").split()).startswith(about), name
