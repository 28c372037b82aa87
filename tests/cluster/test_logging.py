"""The logs of a real instance in its Ray actor: each target gets its lines, stdout among them."""

from __future__ import annotations

import time
import zlib
from pathlib import Path

import pytest
import ray

from raylay.services.fabric import Fabric

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
DEADLINE_S = 120
STARTED = "info here-1 instance 00-0001 started"


def lines_in(directory: Path, pattern: str) -> list[str]:
    return [
        line.split(" ", 1)[1]
        for path in directory.glob(pattern)
        for line in path.read_text().splitlines()
        if " here-1 " in line
    ]


@pytest.mark.covers("Logging", "`stdout` is stdout", note="in a Ray actor")
def test_the_targets_of_an_instance_in_an_actor(tmp_path: Path) -> None:
    fabric = Fabric(
        "logged",
        topics=["orders"],
        logs=[
            {"target": "stdout"},
            {"level": "none", "target": "stderr", "include": ["00-0001"]},
            {"target": "gzip", "file_name": "%p-%n.log", "exclude": ["07"]},
        ],
    ).region("here", 1)
    with fabric.start(tmp_path / "data") as started:
        started.wait_ready()
        pid = started.pid("here-1")
        worker = ray._private.worker.global_worker.node
        assert worker is not None
        logs = Path(worker.get_logs_dir_path())
        deadline_s = time.monotonic() + DEADLINE_S
        while not any(STARTED in line for line in lines_in(logs, f"worker-*-{pid}.err")):
            assert time.monotonic() < deadline_s, "the instance did not log that it started"
            time.sleep(0.05)
        printed = lines_in(logs, f"worker-*-{pid}.out")
        errors = lines_in(logs, f"worker-*-{pid}.err")
        # It is read while the instance writes.
        (path,) = (tmp_path / "data" / "logs").glob("*.gz")
        zipped = zlib.decompressobj(wbits=31).decompress(path.read_bytes()).decode()
    assert any(line.startswith(STARTED) for line in printed)
    assert errors and all(line.startswith(STARTED) for line in errors)
    assert path.name == "here-1-00000.log.gz" and f" {STARTED} " in zipped
