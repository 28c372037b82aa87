"""A transport, for clients or for the links of other instances: the limits and modules of its
connections, and how it is enabled and disabled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from raylay.services.config.transport import CLIENT_TRANSPORT, TransportConfig
from raylay.services.net.tls_files import RenewedContext
from raylay.services.security.connection_shares import ConnectionShares
from raylay.services.server.access import AccessCheck
from raylay.services.server.clients.connection_limit import ConnectionLimit

TRANSPORT_DISABLED = "transport_disabled"
"""Reason of the end of a session whose transport is disabled."""


class TransportConnection(Protocol):
    """A connection that was accepted at the transport (`ClientConnection`,
    `UpstreamConnection`)."""

    def end(self, reason: str, text: str) -> None:
        """Ends the session and tells the client why."""

    def turn_away(self, text: str) -> None:
        """Ends the connection because there are too many; the connection then calls `left`."""


class TransportListener(Protocol):
    """The listener of a transport."""

    def close(self) -> None:
        """Stops accepting connections."""


Listen = Callable[["ClientTransport"], Awaitable[tuple[TransportListener, str]]]
"""Function that begins to listen for a transport; returns the listener, and the address `host:port`
that others use."""


class ClientTransport:
    """One transport. Owner: the instance's event loop. Lifecycle: that of the instance.

    Args:
        config: the transport's name, limits and message types.
        tls: the transport's TLS settings; None: it does not use TLS.
        kind: `client`, or `replication` for the links of other instances.
        access_check: access check of the transport; None: everybody is let in.
    """

    def __init__(
        self,
        config: TransportConfig,
        *,
        tls: RenewedContext | None = None,
        kind: str = CLIENT_TRANSPORT,
        access_check: AccessCheck | None = None,
    ) -> None:
        self.config = config
        self.kind = kind
        self.name = config.name
        self.tls = tls
        self.refused = 0
        """Number of TLS handshakes that failed."""
        self.message_types = frozenset(each.encode() for each in config.message_types)
        self.shares = ConnectionShares(
            f"transport {config.name}",
            config.connections_max,
            config.connections_per_user_max,
            config.connections_per_address_max,
        )
        """Shares of the transport's connections that one user, and one address, may have."""
        self.access_check = access_check
        self.address = ""
        """Address of the transport, `host:port`; empty before it was first enabled."""
        self.connections: set[TransportConnection] = set()
        self._connection_limit: ConnectionLimit | None = None
        if config.connections_max is not None:
            self._connection_limit = ConnectionLimit(
                config.connections_max,
                f"as many as transport {config.name} admits (`connections_max`)",
                "try again, or by another transport",
            )
        self._listener: TransportListener | None = None
        self._turn = asyncio.Lock()

    @property
    def is_enabled(self) -> bool:
        return self._listener is not None

    async def enable(self, listen: Listen) -> bool:
        """Begins to listen. Returns whether the transport was disabled before.

        Raises:
            ConfigurationError: the address cannot be listened on; the transport stays disabled.
        """
        async with self._turn:
            if self._listener is not None:
                return False
            if self.tls is not None:
                self.tls.current(at_once=True)
            self._listener, self.address = await listen(self)
            return True

    async def disable(self, why: str) -> bool:
        """Stops listening and ends the transport's sessions. Returns whether it was enabled."""
        async with self._turn:
            if self._listener is None:
                return False
            self.close()
            for member in list(self.connections):
                member.end(TRANSPORT_DISABLED, why)
            return True

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    # -- connections -------------------------------------------------------------------------
    def came(self, member: TransportConnection) -> None:
        self.connections.add(member)
        if self._connection_limit is not None:
            self._connection_limit.came(member)

    def admitted(self, member: TransportConnection) -> None:
        if self._connection_limit is not None:
            self._connection_limit.admitted(member)

    def left(self, member: TransportConnection) -> None:
        """Notes that a connection is gone. Called once, also for a connection that was turned away
        before it was counted here."""
        if member not in self.connections:
            return
        self.connections.discard(member)
        if self._connection_limit is not None:
            self._connection_limit.left(member)

    def status(self) -> dict[str, Any]:
        """The status of the transport, and the number of its connections."""
        return {
            "name": self.name,
            "kind": self.kind,
            "address": self.address,
            "enabled": self.is_enabled,
            "connections": len(self.connections),
            "connections_max": self.config.connections_max,
            "connections_per_user_max": self.shares.per_user_max,
            "connections_per_address_max": self.shares.per_address_max,
            "outstanding_publishes_max": self.config.outstanding_publishes_max,
            "tls": self.tls is not None,
            "tls_refused": self.refused,
            "problem": "" if self.access_check is None else self.access_check.problem,
            "message_types": sorted(kind.decode() for kind in self.message_types),
        }
