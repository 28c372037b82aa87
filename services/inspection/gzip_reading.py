"""Reading of gzip files that are still being written, or whose process was killed: they have no end
mark, and every line before the end can be read."""

from __future__ import annotations

import io
import zlib
from typing import IO

GZIP_MAGIC = b"\x1f\x8b"
_WINDOW_BITS = 31  # zlib's for a stream with gzip's header
_READ_BYTES = 64 * 1024


class UnfinishedGzip(io.RawIOBase):
    """The unpacked bytes of a file, to be wrapped in an `io.BufferedReader`. One gzip stream may
    follow another.

    Raises:
        zlib.error: on reading, the bytes are damaged.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._unpacking = zlib.decompressobj(_WINDOW_BITS)
        self._packed = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        while True:
            if self._unpacking.eof:
                # Zeros behind the end fill a block, such as that of a tape.
                self._packed = (self._unpacking.unused_data or self._packed).lstrip(b"\0")
                self._unpacking = zlib.decompressobj(_WINDOW_BITS)
            packed = self._packed or self._file.read(_READ_BYTES)
            if not packed:
                return 0
            unpacked = self._unpacking.decompress(packed, len(buffer))
            self._packed = self._unpacking.unconsumed_tail
            if unpacked:
                buffer[: len(unpacked)] = unpacked
                return len(unpacked)


def unpacked(file: IO[bytes]) -> io.BufferedReader:
    """Returns a reader of the unpacked bytes of a gzip file."""
    return io.BufferedReader(UnfinishedGzip(file), _READ_BYTES)
