"""Copies of a journal and of stores beside the process that writes them."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import lmdb
import pytest
from support.journal_cases import StepJournal, a_run
from support.journal_runs import every_run

from raylay.services.errors import StorageError
from raylay.storage import backup, lmdb_journal
from raylay.storage.backup import change_store, copy_journal, copy_store
from raylay.storage.front import front_files
from raylay.storage.lmdb_journal import LmdbJournal
from raylay.storage.read_holds import held_read
from raylay.storage.state import LmdbStateStore
from raylay.storage.verify import VerifyResult, verify_journal

SEGMENT_BYTES = 64 * 1024


@pytest.fixture(params=[True, False], ids=["front", "no_front"])
def journal(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StepJournal]:
    made = StepJournal(tmp_path / "journal", front_log=request.param, segment_bytes=SEGMENT_BYTES)
    yield made
    made.close()


def put(journal: StepJournal, upto: int, body_bytes: int = 16) -> None:
    """A commit a message, from the next transaction id on."""
    for txid in range(journal.last_txid + 1, upto + 1):
        journal.stage(a_run(txid, range(txid, txid + 1), body_bytes=body_bytes))
        assert journal.commit() == txid


def sound(copy: Path, last_txid: int) -> None:
    """The copy has every message up to this one once, needs nothing else, and a journal goes on
    behind it."""
    verified = VerifyResult()
    assert [*verify_journal(copy, None, verified)] == [] and verified.records == last_txid
    assert not front_files(copy)
    journal = LmdbJournal(copy)
    journal.start(lambda *_: None, lambda *_: None)
    try:
        assert journal.recovered.next_txid == last_txid + 1
        assert [run.first_txid for run in every_run(journal)] == [*range(1, last_txid + 1)]
    finally:
        journal.close()


def copied(journal: StepJournal, copy: Path, told: Callable[[Path], None] = lambda _: None) -> int:
    return copy_journal(journal.directory, copy, told)


def test_a_copy_has_what_is_in_front_of_the_newest_segment(
    journal: StepJournal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lmdb_journal, "MOVE_S", 3_600.0)
    put(journal, 20)
    assert copied(journal, tmp_path / "copy") == 20
    sound(tmp_path / "copy", 20)


def test_an_empty_journal_is_copied(journal: StepJournal, tmp_path: Path) -> None:
    assert copied(journal, tmp_path / "copy") == 0
    sound(tmp_path / "copy", 0)


def test_sealed_segments_have_two_names_and_the_copy_outlives_the_journal(
    journal: StepJournal, tmp_path: Path
) -> None:
    put(journal, 60, body_bytes=4_000)
    journal.settle()
    sealed = [*journal.directory.glob("*.sealed")]
    assert sealed
    assert copied(journal, tmp_path / "copy") == 60
    assert all((tmp_path / "copy" / path.name).samefile(path) for path in sealed)
    # What happens to the journal later is nothing to the copy.
    assert all(outcome.done for outcome in journal.compress())
    put(journal, 120, body_bytes=4_000)
    sound(tmp_path / "copy", 60)


def test_segments_are_copied_to_another_file_system(
    journal: StepJournal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(os, "link", refused)
    put(journal, 60, body_bytes=4_000)
    journal.settle()
    assert copied(journal, tmp_path / "copy") == 60
    for path in journal.directory.glob("*.sealed"):
        copy = tmp_path / "copy" / path.name
        assert copy.read_bytes() == path.read_bytes() and not copy.samefile(path)
        assert copy.stat().st_mode & 0o077 == 0
    sound(tmp_path / "copy", 60)


def test_a_copy_made_while_a_publisher_goes_on_has_all_that_was_acknowledged_before(
    journal: StepJournal, tmp_path: Path
) -> None:
    put(journal, 40, body_bytes=4_000)
    stopping = threading.Event()

    def go_on() -> None:
        while not stopping.is_set() and journal.last_txid < 100_000:
            put(journal, journal.last_txid + 1, body_bytes=2_000)

    publisher = threading.Thread(target=go_on)
    publisher.start()
    try:
        for number in range(8):
            acknowledged = journal.last_txid
            last_txid = copied(journal, tmp_path / f"copy-{number}")
            assert last_txid >= acknowledged
            sound(tmp_path / f"copy-{number}", last_txid)
    finally:
        stopping.set()
        publisher.join()
    assert not journal.failures


@pytest.mark.parametrize("change", ["sealed", "compressed"])
def test_a_segment_that_gets_another_name_meanwhile_is_copied_under_that(
    journal: StepJournal, tmp_path: Path, change: str
) -> None:
    """Just before its file is opened."""
    put(journal, 60, body_bytes=4_000)
    journal.settle()
    told: list[Path] = []

    def meanwhile(path: Path) -> None:
        told.append(path)
        if change == "sealed" and path.suffix == ".live" and len(told) < 10:
            put(journal, journal.last_txid + 30, body_bytes=4_000)
            journal.settle()
        if change == "compressed" and len(told) == 1:
            journal.compress()

    last_txid = copied(journal, tmp_path / "copy", meanwhile)
    assert last_txid == journal.last_txid
    suffix = ".sealed" if change == "sealed" else ".zst"
    assert any(path.suffix == suffix for path in (tmp_path / "copy").iterdir())
    sound(tmp_path / "copy", last_txid)


def test_segments_are_kept_while_they_are_copied(journal: StepJournal, tmp_path: Path) -> None:
    put(journal, 60, body_bytes=4_000)
    journal.settle()
    journal.removable(60)
    notes: list[str] = []

    def meanwhile(path: Path) -> None:
        notes.extend(outcome.note for outcome in journal.remove(60))
        assert held_read(journal.directory) is not None

    copied(journal, tmp_path / "copy", meanwhile)
    assert notes and all("in use by a reader" in note for note in notes)
    sound(tmp_path / "copy", 60)
    # And no longer.
    assert held_read(journal.directory) is None
    assert all(outcome.done for outcome in journal.remove(60)[:1])


def test_archived_segments_are_in_the_copy(tmp_path: Path) -> None:
    journal = StepJournal(
        tmp_path / "journal", segment_bytes=SEGMENT_BYTES, archive_directory=tmp_path / "archive"
    )
    put(journal, 60, body_bytes=4_000)
    journal.settle()
    assert all(outcome.done for outcome in journal.archive())
    assert copied(journal, tmp_path / "copy") == 60
    journal.close()
    sound(tmp_path / "copy", 60)


def test_a_store_is_copied_as_it_is_at_one_moment(tmp_path: Path) -> None:
    store = LmdbStateStore(tmp_path / "state.lmdb")
    store.put({"a": b"1", "b": b"2"})
    # This process has it open.
    program = "import sys; from pathlib import Path; from raylay.storage.backup import copy_store; "
    program += "copy_store(*map(Path, sys.argv[1:]))"
    paths = [str(tmp_path / "state.lmdb"), str(tmp_path / "copy.lmdb")]
    subprocess.run([sys.executable, "-c", program, *paths], check=True, timeout=60)
    store.put({"a": b"3"})
    store.close()
    change_store(tmp_path / "copy.lmdb", {b"b": None, b"c": b"4"})
    copy = LmdbStateStore(tmp_path / "copy.lmdb")
    assert dict(copy.items("")) == {"a": b"1", "c": b"4"}
    copy.close()


def test_what_cannot_be_copied_is_an_error_that_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(FileNotFoundError):
        copy_store(tmp_path / "none.lmdb", tmp_path / "copy.lmdb")
    (tmp_path / "torn.lmdb").write_bytes(b"torn" * 1_000)
    with pytest.raises(StorageError, match=r"torn\.lmdb cannot be copied"):
        copy_store(tmp_path / "torn.lmdb", tmp_path / "copy.lmdb")

    def refused(*_: object) -> None:
        raise lmdb.Error("No space left on device")

    monkeypatch.setattr(backup, "_write_copy", refused)
    LmdbStateStore(tmp_path / "state.lmdb").close()
    with pytest.raises(StorageError, match=r"copy\.lmdb: no space left"):
        copy_store(tmp_path / "state.lmdb", tmp_path / "copy.lmdb")
