"""The offline store: messages that wait on disk for slow clients.

The store is of no use without the connections whose messages it holds. So a file of an earlier
process is removed, nothing is synced, and the content is lost when the process ends.

    key     u64 client, u64 number of the piece, big-endian: in the order in which they came
    value   bytes, one after the other as they are to be written to the client's socket
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

import lmdb

from raylay.storage.files import PRIVATE_FILE_MODE, make_directory
from raylay.storage.state import explained

PIECE_BYTES = 16 * 4096 - 16
"""The largest stored value, in bytes. It fills whole pages, so that a file whose pages were freed
and reused many times is no larger than its content requires."""
ROOM_BYTES = 64 * 1024 * 1024
"""The bytes of the file beyond twice the limit of its content, for pages that are not full."""
GIVEN_BACK_BYTES = 16 * 1024 * 1024
"""The size, in bytes, above which an empty file is made anew, so that its disk space is free
again."""
_KEY = struct.Struct(">QQ")


class OfflineStore(Protocol):
    """The store of one pool. Each client's bytes are taken once, in the order in which they were
    put."""

    held_bytes: int
    """The bytes that wait for all clients together."""

    def put(self, frames: Iterable[tuple[int, bytes]]) -> None:
        """Takes (client, frame) pairs: all of them or none.

        Raises:
            StorageFull: no space; nothing was written.
            StorageError: the file cannot be used.
        """

    def take(self, client: int, bytes_max: int) -> list[bytes]:
        """Takes a client's oldest pieces out of the store, until they have at least `bytes_max`
        bytes.

        Raises:
            StorageError: the file cannot be used.
        """

    def bytes_of(self, client: int) -> int:
        """Returns the bytes that wait for a client."""

    def drop(self, client: int) -> None:
        """Drops everything that waits for a client.

        Raises:
            StorageError: the file cannot be used.
        """

    def close(self) -> None:
        """Closes the store and frees its disk space."""


class _Line:
    """The messages that wait for one client, stored as the pieces numbered `first` to `next` -
    1."""

    __slots__ = ("first", "held_bytes", "next")

    def __init__(self) -> None:
        self.first = self.next = 0
        self.held_bytes = 0


class MemoryOfflineStore:
    """An OfflineStore in memory: tests."""

    def __init__(self) -> None:
        self._pieces: dict[int, list[bytes]] = {}
        self.held_bytes = 0
        self._fail_next: Exception | None = None

    def fail_next(self, error: Exception) -> None:
        """Makes the next `put` raise this error and write nothing."""
        self._fail_next = error

    def put(self, frames: Iterable[tuple[int, bytes]]) -> None:
        if self._fail_next is not None:
            error, self._fail_next = self._fail_next, None
            raise error
        for client, piece in joined(frames):
            self._pieces.setdefault(client, []).append(piece)
            self.held_bytes += len(piece)

    def take(self, client: int, bytes_max: int) -> list[bytes]:
        """Takes a client's oldest pieces, until they have at least `bytes_max` bytes."""
        pieces = self._pieces.get(client, [])
        taken: list[bytes] = []
        size_bytes = 0
        while pieces and size_bytes < bytes_max:
            taken.append(pieces.pop(0))
            size_bytes += len(taken[-1])
        self.held_bytes -= size_bytes
        return taken

    def bytes_of(self, client: int) -> int:
        """Returns the bytes that wait for a client."""
        return sum(map(len, self._pieces.get(client, [])))

    def drop(self, client: int) -> None:
        self.held_bytes -= self.bytes_of(client)
        self._pieces.pop(client, None)

    def crash(self) -> MemoryOfflineStore:
        return MemoryOfflineStore()

    def close(self) -> None:
        """Nothing to give back."""


