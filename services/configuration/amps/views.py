"""Translation of `SOW/View` and `SOW/ConflatedTopic`: their settings, their errors, and why one
does not run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from pydantic import ValidationError

from raylay.services.configuration.amps.message_types import definitions
from raylay.services.configuration.amps.model import AmpsConfig
from raylay.services.configuration.amps.queues import defined_queues
from raylay.services.configuration.amps.sow import ConflatedTopicStanza, ViewStanza
from raylay.services.configuration.amps.sow_topics import not_running, settings_of
from raylay.services.configuration.builder import explain
from raylay.services.configuration.sow_topics import SowTopicSettings
from raylay.services.configuration.views import ConflatedTopicSettings, ViewSettings
from raylay.services.errors import ConfigurationError
from raylay.services.plugins.definition_problem import DefinitionProblem
from raylay.services.plugins.views import conflated_problems, view_problems
from raylay.services.sow.definition import SowTopicDefinition
from raylay.services.views.definition import ConflatedTopicDefinition, ViewDefinition

MILLISECOND_NS = 1_000_000
Under = SowTopicDefinition | ViewDefinition | ConflatedTopicDefinition
_ELEMENTS = {
    "name": "Name",
    "message_type": "MessageType",
    "topic": "UnderlyingTopic",
    "joins": "UnderlyingTopic",
    "projection": "Projection",
    "grouping": "Grouping",
    "filter": "Filter",
    "hash_indexes": "HashIndex",
    "enrichment": "Enrichment",
    "topic_format": "TopicFormat",
}
"""Elements that stand for a value of the settings."""


def view_settings(view: ViewStanza) -> dict[str, Any]:
    """Returns the view as a fabric's file declares it."""
    return {
        "name": view.name,
        "message_type": view.message_type,
        "topic": view.underlying.topic or "",
        "joins": view.underlying.joins,
        "projection": view.projection.fields_,
        "grouping": view.grouping.fields_ if view.grouping else (),
        "key_domain": view.key_domain or "",
        "conflation": view.conflation,
        "filter": view.filter or "",
        "hash_indexes": tuple(index.keys for index in view.hash_indexes),
        "join_null_equivalency": view.join_null_equivalency,
    }


def conflated_settings(topic: ConflatedTopicStanza) -> dict[str, Any]:
    """Returns the conflated topic as a fabric's file declares it."""
    return {
        "name": topic.name,
        "message_type": topic.message_type,
        "topic": topic.underlying_topic,
        "interval": f"{-(-topic.interval_ns // MILLISECOND_NS)}ms",
        "filter": topic.filter or "",
        "hash_indexes": tuple(index.keys for index in topic.hash_indexes),
        "enrichment": topic.enrichment.fields_ if topic.enrichment else (),
        "topic_format": topic.topic_format or "",
    }


class JudgedView(NamedTuple):
    """A view or a conflated topic of a file, as it would run.

    Attributes:
        kind: name of the element that declares it, `View` or `ConflatedTopic`.
        number: its number among the elements of this kind in the file.
        settings: its settings, as a fabric's file in YAML would declare them.
        element: name of the element below it that has the problem; empty: none of them has.
        problem: reason why it cannot run; empty: it runs.
        is_wrong: whether the file is wrong; False: the file is right, but names something that does
            not run here.
    """

    kind: str
    number: int
    name: str
    settings: dict[str, Any]
    element: str = ""
    problem: str = ""
    is_wrong: bool = False


def judged_views(config: AmpsConfig) -> list[JudgedView]:
    """Returns each view of a configuration, and then each conflated topic, in the order in which
    the file has them.

    Raises:
        ConfigurationError: what is installed beside Raylay cannot be used.
    """
    sow = config.sow
    if sow is None or not (sow.views or sow.conflated_topics):
        return []
    every = [
        SowTopicSettings.model_validate(settings_of(topic)).definition() for topic in sow.topics
    ]
    running = [
        definition
        for topic, definition in zip(sow.topics, every, strict=True)
        if not not_running(topic, config)
    ]
    judge = _Judge(config, running, every)
    for number, view in sorted(enumerate(sow.views), key=lambda each: each[1].position):
        judge.view("View", number, view.name, view_settings(view))
    for number, topic in enumerate(sow.conflated_topics):
        judge.conflated("ConflatedTopic", number, topic.name, conflated_settings(topic))
    return judge.found


