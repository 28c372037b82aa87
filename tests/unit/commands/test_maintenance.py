"""`raylay stop`, `raylay start` and what `raylay apply` says of its changes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from raylay.services.cli import app
from raylay.services.commands import maintenance
from raylay.services.commands.lifecycle import change_lines
from raylay.services.commands.maintenance import stop_lines
from raylay.services.fabric import Fabric
from raylay.services.fabric.maintenance import InstanceStop
from raylay.services.fabric.plan import FabricChanges
from raylay.services.fabric.records.registry import RegistryEntry

DONE = InstanceStop("near-2", "/data/near-2", downgraded=(("near-1", "near-2"),))


class Attached:
    """A fabric whose instances stop and start, or are interrupted."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error
        self.asked: list[Any] = []
        self.maintenance = self

    def __enter__(self) -> Attached:
        return self

    def __exit__(self, *_: object) -> None: ...

    def stop(self, name: str, *, force: bool, timeout_s: float, progress: Any) -> InstanceStop:
        self.asked.append((name, force, timeout_s))
        progress(f"closing {name} to clients")
        if self.error is not None:
            raise self.error
        return DONE

    def start(self, name: str, timeout_s: float, *, progress: Any) -> list[str]:
        self.asked.append((name, timeout_s))
        if self.error is not None:
            raise self.error
        return ["near-1"]


def ran(monkeypatch: pytest.MonkeyPatch, attached: Attached, *arguments: str) -> Any:
    monkeypatch.setattr(maintenance, "running", lambda name: RegistryEntry(name, "", ""))
    monkeypatch.setattr(Fabric, "attach", lambda name: attached)
    return CliRunner().invoke(app, arguments)


def test_a_stop_says_where_the_data_is_and_how_it_is_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attached = Attached()
    found = ran(monkeypatch, attached, "stop", "near-2", "--timeout", "7")
    assert found.exit_code == 0 and attached.asked == [("near-2", False, 7.0)]
    assert found.stdout.splitlines() == [
        "acks do not wait for it meanwhile: near-1 to near-2",
        "near-2 is stopped; its data is in /data/near-2; `raylay start near-2` starts it",
    ]
    assert "closing near-2 to clients" in found.stderr
    found = ran(monkeypatch, attached, "stop", "near-2", "--force", "--json")
    told = json.loads(found.stdout)
    assert told["directory"] == "/data/near-2" and told["downgraded"] == [["near-1", "near-2"]]
    assert attached.asked[-1][1], "forced"


def test_what_a_forced_stop_left_and_whom_it_did_not_reach_is_said() -> None:
    forced = InstanceStop("near-2", "/d", lacking=("far lacks 3",), untold=("near-1",))
    first, second, _ = stop_lines(forced)
    assert first == "near-2: far lacks 3" and second.startswith("near-1 could not be told")
    (again,) = stop_lines(InstanceStop("near-2", "/d", was_stopped=True))
    assert again.startswith("near-2 is stopped already")


def test_a_start_says_that_it_has_caught_up(monkeypatch: pytest.MonkeyPatch) -> None:
    found = ran(monkeypatch, Attached(), "start", "near-2")
    assert found.exit_code == 0
    told, last = found.stdout.splitlines()
    assert "`raylay restart near-1`" in told and last == "near-2: started, caught up"
    found = ran(monkeypatch, Attached(), "start", "near-2", "--json")
    assert json.loads(found.stdout)["untold"] == ["near-1"]


@pytest.mark.parametrize("command", ["stop", "start"])
def test_an_interrupt_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    found = ran(monkeypatch, Attached(KeyboardInterrupt()), command, "near-2")
    assert found.exit_code == 130 and f"`raylay {command} near-2`" in found.stderr


def test_an_apply_says_what_it_did_or_would_do() -> None:
    found = FabricChanges(("a",), (), ("near-2",), ("/data/near-2",))
    assert change_lines(found, dry_run=False) == [
        "started: a",
        "restarted: none",
        "removed: near-2; its data is still in /data/near-2",
    ]
    assert change_lines(found, dry_run=True) == [
        "would be started: a",
        "would be restarted: none",
        "would be removed: near-2; its data would stay in /data/near-2",
    ]
