"""The front log's files: what readers beside the writer see, a write that fails, a full disk,
damage, and the tools that know them."""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.journal_cases import StepJournal, a_run
from typer.testing import CliRunner

from raylay.services.commands.journal import journal_app
from raylay.services.errors import CorruptRecord, StorageFull
from raylay.services.messages.records import Run
from raylay.services.pipeline.journals import JournalPlace, JournalStretch, StretchReader, last_txid
from raylay.storage import front, front_log, lmdb_journal
from raylay.storage.front import END_NAME, FRONT_NAMES, FrontReader
from raylay.storage.front_entries import PAGE_BYTES
from raylay.storage.front_log import FrontLog
from raylay.storage.journal_reader import LmdbJournalReader
from raylay.storage.lmdb_journal import LmdbJournal
from raylay.storage.verify import VerifyResult, verify_journal
from raylay.storage.wipe import wipe_journal

pytestmark = pytest.mark.covers("Journal", "the front log: an entry's bytes")


@pytest.fixture(autouse=True)
def _nothing_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in front stays there until something else takes it along."""
    monkeypatch.setattr(lmdb_journal, "MOVE_S", 3_600.0)
    monkeypatch.setattr(front, "FILE_BYTES", 16 * PAGE_BYTES)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[StepJournal]:
    made = StepJournal(tmp_path / "journal", front_log=True)
    yield made
    made.close()


def put(journal: StepJournal, upto: int) -> None:
    """A commit a message, from the next transaction id on."""
    for txid in range(journal.last_txid + 1, upto + 1):
        journal.stage(a_run(txid, range(txid, txid + 1)))
        assert journal.commit() == txid


def all_of(reader: LmdbJournalReader | LmdbJournal) -> list[int]:
    """The transaction ids that it reads."""
    found: list[Run] = []
    while runs := reader.read(found[-1].last_txid if found else 0, 500):
        found += runs
    return [run.first_txid for run in found]


def killed(journal: StepJournal, directory: Path) -> Path:
    """The directory as a SIGKILL leaves it now."""
    copy = directory / f"killed at {journal.last_txid}"
    shutil.copytree(journal.directory, copy)
    return copy


def in_store(directory: Path) -> int:
    """Where LMDB ends."""
    with LmdbJournalReader(directory) as reader:
        return reader._stored_txid()


def full_disk(*_: object) -> None:
    raise lmdb_journal.lmdb.DiskError("No space left on device")


def other_boot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front, "boot_id", lambda: b"another boot")


def test_readers_of_other_processes_see_commits_at_once(journal: StepJournal) -> None:
    with LmdbJournalReader(journal.directory) as reader:
        for last in (1, 2, 5, 9):
            put(journal, last)
            assert in_store(journal.directory) <= 1, "it is in front"
            assert reader.last_txid == last
            assert all_of(reader) == list(range(1, last + 1))
            assert [run.first_txid for run in reader.read(last - 1)] == [last]
            assert reader.find_sequence(7, last) == last
            assert reader.first_held(7, 1, 99) == 1
            assert reader.find_time(last * 10) == last
            assert reader.highest_on_topic(7, b"orders", journal.recovered.held.of(7)) == 0
            assert reader.segments()[-1].records == last
        with journal._store_lock:
            journal._move()
        assert in_store(journal.directory) == 9
        put(journal, 12)
        assert all_of(reader) == list(range(1, 13))
        assert reader.segments()[-1].records == 12


@pytest.mark.parametrize("mapped", [True, False])
def test_a_commit_is_one_write_for_readers_and_none_where_the_file_is_mapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mapped: bool
) -> None:
    monkeypatch.setattr(front, "overwrites_in_place", lambda _: mapped)
    journal = StepJournal(tmp_path / "journal", front_log=True)
    put(journal, 3)
    written: list[int] = []
    write = front.write_whole

    def counted(descriptor: int, content: bytes, offset: int) -> None:
        written.append(offset)
        write(descriptor, content, offset)

    monkeypatch.setattr(front, "write_whole", counted)
    put(journal, 6)
    assert len(written) == (0 if mapped else 3) and 0 not in written, "and none of the head"
    monkeypatch.undo()
    with LmdbJournalReader(journal.directory) as reader:
        assert reader.last_txid == 6 > in_store(journal.directory)
    journal.close()


def test_readers_see_each_commit_wherever_they_began(journal: StepJournal) -> None:
    early = FrontReader(journal.directory)
    seen = []
    for upto in range(2, 10):
        put(journal, upto)
        late = FrontReader(journal.directory)
        seen.append((early.last_txid(0), late.last_txid(0)))
        late.close()
        if upto == 6:
            journal._move()
    assert seen == [(upto, upto) for upto in range(2, 10)]
    early.close()


@pytest.mark.parametrize("mapped", [True, False])
def test_readers_take_nothing_of_a_former_use_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mapped: bool
) -> None:
    """The directory's journal had five transactions, then lost them and begins again: what lies
    behind its first entry would follow it, and so would what lies where that is to come."""
    monkeypatch.setattr(front, "overwrites_in_place", lambda _: mapped)
    (tmp_path / END_NAME).write_bytes(bytes(front.END_BYTES))
    blocks = {txid: a_run(txid, range(txid, txid + 1)).encode() for txid in range(1, 6)}
    ends = []
    for life in (5, 1, 0):
        end = front.FrontEnd(tmp_path)
        end.moved(0)
        for txid in range(1, life + 1):
            end.append(txid, txid, blocks[txid])
        reader = FrontReader(tmp_path)
        ends.append(reader.last_txid(0))
        reader.close()
        end.close()
    assert ends == [5, 1, 0]


class Watched:
    """A mapping that says after each store into it what a reader sees."""

    def __init__(self, mapped: mmap.mmap, reader: FrontReader) -> None:
        self._mapped, self._reader = mapped, reader
        self.seen: list[int] = []

    def __setitem__(self, place: slice, content: bytes) -> None:
        # Stores of a processor are as wide as it likes: a reader may come between any two.
        for at, byte in zip(range(place.start, place.stop), content, strict=True):
            self._mapped[at] = byte
            self.seen.append(self._reader.last_txid(0))

    def close(self) -> None:
        self._mapped.close()


@pytest.mark.covers("Journal", "readers in other processes see an entry of `front-end`")
def test_an_entry_is_seen_when_the_whole_of_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a file that was used before, so that what is overwritten is an entry, too."""
    monkeypatch.setattr(front, "overwrites_in_place", lambda _: True)
    (tmp_path / END_NAME).write_bytes(bytes(front.END_BYTES))
    blocks = {txid: a_run(txid, range(txid, txid + 1)).encode() for txid in range(1, 6)}
    for life in (5, 3):
        reader, end = FrontReader(tmp_path), front.FrontEnd(tmp_path)
        end.moved(0)
        assert end._map is not None
        end._map = watched = Watched(end._map, reader)  # type: ignore[assignment]
        for txid in range(1, life + 1):
            watched.seen.clear()
            end.append(txid, txid, blocks[txid])
            assert set(watched.seen[:-1]) <= {txid - 1, txid} and watched.seen[-1] == txid
            # Only the checksum's own last bytes may be zero.
            assert watched.seen.index(txid) >= len(watched.seen) - 8
        reader.close()
        end.close()


