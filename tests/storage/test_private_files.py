"""What the storage makes is its owner's alone, whatever the umask: in each of these without one."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from support.journal_cases import StepJournal, numbered_run
from support.private_files import open_to_others

from raylay.storage.environment import read_only
from raylay.storage.files import (
    FileLock,
    allocate_lock_table,
    bind_private,
    copy_durably,
    make_directory,
    make_file,
    private_opener,
    write_durably,
    write_text_durably,
)
from raylay.storage.offline import LmdbOfflineStore
from raylay.storage.queue import LmdbQueueStore, StoredQueue
from raylay.storage.read_holds import hold_read
from raylay.storage.sow import LmdbSowStore
from raylay.storage.state import LmdbStateStore, open_store

pytestmark = [
    pytest.mark.usefixtures("no_umask"),
    pytest.mark.covers("Configuration", "what is made on the disk is its owner's alone"),
]


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def opened(path: Path) -> None:
    with open(path, "wb", opener=private_opener) as file:
        file.write(b"content")


def bound(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as unbound:
        bind_private(unbound, str(path))


def copied(path: Path) -> None:
    source = path.with_name("source")
    source.write_bytes(b"content")
    source.chmod(0o644)
    copy_durably(source, path)
    assert path.read_bytes() == b"content"


@pytest.mark.parametrize(
    "make",
    [
        opened,
        bound,
        copied,
        make_file,
        lambda path: write_durably(path, b"content"),
        lambda path: write_text_durably(path, "content"),
        lambda path: FileLock(path).release(),
    ],
    ids=["opened", "bound", "copied", "made", "written", "text", "locked"],
)
def test_a_file_is_its_owners_alone(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path / "file")
    assert mode_of(tmp_path / "file") == 0o600


def test_a_lock_table_is_its_owners_alone(tmp_path: Path) -> None:
    allocate_lock_table(tmp_path / "store", 8_192)
    assert mode_of(tmp_path / "store-lock") == 0o600


def test_directories_are_made_for_their_owner_and_those_that_exist_stay_as_they_are(
    tmp_path: Path,
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir(0o775)
    make_directory(shared / "fabric" / "instance")
    make_directory(shared)
    assert mode_of(shared) == 0o775
    assert mode_of(shared / "fabric") == mode_of(shared / "fabric" / "instance") == 0o700


def test_no_directory_is_made_in_a_file_nor_in_its_place(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError, match="file/below"):
        make_directory(tmp_path / "file" / "below" / "deeper")
    with pytest.raises(FileExistsError, match="file"):
        make_directory(tmp_path / "file")


def test_a_file_that_is_made_anew_is_empty(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"of a process that was killed")
    make_file(tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == b""


def test_a_journal_with_its_archive(tmp_path: Path) -> None:
    """Live, sealed, compressed and archived segments, the front log and what belongs to them."""
    place = tmp_path / "place"
    journal = StepJournal(
        place / "journal",
        segment_bytes=512 * 1024,
        archive_directory=place / "archive",
        front_log=True,
    )
    txid = 1
    while len(journal.segments()) < 5:
        run = numbered_run(txid)
        journal.stage(run)
        txid = run.last_txid + 1
        if not txid % 20:
            journal.commit()
            journal.settle()
    segments = journal.segments()
    hold_read(place / "journal", "somebody", 1)
    journal.compress(segments[2].first_txid)
    journal.archive(segments[3].first_txid)
    states = {(each.state, each.archived) for each in journal.segments()}
    assert states >= {("compressed", True), ("sealed", False), ("live", False)}, states
    assert open_to_others(place) == []
    journal.close()
    assert open_to_others(place) == []


def test_stores(tmp_path: Path) -> None:
    place = tmp_path / "place"
    state = LmdbStateStore(place / "state.lmdb")
    sow = LmdbSowStore(place / "sow.lmdb")
    sow.topic("orders")
    queue = LmdbQueueStore(place / "queues" / "q.lmdb")
    queue.save(StoredQueue(4, b"rules", b"snapshot"))
    offline = LmdbOfflineStore(place / "offline" / "clients.lmdb", 1024 * 1024)
    offline.put([(1, b"frame")])
    assert len(list(place.rglob("*.lmdb"))) == 4
    assert open_to_others(place) == []
    for each in (state, sow, queue, offline):
        each.close()


def test_a_reader_makes_a_lock_table_of_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "store.lmdb"
    open_store(path).close()
    os.unlink(f"{path}-lock")
    with read_only(path):
        assert mode_of(Path(f"{path}-lock")) == 0o600
