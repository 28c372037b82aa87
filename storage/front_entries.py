"""The front log's entries: their encoding, which of them a restart needs, and where the next one
goes.

This module is pure; front.py has the files, and lmdb_journal.py decides when they are written.

A front file is a sequence of pages of 4 KiB. One commit is one *entry* on pages of its own, so that
a torn write damages no earlier entry:

    first page     8s magic "RAYFRNT1"
                   u64 checksum     XXH3-64 of what follows in the header, and of the block
                   u64 generation   raised whenever a writer begins, and behind a failed write
                   u64 number       1, 2, … in its generation
                   u64 first txid, u64 last txid
                   u32 length of the block, u32 0
                   ...  the block's first bytes
    further pages  8s mark "RAYFRNT+", the block's next bytes

Numbers are little-endian; the bytes behind the block are zero. The block is a journal block
(segments.py). Because each page begins with the magic or the mark, bytes of a client never stand at
the beginning of a page, and no client can forge an entry.

Law of the front: before the first entry of a generation is written, every entry of earlier
generations is in the store, synced; and before an entry is overwritten, it is in the store, synced.
So a restart needs only the entries of the newest generation behind the store's end, and these
follow one another without a gap.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from xxhash import xxh3_64_intdigest as checksum64

PAGE_BYTES = 4096
FILE_BYTES = 8 * 1024 * 1024
FILES = 2
MAGIC = b"RAYFRNT1"
MARK = b"RAYFRNT+"

_HEAD = struct.Struct("<8sQQQQQII")
_CHECKED = struct.Struct("<QQQQII")
_CHECKED_FROM = 16
_ZEROS = memoryview(bytes(PAGE_BYTES))
_FIRST_BYTES = PAGE_BYTES - _HEAD.size
_FURTHER_BYTES = PAGE_BYTES - len(MARK)


class FrontEntry(NamedTuple):
    """One commit in the front."""

    generation: int
    number: int
    first_txid: int
    last_txid: int
    block: bytes


def pages_of(block_bytes: int) -> int:
    """Returns the number of pages of an entry with a block of `block_bytes`."""
    if block_bytes <= _FIRST_BYTES:
        return 1
    return 1 - (_FIRST_BYTES - block_bytes) // _FURTHER_BYTES


def encode(entry: FrontEntry) -> bytes:
    block = entry.block
    checked = _CHECKED.pack(
        entry.generation, entry.number, entry.first_txid, entry.last_txid, len(block), 0
    )
    check = checksum64(block, seed=checksum64(checked))
    parts = [MAGIC, check.to_bytes(8, "little"), checked, block[:_FIRST_BYTES]]
    for at in range(_FIRST_BYTES, len(block), _FURTHER_BYTES):
        parts += (MARK, block[at : at + _FURTHER_BYTES])
    made = b"".join(parts)
    return made.ljust(pages_of(len(block)) * PAGE_BYTES, b"\0")


def encode_into(
    pages: memoryview,
    generation: int,
    number: int,
    first_txid: int,
    last_txid: int,
    block: bytes,
) -> int:
    """Encodes an entry into the buffer from which it is written. An entry of one page, such as that
    of a single message, is not copied in between. Returns the size of the entry's pages in
    bytes."""
    end = _HEAD.size + len(block)
    if end > PAGE_BYTES:
        content = encode(FrontEntry(generation, number, first_txid, last_txid, block))
        pages[: len(content)] = content
        return len(content)
    checked = _CHECKED.pack(generation, number, first_txid, last_txid, len(block), 0)
    check = checksum64(block, seed=checksum64(checked))
    _HEAD.pack_into(
        pages, 0, MAGIC, check, generation, number, first_txid, last_txid, len(block), 0
    )
    pages[_HEAD.size : end] = block
    pages[end:PAGE_BYTES] = _ZEROS[end:]
    return PAGE_BYTES


def decode(content: bytes | memoryview, offset: int) -> FrontEntry | None:
    """Returns the entry that begins at this page; None where no sound entry does."""
    if offset + PAGE_BYTES > len(content) or content[offset : offset + 8] != MAGIC:
        return None
    _, check, generation, number, first_txid, last_txid, length, _ = _HEAD.unpack_from(
        content, offset
    )
    pages = pages_of(length)
    if offset + pages * PAGE_BYTES > len(content):
        return None
    at = offset + _HEAD.size
    parts = [bytes(content[at : at + min(length, _FIRST_BYTES)])]
    left = length - len(parts[0])
    for page in range(1, pages):
        at = offset + page * PAGE_BYTES
        if content[at : at + 8] != MARK:
            return None
        parts.append(bytes(content[at + 8 : at + 8 + min(left, _FURTHER_BYTES)]))
        left -= len(parts[-1])
    block = b"".join(parts)
    checked = bytes(content[offset + _CHECKED_FROM : offset + _HEAD.size])
    if checksum64(block, seed=checksum64(checked)) != check or not 0 < first_txid <= last_txid:
        return None
    return FrontEntry(generation, number, first_txid, last_txid, block)


def scan(content: bytes | memoryview) -> list[FrontEntry]:
    """Returns every sound entry of a file, in the order of its pages."""
    found: list[FrontEntry] = []
    offset = 0
    while offset < len(content):
        entry = decode(content, offset)
        if entry is None:
            offset += PAGE_BYTES
        else:
            found.append(entry)
            offset += pages_of(len(entry.block)) * PAGE_BYTES
    return found


@dataclass(frozen=True, slots=True)
class FrontRecovery:
    """The result of reading the front's files at a restart, or by a reader of a journal without a
    writer."""

    entries: Sequence[FrontEntry]
    """The entries to append to the store, in order."""
    generation: int
    """The generation of the next entry that is written."""
    lost_after_txid: int
    """The transaction id behind which an entry is missing although later entries show that it was
    written: the files are damaged. 0: no entry is missing."""


def recover(found: Iterable[FrontEntry], last_txid: int) -> FrontRecovery:
    """Returns the entries that follow the store's last transaction id without a gap.

    An entry is written only when the one before it is durable, so an entry that is missing before
    another one was damaged later. (An entry that begins before the store's end and ends behind it
    comes from a failed write, whose transaction ids were used again.)
    """
    entries = list(found)
    newest = max((entry.generation for entry in entries), default=0)
    behind = sorted(
        (each for each in entries if each.generation == newest and each.first_txid > last_txid),
        key=lambda each: each.number,
    )
    taken: list[FrontEntry] = []
    expected, number = last_txid + 1, 0
    for entry in behind:
        if entry.first_txid != expected or (number and entry.number != number):
            return FrontRecovery(taken, newest + 1, expected - 1)
        taken.append(entry)
        expected, number = entry.last_txid + 1, entry.number + 1
    return FrontRecovery(taken, newest + 1, 0)


class FrontPlace(NamedTuple):
    """The file and the offset at which the next entry is written, with its generation and
    number."""

    file: int
    offset: int
    generation: int
    number: int


class FrontSpace:
    """The allocator of the front's space: it chooses the place of each entry, and reuses a file
    once the store has all of it.

    Invariants: a file is overwritten only when the store has all of its entries, synced; a file
    whose write failed is not written again, and entries written to the other file afterwards have a
    new generation.
    Owner: a journal, which reports what it wrote and what it moved; one thread at a time.

    Args:
        generation: the generation of the next entry, higher than that of any entry in the files.
        file_bytes: the size of each file.
    """

    def __init__(self, generation: int, file_bytes: int = FILE_BYTES) -> None:
        self.generation = generation
        self._file_bytes = file_bytes
        self._number = 0
        self._files = list(range(FILES))
        """The numbers of the files in use; the first is the file that is being written."""
        self._offset = 0
        self._highest = [0] * FILES
        """The number of the last entry in each file, counted through all generations."""
        self._moved = 0
        self._written = 0

    @property
    def is_usable(self) -> bool:
        return bool(self._files)

    @property
    def holds_nothing(self) -> bool:
        """Returns whether the store has every entry that was written."""
        return self._moved >= self._written

    def place(self, block_bytes: int) -> FrontPlace | None:
        """Returns the place of an entry with a block of `block_bytes`; None when there is no place
        until `moved` is called."""
        if not self._files or (self._number == 0 and not self.holds_nothing):
            return None
        needed_bytes = pages_of(block_bytes) * PAGE_BYTES
        if self._offset + needed_bytes > self._file_bytes:
            following = self._files[-1]
            if needed_bytes > self._file_bytes or self._highest[following] > self._moved:
                return None
            self._files.reverse()
            self._offset = 0
        return FrontPlace(self._files[0], self._offset, self.generation, self._number + 1)

    def written(self, block_bytes: int) -> int:
        """Notes that the entry is written and synced at the place that `place` returned. Returns
        the entry's number for `moved`."""
        self._number += 1
        self._written += 1
        self._highest[self._files[0]] = self._written
        self._offset += pages_of(block_bytes) * PAGE_BYTES
        return self._written

    def moved(self, upto: int) -> None:
        """Notes that the store has all entries up to this number, synced."""
        self._moved = max(self._moved, upto)

    def failed(self) -> None:
        """Notes that a write failed. The content of its pages is unknown, and its transaction ids
        may be used again: `place` returns None until the store has every written entry."""
        del self._files[0]
        self.generation += 1
        self._number = 0
        # The next entry begins at the start of a file whose entries the store has.
        self._offset = self._file_bytes
