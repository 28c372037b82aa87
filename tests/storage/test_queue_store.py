"""The store of a queue's owner: on disk and in memory, killed, cut short and written over."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from raylay.services.errors import StorageError, StorageFull
from raylay.storage import queue
from raylay.storage.queue import (
    DAMAGED_SUFFIX,
    LmdbQueueStore,
    MemoryQueueStore,
    QueueStore,
    StoredQueue,
    store_path,
)
from raylay.storage.state import open_store

pytestmark = pytest.mark.covers("Queues", "nothing acknowledged comes again and nothing is lost")

FIRST = StoredQueue(4, b"rules", b"snapshot")
SECOND = StoredQueue(9, b"", bytes(range(256)) * 4_000)
KILLED = -signal.SIGKILL


@pytest.fixture(params=["lmdb", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> QueueStore:
    return MemoryQueueStore() if request.param == "memory" else LmdbQueueStore(tmp_path / "q.lmdb")


def test_the_last_state_counts(store: QueueStore) -> None:
    assert store.load() is None and not store.damage
    store.save(FIRST)
    assert store.load() == FIRST
    store.save(SECOND)
    assert store.load() == SECOND
    store.save(FIRST)
    assert store.load() == FIRST
    store.close()


def test_a_restart_finds_it(tmp_path: Path) -> None:
    path = store_path(tmp_path, "json/work")
    first = LmdbQueueStore(path)
    first.save(SECOND)
    first.close()
    second = LmdbQueueStore(path)
    assert second.load() == SECOND and not second.damage
    assert store_path(tmp_path, "json/other") != path


def test_in_memory_it_crashes_fails_and_is_lost_as_a_disk_would() -> None:
    store = MemoryQueueStore()
    store.save(FIRST)
    store.fail_next(StorageFull("full"))
    with pytest.raises(StorageFull):
        store.save(SECOND)
    assert store.crash().load() == FIRST
    lost = store.lose()
    assert lost.load() is None and lost.damage


def cut_short(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def emptied(path: Path) -> None:
    os.truncate(path, 0)


def written_over(path: Path) -> None:
    """All pages but the two that LMDB begins with."""
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(8192)
        file.write(b"\xa5" * (size - 8192))


def no_store(path: Path) -> None:
    path.write_bytes(b"something else" * 4_000)


def one_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    at = data.rindex(bytes(range(256)))
    data[at] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("harm", [cut_short, written_over, no_store, one_bit])
def test_what_is_damaged_is_moved_aside_and_begun_anew(
    harm: Callable[[Path], None], tmp_path: Path
) -> None:
    path = tmp_path / "q.lmdb"
    store = LmdbQueueStore(path)
    store.save(SECOND)
    store.close()
    harm(path)
    store = LmdbQueueStore(path)
    assert store.load() is None and store.damage
    assert path.with_name(path.name + DAMAGED_SUFFIX).exists()
    store.save(FIRST)
    assert store.load() == FIRST
    store.close()
    assert LmdbQueueStore(path).load() == FIRST


def test_an_emptied_file_is_a_new_one(tmp_path: Path) -> None:
    path = tmp_path / "q.lmdb"
    store = LmdbQueueStore(path)
    store.save(SECOND)
    store.close()
    emptied(path)
    store = LmdbQueueStore(path)
    assert store.load() is None
    store.save(FIRST)
    assert store.load() == FIRST


def test_what_cannot_be_opened_for_another_reason_is_no_damage(tmp_path: Path) -> None:
    (tmp_path / "q.lmdb").mkdir()
    with pytest.raises(StorageError, match=r"q\.lmdb"):
        LmdbQueueStore(tmp_path / "q.lmdb")
    assert (tmp_path / "q.lmdb").is_dir()


def test_a_full_disk_leaves_what_there_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "open_store", partial(open_store, map_bytes=256 * 1024))
    store = LmdbQueueStore(tmp_path / "q.lmdb")
    store.save(FIRST)
    with pytest.raises(StorageFull, match=r"q\.lmdb"):
        store.save(SECOND)
    assert store.load() == FIRST


@pytest.mark.parametrize("fault", ["queue.begin:3", "queue.synced:3", "store.made:1"])
def test_killed_at_any_point_it_has_the_last_state_that_was_saved(
    fault: str, tmp_path: Path
) -> None:
    path = tmp_path / "q.lmdb"
    child = Path(__file__).with_name("queue_child.py")
    environment = {**os.environ, "RAYLAY_JOURNAL_FAULT": fault}
    done = subprocess.run(
        [sys.executable, str(child), str(path)], env=environment, capture_output=True, timeout=60
    )
    assert done.returncode == KILLED, done.stderr
    told = [int(line) for line in done.stdout.split()]
    store = LmdbQueueStore(path)
    found = store.load()
    saved = 0 if found is None else found.txid
    assert told == list(range(1, len(told) + 1)) and len(told) <= saved <= len(told) + 1
    assert not store.damage
    if found is not None:
        assert found.snapshot == saved.to_bytes(8, "little") * (saved * 1_000)
