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
        name: unique among the instance's.
        port: 0: any free one at the first start, kept from then on.
        host: the address at which it listens.
        message_types: that it is for; none: any.
        advertised: `host:port` that clients reach it by; None: host and port.
        connections_max: at once; None: as many as the instance.
        connections_per_user_max, connections_per_address_max: of one user and of one address that
            have logged on; None: half of `connections_max`, and any number from this host.
        outstanding_publishes_max: of one connection, without a persisted ack, then it is read no
            further; None: any number of numbered ones.
        enabled: whether it listens when the instance starts.
        authentication, entitlement: its modules; None: those of the instance.
        tls: None: it has none.
        capacity: what its clients may hold, in a pool of their own; None: they are in the
            instance's.
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
