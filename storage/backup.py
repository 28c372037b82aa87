"""Copies of a journal and of LMDB stores, made beside the process that writes them.

A copy of a store is its content at one moment. The copy of a journal ends at one transaction id:

    sealed and compressed segments   linked, or copied to another file system: nobody writes them
    the newest segment               its content at one moment, with the commits behind it, those in
                                     the front log included, in place of the front log's files

While the copy is made, a read hold keeps its segments from being removed, and each file of a
segment is locked while it is copied. No writer waits for a copy.

Stores that are derived from the journal are to be copied before it: they then end at or before the
end of the copied journal, as after a crash, and the rest follows from the journal.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import lmdb

from raylay.services.errors import StorageError, StorageFull
from raylay.storage.active_segment import pack_blocks
from raylay.storage.environment import CutShortError, check_whole, is_full
from raylay.storage.files import (
    PRIVATE_FILE_MODE,
    make_directory,
    move_durably,
    private_opener,
    shared_lock,
    sync_directory,
    sync_file,
)
from raylay.storage.journal import BLOCK_BYTES_MAX
from raylay.storage.journal_reader import LmdbJournalReader
from raylay.storage.read_holds import HOLD_S, hold_name, hold_read
from raylay.storage.segment_index import HEADER_KEY, SEAL_KEY
from raylay.storage.segments import (
    SegmentFile,
    block_last_txid,
    list_segments,
    open_environment,
    read_meta,
    segment_path,
)

COPY_BYTES = 1024 * 1024
SYNC_BYTES = 8 * 1024 * 1024
"""Bytes of a copied file after which they are synced: a journal on the same disk must not wait for
much at once."""
LISTINGS_MAX = 64
"""Number of times that the segments are listed while they change."""
_MAP_HEADROOM_BYTES = 1024 * 1024 * 1024
_HOLD_RENEWED_S = HOLD_S / 4


def copy_store(source: Path, target: Path) -> None:
    """Copies an LMDB file as it is at one moment, without its free pages. Other processes may write
    to it; this one may not have it open. The copy is on the disk when this returns.

    Raises:
        FileNotFoundError: there is no such file.
        StorageError: the file cannot be read, or the copy cannot be written; names the file.
    """
    os.stat(source)
    try:
        env: Any = lmdb.open(
            str(source), subdir=False, readonly=True, map_size=0, max_dbs=0, mode=PRIVATE_FILE_MODE
        )
        try:
            check_whole(env, source)
            _write_copy(env, target)
        except lmdb.ReadersFullError:
            # Killed readers have all the places.
            env.reader_check()
            _write_copy(env, target)
        finally:
            env.close()
    except (lmdb.Error, CutShortError) as error:
        raise _explained(error, source, target) from error


def _write_copy(env: Any, target: Path) -> None:
    with open(target, "wb", opener=private_opener) as file:
        env.copyfd(file.fileno(), compact=True)
        os.fsync(file.fileno())


def copy_file(source: Path, target: Path) -> None:
    """Copies a file; the copy, which only this user may read, is on the disk when this returns."""
    with open(source, "rb") as read, open(target, "wb", opener=private_opener) as written:
        unsynced_bytes = 0
        while part := read.read(COPY_BYTES):
            written.write(part)
            unsynced_bytes += len(part)
            if unsynced_bytes >= SYNC_BYTES:
                written.flush()
                os.fdatasync(written.fileno())
                unsynced_bytes = 0
        written.flush()
        os.fsync(written.fileno())


def link_or_copy(source: Path, target: Path) -> None:
    """Makes a second name of a file that nobody writes; a copy where the target is on another file
    system, or the file system has no such names."""
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:
        copy_file(source, target)


def copy_journal(source: Path, target: Path, told: Callable[[Path], None]) -> int:
    """Copies a journal, with its archived segments, into a new directory. Returns the last
    transaction id of the copy; 0: the journal is empty.

    Args:
        source: the journal's directory.
        told: called with the path of each segment before it is copied.

    Raises:
        StorageError: the journal cannot be read, or the copy cannot be written.
    """
    make_directory(target)
    return _JournalCopy(source, target, told).run()


class _JournalCopy:
    """The copy of one journal.

    Owner: one thread. Lifecycle: `run`, once.
    """

    def __init__(self, source: Path, target: Path, told: Callable[[Path], None]) -> None:
        self._source = source
        self._target = target
        self._told = told
        self._taken: dict[int, Path] = {}
        """The copies by the first transaction id of their segments."""

    def run(self) -> int:
        with self._held() as renew, LmdbJournalReader(self._source) as reader:
            renew()
            newest = self._take_all(renew)
            if newest is None:
                return reader.last_txid
            first_txid, path = newest
            if path.suffix == ".live":
                last_txid = self._add_tail(reader, path, first_txid)
            else:
                last_txid = reader.last_txid
            sync_directory(self._target)
            return last_txid

    @contextmanager
    def _held(self) -> Iterator[Callable[[], None]]:
        """Keeps the segments from being removed. Yields a function that is to be called before each
        file, and renews the hold."""
        name = f"backup-{os.getpid()}"
        renewed_s = -_HOLD_RENEWED_S

        def renew() -> None:
            nonlocal renewed_s
            now_s = time.monotonic()
            if now_s - renewed_s >= _HOLD_RENEWED_S:
                renewed_s = now_s
                hold_read(self._source, name, 1)

        try:
            yield renew
        finally:
            with suppress(OSError):
                (self._source / hold_name(name)).unlink(missing_ok=True)

    def _take_all(self, renew: Callable[[], None]) -> tuple[int, Path] | None:
        """Copies every segment, the newest one last and as it was when it was the newest. Returns
        the first transaction id and the copy of the newest; None: there is no segment.

        Raises:
            StorageError: the segments change all the time.
        """
        for _ in range(LISTINGS_MAX):
            listed = list_segments(self._source, None)
            if not listed:
                return None
            try:
                for file in listed:
                    if file.first_txid not in self._taken:
                        renew()
                        self._take(file)
            except FileNotFoundError:
                continue  # It was sealed, compressed or archived meanwhile, and has another name.
            newest = listed[-1].first_txid
            path = self._taken[newest]
            if path.suffix == ".live" or list_segments(self._source, None)[-1] == listed[-1]:
                return newest, path
        error = StorageError(
            f"{self._source} changed {LISTINGS_MAX} times during one copy: try again",
            str(self._source),
        )
        error.retriable = True
        raise error

    def _take(self, file: SegmentFile) -> None:
        self._told(file.path)
        target = self._target / file.path.name
        if file.suffix == ".live":
            target = self._copy_live(file, target)
        else:
            descriptor = shared_lock(file.path)
            try:
                link_or_copy(file.path, target)
            finally:
                os.close(descriptor)
        self._taken[file.first_txid] = target

    def _copy_live(self, file: SegmentFile, target: Path) -> Path:
        shared = open_environment(file.path)
        try:
            shared.ask(lambda env: _write_copy(env, target))
        except lmdb.Error as error:
            raise _explained(error, file.path, target) from error
        finally:
            shared.close()
        if SEAL_KEY not in self._entries(target):
            return target
        # It was sealed between the listing and the copy: the next one is the newest.
        sealed = segment_path(self._target, file.first_txid, ".sealed")
        move_durably(target, sealed)
        return sealed

    def _entries(self, path: Path) -> dict[bytes, bytes]:
        with _opened(path) as env, env.begin() as transaction:
            return read_meta(transaction)

    def _add_tail(self, reader: LmdbJournalReader, path: Path, first_txid: int) -> int:
        """Adds to the copy of the newest segment what was committed behind it up to this moment,
        also what was in front of it. Returns the last transaction id."""
        if HEADER_KEY not in self._entries(path):
            # A segment is opened by its first commit, and nothing is in front of it before.
            return first_txid - 1
        with _opened(path, writable=True) as env:
            with env.begin(buffers=True) as transaction:
                cursor = transaction.cursor()
                cursor.last()
                last_txid = first_txid - 1
                if len(cursor.key()) == 8:
                    last_txid = block_last_txid(cursor.value(), path)
            end_txid = reader.last_txid
            while last_txid < end_txid:
                runs = reader.read(last_txid, BLOCK_BYTES_MAX)
                if not runs:
                    break
                blocks, _, _ = pack_blocks(runs)
                try:
                    with env.begin(write=True) as transaction:
                        for key, block in blocks:
                            transaction.put(key, block, append=True)
                except lmdb.Error as error:
                    raise _explained(error, path, path) from error
                last_txid = runs[-1].last_txid
        sync_file(path)
        return last_txid


@contextmanager
def _opened(path: Path, *, writable: bool = False) -> Iterator[Any]:
    """Opens an LMDB file of the copy, which no other process uses."""
    env: Any = lmdb.open(
        str(path),
        subdir=False,
        readonly=not writable,
        lock=False,
        map_size=path.stat().st_size + _MAP_HEADROOM_BYTES,
        max_dbs=0,
        mode=PRIVATE_FILE_MODE,
    )
    try:
        yield env
    finally:
        env.close()


def change_store(path: Path, values: dict[bytes, bytes | None]) -> None:
    """Writes (or, with None, removes) keys of a store that no process uses, for example of a copy.
    They are on the disk when this returns.

    Raises:
        StorageError: the file cannot be used.
    """
    try:
        with _opened(path, writable=True) as env, env.begin(write=True) as transaction:
            for key, value in values.items():
                if value is None:
                    transaction.delete(key)
                else:
                    transaction.put(key, value)
    except lmdb.Error as error:
        raise _explained(error, path, path) from error


def _explained(error: Exception, source: Path, target: Path) -> StorageError:
    if is_full(error, target):
        return StorageFull(f"{target}: no space left: {error}", str(target))
    return StorageError(f"{source} cannot be copied to {target}: {error}", str(source))
