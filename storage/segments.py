"""Segment files: their names, what a directory holds, and how one is opened for reading.

    journal-<first txid, 16 hex digits>.live      an LMDB environment, the writer appends to it
    journal-<first txid, 16 hex digits>.sealed    the same file, never written again
    journal-<first txid, 16 hex digits>.zst       a compressed segment (compressed.py)

In an environment a block's key is its first transaction id, 8 bytes big-endian. Meta entries
(segment_index.py) have 8 zero bytes and their own key: they sort before every block.

A reader holds a shared flock on each segment file that it has open; a process that compresses or
removes a segment takes the flock exclusively first, and passes over a file in use.
"""

from __future__ import annotations

import os
import re
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lmdb

from raylay.services.errors import CorruptRecord, StorageError, StorageFull
from raylay.services.messages import records
from raylay.services.messages.topic_totals import TopicTotals
from raylay.storage.archive import archive_of
from raylay.storage.compressed import Container
from raylay.storage.environment import LastingEnvironment
from raylay.storage.files import PRIVATE_FILE_MODE, allocate_lock_table, shared_lock
from raylay.storage.journal import BLOCK_BYTES_MAX
from raylay.storage.lmdb_structure import check_structure
from raylay.storage.segment_index import (
    TOTALS_KEY,
    RunHeader,
    SegmentIndex,
    check_header,
    checked,
    read_header,
)

READERS_MAX = 1024
LOCK_TABLE_BYTES = 65_664
"""The size, in bytes, of LMDB's lock table for READERS_MAX readers."""
META_PREFIX = b"\0" * 8
SUFFIXES = (".live", ".sealed", ".zst")
STATE_OF = {".live": "live", ".sealed": "sealed", ".zst": "compressed"}

_KEY = struct.Struct(">Q")
_NAME = re.compile(r"^journal-([0-9a-f]{16})(\.live|\.sealed|\.zst)$")
_LENGTH = struct.Struct("<I")
_RUN = records._RUN


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """One segment's file, as a directory listing shows it."""

    first_txid: int
    suffix: str
    archived: bool
    path: Path


def segment_path(directory: Path, first_txid: int, suffix: str) -> Path:
    return directory / f"journal-{first_txid:016x}{suffix}"


def all_files(directory: Path, archive: Path | None) -> list[SegmentFile]:
    """Returns every segment file, duplicates included, ordered by first transaction id. Without an
    `archive`, the archive that the journal remembers is listed.

    Raises:
        StorageError: the directory, or the remembered archive, cannot be listed.
    """
    found: list[SegmentFile] = []
    remembered = archive_of(directory) if archive is None else None
    archive = archive or remembered
    for folder, archived in ((directory, False), (archive, True)):
        if folder is None:
            continue
        try:
            names = os.listdir(folder)
        except FileNotFoundError:
            if archived and folder is remembered:
                raise StorageError(
                    f"{folder} is not there, and segments of {directory} are archived in it: "
                    "make it accessible again",
                    str(folder),
                ) from None
            if archived:
                continue
            raise StorageError(f"{folder} is no journal: no such directory", str(folder)) from None
        except OSError as error:
            raise StorageError(f"{folder} cannot be listed: {error}", str(folder)) from error
        for name in names:
            match = _NAME.match(name)
            if match:
                found.append(SegmentFile(int(match[1], 16), match[2], archived, folder / name))
    # Of several files of one segment any is good: each got its name only when it was complete.
    found.sort(key=lambda file: (file.first_txid, file.archived, SUFFIXES.index(file.suffix)))
    return found


def list_segments(directory: Path, archive: Path | None) -> list[SegmentFile]:
    """Returns one file for each segment, oldest first."""
    found: list[SegmentFile] = []
    for file in all_files(directory, archive):
        if not found or found[-1].first_txid != file.first_txid:
            found.append(file)
    return found


