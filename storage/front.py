"""The front log's files: two before the active segment, on which a commit is one synced write.

    front-0, front-1    8 MiB each, zero-filled once, entries on pages of their own
                        (front_entries.py has the layout and what a restart makes of it)
    front-end           what is durable in front of the store, for readers in other processes

A file of its full size, whose blocks are written, is overwritten in place: the disk syncs the data
and nothing else. LMDB stays the store: what is in front is there for some milliseconds.

`front-end` is never synced and no restart trusts it. It is right for as long as the machine is up,
whoever was killed, and says so with the machine's boot id; after a boot, or on another machine, a
reader decides as a restart does. It is 4 MiB: a head, and behind it what is in front now, so that
nobody reads from the disk what was written past the page cache. Little-endian:

    head     u64 checksum   XXH3-64 of what follows in the head
             16s boot id
             u64 first txid in front, u64 last txid durable (lower than the first: nothing is)
             u64 where the first entry in front begins, u64 where the last one ends
    at 4096  entries one behind another: u64 checksum of the rest, u64 first txid, u64 last txid,
             u64 length, block; behind the last one eight zero bytes

The head is written when entries were moved. What follows behind it since then is found by looking:
an entry that is sound, and whose first transaction id is the next one, is durable. So a commit is
one write here, not two, and none where the file may be written through a mapping: on file systems
that need no space to write again what was written once (file_systems.py).
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import struct
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from xxhash import xxh3_64_intdigest as checksum64

from raylay.services.errors import StorageError
from raylay.storage.file_systems import has_every_block, overwrites_in_place
from raylay.storage.files import ASIDE_SUFFIX, fault_point, private_opener, sync_directory
from raylay.storage.front_entries import (
    FILE_BYTES,
    FILES,
    PAGE_BYTES,
    FrontEntry,
    FrontRecovery,
    FrontSpace,
    encode_into,
    pages_of,
    recover,
    scan,
)
from raylay.storage.journal import DiskWaitTask
from raylay.storage.overlapped import OverlappedWrite
from raylay.storage.segments import OpenSegment

FRONT_NAMES = tuple(f"front-{number}" for number in range(FILES))
END_NAME = "front-end"
END_BYTES = 4 * 1024 * 1024
BLOCK_BYTES_MAX = 128 * 1024
"""A larger block goes to the store: one more write of it would cost more than it saves."""
FILL_BYTES = 1024 * 1024
LEFT_BYTES_MIN = 32 * 1024 * 1024
"""Room that stays free beside the files, or none is made: they would take from a small disk what
the journal is about to need."""
LOOKS_MAX = 16
"""Number of times that a reader looks at a head, or an entry, that is being written."""
_BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")

_HEAD = struct.Struct("<Q16sQQQQ")
_HEAD_REST = struct.Struct("<16sQQQQ")
_ENTRY = struct.Struct("<QQQQ")
_ENTRY_REST = struct.Struct("<QQQ")
_ENTRIES_AT = PAGE_BYTES
_NOTHING_FOLLOWS = bytes(8)
"""Bytes in place of a checksum. What lies behind is of a former use of the file."""


def boot_id() -> bytes:
    """Tells this run of the machine from every other one; empty where that cannot be told."""
    try:
        return bytes.fromhex(_BOOT_ID_FILE.read_text().strip().replace("-", ""))[:16]
    except (OSError, ValueError):
        return b""


def front_files(directory: Path) -> list[Path]:
    """The front's files that are there, `front-end` last."""
    found = [directory / name for name in (*FRONT_NAMES, END_NAME)]
    return [path for path in found if path.exists()]


def read_entries(directory: Path) -> list[list[FrontEntry]]:
    """Every sound entry of each file; none of a file that is not there.

    Raises:
        StorageError: a file cannot be read.
    """
    found: list[list[FrontEntry]] = []
    for name in FRONT_NAMES:
        path = directory / name
        try:
            found.append(scan(path.read_bytes()))
        except FileNotFoundError:
            found.append([])
        except OSError as error:
            raise StorageError(f"{path} cannot be read: {error}", str(path)) from error
    return found


