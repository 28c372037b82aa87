"""Ctrl-C and SIGTERM while a command waits, or does what cannot be left half done silently."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from raylay.services.messages.plain_text import plain

INTERRUPTED = 130
"""The exit code, as shells have it."""
GRACE_S = 10.0
"""So long may take what is put in order after the first one."""
SIGNALS = (signal.SIGINT, signal.SIGTERM)
ENDING = b"raylay: ended at once\n"
Result = TypeVar("Result")


def run_async(work: Coroutine[Any, Any, Result]) -> Result:
    """`asyncio.run`, and a Ctrl-C is heard at once whenever it comes. Asyncio alone hears at once
    what comes while it waits; one that comes just before it waits, or to another thread, only when
    something else happens: on an idle connection, seconds later.

    Raises:
        KeyboardInterrupt: it came, and `work` ended by it.
    """
    if threading.current_thread() is not threading.main_thread():
        return asyncio.run(work)  # It is not told of Ctrl-C.
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        heard, told = os.pipe()
        for end in (heard, told):
            os.set_blocking(end, False)
        loop.add_reader(heard, os.read, heard, 1024)
        # The kernel's handler writes here, wherever the program is.
        before = signal.set_wakeup_fd(told, warn_on_full_buffer=False)
        try:
            return runner.run(work)
        finally:
            signal.set_wakeup_fd(before)
            loop.remove_reader(heard)
            os.close(heard)
            os.close(told)


@contextmanager
def interruptible(say: str, grace_s: float = GRACE_S) -> Iterator[None]:
    """Makes a block interruptible: the first Ctrl-C or SIGTERM says a line on stderr at once and
    raises KeyboardInterrupt, so that what was begun can be ended. A second one, or `grace_s`
    seconds, end the process whatever it does: a call into a library may not come back for a minute,
    and what Ray began here ends with this process.

    Args:
        say: the line.

    Raises:
        KeyboardInterrupt: one of them came, also where Ray has put a handler of its own in place.
    """
    before = {number: signal.getsignal(number) for number in SIGNALS}
    # The kernel's handler writes here, wherever the program is.
    heard, told = os.pipe()
    os.set_blocking(told, False)
    wakeup_before = signal.set_wakeup_fd(told, warn_on_full_buffer=False)
    watcher = threading.Thread(
        target=_watch, args=(heard, say, grace_s), name="raylay-interrupts", daemon=True
    )
    watcher.start()
    for number in SIGNALS:
        if before[number] is not signal.SIG_IGN:  # as behind nohup
            signal.signal(number, _interrupt)
    try:
        yield
    except SystemExit as error:
        if isinstance(error.code, int) and error.code == signal.SIGTERM:
            # Who connects to Ray gets a handler of Ray's, which raises this.
            raise KeyboardInterrupt from None
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(wakeup_before)
        os.close(told)
        watcher.join()


def _interrupt(*_: object) -> None:
    for number in SIGNALS:
        # The next one is the watcher's: what ends is not to be interrupted in the middle.
        signal.signal(number, lambda *_: None)
    raise KeyboardInterrupt


def _watch(heard: int, say: str, grace_s: float) -> None:
    """Ends when the other end of the pipe is closed."""
    try:
        if not _next(heard, None):
            return
        os.write(2, f"{plain(say)}\n".encode())
        if _next(heard, grace_s) is not False:
            os.write(2, ENDING)
            os._exit(INTERRUPTED)
    finally:
        os.close(heard)


def _next(heard: int, timeout_s: float | None) -> bool | None:
    """Returns whether one of SIGNALS came; False: the pipe was closed. None: nothing came in
    time."""
    while True:
        if not select.select([heard], [], [], timeout_s)[0]:
            return None
        number = os.read(heard, 1)
        if not number:
            return False
        if number[0] in SIGNALS:
            return True
