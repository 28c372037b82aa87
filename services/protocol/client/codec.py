"""The encoding of a client's session: bytes become commands; answers and deliveries become bytes.

The instance deals with a session's commands (services/protocol/client/session.py) and answers as
values; the codec encodes them. The transport carries the bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from raylay.services.messages.ranges import PublisherRanges, Range
from raylay.services.protocol.client import answers
from raylay.services.protocol.client.answers import DeliveryProtocol
from raylay.services.protocol.client.commands import Command
from raylay.services.protocol.client.session import ServerSession


class Codec(Protocol):
    """The encoding of one client's session. services/protocol/client/answers.py has the contents of
    its answers.

    Owner: the client's connection. Lifecycle: one connection.

    Attributes:
        heartbeat: bytes that are sent so that the client hears something.
    """

    heartbeat: bytes

    def receive(self, data: bytes) -> list[Command]:
        """Returns the commands that `data` completes; before `logged_on` only a logon. At most
        `FRAMES_AT_ONCE` are returned: after that many, it is called without data for the others.

        Raises:
            RemoteProtocolError: the session is over; the client is to be sent the error's reason.
        """

    def logged_on(self) -> None:
        """Notes that the logon was accepted."""

    def closed(self) -> None:
        """Notes that the connection ended."""

    def acknowledgment(
        self,
        kind: str,
        command_id: str = "",
        reason: str = "",
        text: str = "",
        body: bytes = b"",
        **extras: Any,
    ) -> bytes:
        """Encodes an ack of a command; with a `reason` the command failed."""

    def logon_answer(
        self,
        command_id: str,
        *,
        instance: str,
        group: str,
        incarnation: int,
        publisher: int,
        durable: list[Range],
        highest: int,
        peers: list[dict[str, Any]],
        now_us: int,
        unused: Range | None = None,
        types: bytes = b"",
    ) -> bytes:
        """Encodes the answer to an accepted logon."""

    def persisted_ack(
        self, sequence: int, reason: str = "", text: str = "", unjournaled: int = 0
    ) -> bytes:
        """Encodes that everything up to `sequence` is durable; with a reason: that `sequence` is
        refused."""

    def ranges_ack(
        self,
        kind: str,
        subscription: str,
        have: PublisherRanges | None,
        command_id: str = "",
        missing: PublisherRanges | None = None,
    ) -> bytes:
        """Encodes an ack about a bookmark subscription. `missing`: messages that retention
        removed."""

    def safety_notice(self, peers: list[dict[str, Any]]) -> bytes:
        """Encodes which peers a client may fail over to."""

    def delivery(
        self, subscription: str, delivery: DeliveryProtocol
    ) -> tuple[Sequence[bytes], int]:
        """Encodes a delivery. Returns pieces that are written one after the other, and their length
        in bytes. The records themselves are shared: they must not be copied."""

    def queue_delivery(
        self,
        subscription: str,
        count: int,
        now_us: int,
        lease_ms: int | None,
        records: Sequence[bytes],
        traced: bool = False,
        is_last_try: bool = False,
    ) -> tuple[Sequence[bytes], int]:
        """Encodes a delivery of a queue, in pieces as `delivery`."""

    def group_begin(self, subscription: str) -> bytes:
        """Encodes that the rows of a query begin."""

    def sow(self, subscription: str, rows: Sequence[bytes]) -> tuple[Sequence[bytes], int]:
        """Encodes some rows of a query, all as records, in pieces as `delivery`."""

    def group_end(
        self, subscription: str, sent: int, matches: int, have: PublisherRanges | None = None
    ) -> bytes:
        """Encodes that all rows of a query were sent: the number sent, and the number that match.
        `have`: messages before the replay that follows; None: none follows."""

    def oof(
        self, subscription: str, reason: str, left: DeliveryProtocol
    ) -> tuple[Sequence[bytes], int]:
        """Encodes a notice of records that left the focus of a subscription, in pieces as
        `delivery`."""


CodecFactory = Callable[[Callable[[int], None]], Codec]
"""Makes the codec of a connection. The argument is called with the number of bytes of an incomplete
command before they are kept, and with 0 when none are kept any more. It may raise
RemoteProtocolError, which `receive` passes on."""


class NativeCodec(ServerSession):
    """Raylay's own encoding: frames with a header (docs/protocol.md). The answers are plain
    functions, so that a call of the codec costs nothing more."""

    heartbeat = answers.HEARTBEAT
    acknowledgment = staticmethod(answers.acknowledgment)
    logon_answer = staticmethod(answers.logon_answer)
    persisted_ack = staticmethod(answers.persisted_ack)
    ranges_ack = staticmethod(answers.ranges_ack)
    safety_notice = staticmethod(answers.safety_notice)
    delivery = staticmethod(answers.delivery_parts)
    queue_delivery = staticmethod(answers.queue_delivery_parts)
    group_begin = staticmethod(answers.group_begin)
    sow = staticmethod(answers.sow_parts)
    group_end = staticmethod(answers.group_end)
    oof = staticmethod(answers.oof_parts)
