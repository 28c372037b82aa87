"""The settings of an instance's wall clock, so that ages do not depend on it.

Receive times in the journal follow the wall clock, because people read them. A queue measures how
old its messages are, so it turns receive times back into times of the steady clock: the wall clock
as it was when the instance first started, plus the time that has passed since. The instance says
from which transaction on its receive times are ahead of that clock, or behind it, and by how much.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

STEP_US = 100_000
"""The smallest change of the offset, in microseconds, that counts as a step. Reading two clocks
takes time, and a disciplined clock drifts."""
STEPS_MAX = 1_000
"""The number of steps that are remembered. The oldest one left stands for all that were dropped."""


class ClockSteps:
    """The steps of an instance's clock, in the order of their transactions.

    Args:
        steps: the known steps, each as (after_txid, offset in microseconds).
    """

    __slots__ = ("_after", "_latest_us", "_offsets")

    def __init__(self, steps: Iterable[tuple[int, int]] = ()) -> None:
        self._after = [0]
        self._offsets = [0]
        self._latest_us = 0
        for step in steps:
            self.add(*step)

    def note(self, after_txid: int, offset_us: int) -> bool:
        """Takes the present offset of the wall clock from the steady clock. Returns whether the
        offset is a step.

        Args:
            after_txid: the last transaction whose receive time has the previous offset.
        """
        if abs(offset_us - self._offsets[-1]) < STEP_US:
            return False
        self.add(after_txid, offset_us)
        return True

    def add(self, after_txid: int, offset_us: int) -> None:
        self._after.append(after_txid)
        self._offsets.append(offset_us)
        if len(self._after) > STEPS_MAX:
            del self._after[1], self._offsets[1]

    def failed(self, committed_txid: int) -> None:
        """Notes that nothing staged behind this transaction was committed. The next transactions
        take those ids, with the latest offset."""
        self._after = [min(each, committed_txid) for each in self._after]

    def all(self) -> list[tuple[int, int]]:
        """All steps, to be given to `add` in another process."""
        return list(zip(self._after[1:], self._offsets[1:], strict=True))

    @property
    def behind_us(self) -> int:
        """Returns how far behind the wall clock the steady clock of the next life begins, in
        microseconds. Where the wall clock was set forward, less time has passed than it shows, and
        a start must not make messages older. Where the wall clock was set back, the steady clock
        goes back at the start: a message that seems too young does no harm."""
        return max(self._offsets[-1], 0)

    def steady_us(self, txid: int, received_us: int, now_us: int) -> int:
        """Returns the time of the steady clock at which a message was received. The result is not
        later than `now_us`, and not earlier than the previous result. To be called in the journal's
        order.

        Args:
            now_us: the present time of the steady clock.
        """
        at = bisect_left(self._after, txid, 1) - 1
        found_us = min(received_us - self._offsets[at], now_us)
        self._latest_us = max(self._latest_us, found_us)
        return self._latest_us
