"""What others than its owner may do with the files of a directory."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def no_umask() -> Iterator[None]:
    """Files of this process, and of those that it starts, get the modes that they are made with."""
    before = os.umask(0)
    yield
    os.umask(before)


def open_to_others(directory: Path) -> list[str]:
    """The directory and each entry below it on which the group or others have a right. Entries may
    come and go meanwhile."""
    found = []
    for around, folders, files in os.walk(directory):
        for name in (".", *folders, *files):
            path = Path(around, name)
            try:
                mode = path.lstat().st_mode
            except FileNotFoundError:
                continue
            if mode & 0o077 and not stat.S_ISLNK(mode):
                found.append(f"{stat.filemode(mode)} {path}")
    return found
