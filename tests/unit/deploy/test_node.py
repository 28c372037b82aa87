"""Ray on a host: start.sh leaves alone a node that lives, whether or not its head answers."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

NODE = Path(__file__).parents[3] / "deploy" / "node"
HEAD = "10.0.0.1:6379"
SETTINGS = 'REGIONS="10.0.0.1=Chicago"\nGCS_STORAGE=memory\nHEAD_OUTAGE_S=600\n'

spec = importlib.util.spec_from_file_location("node", NODE / "node.py")
assert spec is not None and spec.loader is not None
node = importlib.util.module_from_spec(spec)
spec.loader.exec_module(node)


class Head:
    """Knows nodes: (state, address) each; 0 is alive."""

    def __init__(self, *nodes: tuple[int, str]) -> None:
        self.nodes = {
            bytes([at]): SimpleNamespace(state=state, node_manager_address=address)
            for at, (state, address) in enumerate(nodes)
        }

    def get_all_node_info(self, timeout: float) -> dict[bytes, Any]:
        return self.nodes


OWN, OTHER = "10.0.0.1", "10.0.0.2"
KNOWN = Head((0, OWN), (0, OTHER))
GIVEN_UP = Head((1, OWN), (0, OTHER))


@pytest.mark.parametrize(
    ("role", "running", "head", "status"),
    [
        ("worker", {"raylet"}, KNOWN, node.LIVES),
        ("worker", {"raylet"}, GIVEN_UP, node.DEAD),
        ("worker", {"raylet"}, None, node.HEAD_SILENT),
        ("worker", set(), KNOWN, node.DEAD),
        ("worker", set(), None, node.DEAD),
        ("head", {"raylet", "gcs_server"}, KNOWN, node.LIVES),
        ("head", {"raylet", "gcs_server"}, None, node.HEAD_SILENT),
        ("head", {"raylet"}, None, node.DEAD),
    ],
    ids=[
        "known",
        "given-up",
        "silent",
        "ended",
        "ended-silent",
        "head",
        "head-busy",
        "head-killed",
    ],
)
def test_a_node_lives_as_the_head_says_and_without_it_as_its_process_does(
    role: str,
    running: set[str],
    head: Head | None,
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def connected() -> Head:
        if head is None:
            raise RuntimeError("it is away")
        return head

    monkeypatch.setenv("RAY_ADDRESS", HEAD)
    monkeypatch.setattr(node, "runs", running.__contains__)
    monkeypatch.setattr(node, "own_addresses", lambda: {OWN})
    monkeypatch.setattr(node, "connected", connected)
    assert node.alive(role) == status
    said = f"raylay: the head at {HEAD} was not asked: it is away\n"
    assert capsys.readouterr().err == (said if status == node.HEAD_SILENT else "")


def test_a_process_runs_until_it_ends_also_where_nobody_waits_for_it(tmp_path: Path) -> None:
    name = f"n{os.getpid()}"
    shutil.copy(shutil.which("sleep") or "/bin/sleep", tmp_path / name)
    assert not node.runs(name)
    process = subprocess.Popen([tmp_path / name, "600"])
    try:
        deadline_s = time.monotonic() + 60
        while not node.runs(name):  # it is forked before it is that program
            assert time.monotonic() < deadline_s
    finally:
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert not node.runs(name), "a zombie"
    process.wait()


def start(home: Path, alive: int, *arguments: str) -> tuple[subprocess.CompletedProcess[str], str]:
    """start.sh on a host where `node.py alive` exits so; what it did with Ray."""
    programs = home / "raylay" / "venv" / "bin"
    programs.mkdir(parents=True)
    (home / "raylay" / "settings").write_text(SETTINGS)
    told = home / "told"
    told.touch()
    for name, text in (
        ("python", f'echo python "$@" >>"{told}"; [[ $2 != alive ]] || exit {alive}'),
        ("ray", f'echo ray "$@" >>"{told}"'),
        ("pgrep", "exit 1"),  # other raylets of this machine are none of its business
    ):
        (programs / name).write_text(f"#!/usr/bin/env bash\n{text}\n")
        (programs / name).chmod(0o755)
    done = subprocess.run(
        ["bash", NODE / "start.sh", *arguments],
        env={**os.environ, "HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done, told.read_text()


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (node.LIVES, "lives already"),
        (node.HEAD_SILENT, f"lives, and its head at {HEAD} does not answer: it is left alone"),
    ],
    ids=["known", "silent"],
)
def test_a_node_that_lives_is_left_alone(status: int, said: str, tmp_path: Path) -> None:
    done, told = start(tmp_path, status, "worker", "10.0.0.1")
    assert done.returncode == 0, done.stderr
    assert said in done.stdout and done.stdout.count("\n") == 1
    assert told == ("python deploy/guard.py worker 10.0.0.1\npython deploy/node.py alive worker\n")


@pytest.mark.parametrize("status", [node.DEAD, 2], ids=["dead", "no-answer-of-its-own"])
def test_a_node_that_does_not_live_is_started(status: int, tmp_path: Path) -> None:
    done, told = start(tmp_path, status, "worker", "10.0.0.1")
    assert done.returncode == 0, done.stderr
    guarded, asked, stopped, buried, started = told.splitlines()
    assert guarded == "python deploy/guard.py worker 10.0.0.1", "before an instance may come"
    assert asked == "python deploy/node.py alive worker"
    assert (stopped, buried) == ("ray stop --force", "python deploy/node.py bury")
    assert started.startswith("ray start ") and started.endswith(f"--address={HEAD}")


def test_a_head_that_was_killed_is_started(tmp_path: Path) -> None:
    done, told = start(tmp_path, node.DEAD, "head", "10.0.0.1")
    assert done.returncode == 0, done.stderr
    assert told.splitlines()[:3] == [
        "python deploy/guard.py head",
        "python deploy/node.py alive head",
        "ray stop --force",
    ]
    assert "ray start " in told and "--head" in told


def test_a_head_that_lives_brings_the_others_what_is_new(tmp_path: Path) -> None:
    done, told = start(tmp_path, node.LIVES, "head", "10.0.0.1")
    assert done.returncode == 0, done.stderr
    assert told.splitlines() == [
        "python deploy/guard.py head",
        "python deploy/node.py alive head",
        "python deploy/guard.py spread",
    ]


def test_other_hosts_are_those_that_live(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "own_addresses", lambda: {OWN})
    known = Head((0, OWN), (0, OTHER), (0, OTHER), (1, "10.0.0.3"))
    assert node.others(known) == [OTHER]


@pytest.mark.covers("Configuration", "nobody else gets at the sockets")
def test_what_ray_has_on_a_host_is_its_users_alone(tmp_path: Path) -> None:
    token = tmp_path / ".ray" / "auth_token"
    token.parent.mkdir()
    token.write_text("secret")
    token.chmod(0o644)
    done, told = start(tmp_path, node.DEAD, "worker", "10.0.0.1")
    assert done.returncode == 0, done.stderr
    assert token.stat().st_mode & 0o777 == 0o600
    found = re.search(r"--temp-dir (\S+)", told)
    assert found is not None, told
    around = Path(found.group(1)).parent
    assert around == Path(f"/tmp/raylay-{os.getuid()}/ray")
    assert around.stat().st_mode & 0o777 == 0o700
