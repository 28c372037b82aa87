"""The interface of a publish store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol


class PublishStoreProtocol(Protocol):
    """A store of published messages that are not known to be durable yet (storage/stores.py)."""

    def put(self, sequence: int, record: bytes) -> None:
        """Adds the record of the next sequence.

        Raises:
            PublishStoreFull: a limit is reached; nothing was added.
        """

    def flush(self) -> None:
        """Makes all added records durable, where the store is durable. Blocks for a synced
        write."""

    def advance(self, highest: int) -> None:
        """Raises `highest` without a record."""

    def acknowledge(self, upto: int) -> None:
        """Forgets every sequence up to `upto`."""

    def drop(self, ranges: list[tuple[int, int]]) -> None:
        """Forgets the sequences of these inclusive ranges."""

    @property
    def words(self) -> bytes:
        """Reports of instances about where the client may fail over to; empty: none yet."""

    @words.setter
    def words(self, value: bytes) -> None: ...

    def replay(self, first: int = 0) -> Iterator[tuple[int, bytes]]:
        """Yields (sequence, record) in ascending order from a sequence on, for the content at the
        call."""

    @property
    def lowest(self) -> int:
        """Returns the lowest sequence held; 0 when the store is empty."""

    @property
    def highest(self) -> int:
        """Returns the highest sequence ever added, also when the store is empty; 0: none."""

    @property
    def messages(self) -> int:
        """Returns the number of records held."""

    @property
    def full(self) -> bool:
        """Returns whether a limit in messages or bytes is reached."""
