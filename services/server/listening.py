"""The listening sockets of an instance: for clients, for the links of other instances, and for
its own child processes."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import os
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from raylay.services.config.transport import (
    CLIENT_TRANSPORT,
    REPLICATION_TRANSPORT,
    TransportConfig,
)
from raylay.services.errors import ConfigurationError, StorageError, StorageFull
from raylay.services.net.tls_config import TlsConfig
from raylay.services.net.tls_files import RenewedContext
from raylay.services.protocol.child.control import DIRECT_SUFFIX
from raylay.services.protocol.client.codec import NativeCodec
from raylay.services.protocol.link.replication import refusal
from raylay.services.server.access import AccessCheck, access_check_of
from raylay.services.server.clients.connection_limit import ConnectionLimit
from raylay.services.server.clients.tls_handshake import (
    TLS_REQUIRED,
    TLS_REQUIRED_TEXT,
    PendingTlsHandshake,
)
from raylay.services.server.clients.transport import ClientTransport, TransportListener
from raylay.services.server.data.state_thread import StateThread
from raylay.services.server.links.direct_link import DescriptorReceiver
from raylay.services.server.links.node_address import listen_advice, shown
from raylay.services.server.runtime import InstanceRuntime
from raylay.services.server.turns import CommandTurns
from raylay.storage.files import bind_private

HANDSHAKES_TOLD_S = 1.0
_PLAIN_CLIENT = NativeCodec().acknowledgment("processed", "", TLS_REQUIRED, TLS_REQUIRED_TEXT)
_PLAIN_LINK = refusal(TLS_REQUIRED, TLS_REQUIRED_TEXT)
UNIX_PATH_BYTES_MAX = 100
"""Longest path of a Unix socket, in bytes: the system's limit is 108."""


class AcceptedConnections(Protocol):
    """Makes the protocols of accepted connections: one while the instance starts, and another one
    from its recovery on."""

    def client(self, transport: ClientTransport) -> asyncio.Protocol:
        """Returns the protocol of a connection that was accepted at a client transport."""

    def upstream(self, transport: ClientTransport) -> asyncio.Protocol:
        """Returns the protocol of a connection that was accepted at a replication transport."""

    def child(self) -> asyncio.Protocol:
        """Returns the protocol of a connection of one of the instance's child processes."""


