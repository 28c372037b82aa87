"""A disk that breaks for a moment."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def meta_page_not_writable(path: Path) -> Iterator[None]:
    """What LMDB writes meta pages through is closed to writes: data pages come to the disk and the
    commit fails behind them, as where a disk becomes full between the two."""
    (through,) = (
        int(fd.name)
        for fd in Path("/proc/self/fd").iterdir()
        if fd.is_symlink()
        and os.path.realpath(fd) == str(path)
        and fcntl.fcntl(int(fd.name), fcntl.F_GETFL) & os.O_DSYNC
    )
    kept = os.dup(through)
    reading = os.open(path, os.O_RDONLY)
    try:
        os.dup2(reading, through)
        yield
    finally:
        os.dup2(kept, through)
        os.close(kept)
        os.close(reading)
