"""What an instance says of its commits."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from raylay.services.errors import StorageFull
from raylay.services.messages.records import Flag
from raylay.services.net.framed import WriteQueue
from raylay.services.server.commits import UNFOLDED_BYTES_MAX, Commits

pytestmark = pytest.mark.covers("Journal", "what is prepared while the disk writes a commit leaves")


def test_the_front_log_is_reported_where_its_state_changes() -> None:
    said: list[tuple[str, dict[str, Any]]] = []
    journal = SimpleNamespace(front_log_failure="", retention_held="")
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


class Disk:
    """A journal whose commits are prepared for, and then succeed, fail, or are the store's."""

    front_log_failure = ""
    is_thread_idle = True

    def __init__(self) -> None:
        self.commits: Any = None
        self.next_txid = 0
        self.error: Exception | None = None
        self.in_front = True
        self.ahead: list[bool] = []

    def start(self, committed: Any, failed: Any) -> None:
        self.committed, self.failed = committed, failed

    def keep(self, run: Any) -> None:
        self.next_txid += 1

    def commit_here(self, ahead: Any) -> None:
        self.ahead.append(ahead is not None)
        if ahead is not None:
            ahead.prepare(self.next_txid)
        if self.error is not None:
            self.failed(self.next_txid, self.error)
            return
        if ahead is not None and self.in_front:
            ahead.durable()
        self.committed(self.next_txid, self.took_ns)

    took_ns = 1000


