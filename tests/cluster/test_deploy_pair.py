"""The two fabrics of deploy/compose.yaml, with other addresses and each on a Ray of its own, as in
two containers: one pair, of which one half goes away and comes back."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from raylay.services.fabric.plan import free_port

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

DOCKER = Path(__file__).parents[2] / "deploy" / "docker"
RAYLAY = [sys.executable, "-m", "raylay.services.cli"]
HALVES = {"a": "127.0.0.2", "b": "127.0.0.3"}
COMMAND_S_MAX = 120


class Container:
    """What stands for one: a directory of its own, in which `raylay` finds its fabric alone."""

    def __init__(self, name: str, directory: Path, ports: dict[str, int]) -> None:
        text = (DOCKER / f"{name}.yaml").read_text(encoding="utf-8")
        for half, address in HALVES.items():
            text = text.replace(f"host: {half},", f"host: {address},")
            text = text.replace(f'"{half}:', f'"{address}:')
        for port, other in ports.items():
            text = text.replace(port, str(other))
        self.place = directory / name
        self.place.mkdir()
        (self.place / f"{name}.yaml").write_text(text, encoding="utf-8")
        self._up = [*RAYLAY, "up", f"{name}.yaml", "--detach", "--directory", "data"]

    def begin(self) -> subprocess.Popen[str]:
        """Starts it."""
        return subprocess.Popen(self._up, **self._options())

    def run(self, *arguments: str) -> str:
        """What a command says in it."""
        done = subprocess.run(
            [*RAYLAY, *arguments], timeout=COMMAND_S_MAX, check=False, **self._options()
        )
        assert done.returncode == 0, done.stdout
        return str(done.stdout)

    def _options(self) -> dict[str, object]:
        return {
            "cwd": self.place,
            "env": {**os.environ, "RAYLAY_RUNTIME_DIR": str(self.place)},
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.STDOUT,
            "text": True,
        }


def started(*containers: Container) -> None:
    for process in [each.begin() for each in containers]:
        said = process.communicate(timeout=COMMAND_S_MAX)[0]
        assert process.returncode == 0, said


def test_one_half_goes_away_and_comes_back(tmp_path: Path) -> None:
    taken: set[int] = set()
    ports = {"9007": free_port(taken), "9107": free_port(taken)}
    a, b = (Container(name, tmp_path, ports) for name in HALVES)
    servers = [f"--server={address}:{ports['9007']}" for address in HALVES.values()]
    try:
        started(a, b)
        a.run("publish", "orders", "one")
        assert b.run("subscribe", "orders", "--bookmark", "0", "--count", "1") == "one\n"
        a.run("down")
        assert "1 persisted" in b.run("publish", "orders", "two", *servers)
        started(a)
        assert a.run("subscribe", "orders", "--bookmark", "0", "--count", "2") == "one\ntwo\n"
    finally:
        for each in (a, b):
            subprocess.run([*RAYLAY, "down"], check=False, timeout=COMMAND_S_MAX, **each._options())
