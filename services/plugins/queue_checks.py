"""The check that the queues of a configuration can run.

Without queues, neither the language nor the parsers of message types are loaded.
"""

from __future__ import annotations

from collections.abc import Iterable

from raylay.services.errors import ConfigurationError, ExpressionError, MessageTypeError
from raylay.services.messages.topics import compile_regex, is_regex
from raylay.services.messages.types.definitions import TypeDefinition
from raylay.services.plugins.definition_problem import DefinitionProblem
from raylay.services.plugins.message_types import installed_types
from raylay.services.queues.definition import QueueDefinition


def queue_problems(
    definition: QueueDefinition, types: Iterable[TypeDefinition] = ()
) -> list[DefinitionProblem]:
    """Returns the problems of a queue beyond contradictions between its values; empty: none.

    Args:
        types: message types that the configuration defines.

    Raises:
        ConfigurationError: what is installed beside Raylay cannot be used.
    """
    found = list(_topics(definition))
    texts = [
        (name, text)
        for name in ("filter", "priority", "barrier")
        if (text := getattr(definition, name))
    ]
    if texts or types:
        found += _expressions(definition.message_type, texts, list(types))
    return found


def letter_circle(definition: QueueDefinition, queues: Iterable[QueueDefinition]) -> list[str]:
    """Returns the names of other queues through which the dead letters of a queue would come back
    to it; empty: they do not."""
    takers = [queue for queue in queues if queue.message_type == definition.message_type]
    ways = [[definition]]
    seen = {definition.name}
    while ways:
        way = ways.pop()
        letters = way[-1].dead_letters
        for taker in takers:
            if not letters or not _takes(taker, letters):
                continue
            if taker.name == definition.name:
                return [each.name for each in way[1:]]
            if taker.name not in seen:
                seen.add(taker.name)
                ways.append([*way, taker])
    return []


def _takes(queue: QueueDefinition, topic: str) -> bool:
    """Returns whether messages of a topic may be in a queue."""
    if not is_regex(queue.topic):
        return topic == queue.topic
    try:
        return bool(compile_regex(queue.topic, "").search(topic))
    except ConfigurationError:
        return False  # The check of the queue itself reports that.


def _topics(definition: QueueDefinition) -> Iterable[DefinitionProblem]:
    topic, target = definition.topic, definition.target
    if is_regex(topic):
        try:
            takes = compile_regex(topic, "")
        except ConfigurationError as error:
            yield DefinitionProblem(("underlying",), str(error).removeprefix(": "))
            return
        fits = bool(takes.search(target))
        if definition.dead_letters and takes.search(definition.dead_letters):
            yield DefinitionProblem(
                ("dead_letters",),
                f"{definition.dead_letters} is of the underlying topic {topic}: dead letters would "
                "be in the queue again. Name a topic that it does not match",
            )
    else:
        fits = topic == target
    if is_regex(target):
        yield DefinitionProblem(("publish_target",), f"{target} is an expression: name one topic")
    elif not fits:
        yield DefinitionProblem(
            ("publish_target",),
            f"{target} is not of the underlying topic {topic}: what is published to the queue "
            "would not be in it",
        )


def _expressions(
    message_type: str, texts: list[tuple[str, str]], types: list[TypeDefinition]
) -> Iterable[DefinitionProblem]:
    from raylay.services.expressions.expression import REPLICATION, expression
    from raylay.services.messages.types.abilities import Ability
    from raylay.services.plugins.functions import functions

    try:
        kind = installed_types(types)[message_type]
    except MessageTypeError as error:
        yield DefinitionProblem(("message_type",), str(error))
        return
    for name, text in texts:
        try:
            kind.require(Ability.FIELDS)
            expression(text, REPLICATION, functions())
        except ExpressionError as error:
            yield DefinitionProblem((name,), f"{text[:200]!r}, {error}")
        except MessageTypeError as error:
            yield DefinitionProblem((name,), str(error))
