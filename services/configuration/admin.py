"""The model of the administrator's access: who may control instances, and the interface over
HTTP."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from raylay.services.config.admin_interface import (
    FILE_BYTES_MAX_DEFAULT,
    INTERVAL_MS_DEFAULT,
    INTERVAL_MS_MIN,
    RETENTION_MS_DEFAULT,
    SESSION_MS_DEFAULT,
    STATISTICS_FILE,
    WWW_AUTHENTICATE_DEFAULT,
)
from raylay.services.configuration.fields import Port, Section
from raylay.services.configuration.security import Module
from raylay.services.configuration.transports import TlsChoice
from raylay.services.messages.units import Bytes, Milliseconds

MODULES = frozenset(("authentication", "entitlement"))


class AdminSettings(Section):
    """The administrator's access to an instance: the modules that authorize control calls, and the
    interface over HTTP with its console (docs/administration.md).

    Modules that it leaves out are those of the instance's clients. An instance's setting of the
    interface counts before the fabric's.
    """

    authentication: Module | None = None
    """Module that decides which users may log on to control the instance. None: the instance's
    `authentication`."""
    entitlement: Module | None = None
    """Module that decides what these users may do. None: the instance's `entitlement`."""
    enabled: bool | None = None
    """Whether instances serve the interface. Free ports are chosen for instances that name none.
    None: an instance serves it if a `port` is given."""
    host: Annotated[str, Field(min_length=1)] | None = None
    """Host that the interface listens on. None: the instance's `host`."""
    port: Port | None = None
    """Port that an instance's interface listens on; 0: a free one. To be given for an instance."""
    advertised: str = ""
    """Address `host:port` by which people and other instances reach the interface. Empty: the
    address that it listens on."""
    statistics_file: Annotated[str, Field(min_length=1)] = STATISTICS_FILE
    """File of the statistics database. A relative path is taken from the instance's data directory;
    `:memory:` keeps the statistics in memory, until the process ends."""
    interval_ms: Annotated[Milliseconds, Field(ge=INTERVAL_MS_MIN)] = INTERVAL_MS_DEFAULT
    """Time between two samples of the statistics."""
    retention_ms: Annotated[Milliseconds, Field(gt=0)] = RETENTION_MS_DEFAULT
    """Age from which samples are removed."""
    file_bytes_max: Annotated[Bytes, Field(gt=0)] = FILE_BYTES_MAX_DEFAULT
    """Most bytes of the statistics. Beyond them the oldest samples are removed."""
    host_names: tuple[str, ...] = ()
    """Names, besides addresses and `localhost`, by which browsers may call the interface."""
    get_actions: bool = False
    """Whether a GET request may perform an action, as documented. A page of another site can send
    one: see docs/deviations.md."""
    anonymous_paths: str = ""
    """Regular expression of paths that need no logon, such as `^/amps/instance/replication`. Empty:
    no such paths."""
    headers: tuple[str, ...] = ()
    """Further headers of every answer, as `Name: value`."""
    allow_origin: str = ""
    """Regular expression of the origins whose pages may read answers. Empty: none."""
    session_ms: Annotated[Milliseconds, Field(gt=0)] = SESSION_MS_DEFAULT
    """Time after which a browser logs on again."""
    www_authenticate: str = WWW_AUTHENTICATE_DEFAULT
    """Value of the header that asks a browser for a user and a password."""
    console: bool = True
    """Whether the console is served at `/`."""
    tls: TlsChoice = None
    """TLS settings of the interface. None: the instance's settings."""

    def interface_values(self) -> dict[str, Any]:
        """Returns the settings of the interface that differ from their defaults, by name."""
        return {
            name: getattr(self, name)
            for name, field in type(self).model_fields.items()
            if name not in MODULES and getattr(self, name) != field.default
        }

    @property
    def names_module(self) -> bool:
        """Returns whether a module is named that says who a caller is, or what a caller may do."""
        return self.authentication is not None or self.entitlement is not None

    @property
    def serves(self) -> bool:
        """True if an instance with these settings has the interface."""
        return self.port is not None if self.enabled is None else self.enabled


def _given(value: object) -> object:
    # A section without anything in it is one all the same: it must not mean that no module is
    # asked.
    return {} if value is None else value


Admin = Annotated[AdminSettings | None, BeforeValidator(_given)]
"""Admin settings, as a file has them."""
