"""services/fabric/cluster/head_process.py: how Ray's head was started, and that start once more."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner
from unit.drills.test_drill import began, head
from unit.fabric.test_by_interface import closed_port, serving

from raylay.services.commands import head as command
from raylay.services.errors import FabricError
from raylay.services.fabric.cluster import head_process
from raylay.services.fabric.cluster.head_process import (
    KEPT_FILE,
    HeadCommand,
    keep_head,
    start_head,
)
from raylay.services.fabric.records.registry import RegistryEntry

__all__ = ["head"]

pytestmark = pytest.mark.covers("Administration", "`raylay head start` brings Ray's head back")


def entry_of(directory: Path, port: int) -> RegistryEntry:
    return RegistryEntry("f", str(directory), f"127.0.0.1:{port}")


def runs(monkeypatch: pytest.MonkeyPatch, found: Any, raylet: int = 7) -> None:
    """The GCS that is found on this host: its process, command and environment."""

    def process(port: int) -> Any:
        if found is None:
            raise FabricError("no GCS")
        return found

    monkeypatch.setattr(head_process, "gcs_port", lambda: 6379)
    monkeypatch.setattr(head_process, "gcs_process", process)
    monkeypatch.setattr(head_process, "raylet_pid", lambda port: raylet)


def test_the_command_of_a_head_whose_memory_lasts_is_kept_for_its_owner_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / KEPT_FILE
    runs(monkeypatch, (4, ["gcs_server"], {"RAY_gcs_storage": "rocksdb"}))
    assert keep_head(tmp_path) == ""
    assert path.stat().st_mode & 0o777 == 0o600
    kept = json.loads(path.read_text())
    assert (kept["port"], kept["raylet"], kept["command"]) == (6379, 7, ["gcs_server"])
    runs(monkeypatch, (4, ["gcs_server"], {}))
    assert "in memory only" in keep_head(tmp_path) and not path.exists()
    runs(monkeypatch, None)
    assert "on another host" in keep_head(tmp_path)


def test_a_head_that_answers_is_left_alone(tmp_path: Path) -> None:
    with serving() as at:
        assert start_head(entry_of(tmp_path, at.port)) == f"Ray's head at {at.address} answers"


def test_a_head_that_ended_is_started_again(
    head: HeadCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head.keep(tmp_path / KEPT_FILE)
    # The raylet may have been started anew since.
    monkeypatch.setattr(head_process, "raylet_pid", lambda port: head.raylet)
    told = start_head(entry_of(tmp_path, head.port))
    assert f"runs again, on port {head.port}" in told and began(head) == 1


def test_what_cannot_be_started_here_says_what_to_do(
    head: HeadCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = entry_of(tmp_path, head.port)
    monkeypatch.setattr(head_process, "answers_as_head", lambda *_: False)
    with pytest.raises(FabricError, match=r"does not know how it was started.*deploy/start\.sh"):
        start_head(entry)
    path = tmp_path / KEPT_FILE
    path.write_text("{")
    with pytest.raises(FabricError, match="cannot be read"):
        start_head(entry)
    head.keep(path)
    with pytest.raises(FabricError, match="has ended, too"):
        start_head(entry)
    monkeypatch.setattr(head_process, "raylet_pid", lambda port: head.raylet)
    with monkeypatch.context() as patch:
        patch.setattr(head_process, "listening_sockets", lambda port: {"socket:[1]"})
        with pytest.raises(FabricError, match="it hangs, or another program took the port"):
            start_head(entry)
    monkeypatch.setattr(head_process, "HEAD_S_MAX", 0.01)
    broken = HeadCommand(closed_port(), head.raylet, ["false"], {})
    broken.keep(path)
    with pytest.raises(FabricError, match="did not start within"):
        start_head(entry)


def test_the_command_says_what_came_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as at:
        monkeypatch.setattr(command, "running", lambda name: entry_of(tmp_path, at.port))
        done = CliRunner().invoke(command.head_app, ["start"])
    assert done.exit_code == 0 and done.stdout == f"Ray's head at {at.address} answers\n"


def test_a_process_of_this_host_that_is_no_head_is_none() -> None:
    with pytest.raises(FabricError, match="no GCS with port"):
        head_process.gcs_process(closed_port())
    with subprocess.Popen(["sleep", "600"]) as other:
        try:
            assert head_process.raylet_pid(closed_port()) == 0
        finally:
            other.kill()
