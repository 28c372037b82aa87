"""Takes the commands of clients in turns, so that a client that sends many holds nobody up.

One read may bring thousands of commands, and some take milliseconds each. In one pass of the loop
they have `TURN_S`, all connections together; what is left waits, and its connections are not read
meanwhile. Then connections take turns, a command each.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from typing import Protocol

from raylay.services.server.runtime import InstanceRuntime

TURN_S = 0.002
"""The time for commands in one pass of the loop; a command that has begun goes on to its end."""
PASSES = 3
"""Passes of the loop between two turns: what others said is read in the first, committed or handed
to the writer thread in the second, and answered in the third."""
SWITCH_S = 0.0002
"""The time after which a turn lets another thread, such as the journal writer, run."""


class WaitingConnection(Protocol):
    """A connection whose commands wait (`ClientConnection`)."""

    def take_one(self) -> bool:
        """Takes the next command. Whether more of them may be taken now."""


class CommandTurns:
    """See the file's docstring. Owner: the instance's event loop."""

    def __init__(self, here: InstanceRuntime) -> None:
        self._here = here
        self._ready: deque[WaitingConnection] = deque()
        self._ends_s = 0.0
        """When the turn of this pass of the loop is over; 0: it has not begun."""
        self._is_scheduled = False
        self._passes_left = 0

    def is_over(self) -> bool:
        """Whether this pass of the loop has no time left for commands. Begins its turn."""
        now_s = time.perf_counter()
        if not self._ends_s:
            self._ends_s = now_s + TURN_S
            self._here.loop.call_soon(self._end)
        return now_s >= self._ends_s

    def _end(self) -> None:
        self._ends_s = 0.0

    def add(self, connection: WaitingConnection) -> None:
        """Commands of it wait: its turn comes behind that of all others."""
        self._ready.append(connection)
        self._schedule()

    def _schedule(self) -> None:
        if self._ready and not self._is_scheduled:
            self._is_scheduled = True
            self._passes_left = PASSES
            self._here.loop.call_soon(self._pass)

    def _pass(self) -> None:
        self._passes_left -= 1
        if self._passes_left:
            self._here.loop.call_soon(self._pass)
            return
        switch_s = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_S)
        try:
            ready = self._ready
            while ready:
                connection = ready.popleft()
                if connection.take_one():
                    ready.append(connection)
                if self.is_over():
                    # One was taken, whatever what was just read has left of the time.
                    break
        finally:
            sys.setswitchinterval(switch_s)
            self._is_scheduled = False
            self._schedule()
