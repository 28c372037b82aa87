"""services/fabric/relocator.py: in which order an instance is moved, and what is written down of
it. The instances are none: each call is noted."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from unit.fabric.test_relocation import NODES, PLACES, linked, settings, status

from raylay.services.errors import FabricError
from raylay.services.fabric.cluster.nodes import ClusterNode, NodePlace
from raylay.services.fabric.plan import data_directory, record_of, replication_address
from raylay.services.fabric.records.record import OrphanedDirectory
from raylay.services.fabric.relocation import Relocation
from raylay.services.fabric.relocator import Relocator

FREE = NODES[1:]
"""East-1's host is lost; east-2 is ready."""


class Noted:
    """A fabric's handle, control and instances in one, which note what is done to them, and what
    the record says then."""

    def __init__(self, directory: Path) -> None:
        self.settings: Any = settings()
        self.record: Any = record_of(self.settings, directory)
        self.record.nodes = dict(PLACES)
        self.found = [status("east-1", ready=False), status("east-2")]
        self.calls: list[str] = []
        self.refuses = ""
        self.away = ""
        self.relocator = NotedMoves(self)

    @property
    def declared(self) -> Any:
        return self.settings

    def note(self, call: str) -> None:
        moves = self.record.moves
        known = moves["east-1"].generation if "east-1" in moves else 0
        self.calls.append(f"{call} at {known}")
        if self.refuses == call:
            raise FabricError(f"{call}: refused")

    def refresh(self) -> None:
        pass

    def known(self) -> Any:
        return self.settings, self.record

    def keep(self, record: Any) -> None:
        self.note("keep")

    def statuses(self, names: Any, timeout_s: float = 0) -> Any:
        return self.found

    def authorize(self, names: Any, call: str, **_: Any) -> None:
        self.note(f"authorize {call} of {' '.join(names)}")

    def host_away(self, name: str) -> str:
        return self.away

    def control(self, name: str, call: str, **_: Any) -> None:
        self.note(f"{call} of {name}")

    def launch(self, instance: Any) -> None:
        self.note(f"launch {instance.name} on {instance.host}")

    def wait_ready(self, name: str | None = None, timeout_s: float = 0) -> None:
        self.note(f"ready {name}")

    def write_config(self, instance: Any) -> None:
        self.note(f"config {instance.name}")


class NotedMoves(Relocator):
    """Notes that an instance is ended and that others are told, where it would ask Ray."""

    def __init__(self, noted: Any) -> None:
        super().__init__(noted, noted, noted)
        self.noted = noted

    def relocate(
        self, name: str, *to: Any, moved: Any = lambda done: None, **options: Any
    ) -> Relocation:
        return super().relocate(name, *to, moved=moved, **options)

    def _end_for_good(self, name: str, timeout_s: float) -> None:
        self.noted.note(f"end {name}")

    def _tell_moved(self, done: Relocation) -> None:
        self.noted.note("tell")
        done.told.append("east-2")


