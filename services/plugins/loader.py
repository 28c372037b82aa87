"""The module that a configuration names: built in, or from an installed package."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import entry_points
from typing import Any, TypeVar

from raylay.services.errors import ConfigurationError
from raylay.services.security.modules import ModuleConfig

Module = TypeVar("Module")


def load_module(
    group: str,
    config: ModuleConfig,
    where: str,
    built_in: Mapping[str, Callable[[ModuleConfig, str], Module]],
) -> Module:
    """Returns the module, made with its options.

    Args:
        group: group of the entry points for installed modules.
        where: place in the configuration.
        built_in: makes a built-in module, by name.

    Raises:
        ConfigurationError: no module has that name, or it cannot be used with these options; the
            error says why.
    """
    make = built_in.get(config.module)
    if make is not None:
        return make(config, where)
    found: Module = load_installed(group, config, where, built_in)
    return found


def load_installed(group: str, config: ModuleConfig, where: str, built_in: Iterable[str]) -> Any:
    """Returns the module of an installed package.

    Raises:
        ConfigurationError: none has that name, or it cannot be loaded or made.
    """
    found = entry_points(group=group, name=config.module)
    if not found:
        there_are = sorted({*built_in, *(each.name for each in entry_points(group=group))})
        raise ConfigurationError(
            f"{where}: there is no module {config.module!r}: there are {', '.join(there_are)}; "
            f"others are installed by entry points of the group {group}"
        )
    (entry,) = list(found)[:1]
    try:
        return entry.load()(dict(config.options))
    except Exception as error:
        raise ConfigurationError(
            f"{where}: the module {entry.name} of the installed {entry.value} cannot be used "
            f"({type(error).__name__}: {error})"
        ) from error
