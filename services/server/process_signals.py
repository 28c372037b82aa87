"""Signals to the process of an instance, for its actions.

Python runs the handler of a signal on the main thread. In an actor that thread belongs to Ray, and
runs no Python between two calls; so only the descriptor counts that Python writes a signal's number
to at once, on whatever thread the signal arrives. Handlers can only be installed on the main
thread, which runs the actor's constructor.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from types import FrameType

from raylay.services.actions.model import ActionDefinition
from raylay.services.config.instance import InstanceConfig

READ_BYTES = 256


def signals_of(actions: Iterable[ActionDefinition]) -> tuple[signal.Signals, ...]:
    """Returns the signals that begin actions."""
    names = {
        module.option("Signal").strip()
        for action in actions
        for module in action.on
        if module.module == "signal"
    }
    return tuple(each for each in signal.Signals if each.name in names)


class ProcessSignals:
    """Catches the signals that begin actions, and passes them to the loop of the instance.

    Owner: the thread of the instance. Lifecycle: `install` on the main thread, `listen` on the
    loop of each life of the instance, `close` on the main thread.
    """

    def __init__(self) -> None:
        self._before: dict[int, object] = {}
        self._pair: tuple[socket.socket, socket.socket] | None = None

    @property
    def numbers(self) -> frozenset[int]:
        """Returns the signals that are caught."""
        return frozenset(self._before)

    def install(self, signals: Iterable[signal.Signals]) -> None:
        """Catches these signals from now on. On another thread than the main one, and where
        another part of the process has the descriptor of signals, nothing is caught."""
        signals = tuple(signals)
        if not signals or threading.current_thread() is not threading.main_thread():
            return
        reads, writes = socket.socketpair()
        for each in (reads, writes):
            each.setblocking(False)
        before = signal.set_wakeup_fd(writes.fileno(), warn_on_full_buffer=False)
        if before >= 0:
            signal.set_wakeup_fd(before)
            reads.close()
            writes.close()
            return
        self._pair = reads, writes
        for number in signals:
            with suppress(OSError, ValueError):  # a signal that no process may catch
                self._before[number] = signal.signal(number, _caught)
                # Calls of Ray's own threads into the system go on.
                signal.siginterrupt(number, False)

    def listen(self, loop: asyncio.AbstractEventLoop, take: Callable[[str], None]) -> None:
        """Has a function called on the loop with the name of each signal that arrives."""
        if self._pair is not None:
            reads, numbers = self._pair[0], self.numbers

            def read() -> None:
                with suppress(BlockingIOError):
                    # Python writes the numbers of all signals that it handles.
                    for number in reads.recv(READ_BYTES):
                        if number in numbers:
                            take(signal.Signals(number).name)

            loop.add_reader(reads, read)

    def ignore(self, loop: asyncio.AbstractEventLoop) -> None:
        """Ends `listen`."""
        if self._pair is not None:
            loop.remove_reader(self._pair[0])

    def close(self) -> None:
        """Restores the handlers that there were."""
        if self._pair is None:
            return
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        signal.set_wakeup_fd(-1)
        for each in self._pair:
            each.close()
        self._pair = None
        self._before = {}


def _caught(_: int, __: FrameType | None) -> None:
    """Does nothing: the descriptor tells of the signal."""


def configured_signals(directory: Path) -> tuple[signal.Signals, ...]:
    """Returns the signals that begin actions of the instance in a data directory; none where its
    configuration cannot be read, which its start reports."""
    try:
        return signals_of(InstanceConfig.load(directory).actions)
    except Exception:
        return ()
