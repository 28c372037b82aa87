"""The store from which a queue's owner rebuilds the queue.

The store has nothing that the journal does not have: the transaction id from which the journal must
be read again, and a snapshot of the queue at that point (services/queues/checkpoint.py). So a lost
or damaged file costs only time: the queue is then rebuilt from the whole journal.

    key b"queue"    u64 checksum of the rest, u64 transaction id, u64 length of the rules, the rules
                    (the queue's encoded configuration), then the snapshot
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import lmdb
from xxhash import xxh3_64_hexdigest as hexdigest
from xxhash import xxh3_64_intdigest as checksum64

from raylay.services.errors import StorageError
from raylay.storage.environment import CutShortError, LastingEnvironment
from raylay.storage.files import fault_point, sync_directory
from raylay.storage.state import explained, open_store

DAMAGED_SUFFIX = ".damaged"
"""The suffix in the name of a damaged file that was moved aside. The latest one is kept, for an
operator who wants to examine it."""
_KEY = b"queue"
_FRONT = struct.Struct("<QQQ")
_CHECKED_FROM = 8
_DAMAGES = (
    CutShortError,
    lmdb.BadTxnError,
    lmdb.CorruptedError,
    lmdb.InvalidError,
    lmdb.PageNotFoundError,
    lmdb.VersionMismatchError,
)


class StoredQueue(NamedTuple):
    """The stored state of a queue.

    Attributes:
        txid: transaction id below which the queue does not need the journal, once this is on disk.
        rules: encoded configuration with which the state was made.
        snapshot: state as the queue encoded it.
    """

    txid: int
    rules: bytes
    snapshot: bytes


class QueueStore(Protocol):
    """The store of one queue. A `save` is all or nothing, and on disk when it returns."""

    damage: str
    """The reason why the old content could not be used; empty when it could, or when there was
    none."""

    def load(self) -> StoredQueue | None:
        """Loads the state that was saved last; None when there is none, or none that can be used.

        Raises:
            StorageError: the file cannot be read, and is not known to be damaged.
        """

    def save(self, stored: StoredQueue) -> None:
        """Writes a state in place of the earlier one.

        Raises:
            StorageFull: no space; nothing was written.
            StorageError: the file cannot be used; nothing was written.
        """

    def close(self) -> None:
        """Closes the store."""


class MemoryQueueStore:
    """A QueueStore in memory: the simulator, tests. Every `save` counts as synced."""

    def __init__(self, stored: StoredQueue | None = None) -> None:
        self.damage = ""
        self._stored = stored
        self._fail_next: Exception | None = None

    def load(self) -> StoredQueue | None:
        """Loads what was saved last."""
        return self._stored

    def save(self, stored: StoredQueue) -> None:
        if self._fail_next is not None:
            error, self._fail_next = self._fail_next, None
            raise error
        self._stored = stored

    def fail_next(self, error: Exception) -> None:
        """Makes the next `save` raise this error and write nothing."""
        self._fail_next = error

    def crash(self) -> MemoryQueueStore:
        return MemoryQueueStore(self._stored)

    def lose(self) -> MemoryQueueStore:
        """Returns the store that a restart finds when the file is damaged."""
        other = MemoryQueueStore()
        other.damage = "it is damaged"
        return other

    def close(self) -> None:
        """Nothing to give back."""


class LmdbQueueStore:
    """A QueueStore in one LMDB file. A damaged file is moved aside, and a new one begun.

    Owner: one process; one thread at a time.

    Args:
        path: the path of the file.

    Raises:
        StorageError: the file cannot be opened, and is not known to be damaged; the message names
            the file.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self.damage = ""
        try:
            self._file = LastingEnvironment(self._open)
        except _DamagedFile as error:
            self._begin_anew(str(error))

    def _open(self) -> Any:
        try:
            return open_store(self._path)
        except StorageError as error:
            if isinstance(error.__cause__, _DAMAGES):
                raise _DamagedFile(str(error.__cause__)) from error
            raise

    def _begin_anew(self, why: str) -> None:
        self.damage = why
        path = self._path
        aside = path.with_name(path.name + DAMAGED_SUFFIX)
        try:
            os.replace(path, aside)
            path.with_name(f"{path.name}-lock").unlink(missing_ok=True)
            sync_directory(path.parent)
        except OSError as error:
            raise explained(error, path) from error
        self._file = LastingEnvironment(self._open)

    def load(self) -> StoredQueue | None:
        """Loads the state that was saved last; None when there is none, or none that can be used.

        Raises:
            StorageError: the file cannot be read, and is not known to be damaged.
        """
        try:
            with self._file.begin() as transaction:
                value = transaction.get(_KEY)
        except _DAMAGES as error:
            self._file.close()
            self._begin_anew(str(error))
            return None
        except lmdb.Error as error:
            raise explained(error, self._path) from error
        if value is None:
            return None
        stored = _read(value)
        if stored is None:
            self._file.close()
            self._begin_anew("what it holds fails its checksum")
        return stored

    def save(self, stored: StoredQueue) -> None:
        """Writes a state in place of the earlier one.

        Raises:
            StorageFull: no space; nothing was written.
            StorageError: the file cannot be used; nothing was written.
        """
        fault_point("queue.begin")
        try:
            with self._file.begin(write=True) as transaction:
                transaction.put(_KEY, _written(stored))
        except lmdb.Error as error:
            raise explained(error, self._path) from error
        fault_point("queue.synced")

    def close(self) -> None:
        self._file.close()


class _DamagedFile(Exception):
    """The error of a damaged file, whose content cannot be used."""


def store_path(directory: str | Path, queue: str) -> Path:
    """Returns the path of a queue's store.

    Args:
        directory: the instance's data directory.
        queue: the queue's name in the store, from `QueueDefinition.stored_as`.
    """
    return Path(directory) / "queues" / f"{hexdigest(queue.encode())}.lmdb"


def _written(stored: StoredQueue) -> bytes:
    checked = _FRONT.pack(0, stored.txid, len(stored.rules))[_CHECKED_FROM:]
    checked += stored.rules + stored.snapshot
    return checksum64(checked).to_bytes(8, "little") + checked


def _read(value: bytes) -> StoredQueue | None:
    if len(value) < _FRONT.size:
        return None
    check, txid, length = _FRONT.unpack_from(value)
    if checksum64(value[_CHECKED_FROM:]) != check:
        return None
    rules_end = _FRONT.size + length
    return StoredQueue(txid, value[_FRONT.size : rules_end], value[rules_end:])
