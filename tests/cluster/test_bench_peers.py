"""benchmarks/peers: what its harness counts as acknowledged is what the servers hold."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).resolve().parents[2] / "benchmarks" / "peers" / "run.py"
LOADS = "w1,publish_128B_4pub,paced_1000,replay,sow_publish,queue_4_backlog_100"
COUNTED = ("w1_ms_p50", "publish_128B_4pub", "paced_1000_ack_ms_p50", "replay")

pytestmark = [pytest.mark.slow, pytest.mark.cluster]


Lines = list[dict[str, Any]]


def bench(peers: str, loads: str, directory: Path) -> Lines:
    """The figures of a small run; skips where a peer is not installed."""
    done = subprocess.run(
        [sys.executable, str(BENCH), "--quick", "--peers", peers, "--only", loads],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=250,
    )
    if " is left out: " in done.stderr:
        pytest.skip(done.stderr.partition(" is left out: ")[2].splitlines()[0])
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("peer", ["raylay", "redis", "jetstream", "rabbitmq"])
def test_a_peer_holds_what_was_acknowledged(peer: str, tmp_path: Path) -> None:
    lines = {line["figure"]: line for line in bench(peer, LOADS, tmp_path)}
    for figure in COUNTED:
        line = lines[figure]
        assert line["value"] > 0
        assert len(line["held"]) >= 2 and len(set(line["held"])) == 1
        assert line["held"][0] >= line["messages"] > 0
    # The loads fail by themselves where a server holds another number than was acknowledged.
    assert lines["replay"]["held"][0] == lines["replay"]["messages"]
    # They fail, too, where a queue is not empty then, or a message was taken twice.
    assert lines["queue_4_backlog_100"]["value"] > 0
    assert ("sow_publish" in lines) == (peer != "rabbitmq")


def test_a_ratio_is_of_slices_in_turn(tmp_path: Path) -> None:
    lines = bench("raylay,redis", "w1", tmp_path)
    ours, theirs = (
        {line["figure"]: line for line in lines if line["peer"] == peer}
        for peer in ("raylay", "redis")
    )
    assert {line["beside"] for line in ours.values()} == {"redis"}
    for figure, line in theirs.items():
        assert line["beside"] == "raylay" and line["slices"] == ours[figure]["slices"] >= 2
        low, high = line["quartiles"]
        assert low <= line["ratio"] <= high
    # Of two slices the median of ratios is near the ratio of medians, and Python takes more.
    figure = "w1_processor"
    assert theirs[figure]["ratio"] > 1
    assert theirs[figure]["ratio"] == pytest.approx(
        ours[figure]["value"] / theirs[figure]["value"], rel=0.3
    )
