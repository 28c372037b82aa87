"""A compressed segment: one file, read by transaction id without unpacking the rest.

All numbers are little-endian, checksums XXH3 (64 bits).

    header (32 bytes)
      8s   magic             b"RAYLAYZ\\0"
      u16  version           1
      u16  reserved          0
      u32  reserved          0
      u64  first txid
      u64  last txid
    groups, back to back: each a zstd frame of about 1 MiB of blocks, and in it per block
      u64  first txid
      u32  length
      ...  the block         (runs back to back, services/messages/records.py)
    footer: a zstd frame of
      u32  count of groups
      per group: u64 first txid, u64 file offset, u32 compressed bytes, u32 unpacked bytes,
                 u64 checksum of the compressed bytes
      u32  count of meta entries
      per entry: u16 key length, u32 value length, key, value    (segment_index.py)
    tail (40 bytes)
      u64  footer offset
      u64  footer length
      u64  checksum of the footer as it is stored
      u64  checksum of the file's header
      8s   magic             b"RAYLAYZ\\0"

A file without its tail was never finished.
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import zstandard
from xxhash import xxh3_64_intdigest as checksum64

from raylay.services.errors import CorruptRecord, StorageError
from raylay.storage.files import private_opener

CONTAINER_VERSION = 1
GROUP_BYTES = 1024 * 1024
ZSTD_LEVEL_DEFAULT = 3
UNPACKED_BYTES_MAX = 256 * 1024 * 1024
"""The limit of an unpacked group or footer, in bytes: one that claims more is damaged."""

_MAGIC = b"RAYLAYZ\0"
_HEADER = struct.Struct("<8sHHIQQ")
_BLOCK = struct.Struct("<QI")
_GROUP = struct.Struct("<QQIIQ")
_ENTRY = struct.Struct("<HI")
_COUNT = struct.Struct("<I")
_TAIL = struct.Struct("<QQQQ8s")


class CompressedGroup(NamedTuple):
    """The position of one group in the file."""

    first_txid: int
    offset: int
    compressed_bytes: int
    unpacked_bytes: int
    checksum: int


def write_container(
    path: Path,
    first_txid: int,
    last_txid: int,
    blocks: Iterable[tuple[int, bytes]],
    entries: Mapping[bytes, bytes],
    *,
    level: int = ZSTD_LEVEL_DEFAULT,
) -> None:
    """Writes a container, which only this user may read, and syncs it. `blocks` are (first txid,
    block), ascending."""
    compressor = zstandard.ZstdCompressor(level=level, write_checksum=False)
    header = _HEADER.pack(_MAGIC, CONTAINER_VERSION, 0, 0, first_txid, last_txid)
    groups: list[CompressedGroup] = []
    with open(path, "wb", opener=private_opener) as file:
        file.write(header)
        at = len(header)
        pending: list[bytes] = []
        pending_bytes = 0
        pending_first = 0

        def write_group() -> int:
            packed = compressor.compress(b"".join(pending))
            file.write(packed)
            groups.append(
                CompressedGroup(pending_first, at, len(packed), pending_bytes, checksum64(packed))
            )
            return len(packed)

        for txid, block in blocks:
            if not pending:
                pending_first = txid
            pending += (_BLOCK.pack(txid, len(block)), block)
            pending_bytes += _BLOCK.size + len(block)
            if pending_bytes >= GROUP_BYTES:
                at += write_group()
                pending.clear()
                pending_bytes = 0
        if pending:
            at += write_group()
        parts = [_COUNT.pack(len(groups)), *(_GROUP.pack(*group) for group in groups)]
        parts.append(_COUNT.pack(len(entries)))
        for key, value in sorted(entries.items()):
            parts += (_ENTRY.pack(len(key), len(value)), key, value)
        footer = compressor.compress(b"".join(parts))
        file.write(footer)
        file.write(_TAIL.pack(at, len(footer), checksum64(footer), checksum64(header), _MAGIC))
        file.flush()
        os.fsync(file.fileno())


class Container:
    """Reads one compressed segment.

    Invariants: the file never changes; one unpacked group is kept.
    Owner: one reader. Lifecycle: open until `close`.

    Raises:
        CorruptRecord: the file is torn or damaged.
        StorageError: the file has another version.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._open()
        except BaseException:
            os.close(self._fd)
            raise

    def _open(self) -> None:
        size = os.fstat(self._fd).st_size
        header = os.pread(self._fd, _HEADER.size, 0)
        if size < _HEADER.size + _TAIL.size:
            raise self._damaged("is torn: it is too short", 0)
        magic, version, _, _, self.first_txid, self.last_txid = _HEADER.unpack(header)
        if magic != _MAGIC:
            raise self._damaged("is no compressed segment", 0)
        if version != CONTAINER_VERSION:
            raise StorageError(
                f"{self.path} has version {version}, this software reads {CONTAINER_VERSION}",
                str(self.path),
            )
        tail_at = size - _TAIL.size
        at, length, check, header_check, magic = _TAIL.unpack(
            os.pread(self._fd, _TAIL.size, tail_at)
        )
        if magic != _MAGIC or at + length != tail_at:
            raise self._damaged("is torn: its tail is missing", tail_at)
        if header_check != checksum64(header):
            raise self._damaged("has a header that fails its checksum", 0)
        packed = os.pread(self._fd, length, at)
        if checksum64(packed) != check:
            raise self._damaged("has a footer that fails its checksum", at)
        self._decompressor = zstandard.ZstdDecompressor()
        footer = self._unpack(packed, at)
        self.groups: list[CompressedGroup] = []
        self.entries: dict[bytes, bytes] = {}
        try:
            (count,) = _COUNT.unpack_from(footer)
            at_entry = _COUNT.size
            for _ in range(count):
                self.groups.append(CompressedGroup(*_GROUP.unpack_from(footer, at_entry)))
                at_entry += _GROUP.size
            (count,) = _COUNT.unpack_from(footer, at_entry)
            at_entry += _COUNT.size
            for _ in range(count):
                key_length, value_length = _ENTRY.unpack_from(footer, at_entry)
                at_entry += _ENTRY.size
                value_at = at_entry + key_length
                self.entries[footer[at_entry:value_at]] = footer[value_at : value_at + value_length]
                at_entry = value_at + value_length
        except struct.error:
            raise self._damaged("has a footer that is cut short", at) from None
        self._group_firsts = [group.first_txid for group in self.groups]
        self._unpacked_at = -1
        self._unpacked: list[tuple[int, bytes]] = []

    def _damaged(self, what: str, offset: int) -> CorruptRecord:
        return CorruptRecord(f"{self.path} {what} (byte {offset})", str(self.path), offset)

    def _unpack(self, packed: bytes, offset: int) -> bytes:
        try:
            size = zstandard.frame_content_size(packed)
            if not 0 <= size <= UNPACKED_BYTES_MAX:
                raise self._damaged("has a part of impossible size", offset)
            return self._decompressor.decompress(packed, max_output_size=size)
        except zstandard.ZstdError as error:
            raise self._damaged(f"cannot be unpacked: {error}", offset) from None

    @property
    def size_bytes(self) -> int:
        """Bytes on disk."""
        return os.fstat(self._fd).st_size

    def group_of(self, txid: int) -> int:
        """Returns the number of the group that holds, or would hold, the transaction id."""
        return max(0, bisect_right(self._group_firsts, txid) - 1)

    def read_group(self, number: int) -> list[tuple[int, bytes]]:
        """Returns (first transaction id, block) for every block of a group.

        Raises:
            CorruptRecord: the group is damaged.
        """
        if number == self._unpacked_at:
            return self._unpacked
        group = self.groups[number]
        packed = os.pread(self._fd, group.compressed_bytes, group.offset)
        if checksum64(packed) != group.checksum:
            raise self._damaged(f"has a damaged group {number}", group.offset)
        unpacked = self._unpack(packed, group.offset)
        blocks: list[tuple[int, bytes]] = []
        at = 0
        while at < len(unpacked):
            if at + _BLOCK.size > len(unpacked):
                raise self._damaged(f"has a group {number} that is cut short", group.offset)
            txid, length = _BLOCK.unpack_from(unpacked, at)
            at += _BLOCK.size
            if at + length > len(unpacked):
                raise self._damaged(f"has a group {number} that is cut short", group.offset)
            blocks.append((txid, unpacked[at : at + length]))
            at += length
        self._unpacked_at, self._unpacked = number, blocks
        return blocks

    def verify(self) -> None:
        """Reads every group.

        Raises:
            CorruptRecord: a group is damaged.
        """
        for number in range(len(self.groups)):
            self.read_group(number)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
