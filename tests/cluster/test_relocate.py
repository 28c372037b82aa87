"""An instance whose Ray node is lost: pending, moved by policy, its former directory salvaged."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.covers("Moved instances", "on Ray nodes: bound to its host")


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_an_instance_whose_node_is_lost_is_moved_by_policy(tmp_path: Path) -> None:
    """On real Ray nodes: bound to its host, refused while it lives, pending while that is away."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "relocating.py"), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-8_000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert "east-1 is alive" in told["refused"]
    assert told["pending"].startswith("its host a is away since 20")
    assert told["at_once"] and all(
        "was changed by another command meanwhile" in each or "and is being started" in each
        for each in told["at_once"]
    )
    assert told["moved"] == ["east-1", 1, {"host": "c", "region": "east"}, ["east-2"]]
    assert told["logs"] == {"east-1": 25, "east-2": 25}
    (left_over,) = told["left_over"]
    assert left_over["directory"] == str(tmp_path / "east-1") and not left_over["salvaged"]
    assert left_over["generation"] == 0 and len(left_over["incarnation"]) == 16
    assert told["salvaged"]["done"] and told["salvaged"]["messages"] == 20
    assert told["status"][0]["salvaged"] and told["again"] == []
    assert told["salvaged"]["noted"] and told["gone"][0]["salvaged"]
    assert "is removed from `raylay status`: the fabric has all its messages" in told["forgotten"]
    assert told["silence"] == []
