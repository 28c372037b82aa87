"""Look-ups in an LMDB file without LMDB, page by page (lmdb_structure.py has the layout).

LMDB maps a file: it makes a lock table beside it, and a damaged page number ends the process. To
tell what a file is, a few pages are read instead, each number of them checked. Beside a writer a
page may be a newer one than the page that names it: the caller looks again.
"""

from __future__ import annotations

import os
import struct
from typing import NamedTuple

from raylay.services.errors import CorruptRecord
from raylay.storage.lmdb_structure import (
    _DATABASE,
    _META,
    _NODE,
    _PAGE,
    BIG_DATA,
    BRANCH,
    DEPTH_MAX,
    LEAF,
    MAGIC,
    META,
    NO_PAGE,
    OVERFLOW,
    PAGE_HEADER_BYTES,
)

PAGE_SIZES = (4096, 8192, 16384, 32768, 65536)
VALUE_BYTES_MAX = 1024 * 1024
"""Limit on the bytes of a value that `get` reads; the rest of a longer one is left out."""
_PAGE_NUMBER = struct.Struct("<Q")
VERSION = 1


class LmdbSummary(NamedTuple):
    """The newer one of a file's two meta pages.

    Attributes:
        entries: number of keys.
        transaction: number of the last committed transaction.
        used_bytes: bytes up to the last page in use.
        root: page number of the root; NO_PAGE: the file is empty.
    """

    page_bytes: int
    entries: int
    transaction: int
    used_bytes: int
    depth: int
    root: int


def starts_like_lmdb(head: bytes) -> bool:
    """Returns whether the first bytes of a file are those of an LMDB file."""
    if len(head) < PAGE_HEADER_BYTES + _META.size:
        return False
    flags = _PAGE.unpack_from(head)[2]
    magic, version = struct.unpack_from("<II", head, PAGE_HEADER_BYTES)
    return bool(flags & META) and magic == MAGIC and version == VERSION


