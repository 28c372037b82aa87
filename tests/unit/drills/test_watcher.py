"""services/drills/watcher.py and the logs: what instances tell, and when."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from pathlib import Path
from typing import Any, ClassVar

import pytest

from raylay.services.drills import history_builder
from raylay.services.drills.evidence import AlarmLog
from raylay.services.drills.history_builder import alarms, now_us
from raylay.services.drills.measure import WaitingBytes
from raylay.services.drills.watcher import Watcher, sample_of
from raylay.services.errors import FabricError
from raylay.services.fabric import Fabric

STANDS_S = 0.05


class Answering(Fabric):
    """Its instances answer slowly, and one not at all."""

    asked: defaultdict[str, list[int]]
    began_us: ClassVar[dict[str, int]] = {}
    ended_us: ClassVar[dict[str, int]] = {}

    def ask(self, name: str, verb: str, *arguments: Any, timeout_s: float = 5) -> Any:
        if verb == "events":
            self.asked[name].append(arguments[0])
            number = arguments[0] + 1
            return [{"number": number, "time_us": 0, "event": "fatal", "text": f"{name} {number}"}]
        self.began_us[name] = now_us()
        time.sleep(STANDS_S)
        self.ended_us[name] = now_us()
        if name == "near-2":
            raise FabricError("it stands still")
        return {"pid": 7, "ready": True, "last_event": 42}


@pytest.fixture
def watched() -> Watcher:
    fabric = Answering("shops").region("near", instances=2)
    fabric.asked = defaultdict(list)
    watcher = Watcher(fabric, {"near-1": {"pid": 7, "last_event": 41}})
    watcher._over.set()
    watcher.start()
    watcher.stop()
    answered, silent = sorted(watcher.samples, key=lambda each: each.instance)
    assert answered.time_us >= fabric.ended_us["near-1"], "when it answered"
    assert silent.time_us <= fabric.began_us["near-2"], "when it was asked"
    assert not silent.ready and silent.why == "it stands still"
    return watcher


def test_what_waits_for_slow_clients_is_that_of_all_pools() -> None:
    pool = {
        "memory_bytes": 1, "memory_bytes_max": 2, "disk_bytes": 3, "disk_bytes_max": 4,
        "offline": 5, "behind": 6,
    }  # fmt: skip
    both = sample_of(1, "A", {"ready": True, "capacity": [pool, pool]})
    assert both.waiting == WaitingBytes(2, 4, 6, 8, 10)
    assert sample_of(1, "A", {"ready": True}).waiting is None, "it does not serve yet"


def test_an_answer_stands_for_the_moment_at_which_it_came(watched: Watcher) -> None:
    assert len(watched.samples) == 2


def test_what_was_told_before_the_drill_is_known_by_its_number(watched: Watcher) -> None:
    """Not by its time: an instance's clock may be set back."""
    assert watched._fabric.asked == {"near-1": [41]}  # type: ignore[attr-defined]
    assert [event["number"] for event in watched.events] == [42]


def line(event: str, **more: Any) -> str:
    told = {
        "time": "1970-01-01T00:00:00.000000Z", "level": "error", "process": "near-1",
        "logger": "instance", "event": event, **more,
    }  # fmt: skip
    return json.dumps(told, separators=(",", ":")) + "\n"


def test_the_alarms_of_all_processes_of_an_instance(tmp_path: Path) -> None:
    (tmp_path / "near-1-7.log").write_text(line("started") + line("fatal", text="a") + '{"event":')
    (tmp_path / "near-1-9.1.log").write_text(line("conflict", source=3))
    (tmp_path / "near-1-to-near-2-8.log").write_text(line("fatal", text="of a link"))
    found = alarms(tmp_path, "near-1")
    assert sorted(told["event"] for told in found.values()) == ["conflict", "fatal"]


def test_what_an_instance_said_last_is_a_complaint_once(tmp_path: Path, watched: Watcher) -> None:
    path = tmp_path / "near-1-7.log"
    path.write_text(line("fatal", text="of an earlier day"))
    reported = AlarmLog(["near-1", "near-2"], tmp_path)
    more = line("fatal", text="near-1 42") + line("conflict", ranges=[[1, 2]])
    path.write_text(path.read_text() + more)
    watched.events.append(
        {"instance": "near-1", "number": 43, "event": "conflict", "ranges": [(1, 2)]}
    )
    assert reported.report(watched.events) == [
        "near-1 reports fatal: text near-1 42",
        "near-1 reports conflict: ranges [[1, 2]]",
    ]
    assert {"fatal", "conflict"} <= history_builder.ALARMS
