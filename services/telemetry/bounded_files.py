"""Files of lines, traces and logs, to which a process appends for ever, within a limit of bytes."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import threading
import time
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

from raylay.services.errors import ConfigurationError
from raylay.services.telemetry.file_names import FileNames
from raylay.storage.files import PRIVATE_FILE_MODE, make_directory

FILES_MAX = 1_000
LOOK_EVERY_S = 1.0
"""Time after which a write looks again whether the file is still where it was, and after which one
that could not be opened is tried again."""
_GZIP = 31  # zlib's window bits for a stream with gzip's header


class BoundedFile:
    """Appends lines to `DIRECTORY/NAME-PID.SUFFIX`, then `NAME-PID.1.SUFFIX` and so on.

    A file has at most `file_bytes_max` bytes. All files of NAME, earlier processes' included, have
    at most `name_bytes_max`: the oldest are removed when a file is opened, which the first write
    does. A process that has its own id at the end of its name (`clients-PID`) writes files of the
    name without it, so that the bound holds for all such processes together. Each write is one
    system call of whole lines. A line that does not fit on the disk is taken back, so a file has
    whole lines only; a killed process leaves at most its last line torn. No two processes write one
    file: it is locked, and the second takes the next number. A file that was moved or removed is
    begun again under its name.

    Args:
        file_bytes_max: most bytes of a file, of a compressed one before compression; 0: any.
        name_bytes_max: most bytes of all files of the name in its directory; 0: nothing is removed.
        mask: mask of the files' names (`FileNames`), in place of `NAME-PID.SUFFIX`.
        compressed: the files are gzip files, with `.gz` after their names. Each line can be read
            from the file once it was written.

    Raises:
        ConfigurationError: the directory cannot be made or written.
    """

    def __init__(
        self,
        directory: Path,
        name: str,
        suffix: str,
        file_bytes_max: int,
        name_bytes_max: int,
        *,
        mask: str = "",
        compressed: bool = False,
    ) -> None:
        self._directory = directory
        shared_name = name.removesuffix(f"-{os.getpid()}")
        shared_name = re.sub(r"[^A-Za-z0-9._-]+", "_", shared_name) or "process"
        self._names = FileNames(
            mask or f"%p-%i.{suffix}", shared_name, os.getpid(), ".gz" if compressed else ""
        )
        self._file_bytes_max = file_bytes_max
        self._name_bytes_max = max(name_bytes_max, file_bytes_max) if name_bytes_max else 0
        self._is_compressed = compressed
        self._compressor: Any = None
        self._lock = threading.Lock()
        self._number = 0
        self._bytes = 0
        """Bytes of the lines in the file, before compression."""
        self._end = 0
        """Position behind the last whole line in the file."""
        self._torn = False
        self._descriptor = -1
        self._looked_at_s = 0.0
        self._path = directory / self._names.name(0, time.time())
        parent = self._path.parent
        try:
            make_directory(parent)
            if not os.access(parent, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(parent))
        except OSError as error:
            raise ConfigurationError(
                f"cannot write to the directory {parent}: {error.strerror or error}"
            ) from error

    @property
    def path(self) -> Path:
        """Returns the path of the present file, or of the first one while there is none."""
        return self._path

    @property
    def is_open(self) -> bool:
        return self._descriptor >= 0

    def write(self, lines: bytes) -> None:
        """Appends whole lines, in the next file where they do not fit into this one.

        Raises:
            OSError: the disk did not take them; the lines are lost.
        """
        with self._lock:
            self._look()
            if self._descriptor < 0:
                self._open(self._number)
            elif 0 < self._file_bytes_max < self._bytes + len(lines) and self._bytes:
                self._leave()
                self._open(self._number + 1)
            self._append(lines)

    def rotate(self) -> Path | None:
        """Ends the present file; the next line begins another one.

        Returns:
            The file that was ended; None: there is none, or nothing is in it.
        """
        with self._lock:
            if self._descriptor < 0 or not self._bytes:
                return None
            ended = self._path
            self._leave()
            self._number += 1
            return ended

    def close(self) -> None:
        with self._lock:
            self._leave()

    # -- the present file --------------------------------------------------------------------------
    def _append(self, lines: bytes) -> None:
        if self._compressor is not None:
            taken = self._compressor.compress(lines) + self._compressor.flush(zlib.Z_SYNC_FLUSH)
        else:
            taken = b"\n" + lines if self._torn else lines
        try:
            written = os.write(self._descriptor, taken)
            if written < len(taken):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
        except OSError:
            self._take_back()
            raise
        self._torn = False
        self._end += written
        self._bytes += len(lines)

    def _take_back(self) -> None:
        """Removes the part of a line that the disk took. A compressed file with earlier lines ends
        here, because its compressor has taken bytes that are not in the file."""
        try:
            if os.fstat(self._descriptor).st_size > self._end:
                os.ftruncate(self._descriptor, self._end)
        except OSError:
            self._torn = True
        if self._compressor is None:
            return
        if self._end == 0 and not self._torn:
            self._compressor = zlib.compressobj(wbits=_GZIP)
        else:
            self._compressor = None  # unfinished: no end of a stream would fit its contents
            self._leave()
            self._number += 1

    def _leave(self) -> None:
        if self._descriptor < 0:
            return
        if self._compressor is not None and self._bytes:
            # Without this end the file still has all lines; readers report that the end is missing.
            with suppress(OSError):
                os.write(self._descriptor, self._compressor.flush(zlib.Z_FINISH))
        self._compressor = None
        os.close(self._descriptor)
        self._descriptor = -1

    def _look(self) -> None:
        """Closes the present file if it was moved or removed."""
        now_s = time.monotonic()
        if self._descriptor < 0 or now_s - self._looked_at_s < LOOK_EVERY_S:
            return
        self._looked_at_s = now_s
        opened = os.fstat(self._descriptor)
        try:
            found = os.stat(self._path)
        except OSError:
            found = None
        if found is None or (found.st_ino, found.st_dev) != (opened.st_ino, opened.st_dev):
            self._leave()
        elif opened.st_size < self._end and self._compressor is None:
            self._end = self._bytes = opened.st_size  # emptied by a tool that rotates logs

    # -- the next file -----------------------------------------------------------------------------
    def _open(self, number: int) -> None:
        """Opens a file of this number or a higher one."""
        wall_s = time.time()
        path = self._directory / self._names.name(number, wall_s)
        make_directory(path.parent)
        present = {entry.name for entry in os.scandir(path.parent)}
        after = self._names.number_after(present, wall_s)
        # A file that ends in the middle of a compressed stream cannot be gone on with.
        number = max(number, after if self._is_compressed else after - 1)
        if not self._names.counts and not after:
            number = 0  # the names of another time begin anew
        while True:
            path = self._directory / self._names.name(number, wall_s)
            descriptor = os.open(
                path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, PRIVATE_FILE_MODE
            )
            size = os.fstat(descriptor).st_size
            is_full = size > 0 and (self._is_compressed or 0 < self._file_bytes_max <= size)
            if not is_full and _is_locked(descriptor):
                break
            os.close(descriptor)
            number += 1
        self._path, self._number, self._descriptor = path, number, descriptor
        self._looked_at_s = time.monotonic()
        self._bytes = self._end = size
        self._torn = (
            size > 0 and not self._is_compressed and os.pread(descriptor, 1, size - 1) != b"\n"
        )
        self._compressor = zlib.compressobj(wbits=_GZIP) if self._is_compressed else None
        self._remove_oldest()

    def _remove_oldest(self) -> None:
        if not self._name_bytes_max:
            return
        found = []
        for entry in os.scandir(self._path.parent):
            if entry.name != self._path.name and self._names.is_own(entry.name):
                try:
                    status = entry.stat()
                except FileNotFoundError:
                    continue  # another process of this name removed it
                found.append((status.st_mtime_ns, entry.path, status.st_size))
        found.sort()
        total_bytes = sum(size for _, _, size in found) + self._file_bytes_max
        while found and (total_bytes > self._name_bytes_max or len(found) >= FILES_MAX):
            _, path, size = found.pop(0)
            Path(path).unlink(missing_ok=True)
            total_bytes -= size


def _is_locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # a file system without locks
    return True
