"""Handling of Ctrl-C and SIGTERM while a command waits, or does something that must not be left
half done."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from raylay.services.messages.plain_text import plain

INTERRUPTED = 130
"""Exit code after an interrupt, as in shells."""
GRACE_S = 10.0
"""Most time that the cleanup after the first interrupt may take."""
SIGNALS = (signal.SIGINT, signal.SIGTERM)
ENDING = b"raylay: ended at once\n"
Result = TypeVar("Result")


def run_async(work: Coroutine[Any, Any, Result]) -> Result:
    """Runs a coroutine like `asyncio.run`, and notices Ctrl-C at once, whenever it comes. Asyncio
    alone notices it at once only while it waits. A signal that comes just before, or to another
    thread, is noticed when something else happens, which takes seconds on an idle connection.
    SIGTERM cancels `work` as Ctrl-C does.

    Raises:
        KeyboardInterrupt: Ctrl-C or SIGTERM came and ended `work`.
    """
    if threading.current_thread() is not threading.main_thread():
        return asyncio.run(work)  # It is not told of signals.
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        heard, told = os.pipe()
        for end in (heard, told):
            os.set_blocking(end, False)
        loop.add_reader(heard, os.read, heard, 1024)
        # The kernel's handler writes here, wherever the program is.
        before = signal.set_wakeup_fd(told, warn_on_full_buffer=False)
        try:
            with _terminable(loop) as cancellable:
                return runner.run(cancellable(work))
        finally:
            signal.set_wakeup_fd(before)
            loop.remove_reader(heard)
            os.close(heard)
            os.close(told)


@contextmanager
def _terminable(
    loop: asyncio.AbstractEventLoop,
) -> Iterator[Callable[[Coroutine[Any, Any, Result]], Coroutine[Any, Any, Result]]]:
    """Makes SIGTERM cancel a coroutine, where it would raise KeyboardInterrupt: asyncio does that
    for Ctrl-C alone. Yields a function that wraps the coroutine."""
    running: list[asyncio.Task[Any]] = []
    came: list[int] = []

    async def cancellable(work: Coroutine[Any, Any, Result]) -> Result:
        task = asyncio.current_task()
        assert task is not None
        running.append(task)
        return await work

    def end(number: int, _: object) -> None:
        came.append(number)
        if len(came) > 1 or not running:
            raise KeyboardInterrupt
        loop.call_soon_threadsafe(running[0].cancel)

    before = signal.getsignal(signal.SIGTERM)
    if before is not signal.default_int_handler:
        yield cancellable
        return
    signal.signal(signal.SIGTERM, end)
    try:
        yield cancellable
    except asyncio.CancelledError:
        if came:
            raise KeyboardInterrupt from None
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def interruptible(say: str, grace_s: float = GRACE_S) -> Iterator[None]:
    """Makes a block interruptible: the first Ctrl-C or SIGTERM prints a line on stderr at once and
    raises KeyboardInterrupt, so that the block can clean up. A second one, or `grace_s` seconds,
    end the process at once: a call into a library may not return for a minute, and what Ray started
    here ends with this process.

    Args:
        say: prints the line.

    Raises:
        KeyboardInterrupt: one of the signals came.
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
    """Watches for signals. Ends when the other end of the pipe is closed."""
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
    """Returns whether one of SIGNALS came. False: the pipe was closed. None: nothing came in
    time."""
    while True:
        if not select.select([heard], [], [], timeout_s)[0]:
            return None
        number = os.read(heard, 1)
        if not number:
            return False
        if number[0] in SIGNALS:
            return True
