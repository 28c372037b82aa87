"""The estimate whether messages of one path also reach the destination without a link, and the time
that the link waits for that (outbound.py says why)."""

from __future__ import annotations

PATIENCE_US = 300_000
"""A message waits for so long, once the destination shows nothing more of its way, and half as long
again at most: two links that wait for each other must not give up at the same time. Three times as
long as others had to wait, where that is longer. What the destination shows renews the patience
only for a message that may still come: not behind a later one of its publisher, and not where the
one before it waited in vain."""
DEFERRED_US_MAX = 3_000_000
"""Whatever it shows."""
MISSES_MAX = 6
SHOWN_NEEDED = 3
"""Acks that must show messages of a way before others of it wait."""
SHOWN_NEEDED_MAX = 4_096


class AlternatePath:
    """Estimates whether messages of one path reach the destination without this link, and how
    soon."""

    __slots__ = ("misses", "needed", "shown", "usual_us")

    def __init__(self) -> None:
        self.shown = 0
        self.needed = SHOWN_NEEDED
        self.misses = 0
        """Messages, one after the other, that waited for nothing."""
        self.usual_us = 0
        """Time that the slowest of the last ones waited until they were shown."""

    @property
    def is_believed(self) -> bool:
        """Returns whether enough of the way was shown for a message of it to wait."""
        return self.shown >= self.needed

    @property
    def patience_us(self) -> int:
        """Returns how long a message waits once nothing more of its path is shown: each in vain
        halves it, so that one that was only slow is not taken for dead, and a dead one soon is."""
        return min(max(PATIENCE_US, 3 * self.usual_us), DEFERRED_US_MAX) >> self.misses

    def came(self, waited_us: int) -> None:
        """Counts a message that waited and was shown.

        Args:
            waited_us: How long it waited.
        """
        self.misses = 0
        self.usual_us = max(waited_us, self.usual_us - self.usual_us // 8)

    def missed(self) -> None:
        """A message has waited in vain, and is sent."""
        self.misses += 1
        if self.misses > MISSES_MAX:
            self.shown = self.misses = 0
            self.needed = min(4 * self.needed, SHOWN_NEEDED_MAX)
