"""A fabric whose Ray head is gone says so within seconds, and ends when it is told to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

SCRIPT = """
import json, os, signal, sys, time
from raylay.services.fabric.cluster.head_process import gcs_port, gcs_process
from raylay.services.errors import FabricError
from raylay.services.fabric import Fabric

fabric = Fabric("headless", topics=["notes"])
fabric.region("here", instances=1)
fabric.start(sys.argv[1])
pid = fabric.status()["instances"][0]["pid"]
client = fabric.sync_client("writer", group="here")
gcs, *_ = gcs_process(gcs_port())
os.kill(gcs, signal.SIGKILL)
told = {"ready": fabric.status()["instances"][0]["ready"], "process": pid}
for name, ask in (("kill", lambda: fabric.kill("here-1")), ("pid", lambda: fabric.pid("here-1"))):
    began_s = time.monotonic()
    try:
        ask()
    except FabricError as error:
        told[name] = str(error)
    told[name + "_s"] = time.monotonic() - began_s
client.publish("notes", b"after")
client.flush(10)
told["acknowledged"] = client.persisted_sequence > 0
client.close()
began_s = time.monotonic()
fabric.stop()
told["stop_s"] = time.monotonic() - began_s
print(json.dumps(told))
"""


@pytest.mark.covers(
    "Laws", "8 the data path asks no controller", note="what needs it says so within seconds"
)
def test_a_fabric_without_its_head_ends(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "data")],
        capture_output=True,
        text=True,
        timeout=180,
        cwd=tmp_path,
        env={**os.environ, "RAYLAY_RUNTIME_DIR": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    # Asked itself an instance answers: no call to it passes the head.
    assert told["ready"] and told["acknowledged"]
    for name in ("kill", "pid"):
        assert "Ray's head at" in told[name] and "does not answer" in told[name]
        assert told[name + "_s"] < 10
    assert told["stop_s"] < 60
    # Without the head nobody says which process is whose: it ends with its Ray, a moment later.
    deadline_s = time.monotonic() + 60
    while not has_ended(told["process"]):
        assert time.monotonic() < deadline_s, "an instance is left over"
        time.sleep(0.05)


def has_ended(pid: int) -> bool:
    """Whether a process is gone, or nobody's but its reaper's."""
    try:
        return not Path("/proc", str(pid), "cmdline").read_bytes()
    except OSError:
        return True


COMES_BACK = """
import os, signal, subprocess, sys
from raylay.services.fabric import Fabric
from raylay.services.fabric.cluster.head_process import gcs_port, gcs_process

def head(what):
    done = subprocess.run(
        [sys.executable, "-m", "raylay.services.cli", "head", what, "--fabric", "back"],
        capture_output=True, text=True, timeout=150,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout

# Marked for drills, so that its Ray's memory is on the disk.
fabric = Fabric("back", topics=["notes"], drills="allowed")
fabric.region("here", instances=1)
fabric.start(sys.argv[1])
assert "answers" in head("start")
assert "is noted in" in head("keep")
gcs, *_ = gcs_process(gcs_port())
os.kill(gcs, signal.SIGKILL)
print(head("start"), flush=True)
# What only the head knows: it starts the instance's actor again.
fabric.restart("here-1")
fabric.wait_ready()
print("restarted", flush=True)
fabric.stop()
"""


@pytest.mark.covers("Administration", "`raylay head start` brings Ray's head back")
def test_a_head_is_brought_back_by_a_command(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", COMES_BACK, str(tmp_path / "data")],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=tmp_path,
        env={**os.environ, "RAYLAY_RUNTIME_DIR": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    assert "Ray's head runs again, on port" in done.stdout and "restarted" in done.stdout