class InstanceListeners:
    """The listening sockets of an instance.

    Owner: the event loop. Lifecycle: `begin`, `serve` when the instance has recovered, then `close`
    and `remove`, once each.

    Args:
        state: the state store, which keeps the automatically chosen ports.
        accepted: makes the protocols of connections until `serve`.
        connection_limit: the limit on the instance's connections.
        descriptors: takes the descriptors that links hand over, at a socket beside the Unix socket.
    """

    def __init__(
        self,
        runtime: InstanceRuntime,
        state: StateThread,
        accepted: AcceptedConnections,
        connection_limit: ConnectionLimit,
        descriptors: DescriptorReceiver,
    ) -> None:
        self._runtime = runtime
        self._state = state
        self._accepted = accepted
        self._connection_limit = connection_limit
        self._descriptors = descriptors
        self._servers: list[asyncio.AbstractServer] = []
        self.transports: dict[str, ClientTransport] = {}
        """Transports by name, those for clients first. The first of each kind is the one at the
        instance's port."""
        self._handshakes = CommandTurns(runtime)
        """Lets the steps of TLS handshakes run in turns, so that they do not block the loop."""
        self._told_s = -HANDSHAKES_TOLD_S
        self._kept: dict[str, tuple[TransportConfig, str]] = {}
        """Configuration of each transport, and the name under which its automatically chosen port
        is kept."""

    async def begin(self) -> None:
        """Begins to listen, and sets the addresses in the runtime.

        Raises:
            ConfigurationError: a port is in use, or the machine has no such address.
            StorageError: the Unix socket cannot be made; the error names its path.
        """
        runtime = self._runtime
        config = runtime.config
        modules = {
            CLIENT_TRANSPORT: (config.authentication, config.entitlement),
            REPLICATION_TRANSPORT: (
                config.replication_authentication,
                config.replication_entitlement,
            ),
        }
        for kind, found in (
            (CLIENT_TRANSPORT, config.client_transports),
            (REPLICATION_TRANSPORT, config.replication_transports),
        ):
            for number, each in enumerate(found):
                who, what = modules[kind]
                who, what = each.authentication or who, each.entitlement or what
                transport = ClientTransport(
                    each,
                    tls=self._tls(each.name, each.tls),
                    kind=kind,
                    access_check=access_check_of(runtime, who, what, each.name),
                )
                self.transports[each.name] = transport
                self._kept[each.name] = each, f"{kind}/{each.name}" if number else kind
                port = each.port or self._state.get_number(_port_key(self._kept[each.name][1]))
                transport.address = each.advertised or f"{shown(each.host)}:{port}"
        # All modules' files have been read by now: no transport opens while one of them is wrong.
        for transport in self.transports.values():
            if self._kept[transport.name][0].enabled:
                await transport.enable(self._listen)
        self._tell_addresses()
        runtime.unix_path, server = await listen_where_there_is_room(
            unix_socket_paths(runtime.directory),
            lambda: self._accepted.child(),
            self._descriptors.open,
        )
        self._servers.append(server)

    def serve(self, accepted: AcceptedConnections) -> None:
        """Has later connections served.

        Args:
            accepted: makes the protocols of connections from now on.
        """
        self._accepted = accepted

    @property
    def replication_access_check(self) -> AccessCheck | None:
        """The access check of the first replication transport; None: it lets everybody in, or there
        is no such transport."""
        kinds = self.transports.values()
        return next(
            (each.access_check for each in kinds if each.kind == REPLICATION_TRANSPORT), None
        )

    def close(self) -> None:
        for transport in self.transports.values():
            transport.close()
        for server in self._servers:
            server.close()
        self._descriptors.close()

    def remove(self) -> None:
        if self._runtime.unix_path:
            _remove_sockets(self._runtime.unix_path)

    @property
    def more_client_addresses(self) -> dict[str, str]:
        """The addresses of the client transports other than the first, by name."""
        clients = [each for each in self.transports.values() if each.kind == CLIENT_TRANSPORT]
        return {each.name: each.address for each in clients[1:]}

    def status(self) -> list[dict[str, Any]]:
        return [transport.status() for transport in self.transports.values()]

    def keep_looking(self) -> None:
        """Has the files of the access modules read again, now and then."""
        for transport in self.transports.values():
            if transport.access_check is not None:
                transport.access_check.keep_looking()

    async def switch(self, name: str, *, on: bool) -> str:
        """Enables or disables a transport, until the next start. Returns a sentence about the
        result.

        Raises:
            ConfigurationError: there is no such transport, or its address cannot be listened on:
                nothing was changed.
        """
        runtime = self._runtime
        transport = self.transports.get(name)
        if transport is None:
            raise ConfigurationError(
                f"{runtime.config.name} has no transport {name!r}: it has "
                f"{', '.join(self.transports)}"
            )
        count = len(transport.connections)
        if on:
            changed = await transport.enable(self._listen)
        else:
            changed = await transport.disable(
                f"transport {name} of {runtime.config.name} was disabled: another transport or "
                "instance may serve you"
            )
        if changed:
            event = "transport_enabled" if on else "transport_disabled"
            runtime.report(event, transport=name, address=transport.address)
        self._tell_addresses()
        where = f"transport {name} of {runtime.config.name}"
        if not changed:
            return f"{where} is {'enabled' if on else 'disabled'} already"
        if on:
            return f"{where} is enabled: it listens on {transport.address}"
        return f"{where} is disabled until it is enabled or the instance restarts: {count:,} " + (
            "connection was ended" if count == 1 else "connections were ended"
        )

    async def _listen(self, transport: ClientTransport) -> tuple[TransportListener, str]:
        config, kept_as = self._kept[transport.name]
        entrance = (
            self._protocol_factory(
                transport, lambda: self._accepted.client(transport), _PLAIN_CLIENT
            )
            if transport.kind == CLIENT_TRANSPORT
            else self._protocol_factory(
                transport,
                lambda: self._accepted.upstream(transport),
                _PLAIN_LINK,
            )
        )
        server, bound = await self._bind(entrance, config.host, config.port, kept_as)
        return server, config.advertised or bound

    def _tell_addresses(self) -> None:
        """Sets the addresses of the first transport of each kind in the runtime."""
        first = {each.kind: each for each in reversed(self.transports.values())}
        self._runtime.client_address = first[CLIENT_TRANSPORT].address
        accepting = first.get(REPLICATION_TRANSPORT)
        self._runtime.replication_address = accepting.address if accepting is not None else ""

    def _tls(self, name: str, config: TlsConfig | None) -> RenewedContext | None:
        runtime = self._runtime
        if config is None:
            return None

        def renewed(problem: str) -> None:
            if problem:
                runtime.report("tls_not_renewed", transport=name, text=problem)
            else:
                runtime.report("tls_renewed", transport=name)

        return RenewedContext(config, f"{runtime.config.name}: transport {name}", renewed)

    def _protocol_factory(
        self,
        transport: ClientTransport,
        make: Callable[[], asyncio.Protocol],
        plain_answer: bytes,
    ) -> Callable[[], asyncio.Protocol]:
        tls = transport.tls
        if tls is None:
            return make
        loop, connection_limit = self._runtime.loop, self._connection_limit
        return lambda: PendingTlsHandshake(
            loop,
            tls.current(),
            make,
            accepted_by=transport,
            connection_limit=connection_limit,
            turns=self._handshakes,
            plain_answer=plain_answer,
            refused=self._handshake_failed,
        )

    def _handshake_failed(self, transport: ClientTransport, text: str) -> None:
        """Counts and reports a failed handshake. Reports are sent at most once a second, as anybody
        can cause any number of failures."""
        transport.refused += 1
        now_s = self._runtime.loop.time()
        if now_s - self._told_s >= HANDSHAKES_TOLD_S:
            self._told_s = now_s
            self._runtime.report(
                "tls_refused", transport=transport.name, text=text, refused=transport.refused
            )

    async def _bind(
        self, make: Callable[[], asyncio.Protocol], host: str, port: int, transport: str
    ) -> tuple[asyncio.AbstractServer, str]:
        runtime = self._runtime
        key = _port_key(transport)
        kept = self._state.get_number(key) if not port else 0
        for attempt in dict.fromkeys((port or kept, port)):
            try:
                server = await runtime.loop.create_server(make, host, attempt)
            except OSError as error:
                if attempt and attempt == kept and not port:
                    continue  # another process took the kept port meanwhile: take a free one
                raise ConfigurationError(
                    f"{runtime.config.name}: the {transport} transport cannot listen on "
                    f"{host}:{attempt}: {error.strerror or error}; {listen_advice(error)}"
                ) from None
            bound = server.sockets[0].getsockname()[1]
            if not port and bound != kept:
                self._state.put_number(key, bound)
            return server, f"{shown(host)}:{bound}"
        raise AssertionError("no port was tried")


