"""Translation of `SOW/View` to a view of Raylay: its settings, its errors, and why one does not
run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from pydantic import ValidationError

from raylay.services.configuration.amps.message_types import definitions
from raylay.services.configuration.amps.model import AmpsConfig
from raylay.services.configuration.amps.sow import ViewStanza
from raylay.services.configuration.amps.sow_topics import not_running, settings_of
from raylay.services.configuration.builder import explain
from raylay.services.configuration.sow_topics import SowTopicSettings
from raylay.services.configuration.views import ViewSettings
from raylay.services.errors import ConfigurationError
from raylay.services.plugins.views import view_problems
from raylay.services.views.definition import ViewDefinition

_ELEMENTS = {
    "name": "Name",
    "message_type": "MessageType",
    "topic": "UnderlyingTopic",
    "joins": "UnderlyingTopic",
    "projection": "Projection",
    "grouping": "Grouping",
    "filter": "Filter",
    "hash_indexes": "HashIndex",
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


class JudgedView(NamedTuple):
    """A view of a file, as it would run.

    Attributes:
        definition: its definition; None: it contradicts itself.
        element: name of the element that has the problem; empty: the view.
        problem: reason why it cannot run; empty: it runs.
        is_wrong: whether the file itself is wrong, and not only what it names does not run here.
    """

    view: ViewStanza
    definition: ViewDefinition | None
    element: str = ""
    problem: str = ""
    is_wrong: bool = False


def judged_views(config: AmpsConfig) -> Iterator[JudgedView]:
    """Yields each view of a configuration, in the order in which the file has them.

    Raises:
        ConfigurationError: what is installed beside Raylay cannot be used.
    """
    sow = config.sow
    if sow is None or not sow.views:
        return
    every = [
        SowTopicSettings.model_validate(settings_of(topic)).definition() for topic in sow.topics
    ]
    topics = [
        definition
        for topic, definition in zip(sow.topics, every, strict=True)
        if not not_running(topic, config)
    ]
    before: list[ViewDefinition] = []
    written: list[ViewDefinition] = []
    for view in sorted(sow.views, key=lambda each: each.position):
        try:
            definition = ViewSettings.model_validate(view_settings(view)).definition()
        except ValidationError as error:
            path, text = next(iter(explain(error, ViewSettings)))
            element = _ELEMENTS.get(str(path[0]) if path else "", "")
            yield JudgedView(view, None, element, text, True)
            continue
        types = definitions(config)
        problems = view_problems(definition, topics, before, types)
        wrong = problems and view_problems(definition, every, written, types)
        written.append(definition)
        if problems:
            text = problems[0].text
            yield JudgedView(view, definition, "", text, bool(wrong))
            continue
        before.append(definition)
        yield JudgedView(view, definition)


def running_views(config: AmpsConfig) -> list[dict[str, Any]]:
    """Returns the settings of the views that run, in order."""
    return [view_settings(each.view) for each in judged_views(config) if not each.problem]


def view_texts(config: AmpsConfig) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yields the place in `SOW` and the text of each error in views."""
    sow = config.sow
    if sow is None:
        return
    try:
        for each in judged_views(config):
            if each.is_wrong:
                place: tuple[str | int, ...] = ("View", sow.views.index(each.view))
                more = (each.element,) if each.element else ()
                yield (*place, *more), f"view {each.view.name}: {each.problem}"
    except (ConfigurationError, ValidationError):
        # Of a topic that is wrong itself, its own error is told.
        return


def not_running_views(config: AmpsConfig) -> Iterator[tuple[int, str]]:
    """Yields the number of each view that is right and does not run here, and why."""
    sow = config.sow
    if sow is None:
        return
    for each in judged_views(config):
        if each.problem:
            text = f"View {each.view.name} of SOW does not run here: {each.problem}"
            yield sow.views.index(each.view), text
