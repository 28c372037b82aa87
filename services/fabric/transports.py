"""Transports of an instance, from what is declared to what it is started with."""

from __future__ import annotations

from raylay.services.configuration.model import InstanceSettings
from raylay.services.server.config import ClientTransportConfig


def first_transport(instance: InstanceSettings) -> ClientTransportConfig | None:
    """What is declared of the transport of `client_port`; None: nothing."""
    first = instance.client_transport
    return None if first is None else ClientTransportConfig(first.name, **first.terms())


def more_transports(instance: InstanceSettings) -> tuple[ClientTransportConfig, ...]:
    """The others for clients."""
    return tuple(
        ClientTransportConfig(each.name, each.port, each.host, each.message_types, **each.terms())
        for each in instance.transports
    )
