"""Liveness of a child process: one with open sockets may hang all the same, because it was stopped
or waits for a disk.

It is asked when nothing came from it for a while, and given up when nothing comes behind that. Only
time in which somebody looked counts: whoever stood still himself has asked nobody, and heard
nobody.
"""

from __future__ import annotations

from typing import Literal

ASK_S = 5.0
HUNG_S = 20.0
"""More than any turn of a child's loop takes."""
LOOK_S_MAX = 2.0
"""Most time between two looks that counts: behind a longer pause what came lies unread."""


class ChildLiveness:
    """The beats between an instance and a child, and how long the child has been silent.

    Owner: who looks now and then. Lifecycle: that of the child's connection.
    """

    __slots__ = ("_heard_s", "_is_asked", "_looked_s", "silent_s")

    def __init__(self) -> None:
        self._heard_s = self._looked_s = 0.0
        self._is_asked = False
        self.silent_s = 0.0
        """Time for which nothing has come, as far as that counts."""

    def look(self, now_s: float, heard_s: float) -> Literal["", "ask", "hung"]:
        """Returns what is to be done now.

        Args:
            heard_s: when something came last, by the same clock.
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
