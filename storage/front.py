"""The front log's files: two before the active segment, on which a commit is one synced write.

    front-0, front-1    8 MiB each, zero-filled once, entries on pages of their own
                        (front_entries.py has the layout and what a restart makes of it)
    front-end           what is durable in front of the store, for readers in other processes

A file that has its full size, with every block written, is overwritten in place: a sync then writes
the data and no metadata. LMDB remains the store: an entry stays in front of it for some
milliseconds.

`front-end` is never synced, and no restart trusts it. Its content is right while the machine is up,
whichever processes were killed; the boot id in it tells a reader so. After a boot, or on another
machine, a reader looks into the other two files, as a restart does. The file has 4 MiB: a head, and
behind the head a copy of the entries in front, so that no reader has to fetch from the disk what
was written past the page cache. Little-endian:

    head     u64 checksum   XXH3-64 of what follows in the head
             16s boot id
             u64 first txid in front, u64 last txid durable (lower than the first: nothing is)
             u64 where the first entry in front begins, u64 where the last one ends
    at 4096  entries one behind another: u64 checksum of the rest, u64 first txid, u64 last txid,
             u64 length, block; behind the last one eight zero bytes

The head is written each time that entries were moved into the store. A reader finds the entries
written since then by reading on: an entry that is sound, and whose first transaction id is the next
one, is durable. So a commit costs one write to this file, not two, and no system call where the
file may be written through a memory map: on file systems that need no new space to overwrite a
block (file_systems.py).
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
from raylay.storage.files import (
    ASIDE_SUFFIX,
    fault_point,
    faults,
    private_opener,
    sync_directory,
)
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
"""The largest block that the front takes, in bytes. A larger one goes to the store at once: writing
it twice would cost more than the front saves."""
FILL_BYTES = 1024 * 1024
LEFT_BYTES_MIN = 32 * 1024 * 1024
"""The free space, in bytes, that must remain after the files are made; with less, no file is made.
On a small disk they would take the space that the journal needs next."""
LOOKS_MAX = 16
"""The number of times that a reader reads a head, or an entry, which is being written meanwhile."""
_BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")

_HEAD = struct.Struct("<Q16sQQQQ")
_HEAD_REST = struct.Struct("<16sQQQQ")
_ENTRY = struct.Struct("<QQQQ")
_ENTRY_REST = struct.Struct("<QQQ")
_ENTRIES_AT = PAGE_BYTES
_NOTHING_FOLLOWS = bytes(8)
"""The bytes in place of a checksum that end the entries. Bytes behind them are from an earlier use
of the file."""


def boot_id() -> bytes:
    """Returns the 16 bytes that identify this boot of the machine; empty where the system has
    none."""
    try:
        return bytes.fromhex(_BOOT_ID_FILE.read_text().strip().replace("-", ""))[:16]
    except (OSError, ValueError):
        return b""


def front_files(directory: Path) -> list[Path]:
    """Returns the paths of the front's files that exist, `front-end` last."""
    found = [directory / name for name in (*FRONT_NAMES, END_NAME)]
    return [path for path in found if path.exists()]


