"""Reads of an instance's SOW store from another process, while the instance runs or is down."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lmdb

from raylay.storage.environment import CutShortError, read_only
from raylay.storage.sow import _ENTRY, _TXID, _VALID, MAP_BYTES_DEFAULT, _topic_key
from raylay.storage.state import check_version, explained


class StoredTopics:
    """The contents of a SOW store at one moment.

    Owner: the reader. Lifecycle: the `with` of `reading`.
    """

    def __init__(self, transaction: Any) -> None:
        self._transaction = transaction

    def txid(self, name: str) -> int:
        """Returns the transaction id up to which a topic is folded; 0: the topic is new, or
        unknown."""
        number = self._number(name)
        value = self._transaction.get(_VALID + number) if number else None
        return int(_TXID.unpack(value)[0]) if value else 0

    def get(self, name: str, key: bytes) -> bytes | None:
        number = self._number(name)
        value: bytes | None = self._transaction.get(_ENTRY + number + key) if number else None
        return value

    def entries(self, name: str, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yields (key, value) of the entries of a topic from key `start` to before `end`, by
        key."""
        number = self._number(name)
        if not number:
            return
        front = _ENTRY + number
        with self._transaction.cursor() as cursor:
            found = cursor.set_range(front + start)
            while found and cursor.key() < front + end:
                yield cursor.key()[len(front) :], cursor.value()
                found = cursor.next()

    def _number(self, name: str) -> bytes:
        return self._transaction.get(_topic_key(name)) or b""


@contextmanager
def reading(path: Path) -> Iterator[StoredTopics]:
    """Opens the store in a file at its present state, for a `with`. This process may not have an
    environment of it open.

    Raises:
        StorageError: the file cannot be read, or is of another version.
    """
    try:
        with read_only(path, map_size=MAP_BYTES_DEFAULT) as transaction:
            check_version(transaction, path)
            yield StoredTopics(transaction)
    except (lmdb.Error, OSError, CutShortError) as error:
        raise explained(error, path) from error
