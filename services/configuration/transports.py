"""The model of transports: where an instance listens, and on which terms."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field

from raylay.services.capacity.config import CapacityConfig
from raylay.services.configuration.fields import MessageType, Port, Section, refusals
from raylay.services.configuration.security import Module
from raylay.services.net.tls_config import TlsConfig

INSTANCE_PLACE = "{instance}"
"""Placeholder for the instance's name in the path of a file."""


def _tls(value: TlsConfig) -> TlsConfig:
    with refusals():
        value.check("TLS", serves=False)
    return value


def _capacity(value: CapacityConfig) -> CapacityConfig:
    with refusals():
        value.check("capacity")
    return value


Tls = Annotated[TlsConfig, AfterValidator(_tls)]
"""TLS settings of transports and of the connections to them (docs/security.md). A relative path is
taken from the fabric's directory on the host that uses the file; `~` is the home of the user that
starts the fabric."""
TlsChoice = Tls | Literal[False] | None
"""TLS settings of one transport or connection. False: no TLS, even if the instance or the fabric
has TLS settings. None: the settings of the instance, or else of the fabric."""
Capacity = Annotated[CapacityConfig, AfterValidator(_capacity)]
"""Limits on the messages that wait for clients. A limit that a transport leaves out is the
instance's; one that the instance leaves out is the fabric's; one that the fabric leaves out is the
default."""


class ReplicationTerms(Section):
    """The settings of any transport for other instances."""

    enabled: bool = True
    """Whether the transport listens when the instance starts."""
    tls: TlsChoice = None
    """TLS settings of the transport. None: the instance's."""
    authentication: Module | None = None
    """Module that decides which links are let in. None: the instance's
    `replication_authentication`."""
    entitlement: Module | None = None
    """Module that decides which messages links may bring. None: the instance's
    `replication_entitlement`."""


class FirstReplicationSettings(ReplicationTerms):
    """Further settings of the transport of `replication_port`."""

    name: Annotated[str, Field(min_length=1)] = "replication"


class _Listening(Section):
    name: Annotated[str, Field(min_length=1)]
    port: Port = 0
    host: str = ""
    """Address at which the transport listens. Empty: that of the instance's first transport of the
    same kind."""

    def listening_at(self, host: str) -> Self:
        """Returns the transport with this host, unless it names one itself."""
        return self if self.host else self.model_copy(update={"host": host})


class ReplicationTransportSettings(ReplicationTerms, _Listening):
    """The settings of one transport for other instances."""


class ClientTerms(Section):
    """The settings of any transport for clients."""

    connections_max: Annotated[int, Field(ge=1)] | None = None
    """Most connections at once. None: as many as the instance takes."""
    connections_per_user_max: Annotated[int, Field(ge=1)] | None = None
    """Most connections of one user that has logged on. None: half of `connections_max`."""
    connections_per_address_max: Annotated[int, Field(ge=1)] | None = None
    """Most connections from one address that have logged on. None: half of `connections_max`, and
    any number from this host."""
    outstanding_publishes_max: Annotated[int, Field(ge=1)] | None = None
    """Most publishes of one connection without a persisted ack, beyond which the connection is read
    no further. None: any number of the publishes that clients number."""
    enabled: bool = True
    """Whether the transport listens when the instance starts."""
    authentication: Module | None = None
    """Module that decides which clients are let in. None: the instance's module."""
    entitlement: Module | None = None
    """Module that decides what clients may do. None: the instance's module."""
    tls: TlsChoice = None
    """TLS settings of the transport. None: the instance's."""
    capacity: Capacity | None = None
    """Limits on the messages that wait for the transport's clients, in a pool of their own. None:
    they share the instance's pool."""


class FirstTransportSettings(ClientTerms):
    """Further settings of the transport of `client_port`."""

    name: Annotated[str, Field(min_length=1)] = "client"


class TransportSettings(ClientTerms, _Listening):
    """The settings of one transport for clients."""

    message_types: tuple[MessageType, ...] = ()
    """Message types that the transport takes; messages of other types are refused there. Empty: any
    type."""
