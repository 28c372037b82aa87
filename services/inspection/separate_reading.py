"""Reading in a child process, because LMDB ends a process that meets a damaged page (SIGBUS,
SIGSEGV or an assertion), which must be an error that names the file.

The child is forked, opens the file itself, and writes rows into a pipe, which holds it back while
nobody takes them. It ends when the rows end, when the reader goes away, or when it is told to.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Generator, Iterator
from typing import Any

import msgpack

from raylay.services.errors import CorruptRecord, RaylayError, StorageError

READ_BYTES = 256 * 1024
BUFFER_BYTES = 64 * 1024
ROW_BYTES_MAX = 1024 * 1024 * 1024
END_S = 5.0
"""Seconds that the child has to end when its rows are not wanted any more."""
LOOK_S = 0.002
_ENDS = {signal.SIGBUS, signal.SIGSEGV, signal.SIGABRT, signal.SIGFPE, signal.SIGILL}

Row = dict[str, Any]


def read_separately(rows: Callable[[], Iterator[Row]], name: str) -> Generator[Row, None, None]:
    """Yields the rows of an iterator that runs in a child process.

    Args:
        rows: begins the iterator, in the child; nothing may be open before.
        name: the file, for errors.

    Raises:
        CorruptRecord: a damaged file ended the child.
        StorageError, OSError: the error that the iterator raised.
    """
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        os.close(ours)
        _serve(rows, theirs, name)
    os.close(theirs)
    has_ended = False
    try:
        unpacker = msgpack.Unpacker(
            max_buffer_size=ROW_BYTES_MAX, strict_map_key=False, unicode_errors="surrogatepass"
        )
        while part := os.read(ours, READ_BYTES):
            unpacker.feed(part)
            for row in unpacker:
                if "error" in row and len(row) == 3:
                    raise _raised(row)
                if row:
                    yield row
                has_ended = not row
        if not has_ended:
            status = os.waitpid(child, 0)[1]
            child = 0
            raise _ended(status, name)
    finally:
        os.close(ours)
        if child:
            _end(child)


def _end(child: int) -> None:
    """Ends the child: it gives back its slot in LMDB's table of readers, which would otherwise keep
    pages. Where it does not, it is killed."""
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.kill(child, signal.SIGTERM)
        until_s = time.monotonic() + END_S
        while time.monotonic() < until_s:
            if os.waitpid(child, os.WNOHANG)[0]:
                return
            time.sleep(LOOK_S)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _ended(status: int, name: str) -> StorageError:
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    if number in _ENDS:
        return CorruptRecord(
            f"{name} is damaged: reading it ended a process ({signal.Signals(number).name})", name
        )
    how = f"by {signal.Signals(number).name}" if number else f"with code {status >> 8}"
    return StorageError(f"{name}: the process that read it was ended {how}: try again", name)


def _raised(row: Row) -> Exception:
    kind, text, number = row["error"], row["text"], row["number"]
    if kind == "os":
        return OSError(number, *text)
    if kind == "damage":
        return CorruptRecord(text)
    return StorageError(text)


class _NotWanted(BaseException):
    """Raised in the child when the parent wants no more rows."""


def _stop(*_: object) -> None:
    raise _NotWanted


def _serve(rows: Callable[[], Iterator[Row]], descriptor: int, name: str) -> None:
    """Runs the iterator in the child process. Never returns: the process ends here."""
    code = 1
    try:
        # The parent reports a crash by its signal; a faulthandler would print it a second time.
        for number in _ENDS:
            signal.signal(number, signal.SIG_DFL)
        # Ctrl-C reaches both processes, and the parent ends this one.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, _stop)
        # LMDB prints a line of its own source before it ends a process.
        os.dup2(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), 2)
        packer = msgpack.Packer(unicode_errors="surrogatepass")
        waiting = bytearray()
        reading = rows()
        try:
            for row in reading:
                waiting += packer.pack(row)
                if len(waiting) >= BUFFER_BYTES:
                    _write(descriptor, waiting)
            last: Row = {}
        except Exception as error:
            last = _told(error, name)
        finally:
            # An iterator that was stopped half-way closes its files here.
            if isinstance(reading, Generator):
                reading.close()
        waiting += packer.pack(last)
        _write(descriptor, waiting)
        code = 0
    finally:
        # `_exit` skips the exit handlers, which would flush the parent's buffers a second time.
        os._exit(code)


def _told(error: Exception, name: str) -> Row:
    """Returns the row that raises an error in the parent."""
    if isinstance(error, OSError):
        parts = [error.strerror or str(error)]
        parts += [str(error.filename)] if error.filename else []
        return {"error": "os", "text": parts, "number": error.errno or 0}
    if isinstance(error, RaylayError):
        kind = "damage" if isinstance(error, CorruptRecord) else "storage"
        return {"error": kind, "text": str(error), "number": 0}
    # A decoder may raise any error on damaged bytes.
    what = f"{type(error).__name__}: {error}"
    text = f"{name} is damaged, or this is a fault of Raylay's: {what}"
    return {"error": "damage", "text": text, "number": 0}


def _write(descriptor: int, waiting: bytearray) -> None:
    view = memoryview(bytes(waiting))
    while view:
        view = view[os.write(descriptor, view) :]
    waiting.clear()
