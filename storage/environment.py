"""An LMDB environment that is opened again after errors for which LMDB refuses any further use."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import lmdb

from raylay.storage.files import PRIVATE_FILE_MODE, sync_directory

Answer = TypeVar("Answer")


class CutShortError(Exception):
    """A file is shorter than LMDB believes. A process that reads a page behind its end is killed
    (SIGBUS)."""


def check_whole(env: Any, path: Path) -> None:
    """Makes sure that a file has every page that LMDB would read, on the disk or as zeros.

    Raises:
        CutShortError: the file is shorter.
    """
    pages_bytes = (env.info()["last_pgno"] + 1) * env.stat()["psize"]
    size_bytes = path.stat().st_size
    if size_bytes < pages_bytes:
        raise CutShortError(f"{path} is cut short: it has {size_bytes:,} bytes of {pages_bytes:,}")


FREE_BYTES_MIN = 8 * 1024 * 1024
"""Room on a file system below which an input/output error is taken for a short write."""
REWRITTEN_SUFFIX = ".rewritten"
"""Suffix of a copy that is to take a file's place."""
WRITES_A_CHECK = 64
"""Number of write transactions of which one first frees what dead readers hold."""


def is_full(error: Exception, path: Path) -> bool:
    """Returns whether a write failed because the disk is full: the same write may succeed later.

    LMDB reports the short write on a full disk as an input/output error. Such an error counts as a
    full disk if less than `FREE_BYTES_MIN` is free.

    Args:
        error: the error of LMDB or of the system.
        path: the file that was written.
    """
    if isinstance(error, lmdb.DiskError | lmdb.MapFullError):
        return True
    text = str(error)
    if "No space left" in text or "quota exceeded" in text:
        return True
    return "Input/output" in text and _free_bytes(path.parent) < FREE_BYTES_MIN


def _free_bytes(directory: Path) -> int:
    status = os.statvfs(directory)
    return status.f_bavail * status.f_frsize


