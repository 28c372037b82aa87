"""The configuration of one transport of an instance: plain values."""

from __future__ import annotations

from dataclasses import dataclass

from raylay.services.capacity.config import CapacityConfig
from raylay.services.errors import ConfigurationError
from raylay.services.net.tls_config import TlsConfig
from raylay.services.security.modules import ModuleConfig

CLIENT_TRANSPORT, REPLICATION_TRANSPORT = "client", "replication"
"""Kinds of transports, and the names of those that are given none."""
HOST_DEFAULT = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class TransportConfig:
    """One transport for clients, or for other instances.

    Attributes:
        name: name that no other transport of the instance has.
        port: port at which the transport listens; 0: any free one, chosen at the first start and
            kept from then on.
        host: address at which the transport listens.
        message_types: message types that the transport takes; empty: any type.
        advertised: address `host:port` at which clients reach the transport; None: host and port.
        connections_max: most connections at once; None: as many as the instance takes.
        connections_per_user_max, connections_per_address_max: most logged-on connections of one
            user, and from one address; None: half of `connections_max`, and any number from this
            host.
        outstanding_publishes_max: most publishes of one connection without a persisted ack, beyond
            which the connection is read no further; None: any number of numbered ones.
        enabled: whether the transport listens when the instance starts.
        authentication, entitlement: its modules; None: those of the instance.
        tls: TLS settings of the transport; None: it has no TLS.
        capacity: limits on the messages that wait for the transport's clients, in a pool of their
            own; None: they share the instance's pool.
    """

    name: str
    port: int = 0
    host: str = HOST_DEFAULT
    message_types: tuple[str, ...] = ()
    advertised: str | None = None
    connections_max: int | None = None
    enabled: bool = True
    authentication: ModuleConfig | None = None
    entitlement: ModuleConfig | None = None
    tls: TlsConfig | None = None
    capacity: CapacityConfig | None = None
    outstanding_publishes_max: int | None = None
    connections_per_user_max: int | None = None
    connections_per_address_max: int | None = None

    def check(self, where: str) -> None:
        """Raises ConfigurationError where a value is none that it can have."""
        if self.connections_max is not None and self.connections_max < 1:
            raise ConfigurationError(
                f"{where}: transport {self.name!r} admits {self.connections_max} connections: give "
                "at least 1, or disable it"
            )
        for option, of in (
            ("connections_per_user_max", "user"),
            ("connections_per_address_max", "address"),
        ):
            most = getattr(self, option)
            if most is not None and most < 1:
                raise ConfigurationError(
                    f"{where}: transport {self.name!r} admits {most} connections of one {of} "
                    f"(`{option}`): give at least 1, or leave it out"
                )
        if self.outstanding_publishes_max is not None and self.outstanding_publishes_max < 1:
            raise ConfigurationError(
                f"{where}: transport {self.name!r} takes {self.outstanding_publishes_max} "
                "publishes that wait for a persisted ack (`outstanding_publishes_max`): give at "
                "least 1"
            )
        if self.tls is not None:
            self.tls.check(f"{where}: transport {self.name}", serves=True)
        if self.capacity is not None:
            self.capacity.check(f"{where}: transport {self.name!r}")
