"""The adversary on real actors: a short run of tests/soak."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from soak.driver import Plan, soak, unwhole

from raylay.services.fabric import Fabric

pytestmark = pytest.mark.cluster

SECONDS = 20.0


@pytest.mark.soak
def test_no_fault_loses_duplicates_or_reorders(runtime_directory: Path, tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    plan = Plan(SECONDS, seed, regions=0, pair=True, pause_s_max=1.2, rate_per_s=500)
    report = soak(plan, tmp_path)
    assert report.valid, f"seed {seed}\n{report}\n{(tmp_path / 'soak.log').read_text()}"
    assert report.verdict.persisted == report.verdict.published > 5_000
    assert len(report.verdict.places) == 4
    # Which faults, and how many fit into the time, is up to the seed and the machine.
    assert sum(report.faults.values()) >= 2, report.faults


def test_a_whole_fabric_says_so(whole: Fabric) -> None:
    statuses = {status["name"]: status for status in whole.status()["instances"]}
    statuses["near-1"]["destinations"]["near-2"]["owed"] = 1
    statuses["far-1"]["ready"] = False
    wrong = unwhole(statuses)
    assert any(line.startswith("near-1 to near-2") for line in wrong)
    assert any(line.startswith("far-1 is not ready") for line in wrong)