# -- environments --------------------------------------------------------------------------------
class Environment(LastingEnvironment):
    """An open LMDB environment, shared by all its users in this process."""

    __slots__ = ("_create", "_identity", "_map_bytes", "_users", "path", "writable")

    def __init__(self, path: Path, writable: bool, map_bytes: int, create: bool) -> None:
        self.path = path
        """The present path of the file: a spare is renamed when it becomes a segment."""
        self.writable = writable
        self._map_bytes = map_bytes
        self._users = 1
        self._create = create
        super().__init__(self._open, clears_dead_readers=False)
        self._create = False
        try:
            status = self._checked_status(may_be_short=create)
        except BaseException:
            # Closed here, not by the garbage collector: LMDB opens no file twice in a process.
            super().close()
            raise
        self._identity = (status.st_dev, status.st_ino)

    def _checked_status(self, may_be_short: bool) -> os.stat_result:
        """Refuses a torn file: reading a page behind the end of a mapped file would kill the
        process."""
        # The needed size is read before the file's size, because another process may let the file
        # grow.
        needed_bytes = self.ask(_file_bytes)
        status = os.stat(self.path)
        if status.st_size < needed_bytes and not may_be_short:
            raise CorruptRecord(
                f"{self.path} is torn: {status.st_size} bytes of {needed_bytes}",
                str(self.path),
                status.st_size,
            )
        return status

    def _open(self) -> Any:
        return lmdb.open(
            str(self.path),
            subdir=False,
            map_size=self._map_bytes,
            readonly=not self.writable,
            lock=self.path.suffix != ".sealed",
            create=self._create,
            max_readers=READERS_MAX,
            max_spare_txns=4,
            max_dbs=0,
            mode=PRIVATE_FILE_MODE,
        )

    def file_bytes(self) -> int:
        """Returns the bytes of the file that LMDB uses."""
        return self.ask(_file_bytes)

    def joined(self) -> Environment:
        self._users += 1
        return self

    def close(self) -> None:
        """Ends this use; the last one closes the environment."""
        with _registry_lock:
            self._users -= 1
            if self._users == 0:
                del _registry[self._identity]
                super().close()


def _file_bytes(env: Any) -> int:
    return int((env.info()["last_pgno"] + 1) * env.stat()["psize"])


_registry: dict[tuple[int, int], Environment] = {}
_registry_lock = threading.Lock()
_sound: set[tuple[int, int, int]] = set()
"""The files whose structure was found sound, as (device, inode, time of change)."""


def open_environment(
    path: Path, *, writable: bool = False, map_bytes: int = 0, create: bool = False
) -> Environment:
    """Returns the environment of a file, which is opened once in a process and shared by its users.

    Raises:
        FileNotFoundError: there is no such file.
        StorageError: the file is no sound environment.
    """
    with _registry_lock:
        try:
            status = os.stat(path)
        except FileNotFoundError:
            if not create:
                raise
        else:
            shared = _registry.get((status.st_dev, status.st_ino))
            if shared is not None:
                if writable and not shared.writable:
                    raise StorageError(
                        f"{path} is open for reading in this process: "
                        "open the journal before its readers",
                        str(path),
                    )
                return shared.joined()
            if not status.st_size:
                raise CorruptRecord(f"{path} is torn: it is empty", str(path))
            # A live segment changes under a reader; its writer checks the structure at recovery.
            if path.suffix == ".sealed" or writable:
                seen = (status.st_dev, status.st_ino, status.st_mtime_ns)
                if seen not in _sound:
                    check_structure(path)
                    _sound.add(seen)
        try:
            if writable:
                allocate_lock_table(path, LOCK_TABLE_BYTES)
            shared = Environment(path, writable, map_bytes, create)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise StorageFull(
                f"{path}: no space left for its lock table: {error.strerror}", str(path)
            ) from error
        except lmdb.Error as error:
            if not create and not path.exists():
                raise FileNotFoundError(path) from None
            if isinstance(error, lmdb.DiskError):
                raise StorageFull(f"{path}: no space left: {error}", str(path)) from error
            raise StorageError(f"{path} cannot be opened: {error}", str(path)) from error
        _registry[shared._identity] = shared
        return shared