def recovered(directory: Path, last_txid: int) -> FrontRecovery:
    """Returns what is in front of a store that ends with this transaction id.

    Raises:
        StorageError: a file cannot be read.
    """
    return recover([entry for found in read_entries(directory) for entry in found], last_txid)


def remove_front(directory: Path) -> None:
    """Removes the files, the newest entries first: what a crash in between leaves has no gap.

    Raises:
        OSError: one cannot be removed.
    """
    newest = [
        max(((entry.generation, entry.number) for entry in found), default=(0, 0))
        for found in read_entries(directory)
    ]
    order = sorted(range(FILES), key=lambda number: newest[number], reverse=True)
    for name in (*(FRONT_NAMES[number] for number in order), END_NAME):
        (directory / name).unlink(missing_ok=True)
        sync_directory(directory)


def make_files(directory: Path) -> None:
    """Makes what is not there, or not of its size; each appears only when it is whole.

    Raises:
        OSError: there is no space, or too little would be left; no file is begun then.
    """
    missing = [
        (name, size_bytes)
        for name, size_bytes in (
            *((name, FILE_BYTES) for name in FRONT_NAMES),
            (END_NAME, END_BYTES),
        )
        if _size_bytes(directory / name) != size_bytes
    ]
    wanted_bytes = sum(size_bytes for _, size_bytes in missing)
    status = os.statvfs(directory)
    free_bytes = status.f_bavail * status.f_frsize
    if missing and free_bytes < wanted_bytes + LEFT_BYTES_MIN:
        raise OSError(
            errno.ENOSPC,
            f"the front log needs {wanted_bytes:,} bytes and leaves {LEFT_BYTES_MIN:,} free, "
            f"{free_bytes:,} are there",
            str(directory),
        )
    for name, size_bytes in missing:
        path = directory / name
        aside = directory / (name + ASIDE_SUFFIX)
        try:
            with open(aside, "wb", buffering=0, opener=private_opener) as file:
                for at in range(0, size_bytes, FILL_BYTES):
                    file.write(bytes(min(FILL_BYTES, size_bytes - at)))
                os.fsync(file.fileno())
            fault_point("front.made")
            os.rename(aside, path)
        except OSError:
            aside.unlink(missing_ok=True)
            raise
    sync_directory(directory)


def _size_bytes(path: Path) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


class Front:
    """Writes entries.

    Invariants: `append` returns only when the entry is durable; files are used as FrontSpace says.
    Owner: a journal; one thread at a time. Lifecycle: opened on whole files whose entries are all
    in the store, `close`.

    Args:
        directory: where `make_files` made them.
        generation: higher than that of any entry in them.

    Raises:
        OSError: a file cannot be opened.
    """

    def __init__(self, directory: Path, generation: int) -> None:
        self.space = FrontSpace(generation, FILE_BYTES)
        self._buffer = mmap.mmap(-1, pages_of(BLOCK_BYTES_MAX) * PAGE_BYTES)
        self._view = memoryview(self._buffer)
        self._files: list[tuple[int, bool]] = []
        """Descriptor of each file, and whether it is open past the page cache: then what is written
        there is still to be synced."""
        self._overlapped: OverlappedWrite | None = None
        try:
            for name in FRONT_NAMES:
                self._files.append(_opened(directory / name))
            if all(is_direct for _, is_direct in self._files):
                with contextlib.suppress(OSError):
                    self._overlapped = OverlappedWrite(self._view)
        except BaseException:
            self.close()
            raise

    def append(
        self, first_txid: int, last_txid: int, block: bytes, ahead: DiskWaitTask | None = None
    ) -> int:
        """Writes an entry. Returns its number for `space.moved`; 0: there is no place for it.

        Args:
            ahead: told while the disk writes, where that can be; see `Journal.commit_here`.

        Raises:
            OSError: it could not be written; the file is not written again.
        """
        space = self.space
        place = space.place(len(block))
        if place is None:
            return 0
        file, offset, generation, number = place
        length = encode_into(self._view, generation, number, first_txid, last_txid, block)
        fault_point("front.begin")
        try:
            descriptor, is_direct = self._files[file]
            overlapped = self._overlapped
            if (
                ahead is not None
                and overlapped is not None
                and overlapped.begin(descriptor, length, offset)
            ):
                try:
                    ahead.prepare(last_txid)
                    fault_point("front.prepared")
                finally:
                    # The buffer is the kernel's until then.
                    written = overlapped.end()
            else:
                written = os.pwrite(descriptor, self._view[:length], offset)
            if written != length:
                raise OSError(f"{written} of {length} bytes were written")
            if is_direct:
                os.fdatasync(descriptor)
        except BaseException:
            space.failed()
            raise
        fault_point("front.written")
        return space.written(len(block))

    def close(self) -> None:
        if self._overlapped is not None:
            self._overlapped.close()
            self._overlapped = None
        while self._files:
            os.close(self._files.pop()[0])


