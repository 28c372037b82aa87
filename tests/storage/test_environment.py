"""What every LMDB store that other processes read, or that a full disk meets, keeps to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lmdb
import pytest

from raylay.services.errors import StorageError, StorageFull
from raylay.storage import environment, sow_reading
from raylay.storage.active_segment import explained as explained_of_segments
from raylay.storage.environment import WRITES_A_CHECK, is_full, read_only
from raylay.storage.files import write_durably
from raylay.storage.queue import LmdbQueueStore
from raylay.storage.sow import LmdbSowStore
from raylay.storage.state import VERSION_KEY, LmdbStateStore, StoreFile, explained
from raylay.storage.stores import LmdbBookmarkStore, LmdbPublishStore

READ_AND_HANG = (
    "import lmdb, sys; env = lmdb.open(sys.argv[1], subdir=False, readonly=True, max_dbs=0, "
    "max_spare_txns=1); transaction = env.begin(); print('reads', flush=True); sys.stdin.read()"
)
PAGES = b"x" * 64 * 1024


@contextmanager
def killed_reader(path: Path) -> Iterator[None]:
    """A process has begun to read a file, and is killed."""
    with subprocess.Popen(
        [sys.executable, "-c", READ_AND_HANG, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as reader:
        assert reader.stdout is not None and reader.stdout.readline() == b"reads\n"
        reader.send_signal(signal.SIGKILL)
        reader.wait()
        yield


def fill(path: Path) -> None:
    """Adds a few pages to a store that nobody has open."""
    store = StoreFile(path)
    with store.begin(write=True) as transaction:
        for number in range(64):
            transaction.put(b"%d" % number, PAGES[:4096])
    store.close()


def test_a_killed_reader_does_not_make_a_store_grow(tmp_path: Path) -> None:
    store = StoreFile(tmp_path / "store.lmdb")

    def write(times: int) -> int:
        for _ in range(times):
            with store.begin(write=True) as transaction:
                transaction.put(b"key", PAGES)
        return os.stat(tmp_path / "store.lmdb").st_size

    before_bytes = write(4 * WRITES_A_CHECK)
    with killed_reader(tmp_path / "store.lmdb"):
        assert write(6 * WRITES_A_CHECK) < before_bytes + 2 * WRITES_A_CHECK * len(PAGES)
        assert store.clear_dead_readers() == 0, "it was cleared"
    store.close()


def test_a_table_full_of_killed_readers_keeps_nobody_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the owner nor a reader of another process, with a table of one place."""
    path = tmp_path / "store.lmdb"
    made = lmdb.open(str(path), subdir=False, max_readers=1, max_dbs=0)
    with made.begin(write=True) as transaction:
        transaction.put(b"key", b"value")
    made.close()

    def opening() -> Any:
        return lmdb.open(str(path), subdir=False, max_readers=1, max_dbs=0)

    owner = environment.LastingEnvironment(opening)
    with killed_reader(path), owner.begin() as transaction:
        assert transaction.get(b"key") == b"value"
    owner.close()
    with killed_reader(path), read_only(path, max_readers=1) as transaction:
        assert transaction.get(b"key") == b"value"


STORES: list[tuple[str, Callable[[Path], Any]]] = [
    ("state", LmdbStateStore),
    ("publish", LmdbPublishStore),
    ("bookmark", LmdbBookmarkStore),
    ("sow", LmdbSowStore),
]
QUEUES = ("queue", LmdbQueueStore)


@pytest.mark.parametrize(("has", "version"), [("no version", None), ("version 2", b"2")])
@pytest.mark.parametrize(("name", "kind"), [*STORES, QUEUES])
def test_a_store_of_another_version_is_refused(
    tmp_path: Path, name: str, kind: Callable[[Path], Any], has: str, version: bytes | None
) -> None:
    path = tmp_path / f"{name}.lmdb"
    kind(path).close()
    kind(path).close()  # its own it reads
    with (
        lmdb.open(str(path), subdir=False, map_size=1 << 30, max_dbs=0) as file,
        file.begin(write=True) as transaction,
    ):
        if version is None:
            transaction.delete(VERSION_KEY)
            transaction.put(b"a key", b"of a store that has something")
        else:
            transaction.put(VERSION_KEY, version)
    told = f"{path} has {has}, this software reads 1: use the release that wrote it"
    with pytest.raises(StorageError) as found:
        kind(path)
    assert str(found.value) == told and type(found.value) is StorageError
    with pytest.raises(StorageError, match=f"has {has}"), sow_reading.reading(path):
        pass


