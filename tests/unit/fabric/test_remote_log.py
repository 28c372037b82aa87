"""services/fabric/remote_log.py: the log of another host is told once, page by page."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs

import pytest

from raylay.services.errors import FabricError
from raylay.services.fabric.remote_log import RemoteLog

pytestmark = pytest.mark.covers("Logging", "the kept log of an instance of another host")


class Interface:
    """Answers with at most three lines."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self.asked: list[str] = []

    def add(self, time_us: int, name: str) -> None:
        self.lines.append({"time_us": time_us, "event": name})

    def __call__(self, query: str) -> Any:
        self.asked.append(query)
        given = {name: values[0] for name, values in parse_qs(query).items()}
        found = [each for each in self.lines if each["time_us"] >= int(given["since_us"])]
        found.sort(key=lambda line: line["time_us"])
        if "latest" in given:
            limit = int(given["limit"])
            return {"lines": found[-limit:], "damaged": 0, "more": False}
        return {"lines": found[:3], "damaged": 1, "more": len(found) > 3}


def names(log: RemoteLog) -> list[str]:
    return [line["event"] for line in log.look()]


def test_pages_are_read_to_the_end_and_no_line_twice() -> None:
    interface = Interface()
    for number in range(8):
        interface.add(10_000_000 + number, f"e{number}")
    log = RemoteLog(interface)
    assert names(log) == [f"e{number}" for number in range(8)]
    assert log.damaged == 1
    assert names(log) == []
    interface.add(20_000_000, "later")
    assert names(log) == ["later"]


def test_an_earlier_line_that_comes_later_is_told() -> None:
    interface = Interface()
    interface.add(10_000_000, "first")
    log = RemoteLog(interface)
    assert names(log) == ["first"]
    interface.add(9_500_000, "of a process beside it")
    assert names(log) == ["of a process beside it"]


def test_a_time_a_level_and_the_last_lines_are_asked_for() -> None:
    interface = Interface()
    for number in range(5):
        interface.add(10_000_000 + number, f"e{number}")
    log = RemoteLog(interface, since_us=10_000_001, level="warning", count=2)
    assert names(log) == ["e3", "e4"]
    assert interface.asked == ["since_us=10000001&latest=1&limit=2&level=warning"]
    interface.add(10_000_009, "new")
    assert names(log)[-1] == "new"


@pytest.mark.parametrize("answer", [None, [], {"lines": 3}])
def test_what_is_no_log_is_said(answer: Any) -> None:
    with pytest.raises(FabricError, match="tells no log"):
        names(RemoteLog(lambda _: answer))
