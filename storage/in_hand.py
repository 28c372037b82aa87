"""A note in shared memory of the messages that an instance works on
(services/messages/suspects.py).

The note outlives the process and not the host, because no message causes a power failure. It is no
file of the data directory: the event loop writes it, and must never wait for a disk.
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
    """The note: its first slot has the messages that the process works on, the other slots have the
    messages during which earlier processes ended.

    Owner: the instance's event loop. Lifecycle: made before the first message is taken; `close`
    once, when the instance works on no message any more.

    Args:
        data_directory: the data directory of the instance, from which the note's name is made.
        shared: the directory in which files of shared memory have their names.

    Attributes:
        left: the messages during which earlier processes ended, those of the last process first.
        just_left: the messages during which the last process ended; None: it ended otherwise.

    Raises:
        OSError: the host has no shared memory.
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
            # The blocks are reserved: a write into a mapped file without room ends the process.
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
        """Notes that the process works on these sequences of a publisher now.

        Args:
            deaths: the number of processes in a row that ended during these messages.
        """
        _SLOT.pack_into(self._map, 0, publisher, first, last, deaths)

    def clear(self) -> None:
        self._map[: _SLOT.size] = _NOTHING

    def close(self) -> None:
        """Closes the note, and removes it if it is empty."""
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
    """Returns the suspects without duplicates: of equal messages the entry with the most deaths, at
    the place of the first."""
    most: dict[tuple[int, int, int], Suspect] = {}
    for each in found:
        before = most.get(each[:3])
        most[each[:3]] = each if before is None or before.deaths < each.deaths else before
    return tuple(most.values())[:SUSPECTS_MAX]


def _remove_orphans(shared: Path, own: str) -> None:
    """Removes the notes of data directories that do not exist any more: memory is scarce."""
    for path in shared.glob(f"{own}*"):
        with contextlib.suppress(OSError):
            directory = _directory_in(path)
            if directory and not os.path.isdir(directory):
                path.unlink()


def _directory_in(path: Path) -> bytes:
    """Returns the data directory of a note; empty: the file is no note of this user.

    Every user may write to the directory and give a file any name: a pipe, or another file without
    an end, is not read.

    Raises:
        OSError: the file cannot be read.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid():
            return b""
        return os.pread(fd, _BYTES - _NAME_AT, _NAME_AT).rstrip(b"\0")
    finally:
        os.close(fd)
