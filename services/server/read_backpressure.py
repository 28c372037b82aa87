"""A connection that is not read for a while, for one reason or several."""

from __future__ import annotations

from raylay.services.net.framed import FramedConnection


class ReadBackpressure(FramedConnection):
    """See the file's docstring.

    Invariant: it is read while there is no reason not to.

    Attributes:
        reading: whether it is; who is not read is not silent.
    """

    reading = True
    _unread_for: frozenset[str] = frozenset()
    """Reasons why it is not read."""

    def pause_reading(self, why: str) -> None:
        """Reads no more for now, until it is resumed for each reason."""
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
            # What was not read meanwhile is no silence of the other side's.
            self.received_at_s = self.loop.time()
            self.transport.resume_reading()
