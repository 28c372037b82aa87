"""Read holds: notes by which other processes keep the segments that they have planned to read, for
a limited time, from being removed by retention.

A read that is planned in one process and carried out in others, such as Spark's, has no file open
in between. The planner leaves a note in the journal's directory, with the transaction id from which
the read begins and the time at which the note ends. The note needs no removal by the planner.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from pathlib import Path

from raylay.storage.files import ASIDE_SUFFIX, write_durably

HOLD_S = 600.0
"""The time for which a hold counts, from the planning of a read, and again from the beginning of
each of its parts."""
_PREFIX = "read-hold-"


def hold_read(directory: Path, name: str, first_txid: int, hold_s: float = HOLD_S) -> None:
    """Writes, or renews, the hold of a read that begins at `first_txid`. Where the directory cannot
    be written, nothing is held.

    Args:
        name: the read's name, made of letters, digits and dashes.
    """
    said = {"first_txid": first_txid, "until_s": time.time() + hold_s}
    with suppress(OSError):
        write_durably(directory / hold_name(name), json.dumps(said).encode())


def hold_name(name: str) -> str:
    """Returns the name of the file of a hold."""
    return f"{_PREFIX}{name}"


def held_read(directory: Path) -> tuple[int, str] | None:
    """Returns the lowest transaction id that a hold keeps, and the reason and end of that hold in
    words; None when there is no hold. Removes the notes whose time is over."""
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
        # A note that ends too late was written by a clock that was ahead, and would hold for too
        # long.
        if not now_s < until_s <= now_s + HOLD_S:
            with suppress(OSError):
                path.unlink()
        elif lowest is None or first_txid < lowest[0]:
            lowest = first_txid, until_s
    if lowest is None:
        return None
    at = time.strftime("%H:%M:%S", time.localtime(lowest[1]))
    return lowest[0], f"a read has planned it, which is waited for until {at}"
