"""The estimate whether messages of one path also reach the destination without this link, and of
the time for which the link waits for that (outbound.py says why)."""

from __future__ import annotations

PATIENCE_US = 300_000
"""Microseconds for which a message waits for the other path, after the destination last showed a
message of that path. A jitter adds up to a half, so that two links that wait for each other do not
give up at the same time. The time is longer, up to three times the usual wait, where messages
usually wait longer. A later message that is shown does not renew the wait where the message before
this one waited in vain."""
DEFERRED_US_MAX = 3_000_000
"""Limit on the wait of one message in microseconds, whatever the destination shows meanwhile."""
MISSES_MAX = 6
SHOWN_NEEDED = 3
"""Number of acks that must show messages of a path before other messages of the path wait for
it."""
SHOWN_NEEDED_MAX = 4_096


class AlternatePath:
    """Estimates whether messages of one path reach the destination without this link, and how
    soon."""

    __slots__ = ("misses", "needed", "shown", "usual_us")

    def __init__(self) -> None:
        self.shown = 0
        self.needed = SHOWN_NEEDED
        self.misses = 0
        """Number of messages in a row that waited in vain."""
        self.usual_us = 0
        """Usual wait in microseconds: the longest recent wait until a message was shown, slowly
        decaying."""

    @property
    def is_believed(self) -> bool:
        """Returns whether the destination showed enough messages of the path for others to wait."""
        return self.shown >= self.needed

    @property
    def patience_us(self) -> int:
        """Returns how long a message waits once no further message of its path is shown. Each wait
        in vain halves it, so that a path that was only slow is not given up at once, and a dead
        path is given up soon."""
        return min(max(PATIENCE_US, 3 * self.usual_us), DEFERRED_US_MAX) >> self.misses

    def came(self, waited_us: int) -> None:
        """Counts a message that waited and was shown.

        Args:
            waited_us: how long the message waited.
        """
        self.misses = 0
        self.usual_us = max(waited_us, self.usual_us - self.usual_us // 8)

    def missed(self) -> None:
        """Counts a message that waited in vain and is sent."""
        self.misses += 1
        if self.misses > MISSES_MAX:
            self.shown = self.misses = 0
            self.needed = min(4 * self.needed, SHOWN_NEEDED_MAX)
