"""Takes in turns what would hold the event loop up, so that others are served in between.

`SpacedTurns` spaces the turns of one kind of work: queries have some, the commands of clients have
others (`CommandTurns`). One read may bring thousands of commands, and some take milliseconds each.
In one pass of the loop they have `TURN_S`, all connections together; what is left waits, and its
connections are not read meanwhile. Then connections take turns, a command each.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from raylay.services.server.runtime import InstanceRuntime

TURN_S = 0.002
"""The time for commands in one pass of the loop; a command that has begun goes on to its end."""
PASSES = 3
"""Passes of the loop between two turns: what others said is read in the first, committed or handed
to the writer thread in the second, and answered in the third. So it waits for one turn, not for
three."""
SWITCH_S = 0.0002
"""The time after which a turn lets another thread run: the journal writer needs the interpreter
some times for each commit, and would get it every 5 ms (`sys.setswitchinterval`) from a busy
loop."""


class SpacedTurns:
    """Calls the same work again and again, with `PASSES` of the loop between two calls.

    Owner: the instance's event loop.

    Args:
        turn: performs a turn; whether another one is to come.
    """

    def __init__(self, runtime: InstanceRuntime, turn: Callable[[], bool]) -> None:
        self._runtime = runtime
        self._turn = turn
        self.is_scheduled = False
        """Whether a turn is to come, or goes on."""
        self._passes_left = 0

    def schedule(self) -> None:
        """Has a turn come. Told twice is told once."""
        if not self.is_scheduled:
            self.is_scheduled = True
            self._passes_left = PASSES
            self._runtime.loop.call_soon(self._pass)

    def _pass(self) -> None:
        self._passes_left -= 1
        if self._passes_left:
            self._runtime.loop.call_soon(self._pass)
            return
        is_more = True
        switch_s = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_S)
        try:
            is_more = self._turn()
        finally:
            # After a fault, too: what waits behind it is somebody else's.
            sys.setswitchinterval(switch_s)
            self.is_scheduled = False
            if is_more:
                self.schedule()


class WaitingConnection(Protocol):
    """A connection of which something waits (`ClientConnection`)."""

    def take_one(self) -> bool:
        """Takes the next command. Whether more of them may be taken now."""


class CommandTurns:
    """See the file's docstring. Owner: the instance's event loop."""

    def __init__(self, runtime: InstanceRuntime) -> None:
        self._runtime = runtime
        self._ready: deque[WaitingConnection] = deque()
        self._ends_s = 0.0
        """Time at which the turn of this pass of the loop is over; 0: it has not begun."""
        self.turns = SpacedTurns(runtime, self._take)

    def is_over(self) -> bool:
        """Returns whether this pass of the loop has no time left for commands. Begins its turn."""
        now_s = time.perf_counter()
        if not self._ends_s:
            self._ends_s = now_s + TURN_S
            self._runtime.loop.call_soon(self._end)
        return now_s >= self._ends_s

    def _end(self) -> None:
        self._ends_s = 0.0

    def add(self, connection: WaitingConnection) -> None:
        """Commands of it wait: its turn comes behind that of all others."""
        self._ready.append(connection)
        self.turns.schedule()

    def _take(self) -> bool:
        ready = self._ready
        self.is_over()  # What is taken first counts, too.
        while ready:
            connection = ready.popleft()
            if connection.take_one():
                ready.append(connection)
            if self.is_over():
                # One was taken, whatever what was just read has left of the time.
                break
        return bool(ready)
