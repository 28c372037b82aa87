"""Writes that go on while the writer does something else, and the front log's commits by them."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.journal_cases import StepJournal, a_run, when_idle

from raylay.storage import lmdb_journal, overlapped
from raylay.storage.front import FRONT_NAMES
from raylay.storage.front_entries import PAGE_BYTES
from raylay.storage.journal_reader import LmdbJournalReader
from raylay.storage.overlapped import OverlappedWrite

pytestmark = pytest.mark.covers("Journal", "what is prepared while the disk writes a commit leaves")


@pytest.fixture(autouse=True)
def _nothing_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in front stays there until something else takes it along."""
    monkeypatch.setattr(lmdb_journal, "MOVE_S", 3_600.0)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[StepJournal]:
    made = StepJournal(tmp_path / "journal", front_log=True)
    made.stage(a_run(1, [1]))
    assert made.commit() == 1
    yield made
    made.close()


class Beside:
    """What a reader of another process sees, each time that it is asked."""

    def __init__(self, journal: StepJournal) -> None:
        self.journal = journal
        self.seen: list[tuple[str, int]] = []
        self.during: Callable[[], None] = lambda: None

    def _look(self, when: str) -> None:
        with LmdbJournalReader(self.journal.directory) as reader:
            self.seen.append((when, reader.last_txid))

    def prepare(self, last_txid: int) -> None:
        self._look("prepare")
        self.during()

    def durable(self) -> None:
        self._look("durable")


def commit(journal: StepJournal, txid: int, beside: Beside) -> None:
    when_idle(journal).keep(a_run(txid, [txid]))
    journal.commit_here(beside)


def test_what_was_begun_is_in_the_file_when_it_ended(tmp_path: Path) -> None:
    files = [tmp_path / "one", tmp_path / "other"]
    for path in files:
        path.write_bytes(bytes(4 * PAGE_BYTES))
    descriptors = [os.open(path, os.O_RDWR | os.O_DIRECT) for path in files]
    buffer = mmap.mmap(-1, PAGE_BYTES)
    writes = OverlappedWrite(memoryview(buffer))
    for file, offset in ((0, 0), (1, 2 * PAGE_BYTES), (0, PAGE_BYTES)):
        buffer[:] = bytes((65 + file,)) * PAGE_BYTES
        assert writes.begin(descriptors[file], PAGE_BYTES, offset)
        assert writes.end() == PAGE_BYTES
    writes.close()
    for descriptor in descriptors:
        os.close(descriptor)
    assert files[0].read_bytes() == b"A" * 2 * PAGE_BYTES + bytes(2 * PAGE_BYTES)
    assert files[1].read_bytes() == bytes(2 * PAGE_BYTES) + b"B" * PAGE_BYTES + bytes(PAGE_BYTES)


def test_what_cannot_be_written_says_so(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(PAGE_BYTES))
    writes = OverlappedWrite(memoryview(mmap.mmap(-1, PAGE_BYTES)))
    descriptor = os.open(path, os.O_RDONLY)
    # Whichever of the two says so.
    if writes.begin(descriptor, PAGE_BYTES, 0):
        with pytest.raises(OSError, match="descriptor"):
            writes.end()
    os.close(descriptor)
    assert not writes.begin(descriptor, PAGE_BYTES, 0)
    writes.close()


def test_the_answer_of_a_write_that_nobody_waited_for_is_not_that_of_the_next(
    tmp_path: Path,
) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(2 * PAGE_BYTES))
    writes = OverlappedWrite(memoryview(mmap.mmap(-1, 2 * PAGE_BYTES)))
    descriptor = os.open(path, os.O_RDWR | os.O_DIRECT)
    assert writes.begin(descriptor, 2 * PAGE_BYTES, 0)
    assert writes.begin(descriptor, PAGE_BYTES, 0)
    assert writes.end() == PAGE_BYTES
    os.close(descriptor)
    writes.close()


def test_readers_beside_the_writer_see_a_commit_when_it_may_be_told_and_not_before(
    journal: StepJournal,
) -> None:
    beside = Beside(journal)
    for txid in range(2, 40):
        commit(journal, txid, beside)
    assert beside.seen[::2] == [("prepare", txid - 1) for txid in range(2, 40)]
    assert beside.seen[1::2] == [("durable", txid) for txid in range(2, 40)]
    assert journal.commits == list(range(1, 40)) and not journal.failures


def test_what_the_front_could_not_write_the_store_takes(
    journal: StepJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = Beside(journal)

    def fails(_: int) -> None:
        monkeypatch.setattr(os, "fdatasync", fdatasync)
        raise OSError(errno.EIO, "it is broken")

    fdatasync = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", fails)
    commit(journal, 2, beside)
    assert beside.seen == [("prepare", 1)], "no reader was to be told of the front"
    assert journal.commits == [1, 2] and not journal.failures
    assert "it is broken" in journal.front_log_failure and FRONT_NAMES[0] in (
        journal.front_log_failure
    )
    commit(journal, 3, beside)
    assert beside.seen[1:] == [("prepare", 2), ("durable", 3)], "the other file takes it"
    assert [run.first_txid for run in journal.read(0) + journal.read(2)] == [1, 2, 3]


def test_what_neither_could_write_failed(
    journal: StepJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = Beside(journal)

    def fails(*_: object) -> None:
        raise OSError(errno.EIO, "it is broken")

    with monkeypatch.context() as broken:
        broken.setattr(os, "fdatasync", fails)
        broken.setattr(journal, "_put", fails)
        commit(journal, 2, beside)
    assert beside.seen == [("prepare", 1)]
    assert journal.commits == [1] and [txid for txid, _ in journal.failures] == [2]
    commit(journal, 2, beside)
    assert journal.commits == [1, 2]


def test_the_buffer_is_the_kernels_until_the_disk_answered(
    journal: StepJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever happens meanwhile."""
    ended: list[int] = []
    end = OverlappedWrite.end
    monkeypatch.setattr(OverlappedWrite, "end", lambda self: ended.append(end(self)) or ended[-1])
    beside = Beside(journal)

    def killed() -> None:
        raise KeyboardInterrupt

    beside.during = killed
    with pytest.raises(KeyboardInterrupt):
        commit(journal, 2, beside)
    assert ended == [PAGE_BYTES]


@pytest.mark.parametrize("how", ["unknown machine", "refused", "not taken"])
def test_where_the_kernel_does_not_all_is_written_as_ever(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if how == "unknown machine":
        monkeypatch.setattr(overlapped, "_NUMBERS", {})
    elif how == "refused":
        # Of no call at all: the kernel does not know it.
        monkeypatch.setattr(overlapped, "_NUMBERS", dict.fromkeys(overlapped._NUMBERS, [9999] * 4))
    else:
        monkeypatch.setattr(OverlappedWrite, "begin", lambda *_: False)
    journal = StepJournal(tmp_path / "journal", front_log=True)
    beside = Beside(journal)
    for txid in range(1, 10):
        commit(journal, txid, beside)
    assert {when for when, _ in beside.seen} == {"durable"}
    assert journal.commits == list(range(1, 10)) and not journal.front_log_failure
    journal.close()
