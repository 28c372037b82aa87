"""file_systems.py: on which a page that was written once is written again without space."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from raylay.storage import front
from raylay.storage.file_systems import has_every_block, overwrites_in_place


def test_memory_does() -> None:
    if not os.path.ismount("/dev/shm"):
        pytest.skip("no tmpfs at /dev/shm")
    assert overwrites_in_place(Path("/dev/shm"))


def test_what_is_not_known_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not overwrites_in_place(Path("/proc"))
    assert not overwrites_in_place(tmp_path / "nothing")
    monkeypatch.setattr("sys.platform", "darwin")
    assert not overwrites_in_place(Path("/dev/shm"))


def test_the_end_of_the_front_is_not_mapped_where_its_file_has_holes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front, "overwrites_in_place", lambda path: True)
    path = tmp_path / front.END_NAME
    for content, mapped in ((bytes(front.END_BYTES), True), (b"", False)):
        path.write_bytes(content)
        os.truncate(path, front.END_BYTES)
        with path.open("rb") as file:
            assert has_every_block(file.fileno(), front.END_BYTES) is mapped
        end = front.FrontEnd(tmp_path)
        assert (end._map is not None) is mapped
        end.append(1, 1, b"block")
        end.close()
