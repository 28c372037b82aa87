"""What a session does so that a user need not: its workers' Python, and what Spark says."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pyspark
import pytest

from raylay.services.pipeline.session import one_line, without_greetings, worker_python

PATIENCE_S = 120.0
OURS = "raylay.services.errors"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (f"a\nTraceback\n{OURS}.StorageError: no disk\n SQLSTATE: 1", "no disk"),
        (f"[X] Failed to plan: {OURS}.StorageError: no disk SQLSTATE: 38000", "no disk"),
        (
            f"[S] Query ended: {OURS}.A: x\n caused by {OURS}.B: y SQLSTATE: 38000 SQLSTATE: XXKST",
            "y",
        ),
        ("[X] failed SQLSTATE: 42000\nmore", "[X] failed"),
        ("", "Spark failed and did not say why"),
    ],
)
def test_the_line_that_says_what_is_wrong(text: str, line: str) -> None:
    assert one_line(text) == line
    assert one_line(ValueError(text)) == line


def test_only_greetings_are_left_out(capfd: pytest.CaptureFixture[str]) -> None:
    said = (
        "WARNING: Using incubator modules: jdk.incubator.vector",
        "26/01/02 03:04:05 WARN NativeCodeLoader: Unable to load native-hadoop library",
        "26/01/02 03:04:05 WARN Utils: something else",
        "Exception in thread main: no memory",
    )
    with without_greetings():
        subprocess.run(["sh", "-c", 'printf "%s\\n" "$@" >&2', "sh", *said], check=True)
    found, deadline_s = "", time.monotonic() + PATIENCE_S
    while said[-1] not in found and time.monotonic() < deadline_s:
        found += capfd.readouterr().err
        time.sleep(0.01)
    assert found.splitlines() == list(said[2:])
    os.write(2, b"behind\n")
    assert capfd.readouterr().err == "behind\n"


def test_workers_take_the_pyspark_that_is_installed() -> None:
    home = Path(pyspark.__file__).parent
    zipped = f"{home}/python/lib/pyspark.zip"
    done = subprocess.run(
        [worker_python(), "-c", "import pyspark, sys; print(pyspark.__file__); print(sys.path)"],
        env=os.environ | {"PYTHONPATH": f"{zipped}:/a place:/other.zip"},
        capture_output=True,
        text=True,
        check=True,
    )
    file, path = done.stdout.splitlines()
    assert Path(file).parent == home
    assert zipped not in path and "/a place" in path and "/other.zip" in path
