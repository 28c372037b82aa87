"""Checks the page structure of an LMDB file before LMDB maps it.

LMDB trusts its pages: one damaged page number or node offset ends the process with SIGBUS or an
assertion (measured: about one in fifty random hits), where a damaged segment must be an error that
names the file. The check reads each branch page, each leaf page and the header of each overflow
page, and refuses numbers that would lead outside the file. Payloads have their own checksums
(services/messages/records.py).

    page (16 bytes)   u64 number, u16, u16 flags, u16 lower, u16 upper — or u32 pages, for overflow
    meta              u32 magic, u32 version, u64, u64 map size, two databases, u64 last page, u64
                      transaction: the one of the first two pages with the higher transaction counts
    database (48)     u32 page size, u16 flags, u16 depth, then u64 each: branch, leaf and overflow
                      pages, entries, root
    node (8)          u16 low, u16 high, u16 flags, u16 key length, then key and data; in a branch
                      low, high, flags are a page number, in a leaf low and high the data's length
"""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path

from raylay.services.errors import CorruptRecord

PAGE_HEADER_BYTES = 16
MAGIC = 0xBEEFC0DE
BRANCH, LEAF, OVERFLOW, META = 1, 2, 4, 8
BIG_DATA = 1
NO_PAGE = (1 << 64) - 1
DEPTH_MAX = 32

_PAGE = struct.Struct("<QHHHH")
_META = struct.Struct("<IIQQ48s48sQQ")
_DATABASE = struct.Struct("<IHHQQQQQ")
_NODE = struct.Struct("<HHHH")
_U64 = struct.Struct("<Q")
_U32 = struct.Struct("<I")


def check_structure(path: Path) -> None:
    """Checks both trees of the file. No process may write to it meanwhile.

    Raises:
        FileNotFoundError: there is no such file.
        CorruptRecord: a page is damaged, or the file is cut short; the error names file and
            offset.
    """
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size < PAGE_HEADER_BYTES + _META.size:
            raise CorruptRecord(f"{path} is torn: {size} bytes", str(path), size)
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
            _Walk(path, view, size).run()


class _Walk:
    def __init__(self, path: Path, view: mmap.mmap, size: int) -> None:
        self.path = path
        self.view = view
        self.size = size
        self.page_bytes = 0
        self.last_page = 0
        self.pages_left = 0

    def damaged(self, page: int, what: str) -> CorruptRecord:
        offset = page * self.page_bytes
        return CorruptRecord(f"{self.path} is damaged: page {page} {what}", str(self.path), offset)

    def run(self) -> None:
        magic, _, _, _, free_database, *_ = _META.unpack_from(self.view, PAGE_HEADER_BYTES)
        self.page_bytes = _DATABASE.unpack(free_database)[0]
        if magic != MAGIC or self.page_bytes not in (4096, 8192, 16384, 32768, 65536):
            raise self.damaged(0, "is no sound meta page")
        best: tuple[int, bytes, bytes, int] | None = None
        for page in (0, 1):
            at = page * self.page_bytes
            if at + PAGE_HEADER_BYTES + _META.size > self.size:
                raise CorruptRecord(f"{self.path} is torn: {self.size} bytes", str(self.path), at)
            number, _, flags, _, _ = _PAGE.unpack_from(self.view, at)
            magic, version, _, _, free, main, last_page, transaction = _META.unpack_from(
                self.view, at + PAGE_HEADER_BYTES
            )
            if magic != MAGIC or not flags & META or number != page or version != 1:
                raise self.damaged(page, "is no sound meta page")
            if best is None or transaction > best[0]:
                best = (transaction, free, main, last_page)
        assert best is not None
        _, free, main, self.last_page = best
        if (self.last_page + 1) * self.page_bytes > self.size:
            raise CorruptRecord(
                f"{self.path} is torn: {self.size} bytes of "
                f"{(self.last_page + 1) * self.page_bytes}",
                str(self.path),
                self.size,
            )
        for database in (free, main):
            _, _, depth, _, _, _, _, root = _DATABASE.unpack(database)
            self.pages_left = self.last_page + 1
            if root != NO_PAGE:
                if not 1 <= depth <= DEPTH_MAX:
                    raise self.damaged(0, f"or 1 names a tree of depth {depth}")
                self.walk(root, depth)

    def walk(self, page: int, depth: int) -> None:
        self.pages_left -= 1
        if not 2 <= page <= self.last_page or self.pages_left < 0:
            raise self.damaged(page, "is outside the file, or used twice")
        view = self.view
        start = page * self.page_bytes
        number, _, flags, lower, upper = _PAGE.unpack_from(view, start)
        kind = LEAF if depth == 1 else BRANCH
        if (
            number != page
            or flags != kind
            or lower % 2
            or not PAGE_HEADER_BYTES <= lower <= upper <= self.page_bytes
        ):
            raise self.damaged(page, "has a header that does not fit")
        count = (lower - PAGE_HEADER_BYTES) // 2
        if not count or (kind == BRANCH and count < 2):
            raise self.damaged(page, f"has {count} nodes")
        for offset in struct.unpack_from(f"<{count}H", view, start + PAGE_HEADER_BYTES):
            if not upper <= offset <= self.page_bytes - _NODE.size:
                raise self.damaged(page, "has a node outside itself")
            low, high, node_flags, key_bytes = _NODE.unpack_from(view, start + offset)
            data_at = offset + _NODE.size + key_bytes
            if kind == BRANCH:
                if data_at > self.page_bytes:
                    raise self.damaged(page, "has a key that does not fit")
                self.walk(low | high << 16 | node_flags << 32, depth - 1)
                continue
            data_bytes = low | high << 16
            if node_flags & ~BIG_DATA:
                raise self.damaged(page, f"has a node of flags {node_flags}")
            if data_at + (8 if node_flags else data_bytes) > self.page_bytes:
                raise self.damaged(page, "has data that do not fit")
            if node_flags:
                self.overflow(_U64.unpack_from(view, start + data_at)[0], data_bytes)

    def overflow(self, page: int, data_bytes: int) -> None:
        if not 2 <= page <= self.last_page:
            raise self.damaged(page, "is outside the file")
        start = page * self.page_bytes
        number, _, flags, _, _ = _PAGE.unpack_from(self.view, start)
        pages = _U32.unpack_from(self.view, start + 12)[0]
        if (
            number != page
            or flags != OVERFLOW
            or page + pages > self.last_page + 1
            or PAGE_HEADER_BYTES + data_bytes > pages * self.page_bytes
        ):
            raise self.damaged(page, "has a header that does not fit")
