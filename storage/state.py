"""Small values that must be on disk before they are acted upon (`journal.StateStore`)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmdb

from raylay.services.errors import StorageError, StorageFull
from raylay.storage.environment import CutShortError, LastingEnvironment, check_whole, is_full
from raylay.storage.files import (
    ASIDE_SUFFIX,
    PRIVATE_FILE_MODE,
    allocate_lock_table,
    fault_point,
    make_directory,
    sync_directory,
    sync_file,
)

MAP_BYTES = 1024 * 1024 * 1024
"""The address space of a store, in bytes, which costs neither memory nor disk. A store's content
has kilobytes to megabytes."""
KEY_BYTES_MAX = 511
LOCK_TABLE_BYTES = 8_192
"""The size, in bytes, of LMDB's lock table for its default of 126 readers."""
VERSION_KEY = b"version"
STORE_VERSION = b"1"
"""The version of the keys and values of every store that `open_store` makes."""


def open_store(path: Path, map_bytes: int = MAP_BYTES) -> Any:
    """Returns the LMDB environment of a store, which is made if it is missing.

    Args:
        map_bytes: the bytes that the store may hold at most.

    Raises:
        StorageError: the store cannot be opened, or has another version; the message names the
            file.
    """
    try:
        make_directory(path.parent)
        if not path.exists():
            _make_store(path, map_bytes)
        # Also for an existing file: the process that made it may have been killed before it synced
        # the directory.
        sync_directory(path.parent)
        file = _open_existing(path, map_bytes)
        try:
            check_whole(file, path)
            file.reader_check()  # killed readers may hold every slot
            with file.begin() as transaction:
                is_empty = check_version(transaction, path)
            if is_empty:
                with file.begin(write=True) as transaction:
                    transaction.put(VERSION_KEY, STORE_VERSION)
        except BaseException:
            file.close()
            raise
        return file
    except (lmdb.Error, OSError, CutShortError) as error:
        raise explained(error, path) from error


def check_version(transaction: Any, path: Path) -> bool:
    """Refuses a store of another version. Returns whether the store is new and empty.

    Raises:
        StorageError: the store has another version.
    """
    found = transaction.get(VERSION_KEY)
    is_empty = found is None and not transaction.cursor().first()
    if found != STORE_VERSION and not is_empty:
        has = (
            "no version" if found is None else f"version {bytes(found).decode('ascii', 'replace')}"
        )
        raise StorageError(
            f"{path} has {has}, this software reads {STORE_VERSION.decode()}: use the release that "
            "wrote it",
            str(path),
        )
    return is_empty


def _open(path: Path, map_bytes: int) -> Any:
    allocate_lock_table(path, LOCK_TABLE_BYTES)
    return lmdb.open(str(path), subdir=False, map_size=map_bytes, max_dbs=0, mode=PRIVATE_FILE_MODE)


def _open_existing(path: Path, map_bytes: int) -> Any:
    """Opens a file. Where it is no file of LMDB's, no lock file is left beside it."""
    table = Path(f"{path}-lock")
    had_table = table.exists()
    try:
        return _open(path, map_bytes)
    except lmdb.InvalidError:
        if not had_table:
            table.unlink(missing_ok=True)
        raise


def _make_store(path: Path, map_bytes: int) -> None:
    """Makes an empty store under another name, syncs it, and renames it. LMDB syncs neither the
    first pages of a new file nor its name, and would not open what a power cut leaves of them."""
    aside = path.with_name(path.name + ASIDE_SUFFIX)
    table = Path(f"{aside}-lock")
    for stale in (aside, table):
        stale.unlink(missing_ok=True)
    _open(aside, map_bytes).close()
    sync_file(aside)
    fault_point("store.made")
    os.replace(aside, path)
    table.unlink()


class StoreFile(LastingEnvironment):
    """A small store's LMDB environment.

    Raises:
        StorageError: the file cannot be opened; the message names the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        super().__init__(lambda: open_store(path))


def explained(error: Exception, path: Path) -> StorageError:
    """Returns the `StorageError` for an LMDB or system error, with the file's name."""
    if is_full(error, path):
        return StorageFull(f"{path}: no space left: {error}", str(path))
    return StorageError(f"{path} cannot be used: {error}", str(path))


def _encoded(key: str) -> bytes:
    encoded = key.encode()
    if not 1 <= len(encoded) <= KEY_BYTES_MAX:
        raise ValueError(f"a key has 1 to {KEY_BYTES_MAX} bytes, this one {len(encoded)}")
    return encoded


class LmdbStateStore:
    """A StateStore in one LMDB file.

    Invariant: `put` returns only when all of its keys are on disk, and writes all or none.
    Owner: one process; any of its threads.

    Raises:
        StorageError: the file cannot be used.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._file = StoreFile(self._path)

    def get(self, key: str) -> bytes | None:
        try:
            with self._file.begin() as transaction:
                value: bytes | None = transaction.get(_encoded(key))
                return value
        except lmdb.Error as error:
            raise explained(error, self._path) from error

    def put(self, values: dict[str, bytes | None]) -> None:
        """Writes (or, with None, removes) all of the keys in one synced transaction.

        Raises:
            StorageFull: no space; nothing was written.
        """
        if not values:
            return
        try:
            with self._file.begin(write=True) as transaction:
                for key, value in values.items():
                    if value is None:
                        transaction.delete(_encoded(key))
                    else:
                        transaction.put(_encoded(key), value)
        except lmdb.Error as error:
            raise explained(error, self._path) from error

    def items(self, prefix: str) -> Iterator[tuple[str, bytes]]:
        """All keys that begin with `prefix`, in order, as they are at the call."""
        start = prefix.encode()
        found: list[tuple[str, bytes]] = []
        try:
            with self._file.begin() as transaction, transaction.cursor() as cursor:
                if cursor.set_range(start) if start else cursor.first():
                    for key, value in cursor.iternext():
                        if not key.startswith(start):
                            break
                        if key != VERSION_KEY:
                            found.append((key.decode(), value))
        except lmdb.Error as error:
            raise explained(error, self._path) from error
        return iter(found)

    def close(self) -> None:
        self._file.close()


class MemoryStateStore:
    """A StateStore in memory, for the simulator and tests.

    Every `put` counts as synced, so a crash loses nothing; `fail_next` is how a disk fails.
    """

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._fail_next: Exception | None = None

    def get(self, key: str) -> bytes | None:
        return self._values.get(key)

    def put(self, values: dict[str, bytes | None]) -> None:
        """Writes (or, with None, removes) all of the keys, or none."""
        if self._fail_next is not None:
            error, self._fail_next = self._fail_next, None
            raise error
        for key in values:
            _encoded(key)
        for key, value in values.items():
            if value is None:
                self._values.pop(key, None)
            else:
                self._values[key] = bytes(value)

    def items(self, prefix: str) -> Iterator[tuple[str, bytes]]:
        """All keys that begin with `prefix`, in order, as they are at the call."""
        return iter(
            sorted(
                ((key, value) for key, value in self._values.items() if key.startswith(prefix)),
                key=lambda pair: pair[0].encode(),
            )
        )

    def fail_next(self, error: Exception) -> None:
        """Makes the next `put` raise this error and write nothing."""
        self._fail_next = error

    def crash(self) -> MemoryStateStore:
        other = MemoryStateStore()
        other._values = self._values.copy()
        return other

    def close(self) -> None:
        """Nothing to give back."""
