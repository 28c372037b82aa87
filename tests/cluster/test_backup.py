"""Backups of a running fabric, and a fabric that begins from them, typed in a shell."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.shell_commands import RAYLAY, attempt, run

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.covers("Journal", "a backup of an instance that runs"),
]

FILE = "fabric: kept\ntopics: [notes]\nregions: {here: 2}\ndowngrade: {age: 500ms}\n"
NAMES = ("here-1", "here-2")


def numbers(cwd: Path, name: str) -> list[int]:
    """The bodies in an instance's journal."""
    dump = run(*RAYLAY, "journal", "dump", f"data/kept/{name}", "--json", cwd=cwd).stdout
    rows = [json.loads(line) for line in dump.splitlines()]
    return [int(row["body"]) for row in rows if "body" in row]


def publish(cwd: Path, first: int, last: int) -> None:
    text = "".join(f"{number}\n" for number in range(first, last + 1))
    run(*RAYLAY, "publish", "notes", cwd=cwd, text=text)


def backed_up(cwd: Path) -> dict[str, dict[str, Any]]:
    lines = run(*RAYLAY, "backup", "--to", "backups", "--json", cwd=cwd).stdout.splitlines()
    return {each["instance"]: each for each in map(json.loads, lines)}


def test_a_lost_disk_and_a_lost_fabric_begin_from_backups(tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_text(FILE)
    run(*RAYLAY, "up", "f.yaml", "--detach", cwd=tmp_path)
    try:
        publish(tmp_path, 1, 100)
        a_lost_disk(tmp_path)
        kept = backed_up(tmp_path)
        refused = attempt(*RAYLAY, "restore", kept["here-1"]["backup"], "--force", cwd=tmp_path)
        assert refused.returncode == 1 and "raylay: here-1 runs: " in refused.stderr
    finally:
        run(*RAYLAY, "down", cwd=tmp_path)
    a_lost_fabric(tmp_path, kept)


def a_lost_disk(cwd: Path) -> None:
    """While a publisher goes on."""
    load = [*RAYLAY, "bench", "pub", "notes", "--rate", "200", "--count", "1000", "--body", "{n}"]
    env = {**os.environ, "RAYLAY_RUNTIME_DIR": str(cwd)}
    with subprocess.Popen([*load, "--json"], cwd=cwd, env=env, stdout=subprocess.PIPE) as publisher:
        backup = backed_up(cwd)["here-1"]
        published, _ = publisher.communicate(timeout=60)
    assert json.loads(published)["refused"] == 0 and json.loads(published)["messages"] == 1_000
    assert 100 <= backup["messages"] <= 1_100
    status = json.loads(run(*RAYLAY, "status", "--json", cwd=cwd).stdout)
    (pid,) = (each["pid"] for each in status["instances"] if each["name"] == "here-1")
    os.kill(pid, signal.SIGKILL)
    shutil.rmtree(cwd / "data" / "kept" / "here-1")
    publish(cwd, 2_001, 2_010)
    checked = run(*RAYLAY, "restore", backup["backup"], "--check", "--json", cwd=cwd).stdout
    assert json.loads(checked)["restored"] is None
    assert not (cwd / "data" / "kept" / "here-1" / "instance.json").exists()
    done = run(*RAYLAY, "restore", backup["backup"], cwd=cwd).stdout.splitlines()
    assert done[-1] == "next: raylay restart here-1 --fabric kept"
    assert len(numbers(cwd, "here-1")) == backup["messages"]
    again = run(*RAYLAY, "restart", "here-1", cwd=cwd).stdout
    assert again == "here-1: restarted, caught up\n"
    both = [sorted(numbers(cwd, name)) for name in NAMES]
    assert both[0] == both[1] and len(both[0]) == 1_110
    assert both[0][-10:] == [*range(2_001, 2_011)]


def a_lost_fabric(cwd: Path, kept: dict[str, dict[str, Any]]) -> None:
    """Its record, too."""
    before = sorted(numbers(cwd, "here-1"))
    ports = json.loads((cwd / "data" / "kept" / "fabric.json").read_text())["ports"]
    shutil.rmtree(cwd / "data")
    done = run(*RAYLAY, "restore", *(kept[name]["backup"] for name in NAMES), cwd=cwd).stdout
    assert done.splitlines()[-1] == f"next: raylay up {cwd / 'data' / 'kept'}"
    run(*RAYLAY, "up", "data/kept", "--detach", cwd=cwd)
    try:
        assert json.loads((cwd / "data" / "kept" / "fabric.json").read_text())["ports"] == ports
        publish(cwd, 3_001, 3_020)
        for name in NAMES:
            assert sorted(numbers(cwd, name)) == [*before, *range(3_001, 3_021)]
        events = run(*RAYLAY, "events", "--json", cwd=cwd).stdout.splitlines()
        names = [json.loads(line)["event"] for line in events]
        assert names.count("data_directory_copied") == 2 and "sequence_conflict" not in names
    finally:
        run(*RAYLAY, "down", cwd=cwd)
