"""Holds by which other processes keep segments that they have planned to read: retention waits for
them, for a while.

A read that is planned in one process and done in others, as Spark's, has no file open in between.
It leaves a note in the journal's directory: from which transaction id on it reads, and until when
that counts at most. Nobody has to take it back.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from pathlib import Path

from raylay.storage.files import ASIDE_SUFFIX, write_durably

HOLD_S = 600.0
"""Time from the planning of a read, and from each part of it that begins, until it is not waited
for."""
_PREFIX = "read-hold-"


def hold_read(directory: Path, name: str, first_txid: int, hold_s: float = HOLD_S) -> None:
    """Says that a read of this name reads from here on, or still does. Where nothing may be written
    nothing is held.

    Args:
        name: of letters, digits and dashes.
    """
    said = {"first_txid": first_txid, "until_s": time.time() + hold_s}
    with suppress(OSError):
        write_durably(directory / f"{_PREFIX}{name}", json.dumps(said).encode())


def held_read(directory: Path) -> tuple[int, str] | None:
    """The lowest transaction id that a read waits for, and until when in words; None: none does.
    Notes whose time is over are removed."""
    now_s = time.time()
    lowest: tuple[int, float] | None = None
    for path in directory.glob(f"{_PREFIX}*"):
        if path.name.endswith(ASIDE_SUFFIX):
            continue
        try:
            said = json.loads(path.read_bytes())
            first_txid, until_s = int(said["first_txid"]), float(said["until_s"])
        except (OSError, ValueError, KeyError, TypeError):
            first_txid, until_s = 0, 0.0
        # One of a clock that was ahead would hold for as long.
        if not now_s < until_s <= now_s + HOLD_S:
            with suppress(OSError):
                path.unlink()
        elif lowest is None or first_txid < lowest[0]:
            lowest = first_txid, until_s
    if lowest is None:
        return None
    at = time.strftime("%H:%M:%S", time.localtime(lowest[1]))
    return lowest[0], f"a read has planned it, which is waited for until {at}"
