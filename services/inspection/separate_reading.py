"""Reading in a child process, because LMDB ends a process that meets a damaged page (SIGBUS,
SIGSEGV or an assertion), which must be an error that names the file.

The child is forked, opens the file itself, and writes rows into a pipe, which holds it back while
nobody takes them. It ends when the rows end, when the reader goes away, or when it is told to.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import msgpack

from raylay.services.errors import CorruptRecord, RaylayError, StorageError

READ_BYTES = 256 * 1024
BUFFER_BYTES = 64 * 1024
ROW_BYTES_MAX = 1024 * 1024 * 1024
_ENDS = {signal.SIGBUS, signal.SIGSEGV, signal.SIGABRT, signal.SIGFPE, signal.SIGILL}

Row = dict[str, Any]


def read_separately(rows: Callable[[], Iterator[Row]], name: str) -> Iterator[Row]:
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
        _serve(rows, theirs)
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
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
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


def _serve(rows: Callable[[], Iterator[Row]], descriptor: int) -> None:
    """Runs the iterator in the child, which ends here."""
    code = 1
    try:
        # A crash is told by its signal: a faulthandler would print it, too.
        for number in (*_ENDS, signal.SIGTERM, signal.SIGINT, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        packer = msgpack.Packer(unicode_errors="surrogatepass")
        waiting = bytearray()
        try:
            for row in rows():
                waiting += packer.pack(row)
                if len(waiting) >= BUFFER_BYTES:
                    _write(descriptor, waiting)
            last: Row = {}
        except CorruptRecord as error:
            last = {"error": "damage", "text": str(error), "number": 0}
        except RaylayError as error:
            last = {"error": "storage", "text": str(error), "number": 0}
        except OSError as error:
            parts = [error.strerror or str(error)]
            parts += [str(error.filename)] if error.filename else []
            last = {"error": "os", "text": parts, "number": error.errno or 0}
        except Exception as error:  # whatever damaged bytes bring it to raise
            text = f"it is damaged, or this is a fault of Raylay's: {type(error).__name__}: {error}"
            last = {"error": "damage", "text": text, "number": 0}
        waiting += packer.pack(last)
        _write(descriptor, waiting)
        code = 0
    finally:
        # Nothing of the parent's is flushed or ended twice.
        os._exit(code)


def _write(descriptor: int, waiting: bytearray) -> None:
    view = memoryview(bytes(waiting))
    while view:
        view = view[os.write(descriptor, view) :]
    waiting.clear()
