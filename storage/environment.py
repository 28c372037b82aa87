"""An LMDB environment that survives what makes LMDB give it up."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

import lmdb

Answer = TypeVar("Answer")


class LastingEnvironment:
    """An LMDB environment that is opened anew where LMDB gave it up.

    When the write of a meta page fails, as on a disk that is full or breaks for a moment, LMDB
    refuses an environment for good (MDB_PANIC), to readers as well; the file is as whole as before.
    The next transaction opens it anew.

    Invariants: open once at a time; not opened anew beneath a transaction, whose values lie in its
        map.
    Owner: one process; any of its threads, none of which begins a transaction within another.

    Args:
        opening: opens it; called again each time it was given up.

    Raises:
        lmdb.Error, StorageError, OSError: what `opening` raises.
    """

    __slots__ = ("_env", "_idle", "_opening", "_running")

    def __init__(self, opening: Callable[[], Any]) -> None:
        self._opening = opening
        self._env: Any = opening()
        self._running = 0
        self._idle = threading.Condition()

    def begin(self, *, write: bool = False, buffers: bool = False) -> Transaction:
        """A transaction, for a `with`.

        Args:
            buffers: values are views into the map, valid until its end.

        Raises:
            lmdb.Error: LMDB's own; what `opening` raises: it had to be opened anew, which failed.
        """
        try:
            return self._begun(write, buffers)
        except lmdb.PanicError:
            self._give_up()
        return self._begun(write, buffers)

    def _begun(self, write: bool, buffers: bool) -> Transaction:
        with self._idle:
            env = self._opened()
            self._running += 1
        # Not under the lock: it may wait for another's write transaction to end.
        try:
            return Transaction(self, env.begin(write=write, buffers=buffers))
        except BaseException:
            self.ended()
            raise

    def ended(self) -> None:
        """A transaction came to its end."""
        with self._idle:
            self._running -= 1
            if not self._running:
                self._idle.notify_all()

    def _give_up(self) -> None:
        """Closes what LMDB gave up, once nobody is in it."""
        with self._idle:
            env = self._env
            self._idle.wait_for(lambda: not self._running)
            if env is not None and self._env is env:
                self._env = None
                env.close()

    def ask(self, question: Callable[[Any], Answer]) -> Answer:
        """The answer of LMDB's environment to a question, such as how large it is.

        Raises:
            lmdb.Error: LMDB's own; what `opening` raises.
        """
        with self._idle:
            return question(self._opened())

    def _opened(self) -> Any:
        if self._env is None:
            self._env = self._opening()
        return self._env

    def close(self) -> None:
        """Closes it."""
        with self._idle:
            if self._env is not None:
                self._env.close()


class Transaction:
    """A transaction in a `with`: committed at its end, or aborted where that is an error."""

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
