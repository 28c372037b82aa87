"""What an instance says of its commits."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

from raylay.services.errors import StorageFull
from raylay.services.server.commits import (
    LINKS_TIMES,
    UNFOLDED_BYTES_MAX,
    Commits,
    SlowedPublishers,
)
from raylay.services.server.data.disk_watch import DiskClock


def test_the_front_log_is_reported_where_its_state_changes() -> None:
    said: list[tuple[str, dict[str, Any]]] = []
    journal = SimpleNamespace(front_log_failure="")
    host: Any = SimpleNamespace(report=lambda event, **details: said.append((event, details)))
    instance: Any = SimpleNamespace(journal=journal)
    unused: Any = None
    commits = Commits(host, instance, unused, unused, 1, DiskClock())
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
    waits = [0.0, 0.5, 2.0]
    queues: Any = SimpleNamespace(queues=None)
    slowed = SlowedPublishers(host, queues)
    connection = Connection()
    slowed.check(connection, is_link=True)
    queues.queues = SimpleNamespace(slowed_s=lambda *, is_link: waits.pop(0))
    for _ in range(3):
        slowed.check(connection, is_link=True)
    # Frames that had been read already come after it.
    assert said == [("pause", "slowed")]
    assert [(after_s, timer.cancelled) for after_s, timer in timers] == [(0.5, True), (2.0, False)]
    timers[1][1].call()
    assert said == [("pause", "slowed"), ("resume", "slowed")]


class Publisher:
    """A publisher's connection that says whether it is read."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def pause_reading(self, why: str) -> None:
        self.said.append(f"paused: {why}")

    def resume_reading(self, why: str) -> None:
        self.said.append(f"read again: {why}")


def _with_folds(waiting_bytes: int) -> tuple[Commits, SimpleNamespace]:
    folds = SimpleNamespace(
        unfolded=SimpleNamespace(waiting_bytes=waiting_bytes), failed=lambda txid: None
    )
    runtime: Any = SimpleNamespace()
    instance: Any = SimpleNamespace()
    return Commits(runtime, instance, {}, cast(Any, folds), 1_000, DiskClock()), folds


def _run(size_bytes: int) -> Any:
    return SimpleNamespace(payload=b"x" * size_bytes)


def test_a_publisher_is_not_read_while_too_much_waits_to_be_folded() -> None:
    commits, folds = _with_folds(UNFOLDED_BYTES_MAX)
    publisher = Publisher()
    commits.check_staged(publisher)
    assert publisher.said == [], "the bound itself is allowed"
    folds.unfolded.waiting_bytes += 1
    commits.check_staged(publisher)
    assert publisher.said == ["paused: staged"]
    # Not before half of it is folded: else it would be paused and read with each batch.
    for waiting_bytes in (UNFOLDED_BYTES_MAX, UNFOLDED_BYTES_MAX // 2):
        folds.unfolded.waiting_bytes = waiting_bytes
        commits.folded()
        assert publisher.said == ["paused: staged"]
    folds.unfolded.waiting_bytes = UNFOLDED_BYTES_MAX // 2 - 1
    commits.folded()
    commits.folded()
    assert publisher.said == ["paused: staged", "read again: staged"]


def test_all_that_was_paused_is_read_again_where_nothing_waits_to_be_folded() -> None:
    commits, folds = _with_folds(UNFOLDED_BYTES_MAX + 1)
    publishers = [Publisher(), Publisher()]
    for publisher in publishers:
        commits.check_staged(publisher)
    folds.unfolded = None
    commits.folded()
    assert all(each.said == ["paused: staged", "read again: staged"] for each in publishers)


def test_folds_do_not_let_a_publisher_be_read_that_outruns_the_disk() -> None:
    commits, _ = _with_folds(0)
    commits.cycle.staged_bytes = 1_001
    publisher = Publisher()
    commits.check_staged(publisher)
    commits.folded()
    commits.taken([_run(501)])
    assert publisher.said == ["paused: staged"], "half of it is still staged"
    commits.taken([_run(1)])
    assert publisher.said == ["paused: staged", "read again: staged"]


def test_a_commit_does_not_let_a_publisher_be_read_that_outruns_the_folds() -> None:
    commits, folds = _with_folds(UNFOLDED_BYTES_MAX + 1)
    commits.cycle.staged_bytes = 1_001
    publisher = Publisher()
    commits.check_staged(publisher)
    commits.taken([_run(1_001)])
    assert publisher.said == ["paused: staged"]
    folds.unfolded.waiting_bytes = 0
    commits.folded()
    assert publisher.said == ["paused: staged", "read again: staged"]


def test_a_failure_lets_everybody_be_read() -> None:
    commits, _ = _with_folds(0)
    commits.cycle.staged_bytes = 1_001
    publisher = Publisher()
    commits.check_staged(publisher)
    assert publisher.said == ["paused: staged"]
    machine = SimpleNamespace(append_failed=lambda *_: [], committed_txid=0)
    runtime: Any = commits._runtime
    instance: Any = commits._instance
    instance.machine, runtime.steady_us = machine, lambda: 0
    instance.steps = SimpleNamespace(perform=lambda effects: None)
    runtime.outbox = SimpleNamespace(flush=lambda: None)
    runtime.loop = SimpleNamespace(
        call_later=lambda *_: None, call_soon_threadsafe=lambda work, *arguments: work(*arguments)
    )
    commits.cycle.failed(1, StorageFull("no room", "data"))
    assert publisher.said == ["paused: staged", "read again: staged"]
    assert commits.cycle.staged_bytes == 0


def test_a_disk_that_is_watched_is_told_when_it_writes() -> None:
    commits, _ = _with_folds(0)
    assert commits.disk_waits_ms == 0
    started: list[Any] = []
    journal = SimpleNamespace(start=lambda *told: started.extend(told))
    cast(Any, commits._instance).journal = journal
    commits.start()
    assert started == [commits.cycle.on_disk, commits.cycle.failed]
    assert commits.cycle._watch is commits._clock
    commits._clock.since_s = time.monotonic() - 1.5
    assert commits.disk_waits_ms >= 1500


def test_a_link_is_not_read_either_where_it_keeps_to_no_window() -> None:
    """Whatever it sent was staged: gigabytes of it, where the disk is slower than the network."""
    commits, folds = _with_folds(0)
    link = Publisher()
    commits.cycle.staged_bytes = LINKS_TIMES * 1_000
    commits.check_staged(link, LINKS_TIMES)
    assert link.said == [], "what those that wait for acks have on the way holds nobody up"
    commits.cycle.staged_bytes += 1
    commits.check_staged(link, LINKS_TIMES)
    assert link.said == ["paused: staged"]
    commits.taken([_run(LINKS_TIMES * 1_000)])
    assert link.said == ["paused: staged", "read again: staged"]
    folds.unfolded.waiting_bytes = LINKS_TIMES * UNFOLDED_BYTES_MAX + 1
    commits.check_staged(link, LINKS_TIMES)
    assert link.said[2:] == ["paused: staged"]
