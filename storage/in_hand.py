"""A note in shared memory of what an instance has in hand (services/messages/suspects.py).

It outlives the process, and not the host: a power failure is no message's fault. It is no file of
the data directory, since the loop writes it and must never wait for a disk.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import stat
import struct
from pathlib import Path

from xxhash import xxh3_64_hexdigest

from raylay.services.messages.suspects import Suspect

SHARED_DIRECTORY = Path("/dev/shm")
PREFIX = "raylay-in-hand-"
SUSPECTS_MAX = 15
_SLOT = struct.Struct("<QQQQ")
_NOTHING = bytes(_SLOT.size)
_NAME_AT = (1 + SUSPECTS_MAX) * _SLOT.size
_BYTES = 4_096


class InHand:
    """The first slot says what is in hand, the others what earlier processes ended with.

    Owner: the instance's loop. Lifecycle: made before anything is taken; `close` once, where
    nothing is in hand any more.

    Args:
        data_directory: of the instance, which names the note.
        shared: where shared memory has names.

    Attributes:
        left: what earlier processes ended with, the last of them first.
        just_left: of that, what the last process ended with; None: nothing.

    Raises:
        OSError: there is no shared memory here.
    """

    def __init__(self, data_directory: Path, shared: Path = SHARED_DIRECTORY) -> None:
        directory = os.fsencode(data_directory.resolve())
        own = f"{PREFIX}{os.getuid()}-"
        self.path = shared / f"{own}{xxh3_64_hexdigest(directory)}"
        _remove_orphans(shared, own)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(self.path, flags, 0o600)
        try:
            there = os.fstat(fd)
            if there.st_uid != os.getuid() or not stat.S_ISREG(there.st_mode):
                raise PermissionError(f"{self.path} is somebody else's, or no file")
            # With its memory: what there is no room for would end the process when it is written.
            os.posix_fallocate(fd, 0, _BYTES)
            self._map = mmap.mmap(fd, _BYTES)
        finally:
            os.close(fd)
        self._map[_NAME_AT : _NAME_AT + len(directory)] = directory[: _BYTES - _NAME_AT]
        found = [self._read(slot) for slot in range(1 + SUSPECTS_MAX)]
        self.just_left = found[0]
        self.left = _without_doubles([each for each in found if each is not None])
        for slot in range(SUSPECTS_MAX):
            self._write(slot + 1, self.left[slot] if slot < len(self.left) else None)
        self.clear()

    def set(self, publisher: int, first: int, last: int, deaths: int) -> None:
        """Notes these sequences of a publisher as in hand, in place of the former ones; `deaths` is
        how many processes in a row ended with them."""
        _SLOT.pack_into(self._map, 0, publisher, first, last, deaths)

    def clear(self) -> None:
        self._map[: _SLOT.size] = _NOTHING

    def close(self) -> None:
        """Ends it; the note goes where it says nothing."""
        is_empty = not self.left and self._read(0) is None
        self._map.close()
        if is_empty:
            with contextlib.suppress(OSError):
                self.path.unlink()

    def _read(self, slot: int) -> Suspect | None:
        found = Suspect(*_SLOT.unpack_from(self._map, slot * _SLOT.size))
        return found if 0 < found.first <= found.last and 0 < found.deaths < 256 else None

    def _write(self, slot: int, suspect: Suspect | None) -> None:
        at = slot * _SLOT.size
        self._map[at : at + _SLOT.size] = _NOTHING if suspect is None else _SLOT.pack(*suspect)


def _without_doubles(found: list[Suspect]) -> tuple[Suspect, ...]:
    """Keeps of the same messages the one with the most deaths, in the place of the first."""
    most: dict[tuple[int, int, int], Suspect] = {}
    for each in found:
        before = most.get(each[:3])
        most[each[:3]] = each if before is None or before.deaths < each.deaths else before
    return tuple(most.values())[:SUSPECTS_MAX]


def _remove_orphans(shared: Path, own: str) -> None:
    """Removes the notes of data directories that are gone: memory is scarcer than disks."""
    for path in shared.glob(f"{own}*"):
        with contextlib.suppress(OSError):
            directory = _directory_in(path)
            if directory and not os.path.isdir(directory):
                path.unlink()


def _directory_in(path: Path) -> bytes:
    """Reads whose note it is; empty: it is none of this user's.

    Everybody may write to the directory, and give a file any name: one that is a pipe, or has no
    end, is not read.

    Raises:
        OSError: it cannot be read.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid():
            return b""
        return os.pread(fd, _BYTES - _NAME_AT, _NAME_AT).rstrip(b"\0")
    finally:
        os.close(fd)
