"""Room for the long batches of links that are decoded and not taken yet.

A batch of some kilobytes may decompress to megabytes, and is taken in many turns: a sender of one
batch over each of a hundred connections makes an instance hold all of them at once. So all long
batches in hand share a limit. A batch that finds no room waits as it came, in the order of arrival.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

ROOM_BYTES = 64 * 1024 * 1024
"""Bytes of the decompressed batches in hand: at least two of the longest. Decoded they take up to
three times as much."""


class BatchRoom:
    """See the file's docstring.

    Invariant: the batches in hand have at most `bytes_max` bytes, or there is one.
    Owner: the event loop. Lifecycle: one life of the instance.

    Args:
        bytes_max: most bytes of all batches that are in memory.
    """

    __slots__ = ("_bytes_max", "_inside", "_waiting", "bytes")

    def __init__(self, bytes_max: int = ROOM_BYTES) -> None:
        self._bytes_max = bytes_max
        self._inside: dict[Hashable, int] = {}
        self._waiting: dict[Hashable, Callable[[], None] | None] = {}
        """Connections that wait, in order, each with the function that makes it ask again; None:
        the function was called."""
        self.bytes = 0

    def __contains__(self, of: Hashable) -> bool:
        return of in self._inside

    def __len__(self) -> int:
        return len(self._inside) + len(self._waiting)

    def enter(self, of: Hashable, size_bytes: int, ask_again: Callable[[], None]) -> bool:
        """Takes a connection's batch in. Returns whether there was room; else `ask_again` is called
        once, when this is to be asked again.

        Args:
            of: the connection, which has one batch in hand at most.
        """
        is_first = next(iter(self._waiting), of) == of
        fits = not self._inside or self.bytes + size_bytes <= self._bytes_max
        if not is_first or not fits:
            self._waiting[of] = ask_again
            return False
        self._waiting.pop(of, None)
        self._inside[of] = size_bytes
        self.bytes += size_bytes
        self._tell_next()
        return True

    def leave(self, of: Hashable) -> None:
        """A connection's batch is taken, or the connection has ended."""
        self._waiting.pop(of, None)
        self.bytes -= self._inside.pop(of, 0)
        self._tell_next()

    def _tell_next(self) -> None:
        of = next(iter(self._waiting), None)
        if of is not None and self.bytes < self._bytes_max:
            ask_again, self._waiting[of] = self._waiting[of], None
            if ask_again is not None:
                ask_again()
