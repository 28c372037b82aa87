"""`Fabric.rolling_restart`: who is down is started, who runs waits for every link."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from raylay.services.configuration.builder import FabricBuilder
from raylay.services.errors import FabricError
from raylay.services.fabric.rollout import Progress, Rollout


class Rolling:
    """A fabric's handle, control and instances in one, without Ray: who is ready, whose host is
    away, and what is done with them in which order. Links catch up where both sides are ready."""

    def __init__(self, down: Collection[str] = (), away: Collection[str] = ()) -> None:
        self.declared = FabricBuilder("rolling").region("east", instances=3).settings()
        self.ready = {each.name for each in self.declared.instances} - set(down)
        self.away = away
        self.stopped: list[str] = []
        self.log: list[str] = []
        parts: Any = self
        self.rollout = Rollout(parts, parts, parts, parts)

    def known(self) -> Any:
        return self.declared, SimpleNamespace(stopped=self.stopped)

    def authorize(self, names: Iterable[str], call: str) -> None: ...

    def caller_for(self, name: str) -> None: ...

    def statuses(self, names: Iterable[str]) -> list[dict[str, Any]]:
        return [{"name": name, "ready": name in self.ready} for name in names]

    def host_away(self, name: str) -> str:
        return "its host h is away" if name in self.away else ""

    def restart(self, name: str, timeout_s: float, **_: Any) -> None:
        self.ready.add(name)
        self.log.append(f"restart {name}")

    def wait_connected(
        self, timeout_s: float = 0, *, only: Collection[tuple[str, str]] | None = None
    ) -> None:
        links = {(each.name, to.name): {each.name, *to.to} for each, to in self.declared.links()}
        for link in links if only is None else only:
            if not links[link] <= self.ready:
                raise FabricError(f"{link} has not caught up")
        self.log.append("wait")


def roll(fabric: Rolling, *names: str) -> list[str]:
    progress = Progress(on_restart=lambda name: fabric.log.append(f"done {name}"))
    fabric.rollout.restart(names, progress=progress)
    assert progress.left == []
    return fabric.log


def test_all_are_restarted_each_when_every_link_has_caught_up() -> None:
    steps = [[f"restart {name}", "wait", f"done {name}"] for name in ("east-1", "east-2", "east-3")]
    assert roll(Rolling()) == ["wait", *(step for three in steps for step in three)]


def test_nobody_is_restarted_while_another_one_is_down() -> None:
    fabric = Rolling(down=["east-3"])
    for names in ((), ("east-1",)):
        with pytest.raises(FabricError, match="has not caught up"):
            roll(fabric, *names)
    assert fabric.log == []


def test_one_that_is_named_and_down_is_started_whoever_else_is_down() -> None:
    fabric = Rolling(down=["east-2", "east-3"])
    assert roll(fabric, "east-2") == ["restart east-2", "wait", "done east-2"]


def test_who_is_down_goes_first_so_that_the_others_may_follow() -> None:
    found = roll(Rolling(down=["east-2"]), "east-1", "east-2")
    assert found == [
        *("restart east-2", "wait", "done east-2"),
        "wait",
        *("restart east-1", "wait", "done east-1"),
    ]


def test_one_whose_host_is_away_is_not_waited_for() -> None:
    fabric = Rolling(down=["east-2"], away=["east-2"])
    with pytest.raises(FabricError, match="east-2 is not restarted: its host h is away: start"):
        roll(fabric, "east-2")
    assert fabric.log == []


def test_one_that_is_stopped_is_passed_over_and_not_started_by_name() -> None:
    fabric = Rolling()
    fabric.stopped = ["east-2"]
    with pytest.raises(FabricError, match="`raylay start east-2`"):
        roll(fabric, "east-1", "east-2")
    assert fabric.log == []
    found = [step for step in roll(fabric) if step.startswith("restart")]
    assert found == ["restart east-1", "restart east-3"]