class LmdbPages:
    """See the file's docstring. Owner: the reader, which owns the descriptor too.

    Args:
        descriptor: the open file.
        path: its name, for errors.

    Raises:
        CorruptRecord: it has no sound meta page, or is cut short.
    """

    def __init__(self, descriptor: int, path: str) -> None:
        self._descriptor = descriptor
        self._path = path
        self.summary = self._newest()

    def _damaged(self, text: str, offset: int = 0) -> CorruptRecord:
        return CorruptRecord(f"{self._path} is damaged: {text}", self._path, offset)

    def _newest(self) -> LmdbSummary:
        size_bytes = os.fstat(self._descriptor).st_size
        head = os.pread(self._descriptor, PAGE_HEADER_BYTES + _META.size, 0)
        if not starts_like_lmdb(head):
            raise self._damaged("it has no LMDB meta page")
        page_bytes = _DATABASE.unpack(_META.unpack_from(head, PAGE_HEADER_BYTES)[4])[0]
        if page_bytes not in PAGE_SIZES:
            raise self._damaged(f"its pages have {page_bytes} bytes")
        found: list[LmdbSummary] = []
        for page in (0, 1):
            part = os.pread(self._descriptor, PAGE_HEADER_BYTES + _META.size, page * page_bytes)
            if not starts_like_lmdb(part):
                continue
            *_, main, last_page, transaction = _META.unpack_from(part, PAGE_HEADER_BYTES)
            _, _, depth, _, _, _, entries, root = _DATABASE.unpack(main)
            used_bytes = (last_page + 1) * page_bytes
            found.append(LmdbSummary(page_bytes, entries, transaction, used_bytes, depth, root))
        if not found:
            raise self._damaged("neither meta page is sound")
        best = max(found, key=lambda each: each.transaction)
        if best.used_bytes > size_bytes:
            raise self._damaged(
                f"it is cut short: {size_bytes:,} bytes of {best.used_bytes:,}", size_bytes
            )
        return best

    def get(self, key: bytes) -> bytes | None:
        """Returns a key's value, or its first VALUE_BYTES_MAX bytes; None: there is none.

        Raises:
            CorruptRecord: a page on the way is damaged.
        """
        page, leaf = self._leaf(key)
        for at in self._nodes(page, leaf):
            low, high, flags, key_bytes = _NODE.unpack_from(leaf, at)
            start = at + _NODE.size
            if leaf[start : start + key_bytes] == key:
                data_at, data_bytes = start + key_bytes, low | high << 16
                if not flags & BIG_DATA:
                    return leaf[data_at : data_at + data_bytes]
                return self._overflow(_PAGE_NUMBER.unpack_from(leaf, data_at)[0], data_bytes)
        return None

    def first_keys(self, most: int) -> list[bytes]:
        """Returns the first keys of the first leaf, at most this many.

        Raises:
            CorruptRecord: a page on the way is damaged.
        """
        page, leaf = self._leaf(b"")
        found = []
        for at in self._nodes(page, leaf)[:most]:
            key_bytes = _NODE.unpack_from(leaf, at)[3]
            found.append(leaf[at + _NODE.size : at + _NODE.size + key_bytes])
        return found

    def _leaf(self, key: bytes) -> tuple[int, bytes]:
        """Returns the leaf that has, or would have, the key: its page number and bytes."""
        _, _, _, _, depth, root = self.summary
        if root == NO_PAGE:
            return 0, b""
        if not 1 <= depth <= DEPTH_MAX:
            raise self._damaged(f"its tree has a depth of {depth}")
        page = root
        for level in range(depth, 1, -1):
            branch = self._read(page, BRANCH)
            nodes = self._nodes(page, branch)
            if len(nodes) < 2:
                raise self._damaged(f"page {page}, level {level}, has {len(nodes)} nodes")
            chosen = nodes[0]
            for at in nodes[1:]:
                key_bytes = _NODE.unpack_from(branch, at)[3]
                if branch[at + _NODE.size : at + _NODE.size + key_bytes] > key:
                    break
                chosen = at
            low, high, flags, _ = _NODE.unpack_from(branch, chosen)
            page = low | high << 16 | flags << 32
        return page, self._read(page, LEAF)

    def _read(self, page: int, kind: int) -> bytes:
        page_bytes = self.summary.page_bytes
        offset = page * page_bytes
        if page < 2 or offset + page_bytes > self.summary.used_bytes:
            raise self._damaged(f"page {page} is outside the file")
        content = os.pread(self._descriptor, page_bytes, offset)
        if len(content) < page_bytes:
            raise self._damaged(f"page {page} is cut short", offset)
        number, _, flags, _, _ = _PAGE.unpack_from(content)
        if number != page or flags != kind:
            raise self._damaged(f"page {page} has a header that does not fit", offset)
        return content

    def _nodes(self, page: int, content: bytes) -> list[int]:
        """Returns the offsets of a page's nodes."""
        if not content:
            return []
        lower, upper = _PAGE.unpack_from(content)[3:]
        if lower % 2 or not PAGE_HEADER_BYTES <= lower <= upper <= len(content):
            raise self._damaged(f"page {page} has a header that does not fit")
        count = (lower - PAGE_HEADER_BYTES) // 2
        offsets = struct.unpack_from(f"<{count}H", content, PAGE_HEADER_BYTES)
        for at in offsets:
            fits = upper <= at <= len(content) - _NODE.size
            # Behind the key of a large value stands the number of its first page.
            room = 8 if fits and _NODE.unpack_from(content, at)[2] == BIG_DATA else 0
            if not fits or at + _NODE.size + _NODE.unpack_from(content, at)[3] + room > len(
                content
            ):
                raise self._damaged(f"page {page} has a node outside itself")
        return list(offsets)

    def _overflow(self, page: int, data_bytes: int) -> bytes:
        offset = page * self.summary.page_bytes
        wanted = min(data_bytes, VALUE_BYTES_MAX)
        if page < 2 or offset + PAGE_HEADER_BYTES + wanted > self.summary.used_bytes:
            raise self._damaged(f"page {page} is outside the file")
        content = os.pread(self._descriptor, PAGE_HEADER_BYTES + wanted, offset)
        if len(content) < PAGE_HEADER_BYTES + wanted:
            raise self._damaged(f"page {page} is cut short", offset)
        number, _, flags, _, _ = _PAGE.unpack_from(content)
        if number != page or flags != OVERFLOW:
            raise self._damaged(f"page {page} has a header that does not fit", offset)
        return content[PAGE_HEADER_BYTES:]