def read_entries(directory: Path) -> list[list[FrontEntry]]:
    """Returns every sound entry of each file; an empty list for a missing file.

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
    """Returns the entries in front of a store whose last transaction id is `last_txid`.

    Raises:
        StorageError: a file cannot be read.
    """
    return recover([entry for found in read_entries(directory) for entry in found], last_txid)


def remove_front(directory: Path) -> None:
    """Removes the front's files, the one with the newest entries first, so that a crash in between
    leaves entries without a gap.

    Raises:
        OSError: a file cannot be removed.
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
    """Makes each file that is missing or has the wrong size. A file gets its name only when it is
    complete.

    Raises:
        OSError: a write failed, or less than `LEFT_BYTES_MIN` would remain free; then no file is
            begun.
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
    """The writer of the front's entries.

    Invariants: `append` returns only when the entry is durable; `FrontSpace` decides where each
    entry goes.
    Owner: a journal; one thread at a time. Lifecycle: opened on complete files whose entries are
    all in the store, used until `close`.

    Args:
        directory: the directory in which `make_files` made the files.
        generation: the generation of the next entry, higher than that of any entry in the files.

    Raises:
        OSError: a file cannot be opened.
    """

    def __init__(self, directory: Path, generation: int) -> None:
        self.space = FrontSpace(generation, FILE_BYTES)
        self._buffer = mmap.mmap(-1, pages_of(BLOCK_BYTES_MAX) * PAGE_BYTES)
        self._view = memoryview(self._buffer)
        self._files: list[tuple[int, bool]] = []
        """The descriptor of each file, and whether it is open past the page cache (`O_DIRECT`): a
        write to such a file has to be synced afterwards."""
        self._overlapped: OverlappedWrite | None = None
        try:
            for name in FRONT_NAMES:
                self._files.append(open_for_syncs(directory / name))
            if all(is_direct for _, is_direct in self._files):
                with contextlib.suppress(OSError):
                    self._overlapped = OverlappedWrite(self._view)
        except BaseException:
            self.close()
            raise

    def append(
        self, first_txid: int, last_txid: int, block: bytes, ahead: DiskWaitTask | None = None
    ) -> int:
        """Writes an entry. Returns the entry's number for `space.moved`, or 0 when the files have
        no place for it.

        Args:
            ahead: the work to do while the disk writes, where the kernel allows that; see
                `Journal.commit_here`.

        Raises:
            OSError: the entry could not be written; its file is not used again.
        """
        space = self.space
        place = space.place(len(block))
        if place is None:
            return 0
        file, offset, generation, number = place
        length = encode_into(self._view, generation, number, first_txid, last_txid, block)
        if faults:
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
                    if faults:
                        fault_point("front.prepared")
                finally:
                    # The kernel reads the buffer until `end` returns.
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
        if faults:
            fault_point("front.written")
        return space.written(len(block))

    def close(self) -> None:
        if self._overlapped is not None:
            self._overlapped.close()
            self._overlapped = None
        while self._files:
            os.close(self._files.pop()[0])


def open_for_syncs(path: Path) -> tuple[int, bool]:
    """Opens a file past the page cache where that works, otherwise with `O_DSYNC`, which syncs each
    write. Returns the descriptor, and whether it is past the page cache."""
    flags = os.O_RDWR | os.O_CLOEXEC
    direct = getattr(os, "O_DIRECT", 0)
    if direct:
        # The disk's blocks may be larger than our pages, or the file system may accept the flag and
        # refuse the read.
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
    """The writer of `front-end`, by which readers in other processes see the entries in front.

    Owner: the journal that writes; one thread at a time.

    Raises:
        OSError: the file cannot be opened.
    """

    def __init__(self, directory: Path) -> None:
        self._boot_id = boot_id().ljust(16, b"\0")
        self._entries: deque[tuple[int, int, int]] = deque()
        """The first and the last transaction id of each entry in front, and the offset at which it
        begins in the file."""
        self._end = _ENTRIES_AT
        path = directory / END_NAME
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._map: mmap.mmap | None = None
        """The memory map of the file, where the file may be written through one: a commit then
        needs no system call here."""
        try:
            write_whole(self._fd, _NOTHING_FOLLOWS, self._end)
        except OSError:
            self.close()
            raise
        if overwrites_in_place(path) and has_every_block(self._fd, END_BYTES):
            with contextlib.suppress(OSError):
                self._map = mmap.mmap(self._fd, END_BYTES)

    def has_room(self, block_bytes: int) -> bool:
        """Returns whether the file has room for an entry with a block of `block_bytes`."""
        return self._end + _ENTRY.size + block_bytes + len(_NOTHING_FOLLOWS) <= END_BYTES

    def append(self, first_txid: int, last_txid: int, block: bytes) -> None:
        """Writes an entry that is durable in the front's files, so that readers see it.

        Raises:
            OSError: the file could not be written.
        """
        rest = _ENTRY_REST.pack(first_txid, last_txid, len(block))
        check = checksum64(block, seed=checksum64(rest)).to_bytes(8, "little")
        begin = self._end
        end = begin + _ENTRY.size + len(block)
        content = b"".join((rest, block, _NOTHING_FOLLOWS))
        if self._map is not None:
            # The checksum is written last: until then readers see no entry here.
            self._map[begin + len(check) : end + len(_NOTHING_FOLLOWS)] = content
            self._map[begin : begin + len(check)] = check
        else:
            self._write_entry(check + content, begin)
        self._entries.append((first_txid, last_txid, begin))
        self._end = end

    def _write_entry(self, content: bytes, begin: int) -> None:
        try:
            write_whole(self._fd, content, begin)
        except OSError:
            # Readers must not see the entry, even if only its last bytes are missing: its
            # transaction ids may be used again.
            with contextlib.suppress(OSError):
                write_whole(self._fd, _NOTHING_FOLLOWS, begin)
            raise

    def moved(self, upto_txid: int) -> None:
        """Notes that the store has every entry up to `upto_txid`, and writes the head.

        Raises:
            OSError: the file could not be written.
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
        write_whole(self._fd, checksum64(rest).to_bytes(8, "little") + rest, 0)

    def close(self) -> None:
        if self._map is not None:
            self._map.close()
        os.close(self._fd)


