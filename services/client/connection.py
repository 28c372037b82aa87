"""One stream to a server: turns bytes into frames, and tells whether the socket takes more."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import ssl
from collections.abc import Callable
from typing import cast

from raylay.services.errors import RemoteProtocolError
from raylay.services.net.dialling import connect
from raylay.services.net.tls_config import TlsConfig
from raylay.services.net.tls_stream import TlsError
from raylay.services.protocol.frames import (
    FRAME_BYTES_MAX,
    Frame,
    FrameReader,
    Header,
    encode_frame,
)

WRITE_HIGH_WATER_BYTES = 1024 * 1024
"""Bytes of unsent data above which the socket does not keep up: publishes then wait in the store,
not in a buffer."""

_OTHER_PROTOCOLS = (
    (
        # An alert: where its description is, a frame has the first byte of a map.
        re.compile(rb"\x15\x03[\x00-\x04]\x00\x02[\x01\x02][\x00-\x7f]"),
        "it speaks TLS: give the client tls, such as the ca_file of its certificate",
    ),
    (
        re.compile(rb"HTTP/"),
        "it speaks HTTP, as the interface of an administrator does: give the address of a "
        "transport of clients",
    ),
)
"""First bytes of servers of other protocols, which are those of no frame, and what to set."""

_NOT_OF_A_HOST = re.compile(r"[/,@\s]")
"""Characters of a URL, or of several addresses in one text."""

FRAME_BYTES_READ_MAX = FRAME_BYTES_MAX + 64 * 1024
"""Longest frame that is read: a record in a journal may be as large as a whole frame."""


def failure_text(error: Exception, address: str) -> str:
    """Returns why no stream to an address could be opened. The address is not repeated, as the
    event loop does in its own words for a refused connection."""
    if isinstance(error, socket.gaierror):
        host = split_address(address)[0]
        if error.errno == socket.EAI_AGAIN:
            return f"no name server answers for the host name {host!r}: is the network there?"
        return f"the host name {host!r} is not known here: is it spelt well?"
    text = str(error).removeprefix(f"{address}: ")
    if isinstance(error, OSError) and error.errno and "Connect call failed" in text:
        return os.strerror(error.errno).lower()
    return text


class Connection(asyncio.Protocol):
    """One stream to a server. Owner: the client whose callbacks it calls.

    Args:
        received: called with the frames of each read.
        ended: called with the reason why the stream ended, and whether another stream would end
            in the same way, until a file or a setting of either side changes.
        writable_again: called when the socket takes more.
    """

    def __init__(
        self,
        number: int,
        received: Callable[[Connection, list[Frame]], None],
        ended: Callable[[Connection, str, bool], None],
        writable_again: Callable[[], None],
    ) -> None:
        self.number = number
        self.writable = False
        self._received = received
        self._ended = ended
        self._writable_again = writable_again
        self._reader = FrameReader(frame_bytes_max=FRAME_BYTES_READ_MAX)
        self._reading = True
        self._has_heard = False
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Notes that the stream is open."""
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=WRITE_HIGH_WATER_BYTES)
        self.writable = True

    @property
    def is_reading(self) -> bool:
        """Returns whether the socket is being read."""
        return self._reading

    def data_received(self, data: bytes) -> None:
        """Takes bytes from the socket."""
        if not self._has_heard:
            self._has_heard = True
            for first, problem in _OTHER_PROTOCOLS:
                if first.match(data):
                    self.abort()
                    self._ended(self, problem, True)
                    return
        try:
            frames = self._reader.feed(data)
        except RemoteProtocolError as error:
            self.abort()
            self._ended(self, f"{error.reason}: {error}", False)
            return
        # Called without a whole frame, too, because any bytes are a sign of life.
        self._received(self, frames)

    def connection_lost(self, exc: Exception | None) -> None:
        """Notes that the stream has ended."""
        self.writable = False
        self.transport = None
        lasting = isinstance(exc, TlsError) and exc.lasting
        self._ended(self, str(exc) if exc else "connection closed", lasting)

    def pause_writing(self) -> None:
        """Notes that the write buffer is above its limit."""
        self.writable = False

    def resume_writing(self) -> None:
        """Notes that the write buffer has room again."""
        self.writable = True
        self._writable_again()

    def send(self, header: Header, body: bytes = b"") -> None:
        """Writes one frame."""
        self.write(encode_frame(header, body))

    def write(self, data: bytes) -> None:
        """Writes bytes. A stream that has ended ignores them: the client hears of the end in
        `connection_lost`, a turn later, and until then each write would log one more warning of
        asyncio."""
        transport = self.transport
        if transport is not None and not transport.is_closing():
            transport.write(data)
        else:
            self.writable = False

    def set_reading(self, reading: bool) -> None:
        """Starts or stops reading from the socket."""
        transport = self.transport
        if transport is None or transport.is_closing() or reading is self._reading:
            return
        self._reading = reading
        if reading:
            transport.resume_reading()
        else:
            transport.pause_reading()

    def abort(self) -> None:
        """Drops the stream at once."""
        self.writable = False
        if self.transport is not None:
            self.transport.abort()


def split_address(address: str) -> tuple[str, int]:
    """Returns host and port of `host:port` or `[v6 address]:port`; the path and 0 of `unix:path`.

    Raises:
        ValueError: the address has another form.
    """
    if address.startswith("unix:") and len(address) > 5:
        return address[5:], 0
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit() or not 0 < int(port) < 65_536 or _NOT_OF_A_HOST.search(host):
        several = "; give several as a list" if "," in host else ""
        raise ValueError(f"address {address!r} is not of the form host:port or unix:path{several}")
    return host.strip("[]"), int(port)


async def open_connection(
    address: str, make: Callable[[], Connection], tls: TlsConfig | ssl.SSLContext | None = None
) -> Connection:
    """Opens a stream to `host:port`, `[v6 address]:port` or `unix:path`.

    Host names are looked up at each call, and every address found is tried.

    Args:
        tls: TLS context for `host:port`; a Unix socket has no TLS.

    Raises:
        OSError: no server answers at the address, or TLS failed; the error says why.
        ValueError: the address has another form.
    """
    loop = asyncio.get_running_loop()
    host, port = split_address(address)
    if not port:
        _, connection = await loop.create_unix_connection(make, host)
    else:
        _, connection = await connect(make, host, port, tls)
    return connection
