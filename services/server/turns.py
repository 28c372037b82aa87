"""Takes long work in turns, so that other work of the event loop comes in between.

`SpacedTurns` spaces the turns of one kind of work: queries have some, the commands of clients have
others (`CommandTurns`). One read may bring thousands of commands, and some take milliseconds each.
In one pass of the loop, the commands of all connections together have `TURN_S`; the remaining ones
wait, and their connections are not read meanwhile. Then connections take turns, a command each.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from raylay.services.server.runtime import InstanceRuntime

TURN_S = 0.002
"""Time for commands in one pass of the loop, in seconds; a command that has begun goes on to its
end."""
PASSES = 3
"""Passes of the loop between two turns. A message of another connection is read in the first pass,
committed or handed to the writer thread in the second, and answered in the third, so that it waits
for one turn and not for three."""
SWITCH_S = 0.0002
"""Time, in seconds, after which a turn lets another thread run: the journal writer needs the
interpreter some times for each commit, and would get it every 5 ms (`sys.setswitchinterval`) from a
busy loop."""


class SpacedTurns:
    """Calls the same work again and again, with `PASSES` passes of the loop between two calls.

    Owner: the instance's event loop.

    Args:
        turn: performs a turn; returns whether another one is to follow.
    """

    def __init__(self, runtime: InstanceRuntime, turn: Callable[[], bool]) -> None:
        self._runtime = runtime
        self._turn = turn
        self.is_scheduled = False
        """Whether a turn is scheduled, or goes on."""
        self._passes_left = 0

    def schedule(self) -> None:
        """Schedules a turn, unless one is scheduled already."""
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
            # After a fault, too: the waiting work belongs to other connections.
            sys.setswitchinterval(switch_s)
            self.is_scheduled = False
            if is_more:
                self.schedule()


class WaitingConnection(Protocol):
    """A connection with waiting work (`ClientConnection`)."""

    def take_one(self) -> bool:
        """Takes the next command. Returns whether another one may be taken now."""


class CommandTurns:
    """See the file's docstring. Owner: the instance's event loop."""

    def __init__(self, runtime: InstanceRuntime) -> None:
        self._runtime = runtime
        self._ready: deque[WaitingConnection] = deque()
        self._ends_s = 0.0
        """Time at which the turn of this pass of the loop ends; 0: it has not begun."""
        self.turns = SpacedTurns(runtime, self._take)

    def __len__(self) -> int:
        """The number of connections whose commands wait."""
        return len(self._ready)

    def is_over(self) -> bool:
        """Begins the turn of this pass of the loop, if none has begun. Returns whether its time is
        over."""
        now_s = time.perf_counter()
        if not self._ends_s:
            self._ends_s = now_s + TURN_S
            self._runtime.loop.call_soon(self._end)
        return now_s >= self._ends_s

    def _end(self) -> None:
        self._ends_s = 0.0

    def add(self, connection: WaitingConnection) -> None:
        """Adds a connection with waiting commands behind all others."""
        self._ready.append(connection)
        self.turns.schedule()

    def _take(self) -> bool:
        ready = self._ready
        self.is_over()  # The first command's time counts, too.
        while ready:
            connection = ready.popleft()
            if connection.take_one():
                ready.append(connection)
            if self.is_over():
                # At least one is taken, even if commands that were just read have used up the time.
                break
        return bool(ready)
