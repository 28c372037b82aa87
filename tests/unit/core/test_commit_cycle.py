"""The order of a commit: staged, committed, told to links, acked, folded."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from sim.commit_mistakes import (
    AcksWhileTheDiskWrites,
    FeaturesHearFirst,
    FoldsBeforeItIsSaid,
    FoldsBeforeTheCommit,
    FoldsInALaterStep,
    GoesOnAheadOfTheDisk,
    LinksBeforeTheCommit,
    ReportsBeforeTheCommit,
)

from raylay.services.core.commit_cycle import CommitCycle, notify_links
from raylay.services.errors import StorageFull
from raylay.services.messages.records import Flag, Run
from raylay.services.messages.topics import TopicRule
from raylay.services.net.framed import WriteQueue
from raylay.services.replication.acknowledgment import DestinationLedger
from raylay.services.replication.effects import (
    LinkAnswered,
    LinkLacks,
    LinkProgress,
    RunsCommitted,
)
from raylay.services.replication.link.routing import DestinationRoute

pytestmark = pytest.mark.covers("Journal", "what is prepared while the disk writes a commit leaves")


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

    def __init__(self, kind: type[CommitCycle] = CommitCycle, watch: Any = None) -> None:
        self.said: list[str] = []
        self.now_ns = 0
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
            perform=self._performed,
            perform_ahead=self._performed,
            catch_up=lambda: self.said.append("caught up"),
        )
        self.fault: BaseException | None = None
        folds: Any = SimpleNamespace(failed=lambda txid: self.said.append("features told"))
        self.took_ns: list[int] = []
        self.commits = kind(
            cast(Any, self),
            cast(Any, self),
            self.links,
            folds,
            clock_ns=lambda: self.now_ns,
            took=self.took_ns.append,
            undone=lambda: self.said.append("undone"),
            watch=watch,
        )
        self.journal.start(self.commits.on_disk, self.commits.failed)

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

    def works(_: list[Any]) -> None:
        written.now_ns += 20_000_000

    written.steps.perform_ahead = works
    # The journal says how long it took, the work done meanwhile with it.
    written.journal.took_ns = 20_001_000
    written.turn()
    assert written.took_ns == [1_000]


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


def test_the_disk_is_watched_from_the_end_of_the_turn_until_it_has_the_commit() -> None:
    seen: list[str] = []
    written = Written(
        watch=SimpleNamespace(
            begins=lambda: seen.append("begins"), ends=lambda **_: seen.append("ends")
        )
    )
    written.turn()
    assert seen == ["begins", "ends"]
    written.journal.error = StorageFull("no room", "data")
    written.turn(Flag.TRACED)
    assert seen[2:] == ["begins", "ends", "ends"]
    assert written.said[-4:] == ["undone", "performed", "features told", "written"]


class NotingDisk(Disk):
    """Notes when it has a commit."""

    def __init__(self, said: list[str]) -> None:
        super().__init__()
        self._said = said

    def commit_here(self, ahead: Any) -> None:
        durable = None if ahead is None else ahead.durable
        if ahead is not None:
            ahead.prepare(self.next_txid)
        if self.error is not None:
            self.failed(self.next_txid, self.error)
            return
        self._said.append("on disk")
        if durable is not None:
            durable()
        self.committed(self.next_txid, self.took_ns)


def said_of_a_commit(kind: type[CommitCycle], *, fails: bool = False, flags: int = 0) -> list[str]:
    """One message is committed on the loop; a link waits for it."""
    written = Written(kind)
    written.journal = NotingDisk(written.said)
    written.journal.start(written.commits.on_disk, written.commits.failed)
    written.links["B"] = Link(written.said, can=True)
    router = SimpleNamespace(routed=lambda run, incarnation: True)
    written.machine.destinations["B"] = SimpleNamespace(sync=True, router=router, incarnation=0)
    written.machine.next_txid = 2
    written.commits.wakeable_changed()
    written.journal.error = StorageFull("no room", "data") if fails else None
    try:
        written.turn(flags)
    except StorageFull:
        written.said.append("ended")
    return written.said


def broken(said: list[str]) -> set[str]:
    """Returns what is wrong with the order of a commit that the disk took."""
    place = {what: said.index(what) for what in reversed(said)}
    if "caught up" not in place:
        return {"it is never folded"}
    wrong = {
        "it is written before the disk has it": place["written"] < place["on disk"],
        "a link is woken before the disk has it": place["woken for 1"] < place["on disk"],
        "it is folded before the disk has it": place["caught up"] < place["on disk"],
        "it is folded before it is written": place["caught up"] < place["written"],
    }
    return {what for what, is_so in wrong.items() if is_so}


def test_a_commit_is_on_disk_then_written_then_links_are_woken_then_it_is_folded() -> None:
    said = said_of_a_commit(CommitCycle)
    assert said == ["performed, held", "on disk", "written", "woken for 1", "caught up"]
    assert not broken(said)
    said = said_of_a_commit(CommitCycle, flags=Flag.TRACED)
    assert said == ["on disk", "woken for 1", "performed", "written"], "a step folds by itself"


@pytest.mark.parametrize(
    ("mistake", "wrong"),
    [
        (AcksWhileTheDiskWrites, {"it is written before the disk has it"}),
        (LinksBeforeTheCommit, {"a link is woken before the disk has it"}),
        (
            FoldsBeforeTheCommit,
            {"it is folded before the disk has it", "it is folded before it is written"},
        ),
        (FoldsBeforeItIsSaid, {"it is folded before it is written"}),
        (FoldsInALaterStep, {"it is never folded"}),
    ],
)
def test_a_mistake_in_the_order_of_a_commit_is_seen(
    mistake: type[CommitCycle], wrong: set[str]
) -> None:
    assert broken(said_of_a_commit(mistake)) == wrong


def test_of_a_commit_that_failed_the_machine_hears_first_and_the_features_last() -> None:
    said = said_of_a_commit(CommitCycle, fails=True, flags=Flag.TRACED)
    assert said == ["undone", "performed", "features told", "written"]
    said = said_of_a_commit(FeaturesHearFirst, fails=True, flags=Flag.TRACED)
    assert said.index("features told") < said.index("performed")


def test_nothing_is_said_of_a_commit_that_failed_ahead_of_the_disk() -> None:
    assert said_of_a_commit(CommitCycle, fails=True) == ["performed, held", "frozen", "ended"]
    assert "written" in said_of_a_commit(GoesOnAheadOfTheDisk, fails=True)


class ToldLink:
    """A link that notes how it is told of a commit."""

    is_wakeable = True
    is_connected = True
    woken_txid = 0

    def __init__(self) -> None:
        self.said: list[str] = []
        self.is_direct = False
        self.direct_link = self

    def committed(self, runs: list[Run]) -> bool:
        return self.is_direct

    def wake(self, last_txid: int) -> bool:
        return True

    def told(self, last_txid: int) -> None:
        self.said.append(f"now {last_txid}")

    def told_later(self, last_txid: int) -> None:
        self.said.append(f"later {last_txid}")


def run_at(first_txid: int, topic: bytes = b"orders") -> Run:
    return Run(7, 1, 1, 1, b"", topic, flags=int(Flag.CONTIGUOUS), first_txid=first_txid)


def test_a_link_is_told_of_a_commit_once_and_at_once_where_something_is_routed_there() -> None:
    route = DestinationRoute("a", "g", True, (TopicRule("orders"),), ".*", ("a",))
    ledgers = {"a": DestinationLedger(route)}
    runs = [run_at(1), run_at(2, b"trades")]

    def told(link: ToldLink, runs: list[Run] = runs) -> list[str]:
        notify_links({"a": link}, ledgers, RunsCommitted(runs, 2))
        said, link.said = link.said, []
        return said

    link = ToldLink()
    assert told(link) == ["now 2"]
    link.woken_txid = 1
    assert told(link) == ["now 2"], "it was woken for a part of it"
    link.woken_txid = 2
    assert told(link) == []
    link.woken_txid = 0
    assert told(link, runs[1:]) == ["later 2"], "nothing of it is routed there"
    link.is_connected = False
    assert told(link) == []
    link.is_connected, link.is_direct = True, True
    assert told(link) == [], "it has sent it itself"


def said_of_reports(kind: type[CommitCycle], *, is_direct: bool = False) -> list[str]:
    """A link has answered for a commit of the writer thread that the loop has not taken."""
    written = Written(kind)
    written.machine.next_txid = 2
    written.journal.is_thread_idle = False
    written.journal.hand_over = lambda: None  # type: ignore[attr-defined]
    written.loop.call_soon_threadsafe = lambda work: written.due.append(work)
    machine, said = written.machine, written.said

    def noted(name: str, committed_txid: int) -> list[Any]:
        said.append(f"{name} at {committed_txid}")
        return []

    machine.link_answered = lambda *_: noted("answered", machine.committed_txid)
    machine.link_lacks = lambda *_: noted("lacks", machine.committed_txid)
    machine.link_progressed = lambda *_: noted("progressed", machine.committed_txid)
    written.turn()
    written.commits.on_disk(1, 1000)
    assert said == [] and written.commits.is_behind
    for report in (LinkAnswered({}, {}), LinkLacks({}), LinkProgress(1, {}, False, 0)):
        written.commits.take_report("B", report, is_direct=is_direct)
    return said


def test_what_a_link_reports_is_taken_behind_the_commits_that_it_may_be_about() -> None:
    said = said_of_reports(CommitCycle)
    assert said[:2] == ["performed", "written"]
    assert [each for each in said if " at " in each] == [
        *("answered at 1", "lacks at 1", "progressed at 1")
    ]
    assert said_of_reports(ReportsBeforeTheCommit)[0] == "answered at 0"


def test_what_comes_over_a_direct_link_takes_no_other_commit_in_the_middle_of_a_step() -> None:
    said = said_of_reports(CommitCycle, is_direct=True)
    assert [each for each in said if " at " in each] == [
        *("answered at 0", "lacks at 0", "progressed at 0")
    ]
