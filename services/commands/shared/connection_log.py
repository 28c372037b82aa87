"""Prints, on stderr, the reasons for which a command's client waits: each reason once, with the
number of repetitions."""

from __future__ import annotations

import time
from collections.abc import Callable

from raylay.services.commands.shared.printing import echo

STEADY_S = 10.0
"""Time after which a connection counts as stable; its end is printed again then."""


class ConnectionLog:
    """Handler for a client's `on_event`. A line that is repeated while no connection lasts is
    counted, and printed again with its count the 10th, 100th, … time and by `finish`.

    Args:
        now_s: returns the time of a monotonic clock in seconds.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._connected_s: float | None = None
        self._counts: dict[str, int] = {}
        self._said: dict[str, int] = {}

    def __call__(self, event: object) -> None:
        """Prints what the event means for a waiting user, if anything."""
        from raylay.services.client.events import (
            ClockDiffers,
            Connected,
            Disconnected,
            LoopBlocked,
            ServerRefused,
            WaitingForSafeInstance,
            WaitingForServer,
        )

        text = ""
        if isinstance(event, Connected):
            self._connected_s = self._now_s()
            return
        if isinstance(event, ClockDiffers):
            side = "ahead of" if event.ahead_s > 0 else "behind"
            self._count(
                f"the clock of this host is {abs(event.ahead_s):.0f} s {side} that of "
                f"{event.instance}: set it, or messages published here expire at the wrong time "
                "and may be refused",
                "",
            )
            return
        if isinstance(event, LoopBlocked):
            self._count(
                "this command stood still for longer than its heartbeat, as when it is suspended "
                "or the host is overloaded: an instance takes it for dead, and gives messages of "
                "queues to others",
                f" ({event.blocked_s:.1f} s)",
            )
            return
        if isinstance(event, ServerRefused):
            line = f"{event.address}: {event.reason}"
        elif isinstance(event, Disconnected):
            line = f"lost {event.instance} at {event.address}: {event.reason}"
            # Counted without it: it may have numbers, and is not the same each time.
            text = f": {event.text}" if event.text else ""
        elif isinstance(event, WaitingForServer):
            tried = "; ".join(f"{address}: {reason}" for address, reason in event.tried)
            line = "no server answers, trying again" + (f" ({tried})" if tried else "")
        elif isinstance(event, WaitingForSafeInstance):
            refused = "; ".join(f"{name}: {reason}" for name, reason in event.refused)
            line = f"waiting for an instance that is safe to use ({refused})"
        else:
            return
        if self._connected_s is not None and self._now_s() - self._connected_s >= STEADY_S:
            self.finish()
        self._connected_s = None
        self._count(line, text)

    def _count(self, line: str, text: str) -> None:
        count = self._counts[line] = self._counts.get(line, 0) + 1
        if count == 1:
            echo(f"raylay: {line}{text}", err=True)
        elif count == 10 * self._said[line]:
            echo(f"raylay: {line} ({count:,} times)", err=True)
        else:
            return
        self._said[line] = count

    def finish(self) -> None:
        """Prints the lines whose count has changed since they were printed."""
        for line, count in self._counts.items():
            if count != self._said[line]:
                echo(f"raylay: {line} ({count:,} times)", err=True)
        self._counts.clear()
        self._said.clear()
