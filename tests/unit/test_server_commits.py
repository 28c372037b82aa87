"""What an instance says of its commits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from raylay.services.server.commits import Commits


def test_the_front_log_is_reported_where_its_state_changes() -> None:
    said: list[tuple[str, dict[str, Any]]] = []
    journal = SimpleNamespace(front_log_failure="")
    host: Any = SimpleNamespace(
        journal=journal, report=lambda event, **details: said.append((event, details))
    )
    unused: Any = None
    commits = Commits(host, unused, unused, 1)
    commits.look_at_front_log()
    assert said == [] and commits.status()["front_log_failure"] == ""
    journal.front_log_failure = "no space"
    for _ in range(3):
        commits.look_at_front_log()
    assert said == [("front_log_failed", {"text": "no space"})]
    assert commits.status()["front_log_failure"] == "no space"
    journal.front_log_failure = ""
    commits.look_at_front_log()
    assert said[1:] == [("front_log_recovered", {})]


def test_who_is_slowed_is_read_again_when_the_last_time_is_over() -> None:
    timers: list[tuple[float, Any]] = []

    def call_later(after_s: float, what: Any, *given: Any) -> Any:
        timer = SimpleNamespace(cancelled=False, call=lambda: what(*given))
        timer.cancel = lambda: setattr(timer, "cancelled", True)
        timers.append((after_s, timer))
        return timer

    said: list[tuple[str, str]] = []

    class Connection:
        def pause_reading(self, why: str) -> None:
            said.append(("pause", why))

        def resume_reading(self, why: str) -> None:
            said.append(("resume", why))

    host: Any = SimpleNamespace(loop=SimpleNamespace(call_later=call_later))
    unused: Any = None
    commits = Commits(host, unused, unused, 1)
    connection = Connection()
    commits.check_slowed(connection, is_link=True)
    waits = [0.0, 0.5, 2.0]
    commits.slowed_s = lambda *, is_link: waits.pop(0)
    for _ in range(3):
        commits.check_slowed(connection, is_link=True)
    # Frames that had been read already come after it.
    assert said == [("pause", "slowed")]
    assert [(after_s, timer.cancelled) for after_s, timer in timers] == [(0.5, True), (2.0, False)]
    timers[1][1].call()
    assert said == [("pause", "slowed"), ("resume", "slowed")]