def _opened(path: Path) -> tuple[int, bool]:
    """Past the page cache, where that can be; else so that each write is synced."""
    flags = os.O_RDWR | os.O_CLOEXEC
    direct = getattr(os, "O_DIRECT", 0)
    if direct:
        # Its blocks may be larger than our pages, or it only says that it can.
        with contextlib.suppress(OSError), mmap.mmap(-1, PAGE_BYTES) as page:
            descriptor = os.open(path, flags | direct)
            try:
                os.preadv(descriptor, [page], 0)
            except OSError:
                os.close(descriptor)
                raise
            return descriptor, True
    return os.open(path, flags | os.O_DSYNC), False


class FrontEnd:
    """Tells readers in other processes what is in front.

    Owner: the journal that writes; one thread at a time.

    Raises:
        OSError: the file cannot be opened.
    """

    def __init__(self, directory: Path) -> None:
        self._boot_id = boot_id().ljust(16, b"\0")
        self._entries: deque[tuple[int, int, int]] = deque()
        """First and last transaction id of what is in front, and where it begins."""
        self._end = _ENTRIES_AT
        path = directory / END_NAME
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._map: mmap.mmap | None = None
        """Map of the file, where it may be written so: no call of the kernel's for a commit."""
        try:
            _write(self._fd, _NOTHING_FOLLOWS, self._end)
        except OSError:
            self.close()
            raise
        if overwrites_in_place(path) and has_every_block(self._fd, END_BYTES):
            with contextlib.suppress(OSError):
                self._map = mmap.mmap(self._fd, END_BYTES)

    def has_room(self, block_bytes: int) -> bool:
        """Returns whether an entry with so long a block has its place."""
        return self._end + _ENTRY.size + block_bytes + len(_NOTHING_FOLLOWS) <= END_BYTES

    def append(self, first_txid: int, last_txid: int, block: bytes) -> None:
        """The entry is durable.

        Raises:
            OSError: it could not be written.
        """
        rest = _ENTRY_REST.pack(first_txid, last_txid, len(block))
        check = checksum64(block, seed=checksum64(rest)).to_bytes(8, "little")
        begin = self._end
        end = begin + _ENTRY.size + len(block)
        content = b"".join((rest, block, _NOTHING_FOLLOWS))
        if self._map is not None:
            # The checksum last: until then nothing follows here.
            self._map[begin + len(check) : end + len(_NOTHING_FOLLOWS)] = content
            self._map[begin : begin + len(check)] = check
        else:
            self._write_entry(check + content, begin)
        self._entries.append((first_txid, last_txid, begin))
        self._end = end

    def _write_entry(self, content: bytes, begin: int) -> None:
        try:
            _write(self._fd, content, begin)
        except OSError:
            # Not even where all but its end was written: its ids may be used again.
            with contextlib.suppress(OSError):
                _write(self._fd, _NOTHING_FOLLOWS, begin)
            raise

    def moved(self, upto_txid: int) -> None:
        """All up to this transaction id is in the store.

        Raises:
            OSError: it could not be written.
        """
        entries = self._entries
        while entries and entries[0][1] <= upto_txid:
            entries.popleft()
        if not entries:
            self._end = _ENTRIES_AT
        self._tell(entries[-1][1] if entries else upto_txid)

    def _tell(self, last_txid: int) -> None:
        first_txid, _, begin = self._entries[0] if self._entries else (last_txid + 1, 0, self._end)
        rest = _HEAD_REST.pack(self._boot_id, first_txid, last_txid, begin, self._end)
        _write(self._fd, checksum64(rest).to_bytes(8, "little") + rest, 0)

    def close(self) -> None:
        if self._map is not None:
            self._map.close()
        os.close(self._fd)


