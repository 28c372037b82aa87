"""A connection that is not read for several reasons."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from raylay.services.server.read_backpressure import ReadBackpressure


def test_it_is_read_again_when_there_is_no_reason_left() -> None:
    said: list[str] = []
    one: Any = ReadBackpressure.__new__(ReadBackpressure)
    one.transport = SimpleNamespace(
        pause_reading=lambda: said.append("pause"), resume_reading=lambda: said.append("resume")
    )
    one.loop, one.is_open, one.received_at_s = SimpleNamespace(time=lambda: 7.0), True, 1.0
    assert one.reading
    one.resume_reading("a")
    one.pause_reading("a")
    one.pause_reading("b")
    one.resume_reading("a")
    assert said == ["pause"] and not one.reading and one.received_at_s == 1.0
    one.resume_reading("b")
    # What was not read meanwhile is no silence.
    assert said == ["pause", "resume"] and one.reading and one.received_at_s == 7.0
    one.is_open = False
    one.pause_reading("a")
    one.resume_reading("a")
    assert said == ["pause", "resume"]
