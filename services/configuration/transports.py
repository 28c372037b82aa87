"""The model of transports: where an instance listens, and on which terms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from raylay.services.configuration.capacity import CapacitySettings
from raylay.services.configuration.fields import MessageType, Port, Section
from raylay.services.configuration.security import Module
from raylay.services.errors import ConfigurationError
from raylay.services.net.tls_config import PROTOCOLS, TlsConfig

INSTANCE_PLACE = "{instance}"
"""Placeholder for the instance's name in the path of a file."""


class TlsSettings(Section):
    """The TLS of transports, and of those who connect to them (docs/security.md). Paths are taken
    from the fabric's directory where they are relative, on the host that uses them; `~` is the home
    of who starts the fabric."""

    certificate: str = ""
    private_key: str = ""
    ca_file: str = ""
    ca_path: str = ""
    verify_client: bool = False
    ciphers: str = ""
    protocols: tuple[str, ...] = PROTOCOLS
    server_name: str = ""
    verify_name: bool = True

    @model_validator(mode="after")
    def _fits(self) -> Self:
        try:
            self.config(str).check("", serves=False)
        except ConfigurationError as error:
            raise ValueError(str(error).removeprefix(": ")) from None
        return self

    def config(self, place: Callable[[str], str]) -> TlsConfig:
        """Returns the configuration that an instance or a client reads.

        Args:
            place: where the file of a path is.
        """
        values: dict[str, Any] = self.model_dump()
        for name in ("certificate", "private_key", "ca_file", "ca_path"):
            if values[name]:
                values[name] = place(values[name])
        return TlsConfig(**values)


TlsChoice = TlsSettings | Literal[False] | None
"""False: no TLS, whatever holds around it. None: what holds around it."""


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
    capacity: CapacitySettings | None = None
    """Limits on what its clients may hold, in a pool of their own. None: they are in the
    instance's."""


class FirstTransportSettings(ClientTerms):
    """More about the transport of `client_port`."""

    name: Annotated[str, Field(min_length=1)] = "client"


class TransportSettings(ClientTerms, _Listening):
    """One transport for clients."""

    message_types: tuple[MessageType, ...] = ()
    """Message types of the transport: other messages are refused there. None: any."""