class Written:
    """An outbox in its surroundings; `said` has in their order what is done and what is written."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.journal = Disk()
        self.is_resting = False
        self.due: list[Any] = []
        self.loop = SimpleNamespace(call_soon=self.due.append, call_later=lambda *_: None)
        self.outbox = WriteQueue(cast(Any, self.loop))
        self.outbox._connections = []
        self.machine = SimpleNamespace(
            destinations={}, waiters=(), committed_txid=0, committed=self._committed
        )
        self.machine.append_failed = lambda *_: []
        self.links: dict[str, Any] = {}
        self.steps = SimpleNamespace(
            perform_ahead=self._performed, catch_up=lambda: self.said.append("caught up")
        )
        self.perform = self._performed
        self.fault: BaseException | None = None
        folds: Any = SimpleNamespace(failed=lambda txid: None, unfolded=None)
        self.commits = Commits(cast(Any, self), self.links, folds, 1 << 20)
        self.commits.start()

    def steady_us(self) -> int:
        return 0

    def report(self, event: str, **details: Any) -> None:
        self.said.append(event)

    def _committed(self, last_txid: int, now_us: int) -> list[Any]:
        self.machine.committed_txid = last_txid
        return []

    def _performed(self, effects: list[Any]) -> None:
        if self.fault is not None:
            raise self.fault
        self.said.append("performed, held" if self.outbox.is_held else "performed")
        self.outbox.add(cast(Any, self))

    def freeze(self) -> None:
        self.outbox.drop()
        self.said.append("frozen")

    urgency = 1

    def write_collected(self) -> None:
        if self.unwritable is not None:
            raise self.unwritable
        self.said.append("written")

    unwritable: Exception | None = None

    def turn(self, flags: int = 0) -> None:
        """A run is staged, and its turn ends."""
        self.commits.stage(cast(Any, SimpleNamespace(payload=b"x", flags=flags, last_txid=1)))
        while self.due:
            self.due.pop(0)()


def test_what_is_said_of_a_commit_is_made_while_the_disk_writes_and_written_behind_it() -> None:
    written = Written()
    for _ in range(2):
        written.turn()
        assert written.said == ["performed, held", "written", "caught up"]
        written.said.clear()
    written.journal.in_front = False
    written.turn()
    assert written.said == ["performed, held", "written", "caught up"], "the store took it"


def test_a_traced_commit_is_told_of_when_the_disk_has_it() -> None:
    written = Written()
    written.turn(Flag.TRACED)
    written.turn()
    assert written.journal.ahead == [False, True]
    assert written.said == ["performed", "written", "performed, held", "written", "caught up"]


def test_a_trace_that_the_thread_commits_holds_back_nothing_on_the_loop() -> None:
    written = Written()
    written.machine.next_txid = 2
    written.machine.waiters = ("a batch",)
    written.journal.is_thread_idle = False
    handed: list[int] = []
    written.journal.hand_over = lambda: handed.append(1)  # type: ignore[attr-defined]
    written.turn(Flag.TRACED)
    assert handed and not written.journal.ahead
    written.journal.is_thread_idle, written.machine.waiters = True, ()
    written.turn()
    assert written.journal.ahead == [True]


def test_a_commit_that_was_taken_and_fails_ends_the_instance_with_nothing_said() -> None:
    written = Written()
    written.journal.error = StorageFull("no space", "a path")
    with pytest.raises(StorageFull, match="no space"):
        written.turn()
    assert written.said == ["performed, held", "frozen"]
    # Until it ends, more may come.
    written.journal.error = None
    written.turn()
    written.outbox.flush()
    assert written.said == ["performed, held", "frozen"] and len(written.journal.ahead) == 1


@pytest.mark.parametrize("kind", [OSError, KeyboardInterrupt])
def test_what_cannot_be_taken_while_the_disk_writes_ends_the_instance(
    kind: type[BaseException],
) -> None:
    written = Written()
    written.fault = kind("half way")
    with pytest.raises(RuntimeError, match="half way"):
        written.turn()
    written.outbox.flush()
    assert written.said == ["frozen"]


def test_what_cannot_be_said_of_a_commit_is_no_failure_of_the_disk() -> None:
    written = Written()
    written.unwritable = ValueError("a socket's")
    with pytest.raises(ValueError, match="a socket's"):
        written.turn()
    assert written.commits.failure is None and written.machine.committed_txid == 1
    assert written.said == ["performed, held", "caught up"]
    written.unwritable = None
    written.said.clear()
    written.turn()
    assert written.said == ["performed, held", "written", "caught up"]


def test_the_time_of_a_commit_is_the_disk_s_and_not_that_of_other_work() -> None:
    written = Written()
    written.journal.committed = written.commits.on_disk
    waited = threading.Event()
    written.steps.perform_ahead = lambda _: waited.wait(0.02)
    # The journal says how long it took, the work done meanwhile with it.
    written.journal.took_ns = 20_001_000
    written.turn()
    assert written.commits.latency.percentile_ms(0.99) < 5


class Link:
    """One that the thread that commits can wake; `can` says whether it succeeds."""

    is_wakeable = True
    woken_txid = 0

    def __init__(self, said: list[str], *, can: bool) -> None:
        self._said, self._can = said, can

    def wake(self, last_txid: int) -> bool:
        self._said.append(f"woken for {last_txid}")
        return self._can

    def told(self, last_txid: int) -> None:
        self._said.append(f"told of {last_txid}")


@pytest.mark.parametrize("can", [True, False])
def test_a_link_is_told_once_of_what_is_done_ahead(can: bool) -> None:
    """By its wake-up where that can be, and before it is told by a frame that it will be."""
    written = Written()
    written.links["B"] = Link(written.said, can=can)
    router = SimpleNamespace(routed=lambda run, incarnation: True)
    ledger = SimpleNamespace(sync=True, router=router, incarnation=0)
    written.machine.destinations["B"] = ledger
    written.commits.wakeable_changed()
    woken: list[int] = []
    performed = written.steps.perform_ahead
    written.steps.perform_ahead = lambda effects: (
        woken.append(written.links["B"].woken_txid),
        performed(effects),
    )
    written.turn()
    assert woken == [1], "so nobody tells it by a frame"
    told = [] if can else ["told of 1"]
    assert written.said == [
        *("performed, held", "written", "woken for 1"),
        *(*told, "caught up"),
    ]


def test_nothing_is_done_ahead_while_a_failure_is_probed() -> None:
    written = Written()
    written.journal.error = StorageFull("no space", "a path")
    written.turn(Flag.TRACED)
    assert written.commits.failure is not None
    written.journal.error = None
    written.turn()
    assert written.journal.ahead == [False, False]
    written.turn()
    assert written.journal.ahead[-1]


def test_a_failed_commit_is_staged_no_more() -> None:
    """What is left of it would count for ever: in the end no publisher would be read any more."""
    written = Written()
    for _ in range(3):
        written.journal.error = StorageFull("no space", "a path")
        written.turn(Flag.TRACED)
        assert written.commits.staged_bytes == 0


def test_a_probe_ends_no_hold_and_a_hold_no_failure() -> None:
    """The store of SOW topics cannot be written, and the journal's disk was full for a moment."""
    held, full = ("storage_full", "the store"), "no space"
    written = Written()
    probes: list[Any] = []
    written.loop.call_later = lambda _, what: probes.append(what)
    written.journal.error = StorageFull(full, "a path")
    written.turn(Flag.TRACED)
    assert written.commits.failure == ("storage_full", full)
    written.commits.hold(held)
    assert written.commits.failure == ("storage_full", full)
    written.journal.error = None
    probes.pop()()
    assert written.commits.failure == held, "the probe lets nothing through"
    written.commits.hold(None)
    assert written.commits.failure is None
    written.journal.error = StorageFull(full, "a path")
    written.turn(Flag.TRACED)
    written.commits.hold(held)
    written.commits.hold(None)
    assert written.commits.failure == ("storage_full", full)


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
    return Commits(cast(Any, SimpleNamespace()), {}, cast(Any, folds), 1_000), folds


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
    commits.staged_bytes = 1_001
    publisher = Publisher()
    commits.check_staged(publisher)
    commits.folded()
    commits.taken([_run(501)])
    assert publisher.said == ["paused: staged"], "half of it is still staged"
    commits.taken([_run(1)])
    assert publisher.said == ["paused: staged", "read again: staged"]


def test_a_commit_does_not_let_a_publisher_be_read_that_outruns_the_folds() -> None:
    commits, folds = _with_folds(UNFOLDED_BYTES_MAX + 1)
    commits.staged_bytes = 1_001
    publisher = Publisher()
    commits.check_staged(publisher)
    commits.taken([_run(1_001)])
    assert publisher.said == ["paused: staged"]
    folds.unfolded.waiting_bytes = 0
    commits.folded()
    assert publisher.said == ["paused: staged", "read again: staged"]


def test_a_failure_lets_everybody_be_read_and_ends_the_wait_for_the_disk() -> None:
    written = Written()
    commits, publisher, ends = written.commits, Publisher(), []
    commits.watch = cast(Any, SimpleNamespace(ends=lambda **_: ends.append(1), waits_s=0.0))
    commits.staged_bytes = (1 << 20) + 1
    commits.check_staged(publisher)
    assert publisher.said == ["paused: staged"]
    commits._is_here = True
    commits.failed(1, StorageFull("no room", "data"))
    assert publisher.said == ["paused: staged", "read again: staged"] and ends == [1]