def write_whole(descriptor: int, content: bytes | mmap.mmap, offset: int) -> None:
    """Writes all bytes at an offset of a file by one system call.

    Raises:
        OSError: the file could not be written, or not all of it.
    """
    written = os.pwrite(descriptor, content, offset)
    if written != len(content):
        raise OSError(f"{written} of {len(content)} bytes were written")


Blocks = list[tuple[int, bytes]]


class FrontReader:
    """The reader, in any process, of the entries in the front log that are not yet moved to the
    store.

    Owner: a journal's reader; one thread. Lifecycle: opens its files at the first `blocks`;
    `close`.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._boot_id = boot_id().ljust(16, b"\0")
        self._fd = -1
        self._next = (0, 0)
        """The transaction id behind the last entry that was read, and the offset at which its entry
        begins once it is written."""
        self._followed: tuple[tuple[int, int], int, int, int, bytes] | None = None
        """The end according to the head (last transaction id and offset), and the last entry found
        behind it: its last transaction id, the offset of its end, the offset of its beginning, and
        its first bytes, by which a rewritten entry is noticed."""
        self._resting: tuple[tuple[int, ...], Sequence[FrontEntry]] | None = None
        """The entries that a front without a writer has behind the store's end, with the store's
        end and the identities of the files for which they were read."""

    def blocks(self, txid: int, bytes_max: int, stored: Callable[[], int]) -> Blocks | None:
        """Returns blocks in order, about `bytes_max` bytes, beginning with the one that holds
        `txid`; an empty list when there is no such transaction yet; None when the store has it by
        now.

        Args:
            txid: a transaction id behind the end that the store had a moment ago.
            stored: a function that returns the store's last transaction id.

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
                # The transaction may have been moved into the store since the caller read it, and
                # the front begun anew.
                return None if stored() >= txid else []
            if first > txid:
                return None
            found = self._walk(txid, bytes_max, begin, end)
            if found:
                return found
        return None  # it goes on faster than it can be read: by now it is in the store

    def behind(self, segment: OpenSegment, txid: int, bytes_max: int) -> Blocks:
        """Returns blocks of a segment; for the segment that is being written, also blocks in front
        of it.

        Raises:
            StorageError: the segment, or a file of the front, cannot be read.
        """
        for _ in range(LOOKS_MAX):
            found: Blocks | None = segment.blocks(txid, bytes_max)
            if not found and segment.file.suffix == ".live":
                found = self.blocks(txid, bytes_max, segment.last_txid)
            if found is not None:
                return found
        return []  # it is in the next segment

    def last_txid(self, stored_txid: int) -> int:
        """Returns the last durable transaction id. `stored_txid` is the last one that the store had
        a moment ago."""
        head = self._head(stored_txid)
        if head is not None:
            return max(stored_txid, head[1])
        entries = self._resting_entries(stored_txid)
        return entries[-1].last_txid if entries else stored_txid

    def _head(self, stored_txid: int) -> tuple[int, int, int, int] | None:
        """Returns (first transaction id, last transaction id, begin, end) of the entries in front;
        None where no process of this boot wrote the file."""
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
        """Returns the last transaction id and the offset at which its entry ends, entries written
        since the head included."""
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
        """Reads blocks from `txid` on. Stops at an entry that is not the expected one, because it
        was moved and overwritten meanwhile."""
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
        """Closes the file, which the next read opens again."""
        self._next = (0, 0)
        self._followed = None
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
