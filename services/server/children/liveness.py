"""Liveness of a child process. A child with open sockets may hang all the same, because it was
stopped or waits for a disk.

The child is asked when nothing came from it for a while, and given up when no answer follows. Only
time in which the instance looked regularly counts: an instance that stood still itself has neither
asked nor read anything.
"""

from __future__ import annotations

from typing import Literal

ASK_S = 5.0
HUNG_S = 20.0
"""Silence, in seconds, after which a child counts as hung: longer than any turn of its loop
takes."""
LOOK_S_MAX = 2.0
"""Longest time between two looks that counts as silence, in seconds: after a longer pause, what the
child sent may lie unread."""


class ChildLiveness:
    """The silence of a child process, and whether the child was asked for a sign of life.

    Owner: the supervisor, which looks now and then. Lifecycle: that of the child's connection.
    """

    __slots__ = ("_heard_s", "_is_asked", "_looked_s", "silent_s")

    def __init__(self) -> None:
        self._heard_s = self._looked_s = 0.0
        self._is_asked = False
        self.silent_s = 0.0
        """Silence of the child, in seconds, without the pauses in which the instance did not
        look."""

    def look(self, now_s: float, heard_s: float) -> Literal["", "ask", "hung"]:
        """Returns what is to be done now: nothing, ask the child, or treat it as hung.

        Args:
            heard_s: time at which the child was last heard, by the same clock.
        """
        passed_s, self._looked_s = now_s - self._looked_s, now_s
        if heard_s != self._heard_s:
            self._heard_s, self._is_asked, self.silent_s = heard_s, False, 0.0
            return ""
        self.silent_s += min(passed_s, LOOK_S_MAX)
        if not self._is_asked and self.silent_s >= ASK_S:
            self._is_asked = True
            return "ask"
        return "hung" if self.silent_s >= HUNG_S else ""
