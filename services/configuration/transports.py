"""The model of transports: where an instance listens, and on which terms."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from raylay.services.configuration.fields import MessageType, Port, Section
from raylay.services.configuration.security import Module


class ClientTerms(Section):
    """What can be said of any transport for clients."""

    connections_max: Annotated[int, Field(ge=1)] | None = None
    """At once. None: as many as the instance."""
    enabled: bool = True
    """Whether it listens when the instance starts."""
    authentication: Module | None = None
    """Who is let in. None: as the instance says."""
    entitlement: Module | None = None
    """What he may do. None: as the instance says."""

    def terms(self) -> dict[str, Any]:
        """As an instance reads them."""
        return {"connections_max": self.connections_max, "is_enabled": self.enabled}


class FirstTransportSettings(ClientTerms):
    """More about the transport of `client_port`."""

    name: Annotated[str, Field(min_length=1)] = "client"


class TransportSettings(ClientTerms):
    """One more transport for clients."""

    name: Annotated[str, Field(min_length=1)]
    port: Port = 0
    host: str = ""
    """Empty: the instance's."""
    message_types: tuple[MessageType, ...] = ()
    """That it is for: other messages are refused there. None: any."""
