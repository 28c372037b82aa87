"""A disk that hangs: an event reports it after a second, and clients are sent elsewhere after a
while.

A write that never returns may block the event loop itself, so a thread of its own watches. It
reports on the loop while the loop turns. Otherwise it writes to the log at once and shuts down the
clients' connections, so that they fail over to another instance of their list.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from raylay.services.server.runtime import InstanceRuntime

LOOK_S = 1.0
"""Time between two looks, in seconds: each wakes the process."""
TELL_S = 1.0
LOOP_WAIT_S = 0.5
"""Seconds without any scheduled call being run, after which the event loop counts as blocked."""


class DiskClock:
    """The time for which the disk has been writing a commit.

    Owner: the instance. Threads: `begins` and `ends` are called on the thread that commits, one at
    a time; values are read on any thread.

    Attributes:
        since_s: time since when the disk has been writing a commit, by the monotonic clock; 0: it
            writes none.
    """

    __slots__ = ("since_s",)

    def __init__(self) -> None:
        self.since_s = 0.0

    def begins(self) -> None:
        """Notes that the disk begins to write, unless it is writing already."""
        if not self.since_s:
            self.since_s = time.monotonic()

    def ends(self, *, writes_more: bool = False) -> None:
        """Notes that a commit is on the disk; `writes_more`: the next one follows at once."""
        self.since_s = time.monotonic() if writes_more else 0.0

    @property
    def waits_s(self) -> float:
        """Time for which the disk has not answered until now, in seconds."""
        since_s = self.since_s
        return time.monotonic() - since_s if since_s else 0.0


class DiskWatch:
    """See the file's docstring.

    Owner: the instance. Threads: a thread of its own, from `start` to `stop`.

    Args:
        clock: the clock that measures how long the disk writes.
        timeout_s: time for which a commit may wait before clients are sent elsewhere; 0: for ever.
        send_away: ends the connections of all clients, with this text. Called on the loop.
        descriptors: returns the sockets of the clients' connections, for use while the loop is
            blocked.
    """

    def __init__(
        self,
        runtime: InstanceRuntime,
        clock: DiskClock,
        timeout_s: float,
        send_away: Callable[[str], None],
        descriptors: Callable[[], Iterable[int]],
    ) -> None:
        self._runtime = runtime
        self._timeout_s = timeout_s
        self._send_away = send_away
        self._descriptors = descriptors
        self._clock = clock
        self._told_s = 0.0
        """Beginning of the wait that was reported; 0: none."""
        self._is_away = False
        """Whether clients were sent elsewhere in this wait."""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="disk watch", daemon=True)

    def start(self) -> None:
        """Starts the thread that watches."""
        self._thread.start()

    def stop(self) -> None:
        self._over.set()

    def _run(self) -> None:
        while not self._over.wait(LOOK_S):
            self.look(time.monotonic())

    def look(self, now_s: float) -> None:
        """Checks the disk once, on the thread of the watch."""
        since_s = self._clock.since_s
        if self._told_s and since_s != self._told_s:
            waited_s = round(now_s - self._told_s, 1)
            self._told_s, self._is_away = 0.0, False
            self._on_loop(lambda: self._runtime.report("disk_answers", waited_s=waited_s))
        if not since_s or now_s - since_s < TELL_S:
            return
        waits_s = round(now_s - since_s, 1)
        if not self._told_s:
            self._told_s = since_s
            self._tell("disk_hangs", waits_s=waits_s, directory=str(self._runtime.directory))
        if self._timeout_s and now_s - since_s >= self._timeout_s and not self._is_away:
            self._is_away = True
            text = (
                f"the disk of {self._runtime.config.name} has not answered for {waits_s:g} s: go "
                "to another instance"
            )
            self._tell("clients_sent_away", text=text)
            if not self._on_loop(lambda: self._send_away(text)):
                for descriptor in self._descriptors():
                    _shut_down(descriptor)

    def _tell(self, event: str, **details: object) -> None:
        log = self._runtime.events_log
        taken = threading.Event()
        is_logged = [False]

        def tell() -> None:
            taken.set()
            if is_logged[0]:
                log.keep(event, details)
            else:
                self._runtime.report(event, **details)

        if not self._on_loop(tell, taken):
            is_logged[0] = True
            log.write(event, details)

    def _on_loop(self, work: Callable[[], None], taken: threading.Event | None = None) -> bool:
        """Has the loop do some work. Returns whether the loop does it within `LOOP_WAIT_S`."""
        begun = taken or threading.Event()

        def run() -> None:
            begun.set()
            work()

        with suppress(RuntimeError):  # the loop is closed
            self._runtime.loop.call_soon_threadsafe(run)
            return begun.wait(LOOP_WAIT_S)
        return False


def _shut_down(descriptor: int) -> None:
    """Shuts down a socket that the loop goes on owning: the loop finds the end when it turns
    again."""
    with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as duplicate:
        duplicate.shutdown(socket.SHUT_RDWR)
