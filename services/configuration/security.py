"""The model of modules: who is let in, what he may do, what a link says of itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator

from raylay.services.configuration.fields import Section
from raylay.services.security.modules import ModuleConfig

MODULES = (
    *("authentication", "entitlement"),
    *("replication_authentication", "replication_entitlement", "authenticator"),
)
"""Module options of a fabric and of an instance."""


def _module(value: object) -> object:
    if isinstance(value, str):
        return {"module": value}
    if isinstance(value, Mapping) and isinstance(value.get("options"), Mapping):
        # What YAML reads as a number or as true is a text to a module.
        options = {
            name: str(each).lower() if isinstance(each, bool) else str(each)
            for name, each in value["options"].items()
            if each is not None
        }
        return {**value, "options": options}
    return value


def _named(value: ModuleConfig) -> ModuleConfig:
    if not value.module:
        raise ValueError("expected the name of a module")
    return value


ModuleLike = str | Mapping[str, Any] | ModuleConfig
"""A module as a script gives it: its name, or its name with options."""
Module = Annotated[ModuleConfig, BeforeValidator(_module), AfterValidator(_named)]


class AdminSettings(Section):
    """The authorization of control calls. Settings that it leaves out are those of the instance's
    clients."""

    authentication: Module | None = None
    """Module that decides which users may log on to control the instance. None: the instance's
    `authentication`."""
    entitlement: Module | None = None
    """Module that decides what these users may do. None: the instance's `entitlement`."""


def _given(value: object) -> object:
    # A section without anything in it is one all the same: it must not mean that nobody is asked.
    return {} if value is None else value


Admin = Annotated[AdminSettings | None, BeforeValidator(_given)]
"""Admin settings, as a file has them."""
