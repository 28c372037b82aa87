"""The check that a fabric that is about to start does not let everybody in over a network."""

from __future__ import annotations

from raylay.services.configuration.model import FabricSettings
from raylay.services.errors import ConfigurationError
from raylay.services.fabric.plan import FabricRecord, instance_config
from raylay.services.server.open_transports import open_to_all


def check_open(settings: FabricSettings, record: FabricRecord) -> None:
    """Raises ConfigurationError where a transport that is reached from other hosts lets everybody
    in, and the settings do not say in so many words that it may.

    Asked where settings are given, not where a fabric goes on that was started before.
    """
    if settings.unauthenticated == "allowed":
        return
    for each in settings.instances:
        config = instance_config(settings, record, each)
        for transports, kind, module in (
            (config.client_transports, "clients", config.authentication),
            (config.replication_transports, "instances", config.replication_authentication),
        ):
            why = open_to_all(transports, kind, module)
            if why:
                raise ConfigurationError(f"{each.name}: {why}")
