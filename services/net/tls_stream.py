"""The TLS of one connection, between its socket and its protocol.

Used instead of the event loop's own TLS: the time of a handshake counts from the first moment, a
peer without TLS is told so, alerts reach the other side, and errors are sentences.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterable
from typing import Any, cast

from raylay.services.net.tls_files import PeerCertificate
from raylay.services.net.tls_problems import is_lasting, why
from raylay.services.net.tls_records import TlsRecordCounter

HANDSHAKE_TIMEOUT_S = 5.0
CLOSE_TIMEOUT_S = 2.0
READ_BYTES = 256 * 1024
HANDSHAKE_BYTES_MAX = 256 * 1024
"""Bytes from the other side before its handshake is done, certificates included."""
SILENT_RECORDS_MAX = 32
SILENT_WINDOW_S = 10.0
"""Most records without data within this time, after the handshake. A key update, or an attempt to
renegotiate, takes the time of many messages and may ask for an answer, which nobody may ever read.
Usual peers send a few tickets, and a key update in millions of records."""
_RECORD_KINDS = frozenset((20, 21, 22, 23))
"""First bytes of TLS records, by their kind."""
HANDSHAKE_RECORD = 22


class TlsError(OSError):
    """A TLS error; the text says why, and what to do.

    Attributes:
        lasting: whether another attempt would fail in the same way, until a file or a setting of
            either side changes.
    """

    def __init__(self, text: str, *, lasting: bool = False) -> None:
        super().__init__(text)
        self.lasting = lasting


class TlsStream(asyncio.Protocol):
    """The TLS of one connection. Owner: the event loop. Lifecycle: one connection.

    Args:
        context: context of this side.
        make: makes the protocol, when the handshake is done.
        server_side: whether the other side has connected to this one.
        name: name that the other side's certificate must have; None: not checked.
        who: the other side, for error texts; empty: its address.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        context: ssl.SSLContext,
        make: Callable[[], asyncio.BaseProtocol],
        *,
        server_side: bool,
        name: str | None = None,
        who: str = "",
    ) -> None:
        self.loop = loop
        self.raw: asyncio.Transport | None = None
        self.protocol: asyncio.Protocol | None = None
        """Protocol that gets the bytes; None: the handshake is not done."""
        self.peer_certificate: PeerCertificate | None = None
        self.is_over = False
        self.who = who
        self._context: ssl.SSLContext | None = context
        self._make = make
        self._server_side = server_side
        self._name = name
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls: ssl.SSLObject
        self._came_bytes = 0
        self._records = TlsRecordCounter()
        self._silent_records = 0
        self._silent_since_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    # -- for subclasses of each side ------------------------------------------------------------
    def begun(self) -> bool:
        """Handles the connected socket. Returns whether to go on."""
        return True

    def opened(self, transport: TlsTransport) -> None:
        """Handles the completed handshake."""
        protocol = self._make()
        self.protocol = cast(asyncio.Protocol, protocol)
        protocol.connection_made(transport)

    def failed(self, error: TlsError) -> None:
        """Handles a failed handshake, or an end of the connection within it. Called once."""

    def may_shake_hands(self) -> bool:
        """Returns whether there is time for a step of the handshake now; else it is taken by
        `shake_hands_later`."""
        return True

    def plain(self) -> bytes:
        """Returns the answer to a peer that does not use TLS."""
        return b""

    # -- the socket --------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Notes that the socket is connected."""
        self.raw = cast(asyncio.Transport, transport)
        if not self.who:
            address = transport.get_extra_info("peername")
            self.who = f"{address[0]}:{address[1]}" if isinstance(address, tuple) else "it"
        if not self.begun():
            return
        context, self._context = self._context, None
        assert context is not None
        try:
            self._tls = context.wrap_bio(
                self._incoming,
                self._outgoing,
                server_side=self._server_side,
                server_hostname=self._name,
            )
        except (TypeError, ValueError):
            text = f"no certificate can be for the name {self._name!r}: give server_name"
            self.give_up(text, lasting=True)
            return
        self._timer = self.loop.call_later(HANDSHAKE_TIMEOUT_S, self._late)
        if not self._server_side:
            self._shake_hands()

    def data_received(self, data: bytes) -> None:
        """Takes bytes from the socket."""
        if self.is_over:
            return
        if self.protocol is None:
            self._shake_hands_on(data)
        else:
            self._read(data)

    def eof_received(self) -> None:
        """Notes that the other side has stopped sending: the socket is closed."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Notes that the socket is closed."""
        before, self.is_over = self.is_over, True
        self._cancel()
        if self.protocol is not None:
            self.protocol.connection_lost(exc)
        elif not before:
            words = f": {exc}" if exc else ""
            self.failed(TlsError(f"{self.who}: the connection ended in the TLS handshake{words}"))

    def pause_writing(self) -> None:
        """Notes that the socket's buffer is full."""
        if self.protocol is not None:
            self.protocol.pause_writing()

    def resume_writing(self) -> None:
        """Notes that the socket's buffer has room again."""
        if self.protocol is not None:
            self.protocol.resume_writing()

    # -- the handshake -----------------------------------------------------------------------
    def _shake_hands_on(self, data: bytes) -> None:
        first = not self._came_bytes
        self._came_bytes += len(data)
        if first and data and data[0] not in _RECORD_KINDS:
            raw = self.raw
            assert raw is not None
            raw.write(self.plain())
            self.give_up("it speaks no TLS, and this transport speaks nothing else"
                         if self._server_side
                         else "it speaks no TLS: connect without, or to its transport with TLS",
                         gently=True, lasting=True)  # fmt: skip
            return
        if self._came_bytes > HANDSHAKE_BYTES_MAX:
            self.give_up(f"its TLS handshake is longer than {HANDSHAKE_BYTES_MAX} bytes")
            return
        self._incoming.write(data)
        if self.may_shake_hands():
            self._shake_hands()

    def shake_hands_later(self) -> None:
        """Goes on with the handshake, where `may_shake_hands` said no."""
        if not self.is_over and self.protocol is None:
            self._shake_hands()

    def _shake_hands(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self.flush()
            return
        except (ssl.SSLError, ssl.CertificateError) as error:
            # The alert tells the other side as well.
            self.flush()
            text = why(error, name=self._name or "")
            self.give_up(text, gently=True, lasting=is_lasting(error))
            return
        self._cancel()
        self.flush()
        self.peer_certificate = PeerCertificate.of(self._tls.getpeercert())
        raw = self.raw
        assert raw is not None
        # What follows the handshake has to be counted, too.
        behind = self._incoming.read()
        self.opened(TlsTransport(self, raw, self._tls))
        if not self.is_over:
            self._read(behind)

    def _late(self) -> None:
        self.give_up(f"its TLS handshake was not done within {HANDSHAKE_TIMEOUT_S:g} s")

    def give_up(self, text: str, *, gently: bool = False, lasting: bool = False) -> None:
        """Ends the connection before its handshake is done. `gently`: after the data that was
        written; `lasting`: as in TlsError."""
        if self.is_over:
            return
        self.is_over = True
        self._cancel()
        if self.raw is not None:
            if gently:
                self.raw.close()
                self.loop.call_later(CLOSE_TIMEOUT_S, self.raw.abort)
            else:
                self.raw.abort()
        self.failed(TlsError(f"{self.who}: {text}", lasting=lasting))

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- after the handshake ---------------------------------------------------------------------
    def _read(self, data: bytes) -> None:
        """Passes all received data on, in one call, because the protocol may stop reading after
        it."""
        read = self._tls.read
        parts: list[bytes] = []
        problem: TlsError | None = None
        is_end = False
        begin = 0
        for end, records in self._records.slices(data):
            # Each read returns the data of one record.
            silent = records + len(parts)
            self._incoming.write(data if end - begin == len(data) else data[begin:end])
            begin = end
            try:
                while True:
                    part = read(READ_BYTES)
                    if not part:
                        is_end = True
                        break
                    parts.append(part)
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError as error:
                text = f"{self.who}: {why(error, name=self._name or '')}"
                problem = TlsError(text, lasting=is_lasting(error))
            silent -= len(parts)
            if problem is None and silent > 0 and self._are_too_many(silent):
                problem = TlsError(
                    f"{self.who}: it sent more than {SILENT_RECORDS_MAX} TLS records without data "
                    f"within {SILENT_WINDOW_S:g} s"
                )
            if problem is not None or is_end:
                break
        if self._outgoing.pending:
            self.flush()
        protocol, raw = self.protocol, self.raw
        assert protocol is not None and raw is not None
        if parts:
            protocol.data_received(parts[0] if len(parts) == 1 else b"".join(parts))
        if (problem is not None or is_end) and not self.is_over:
            self.is_over = True
            raw.abort() if problem is not None else raw.close()
            if problem is not None:
                self.protocol = _NOBODY
                protocol.connection_lost(problem)

    def _are_too_many(self, silent: int) -> bool:
        """Counts records without data. Returns whether the other side sends too many."""
        now_s = self.loop.time()
        if now_s - self._silent_since_s >= SILENT_WINDOW_S:
            self._silent_since_s, self._silent_records = now_s, 0
        self._silent_records += silent
        return self._silent_records > SILENT_RECORDS_MAX

    def flush(self) -> None:
        """Writes the data that TLS has ready to the socket."""
        data = self._outgoing.read()
        raw = self.raw
        if data and raw is not None and not raw.is_closing():
            raw.write(data)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Encrypts and writes data, one TLS record at a time."""
        if self.is_over or not data:
            return
        write = self._tls.write
        size_bytes = len(data)
        try:
            sent = write(data)
            if sent < size_bytes:
                view = memoryview(data)
                while sent < size_bytes:
                    sent += write(view[sent:])
        except ssl.SSLError as error:
            # The other side's data ended the TLS session: the socket's end follows.
            self.is_over = True
            if self.raw is not None:
                self.raw.abort()
            del error
            return
        self.flush()

    def close(self) -> None:
        """Sends TLS's closing alert, and closes after the data that was written."""
        raw = self.raw
        if raw is None or raw.is_closing():
            return
        if not self.is_over:
            self.is_over = True
            try:
                self._tls.unwrap()
            except ssl.SSLError:
                pass  # asks for the other side's closing alert, which is not awaited
            self.flush()
        raw.close()


class _NullProtocol(asyncio.Protocol):
    """Takes bytes that arrive after the end."""


_NOBODY = _NullProtocol()


class TlsTransport(asyncio.Transport):
    """The transport that the protocol writes to."""

    def __init__(self, stream: TlsStream, raw: asyncio.Transport, tls: ssl.SSLObject) -> None:
        super().__init__()
        self._stream = stream
        self._raw = raw
        self._tls = tls

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Returns extra information of the socket, and `ssl_object` and `peer_certificate` (a
        PeerCertificate)."""
        if name == "ssl_object":
            return self._tls
        if name == "peer_certificate":
            return self._stream.peer_certificate
        return self._raw.get_extra_info(name, default)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._stream.write(data)

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self._stream.write(b"".join(list_of_data))

    def get_write_buffer_size(self) -> int:
        """Returns the bytes that the socket has not taken."""
        return self._raw.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Sets the limits at which the protocol is told to stop writing."""
        self._raw.set_write_buffer_limits(high, low)

    def pause_reading(self) -> None:
        self._raw.pause_reading()

    def resume_reading(self) -> None:
        self._raw.resume_reading()

    def is_closing(self) -> bool:
        return self._stream.is_over or self._raw.is_closing()

    def close(self) -> None:
        """Closes after the data that was written."""
        self._stream.close()

    def abort(self) -> None:
        """Closes at once."""
        self._stream.is_over = True
        self._raw.abort()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._stream.protocol = cast(asyncio.Protocol, protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._stream.protocol is not None
        return self._stream.protocol
