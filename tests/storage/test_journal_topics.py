"""Totals of topics in a journal: they equal a scan of all records, whatever became of segments."""

from __future__ import annotations

import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmdb
import pytest
from support.journal_cases import StepJournal, a_run

from raylay.services.messages import topic_totals
from raylay.services.messages.records import Command, Flag, RecordBuilder, Run
from raylay.services.messages.topic_totals import TopicTotal
from raylay.storage import journal_topics
from raylay.storage.lmdb_journal import LmdbJournal, LmdbJournalReader
from raylay.storage.maintenance import SegmentMaintenance
from raylay.storage.segments import META_PREFIX

SEGMENT_BYTES = 24 * 1024
TOPICS = ("orders", "trades", "rare")


def a_message(txid: int, topic: str, count: int = 5) -> Run:
    return a_run(
        txid, range(txid, txid + count), topic=topic, body_bytes=200, time_us=1_000_000 + txid
    )


def an_acknowledgment(txid: int) -> Run:
    payload = RecordBuilder(7, "work", "json").build(
        txid, b"", 0, command=Command.QUEUE_ACKNOWLEDGMENT
    )
    run = Run(7, txid, txid, 1, payload, b"work", b"json", flags=Flag.COMMANDS | Flag.CONTIGUOUS)
    run.first_txid, run.receive_time_us = txid, 5
    return run


def fill(journal: StepJournal, runs: int = 120) -> None:
    txid = journal.last_txid + 1
    for at in range(runs):
        if at % 7 == 3:
            run = an_acknowledgment(txid)
        else:
            # Each topic is in segments of its own for a while, and `rare` in few of them.
            topic = "rare" if at % 50 == 1 else TOPICS[at // 20 % 2]
            run = a_message(txid, topic)
        journal.stage(run)
        txid = run.last_txid + 1
        if at % 10 == 9:
            journal.commit()
    journal.commit()
    journal.settle()


def settled(journal: StepJournal) -> None:
    """Waits for retention, and for the count that it orders."""
    journal.settle()
    journal.settle()


def scanned(reader: Any) -> set[tuple[Any, ...]]:
    """Totals by a scan of all runs, written without what is tested."""
    found: dict[tuple[str, str], list[int]] = {}
    at = reader.first_txid - 1
    while runs := reader.read(at):
        for run in runs:
            at = run.last_txid
            key = run.topic.decode(), run.message_type.decode()
            entry = found.setdefault(key, [0, 0, 0, 0])
            entry[1] += len(run.encode())
            if run.topic == b"work":
                continue
            entry[0] += run.count
            entry[2] = min(entry[2] or run.receive_time_us, run.receive_time_us)
            entry[3] = max(entry[3], run.receive_time_us)
    return {(*key, *entry) for key, entry in found.items()}


def told(journal: LmdbJournal) -> set[tuple[Any, ...]]:
    return {each[:6] for each in journal.topics.most(1_000)}


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[StepJournal]:
    made = StepJournal(tmp_path / "journal", segment_bytes=SEGMENT_BYTES)
    yield made
    made.close()


@pytest.mark.parametrize("front_log", [False, True], ids=["store", "front"])
def test_totals_equal_a_scan_before_and_after_a_restart(tmp_path: Path, front_log: bool) -> None:
    journal = StepJournal(tmp_path / "journal", segment_bytes=SEGMENT_BYTES, front_log=front_log)
    try:
        fill(journal)
        assert len(journal.segments()) > 4
        before = scanned(journal)
        assert told(journal) == before and len(before) == 4
        journal = journal.reopen()
        journal.settle()
        assert journal.topics.is_counted
        assert told(journal) == before
        fill(journal, 30)
        assert told(journal) == scanned(journal) != before
    finally:
        journal.close()


@pytest.mark.parametrize("restarts", [False, True], ids=["running", "restarted"])
def test_removed_segments_are_taken_off_and_the_next_message_is_the_oldest(
    journal: StepJournal, restarts: bool
) -> None:
    fill(journal)
    if restarts:
        journal.close()
        journal = StepJournal(journal.directory, segment_bytes=SEGMENT_BYTES)
    journal.removable(journal.last_txid)
    while len(journal.segments()) > 2:
        first = journal.segments()[0]
        assert journal.remove(first.last_txid + 1)[0].done
        settled(journal)
        assert told(journal) == scanned(journal)
    journal.close()


def test_retention_takes_off_and_the_counter_for_rates_only_rises(tmp_path: Path) -> None:
    journal = StepJournal(
        tmp_path / "journal", segment_bytes=SEGMENT_BYTES, retention_bytes=3 * SEGMENT_BYTES
    )
    try:
        logged: dict[str, int] = {}
        for _ in range(6):
            fill(journal, 60)
            journal.removable(journal.last_txid)
            settled(journal)
            assert told(journal) == scanned(journal)
            for each in journal.topics.page(0, 100):
                assert each.logged >= logged.get(each.topic, 0)
                logged[each.topic] = each.logged
        assert journal.first_txid > 1
        assert logged["orders"] > {each[0]: each[2] for each in told(journal)}["orders"]
    finally:
        journal.close()


def test_a_restart_is_no_rate(journal: StepJournal) -> None:
    fill(journal)
    assert journal.topics.page(0, 1)[0].logged > 0
    again = journal.reopen()
    try:
        before = {each.topic: each.logged for each in again.topics.page(0, 100)}
        again.settle()
        after = {each.topic: each.logged for each in again.topics.page(0, 100)}
        # What was journaled in an earlier life is no message of this one.
        assert {topic: after[topic] for topic in before} == before
        assert sum(after.values()) < sum(each.messages for each in again.topics.page(0, 100))
    finally:
        again.close()


def test_what_another_process_removes_or_compresses_is_found(journal: StepJournal) -> None:
    fill(journal)
    other = SegmentMaintenance(journal.directory)
    assert other.compress(journal.segments()[1].last_txid + 1)
    journal.topics.refresh()
    assert told(journal) == scanned(journal)
    removed = other.remove(journal.segments()[1].last_txid + 1, force=True)
    assert [each.done for each in removed] == [True, True]
    assert not journal.topics.is_current(journal.first_txid)
    journal.topics.refresh()
    assert journal.topics.is_current(journal.first_txid)
    assert told(journal) == scanned(journal)


def test_a_clock_that_was_set_back_makes_no_wrong_times(journal: StepJournal) -> None:
    txid = 1
    for time_us in (9_000_000, 1_000_000, 5_000_000, 2_000_000, 8_000_000, 3_000_000):
        for _ in range(30):
            run = a_run(
                txid, range(txid, txid + 5), topic="orders", body_bytes=200, time_us=time_us + txid
            )
            journal.stage(run)
            txid = run.last_txid + 1
        journal.commit()
    journal.settle()
    journal.removable(journal.last_txid)
    while len(journal.segments()) > 2:
        assert told(journal) == scanned(journal)
        assert journal.remove(journal.segments()[0].last_txid + 1)[0].done
        settled(journal)
    assert told(journal) == scanned(journal)


def test_topics_beyond_the_limit_are_counted_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_totals, "COUNTED_MAX", 4)
    monkeypatch.setattr(journal_topics, "COUNTED_MAX", 4)
    journal = StepJournal(tmp_path / "journal", segment_bytes=SEGMENT_BYTES)
    try:
        for _ in range(2):
            for at in range(60):
                journal.stage(a_message(journal._next_txid, f"t{at % 9}"))
                if at % 10 == 9:
                    journal.commit()
            journal.settle()
            assert len({each.topic for each in journal.topics.page(0, 9)}) == 4
            every = sum(each[2] for each in scanned(journal))
            shown = sum(each.messages for each in journal.topics.most(9))
            assert shown + journal.topics.messages_of_others == every
            journal.removable(journal.last_txid)
            assert journal.remove(journal.segments()[2].last_txid + 1)
            settled(journal)
    finally:
        journal.close()


