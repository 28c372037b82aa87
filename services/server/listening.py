"""Where an instance listens: for clients, for the links of others, and for the processes of its own
links.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from raylay.services.errors import ConfigurationError
from raylay.services.protocol.control import LENT_SUFFIX
from raylay.services.server.client_connection import ClientConnection
from raylay.services.server.client_transport import ClientTransport, Listener
from raylay.services.server.clients import Clients
from raylay.services.server.config import FIRST_TRANSPORT, ClientTransportConfig
from raylay.services.server.gate import gate_of
from raylay.services.server.link_connection import LinkConnection
from raylay.services.server.link_control import Links
from raylay.services.server.node_address import listen_advice, shown
from raylay.services.server.queue_keeper import QueueKeeper
from raylay.services.server.surroundings import Surroundings
from raylay.services.server.upstream_connection import UpstreamConnection, Upstreams

UNIX_PATH_BYTES_MAX = 100
"""A Unix socket's address ends at 108 bytes."""


class Listening:
    """Owner: the event loop. Lifecycle: `begin`, then `close` and `remove`, once each."""

    def __init__(
        self,
        here: Surroundings,
        *,
        clients: Clients,
        links: Links,
        queues: QueueKeeper,
        upstreams: Upstreams,
    ) -> None:
        self._here = here
        self._queues = queues
        self._clients = clients
        self._links = links
        self._upstreams = upstreams
        self._servers: list[asyncio.AbstractServer] = []
        self.transports: dict[str, ClientTransport] = {}
        """For clients, by name; the first is that of the instance's own port."""
        self._configs: dict[str, ClientTransportConfig] = {}
        self.unix_path = ""
        """Where the processes of its links connect to it."""

    async def begin(self) -> None:
        """Listens, and says in the surroundings where.

        Raises:
            ConfigurationError: a port is in use, or the machine has no such address.
        """
        here = self._here
        config = here.config
        for each in config.for_clients():
            transport = ClientTransport(
                each.name, each.message_types, connections_max=each.connections_max
            )
            transport.gate = gate_of(
                here,
                each.authentication or config.authentication,
                each.entitlement or config.entitlement,
                each.name,
            )
            self.transports[each.name] = transport
            self._configs[each.name] = each
            port = each.port or here.state.get_number(_port_key(self._kept_as(transport)))
            transport.address = each.advertised or f"{shown(each.host)}:{port}"
            if each.is_enabled:
                await transport.enable(self._listen)
        server, replication = await self._bind(
            lambda: UpstreamConnection(self._upstreams),
            config.replication_host,
            config.replication_port,
            "replication",
        )
        self._servers.append(server)
        here.client_address = self._first.address
        here.replication_address = config.replication_advertised or replication
        self.unix_path = self._unix_socket_path()
        self.remove()
        self._servers.append(
            await here.loop.create_unix_server(
                lambda: LinkConnection(self._links, self._queues), self.unix_path
            )
        )
        os.chmod(self.unix_path, 0o600)
        self._links.descriptors.open(self.unix_path + LENT_SUFFIX)

    def close(self) -> None:
        """Lets nobody in any more."""
        for transport in self.transports.values():
            transport.close()
        for server in self._servers:
            server.close()
        self._links.descriptors.close()

    def remove(self) -> None:
        """Removes the Unix socket's file."""
        for path in (self.unix_path, self.unix_path + LENT_SUFFIX) if self.unix_path else ():
            if os.path.exists(path):
                os.unlink(path)

    @property
    def _first(self) -> ClientTransport:
        return next(iter(self.transports.values()))

    @property
    def more_client_addresses(self) -> dict[str, str]:
        """Of the other transports for clients, by name."""
        return {name: each.address for name, each in list(self.transports.items())[1:]}

    def status(self) -> list[dict[str, Any]]:
        """Of each transport for clients."""
        return [transport.status() for transport in self.transports.values()]

    async def switch(self, name: str, *, on: bool) -> str:
        """Enables or disables a transport for clients, until the next start. What was done.

        Raises:
            ConfigurationError: there is no such transport, or it cannot be listened there: nothing
                was changed.
        """
        here = self._here
        transport = self.transports.get(name)
        if transport is None:
            raise ConfigurationError(
                f"{here.config.name} has no transport {name!r}: it has {', '.join(self.transports)}"
            )
        count = len(transport.connections)
        if on:
            changed = await transport.enable(self._listen)
        else:
            changed = await transport.disable(
                f"transport {name} of {here.config.name} was disabled: another transport or "
                "instance may serve this client"
            )
        if changed:
            event = "transport_enabled" if on else "transport_disabled"
            here.report(event, transport=name, address=transport.address)
        if transport is self._first:
            here.client_address = transport.address
        where = f"transport {name} of {here.config.name}"
        if not changed:
            return f"{where} is {'enabled' if on else 'disabled'} already"
        if on:
            return f"{where} is enabled: it listens on {transport.address}"
        return f"{where} is disabled until it is enabled or the instance restarts: {count:,} " + (
            "connection was ended" if count == 1 else "connections were ended"
        )

    async def _listen(self, transport: ClientTransport) -> tuple[Listener, str]:
        config = self._configs[transport.name]
        server, bound = await self._bind(
            lambda: ClientConnection(self._clients, transport),
            config.host,
            config.port,
            self._kept_as(transport),
        )
        return server, config.advertised or bound

    def _kept_as(self, transport: ClientTransport) -> str:
        first = transport is self._first
        return FIRST_TRANSPORT if first else f"{FIRST_TRANSPORT}/{transport.name}"

    async def _bind(
        self, make: Callable[[], asyncio.Protocol], host: str, port: int, transport: str
    ) -> tuple[asyncio.AbstractServer, str]:
        here = self._here
        key = _port_key(transport)
        kept = here.state.get_number(key) if not port else 0
        for attempt in dict.fromkeys((port or kept, port)):
            try:
                server = await here.loop.create_server(make, host, attempt)
            except OSError as error:
                if attempt and attempt == kept and not port:
                    continue  # somebody took the free port meanwhile: take another one
                raise ConfigurationError(
                    f"{here.config.name}: the {transport} transport cannot listen on "
                    f"{host}:{attempt}: {error.strerror or error}; {listen_advice(error)}"
                ) from None
            bound = server.sockets[0].getsockname()[1]
            if not port and bound != kept:
                here.state.put_number(key, bound)
            return server, f"{shown(host)}:{bound}"
        raise AssertionError("no port was tried")

    def _unix_socket_path(self) -> str:
        path = str(self._here.directory / "links.sock")
        if len(os.fsencode(path)) <= UNIX_PATH_BYTES_MAX:
            return path
        name = hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
        return str(Path(tempfile.gettempdir()) / f"raylay-{name}.sock")


def _port_key(transport: str) -> str:
    return f"port/{transport}"
