"""Transports of an instance, from what is declared to what it is started with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from raylay.services.configuration.model import InstanceSettings
from raylay.services.configuration.security import ModuleSettings
from raylay.services.configuration.transports import ClientTerms
from raylay.services.security.modules import ModuleConfig
from raylay.services.server.config import ClientTransportConfig


def module(settings: ModuleSettings | None, directory: Path) -> ModuleConfig | None:
    """What is declared of a module; None: nothing."""
    return None if settings is None else settings.config(directory)


def _terms(each: ClientTerms, directory: Path) -> dict[str, Any]:
    return {
        **each.terms(),
        "authentication": module(each.authentication, directory),
        "entitlement": module(each.entitlement, directory),
    }


def first_transport(instance: InstanceSettings, directory: Path) -> ClientTransportConfig | None:
    """What is declared of the transport of `client_port`; None: nothing."""
    first = instance.client_transport
    return None if first is None else ClientTransportConfig(first.name, **_terms(first, directory))


def more_transports(
    instance: InstanceSettings, directory: Path
) -> tuple[ClientTransportConfig, ...]:
    """The others for clients."""
    return tuple(
        ClientTransportConfig(
            each.name, each.port, each.host, each.message_types, **_terms(each, directory)
        )
        for each in instance.transports
    )
