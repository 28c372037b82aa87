"""storage/read_holds.py: retention waits for reads that were planned, for a while."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from raylay.storage import read_holds
from raylay.storage.read_holds import HOLD_S, held_read, hold_read

pytestmark = pytest.mark.covers(
    "Filters by content", "retention waits for reads that other processes"
)


def test_the_lowest_of_several_counts_and_none_for_longer_than_it_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert held_read(tmp_path) is None
    hold_read(tmp_path, "one", 50)
    hold_read(tmp_path, "two", 20, HOLD_S / 2)
    found = held_read(tmp_path)
    assert found is not None and found[0] == 20 and "waited for until" in found[1]
    now_s = time.time()
    monkeypatch.setattr(read_holds.time, "time", lambda: now_s + HOLD_S / 2 + 1)
    found = held_read(tmp_path)
    assert found is not None and found[0] == 50
    assert [path.name for path in tmp_path.iterdir()] == ["read-hold-one"], "it is tidied"
    hold_read(tmp_path, "one", 50)
    monkeypatch.setattr(read_holds.time, "time", lambda: now_s - 10.0)
    assert held_read(tmp_path) is None, "a clock that was ahead holds nothing"
    assert not list(tmp_path.iterdir())


def test_what_is_no_note_holds_nothing(tmp_path: Path) -> None:
    for content in (b"", b"{}", b"[1]", b'{"first_txid": "x", "until_s": 1}'):
        (tmp_path / "read-hold-x").write_bytes(content)
        assert held_read(tmp_path) is None and not list(tmp_path.iterdir())


def test_where_nothing_may_be_written_nothing_is_held(tmp_path: Path) -> None:
    hold_read(tmp_path / "none", "x", 1)
    assert not os.path.exists(tmp_path / "none")
