"""The decision that a silent connection is lost, or that its other side is only busy.

A process that parses a large message, or that waits for its disk, says nothing for a while: its
beats come from the same event loop. Its host still acknowledges what it is sent, which a host that
is gone, or cut off, does not. So a connection is lost when nothing came for its timeout and the
other side's TCP was silent as well, or when nothing came for `BUSY_TIMES` as long. A process that
ends closes its sockets, which needs no timeout at all.

Nor is a connection lost because this process did not read: what came meanwhile lies unread.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable

BUSY_TIMES = 4
"""So many timeouts may pass while the other side's host answers and its process says nothing."""

_TCP_INFO = struct.Struct("=8B24I")
_TCP_PROBES, _TCP_UNACKED, _TCP_LAST_ACK_MS = 3, 8 + 4, 8 + 12
"""Places in what Linux tells of a connection (struct tcp_info)."""


def host_answers(transport: asyncio.BaseTransport | None, within_s: float) -> bool:
    """Returns whether the other side's TCP acknowledged something within this time. To be asked
    where something is sent at least once in that time. False where nobody can tell."""
    if transport is None or transport.get_extra_info("is_impaired"):
        return False
    found = transport.get_extra_info("socket")
    if found is None or found.family not in (socket.AF_INET, socket.AF_INET6):
        return False
    try:
        data = found.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
        told = _TCP_INFO.unpack(data)
    except (AttributeError, OSError, struct.error):
        return False
    if told[_TCP_LAST_ACK_MS] <= 1000 * within_s:
        return True
    # It reads nothing, so TCP only asks now and then whether it would; more and more seldom.
    return told[_TCP_PROBES] == 1 and not told[_TCP_UNACKED]


class SilenceDetector:
    """Decides whether a connection that nothing comes over is lost.

    Owner: whoever looks, now and then. Lifecycle: one connection.
    """

    __slots__ = ("_suspected_s",)

    def __init__(self) -> None:
        self._suspected_s = -1.0
        """Time of the last arrival, at the look that found too long a silence."""

    def is_lost(
        self, silent_s: float, heard_s: float, timeout_s: float, answers: Callable[[], bool]
    ) -> bool:
        """Returns whether it is lost. The first look that would say so is not believed: this loop
        may have been held as long, and what came meanwhile lies unread until the next look.

        Args:
            silent_s: nothing came for so long.
            heard_s: when something came last.
            answers: whether the other side's host does.
        """
        if silent_s <= timeout_s:
            return False
        if self._suspected_s != heard_s:
            self._suspected_s = heard_s
            return False
        return silent_s > BUSY_TIMES * timeout_s or not answers()


def why_lost(silent_s: float, timeout_s: float) -> str:
    """Returns the reason in words."""
    if silent_s <= BUSY_TIMES * timeout_s:
        return f"nothing came for {timeout_s:g} s"
    return f"nothing came for {BUSY_TIMES * timeout_s:g} s, although its host answers"
