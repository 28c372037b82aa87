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