def test_a_page_at_a_time_has_every_topic_once(journal: StepJournal) -> None:
    fill(journal)
    pages = [journal.topics.page(at, 2) for at in (0, 2, 4)]
    assert [len(page) for page in pages] == [2, 2, 0]
    assert {each.topic for page in pages for each in page} == {*TOPICS, "work"}
    assert all(isinstance(each, TopicTotal) for each in pages[0])


def test_a_damaged_seal_leaves_the_rest_counted(
    journal: StepJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(journal)
    whole = scanned(journal)
    monkeypatch.setattr(journal_topics.TopicTotals, "from_bytes", classmethod(damaged_once()))
    again = journal.reopen()
    try:
        again.settle()
        assert again.topics.is_counted
        assert 0 < sum(each[2] for each in told(again)) < sum(each[2] for each in whole)
    finally:
        again.close()


@pytest.mark.parametrize("compressed", [False, True], ids=["sealed", "compressed"])
def test_a_seal_without_totals_is_counted_by_its_runs(
    journal: StepJournal, compressed: bool
) -> None:
    fill(journal)
    journal.close()
    sealed = sorted(journal.directory.glob("*.sealed"))
    for path in sealed:
        environment = lmdb.open(str(path), subdir=False, map_size=1 << 28)
        with environment as env, env.begin(write=True) as txn:
            assert txn.delete(META_PREFIX + b"totals")
    if compressed:
        assert all(each.done for each in SegmentMaintenance(journal.directory).compress())
    again = StepJournal(journal.directory, segment_bytes=SEGMENT_BYTES)
    try:
        again.settle()
        assert again.topics.is_counted and len(sealed) > 3
        assert told(again) == scanned(again)
    finally:
        again.close()


def damaged_once() -> Any:
    real = journal_topics.TopicTotals.from_bytes.__func__  # type: ignore[attr-defined]
    left = [1]

    def from_bytes(cls: Any, value: bytes) -> Any:
        if left and left.pop():
            raise struct.error("cut short")
        return real(cls, value)

    return from_bytes


@pytest.mark.parametrize("front", ["", "front"])
def test_totals_after_a_kill_equal_a_scan(tmp_path: Path, front: str) -> None:
    child = Path(__file__).with_name("journal_child.py")
    directory, archive = tmp_path / "journal", tmp_path / "archive"
    process = subprocess.Popen(
        [sys.executable, child, str(directory), str(archive), "0", front],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if int(line.split()[1]) > 12_000:
            break
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    journal = StepJournal(directory, segment_bytes=128 * 1024, archive_directory=archive)
    try:
        journal.settle()
        with LmdbJournalReader(directory, archive) as reader:
            assert told(journal) == scanned(reader)
        assert journal.topics.is_counted and len(journal.segments()) > 2
    finally:
        journal.close()
