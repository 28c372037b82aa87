"""The writes by which a disk is measured: synced, in place, and bounded."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from raylay.storage import sync_speed
from raylay.storage.sync_speed import measure_syncs


@pytest.mark.parametrize("is_direct", [True, False])
def test_each_write_overwrites_a_block_and_is_durable(
    is_direct: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[int] = []
    synced: list[int] = []
    offsets: list[int] = []
    write = os.pwrite

    def open_file(path: Path) -> tuple[int, bool]:
        opened.append(os.open(path, os.O_RDWR))
        return opened[-1], is_direct

    def note_write(descriptor: int, data: bytes, offset: int) -> int:
        if descriptor in opened:
            offsets.append(offset)
        return write(descriptor, data, offset)

    monkeypatch.setattr(sync_speed, "open_for_syncs", open_file)
    monkeypatch.setattr(sync_speed, "FILE_BYTES", 3 * 4096)
    monkeypatch.setattr(os, "fdatasync", synced.append)
    monkeypatch.setattr(os, "pwrite", note_write)
    assert len(measure_syncs(tmp_path, 4096, 5, 60.0)) == 5
    assert offsets == [0, 4096, 8192, 0, 4096], "it goes round in the file"
    assert synced == (opened * 5 if is_direct else []), "O_DSYNC syncs by itself"
    assert os.listdir(tmp_path) == []


def test_it_ends_in_time_but_not_without_a_measurement(tmp_path: Path) -> None:
    assert len(measure_syncs(tmp_path, 4096, 1_000_000, 0.0)) == 1


def test_a_disk_that_fails_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "pwrite", lambda *_: 100)
    with pytest.raises(OSError, match="100 of 4096 bytes were written"):
        measure_syncs(tmp_path, 4096, 5, 60.0)
    assert os.listdir(tmp_path) == []