class _Judge:
    """Judges views and conflated topics one after the other.

    Args:
        running: the SOW topics that run.
        every: all SOW topics of the file.
    """

    def __init__(
        self,
        config: AmpsConfig,
        running: list[SowTopicDefinition],
        every: list[SowTopicDefinition],
    ) -> None:
        self._types = definitions(config)
        self._queues = defined_queues(config)
        self._running = running
        self._every = every
        self._views: list[ViewDefinition] = []
        self._written: list[ViewDefinition] = []
        self._conflated: list[ConflatedTopicDefinition] = []
        self._conflated_written: list[ConflatedTopicDefinition] = []
        self.found: list[JudgedView] = []

    def view(self, kind: str, number: int, name: str, settings: dict[str, Any]) -> None:
        try:
            definition = ViewSettings.model_validate(settings).definition()
        except ValidationError as error:
            self._contradicts(kind, number, name, settings, *explain(error, ViewSettings)[0])
            return
        queues, types = self._queues, self._types
        problems = view_problems(definition, self._running, self._views, types, queues)
        wrong = problems and view_problems(definition, self._every, self._written, types, queues)
        self._written.append(definition)
        if not problems:
            self._views.append(definition)
        self._judged(kind, number, name, settings, problems, bool(wrong))

    def conflated(self, kind: str, number: int, name: str, settings: dict[str, Any]) -> None:
        try:
            definition = ConflatedTopicSettings.model_validate(settings).definition()
        except ValidationError as error:
            found = explain(error, ConflatedTopicSettings)[0]
            self._contradicts(kind, number, name, settings, *found)
            return
        before: list[Under] = [*self._running, *self._views, *self._conflated]
        problems = conflated_problems(definition, before, self._types)
        before = [*self._every, *self._written, *self._conflated_written]
        wrong = problems and conflated_problems(definition, before, self._types)
        self._conflated_written.append(definition)
        if not problems:
            self._conflated.append(definition)
        self._judged(kind, number, name, settings, problems, bool(wrong))

    def _contradicts(
        self, kind: str, number: int, name: str, settings: dict[str, Any], path: Any, text: str
    ) -> None:
        element = _ELEMENTS.get(str(path[0]) if path else "", "")
        self.found.append(JudgedView(kind, number, name, settings, element, text, True))

    def _judged(
        self,
        kind: str,
        number: int,
        name: str,
        settings: dict[str, Any],
        problems: list[DefinitionProblem],
        is_wrong: bool,
    ) -> None:
        text = problems[0].text if problems else ""
        self.found.append(JudgedView(kind, number, name, settings, "", text, is_wrong))


def running_views(config: AmpsConfig) -> dict[str, list[dict[str, Any]]]:
    """Returns the settings of the views and conflated topics that run, in order."""
    running = [each for each in judged_views(config) if not each.problem]
    return {
        "views": [each.settings for each in running if each.kind == "View"],
        "conflated_topics": [each.settings for each in running if each.kind != "View"],
    }


def view_texts(config: AmpsConfig) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yields the place in `SOW` and the text of each error in views and conflated topics."""
    try:
        judged = judged_views(config)
    except (ConfigurationError, ValidationError):
        # A topic that is wrong itself already has an error of its own.
        return
    for each in judged:
        if each.is_wrong:
            more = (each.element,) if each.element else ()
            what = "view" if each.kind == "View" else "conflated topic"
            yield (each.kind, each.number, *more), f"{what} {each.name}: {each.problem}"


def not_running_views(config: AmpsConfig) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yields the place in `SOW` of each view and conflated topic that is right and does not run
    here, and why."""
    for each in judged_views(config):
        if each.problem:
            text = f"{each.kind} {each.name} of SOW does not run here: {each.problem}"
            yield (each.kind, each.number), text
