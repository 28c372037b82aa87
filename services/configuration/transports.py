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
"""TLS of transports, and of those who connect to them (docs/security.md). Paths are taken from the
fabric's directory where they are relative, on the host that uses them; `~` is the home of who
starts the fabric."""
TlsChoice = Tls | Literal[False] | None
"""False: no TLS, whatever holds around it. None: what holds around it."""
Capacity = Annotated[CapacityConfig, AfterValidator(_capacity)]
"""Limits on what waits for clients. A value that is left out: of a transport, as its instance says;
of an instance, as the fabric says; of that, the default."""


class ReplicationTerms(Section):
    """The settings of any transport for other instances."""

    enabled: bool = True
    """Whether it listens when the instance starts."""
    tls: TlsChoice = None
    """None: the instance's."""
    authentication: Module | None = None
    """Module that decides which links are let in. None: as the instance's
    `replication_authentication` says."""
    entitlement: Module | None = None
    """Module that decides what links may bring. None: as the instance's `replication_entitlement`
    says."""


class FirstReplicationSettings(ReplicationTerms):
    """More about the transport of `replication_port`."""

    name: Annotated[str, Field(min_length=1)] = "replication"


class _Listening(Section):
    name: Annotated[str, Field(min_length=1)]
    port: Port = 0
    host: str = ""
    """Empty: that of the first of its kind."""

    def listening_at(self, host: str) -> Self:
        """Returns the transport with this host, unless it names one itself."""
        return self if self.host else self.model_copy(update={"host": host})


class ReplicationTransportSettings(ReplicationTerms, _Listening):
    """One transport for other instances."""


class ClientTerms(Section):
    """The settings of any transport for clients."""

    connections_max: Annotated[int, Field(ge=1)] | None = None
    """Connections at once. None: as many as the instance."""
    connections_per_user_max: Annotated[int, Field(ge=1)] | None = None
    """Connections of one user that has logged on. None: half of `connections_max`."""
    connections_per_address_max: Annotated[int, Field(ge=1)] | None = None
    """Connections of one address that have logged on. None: half of `connections_max`, and any
    number from this host."""
    outstanding_publishes_max: Annotated[int, Field(ge=1)] | None = None
    """Publishes of one connection without a persisted ack, beyond which it is read no further.
    None: any number of those that clients number."""
    enabled: bool = True
    """Whether it listens when the instance starts."""
    authentication: Module | None = None
    """Module that decides who is let in. None: as the instance says."""
    entitlement: Module | None = None
    """The entitlement module. None: as the instance says."""
    tls: TlsChoice = None
    """None: the instance's."""
    capacity: Capacity | None = None
    """Limits on what its clients may hold, in a pool of their own. None: they are in the
    instance's."""


class FirstTransportSettings(ClientTerms):
    """More about the transport of `client_port`."""

    name: Annotated[str, Field(min_length=1)] = "client"


class TransportSettings(ClientTerms, _Listening):
    """One transport for clients."""

    message_types: tuple[MessageType, ...] = ()
    """Message types of the transport: other messages are refused there. None: any."""
