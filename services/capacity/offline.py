"""The frames of one client that is offline, on their way to its pool's buffer and back.

They are numbered as they are put. The client is online again when the buffer says that it has none
of them left, and names the last one that was put: otherwise there is one that it has not seen yet.
"""

from __future__ import annotations

from collections import deque


class OfflineFrames:
    """See the file's docstring.

    Invariants: what is put is taken once, in the order in which it was put; `disk_bytes` is what
    was put and has not come back.
    Owner: the client's connection. Lifecycle: from its going offline to its coming back.
    """

    __slots__ = ("_moving", "disk_bytes", "is_asked", "last_put", "moving_bytes")

    def __init__(self) -> None:
        self._moving: deque[tuple[int, int]] = deque()
        self.last_put = 0
        """Number of the last frame that was put; 0: there was none."""
        self.moving_bytes = 0
        """Put, and not stored as far as is known: they lie in memory."""
        self.disk_bytes = 0
        self.is_asked = False
        """Whether the buffer was asked for more, and has not answered."""

    def put(self, size_bytes: int) -> int:
        """A frame goes to the buffer. Its number."""
        self.last_put += 1
        self._moving.append((self.last_put, size_bytes))
        self.moving_bytes += size_bytes
        self.disk_bytes += size_bytes
        return self.last_put

    def stored(self, number: int) -> None:
        """The buffer has stored all up to this number."""
        moving = self._moving
        while moving and moving[0][0] <= number:
            self.moving_bytes -= moving.popleft()[1]

    def taken(self, size_bytes: int, empty_upto: int | None) -> bool:
        """So much came back. Whether the client is online again.

        Args:
            empty_upto: the number of the last frame that the buffer has seen, where it has none
                left; None: it has more.
        """
        self.is_asked = False
        self.disk_bytes -= size_bytes
        return empty_upto == self.last_put