class LmdbOfflineStore:
    """An OfflineStore in one LMDB file.

    Owner: one process, one thread.

    Args:
        path: the path of the file. An existing file is removed.
        disk_bytes_max: the bytes that the store is to hold at most.

    Raises:
        StorageError: the file cannot be made; the message names the file.
    """

    def __init__(self, path: str | Path, disk_bytes_max: int) -> None:
        self._path = Path(path)
        # The smallest values share a page, and any other value fills at least half of its pages.
        self._map_bytes = (2 * disk_bytes_max + ROOM_BYTES) // 4096 * 4096
        self._lines: dict[int, _Line] = {}
        self.held_bytes = 0
        self._env: Any = self._made()

    def _made(self) -> Any:
        try:
            make_directory(self._path.parent)
            self._path.unlink(missing_ok=True)
            return lmdb.open(
                str(self._path),
                subdir=False,
                map_size=self._map_bytes,
                lock=False,
                sync=False,
                metasync=False,
                readahead=False,
                max_dbs=0,
                mode=PRIVATE_FILE_MODE,
            )
        except (lmdb.Error, OSError) as error:
            raise explained(error, self._path) from error

    @property
    def file_bytes(self) -> int:
        return self._path.stat().st_size

    def put(self, frames: Iterable[tuple[int, bytes]]) -> None:
        """Takes (client, frame) pairs: all of them or none.

        Raises:
            StorageFull: no space; nothing was written.
            StorageError: the file cannot be used.
        """
        grown: dict[int, tuple[int, int]] = {}
        lines = self._lines
        try:
            with self._env.begin(write=True) as transaction:
                for client, piece in joined(frames):
                    line = lines.get(client)
                    count, size_bytes = grown.get(client, (0, 0))
                    number = count if line is None else line.next + count
                    transaction.put(_KEY.pack(client, number), piece)
                    grown[client] = count + 1, size_bytes + len(piece)
        except lmdb.Error as error:
            raise explained(error, self._path) from error
        for client, (count, size_bytes) in grown.items():
            line = lines.setdefault(client, _Line())
            line.next += count
            line.held_bytes += size_bytes
            self.held_bytes += size_bytes

    def take(self, client: int, bytes_max: int) -> list[bytes]:
        """Takes a client's oldest pieces out of the store, until they have at least `bytes_max`
        bytes.

        Raises:
            StorageError: the file cannot be used.
        """
        line = self._lines.get(client)
        taken: list[bytes] = []
        if line is None:
            return taken
        size_bytes = 0
        number = line.first
        try:
            with self._env.begin(write=True) as transaction:
                while number < line.next and size_bytes < bytes_max:
                    piece = transaction.pop(_KEY.pack(client, number))
                    taken.append(piece)
                    size_bytes += len(piece)
                    number += 1
        except lmdb.Error as error:
            raise explained(error, self._path) from error
        line.first = number
        line.held_bytes -= size_bytes
        self.held_bytes -= size_bytes
        if number == line.next:
            del self._lines[client]
            self._give_back()
        return taken

    def bytes_of(self, client: int) -> int:
        """Returns the bytes that wait for a client."""
        line = self._lines.get(client)
        return 0 if line is None else line.held_bytes

    def drop(self, client: int) -> None:
        """Drops everything that waits for a client.

        Raises:
            StorageError: the file cannot be used.
        """
        line = self._lines.pop(client, None)
        if line is None:
            return
        self.held_bytes -= line.held_bytes
        if not self._give_back():
            self._forget(client, line)

    def _forget(self, client: int, line: _Line) -> None:
        try:
            with self._env.begin(write=True) as transaction:
                for number in range(line.first, line.next):
                    transaction.delete(_KEY.pack(client, number))
        except lmdb.Error as error:
            raise explained(error, self._path) from error

    def _give_back(self) -> bool:
        """Makes a large file anew when no message waits. Returns whether it did."""
        if self._lines or self.file_bytes <= GIVEN_BACK_BYTES:
            return False
        self._env.close()
        self._env = self._made()
        return True

    def close(self) -> None:
        self._env.close()
        self._path.unlink(missing_ok=True)


def joined(frames: Iterable[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    """Returns the frames as pieces of at most PIECE_BYTES, with the frames of each client joined,
    in their order."""
    found: dict[int, list[bytes]] = {}
    for client, frame in frames:
        found.setdefault(client, []).append(frame)
    pieces: list[tuple[int, bytes]] = []
    for client, parts in found.items():
        whole = parts[0] if len(parts) == 1 else b"".join(parts)
        for at in range(0, len(whole), PIECE_BYTES):
            pieces.append((client, whole[at : at + PIECE_BYTES]))
    return pieces
