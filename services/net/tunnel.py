"""Carried streams: a link's connection that goes over the one that the other side made
(design.md 4, "Connecting"; docs/protocol.md, "Links").

    link A to B ─ Unix ─ instance A ══ the TCP connection of link B to A ══ link B to A ─ Unix ─ B

What is in the middle hands on whole reads and looks at none of them. Either end's connection, or
the TCP connection, ending ends the stream.
"""

from __future__ import annotations

import asyncio
from typing import cast

from raylay.services.errors import RemoteProtocolError
from raylay.services.net.framed import CLOSE_TIMEOUT_S, FramedConnection
from raylay.services.protocol.frames import Header
from raylay.services.protocol.link.replication import REPLICATION_FRAME_BYTES_MAX
from raylay.services.protocol.link.tunnel import carry_begin, carry_end, carry_front, stream_of

CARRIER_HIGH_BYTES = 256 * 1024
CARRIER_LOW_BYTES = 64 * 1024
"""Bytes that a connection with a carried stream buffers before data waits: acknowledgments of the
other direction must not wait behind a whole window."""
UNREAD_BYTES_MAX = 2 * REPLICATION_FRAME_BYTES_MAX
"""Bytes that may wait for the reader of a stream: more than a window and a batch, which its sender
never exceeds."""
UNCOUNTED_BYTES = 64 * 1024
"""Bytes from which on waiting data is reported to the carrier: as many as a transport buffers
before it reports that it is full, so that it also reports when they are gone."""


class TunnelStream(asyncio.Protocol):
    """The local end of a carried stream: a Unix socket whose bytes go over a connection to another
    host.

    Owner: its carrier. Lifecycle: until one of the two connections ends.
    """

    def __init__(
        self, carrier: TunnelHost, number: int, user: str = "", front: bytes = b""
    ) -> None:
        self.number = number
        self.user = user
        """The destination whose link is at this end; empty where the instance itself is."""
        self._carrier = carrier
        self._transport: asyncio.Transport | None = None
        self._early = [front] if front else []
        self._early_bytes = 0
        self._paused = False
        self._ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Notes that the local end is connected."""
        self._transport = cast(asyncio.Transport, transport)
        if self._ended:
            self._transport.abort()
            return
        early, self._early, self._early_bytes = self._early, [], 0
        if early:
            self._transport.writelines(early)
        self._carrier.stream_holds(self._transport.get_write_buffer_size())

    def data_received(self, data: bytes) -> None:
        """Passes bytes from the local end to the other host."""
        carrier = self._carrier
        if self._ended:
            return
        carrier.hand_on(carry_front(self.number, len(data)), data)
        if not carrier.may_write and self._transport is not None:
            self._transport.pause_reading()
            self._paused = True

    def carrier_writable(self) -> None:
        """Notes that the carrier has room for more."""
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()

    def received(self, body: bytes) -> None:
        """Passes bytes from the other host to the local end."""
        transport = self._transport
        if transport is None:
            self._early.append(body)
            self._early_bytes += len(body)
            waiting = self._early_bytes
        else:
            transport.write(body)
            waiting = transport.get_write_buffer_size()
        if waiting > UNREAD_BYTES_MAX:
            self.end(f"more than {UNREAD_BYTES_MAX} bytes wait to be read", tell=True)
            if transport is not None:
                transport.abort()  # A socket that is not read is not kept for the usual time.
        elif waiting > UNCOUNTED_BYTES and not self._ended:
            self._carrier.stream_holds(waiting)

    def resume_writing(self) -> None:
        """Notes that the local end has read the waiting data."""
        if not self._ended:
            self._carrier.stream_holds(0)

    def connection_lost(self, exc: Exception | None) -> None:
        """Notes that the local end has closed."""
        self.end(str(exc) if exc else "its end closed", tell=True)

    def end(self, why: str, *, tell: bool) -> None:
        """Ends the stream; `tell`: whether the other host must be told."""
        if self._ended:
            return
        self._ended = True
        self._early = []
        self._carrier.stream_holds(0)
        if tell:
            self._carrier.send(carry_end(self.number, why))
        if self._transport is not None:
            # Written data, such as a refusal, goes out first, but not for ever where nobody reads.
            self._transport.close()
            self._carrier.loop.call_later(CLOSE_TIMEOUT_S, self._transport.abort)
        self._carrier.stream_ended(self)


class TunnelHost(FramedConnection):
    """A connection to another host that may carry one stream besides its own frames."""

    carried: TunnelStream | None = None
    _streams = 0

    def begin_stream(self, user: str) -> TunnelStream:
        """Begins a stream; the returned protocol gets the local end."""
        assert self.carried is None and self.transport is not None
        self._streams += 1
        self.send(carry_begin(self._streams))
        return self._carrying(TunnelStream(self, self._streams, user))

    def take_stream(self, header: Header, front: bytes) -> TunnelStream:
        """Takes a stream that the other host begins; an existing one ends. `front` goes to its
        local end before all received data."""
        number = stream_of(header)
        if number <= self._streams:
            raise RemoteProtocolError(f"a carried stream begins again: {number}", "bad_command")
        self._streams = number
        if self.carried is not None:
            self.carried.end("another stream began", tell=False)
        return self._carrying(TunnelStream(self, number, front=front))

    def _carrying(self, stream: TunnelStream) -> TunnelStream:
        assert self.transport is not None
        self.transport.set_write_buffer_limits(CARRIER_HIGH_BYTES, CARRIER_LOW_BYTES)
        self.carried = stream
        return stream

    def stream_frame(self, header: Header, body: bytes) -> bool:
        """Takes a frame of the stream. Returns whether it was one."""
        command = header["c"]
        if command not in ("carry", "carry_end"):
            return False
        number = stream_of(header)
        stream = self.carried
        if stream is not None and stream.number == number:
            if command == "carry":
                stream.received(body)
            else:
                stream.end(str(header.get("why"))[:1000], tell=False)
        return True

    def hand_on(self, front: bytes, data: bytes) -> None:
        """Sends a stream's bytes at once, because the reader at the other end waits."""
        self.send_parts((front, data), len(front) + len(data))
        self.write_collected()

    def writable(self) -> None:
        if self.carried is not None:
            self.carried.carrier_writable()

    def stream_holds(self, unread_bytes: int) -> None:
        """Takes the number of bytes of the stream that wait here for the reader. A host of many
        connections counts them.

        Raises:
            RemoteProtocolError: more bytes wait than the limit allows.
        """

    def stream_ended(self, stream: TunnelStream) -> None:
        if self.carried is stream:
            self.carried = None

    def carrier_ended(self, why: str) -> None:
        if self.carried is not None:
            self.carried.end(why, tell=False)
