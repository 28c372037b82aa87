"""The choice of the thread of the next commit: the instance's loop at the end of its turn, or the
journal's writer thread (design.md 3).

A hand-over to the thread and back costs as much as the commit itself where nothing else is to be
done meanwhile. Under load, with much to write, or where the disk is slow, the loop goes on with
other work while the thread waits for the disk. In the order of commits both are one: what the
thread has was staged before, so nothing is committed on the loop while the thread has anything.
"""

from __future__ import annotations

from enum import Enum

STAGED_BYTES_MAX = 64 * 1024
"""Payload that is committed on the loop: a commit of more takes long enough for a hand-over."""
SLOW_COMMIT_NS = 2_000_000
"""A disk that usually takes longer must not hold up the loop."""
_USUAL_OF = 8
"""Commits of which about the usual time is the mean."""


class CommitThread(Enum):
    """The thread that commits."""

    HERE = 1
    """The loop, now."""
    THREAD = 2
    """The journal's writer thread."""


class CommitThreadPolicy:
    """Decides it, turn by turn.

    Owner: the instance's loop; `took` may be called on the writer thread.

    Args:
        slow_commit_ns: from this usual time of a commit on all are left to the thread; 0: always.
    """

    __slots__ = ("_slow_commit_ns", "_staged_bytes", "usual_ns")

    def __init__(self, slow_commit_ns: int = SLOW_COMMIT_NS) -> None:
        self.usual_ns = 0
        """Usual time of a commit lately."""
        self._slow_commit_ns = slow_commit_ns
        self._staged_bytes = 0

    def staged(self, payload_bytes: int) -> None:
        """Notes that as much was staged in this turn."""
        self._staged_bytes += payload_bytes

    def took(self, commit_ns: int) -> None:
        """A commit took so long, wherever it was made."""
        self.usual_ns += (commit_ns - self.usual_ns) // _USUAL_OF

    def choose(self, *, thread_idle: bool, pending: bool) -> CommitThread:
        """Chooses the thread that commits what was staged in this turn.

        Args:
            thread_idle: the writer thread has nothing to commit, and nothing to drop.
            pending: somebody waits for what was committed before.
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
