"""Drills on the shared fabric: judged, reported, and over when whoever ran them is gone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from raylay.services.drills.drill import MARK_FILE, Drill, clean
from raylay.services.drills.reports import report
from raylay.services.drills.scenario import parse
from raylay.services.errors import FabricError
from raylay.services.fabric import Fabric
from raylay.services.fabric.cluster.head_process import (
    gcs_port,
    gcs_process,
    is_durable,
    raylet_pid,
)
from raylay.services.messages.topics import DRILL_SOW_TOPIC, DRILL_TOPIC

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.covers(
        "Drills", "SOW records against journals and publishers", note="on a real fabric"
    ),
    pytest.mark.covers("Drills", "messages of a queue against publishers", note="on a real fabric"),
    pytest.mark.covers("Drills", "a fabric that is not marked is refused"),
]

WAIT_S = 120.0
PARTITION = {
    "name": "partition",
    "before": "1s",
    "after": "1s",
    "load": {"rate": 50},
    "steps": [
        {"fault": "drop", "target": "near-1 <-> near-2", "for": "2s"},
        {"at": "500ms", "fault": "kill_link", "target": "far-1 -> near"},
        # Once the pair is whole: while it is parted, a link that leads to near-2 brings what far-1
        # moves to an instance that cannot tell near-1, where the consumers are.
        {"at": "4s", "fault": "kill_consumers", "target": "far", "for": "2s"},
    ],
}


def test_a_drill_is_judged_and_reported(whole: Fabric, tmp_path: Path) -> None:
    result = Drill(whole, parse(PARTITION, "test")).run()
    assert result.valid, report.as_json(result)
    page = report.write(result, tmp_path)
    text = page.read_text(encoding="utf-8")
    assert "Clean." in text and "near-1 and near-2 partitioned for 2s" in text
    told = json.loads((tmp_path / report.JSON_NAME).read_text(encoding="utf-8"))
    assert told["valid"] and told["verdict"]["laws_judged"]
    # The fabric declares sales/.* and nothing else.
    assert told["topic"] == DRILL_TOPIC
    places = {place["place"]: place["messages"] for place in told["verdict"]["places"]}
    assert {f"journal {name}" for name in ("near-1", "near-2", "far-1")} < set(places)
    assert len(places) == 5 and min(places.values()) >= told["verdict"]["persisted"] > 100
    assert {event["event"] for event in told["events"]} >= {"drill_line", "link_process_ended"}
    # Each instance answers of the drills' SOW topic what its journal says, and the writers wrote.
    sow = told["verdict"]["sow"]
    assert sow["judged"] and not sow["wrong"] and "the records that its own journal gives" in text
    assert sow["records"].keys() == {"near-1", "near-2", "far-1"}
    # Two writers of 20 a second, for the eight seconds that the drill takes at least.
    assert sow["changes"] > 50 and sow["deletions"] > 5
    assert len(set(sow["records"].values())) == 1 and sow["records"]["far-1"] > 16
    # Two publishers on the drills' queue of 20 a second; those of the other region take over.
    queue = told["verdict"]["queue"]
    assert queue["judged"] and not queue["wrong"] and queue["persisted"] > 50
    assert queue["instances"] == ["near-1", "near-2", "far-1"]
    (taken,) = queue["taken_over"]
    assert taken["region"] == "far" and taken["moved"] > 5 and queue["done_elsewhere"] > 5, queue
    assert "each was delivered to a consumer, has left the queue at all 3 instances" in text
    # Its records are gone with it.
    with whole.sync_client("asks", group="near") as client:
        deadline_s = time.monotonic() + WAIT_S
        while client.sow(DRILL_SOW_TOPIC).all():
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
    # Acks of the pair stood still until the downgrade, and those of the other region did not.
    partition = told["recoveries"][0]["acks_stood_ms"]
    assert partition["near"] > 500
    assert told["acknowledged_at_risk"] > 0
    assert not (whole.directory / MARK_FILE).exists()


@pytest.mark.covers("Laws", "8 the data path asks no controller", note="killed in a drill")
@pytest.mark.slow
def test_the_head_is_killed_and_an_instance_meanwhile(whole: Fabric) -> None:
    """Acks go on, and who died without a head is started when it is back."""
    scenario = {
        "name": "headless",
        "before": "1s",
        "after": "1s",
        "load": {"rate": 50},
        "steps": [
            {"fault": "kill_gcs", "for": "5s"},
            {"at": "1s", "fault": "kill_instance", "target": "near-2"},
        ],
    }
    result = Drill(whole, parse(scenario, "test")).run()
    assert result.valid, report.as_json(result)
    head, instance = result.recoveries
    assert instance.ready_ms is not None and instance.ready_ms > 3_000, "without a head"
    assert head.acks_stood_ms["far"] < 3_000, "they do not wait for the head"
    pid, command, environment = gcs_process(gcs_port())
    assert is_durable(command, environment) and raylet_pid(gcs_port()) not in (0, pid)


@pytest.mark.slow
def test_what_an_ended_drill_broke_is_whole_again(whole: Fabric, tmp_path: Path) -> None:
    """SIGTERM mends; after SIGKILL it mends itself, and the next drill asks for `--clean`."""
    path = tmp_path / "long.yaml"
    path.write_text(
        "before: 1s\nsteps:\n"
        "  - {fault: drop, target: near-1 <-> near-2, for: 5m}\n"
        "  - {fault: clock_jump, target: far-1, offset: 1h, for: 5m}\n"
    )
    for number in (signal.SIGTERM, signal.SIGKILL):
        with subprocess.Popen(
            [sys.executable, "-m", "raylay.services.cli", "drill", str(path), "-f", "shops"],
            cwd=tmp_path,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ,
        ) as process:
            await_event(whole, "drill_clock", offset_us=3_600_000_000)
            process.send_signal(number)
            _, errors = process.communicate(timeout=WAIT_S)
        mended = process.returncode == 2 and "every fault is healed" in errors
        assert mended == (number == signal.SIGTERM), errors
        await_event(whole, "drill_clock", offset_us=0)
        whole.wait_connected(WAIT_S)
    with pytest.raises(FabricError, match=r"did not end in good order.*--clean --fabric shops"):
        Drill(whole, parse(PARTITION, "test")).run()
    done = clean(whole)
    assert any("near-1" in line for line in done)
    assert not (whole.directory / MARK_FILE).exists()


def await_event(fabric: Fabric, event: str, **values: object) -> None:
    """The last event of this kind is such a one."""
    deadline_s = time.monotonic() + WAIT_S
    while True:
        found = [each for each in fabric.events() if each["event"] == event]
        if found and all(found[-1][key] == value for key, value in values.items()):
            return
        assert time.monotonic() < deadline_s, (event, values, found)
        time.sleep(0.1)
