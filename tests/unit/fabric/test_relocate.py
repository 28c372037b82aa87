"""services/fabric/relocate.py: in which order an instance is moved, and what is written down of it.
The instances are none: each call is noted."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from unit.fabric.test_relocation import NODES, PLACES, linked, settings, status

from raylay.services.errors import FabricError
from raylay.services.fabric.nodes import ClusterNode, NodePlace
from raylay.services.fabric.plan import data_directory, record_of, replication_address
from raylay.services.fabric.record import OrphanedDirectory
from raylay.services.fabric.relocate import Relocate
from raylay.services.fabric.relocation import Relocation

FREE = NODES[1:]
"""East-1's host is lost; east-2 is ready."""


class Noted(Relocate):
    """A fabric that notes what is done to its instances, and what its record says then."""

    def __init__(self, directory: Path) -> None:
        self._settings: Any = settings()
        self._record: Any = record_of(self._settings, directory)
        self._record.nodes = dict(PLACES)
        self.statuses = [status("east-1", ready=False), status("east-2")]
        self.calls: list[str] = []
        self.refuses = ""

    @property
    def declared(self) -> Any:
        return self._settings

    def _note(self, call: str) -> None:
        moves = self._record.moves
        known = moves["east-1"].generation if "east-1" in moves else 0
        self.calls.append(f"{call} at {known}")
        if self.refuses == call:
            raise FabricError(f"{call}: refused")

    def _refresh(self) -> None:
        pass

    def _known(self) -> Any:
        return self._settings, self._record

    def _keep(self, record: Any) -> None:
        self._note("keep")

    def _statuses(self, names: Any, timeout_s: float = 0) -> Any:
        return self.statuses

    def authorize(self, names: Any, call: str, **_: Any) -> None:
        self._note(f"authorize {call} of {' '.join(names)}")

    def _end_for_good(self, name: str, timeout_s: float) -> None:
        self._note(f"end {name}")

    def _tell_moved(self, done: Relocation) -> None:
        self._note("tell")
        done.told.append("east-2")

    def _launch(self, instance: Any) -> None:
        self._note(f"launch {instance.name} on {instance.host}")

    def wait_ready(self, name: str | None = None, timeout_s: float = 0) -> None:
        self._note(f"ready {name}")

    def _write_config(self, instance: Any) -> None:
        self._note(f"config {instance.name}")


@pytest.fixture
def east(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Noted:
    living(monkeypatch, FREE)
    return Noted(tmp_path)


def living(monkeypatch: pytest.MonkeyPatch, nodes: list[ClusterNode]) -> None:
    monkeypatch.setattr("raylay.services.fabric.relocate.living_nodes", lambda: nodes)


def test_it_is_written_down_ended_told_and_only_then_started(east: Noted) -> None:
    """Of two who move it at once one is refused before anything is ended; peers are told before it
    dials them; and who was told knows its new address behind a restart."""
    before = replication_address(east._record, east._settings.instance("east-1"))
    told: list[str] = []
    done = east.relocate("east-1", moved=lambda each: told.append(east.calls[-1]))
    assert east.calls == [
        "authorize place of east-1 east-2 at 0",
        *("keep at 1", "end east-1 at 1", "tell at 1"),
        *("launch east-1 on 10.0.0.3 at 1", "ready east-1 at 1", "config east-2 at 1"),
    ]
    assert told == ["tell at 1"], "what was done is said before it is started"
    assert (done.generation, done.place.address) == (1, "10.0.0.3")
    (left,) = east._record.left_over
    assert (left.name, left.generation, left.address) == ("east-1", 0, before)
    assert left.host == "10.0.0.1" and left.directory != str(
        data_directory(east._record, east._settings.instance("east-1"))
    )
    assert east._record.moves["east-1"].filled_by == ["east-2"]
    assert east._record.nodes["east-2"] == PLACES["east-2"], "nobody else is moved"


@pytest.mark.parametrize("why", ["alive", "nobody to fill it", "just moved", "not allowed", "kept"])
def test_who_is_refused_is_where_it_was(
    east: Noted, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    if why == "alive":
        east.statuses[1] = status("east-2", destinations=linked("east-1", True))
    elif why == "nobody to fill it":
        east.statuses[1]["ready"] = False
    elif why == "just moved":
        east.relocate("east-1")
        east.statuses[0]["ready"] = False
    elif why == "not allowed":
        east.refuses = "authorize place of east-1 east-2"
    else:
        east.refuses = "keep"
    east.calls.clear()
    moves = dict(east._record.moves)
    with pytest.raises(FabricError):
        east.relocate("east-1")
    assert not any(call.startswith(("end", "tell", "launch")) for call in east.calls)
    if why != "kept":
        assert east._record.moves == moves


def test_that_another_one_was_just_moved_is_no_reason_to_wait(east: Noted) -> None:
    """A host is lost with all that ran there: they are moved one behind the other."""
    now_us = time.time_ns() // 1000
    east._record.left_over.append(
        OrphanedDirectory("west-1", 0, "10.0.0.1", {}, "/data", "", now_us)
    )
    assert east.relocate("east-1").generation == 1


def test_by_force_one_that_is_alive_is_ended_first(east: Noted) -> None:
    east.statuses[1] = status("east-2", destinations=linked("east-1", True))
    east.relocate("east-1", force=True)
    steps = [call.split(" at ")[0] for call in east.calls]
    assert steps.index("end east-1") < steps.index("launch east-1 on 10.0.0.3")


def test_on_one_machine_it_leaves_its_ports_to_what_it_was(
    east: Noted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That may hold them for as long as it does not know that it was moved."""
    before = east._record.ports["east-1"]
    living(monkeypatch, [ClusterNode("10.0.0.1", {"region": "east", "host": "d"}), *FREE])
    east.relocate("east-1", {"host": "d"})
    assert east._record.ports["east-1"] != before
    kept = east._record.ports["east-2"]
    east._record.left_over.clear()
    east.relocate("east-1", {"host": "c"}, force=True)
    assert east._record.ports["east-2"] == kept


def test_elsewhere_it_keeps_its_ports(east: Noted) -> None:
    before = east._record.ports["east-1"]
    east.relocate("east-1")
    assert east._record.ports["east-1"] == before
    assert isinstance(east._record.nodes["east-1"], NodePlace)


def test_one_that_does_not_come_up_is_moved_all_the_same(east: Noted) -> None:
    """It is written down: the next start finds it there."""
    east.refuses = "ready east-1"
    with pytest.raises(FabricError, match="refused"):
        east.relocate("east-1")
    assert east._record.moves["east-1"].generation == 1
    assert "keep at 1" in east.calls
