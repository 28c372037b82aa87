"""Connections that carry frames: reading, coalesced writing, closing. Both ends of every connection
are built on them.

Data is written once per turn of the event loop: `send` only collects, and the write queue writes
everything collected on a connection in one call.
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
    """The connections that have something to write; one for each event loop. `flush` writes
    everything."""

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
        """Whether a caller will call `flush` before it returns."""
        self._closing: list[tuple[FramedConnection, str]] = []
        self.is_held = False
        """Whether writes are held, whichever part of the process asks for them."""
        self.is_dropped = False
        """Whether writes are dropped for good."""

    def add(self, connection: FramedConnection) -> None:
        """Notes that this connection has something to write at the end of this turn."""
        self._connections.append(connection)
        if not self._scheduled and not self._is_awaited:
            self._scheduled = True
            self._loop.call_soon(self._flush_scheduled)

    def await_flush(self) -> None:
        """Announces that the caller calls `flush` before it returns, in any case, so that no turn
        of the loop is scheduled for connections added until then."""
        self._is_awaited = True

    def hold(self) -> None:
        """Collects writes from now on, until the caller, which must not return before, calls
        `release` or `drop`."""
        self.is_held = self._is_awaited = True

    def close_later(self, connection: FramedConnection, why: str) -> None:
        """Closes a connection once the data sent on it may be written."""
        self._closing.append((connection, why))

    def release(self) -> None:
        """Writes the held data, and closes the connections that were to be closed."""
        self.is_held = False
        try:
            self.flush()
        finally:
            if self._closing:
                closing, self._closing = self._closing, []
                for connection, why in closing:
                    connection.close(why)

    def drop(self) -> None:
        """Drops the held data, and everything later: it may refer to data that was lost."""
        self.is_held = self.is_dropped = True
        self._connections = []
        self._closing = []

    def _flush_scheduled(self) -> None:
        self._scheduled = False
        self.flush()

    def flush(self) -> None:
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
    """One connection. Subclasses take its frames, and are told once of its end.

    Owner: the event loop on which it was made. Lifecycle: `connection_made` to `ended`.
    """

    urgency = 1
    """Order of writing: connections with a lower number are written first."""

    def __init__(self, outbox: WriteQueue, loop: asyncio.AbstractEventLoop, reader: FrameReader):
        self.loop = loop
        self.outbox = outbox
        self.reader = reader
        self.transport: asyncio.Transport | None = None
        self.is_open = False
        self.may_write = True
        """False while the socket's buffer is full."""
        self.received_at_s = 0.0
        self.sent_at_s = 0.0
        self.peer = ""
        self.carried_certificate: PeerCertificate | None = None
        """Certificate of the other side, where this connection is carried by another one."""
        self._collected: list[bytes] = []
        self._collected_bytes = 0
        self._gone = False

    # -- asyncio -----------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Notes that the socket is connected."""
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(WRITE_HIGH_BYTES, WRITE_LOW_BYTES)
        address = transport.get_extra_info("peername")
        self.peer = f"{address[0]}:{address[1]}" if isinstance(address, tuple) else ""
        self.received_at_s = self.sent_at_s = self.loop.time()
        self.is_open = True
        self.opened()

    def data_received(self, data: bytes) -> None:
        """Takes bytes from the socket."""
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
        """Notes that the socket is closed."""
        self._end(f"connection lost: {exc}" if exc else "connection closed by the other side")

    def pause_writing(self) -> None:
        """Notes that the socket's buffer is full."""
        self.may_write = False

    def resume_writing(self) -> None:
        """Notes that the socket's buffer has room again."""
        self.may_write = True
        self.writable()

    # -- for subclasses ----------------------------------------------------------------------
    def opened(self) -> None:
        """Handles the new connection. For subclasses."""

    def frame_received(self, header: Header, body: bytes) -> None:
        """Handles a frame. For subclasses."""
        raise NotImplementedError

    def broken(self, error: RemoteProtocolError) -> None:
        """Handles a protocol violation of the other side: the stream cannot be used any more."""
        self.close(str(error))

    def failed(self, error: Exception) -> None:
        """Handles an exception in a frame's handler; by default the event loop reports it."""
        raise error

    def writable(self) -> None:
        """Handles that there is room to write again."""

    def ended(self, why: str) -> None:
        """Handles the end of the connection. Called once."""

    @property
    def peer_certificate(self) -> PeerCertificate | None:
        """Returns the verified certificate of the other side; None: it showed none."""
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
        """Sends one frame that consists of several pieces."""
        if self.is_open:
            if not self._collected:
                self.outbox.add(self)
            self._collected += parts
            self._collected_bytes += size_bytes

    @property
    def unsent_bytes(self) -> int:
        """Returns the bytes that the socket has not taken yet."""
        written = self.transport.get_write_buffer_size() if self.transport is not None else 0
        return written + self._collected_bytes

    def write_collected(self) -> None:
        """Passes the collected data to the socket."""
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
        """Ends the connection after all sent data is written; aborts it where that takes too
        long."""
        if not self.is_open:
            return
        if self.outbox.is_held:
            self._close_held(why)
            return
        self.write_collected()
        transport = self.transport
        assert transport is not None
        transport.close()
        # A peer that has stopped reading must not keep its buffer for ever.
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
