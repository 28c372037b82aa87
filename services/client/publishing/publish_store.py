"""The interface of a publish store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol


class PublishStoreProtocol(Protocol):
    """A store of the messages that are published and not known to be durable yet
    (storage/stores.py)."""

    def put(self, sequence: int, record: bytes) -> None:
        """Adds the record of the next sequence.

        Raises:
            PublishStoreFull: a limit is reached; nothing was added.
        """

    def flush(self) -> None:
        """Makes durable what was put, where the store is durable. Blocks for a synced write."""

    def advance(self, highest: int) -> None:
        """Raises `highest` without a record."""

    def acknowledge(self, upto: int) -> None:
        """Forgets every sequence up to `upto`."""

    def drop(self, ranges: list[tuple[int, int]]) -> None:
        """Forgets the inclusive ranges."""

    words: bytes
    """Reports to the client about where it may fail over to; empty: none yet."""

    def replay(self, first: int = 0) -> Iterator[tuple[int, bytes]]:
        """(sequence, record) in ascending order, from a sequence on, as it is at the call."""

    @property
    def lowest(self) -> int:
        """The lowest sequence held; 0 when it is empty."""

    @property
    def highest(self) -> int:
        """The highest sequence ever put, also when it is empty; 0 for none."""

    @property
    def messages(self) -> int:
        """Records held."""

    @property
    def full(self) -> bool:
        """Returns whether a limit in messages or bytes is reached."""
