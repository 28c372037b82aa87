"""Authentication, Entitlement and Authenticator of an AMPSConfig: which modules they mean."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.metadata import entry_points
from pathlib import PurePath
from typing import Any

from raylay.services.config.admin_interface import SESSION_MS_DEFAULT
from raylay.services.configuration.amps.model import (
    AmpsConfig,
    IncomingTransport,
    Module,
    OutgoingTransport,
)
from raylay.services.configuration.amps.types import ModuleUse, split_listen_address

BUILT_IN: Mapping[str, tuple[str, ...]] = {
    "Authentication": (
        "amps-default-authentication-module",
        "amps-implicit-authentication-module",
        "amps-default-no-authentication-module",
        *("passwords", "tokens", "certificates"),
    ),
    "Entitlement": (
        "amps-default-entitlement-module",
        "amps-default-no-entitlement-module",
        *("permissions", "http"),
    ),
    "Authenticator": ("amps-default-authenticator-module", "exec"),
}
"""Built-in modules, by the element that names them; as services/plugins has them."""
GROUPS = {
    "Authentication": "raylay.authentication",
    "Entitlement": "raylay.entitlement",
    "Authenticator": "raylay.authenticators",
}
LIBRARIES = {"libamps_http_entitlement.so": "http"}
"""Libraries of Modules, each with the module of ours that does the same."""


def our_name(kind: str, use: ModuleUse, config: AmpsConfig) -> str:
    """Returns the name of the built-in or installed module that an element means; empty: there is
    none.

    Args:
        kind: `Authentication`, `Entitlement` or `Authenticator`.
    """
    defined = _defined(use.module, config)
    if defined is not None:
        same = LIBRARIES.get(PurePath(defined.library).name, "")
        if same in BUILT_IN[kind]:
            return same
    if use.module in BUILT_IN[kind] or entry_points(group=GROUPS[kind], name=use.module):
        return use.module
    return ""


def _defined(name: str, config: AmpsConfig) -> Module | None:
    modules = config.modules.modules if config.modules else ()
    return next((each for each in modules if each.name == name), None)


def module_settings(kind: str, use: ModuleUse | None, config: AmpsConfig) -> dict[str, Any] | None:
    """Returns an element as `ModuleConfig`, with the options of the module's definition. None: the
    element names no module, or one that does not run (`does_not_run`)."""
    name = our_name(kind, use, config) if use is not None else ""
    if use is None or not name:
        return None
    defined = _defined(use.module, config)
    entries = (*(defined.options.entries if defined else ()), *use.options.entries)
    return {"module": name, "options": {each.name: each.value for each in entries}}


def does_not_run(kind: str, use: ModuleUse, config: AmpsConfig) -> str:
    """Returns why an element does not run; empty: it does, or its definition in Modules says why
    not."""
    if our_name(kind, use, config) or _defined(use.module, config) is not None:
        return ""
    return f"{kind} with {use.module} does not run yet"


def uses(config: AmpsConfig) -> Iterable[tuple[str, ModuleUse]]:
    """Yields the elements that name modules which may run, each with its kind."""
    who = [config.authentication, *(each.authentication for each in config.transports.transports)]
    what = [config.entitlement, *(each.entitlement for each in config.transports.transports)]
    if config.admin is not None:
        who.append(config.admin.authentication)
        what.append(config.admin.entitlement)
    for kind, found in (("Authentication", who), ("Entitlement", what)):
        yield from ((kind, use) for use in found if use is not None)
    outgoing = [each for to in config.destinations() for each in to.transports]
    outgoing += config.bootstrap.transports if config.bootstrap is not None else ()
    for transport in outgoing:
        if transport.authenticator is not None:
            yield "Authenticator", transport.authenticator


def instance_modules(config: AmpsConfig) -> dict[str, Any]:
    """Returns the modules of an instance, for its transports of both kinds, where they say nothing
    themselves."""
    who = module_settings("Authentication", config.authentication, config)
    what = module_settings("Entitlement", config.entitlement, config)
    return {
        "authentication": who,
        "entitlement": what,
        "replication_authentication": who,
        "replication_entitlement": what,
    }


def session_ms(options: str) -> int:
    """Returns the milliseconds after which a browser logs on again, from SessionOptions, such as
    `max-age=86400; path=/; HttpOnly`; the default where it names no `max-age`."""
    for option in options.split(";"):
        name, _, value = option.strip().partition("=")
        if name.lower() == "max-age" and value.isdigit() and int(value):
            return int(value) * 1000
    return SESSION_MS_DEFAULT


def admin_settings(config: AmpsConfig) -> dict[str, Any]:
    """Returns the settings of the instance's Admin: the modules that authorize control calls, and
    the interface over HTTP, if it has an address. A module that Admin leaves out is the
    instance's."""
    admin = config.admin
    if admin is None:
        return {}
    found: dict[str, Any] = {}
    for kind, used in (
        ("Authentication", admin.authentication),
        ("Entitlement", admin.entitlement),
    ):
        if used is not None:
            found[kind.lower()] = module_settings(kind, used, config)
    if admin.inet_address is not None:
        host, port = split_listen_address(admin.inet_address)
        found |= {
            "enabled": True,
            "host": host,
            "port": port,
            "advertised": admin.external_inet_address or "",
            "statistics_file": admin.file_name,
            "interval_ms": f"{admin.interval_ns // 1_000_000}ms",
            "anonymous_paths": admin.anonymous_paths or "",
            "headers": tuple(admin.headers),
            "allow_origin": admin.access_control_allow_origin or "",
            "session_ms": f"{session_ms(admin.session_options)}ms",
            "console": admin.galvanometer,
            "tls": {
                "certificate": admin.certificate,
                "private_key": admin.private_key or "",
                "ciphers": admin.ciphers or "",
            }
            if admin.certificate
            else False,
        }
        if admin.www_authenticate.startswith("Basic"):
            found["www_authenticate"] = admin.www_authenticate
    return {"admin": found} if found else {}


def transport_modules(transport: IncomingTransport, config: AmpsConfig) -> dict[str, Any]:
    """Returns the modules of a transport."""
    return {
        "authentication": module_settings("Authentication", transport.authentication, config),
        "entitlement": module_settings("Entitlement", transport.entitlement, config),
    }


def authenticators(
    transports: Iterable[OutgoingTransport], config: AmpsConfig
) -> tuple[dict[str, Any] | None, ...]:
    """Authenticator of each address of a Destination or Bootstrap, in the order of the addresses:
    what the address's own Transport names, and nothing where that names no Authenticator.

    Returns:
        One for each address; nothing at all where no Transport names one.
    """
    found = tuple(
        module_settings("Authenticator", transport.authenticator, config)
        for transport in transports
        for _ in transport.inet_addresses
    )
    return found if any(found) else ()


def waiting_authenticator(
    transports: Iterable[OutgoingTransport], config: AmpsConfig
) -> dict[str, Any] | None:
    """Returns the Authenticator for a server that connects by itself: that of the Transport without
    an address."""
    waiting = (each.authenticator for each in transports if not each.inet_addresses)
    return module_settings("Authenticator", next(waiting, None), config)
