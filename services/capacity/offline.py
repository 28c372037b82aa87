"""The frames of one offline client, on their way to its pool's buffer and back.

Each frame gets a number when it is put into the buffer. The client is online again when the buffer
reports that it is empty and names the last number that was put: with an older number, a frame is
still on its way to the buffer.
"""

from __future__ import annotations

from collections import deque


class OfflineFrames:
    """Counts the frames of one offline client.

    Invariants: each frame that is put is taken once, in order; `disk_bytes` is the size of the
    frames that were put and have not come back.
    Owner: the client's connection. Lifecycle: from the client's going offline to its coming back.
    """

    __slots__ = ("_moving", "disk_bytes", "is_asked", "last_put", "moving_bytes")

    def __init__(self) -> None:
        self._moving: deque[tuple[int, int]] = deque()
        self.last_put = 0
        """Number of the last frame that was put; 0: none was put."""
        self.moving_bytes = 0
        """Bytes of the frames that were put and are not yet known to be stored: they are still in
        memory."""
        self.disk_bytes = 0
        self.is_asked = False
        """Whether the buffer was asked for more frames and has not answered."""

    def put(self, size_bytes: int) -> int:
        """Notes that a frame goes to the buffer. Returns the frame's number."""
        self.last_put += 1
        self._moving.append((self.last_put, size_bytes))
        self.moving_bytes += size_bytes
        self.disk_bytes += size_bytes
        return self.last_put

    def stored(self, number: int) -> None:
        """Notes that the buffer has stored all frames up to this number."""
        moving = self._moving
        while moving and moving[0][0] <= number:
            self.moving_bytes -= moving.popleft()[1]

    def taken(self, size_bytes: int, empty_upto: int | None) -> bool:
        """Notes that frames came back from the buffer. Returns whether the client is online again.

        Args:
            empty_upto: number of the last frame that the buffer has received, if the buffer is
                empty; None: it has more frames.
        """
        self.is_asked = False
        self.disk_bytes -= size_bytes
        return empty_upto == self.last_put
