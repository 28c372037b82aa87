"""file_systems.py: on which a page that was written once is written again without space."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from raylay.storage.file_systems import overwrites_in_place


def test_memory_does() -> None:
    if not os.path.ismount("/dev/shm"):
        pytest.skip("no tmpfs at /dev/shm")
    assert overwrites_in_place(Path("/dev/shm"))


def test_what_is_not_known_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not overwrites_in_place(Path("/proc"))
    assert not overwrites_in_place(tmp_path / "nothing")
    monkeypatch.setattr("sys.platform", "darwin")
    assert not overwrites_in_place(Path("/dev/shm"))
