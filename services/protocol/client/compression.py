"""Compression of replicated batches: chosen by the sender, recognised by the receiver (behaviour.md
1.1, `Compression` and `CompressionType`)."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import zstandard

from raylay.services.errors import RemoteProtocolError

ZSTD = "zstd"
ZLIB = "zlib"
COMPRESSION_TYPES = (ZSTD, ZLIB)
_LEVEL = 1
"""The fastest level of both kinds: a link compresses to save network, not processor time."""


def compressor(kind: str) -> Callable[[bytes], bytes]:
    """Returns a function that compresses the runs of one batch after another, so that each can be
    decompressed by itself."""
    if kind == ZSTD:
        return zstandard.ZstdCompressor(level=_LEVEL).compress
    if kind == ZLIB:
        return lambda block: zlib.compress(block, _LEVEL)
    raise ValueError(f"no compression {kind!r}: zstd or zlib")


class Decompressor:
    """Decompresses what any sender's `compressor` made. Owner: one connection."""

    __slots__ = ("_bytes_max", "_zstd")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._zstd: zstandard.ZstdDecompressor | None = None

    def size_max(self, kind: str, block: bytes) -> int:
        """Returns how many bytes a block may become: what it says, or else the limit. More than the
        limit only if it says so.

        Raises:
            RemoteProtocolError: with reason `bad_record`: it is damaged.
        """
        if kind == ZLIB:
            return self._bytes_max
        try:
            size_bytes: int = zstandard.frame_content_size(block)
        except zstandard.ZstdError as error:
            raise _damaged(kind, error) from None
        return size_bytes if size_bytes >= 0 else self._bytes_max

    def decompress(self, kind: str, block: bytes) -> bytes:
        """Returns the runs as bytes. The result never exceeds the limit, whatever the block claims.

        Raises:
            RemoteProtocolError: with reason `bad_record`: it is damaged, cut short or too large.
        """
        try:
            return self._zlib(block) if kind == ZLIB else self._zstandard(block)
        except (zstandard.ZstdError, zlib.error) as error:
            raise _damaged(kind, error) from None

    def _zstandard(self, block: bytes) -> bytes:
        if self._zstd is None:
            self._zstd = zstandard.ZstdDecompressor()
        size_bytes = zstandard.frame_content_size(block)
        if size_bytes > self._bytes_max:
            raise zstandard.ZstdError(f"{size_bytes} bytes are above {self._bytes_max}")
        return self._zstd.decompress(block, max_output_size=self._bytes_max)

    def _zlib(self, block: bytes) -> bytes:
        reader = zlib.decompressobj()
        found = reader.decompress(block, self._bytes_max + 1)
        if len(found) > self._bytes_max:
            raise zlib.error(f"it is above {self._bytes_max} bytes")
        if not reader.eof or reader.unused_data:
            raise zlib.error("it is cut short, or more follows it")
        return found


def _damaged(kind: str, error: Exception) -> RemoteProtocolError:
    return RemoteProtocolError(f"a batch cannot be decompressed as {kind}: {error}", "bad_record")