class LastingEnvironment:
    """An LMDB environment that is opened again after LMDB has refused any further use of it.

    After a failed write of a meta page, for example on a full disk, LMDB refuses the environment
    for good (MDB_PANIC), also to readers. The file is undamaged: the next transaction opens it
    again.

    A reader that was killed keeps the pages of its transaction, so that the file grows, and its
    slot in the table of readers, until that table is full. Write transactions free both, because no
    reader frees those of another one.

    Invariants: the file is open once at a time, and is not opened again during a transaction, whose
        values lie in the environment's map.
    Owner: one process; any of its threads, none of which begins a transaction within another.

    Args:
        opening: opens the environment; called again after each refusal.
        clears_dead_readers: whether write transactions free the pages and slots of dead readers;
            False: the owner does.

    Raises:
        lmdb.Error, StorageError, OSError: the errors of `opening`.
    """

    __slots__ = ("_clears", "_env", "_idle", "_opening", "_running", "_writes")

    def __init__(self, opening: Callable[[], Any], *, clears_dead_readers: bool = True) -> None:
        self._opening = opening
        self._clears = clears_dead_readers
        self._writes = 0
        self._env: Any = opening()
        self._running = 0
        self._idle = threading.Condition()

    def begin(self, *, write: bool = False, buffers: bool = False) -> Transaction:
        """Begins a transaction, for a `with`.

        Args:
            buffers: whether values are views into the map, valid until the transaction's end.

        Raises:
            lmdb.Error: an error of LMDB, or of `opening` where the environment is opened again.
        """
        if write and self._clears:
            if not self._writes % WRITES_A_CHECK:
                self.clear_dead_readers()
            self._writes += 1
        try:
            return self._begun(write, buffers)
        except lmdb.PanicError:
            self._give_up()
        except lmdb.ReadersFullError:
            self.clear_dead_readers()
        return self._begun(write, buffers)

    def _begun(self, write: bool, buffers: bool) -> Transaction:
        with self._idle:
            env = self._opened()
            self._running += 1
        # The lock is free here, because `begin` may wait for another write transaction to end.
        try:
            return Transaction(self, env.begin(write=write, buffers=buffers))
        except BaseException:
            self.ended()
            raise

    def ended(self) -> None:
        with self._idle:
            self._running -= 1
            if not self._running:
                self._idle.notify_all()

    def _give_up(self) -> None:
        """Closes an environment that LMDB refuses, when no transaction runs in it."""
        with self._idle:
            env = self._env
            self._idle.wait_for(lambda: not self._running)
            if env is not None and self._env is env:
                self._env = None
                env.close()

    def clear_dead_readers(self) -> int:
        """Frees the slots of dead processes in the table of readers. Returns their number."""
        return self.ask(lambda env: int(env.reader_check()))

    def ask(self, question: Callable[[Any], Answer]) -> Answer:
        """Returns the result of a function of LMDB's environment, for example its size.

        Raises:
            lmdb.Error: an error of LMDB, or of `opening`.
        """
        with self._idle:
            return question(self._opened())

    def _opened(self) -> Any:
        if self._env is None:
            self._env = self._opening()
        return self._env

    def rewrite(self, path: Path, timeout_s: float) -> tuple[int, int]:
        """Rewrites the file without its free pages. Read transactions go on while the file is
        copied; none begins while the copy replaces the file. No process may write meanwhile.

        Args:
            path: the file.
            timeout_s: time, in seconds, that transactions have to end when the copy is complete.

        Returns:
            the size of the file before and after, in bytes.

        Raises:
            TimeoutError: transactions did not end in time; the file is unchanged.
            lmdb.Error, OSError: the disk is full, or fails; the file is unchanged.
        """
        aside = path.with_name(path.name + REWRITTEN_SUFFIX)
        before = path.stat().st_size
        aside.unlink(missing_ok=True)
        with self._idle:
            env = self._opened()
            self._running += 1
        try:
            # The copy takes the mode of the process: made first, it is the owner's alone.
            with open(
                os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE_MODE), "wb"
            ) as file:
                env.copyfd(file.fileno(), compact=True)
                os.fsync(file.fileno())
        except BaseException:
            aside.unlink(missing_ok=True)
            raise
        finally:
            self.ended()
        with self._idle:
            if not self._idle.wait_for(lambda: not self._running, timeout_s):
                aside.unlink()
                raise TimeoutError
            if self._env is not None:
                self._env.close()
                self._env = None
            # The lock table knows transactions by numbers, which the copy begins anew.
            path.with_name(path.name + "-lock").unlink(missing_ok=True)
            aside.replace(path)
            sync_directory(path.parent)
            self._opened()
        return before, path.stat().st_size

    def close(self) -> None:
        with self._idle:
            if self._env is not None:
                self._env.close()


@contextmanager
def read_only(path: Path, *, buffers: bool = False, **options: Any) -> Iterator[Any]:
    """Begins a read transaction on the LMDB file of another process, for a `with`.

    Args:
        path: the file. This process may not have an environment of it open.
        buffers: whether keys and values are views into the map, valid until the transaction's end.
        options: options of `lmdb.open`.

    Raises:
        lmdb.Error, OSError: the file cannot be read.
        CutShortError: the file is shorter than LMDB believes.
    """
    # A reader makes the lock table where there is none.
    file: Any = lmdb.open(
        str(path), subdir=False, readonly=True, max_dbs=0, mode=PRIVATE_FILE_MODE, **options
    )
    try:
        check_whole(file, path)
        try:
            transaction = file.begin(buffers=buffers)
        except lmdb.ReadersFullError:
            # Killed readers have all the places, and the writer may write nothing for a while.
            file.reader_check()
            transaction = file.begin(buffers=buffers)
        with transaction:
            yield transaction
    finally:
        file.close()


class Transaction:
    """A transaction in a `with`: committed at its end, or aborted after an error."""

    __slots__ = ("_begun", "_of")

    def __init__(self, of: LastingEnvironment, begun: Any) -> None:
        self._of = of
        self._begun = begun

    def __enter__(self) -> Any:
        return self._begun

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._begun.__exit__(kind, error, trace)
        finally:
            self._of.ended()
