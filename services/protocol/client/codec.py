"""The encoding of a client's session: bytes become commands, answers and deliveries become bytes.

The instance knows a session by its commands (services/protocol/client/session.py) and what it
answers; how both are written is the codec's. What carries the bytes, and keeps them apart from
other connections, is the transport's.
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
        heartbeat: what is sent so that the client hears something.
    """

    heartbeat: bytes

    def receive(self, data: bytes) -> list[Command]:
        """The commands that `data` completes; before `logged_on` none but a logon. At most
        `FRAMES_AT_ONCE`: where it gives as many, call it with nothing for the others.

        Raises:
            RemoteProtocolError: the session is over; its reason is to be told.
        """

    def count_incomplete(self, holds: Callable[[int], None]) -> None:
        """Tells `holds` from now on, before it is kept, how many bytes are held of a command
        that is not whole, and that none are any more. It may raise RemoteProtocolError, for
        `receive`."""

    def logged_on(self) -> None:
        """The logon was accepted."""

    def closed(self) -> None:
        """The connection ended."""

    def acknowledgment(
        self,
        kind: str,
        command_id: str = "",
        reason: str = "",
        text: str = "",
        body: bytes = b"",
        **extras: Any,
    ) -> bytes:
        """An ack of a command; with a `reason` it says that the command failed."""

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
    ) -> bytes:
        """The answer to an accepted logon."""

    def persisted_ack(
        self, sequence: int, reason: str = "", text: str = "", unjournaled: int = 0
    ) -> bytes:
        """Everything up to `sequence` is durable; with a reason: that one is refused."""

    def ranges_ack(
        self,
        kind: str,
        subscription: str,
        have: PublisherRanges | None,
        command_id: str = "",
        missing: PublisherRanges | None = None,
    ) -> bytes:
        """An ack about a bookmark subscription. `missing`: what retention removed."""

    def safety_notice(self, peers: list[dict[str, Any]]) -> bytes:
        """Encodes which peers a client may fail over to."""

    def delivery(
        self, subscription: str, delivery: DeliveryProtocol
    ) -> tuple[Sequence[bytes], int]:
        """A delivery as parts that are written one behind the other, and how many bytes they are.
        The records themselves are shared: they are not to be copied."""

    def queue_delivery(
        self,
        subscription: str,
        count: int,
        now_us: int,
        lease_ms: int | None,
        records: Sequence[bytes],
        traced: bool = False,
    ) -> tuple[Sequence[bytes], int]:
        """Messages of a queue, in parts as of `delivery`."""

    def group_begin(self, subscription: str) -> bytes:
        """Encodes that the rows of a query come now."""

    def sow(self, subscription: str, rows: Sequence[bytes]) -> tuple[Sequence[bytes], int]:
        """Some rows of a query, records all, in parts as of `delivery`."""

    def group_end(
        self, subscription: str, sent: int, matches: int, have: PublisherRanges | None = None
    ) -> bytes:
        """All rows of a query were sent; so many, of so many that it asks for. `have`: what lies
        before the replay that follows; None: none does."""

    def oof(
        self, subscription: str, reason: str, left: DeliveryProtocol
    ) -> tuple[Sequence[bytes], int]:
        """Encodes what has left the focus of a subscription, in parts as of `delivery`."""


class NativeCodec(ServerSession):
    """Raylay's own: frames with a header (docs/protocol.md). The answers are plain functions, so
    that asking the codec for one costs no call."""

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
