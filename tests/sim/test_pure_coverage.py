"""The branch coverage of the pure rooms, which may only rise."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from support.pure_rooms import ROOT, pure_files

from sim import pure_coverage

SEEDS = 150
PERCENT_MIN = 98.0
"""The measured figure, less half a percent for what chance and a busy machine do not run."""


@pytest.mark.slow
@pytest.mark.timeout(2_100)
def test_the_branch_coverage_of_the_pure_rooms_does_not_fall() -> None:
    """In a process of its own: the modules must not have been imported before they are measured."""
    done = subprocess.run(
        [sys.executable, "-m", "sim.pure_coverage", "--seeds", str(SEEDS)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests")},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=2_000,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-8_000:]
    figure = json.loads(done.stdout.splitlines()[-1])
    print(figure)
    assert figure["percent"] >= PERCENT_MIN
    assert figure["percent"] <= PERCENT_MIN + 1.5, "raise PERCENT_MIN to half a percent below it"


def test_a_file_that_nothing_runs_lowers_the_figure() -> None:
    whole = {"num_statements": 3, "num_branches": 1, "covered_lines": 3, "covered_branches": 1}
    unseen = {"num_statements": 3, "num_branches": 1, "covered_lines": 0, "covered_branches": 0}
    assert pure_coverage.percent({"a": whole}) == 100
    assert pure_coverage.percent({"a": whole, "b": unseen}) == 50


def test_the_measured_files_are_those_without_a_socket_or_a_clock() -> None:
    names = {path.relative_to(ROOT).as_posix() for path in pure_files()}
    assert "services/replication/link/outbound.py" in names and "services/errors.py" in names
    assert not any(name.startswith(("services/server/", "storage/")) for name in names)
