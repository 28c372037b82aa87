"""Connections to other hosts, with or without TLS."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from enum import Enum
from typing import TypeVar

from raylay.services.errors import ConfigurationError
from raylay.services.net.tls_config import TlsConfig
from raylay.services.net.tls_files import client_context
from raylay.services.net.tls_stream import TlsError, TlsStream

MadeProtocol = TypeVar("MadeProtocol", bound=asyncio.BaseProtocol)


class _ClientTls(TlsStream):
    """The TLS of the side that has connected."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        context: ssl.SSLContext,
        make: Callable[[], asyncio.BaseProtocol],
        name: str,
        who: str,
    ) -> None:
        super().__init__(loop, context, make, server_side=False, name=name, who=who)
        self.done: asyncio.Future[None] = loop.create_future()

    def opened(self, transport: asyncio.Transport) -> None:
        super().opened(transport)  # type: ignore[arg-type]
        self.transport = transport
        if not self.done.done():
            self.done.set_result(None)

    def failed(self, error: TlsError) -> None:
        if not self.done.done():
            self.done.set_exception(error)


async def connect(
    make: Callable[[], MadeProtocol],
    host: str,
    port: int,
    tls: TlsConfig | ssl.SSLContext | None,
    *,
    name: str = "",
) -> tuple[asyncio.Transport, MadeProtocol]:
    """Connects like `loop.create_connection`, with TLS where `tls` asks for it: then the protocol
    is made when the handshake is done. Files are read anew each time, so renewed ones are used.

    Args:
        name: name that the server's certificate must have, where the configuration has none; empty:
            the host.

    Raises:
        OSError: no process answers at the address; TlsError: TLS failed, or its files cannot be
            used; the error says why.
    """
    loop = asyncio.get_running_loop()
    if tls is None:
        return await loop.create_connection(make, host, port)
    try:
        context = tls if isinstance(tls, ssl.SSLContext) else client_context(tls, f"TLS to {host}")
    except ConfigurationError as error:
        raise TlsError(str(error), lasting=True) from None
    wanted = (tls.server_name if isinstance(tls, TlsConfig) else "") or name or host
    shown = f"[{host}]" if ":" in host else host
    _, stream = await loop.create_connection(
        lambda: _ClientTls(loop, context, make, wanted, f"{shown}:{port}"), host, port
    )
    try:
        await stream.done
    except BaseException:
        stream.give_up("the attempt was given up")
        raise
    assert stream.protocol is not None
    return stream.transport, stream.protocol  # type: ignore[return-value]


async def open_streams(
    host: str, port: int, tls: TlsConfig | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connects like `asyncio.open_connection`, with TLS where `tls` asks for it. Raises as
    `connect`."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(loop=loop)
    transport, protocol = await connect(
        lambda: asyncio.StreamReaderProtocol(reader, loop=loop), host, port, tls
    )
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


class Answer(Enum):
    """A host's answer to a connection to one of its addresses.

    REFUSED: no process listens there. ACCEPTED: one does. NONE: neither came in time, the name is
    unknown, or the network is away.
    """

    REFUSED = "refused"
    ACCEPTED = "accepted"
    NONE = "none"


async def answer_of(
    loop: asyncio.AbstractEventLoop, host: str, port: int, timeout_s: float
) -> Answer:
    """Asks the host whether a process listens at the address, and closes a connection that is
    accepted at once. It is refused if every address that the name resolves to refuses."""
    try:
        async with asyncio.timeout(timeout_s):
            resolved = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            for family, kind, protocol, _, target in resolved:
                with socket.socket(family, kind, protocol) as dialled:
                    dialled.setblocking(False)
                    try:
                        await loop.sock_connect(dialled, target)
                    except ConnectionRefusedError:
                        continue
                    return Answer.ACCEPTED
    except (OSError, TimeoutError):
        return Answer.NONE
    return Answer.REFUSED if resolved else Answer.NONE