def read_meta(transaction: Any) -> dict[bytes, bytes]:
    entries: dict[bytes, bytes] = {}
    with transaction.cursor() as cursor:
        if cursor.first():
            for key, value in cursor.iternext():
                key = bytes(key)
                if not key.startswith(META_PREFIX):
                    break
                entries[key[8:]] = bytes(value)
    return entries


def block_last_txid(block: bytes | memoryview, path: Path) -> int:
    """Returns the last transaction id in a block, found by a walk over the lengths of its runs."""
    offset = start = 0
    end = len(block)
    while offset < end:
        start = offset
        length = _LENGTH.unpack_from(block, offset)[0] if offset + 4 <= end else 0
        if length < records.RUN_HEADER_BYTES:
            break
        offset += length
    if offset != end or not end:
        raise CorruptRecord(
            f"{path} holds a block with lengths that do not fit (byte {offset} of the block)",
            str(path),
            offset,
        )
    fields = _RUN.unpack_from(block, start)
    last: int = fields[5] + fields[10] - 1
    return last


def run_at(block: bytes, txid: int) -> int:
    """Returns where the run that holds `txid` begins, or the end of the block; a walk over the
    lengths.

    The walk stops at the first length that does not fit: reading the run there reports the damage.
    """
    offset = 0
    end = len(block) - records.RUN_HEADER_BYTES
    unpack = _RUN.unpack_from
    while offset <= end:
        fields = unpack(block, offset)
        if fields[5] + fields[10] > txid or fields[0] < records.RUN_HEADER_BYTES:
            return offset
        offset += fields[0]
    return offset


# -- open segments -------------------------------------------------------------------------------
class OpenSegment:
    """A segment that is open for reading.

    Invariants: holds a shared lock on its file as long as it is open.
    Owner: one reader. Lifecycle: opened by `open_segment`, used until `close`.
    """

    file: SegmentFile

    def blocks(self, txid: int, bytes_max: int = BLOCK_BYTES_MAX) -> list[tuple[int, bytes]]:
        """Blocks in order from the one that holds `txid`, or the next; at least one if there is
        any, then as long as the sum stays below `bytes_max`."""
        raise NotImplementedError

    def last_txid(self) -> int:
        """Returns the last committed transaction id in the segment; 0 while it is empty."""
        raise NotImplementedError

    def entries(self) -> dict[bytes, bytes]:
        raise NotImplementedError

    def topic_totals(self) -> TopicTotals:
        """Returns the totals of the topics, of the seal or, where that has none, of the index.

        Raises:
            CorruptRecord: the entry is damaged.
        """
        path = str(self.file.path)
        entry = self.totals_entry()
        if not entry:
            return self.index().topic_totals()
        try:
            return TopicTotals.from_bytes(checked(entry, TOTALS_KEY, path))
        except struct.error as error:
            raise CorruptRecord(f"{path} has a broken seal: {error}", path) from None

    def totals_entry(self) -> bytes:
        """Returns the entry of the totals of the topics; nothing where there is none."""
        return self.entries().get(TOTALS_KEY, b"")

    def close(self) -> None:
        raise NotImplementedError

    @property
    def first_txid(self) -> int:
        """The first transaction id in the segment."""
        return self.file.first_txid

    def index(self) -> SegmentIndex:
        """Returns the segment's index: as sealed, or built from the run headers where it is not
        sealed yet."""
        found = SegmentIndex.from_entries(self.entries(), str(self.file.path))
        return found if found is not None else self._scan()

    def _scan(self, index: SegmentIndex | None = None) -> SegmentIndex:
        index = index if index is not None else SegmentIndex()
        while True:
            at = max(self.first_txid, index.last_txid + 1)
            blocks = self.blocks(at)
            if not blocks:
                return index
            for key, block in blocks:
                # A block into which commits of the front were merged may begin with runs that are
                # indexed already.
                for header in self.headers(key, block, run_at(block, at)):
                    index.add(header.run, header.ranges, header.length_bytes, header.is_message)
            if index.last_txid < at:
                # Otherwise the loop would read the same blocks for ever.
                path = self.file.path
                raise CorruptRecord(
                    f"{path}, block {blocks[-1][0]}: holds nothing from transaction {at} on",
                    str(path),
                )

    def headers(self, key: int, block: bytes, offset: int = 0) -> Iterator[RunHeader]:
        """The run headers of a block, from the run at `offset` on.

        Raises:
            CorruptRecord: one is damaged; names the file.
        """
        end = len(block)
        while offset < end:
            try:
                header = read_header(block, offset)
            except CorruptRecord as error:
                raise self.damaged(key, error) from None
            yield header
            offset += header.length_bytes

    def damaged(self, key: int, error: CorruptRecord) -> CorruptRecord:
        """Returns the error of a damaged run, with its file and block."""
        path = self.file.path
        return CorruptRecord(f"{path}, block {key}: {error}", str(path), error.offset)


