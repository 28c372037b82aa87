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

from raylay.services.errors import ConfigurationError
from raylay.services.protocol.control import LENT_SUFFIX
from raylay.services.server.client_connection import ClientConnection
from raylay.services.server.clients import Clients
from raylay.services.server.link_connection import LinkConnection
from raylay.services.server.link_control import Links
from raylay.services.server.node_address import listen_advice
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
        self.more_client_addresses: dict[str, str] = {}
        """Of the other transports for clients, by name."""
        self.unix_path = ""
        """Where the processes of its links connect to it."""

    async def begin(self) -> None:
        """Listens, and says in the surroundings where.

        Raises:
            ConfigurationError: a port is in use, or the machine has no such address.
        """
        here = self._here
        config = here.config
        client = await self._bind(
            self._for_clients(config.client_message_types),
            config.client_host,
            config.client_port,
            "client",
        )
        for transport in config.client_transports:
            bound = await self._bind(
                self._for_clients(transport.message_types),
                transport.host or config.client_host,
                transport.port,
                f"client/{transport.name}",
            )
            self.more_client_addresses[transport.name] = transport.advertised or bound
        replication = await self._bind(
            lambda: UpstreamConnection(self._upstreams),
            config.replication_host,
            config.replication_port,
            "replication",
        )
        here.client_address = config.client_advertised or client
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
        for server in self._servers:
            server.close()
        self._links.descriptors.close()

    def remove(self) -> None:
        """Removes the Unix socket's file."""
        for path in (self.unix_path, self.unix_path + LENT_SUFFIX) if self.unix_path else ():
            if os.path.exists(path):
                os.unlink(path)

    def _for_clients(self, message_types: tuple[str, ...]) -> Callable[[], ClientConnection]:
        types = frozenset(kind.encode() for kind in message_types)
        return lambda: ClientConnection(self._clients, types)

    async def _bind(
        self, make: Callable[[], asyncio.Protocol], host: str, port: int, transport: str
    ) -> str:
        here = self._here
        key = f"port/{transport}"
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
            self._servers.append(server)
            bound = server.sockets[0].getsockname()[1]
            if not port and bound != kept:
                here.state.put_number(key, bound)
            shown = f"[{host}]" if ":" in host else host
            return f"{shown}:{bound}"
        raise AssertionError("no port was tried")

    def _unix_socket_path(self) -> str:
        path = str(self._here.directory / "links.sock")
        if len(os.fsencode(path)) <= UNIX_PATH_BYTES_MAX:
            return path
        name = hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
        return str(Path(tempfile.gettempdir()) / f"raylay-{name}.sock")