@pytest.mark.parametrize(("name", "kind"), STORES, ids=[name for name, _ in STORES])
def test_a_file_that_is_cut_short_is_refused_and_kills_nobody(
    tmp_path: Path, name: str, kind: Callable[[Path], Any]
) -> None:
    """Reading a page behind its end is SIGBUS."""
    path = tmp_path / f"{name}.lmdb"
    kind(path).close()
    fill(path)
    os.truncate(path, 3 * 4096)
    with pytest.raises(StorageError, match="is cut short: it has 12,288 bytes of"):
        kind(path)


def test_a_queue_store_that_is_cut_short_is_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "queue.lmdb"
    LmdbQueueStore(path).close()
    fill(path)
    os.truncate(path, 3 * 4096)
    store = LmdbQueueStore(path)
    assert "cut short" in store.damage and store.load() is None
    store.close()


def test_the_copy_of_a_store_that_is_cut_short_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "sow.lmdb"
    LmdbSowStore(path).close()
    os.truncate(path, 4096)
    with pytest.raises(StorageError, match=r"cut short|cannot be used"), sow_reading.reading(path):
        pass


@pytest.mark.parametrize("explain", [explained, explained_of_segments])
@pytest.mark.parametrize(
    ("error", "free_bytes", "full"),
    [
        (lmdb.DiskError("mdb_put: No space left on device"), 0, True),
        (lmdb.MapFullError("mdb_put: MDB_MAP_FULL"), 1 << 40, True),
        (OSError(28, "No space left on device"), 1 << 40, True),
        (OSError(122, "Disk quota exceeded"), 1 << 40, True),
        (lmdb.Error("mdb_txn_commit: Input/output error"), 100, True),
        (lmdb.Error("mdb_txn_commit: Input/output error"), 1 << 40, False),
        (lmdb.CorruptedError("mdb_get: MDB_CORRUPTED"), 0, False),
    ],
)
def test_a_short_write_on_a_full_disk_may_succeed_later(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    explain: Callable[[Exception, Path], StorageError],
    error: Exception,
    free_bytes: int,
    full: bool,
) -> None:
    monkeypatch.setattr(environment, "_free_bytes", lambda _: free_bytes)
    assert is_full(error, tmp_path / "file") == full
    made = explain(error, tmp_path / "file")
    assert (type(made) is StorageFull, made.retriable) == (full, full)
    assert str(tmp_path / "file") in str(made)


def test_a_small_file_is_replaced_whole_and_its_name_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this order, or a power cut leaves a torn file, or the old one; on a full disk nothing is
    left beside it."""
    done: list[str] = []
    path = tmp_path / "file"

    def record(name: str, of: Any, what: Callable[..., str]) -> None:
        original = getattr(of, name)

        def recorded(*arguments: Any) -> Any:
            done.append(what(*arguments))
            return original(*arguments)

        monkeypatch.setattr(of, name, recorded)

    record("fsync", os, lambda fd: os.path.basename(os.readlink(f"/proc/self/fd/{fd}"))[:5])
    record("replace", os, lambda *_: "replace")
    os.umask(os.umask(0))
    write_durably(path, b"new")
    assert done == [".file", "replace", tmp_path.name[:5]]
    assert path.read_bytes() == b"new" and path.stat().st_mode & 0o777 == 0o600

    def no_room(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", no_room)
    with pytest.raises(OSError, match="No space"):
        write_durably(path, b"newer")
    assert [each.name for each in tmp_path.iterdir()] == ["file"] and path.read_bytes() == b"new"
