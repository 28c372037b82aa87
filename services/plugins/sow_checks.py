"""Whether the SOW topics of a configuration can run.

Who has none loads neither the language nor the parsers of message types.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

from raylay.services.errors import ConfigurationError, ExpressionError, MessageTypeError
from raylay.services.messages.topics import compile_regex
from raylay.services.messages.types.definitions import TypeDefinition
from raylay.services.plugins.key_generators import key_generator
from raylay.services.plugins.message_types import plugins
from raylay.services.sow.definition import SowTopicDefinition


class SowProblem(NamedTuple):
    """Why a SOW topic cannot run.

    Attributes:
        place: the value of the definition, and the number in it from 0 where it is a list.
        text: what is wrong and what to do, without the place.
    """

    place: tuple[str | int, ...]
    text: str


def sow_problems(
    definition: SowTopicDefinition, types: Iterable[TypeDefinition] = ()
) -> list[SowProblem]:
    """What is wrong with a SOW topic beyond what its values say of each other; empty: nothing.

    Args:
        types: that the configuration defines.

    Raises:
        ConfigurationError: what is installed beside Raylay cannot be used.
    """
    from raylay.services.messages.types.abilities import Ability
    from raylay.services.messages.types.registry import MessageTypes
    from raylay.services.messages.types.trees import field_path
    from raylay.services.plugins.functions import functions
    from raylay.services.sow.enrichment import ENRICHMENT, PREPROCESSING, Enrichment

    types = list(types)
    try:
        kind = MessageTypes(types, plugins(each.kind for each in types))[definition.message_type]
    except MessageTypeError as error:
        return [SowProblem(("message_type",), str(error))]
    found: list[SowProblem] = []
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
            found.append(SowProblem(place, str(error)))
    if definition.key_generator:
        try:
            key_generator(definition.key_generator, definition.key_generator_options)
        except ConfigurationError as error:
            found.append(SowProblem(("key_generator",), str(error)))
    if definition.pattern:
        try:
            compile_regex(definition.pattern, "pattern")
        except ConfigurationError as error:
            found.append(SowProblem(("pattern",), str(error)))
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
                found.append(SowProblem((name, number), f"{text[:200]!r}, {error}"))
            except MessageTypeError as error:
                found.append(SowProblem((name, number), str(error)))
    return found


def _key_that_changes(
    definition: SowTopicDefinition, number: int, paths: Iterable[tuple[str, ...]]
) -> list[SowProblem]:
    """The key is made before, and again of what is stored."""
    from raylay.services.messages.types.trees import field_path

    for key in definition.keys:
        with suppress(MessageTypeError):
            wanted = field_path(key)
            if any(path == wanted[: len(path)] or path[: len(wanted)] == wanted for path in paths):
                text = f"it sets the key field {key}: do that in preprocessing"
                return [SowProblem(("enrichment", number), text)]
    return []
