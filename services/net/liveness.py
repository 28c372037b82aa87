"""The decision whether a silent connection is lost, or its other side is only busy.

A process that parses a large message, or waits for its disk, is silent for a while, because its
heartbeats come from the same event loop. Its host still acknowledges data, which a host that is
down or cut off does not. So a connection is lost when nothing arrived within its timeout and the
other side's TCP was silent as well, or when nothing arrived within `BUSY_TIMES` that time. A
process that ends closes its sockets, which needs no timeout.

A connection is not lost because this process did not read: data may be waiting unread.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable

BUSY_TIMES = 4
"""Number of timeouts for which the other side may be silent while its host still answers."""

_TCP_INFO = struct.Struct("=8B24I")
_TCP_PROBES, _TCP_UNACKED, _TCP_LAST_ACK_MS = 3, 8 + 4, 8 + 12
"""Offsets in Linux's information on a connection (struct tcp_info)."""


def host_answers(transport: asyncio.BaseTransport | None, within_s: float) -> bool:
    """Returns whether the other side's TCP acknowledged something within this time. To be called
    where something is sent at least once in that time. False where it is not known."""
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
    # The other side does not read, so TCP only probes it now and then, less and less often.
    return told[_TCP_PROBES] == 1 and not told[_TCP_UNACKED]


class SilenceDetector:
    """Decides whether a silent connection is lost.

    Owner: the caller, which checks regularly. Lifecycle: one connection.
    """

    __slots__ = ("_suspected_s",)

    def __init__(self) -> None:
        self._suspected_s = -1.0
        """Time of the last arrival, as of the first check that found too long a silence."""

    def is_lost(
        self, silent_s: float, heard_s: float, timeout_s: float, answers: Callable[[], bool]
    ) -> bool:
        """Returns whether the connection is lost. The first check that finds this is not believed:
        this loop may have been blocked as long, and data that arrived meanwhile is unread until the
        next check.

        Args:
            silent_s: seconds since the last arrival.
            heard_s: time of the last arrival.
            answers: returns whether the other side's host answers.
        """
        if silent_s <= timeout_s:
            return False
        if self._suspected_s != heard_s:
            self._suspected_s = heard_s
            return False
        return silent_s > BUSY_TIMES * timeout_s or not answers()


def why_lost(silent_s: float, timeout_s: float) -> str:
    if silent_s <= BUSY_TIMES * timeout_s:
        return f"nothing came for {timeout_s:g} s"
    return f"nothing came for {BUSY_TIMES * timeout_s:g} s, although its host answers"
