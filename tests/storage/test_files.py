"""Locks and files of a data directory (storage/files.py)."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from raylay.storage import files

SCRIPT = """
import resource, sys
from pathlib import Path
from raylay.services.errors import StorageError, StorageLocked
from raylay.storage.files import FileLock
from raylay.storage.lmdb_journal import LmdbJournal

place = Path(sys.argv[1])
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
lock = FileLock(place / "lock")
try:
    FileLock(place / "lock")
except StorageLocked:
    print("locked")
lock.release()
try:
    LmdbJournal(place / "journal")
except StorageLocked as error:
    print(f"a lock was left behind: {error}")
except (StorageError, OSError):
    print("no room")
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
FileLock(place / "lock").release()
LmdbJournal(place / "journal").close()
print("opened")
"""


def test_a_full_disk_leaves_no_lock_behind(tmp_path: Path) -> None:
    """A start that fails for lack of room is tried again by the same process: its own lock must
    not be in its way then."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines() == ["locked", "no room", "opened"], done


def test_a_text_that_cannot_be_put_in_place_on_a_full_disk_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "floor"

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(files, "write_durably", full)
    files.write_text_durably(path, "one")
    assert path.is_symlink() and files.read_text(path) == b"one"
    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="no space"):
        files.write_text_durably(path, "two")
    assert files.read_text(path) == b"one"
    assert [each.name for each in tmp_path.iterdir()] == ["floor"]
