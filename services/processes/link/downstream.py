"""A link's connection to its destination: receives the frames and passes them to the parts of the
link."""

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
"""An acknowledgment as `read_ack` decodes it, and the time at which it was sent."""


class ConnectionOwner(Protocol):
    """The owner of the connection (`LinkDialler`)."""

    def relay(self, command: str, root: int, body: bytes) -> None:
        """Takes a part of the destination's held or awaited messages."""

    def placed(self, placements: dict[str, InstancePlacement]) -> None:
        """Takes the destination's news of moved instances."""

    def epoch_refused(self, downstream: Downstream) -> None:
        """Notes that the destination has seen a higher epoch from the instance than this
        connection's."""

    def stream_front(self, certificate: PeerCertificate | None) -> bytes:
        """Returns the first frame of a stream that goes to the instance, which tells of the stream
        and the other side."""

    def bring(self, stream: TunnelStream) -> None:
        """Connects to the instance a stream over this connection, which is the destination's link
        to the instance."""

    def lost(self, downstream: Downstream) -> None:
        """Notes that the connection has ended."""


class AckReceiver(Protocol):
    """The sender over the connection, which takes its acknowledgments (`Pump`)."""

    def acked(self, downstream: Downstream, header: Header, body: bytes) -> None:
        """Takes an acknowledgment."""

    def pump(self) -> None:
        """Sends more, since there is room to write again."""


class Downstream(TunnelHost):
    """The connection to the destination.

    Args:
        carried: whether the connection goes over one that the other side made.
        proven: whether to believe a refusal that says that the link's instance is an old copy of
            itself.
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
        """Acknowledgments that came before the instance said how to start. They are kept, because
        the destination sends each only once."""
        self.answer: asyncio.Future[None] = runtime.loop.create_future()
        self.challenge: asyncio.Future[tuple[str, str]] = runtime.loop.create_future()
        """The user id and text of a challenge, which asks for another logon."""
        self.refused = ""
        """The reason of the destination's refusal; empty: there was none."""
        self.why = ""

    def host_answers(self, within_s: float) -> bool:
        """Returns whether the destination's host still answers, as far as this end can tell."""
        # If the connection is carried, the instance has the carrying one, and ends both together.
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
            # The instance trusts what its link relays, so a body without valid ranges ends the
            # connection here.
            self._parts.read(body)
            self._dialler.relay("waited", root_of(header), body)
            if not header.get("more"):
                self.answer.set_result(None)
        elif command == "carry_begin":
            if self.is_carried:
                raise RemoteProtocolError("a carried stream carries none", "bad_command")
            # The other end of this connection is the server that was dialled.
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
        """Takes news of moved instances. Ignored where the other side dialled: the peer may be
        anybody, and its own logon has brought its news."""
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
            # Marks the error as retrieved: the waiting logon may have given up before.
            self.answer.exception()
        self.carrier_ended(self.why)
        self._dialler.lost(self)
