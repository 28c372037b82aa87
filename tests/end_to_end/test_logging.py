"""The logs of an instance and of the process of its actions: rotated by an action, and on a disk
that takes nothing."""

from __future__ import annotations

import asyncio
import gzip
import shutil
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from end_to_end.test_actions import config
from end_to_end.test_actions import run as run_instance

from raylay.services.actions.model import ActionDefinition, ActionModule
from raylay.services.client import Client
from raylay.services.server.instance_server import InstanceServer
from raylay.services.telemetry import bounded_files, log_targets, logs
from raylay.services.telemetry.logs import LogOptions, LogTarget

DEADLINE_S = 120.0


@pytest.fixture(autouse=True)
def restore() -> Iterator[None]:
    yield
    logs.configure("", LogOptions(level="warning"))


def run(
    directory: Path,
    log: LogOptions,
    work: Callable[[InstanceServer], Awaitable[None]],
    *actions: ActionDefinition,
) -> None:
    """Runs an instance with these logs while some work is done."""
    run_instance(directory, config(*actions, log=log), work)


async def until(condition: Callable[[], Any]) -> None:
    while not condition():
        await asyncio.sleep(0.02)


@pytest.mark.covers("Logging", "rotation by an action")
def test_an_action_rotates_the_logs_of_the_instance_and_its_own(tmp_path: Path) -> None:
    place = tmp_path / "logs"
    log = LogOptions(
        target="file",
        directory=str(place),
        file_name="a-%n.log",
        also=(LogTarget(target="gzip", directory=str(place), file_name="z-%n.log"),),
    )
    rotate = ActionDefinition(
        "rotate",
        (ActionModule("on", "admin", (("Path", "go"),)),),
        (
            ActionModule("do", "echo-message", (("Message", "before"),)),
            ActionModule("do", "rotate-logs", ()),
            ActionModule("do", "echo-message", (("Message", "behind"),)),
        ),
    )

    async def work(server: InstanceServer) -> None:
        server.runtime.occurrences.tell("admin", {"AMPS_ADMIN_PATH": "go"})

        def told() -> dict[str, Any]:
            found: dict[str, Any] = server.status()["actions"]["actions"].get("rotate", {})
            return found

        await until(lambda: told().get("runs") == 1)
        assert told()["failures"] == 0, told()["last_error"]

    run(tmp_path / "data", log, work, rotate)
    logs.close()
    first, second = (place / f"a-0000{number}.log" for number in range(2))
    assert " started " in first.read_text() and "before" in first.read_text()
    assert "behind" in second.read_text() and "before" not in second.read_text()
    # The process beside the instance has files of its own, rotated by the same step.
    own = sorted(place.glob("a-*.north*.log"))
    assert ["before" in path.read_text() for path in own] == [True, False]
    assert ["behind" in path.read_text() for path in own] == [False, True]
    zipped = gzip.decompress((place / "z-00000.log.gz").read_bytes()).decode()
    assert zipped == first.read_text()


@pytest.mark.covers("Logging", "a full disk", note="of an instance that goes on")
def test_messages_are_not_affected_by_a_log_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_files, "LOOK_EVERY_S", 0.0)
    monkeypatch.setattr(log_targets, "LOOK_EVERY_S", 0.0)
    place = tmp_path / "logs"

    async def visit(server: InstanceServer, name: str) -> None:
        async with Client(name, [server.runtime.client_address]) as client:
            for _ in range(20):
                await client.publish("orders", b"{}")
            await client.flush()

    async def work(server: InstanceServer) -> None:
        shutil.rmtree(place)
        place.write_text("in the way")
        await visit(server, "one")
        # With its last event the instance has logged all about it.
        await until(lambda: any(each["event"] == "client_left" for each in server.events()))
        lost = logs.lost_lines()
        assert lost > 0 and logs.status()[0]["failure"]
        assert server.parts.status.snapshot()["log_lines_lost"] == lost
        place.unlink()
        await visit(server, "two")
        (text,) = [path.read_text() for path in place.iterdir()]
        assert " log_lines_lost " in text and "client=two" in text and "client=one" not in text

    run(tmp_path / "data", LogOptions(target="file", directory=str(place)), work)
