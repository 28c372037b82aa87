"""What a topic's state reads of what is on disk, and whom it tells of changes."""

from __future__ import annotations

from typing import Protocol


class Reading(Protocol):
    """What of a topic is on disk (storage/sow.py)."""

    def get(self, key: bytes) -> bytes | None:
        """The value of a key of the store."""

    def last(self, start: bytes, end: bytes) -> bytes | None:
        """The last key from `start` on and before `end`."""

    def chunk(self, start: bytes, end: bytes, most: int) -> list[tuple[bytes, bytes]]:
        """The first `most` (key, value) from `start` on and before `end`, by key."""


class Watching(Protocol):
    """Who is told of changes."""

    def changed(self, key: bytes, previous: bytes | None) -> None:
        """An entry is about to be changed.

        Args:
            previous: what it is until then; None: there is none.
        """


class Nothing:
    """The `Reading` of a topic of which nothing is on disk."""

    def get(self, key: bytes) -> bytes | None:
        """None."""
        return None

    def last(self, start: bytes, end: bytes) -> bytes | None:
        """None."""
        return None

    def chunk(self, start: bytes, end: bytes, most: int) -> list[tuple[bytes, bytes]]:
        """Nothing."""
        return []
