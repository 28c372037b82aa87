"""The interfaces between a topic's state, its store, and listeners to its changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

READ_FIRST, READ_AT_ONCE = 16, 1000
"""Number of entries that an iteration reads first, and in each further read."""
READ_BYTES = 256 * 1024
"""Approximate bytes of the entries in one read, however large they are."""

Chunk = Callable[[bytes, bytes, int], list[tuple[bytes, bytes]]]
"""See `StoreReader.chunk`."""


class StoreReader(Protocol):
    """The stored part of a topic (storage/sow.py)."""

    def get(self, key: bytes) -> bytes | None:
        """Returns the value of a key of the store; None: there is none."""

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Returns what `get` returns for each key."""

    def last(self, start: bytes, end: bytes) -> bytes | None:
        """Returns the last key from `start` on and before `end`; None: there is none."""

    def chunk(self, start: bytes, end: bytes, most: int) -> list[tuple[bytes, bytes]]:
        """Returns the first `most` (key, value) from `start` on and before `end`, by key."""


class ChangeListener(Protocol):
    """A listener that is called with each change."""

    def changed(self, key: bytes, previous: bytes | None) -> None:
        """Takes an entry that is about to be changed.

        Args:
            previous: value of the entry until then; None: there is none.
        """


class EmptyStore:
    """The `StoreReader` of a topic without a store."""

    def get(self, key: bytes) -> bytes | None:
        """None."""
        return None

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [None] * len(keys)

    def last(self, start: bytes, end: bytes) -> bytes | None:
        """None."""
        return None

    def chunk(self, start: bytes, end: bytes, most: int) -> list[tuple[bytes, bytes]]:
        return []


def entries_of(chunk: Chunk, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yields all entries from `start` on and before `end`, by key, with few of them in memory at a
    time."""
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
