"""Places to which lines are logged: a stream, files, the syslog. None of them holds up the process:
a line that a place does not take at once is lost, and raises OSError.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from raylay.services.errors import ConfigurationError
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
WAITING_BYTES_MAX = 4 * 1024 * 1024
"""Limit on the bytes of lines that wait for the thread of a place."""
BYTES_AT_ONCE = 64 * 1024
"""Bytes of lines that the thread of a place writes together; a longer line is written alone."""
CLOSE_S = 1.0
"""Time, in seconds, that the thread of a place has for its last lines when the process ends."""
CHILD_SHARE = 4
"""A process beside the instance keeps this part of the bytes that the instance keeps in the
background: there are many of them, and they log little."""
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


LossNote = Callable[[int, str], tuple[int, bytes]]
"""Makes the line, with its level, that says how many lines are missing before it, and why."""


def place_of(
    target: LogTarget, process_name: str, is_child: bool, note: LossNote
) -> LogPlace | None:
    """Returns the place of a target; None for `none`.

    Args:
        is_child: whether the process is one beside an instance, which does not write the instance's
            files.
        note: makes the line that a place in the background writes where it lost lines.

    Raises:
        ConfigurationError: the directory of its files cannot be written, and nothing is written in
            the background.
    """
    if target.target == "none":
        return None
    if target.target == "syslog":
        return SyslogPlace(target, process_name)
    if target.target in ("stdout", "stderr"):
        return StreamPlace(target.target)
    if not target.in_background:
        return FilePlace(target, process_name, is_child)
    if is_child:
        target = replace(
            target,
            rotation_bytes=target.rotation_bytes // CHILD_SHARE,
            kept_bytes=target.files_bytes_max // CHILD_SHARE,
        )
    return BackgroundPlace(lambda: FilePlace(target, process_name, is_child), note)


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


class BackgroundPlace:
    """Files that a thread of its own writes: a disk that hangs, or a directory that cannot be
    written, holds up neither the process nor its start.

    Lines wait in memory up to `WAITING_BYTES_MAX`. A line for which there is no room, or that the
    files do not take, is lost and counted; where the files take lines again a line says how many
    are missing.

    Owner: any thread writes; one thread, which the first line starts, has the files.

    Args:
        make: makes the place of the files; it is called in the thread, and again while it fails.
        note: makes the line that says how many lines are missing.

    Attributes:
        lost: number of lines lost since the beginning.
        failure: reason of the last loss; empty: the last line was taken.
    """

    def __init__(self, make: Callable[[], LogPlace], note: LossNote) -> None:
        self._make = make
        self._note = note
        self._place: LogPlace | None = None
        self._try_at_s = 0.0
        self._condition = threading.Condition()
        self._waiting: deque[tuple[int, bytes]] = deque()
        self._waiting_bytes = 0
        self._thread: threading.Thread | None = None
        self._is_over = False
        self._missing = 0
        """Lines lost since the files last took one."""
        self._refusal = ""
        self.lost = 0
        self.failure = ""

    def write(self, lines: Sequence[tuple[int, bytes]]) -> int:
        """Hands lines to the thread, or counts them as lost. Does not wait."""
        size = sum(len(line) for _, line in lines)
        with self._condition:
            if self._waiting_bytes + size > WAITING_BYTES_MAX:
                self._lose(len(lines), "the disk of the log hangs")
                return len(lines)
            self._waiting.extend(lines)
            self._waiting_bytes += size
            self._is_over = False
            if self._thread is None or not self._thread.is_alive():
                # A forked process has the lines and not the thread.
                self._thread = threading.Thread(target=self._run, name="raylay-log", daemon=True)
                self._thread.start()
            self._condition.notify()
        return len(lines)

    def _lose(self, count: int, why: str) -> None:
        self.lost += count
        self._missing += count
        self.failure = why

    def _run(self) -> None:
        while True:
            with self._condition:
                while not self._waiting and not self._is_over:
                    self._condition.wait()
                if not self._waiting:
                    # A line that comes later starts another thread.
                    self._thread, place, self._place = None, self._place, None
                    break
                lines = [self._waiting.popleft()]
                size = len(lines[0][1])
                while self._waiting and size + len(self._waiting[0][1]) <= BYTES_AT_ONCE:
                    lines.append(self._waiting.popleft())
                    size += len(lines[-1][1])
                self._waiting_bytes -= size
                missing, why = self._missing, self.failure
            if missing:
                lines.insert(0, self._note(missing, why))
            self._written(len(lines), self._write_all(lines), missing)
        if place is not None:
            place.close()

    def _written(self, count: int, taken: int, missing: int) -> None:
        """Counts what was lost of lines that were written.

        Args:
            count: number of lines, the note included.
            taken: how many of them the files took, from the first one on.
            missing: number of lost lines that the note tells of; 0: there is no note.
        """
        with self._condition:
            if missing and taken:
                self._missing -= missing
            lost = count - max(taken, 1 if missing else 0)
            if lost:
                self._lose(lost, self._refusal)
            elif not self._missing:
                self.failure = ""

    def _write_all(self, lines: Sequence[tuple[int, bytes]]) -> int:
        """Writes lines together; where they are not taken, one by one, so that only those are lost
        for which there is no room. Returns how many were taken, from the first one on."""
        if self._take(lines):
            return len(lines)
        if len(lines) > 1:
            for taken, line in enumerate(lines):
                if not self._take([line]):
                    return taken
        return 0

    def _take(self, lines: Sequence[tuple[int, bytes]]) -> bool:
        try:
            if self._place is None:
                if time.monotonic() < self._try_at_s:
                    return False
                self._try_at_s = time.monotonic() + LOOK_EVERY_S
                self._place = self._make()
                self._try_at_s = 0.0
            self._place.write(lines)
        except (OSError, ConfigurationError) as error:
            self._refusal = str(error)
            return False
        return True

    def rotate(self) -> Path | None:
        """Does nothing: the files are the thread's, and follow each other by their size alone."""
        return None

    def close(self) -> None:
        """Waits until the lines that wait are written, for `CLOSE_S` at most."""
        with self._condition:
            thread, self._is_over = self._thread, True
            self._condition.notify()
        if thread is not None and thread is not threading.current_thread():
            thread.join(CLOSE_S)


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
