"""Who waits for instances looks soon, and then not more often than it helps."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from raylay.services.configuration.builder import FabricBuilder
from raylay.services.errors import FabricError
from raylay.services.fabric import instances
from raylay.services.fabric.cluster.ray_access import HeadSilent
from raylay.services.fabric.control import ControlClient
from raylay.services.fabric.handle import FabricHandle
from raylay.services.fabric.instances import InstanceHandles
from raylay.services.fabric.plan import FabricRecord, record_of
from raylay.services.fabric.records.orphans import STATE_FILE


class Clock:
    """Time that passes where somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


class Slow(InstanceHandles):
    """Two instances that are ready and caught up after some seconds."""

    def __init__(self, handle: FabricHandle, clock: Clock, after_s: float) -> None:
        super().__init__(handle, ControlClient(handle))
        self.clock = clock
        self.after_s = after_s
        self.looks_s: list[float] = []

    def status(self) -> dict[str, Any]:
        return {"instances": self.statuses(["here-1", "here-2"])}

    def statuses(self, names: Iterable[str], timeout_s: float = 0) -> list[dict[str, Any]]:
        self.looks_s.append(self.clock.now_s)
        there = self.clock.now_s >= self.after_s
        destinations = {"other": {"caught_up": there}}
        return [{"name": name, "ready": there, "destinations": destinations} for name in names]


def slow_handle(place: Path) -> FabricHandle:
    """Returns the handle of a fabric of two instances."""
    declared = FabricBuilder("slow").region("here", instances=2).settings()
    handle = FabricHandle("slow", lambda: declared)
    handle.settings, handle.record = declared, record_of(declared, place)
    return handle


@pytest.mark.parametrize("wait", [InstanceHandles.wait_ready, InstanceHandles.wait_connected])
def test_a_long_wait_is_not_many_looks(
    wait: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(instances, "time", clock)
    handle = slow_handle(tmp_path)
    told: list[str] = []
    slow = Slow(handle, clock, 15.0)
    wait(slow, progress=told.append)
    assert len(slow.looks_s) <= 75, "twenty a second were 300"
    assert slow.looks_s[1] <= 0.06
    assert clock.now_s <= 15.0 + instances.LOOK_S_MAX, "it is seen soon when it is there"
    assert told in (["2 of 2 instances are ready"], ["waiting for 2 links to catch up"])


def test_a_wait_for_a_process_ends_at_its_limit_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(instances, "time", clock)
    handle = slow_handle(tmp_path)

    class Silent(Slow):
        def statuses(self, names: Iterable[str], timeout_s: float = 0) -> list[dict[str, Any]]:
            begun = {"state": "recovering"} if self.clock.now_s >= self.after_s else {}
            reason = "Ray has not started its process"
            return [{"name": name, "ready": False, "reason": reason, **begun} for name in names]

    silent = Silent(handle, clock, 15.0)
    with pytest.raises(FabricError, match="here-2 does not run after 9 s: Ray has not started"):
        silent.wait_running("here-2", 9.0)
    assert clock.now_s <= 9.0 + instances.LOOK_S_MAX
    silent.wait_running("here-2", 9.0)
    assert clock.now_s >= 15.0, "it need not be ready"


def test_an_instance_is_unused_until_its_data_directory_has_a_state(tmp_path: Path) -> None:
    handle = slow_handle(tmp_path)
    found = InstanceHandles(handle, ControlClient(handle))
    assert not found.is_unused("here-2"), "it was there when the fabric started"
    handle.record.starting = ["here-2"]
    assert found.is_unused("here-2")
    (tmp_path / "here-2").mkdir()
    (tmp_path / "here-2" / "instance.json").write_text("{}")
    assert found.is_unused("here-2")
    (tmp_path / "here-2" / STATE_FILE).write_bytes(b"")
    assert not found.is_unused("here-2")


def test_one_whose_new_configuration_is_written_may_begin_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instances, "head_address", lambda: "127.0.0.1:1")
    declared = FabricBuilder("slow").region("here", instances=2).settings()
    kept: list[dict[str, str]] = []

    class Handle(FabricHandle):
        def keep(self, record: FabricRecord) -> None:
            # Before the configuration is on the disk: this process may end in between.
            assert not list(tmp_path.glob("here-*/*"))
            kept.append(dict(record.restarting))

    handle = Handle("slow", lambda: declared)
    handle.settings, handle.record = declared, record_of(declared, tmp_path)
    handle.record.restarting = {"here-1": "abc", "here-2": "abc"}
    handles = InstanceHandles(handle, ControlClient(handle))
    handles.write_config(declared.instance("here-1"))
    assert kept == [{"here-1": "", "here-2": "abc"}]
    assert list(tmp_path.glob("here-1/*"))


def test_a_silent_head_is_asked_once_for_all_instances(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared = FabricBuilder("slow").region("here", instances=3).settings()
    handle = FabricHandle("slow", lambda: declared)
    handle.settings, handle.record = declared, record_of(declared, tmp_path)
    names = [each.name for each in declared.instances]
    actor: Any = MagicMock()
    handle.actors = dict.fromkeys(names, actor)
    ray = MagicMock()
    ray.exceptions.RayError = TimeoutError
    ray.get.side_effect = TimeoutError
    monkeypatch.setattr(instances, "ray_module", lambda: ray)
    asked: list[Any] = []

    def silent(asked_of: Any) -> Any:
        asked.append(asked_of)
        raise HeadSilent("nothing within 5 s")

    monkeypatch.setattr(instances, "actor_state", silent)
    found = InstanceHandles(handle, ControlClient(handle)).statuses(names)
    assert [(each["name"], each["phase"], each["reason"]) for each in found] == [
        (name, "unknown", "nothing within 5 s") for name in names
    ]
    assert asked == [actor]