class EnvironmentSegment(OpenSegment):
    """A live or sealed segment."""

    def __init__(self, file: SegmentFile) -> None:
        self.file = file
        self._lock_fd = shared_lock(file.path)
        try:
            self._shared = open_environment(file.path)
        except BaseException:
            os.close(self._lock_fd)
            raise
        self._last_key = b""
        self._last_txid = 0
        self._index: SegmentIndex | None = None
        try:
            entries = self.entries()
            if entries or file.suffix != ".live":
                check_header(entries, file.first_txid, str(file.path))
        except BaseException:
            self.close()
            raise

    def blocks(self, txid: int, bytes_max: int = BLOCK_BYTES_MAX) -> list[tuple[int, bytes]]:
        """See OpenSegment. The read transaction ends before this returns."""
        found: list[tuple[int, bytes]] = []
        wanted = _KEY.pack(txid)
        try:
            with self._shared.begin(buffers=True) as transaction:
                cursor = transaction.cursor()
                if not cursor.set_range(wanted):
                    # The id lies in the last block, or behind the end of the segment.
                    if not cursor.last() or self._end_of(cursor) < txid:
                        return found
                elif cursor.key() != wanted and cursor.prev() and len(cursor.key()) != 8:
                    cursor.next()  # a meta entry: the wanted id is before the first block
                taken_bytes = 0
                while True:
                    value = cursor.value()
                    taken_bytes += len(value)
                    if found and taken_bytes > bytes_max:
                        break
                    found.append((_KEY.unpack(cursor.key())[0], bytes(value)))
                    if taken_bytes >= bytes_max or not cursor.next():
                        break
        except lmdb.Error as error:
            raise _readable(error, self.file.path, self._shared) from error
        except struct.error:
            path = str(self.file.path)
            raise CorruptRecord(
                f"{path} is damaged: a block has a key that is no transaction id", path
            ) from None
        return found

    def _end_of(self, cursor: Any) -> int:
        """Returns the last transaction id of the block under the cursor, which is the environment's
        last block; 0 if there is no block."""
        key = bytes(cursor.key())
        if key == self._last_key:
            return self._last_txid
        if len(key) != 8:
            return 0
        self._last_txid = block_last_txid(cursor.value(), self.file.path)
        self._last_key = key
        return self._last_txid

    def last_txid(self) -> int:
        try:
            with self._shared.begin(buffers=True) as transaction:
                cursor = transaction.cursor()
                return self._end_of(cursor) if cursor.last() else 0
        except lmdb.Error as error:
            raise _readable(error, self.file.path, self._shared) from error

    def entries(self) -> dict[bytes, bytes]:
        try:
            with self._shared.begin(buffers=True) as transaction:
                return read_meta(transaction)
        except lmdb.Error as error:
            raise _readable(error, self.file.path, self._shared) from error

    def totals_entry(self) -> bytes:
        """Returns the entry; the sequences of many publishers, beside it, are not read."""
        try:
            with self._shared.begin() as transaction:
                return bytes(transaction.get(META_PREFIX + TOTALS_KEY, b""))
        except lmdb.Error as error:
            raise _readable(error, self.file.path, self._shared) from error

    def index(self) -> SegmentIndex:
        """Returns the index, as OpenSegment does; the index of a live segment is extended at each
        call."""
        if self.file.suffix == ".live":
            self._index = self._scan(self._index)
            return self._index
        return super().index()

    def close(self) -> None:
        if self._lock_fd >= 0:
            self._shared.close()
            os.close(self._lock_fd)
            self._lock_fd = -1


