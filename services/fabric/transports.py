"""Transports of an instance and their TLS, from what is declared to what it is started with."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from raylay.services.capacity.config import CapacityConfig
from raylay.services.config.admin_interface import AdminInterfaceConfig
from raylay.services.config.instance import InstanceConfig
from raylay.services.config.transport import TransportConfig
from raylay.services.configuration.model import FabricSettings, InstanceSettings
from raylay.services.configuration.security import MODULES
from raylay.services.configuration.transports import (
    INSTANCE_PLACE,
    ClientTerms,
    ReplicationTerms,
    ReplicationTransportSettings,
    TlsChoice,
    TransportSettings,
)
from raylay.services.errors import ConfigurationError
from raylay.services.net.tls_config import TlsConfig
from raylay.services.net.tls_files import client_context, server_context
from raylay.services.security.control import AdminConfig
from raylay.services.security.modules import FILE_OPTIONS, ModuleConfig


def module(declared: ModuleConfig | None, directory: str) -> ModuleConfig | None:
    """Returns a module with the paths of its files resolved for a fabric in this directory; None:
    no module is declared."""
    return None if declared is None else declared.placed(_placing(directory))


def modules(settings: FabricSettings, directory: str, instance: InstanceSettings) -> dict[str, Any]:
    """Returns the modules for an instance's configuration, `admin` among them. Each is the
    instance's own, or else the fabric's."""
    admin = settings.control_of(instance)
    return {
        "admin": None
        if admin is None
        else AdminConfig(
            module(admin.authentication, directory), module(admin.entitlement, directory)
        ),
        **{
            name: module(getattr(instance, name) or getattr(settings, name), directory)
            for name in MODULES
        },
    }


class TransportPlanner:
    """Makes the configurations of an instance's transports, and the TLS settings of the connections
    that the instance dials.

    Args:
        directory: directory of the fabric.
    """

    def __init__(self, settings: FabricSettings, directory: str, instance: InstanceSettings):
        self._settings = settings
        self._instance = instance
        self._directory = directory
        self._place = _placing(directory, instance.name)

    def for_clients(self, port: int, advertised: str) -> tuple[TransportConfig, ...]:
        """Returns the transports for clients.

        Args:
            port: port of the first transport.
            advertised: address of the first transport that clients are told.
        """
        return self._made(self._instance.for_clients(), port, advertised)

    def for_instances(self, port: int, advertised: str) -> tuple[TransportConfig, ...]:
        """Returns the transports for other instances. The arguments are those of `for_clients`."""
        return self._made(self._instance.for_instances(), port, advertised)

    def _made(
        self,
        declared: Iterable[TransportSettings | ReplicationTransportSettings],
        port: int,
        advertised: str,
    ) -> tuple[TransportConfig, ...]:
        found = [TransportConfig(**dict(each) | self._resolved(each)) for each in declared]
        return *(replace(each, port=port, advertised=advertised) for each in found[:1]), *found[1:]

    def _resolved(self, each: ClientTerms | ReplicationTerms) -> dict[str, Any]:
        """Returns the settings that a transport takes over from its instance, and those that name
        files."""
        limits = each.capacity if isinstance(each, ClientTerms) else None
        return {
            "tls": self._serving(each.tls),
            "authentication": module(each.authentication, self._directory),
            "entitlement": module(each.entitlement, self._directory),
            "capacity": None if limits is None else limits.placed(self._place),
        }

    def capacity(self) -> CapacityConfig | None:
        """Returns the limits on the messages that wait for the instance's clients; None: no limits
        are declared."""
        own, around = (
            None if each is None else each.placed(self._place)
            for each in (self._instance.capacity, self._settings.capacity)
        )
        if own is None or around is None:
            return own or around
        return own.within(around)

    def dialling(self, own: TlsChoice, targets: Iterable[str]) -> TlsConfig | None:
        """Returns the TLS settings with which the instance dials; None: it dials without TLS.

        Args:
            own: TLS settings that are declared for the destination or bootstrap itself.
            targets: names of instances of the fabric, and addresses `host:port` of other instances.
        """
        if own is not None:
            return own.placed(self._place) if own else None
        base = self._base()
        if not base or not any(self._has_tls(target) for target in targets):
            return None
        return base.placed(self._place)

    def interface(self, port: int) -> AdminInterfaceConfig:
        """Returns the configuration of the instance's administrator's interface."""
        declared = self._settings.interface_of(self._instance)
        found = AdminInterfaceConfig(
            **declared.shared_with(AdminInterfaceConfig)
            | {
                "host": declared.host or self._instance.host,
                "port": port,
                "tls": self._serving(declared.tls),
            }
        )
        return found

    def _has_tls(self, target: str) -> bool:
        other = next((each for each in self._settings.instances if each.name == target), None)
        if other is None:
            return True  # of another fabric: as this one, unless it is said
        first = other.replication_transport
        choice = first.tls if first is not None else None
        return bool(_of(_of(choice, other.tls), self._settings.tls))

    def _base(self) -> TlsChoice:
        return _of(self._instance.tls, self._settings.tls) or None

    def _serving(self, own: TlsChoice) -> TlsConfig | None:
        chosen = _of(own, self._base())
        return chosen.placed(self._place) if chosen else None


def check_files(config: InstanceConfig) -> None:
    """Looks at the files that an instance would use on this host: certificates, keys and CAs, and
    what its modules read (passwords, permissions, secrets).

    Raises:
        ConfigurationError: one cannot be used; names it.
    """
    for transport in config.transports:
        if transport.tls is not None:
            server_context(transport.tls, f"{config.name}: transport {transport.name}")
    dialling = {f"destination {each.name}": each.tls for each in config.destinations}
    if config.bootstrap is not None:
        dialling["bootstrap"] = config.bootstrap.tls
    for what, tls in dialling.items():
        if tls is not None:
            client_context(tls, f"{config.name}: {what}")
    for what, used in _modules_of(config):
        for option in FILE_OPTIONS & used.options.keys():
            path = Path(used.options[option])
            try:
                path.open("rb").close()
            except OSError as error:
                raise ConfigurationError(
                    f"{config.name}: {what}, module {used.module}: {option} {path} cannot be read: "
                    f"{error.strerror}"
                ) from None


def _modules_of(config: InstanceConfig) -> Iterator[tuple[str, ModuleConfig]]:
    """Yields every module that an instance would use, with the place where it is declared."""
    found: list[tuple[str, ModuleConfig | None]] = [
        (name, getattr(config, name)) for name in MODULES
    ]
    for transport in config.transports:
        where = f"transport {transport.name}"
        found += [(where, transport.authentication), (where, transport.entitlement)]
    for each in config.destinations:
        where = f"destination {each.name}"
        found += [(where, used) for used in (each.authenticator, *each.authenticators)]
    if config.bootstrap is not None:
        used_there = (config.bootstrap.authenticator, *config.bootstrap.authenticators)
        found += [("bootstrap", used) for used in used_there]
    yield from ((where, used) for where, used in found if used is not None)


def client_tls(settings: FabricSettings, directory: str) -> TlsConfig | None:
    """Returns the TLS settings of the fabric's clients: those declared for clients, or else TLS
    with the CA of the fabric's transports. None: no TLS."""
    own, base = settings.client.tls, settings.tls
    place = _placing(directory, "")
    if own is not None:
        return own.placed(place) if own else None
    if base is None:
        return None
    serving = base.placed(place)
    return TlsConfig(
        ca_file=serving.ca_file,
        ca_path=serving.ca_path,
        server_name=serving.server_name,
        verify_name=serving.verify_name,
    )


def _of(own: TlsChoice, around: TlsChoice) -> TlsChoice:
    return around if own is None else own


def _placing(directory: str, instance: str | None = None) -> Callable[[str], str]:
    """Returns a function that resolves a path for a fabric in this directory. `~` is the home of
    the user that starts the fabric.

    Args:
        instance: the name for `{instance}` in a path; None: `{instance}` stays.
    """

    def place(path: str) -> str:
        named = path if instance is None else path.replace(INSTANCE_PLACE, instance)
        return str(Path(directory) / os.path.expanduser(named))

    return place
