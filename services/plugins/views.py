"""The views of a configuration, compiled with the installed message types and functions.

Without views, neither the language nor the folds are loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from raylay.services.errors import (
    ConfigurationError,
    ExpressionError,
    MessageTypeError,
    RemoteProtocolError,
)
from raylay.services.messages.types.definitions import TypeDefinition
from raylay.services.plugins.definition_problem import DefinitionProblem
from raylay.services.plugins.message_types import installed_types
from raylay.services.sow.book import SowBook
from raylay.services.sow.definition import SowTopicDefinition
from raylay.services.views.definition import ConflatedTopicDefinition, ViewDefinition

if TYPE_CHECKING:
    from raylay.services.core.queue_source import QueueSource
    from raylay.services.core.views import ViewFeature
    from raylay.services.queues.definition import QueueDefinition
    from raylay.services.sow.topic import SowTopic
    from raylay.services.views.aggregated import AggregatedQueues, AggregatedViews
    from raylay.services.views.conflated_topic import ConflatedTopic
    from raylay.services.views.sources import SourceTopic


def view_problems(
    definition: ViewDefinition,
    topics: Iterable[SowTopicDefinition],
    before: Iterable[ViewDefinition],
    types: Iterable[TypeDefinition] = (),
    queues: Iterable[QueueDefinition] = (),
) -> list[DefinitionProblem]:
    """Returns the problems of a view beyond contradictions between its values; empty: none.

    Args:
        topics: the SOW topics of the instance.
        before: the views that are defined before this one.
        types: message types that the configuration defines.
        queues: the queues of the instance.

    Raises:
        ConfigurationError: what is installed beside Raylay cannot be used.
    """
    from raylay.services.plugins.functions import functions
    from raylay.services.views.sources import SourceTopic
    from raylay.services.views.view import view_plan

    known = [SourceTopic(each.message_type, each.name) for each in topics if not each.pattern]
    known += [SourceTopic(each.message_type, each.name) for each in before]
    known += [SourceTopic(each.message_type, each.name) for each in queues]
    try:
        view_plan(definition, installed_types(types), known, functions())
    except ExpressionError as error:
        return [DefinitionProblem((), f"{error.expression[:200]!r}: {error}")]
    except MessageTypeError as error:
        return [DefinitionProblem(("message_type",), str(error))]
    return []


def with_views(
    book: SowBook,
    definitions: Sequence[ViewDefinition],
    types: Iterable[TypeDefinition],
    queues: Iterable[QueueDefinition] = (),
) -> tuple[SowBook, ViewFeature, dict[str, QueueSource]]:
    """Returns the topics of an instance with its views among them, the views as a feature of the
    folds, and the queues that views are over, by `QueueDefinition.stored_as`.

    Args:
        book: the SOW topics.
        definitions: the views, each behind those that it is over.
        types: message types of the configuration.
        queues: the queues.

    Raises:
        ConfigurationError: a definition cannot be used; names the view.
    """
    from raylay.services.core.queue_source import QueueSource
    from raylay.services.core.views import ViewFeature
    from raylay.services.plugins.functions import functions
    from raylay.services.views.sources import SourceTopic
    from raylay.services.views.view import View, view_plan

    kinds = installed_types(types)
    known = _by_name(book.topics)
    of_queues = {SourceTopic(each.message_type, each.name): each for each in queues}
    sources: dict[str, QueueSource] = {}
    views: list[View] = []
    for definition in definitions:
        try:
            plan = view_plan(definition, kinds, {**of_queues, **known}, functions())
        except ExpressionError as error:
            raise ConfigurationError(
                f"view {definition.name}: {error.expression[:200]!r}, {error}"
            ) from None
        except MessageTypeError as error:
            raise ConfigurationError(f"view {definition.name}: {error}") from None
        for each in plan.sources.joined:
            if each.topic not in known:
                queue = of_queues[each.topic]
                source = QueueSource(queue, kinds[queue.message_type])
                sources[queue.stored_as] = source
                known[each.topic] = source.topic
        view = View(plan, kinds, [known[each.topic] for each in plan.sources.joined])
        known[SourceTopic(definition.message_type, definition.name)] = view.topic
        views.append(view)
    made = SowBook(book.topics, [view.topic for view in views])
    return made, ViewFeature(views), sources


def aggregated_views(
    book: SowBook,
    types: Iterable[TypeDefinition],
    enlist: Callable[[bool], None],
    wake: Callable[[], None],
    queues: AggregatedQueues | None = None,
) -> AggregatedViews:
    """Returns the views without a name of an instance, none at first.

    Args:
        book: the SOW topics, views and conflated topics.
        types: message types of the configuration.
        enlist: enlists the views as a feature of the folds (True), or ends that.
        wake: called when there is something to build.
        queues: the queues; None: there are none.

    Raises:
        RemoteProtocolError: what is installed beside Raylay cannot be used: the client is told.
    """
    from raylay.services.plugins.functions import functions
    from raylay.services.views.aggregated import AggregatedViews

    try:
        kinds, known = installed_types(types), functions()
    except (ConfigurationError, MessageTypeError) as error:
        raise RemoteProtocolError(f"nothing can be aggregated: {error}", "not_supported") from None
    return AggregatedViews(kinds, book.find, known, enlist, wake, queues=queues)


def _by_name(topics: Iterable[SowTopic]) -> dict[SourceTopic, SowTopic]:
    """Returns the topics that a view may be over, by type and name."""
    from raylay.services.views.sources import SourceTopic

    return {
        SourceTopic(each.definition.message_type, each.definition.name): each
        for each in topics
        if not each.definition.pattern
    }


def conflated_problems(
    definition: ConflatedTopicDefinition,
    before: Iterable[SowTopicDefinition | ViewDefinition | ConflatedTopicDefinition],
    types: Iterable[TypeDefinition] = (),
) -> list[DefinitionProblem]:
    """Returns the problems of a conflated topic beyond its interval; empty: none.

    Args:
        before: the SOW topics and views of the instance, and the conflated topics before this one.
        types: message types that the configuration defines.

    Raises:
        ConfigurationError: what is installed beside Raylay cannot be used.
    """
    from raylay.services.plugins.functions import functions
    from raylay.services.views.conflated_topic import conflated_plan
    from raylay.services.views.sources import SourceTopic

    known = {
        SourceTopic(each.message_type, each.name): ""
        if isinstance(each, ViewDefinition)
        else each.pattern
        for each in before
    }
    try:
        conflated_plan(definition, installed_types(types), known, functions())
    except ExpressionError as error:
        return [DefinitionProblem((), f"{error.expression[:200]!r}: {error}")]
    except MessageTypeError as error:
        return [DefinitionProblem(("message_type",), str(error))]
    return []


def with_conflated_topics(
    book: SowBook,
    definitions: Sequence[ConflatedTopicDefinition],
    types: Iterable[TypeDefinition],
) -> tuple[SowBook, tuple[ConflatedTopic, ...]]:
    """Returns the topics of an instance with its conflated topics among them.

    Args:
        book: the SOW topics and views.
        definitions: the conflated topics, each behind those that it is over.
        types: message types of the configuration.

    Raises:
        ConfigurationError: a definition cannot be used; names the topic.
    """
    from raylay.services.plugins.functions import functions
    from raylay.services.views.conflated_topic import ConflatedTopic, conflated_plan
    from raylay.services.views.sources import SourceTopic

    kinds = installed_types(types)
    known = {
        SourceTopic(each.definition.message_type, each.definition.name): each for each in book.every
    }
    made: list[ConflatedTopic] = []
    for definition in definitions:
        try:
            patterns = {source: topic.definition.pattern for source, topic in known.items()}
            plan = conflated_plan(definition, kinds, patterns, functions())
        except (ExpressionError, MessageTypeError) as error:
            raise ConfigurationError(f"conflated topic {definition.name}: {error}") from None
        under = known[SourceTopic(definition.message_type, definition.topic)]
        topic = ConflatedTopic(plan, under)
        known[SourceTopic(definition.message_type, definition.name)] = topic.topic
        made.append(topic)
    computed = [*book.computed, *(each.topic for each in made)]
    return SowBook(book.topics, computed), tuple(made)