@pytest.fixture
def east(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Noted:
    living(monkeypatch, FREE)
    return Noted(tmp_path)


def living(monkeypatch: pytest.MonkeyPatch, nodes: list[ClusterNode]) -> None:
    monkeypatch.setattr("raylay.services.fabric.relocator.living_nodes", lambda: nodes)


def test_it_is_written_down_ended_told_and_only_then_started(east: Noted) -> None:
    """Of two who move it at once one is refused before anything is ended; peers are told before it
    dials them; and who was told knows its new address behind a restart."""
    before = replication_address(east.record, east.settings.instance("east-1"))
    told: list[str] = []
    done = east.relocator.relocate("east-1", moved=lambda each: told.append(east.calls[-1]))
    assert east.calls == [
        "authorize place of east-1 east-2 at 0",
        *("keep at 1", "end east-1 at 1", "tell at 1"),
        *("launch east-1 on 10.0.0.3 at 1", "ready east-1 at 1", "config east-2 at 1"),
    ]
    assert told == ["tell at 1"], "what was done is said before it is started"
    assert (done.generation, done.place.address) == (1, "10.0.0.3")
    (left,) = east.record.left_over
    assert (left.name, left.generation, left.address) == ("east-1", 0, before)
    assert left.host == "10.0.0.1" and left.directory != str(
        data_directory(east.record, east.settings.instance("east-1"))
    )
    assert east.record.moves["east-1"].filled_by == ["east-2"]
    assert east.record.nodes["east-2"] == PLACES["east-2"], "nobody else is moved"


@pytest.mark.parametrize("why", ["alive", "nobody to fill it", "just moved", "not allowed", "kept"])
def test_who_is_refused_is_where_it_was(
    east: Noted, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    if why == "alive":
        east.found[1] = status("east-2", destinations=linked("east-1", True))
    elif why == "nobody to fill it":
        east.found[1]["ready"] = False
    elif why == "just moved":
        east.relocator.relocate("east-1")
        east.found[0]["ready"] = False
    elif why == "not allowed":
        east.refuses = "authorize place of east-1 east-2"
    else:
        east.refuses = "keep"
    east.calls.clear()
    moves = dict(east.record.moves)
    with pytest.raises(FabricError):
        east.relocator.relocate("east-1")
    assert not any(call.startswith(("end", "tell", "launch")) for call in east.calls)
    if why != "kept":
        assert east.record.moves == moves


def test_one_that_was_stopped_on_purpose_is_not_moved(east: Noted) -> None:
    east.record.stopped = ["east-1"]
    with pytest.raises(FabricError, match="`raylay start east-1`"):
        east.relocator.relocate("east-1")
    assert east.calls == []


def test_one_that_was_stopped_and_whose_host_is_lost_is_moved_and_waited_for(east: Noted) -> None:
    east.record.stopped, east.record.drained = ["east-1"], ["east-1"]
    east.away = "its host is away"
    east.relocator.relocate("east-1")
    assert east.record.stopped == [] and east.record.drained == []
    assert east.calls[-1] == "upgrade of east-2 at 1", "acks there wait for it again"


def test_that_another_one_was_just_moved_is_no_reason_to_wait(east: Noted) -> None:
    """A host is lost with all that ran there: they are moved one behind the other."""
    now_us = time.time_ns() // 1000
    east.record.left_over.append(
        OrphanedDirectory("west-1", 0, "10.0.0.1", {}, "/data", "", now_us)
    )
    assert east.relocator.relocate("east-1").generation == 1


def test_by_force_one_that_is_alive_is_ended_first(east: Noted) -> None:
    east.found[1] = status("east-2", destinations=linked("east-1", True))
    east.relocator.relocate("east-1", force=True)
    steps = [call.split(" at ")[0] for call in east.calls]
    assert steps.index("end east-1") < steps.index("launch east-1 on 10.0.0.3")


def test_on_one_machine_it_leaves_its_ports_to_what_it_was(
    east: Noted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That may hold them for as long as it does not know that it was moved."""
    before = east.record.ports["east-1"]
    living(monkeypatch, [ClusterNode("10.0.0.1", {"region": "east", "host": "d"}), *FREE])
    east.relocator.relocate("east-1", {"host": "d"})
    assert east.record.ports["east-1"] != before
    kept = east.record.ports["east-2"]
    east.record.left_over.clear()
    east.relocator.relocate("east-1", {"host": "c"}, force=True)
    assert east.record.ports["east-2"] == kept


def test_elsewhere_it_keeps_its_ports(east: Noted) -> None:
    before = east.record.ports["east-1"]
    east.relocator.relocate("east-1")
    assert east.record.ports["east-1"] == before
    assert isinstance(east.record.nodes["east-1"], NodePlace)


def test_one_that_does_not_come_up_is_moved_all_the_same(east: Noted) -> None:
    """It is written down: the next start finds it there."""
    east.refuses = "ready east-1"
    with pytest.raises(FabricError, match="refused"):
        east.relocator.relocate("east-1")
    assert east.record.moves["east-1"].generation == 1
    assert "keep at 1" in east.calls
