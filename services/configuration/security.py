"""The model of modules: who is let in, what he may do, what a link says of itself."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from raylay.services.configuration.fields import Section
from raylay.services.security.control import AdminConfig
from raylay.services.security.modules import ModuleConfig

MODULES = (
    *("authentication", "entitlement"),
    *("replication_authentication", "replication_entitlement", "authenticator"),
)
"""Module options of a fabric and of an instance."""
FILES = frozenset(("File", "SecretFile", "PublicKeyFile", "PasswordFileName"))
"""Options that name a file."""


def _texts(value: object) -> object:
    # What YAML reads as a number or as true is a text to a module.
    if not isinstance(value, Mapping):
        return value
    return {
        name: str(each).lower() if isinstance(each, bool) else str(each)
        for name, each in value.items()
        if each is not None
    }


class ModuleSettings(Section):
    """A module, by its name or with options."""

    module: Annotated[str, Field(min_length=1)]
    options: Annotated[dict[str, str], BeforeValidator(_texts)] = Field(default={})

    def __repr_args__(self) -> Any:
        yield "module", self.module
        yield "options", ModuleConfig(self.module, self.options).shown()

    def config(self, directory: Path) -> ModuleConfig:
        """Returns the configuration that an instance reads. A relative path is taken from the
        directory, and `~` is the home of who starts the fabric."""
        return ModuleConfig(
            self.module,
            {
                name: str(directory / os.path.expanduser(value)) if name in FILES else value
                for name, value in self.options.items()
            },
        )


def _module(value: object) -> object:
    return {"module": value} if isinstance(value, str) else value


ModuleLike = str | Mapping[str, Any] | ModuleSettings
"""A module as a script gives it."""
Module = Annotated[ModuleSettings, BeforeValidator(_module)]


class AdminSettings(Section):
    """The authorization of control calls. Settings that it leaves out are those of the instance's
    clients."""

    authentication: Module | None = None
    """The authentication module. None: as the instance's `authentication` says."""
    entitlement: Module | None = None
    """The entitlement module. None: as the instance's `entitlement` says."""

    def config(self, directory: Path) -> AdminConfig:
        """Returns the configuration that an instance reads. A relative path is taken from the
        directory."""
        who, what = self.authentication, self.entitlement
        return AdminConfig(
            None if who is None else who.config(directory),
            None if what is None else what.config(directory),
        )


def _given(value: object) -> object:
    # A section without anything in it is one all the same: it must not mean that nobody is asked.
    return {} if value is None else value


Admin = Annotated[AdminSettings | None, BeforeValidator(_given)]
"""Admin settings, as a file has them."""
