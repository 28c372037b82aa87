"""The check that the SOW topics of a configuration can run.

Without SOW topics, neither the language nor the parsers of message types are loaded.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from raylay.services.errors import ConfigurationError, ExpressionError, MessageTypeError
from raylay.services.messages.topics import compile_regex
from raylay.services.messages.types.definitions import TypeDefinition
from raylay.services.plugins.definition_problem import DefinitionProblem
from raylay.services.plugins.key_generators import key_generator
from raylay.services.plugins.message_types import installed_types
from raylay.services.sow.definition import SowTopicDefinition


def sow_problems(
    definition: SowTopicDefinition, types: Iterable[TypeDefinition] = ()
) -> list[DefinitionProblem]:
    """Returns the problems of a SOW topic beyond contradictions between its values; empty: none.

    Args:
        types: message types that the configuration defines.

    Raises:
        ConfigurationError: what is installed beside Raylay cannot be used.
    """
    from raylay.services.messages.types.abilities import Ability
    from raylay.services.messages.types.trees import field_path
    from raylay.services.plugins.functions import functions
    from raylay.services.sow.enrichment import ENRICHMENT, PREPROCESSING, Enrichment

    try:
        kind = installed_types(types)[definition.message_type]
    except MessageTypeError as error:
        return [DefinitionProblem(("message_type",), str(error))]
    found: list[DefinitionProblem] = []
    identifiers: list[tuple[tuple[str | int, ...], str]] = [
        (("keys", number), each) for number, each in enumerate(definition.keys)
    ]
    for number, index in enumerate(definition.hash_indexes):
        identifiers += [(("hash_indexes", number), each) for each in index]
    for place, identifier in identifiers:
        try:
            kind.require(Ability.FIELDS)
            field_path(identifier)
        except MessageTypeError as error:
            found.append(DefinitionProblem(place, str(error)))
    if definition.key_generator:
        try:
            key_generator(definition.key_generator, definition.key_generator_options)
        except ConfigurationError as error:
            found.append(DefinitionProblem(("key_generator",), str(error)))
    if definition.pattern:
        try:
            compile_regex(definition.pattern, "")
        except ConfigurationError as error:
            found.append(DefinitionProblem(("pattern",), str(error).removeprefix(": ")))
    for name, texts, use in (
        ("preprocessing", definition.preprocessing, PREPROCESSING),
        ("enrichment", definition.enrichment, ENRICHMENT),
    ):
        for number, text in enumerate(texts):
            try:
                made = Enrichment([text], kind, functions(), use)
                if use is ENRICHMENT:
                    found += _key_that_changes(definition, number, made.paths)
            except ExpressionError as error:
                found.append(DefinitionProblem((name, number), f"{text[:200]!r}, {error}"))
            except MessageTypeError as error:
                found.append(DefinitionProblem((name, number), str(error)))
    return found


def _key_that_changes(
    definition: SowTopicDefinition, number: int, paths: Iterable[tuple[str, ...]]
) -> list[DefinitionProblem]:
    """Returns a problem where enrichment sets a key field: the key is made before enrichment, and
    again from the stored message."""
    from raylay.services.messages.types.trees import field_path

    for key in definition.keys:
        with suppress(MessageTypeError):
            wanted = field_path(key)
            if any(path == wanted[: len(path)] or path[: len(wanted)] == wanted for path in paths):
                text = f"it sets the key field {key}: do that in preprocessing"
                return [DefinitionProblem(("enrichment", number), text)]
    return []
