"""The interval at which an instance looks at the ages of what is unacknowledged: each check
interval, and rarely where nothing can have an age.

A fabric that nobody uses is most of what there is on a laptop, and in each of its instances a look
ten times a second finds cold caches. So where no destination is owed anything, each sync one is
waited for and no loss is to be judged, a look that found just that is enough for `QUIET_LOOK_US`.
What comes next ends that: ages are of what is owed, and from its commit on there is a look at each
interval.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from raylay.services.replication.instance.machine import InstanceMachine

QUIET_LOOK_US = 450_000
"""Least time from one look of a quiet instance to the next one: each half second, by timers that
may be early. Freed journal is told so much later, no more."""


class TickPolicy:
    """See the top of this file. Owner: who calls the machine's `tick`.

    Attributes:
        is_quiet: whether nothing could be of any age when `is_due` was asked last.
    """

    def __init__(self, machine: InstanceMachine) -> None:
        self._machine = machine
        self._looked_us = 0
        self.is_quiet = False

    def is_due(self, now_us: int) -> bool:
        """Returns whether the machine's `tick` is to be called; asked once a check interval.

        Args:
            now_us: of the clock that `tick` is given.
        """
        was_quiet, self.is_quiet = self.is_quiet, self._finds_quiet()
        # Behind the last of what was owed comes one look that finds it gone.
        if self.is_quiet and was_quiet and 0 <= now_us - self._looked_us < QUIET_LOOK_US:
            return False
        self._looked_us = now_us
        return True

    def _finds_quiet(self) -> bool:
        machine = self._machine
        if machine.missing.is_judging:
            return False
        for ledger in machine.destinations.values():
            if ledger.owed or (ledger.destination.sync and not ledger.sync):
                return False
        return True
