"""`make soak`: SECONDS of faults (default 600) on three regions and a pair; SEED: their order."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from soak.driver import Plan, soak

from raylay.services.fabric_registry import REGISTRY_VARIABLE

SECONDS_DEFAULT = 600
SETTLE_S = 600


@pytest.mark.soak
@pytest.mark.timeout(int(os.environ.get("SECONDS") or SECONDS_DEFAULT) + SETTLE_S)
def test_faults_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(REGISTRY_VARIABLE, str(tmp_path))
    seconds = int(os.environ.get("SECONDS") or SECONDS_DEFAULT)
    seed = int(os.environ.get("SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"SEED={seed} SECONDS={seconds} {tmp_path}")
    report = soak(Plan(seconds, seed), tmp_path)
    print(report)
    assert report.valid, f"SEED={seed}\n{report}\n{(tmp_path / 'soak.log').read_text()}"
