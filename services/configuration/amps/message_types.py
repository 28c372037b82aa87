"""The `MessageTypes` stanza: types of a name of their own (behaviour.md 6)."""

from __future__ import annotations

from typing import Any

from raylay.services.configuration.amps.model import AmpsConfig, MessageTypeStanza
from raylay.services.configuration.message_types import check_types
from raylay.services.errors import ConfigurationError
from raylay.services.messages.types.definitions import KIND_NAMES, REFUSED, TypeDefinition

_ONE = {
    "FieldSeparator": "field_separator",
    "HeaderSeparator": "header_separator",
    "MessageSeparator": "message_separator",
}
_MANY = {"MessageType": "parts", "Field": "fields"}
_NOTHING = frozenset(("EarlyTerminationOptimization",))
"""A message is always parsed whole."""


def definitions(config: AmpsConfig) -> list[TypeDefinition]:
    """Returns the message types of a file whose modules Raylay knows. Of other types only the name
    is known, and their bodies cannot be read."""
    stanzas = config.message_types.message_types if config.message_types else ()
    return [
        definition(each) for each in stanzas if not unsupported(each) and each.module in KIND_NAMES
    ]


def definition(stanza: MessageTypeStanza) -> TypeDefinition:
    """Returns the definition in a stanza; unknown options keep their names."""
    options: dict[str, Any] = {}
    for entry in stanza.options.entries:
        if entry.name in _MANY:
            held = options.setdefault(_MANY[entry.name], [])
            held.append(entry.value)
        elif entry.name not in _NOTHING:
            options[_ONE.get(entry.name, entry.name)] = entry.value
    return TypeDefinition(stanza.name, stanza.module, options)


def unsupported(stanza: MessageTypeStanza) -> str:
    """Returns why a type does not run; empty: it does."""
    if stanza.module in REFUSED:
        return f"message type {stanza.name}: there is no {stanza.module}: {REFUSED[stanza.module]}"
    if stanza.module == "protobuf":
        return (
            f"message type {stanza.name}: .proto files are not compiled: write descriptors with "
            "protoc, and declare the fabric in YAML (docs/message-types.md)"
        )
    return ""


def problem(found: list[TypeDefinition]) -> str:
    """Returns the fault of the last of some definitions; empty: there is none."""
    try:
        check_types(found)
    except ConfigurationError as error:
        return str(error)
    return ""