def _readable(error: Exception, path: Path, shared: Environment) -> StorageError:
    if isinstance(error, lmdb.ReadersFullError):
        cleared = shared.clear_dead_readers()
        made = StorageError(
            f"{path} has {READERS_MAX} readers, the limit; {cleared} dead ones were cleared: retry",
            str(path),
        )
        made.retriable = True
        return made
    if isinstance(error, lmdb.CorruptedError | lmdb.PageNotFoundError | lmdb.InvalidError):
        return CorruptRecord(f"{path} is damaged: {error}", str(path))
    return StorageError(f"{path} cannot be read: {error}", str(path))


class CompressedSegment(OpenSegment):
    """A compressed segment."""

    def __init__(self, file: SegmentFile) -> None:
        self.file = file
        self._lock_fd = shared_lock(file.path)
        try:
            self._container = Container(file.path)
        except BaseException:
            os.close(self._lock_fd)
            raise
        try:
            check_header(self._container.entries, file.first_txid, str(file.path))
        except BaseException:
            self.close()
            raise

    def blocks(self, txid: int, bytes_max: int = BLOCK_BYTES_MAX) -> list[tuple[int, bytes]]:
        found: list[tuple[int, bytes]] = []
        container = self._container
        if txid > container.last_txid:
            return found
        number = container.group_of(txid)
        taken_bytes = 0
        while number < len(container.groups):
            group = container.read_group(number)
            for at, (key, block) in enumerate(group):
                if not found and at + 1 < len(group) and group[at + 1][0] <= txid:
                    continue
                taken_bytes += len(block)
                if found and taken_bytes > bytes_max:
                    return found
                found.append((key, block))
                if taken_bytes >= bytes_max:
                    return found
            number += 1
        return found

    def last_txid(self) -> int:
        last_txid: int = self._container.last_txid
        return last_txid

    def entries(self) -> dict[bytes, bytes]:
        return self._container.entries

    def close(self) -> None:
        if self._lock_fd >= 0:
            self._container.close()
            os.close(self._lock_fd)
            self._lock_fd = -1


def open_segment(file: SegmentFile) -> OpenSegment:
    """Opens a segment for reading.

    Raises:
        FileNotFoundError: the file went (renamed, compressed, moved or removed): list anew.
        StorageError: the file is damaged or has another version.
    """
    if file.suffix == ".zst":
        return CompressedSegment(file)
    return EnvironmentSegment(file)


class OpenedSegment:
    """A segment opened for the length of a `with`."""

    def __init__(self, file: SegmentFile) -> None:
        self._segment = open_segment(file)

    def __enter__(self) -> OpenSegment:
        return self._segment

    def __exit__(self, *_: object) -> None:
        self._segment.close()


def index_of(file: SegmentFile) -> SegmentIndex:
    """Returns the index of a segment, opened for that; raises as `open_segment` does."""
    with OpenedSegment(file) as segment:
        return segment.index()
