"""SIGKILL at any instant: a SOW topic is as its transaction left it, none acknowledged is lost."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from raylay.storage.files import FAULT_VARIABLE
from raylay.storage.sow import LmdbSowStore

pytestmark = pytest.mark.covers(
    "SOW", "SIGKILL at any instant leaves a topic as its transaction left it"
)

CHILD = Path(__file__).with_name("sow_child.py")
sys.path.insert(0, str(CHILD.parent))

from sow_child import expected, made  # noqa: E402

CHILD_TIMEOUT_S = 60


def start(path: Path, fault: str = "") -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, CHILD, path],
        stdout=subprocess.PIPE,
        env={**os.environ, FAULT_VARIABLE: fault},
    )


def check(path: Path, output: bytes) -> int:
    """Opens the store as a restart does; returns the transaction that it is valid for."""
    lines = output.decode().split("\n")[:-1]
    told = int(lines[-1].split()[1]) if lines else 0
    store = LmdbSowStore(path)
    topic, quiet = store.topic("orders"), store.topic("quiet")
    assert topic.txid >= told and quiet.txid == topic.txid
    assert dict(topic.scan(b"", b"\xff")) == expected(topic.txid)
    assert list(quiet.scan(b"", b"\xff")) == []
    blocks = store.topic("made")
    assert blocks.txid == topic.txid
    wanted = {made(key): value for key, value in expected(topic.txid).items()}
    assert dict(blocks.scan(b"", b"\xff")) == wanted
    assert {key: blocks.get(key) for key in wanted} == wanted
    store.close()
    return topic.txid


@pytest.mark.covers("Journal", "SIGKILL at every step and at random instants")
@pytest.mark.parametrize("fault", ["sow.begin:1", "sow.synced:1", "sow.begin:60", "sow.synced:60"])
def test_killed_at(fault: str, tmp_path: Path) -> None:
    child = start(tmp_path / "sow", fault)
    try:
        output, _ = child.communicate(timeout=CHILD_TIMEOUT_S)
    finally:
        child.kill()
    assert child.returncode == -signal.SIGKILL, f"{fault} was never reached"
    valid = check(tmp_path / "sow", output)
    assert (valid > 0) == (fault != "sow.begin:1")


@pytest.mark.covers("Journal", "SIGKILL at every step and at random instants")
def test_killed_again_and_again(tmp_path: Path) -> None:
    chance = random.Random(7)
    valid = 0
    for _ in range(4):
        child = start(tmp_path / "sow")
        output = b""
        assert child.stdout is not None
        try:
            for _ in range(chance.randint(1, 60)):
                output += child.stdout.readline()
        finally:
            child.send_signal(signal.SIGKILL)
        output += child.communicate(timeout=CHILD_TIMEOUT_S)[0]
        now = check(tmp_path / "sow", output)
        assert now > valid
        valid = now
