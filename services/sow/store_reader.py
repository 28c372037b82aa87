"""The interfaces between a topic's state and its store, and between it and those who follow its
changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

READ_FIRST, READ_AT_ONCE = 16, 1000
"""Entries, of a look at all of them."""
READ_BYTES = 256 * 1024
"""Approximate bytes of the entries of a look, however large they are."""

Chunk = Callable[[bytes, bytes, int], list[tuple[bytes, bytes]]]
"""See `StoreReader.chunk`."""


class StoreReader(Protocol):
    """The part of a topic that is on disk (storage/sow.py)."""

    def get(self, key: bytes) -> bytes | None:
        """The value of a key of the store."""

    def last(self, start: bytes, end: bytes) -> bytes | None:
        """The last key from `start` on and before `end`."""

    def chunk(self, start: bytes, end: bytes, most: int) -> list[tuple[bytes, bytes]]:
        """The first `most` (key, value) from `start` on and before `end`, by key."""


class ChangeListener(Protocol):
    """Hears of changes."""

    def changed(self, key: bytes, previous: bytes | None) -> None:
        """An entry is about to be changed.

        Args:
            previous: what it is until then; None: there is none.
        """


class EmptyStore:
    """The `StoreReader` of a topic of which nothing is on disk."""

    def get(self, key: bytes) -> bytes | None:
        """None."""
        return None

    def last(self, start: bytes, end: bytes) -> bytes | None:
        """None."""
        return None

    def chunk(self, start: bytes, end: bytes, most: int) -> list[tuple[bytes, bytes]]:
        """Nothing."""
        return []


def entries_of(chunk: Chunk, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
    """All entries from `start` on and before `end`, by key, little of them in memory at a time."""
    most = READ_FIRST
    while True:
        entries = chunk(start, end, most)
        yield from entries
        if len(entries) < most:
            return
        start = entries[-1][0] + b"\0"
        read_bytes = sum(len(value) for _, value in entries)
        fitting = most * READ_BYTES // max(read_bytes, 1)
        most = max(1, min(fitting, 2 * most, READ_AT_ONCE))
