"""A link's connection to its destination: the frames that come over it, and to whom they go."""

from __future__ import annotations

import asyncio
from typing import Protocol

from raylay.services.errors import RemoteProtocolError
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.net.liveness import host_answers
from raylay.services.net.tls_files import PeerCertificate
from raylay.services.net.tunnel import TunnelHost, TunnelStream
from raylay.services.processes.link.runtime import LinkRuntime
from raylay.services.protocol.frames import FrameReader, Header
from raylay.services.protocol.link.link_credentials import RETRY, read_said
from raylay.services.protocol.link.replication import (
    NAME_BYTES_MAX,
    REFUSAL_CHARACTERS_MAX,
    REPLICATION_FRAME_BYTES_MAX,
    LinkAccepted,
    PartReader,
    read_accepted,
    read_placed,
    root_of,
)
from raylay.services.replication.effects import Ranges, Rooted
from raylay.services.replication.membership.placement import InstancePlacement

Ack = tuple[int, Ranges, Rooted, Ranges, int]
"""Ack as `read_ack` gives it, and when it was sent."""


class ConnectionOwner(Protocol):
    """The owner of the connection (`Dialling`)."""

    def relay(self, command: str, root: int, body: bytes) -> None:
        """A part of what the destination holds, or waits for."""

    def placed(self, placements: dict[str, InstancePlacement]) -> None:
        """The destination tells of instances that were moved."""

    def epoch_refused(self, downstream: Downstream) -> None:
        """The destination has seen a higher epoch of our instance than this connection's."""

    def stream_front(self, certificate: PeerCertificate | None) -> bytes:
        """Returns what our instance is told of a stream that is brought to it, and of the other
        side."""

    def bring(self, stream: TunnelStream) -> None:
        """The destination's link to our instance comes over our connection."""

    def lost(self, downstream: Downstream) -> None:
        """The connection ended."""


class AckReceiver(Protocol):
    """The sender over the connection, which takes its acks (`Pump`)."""

    def acked(self, downstream: Downstream, header: Header, body: bytes) -> None:
        """An ack came."""

    def pump(self) -> None:
        """There is room to write again."""


class Downstream(TunnelHost):
    """The connection to the destination.

    Args:
        carried: it goes over a connection that the other side made.
        proven: it counts when it says that the link's instance is an old copy of itself.
    """

    def __init__(
        self,
        runtime: LinkRuntime,
        dialler: ConnectionOwner,
        taker: AckReceiver,
        *,
        carried: bool,
        proven: bool = True,
    ) -> None:
        reader = FrameReader(frame_bytes_max=REPLICATION_FRAME_BYTES_MAX)
        super().__init__(runtime.outbox, runtime.loop, reader)
        self._runtime = runtime
        self._dialler = dialler
        self._taker = taker
        self.is_carried = carried
        self._is_proven = proven
        self.accepted: LinkAccepted | None = None
        self.held: PublisherRanges | None = None
        self._parts = PartReader()
        self.early: list[Ack] = []
        """Acks that came before the instance said how to begin: their answers come once."""
        self.answer: asyncio.Future[None] = runtime.loop.create_future()
        self.challenge: asyncio.Future[tuple[str, str]] = runtime.loop.create_future()
        """User id and text of a challenge: the logon is to come again."""
        self.refused = ""
        """The reason of its refusal; empty: there was none."""
        self.why = ""

    def host_answers(self, within_s: float) -> bool:
        """Returns whether the destination's host is there, as far as this end can tell."""
        # Our instance has the connection that carries this one, and ends this one with it.
        return self.is_carried or host_answers(self.transport, within_s)

    def frame_received(self, header: Header, body: bytes) -> None:
        command = header["c"]
        if command == "ack":
            if self.answer.done():
                self._taker.acked(self, header, body)
        elif command == "placed":
            self._told(read_placed(header))
        elif command == "refused":
            self._told(read_placed(header))
            reason = str(header.get("reason") or "refused")[:NAME_BYTES_MAX]
            text = str(header.get("text") or "it gives no reason")[:REFUSAL_CHARACTERS_MAX]
            self.refused, self.why = reason, f"{reason}: {text}"
            if reason == "stale_epoch" and self._is_proven:
                self._dialler.epoch_refused(self)
            self._runtime.event("link_refused", reason=reason, text=text)
            self.close(self.why)
        elif command == "accepted":
            if self.accepted is not None:
                raise RemoteProtocolError("accepted came a second time", "bad_command")
            self.accepted = read_accepted(header)
            if not self.accepted.same:
                self.held = PublisherRanges()
        elif command == RETRY and self.accepted is None and not self.challenge.done():
            self.challenge.set_result(read_said(header))
        elif command == "held" and self.held is not None and not self.answer.done():
            self._parts.read(body, self.held)
            self._dialler.relay("held", 0, body)
        elif command == "waited" and self.accepted is not None and not self.answer.done():
            # The instance trusts what its link relays: what is no ranges ends this connection.
            self._parts.read(body)
            self._dialler.relay("waited", root_of(header), body)
            if not header.get("more"):
                self.answer.set_result(None)
        elif command == "carry_begin":
            if self.is_carried:
                raise RemoteProtocolError("a carried stream carries none", "bad_command")
            # Who comes over this connection is whom it was dialled to.
            front = self._dialler.stream_front(self.peer_certificate)
            self._dialler.bring(self.take_stream(header, front))
        elif not self.stream_frame(header, body) and command not in ("beat", "held", "waited"):
            raise RemoteProtocolError(
                f"command {command[:64]!r} of a destination is unknown", "unknown_command"
            )

    async def answered(self, timeout_s: float) -> tuple[str, str] | None:
        """Waits for the answer to a logon: a challenge, or None when it is whole.

        Raises:
            ConnectionError: the logon was refused, or the connection is lost.
            TimeoutError: nothing came.
        """
        challenge = self.challenge
        await asyncio.wait(
            (self.answer, challenge), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
        )
        if self.answer.done():
            self.answer.result()
            return None
        if not challenge.done():
            raise TimeoutError(f"the logon was not answered within {timeout_s:g} s")
        self.challenge = self._runtime.loop.create_future()
        return challenge.result()

    def _told(self, placements: dict[str, InstancePlacement]) -> None:
        """Takes news of moved instances. Where the other side dialled, that may have been anybody;
        what it has to tell, its own logon told."""
        if not self.is_carried:
            self._dialler.placed(placements)

    def writable(self) -> None:
        super().writable()
        self._taker.pump()

    def broken(self, error: RemoteProtocolError) -> None:
        self.close(f"{error.reason}: {error}")

    def ended(self, why: str) -> None:
        self.why = self.why or why
        if not self.answer.done():
            self.answer.set_exception(ConnectionError(self.why))
            # Read here already: the one who waits for it may have given up before.
            self.answer.exception()
        self.carrier_ended(self.why)
        self._dialler.lost(self)
