"""Places to which lines are logged: a stream, files, the syslog. None of them holds up the process:
a line that a place does not take at once is lost, and raises OSError.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from raylay.services.telemetry.bounded_files import LOOK_EVERY_S, BoundedFile
from raylay.services.telemetry.file_names import mask_of_child
from raylay.services.telemetry.log_options import (
    CRITICAL,
    EMERGENCY,
    ERROR,
    FACILITIES,
    INFO,
    STATS,
    WARNING,
    LogTarget,
)

SYSLOG_BYTES_MAX = 8_000
"""Most bytes of a line in the syslog; common daemons cut or drop longer ones."""
STREAM_WAIT_MS = 50
"""Time, in milliseconds, for which a write may wait for the stream's reader, once in each
`LOOK_EVERY_S`."""
_PIECE_BYTES = 4_096
"""Number of bytes that a pipe that is ready takes without blocking (PIPE_BUF)."""
_SEVERITIES = {EMERGENCY: 0, CRITICAL: 2, ERROR: 3, WARNING: 4, INFO: 6, STATS: 6}
_DEBUG_SEVERITY = 7
_MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]


class LogPlace(Protocol):
    """A place to which lines are logged."""

    def write(self, lines: Sequence[tuple[int, bytes]]) -> int:
        """Writes lines, each with its level and without its newline, together where that is
        possible.

        Returns:
            How many of them the place took, from the first one on.

        Raises:
            OSError: the place took none.
        """

    def rotate(self) -> Path | None:
        """Ends the present file, where there is one, and returns it."""

    def close(self) -> None:
        """Lets go of the place."""


def place_of(target: LogTarget, process_name: str, is_child: bool) -> LogPlace | None:
    """Returns the place of a target; None for `none`.

    Args:
        is_child: whether the process is one beside an instance, which does not write the instance's
            files.

    Raises:
        ConfigurationError: the directory of its files cannot be written.
    """
    if target.target == "none":
        return None
    if target.target == "syslog":
        return SyslogPlace(target, process_name)
    if target.target in ("stdout", "stderr"):
        return StreamPlace(target.target)
    return FilePlace(target, process_name, is_child)


class StreamPlace:
    """The process's stdout or stderr. A pipe or a terminal that nobody reads holds up nothing."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._is_torn = False
        self._waited_at_s = -LOOK_EVERY_S

    def write(self, lines: Sequence[tuple[int, bytes]]) -> int:
        # Ray and pytest replace sys.stdout and sys.stderr by objects of their own: ask each time.
        # Text goes through the object where it has no descriptor, such as one that captures.
        stream = getattr(sys, self._name)
        if stream is None:
            return len(lines)
        text = _joined(lines)
        try:
            descriptor = stream.fileno()
        except (AttributeError, OSError, ValueError):
            stream.write(text.decode())
            return len(lines)
        stream.flush()
        rest = memoryview(b"\n" + text if self._is_torn else text)
        while rest:
            self._wait(descriptor)
            rest = rest[os.write(descriptor, rest[:_PIECE_BYTES]) :]
            # Between two pieces the line is torn: if the next one fails, the next line ends it.
            self._is_torn = bool(rest)
        return len(lines)

    def _wait(self, descriptor: int) -> None:
        poll = select.poll()
        poll.register(descriptor, select.POLLOUT)
        if poll.poll(0):
            return
        now_s = time.monotonic()
        if now_s - self._waited_at_s >= LOOK_EVERY_S:
            self._waited_at_s = now_s
            if poll.poll(STREAM_WAIT_MS):
                return
        raise BlockingIOError(errno.EAGAIN, f"nobody reads {self._name}")

    def rotate(self) -> Path | None:
        return None

    def close(self) -> None:
        """The stream is the process's, and stays open."""


class FilePlace:
    """Files, compressed or not, that follow each other."""

    def __init__(self, target: LogTarget, process_name: str, is_child: bool) -> None:
        mask = target.file_name
        self._file = BoundedFile(
            Path(target.directory),
            process_name,
            "log",
            target.rotation_bytes,
            target.files_bytes_max,
            mask=mask_of_child(mask) if mask and is_child else mask,
            compressed=target.target == "gzip",
        )
        self._failure: OSError | None = None
        self._try_at_s = 0.0

    def write(self, lines: Sequence[tuple[int, bytes]]) -> int:
        if self._failure is not None and time.monotonic() < self._try_at_s:
            raise self._failure
        try:
            self._file.write(_joined(lines))
            self._failure = None
            return len(lines)
        except OSError as error:
            if not self._file.is_open:
                # Opening reads the directory: that is not for each line.
                self._failure, self._try_at_s = error, time.monotonic() + LOOK_EVERY_S
            raise

    def rotate(self) -> Path | None:
        return self._file.rotate()

    def close(self) -> None:
        self._file.close()


class SyslogPlace:
    """The host's syslog, by its datagram socket. While it is away or full lines are lost."""

    def __init__(self, target: LogTarget, process_name: str) -> None:
        self._path = target.socket
        self._options = frozenset(target.options)
        self._facility = FACILITIES[target.facility]
        pid = f"[{os.getpid()}]" if "LOG_PID" in self._options else ""
        self._tag = f"{target.ident or process_name or 'raylay'}{pid}: "
        self._stderr = StreamPlace("stderr")
        self._socket: socket.socket | None = None
        self._try_at_s = 0.0
        if "LOG_NDELAY" in self._options:
            with suppress(OSError):
                self._connect()

    def write(self, lines: Sequence[tuple[int, bytes]]) -> int:
        if "LOG_PERROR" in self._options:
            with suppress(OSError, ValueError):
                self._stderr.write(lines)
        for count, (level, line) in enumerate(lines):
            try:
                self._send(level, line)
            except OSError:
                if "LOG_CONS" in self._options:
                    _to_console(self._tag.encode() + line)
                if count:
                    return count
                raise
        return len(lines)

    def _send(self, level: int, line: bytes) -> None:
        priority = self._facility * 8 + _SEVERITIES.get(level, _DEBUG_SEVERITY)
        now = time.localtime()
        # The locale has no say in the names of months here, as in the C library.
        stamp = f"{_MONTHS[now.tm_mon - 1]} {now.tm_mday:2} {time.strftime('%H:%M:%S', now)}"
        packet = f"<{priority}>{stamp} {self._tag}".encode() + line
        if len(packet) > SYSLOG_BYTES_MAX:
            packet = packet[:SYSLOG_BYTES_MAX].decode("utf-8", "ignore").encode() + "…".encode()
        is_new = self._socket is None
        connected = self._socket or self._connect()
        try:
            connected.send(packet)
        except BlockingIOError:
            raise
        except OSError:
            self.close()
            if is_new:
                raise
            # The daemon was started again: its socket is another one.
            self._connect().send(packet)

    def _connect(self) -> socket.socket:
        now_s = time.monotonic()
        if now_s < self._try_at_s:
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"no syslog at {self._path}")
        made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        made.setblocking(False)
        try:
            made.connect(self._path)
        except OSError:
            made.close()
            self._try_at_s = now_s + LOOK_EVERY_S
            raise
        self._socket = made
        return made

    def rotate(self) -> Path | None:
        return None

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _joined(lines: Sequence[tuple[int, bytes]]) -> bytes:
    return b"".join(line + b"\n" for _, line in lines)


def _to_console(line: bytes) -> None:
    with suppress(OSError):
        descriptor = os.open("/dev/console", os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK)
        try:
            os.write(descriptor, line + b"\r\n")
        finally:
            os.close(descriptor)
