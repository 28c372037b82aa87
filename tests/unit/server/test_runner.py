"""An instance on a thread of its own: it cannot raise, and says why it does not serve."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from raylay.services.config.instance import InstanceConfig, LinkConfig
from raylay.services.errors import FabricError
from raylay.services.server.runner import InstanceThread
from raylay.services.telemetry.logs import LogOptions

DEADLINE_S = 20.0


def no_link(config: LinkConfig) -> Any:
    raise AssertionError("there is no destination")


def status_when(thread: InstanceThread, state: str) -> dict[str, Any]:
    """The status once it is in that state. A thread has no event for it: its status is its word."""
    until_s = time.monotonic() + DEADLINE_S
    while (status := thread.status())["state"] != state:
        assert time.monotonic() < until_s, status
        time.sleep(0.01)
    return status


def test_it_tries_until_it_can_start_and_stops(tmp_path: Path) -> None:
    thread = InstanceThread(str(tmp_path), "solo", no_link)
    thread.start()
    status = status_when(thread, "failed")
    assert "instance.json" in status["reason"] and not status["ready"]
    with pytest.raises(FabricError, match=r"instance\.json"):
        thread.events()
    InstanceConfig("solo", "group", log=LogOptions(target="none")).save(tmp_path)
    status = status_when(thread, "ready")
    assert status["ready"] and status["reason"] == "" and status["destinations"] == {}
    assert [event["event"] for event in thread.events()] == ["started"]
    assert thread.events(after=1) == []
    with pytest.raises(Exception, match="no Destination 'x'"):
        thread.control("downgrade", {"destination": "x"})
    assert thread.control("compress", {"segments": "all"}) == []
    assert thread.stop()
    again = InstanceThread(str(tmp_path), "solo", no_link)
    again.start()
    assert status_when(again, "ready")["incarnation"] == status["incarnation"]
    assert again.stop()


def test_two_on_one_directory(tmp_path: Path) -> None:
    InstanceConfig("solo", "group", log=LogOptions(target="none")).save(tmp_path)
    first = InstanceThread(str(tmp_path), "solo", no_link)
    first.start()
    status_when(first, "ready")
    second = InstanceThread(str(tmp_path), "solo", no_link)
    second.start()
    assert "another process" in status_when(second, "failed")["reason"]
    assert first.stop()
    # What held the directory is gone: the second one gets it.
    status_when(second, "ready")
    assert second.stop()
