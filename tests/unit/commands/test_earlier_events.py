"""services/commands/shared/earlier_events.py: the kept events of instances of this host and of
others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from unit.telemetry.test_kept_log import line, write

from raylay.services.commands.events import ToldEvents
from raylay.services.commands.shared.earlier_events import EarlierEvents
from raylay.services.commands.shared.kept_logs import FabricPlace
from raylay.services.errors import FabricError
from raylay.services.fabric import by_interface
from raylay.services.fabric.by_interface import InterfaceFabric
from raylay.services.fabric.records.registry import RegistryEntry
from raylay.services.telemetry.kept_log import kept_log_directory, parsed_line

pytestmark = pytest.mark.covers(
    "Logging", "events of an earlier life of an instance of another host"
)
HERE, ELSEWHERE = "127.0.0.1", "192.0.2.1"
"""An address of this host, and one of no host (RFC 5737)."""
ENTRY = RegistryEntry("flights", "", "", 0)
Event = dict[str, Any]


class InterfaceStub:
    """Serves a page of log lines, or refuses."""

    def __init__(self, *lines: bytes, error: str = "", listening: bool = True) -> None:
        self._lines = [parsed_line(each) for each in lines]
        self._error = error
        self._listening = listening
        self.asked: list[str] = []

    def listens(self) -> bool:
        return self._listening

    def get(self, path: str, timeout_s: float) -> Any:
        self.asked.append(path)
        if self._error:
            raise FabricError(self._error)
        return {"lines": self._lines, "damaged": 0, "more": False}


def fabric_of(interfaces: dict[str, InterfaceStub]) -> InterfaceFabric:
    return InterfaceFabric("flights", interfaces)  # type: ignore[arg-type]


def earlier_events(
    place: FabricPlace | None, fabric: InterfaceFabric, told: list[str], *instances: str
) -> EarlierEvents:
    found = EarlierEvents(place, instances, 1_000_000, told.append)
    found.find_interfaces(fabric)
    return found


def shown(earlier: EarlierEvents, *live: Event) -> list[tuple[str, str]]:
    """Returns the instance and the name of each event of the first round."""
    events: list[Event] = []
    told = ToldEvents(earlier, events.append)
    for event in live:
        told.take(event)
    told.round_is_over()
    return [(event["instance"], event["event"]) for event in events]


def place_of(directory: Path, **hosts: str) -> FabricPlace:
    return FabricPlace("flights", [directory], hosts, ENTRY)


def test_events_of_another_host_are_merged_with_those_of_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(kept_log_directory(tmp_path, "A"), "A-00000.log", line(2, "stopped", process="A"))
    afar = InterfaceStub(
        line(1, "started", process="B"),
        line(2, "link_failed", process="B.A"),
        line(3, "downgraded", process="B"),
        line(5, "upgraded", process="B"),
    )
    monkeypatch.setattr(by_interface, "known_interfaces", lambda _: (None, {"B": afar}))
    told: list[str] = []
    earlier = earlier_events(place_of(tmp_path, A=HERE, B=ELSEWHERE), fabric_of({}), told)
    live = {"instance": "B", "event": "upgraded", "time_us": 5_000_001}
    assert shown(earlier, live) == [
        ("B", "started"),
        ("A", "stopped"),
        ("B", "downgraded"),
        ("B", "upgraded"),
    ]
    assert afar.asked == ["/raylay/log.json?since_us=1000000&process=B"] and not told


def test_who_has_no_interface_is_told_with_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interfaces = {"C": InterfaceStub(listening=False)}
    monkeypatch.setattr(by_interface, "known_interfaces", lambda _: (None, interfaces))
    place = place_of(tmp_path, A=HERE, B=ELSEWHERE, C=ELSEWHERE)
    told: list[str] = []
    assert shown(earlier_events(place, fabric_of({}), told)) == []
    assert len(told) == 1 and "earlier events of B (192.0.2.1), C (192.0.2.1) are not" in told[0]
    told.clear()
    assert shown(earlier_events(place, fabric_of({}), told, "A")) == [] and not told


def test_what_an_interface_refuses_is_told_and_the_others_are_shown(tmp_path: Path) -> None:
    fabric = fabric_of(
        {
            "A": InterfaceStub(error="amy may not read /amps/instance"),
            "B": InterfaceStub(line(2, "ready", process="B")),
        }
    )
    told: list[str] = []
    assert shown(earlier_events(None, fabric, told)) == [("B", "ready")]
    assert told == ["earlier events of A are not shown: amy may not read /amps/instance"]
