"""Reads of an instance's SOW store from another process, while the instance runs or is down."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from heapq import merge
from pathlib import Path
from typing import Any

import lmdb

from raylay.storage.environment import CutShortError, read_only
from raylay.storage.sow import (
    _ENTRY,
    _TXID,
    _VALID,
    MAP_BYTES_DEFAULT,
    _topic_key,
    scanned_blocks,
    scanned_tree,
)
from raylay.storage.sow_blocks import BLOCK, NUMBER, TopicBlocks, blocks_of, generated
from raylay.storage.state import check_version, explained


class StoredTopics:
    """The contents of a SOW store at one moment.

    Owner: the reader. Lifecycle: the `with` of `reading`.

    Args:
        transaction: a read transaction with buffers.
    """

    def __init__(self, transaction: Any) -> None:
        self._transaction = transaction
        self._blocks: dict[bytes, TopicBlocks] = {}

    def txid(self, name: str) -> int:
        """Returns the transaction id up to which a topic is folded; 0: the topic is new, or
        unknown."""
        number = self._number(name)
        value = self._transaction.get(_VALID + number) if number else None
        return int(_TXID.unpack(value)[0]) if value else 0

    def get(self, name: str, key: bytes) -> bytes | None:
        number = self._number(name)
        if not number:
            return None
        digest = generated(key)
        if digest is None:
            value = self._transaction.get(_ENTRY + number + key)
            return None if value is None else bytes(value)
        place = self._blocks_of(number).index.find(digest)
        if place is None:
            return None
        block, offset, length = place
        view = self._transaction.get(BLOCK + number + NUMBER.pack(block))
        return bytes(view[offset : offset + length])

    def entries(self, name: str, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yields (key, value) of the entries of a topic from key `start` to before `end`, by
        key."""
        number = self._number(name)
        if number:
            yield from stored_entries(
                self._transaction, number, self._blocks_of(number), start, end
            )

    def _number(self, name: str) -> bytes:
        return bytes(self._transaction.get(_topic_key(name)) or b"")

    def _blocks_of(self, number: bytes) -> TopicBlocks:
        found = self._blocks.get(number)
        if found is None:
            found = self._blocks[number] = loaded_blocks(self._transaction, number)
        return found


def loaded_blocks(transaction: Any, number: bytes) -> TopicBlocks:
    """Returns the blocks of a topic, with their index.

    Args:
        transaction: a read transaction with buffers.
        number: number of the topic in the store, encoded.

    Raises:
        SowDamaged: a block is damaged.
    """
    blocks = TopicBlocks()
    blocks.load(list(blocks_of(transaction, number)))
    return blocks


def stored_entries(
    transaction: Any, number: bytes, blocks: TopicBlocks, start: bytes, end: bytes
) -> Iterator[tuple[bytes, bytes]]:
    """Yields (key, value) of the entries of a topic from `start` to before `end`, by key."""
    with transaction.cursor() as cursor:
        yield from merge(
            scanned_tree(cursor, _ENTRY + number, start, end),
            scanned_blocks(transaction, number, blocks, start, end),
        )


@contextmanager
def reading(path: Path) -> Iterator[StoredTopics]:
    """Opens the store in a file at its present state, for a `with`. This process may not have an
    environment of it open.

    Raises:
        StorageError: the file cannot be read, or is of another version.
    """
    try:
        with read_only(path, buffers=True, map_size=MAP_BYTES_DEFAULT) as transaction:
            check_version(transaction, path)
            yield StoredTopics(transaction)
    except (lmdb.Error, OSError, CutShortError) as error:
        raise explained(error, path) from error