def unix_socket_paths(directory: Path) -> list[str]:
    """Returns possible paths of an instance's Unix socket, the first choice first. On XFS and other
    file systems a socket's file takes space, which the full disk of a data directory does not
    have."""
    path = str(directory / "links.sock")
    name = hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
    elsewhere = str(Path(tempfile.gettempdir()) / f"raylay-{name}.sock")
    is_short = len(os.fsencode(path)) <= UNIX_PATH_BYTES_MAX
    return [path, elsewhere] if is_short else [elsewhere]


async def listen_where_there_is_room(
    paths: list[str],
    make: Callable[[], asyncio.Protocol],
    open_direct: Callable[[str], None],
) -> tuple[str, asyncio.AbstractServer]:
    """Listens at the first of these paths whose disk has room for the sockets. Returns the path and
    the server.

    Args:
        open_direct: opens the socket for descriptors beside it.

    Raises:
        StorageError: none of the paths can be used; the error names the last one.
    """
    loop = asyncio.get_running_loop()
    for path in paths:
        _remove_sockets(path)
        server = None
        try:
            server = await loop.create_unix_server(make, sock=_bound(path))
            open_direct(path + DIRECT_SUFFIX)
            return path, server
        except OSError as error:
            if server is not None:
                server.close()
            with contextlib.suppress(OSError):
                _remove_sockets(path)
            is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            if not is_full or path == paths[-1]:
                kind = StorageFull if is_full else StorageError
                raise kind(
                    f"the Unix socket {path} cannot be made: {error.strerror or error}", path
                ) from error
    raise AssertionError("no path was tried")


def _bound(path: str) -> socket.socket:
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        bound.setblocking(False)
        bind_private(bound, path)
    except OSError:
        bound.close()
        raise
    return bound


def _remove_sockets(path: str) -> None:
    for each in (path, path + DIRECT_SUFFIX):
        if os.path.exists(each):
            os.unlink(each)


def _port_key(transport: str) -> str:
    return f"port/{transport}"
