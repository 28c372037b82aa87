"""benchmarks/peers: what its harness counts as acknowledged is what the servers hold."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "benchmarks" / "peers" / "run.py"
LOADS = "w1,publish_128B_4pub,paced_1000,replay"
COUNTED = ("w1_ms_p50", "publish_128B_4pub", "paced_1000_ack_ms_p50", "replay")

pytestmark = [pytest.mark.slow, pytest.mark.cluster]


@pytest.mark.parametrize("peer", ["raylay", "redis", "jetstream", "rabbitmq"])
def test_a_peer_holds_what_was_acknowledged(peer: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(BENCH), "--quick", "--peers", peer, "--only", LOADS],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=250,
    )
    left_out = f"{peer} is left out: "
    if left_out in done.stderr:
        pytest.skip(done.stderr.partition(left_out)[2].splitlines()[0])
    assert done.returncode == 0, done.stderr
    lines = {line["figure"]: line for line in map(json.loads, done.stdout.splitlines())}
    for figure in COUNTED:
        line = lines[figure]
        assert line["value"] > 0
        assert len(line["held"]) >= 2 and len(set(line["held"])) == 1
        assert line["held"][0] >= line["messages"] > 0
    # The loads fail by themselves where a server holds another number than was acknowledged.
    assert lines["replay"]["held"][0] == lines["replay"]["messages"]