def test_where_it_cannot_be_mapped_an_entry_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> mmap.mmap:
        raise OSError("no device")

    monkeypatch.setattr(front, "overwrites_in_place", lambda _: True)
    monkeypatch.setattr(front.mmap, "mmap", refused)
    (tmp_path / END_NAME).write_bytes(bytes(front.END_BYTES))
    reader, end = FrontReader(tmp_path), front.FrontEnd(tmp_path)
    end.moved(0)
    end.append(1, 1, a_run(1, range(1, 2)).encode())
    assert reader.last_txid(0) == 1
    reader.close()
    end.close()


def test_an_entry_that_could_not_be_written_whole_is_not_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front, "overwrites_in_place", lambda _: False)
    (tmp_path / END_NAME).write_bytes(bytes(front.END_BYTES))
    end = front.FrontEnd(tmp_path)
    end.moved(0)
    pwrite = os.pwrite

    def full(descriptor: int, content: bytes, offset: int) -> int:
        # All but the last byte, as where a disk is full.
        return pwrite(descriptor, content[:-1] if len(content) > 8 else content, offset)

    reader = FrontReader(tmp_path)
    block = a_run(1, range(1, 2)).encode()
    with monkeypatch.context() as broken:
        broken.setattr(os, "pwrite", full)
        with pytest.raises(OSError, match="bytes were written"):
            end.append(1, 1, block)
    assert reader.last_txid(0) == 0
    end.append(1, 1, block)
    assert reader.last_txid(0) == 1
    reader.close()
    end.close()


