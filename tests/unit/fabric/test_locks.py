"""One process starts a fabric and has its directory; who else comes is told at once."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from support.waiting import wait_until

from raylay.services.commands import lifecycle
from raylay.services.errors import FabricError
from raylay.services.fabric import find_running
from raylay.services.fabric.locks import LOCK_FILE, StartLocks, holder_of, starting, starting_path
from raylay.services.fabric.records import registry
from raylay.services.fabric.records.discovery import all_running, runs_already

pytestmark = pytest.mark.covers("Fabrics and tracing", "a fabric is started once")

HOLDING = """
import sys
from pathlib import Path
from raylay.services.fabric.locks import StartLocks
holds = StartLocks("f", Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""
# What `up` in the background is, without a fabric: it is up when it finds the file `go`.
UP = """
import pathlib, sys, time
from raylay.services.fabric.locks import StartLocks
place = pathlib.Path(sys.argv[-1])
holds = StartLocks("f", place)
print("begun", flush=True)
while not (place / "go").exists():
    time.sleep(0.01)
print(f"raylay is up: f in {place}\\nnext: raylay status", flush=True)
time.sleep(60)
"""
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(registry.REGISTRY_VARIABLE, str(tmp_path / "runtime"))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def holding(place: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDING, str(place)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_a_second_start_is_refused_and_told_by_whom(tmp_path: Path) -> None:
    with holding(tmp_path / "a") as first:
        with pytest.raises(
            FabricError, match=rf"f is being started already by process {first.pid}"
        ):
            StartLocks("f", tmp_path / "b")
        with pytest.raises(FabricError, match=rf"a is in use by process {first.pid}, for fabric f"):
            StartLocks("g", tmp_path / "a")
        assert [each.pid for each in starting()] == [first.pid], "what was refused starts nothing"
        with pytest.raises(FabricError, match=rf"f is starting, in .*/a \(process {first.pid}\)"):
            find_running("f")
        for look in (find_running, all_running):
            with pytest.raises(FabricError, match="f is starting"):
                look()
        with pytest.raises(FabricError, match="no fabric g runs here"):
            find_running("g")
        first.kill()
        first.wait()
        # The kernel lets go for who could not.
        assert starting() == []
        StartLocks("f", tmp_path / "a").release()
    assert not (tmp_path / "a" / LOCK_FILE).exists() and not starting_path("f").exists()


def test_a_fabric_that_runs_starts_no_more_and_keeps_its_directory(tmp_path: Path) -> None:
    holds = StartLocks("f", tmp_path)
    holds.started()
    assert starting() == []
    with pytest.raises(FabricError, match="fabric f runs already, in"):
        StartLocks("f", tmp_path)
    holds.release()
    StartLocks("f", tmp_path).release()


def test_who_starts_a_fabric_that_runs_is_told_the_commands() -> None:
    text = str(runs_already("f", "/data/f"))
    assert "in /data/f" in text
    for command in ("raylay status --fabric f", "raylay apply FILE", "raylay down --fabric f"):
        assert f"`{command}`" in text


def test_two_detached_starts_are_one_and_a_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "place"
    monkeypatch.setattr(lifecycle, "UP_PROGRAM", [sys.executable, "-c", UP])
    first = threading.Thread(target=lifecycle._up_in_background, args=("f", [], place))
    first.start()
    log = place / "up.log"
    wait_until(lambda: log.exists() and "begun" in log.read_text())
    (holder,) = starting()
    for name, other in (("f", place), ("f", tmp_path / "other"), ("g", place)):
        with pytest.raises(FabricError, match=f"by process {holder.pid}"):
            lifecycle._up_in_background(name, [], other)
    assert log.read_text().split() == ["starting", "f", "begun"], "its log is its own"
    (place / "go").touch()
    first.join()
    assert capsys.readouterr().out.splitlines()[0] == f"raylay is up: f in {place}"
    assert (held := holder_of(place / LOCK_FILE)) is not None and held.pid == holder.pid
    # It is no fabric, and is starting for ever: `down` ends that.
    lifecycle.down("f")
    assert "f is not started" in capsys.readouterr().out
    assert starting() == [] and not holder.alive


def test_down_says_that_a_process_did_not_end_only_where_it_has_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "place"
    monkeypatch.setattr(lifecycle, "UP_PROGRAM", [sys.executable, "-c", STUBBORN + UP])
    monkeypatch.setattr(lifecycle, "STOP_TIMEOUT_S", 0.2)
    place.mkdir()
    (place / "go").touch()
    lifecycle._up_in_background("f", [], place)
    (stubborn,) = starting()
    # Beside it, an owner as a killed start may leave one: it has an entry, and ends.
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    begun = registry.process_start(other.pid)
    registry.register(registry.RegistryEntry("f", str(place), "127.0.0.1:1", other.pid, begun))
    with pytest.raises(FabricError, match=rf"f: process {stubborn.pid} did not end within"):
        lifecycle.down("f")
    assert stubborn.alive and other.wait() != 0
    subprocess.run(["kill", "-9", str(stubborn.pid)], check=True)
    wait_until(lambda: not stubborn.alive)


def test_a_longer_text_of_an_earlier_holder_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / LOCK_FILE).write_text("x" * 4_096)
    holds = StartLocks("f", tmp_path)
    found = holder_of(tmp_path / LOCK_FILE)
    assert found is not None and (found.fabric, found.alive) == ("f", True)
    holds.release()
