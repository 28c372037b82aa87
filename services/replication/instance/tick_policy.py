"""The interval at which an instance checks the ages of unacknowledged messages: each check
interval, and rarely while nothing can have an age.

On a laptop most fabrics are idle, and in each idle instance a check ten times a second would find
cold caches. While no destination has an unacknowledged message, every sync destination is waited
for and no loss is to be judged, one check is enough for `QUIET_LOOK_US`. The next message ends
that: ages begin at the commit of an unacknowledged message, and from then on there is a check at
each interval.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from raylay.services.replication.instance.machine import InstanceMachine

QUIET_LOOK_US = 450_000
"""Least time between two checks of a quiet instance in microseconds: about half a second, since
timers may be early. The only cost is that freed journal is reported that much later."""


class TickPolicy:
    """Decides whether a check is due (see the module docstring). Owner: the caller of the machine's
    `tick`.

    Attributes:
        is_quiet: whether nothing could have an age when `is_due` was called last.
    """

    def __init__(self, machine: InstanceMachine) -> None:
        self._machine = machine
        self._looked_us = 0
        self.is_quiet = False

    def is_due(self, now_us: int) -> bool:
        """Returns whether the machine's `tick` is to be called. To be asked once per check
        interval.

        Args:
            now_us: time by the clock that `tick` is given.
        """
        was_quiet, self.is_quiet = self.is_quiet, self._finds_quiet()
        # After the last unacknowledged message, one more check finds that none is left.
        if self.is_quiet and was_quiet and 0 <= now_us - self._looked_us < QUIET_LOOK_US:
            return False
        self._looked_us = now_us
        return True

    def _finds_quiet(self) -> bool:
        machine = self._machine
        if machine.missing.is_judging:
            return False
        for ledger in machine.destinations.values():
            if ledger.unacked or (ledger.destination.sync and not ledger.sync):
                return False
        return True
