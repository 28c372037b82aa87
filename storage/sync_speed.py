"""The speed of a disk at what a commit asks of it: each write is durable before the next begins.

The writes are those of the front log (front.py): a file that has its full size, with every block
written, is overwritten in place, past the page cache where the file system allows that.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import time
from pathlib import Path

from raylay.storage.front import open_for_syncs, write_whole
from raylay.storage.front_entries import FILE_BYTES, PAGE_BYTES

_PREFIX = ".raylay-check-"


def measure_syncs(
    directory: Path, write_bytes: int, times_max: int, seconds_max: float
) -> list[float]:
    """Returns how long each of a number of synced writes took, in milliseconds; at least one.

    Args:
        directory: an existing directory on the disk. A file of 8 MiB at most is made in it, and has
            no name any more when the first write begins, so that no end of the process leaves it.
        write_bytes: size of each write: whole pages of 4 KiB.
        times_max: the number of writes at most.
        seconds_max: time after which no further write begins.

    Raises:
        OSError: the disk cannot be written.
    """
    assert times_max > 0 and write_bytes > 0 and write_bytes % PAGE_BYTES == 0
    places = max(1, min(FILE_BYTES // write_bytes, times_max))
    # A write past the page cache needs a buffer that begins at a page.
    with mmap.mmap(-1, write_bytes) as buffer:
        made, name = tempfile.mkstemp(dir=directory, prefix=_PREFIX)
        descriptor = -1
        try:
            try:
                for place in range(places):
                    write_whole(made, buffer, place * write_bytes)
                os.fsync(made)
                descriptor, is_direct = open_for_syncs(Path(name))
            finally:
                os.unlink(name)
            return _time_writes(
                descriptor, is_direct, buffer, places, times_max, time.monotonic() + seconds_max
            )
        finally:
            os.close(made)
            if descriptor >= 0:
                os.close(descriptor)


def _time_writes(
    descriptor: int,
    is_direct: bool,
    buffer: mmap.mmap,
    places: int,
    times_max: int,
    deadline_s: float,
) -> list[float]:
    took_ms: list[float] = []
    while len(took_ms) < times_max:
        began_s = time.perf_counter()
        write_whole(descriptor, buffer, (len(took_ms) % places) * len(buffer))
        if is_direct:
            os.fdatasync(descriptor)
        took_ms.append((time.perf_counter() - began_s) * 1000)
        if time.monotonic() > deadline_s:
            break
    return took_ms