def _write(descriptor: int, content: bytes, offset: int) -> None:
    written = os.pwrite(descriptor, content, offset)
    if written != len(content):
        raise OSError(f"{written} of {len(content)} bytes were written")


Blocks = list[tuple[int, bytes]]


class FrontReader:
    """Reads the entries in the front log, those that are not yet moved to the store, in any
    process.

    Owner: a journal's reader; one thread. Lifecycle: opens its files at the first `blocks`;
    `close`.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._boot_id = boot_id().ljust(16, b"\0")
        self._fd = -1
        self._next = (0, 0)
        """A transaction id and where its entry begins, if it is there."""
        self._followed: tuple[tuple[int, int], int, int, int, bytes] | None = None
        """Head's word of the end, and what was found behind it: the last transaction id, where that
        entry ends, where it begins, and how."""
        self._resting: tuple[tuple[int, ...], Sequence[FrontEntry]] | None = None
        """Entries of files that nobody writes: what identifies the files, and what follows in
        them."""

    def blocks(self, txid: int, bytes_max: int, stored: Callable[[], int]) -> Blocks | None:
        """Blocks in order from the one that holds `txid` on, about `bytes_max` bytes; none where
        nothing is in front from there on. None: it is in the store by now.

        Args:
            txid: behind what the store had a moment ago.
            stored: the store's last transaction id.

        Raises:
            StorageError: a file cannot be read.
        """
        for _ in range(LOOKS_MAX):
            head = self._head(txid - 1)
            if head is None:
                there = stored()
                return None if there >= txid else self._of_resting(txid, bytes_max, there)
            first, last, begin, end = head
            if txid > last:
                # It may have been moved since the store was looked at, and the front begun anew.
                return None if stored() >= txid else []
            if first > txid:
                return None
            found = self._walk(txid, bytes_max, begin, end)
            if found:
                return found
        return None  # it goes on faster than it can be read: by now it is in the store

    def behind(self, segment: OpenSegment, txid: int, bytes_max: int) -> Blocks:
        """Blocks of a segment, and where it is the one that is being written of what is in front.

        Raises:
            StorageError: it cannot be read.
        """
        for _ in range(LOOKS_MAX):
            found: Blocks | None = segment.blocks(txid, bytes_max)
            if not found and segment.file.suffix == ".live":
                found = self.blocks(txid, bytes_max, segment.last_txid)
            if found is not None:
                return found
        return []  # it is in the next segment

    def last_txid(self, stored_txid: int) -> int:
        """The last transaction id that is durable; `stored_txid`: the store's a moment ago."""
        head = self._head(stored_txid)
        if head is not None:
            return max(stored_txid, head[1])
        entries = self._resting_entries(stored_txid)
        return entries[-1].last_txid if entries else stored_txid

    def _head(self, stored_txid: int) -> tuple[int, int, int, int] | None:
        """(first, last transaction id, begin, end); None where nobody of this boot wrote it."""
        fresh = False
        for _ in range(LOOKS_MAX):
            if self._fd < 0:
                fresh = True
                try:
                    self._fd = os.open(self._directory / END_NAME, os.O_RDONLY | os.O_CLOEXEC)
                except OSError:
                    return None
            content = os.pread(self._fd, _HEAD.size, 0)
            if not any(content):
                return None  # not begun
            check, boot, first, last, begin, end = _HEAD.unpack(content)
            if checksum64(content[8:]) != check:
                continue  # it is being written
            if boot == self._boot_id:
                last, end = self._follow(last, end)
            if boot == self._boot_id and (last >= stored_txid or fresh):
                return first, last, begin, end
            if fresh:
                return None
            # The file may be another one by now.
            self.close()
        return None

    def _follow(self, last_txid: int, end: int) -> tuple[int, int]:
        """(last transaction id, where its entry ends) with what was written behind the head."""
        told = last_txid, end
        known = self._followed
        if (
            known is not None
            and known[0] == told
            and os.pread(self._fd, _ENTRY.size, known[3]) == known[4]
        ):
            _, last_txid, end, _, _ = known
        while True:
            front = os.pread(self._fd, _ENTRY.size, end)
            if len(front) < _ENTRY.size:
                break
            check, first, last, length = _ENTRY.unpack(front)
            at = end + _ENTRY.size
            if first != last_txid + 1 or last < first or at + length > END_BYTES:
                break
            if checksum64(os.pread(self._fd, length, at), seed=checksum64(front[8:])) != check:
                break  # it is being written
            self._followed = told, last, at + length, end, front
            last_txid, end = last, at + length
        return last_txid, end

    def _walk(self, txid: int, bytes_max: int, begin: int, end: int) -> Blocks:
        """Nothing where an entry is not what it should be: it was moved meanwhile."""
        offset = self._next[1] if self._next[0] == txid else begin
        self._next = (0, 0)
        found: Blocks = []
        taken_bytes = expected = 0
        while offset + _ENTRY.size <= end:
            head = os.pread(self._fd, _ENTRY.size, offset)
            if len(head) < _ENTRY.size:
                break
            check, first, last, length = _ENTRY.unpack(head)
            at = offset + _ENTRY.size
            offset = at + length
            if offset > end or (expected and first != expected) or last < first:
                break
            expected = last + 1
            if last < txid:
                continue
            if not found and first > txid:
                break
            if found and taken_bytes + length > bytes_max:
                break
            block = os.pread(self._fd, length, at)
            if checksum64(block, seed=checksum64(head[8:])) != check:
                break
            taken_bytes += length
            found.append((first, block))
            self._next = (last + 1, offset)
        return found

    def _resting_entries(self, stored_txid: int) -> Sequence[FrontEntry]:
        told: list[int] = [stored_txid]
        for name in FRONT_NAMES:
            try:
                status = os.stat(self._directory / name)
            except FileNotFoundError:
                continue
            told += (status.st_ino, status.st_mtime_ns, status.st_size)
        if len(told) == 1:
            return ()
        if self._resting is None or self._resting[0] != tuple(told):
            self._resting = (tuple(told), recovered(self._directory, stored_txid).entries)
        return self._resting[1]

    def _of_resting(self, txid: int, bytes_max: int, stored_txid: int) -> Blocks:
        found: Blocks = []
        taken_bytes = 0
        for entry in self._resting_entries(stored_txid):
            if entry.last_txid >= txid and (not found or taken_bytes < bytes_max):
                found.append((entry.first_txid, entry.block))
                taken_bytes += len(entry.block)
        return found

    def close(self) -> None:
        """Gives the file back; it is opened again when it is needed."""
        self._next = (0, 0)
        self._followed = None
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
