"""The acks for an upstream link: sent after the answer to its logon, and held back for as long as
its Destination allows."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

from raylay.services.protocol.link.replication import RANGES_IN_ACK_MAX, ack_frames
from raylay.services.replication.effects import AckUpstream, Ranges

CONFLATION_MS_MAX = 60_000
UNREAD_BYTES_MAX = 64 * 1024 * 1024
"""Bytes of acks that a link may leave unread, in addition to the answer to its logon. The acks for
all that its window allows it to ask take less."""


class AckedConnection(Protocol):
    """The connection of the link (`UpstreamConnection`)."""

    loop: asyncio.AbstractEventLoop

    @property
    def unsent_bytes(self) -> int:
        """The bytes that are written and not yet taken by the socket."""

    def send(self, frame: bytes) -> None:
        """Sends a frame."""

    def abort(self, why: str) -> None:
        """Ends the connection at once."""


class AckSender:
    """See the file's docstring.

    Invariant: no ack is sent before the answer to the logon; at most one ack, of at most
    `RANGES_IN_ACK_MAX` ranges, is held back.
    Owner: the connection. Lifecycle: from the logon on.
    """

    __slots__ = ("_answer_bytes", "_behind", "_connection", "_held_back", "_ranges", "conflation_s")

    def __init__(self, connection: AckedConnection) -> None:
        self._connection = connection
        self.conflation_s = 0.0
        """Time, in seconds, for which an ack may be held back."""
        self._held_back: AckUpstream | None = None
        self._ranges = 0
        """Number of ranges in the ack that is held back."""
        self._behind: list[AckUpstream] | None = None
        """Acks that wait for the answer to the logon; None: it has been sent, or no logon was
        accepted yet."""
        self._answer_bytes = 0

    @property
    def is_answering(self) -> bool:
        """Returns whether the answer to the logon is still being sent."""
        return self._behind is not None

    def answer(self) -> None:
        self._behind = []

    def answered(self, answer_bytes: int) -> None:
        """Sends the acks that waited for the answer. The link learns from the answer first what it
        waits for, so that it knows what these acks are about."""
        self._answer_bytes = answer_bytes
        behind, self._behind = self._behind or [], None
        for ack in behind:
            self.acknowledge(ack)

    def acknowledge(self, ack: AckUpstream) -> None:
        if self._behind is not None:
            self._behind.append(ack)
            return
        if not self.conflation_s:
            self._send(ack)
            return
        held_back = self._held_back
        if held_back is None:
            self._held_back = ack
            self._ranges = _count(ack)
            self._connection.loop.call_later(self.conflation_s, self._send_held_back)
            return
        held_back.number = ack.number
        _extend(held_back.held, ack.held)
        _extend(held_back.conflicts, ack.conflicts)
        for root, answered in ack.persisted.items():
            _extend(held_back.persisted.setdefault(root, {}), answered)
        self._ranges += _count(ack)
        if self._ranges > RANGES_IN_ACK_MAX:
            self._send_held_back()

    def _send_held_back(self) -> None:
        ack, self._held_back = self._held_back, None
        if ack is not None:
            self._send(ack)

    def _send(self, ack: AckUpstream) -> None:
        connection = self._connection
        unread_bytes = connection.unsent_bytes
        if unread_bytes > UNREAD_BYTES_MAX + self._answer_bytes:
            connection.abort(f"it does not read: {unread_bytes:,} bytes of acks wait for it")
            return
        for frame in ack_frames(ack, time.time_ns()):
            connection.send(frame)


def _extend(mine: Ranges, more: Ranges) -> None:
    for publisher, ranges in more.items():
        mine.setdefault(publisher, []).extend(ranges)


def _count(ack: AckUpstream) -> int:
    parts = ack.held, ack.conflicts, *ack.persisted.values()
    return sum(len(ranges) for part in parts for ranges in part.values())
