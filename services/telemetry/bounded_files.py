"""Files of lines, traces and logs, to which a process appends for ever, within a limit of bytes."""

from __future__ import annotations

import errno
import os
import re
import threading
from pathlib import Path

from raylay.services.errors import ConfigurationError
from raylay.storage.files import PRIVATE_FILE_MODE, make_directory

FILES_MAX = 1_000


class BoundedFile:
    """Appends lines to `DIRECTORY/NAME-PID.SUFFIX`, then `NAME-PID.1.SUFFIX` and so on.

    A file has at most `file_bytes_max` bytes. All files of NAME, earlier processes' included, have
    at most `name_bytes_max`: the oldest are removed when a file is opened, which the first write
    does. A process that has its own id at the end of its name (`clients-PID`) writes files of the
    name without it, so that the bound holds for all such processes together. Each write is one
    system call of whole lines, so a killed process leaves at most its last line torn.

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
    ) -> None:
        self._directory = directory
        shared_name = name.removesuffix(f"-{os.getpid()}")
        self._name = re.sub(r"[^A-Za-z0-9._-]+", "_", shared_name) or "process"
        self._suffix = suffix
        self._file_bytes_max = file_bytes_max
        self._name_bytes_max = max(name_bytes_max, file_bytes_max)
        self._lock = threading.Lock()
        self._number = 0
        self._bytes = 0
        self._torn = False
        self._descriptor = -1
        try:
            make_directory(directory)
            if not os.access(directory, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(directory))
        except OSError as error:
            raise ConfigurationError(
                f"cannot write to the directory {directory}: {error.strerror or error}"
            ) from error

    @property
    def path(self) -> Path:
        number = f".{self._number}" if self._number else ""
        return self._directory / f"{self._name}-{os.getpid()}{number}.{self._suffix}"

    def write(self, lines: bytes) -> None:
        """Appends whole lines, in the next file where they do not fit into this one.

        Raises:
            OSError: the disk did not take them; the lines are lost.
        """
        with self._lock:
            if self._descriptor < 0:
                self._descriptor = self._open()
            if self._bytes and self._bytes + len(lines) > self._file_bytes_max:
                os.close(self._descriptor)
                self._descriptor = -1
                self._number += 1
                self._descriptor = self._open()
            if self._torn:
                lines = b"\n" + lines
            # Until the write has returned whole, what is in the file may end within a line.
            self._torn = True
            written = os.write(self._descriptor, lines)
            self._bytes += written
            self._torn = written < len(lines)

    def _open(self) -> int:
        self._remove_oldest()
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        descriptor = os.open(self.path, flags, PRIVATE_FILE_MODE)
        self._bytes = os.fstat(descriptor).st_size
        self._torn = False
        return descriptor

    def _remove_oldest(self) -> None:
        mine = re.compile(rf"{re.escape(self._name)}-\d+(\.\d+)?\.{re.escape(self._suffix)}")
        found = []
        for entry in os.scandir(self._directory):
            if mine.fullmatch(entry.name) and entry.name != self.path.name:
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

    def close(self) -> None:
        with self._lock:
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1
