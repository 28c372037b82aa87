"""The standard output of a command that prints messages while its client goes on.

A pager, a pipe into a slow program and a halted terminal take no more output for as long as they
like. The client goes on meanwhile: it answers heartbeats, and stops reading when enough messages
wait for it, so that the instance sees a client that reads slowly and not one that is dead.
"""

from __future__ import annotations

import asyncio
import os
import queue
import select
import stat
import sys
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING

from raylay.services.commands.shared.printing import message_line

if TYPE_CHECKING:
    from raylay.services.client import Message

GRACE_S = 1.0
"""Time for which an interrupted command waits for the reader to take the line that is being
written."""
_Job = tuple[bytes, "asyncio.Future[None]"]


class MessageOutput:
    """Writes messages to the standard output. What its reader does not take at once is written by a
    thread, and `write` returns when it has been written.

    Owner: an event loop, of which one task writes at a time. The thread ends with the process.

    Args:
        as_json: whether each message is printed as an object, see `message_line`.
        focused: whether the topic is a SOW topic.
    """

    def __init__(self, as_json: bool, focused: bool = False) -> None:
        self._as_json = as_json
        self._focused = focused
        self._is_terminal = sys.stdout.isatty()
        self._descriptor = _descriptor()
        self._jobs: queue.SimpleQueue[_Job] | None = None

    async def write(self, messages: Iterable[Message]) -> None:
        """Writes a line for each message.

        Raises:
            OSError: the output does not take them; BrokenPipeError: its reader is gone.
        """
        text = b"".join(
            message_line(each, self._as_json, self._focused, is_terminal=self._is_terminal)
            for each in messages
        )
        if self._descriptor is None:
            sys.stdout.buffer.write(text)
            sys.stdout.flush()
            return
        sys.stdout.flush()
        if _takes_at_once(self._descriptor, len(text)):
            _write_all(self._descriptor, text)
            return
        if self._jobs is None:
            self._jobs = queue.SimpleQueue()
            arguments = self._jobs, self._descriptor, asyncio.get_running_loop()
            # No thread of the executor: the process would wait for it at its end.
            threading.Thread(
                target=_write_jobs, args=arguments, name="raylay-output", daemon=True
            ).start()
        written = asyncio.get_running_loop().create_future()
        self._jobs.put((text, written))
        try:
            await asyncio.shield(written)
        except asyncio.CancelledError:
            # So that no line is cut where the reader is there.
            await asyncio.wait({written}, timeout=GRACE_S)
            raise


def _descriptor() -> int | None:
    """Returns the descriptor of the standard output; None: it has none, as in a test."""
    try:
        return sys.stdout.fileno()
    except (OSError, ValueError):
        return None


def _takes_at_once(descriptor: int, size_bytes: int) -> bool:
    """Returns whether so many bytes can be written without waiting for a reader."""
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return True
    # A pipe that can be written has room for so many. Nobody says how much a terminal has.
    is_small = stat.S_ISFIFO(mode) and size_bytes <= select.PIPE_BUF
    return is_small and bool(select.select([], [descriptor], [], 0)[1])


def _write_all(descriptor: int, text: bytes) -> None:
    rest = memoryview(text)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:
            # Another program has made it non-blocking.
            select.select([], [descriptor], [])


def _write_jobs(
    jobs: queue.SimpleQueue[_Job], descriptor: int, loop: asyncio.AbstractEventLoop
) -> None:
    """Writes the texts one after the other, on a thread of its own."""
    while True:
        text, written = jobs.get()
        error: OSError | None = None
        try:
            _write_all(descriptor, text)
        except OSError as raised:
            error = raised
        try:
            loop.call_soon_threadsafe(_tell, written, error)
        except RuntimeError:
            return  # The loop is closed: the command ended meanwhile.


def _tell(written: asyncio.Future[None], error: OSError | None) -> None:
    if written.done():
        return
    if error is None:
        written.set_result(None)
    else:
        written.set_exception(error)
