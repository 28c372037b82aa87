"""The model of modules: they decide which users are let in and what each may do, and give the
credentials of links."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator

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
