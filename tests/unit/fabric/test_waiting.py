"""Who waits for instances looks soon, and then not more often than it helps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from raylay.services.fabric import Fabric, instances


class Clock:
    """Time that passes where somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


class Slow(Fabric):
    """Two instances that are ready and caught up after some seconds."""

    def __init__(self, clock: Clock, after_s: float) -> None:
        super().__init__("slow")
        self.region("here", instances=2)
        self._settings = self.settings()
        self.clock = clock
        self.after_s = after_s
        self.looks_s: list[float] = []

    def _known(self) -> Any:
        return self._settings, None

    def status(self) -> dict[str, Any]:
        return {"instances": self._statuses(["here-1", "here-2"])}

    def _statuses(self, names: Iterable[str], timeout_s: float = 0) -> list[dict[str, Any]]:
        self.looks_s.append(self.clock.now_s)
        there = self.clock.now_s >= self.after_s
        destinations = {"other": {"caught_up": there}}
        return [{"name": name, "ready": there, "destinations": destinations} for name in names]


@pytest.mark.parametrize("wait", [Fabric.wait_ready, Fabric.wait_connected])
def test_a_long_wait_is_not_many_looks(wait: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(instances, "time", clock)
    fabric = Slow(clock, 15.0)
    told: list[str] = []
    fabric._tell = told.append
    wait(fabric)
    assert len(fabric.looks_s) <= 75, "twenty a second were 300"
    assert fabric.looks_s[1] <= 0.06
    assert clock.now_s <= 15.0 + instances.LOOK_S_MAX, "it is seen soon when it is there"
    assert told in (["2 of 2 instances are ready"], ["waiting for 2 links to catch up"])
