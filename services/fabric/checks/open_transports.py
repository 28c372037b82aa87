"""The check that a fabric that is about to start does not let everybody in over a network."""

from __future__ import annotations

from raylay.services.config.admin_interface import AdminInterfaceConfig
from raylay.services.config.instance import InstanceConfig
from raylay.services.configuration.model import FabricSettings
from raylay.services.errors import ConfigurationError
from raylay.services.fabric.plan import FabricRecord, instance_config
from raylay.services.security.modules import LETS_EVERYBODY_IN
from raylay.services.server.open_transports import is_loopback, open_to_all


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
        interface = config.interface
        if interface is not None and _is_open(interface, config):
            raise ConfigurationError(
                f"{each.name}: the administrator's interface listens on {interface.host}, "
                "and lets everybody in: name a module that asks who they are (`admin` with "
                "`authentication`), want certificates (`tls` with `verify_client`), or say "
                "`unauthenticated: allowed` (docs/security.md)"
            )


def _is_open(interface: AdminInterfaceConfig, config: InstanceConfig) -> bool:
    """Returns whether everybody who can reach the interface over a network may use it."""
    if is_loopback(interface.host):
        return False
    asked = config.for_control()[0] if config.admin is not None else None
    verified = interface.tls is not None and interface.tls.verify_client
    return not verified and (asked is None or asked.module in LETS_EVERYBODY_IN)