@pytest.mark.parametrize("is_due", [False, True])
def test_a_full_map_takes_what_is_in_front_along_to_the_next_segment(
    journal: StepJournal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_due: bool
) -> None:
    """The next segment begins with what was in front: else nobody would find that again."""
    put(journal, 9)
    write = journal._put
    left = [True]

    def full(*given: object) -> None:
        if left[0]:
            left[0] = False
            raise lmdb_journal.lmdb.MapFullError("MDB_MAP_FULL")
        write(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(journal, "_put", full)
    journal.stage(a_run(10, range(10, 30), body_bytes=front.BLOCK_BYTES_MAX // 10))
    if is_due:
        monkeypatch.setattr(journal, "_must_rotate", lambda: left[0])
    assert journal.commit() == 29 and not left[0]
    journal.settle()
    copy = killed(journal, tmp_path)
    again = StepJournal(copy, front_log=True)
    verified = VerifyResult()
    assert list(verify_journal(copy, None, verified)) == []
    assert (verified.segments, verified.records) == (2, 29), "the index of the first says no more"
    assert again.recovered.next_txid == 30
    assert [txid for run in runs_of(again) for txid in run] == list(range(1, 30))
    put(again, 32)
    again.close()
    with LmdbJournalReader(copy) as reader:
        assert [txid for run in runs_of(reader) for txid in run] == list(range(1, 33))


def runs_of(reader: LmdbJournalReader | LmdbJournal) -> list[range]:
    found: list[Run] = []
    while runs := reader.read(found[-1].last_txid if found else 0, 500):
        found += runs
    return [range(run.first_txid, run.last_txid + 1) for run in found]


def test_what_was_moved_gives_its_place_back(tmp_path: Path) -> None:
    (tmp_path / END_NAME).write_bytes(bytes(front.END_BYTES))
    end = front.FrontEnd(tmp_path)
    end.moved(0)
    block = a_run(1, range(1, 2)).encode()
    txid = 0
    while end.has_room(len(block)) and txid < 100_000:
        txid += 1
        end.append(txid, txid, block)
    end.moved(txid - 1)
    assert not end.has_room(len(block)), "the last one is still in front"
    end.moved(txid)
    assert end.has_room(front.BLOCK_BYTES_MAX)
    end.close()


def test_a_full_disk_keeps_no_half_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            front.make_files(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_newest_entries_are_removed_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else who ends in between leaves the newer ones behind a gap."""
    front.make_files(tmp_path)
    written = front.Front(tmp_path, 1)
    block = a_run(1, range(1, 2)).encode()
    txid = 1
    while written.append(txid, txid, block):
        txid += 1
    written.close()
    entries = front.read_entries(tmp_path)
    assert all(entries)
    newest = max(range(len(entries)), key=lambda number: entries[number][-1].last_txid)
    monkeypatch.setattr(front, "sync_directory", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        front.remove_front(tmp_path)
    left = front.read_entries(tmp_path)
    assert not left[newest] and sum(map(bool, left)) == len(left) - 1


def test_spark_reads_what_is_in_front(journal: StepJournal) -> None:
    put(journal, 9)
    place = JournalPlace("a", "", str(journal.directory))
    assert last_txid(place) == 9
    reader = StretchReader(JournalStretch(place, 1, 1, 9))
    assert [key for blocks in reader.blocks() for key, _ in blocks] == list(range(1, 10))
    reader.close()


def test_what_a_machine_left_is_read_as_a_restart_would(
    journal: StepJournal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(journal, 9)
    copy = killed(journal, tmp_path)
    other_boot(monkeypatch)
    with LmdbJournalReader(copy) as reader:
        assert (reader.last_txid, all_of(reader)) == (9, list(range(1, 10)))
    for content in (b"", bytes(4096), os.urandom(4096)):
        (copy / END_NAME).write_bytes(content)
        with LmdbJournalReader(copy) as reader:
            assert (reader.last_txid, all_of(reader)) == (9, list(range(1, 10)))


def test_a_restart_takes_it_and_raises_the_generation(journal: StepJournal, tmp_path: Path) -> None:
    put(journal, 9)
    copy = killed(journal, tmp_path)
    again = StepJournal(copy, front_log=True)
    assert again.recovered.next_txid == 10 and in_store(copy) == 9
    assert list(again.recovered.held.of(7)) == [(1, 9)]
    assert again._front._front is not None and again._front._front.space.generation == 2
    put(again, 12)
    again.close()
    assert in_store(copy) == 12, "a clean stop leaves nothing in front"


def test_a_journal_without_a_front_gets_one_and_without_the_setting_loses_it(
    tmp_path: Path,
) -> None:
    directory = tmp_path / "journal"
    without = StepJournal(directory)
    put(without, 3)
    without.close()
    assert not front.front_files(directory)
    with_front = StepJournal(directory, front_log=True)
    put(with_front, 6)
    assert in_store(directory) == 3
    copy = killed(with_front, tmp_path)
    with_front.close()
    again = StepJournal(copy)
    again.settle()
    assert again.last_txid == in_store(copy) == 6
    assert not front.front_files(copy)
    again.close()


def test_files_are_used_again_and_again(journal: StepJournal) -> None:
    put(journal, 100)
    with LmdbJournalReader(journal.directory) as reader:
        assert all_of(reader) == list(range(1, 101))


def test_a_failed_write_retires_its_file_and_loses_nothing(
    journal: StepJournal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(journal, 4)
    real = os.pwrite

    def torn(descriptor: int, content: bytes | memoryview, offset: int) -> int:
        if isinstance(content, memoryview):
            real(descriptor, content, offset)
            raise OSError(errno.EIO, "it says so")
        return real(descriptor, content, offset)

    monkeypatch.setattr(os, "pwrite", torn)
    put(journal, 5)
    monkeypatch.undo()
    assert in_store(journal.directory) == 5, "the store took it, and all before it"
    assert "it says so. One file is given up" in journal.front_log_failure
    put(journal, 8)
    assert in_store(journal.directory) == 5, "the other file is in use"
    again = LmdbJournal(killed(journal, tmp_path))
    assert again.last_txid == 8
    again.close()


@pytest.mark.parametrize("missing_bytes", [1, PAGE_BYTES])
def test_a_short_write_is_not_taken_for_a_whole_one(
    missing_bytes: int, journal: StepJournal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An acknowledged message would be gone after a crash."""
    put(journal, 4)
    real = os.pwrite

    def short(descriptor: int, content: bytes | memoryview, offset: int) -> int:
        if isinstance(content, memoryview):
            # Past the page cache whole pages are written.
            real(descriptor, content[:-PAGE_BYTES], offset)
            return len(content) - missing_bytes
        return real(descriptor, content, offset)

    monkeypatch.setattr(os, "pwrite", short)
    put(journal, 5)
    monkeypatch.undo()
    assert "bytes were written. One file is given up" in journal.front_log_failure
    with LmdbJournalReader(killed(journal, tmp_path)) as reader:
        assert all_of(reader) == [1, 2, 3, 4, 5]


def test_a_short_write_of_the_kernel_is_not_taken_for_a_whole_one(tmp_path: Path) -> None:
    """The commit that the instance has taken meanwhile is not told of as durable."""
    told: list[str] = []

    class Kernel:
        length = 0

        def begin(self, descriptor: int, length: int, offset: int) -> bool:
            self.length = length
            return True

        def end(self) -> int:
            return self.length - 1

        def close(self) -> None:
            pass

    class Instance:
        def prepare(self, last_txid: int) -> None:
            told.append("prepared")

        def durable(self) -> None:
            told.append("durable")

    front.make_files(tmp_path)
    files = front.Front(tmp_path, 1)
    if files._overlapped is not None:
        files._overlapped.close()
    kernel = Kernel()
    files._overlapped = kernel  # type: ignore[assignment]
    with pytest.raises(OSError, match=r"\d+ of \d+ bytes were written"):
        files.append(1, 1, b"block", Instance())
    assert kernel.length and told == ["prepared"]
    assert not front.read_entries(tmp_path)[0], "nothing of it is there"
    files.close()


def test_ids_of_a_failed_commit_are_used_again(
    journal: StepJournal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither front nor store take it, though all of it is on the front's pages."""
    put(journal, 4)
    real = os.pwrite

    def failing(descriptor: int, content: bytes | memoryview, offset: int) -> int:
        real(descriptor, content, offset)
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", failing)
        patched.setattr(journal, "_put", full_disk)
        journal.stage(a_run(5, range(50, 60)))
        assert journal.commit() == 4
    assert isinstance(journal.failures[0][1], StorageFull)
    with LmdbJournalReader(journal.directory) as reader:
        assert all_of(reader) == [1, 2, 3, 4], "nobody sees what failed"
    journal.stage(a_run(5, range(5, 6)))
    assert journal.commit() == 5
    put(journal, 7)
    again = LmdbJournal(killed(journal, tmp_path))
    assert list(again.recovered.held.of(7)) == [(1, 7)]
    again.close()


def test_a_commit_that_readers_could_not_be_shown_is_not_taken_for_one_of_the_next_front(
    journal: StepJournal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is whole on the front's pages and was never told: in the generation of what is written
    from then on, a restart would miss something behind it."""
    put(journal, 4)

    def unseen(*_: object) -> None:
        raise OSError(errno.EIO, "the disk is gone")

    with monkeypatch.context() as patched:
        patched.setattr(journal._front._end, "append", unseen)
        patched.setattr(journal, "_put", full_disk)
        journal.stage(a_run(5, range(50, 60)))
        assert journal.commit() == 4
    with journal._store_lock:
        journal._move()
    journal._open_front()
    put(journal, 6)
    assert in_store(journal.directory) == 4, "it goes in front again"
    again = LmdbJournal(killed(journal, tmp_path))
    assert list(again.recovered.held.of(7)) == [(1, 6)]
    again.close()


def test_without_space_behind_it_the_front_is_kept_and_publishers_are_refused(
    journal: StepJournal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(journal, 4)
    with monkeypatch.context() as patched:
        patched.setattr(journal, "_put", full_disk)
        with journal._store_lock, pytest.raises(lmdb_journal.lmdb.DiskError):
            journal._move()
        journal._move_error = StorageFull("no space", "")
        journal.stage(a_run(5, range(5, 6)))
        assert journal.commit() == 4
        assert isinstance(journal.failures[0][1], StorageFull)
        with LmdbJournalReader(journal.directory) as reader:
            assert all_of(reader) == [1, 2, 3, 4]
        copy = killed(journal, tmp_path)
        patched.setattr(LmdbJournal, "_put", full_disk)
        again = LmdbJournal(copy)
        assert again.recovered.next_txid == 5, "it opens, what it has is in front"
        assert all_of(again) == [1, 2, 3, 4]
        again.close()
    assert in_store(copy) == 1
    journal.stage(a_run(5, range(5, 6)))
    assert journal.commit() == 5
    assert in_store(journal.directory) == 5
    put(journal, 6)
    assert in_store(journal.directory) == 5, "small commits go in front again"


def test_where_no_file_can_be_used_the_store_takes_all_and_it_is_tried_again(
    journal: StepJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert journal.front_log_failure == ""
    put(journal, 4)
    real = os.pwrite

    def failing(descriptor: int, content: bytes | memoryview, offset: int) -> int:
        if isinstance(content, memoryview):
            raise OSError(errno.EIO, "the disk is gone")
        return real(descriptor, content, offset)

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", failing)
        put(journal, 6)
    put(journal, 8)
    assert in_store(journal.directory) == 8
    assert "the disk is gone. Each commit goes to LMDB at once" in journal.front_log_failure
    journal._open_front()
    put(journal, 9)
    assert in_store(journal.directory) == 8 and journal.front_log_failure == ""


def test_what_is_in_front_has_its_room_in_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store takes whole pages: what fits by its bytes alone would fill more than the limit, and
    nothing smaller would be taken any more."""
    monkeypatch.setattr(front, "FILE_BYTES", 8 * 1024 * 1024)
    limit_bytes = 1024 * 1024
    journal = StepJournal(tmp_path / "journal", front_log=True, storage_bytes_max=limit_bytes)
    while not journal.failures:
        txid = journal.last_txid + 1
        journal.stage(a_run(txid, range(txid, txid + 1), body_bytes=61_500))
        journal.commit()
    assert isinstance(journal.failures[0][1], StorageFull) and journal.last_txid > 10
    with journal._store_lock:
        journal._move()
    assert journal._active is not None and journal._active.file_bytes <= limit_bytes
    txid = journal.last_txid + 1
    journal.stage(a_run(txid, range(txid, txid + 1)))
    assert journal.commit() == txid, "what is smaller fits"
    journal.close()


def test_a_commit_to_the_store_while_the_front_opens_hides_none_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An instance takes commits to the store before its front is open, on another thread."""
    log = FrontLog(tmp_path, wanted=True)
    moved = front_log.FrontEnd.moved
    stored = threading.Thread(target=log.moved, args=((), 6))

    def moved_meanwhile(end: front_log.FrontEnd, upto_txid: int) -> None:
        moved(end, upto_txid)
        if not stored.ident:
            stored.start()
            stored.join(0.05)  # The whole of it, or until it waits for what opens the front.

    monkeypatch.setattr(front_log.FrontEnd, "moved", moved_meanwhile)
    log.open()
    stored.join()
    run = a_run(7, range(7, 12))
    block = run.encode()
    assert log.take([run], [len(block)], block)
    reader = FrontReader(tmp_path)
    assert reader.last_txid(6) == run.last_txid
    assert reader.blocks(7, 1 << 20, lambda: 6) == [(7, block)]
    reader.close()
    log.close()


def test_what_left_the_front_between_two_looks_is_looked_for_in_the_store(tmp_path: Path) -> None:
    some, none = tmp_path / "some", tmp_path / "none"
    some.mkdir()
    none.mkdir()
    log = FrontLog(some, wanted=True)
    log.open()
    run = a_run(1, range(1, 6))
    block = run.encode()
    assert log.take([run], [len(block)], block)
    for reader in (FrontReader(some), FrontReader(none)):
        assert reader.blocks(6, 1 << 20, lambda: 5) == [], "it is nowhere yet"
        assert reader.blocks(6, 1 << 20, lambda: 6) is None, "the store has it by now"
        reader.close()
    log.close()


@pytest.mark.parametrize("still_there", [0, 1])
def test_the_end_is_not_missed_where_it_moves_between_two_looks(
    journal: StepJournal, monkeypatch: pytest.MonkeyPatch, still_there: int
) -> None:
    put(journal, 5)
    with LmdbJournalReader(journal.directory) as reader:
        looks: list[int] = []

        def moved(stored_txid: int) -> int:
            if not looks:
                with journal._store_lock:
                    journal._move()
            looks.append(stored_txid)
            return stored_txid + still_there  # The rest is overwritten: the front began anew.

        monkeypatch.setattr(reader._front, "last_txid", moved)
        assert reader.last_txid == 5 and looks[0] < 5


@pytest.mark.parametrize(("much", "value"), [("MUCH_BYTES", 20_000), ("MUCH_COMMITS", 4)])
def test_much_in_front_is_moved_without_waiting(
    much: str, value: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front_log, much, value)
    log = FrontLog(tmp_path, wanted=True)
    log.open()
    run = a_run(1, range(1, 6), body_bytes=1_000)
    block = run.encode()
    ended = threading.Event()

    def wait() -> None:
        log.wait(3_600)
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    while log.bytes_pending < front_log.MUCH_BYTES and len(log.pending()) < front_log.MUCH_COMMITS:
        assert not ended.is_set()
        assert log.take([run], [len(block)], block)
    assert ended.wait(20)
    log.moved(log.pending(), run.last_txid)
    assert not log._much.is_set() and not log._work.is_set()
    log.close()


@pytest.mark.parametrize("page", range(8))
def test_every_missing_page_is_found_and_what_precedes_it_taken(
    page: int, journal: StepJournal, tmp_path: Path
) -> None:
    """The first commit went to the store, the others lie on pages of their own."""
    put(journal, 9)
    copy = killed(journal, tmp_path)
    with open(copy / FRONT_NAMES[0], "r+b") as file:
        file.seek(page * PAGE_BYTES)
        file.write(bytes(PAGE_BYTES))
    if page == 7:
        again = LmdbJournal(copy)  # as if it had never been written
        assert again.last_txid == 8
        again.close()
        return
    with pytest.raises(CorruptRecord, match=f"transaction id {page + 1} was there"):
        LmdbJournal(copy)
    (copy / END_NAME).unlink()
    damages = list(verify_journal(copy, None, VerifyResult()))
    assert [damage.path.name for damage in damages] == [FRONT_NAMES[0]]
    shown = CliRunner().invoke(journal_app, ["repair", str(copy)])
    assert shown.exit_code == 0 and f"ends with transaction id {page + 1}," in shown.stdout
    assert (copy / "front-0.damaged").exists()
    again = LmdbJournal(copy)
    assert again.last_txid == page + 1
    again.close()


def test_tools_know_it(journal: StepJournal, tmp_path: Path) -> None:
    put(journal, 9)
    run = CliRunner().invoke
    for directory in (journal.directory, killed(journal, tmp_path)):
        verified = VerifyResult()
        assert list(verify_journal(directory, None, verified)) == []
        assert (verified.runs, verified.records) == (9, 9)
        dumped = run(journal_app, ["dump", str(directory), "--json"])
        assert len(dumped.stdout.splitlines()) == 9
    directory = killed(journal, tmp_path / "again")
    assert "nothing to repair" in run(journal_app, ["repair", str(directory)]).stdout
    assert wipe_journal(directory, None) >= 4
    again = LmdbJournal(directory)
    assert again.recovered.next_txid == 1
    again.close()


def test_nothing_in_front_is_known_where_there_is_no_file(tmp_path: Path) -> None:
    reader = FrontReader(tmp_path)
    assert reader.blocks(1, 100, lambda: 0) == []
    assert reader.last_txid(7) == 7


def test_a_small_disk_keeps_its_room_for_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were it filled up until the files did not fit, publishers would be refused meanwhile."""
    status = os.statvfs(tmp_path)
    wanted_bytes = len(front.FRONT_NAMES) * front.FILE_BYTES + front.END_BYTES
    for free_bytes, is_made in (
        (wanted_bytes + front.LEFT_BYTES_MIN - status.f_frsize, False),
        (wanted_bytes + front.LEFT_BYTES_MIN, True),
        (0, True),
    ):
        values = list(status)
        values[4] = free_bytes // status.f_frsize
        monkeypatch.setattr(os, "statvfs", lambda _, found=tuple(values): os.statvfs_result(found))
        if is_made:
            front.make_files(tmp_path)
        else:
            with pytest.raises(
                OSError, match=f"the front log needs {wanted_bytes:,} bytes"
            ) as refused:
                front.make_files(tmp_path)
            assert refused.value.errno == errno.ENOSPC
        assert bool(list(tmp_path.iterdir())) == is_made, "what is there needs no more"
