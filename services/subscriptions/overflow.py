"""What becomes of a client that does not read: one policy for all that it is sent, answers, live
deliveries and replays alike (chapter "Slow Client Management").
"""

from __future__ import annotations

from enum import Enum

SLOW_CLIENT = "slow_client"
"""The reason that such a client is told, and that the log has."""


class Sent(Enum):
    """What it does not read."""

    ANSWERS = "answers wait for {client}, which asks and does not read them"
    MESSAGES = "wait for {client}, which does not read them fast enough"
    LIVE = "wait for {client}, which does not read a live subscription fast enough"


def overflow(unsent_bytes: int, bytes_max: int, client: str, sent: Sent) -> str:
    """Why the client is disconnected; empty: it is not.

    Args:
        unsent_bytes: what it was sent and its socket has not taken.
        bytes_max: as many may wait for one client.
        client: its name; empty: it has not logged on.
        sent: what was sent last.
    """
    if unsent_bytes <= bytes_max:
        return ""
    words = "of " if sent is Sent.ANSWERS else ""
    return f"more than {bytes_max} bytes {words}{sent.value.format(client=client or 'a client')}"
