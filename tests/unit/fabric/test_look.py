"""services/fabric/look.py: the values for `raylay top`, over interfaces and by Ray."""

from __future__ import annotations

import socket
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from unit.fabric.test_by_interface import closed_port, running, serving

from raylay.services.errors import FabricError
from raylay.services.fabric import Fabric
from raylay.services.fabric.admin_topology import configured_topology
from raylay.services.fabric.by_interface import InterfaceFabric
from raylay.services.fabric.interface_client import InterfaceClient
from raylay.services.fabric.look import DOCUMENT_S, InterfaceLook, StatusLook, look_at
from raylay.services.fabric.plan import record_of

pytestmark = pytest.mark.covers("Utilities", "`raylay top` sees the same over")

VALUES = {"fabric": "f", "instances": []}


def ready(name: str, **values: Any) -> dict[str, Any]:
    return {
        "name": name, "group": "A", "state": "ready", "phase": "", "reason": "", "ready": True,
        "pid": 1, "sessions": 3, "pending": 2, "rates": {"published_per_s": 10.0}, **values,
    }  # fmt: skip


class ByRay:
    """Stands for a fabric by Ray: the statuses that its instances tell, look after look."""

    name = "f"

    def __init__(self, *looks: list[dict[str, Any]]) -> None:
        self.looks = list(looks)
        self.declared = Fabric("f").region("A", instances=2).settings()

    def status(self) -> dict[str, Any]:
        return {"fabric": "f", "instances": self.looks.pop(0)}


def look_of(fabric: Any, tmp_path: Path, times_us: list[int]) -> StatusLook:
    record = record_of(fabric.declared, tmp_path)
    topology = configured_topology(fabric.declared, record)
    now: Any = iter(times_us)
    return StatusLook(fabric, topology, lambda: 7_000_000_000, lambda: next(now))


def test_by_ray_the_values_are_those_of_an_interface(tmp_path: Path) -> None:
    link = {"connected": True, "caught_up": True, "sync": True, "configured_sync": True, "lag": 0,
            "unacked": 4, "age_ms": 80, "sent_records": 100, "peer": "A-2"}  # fmt: skip
    more = {**link, "sent_records": 300}
    fabric = ByRay(
        [ready("A-1", destinations={"A-2": link}), ready("A-2"), ready("stranger")],
        [ready("A-1", destinations={"A-2": more}), ready("A-2")],
    )
    look = look_of(fabric, tmp_path, [0, 2_000_000])
    look.document()
    found = look.document()
    assert found["fabric"] == "f" and found["time_us"] == 7_000_000_000
    first, second = found["instances"]
    assert (first["name"], first["state"], first["clients"]) == ("A-1", "ready", 3)
    assert (first["in_per_sec"], first["unacknowledged"]) == (10.0, 2)
    assert second["ack_ms_p99"] is None and second["disk_free_percent"] is None
    told = {each["id"]: each for each in found["links"]}
    (of_first,) = [each for each in told.values() if each["from"] == "A-1"]
    assert (of_first["state"], of_first["unacked"]) == ("sync", 4)
    assert of_first["rate_per_sec"] == 100.0, "from one look to the next"
    assert found["totals"]["answered"] == 2


def test_by_ray_one_that_does_not_answer_is_unknown_after_a_while(tmp_path: Path) -> None:
    dead = {"name": "A-2", "group": "A", "ready": False, "phase": "dead", "reason": "its node died"}
    never = {"name": "A-1", "group": "A", "ready": False, "phase": "stopped", "reason": ""}
    fabric = ByRay([never, ready("A-2")], [never, dead], [never, dead])
    look = look_of(fabric, tmp_path, [0, 3_000_000, 11_000_000])
    states = []
    for _ in range(3):
        found = {each["name"]: each for each in look.document()["instances"]}
        states.append((found["A-1"]["state"], found["A-2"]["state"], found["A-2"]["why_missing"]))
    assert states == [
        ("unknown", "ready", ""),
        ("unknown", "ready", "dead: its node died"),
        ("unknown", "unknown", "dead: its node died"),
    ]
    assert found["A-1"]["why_missing"] == "stopped"


def test_the_first_interface_that_answers_is_asked_first_from_then_on() -> None:
    with serving() as torn, serving(**{"/raylay/fabric.json": VALUES}) as whole:
        clients = {
            "gone": InterfaceClient(f"127.0.0.1:{closed_port()}"),
            "torn": InterfaceClient(torn.address),
            "whole": InterfaceClient(whole.address),
        }
        look = InterfaceLook(InterfaceFabric("f", clients))
        assert look.document() == look.document() == VALUES
        assert len(torn.asked) <= 1 and len(whole.asked) == 2
        assert [each["name"] for each in look.statuses()] == ["gone", "torn", "whole"]
        whole.answers["/raylay/fabric.json"] = (200, [])
        with pytest.raises(FabricError, match="does not answer"):
            look.document()
    with pytest.raises(FabricError, match="no administrator's interface tells"):
        InterfaceLook(InterfaceFabric("f", {})).document()


def test_one_that_is_silent_does_not_keep_the_others_from_being_asked() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        serving(**{"/raylay/fabric.json": VALUES}) as whole,
    ):
        clients = {
            "silent": InterfaceClient(f"127.0.0.1:{silent.getsockname()[1]}"),
            "whole": InterfaceClient(whole.address),
        }
        began_s = time.monotonic()
        assert InterfaceLook(InterfaceFabric("f", clients)).document() == VALUES
        assert time.monotonic() - began_s < DOCUMENT_S, "the silent one was not waited for"


def test_the_way_is_an_interface_where_one_listens_and_else_ray(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fabric = ByRay([ready("A-1"), ready("A-2")])
    monkeypatch.setattr(Fabric, "attach", lambda name: nullcontext(fabric))
    with serving(**{"/raylay/fabric.json": VALUES}) as at:
        with look_at(running(tmp_path / "f", at.port, at.address)) as look:
            assert isinstance(look, InterfaceLook) and look.document() == VALUES
        with look_at(running(tmp_path / "g", None, at.address)) as look:
            assert isinstance(look, StatusLook)
            assert look.document()["totals"]["answered"] == 2
        at.answers["/amps/instance/name.json"] = (200, {"amps": {"instance": {"name": "A-1"}}})
        with look_at(None, [at.address]) as look:
            assert isinstance(look, InterfaceLook) and look.document() == VALUES
