"""services/server/data/disk_watch.py: what is told of a disk that does not answer, and when."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any

import pytest

from raylay.services.server.data import disk_watch
from raylay.services.server.data.disk_watch import DiskClock, DiskWatch

pytestmark = pytest.mark.covers("Filters by content", "a disk that hangs is told of")


class Bench:
    """A watch whose loop turns, or stands."""

    def __init__(self, *, turns: bool, timeout_s: float = 10.0) -> None:
        self.said: list[str] = []
        self.sent_away: list[str] = []
        self.pending: list[Any] = []
        runtime: Any = SimpleNamespace(
            config=SimpleNamespace(name="A"),
            directory="data",
            report=lambda event, **_: self.said.append(event),
            events_log=SimpleNamespace(
                write=lambda event, _: self.said.append(f"log {event}"),
                keep=lambda event, _: self.said.append(f"kept {event}"),
            ),
            loop=SimpleNamespace(
                call_soon_threadsafe=lambda work: work() if turns else self.pending.append(work)
            ),
        )
        self.ours, self.theirs = socket.socketpair()
        self.clock = DiskClock()
        self.watch = DiskWatch(
            runtime, self.clock, timeout_s, self.sent_away.append, lambda: [self.ours.fileno()]
        )

    def waits(self, seconds: float) -> None:
        self.watch.look(self.clock.since_s + seconds)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_watch, "LOOP_WAIT_S", 0.0)


def test_a_quick_disk_is_not_spoken_of() -> None:
    bench = Bench(turns=True)
    bench.watch.look(5.0)
    for _ in range(3):
        bench.clock.begins()
        bench.waits(0.9)
        bench.clock.ends()
    assert bench.said == [] and bench.clock.waits_s == 0


def test_a_disk_that_hangs_is_told_once_and_clients_are_sent_away_once() -> None:
    bench = Bench(turns=True)
    bench.clock.begins()
    for seconds in (0.5, 1.0, 2.0, 9.9, 10.0, 11.0, 60.0):
        bench.waits(seconds)
    assert bench.said == ["disk_hangs", "clients_sent_away"] and len(bench.sent_away) == 1
    bench.clock.ends()
    bench.watch.look(100.0)
    assert bench.said[2:] == ["disk_answers"]
    bench.clock.begins()
    bench.waits(1.0)
    assert bench.said[3:] == ["disk_hangs"], "a second time"


def test_where_the_loop_stands_it_is_in_the_log_and_connections_end() -> None:
    bench = Bench(turns=False)
    bench.clock.begins()
    bench.waits(10.0)
    assert bench.said == ["log disk_hangs", "log clients_sent_away"]
    bench.theirs.settimeout(10)
    assert bench.theirs.recv(1) == b"" and bench.ours.fileno() >= 0, "the loop closes it"
    for work in bench.pending:
        work()
    assert bench.said[2:] == ["kept disk_hangs", "kept clients_sent_away"], "not logged again"


def test_the_next_commit_of_several_begins_its_own_wait() -> None:
    bench = Bench(turns=True)
    bench.clock.begins()
    since_s = bench.clock.since_s
    bench.clock.begins()
    assert bench.clock.since_s == since_s, "the first one counts"
    bench.clock.ends(writes_more=True)
    assert bench.clock.since_s >= since_s and bench.clock.since_s
    bench.clock.ends()
    assert not bench.clock.since_s


def test_nobody_is_sent_away_where_it_is_switched_off() -> None:
    bench = Bench(turns=True, timeout_s=0)
    bench.clock.begins()
    bench.waits(3_600.0)
    assert bench.said == ["disk_hangs"] and not bench.sent_away
