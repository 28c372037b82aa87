"""A connection that is not read for a while, for one or several reasons."""

from __future__ import annotations

from raylay.services.net.framed import FramedConnection


class ReadBackpressure(FramedConnection):
    """See the file's docstring.

    Invariant: the connection is read while there is no reason not to.

    Attributes:
        reading: whether the connection is read; while it is not, its silence does not count.
    """

    reading = True
    _unread_for: frozenset[str] = frozenset()
    """Reasons why the connection is not read."""

    def pause_reading(self, why: str) -> None:
        """Stops reading for this reason, until every reason has been taken back."""
        self._unread_for |= {why}
        if self.reading and self.transport is not None and self.is_open:
            self.reading = False
            self.transport.pause_reading()

    def resume_reading(self, why: str) -> None:
        """Takes back one reason not to read."""
        self._unread_for -= {why}
        if self._unread_for or self.reading:
            return
        if self.transport is not None and self.is_open:
            self.reading = True
            # While the connection was not read, the other side was not silent.
            self.received_at_s = self.loop.time()
            self.transport.resume_reading()
