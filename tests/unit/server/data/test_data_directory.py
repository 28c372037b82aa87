"""Which incarnation a data directory is."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgpack

from raylay.services.replication.recovery import POINT_KEY
from raylay.services.server.data.data_directory import READY_KEY, DataDirectory
from raylay.services.server.data.state_thread import StateThread
from raylay.storage.state import LmdbStateStore


def opened(path: Path) -> tuple[StateThread, DataDirectory]:
    state = StateThread(LmdbStateStore(path / "state.lmdb"))
    return state, DataDirectory(state, path / "state.lmdb")


def made(path: Path) -> int:
    """A directory with an incarnation, closed."""
    path.mkdir()
    state, directory = opened(path)
    assert directory.incarnation == 0 and not directory.is_restored
    incarnation = directory.begin({"generation": b"\0\0\0\0\0\0\0\2"})
    state.put_now({READY_KEY: b"1", POINT_KEY: msgpack.packb([10, 10, 1, []])})
    state.close()
    return incarnation


def test_the_same_directory_is_the_same_incarnation(tmp_path: Path) -> None:
    incarnation = made(tmp_path / "a")
    (tmp_path / "a").rename(tmp_path / "b")
    state, directory = opened(tmp_path / "b")
    assert not directory.why_another(10)
    assert directory.incarnation == incarnation and state.get_number("generation") == 2
    state.close()


def test_a_copy_begins_anew_and_is_not_ready(tmp_path: Path) -> None:
    incarnation = made(tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    state, directory = opened(tmp_path / "b")
    assert directory.why_another(10) == "is a copy of a data directory"
    directory.begin_anew(10)
    assert directory.incarnation not in (0, incarnation)
    assert directory.former == [incarnation]
    assert directory.is_restored and state.get(READY_KEY) is None
    assert not directory.why_another(10), "once"
    state.close()


def test_a_journal_that_ends_before_the_floor_is_an_old_one(tmp_path: Path) -> None:
    made(tmp_path / "a")
    state, directory = opened(tmp_path / "a")
    assert directory.why_another(9).startswith(
        "has a journal that ends at transaction 9, before 10"
    )
    directory.begin_anew(9)
    assert not directory.why_another(9), "once"
    state.close()
