"""The choice of the thread of the next commit: the instance's loop at the end of its turn, or the
journal's writer thread (design.md 3).

A hand-over to the thread and back costs as much as the commit itself when the loop has nothing else
to do meanwhile. Under load, with much to write, or where the disk is slow, the loop goes on with
other work while the thread waits for the disk. The order of commits is the same on both: runs in
the thread were staged earlier, so nothing is committed on the loop while the thread has anything to
commit.
"""

from __future__ import annotations

from enum import Enum

STAGED_BYTES_MAX = 64 * 1024
"""Payload bytes that are committed on the loop at most: a larger commit takes long enough to be
worth a hand-over."""
SLOW_COMMIT_NS = 2_000_000
"""Usual commit time in nanoseconds above which the disk is too slow for commits on the loop."""
_USUAL_OF = 8
"""Number of commits over which the moving average of the commit time is taken, roughly."""


class CommitThread(Enum):
    """The thread that commits."""

    HERE = 1
    """The loop, now."""
    THREAD = 2
    """The journal's writer thread."""


class CommitThreadPolicy:
    """Decides on which thread the commit of each turn is made.

    Owner: the instance's loop; `took` may be called on the writer thread.

    Args:
        slow_commit_ns: average duration of a commit, in nanoseconds, from which all commits are
            left to the thread; 0: all always are.
    """

    __slots__ = ("_slow_commit_ns", "_staged_bytes", "usual_ns")

    def __init__(self, slow_commit_ns: int = SLOW_COMMIT_NS) -> None:
        self.usual_ns = 0
        """Moving average of the commit time, in nanoseconds."""
        self._slow_commit_ns = slow_commit_ns
        self._staged_bytes = 0

    def staged(self, payload_bytes: int) -> None:
        """Adds payload bytes that were staged in this turn."""
        self._staged_bytes += payload_bytes

    def took(self, commit_ns: int) -> None:
        """Adds the duration of a commit, on whichever thread, to the average."""
        self.usual_ns += (commit_ns - self.usual_ns) // _USUAL_OF

    def choose(self, *, thread_idle: bool, pending: bool) -> CommitThread:
        """Chooses the thread that commits what was staged in this turn.

        Args:
            thread_idle: the writer thread has nothing to commit, and nothing to drop.
            pending: whether a client or link waits for an earlier commit.
        """
        staged_bytes, self._staged_bytes = self._staged_bytes, 0
        if (
            not thread_idle
            or pending
            or staged_bytes > STAGED_BYTES_MAX
            or self.usual_ns >= self._slow_commit_ns
        ):
            return CommitThread.THREAD
        return CommitThread.HERE
