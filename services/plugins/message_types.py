"""The kinds of message types that are installed."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from raylay.services.errors import ConfigurationError
from raylay.services.messages.types.definitions import (
    ENTRY_POINTS,
    KIND_NAMES,
    TypeDefinition,
)

if TYPE_CHECKING:
    from raylay.services.messages.types.registry import MessageTypes


def plugins(kinds: Iterable[str]) -> dict[str, Any]:
    """Returns the factories of those kinds that are not built in, from Python's entry points.

    Raises:
        ConfigurationError: an entry point cannot be loaded; names it.
    """
    wanted = set(kinds) - KIND_NAMES
    found: dict[str, Any] = {}
    for entry in entry_points(group=ENTRY_POINTS) if wanted else ():
        if entry.name in wanted:
            try:
                found[entry.name] = entry.load()
            except Exception as error:
                raise ConfigurationError(
                    f"the entry point {entry.name} ({entry.value}) cannot be loaded: {error}"
                ) from None
    return found


def installed_types(definitions: Iterable[TypeDefinition]) -> MessageTypes:
    """Returns the message types that a configuration defines, with the built-in ones.

    Raises:
        ConfigurationError: as `plugins`.
        MessageTypeError: a definition cannot be used.
    """
    # Imported late: otherwise every reader of a configuration would load every parser.
    from raylay.services.messages.types.registry import MessageTypes

    definitions = list(definitions)
    return MessageTypes(definitions, plugins(definition.kind for definition in definitions))
