"""One contract, both journals: in memory, in memory over encoded bytes, on LMDB, on LMDB behind the
front log."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.journal_cases import StepJournal, a_note, a_run, when_idle

from raylay.services.errors import StorageError, StorageFull
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.messages.records import Kind, Run, iterate_records
from raylay.storage.lmdb_journal import LmdbJournalReader
from raylay.storage.memory_front import MemoryFront
from raylay.storage.memory_journal import MemoryJournal

pytestmark = pytest.mark.covers("Journal", "the front log: an entry's bytes")

AnyJournal = MemoryJournal | StepJournal
SEGMENT_BYTES = 8 * 1024


@pytest.fixture(params=["memory", "memory-encoded", "memory-front", "lmdb", "lmdb-front"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., AnyJournal]]:
    made: list[AnyJournal] = []

    def _make(**options: int) -> AnyJournal:
        options.setdefault("segment_bytes", SEGMENT_BYTES)
        journal: AnyJournal
        if request.param.startswith("lmdb"):
            options.setdefault("front_log", request.param == "lmdb-front")
            journal = StepJournal(tmp_path / "journal", **options)
        else:
            front = MemoryFront() if request.param == "memory-front" else None
            encode = request.param == "memory-encoded"
            journal = MemoryJournal(encode=encode, front=front, **options)
            journal.move_later = lambda work: None  # as far as it can, all of it stays in front
            journal.start(lambda last, ns: None, lambda first, error: None)
        made.append(journal)
        return journal

    yield _make
    for journal in made:
        if isinstance(journal, StepJournal):
            journal.close()


def restarted(journal: AnyJournal) -> AnyJournal:
    """The journal after a restart; what is staged was committed before."""
    if isinstance(journal, MemoryJournal):
        return journal.crash()
    return journal.reopen()


def settled(journal: AnyJournal) -> AnyJournal:
    if isinstance(journal, StepJournal):
        journal.settle()
    return journal


def read_all(journal: AnyJournal | LmdbJournalReader, bytes_max: int = 1 << 20) -> list[Run]:
    found: list[Run] = []
    at = 0
    while runs := journal.read(at, bytes_max):
        found += runs
        at = runs[-1].last_txid
    return found


def filled(journal: AnyJournal, seed: int = 1) -> list[Run]:
    """Many segments of runs of three publishers, with gaps and notes; what was written."""
    rng = random.Random(seed)
    at = {7: 1, 8: 1, 9: 1}
    txid = 1
    written: list[Run] = []
    for _ in range(200):
        for _ in range(rng.choice([1, 1, 2, 5])):
            publisher = rng.choice(list(at))
            if rng.random() < 0.1:
                run = a_note(txid)
            else:
                first = at[publisher] + rng.choice([0, 0, 0, 3])
                step = rng.choice([1, 1, 1, 2])
                numbers = list(range(first, first + step * rng.randrange(1, 12), step))
                at[publisher] = numbers[-1] + 1
                run = a_run(txid, numbers, publisher=publisher)
            journal.stage(run)
            written.append(run)
            txid += run.count
        journal.commit()
    return written


def sequences_of(runs: list[Run]) -> PublisherRanges:
    held = PublisherRanges()
    for run in runs:
        if run.ranges():
            held.add_ranges(run.publisher, run.ranges())
    return held


def test_an_empty_journal(make: Callable[..., AnyJournal]) -> None:
    journal = make()
    assert (journal.first_txid, journal.last_txid, journal.read(0)) == (1, 0, [])
    assert journal.find_sequence(7, 1) is None
    assert journal.find_time(0) == 1
    assert journal.segment_summaries() == []
    assert journal.recovered.next_txid == 1
    again = restarted(journal)
    assert again.recovered.next_txid == 1
    assert not again.recovered.held


def test_reads_back_what_was_committed(make: Callable[..., AnyJournal]) -> None:
    journal = make()
    written = filled(journal)
    for bytes_max in (1, 3_000, 1 << 20):
        found = read_all(journal, bytes_max)
        assert [run.encode() for run in found] == [run.encode() for run in written]
    last = written[-1].last_txid
    assert journal.last_txid == last
    assert journal.read(last) == []
    assert len(journal.segments()) > 5


def test_a_read_inside_a_run_is_cut(make: Callable[..., AnyJournal]) -> None:
    journal = make()
    written = filled(journal)
    for after in range(0, written[-1].last_txid, 7):
        first = journal.read(after, 1)[0]
        assert first.first_txid == after + 1
        (whole,) = [run for run in written if run.first_txid <= after + 1 <= run.last_txid]
        expected = [r.raw for r in iterate_records(whole.payload)] if whole.kind == 1 else []
        if whole.kind == Kind.RECORDS:
            skipped = after + 1 - whole.first_txid
            assert [r.raw for r in iterate_records(first.payload)] == expected[skipped:]
            assert first.last_txid == whole.last_txid


def test_headers_are_the_runs_without_their_records(make: Callable[..., AnyJournal]) -> None:
    journal = make()
    written = filled(journal)
    found = journal.read_headers(0, 100_000)
    assert [run.first_txid for run in found] == [run.first_txid for run in written]
    assert [run.ranges() for run in found] == [run.ranges() for run in written]
    assert all(not run.payload for run in found if run.kind == Kind.RECORDS and run.contiguous)
    assert all(run.payload for run in found if run.kind == Kind.WAITER)
    assert len(journal.read_headers(0, 3)) == 3
    after = next(run for run in written if run.count > 2).first_txid
    assert journal.read_headers(after, 1)[0].first_txid == after + 1


def test_finds_messages_and_times(make: Callable[..., AnyJournal]) -> None:
    journal = settled(make())
    written = filled(journal)
    settled(journal)
    for run in written[::5]:
        if run.kind != Kind.RECORDS:
            continue
        for at, record in enumerate(iterate_records(run.payload)):
            assert journal.find_sequence(run.publisher, record.sequence) == run.first_txid + at
        assert journal.find_time(run.receive_time_us) == run.first_txid
        assert journal.find_time(run.receive_time_us - 1) == run.first_txid
    held = sequences_of(written)
    gap = next(iter(held.of(7).missing(1, 400)))[0]
    assert journal.find_sequence(7, gap) is None
    there = held.of(7)
    for first, last in ((1, 400), (gap, gap), (gap, 400), (gap - 1, 400), (5_000, 1 << 60)):
        expected = next((a for a, _ in there.within(first, last)), None)
        assert journal.first_held(7, first, last) == expected
    assert journal.first_held(77, 1, 400) is None
    assert journal.find_sequence(77, 1) is None
    assert journal.find_time(1 << 60) == journal.last_txid + 1


def test_summaries_are_what_the_segments_hold(make: Callable[..., AnyJournal]) -> None:
    journal = make()
    written = filled(journal)
    settled(journal)
    summaries = journal.segment_summaries()
    assert len(summaries) == len(journal.segments()) - 1
    at = 1
    for first, last, held in summaries:
        assert first == at
        assert held == sequences_of([run for run in written if first <= run.first_txid <= last])
        at = last + 1
    assert at == journal.segments()[-1].first_txid


def test_a_restart_finds_everything(make: Callable[..., AnyJournal]) -> None:
    journal = make()
    written = filled(journal)
    again = restarted(settled(journal))
    assert again.recovered.next_txid == written[-1].last_txid + 1
    assert again.recovered.held == sequences_of(written)
    assert again.recovered.records == written[-1].last_txid
    assert [run.encode() for run in read_all(again)] == [run.encode() for run in written]
    if isinstance(again, StepJournal):
        again.close()


@pytest.mark.covers("Resync and bootstrap", "what no upstream has any more is recorded")
def test_removal_never_shrinks_what_is_held(make: Callable[..., AnyJournal]) -> None:
    journal = make()
    written = filled(journal)
    settled(journal)
    assert not journal.removed()
    middle = journal.segments()[3].last_txid
    assert [outcome.done for outcome in journal.remove(middle + 1)] == [False]
    journal.removable(middle)
    assert sum(outcome.done for outcome in journal.remove(1 << 62)) == 3
    assert journal.first_txid == journal.segments()[0].first_txid > 1
    assert journal.read(0)[0].first_txid == journal.first_txid
    done = journal.remove(1 << 62, force=True)
    assert all(outcome.done for outcome in done)
    assert len(journal.segments()) == 1, "the live segment stays"
    removed = sequences_of(written)
    removed.difference_update(sequences_of(read_all(journal)))
    assert journal.removed() == removed and removed
    assert journal.find_sequence(7, 1) is None
    again = restarted(journal)
    assert again.recovered.held == sequences_of(written)
    assert again.removed() == removed
    assert again.recovered.next_txid == written[-1].last_txid + 1
    again.stage(a_run(again.recovered.next_txid, range(1000, 1010)))
    assert again.commit() == written[-1].last_txid + 10
    if isinstance(again, StepJournal):
        again.close()


@pytest.mark.covers("Laws", "4 safe removal", note="on real processes")
def test_retention_waits_for_the_floor(make: Callable[..., AnyJournal]) -> None:
    journal = make(retention_bytes=1)
    filled(journal)
    assert len(settled(journal).segments()) > 5
    journal.removable(journal.segments()[2].last_txid + 1)
    assert settled(journal).first_txid == journal.segments()[0].first_txid
    assert journal.first_txid > 1
    journal.removable(journal.last_txid + 1)
    assert len(settled(journal).segments()) == 1


@pytest.mark.covers("Laws", "4 safe removal", note="on real processes")
def test_retention_asks_for_the_floor_of_this_life(make: Callable[..., AnyJournal]) -> None:
    """What an earlier life released, a destination may have lost since."""
    journal = make(retention_bytes=1 << 30)
    written = filled(journal)
    last = written[-1].last_txid
    journal.removable(last + 1)
    assert settled(journal).first_txid == 1
    again: AnyJournal
    if isinstance(journal, StepJournal):
        journal.close()
        again = make(retention_bytes=1)
    else:
        journal._retention_bytes = 1
        again = journal.crash()
        again.start(lambda last, ns: None, lambda first, error: None)
    assert settled(again).first_txid == 1, "by itself"
    assert not any(outcome.done for outcome in again.remove(last)), "nor by hand"
    # A rotation looks again.
    for txid in range(last + 1, last + 4):
        again.stage(a_run(txid, [10_000 + txid], body_bytes=2 * SEGMENT_BYTES))
        again.commit()
    assert settled(again).first_txid == 1
    again.removable(again.last_txid + 1)
    assert settled(again).first_txid > last


@pytest.mark.covers("Laws", "4 safe removal", note="on real processes")
def test_a_floor_that_moves_back_wins_against_a_removal_that_is_due(
    make: Callable[..., AnyJournal],
) -> None:
    journal = make(retention_bytes=1)
    filled(journal)
    settled(journal)
    work: list[Callable[[], None]] = []
    come_to_it = threading.Event()
    if isinstance(journal, StepJournal):
        journal._tasks.put(lambda: come_to_it.wait() and None)
    else:
        journal.later = work.append
    second, *_ = ends = [segment.last_txid for segment in journal.segments()][1:]
    journal.removable(journal.last_txid + 1)
    journal.removable(second + 1)
    come_to_it.set()
    for each in work:
        each()
    assert settled(journal).first_txid == second + 1
    journal.removable(0)
    assert not any(outcome.done for outcome in journal.remove(ends[3]))


def test_what_is_staged_out_of_order_is_refused(make: Callable[..., AnyJournal]) -> None:
    journal = make()
    with pytest.raises(ValueError, match="next one is 1"):
        journal.stage(a_run(2, [1]))
    journal.stage(a_run(1, [1]))
    with pytest.raises(ValueError, match="next one is 2"):
        journal.stage(a_run(1, [1]))
    assert journal.commit() == 1


def fail_next(journal: AnyJournal, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    if isinstance(journal, MemoryJournal):
        journal.fail_next(error)
        return
    put = journal._put

    def failing(*_: object) -> None:
        monkeypatch.setattr(journal, "_put", put)
        raise error

    # Neither in front nor behind it.
    monkeypatch.setattr(journal._front, "take", lambda *_: False)
    monkeypatch.setattr(journal, "_put", failing)


def test_a_failed_commit_drops_all_behind_it(
    make: Callable[..., AnyJournal], monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = make()
    failures: list[tuple[int, Exception]] = []
    if isinstance(journal, MemoryJournal):
        journal.start(lambda last, ns: None, lambda first, error: failures.append((first, error)))
    else:
        failures = journal.failures
    journal.stage(a_run(1, range(1, 4)))
    assert journal.commit() == 3
    error = StorageFull("the disk is full", "a path")
    fail_next(journal, error, monkeypatch)
    journal.stage(a_run(4, range(4, 6)))
    assert journal.commit() == 3
    assert failures == [(4, error)]
    journal.stage(a_run(6, range(6, 8)))  # by a caller who does not know of it yet: dropped
    journal.stage(a_run(4, range(14, 16)))
    journal.stage(a_run(6, range(16, 20)))
    assert journal.commit() == 9
    assert sequences_of(read_all(journal)) == PublisherRanges(
        {7: sequences_of([a_run(1, range(1, 4)), a_run(4, range(14, 20))]).of(7)}
    )
    again = restarted(journal)
    assert again.recovered.next_txid == 10
    if isinstance(again, StepJournal):
        again.close()


def told_of(journal: AnyJournal) -> tuple[list[int], list[tuple[int, Exception]]]:
    """Commits and failures, as they are told of from now on."""
    if isinstance(journal, StepJournal):
        return journal.commits, journal.failures
    commits: list[int] = []
    failures: list[tuple[int, Exception]] = []
    journal.start(
        lambda last, ns: commits.append(last), lambda first, error: failures.append((first, error))
    )
    return commits, failures


def test_what_is_kept_back_is_committed_here(make: Callable[..., AnyJournal]) -> None:
    journal = make()
    commits, _ = told_of(journal)
    when_idle(journal).keep(a_run(1, range(1, 4)))
    journal.keep(a_run(4, range(4, 6)))
    assert journal.last_txid == 0 and commits == []
    journal.commit_here()
    assert commits == [5], "told before it returns, once for both"
    journal.stage(a_run(6, [6]))
    assert journal.commit() == 6
    when_idle(journal).keep(a_run(7, [7]))
    journal.commit_here()
    journal.keep(a_run(8, [8]))
    journal.hand_over()
    assert journal.commit() == 8
    assert commits == [5, 6, 7, 8]
    assert [run.first_txid for run in read_all(journal)] == [1, 4, 6, 7, 8]
    again = restarted(journal)
    assert again.recovered.next_txid == 9
    if isinstance(again, StepJournal):
        again.close()


class Noting:
    """What is prepared for and what the journal says it has then; and the last commit that was told
    of when something became durable."""

    def __init__(self, journal: AnyJournal, commits: list[int]) -> None:
        self.journal, self.commits = journal, commits
        self.prepared: list[tuple[int, int]] = []
        self.durable_behind: list[int] = []

    def prepare(self, last_txid: int) -> None:
        self.prepared.append((last_txid, self.journal.last_txid))

    def durable(self) -> None:
        self.durable_behind.append(self.commits[-1])


def test_work_is_done_ahead_of_the_disk_only_where_it_may_be(
    make: Callable[..., AnyJournal], tmp_path: Path
) -> None:
    journal: AnyJournal
    if isinstance(make(), MemoryJournal):
        journal = MemoryJournal(front=MemoryFront(lambda: True))
    else:
        journal = StepJournal(tmp_path / "ahead", front_log=True)
        journal.settle()
    commits, _ = told_of(journal)
    noting = Noting(journal, commits)
    for txid in (1, 2, 3):
        when_idle(journal).keep(a_run(txid, [txid]))
        journal.commit_here(noting if txid > 1 else None)
    assert commits == [1, 2, 3]
    assert noting.prepared == [(2, 1), (3, 2)], "the journal says nothing of what is being written"
    assert noting.durable_behind == [1, 2], "before `committed`"
    assert [run.first_txid for run in read_all(journal)] == [1, 2, 3]
    if isinstance(journal, StepJournal):
        journal.close()


def test_a_commit_here_never_overtakes_the_writer_thread(
    make: Callable[..., AnyJournal], monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = make()
    may_go_on = threading.Event()
    if isinstance(journal, StepJournal):
        put = journal._put

        def waiting(*arguments: Any) -> None:
            assert may_go_on.wait(10)
            put(*arguments)

        monkeypatch.setattr(journal, "_put", waiting)
    journal.stage(a_run(1, [1]))
    journal.keep(a_run(2, [2]))
    assert not journal.is_thread_idle
    with pytest.raises(RuntimeError, match="overtake"):
        journal.commit_here()
    may_go_on.set()
    if isinstance(journal, MemoryJournal):
        journal.commit()
    when_idle(journal).commit_here()
    assert [run.first_txid for run in read_all(journal)] == [1, 2]


def test_a_commit_here_that_fails_is_told_and_taken_again(
    make: Callable[..., AnyJournal], monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = make()
    commits, failures = told_of(journal)
    error = StorageFull("the disk is full", "a path")
    fail_next(journal, error, monkeypatch)
    when_idle(journal).keep(a_run(1, [1]))
    journal.keep(a_run(2, [2]))
    journal.commit_here()
    assert (commits, failures, journal.last_txid) == ([], [(1, error)], 0)
    journal.keep(a_run(1, [11]))
    journal.commit_here()
    assert commits == [1]
    assert [run.first_sequence for run in read_all(journal)] == [11]


def test_what_is_kept_back_behind_a_failure_of_the_thread_goes_with_it(
    make: Callable[..., AnyJournal], monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = make()
    error = StorageFull("the disk is full", "a path")
    fail_next(journal, error, monkeypatch)
    journal.stage(a_run(1, [1]))
    journal.commit()
    when_idle(journal).keep(a_run(2, [2]))  # by a caller who does not know of it yet
    journal.commit_here()
    assert journal.last_txid == 0
    journal.keep(a_run(3, [3]))
    journal.keep(a_run(1, [11]))
    journal.keep(a_run(2, [12]))
    journal.commit_here()
    assert [run.first_sequence for run in read_all(journal)] == [11, 12]


def test_closing_commits_what_is_kept_back(make: Callable[..., AnyJournal]) -> None:
    journal = make()
    journal.keep(a_run(1, [1]))
    journal.close()
    assert journal.last_txid == 1


def test_a_closed_journal_refuses(make: Callable[..., AnyJournal]) -> None:
    journal = make()
    journal.stage(a_run(1, [1]))
    journal.close()
    assert journal.last_txid == 1, "closing commits what is staged"
    with pytest.raises(StorageError, match="closed"):
        journal.stage(a_run(2, [2]))


def test_times_that_run_backwards(make: Callable[..., AnyJournal]) -> None:
    journal = make()
    for txid, time_us in ((1, 100), (2, 300), (3, 200), (4, 400)):
        journal.stage(a_run(txid, [txid], time_us=time_us))
    journal.commit()
    assert [journal.find_time(t) for t in (0, 100, 150, 200, 350, 401)] == [1, 1, 2, 2, 4, 5]
