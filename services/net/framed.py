"""Connections that carry frames: reading, coalesced writing, closing. What both ends are built on.

Written is once per turn of the event loop: `send` only collects, the outbox writes all that was
collected on a connection in one call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from raylay.services.errors import RemoteProtocolError
from raylay.services.protocol.frames import FrameReader, Header

if TYPE_CHECKING:
    from raylay.services.net.tls_files import PeerCertificate

WRITE_HIGH_BYTES = 1024 * 1024
WRITE_LOW_BYTES = 256 * 1024
CLOSE_TIMEOUT_S = 2.0


class WriteQueue:
    """The connections that have something to write. One an event loop; `flush` writes it all."""

    __slots__ = (
        "_closing",
        "_connections",
        "_is_awaited",
        "_loop",
        "_scheduled",
        "is_dropped",
        "is_held",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._connections: list[FramedConnection] = []
        self._scheduled = False
        self._is_awaited = False
        """Whether `flush` is about to be called."""
        self._closing: list[tuple[FramedConnection, str]] = []
        self.is_held = False
        """Whether nothing is written, whoever asks for it."""
        self.is_dropped = False
        """Whether nothing will be any more."""

    def add(self, connection: FramedConnection) -> None:
        """Notes that this connection has something to write at the end of this turn."""
        self._connections.append(connection)
        if not self._scheduled and not self._is_awaited:
            self._scheduled = True
            self._loop.call_soon(self._flush_scheduled)

    def await_flush(self) -> None:
        """The caller calls `flush` before it returns, whatever happens: no turn of the loop comes
        for what is added until then."""
        self._is_awaited = True

    def hold(self) -> None:
        """Collects everything from now on, and writes nothing, until the caller, who does not
        return before, calls `release`, or `drop`."""
        self.is_held = self._is_awaited = True

    def close_later(self, connection: FramedConnection, why: str) -> None:
        """Closes a connection when what it was sent may be written."""
        self._closing.append((connection, why))

    def release(self) -> None:
        """Writes what was held, and closes what was to be closed."""
        self.is_held = False
        try:
            self.flush()
        finally:
            if self._closing:
                closing, self._closing = self._closing, []
                for connection, why in closing:
                    connection.close(why)

    def drop(self) -> None:
        """Drops what was held, and whatever else comes: it may be of what is not there."""
        self.is_held = self.is_dropped = True
        self._connections = []
        self._closing = []

    def _flush_scheduled(self) -> None:
        self._scheduled = False
        self.flush()

    def flush(self) -> None:
        """Writes everything collected, now."""
        if self.is_held:
            return
        self._is_awaited = False
        connections = self._connections
        if not connections:
            return
        self._connections = []
        if len(connections) > 1:
            connections.sort(key=_by_urgency)
        for connection in connections:
            connection.write_collected()


def _by_urgency(connection: FramedConnection) -> int:
    return connection.urgency


class FramedConnection(asyncio.Protocol):
    """One connection. Subclasses take frames and learn of its end, once.

    Owner: the event loop it was made on. Lifecycle: `connection_made` to `ended`.
    """

    urgency = 1
    """Connections with a lower number are written first."""

    def __init__(self, outbox: WriteQueue, loop: asyncio.AbstractEventLoop, reader: FrameReader):
        self.loop = loop
        self.outbox = outbox
        self.reader = reader
        self.transport: asyncio.Transport | None = None
        self.is_open = False
        self.may_write = True
        """False while the socket takes less than is written."""
        self.received_at_s = 0.0
        self.sent_at_s = 0.0
        self.peer = ""
        self.carried_certificate: PeerCertificate | None = None
        """Certificate of the other side, where this connection goes over another one."""
        self._collected: list[bytes] = []
        self._collected_bytes = 0
        self._gone = False

    # -- asyncio -----------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is connected."""
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(WRITE_HIGH_BYTES, WRITE_LOW_BYTES)
        address = transport.get_extra_info("peername")
        self.peer = f"{address[0]}:{address[1]}" if isinstance(address, tuple) else ""
        self.received_at_s = self.sent_at_s = self.loop.time()
        self.is_open = True
        self.opened()

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        self.received_at_s = self.loop.time()
        try:
            for header, body in self.reader.feed(data):
                if not self.is_open:
                    return
                self.frame_received(header, body)
        except RemoteProtocolError as error:
            if self.is_open:
                self.broken(error)
        except Exception as error:
            self.failed(error)

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed."""
        self._end(f"connection lost: {exc}" if exc else "connection closed by the other side")

    def pause_writing(self) -> None:
        """The socket takes less than is written."""
        self.may_write = False

    def resume_writing(self) -> None:
        """The socket has taken what was written."""
        self.may_write = True
        self.writable()

    # -- for subclasses ----------------------------------------------------------------------
    def opened(self) -> None:
        """The connection is made."""

    def frame_received(self, header: Header, body: bytes) -> None:
        """A frame came."""
        raise NotImplementedError

    def broken(self, error: RemoteProtocolError) -> None:
        """The other side broke the protocol: the stream is of no further use."""
        self.close(str(error))

    def failed(self, error: Exception) -> None:
        """The handler of a frame has a fault: here it is the loop's affair."""
        raise error

    def writable(self) -> None:
        """There is room to write again."""

    def ended(self, why: str) -> None:
        """The connection ended. Called once."""

    @property
    def peer_certificate(self) -> PeerCertificate | None:
        """The identity of the other side by a certificate that was verified; None: it showed
        none."""
        transport = self.transport
        found = self.carried_certificate
        if transport is not None and found is None:
            found = transport.get_extra_info("peer_certificate")
        return found

    # -- writing -----------------------------------------------------------------------------
    def send(self, frame: bytes) -> None:
        """Sends one frame with the others of this turn."""
        if self.is_open:
            if not self._collected:
                self.outbox.add(self)
            self._collected.append(frame)
            self._collected_bytes += len(frame)

    def send_parts(self, parts: Sequence[bytes], size_bytes: int) -> None:
        """Sends one frame that lies in several pieces."""
        if self.is_open:
            if not self._collected:
                self.outbox.add(self)
            self._collected += parts
            self._collected_bytes += size_bytes

    @property
    def unsent_bytes(self) -> int:
        """The bytes that are written and not yet taken by the socket."""
        written = self.transport.get_write_buffer_size() if self.transport is not None else 0
        return written + self._collected_bytes

    def write_collected(self) -> None:
        """Hands what was collected to the socket."""
        collected = self._collected
        if not collected or self.outbox.is_held:
            return
        self._collected = []
        self._collected_bytes = 0
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        self.sent_at_s = self.loop.time()
        if len(collected) == 1:
            transport.write(collected[0])
        else:
            transport.writelines(collected)

    # -- the end -----------------------------------------------------------------------------
    def close(self, why: str) -> None:
        """Ends the connection after what was sent is written; gives it up where that takes long."""
        if not self.is_open:
            return
        if self.outbox.is_held:
            self._close_held(why)
            return
        self.write_collected()
        transport = self.transport
        assert transport is not None
        transport.close()
        # A peer that reads no more must not keep its buffer for ever.
        self.loop.call_later(CLOSE_TIMEOUT_S, transport.abort)
        self._end(why)

    def _close_held(self, why: str) -> None:
        if self.outbox.is_dropped:
            self.abort(why)
        else:
            self.outbox.close_later(self, why)

    def abort(self, why: str) -> None:
        """Ends the connection at once."""
        if self.transport is not None:
            self.transport.abort()
        self._end(why)

    def _end(self, why: str) -> None:
        self.is_open = False
        if not self._gone:
            self._gone = True
            self._collected = []
            self._collected_bytes = 0
            self.ended(why)
